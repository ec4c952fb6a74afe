"""gapless: a GPU memory allocator. If the bytes are free, the allocation succeeds.

PyTorch: ``import gapless.torch; gapless.torch.enable()`` before CUDA is initialised.
CuPy, RMM, Numba: ``gapless.cupy``, ``gapless.rmm``, ``gapless.numba``. They all share one allocator per device, made on
first use from ``GAPLESS_CONF``; ``stats``, ``report``, ``trim`` and the other functions here are about that one.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, Optional, Sequence, Union

from . import _conf, _frames, _library
from ._advise import AdviseError, Advice, Comparison, JobAdvice, advise, merge_advice
from ._figures import Stats
from ._library import ErrorKind, GaplessError, OutOfMemoryError

__version__ = "0.2.0"

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
    "OutOfMemoryError",
    "Recording",
    "Stats",
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

Path = Union[str, "os.PathLike[str]"]


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
    return None if error.status == _library.OK else error


class Allocator:
    """An allocator of one device. Addresses and streams are plain integers.

    ``Allocator(...)`` makes one, which :meth:`close` or the end of a ``with`` block closes; :meth:`of_device` is the
    process-wide one.
    """

    def __init__(
        self,
        device: int = 0,
        *,
        budget: Union[int, float, None] = None,
        peers: Sequence[int] = (),
        slack: float = 0.0,
        chunk_bytes: int = 0,
        region_bytes: int = 0,
    ) -> None:
        """``budget`` is a number of bytes (int) or a fraction of the device (float); default: what is free."""
        self._library = _library.load()
        self._handle = ctypes.c_void_p()
        config = _library.Config(size=ctypes.sizeof(_library.Config), device=device, slack=slack)
        config.peer_count = len(peers)
        config.peers = (ctypes.c_int32 * len(peers))(*peers)
        config.chunk_bytes, config.region_bytes = chunk_bytes, region_bytes
        if isinstance(budget, float):
            config.budget_fraction = budget
        elif budget is not None:
            config.budget_bytes = budget
        _library.check(self._library.gapless_create(ctypes.byref(config), ctypes.byref(self._handle)))

    @classmethod
    def of_device(cls, device: int = 0) -> DeviceMemory:
        """The process-wide allocator of a device, made now if this is the first use."""
        return DeviceMemory(device)

    def alloc(self, size: int, stream: int = 0, *, alignment: int = 0) -> int:
        """Allocates ``size`` bytes for work on ``stream`` and returns the address."""
        if size < 0 or alignment < 0:
            raise ValueError(f"a size of {size} at a multiple of {alignment}")
        pointer = ctypes.c_void_p()
        _library.check(self._alloc(size, alignment or 1, stream, pointer))
        return pointer.value or 0

    def _alloc(self, size: int, alignment: int, stream: int, pointer: ctypes.c_void_p) -> int:
        function = self._library.gapless_alloc_aligned
        return function(self._handle, size, alignment, stream, ctypes.byref(pointer))

    def free(self, address: int) -> None:
        """Frees an allocation; work queued by now may still use it."""
        _library.check(self._library.gapless_free(self._handle, address))

    def record_stream(self, address: int, stream: int) -> None:
        """Records that ``stream`` also uses an allocation."""
        _library.check(self._library.gapless_record_stream(self._handle, address, stream))

    def keep_stream(self, stream: int) -> None:
        """Promises that ``stream`` lives until it is forgotten or the allocator is closed.

        Memory that was used on a stream that is not kept is reused on other streams only after its next call here, or
        after the host has waited for the whole device.
        """
        _library.check(self._library.gapless_keep_stream(self._handle, stream))

    def forget_stream(self, stream: int) -> None:
        """Ends the promise of ``keep_stream``, right before ``stream`` is destroyed."""
        _library.check(self._library.gapless_forget_stream(self._handle, stream))

    def trim(self, keep_bytes: int = 0) -> int:
        """Returns free memory to the driver until at most ``keep_bytes`` are held; returns the number of bytes released."""
        released = ctypes.c_uint64()
        _library.check(self._library.gapless_trim(self._handle, keep_bytes, ctypes.byref(released)))
        return released.value

    def set_budget(self, size: int) -> None:
        """Changes the largest number of bytes to hold."""
        _library.check(self._library.gapless_set_budget(self._handle, size))

    def reset_peaks(self) -> None:
        """Resets the peaks to current values."""
        _library.check(self._library.gapless_reset_peaks(self._handle))

    def stats(self) -> Stats:
        """All statistics. What each says: ``docs/using/statistics.md``."""
        return _library.read_json(self._library.gapless_stats_json, self._handle)

    def snapshot(self) -> dict[str, Any]:
        """Every region, block and chunk."""
        return _library.read_json(self._library.gapless_snapshot_json, self._handle)

    def oom_report(self) -> Optional[dict[str, Any]]:
        """The report of this allocator's last request that ran out of memory, on whatever thread; ``text`` is for a person.

        The report of a request of one's own is in the exception that it raised.
        """
        try:
            return _library.read_json(self._library.gapless_oom_report_json, self._handle)
        except GaplessError as error:
            if error.status == _library.NOT_FOUND:
                return None
            raise

    def start_recording(self, path: Path) -> None:
        """Records every allocation and free from now on: gzip where ``path`` ends in ``.gz``."""
        _library.check(self._library.gapless_record_start(self._handle, os.fsencode(path)))

    def mark(self, label: str) -> None:
        """Marks the end of a step in the recording, if there is one."""
        _library.check(self._library.gapless_record_mark(self._handle, label.encode()))

    def stop_recording(self) -> None:
        """Completes the recording."""
        _library.check(self._library.gapless_record_stop(self._handle))

    def close(self) -> None:
        """Returns all memory to the driver; raises when allocations were never freed (they are gone all the same).

        Raises, too, while another thread is inside a call on the allocator, which is as before then.
        """
        status = self._library.gapless_destroy(self._handle)
        if status != _library.IN_USE:
            self._handle = ctypes.c_void_p()
        _library.check(status)

    def __enter__(self) -> Allocator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DeviceMemory(Allocator):
    """The process-wide allocator of a device: the door that PyTorch, CuPy, RMM and Numba share.

    What is allocated here can come from an open pool, is in the memory history, and counts in PyTorch's statistics.
    It lives as long as the process: :meth:`close` is refused.
    """

    def __init__(self, device: int = 0) -> None:
        self._library = _library.load()
        self._device = device
        self._handle = ctypes.c_void_p()
        _library.check(self._library.gapless_device_allocator(device, ctypes.byref(self._handle)))

    def _alloc(self, size: int, alignment: int, stream: int, pointer: ctypes.c_void_p) -> int:
        function = self._library.gapless_device_alloc_aligned
        return function(self._device, size, alignment, stream, ctypes.byref(pointer))

    def free(self, address: int, size: int = 0) -> None:
        """Frees an allocation; work queued by now may still use it. ``size``, as requested, is for the memory history."""
        _library.check(self._library.gapless_device_free(self._device, address, size))

    def free_on(self, address: int, stream: int, size: int = 0) -> None:
        """Frees an allocation whose last use was on ``stream``, whichever stream it was allocated on.

        Waits for all devices in use where ``stream`` cannot be recorded. Raises a ``GaplessError`` if one cannot be waited
        for either, since a graph is being captured; the allocation is as before then.
        """
        _library.check(self._library.gapless_device_free_on(self._device, address, size, stream))

    def record_stream(self, address: int, stream: int) -> None:
        """Records that ``stream`` also uses an allocation."""
        _library.check(self._library.gapless_device_record_stream(self._device, address, stream))

    def keep_stream(self, stream: int) -> None:
        """Promises that ``stream`` lives until it is forgotten. PyTorch's streams are kept without a call."""
        _library.check(self._library.gapless_device_keep_stream(self._device, stream))

    def forget_stream(self, stream: int) -> None:
        """Ends the promise of ``keep_stream``, right before ``stream`` is destroyed.

        With PyTorch, call it before the stream behind a ``torch.cuda.ExternalStream`` is destroyed.
        """
        _library.check(self._library.gapless_device_forget_stream(self._device, stream))

    def trim(self, keep_bytes: int = 0) -> int:
        """Returns free memory to the driver until at most ``keep_bytes`` are held; returns the number of bytes released.

        Memory of pools stays, and does not count.
        """
        released = ctypes.c_uint64()
        _library.check(self._library.gapless_device_trim(self._device, keep_bytes, ctypes.byref(released)))
        return released.value


