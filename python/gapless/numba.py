"""Numba on gapless: ``gapless.numba.enable()`` before Numba uses the GPU, or ``NUMBA_CUDA_MEMORY_MANAGER=gapless.numba``."""

from __future__ import annotations

import ctypes
from typing import Any

from gapless import Allocator

__all__ = ["enable"]


def _make_manager() -> Any:
    from numba import cuda
    from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

    class Manager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """Numba's external memory manager over gapless; host memory stays Numba's."""

        def initialize(self) -> None:
            super().initialize()
            self._allocator = Allocator.of_device(self.context.device.id)

        def memalloc(self, size: int) -> Any:
            allocator = self._allocator
            address = allocator.alloc(size)
            return MemoryPointer(
                self.context, ctypes.c_uint64(address), size, finalizer=lambda: allocator.free(address)
            )

        def get_memory_info(self) -> Any:
            stats = self._allocator.stats()
            return MemoryInfo(free=stats["fragmentation"]["free_bytes"], total=stats["budget_bytes"])

        def reset(self) -> None:
            super().reset()
            self._allocator.trim()

        @property
        def interface_version(self) -> int:
            return 1

    del cuda
    return Manager


def enable() -> None:
    """Makes Numba allocate through gapless."""
    from numba import cuda

    cuda.set_memory_manager(_make_manager())


def __getattr__(name: str) -> Any:
    # What NUMBA_CUDA_MEMORY_MANAGER looks for.
    if name == "_numba_memory_manager":
        return _make_manager()
    raise AttributeError(name)
