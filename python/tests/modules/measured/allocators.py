"""Ways to have memory that sleeps and wakes, each by the interface that programs call; ``named`` has them by their names.

No class knows what serves it: gapless, where that is on. ``whole`` is the tag of a program as a whole. ``prepare`` is what programs
do before a sleep that is no part of it.
"""

import contextlib

import torch


class Saver:
    """torch_memory_saver's regions, of which a program as a whole is one."""

    whole = "all"

    def __init__(self):
        from torch_memory_saver import torch_memory_saver

        self._saver = torch_memory_saver
        self._saver.hook_mode = "preload"

    def region(self, tag, is_kept=True):
        return self._saver.region(tag=tag, enable_cpu_backup=is_kept)

    def prepare(self):
        torch.cuda.empty_cache()

    def sleep(self, tag):
        self._saver.pause(tag)

    def wake(self, tag):
        torch.cuda.empty_cache()
        self._saver.resume(tag)


class WholeSaver(Saver):
    """The same where the program is no region: it has ``TMS_INIT_ENABLE`` and ``TMS_INIT_ENABLE_CPU_BACKUP`` set, as with slime."""

    whole = "default"

    def region(self, tag, is_kept=True):
        return contextlib.nullcontext() if tag == self.whole else super().region(tag, is_kept)


class Vllm:
    """The allocator of vLLM's sleep mode, which puts all of its tags to sleep at once."""

    whole = "weights"

    def __init__(self):
        import vllm_stand_ins

        vllm_stand_ins.install()
        vllm_stand_ins.load_plugins()
        from vllm.device_allocator import get_mem_allocator_instance

        self._allocator = get_mem_allocator_instance()
        self._kept = {}

    def region(self, tag, is_kept=True):
        self._kept[tag] = is_kept
        return self._allocator.use_memory_pool(tag)

    def prepare(self):
        torch.cuda.empty_cache()
        for tag in self._kept:
            # Older pools of a tag give back what is free of them when another one begins.
            with self._allocator.use_memory_pool(tag):
                pass

    def sleep(self, tag):
        self._allocator.sleep(tuple(tag for tag, is_kept in self._kept.items() if is_kept))

    def wake(self, tag):
        self._allocator.wake_up([tag])


class VllmBeside(Vllm):
    """The same for an engine in the process of a trainer, whose memory is PyTorch's and stays awake."""

    whole = "trainer"

    def region(self, tag, is_kept=True):
        return contextlib.nullcontext() if tag == self.whole else super().region(tag, is_kept)

    def sleep(self, tag):
        if tag != self.whole:
            super().sleep(tag)

    def wake(self, tag):
        if tag != self.whole:
            super().wake(tag)


class Gapless:
    """gapless's tags, and the program outside of them."""

    whole = None

    def __init__(self):
        import gapless.torch

        self._of = gapless.torch

    def region(self, tag, is_kept=True):
        return self._of.tag(tag, backup="pinned" if is_kept else "discard") if tag else contextlib.nullcontext()

    def prepare(self):
        pass

    def sleep(self, tag):
        self._of.sleep(*([tag] if tag else []))

    def wake(self, tag):
        self._of.wake(*([tag] if tag else []))


named = {"saver": Saver, "whole saver": WholeSaver, "vllm": Vllm, "vllm beside": VllmBeside, "gapless": Gapless}
