"""``GAPLESS_TORCH``: PyTorch on gapless in processes whose code does not ask for it.

``gapless.torch.enable()`` sets the variable, so that the processes which a program starts are on gapless as well: workers of
``multiprocessing``, whatever the start method, and everything below them. Set by hand, it does the same for programs that
cannot be edited. The wheel's ``gapless_start.pth`` imports this module at the start of a Python where the variable is set, and
``import gapless`` does so too. Without the variable it is never imported.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType

from ._imports import after_import

VARIABLE = "GAPLESS_TORCH"


def is_wanted() -> bool:
    """Whether the variable is set."""
    return os.environ.get(VARIABLE, "").lower() not in ("", "0", "off", "false")


def _enable(_: ModuleType) -> None:
    if not is_wanted():
        return
    try:
        import gapless.torch

        gapless.torch.enable()
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs without gapless
        warnings.warn(
            f"this process runs on PyTorch's own allocator, although {VARIABLE} is set: {error}", RuntimeWarning, stacklevel=2
        )


_pending = False


def install() -> None:
    """Enables gapless as soon as PyTorch is imported, or now if it was."""
    global _pending
    if is_wanted() and not _pending:
        _pending = True
        after_import("torch", _enable)
