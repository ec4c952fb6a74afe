"""PyTorch on gapless.

>>> import gapless.torch
>>> gapless.torch.enable()      # before anything touches the GPU

or, without a change to the script: ``python -m gapless.torch script.py arguments...``

PyTorch on its own allocator, with a report beside each out-of-memory error:

>>> gapless.torch.explain_oom()
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, Union

from .. import _conf, _library, _run, _start
from .._numbers import Status
from . import _object, _sleep
from ._explain import explain_oom
from ._figures import Figures, mark_asleep, record_history, snapshot
from ._growable import Growable, growable
from ._interposers import warn_of_interposers
from ._memory_saver import serve_regions
from ._refusals import switch_off
from ._sleep import Slept, asleep, backup_of, sleep, tag, wake

__all__ = [
    "Growable",
    "Slept",
    "asleep",
    "backup_of",
    "backend",
    "enable",
    "explain_oom",
    "growable",
    "is_enabled",
    "main",
    "registered_pool",
    "sleep",
    "tag",
    "wake",
]

# What PyTorch was given: "object" or "plug-in", and how to find out whether it is still in use.
_given: Optional[tuple[str, Callable[[], int]]] = None
# The configuration that holds.
_settings: dict[str, str] = {}
# PyTorch asks the driver for each block where it is set, as tools that look for wrong accesses need it.
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
# Far from the ids that PyTorch makes for graphs.
_POOL_IDS = 1 << 40


def is_enabled() -> bool:
    """Whether PyTorch allocates through gapless in this process."""
    return backend() is not None


def backend() -> Optional[str]:
    """How PyTorch allocates through gapless: through the ``"object"`` or the ``"plug-in"``; ``None`` where it does not.

    Before CUDA starts, PyTorch lets any program replace the object (``change_current_allocator``), so that it is asked each time.
    ``torch.cuda.get_allocator_backend()`` is ``native`` with the object, since that serves all that PyTorch's own allocator does.
    """
    if _given is None:
        return None
    name, is_used = _given
    return name if is_used() else None


def enable(budget: Union[int, float, str, None] = None, **settings: Union[str, int, float, bool]) -> None:
    """Makes PyTorch allocate through gapless from now on.

    ``budget`` and ``settings`` are the keys of ``GAPLESS_CONF`` (``slack``, ``chunk``, ``log``, ``record``, ...). They are added to
    what that environment variable says, and count more where both have a key. ``per_process_memory_fraction`` of PyTorch's own
    variable is a limit where nobody gives a budget. A second call may change settings until the first allocation.

    Processes that this one starts are on gapless as well, with the same settings: ``GAPLESS_TORCH`` carries them.

    The wheel has an allocator object for each minor version of PyTorch that it knows. For others PyTorch's plug-in interface is used,
    as a warning says. With that one, ``torch.backends.cudnn.benchmark`` and the CUDA graphs of ``torch.compile`` are switched off:
    PyTorch refuses them to every plug-in. A warning says so where a program asks for one of them.

    Where ``PYTORCH_NO_CUDA_MEMORY_CACHING`` is set, PyTorch's own allocator stays in place, and a warning says so.

    Raises ``RuntimeError`` when CUDA is initialised already, this PyTorch has no interface for allocators, it has another allocator
    than its own already, or settings come too late; ``gapless.GaplessError`` for a setting that cannot be used.
    """
    global _given
    arguments = _conf.of_arguments(settings if budget is None else {"budget": budget, **settings})
    import torch

    # Asked for by GAPLESS_TORCH, it was enabled by that import.
    if _given is not None:
        _change_settings(arguments)
        return

    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no interface for allocators: install a CUDA build of version 2.4 or newer"
        )
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "too late: PyTorch has already initialised CUDA. Call gapless.torch.enable() before anything touches the "
            "GPU, right after the imports, or run the script with python -m gapless.torch script.py"
        )
    taken = torch.cuda.memory.get_allocator_backend()
    if taken != "native":
        raise RuntimeError(
            f"PyTorch allocates through {taken!r} already, as its variable or the program asks for, and gapless takes the place of "
            "PyTorch's own allocator: leave one of them out"
        )
    if _UNCACHED in os.environ:
        warnings.warn(
            f"gapless leaves this process to PyTorch's own allocator: {_UNCACHED} is set, which has each request call the driver",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    library = _library.load()
    keys = {**_conf.of_environment(os.environ), **arguments}
    try:
        _conf.configure(_conf.text(keys))
    except _library.GaplessError as error:
        # In use already by another front end, with these settings.
        if error.status != Status.IN_USE or keys != _conf.given(os.environ):
            raise
    is_used = _install_object(torch)
    if is_used is not None:
        _given = "object", is_used
        mark_asleep(torch)
        warn_of_interposers(with_object=True)
        serve_regions(lambda: backend() == "object", _sleep)
        _settings.update(keys)
        _tell_children()
        return
    _limit_plug_in(library, torch)
    _throw_failures(library, torch)
    try:
        allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(_library.path()), "gapless_torch_malloc", "gapless_torch_free"
        )
        _set_hooks(allocator._allocator, library)
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError(
            f"PyTorch did not take the allocator ({error}): call gapless.torch.enable() before anything touches the GPU"
        ) from error
    # PyTorch replaces no plug-in.
    _given = "plug-in", lambda: 1
    warn_of_interposers(with_object=False)
    _settings.update(keys)
    _tell_children()
    _provide(torch)
    switch_off(torch)


def registered_pool() -> Any:
    """Returns a ``torch.cuda.MemPool`` whose memory libraries may register: NCCL's user buffers, RDMA.

    Each of its segments is one physical allocation, alone in its mapping, which stays where it is until the pool gives it back.
    Allocate in it with ``torch.cuda.use_mem_pool(pool)``. Works whichever allocator PyTorch uses, but for a plug-in.
    """
    import torch

    if torch.cuda.memory.get_allocator_backend() == "pluggable":
        raise RuntimeError(
            "PyTorch lets a pool have an allocator of its own only where none is plugged in: use a version of PyTorch that "
            "gapless has an object for"
        )
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(_library.path()), "gapless_torch_registered_malloc", "gapless_torch_registered_free"
    )
    return torch.cuda.MemPool(allocator.allocator())


def _change_settings(arguments: dict[str, str]) -> None:
    """Settings of a further call: they hold from now on, or come too late."""
    keys = {**_settings, **arguments}
    if keys == _settings:
        return
    try:
        _conf.configure(_conf.text(keys))
    except _library.GaplessError as error:
        if error.status != Status.IN_USE:
            raise
        raise RuntimeError(
            f"too late for {_conf.text(arguments)!r}: gapless is in use, with {_conf.text(_settings) or 'no settings'!r}. "
            "torch.cuda.set_per_process_memory_fraction changes the budget at any time"
        ) from error
    _settings.update(keys)
    _tell_children()


def _install_object(torch: Any) -> Optional[Callable[[], int]]:
    """Prefers the allocator object to the plug-in interface, and says why where it cannot be had."""
    if os.environ.get("GAPLESS_TORCH_OBJECTS") == "off":
        return None
    installed = _object.install(torch)
    if not isinstance(installed, str):
        return installed
    warnings.warn(
        f"gapless uses PyTorch's plug-in interface, which serves less than PyTorch's own allocator does: {installed}",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


def _limit_plug_in(library: ctypes.CDLL, torch: Any) -> None:
    """Limits a plug-in as PyTorch's own variable asks for: that of the object comes from PyTorch's own allocator."""
    text = _conf.of_pytorch(os.environ)
    # Raises what PyTorch raises for what it cannot read, in whichever variable.
    for name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"):
        if hasattr(torch._C, name):
            getattr(torch._C, name)(text)
            break
    _library.check(library.gapless_torch_limit(_conf.memory_fraction(text)))


def _tell_children() -> None:
    """Has the processes that this one starts do as it does."""
    os.environ[_start.VARIABLE] = "1"
    os.environ[_conf.VARIABLE] = _conf.for_children(_settings)


def _throw_failures(library: ctypes.CDLL, torch: Any) -> None:
    """Failures become ``torch.cuda.OutOfMemoryError``: a plug-in's null pointer would be taken for memory."""
    thrower = Path(os.environ.get("GAPLESS_TORCH_THROW") or _library.FOLDER / "_torch_throw.so")
    libc10, libc10_cuda = (Path(torch.__file__).with_name("lib") / name for name in ("libc10.so", "libc10_cuda.so"))
    try:
        functions = ctypes.CDLL(str(thrower))
        outcome = functions.gapless_torch_throw_prepare(str(libc10).encode(), str(libc10_cuda).encode())
    except OSError as error:
        raise RuntimeError(f"{thrower} cannot be loaded ({error}): install gapless from its wheel") from error
    if outcome == 2:
        raise RuntimeError(
            f"PyTorch {torch.__version__} does not export its error classes ({libc10}), so running out of memory could "
            "not be reported; please report this with the version"
        )
    if outcome == 1:
        warnings.warn(
            f"PyTorch {torch.__version__} does not export torch.cuda.OutOfMemoryError: running out of memory raises a "
            "plain RuntimeError with the same text; please report this with the version",
            stacklevel=4,
        )
    library.gapless_torch_on_failure(ctypes.cast(functions.gapless_torch_throw, ctypes.c_void_p))


