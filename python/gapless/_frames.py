"""Which line of a stack is the program's own, and what each line holds of a device's memory."""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
import threading
from typing import Any, Callable, Optional

from . import _library
from .results import LineUse

# The device; where to write a text, and how much room there is. Returns the length of the text.
_EXPLAIN = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_MOST = 10

_refusal = threading.local()


@functools.lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file is neither PyTorch's nor Python's own nor that of an installed package."""
    paths = sysconfig.get_paths()
    others = [os.path.realpath(paths[key]) + os.sep for key in ("purelib", "platlib", "stdlib")]
    others.append(os.path.dirname(os.path.realpath(__file__)) + os.sep)
    path = os.path.realpath(filename)
    return filename.endswith((".py", ".pyw")) and not any(path.startswith(other) for other in others)


def largest_live(segments: list[dict[str, Any]], device: int) -> list[LineUse]:
    """Returns what live blocks of a snapshot hold by the innermost line of the program that allocated them, most bytes first."""
    found: dict[str, LineUse] = {}
    for segment in segments:
        for block in segment["blocks"] if segment["device"] == device else ():
            if block["state"] != "active_allocated":
                continue
            frames = (frame for frame in block.get("frames", ()) if is_users(frame["filename"]))
            frame = next(frames, None)
            if frame is not None:
                name = f"{frame['filename']}:{frame['line']} {frame['name']}"
                row = found.setdefault(name, {"frame": name, "bytes": 0, "blocks": 0})
                row["bytes"] += block["requested_size"]
                row["blocks"] += 1
    return sorted(found.values(), key=lambda row: row["bytes"], reverse=True)[:_MOST]


def _text(rows: list[LineUse]) -> str:
    """The rows as the end of an out-of-memory report."""
    lines = [f"\n    {_size(row['bytes']):>10} in {row['blocks']} block{'s'[: row['blocks'] - 1]} at {row['frame']}" for row in rows]
    return "\n  largest live allocations by line:" + "".join(lines) if lines else ""


def _size(count: int) -> str:
    """A number of bytes as the report prints it: 1.81 GiB, 300 MiB."""
    shift, unit = next((shift, unit) for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")) if count >> shift or not shift)
    return f"{count / (1 << shift):.2f}".rstrip("0").rstrip(".") + f" {unit}"


def explain_refusals(set_function: Callable[[Any], None], snapshot: Callable[[], list[dict[str, Any]]]) -> Any:
    """Has each refusal say what lines hold, where a history has stacks. Returns what has to stay alive."""

    def explain(device: int, text: int, room: int) -> int:
        try:
            rows = largest_live(snapshot(), device)
        except Exception:  # The refusal is reported without it.
            return 0
        _refusal.text, _refusal.rows = str(_library.last_error()), rows
        written = _text(rows).encode()[:room]
        ctypes.memmove(text, written, len(written))
        return len(written)

    function = _EXPLAIN(explain)
    set_function(function)
    return function


def of_refusal(error: Exception) -> Optional[list[LineUse]]:
    """Returns the rows that :func:`explain_refusals` found when this error was raised on this thread."""
    return _refusal.rows if getattr(_refusal, "text", None) == str(error) else None
