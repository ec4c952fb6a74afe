"""CuPy on gapless: ``gapless.cupy.enable()``."""

from __future__ import annotations

import ctypes
from typing import Any

from gapless import _library

__all__ = ["allocator", "enable"]


def allocator() -> Any:
    """A CuPy allocator, for ``cupy.cuda.set_allocator`` or ``cupy.cuda.using_allocator``."""
    import cupy

    library = _library.load()
    # CuPy calls these as void *malloc(void *param, size_t size, int device) and void free(void *param, void *pointer,
    # int device): without a stream, so that everything is in the order of the default stream.
    malloc_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    free_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)

    @malloc_type
    def malloc(_: Any, size: int, device: int) -> Any:
        return library.gapless_torch_malloc(size, device, None)

    @free_type
    def free(_: Any, pointer: int, device: int) -> None:
        library.gapless_torch_free(pointer, 0, device, None)

    address = [ctypes.cast(function, ctypes.c_void_p).value for function in (malloc, free)]
    made = cupy.cuda.memory.CFunctionAllocator(0, address[0], address[1], (malloc, free))
    return _checked(made, library)


def _checked(made: Any, library: ctypes.CDLL) -> Any:
    """CuPy takes a null pointer for memory: raise instead."""
    import cupy

    def malloc(size: int) -> Any:
        memory = made.malloc(size)
        if memory.ptr == 0 and size > 0:
            text = (library.gapless_last_error() or b"").decode(errors="replace")
            raise cupy.cuda.memory.OutOfMemoryError(size, size, 0) from _library.OutOfMemoryError(
                _library.OUT_OF_MEMORY, text
            )
        return memory

    return malloc


def enable() -> None:
    """Makes CuPy allocate through gapless from now on; its own memory pool is no longer asked."""
    import cupy

    cupy.cuda.set_allocator(allocator())
