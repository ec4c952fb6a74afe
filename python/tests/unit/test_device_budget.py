"""Without a budget of its own, gapless has the device as it is now: what others free can be had."""

import pytest

# Another user of the device, past gapless.
OTHERS = """
import ctypes, gapless
MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")
context, taken = ctypes.c_void_p(), ctypes.c_uint64()
def take(size):
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(taken), ctypes.c_size_t(size)) == 0
def give_back():
    assert driver.cuMemFree_v2(taken) == 0
"""
MEMORY = {
    "an allocator": "memory = gapless.Allocator(0)\n",
    "the device's": "memory = gapless.DeviceMemory(0)\n",
}


@pytest.mark.parametrize("memory", MEMORY)
def test_what_others_free_can_be_had(run, memory):
    run(
        OTHERS
        + "take(200 * MIB)\n"
        + MEMORY[memory]
        + """
block = memory.alloc(40 * MIB)
assert memory.stats()["budget_bytes"] == 56 * MIB
try:
    memory.alloc(100 * MIB)
except MemoryError as error:
    assert "No allocator could have served this: 100 MiB were asked for and only 16 MiB" in str(error), error
else:
    raise AssertionError("served")
give_back()
memory.free(memory.alloc(200 * MIB))
assert memory.stats()["budget_bytes"] == 256 * MIB
""",
        GAPLESS_SIM_CAPACITY="256MiB",
    )


def test_pools_have_the_device_too(run):
    run(
        OTHERS
        + """
from gapless import _library
library, pool = _library.load(), _library.Pool(7, 0)
take(200 * MIB)
memory = gapless.DeviceMemory(0)
outside = memory.alloc(20 * MIB)
library.gapless_torch_begin_allocate_to_pool(0, pool, None)
inside = memory.alloc(20 * MIB)
give_back()
more = memory.alloc(100 * MIB)
library.gapless_torch_end_allocate_to_pool(0, pool)
rest = memory.alloc(116 * MIB)
try:
    memory.alloc(2 * MIB)
except MemoryError as error:
    text, report = str(error), error.report
else:
    raise AssertionError("served")
assert report["elsewhere_bytes"] == 120 * MIB and report["others_bytes"] == 0, report
assert "0 B held by others" in text and "120 MiB held by other allocators of this process, such as pools" in text
assert library.gapless_torch_malloc(2 * MIB, 0, None) is None
text = gapless.report()
assert "held in pools         120.00 MiB, 120.00 MiB of it live" in text, text
text = str(gapless.last_error())
assert "Of the allocated memory 256.00 MiB is allocated by PyTorch, with 120.00 MiB allocated in private pools" in text, text
for block in (inside, more, outside, rest):
    memory.free(block)
library.gapless_torch_release_pool(0, pool)
memory.free(memory.alloc(256 * MIB))
""",
        GAPLESS_SIM_CAPACITY="256MiB",
    )


def test_a_budget_holds_for_pools_and_can_be_changed(run):
    run(
        OTHERS
        + """
from gapless import _library
library, pool = _library.load(), _library.Pool(7, 0)
memory = gapless.DeviceMemory(0)
library.gapless_torch_begin_allocate_to_pool(0, pool, None)
inside = memory.alloc(20 * MIB)
memory.set_budget(40 * MIB)
def refused(size):
    try:
        memory.alloc(size)
    except MemoryError as error:
        return str(error)
    raise AssertionError("served")
text = refused(30 * MIB)
assert "The budget of 40 MiB that was set stops this" in text and "gapless.DeviceMemory(device).set_budget" in text, text
library.gapless_torch_end_allocate_to_pool(0, pool)
outside = memory.alloc(20 * MIB)
text = refused(2 * MIB)
assert "The budget of 40 MiB that was set stops this" in text and "20 MiB held by other allocators of this process" in text, text
memory.set_budget(60 * MIB)
memory.free(memory.alloc(20 * MIB))
""",
        GAPLESS_SIM_CAPACITY="256MiB",
    )
