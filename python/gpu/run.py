"""Runs the scripts beside this one on a GPU, each in a process of its own: under PyTorch's own allocator, the same with
expandable segments, and on gapless.

    python3 run.py [--json FILE] [--table FILE] [--seconds N] [--parts NAME,NAME] [--jobs N] [--simulated] [--on-cpu]

What is timed runs alone. The other parts run side by side where the GPU has the memory for it. Every part says on its own
whether it is ok, failed, skipped or out of time, and why. Exit code: 0 when none failed, 1 when one did, 77 when all were
skipped. PyTorch is that of the Python that runs this file. A process past its limit is ended with all its children.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPPED = 77
MIB = 1 << 20
# Below this much memory the scripts run in their small form, and one at a time.
SMALL_BELOW = 20 << 30
# What the limited training may hold, over the most that its tensors take at once.
LIMITED = 1.06
# Settings of the caller's that would change what is compared.
CLEARED = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "GAPLESS_CONF", "GAPLESS_TORCH")
POLICIES = {
    "native": ([], {}),
    "expandable": ([], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "gapless": (["-m", "gapless.torch"], {}),
}
PROBE = """
import json, sys
found = {"python": sys.version.split()[0]}
try:
    import torch
except ImportError as error:
    found["missing"] = f"{type(error).__name__}: {error}"
else:
    found["torch"] = torch.__version__
    found["plug_ins"] = hasattr(torch._C, "_cuda_customAllocator")
    found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name(0)
        found["total"] = torch.cuda.mem_get_info(0)[1]
