"""The memory history of both allocators: one clock, one order, and no event that nobody asked for."""

import gc
import os
import random
import time

import pytest

import gapless.torch

gapless.torch.enable()
import torch  # noqa: E402

MIB = 1 << 20


def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@pytest.fixture(autouse=True)
def recorded():
    empty(1)
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history()
    yield
    torch.cuda.memory._record_memory_history(None)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def own_pool():
    path = os.environ["GAPLESS_OWN_ALLOCATOR"]
    own = torch.cuda.memory.CUDAPluggableAllocator(path, "own_malloc", "own_free")
    return torch.cuda.MemPool(own.allocator())


def events():
    return torch.cuda.memory._snapshot()["device_traces"][0]


def test_times_are_microseconds(own_pool):
    start = time.time()
    with torch.autograd.profiler.record_function("a step"):
        block = empty(MIB)
        with torch.cuda.use_mem_pool(own_pool):
            inside = empty(MIB)
    del block, inside
    torch.cuda.memory._record_memory_history(global_record_annotations=True)
    with torch.autograd.profiler.record_function("another step"):
        empty(MIB)
    snapshot = torch.cuda.memory._snapshot()
    end = time.time()
    times = [event["time_us"] for event in snapshot["device_traces"][0]]
    annotations = [annotation["time_us"] for annotation in snapshot["external_annotations"]]
    assert times and annotations
    # The two clocks may differ by a little.
    assert all(start - 1 <= time_us / 1e6 <= end + 1 for time_us in times + annotations)


def test_events_of_both_are_in_the_order_of_the_calls(own_pool):
    chosen = random.Random(1)
    sizes, blocks = [], []
    for number in range(1, 200):
        size = number * 512
        sizes.append(size)
        if chosen.random() < 0.5:
            blocks.append(empty(size))
        else:
            with torch.cuda.use_mem_pool(own_pool):
                blocks.append(empty(size))
    del blocks
    found = events()
    assert [event["size"] for event in found if event["action"] == "alloc"] == sizes
    assert [event["time_us"] for event in found] == sorted(event["time_us"] for event in found)
    frees = [event["action"] for event in found if event["action"].startswith("free")]
    assert frees.count("free_completed") == len(sizes)


def test_the_peak_of_both(own_pool):
    outside = empty(300 * MIB)
    with torch.cuda.use_mem_pool(own_pool):
        inside = empty(300 * MIB)
    del outside, inside
    held, peak = 0, 0
    for event in events():
        held += {"alloc": event["size"], "free_completed": -event["size"]}.get(event["action"], 0)
        peak = max(peak, held)
    assert (held, peak) == (0, 600 * MIB)


def test_a_refusal_leaves_one_event():
    block = empty(500 * MIB)
    before = len(events())
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *refusal: told.append(refusal))
    with pytest.raises(torch.cuda.OutOfMemoryError, match="largest live allocations by line"):
        empty(900 * MIB)
    # The snapshot that this program took before is an event, as natively.
    assert [event["action"] for event in events()[before:]] == ["snapshot", "oom"] and len(told) == 1
    assert all("frames" in event for event in events() if event["action"] != "snapshot")
    del block
