"""Sleep and wake: memory of a tag, or of the process, goes back to the device, and comes again at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import threading
from typing import Any, Collection, Iterator, Optional

from .. import _library, _reports
from .._numbers import Backup, PoolKind, Wake

_PINNED = "pinned"
_BACKUPS = {backup.name.lower(): backup for backup in Backup}


@dataclasses.dataclass(frozen=True)
class Slept:
    """What a sleep did, on all devices together."""

    asleep_bytes: int = 0
    """Bytes of the pages that fell asleep: what a wake needs for them."""
    live_bytes: int = 0
    """Bytes of the live allocations in them, rounding included."""
    copied_bytes: int = 0
    """Bytes copied to the host."""
    released_bytes: int = 0
    """Bytes released to the driver, free memory included."""
    pinned_bytes: int = 0
    """Bytes that stayed awake since a block in them is pinned: another process has it open, for example."""
    refused_bytes: int = 0
    """Bytes that stayed awake since work that cannot be waited for may use them, a listener refused to see them unmapped, or the
    driver did not take them back."""
    range_bytes: int = 0
    """Bytes that stayed awake in growable tensors."""
    registered_bytes: int = 0
    """Bytes that stayed awake in registered pools."""


@dataclasses.dataclass
class _Tag:
    """What is known of a tag: its pools by device, and what becomes of its bytes."""

    backup: str
    pools: dict[int, Any] = dataclasses.field(default_factory=dict)


_tags: dict[str, _Tag] = {}
_lock = threading.Lock()


def tag(name: str, backup: Optional[str] = None) -> contextlib.AbstractContextManager[None]:
    """Has what this thread allocates on the current device inside lie in a pool of that name, which sleeps and wakes as one.

    ``backup`` says what becomes of its bytes while it sleeps, unless a :func:`sleep` says otherwise: ``"pinned"``, which is the
    default, copies them to pinned memory of the host, and ``"pageable"`` to ordinary memory; ``"file"`` writes them to a file
    without a name in the directory that ``GAPLESS_CONF=backups:DIRECTORY`` names, of which nothing is left when the process ends;
    with ``"discard"`` they are lost. The last call that gives one counts. Pools of graphs that are captured inside have the tag,
    too. Inside several, the last one counts.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a tag needs a name, which {name!r} is not")
    if backup is not None:
        _number_of(backup)
    return _inside(name, backup)


@contextlib.contextmanager
def _inside(name: str, backup: Optional[str]) -> Iterator[None]:
    import torch

    _expect_enabled()
    library = _library.load()
    pool = _pool_of(torch, name, backup)
    _library.check(library.gapless_tag_push(name.encode()))
    try:
        with torch.cuda.use_mem_pool(pool):
            yield
    finally:
        _library.check(library.gapless_tag_pop())


def _pool_of(torch: Any, name: str, backup: Optional[str]) -> Any:
    """The pool of a tag on the current device, made if it is new."""
    device = torch.cuda.current_device()
    with _lock:
        known = _tags.setdefault(name, _Tag(backup or _PINNED))
        known.backup = backup or known.backup
        pool = known.pools.get(device)
        if pool is None:
            pool = torch.cuda.MemPool()
            declare(device, pool, PoolKind.ORDINARY, name)
            known.pools[device] = pool
    return pool


def declare(device: int, pool: Any, kind: PoolKind, name: str) -> None:
    """Says what kind a pool is, and its tag."""
    named = _library.Pool(*pool.id)
    _library.check(_library.load().gapless_torch_declare_pool(device, named, kind, name.encode()))


def sleep(*tags: str, backup: Optional[str] = None) -> Slept:
    """Gives the memory of some tags back to the device; without any, that of the whole process. Tensors keep their addresses.

    Waits until what is queued has completed and the bytes are copied. No work that uses the memory may be queued until
    :func:`wake`; tensors may be freed, and others allocated, which have memory of their own. ``backup`` is as in :func:`tag`, for
    all of them. A tag that nothing has: nothing. On each device, all of it sleeps, or none.

    Stays awake, and is counted in the result: what another process has open, or is pinned otherwise.

    Raises ``gapless.GaplessError``: in a capture, in a forked process, where the driver fails, as for want of pinned memory, or
    where a file cannot have the bytes.
    """
    if backup is not None:
        _number_of(backup)
    wanted: list[tuple[Optional[str], str]]
    if tags:
        wanted = [(name, backup or _backup_of(name)) for name in tags]
    else:
        with _lock:
            others = [(name, known.backup) for name, known in _tags.items() if known.backup != _PINNED]
        wanted = [*(others if backup is None else []), (None, backup or _PINNED)]
    return sleep_each(wanted)


