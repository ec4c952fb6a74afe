"""What torch_memory_saver does where a program asks for what it does not expect: ``saver.py CASE``.

Prints ``as it should be`` where memory that was paused has its bytes again. The cases are the functions below.
"""

import os
import sys

import torch
from torch_memory_saver import torch_memory_saver as saver

MIB = 1 << 20


def filled(mib, byte):
    # No kernel runs on the simulated device, so the bytes come from the host.
    host = torch.full((mib * MIB,), byte, dtype=torch.uint8)
    block = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
    block.copy_(host)
    return block, host


def in_a_region():
    with saver.region(tag="weights", enable_cpu_backup=True):
        return filled(200, 1)


def in_turn():
    """What every program does."""
    block, host = in_a_region()
    saver.pause("weights")
    saver.resume("weights")
    return block, host


def under_work():
    """A pause while a side stream copies from the memory."""
    block, host = in_a_region()
    out = torch.empty_like(block)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(50):
            out.copy_(block)
    saver.pause("weights")
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), host)
    saver.resume("weights")
    return block, host


def short_of_memory():
    """A resume that the device has no memory for, and another one when it has."""
    block, host = in_a_region()
    saver.pause("weights")
    free, _ = torch.cuda.mem_get_info()
    others = torch.empty(free - 100 * MIB, dtype=torch.uint8, device="cuda")
    try:
        saver.resume("weights")
    except RuntimeError:
        pass
    del others
    torch.cuda.empty_cache()
    saver.resume("weights")
    return block, host


def paused_twice():
    block, host = in_a_region()
    saver.pause("weights")
    saver.pause("weights")
    saver.resume("weights")
    return block, host


def resumed_awake():
    block, host = in_a_region()
    saver.resume("weights")
    return block, host


def allocated_while_paused():
    block, host = in_a_region()
    saver.pause("weights")
    fresh, of_fresh = in_a_region()
    assert torch.equal(fresh.cpu(), of_fresh)
    saver.resume("weights")
    return block, host


CASES = {
    case.__name__: case
    for case in (in_turn, under_work, short_of_memory, paused_twice, resumed_awake, allocated_while_paused)
}

saver.hook_mode = "torch"
block, host = CASES[sys.argv[1]]()
torch.cuda.synchronize()
assert torch.equal(block.cpu(), host)
print("as it should be", flush=True)
# Its free calls exit(1) outside of a region, so also when the interpreter ends its pools.
os._exit(0)
