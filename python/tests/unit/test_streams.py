"""On which streams freed memory is still in use: the front ends over the simulated driver's streams."""

import ctypes
import importlib.util

import pytest
from stand_ins import NUMBA, RMM

import gapless
from gapless import _streams

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
for call in (lambda: resource.allocate(100, object()), lambda: resource.deallocate(pointer, 100, object())):
    try:
        call()
    except gapless.NotAStreamError as error:
        assert "newer versions of its library" in str(error)
    else:
        raise AssertionError("taken for the default stream")
"""
    )


@pytest.mark.parametrize("memory", ["gapless.DeviceMemory()", "gapless.Allocator(budget=64 * MIB)"])
def test_every_call_takes_what_says_which_stream_it_is(run, memory):
    run(
        DRIVER
        + f"""
class Stream:
    def __cuda_stream__(self): return (0, side)
memory = {memory}
def stream_of(address):
    blocks = [(its, region["stream"]) for region in memory.snapshot()["regions"] for its in region["blocks"]]
    [(borrower, home)] = [(its["borrowed_by"], stream) for its, stream in blocks if its["addr"] == address]
    return home if borrower is None else borrower
for given in (side, Stream(), ctypes.c_void_p(side)):
    block = memory.alloc(100, given)
    assert stream_of(block) == side
    memory.record_stream(block, given)
    memory.keep_stream(given)
    memory.forget_stream(given)
    (memory.free_on(block, given) if hasattr(memory, "free_on") else memory.free(block))
assert memory.stats()["live_bytes"] == 0
kept, block = memory.alloc(5 * MIB, side), memory.alloc(5 * MIB, None)
assert (stream_of(kept), stream_of(block)) == (side, 0)
memory.free(kept)
calls = [lambda given: memory.alloc(100, given), lambda given: memory.record_stream(block, given), memory.keep_stream]
calls += [memory.forget_stream, *([lambda given: memory.free_on(block, given)] if hasattr(memory, "free_on") else [])]
for call in calls:
    for given in (object(), "0", 0.0, -1, 1 << 64):
        try:
            call(given)
        except gapless.NotAStreamError:
            pass
        else:
            raise AssertionError(given)
memory.free(block)
"""
    )


class Answers:
    """A stream that answers as it is told."""

    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


class Older:
    """A stream of a PyTorch without the protocol."""

    cuda_stream = 5


class Number:
    def __index__(self):
        return 5


@pytest.mark.parametrize("stream", [5, Number(), ctypes.c_void_p(5), Older(), Answers((0, 5)), Answers([0, Number()])])
def test_streams_of_all_kinds_have_a_handle(stream):
    assert _streams.handle(stream) == 5


@pytest.mark.parametrize("stream", [None, 0, ctypes.c_void_p(), Answers((0, 0)), Answers((0, ctypes.c_void_p()))])
def test_the_default_stream_is_one(stream):
    assert _streams.handle(stream) == 0


def test_handles_have_64_bits():
    assert _streams.handle(2**64 - 1) == 2**64 - 1


@pytest.mark.parametrize(
    "answer", [None, 5, (0,), (0, 5, 0), (1, 5), (0, None), (0, "5"), (0, -1), (0, 1 << 64), (0, 5.0)], ids=repr
)
def test_an_answer_that_is_none_of_the_protocol_is_refused(answer):
    with pytest.raises(gapless.NotAStreamError):
        _streams.handle(Answers(answer))


@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="Numba's CUDA target is not installed")
def test_the_streams_of_cuda_python_and_numba_are_taken(run):
    run(
        """
import gapless, gapless.numba
gapless.numba.enable()
from cuda.bindings import driver
from numba import cuda
memory = gapless.DeviceMemory()
cuda.current_context()
error, stream = driver.cuStreamCreate(1)
assert error == 0
for given in (stream, cuda.stream()):
    version, handle = given.__cuda_stream__()
    block = memory.alloc(100, given)
    assert int(handle) in {region["stream"] for region in memory.snapshot()["regions"]}
    memory.free_on(block, given)
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
