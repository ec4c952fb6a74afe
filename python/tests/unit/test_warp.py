"""Warp's arrays: over a stand-in for Warp, and the real one where it is installed."""

import importlib.util

import pytest
from test_streams import DRIVER

WARP = """
import sys, types
class Device:
    ordinal, is_capturing, stream = 0, False, None
class Array:
    def __init__(self, device, size):
        self.deleter, self.size = device.allocator.deallocate, size
        self.ptr = device.allocator.allocate(size)
    def __del__(self):
        if hasattr(self, "ptr"): self.deleter(self.ptr, self.size)
device = Device()
wp = types.ModuleType("warp")
wp.init = lambda: None
wp.get_cuda_devices = lambda: [device]
wp.get_device = lambda named: device if named == "cuda" else named
wp.set_device_allocator = lambda device, allocator: setattr(device, "allocator", allocator)
sys.modules["warp"] = wp
def empty(size): return Array(device, size)
def use(handle): device.stream = handle
def capture(begins): device.is_capturing = begins
"""
REAL = """
import warp as wp
wp.init()
device = wp.get_device("cuda:0")
def empty(size): return wp.empty(size, dtype=wp.uint8, device=device)
def use(handle): wp.set_stream(wp.Stream(device, cuda_stream=handle), device)
# The simulated driver has nothing that Warp's own runtime captures with.
def capture(begins): device.captures = {1: None} if begins else {}
"""
MISSING = importlib.util.find_spec("warp") is None
BOTH = [WARP, pytest.param(REAL, marks=pytest.mark.skipif(MISSING, reason="Warp is not installed"))]
CHECKS = """
import gapless.warp
gapless.warp.enable()
"""


@pytest.fixture(params=BOTH, ids=["stand-in", "real"])
def warp(request):
    return request.param + DRIVER + CHECKS


def test_arrays_lie_in_memory_of_their_stream(run, warp):
    run(
        warp
        + """
use(side)
array = empty(5 * MIB)
assert [region["stream"] for region in gapless.snapshot()["regions"]] == [side]
assert gapless.stats()["live_bytes"] == 5 * MIB
del array
assert gapless.stats()["live_bytes"] == 0
try:
    empty((1 << 31) - 1)
except gapless.OutOfMemoryError as error:
    assert "Tried to allocate" in str(error)
else:
    raise AssertionError("2 GiB were served")
"""
    )


def test_work_on_other_streams_of_warp_is_waited_for(run, warp):
    run(
        warp
        + """
use(side)
other = ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(other), 0) == 0
array = empty(64 * MIB)
address = array.ptr
busy(other.value, address, 64 * MIB)
del array
assert gapless.stats()["pending_bytes"] == 64 * MIB and not is_idle(other.value)
again = empty(64 * MIB)
assert again.ptr != address
"""
    )


def test_a_capture_gets_no_memory(run, warp):
    run(
        warp
        + """
use(side)
before = empty(5 * MIB)
capture(True)
try:
    empty(100)
except RuntimeError as error:
    assert "allocate before the capture begins" in str(error)
else:
    raise AssertionError("the graph would use it after it is freed")
capture(False)
assert gapless.stats()["allocs"] == 1
"""
    )


def test_a_free_does_not_end_a_capture(run, warp):
    run(
        warp
        + """
use(side)
array, GLOBAL, graph, blocking = empty(5 * MIB), 0, ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(blocking), 0) == 0
# The default stream, which the free is ordered on, would wait for this one.
assert cuda.cuStreamBeginCapture_v2(blocking, GLOBAL) == 0
del array
stats = gapless.stats()
assert (stats["live_bytes"], stats["pending_bytes"]) == (0, 5 * MIB), "nobody knows whether its last use has completed"
assert cuda.cuStreamEndCapture(blocking, ctypes.byref(graph)) == 0, "the free has ended the capture"
gapless.trim()
assert gapless.stats()["pending_bytes"] == 0
"""
    )


def test_an_allocator_is_of_one_device(run):
    run(
        WARP
        + CHECKS
        + """
import gapless
second = Device()
second.ordinal = 1
wp.set_device_allocator(second, gapless.warp.allocator(second))
array = Array(second, 5 << 20)
assert gapless.stats(1)["live_bytes"] == 5 << 20 and gapless.stats(0)["live_bytes"] == 0
assert gapless.warp.allocator()._memory.device == 0
""",
        GAPLESS_SIM_DEVICES="2",
    )
