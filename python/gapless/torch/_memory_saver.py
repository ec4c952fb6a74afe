"""torch_memory_saver on gapless: its interface, unchanged, over tags that sleep and wake.

A region is a tag of gapless: pausing puts the tag to sleep, and resuming wakes it, whole or not at all. Of those of one name,
regions with a backup are a tag of their own for each kind of memory that their bytes are kept in, pinned and pageable. Regions
whose backup is to be on disk and those in a capture have memory that its own library maps, and so has in its mode ``preload``
what is captured, what is of a device that is not the current one, and what is outside of regions. Each tag of that is paused and
resumed in turns: the library ends the process where one is paused or resumed twice.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Iterator, Optional

from .. import _library
from .._imports import after_import
from .._numbers import Status

_MODULE = "torch_memory_saver.entrypoint"
# What the class is called with that takes the place of theirs.
_PARAMETERS = {
    "region": ["self", "tag", "enable_cpu_backup", "enable_disk_backup", "cpu_backup_backend"],
    "cuda_graph": ["self", "cuda_graph", "pool", "stream", "capture_error_mode", "tag", "enable_cpu_backup", "cpu_backup_backend"],
    "pause": ["self", "tag"],
    "resume": ["self", "tag"],
    "get_cpu_backup": ["self", "x", "zero_copy"],
}
# For each kind of memory that backups are in, that of gapless's, and what the names of tags end with whose bytes are kept there.
_BACKUPS = {
    "": ("discard", ""),
    "pinned": ("pinned", " with a backup"),
    "mmap": ("pageable", " with a pageable backup"),
}
# The tag of its memory outside of regions.
_DEFAULT_TAG = "default"


class _Turns:
    """Which tags of the memory that torch_memory_saver's own library maps are paused."""

    def __init__(self, tags: set[str]) -> None:
        self._awake = tags
        self._paused: set[str] = set()
        self._lock = threading.Lock()

    def add(self, tag: str) -> None:
        """Notes a tag that has memory."""
        with self._lock:
            if tag not in self._paused:
                self._awake.add(tag)

    def pause(self, tag: Optional[str], call: Callable[[Optional[str]], None]) -> None:
        """Calls for the tag, or for all, what is to be paused."""
        with self._lock:
            _take_turns(tag, self._awake, self._paused, call)

    def resume(self, tag: Optional[str], call: Callable[[Optional[str]], None]) -> None:
        """Calls for the tag, or for all, what is to be resumed."""
        with self._lock:
            _take_turns(tag, self._paused, self._awake, call)


def _take_turns(tag: Optional[str], here: set[str], there: set[str], call: Callable[[Optional[str]], None]) -> None:
    """Moves tags from one set to the other. All that there are is one call, which reaches tags that nobody has noted as well."""
    moved = {tag} & here if tag else set(here)
    if moved and not tag and not there:
        call(None)
    else:
        for name in sorted(moved):
            call(name)
    here -= moved
    there |= moved


