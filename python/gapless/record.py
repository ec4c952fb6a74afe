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

from . import Recording, _program, _run
from ._fake.trace import check_writable

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
    # The script may change the folder.
    output = os.path.abspath(options.output)
    try:
        check_writable(output)
    except OSError as error:
        return _fail(_unwritable(options.output, error))
    refusal = _refusal(_named(options))
    if refusal is not None:
        return _fail(refusal)
    name = options.gpu or "GPU of gapless.record --fake"
    # Also where there is a GPU, the run does without it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    warnings.filterwarnings("ignore", message="CUDA initialization")
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
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
    return _record(options, output, name, torch)


def _record(options: argparse.Namespace, output: str, name: str, torch: ModuleType) -> int:
    from ._fake import cuda, tensors
    from ._fake.steps import Finished, Steps
    from ._fake.trace import Trace
    from ._fake.values import Values

    run = _run.start(options.program)
    trace, values = Trace(), Values(options.assume)
    steps = Steps(trace, options.steps)
    capability = cuda.capability_of(name)
    recorder = tensors.Recorder(trace, values, _workspace_bytes(capability))
    cuda.install(torch, trace, options.device or _ASSUMED_DEVICE_BYTES, capability, name)
    kernels = tensors.install(recorder)
    steps.install()
    try:
        with tensors.Devices(values), recorder:
            run()
    except Finished:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            return _fail(f"the script ended itself: {end.code if isinstance(end.code, str) else f'exit code {end.code}'}")
    except BaseException as error:
        return _explain(error, steps.taken)
    finally:
        del kernels
    if not trace.peak_live_bytes:
        return _fail("the script allocated nothing on a CUDA device: does it take its device from an argument?")
    try:
        trace.write(output, {"made": "gapless.record --fake", "script": " ".join(options.program)})
    except OSError as error:
        return _fail(_unwritable(options.output, error))
    ended = f"; --steps ended the run after {steps.ended}" if steps.ended else ""
    print(f"gapless: {_counted(steps.taken)} recorded in {options.output}{ended}", file=sys.stderr)
    return _advise(options, output, trace.peak_live_bytes)


def _minor(version: str) -> tuple[int, ...]:
    """``(2, 15)`` of ``2.15.0+cu132``."""
    return tuple(int(number) for number in version.split(".")[:2])


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gapless.record",
        description="Runs a PyTorch script without a GPU, and says which device it would fit.",
        epilog="Exit code: 0 if the recording was written, and fits the device if one was named (which the command gapless says: "
        "where that is not found, 0 too); 3 if it does not fit the named device with any allocator; 2, and no recording, for bad "
        "arguments, a script that fails, and one that needs what is not known without a GPU.",
    )
    parser.add_argument("--fake", action="store_true", required=True, help="without a GPU: tensors on it have no data")
    parser.add_argument("--steps", type=_count, metavar="N", help="end after N steps: of an optimizer, or else forward passes")
    parser.add_argument(
        "--assume",
        type=_value,
        metavar="VALUE",
        help="what whole numbers and truth values are that the script reads from the device: a number, of which 0 is also false; "
        "without it the run ends there",
    )
    parser.add_argument("-o", "--output", default="recording.trace.gz", metavar="OUT", help="[default: %(default)s]")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--device", type=_size, metavar="SIZE", help="memory for the allocator, such as 24GiB")
    where.add_argument("--gpu", metavar="NAME", help='a GPU that gapless advise knows, such as "RTX 4090"')
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="script.py arguments...", help="or -m module, or -c code")
    for option in ("-m", "-c"):
        # What comes after it is the program's.
        parser.add_argument(option, nargs=argparse.REMAINDER, action=_Program, dest="started", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.program = options.started or options.program
    if not options.program:
        parser.error("name a script")
    return options


class _Program(argparse.Action):
    """The program as ``-m module ...`` or ``-c code ...``."""

    def __call__(self, _parser: Any, options: argparse.Namespace, values: Any, option: Optional[str] = None) -> None:
        options.started = [option, *values]


def _advise(options: argparse.Namespace, output: str, peak: int) -> int:
    """Hands the recording to ``gapless advise``, and prints one sentence. Returns the exit code."""
    try:
        result = subprocess.run([*_command(output), *_named(options)], stdout=subprocess.PIPE, text=True)
    except OSError:
        print(f"peak live {_gib(peak)}; the command gapless, which says what that fits, was not found")
        return 0
    if result.returncode not in (0, _NOTHING_FITS):
        return result.returncode
    device = "the " + options.gpu if options.gpu else f"a {_gib(options.device)} device" if options.device else None
    print(sentence(json.loads(result.stdout), device))
    print(f"more: gapless advise {options.output}", file=sys.stderr)
    return result.returncode if device else 0


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
    from ._fake import values

    line = values.script_line(traceback.extract_tb(error.__traceback__))
    if isinstance(error, values.NeedsData):
        hint = f"--steps {steps} records what comes before it" if steps else "change it for this run"
        return _fail(f"{line}: {error}; {_counted(steps)} before it; {hint}")
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, _run.__file__):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)
    return _fail(f"{line}: the script ended with an error")


def _command(recording: str) -> list[str]:
    settings = [word for setting in _POLICIES for word in ("--setting", setting)]
    return [os.fspath(_program.program()), "advise", recording, "--json", *settings]


def _named(options: argparse.Namespace) -> list[str]:
    """The device, as ``gapless advise`` is told."""
    if options.gpu:
        return ["--gpu", options.gpu]
    return ["--device", str(options.device)] if options.device else []


def _refusal(device: list[str]) -> Optional[str]:
    """Why ``gapless advise`` would not take this device; None where it does, or is not there."""
    if not device:
        return None
    command = [*_command("-"), *device]
    try:
        result = subprocess.run(command, input="a 0 512 0\nf 0\n", capture_output=True, text=True)
    except OSError:
        return None
    return result.stderr.strip().partition("\n")[0] if result.returncode not in (0, _NOTHING_FITS) else None


def _unwritable(path: str, error: OSError) -> str:
    return f"-o {path} cannot be written: {error.strerror}"


def _fail(text: str) -> int:
    print(f"gapless.record: {text}", file=sys.stderr)
    return 2


def _workspace_bytes(capability: tuple[int, int]) -> int:
    """cuBLAS's workspace as PyTorch chooses it: 32 MiB on Hopper and Blackwell."""
    return 32 << 20 if capability[0] in (9, 10) else (8 << 20) + (128 << 10)


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: give one such as 24GiB")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if not size:
        raise argparse.ArgumentTypeError("a device of 0 bytes holds nothing")
    return size


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps")
    return int(text)


def _value(text: str) -> int:
    if not re.fullmatch("-?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


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
