"""CuPy on gapless: ``gapless.cupy.enable()``."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from gapless import _library, stats

__all__ = ["allocator", "enable"]


def allocator() -> Callable[[int], Any]:
    """A CuPy allocator, for ``cupy.cuda.set_allocator`` and ``cupy.cuda.using_allocator``.

    Memory belongs to the stream that is CuPy's current one when it is allocated, as in CuPy's own pool. Running out of
    memory raises CuPy's ``OutOfMemoryError``; its ``__cause__`` has the text and the report.
    """
    import cupy
    from cupy.cuda.memory import CFunctionAllocator, OutOfMemoryError

    library = _library.load()
    addresses = [
        ctypes.cast(function, ctypes.c_void_p).value
        for function in (library.gapless_cupy_malloc, library.gapless_cupy_free)
    ]
    # One for each stream: the parameter that CuPy passes to the C functions is the stream.
    by_stream: dict[int, Any] = {}

    def malloc(size: int) -> Any:
        stream = cupy.cuda.get_current_stream().ptr
        made = by_stream.get(stream)
        if made is None:
            made = by_stream[stream] = CFunctionAllocator(stream, *addresses, library)
        memory = made.malloc(size)
        if memory.ptr == 0 and size > 0:
            failure = _library.last_error()
            if not isinstance(failure, _library.OutOfMemoryError):
                raise failure
            figures = stats(cupy.cuda.get_device_id())
            raise OutOfMemoryError(size, figures["reserved_bytes"], figures["budget_bytes"]) from failure
        return memory

    return malloc


def enable() -> None:
    """Makes CuPy allocate through gapless from now on, in place of its own memory pool."""
    import cupy

    cupy.cuda.set_allocator(allocator())
