"""What a run without data answers where a script reads a value, and what it says where it cannot."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
import traceback
from typing import Any, Iterator, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import resolve_name

from .._frames import is_users

aten = torch.ops.aten


class NeedsData(BaseException):
    """The script asked for what a run without data does not have. Not an error that a script handles."""


class Values:
    """Answers for the values of tensors that have none.

    Numbers of floating point are 1.0. Whole numbers and truth values decide what a script does next, so they end the run, unless
    ``assumed`` says what they are.
    """

    def __init__(self, assumed: Optional[int] = None) -> None:
        self._assumed = assumed
        self._told: set[str] = set()
        self._calls: list[Any] = []

    @contextlib.contextmanager
    def inside(self, function: Any) -> Iterator[None]:
        """Within it, ``function`` is the one of PyTorch's functions that the script calls."""
        self._calls.append(function)
        try:
            yield
        finally:
            self._calls.pop()

    def of(self, tensor: FakeTensor) -> Any:
        """The value of a tensor of one element."""
        if tensor.constant is not None:
            return tensor.constant.item()
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            if any(frame.f_code.co_filename.endswith("grad_scaler.py") for frame, _ in traceback.walk_stack(None)):
                # Whether a gradient was infinite: no.
                return 0.0
            return self._made_up(1.0)
        if self._assumed is None:
            raise self.missing(f"{{}} needs the values of a {tensor.dtype} tensor", aten._local_scalar_dense.default)
        return self._made_up(bool(self._assumed) if tensor.dtype is torch.bool else self._assumed)

    def truth(self, op: Any) -> bool:
        """What an op answers that compares tensors."""
        if self._assumed is None:
            raise self.missing("{} needs the values of tensors", op)
        return bool(self._made_up(bool(self._assumed)))

    def missing(self, text: str, op: Any = None) -> NeedsData:
        """Returns the error that says what is missing.

        In ``text``, ``{}`` is the function of PyTorch's that the script calls. ``op`` is named where it calls none, as in
        ``backward``.
        """
        return NeedsData(f"{text.format(self._function(op))}, which are not known without a GPU")

    def _function(self, op: Any) -> str:
        function = self._calls[0] if self._calls else None
        name = resolve_name(function) if function is not None else None
        return name or str(getattr(op, "overloadpacket", None) or getattr(function, "__name__", function))

    def _made_up(self, value: Any) -> Any:
        """Says once for each line which value it reads."""
        where = script_line(traceback.extract_stack())
        if where not in self._told:
            self._told.add(where)
            print(f"gapless: {where}: the value of a tensor is not known without a GPU: it is {value} in this run", file=sys.stderr)
        return value


def script_frame(frames: traceback.StackSummary) -> Optional[traceback.FrameSummary]:
    """The innermost line that is neither PyTorch's nor Python's own nor that of an installed package.

    Where there is none, as with ``-c`` and with ``-m`` of an installed package, the innermost of another package than PyTorch.
    """
    for is_wanted in (is_users, _is_of_package):
        for frame in reversed(frames):
            if is_wanted(frame.filename):
                return frame
    return None


def script_line(frames: traceback.StackSummary) -> str:
    """The place of :func:`script_frame` in words."""
    frame = script_frame(frames)
    return f"{frame.filename}:{frame.lineno}" if frame else "the script"


def is_without_data(value: Any) -> bool:
    """Whether this is a tensor that has no data in this run."""
    return isinstance(value, FakeTensor) or isinstance(value, torch.Tensor) and value.is_meta


@functools.lru_cache(maxsize=4096)
def _is_of_package(filename: str) -> bool:
    path = os.path.realpath(filename)
    own = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    if filename.startswith("<frozen ") or any(path.startswith(os.path.realpath(folder) + os.sep) for folder in own):
        return False
    # Packages are below it.
    return "-packages" + os.sep in path or not path.startswith(os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep)