# The functions from here on are about the current device of PyTorch or CuPy, unless they are given another one.


def stats(device: Optional[int] = None) -> Stats:
    """Statistics of a device's process-wide allocator and its pools together."""
    return _of(device).stats()


def snapshot(device: Optional[int] = None) -> dict[str, Any]:
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
    allocator = _of(device)
    device = allocator._device
    figures = allocator.stats()
    lines = [f"gapless, device {device}"]
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
    pools = _library.read_json(_library.load().gapless_torch_report_json, device, 0)["pools"]
    if pools:
        held, live = (sum(pool["stats"][key] for pool in pools) for key in ("reserved_bytes", "live_bytes"))
        lines.append(f"  {'held in pools':<20}{_size(held):>12}, {_size(live)} of it live")
    largest = figures["largest_with_remapping_bytes"]
    lines.append(f"  {'largest request now':<20}{_size(largest):>12}")
    allocs, failed = figures["allocs"], figures["failed_allocs"]
    lines.append(f"  {allocs} {'allocation' if allocs == 1 else 'allocations'}, {failed} failed")
    oom = allocator.oom_report()
    if oom is not None:
        lines += ["", "The last request that failed:", oom["text"]]
    return "\n".join(lines)


class Recording:
    """A recording that has begun: of every allocation and free, of all front ends.

    It ends with :meth:`stop`, with the ``with`` block, or else with the process. The value of a ``with`` block is the allocator,
    whose ``mark("step 1")`` marks the end of a step.
    """

    def __init__(self, path: Path, device: Optional[int] = None) -> None:
        self._allocator = _of(device)
        self._allocator.start_recording(path)
        self._stopped = False

    def mark(self, label: str) -> None:
        """Marks the end of a step."""
        self._allocator.mark(label)

    def stop(self) -> None:
        """Completes the file. Nothing happens after the first call."""
        if not self._stopped:
            self._stopped = True
            self._allocator.stop_recording()

    def __enter__(self) -> Allocator:
        return self._allocator

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
) -> list[dict[str, Any]]:
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
