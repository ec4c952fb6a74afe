"""RMM on gapless: ``rmm.mr.set_current_device_resource(gapless.rmm.resource())``."""

from __future__ import annotations

from typing import Any

from gapless import DeviceMemory, GaplessError, Status, _streams
from gapless._frees import Frees

__all__ = ["enable", "resource"]


def resource(device: int = 0) -> Any:
    """An RMM memory resource over the device's process-wide allocator."""
    from rmm.mr import CallbackMemoryResource

    memory = DeviceMemory(device)

    def free(pointer: int, size: int, stream: int) -> bool:
        try:
            memory.free_on(pointer, stream, size)
        except GaplessError as error:
            if error.status != Status.DRIVER:
                raise
            return False
        return True

    frees = Frees(free)

    def allocate(size: int, stream: Any = None) -> int:
        frees.settle()
        return memory.alloc(size, stream)

    def deallocate(pointer: int, size: int, stream: Any = None) -> None:
        # RMM frees in the order of this stream, which need not be the one that the memory was allocated on. The default
        # stream is a stream like any other. RMM's deallocation cannot fail: what is raised here, nobody catches. The object need
        # not live until the memory is freed.
        frees.add(pointer, size, _streams.handle(stream))

    return CallbackMemoryResource(allocate, deallocate)


def enable(device: int = 0) -> None:
    """Makes RMM allocate through gapless on the current device from now on."""
    import rmm.mr

    rmm.mr.set_current_device_resource(resource(device))
