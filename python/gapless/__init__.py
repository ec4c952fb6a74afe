"""gapless: a GPU memory allocator. If the bytes are free, the allocation succeeds.

PyTorch: ``import gapless.torch; gapless.torch.enable()`` before CUDA is initialised.
CuPy, RMM, Numba, Warp: ``gapless.cupy``, ``gapless.rmm``, ``gapless.numba``, ``gapless.warp``. They all share one allocator
per device, made on first use from ``GAPLESS_CONF``; ``stats``, ``report``, ``trim`` and the other functions here are about it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Optional, Sequence

from . import _conf, _frames, _library, _reports
from ._allocators import Allocator, DeviceMemory, Path
from ._figures import Stats
from ._library import GaplessError, OutOfMemoryError
from ._numbers import ErrorKind, Status
from ._streams import NotAStreamError
from .results import Replay, Snapshot

if TYPE_CHECKING:
    from ._advise import AdviseError, Advice, Comparison, JobAdvice, advise, merge_advice

__version__ = "0.3.0"

__all__ = [
    "__version__",
    "Advice",
    "AdviseError",
    "Allocator",
    "Comparison",
    "DeviceMemory",
    "ErrorKind",
    "GaplessError",
    "JobAdvice",
    "NotAStreamError",
    "OutOfMemoryError",
    "Recording",
    "Stats",
    "Status",
    "advise",
    "configure",
    "last_error",
    "merge_advice",
    "record",
    "replay",
    "report",
    "reset_peaks",
    "snapshot",
    "stats",
    "trim",
    "version",
]


def __getattr__(name: str) -> Any:
    # Few programs that allocate ask for advice, whose import takes as long as that of all the rest.
    if name in ("AdviseError", "Advice", "Comparison", "JobAdvice", "advise", "merge_advice"):
        from . import _advise

        return getattr(_advise, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def version() -> str:
    """The library's version."""
    return _library.load().gapless_version().decode()


def configure(conf: str) -> None:
    """Uses ``conf`` in place of ``GAPLESS_CONF`` for the process-wide allocators. Only before their first use."""
    _conf.configure(conf)


def last_error() -> Optional[GaplessError]:
    """The last failure of the calling thread, whichever front end asked; ``None`` when no call has failed on it.

    For frameworks that raise an exception of their own: ``torch.cuda.OutOfMemoryError`` has the text, and this has the
    report beside it. With PyTorch's memory history on, the report has ``largest_live_by_frame``: what each line of the program
    holds on the device, in requested bytes.
    """
    error = _library.last_error()
    by_frame = _frames.of_refusal(error)
    if by_frame and error.report is not None:
        error.report["largest_live_by_frame"] = by_frame
    return None if error.status == Status.OK else error


# The functions from here on are about the current device of PyTorch or CuPy, unless they are given another one.


def stats(device: Optional[int] = None) -> Stats:
    """Statistics of a device's process-wide allocator and its pools together."""
    return _of(device).stats()


def snapshot(device: Optional[int] = None) -> Snapshot:
    """Every region, block and chunk of a device's process-wide allocator and its pools."""
    return _of(device).snapshot()


def reset_peaks(device: Optional[int] = None) -> None:
    """Resets the peaks of a device's process-wide allocator and its pools to current values."""
    _of(device).reset_peaks()


def trim(keep_bytes: int = 0, device: Optional[int] = None) -> int:
    """Returns a device's free memory to the driver until at most ``keep_bytes`` are held.

    Returns the number of bytes released.
    """
    return _of(device).trim(keep_bytes)


def report(device: Optional[int] = None) -> str:
    """A text for a person: what a device's memory is used for, and why the last request failed, if one did."""
    memory = _of(device)
    figures = memory.stats()
    lines = [f"gapless, device {memory.device}"]
    for name, size in [
        ("live", figures["live_bytes"]),
        ("peak live", figures["peak_live_bytes"]),
        ("cached", figures["cached_bytes"]),
        ("waiting for streams", figures["pending_bytes"]),
        ("held", figures["reserved_bytes"]),
        ("peak held", figures["peak_reserved_bytes"]),
        ("budget", figures["budget_bytes"]),
    ]:
        lines.append(f"  {name:<20}{_size(size):>12}")
    sums = [pool["stats"] for pool in _reports.of_device(memory.device)["pools"]]
    if sums:
        held, live = sum(its["reserved_bytes"] for its in sums), sum(its["live_bytes"] for its in sums)
        lines.append(f"  {'held in pools':<20}{_size(held):>12}, {_size(live)} of it live")
    largest = figures["largest_with_remapping_bytes"]
    lines.append(f"  {'largest request now':<20}{_size(largest):>12}")
    allocs, failed = figures["allocs"], figures["failed_allocs"]
    lines.append(f"  {allocs} {'allocation' if allocs == 1 else 'allocations'}, {failed} failed")
    oom = memory.oom_report()
    if oom is not None:
        lines += ["", "The last request that failed:", oom["text"]]
    return "\n".join(lines)


class Recording:
    """A recording that has begun: of every allocation and free, of all front ends.

    It ends with :meth:`stop`, with the ``with`` block, or else with the process. The value of a ``with`` block is the device's
    memory, whose ``mark("step 1")`` marks the end of a step.
    """

    def __init__(self, path: Path, device: Optional[int] = None) -> None:
        self._memory = _of(device)
        self._memory.start_recording(path)
        self._stopped = False

    def mark(self, label: str) -> None:
        """Marks the end of a step."""
        self._memory.mark(label)

    def stop(self) -> None:
        """Completes the file. Nothing happens after the first call."""
        if not self._stopped:
            self._stopped = True
            self._memory.stop_recording()

    def __enter__(self) -> DeviceMemory:
        return self._memory

    def __exit__(self, *_: object) -> None:
        self.stop()


def record(path: Path, device: Optional[int] = None) -> Recording:
    """Records every allocation and free from now on; ``gapless.replay`` reads the file. See :class:`Recording`."""
    return Recording(path, device)


def replay(
    path: Path,
    *,
    capacity: Optional[int] = None,
    policies: Sequence[str] = ("gapless", "caching"),
    search_capacity: bool = False,
) -> list[Replay]:
    """Replays a recording (a trace, a PyTorch memory snapshot, an RMM log) on a simulated device, without a GPU.

    Returns one dictionary for each policy, with the keys of ``gapless replay --json``; ``oom`` says whether and why it
    ran out of memory on a device of ``capacity`` bytes (default: what the file says, or 1.05 times its peak).
    """
    options: dict[str, Any] = {"policies": list(policies), "search_capacity": search_capacity}
    if capacity is not None:
        options["capacity_bytes"] = capacity
    function = _library.load().gapless_replay_json
    return _library.read_json(function, os.fsencode(path), json.dumps(options).encode())


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def _of(device: Optional[int]) -> DeviceMemory:
    return DeviceMemory(_current_device() if device is None else device)


def _current_device() -> int:
    """The current device of the framework in use. Initialises none."""
    torch, cupy = (sys.modules.get(name) for name in ("torch", "cupy"))
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return int(cupy.cuda.get_device_id()) if cupy is not None else 0


if os.environ.get("GAPLESS_TORCH") or os.environ.get("GAPLESS_EXPLAIN_OOM"):
    from ._start import install as _install

    _install()
