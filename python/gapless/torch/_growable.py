"""Tensors at an address that stays, which grow and shrink along their first dimension."""

from __future__ import annotations

import ctypes
import math
import operator
import threading
import weakref
from typing import Any, Optional, Sequence, Union

from .. import _library, _streams
from .._numbers import Status
from .._streams import Stream

_CAPSULE = b"dltensor"
# Where a DLManagedTensor of DLPack has its deleter.
_DELETER_AT = 56
_MOST_BYTES = (1 << 63) - 1


def growable(max_shape: Union[int, Sequence[int]], dtype: Any = None, device: Any = None) -> Growable:
    """Reserves addresses for a tensor of ``max_shape`` and returns it without rows: :meth:`Growable.grow` gives it memory.

    ``dtype`` is PyTorch's default one, and ``device`` the current one, unless given. The addresses may be far more than the device
    has memory. The memory is gapless's whether PyTorch allocates through it or not: :func:`enable` is not needed.

    Raises ``ValueError`` or ``TypeError`` for a shape, a type or a device that cannot be, ``gapless.GaplessError`` where the driver
    has no such range of addresses.
    """
    return Growable(max_shape, dtype, device)


class Growable:
    """A tensor at an address that stays, which grows and shrinks along its first dimension. :func:`growable` makes it.

    :attr:`tensor` has the rows that have memory now. All tensors of it share one storage, which keeps the addresses and the memory
    also when this object is closed or gone. Rows that were taken away by a :meth:`shrink` must not be used any more through
    tensors that were made before: work that uses them is an error of the device, after which the process can use it no more.

    In a ``with`` statement, it is closed at the end. Threads: any.
    """

    def __init__(self, max_shape: Union[int, Sequence[int]], dtype: Any = None, device: Any = None) -> None:
        import torch

        self.max_shape: tuple[int, ...] = _sizes(max_shape)
        """The most rows, and the sizes of a row."""
        self.dtype: Any = torch.get_default_dtype() if dtype is None else dtype
        """The type of the elements."""
        if not isinstance(self.dtype, torch.dtype):
            raise TypeError(f"dtype is a torch.dtype, not {dtype!r}")
        self.device: Any = _device(torch, device)
        """The device, with its number."""
        self._row_bytes = math.prod(self.max_shape[1:]) * self.dtype.itemsize
        total = self.max_shape[0] * self._row_bytes
        if total > _MOST_BYTES:
            raise ValueError(f"a tensor of shape {self.max_shape} would have {total} bytes, which are more than a tensor can have")
        self._rows = 0
        self._lock = threading.RLock()
        # Starts CUDA, where nothing has so far.
        torch.cuda.current_stream(self.device)
        start = ctypes.c_void_p()
        _library.check(_library.load().gapless_range_reserve(self.device.index, total, ctypes.byref(start)))
        self._start = start.value or 0
        self._finalizer = weakref.finalize(self, _close, self.device.index, self._start)
        flat = _bytes_of(torch, self.device.index, self._start)
        self._whole: Any = flat[:total].view(self.dtype).view(self.max_shape)

    @property
    def tensor(self) -> Any:
        """The rows that have memory, as a tensor: a view, as of now. Their address is the same as long as this lives."""
        return self.whole[: self._rows]

    @property
    def whole(self) -> Any:
        """The tensor of ``max_shape``, for kernels and captured graphs that are given one tensor for good.

        No work may use its rows from :attr:`rows` on, which have no memory: reading or writing them is an error of the device. What
        it grows by is there at once.
        """
        if self._whole is None:
            raise RuntimeError("this growable tensor is closed")
        return self._whole

    @property
    def rows(self) -> int:
        """Number of rows that have memory."""
        return self._rows

    def __len__(self) -> int:
        return self._rows

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that it holds: those of its rows, rounded up to pages, and what a shrink could not take."""
        mapped = ctypes.c_uint64()
        _library.check(_library.load().gapless_range_size(self.device.index, self._open(), ctypes.byref(mapped), None))
        return mapped.value

    def grow(self, rows: int) -> None:
        """Gives memory to so many rows more, for work on the current stream. Their content is undefined, as of ``torch.empty``.

        What it has stays as it is, also for work that is running. Raises ``gapless.OutOfMemoryError`` where there is too little
        memory, after which nothing has changed; ``ValueError`` for more rows than ``max_shape`` has.
        """
        rows = _count(rows)
        with self._lock:
            start = self._open()
            if rows > self.max_shape[0] - self._rows:
                raise ValueError(f"there are {self._rows} rows of at most {self.max_shape[0]}: cannot grow by {rows}")
            lacking = (self._rows + rows) * self._row_bytes - self.held_bytes
            self._map(start, max(lacking, 0), _current_stream(self.device))
            self._rows += rows

    def shrink(self, rows: int) -> int:
        """Takes so many rows away. Their memory, in whole pages, is free for all of gapless's allocations. Returns how many bytes.

        Waits until what is queued on the current stream has completed, and on the streams that were current when it grew or were
        recorded (:meth:`record_stream`). ``torch.cuda.empty_cache()`` returns the memory to the device.

        Raises ``gapless.GaplessError`` while one of these streams is being captured: nothing has changed. ``ValueError`` for more
        rows than there are.
        """
        rows = _count(rows)
        with self._lock:
            start = self._open()
            if rows > self._rows:
                raise ValueError(f"there are {self._rows} rows: cannot shrink by {rows}")
            self._map(start, 0, _current_stream(self.device))
            left = self._rows - rows
            unmapped = ctypes.c_uint64()
            surplus = self.held_bytes - left * self._row_bytes
            status = _library.load().gapless_range_shrink(self.device.index, start, surplus, ctypes.byref(unmapped))
            if status != Status.OK:
                failure = _library.last_error()
                self._rows = min(self._rows, self.held_bytes // self._row_bytes)
                raise failure
            self._rows = left
            return unmapped.value

    def record_stream(self, stream: Stream) -> None:
        """Records that work on ``stream`` uses it: a :meth:`shrink`, and the end of the memory, wait for that stream, too.

        For streams that were never current when it grew. With :func:`enable`, ``Tensor.record_stream`` of its tensors does the
        same, until it is closed.
        """
        with self._lock:
            self._map(self._open(), 0, _streams.handle(stream))

    def close(self) -> None:
        """Gives memory and addresses back, after a wait as in :meth:`shrink`: now, or when the last tensor of it is gone."""
        with self._lock:
            self._rows = 0
            self._whole = None
            self._finalizer()

    def __enter__(self) -> Growable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rows = "closed" if self._whole is None else f"rows={self._rows}"
        return f"Growable({rows}, max_shape={self.max_shape}, dtype={self.dtype}, device={str(self.device)!r})"

    def _open(self) -> int:
        if self._whole is None:
            raise RuntimeError("this growable tensor is closed")
        return self._start

    def _map(self, start: int, size: int, stream: int) -> None:
        """Maps ``size`` bytes more for work on a stream, which PyTorch does not destroy."""
        library, index = _library.load(), self.device.index
        _library.check(library.gapless_device_keep_stream(index, stream))
        _library.check(library.gapless_range_grow(index, start, size, stream))


def _close(device: int, start: int) -> None:
    """Tensors keep the range. In a forked process there is nothing to close: it is the parent's."""
    _library.load().gapless_range_close(device, start)


