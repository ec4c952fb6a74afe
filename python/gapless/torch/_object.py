"""PyTorch's allocator interface as an object of C++: one shim for each minor of PyTorch, chosen when it is loaded.

The object serves all that PyTorch's own allocator serves. A shim is used with the build of PyTorch whose headers it was compiled
with, and with other builds once it is proved to fit. Where there is none for a version of PyTorch, or the proof fails, PyTorch's
plug-in interface is used, which has less (``docs/using/pytorch.md``).
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, Union

from .. import _frames, _library

_ARRAYS = (
    "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes"
).split()
_KINDS = ("all", "small_pool", "large_pool")
_COUNTS = ("current", "peak", "allocated", "freed")
_NUMBERS = (
    "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free max_split_size"
).split()


def install(torch: Any) -> Union[str, Callable[[], int]]:
    """Makes PyTorch allocate through the object.

    Returns a function that says whether PyTorch still does, or why that cannot be: nothing has changed then.
    """
    minor = ".".join(torch.__version__.split(".")[:2])
    folder = Path(os.environ.get("GAPLESS_TORCH_OBJECTS") or _library.FOLDER)
    file = folder / f"_torch_object_{minor.replace('.', '_')}.so"
    if not file.exists():
        return f"this gapless has no allocator object for PyTorch {minor}"
    try:
        shim = ctypes.CDLL(str(file))
    except OSError as error:
        return f"{file.name} cannot be loaded ({error})"
    shim.gapless_object_version.restype = ctypes.c_char_p
    shim.gapless_object_commit.restype = ctypes.c_char_p
    shim.gapless_object_prepare.restype = ctypes.c_char_p
    shim.gapless_object_prepare.argtypes = [ctypes.c_char_p, ctypes.c_int]
    built_for = shim.gapless_object_version().decode()
    if ".".join(built_for.split(".")[:2]) != minor:
        return f"{file.name} was built for PyTorch {built_for}"
    is_of_commit = _is_of_commit(torch, built_for, shim.gapless_object_commit().decode())
    problem = shim.gapless_object_prepare(str(_library.path()).encode(), is_of_commit)
    if problem is not None:
        return f"{file.name} does not fit PyTorch {torch.__version__}: {problem.decode(errors='replace')}"
    if not is_of_commit:
        read = _in_a_child(lambda: _read_planted(torch, shim))
        if read is not None:
            return f"{file.name} does not fit PyTorch {torch.__version__}: {read}"
    shim.gapless_object_use(1)
    _kept.append(_frames.explain_refusals(shim.gapless_object_explain_refusals, _snapshot_of(torch)))
    is_used: Callable[[], int] = shim.gapless_object_is_used
    return is_used


# The functions that C++ calls.
_kept: list[Any] = []


def _snapshot_of(torch: Any) -> Callable[[], Any]:
    """PyTorch's snapshot without its traces, where this version can leave them out."""
    snapshot: Callable[..., Any] = torch.cuda.memory.memory_snapshot
    if "include_traces" in inspect.signature(snapshot).parameters:
        return functools.partial(snapshot, include_traces=False)
    return snapshot


def _is_of_commit(torch: Any, version: str, commit: str) -> bool:
    """Whether PyTorch is the release whose headers the object was compiled with, so that each reads what the other writes.

    For every other one that is proved, at the price of a process and 30 ms. A build from changed sources of the commit has another
    version than the release.
    """
    running = torch.__version__.split("+")[0], torch.version.git_version
    return running == (version, commit) and not torch.version.debug


def _read_planted(torch: Any, shim: ctypes.CDLL) -> Optional[str]:
    shim.gapless_object_plant(1)
    shim.gapless_object_use(1)
    try:
        return _misread(torch)
    except Exception as error:  # Whatever PyTorch makes of an answer that it misreads.
        return f"{type(error).__name__}: {error}"


# What a check writes that found nothing: a child that could not say so did not pass.
_WELL = "well"


def _in_a_child(check: Callable[[], Optional[str]]) -> Optional[str]:
    """Runs a check in a forked process, which may end in whatever way, and returns what it found."""
    import faulthandler
    import resource

    readable, writable = os.pipe()
    with warnings.catch_warnings():
        # Python warns of forks with several threads: this child neither locks nor allocates on a device.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            # A crash is an answer, not news.
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.write(writable, (check() or _WELL).encode()[:4096])
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, "rb") as pipe:
        found = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"reading what it answers ended in signal {os.WTERMSIG(status)}"
    if found == _WELL:
        return None
    return found or "reading what it answers ended without a word"


def _misread(torch: Any) -> Optional[str]:
    """Returns what PyTorch reads wrongly of answers whose numbers are known; ``None`` if it is nothing."""
    name = torch._C._cuda_getAllocatorBackend()
    if name != "planted":
        return f"its name is read as {name!r}"
    return _different(torch._C._cuda_memoryStats(0), _planted_stats(), "statistics") or _different(
        torch._C._cuda_memorySnapshot((0, 0)), _planted_snapshot(), "snapshot"
    )


def _planted_stats() -> dict[str, Any]:
    """As ``planted.cpp`` has them."""
    numbers = iter(range(1000, 2000))
    planted: dict[str, Any] = {}
    for name in _ARRAYS:
        planted[name] = {kind: {count: next(numbers) for count in _COUNTS} for kind in _KINDS}
    planted.update((name, next(numbers)) for name in _NUMBERS)
    return planted


def _planted_snapshot() -> dict[str, Any]:
    """As ``planted.cpp`` has it."""
    return {
        "segments": [
            {
                "address": 2000 + segment,
                "total_size": 2010 + segment,
                "allocated_size": 2020 + segment,
                "active_size": 2030 + segment,
                "requested_size": 2040 + segment,
                "segment_pool_id": (2050 + segment, 2060 + segment),
                "blocks": [
                    {
                        "size": 2070 + segment * 2 + block,
                        "requested_size": 2080 + segment * 2 + block,
                        "state": "active_allocated" if block else "inactive",
                    }
                    for block in range(2)
                ],
            }
            for segment in range(2)
        ],
        "device_traces": [
            [
                {
                    "action": "alloc",
                    "addr": 2100 + entry,
                    "size": 2110 + entry,
                    "stream": 2120 + entry,
                    "time_us": 2130 + entry,
                    "compile_context": f"compile context {entry}",
                }
                for entry in range(2)
            ]
        ],
        "allocator_settings": {"max_split_size": 2140},
    }


def _different(found: Any, planted: Any, where: str) -> Optional[str]:
    """Where ``found`` lacks something of ``planted``, or has another value for it."""
    if isinstance(planted, dict):
        pairs = [(f"{where}.{key}", found[key], value) for key, value in planted.items()]
    elif isinstance(planted, list):
        if len(found) != len(planted):
            return f"{where} has {len(found)} entries instead of {len(planted)}"
        pairs = [(f"{where}[{number}]", found[number], value) for number, value in enumerate(planted)]
    else:
        return None if found == planted else f"{where} is read as {found!r} instead of {planted!r}"
    return next((problem for pair in pairs for problem in [_different(pair[1], pair[2], pair[0])] if problem), None)
