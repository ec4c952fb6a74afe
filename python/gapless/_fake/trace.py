"""The trace of a run without a GPU: which storages lived when. Needs no PyTorch."""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import os
import threading
import weakref
from typing import Any, Union


class Trace:
    """Ops in the order in which they happened, and what is live. Any thread may call.

    Sizes are in bytes, as requested: what an allocator makes of them is left to the replay.
    """

    def __init__(self) -> None:
        # Entered again where a storage dies, and is collected, inside a call.
        self._lock = threading.RLock()
        self._lines: list[str] = []
        self._numbers = itertools.count()
        self._storages: dict[int, tuple[Any, int, int]] = {}
        self._is_over = False
        self.live_bytes = 0
        self.peak_live_bytes = 0

    def storage(self, storage: Any) -> None:
        """Notes a storage that an op returned: one that is new, or that has another size now, is an allocation."""
        key, size = storage._cdata, storage.nbytes()
        with self._lock:
            if self._is_over:
                return
            known = self._storages.get(key)
            if known is not None:
                if known[0]() is storage and known[2] == size:
                    return
                self._over(key, known[0])
            if size:
                dies = weakref.ref(storage, functools.partial(self._over, key))
                self._storages[key] = (dies, self._alloc(size), size)

    def short(self, size: int) -> None:
        """Notes an allocation that is freed at once."""
        with self._lock:
            if not self._is_over:
                self._free(self._alloc(size), size)

    def mark(self, label: str) -> None:
        """Notes the end of a step."""
        with self._lock:
            self._lines.append(f"m {label}")

    def end(self) -> None:
        """Notes nothing more, whatever the script still does."""
        with self._lock:
            self._is_over = True

    def write(self, path: Union[str, "os.PathLike[str]"], header: dict[str, Any]) -> None:
        """Writes the trace, the whole file or none: gzip where ``path`` ends in ``.gz``."""
        with self._lock:
            lines = list(self._lines)
            header = {**header, "events": len(lines), "peak_live_bytes": self.peak_live_bytes}
        target = _target(path)
        partial = _partial(target)
        opened = gzip.open if target.endswith(".gz") else open
        try:
            with opened(partial, "wt", encoding="utf-8") as file:
                file.writelines(f"# {key} {value}\n" for key, value in header.items())
                file.writelines(f"{line}\n" for line in lines)
            if partial != target:
                os.replace(partial, target)
        except BaseException:
            if partial != target:
                _remove(partial)
            raise

    def _alloc(self, size: int) -> int:
        number = next(self._numbers)
        self._lines.append(f"a {number} {size} 0")
        self.live_bytes += size
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        return number

    def _free(self, number: int, size: int) -> None:
        self._lines.append(f"f {number}")
        self.live_bytes -= size

    def _over(self, key: int, reference: Any) -> None:
        with self._lock:
            known = self._storages.get(key)
            # The address may belong to a newer storage by now.
            if known is not None and known[0] is reference and not self._is_over:
                del self._storages[key]
                self._free(known[1], known[2])


def check_writable(path: Union[str, "os.PathLike[str]"]) -> None:
    """Raises the OSError with which writing a trace to ``path`` would fail."""
    target = _target(path)
    if os.path.isfile(target) or os.path.isdir(target):
        with open(target, "ab"):
            pass
    partial = _partial(target)
    if partial != target:
        with open(partial, "xb"):
            pass
        _remove(partial)


def _target(path: Union[str, "os.PathLike[str]"]) -> str:
    return os.path.realpath(path)


def _partial(target: str) -> str:
    """Where a trace is until it is complete: next to its place, unless that is a device or a pipe."""
    is_other = os.path.exists(target) and not os.path.isfile(target)
    return target if is_other else f"{target}.{os.getpid()}.partial"


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