print(json.dumps(found))
"""


class Failed(Exception):
    """A part failed, with the reason for a person."""


class OutOfTime(Failed):
    """A part, or a process of it, reached its limit."""


class Skipped(Exception):
    """A part cannot be run here."""


class Stage:
    """The parts, what they share, and what became of them."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.deadline = time.monotonic() + arguments.seconds
        self.scripts = Path(arguments.scripts)
        # Guards the children, the parts and what is written about them.
        self.lock = threading.RLock()
        self.children = set()
        self.is_over = False
        self.environment = {}
        # What PyTorch calls its allocator under each policy.
        self.backends = {}
        self.parts = []
        # The native runs of the trainings without a limit, by script.
        self.native = {}
        # At most so many bytes of the GPU for the parts that need a limit.
        self.limit = 512 * MIB
        self.small = []
        self.jobs = 1

    def process(self, command, limit, settings=()):
        """One process, ended with its children at the limit: exit code, seconds, stdout, stderr."""
        left = self.deadline - time.monotonic()
        if left < 1:
            raise OutOfTime("no time was left")
        environment = {name: value for name, value in os.environ.items() if name not in CLEARED}
        path = [self.arguments.package, environment.get("PYTHONPATH", "")]
        environment.update(
            PYTHONPATH=os.pathsep.join(filter(None, path)),
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONFAULTHANDLER="1",
            PYTHONUNBUFFERED="1",
            CUBLAS_WORKSPACE_CONFIG=":4096:8",
            **dict(settings),
        )
        began = time.monotonic()
        # Files, not pipes: a grandchild that survives would keep a pipe open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with self.lock:
                if self.is_over:
                    raise OutOfTime("the stage was ended")
                child = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=self.scripts,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
                self.children.add(child)
            try:
                code = child.wait(timeout=min(limit, left))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self.end(child)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return code, time.monotonic() - began, texts[0], texts[1]

    def end(self, child):
        """Ends a process with everything that it started; to be called at any time."""
        with self.lock:
            if child not in self.children:
                return
            self.children.remove(child)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        child.wait()

    def end_all(self):
        """Ends every process, and lets none start any more."""
        with self.lock:
            self.is_over = True
            children = list(self.children)
        for child in children:
            self.end(child)

    def script(self, name, policy, *arguments, limit=60, settings=()):
        """Runs a script under a policy. What it found, with how it ended; never raises for a script that fails."""
        prefix, own = POLICIES.get(policy, ([], {}))
        command = [*prefix, str(self.scripts / name), *arguments]
        code, seconds, out, err = self.process(command, limit, {**own, **dict(settings)}.items())
        found = {"exit_code": code, "seconds": round(seconds, 3)}
        try:
            last = json.loads(out.rstrip().rsplit("\n", 1)[-1])
        except ValueError:
            last = None
        # What was found is kept where the process fails after it, too.
        if isinstance(last, dict):
            found.update(last)
            if code == 0:
                return found
        after = " after its result" if isinstance(last, dict) else ""
        if code is None:
            found["error"] = f"ended after {seconds:.0f} s{after}"
        elif code < 0:
            found["error"] = f"killed by signal {-code}{after}"
        else:
            found["error"] = (last_line(err) or f"exit code {code} and no result") + after
        print(f"-- {name} under {policy}: {found['error']}\n{err[-6000:]}", file=sys.stderr, flush=True)
        found["stderr"] = err[-3000:]
        return found

    def part(self, name, body):
        began = time.monotonic()
        runs = {}
        outcome, reason = "ok", ""
        try:
            reason = body(self, runs) or ""
        except Skipped as why:
            outcome, reason = "skipped", str(why)
        except OutOfTime as why:
            outcome, reason = "out of time", str(why)
        except Failed as why:
            outcome, reason = "failed", str(why)
        except Exception as error:  # a result that is not as the scripts write it
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
        self.add(name, outcome, reason, time.monotonic() - began, runs)

    def run_parts(self, parts):
        """The timed parts alone and in order, then the others side by side."""
        for name in (name for name in parts if name in TIMED):
            self.part(name, parts[name])
        with ThreadPoolExecutor(self.jobs) as pool:
            for name in (name for name in parts if name not in TIMED):
                pool.submit(self.part, name, parts[name])

    def add(self, name, outcome, reason, seconds=0.0, runs=None):
        part = {"name": name, "outcome": outcome, "reason": reason, "seconds": round(seconds, 3), "runs": runs or {}}
        with self.lock:
            self.parts.append(part)
            print(f"python {name}: {outcome} ({seconds:.1f} s) {reason}".rstrip(), file=sys.stderr, flush=True)
            self.write()

    def write(self):
        """After every part: what was found is there whatever happens next."""
        outcomes = [part["outcome"] for part in self.parts]
        result = {"environment": self.environment, "backends": self.backends, "parts": self.parts}
        if self.arguments.json:
            Path(self.arguments.json).write_text(json.dumps(result) + "\n")
        if self.arguments.table:
            Path(self.arguments.table).write_text(table(result))
        if all(outcome == "skipped" for outcome in outcomes):
            return SKIPPED
        return 0 if all(outcome in ("ok", "skipped") for outcome in outcomes) else 1

    def expect(self, run, policy):
        """A run that ended well, and under the allocator that it was meant for."""
        error = run.get("error")
        if error is not None:
            raise (OutOfTime if run["exit_code"] is None else Failed)(f"{policy}: {error}")
        if self.arguments.on_cpu:
            return
        # The allocator object is what users get. On the plug-in this would be a test of something else.
        backend, wanted = run["memory"]["backend"], ["object"] if policy == "gapless" else ["native"]
        if policy == "gapless" and self.arguments.plug_in:
            wanted.append("plug-in")
        self.backends[policy] = backend
        if backend not in wanted:
            raise Failed(f"{policy}: PyTorch allocated through '{backend}', not '{wanted[0]}'")
        if policy == "expandable" and not run["memory"]["expandable"]:
            raise Failed("expandable: PyTorch's segments were not expandable")


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else ""


