"""CuPy, RMM and Numba: stand-ins with the interfaces that the plug-ins use, and the real RMM and Numba where installed."""

import importlib.util

import pytest
from stand_ins import CUPY, NUMBA, RMM

CUPY_CHECKS = """
block = cupy.allocator(5 << 20)
assert gapless.stats()["live_bytes"] == 5 << 20
assert [region["stream"] for region in gapless.snapshot()["regions"]] == [2]
try:
    cupy.allocator(1 << 40)
except OutOfMemoryError as error:
    print(error.__cause__)
del block
assert gapless.stats()["live_bytes"] == 0
"""


def test_cupy(run):
    assert "Tried to allocate 1 TiB" in run(CUPY + CUPY_CHECKS)


def test_rmm(run):
    run(
        RMM
        + """
pointer = resource.allocate(5 << 20, 0)
assert gapless.stats()["live_bytes"] == 5 << 20
resource.deallocate(pointer, 5 << 20, 0)
assert gapless.stats()["live_bytes"] == 0
"""
    )


@pytest.mark.skipif(importlib.util.find_spec("rmm") is None, reason="RMM is not installed")
def test_the_real_rmm(run):
    run(
        """
import gapless, gapless.rmm
resource = gapless.rmm.resource()
pointer = resource.allocate(5 << 20)
assert gapless.stats()["live_bytes"] == 5 << 20
resource.deallocate(pointer, 5 << 20)
assert gapless.stats()["live_bytes"] == 0
"""
    )


NUMBA_CHECKS = """
block = manager.memalloc(5 << 20)
assert gapless.stats()["live_bytes"] == 5 << 20
assert 0 < manager.get_memory_info().free < manager.get_memory_info().total
block.finalizer()
assert context.waits == 1 and gapless.stats()["live_bytes"] == 0
manager.reset()
assert gapless.stats()["reserved_bytes"] == 0 and manager.interface_version == 1
"""


def test_numba(run):
    run(NUMBA + NUMBA_CHECKS)


@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="Numba's CUDA target is not installed")
def test_the_real_numba(run):
    run(
        """
import gapless, gapless.numba
gapless.numba.enable()
from numba import cuda
block = cuda.device_array(5 << 20, dtype="uint8")
assert gapless.stats()["live_bytes"] == 5 << 20
assert cuda.current_context().get_memory_info().total == gapless.stats()["budget_bytes"]
del block
assert gapless.stats()["live_bytes"] == 0
"""
    )


# What all front ends have in common, whatever the names of their calls: `allocate(size)` and `free(block, size)`.
SHARED = """
from gapless import _library
from gapless.torch._figures import Figures, record_history, snapshot

MIB = 1 << 20
library, figures = _library.load(), Figures(0)

def live_of_pools():
    return sum(pool["stats"]["live_bytes"] for pool in figures.report()["pools"])

before = allocate(2 * MIB)
record_history("all", 100, False)
block = allocate(5 * MIB)
now = figures.now()
assert now.allocated_bytes == 7 * MIB and now.freed_bytes == 0
free(block, 5 * MIB)
free(before, 2 * MIB)
now = figures.now()
assert now.allocated_bytes == now.freed_bytes == 7 * MIB
try:
    allocate(1 << 40)
except MemoryError:
    pass
else:
    raise AssertionError("1 TiB was served")
assert figures.now().failed_allocs == 1
events = [event for event in snapshot([figures])["device_traces"][0] if not event["action"].startswith("segment")]
actions = [(event["action"], event["size"]) for event in events]
freed = [("free_requested", 5 * MIB), ("free_completed", 5 * MIB)]
freed += [("free_requested", 2 * MIB), ("free_completed", 2 * MIB)] * says_how_much_is_freed
assert actions == [("alloc", 5 * MIB), *freed, ("oom", 1 << 40)], actions

pool = _library.Pool(7, 0)
library.gapless_torch_begin_allocate_to_pool(0, pool, None)
block = allocate(3 * MIB)
library.gapless_torch_end_allocate_to_pool(0, pool)
assert live_of_pools() == 3 * MIB and gapless.stats()["live_bytes"] == 3 * MIB
free(block, 3 * MIB)
assert live_of_pools() == 0
library.gapless_torch_release_pool(0, pool)
assert figures.report()["pools"] == []
"""

CALLS = {
    "cupy": CUPY
    + """
blocks = {}
def allocate(size):
    memory = cupy.allocator(size)
    blocks[memory.ptr] = memory
    return memory.ptr
def free(address, size):
    del blocks[address]
says_how_much_is_freed = False
""",
    "rmm": RMM
    + """
def allocate(size): return resource.allocate(size, 0)
def free(address, size): resource.deallocate(address, size, 0)
says_how_much_is_freed = True
""",
    "numba": NUMBA
    + """
blocks = {}
def allocate(size):
    memory = manager.memalloc(size)
    blocks[memory.pointer.value] = memory
    return memory.pointer.value
def free(address, size):
    blocks.pop(address).finalizer()
says_how_much_is_freed = True
""",
    "the package": """
import gapless
allocator = gapless.DeviceMemory()
def allocate(size): return allocator.alloc(size)
def free(address, size): allocator.free(address, size)
says_how_much_is_freed = True
""",
}


@pytest.mark.parametrize("front_end", CALLS)
def test_one_allocator_serves_all(run, front_end):
    """Pools, the history and the sums are about every front end's memory, not only about PyTorch's."""
    run(CALLS[front_end] + SHARED)


def test_a_request_that_no_memory_helps_trims_nothing(run):
    run("""
import gapless
from gapless import _library
memory = gapless.DeviceMemory()
memory.free(memory.alloc(20 << 20), 20 << 20)
held = gapless.stats()["reserved_bytes"]
assert held >= 20 << 20
library, pool = _library.load(), _library.Pool(7, 0)
library.gapless_torch_begin_allocate_to_pool(0, pool, None)
try:
    memory.alloc(100, alignment=3)
except gapless.OutOfMemoryError:
    raise
except gapless.GaplessError:
    pass
else:
    raise AssertionError("a multiple of 3 was served")
library.gapless_torch_end_allocate_to_pool(0, pool)
assert gapless.stats()["reserved_bytes"] == held, "the cache was thrown away for nothing"
library.gapless_torch_release_pool(0, pool)
""")


def test_a_stderr_that_cannot_be_written_is_no_reason_to_stop(run):
    run("""
import os, gapless
from gapless import _library
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
library = _library.load()
library.gapless_torch_free(12345, 0, 0, None)
assert "not the start of a live allocation" in str(gapless.last_error())
""")
