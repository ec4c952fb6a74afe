"""Tensors that other processes send from gapless's memory, for processes in which PyTorch does not allocate with it.

``import gapless.ipc`` in the receiving process is all there is to do, before the first tensor arrives: queues of
``torch.multiprocessing``, and whatever else passes tensors by its reductions, then accept them. A process that has called
``gapless.torch.enable()`` accepts them without it.

What arrives is the sender's memory, mapped a second time. It stays as it is until the last tensor of it is gone here, also when
the sender has freed it or has ended. No memory is allocated for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

from . import _ipc, _library
from ._imports import after_import
from .results import Holder

after_import("torch", _ipc.accept)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Waits so long, in this thread, for a sender that does not answer when one of its tensors arrives; 10 seconds elsewhere.

    A sender does not answer while it is stopped, or serves as many receivers as it can. What arrives in vain raises
    :class:`gapless.GaplessError`, which says which of the two it was. A sender that has ended is not waited for.
    """
    if not seconds >= 0:
        raise ValueError(f"cannot wait {seconds} seconds")
    library = _library.load()
    before = library.gapless_import_patience(int(min(seconds * 1000, 2**64 - 1)))
    try:
        yield
    finally:
        library.gapless_import_patience(before)


def keep_closed(size: int, device: int = 0) -> None:
    """Keeps up to ``size`` bytes of what has arrived mapped after its last tensor is gone here, for senders that send the same tensors again.

    What is sent again while it lives then costs no call to the driver. To the sender it is closed all the same, and its memory is
    ordinary memory. What the sender gives back to the device meanwhile is the device's again when it is given up here: beyond
    ``size``, when it arrives after it was freed, and with ``keep_closed(0)``.
    """
    _library.check(_library.load().gapless_device_keep_closed_imports(device, size))


def holders(device: int = 0) -> list[Holder]:
    """The processes that have tensors of this one open: ``process``, ``blocks``, ``bytes``, and ``freed_bytes``.

    ``freed_bytes`` were freed here, and are held for that process alone. ``process`` is None for all processes of other namespaces,
    as in other containers.
    """
    found: list[Holder] = _library.read_json(_library.load().gapless_device_holders_json, device)
    return found


def cut_off(process: Optional[int], device: int = 0) -> None:
    """Holds nothing for a receiving process any more, one that hangs for example.

    It is not asked, and may go on to use the memory, so that nobody else gets the chunks that a tensor's block has for itself:
    once that is freed here they go back to the driver, and the device has them again when that process has ended. Chunks in which
    other blocks lie are used on. None cuts off all processes of other namespaces.
    """
    if process is not None and not 0 < process < 2**32:
        raise ValueError(f"no process has the number {process}")
    _library.check(_library.load().gapless_device_cut_off(device, process or 0))
