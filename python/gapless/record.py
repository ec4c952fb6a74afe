"""``python -m gapless.record --fake script.py``: will it fit? A recording of a PyTorch script without a GPU.

Importing this module leaves ``gapless.record(path)`` what it is: the function that records a program on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import traceback
import warnings
from types import ModuleType
from typing import Any, Optional

from . import Recording, __main__, _run

# The policies of the last sentence, in its words.
_POLICIES = {"native": "native defaults", "expandable_segments:True": "expandable segments", "gapless": "gapless"}


class _Record(ModuleType):
    """This module, called as ``gapless.record`` is."""

    def __call__(self, path: Any, device: Optional[int] = None) -> Recording:
        """Records every allocation and free from now on. See :class:`gapless.Recording`."""
        return Recording(path, device)


sys.modules[__name__].__class__ = _Record


def main(arguments: list[str]) -> int:
    """Runs a script without a GPU, writes the recording, and says what it would fit. Returns the exit code."""
    options = _options(arguments)
    name = options.gpu or "GPU of gapless.record --fake"
    # Also where there is a GPU, the run does without it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    warnings.filterwarnings("ignore", message="CUDA initialization")
    try:
        import torch
    except ImportError:
        return _fail("PyTorch is not installed: python -m pip install torch")
    minor = _minor(torch.__version__)
    if minor < _OLDEST:
        return _fail(f"PyTorch {torch.__version__} is too old to run without a GPU: 2.8 or newer is needed")
    if minor < _COMPARED:
        uncounted = "may keep workspaces of cuBLAS, 8 to 32 MiB for each stream, which are not counted"
        print(f"gapless.record: PyTorch before 2.15 {uncounted}; this is {torch.__version__}", file=sys.stderr)
    from ._fake import cuda, tensors
    from ._fake.trace import Trace

    trace = Trace()
    capability = cuda.capability_of(name)
    recorder = tensors.Recorder(trace, _workspace_bytes(capability))
    cuda.install(torch, trace, options.device or _ASSUMED_DEVICE_BYTES, capability, name)
    tensors.install(recorder)
    steps = tensors.count_steps(trace, options.steps)
    code = 0
    try:
        with tensors.Devices(), recorder:
            _run.start(options.program)()
    except tensors.Finished:
        pass
    except SystemExit as end:
        code = 0 if end.code in (None, 0) else 1
    except BaseException as error:
        return _explain(error, steps())
    if code:
        return _fail("the script ended with an error")
    if not trace.peak_live_bytes:
        return _fail("the script allocated nothing on a CUDA device: does it take its device from an argument?")
    trace.write(options.output, {"made": "gapless.record --fake", "script": " ".join(options.program)})
    print(f"gapless: {steps()} steps recorded in {options.output}", file=sys.stderr)
    return _advise(options, trace.peak_live_bytes)


def _minor(version: str) -> tuple[int, ...]:
    """``(2, 15)`` of ``2.15.0+cu132``."""
    return tuple(int(number) for number in version.split(".")[:2])


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gapless.record",
        description="Runs a PyTorch script without a GPU, and says which device it would fit.",
    )
    parser.add_argument("--fake", action="store_true", required=True, help="without a GPU: tensors on it have no data")
    parser.add_argument("--steps", type=_count, metavar="N", help="end after N steps: of an optimizer, or else forward passes")
    parser.add_argument("-o", "--output", default="recording.trace.gz", metavar="OUT", help="[default: %(default)s]")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--device", type=_size, metavar="SIZE", help="memory for the allocator, such as 24GiB")
    where.add_argument("--gpu", metavar="NAME", help='a GPU that gapless advise knows, such as "RTX 4090"')
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="script.py arguments...", help="or -m module, or -c code")
    options = parser.parse_args(arguments)
    if not options.program:
        parser.error("name a script")
    return options


def _advise(options: argparse.Namespace, peak: int) -> int:
    """Hands the recording to ``gapless advise``, and prints one sentence. Its exit code is returned."""
    command = [os.fspath(__main__.program()), "advise", options.output, "--json"]
    if options.gpu:
        command += ["--gpu", options.gpu]
    elif options.device:
        command += ["--device", str(options.device)]
    for setting in _POLICIES:
        command += ["--setting", setting]
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    except OSError:
        print(f"peak live {_gib(peak)}; the command gapless, which says what that fits, was not found")
        return 0
    if result.returncode not in (0, _NOTHING_FITS):
        return result.returncode
    device = "the " + options.gpu if options.gpu else f"a {_gib(options.device)} device" if options.device else None
    print(sentence(json.loads(result.stdout), device))
    print(f"more: gapless advise {options.output}", file=sys.stderr)
    return result.returncode


def sentence(advice: dict[str, Any], device: Optional[str]) -> str:
    """Says what would fit, from the output of ``gapless advise --json``; ``device`` is in words, if one was named."""
    needs = {policy["setting"]: policy["smallest_device_bytes"] for policy in advice["policies"]}
    shown = {setting: name for setting, name in _POLICIES.items() if setting in needs}
    fits = [name for setting, name in shown.items() if _survives(advice, setting)]
    fails = [
        f"{name} ({_gib(needs[setting])})" if needs[setting] else name
        for setting, name in shown.items()
        if not _survives(advice, setting)
    ]
    peak = f"peak live {_gib(advice['peak_live_bytes'])}; "
    if device is None:
        return peak + "needs a device of " + ", ".join(
            f"{_gib(needs[setting])} with {name}" for setting, name in shown.items() if needs[setting]
        )
    if not fits:
        return peak + f"does not fit {device}: needs more with " + ", ".join(fails)
    with_these = f"fits {device} with {' or '.join(fits)}"
    return peak + (f"{with_these}, not with {' or '.join(fails)}" if fails else with_these)


def _survives(advice: dict[str, Any], setting: str) -> bool:
    return any(policy["setting"] == setting and policy["oom_op"] is None for policy in advice["policies"])


def _explain(error: BaseException, steps: int) -> int:
    """Says where the script needed data, or shows its error."""
    from ._fake import tensors

    line = tensors.script_line(traceback.extract_tb(error.__traceback__))
    if isinstance(error, tensors.NeedsData):
        hint = f"--steps {steps} records what comes before it" if steps else "change it for this run"
        return _fail(f"{line}: {error}; {steps} steps before it; {hint}")
    traceback.print_exception(type(error), error, error.__traceback__)
    return _fail(f"{line}: the script ended with an error")


def _fail(text: str) -> int:
    print(f"gapless.record: {text}", file=sys.stderr)
    return 2


def _workspace_bytes(capability: tuple[int, int]) -> int:
    """cuBLAS's workspace as PyTorch chooses it: 32 MiB on Hopper and Blackwell."""
    return 32 << 20 if capability[0] in (9, 10) else (8 << 20) + (128 << 10)


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: give one such as 24GiB")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps")
    return int(text)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


_ASSUMED_DEVICE_BYTES = 80 << 30
_NOTHING_FITS = 3
# The oldest minor of PyTorch that scripts run on, and the one whose peaks were compared.
_OLDEST, _COMPARED = (2, 8), (2, 15)

if __name__ == "__main__":
    # Imported under its own name, so that the package's attribute is callable whatever the script imports.
    from gapless.record import main as _main

    sys.exit(_main(sys.argv[1:]))