def environment(stage, _runs):
    code, _, out, err = stage.process(["-c", PROBE], limit=120)
    if code is None:
        raise OutOfTime("importing PyTorch took longer than 120 s")
    if code != 0:
        raise Failed(f"PyTorch does not start: {last_line(err) or f'exit code {code}'}")
    found = stage.environment = json.loads(out.rstrip().rsplit("\n", 1)[-1])
    found["executable"] = sys.executable
    if "missing" in found:
        raise Skipped(f"PyTorch is not there for {sys.executable} ({found['missing']})")
    if not stage.arguments.on_cpu:
        if found["cuda"] is None:
            raise Skipped(f"PyTorch {found['torch']} is not a CUDA build")
        if "device" not in found:
            raise Skipped(f"PyTorch {found['torch']} sees no GPU")
    if not found["plug_ins"]:
        raise Skipped(f"PyTorch {found['torch']} has no interface for allocators: 2.4 or newer has")
    total = found.get("total", 0)
    if total < SMALL_BELOW:
        stage.small = ["--small"]
    else:
        stage.limit = 8 << 30
        stage.jobs = stage.arguments.jobs


def training(script):
    """The same script under all three: gapless has to give the losses of PyTorch's own allocator, bit for bit."""

    def body(stage, runs):
        measured_twice(stage, runs, script, *stage.small)
        native, expandable, gapless = (runs[policy] for policy in POLICIES)
        stage.expect(native, "native")
        stage.native[script] = native
        stage.expect(gapless, "gapless")
        notes = []
        try:
            stage.expect(expandable, "expandable")
        except Failed as why:
            notes.append(str(why))
        else:
            differs = difference(native, expandable)
            if differs:
                notes.append(f"PyTorch's two own allocators differ as well: {differs}")
        differs = difference(native, gapless)
        if differs:
            raise Failed("; ".join([f"gapless does not give the losses of the native allocator: {differs}", *notes]))
        return "; ".join([f"{len(native['losses'])} steps, equal losses", *notes])

    return body


def measured_twice(stage, runs, script, *arguments):
    """Runs a script under every policy and once more in the other order: what is kept is the faster run, and both times. A GPU's
    clock and a machine's other work change what one run takes by more than allocators do."""
    for policy in [*POLICIES, *reversed(POLICIES)]:
        run, before = stage.script(script, policy, *arguments), runs.get(policy)
        times = [found["step_ms"] for found in (before, run) if found is not None and "step_ms" in found]
        if before is None or "error" in run or ("error" not in before and run["step_ms"] < before["step_ms"]):
            runs[policy] = run
        if "error" not in run and before is not None and "error" not in before:
            differs = difference(before, run)
            if differs:
                runs[policy]["error"] = f"two runs differ: {differs}"
        runs[policy]["rounds_ms"] = times


def limited(stage, runs):
    """The transformer under a limit close to what its tensors take: gapless has to survive with the same losses."""
    need_gpu(stage)
    script = "train_transformer.py"
    unlimited = stage.native.get(script)
    if unlimited is None:
        raise Skipped("the unlimited training told no peak to set the limit by")
    limit = int(unlimited["memory"]["peak_requested"] * LIMITED)
    for policy in POLICIES:
        runs[policy] = stage.script(script, policy, *stage.small, "--limit", str(limit))
    notes = [f"{mib(limit)} MiB, {LIMITED} times what the tensors take at once"]
    notes += [f"{policy}: {last(run)}" for policy, run in runs.items()]
    gapless = runs["gapless"]
    try:
        stage.expect(gapless, "gapless")
    except Failed as why:
        raise type(why)("; ".join([str(why), *notes])) from None
    differs = difference(unlimited, gapless)
    if differs:
        raise Failed(f"gapless does not give the losses of the unlimited training: {differs}")
    return "; ".join(notes)


