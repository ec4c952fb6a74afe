"""PyTorch's own tests of memory in ``test_cuda.py``, natively first and then on gapless: the share that passes, and what does not.

``pytorch_tests.py FOLDER [NAME...]``: the folder ``test`` of PyTorch's sources, and parts of names of tests (default: all that are
about memory, graphs or streams). Each test runs in a process of its own, with a time limit, and on a fresh device. No kernel runs
here, and products of matrices are stand-ins: where a test fails natively, it is tried again without comparisons of what tensors on
the device hold, and where it fails then, it does not count.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

# A test that computes for ever is ended by the first, one that waits for ever by the second: a busy machine is slow, too.
CPU_LIMIT_S = 40
LIMIT_S = 600
ABOUT_MEMORY = re.compile(r"[Mm]emory|[Aa]lloc|[Pp]ool|[Gg]raph|[Ss]tream|snapshot|[Cc]heckpoint|empty_cache")
WAYS = ("native", "object", "plug-in")


def listed(module) -> list[str]:
    """The names of the tests that are about memory."""
    found = []
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__module__ == module.__name__:
            for test in unittest.defaultTestLoader.getTestCaseNames(kind):
                if ABOUT_MEMORY.search(inspect.getsource(getattr(kind, test))) and not re.search("CPU|Optims|Autocast", name):
                    found.append(f"{name}.{test}")
    return sorted(found)


class Unknown(float):
    """A number that was read from the device."""


def compare_no_values(module) -> None:
    """Comparisons of what tensors on the device hold, which no kernel has computed, are left out."""
    import torch

    def is_value(argument):
        return isinstance(argument, Unknown) or (isinstance(argument, torch.Tensor) and argument.is_cuda)

    def without_values(method):
        def compare(self, *arguments, **options):
            return None if any(map(is_value, arguments)) else method(self, *arguments, **options)

        return compare

    for name in ("assertEqual", "assertNotEqual", "assertTrue", "assertFalse"):
        setattr(module.TestCase, name, without_values(getattr(module.TestCase, name)))
    item = torch.Tensor.item
    torch.Tensor.item = lambda tensor: Unknown(item(tensor)) if tensor.is_cuda else item(tensor)


def outcome_of(module, name: str, values: bool) -> tuple[str, str]:
    """How a test ends: "passed", "skipped" or "failed", and why. `values`: whether what tensors hold is compared."""
    if not values:
        compare_no_values(module)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromName(name, module).run(result)
    failures = result.failures + result.errors
    if failures:
        return "failed", reason(failures[0][1])
    if result.skipped or result.expectedFailures:
        return "skipped", result.skipped[0][1] if result.skipped else "an expected failure"
    return "passed", ""


def reason(traceback: str) -> str:
    """The first line of the last error in a traceback."""
    lines = traceback.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Warning)\b", line)]
    return errors[-1] if errors else lines[-1]


def in_child(work) -> tuple[str, object]:
    """Returns what a function returns in a process of its own, or how that ended instead."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))
        os.close(reader)
        with tempfile.TemporaryFile() as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                answer = work()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the outcome
                answer = ("failed", f"{type(error).__name__}: {error}")
            os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    told, end = b"", time.monotonic() + LIMIT_S
    while select.select([reader], [], [], max(0, end - time.monotonic()))[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            break
        told += part
    else:
        told = json.dumps(("failed", f"it waits longer than {LIMIT_S} s")).encode()
    os.close(reader)
    # With what it has started.
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    status = os.waitpid(child, 0)[1]
    if not told:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
        return "failed", f"the process ended with {how}"
    return json.loads(told)


def work(way: str, folder: str) -> None:
    """Runs the tests that come in, names with whether values are compared, and reports how each ends; without tests, all names."""
    sys.path.insert(0, folder)
    os.chdir(folder)
    if way != "native":
        import gapless.torch

        gapless.torch.enable()
    import torch
    import torch._dynamo  # noqa: F401 - what takes long is imported once

    assert not torch.cuda.is_initialized()

    def module():
        import test_cuda

        assert way == "native" or gapless.torch.backend() == way
        return test_cuda

    wanted = json.load(sys.stdin)
    if not wanted:
        print(json.dumps(in_child(lambda: ("names", listed(module())))), flush=True)
        return
    for name, values in wanted:
        outcome, text = in_child(lambda: outcome_of(module(), name, values))
        print(json.dumps({"test": name, "values": values, "outcome": outcome, "text": text}), flush=True)


def run(way: str, folder: str, tests: list) -> list:
    environment = {key: value for key, value in os.environ.items() if key not in ("GAPLESS_TORCH", "GAPLESS_CONF")}
    environment["LD_PRELOAD"] = f"{os.environ['LD_PRELOAD']} {os.environ['GAPLESS_CUBLAS']}"
    if way != "object":
        environment["GAPLESS_TORCH_OBJECTS"] = "off"
    with tempfile.TemporaryDirectory() as start:
        # What the wheel's gapless_start.pth does: the programs that a test starts are on gapless, too.
        (Path(start) / "sitecustomize.py").write_text((Path(__file__).parents[2] / "gapless_start.pth").read_text())
        environment["PYTHONPATH"] = f"{start}:{os.environ['PYTHONPATH']}"
        worker = subprocess.run(
            [sys.executable, __file__, "--way", way, folder],
            env=environment,
            input=json.dumps(tests),
            stdout=subprocess.PIPE,
            text=True,
        )
    if worker.returncode != 0:
        raise SystemExit(f"the tests did not run on {way}")
    return [json.loads(line) for line in worker.stdout.splitlines()]


def print_others(way: str, ended: list) -> None:
    for one in ended:
        if one["outcome"] != "passed":
            print(f"  {way}: {one['test']} {one['outcome']}: {one['text'][:200]}", flush=True)


def main(folder: str, parts: list[str]) -> None:
    kind, names = run("native", folder, [])[0]
    if kind != "names":
        raise SystemExit(f"test_cuda.py cannot be loaded: {names}")
    names = [name for name in names if not parts or any(part in name for part in parts)]
    natively = run("native", folder, [(name, True) for name in names])
    failed = [(one["test"], False) for one in natively if one["outcome"] == "failed"]
    natively = [one for one in natively if one["outcome"] != "failed"] + (run("native", folder, failed) if failed else [])
    counted = [(one["test"], one["values"]) for one in natively if one["outcome"] == "passed"]
    print(f"of {len(names)} tests of test_cuda.py that are about memory, graphs or streams, {len(counted)} pass natively here")
    print_others("native", natively)
    for way in WAYS[1:] if counted else ():
        ours = run(way, folder, counted)
        passed = [one for one in ours if one["outcome"] == "passed"]
        print(f"{way}: {len(passed)} of {len(counted)} pass ({100 * len(passed) / len(counted):.1f} %)")
        print_others(way, ours)


if __name__ == "__main__":
    if sys.argv[1] == "--way":
        work(sys.argv[2], sys.argv[3])
    else:
        main(str(Path(sys.argv[1]).resolve()), sys.argv[2:])
