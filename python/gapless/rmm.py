"""RMM on gapless: ``rmm.mr.set_current_device_resource(gapless.rmm.resource())``."""

from __future__ import annotations

from typing import Any

from gapless import DeviceMemory, GaplessError
from gapless._frees import Frees
from gapless._library import DRIVER

__all__ = ["enable", "resource"]


def resource(device: int = 0) -> Any:
    """An RMM memory resource over the device's process-wide allocator."""
    from rmm.mr import CallbackMemoryResource

    memory = DeviceMemory(device)

    def free(pointer: int, size: int, stream: int) -> bool:
        try:
            memory.free_on(pointer, stream, size)
        except GaplessError as error:
            if error.status != DRIVER:
                raise
            return False
        return True

    frees = Frees(free)

    def allocate(size: int, stream: Any = None) -> int:
        frees.settle()
        return memory.alloc(size, _handle(stream))

    def deallocate(pointer: int, size: int, stream: Any = None) -> None:
        # RMM frees in the order of this stream, which need not be the one that the memory was allocated on. The default
        # stream is a stream like any other. RMM's deallocation cannot fail: what is raised here, nobody catches.
        frees.add(pointer, size, _handle(stream))

    return CallbackMemoryResource(allocate, deallocate)


def _handle(stream: Any) -> int:
    """Returns the handle of a stream: of an RMM stream, a number, or 0, the default stream, for ``None``."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise TypeError(f"{stream!r} does not say which stream it is (it has no __cuda_stream__): install a newer RMM")
    return int(protocol()[1])


def enable(device: int = 0) -> None:
    """Makes RMM allocate through gapless on the current device from now on."""
    import rmm.mr

    rmm.mr.set_current_device_resource(resource(device))