def advice(stage, runs):
    """What `gapless advise` says of a recorded training, tried: the training on the smallest device that it names for each
    allocator, and on one 2 % smaller."""
    need_gpu(stage)
    script = "train_transformer.py"
    with tempfile.TemporaryDirectory() as folder:
        snapshot = f"{folder}/snapshot.pickle"
        runs["recorded"] = stage.script(script, "native", *stage.small, "--snapshot", snapshot, limit=90)
        stage.expect(runs["recorded"], "native")
        code, seconds, out, err = stage.process(["-m", "gapless", "advise", snapshot, "--json"], limit=90)
    if code is None:
        raise OutOfTime("gapless advise took longer than 90 s")
    if code != 0:
        raise Failed(f"gapless advise: {last_line(err) or f'exit code {code}'}")
    smallest = {policy["setting"]: policy["smallest_device_bytes"] for policy in json.loads(out)["policies"]}
    notes, wrong = [f"advice in {seconds:.1f} s"], []
    for policy, setting in {"native": "native", "expandable": "expandable_segments:True", "gapless": "gapless"}.items():
        for share, expected in ((1.002, "survives"), (0.98, "out of memory")):
            limit = int(smallest[setting] * share)
            run = runs[f"{policy} {share}"] = stage.script(script, policy, *stage.small, "--limit", str(limit))
            notes.append(f"{policy} at {mib(limit)} MiB: {last(run)}")
            if last(run) != expected:
                wrong.append(notes[-1])
    if wrong:
        raise Failed(f"the advice does not hold: {'; '.join(wrong)}. All: {'; '.join(notes)}")
    return "; ".join(notes)


def last(run):
    """How a run ended, in a few words."""
    if "error" not in run:
        return "survives"
    return "out of memory" if "OutOfMemoryError" in run.get("stderr", "") else run["error"]


def difference(one, other):
    """What two runs of one training differ in, or nothing."""
    if "error" in other:
        return "it did not end"
    if not one["losses"] or len(one["losses"]) != len(other["losses"]):
        return f"{len(one['losses'])} steps and {len(other['losses'])}"
    for step, (a, b) in enumerate(zip(one["losses"], other["losses"]), 1):
        if a != b:
            largest = max(abs(a - b) for a, b in zip(one["losses"], other["losses"]))
            return f"from step {step} on, {a!r} and {b!r}; by at most {largest:.3g}"
        if a != a:
            return f"the loss of step {step} is not a number"
    return "" if one["checksum"] == other["checksum"] else "the weights after the last step differ"


def need_gpu(stage):
    if stage.arguments.on_cpu:
        raise Skipped("needs a GPU")


def fragmentation(stage, runs):
    need_gpu(stage)
    for policy in POLICIES:
        runs[policy] = stage.script("fragmentation.py", policy, "--limit", str(stage.limit))
    for policy in ("native", "gapless"):
        stage.expect(runs[policy], policy)
    if runs["gapless"]["outcome"] != "served":
        raise Failed(f"gapless ran out of memory: {runs['gapless']['message']}")
    if runs["native"]["outcome"] != "out of memory":
        raise Failed("the native allocator served it too: the case shows nothing here")
    expandable = runs["expandable"]
    return f"native: out of memory; expandable: {expandable.get('outcome', expandable.get('error'))}; gapless: served"


def checks(script, limit=60, settings=(), has_native=True):
    """A script that checks what it does. Where it fails on gapless, it is run on the native allocator, too, unless that has none
    of it."""

    def body(stage, runs):
        need_gpu(stage)
        gapless = runs["gapless"] = stage.script(script, "gapless", limit=limit, settings=settings)
        try:
            stage.expect(gapless, "gapless")
        except Failed as why:
            if not has_native:
                raise
            native = runs["native"] = stage.script(script, "native", limit=limit)
            raise type(why)(f"{why}; native: {native.get('error', 'ok')}") from None
        return f"{len(gapless['checks'])} checks"

    return body


def compared(script, unit, values, large=False):
    """A script that measures: what it found under every policy, side by side. ``values`` gives names and numbers of a run."""

    def body(stage, runs):
        need_gpu(stage)
        if large and stage.small:
            raise Skipped("needs 20 GiB")
        for policy in POLICIES:
            runs[policy] = stage.script(script, policy)
        for policy in POLICIES:
            stage.expect(runs[policy], policy)
        columns = [values(runs[policy]) for policy in POLICIES]
        rows = (name + " " + "/".join(f"{column[name]:.2f}" for column in columns) for name in columns[0])
        return f"{unit}, {'/'.join(POLICIES)}: {', '.join(rows)}"

    return body