def _set_hooks(allocator: Any, library: ctypes.CDLL) -> None:
    """Sets the optional hooks of the plug-in interface. Some versions of PyTorch lack some of them."""
    for setter, function in [
        ("set_init_fn", "gapless_torch_init"),
        ("set_reset_fn", "gapless_torch_reset"),
        ("set_memory_fraction_fn", "gapless_torch_memory_fraction"),
        ("set_base_alloc_fn", "gapless_torch_base_alloc"),
        ("set_record_stream_fn", "gapless_torch_record_stream"),
        ("set_begin_allocate_to_pool", "gapless_torch_begin_allocate_to_pool"),
        ("set_end_allocate_to_pool_fn", "gapless_torch_end_allocate_to_pool"),
        ("set_release_pool", "gapless_torch_release_pool"),
    ]:
        if hasattr(allocator, setter):
            address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value
            getattr(allocator, setter)(address)


def _provide(torch: Any) -> None:
    """Provides what PyTorch refuses for plug-ins. All of ``torch.cuda.memory`` calls these functions of ``torch._C``."""
    figures: dict[int, Figures] = {}
    fractions: dict[int, float] = {}
    limit = _conf.memory_fraction(_conf.of_pytorch(os.environ))

    def of(device: int) -> Figures:
        return figures.setdefault(device, Figures(device))

    def memory_stats(device: int) -> dict[str, Any]:
        return of(device).nested()

    def reset_peaks(device: int) -> None:
        of(device).reset_peaks()

    def reset_accumulated(device: int) -> None:
        of(device).reset_accumulated()

    def memory_snapshot(argument: Any = None, *_: Any, **__: Any) -> dict[str, Any]:
        pool = tuple(argument[:2]) if isinstance(argument, (tuple, list)) else None
        return snapshot([of(device) for device in range(torch.cuda.device_count())], pool)

    def set_fraction(fraction: float, device: int) -> None:
        _library.check(_library.load().gapless_torch_set_fraction(fraction, device))
        fractions[device] = fraction

    def get_fraction(device: int) -> float:
        return fractions.get(device, limit)

    def start(enabled: Any, entries: int, clear: bool) -> None:
        if enabled:
            warnings.warn("gapless keeps the history of allocations without their stack traces", stacklevel=4)
        record_history(enabled, entries, clear)

    def record(enabled: Any, _context: Any = None, _stacks: Any = "python", entries: Any = None, *rest: Any) -> None:
        start(enabled, sys.maxsize if entries is None else entries, bool(rest and rest[0]))

    # The older call: flags in place of names, and the entries before the stacks.
    def record_legacy(enabled: Any, _context: Any = True, entries: Any = 1, *rest: Any) -> None:
        start("all" if enabled else None, entries, bool(rest[2:] and rest[2]))

    replacements: dict[str, Callable[..., Any]] = {
        **_of_accelerators(torch, memory_stats, reset_peaks, reset_accumulated),
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": reset_accumulated,
        "_cuda_memorySnapshot": memory_snapshot,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": get_fraction,
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
    }
    for name, function in replacements.items():
        original = getattr(torch._C, name, None)
        if original is not None:
            setattr(torch._C, name, functools.wraps(original, assigned=("__doc__",), updated=())(function))

    _provide_mem_pool(torch, memory_snapshot)

    # The viewer reads protocols up to 4; from Python 3.14 on, pickle writes 5 by default.
    def dump_snapshot(filename: str = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
        import pickle

        with open(filename, "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file, protocol=4)

    torch.cuda.memory._dump_snapshot = dump_snapshot


def _of_accelerators(
    torch: Any,
    memory_stats: Callable[[int], dict[str, Any]],
    reset_peaks: Callable[[int], None],
    reset_accumulated: Callable[[int], None],
) -> dict[str, Callable[..., Any]]:
    """The functions that ``torch.accelerator`` calls, from PyTorch 2.9 on. It always means PyTorch's own, which is not in use."""

    def is_initialized() -> bool:
        return bool(torch.cuda.is_initialized())

    return {
        "_accelerator_isAllocatorInitialized": is_initialized,
        "_accelerator_emptyCache": torch.cuda.empty_cache,
        "_accelerator_getDeviceStats": memory_stats,
        "_accelerator_resetPeakStats": reset_peaks,
        "_accelerator_resetAccumulatedStats": reset_accumulated,
    }


def _provide_mem_pool(torch: Any, memory_snapshot: Callable[..., Any]) -> None:
    """Replaces ``torch.cuda.MemPool``, whose constructor refuses plug-ins. Whatever takes a pool only uses its id."""
    # A pool may end with the interpreter, when modules have no names any more.
    library, named = _library.load(), _library.Pool
    numbers = itertools.count(1)

    class MemPool:
        """A pool of memory on the current device, for ``torch.cuda.use_mem_pool`` and graph captures."""

        def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
            if allocator is not None:
                raise RuntimeError("gapless does not support a MemPool with an allocator of its own: leave it out")
            # use_on_oom and no_split are for pools whose memory cannot be moved.
            del use_on_oom, no_split
            self.device = torch.cuda.current_device()
            self.id = (_POOL_IDS + next(numbers), 0)
            self.allocator = None
            library.gapless_torch_begin_allocate_to_pool(self.device, named(*self.id), None)
            library.gapless_torch_end_allocate_to_pool(self.device, named(*self.id))

        def __del__(self) -> None:
            if hasattr(self, "id"):
                library.gapless_torch_release_pool(self.device, named(*self.id))

        def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
            """The segments of the pool, in the form of ``torch.cuda.memory_snapshot()``."""
            return memory_snapshot((*self.id, include_traces))["segments"]

    torch.cuda.MemPool = torch.cuda.memory.MemPool = MemPool


_USAGE = """\
usage: python -m gapless.torch script.py [arguments...]
       python -m gapless.torch -m package.module [arguments...]
       python -m gapless.torch -c code [arguments...]

Runs it as python does, with PyTorch on gapless. Settings: GAPLESS_CONF"""


def main(arguments: list[str]) -> None:
    """Runs a program, unchanged, with PyTorch on gapless: ``python -m gapless.torch script.py arguments...``."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, file=sys.stderr)
        raise SystemExit(0 if arguments else 2)
    enable()
    _run.run(arguments)
