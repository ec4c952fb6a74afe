"""On which streams freed memory is still in use: the front ends over the simulated driver's streams."""

import importlib.util

import pytest
from stand_ins import NUMBA, RMM

# Streams and work of the simulated driver. `busy` queues work on a stream that outlasts what a test does next.
DRIVER = """
import ctypes, gapless
MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
for name in ("cuStreamQuery", "cuStreamSynchronize"):
    getattr(cuda, name).argtypes = [ctypes.c_void_p]
cuda.cuStreamBeginCapture_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint]
cuda.cuStreamEndCapture.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
context = ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
NON_BLOCKING = 1

def stream():
    handle = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(handle), NON_BLOCKING) == 0
    return handle.value

def busy(stream, address, size):
    for _ in range(40):
        assert cuda.cuMemsetD8Async(address, 1, size, stream) == 0

def is_idle(stream):
    return cuda.cuStreamQuery(stream) == 0

side = stream()
"""


def test_rmm_frees_in_the_order_of_the_default_stream(run):
    run(
        RMM
        + DRIVER
        + """
pointer = resource.allocate(64 * MIB, side)
busy(0, pointer, 64 * MIB)
resource.deallocate(pointer, 64 * MIB, 0)
assert gapless.stats()["pending_bytes"] == 64 * MIB, "the default stream still uses it"
other = resource.allocate(64 * MIB, side)
assert other != pointer and not is_idle(0)
assert cuda.cuMemsetD8Async(other, 2, 64 * MIB, side) == cuda.cuStreamSynchronize(side) == 0
assert cuda.cuStreamSynchronize(0) == 0
content = ctypes.create_string_buffer(MIB)
assert cuda.cuMemcpyDtoH_v2(content, other, MIB) == 0 and content.raw == bytes([2]) * MIB
resource.deallocate(other, 64 * MIB, side)
again = resource.allocate(100, side)
assert gapless.stats()["pending_bytes"] == 0 and gapless.stats()["live_bytes"] == 100
"""
    )


@pytest.mark.skipif(importlib.util.find_spec("rmm") is None, reason="RMM is not installed")
def test_the_real_rmm_says_on_which_stream_it_frees(run):
    run(
        DRIVER
        + """
import gapless.rmm
from rmm.pylibrmm.stream import DEFAULT_STREAM, Stream
class Side:
    def __cuda_stream__(self): return (0, side)
resource, on_side = gapless.rmm.resource(), Stream(Side())
pointer = resource.allocate(64 * MIB, on_side)
assert [region["stream"] for region in gapless.snapshot()["regions"]] == [side]
resource.deallocate(pointer, 64 * MIB, on_side)
assert resource.allocate(64 * MIB, on_side) == pointer
busy(0, pointer, 64 * MIB)
resource.deallocate(pointer, 64 * MIB, DEFAULT_STREAM)
assert gapless.stats()["pending_bytes"] == 64 * MIB
other = resource.allocate(64 * MIB, on_side)
assert other != pointer and not is_idle(0)
resource.deallocate(other, 64 * MIB, on_side)
"""
    )


def test_rmm_s_memory_is_reusable_at_once_on_its_own_stream(run):
    run(
        RMM
        + DRIVER
        + """
for home in (side, 0):
    pointer = resource.allocate(5 * MIB, home)
    calls = gapless.stats()["driver_calls"]
    for _ in range(3):
        resource.deallocate(pointer, 5 * MIB, home)
        stats = gapless.stats()
        assert stats["pending_bytes"] == 0 and stats["cached_bytes"] >= 5 * MIB, stats
        assert resource.allocate(5 * MIB, home) == pointer
    assert gapless.stats()["driver_calls"] == calls, "no event, no wait"
    resource.deallocate(pointer, 5 * MIB, home)
"""
    )


def test_rmm_waits_for_the_device_where_a_stream_cannot_be_recorded(run):
    run(
        RMM
        + DRIVER
        + """
pointer = resource.allocate(64 * MIB, side)
busy(0, pointer, 64 * MIB)
resource.deallocate(pointer, 64 * MIB, 0xDEAD0)
assert is_idle(0)
stats = gapless.stats()
assert stats["live_bytes"] == stats["pending_bytes"] == 0, stats
"""
    )


