"""Libraries that take the place of ``cudaMalloc`` (``LD_PRELOAD``), which gapless does not call."""

from __future__ import annotations

import ctypes
import os
import warnings
from typing import Optional

# torch_memory_saver's: says whether the memory of the calling thread is to be its own. The allocator object asks it.
_ASKED = "tms_get_interesting_region"


class _Info(ctypes.Structure):
    """Dl_info of ``dlfcn.h``."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def _library_of(function: str) -> Optional[str]:
    """The library whose function of that name a program calls; ``None`` where there is none."""
    process = ctypes.CDLL(None)
    found = getattr(process, function, None)
    if found is None:
        return None
    address, info = ctypes.cast(found, ctypes.c_void_p), _Info()
    if not process.dladdr(address, ctypes.byref(info)) or info.file is None:
        return None
    return os.fsdecode(info.file)


def warn_of_interposers(with_object: bool) -> None:
    """Warns where another library than the CUDA runtime serves ``cudaMalloc``, unless the object sends it what it is to have."""
    library = _library_of("cudaMalloc")
    if library is None or library == _library_of("cudaGetDeviceCount") or (with_object and _library_of(_ASKED) == library):
        return
    warnings.warn(
        f"{library} takes the place of cudaMalloc, which gapless does not call: it sees nothing of gapless's memory",
        RuntimeWarning,
        stacklevel=3,
    )
