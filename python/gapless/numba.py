"""Numba on gapless: ``gapless.numba.enable()`` before it uses the GPU, or ``NUMBA_CUDA_MEMORY_MANAGER=gapless.numba``."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

from gapless import DeviceMemory
from gapless._frees import Frees

__all__ = ["enable"]


def _make_manager() -> Any:
    from numba.cuda import HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

    class Manager(HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """Numba's external memory manager over gapless; host memory stays Numba's."""

        def initialize(self) -> None:
            super().initialize()
            if hasattr(self, "_frees"):
                # Numba calls this whenever it makes the context current. What is still to be freed is kept.
                return
            self._memory = memory = DeviceMemory(self.context.device.id)
            context = weakref.proxy(self.context)

            def free(address: int, size: int) -> bool:
                # Numba does not say on which streams the memory was used. Its own free waits for the device, too.
                try:
                    context.synchronize()
                except Exception:
                    # A graph is being captured. Numba frees from finalizers, where nobody catches an error.
                    return False
                memory.free(address, size)
                return True

            self._frees = Frees(free)

        def memalloc(self, size: int) -> Any:
            frees, context = self._frees, weakref.proxy(self.context)
            frees.settle()
            address = self._memory.alloc(size)
            finalizer = functools.partial(frees.add, address, size)
            return MemoryPointer(context, ctypes.c_void_p(address), size, finalizer=finalizer)

        def get_memory_info(self) -> Any:
            stats = self._memory.stats()
            return MemoryInfo(free=stats["free_bytes"], total=stats["budget_bytes"])

        def get_ipc_handle(self, memory: Any) -> Any:
            raise NotImplementedError("memory of gapless cannot be shared by cuIpcGetMemHandle")

        def reset(self) -> None:
            super().reset()
            self._frees.settle()
            self._memory.trim()

        @property
        def interface_version(self) -> int:
            return 1

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