def serve_regions(serves: Callable[[], bool], tags: Any) -> None:
    """Has torch_memory_saver keep memory of its regions in gapless, once a program imports it.

    That is where gapless ``serves`` PyTorch when a program first calls torch_memory_saver. ``tags`` has the functions ``tag``,
    ``sleep``, ``wake`` and ``backup_of`` of ``gapless.torch``, ``pool_of``, which returns the pool of a tag, and
    ``wait_for_devices``, which waits for what is queued.
    """

    def replace(module: ModuleType) -> None:
        original = module._TorchMemorySaverImpl
        if any(list(inspect.signature(getattr(original, name)).parameters) != known for name, known in _PARAMETERS.items()):
            warnings.warn(
                "gapless does not know this version of torch_memory_saver, and leaves it as it is: version 0.0.10 is known",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        saver = _over(original, tags)

        def construct(*arguments: Any, **options: Any) -> Any:
            return (saver if serves() else original)(*arguments, **options)

        module._TorchMemorySaverImpl = construct  # type: ignore[attr-defined]

    after_import(_MODULE, replace)


def _over(original: Any, tags: Any) -> Any:
    """The class that takes the place of torch_memory_saver's own."""

    class MemorySaver(original):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            # Outside of regions, its library has memory in one mode only.
            self._turns = _Turns({_DEFAULT_TAG} if self._hook_mode == "preload" else set())
            # The names of tags of gapless, by the tags that they are of.
            self._tags_on_gapless: dict[str, set[str]] = {}
            self._has_margin = False
            self._watch_margin()

        def _watch_margin(self) -> None:
            """Regions that leave a margin free are the library's own."""
            functions = self._binary_wrapper.cdll
            set_margin = functions.set_memory_margin_bytes

            def set_memory_margin_bytes(value: int) -> Any:
                self._has_margin = value > 0
                return set_margin(value)

            functions.set_memory_margin_bytes = set_memory_margin_bytes

        @contextmanager
        def region(
            self, tag: str, enable_cpu_backup: bool, enable_disk_backup: bool, cpu_backup_backend: Optional[str]
        ) -> Iterator[None]:
            config = {
                "tag": tag,
                "enable_cpu_backup": enable_cpu_backup,
                "enable_disk_backup": enable_disk_backup,
                "cpu_backup_backend": cpu_backup_backend,
            }
            backend = self._backend(cpu_backup_backend) if enable_cpu_backup else ""
            if enable_disk_backup or backend not in _BACKUPS or not self._may_be_on_gapless() or not tag:
                self._turns.add(tag)
                with super().region(**config):
                    yield
                return
            backup, ending = _BACKUPS[backend]
            name = tag + ending
            self._tags_on_gapless.setdefault(tag, set()).add(name)
            if self._hook_mode == "preload":
                # Its library has what is made inside on other devices, and by others than PyTorch.
                self._turns.add(tag)
            with tags.tag(name, backup=backup), self._with_region_config(**config):
                # Where programs look for the pools of their regions.
                self._mem_pools[tag, enable_cpu_backup, False, backend, self._current_device()] = tags.pool_of(name)
                yield

        def _backend(self, named: Optional[str]) -> str:
            """The kind of memory that backups are to be in."""
            return named or self._binary_wrapper.cdll.tms_get_cpu_backup_backend().decode()

        def _may_be_on_gapless(self) -> bool:
            """Replays use memory that was freed, and free memory of a tag's pool moves: the library has the regions of captures."""
            return not self._has_margin and not self._device_module.is_current_stream_capturing()

        @contextmanager
        def cuda_graph(self, *arguments: Any, tag: str, **options: Any) -> Iterator[None]:
            self._turns.add(tag)
            with super().cuda_graph(*arguments, tag=tag, **options):
                yield

        def pause(self, tag: Optional[str]) -> None:
            names = self._on_gapless(tag)
            if names:
                tags.sleep(*sorted(names))
            self._turns.pause(tag, self._pause_in_library)

        def _pause_in_library(self, tag: Optional[str]) -> None:
            """The library unmaps under queued work."""
            tags.wait_for_devices()
            super().pause(tag)

        def resume(self, tag: Optional[str]) -> None:
            names = self._on_gapless(tag)
            if names:
                tags.wake(*sorted(names), retain=self._binary_wrapper.cdll.tms_get_retain_cpu_backup())
            self._turns.resume(tag, super().resume)

        def _on_gapless(self, tag: Optional[str]) -> set[str]:
            chosen = [tag] if tag else list(self._tags_on_gapless)
            return {name for of in chosen for name in self._tags_on_gapless.get(of, ())}

        def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
            if x.is_cuda and x.is_contiguous() and _is_gapless(x.data_ptr()):
                return tags.backup_of(x, copy=not zero_copy)
            return super().get_cpu_backup(x, zero_copy=zero_copy)

    return MemorySaver


def _is_gapless(address: int) -> bool:
    """Whether a block of gapless lies there."""
    block = _library.Block()
    return _library.load().gapless_torch_describe(address, block) == Status.OK
