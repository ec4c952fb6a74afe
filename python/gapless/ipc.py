"""Tensors that other processes send from gapless's memory, for processes in which PyTorch does not allocate with it.

``import gapless.ipc`` in the receiving process is all there is to do, before the first tensor arrives: queues of
``torch.multiprocessing``, and whatever else passes tensors by its reductions, then accept them. A process that has called
``gapless.torch.enable()`` accepts them without it.

What arrives is the sender's memory, mapped a second time. It stays as it is until the last tensor of it is gone here, also when
the sender has freed it or has ended. No memory is allocated for it.
"""

from . import _ipc
from ._imports import after_import

after_import("torch", _ipc.accept)
