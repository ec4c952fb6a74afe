"""Memory that other processes send, as storages of tensors, whatever PyTorch allocates with here."""

from __future__ import annotations

import ctypes
import functools
import warnings
import weakref
from types import ModuleType
from typing import Any

from . import _library
from ._numbers import Status

# What every handle of gapless begins with, and none of PyTorch's.
_OURS = b"gapless"


class _Received:
    """Memory of another process, which a tensor is made of and keeps."""

    def __init__(self, torch: Any, device: int, handle: bytes, size: int, offset: int, counter: tuple[bytes, int]) -> None:
        library = _library.load()
        start, mapped = ctypes.c_void_p(), ctypes.c_uint64()
        status = library.gapless_device_import(device, handle, len(handle), ctypes.byref(start), ctypes.byref(mapped))
        _library.check(status)
        weakref.finalize(self, _close, torch, device, start, counter)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": ((start.value or 0) + offset, False),
            "version": 3,
        }


def _close(torch: Any, device: int, start: ctypes.c_void_p, counter: tuple[bytes, int]) -> None:
    """Notifies the sender's PyTorch last: from then on it may reuse the memory, and work here has to be done with it."""
    library = _library.load()
    if library.gapless_device_close_import(device, start) != Status.OK:
        warnings.warn(f"memory of another process stays open: {_library.last_error()}", RuntimeWarning, stacklevel=2)
        return
    torch.UntypedStorage._release_ipc_counter(*counter, device=f"cuda:{device}")


def _here(handle: bytes, device: int) -> int:
    """Returns the number that the device of a handle has here; ``device`` is that of the sender."""
    library, found = _library.load(), ctypes.c_int32()
    _library.check(library.gapless_device_of_handle(handle, len(handle), ctypes.byref(found)))
    return found.value if found.value >= 0 else device


def accept(torch: ModuleType) -> None:
    """Makes ``torch.UntypedStorage`` accept handles of gapless."""
    storage: Any = getattr(torch, "UntypedStorage", None)
    original = getattr(storage, "_new_shared_cuda", None)
    if original is None or hasattr(original, "accepts_gapless"):
        return

    @functools.wraps(original, assigned=("__doc__",), updated=())
    def new_shared_cuda(
        device: int,
        handle: bytes,
        size: int,
        offset: int,
        counter_handle: bytes,
        counter_offset: int,
        event_handle: bytes,
        event_is_recorded: bool,
    ) -> Any:
        if not handle.startswith(_OURS):
            return original(
                device, handle, size, offset, counter_handle, counter_offset, event_handle, event_is_recorded
            )
        device = _here(handle, device)
        with torch.cuda.device(device):
            received = _Received(torch, device, handle, size, offset, (counter_handle, counter_offset))
            if event_is_recorded:
                event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", device), event_handle)
                torch.cuda.current_stream().wait_event(event)
            return torch.as_tensor(received).untyped_storage()

    new_shared_cuda.accepts_gapless = True  # type: ignore[attr-defined]
    storage._new_shared_cuda = staticmethod(new_shared_cuda)
