"""vLLM's sleep mode on gapless: the interface of its allocator, over tags that sleep and wake.

The entry point ``vllm.general_plugins`` of the wheel is :func:`register`, which vLLM calls in each of its processes. Where gapless
serves PyTorch, ``vllm.device_allocator.get_mem_allocator_instance()`` returns a :class:`TagAllocator` from then on, whichever
module of vLLM asks, and the sleep mode's backend is ``cumem`` as before. Version 0.33 of vLLM is known; others stay as they are.
"""

from __future__ import annotations

import gc
import threading
import warnings
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Collection, Iterator, Optional, Union

from . import _reports, _start
from . import torch as _torch
from ._imports import after_import
from ._numbers import PoolKind
from .torch import _sleep

__all__ = ["TagAllocator", "register"]

_KNOWN = (0, 33)
_MODULE = "vllm.device_allocator.cumem"
# What the tags are called in gapless: apart from those of a trainer in the same process.
_PREFIX = "vllm."
_GRAPHS = "cudagraph"
_GIB = float(1 << 30)

_registered = False


def register() -> None:
    """Has vLLM's sleep mode use gapless in this process, where gapless serves PyTorch when vLLM first asks for its allocator."""
    global _registered
    if _registered:
        return
    _registered = True
    from vllm.version import __version__, __version_tuple__

    if tuple(__version_tuple__[:2]) == _KNOWN:
        after_import(_MODULE, _offer)
    elif _start.is_wanted() or _torch.is_enabled():
        warnings.warn(
            f"gapless leaves vLLM's sleep mode as it is: it knows version {_KNOWN[0]}.{_KNOWN[1]}, and this is {__version__}",
            RuntimeWarning,
            stacklevel=2,
        )


def _offer(module: ModuleType) -> None:
    """Puts an allocator of tags in the place of vLLM's single one, when that is first asked for."""
    cumem = module.CuMemAllocator
    original = cumem.get_instance

    def get_instance() -> Any:
        if cumem.instance is None and _torch.is_enabled():
            cumem.instance = TagAllocator(cumem.default_tag, module.DEFERRABLE_TAGS, module.logger)
        return original()

    cumem.get_instance = staticmethod(get_instance)


class TagAllocator:
    """vLLM's ``MemAllocator``, with what else vLLM calls of its ``CuMemAllocator``.

    A tag of vLLM's is one of gapless with ``vllm.`` before its name. A call puts its tags to sleep together, and wakes them
    together: all of them or none.
    """

    def __init__(self, default_tag: str, deferrable_tags: Collection[str], logger: Any) -> None:
        self._default_tag = default_tag
        self._deferrable_tags = deferrable_tags
        self._logger = logger
        # Each tag that was used, with what has become of its bytes while it is asleep.
        self._backups: dict[str, Optional[str]] = {}
        # Pools of captured graphs, by device.
        self._graph_pools: dict[int, Any] = {}
        self._lock = threading.RLock()

    @contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """Has what this thread allocates inside lie under a tag. What was freed inside goes back to the device at the end."""
        import torch

        with _torch.tag(self._used(self._default_tag if tag is None else tag)):
            yield
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.empty_cache()

    @contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The id of the pool for captured graphs, which sleeps whole: replays use the memory that captures have freed, too."""
        import torch

        device = torch.cuda.current_device()
        name = self._used(_GRAPHS)
        with self._lock:
            pool = self._graph_pools.get(device)
            if pool is None:
                pool = self._graph_pools[device] = torch.cuda.MemPool()
                _sleep.declare(device, pool, PoolKind.GRAPH, name)
        yield pool.id

    def release_pools(self) -> None:
        """Lets go of the pools for captured graphs, and gives free memory back to the device."""
        import torch

        self._graph_pools.clear()
        gc.collect()
        torch.cuda.empty_cache()

    def get_current_usage(self) -> int:
        """The bytes that the tags hold, and those that a wake needs for what is asleep of them."""
        names, held = {_PREFIX + tag for tag in self._backups}, 0
        for device in _sleep.devices():
            pools = _reports.of_device(device)["pools"]
            of_tags = [pool["stats"] for pool in pools if pool.get("tag") in names]
            held += sum(stats["reserved_bytes"] + stats["asleep_bytes"] for stats in of_tags)
        return held

    def sleep(self, offload_tags: Union[tuple[str, ...], str, None] = None) -> None:
        """Puts all tags to sleep: some with a backup in pinned memory of the host, the others without one.

        What is asleep stays as it is. Raises ``gapless.GaplessError`` where the driver or the host refuses; everything is awake
        then that was.
        """
        kept = (self._default_tag,) if offload_tags is None else _names(offload_tags)
        with self._lock:
            self._fall_asleep({tag: "pinned" if tag in kept else "discard" for tag in self._backups})

    def discard(self, tags: Union[tuple[str, ...], str]) -> None:
        """Puts some tags to sleep without a backup, and leaves the others."""
        with self._lock:
            self._fall_asleep({tag: "discard" for tag in _names(tags) if tag in self._backups})

    def wake_up(self, tags: Optional[Collection[str]] = None) -> None:
        """Wakes tags, ``None`` for all; whichever they are, those that vLLM does not know how to defer wake as well.

        All of them or none: where there is too little memory, raises ``gapless.OutOfMemoryError``, and what was asleep is asleep.
        """
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        with self._lock:
            wanted = [tag for tag in self._backups if tags is None or tag in tags or tag not in self._deferrable_tags]
            woken = _torch.wake(*(_PREFIX + tag for tag in wanted)) if wanted else 0
            for tag in wanted:
                self._backups[tag] = None
        self._logger.info("gapless: %.2f GiB of %s woke up.", woken / _GIB, wanted)

    def _fall_asleep(self, wanted: dict[str, str]) -> None:
        """Puts tags to sleep, each with a kind of backup."""
        import torch

        # A tensor that only garbage refers to need not be copied.
        gc.collect()
        before = self._asleep()
        slept = _sleep.sleep_each([(_PREFIX + tag, backup) for tag, backup in wanted.items()])
        unchanged = [tag for tag, backup in wanted.items() if tag in before and self._backups[tag] not in (None, backup)]
        self._backups.update((tag, backup) for tag, backup in wanted.items() if tag not in unchanged)
        torch.cuda.empty_cache()
        self._logger.info(
            "gapless: sleep freed %.2f GiB memory in total, of which %.2f GiB is backed up in CPU and the rest is discarded.",
            slept.released_bytes / _GIB,
            slept.copied_bytes / _GIB,
        )
        if unchanged:
            self._logger.warning("gapless: %s are asleep already, and what becomes of their bytes stays as it was.", unchanged)

    def _used(self, tag: str) -> str:
        """Notes a tag, and returns its name in gapless."""
        with self._lock:
            self._backups.setdefault(tag, None)
        return _PREFIX + tag

    def _asleep(self) -> set[str]:
        """The tags that are asleep."""
        asleep = _torch.asleep()
        return {tag for tag in self._backups if _PREFIX + tag in asleep}


def _names(tags: Union[tuple[str, ...], str]) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