def test_rmm_waits_for_every_device_where_a_stream_cannot_be_recorded(run):
    run(
        RMM
        + DRIVER
        + """
pointer, elsewhere = resource.allocate(64 * MIB, 0), gapless.DeviceMemory(1).alloc(64 * MIB)
other = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(other), 1) == cuda.cuCtxSetCurrent(other) == 0
far = stream()
busy(far, elsewhere, 64 * MIB)
assert cuda.cuCtxSetCurrent(context) == 0
resource.deallocate(pointer, 64 * MIB, 0xDEAD0)
assert cuda.cuCtxSetCurrent(other) == 0 and is_idle(far)
""",
        GAPLESS_SIM_DEVICES="2",
    )


def test_rmm_frees_later_what_cannot_be_waited_for(run):
    run(
        RMM
        + DRIVER
        + """
pointer = resource.allocate(5 * MIB, side)
RELAXED = 2
assert cuda.cuStreamBeginCapture_v2(side, RELAXED) == 0
resource.deallocate(pointer, 5 * MIB, 0xDEAD0)
assert gapless.stats()["live_bytes"] == 5 * MIB, "nobody knows whether its last use has completed"
other = resource.allocate(3 * MIB, 0)
assert gapless.stats()["live_bytes"] == 8 * MIB
graph = ctypes.c_void_p()
cuda.cuStreamEndCapture(side, ctypes.byref(graph))
resource.deallocate(other, 3 * MIB, 0)
assert gapless.stats()["live_bytes"] == 0
try:
    resource.deallocate(pointer, 5 * MIB, 0)
except gapless.GaplessError as error:
    assert "freed before" in str(error)
else:
    raise AssertionError("freed twice")
"""
    )


def test_rmm_s_streams_have_to_say_which_they_are(run):
    run(
        RMM
        + DRIVER
        + """
class Stream:
    def __init__(self, handle): self.handle = handle
    def __cuda_stream__(self): return (0, self.handle)
pointer = resource.allocate(100, Stream(side))
assert [region["stream"] for region in gapless.snapshot()["regions"]] == [side]
resource.deallocate(pointer, 100, Stream(side))
try:
    resource.allocate(100, object())
except TypeError as error:
    assert "newer RMM" in str(error)
else:
    raise AssertionError("taken for the default stream")
"""
    )


def test_numba_frees_later_what_cannot_be_waited_for(run):
    run(
        NUMBA
        + """
def fails(): raise RuntimeError("operation would make the legacy stream depend on a capturing blocking stream")
block = manager.memalloc(5 << 20)
context.synchronize = fails
block.finalizer()
assert gapless.stats()["live_bytes"] == 5 << 20, "nobody knows whether its last use has completed"
del context.synchronize
other = manager.memalloc(3 << 20)
assert context.waits == 1 and gapless.stats()["live_bytes"] == 3 << 20
other.finalizer()
assert gapless.stats()["live_bytes"] == 0
"""
    )


def test_a_refused_close_changes_nothing(run):
    run(
        DRIVER
        + """
import threading, time
allocator = gapless.Allocator(budget=64 * MIB)
block = allocator.alloc(64 * MIB)
allocator.record_stream(block, side)
for _ in range(10):
    busy(side, block, 64 * MIB)
allocator.free(block)
# Has to wait for the other stream.
inside = threading.Thread(target=lambda: allocator.free(allocator.alloc(64 * MIB)))
inside.start()
time.sleep(0.1)
try:
    allocator.close()
except gapless.GaplessError as error:
    assert "another thread is inside a call" in str(error) and not is_idle(side)
else:
    raise AssertionError("closed under a call")
assert allocator.stats()["budget_bytes"] == 64 * MIB
inside.join()
allocator.close()
for use in (allocator.close, allocator.stats):
    try:
        use()
    except gapless.GaplessError as error:
        assert "null" in str(error)
    else:
        raise AssertionError("used after close")
"""
    )