def library(name, starts, script):
    """A script over a library beside PyTorch, which is skipped where the library does not start."""

    def body(stage, runs):
        need_gpu(stage)
        code, _, _, err = stage.process(["-c", starts], limit=60)
        if code != 0:
            raise Skipped(f"{name} is not there or does not start: {last_line(err) or f'exit code {code}'}")
        budget = min(stage.limit, 2 << 30)
        run = runs["gapless"] = stage.script(script, "library", limit=90, settings={"GAPLESS_CONF": f"budget:{budget}"})
        if "error" in run:
            raise (OutOfTime if run["exit_code"] is None else Failed)(run["error"])
        return f"{name} {run['version']}, {len(run['checks'])} checks"

    return body


def sleep(stage, runs):
    """Sleep and wake; the backups in files lie in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        return checks("sleep.py", limit=90, settings={"GAPLESS_CONF": f"backups:{folder}"}, has_native=False)(stage, runs)


def sleep_times(stage, runs):
    """What a sleep and a wake take, by hand, with torch_memory_saver where it is installed, and with gapless."""
    need_gpu(stage)
    if stage.small:
        raise Skipped("needs 20 GiB")
    runs["by hand"] = stage.script("sleep_times.py", "native")
    runs["gapless"] = stage.script("sleep_times.py", "gapless")
    saver = "import torch_memory_saver"
    if stage.process(["-c", saver], limit=60)[0] == 0:
        runs["torch_memory_saver"] = stage.script("sleep_times.py", "native", "--saver")
    for name, run in runs.items():
        stage.expect(run, "gapless" if name == "gapless" else "native")
    times = [run["times_ms"] for run in runs.values()]
    rows = (name + " " + "/".join(f"{column[name]:.1f}" for column in times) for name in times[0])
    return f"ms, {'/'.join(runs)}: {', '.join(rows)}"


def table(result):
    """The results for a person."""
    found = result["environment"]
    lines = []
    if found:
        named = [f"Python {found.get('python')}", f"PyTorch {found.get('torch')}", found.get("device") or "no GPU"]
        lines += [", ".join(named), ""]
    for policy, backend in result["backends"].items():
        lines += [f"What allocated under {policy}: `{backend}`.", ""]
    lines += ["| part | outcome | seconds | |", "| --- | --- | --: | --- |"]
    for part in result["parts"]:
        reason = part["reason"].replace("|", "/").replace("\n", " ")
        lines.append(f"| {part['name']} | {part['outcome']} | {part['seconds']:.1f} | {reason} |")
    measured = [part for part in result["parts"] if any("step_ms" in run for run in part["runs"].values())]
    if measured:
        lines += [
            "",
            "| training | allocator | peak asked for, MiB | peak allocated | peak reserved | reserved / asked for "
            "| median step, ms | of every run | all steps, ms | last loss |",
            "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |",
        ]
        for part in measured:
            for policy, run in part["runs"].items():
                lines.append(f"| {part['name']} | {policy} | {figures(run)} |")
    holes = [part for part in result["parts"] if any("wanted" in run for run in part["runs"].values())]
    for part in holes:
        run = next(run for run in part["runs"].values() if "wanted" in run)
        lines += [
            "",
            f"A limit of {mib(run['limit'])} MiB, {mib(run['live'])} MiB live, {mib(run['free'])} MiB free in holes of "
            f"{mib(run['hole'])} MiB, {mib(run['wanted'])} MiB asked for:",
            "",
        ]
        for policy, run in part["runs"].items():
            message = (run.get("message") or run.get("error") or "").partition("\n")[0]
            lines.append(f"- {policy}: " + ". ".join(filter(None, [run.get("outcome", "failed"), message])))
    for part in result["parts"]:
        for policy, run in part["runs"].items():
            if run.get("checks"):
                lines += ["", f"{part['name']} on {policy}: " + "; ".join(run["checks"]) + "."]
    return "\n".join(lines) + "\n"


def mib(size):
    return f"{size / MIB:,.0f}"


def figures(run):
    if "step_ms" not in run:
        return f"{last(run)} | | | | | | | ".replace("\n", " ")
    memory = run["memory"]
    sizes = " | | | "
    if memory["backend"] is not None:
        sizes = " | ".join(mib(memory[key]) for key in ("peak_requested", "peak_allocated", "peak_reserved"))
        sizes += f" | {memory['peak_reserved'] / max(1, memory['peak_requested']):.3f}"
    rounds = ", ".join(f"{time:.2f}" for time in run.get("rounds_ms", ()))
    return f"{sizes} | {run['step_ms']:.2f} | {rounds} | {run['timed_ms']:.0f} | {run['losses'][-1]:.6f}"


PARTS = {
    "mlp": training("train_mlp.py"),
    "transformer": training("train_transformer.py"),
    "steps": compared("step_time.py", "ms a step", lambda run: {name: at[0] for name, at in run["times"].items()}, large=True),
    "pairs": compared("pairs.py", "ns a pair", lambda run: run["pair_ns"]),
    "graphs": checks("graphs.py"),
    "streams": checks("streams.py"),
    "recovery": checks("recovery.py"),
    "processes": checks("processes.py"),
    "compiled": checks("compiled.py", limit=150),
    "fragmentation": fragmentation,
    # Its limit comes from the part `transformer`.
    "limited": limited,
    "advise": advice,
    "sleep": sleep,
    "sleep_times": sleep_times,
    "cupy": library("CuPy", "import cupy; cupy.cuda.runtime.getDeviceCount()", "cupy_arrays.py"),
    "numba": library("numba-cuda", "import numba_cuda; from numba import cuda; cuda.current_context()", "numba_arrays.py"),
    "rmm": library("RMM", "import rmm; rmm.DeviceBuffer(size=1)", "rmm_buffers.py"),
}
# These report times, and have the GPU and the processors to themselves.
TIMED = ("mlp", "transformer", "steps", "pairs", "sleep_times")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("--table", help="where the results go, for a person (Markdown)")
    parser.add_argument("--seconds", type=float, default=240, help="the most for all parts together")
    parser.add_argument("--parts", type=lambda text: text.split(","), help=f"only these, of {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=4, help="parts at a time on a GPU of 20 GiB or more [4]")
    parser.add_argument("--simulated", action="store_true", help="say that the simulated driver runs no PyTorch")
    parser.add_argument("--plug-in", action="store_true", help="PyTorch may run on the plug-in, without an allocator object")
    parser.add_argument("--on-cpu", action="store_true", help="run the trainings on the processor: tries this file out")
    parser.add_argument("--scripts", default=str(HERE), help="the folder of the scripts")
    parser.add_argument("--package", default=str(HERE.parent), help="the folder that holds the package gapless")
    arguments = parser.parse_args()
    for name in arguments.parts or ():
        if name not in PARTS:
            parser.error(f"there is no part {name}; the parts are {', '.join(PARTS)}")
    # Out of the caller's folder: the children run elsewhere.
    arguments.package = str(Path(arguments.package).resolve())
    arguments.scripts = str(Path(arguments.scripts).resolve())

    stage = Stage(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: (stage.end_all(), sys.exit(128 + number)))
    try:
        if arguments.simulated:
            stage.add("environment", "skipped", "PyTorch does not run on the simulated driver library")
            return stage.write()
        stage.part("environment", environment)
        if stage.parts[0]["outcome"] == "ok":
            stage.run_parts({name: body for name, body in PARTS.items() if name in (arguments.parts or PARTS)})
        return stage.write()
    finally:
        stage.end_all()


if __name__ == "__main__":
    sys.exit(main())
