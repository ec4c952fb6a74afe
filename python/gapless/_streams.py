"""Which stream an argument names. Nothing here calls a framework."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Protocol, SupportsIndex, Union


class CudaStream(Protocol):
    """A stream of a library that follows the protocol of CUDA Python, as those of PyTorch, CuPy, RMM, Numba and cuda.core do."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of the protocol, which is 0, and the handle."""


Stream = Union[CudaStream, SupportsIndex, ctypes.c_void_p, None]


class NotAStreamError(TypeError):
    """An argument does not say which stream it is."""


def handle(stream: Stream) -> int:
    """Returns the handle of a stream: an object with ``__cuda_stream__``, a whole number, or ``None`` for the default stream.

    Streams of a PyTorch that is too old for the protocol say their handle as well. Raises ``NotAStreamError`` for all else.
    """
    if stream is None:
        return 0
    found: Any = _of_protocol(stream) if hasattr(stream, "__cuda_stream__") else getattr(stream, "cuda_stream", stream)
    if isinstance(found, ctypes.c_void_p):
        return found.value or 0
    try:
        number = operator.index(found)
    except TypeError:
        raise NotAStreamError(
            f"{stream!r} does not say which stream it is: a stream is a whole number, None, or an object with __cuda_stream__, "
            "which newer versions of its library may have"
        ) from None
    if not 0 <= number < 1 << 64:
        raise NotAStreamError(f"{number} is no handle of a stream")
    return number


def _of_protocol(stream: Any) -> Any:
    answer = stream.__cuda_stream__()
    try:
        version, found = answer
    except (TypeError, ValueError):
        raise NotAStreamError(f"{stream!r} says {answer!r} for __cuda_stream__, in place of a version and a handle") from None
    if version != 0:
        raise NotAStreamError(f"{stream!r} follows version {version!r} of the protocol of __cuda_stream__, and only 0 is known")
    return found