def _bytes_of(torch: Any, device: int, start: int) -> Any:
    """All addresses of a range as a tensor of bytes, which keeps the range."""
    managed = ctypes.c_void_p()
    _library.check(_library.load().gapless_range_dlpack(device, start, ctypes.byref(managed)))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    try:
        # The tensor takes it over, and calls its deleter, which is the library's: also when there is no interpreter any more.
        return torch.utils.dlpack.from_dlpack(new(managed, _CAPSULE, None))
    except BaseException:
        delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p).from_address((managed.value or 0) + _DELETER_AT)
        delete(managed)
        raise


def _current_stream(device: Any) -> int:
    import torch

    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


def _sizes(max_shape: Union[int, Sequence[int]]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, (max_shape,) if isinstance(max_shape, int) else max_shape))
    except TypeError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ValueError(f"max_shape is the most rows and the sizes of a row, whole numbers from 1 on, not {max_shape!r}")
    return sizes


def _count(rows: int) -> int:
    if operator.index(rows) < 0:
        raise ValueError(f"a number of rows is not negative, as {rows} is")
    return operator.index(rows)


def _device(torch: Any, device: Any) -> Any:
    """A device of CUDA with its number."""
    if isinstance(device, int):
        device = torch.device("cuda", device)
    wanted = torch.device("cuda" if device is None else device)
    if wanted.type != "cuda":
        raise ValueError(f"a growable tensor is on a GPU, not on {wanted}")
    index: Optional[int] = wanted.index
    return torch.device("cuda", torch.cuda.current_device() if index is None else index)
