"""RMM on gapless: ``rmm.mr.set_current_device_resource(gapless.rmm.resource())``."""

from __future__ import annotations

from typing import Any

from gapless import DeviceMemory

__all__ = ["enable", "resource"]


def resource(device: int = 0) -> Any:
    """An RMM memory resource over the device's process-wide allocator."""
    from rmm.mr import CallbackMemoryResource

    memory = DeviceMemory(device)

    def allocate(size: int, stream: Any = None) -> int:
        return memory.alloc(size, _handle(stream))

    def deallocate(pointer: int, size: int, stream: Any = None) -> None:
        # RMM frees in the order of this stream, which need not be the one that the memory was allocated on.
        handle = _handle(stream)
        if handle:
            memory.record_stream(pointer, handle)
        memory.free(pointer, size)

    return CallbackMemoryResource(allocate, deallocate)


def _handle(stream: Any) -> int:
    """Returns the handle of a stream: of an RMM stream, a number, or 0 for ``None``."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    return int(protocol()[1]) if protocol is not None else 0


def enable(device: int = 0) -> None:
    """Makes RMM allocate through gapless on the current device from now on."""
    import rmm.mr

    rmm.mr.set_current_device_resource(resource(device))
