"""gapless: a GPU memory allocator. If the bytes are free, the allocation succeeds.

PyTorch: ``import gapless.torch; gapless.torch.enable()`` before CUDA is initialised.
CuPy, RMM, Numba: ``gapless.cupy``, ``gapless.rmm``, ``gapless.numba``. They all share one allocator per device, made on
first use from ``GAPLESS_CONF``; the functions here look at that one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from typing import Any, Iterator, Optional, Sequence, Union

from . import _library
from ._library import GaplessError, OutOfMemoryError

__all__ = [
    "Allocator",
    "GaplessError",
    "OutOfMemoryError",
    "configure",
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
    """Uses ``conf`` (the syntax of ``GAPLESS_CONF``) for the process-wide allocators; before their first use only."""
    _library.check(_library.load().gapless_configure(conf.encode()))


class Allocator:
    """An allocator of one device. Addresses and streams are plain integers.

    ``Allocator(...)`` makes one of its own, closed by :meth:`close` or the end of a ``with`` block;
    :meth:`of_device` is the process-wide one.
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
        """``budget``: bytes as an int, or a part of the device as a float; default: what is free."""
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
    def of_device(cls, device: int = 0) -> Allocator:
        """The process-wide allocator of a device, made now where this is the first use."""
        self = cls.__new__(cls)
        self._library = _library.load()
        self._handle = ctypes.c_void_p()
        _library.check(self._library.gapless_device_allocator(device, ctypes.byref(self._handle)))
        return self

    def alloc(self, size: int, stream: int = 0, *, alignment: int = 0) -> int:
        """Allocates ``size`` bytes for work on ``stream``; gives the address."""
        if size < 0 or alignment < 0:
            raise ValueError(f"a size of {size} at a multiple of {alignment}")
        pointer = ctypes.c_void_p()
        if alignment:
            status = self._library.gapless_alloc_aligned(self._handle, size, alignment, stream, ctypes.byref(pointer))
        else:
            status = self._library.gapless_alloc(self._handle, size, stream, ctypes.byref(pointer))
        _library.check(status)
        return pointer.value or 0

    def free(self, address: int) -> None:
        """Frees an allocation; work queued by now may still use it."""
        _library.check(self._library.gapless_free(self._handle, address))

    def record_stream(self, address: int, stream: int) -> None:
        """Makes known that work on ``stream`` uses an allocation too."""
        _library.check(self._library.gapless_record_stream(self._handle, address, stream))

    def trim(self, keep_bytes: int = 0) -> int:
        """Gives free memory back to the driver until at most ``keep_bytes`` are held; gives the bytes given back."""
        released = ctypes.c_uint64()
        _library.check(self._library.gapless_trim(self._handle, keep_bytes, ctypes.byref(released)))
        return released.value

    def set_budget(self, size: int) -> None:
        """Changes the most bytes that may be held."""
        _library.check(self._library.gapless_set_budget(self._handle, size))

    def reset_peaks(self) -> None:
        """Makes the present the peak."""
        _library.check(self._library.gapless_reset_peaks(self._handle))

    def stats(self) -> dict[str, Any]:
        """All figures."""
        return _library.read_json(self._library.gapless_stats_json, self._handle)

    def snapshot(self) -> dict[str, Any]:
        """Every segment, chunk and block."""
        return _library.read_json(self._library.gapless_snapshot_json, self._handle)

    def oom_report(self) -> Optional[dict[str, Any]]:
        """The report of the last request that ran out of memory; its key ``text`` has it for a person."""
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
        """Gives everything back; raises when allocations were never freed (they are gone all the same)."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        _library.check(self._library.gapless_destroy(handle))

    def __enter__(self) -> Allocator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stats(device: int = 0) -> dict[str, Any]:
    """Figures of a device's process-wide allocator."""
    return Allocator.of_device(device).stats()


def snapshot(device: int = 0) -> dict[str, Any]:
    """Every segment, chunk and block of it."""
    return Allocator.of_device(device).snapshot()


def reset_peaks(device: int = 0) -> None:
    """Makes the present its peak."""
    Allocator.of_device(device).reset_peaks()


def trim(keep_bytes: int = 0, device: int = 0) -> int:
    """Gives its free memory back to the driver until at most ``keep_bytes`` are held; gives the bytes given back."""
    return Allocator.of_device(device).trim(keep_bytes)


def report(device: int = 0) -> str:
    """What a device's memory is used for, and why the last request failed, if one did: for a person."""
    allocator = Allocator.of_device(device)
    figures = allocator.stats()
    lines = [f"gapless, device {device}"]
    for name, key in [
        ("live", "live_bytes"),
        ("peak live", "peak_live_bytes"),
        ("cached", "cached_bytes"),
        ("waiting for streams", "pending_bytes"),
        ("held", "reserved_bytes"),
        ("peak held", "peak_reserved_bytes"),
        ("budget", "budget_bytes"),
    ]:
        lines.append(f"  {name:<20}{_size(figures[key]):>12}")
    largest = figures["fragmentation"]["largest_with_remapping_bytes"]
    lines.append(f"  {'largest request now':<20}{_size(largest):>12}")
    lines.append(f"  {figures['allocs']} allocations, {figures['failed_allocs']} failed")
    oom = allocator.oom_report()
    if oom is not None:
        lines += ["", "The last request that failed:", oom["text"]]
    return "\n".join(lines)


@contextlib.contextmanager
def record(path: Path, device: int = 0) -> Iterator[Allocator]:
    """Records every allocation and free, from any front end, while the block runs; ``gapless.replay`` reads the file.

    The block gets the allocator, whose ``mark("step 1")`` ends a step.
    """
    allocator = Allocator.of_device(device)
    allocator.start_recording(path)
    try:
        yield allocator
    finally:
        allocator.stop_recording()


def replay(
    path: Path,
    *,
    capacity: Optional[int] = None,
    policies: Sequence[str] = ("gapless", "caching"),
    search_capacity: bool = False,
) -> list[dict[str, Any]]:
    """Replays a recording (a trace, a PyTorch memory snapshot, an RMM log) on a simulated device, without a GPU.

    Gives one dictionary for each policy, with the keys of ``gapless replay --json``; ``oom`` says whether and why it
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
