"""What the simulated driver counts, and the faults that it plans."""

import ctypes

import torch

_MOST_TEXT = 1 << 14
# The driver's functions in which the host waits.
_WAITS = ("cuCtxSynchronize", "cuEventSynchronize", "cuStreamSynchronize")


def driver():
    return ctypes.CDLL("libcuda.so.1")


def restart_counts():
    driver().gapless_sim_restart_counts()


def counts():
    """How often each function was called since the counts began, and what was copied."""
    text = ctypes.create_string_buffer(_MOST_TEXT)
    assert driver().gapless_sim_counts(text, _MOST_TEXT) == 0
    pairs = (entry.rsplit(":", 1) for entry in text.value.decode().split(",") if entry)
    return {name: int(count) for name, count in pairs}


def waits(counted):
    """How often the host waited: by the function that it waited in."""
    return {name: counted[name] for name in _WAITS if name in counted}


def plan_fault(function, call, code):
    """Has the n-th call of a function from now on return an error."""
    assert driver().gapless_sim_plan_faults(f"{function}:{call}:{code}".encode()) == 0


def plan_no_faults():
    assert driver().gapless_sim_plan_faults(b"") == 0


def held():
    """Bytes of the device that are taken."""
    free, total = torch.cuda.mem_get_info()
    return total - free
