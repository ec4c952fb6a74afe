"""Finds, loads and declares the C library. Nothing here calls a framework."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_size_t, c_ssize_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, Optional

from . import _figures
from ._numbers import ErrorKind, Status
from .results import OutOfMemoryReport


class GaplessError(RuntimeError):
    """A call of the library failed.

    ``status`` says how it ended, a ``gapless.Status``, ``kind`` refines it, ``code`` is CUDA's result code (0 when no driver call
    failed), and ``report`` is the out-of-memory report, for requests that ran out of memory.
    """

    def __init__(
        self,
        status: int,
        text: str,
        kind: ErrorKind = ErrorKind.NONE,
        code: int = 0,
        report: Optional[OutOfMemoryReport] = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind
        self.code = code
        self.report = report


class OutOfMemoryError(GaplessError, MemoryError):
    """There is not enough memory; the text and ``report`` explain why. No report: the request exceeds the addresses."""


class Config(ctypes.Structure):
    """``gapless_config``."""

    _fields_ = [
        ("size", c_uint64),
        ("device", c_int32),
        ("peer_count", ctypes.c_uint32),
        ("peers", POINTER(c_int32)),
        ("budget_bytes", c_uint64),
        ("budget_fraction", c_double),
        ("slack", c_double),
        ("chunk_bytes", c_uint64),
        ("region_bytes", c_uint64),
        ("library", c_char_p),
    ]


class Stats(ctypes.Structure):
    """``gapless_stats``."""

    _fields_ = [("size", c_uint64), *((name, c_uint64) for name in _figures.FIELDS)]


class TagBackup(ctypes.Structure):
    """``gapless_tag_backup``."""

    _fields_ = [("tag", c_char_p), ("backup", c_int32)]


class Slept(ctypes.Structure):
    """``gapless_slept``."""

    _fields_ = [
        ("size", c_uint64),
        *(
            (name, c_uint64)
            for name in (
                "asleep_bytes",
                "live_bytes",
                "copied_bytes",
                "released_bytes",
                "pinned_bytes",
                "refused_bytes",
                "range_bytes",
                "registered_bytes",
            )
        ),
    ]

    @classmethod
    def sized(cls) -> Slept:
        """One for the library to write to."""
        return cls(size=ctypes.sizeof(cls))


class Pool(ctypes.Structure):
    """``gapless_torch_pool``."""

    _fields_ = [("first", c_uint64), ("second", c_uint64)]


class Block(ctypes.Structure):
    """``gapless_torch_block``."""

    _fields_ = [
        ("device", c_int32),
        ("state", c_int32),
        ("small", c_int32),
        ("region", ctypes.c_uint32),
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("requested_bytes", c_uint64),
        ("stream", c_uint64),
        ("pool", Pool),
    ]


# Where the wheel has its shared libraries.
FOLDER = Path(__file__).parent


def path() -> Path:
    """The file of the library: ``GAPLESS_LIBRARY`` if set, otherwise the one in this package."""
    chosen = os.environ.get("GAPLESS_LIBRARY")
    # Absolute: the loader looks for a bare name elsewhere than here.
    found = Path(chosen).absolute() if chosen else FOLDER / "libgapless.so"
    if not found.exists():
        raise ImportError(
            f"{found} does not exist: install gapless from a wheel (cargo xtask build-wheel builds one), or name the "
            "library in GAPLESS_LIBRARY"
        )
    return found


_HANDLE = c_void_p
_TEXT = [c_char_p, c_uint64, POINTER(c_uint64)]
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "gapless_version": (c_char_p, []),
    "gapless_last_error": (c_char_p, []),
    "gapless_last_error_status": (c_int32, []),
    "gapless_last_error_kind": (c_int32, []),
    "gapless_last_error_code": (c_int32, []),
    "gapless_last_error_report_json": (c_int32, [*_TEXT]),
    "gapless_create": (c_int32, [POINTER(Config), POINTER(_HANDLE)]),
    "gapless_destroy": (c_int32, [_HANDLE]),
    "gapless_alloc": (c_int32, [_HANDLE, c_uint64, c_void_p, POINTER(c_void_p)]),
    "gapless_alloc_aligned": (c_int32, [_HANDLE, c_uint64, c_uint64, c_void_p, POINTER(c_void_p)]),
    "gapless_free": (c_int32, [_HANDLE, c_void_p]),
    "gapless_record_stream": (c_int32, [_HANDLE, c_void_p, c_void_p]),
    "gapless_keep_stream": (c_int32, [_HANDLE, c_void_p]),
    "gapless_forget_stream": (c_int32, [_HANDLE, c_void_p]),
    "gapless_trim": (c_int32, [_HANDLE, c_uint64, POINTER(c_uint64)]),
    "gapless_set_budget": (c_int32, [_HANDLE, c_uint64]),
    "gapless_reset_peaks": (c_int32, [_HANDLE]),
    "gapless_record_start": (c_int32, [_HANDLE, c_char_p]),
    "gapless_record_mark": (c_int32, [_HANDLE, c_char_p]),
    "gapless_record_stop": (c_int32, [_HANDLE]),
    "gapless_stats_json": (c_int32, [_HANDLE, *_TEXT]),
    "gapless_oom_report_json": (c_int32, [_HANDLE, *_TEXT]),
    "gapless_snapshot_json": (c_int32, [_HANDLE, *_TEXT]),
    "gapless_check_conf": (c_int32, [c_char_p]),
    "gapless_configure": (c_int32, [c_char_p]),
    "gapless_device_allocator": (c_int32, [c_int32, POINTER(_HANDLE)]),
    "gapless_device_alloc": (c_int32, [c_int32, c_uint64, c_void_p, POINTER(c_void_p)]),
    "gapless_device_alloc_aligned": (c_int32, [c_int32, c_uint64, c_uint64, c_void_p, POINTER(c_void_p)]),
    "gapless_device_free": (c_int32, [c_int32, c_void_p, c_uint64]),
    "gapless_device_free_on": (c_int32, [c_int32, c_void_p, c_uint64, c_void_p]),
    "gapless_device_record_stream": (c_int32, [c_int32, c_void_p, c_void_p]),
    "gapless_device_keep_stream": (c_int32, [c_int32, c_void_p]),
    "gapless_device_forget_stream": (c_int32, [c_int32, c_void_p]),
    "gapless_device_trim": (c_int32, [c_int32, c_uint64, POINTER(c_uint64)]),
    "gapless_device_import": (c_int32, [c_int32, c_char_p, c_uint64, POINTER(c_void_p), POINTER(c_uint64)]),
    "gapless_import_patience": (c_uint64, [c_uint64]),
    "gapless_device_of_handle": (c_int32, [c_char_p, c_uint64, POINTER(c_int32)]),
    "gapless_device_close_import": (c_int32, [c_int32, c_void_p]),
    "gapless_device_keep_closed_imports": (c_int32, [c_int32, c_uint64]),
    "gapless_device_holders_json": (c_int32, [c_int32, *_TEXT]),
    "gapless_device_cut_off": (c_int32, [c_int32, c_uint32]),
    "gapless_sleep_tags": (c_int32, [c_int32, POINTER(TagBackup), c_uint64, POINTER(Slept)]),
    "gapless_wake_tags": (c_int32, [c_int32, POINTER(c_char_p), c_uint64, c_uint64, c_uint32, POINTER(c_uint64)]),
    "gapless_range_reserve": (c_int32, [c_int32, c_uint64, POINTER(c_void_p)]),
    "gapless_range_grow": (c_int32, [c_int32, c_void_p, c_uint64, c_void_p]),
    "gapless_range_shrink": (c_int32, [c_int32, c_void_p, c_uint64, POINTER(c_uint64)]),
    "gapless_range_take": (c_int32, [c_int32, c_void_p, c_void_p, c_uint64, c_void_p, POINTER(c_uint64)]),
    "gapless_range_size": (c_int32, [c_int32, c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
    "gapless_range_close": (c_int32, [c_int32, c_void_p]),
    "gapless_range_dlpack": (c_int32, [c_int32, c_void_p, POINTER(c_void_p)]),
    "gapless_backup_of": (c_int32, [c_int32, c_void_p, c_uint64, POINTER(c_void_p)]),
    "gapless_asleep": (c_int32, [c_int32, c_char_p, POINTER(c_uint64), POINTER(c_uint64)]),
    "gapless_tag_push": (c_int32, [c_char_p]),
    "gapless_tag_pop": (c_int32, []),
    "gapless_replay_json": (c_int32, [c_char_p, c_char_p, *_TEXT]),
    "gapless_explain_json": (c_int32, [c_char_p, c_char_p, *_TEXT]),
    "gapless_cupy_malloc": (c_void_p, [c_void_p, c_size_t, c_int]),
    "gapless_cupy_free": (None, [c_void_p, c_void_p, c_int]),
    "gapless_torch_on_failure": (None, [c_void_p]),
    "gapless_torch_malloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "gapless_torch_free": (None, [c_void_p, c_size_t, c_int, c_void_p]),
    "gapless_torch_reset": (None, []),
    "gapless_torch_limit": (c_int32, [c_double]),
    "gapless_torch_set_fraction": (c_int32, [c_double, c_int32]),
    "gapless_torch_record_stream": (None, [c_void_p, c_void_p]),
    "gapless_torch_base_alloc": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "gapless_torch_begin_allocate_to_pool": (None, [c_int32, Pool, c_void_p]),
    "gapless_torch_end_allocate_to_pool": (None, [c_int32, Pool]),
    "gapless_torch_release_pool": (None, [c_int32, Pool]),
    "gapless_torch_describe": (c_int32, [c_void_p, POINTER(Block)]),
    "gapless_torch_get_stats": (c_int32, [c_int32, POINTER(Pool), POINTER(Stats)]),
    "gapless_torch_pools": (c_int32, [c_int32, POINTER(Pool), c_uint64, POINTER(c_uint64)]),
    "gapless_torch_reset_counts": (c_int32, [c_int32]),
    "gapless_torch_reset_peaks": (c_int32, [c_int32]),
    "gapless_torch_record_history": (None, [c_uint64, c_int32]),
    "gapless_torch_history_json": (c_int32, [*_TEXT]),
    "gapless_torch_declare_pool": (c_int32, [c_int32, Pool, c_int32, c_char_p]),
    "gapless_torch_report_json": (c_int32, [c_int32, c_int32, *_TEXT]),
}

_loaded: Optional[ctypes.CDLL] = None


def load() -> ctypes.CDLL:
    """Returns the library, loaded at the first call."""
    global _loaded
    if _loaded is None:
        library = ctypes.CDLL(str(path()))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
        _loaded = library
    return _loaded


def check(status: int) -> None:
    """Raises the failure that a status stands for."""
    if status != Status.OK:
        raise last_error()


def last_error() -> GaplessError:
    """The last failure of the calling thread; its status is ``OK`` when no call has failed on this thread."""
    library = load()
    status = library.gapless_last_error_status()
    text = (library.gapless_last_error() or b"").decode(errors="replace")
    number, code = library.gapless_last_error_kind(), library.gapless_last_error_code()
    # A newer library may know more of both.
    kind = ErrorKind(number) if number in ErrorKind.__members__.values() else ErrorKind.NONE
    status = Status(status) if status in Status.__members__.values() else status
    of_memory = status in (Status.OUT_OF_MEMORY, Status.TOO_LARGE)
    report = _read(library.gapless_last_error_report_json)[1] if of_memory else None
    return (OutOfMemoryError if of_memory else GaplessError)(status, text, kind, code, report)


def read_json(function: Callable[..., int], *arguments: Any) -> Any:
    """Calls a function that writes a JSON text into a buffer, and returns what it wrote."""
    status, value = _read(function, *arguments)
    check(status)
    return value


def _read(function: Callable[..., int], *arguments: Any) -> tuple[int, Any]:
    """As :func:`read_json`, with the status in place of an exception. Tries again as often as the text has grown."""
    needed = c_uint64(1 << 16)
    while True:
        buffer = ctypes.create_string_buffer(needed.value)
        status = function(*arguments, buffer, len(buffer), ctypes.byref(needed))
        if status != Status.BUFFER_TOO_SMALL:
            return status, json.loads(buffer.value) if status == Status.OK else None
        needed.value += needed.value // 8
