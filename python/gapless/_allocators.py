"""Allocators: one's own, and those of devices, which the whole process shares."""

from __future__ import annotations

import abc
import ctypes
import os
from typing import Optional, Sequence, Union

from . import _library, _streams
from ._figures import Stats
from ._numbers import Status
from ._streams import Stream
from .results import OutOfMemoryReport, Snapshot

Path = Union[str, "os.PathLike[str]"]


class _Memory(abc.ABC):
    """What an allocator of one's own and that of a device have in common.

    Addresses are plain integers. Streams are objects with ``__cuda_stream__``, handles as integers, or ``None`` for the default
    stream; what is none of them raises ``gapless.NotAStreamError``.
    """

    _library: ctypes.CDLL
    _handle: ctypes.c_void_p

    def alloc(self, size: int, stream: Stream = None, *, alignment: int = 0) -> int:
        """Allocates ``size`` bytes for work on ``stream`` and returns the address."""
        if size < 0 or alignment < 0:
            raise ValueError(f"a size of {size} at a multiple of {alignment}")
        pointer = ctypes.c_void_p()
        _library.check(self._alloc(size, alignment or 1, _streams.handle(stream), pointer))
        return pointer.value or 0

    @abc.abstractmethod
    def _alloc(self, size: int, alignment: int, stream: int, pointer: ctypes.c_void_p) -> int:
        """Allocates, and returns the status."""

    def set_budget(self, size: int) -> None:
        """Changes the largest number of bytes to hold."""
        _library.check(self._library.gapless_set_budget(self._handle, size))

    def reset_peaks(self) -> None:
        """Resets the peaks to current values."""
        _library.check(self._library.gapless_reset_peaks(self._handle))

    def stats(self) -> Stats:
        """All statistics. What each says: ``docs/using/statistics.md``."""
        return _library.read_json(self._library.gapless_stats_json, self._handle)

    def snapshot(self) -> Snapshot:
        """Every region, block and chunk."""
        return _library.read_json(self._library.gapless_snapshot_json, self._handle)

    def oom_report(self) -> Optional[OutOfMemoryReport]:
        """The report of the last request here that ran out of memory, on whatever thread; ``text`` is for a person.

        The report of a request of one's own is in the exception that it raised.
        """
        try:
            return _library.read_json(self._library.gapless_oom_report_json, self._handle)
        except _library.GaplessError as error:
            if error.status == Status.NOT_FOUND:
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


class Allocator(_Memory):
    """An allocator of one's own on a device, which :meth:`close` or the end of a ``with`` block closes.

    The process-wide one of a device is :class:`DeviceMemory`.
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

    def _alloc(self, size: int, alignment: int, stream: int, pointer: ctypes.c_void_p) -> int:
        function = self._library.gapless_alloc_aligned
        return function(self._handle, size, alignment, stream, ctypes.byref(pointer))

    def free(self, address: int) -> None:
        """Frees an allocation; work queued by now may still use it."""
        _library.check(self._library.gapless_free(self._handle, address))

    def record_stream(self, address: int, stream: Stream) -> None:
        """Records that ``stream`` also uses an allocation."""
        _library.check(self._library.gapless_record_stream(self._handle, address, _streams.handle(stream)))

    def keep_stream(self, stream: Stream) -> None:
        """Promises that ``stream`` lives until it is forgotten or the allocator is closed.

        Memory that was used on a stream that is not kept is reused on other streams only after its next call here, or
        after the host has waited for the whole device.
        """
        _library.check(self._library.gapless_keep_stream(self._handle, _streams.handle(stream)))

    def forget_stream(self, stream: Stream) -> None:
        """Ends the promise of ``keep_stream``, right before ``stream`` is destroyed."""
        _library.check(self._library.gapless_forget_stream(self._handle, _streams.handle(stream)))

    def trim(self, keep_bytes: int = 0) -> int:
        """Returns free memory to the driver until at most ``keep_bytes`` are held; returns the number of bytes released."""
        released = ctypes.c_uint64()
        _library.check(self._library.gapless_trim(self._handle, keep_bytes, ctypes.byref(released)))
        return released.value

    def close(self) -> None:
        """Returns all memory to the driver; raises when allocations were never freed (they are gone all the same).

        Raises, too, while another thread is inside a call on the allocator, which is as before then.
        """
        status = self._library.gapless_destroy(self._handle)
        if status != Status.IN_USE:
            self._handle = ctypes.c_void_p()
        _library.check(status)

    def __enter__(self) -> Allocator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DeviceMemory(_Memory):
    """The process-wide allocator of a device: the door that PyTorch, CuPy, RMM and Numba share, made at its first use.

    What is allocated here can come from an open pool, is in the memory history, and counts in PyTorch's statistics.
    It lives as long as the process, so that nothing closes it.
    """

    def __init__(self, device: int = 0) -> None:
        self._library = _library.load()
        self._handle = ctypes.c_void_p()
        self.device = device
        """The number of the device."""
        _library.check(self._library.gapless_device_allocator(device, ctypes.byref(self._handle)))

    def _alloc(self, size: int, alignment: int, stream: int, pointer: ctypes.c_void_p) -> int:
        function = self._library.gapless_device_alloc_aligned
        return function(self.device, size, alignment, stream, ctypes.byref(pointer))

    def free(self, address: int, size: int = 0) -> None:
        """Frees an allocation; work queued by now may still use it. ``size``, as requested, is for the memory history."""
        _library.check(self._library.gapless_device_free(self.device, address, size))

    def free_on(self, address: int, stream: Stream, size: int = 0) -> None:
        """Frees an allocation whose last use was on ``stream``, whichever stream it was allocated on.

        Waits for all devices in use where ``stream`` cannot be recorded. Raises a ``GaplessError`` if one cannot be waited
        for either, since a graph is being captured; the allocation is as before then.
        """
        _library.check(self._library.gapless_device_free_on(self.device, address, size, _streams.handle(stream)))

    def record_stream(self, address: int, stream: Stream) -> None:
        """Records that ``stream`` also uses an allocation."""
        _library.check(self._library.gapless_device_record_stream(self.device, address, _streams.handle(stream)))

    def keep_stream(self, stream: Stream) -> None:
        """Promises that ``stream`` lives until it is forgotten. PyTorch's streams are kept without a call."""
        _library.check(self._library.gapless_device_keep_stream(self.device, _streams.handle(stream)))

    def forget_stream(self, stream: Stream) -> None:
        """Ends the promise of ``keep_stream``, right before ``stream`` is destroyed.

        With PyTorch, call it before the stream behind a ``torch.cuda.ExternalStream`` is destroyed.
        """
        _library.check(self._library.gapless_device_forget_stream(self.device, _streams.handle(stream)))

    def trim(self, keep_bytes: int = 0) -> int:
        """Returns free memory to the driver until at most ``keep_bytes`` are held; returns the number of bytes released.

        Memory of pools stays, and does not count.
        """
        released = ctypes.c_uint64()
        _library.check(self._library.gapless_device_trim(self.device, keep_bytes, ctypes.byref(released)))
        return released.value
