"""What begins in processes whose code does not ask for it: ``GAPLESS_TORCH`` and ``GAPLESS_EXPLAIN_OOM``.

``gapless.torch.enable()`` sets ``GAPLESS_TORCH``, so that the processes which a program starts are on gapless as well: workers of
``multiprocessing``, whatever the start method, and everything below them. ``gapless.torch.explain_oom()`` does the same with
``GAPLESS_EXPLAIN_OOM``, the folder of its reports. Set by hand, they serve programs that cannot be edited. The wheel's
``gapless_start.pth`` imports this module at the start of a Python where one of the variables is set, and ``import gapless`` does so
too. Without the variables it is never imported.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType

from ._imports import after_import

VARIABLE = "GAPLESS_TORCH"
EXPLAIN_VARIABLE = "GAPLESS_EXPLAIN_OOM"


def is_wanted(variable: str = VARIABLE) -> bool:
    """Whether a variable is set."""
    return os.environ.get(variable, "").lower() not in ("", "0", "off", "false")


def _begin(torch: ModuleType) -> None:
    if is_wanted():
        _enable()
    if is_wanted(EXPLAIN_VARIABLE):
        _explain(torch)


def _enable() -> None:
    try:
        import gapless.torch

        gapless.torch.enable()
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs without gapless
        warnings.warn(
            f"this process runs on PyTorch's own allocator, although {VARIABLE} is set: {error}", RuntimeWarning, stacklevel=3
        )


def _explain(torch: ModuleType) -> None:
    try:
        from gapless.torch import _explain

        _explain.explain_by_environment(torch)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs without reports
        warnings.warn(
            f"out-of-memory errors of this process are not explained, although {EXPLAIN_VARIABLE} is set: {error}",
            RuntimeWarning,
            stacklevel=3,
        )


_pending = False


def install() -> None:
    """Begins what the variables ask for as soon as PyTorch is imported, or now if it was."""
    global _pending
    if (is_wanted() or is_wanted(EXPLAIN_VARIABLE)) and not _pending:
        _pending = True
        after_import("torch", _begin)