def sleep_each(wanted: Collection[tuple[Optional[str], str]]) -> Slept:
    """As :func:`sleep`, of tags that have a backup each; ``None`` stands for all that is of no tag beside it."""
    entries = [_library.TagBackup(None if name is None else name.encode(), _number_of(kind)) for name, kind in wanted]
    done = Slept()
    for device in devices():
        slept = _library.Slept.sized()
        listed = (_library.TagBackup * len(entries))(*entries)
        _library.check(_library.load().gapless_sleep_tags(device, listed, len(entries), slept))
        done = _sum(done, slept)
    return done


def _sum(one: Slept, other: _library.Slept) -> Slept:
    names = [field.name for field in dataclasses.fields(Slept)]
    return Slept(**{name: getattr(one, name) + getattr(other, name) for name in names})


def wake(*tags: str, wait: float = 0.0, retain: bool = False) -> int:
    """Brings back what is asleep of some tags, at the same addresses; without any, all that is asleep. Returns how many bytes.

    On each device, all of it wakes, or none. Where there is too little memory, tries again for ``wait`` seconds: another process
    may be about to give some back. Then raises ``gapless.OutOfMemoryError``, and what has not woken is asleep as before.

    With ``retain``, backups are kept: :func:`backup_of` has the bytes as of the sleep, in the same memory of the host from sleep to
    sleep, until a tensor's memory is freed or sleeps again. Memory of captured graphs keeps none, and files are not kept.
    """
    if not wait >= 0:
        raise ValueError(f"wait is a number of seconds from 0 on, not {wait!r}")
    woken = 0
    milliseconds = min(int(wait * 1000), (1 << 63) - 1) if wait != float("inf") else (1 << 63) - 1
    flags = Wake.RETAIN_BACKUPS if retain else 0
    library = _library.load()
    names: list[Optional[bytes]] = [name.encode() for name in tags] if tags else [None]
    for device in devices():
        mapped = ctypes.c_uint64()
        listed = (ctypes.c_char_p * len(names))(*names)
        _library.check(library.gapless_wake_tags(device, listed, len(names), milliseconds, flags, mapped))
        woken += mapped.value
    return woken


def backup_of(tensor: Any, copy: bool = True) -> Any:
    """The bytes of a contiguous tensor as the host's memory has them: a tensor there. ``None`` where they are in no backup.

    That is while the tensor's memory is asleep with a backup, and after a :func:`wake` with ``retain``. Without a ``copy``, the
    result is the backup itself: it is not to be used any more once the tensor's memory wakes, sleeps again or is freed, or with a
    backup that is retained, sleeps again or is freed.

    Raises ``gapless.GaplessError`` where a part of it has stayed awake, as beside memory that another process has open, and where
    the backup is in a file.
    """
    import torch

    _expect_enabled()
    if not tensor.is_cuda or not tensor.is_contiguous():
        raise ValueError("a backup is of a contiguous tensor on a GPU")
    start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    host = ctypes.c_void_p()
    _library.check(_library.load().gapless_backup_of(tensor.device.index, start, size, host))
    if host.value is None:
        return None
    backup = torch.frombuffer((ctypes.c_uint8 * size).from_address(host.value), dtype=torch.uint8)
    backup = backup.view(tensor.dtype).view(tensor.shape)
    return backup.clone() if copy else backup


def asleep() -> dict[Optional[str], int]:
    """The bytes that a wake needs, by tag; under ``None`` those of memory without one. Empty where nothing is asleep."""
    found: dict[Optional[str], int] = {}
    for device in devices():
        for its in _reports.of_device(device)["asleep"]:
            found[its["tag"]] = found.get(its["tag"], 0) + its["asleep_bytes"]
    return found


def pool_of(name: str) -> Any:
    """The pool of a tag on the current device, once something was made there under it."""
    import torch

    with _lock:
        return _tags[name].pools[torch.cuda.current_device()]


def wait_for_devices() -> None:
    """Waits until what is queued on the devices that PyTorch uses has completed."""
    import torch

    for device in devices():
        torch.cuda.synchronize(device)


def _backup_of(name: str) -> str:
    with _lock:
        return _tags[name].backup if name in _tags else _PINNED


def _number_of(backup: str) -> int:
    if backup not in _BACKUPS:
        raise ValueError(f"backup is {' or '.join(repr(name) for name in _BACKUPS)}, not {backup!r}")
    return _BACKUPS[backup]


def devices() -> list[int]:
    """The devices that PyTorch uses."""
    import torch

    _expect_enabled()
    if not torch.cuda.is_initialized():
        return []
    return [device for device in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(device)]


def _expect_enabled() -> None:
    from . import is_enabled

    if not is_enabled():
        raise RuntimeError("PyTorch does not allocate through gapless: call gapless.torch.enable() before anything touches the GPU")
