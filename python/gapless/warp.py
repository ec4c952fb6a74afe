"""NVIDIA Warp on gapless: ``gapless.warp.enable()``."""

from __future__ import annotations

from typing import Any

from gapless import DeviceMemory

__all__ = ["allocator", "enable"]


class _Allocator:
    """Warp's interface of allocators, over the memory of one device."""

    # The library makes the context current by itself.
    deallocate_requires_context_guard = False

    def __init__(self, device: Any) -> None:
        self._device = device
        self._memory = DeviceMemory(device.ordinal)

    def allocate(self, size_in_bytes: int) -> int:
        """Allocates for work on the device's current stream."""
        if self._device.is_capturing:
            raise RuntimeError(
                "gapless gives no memory to a graph that Warp captures, which would use it after it is freed: allocate before the "
                "capture begins, or give Warp its own allocator back for it, with wp.ScopedAllocator(device, None)"
            )
        return self._memory.alloc(size_in_bytes, self._device.stream)

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Frees memory: at once, and also in a capture, after which it can be used again."""
        # Warp does not say on which streams an array was used. Its own frees are in the order of the default stream, too, which
        # comes after what is queued on all of Warp's streams by now.
        self._memory.free_on(ptr, None, size_in_bytes)


def allocator(device: Any = None) -> Any:
    """A Warp allocator, for ``wp.set_device_allocator`` and ``wp.ScopedAllocator``; of the current device, unless one is given.

    Memory belongs to the stream that is the device's current one when it is allocated. Running out of memory raises
    ``gapless.OutOfMemoryError``, which is a ``RuntimeError`` as what Warp's own allocators raise.
    """
    import warp

    warp.init()
    return _Allocator(warp.get_device("cuda" if device is None else device))


def enable() -> None:
    """Makes Warp's arrays lie in gapless's memory from now on, on every device.

    What Warp's own functions allocate for themselves stays Warp's.
    """
    import warp

    warp.init()
    for device in warp.get_cuda_devices():
        warp.set_device_allocator(device, allocator(device))
