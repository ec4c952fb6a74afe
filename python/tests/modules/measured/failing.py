"""Fails each call of the driver in a wake once, each in a process of its own: ``failing.py WAY``, with the way of `allocators`.

Prints a line of JSON for each: the function, the number of its call, and what it came to. Functions that only ask are left out:
most of their calls are made by the stand-in for the CUDA runtime.
"""

import ctypes
import json
import os
import sys
import traceback

import allocators
import simulation
import torch
from outcomes import AWAKE, ENDED, HALF, LOST, NOT_LATER, WORKS_LATER

MIB = 1 << 20
# CUDA_ERROR_OUT_OF_MEMORY.
CODE = 2
ASK = ("cuCtxGet", "cuDevice", "cuPointer", "cuStreamGet", "cuStreamIs", "cuThread")
# In MiB.
BLOCKS = (20, 24, 1)


def filled(mib, byte):
    block = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
    ctypes.memset(block.data_ptr(), byte, block.numel())
    return block


def have_their_bytes(blocks):
    return all(ctypes.string_at(block.data_ptr(), block.numel()) == bytes([byte]) * block.numel() for byte, block in blocks)


def asleep(way):
    """Some blocks that sleep, and what the device holds before and after."""
    torch.cuda.init()
    with way.region(way.whole):
        blocks = [(byte, filled(mib, byte)) for byte, mib in enumerate(BLOCKS, 1)]
    before = simulation.held()
    way.sleep(way.whole)
    return blocks, before, simulation.held()


def calls_of_a_wake(name):
    """The functions that a wake calls, and how often."""
    way = allocators.named[name]()
    blocks, before, _ = asleep(way)
    simulation.restart_counts()
    way.wake(way.whole)
    counted = simulation.counts()
    assert have_their_bytes(blocks) and simulation.held() == before
    return {function: count for function, count in counted.items() if is_tried(function)}


def is_tried(function):
    return function.startswith("cu") and not function.startswith(ASK)


def with_a_failure(name, function, call):
    """What a wake comes to of which a call fails, and the next wake after it."""
    way = allocators.named[name]()
    blocks, before, during = asleep(way)
    simulation.plan_fault(function, call, CODE)
    is_refused = not wakes(way)
    simulation.plan_no_faults()
    if is_refused:
        is_as_before = simulation.held() == during
        if not wakes(way):
            return NOT_LATER if is_as_before else HALF
    if simulation.held() != before or not have_their_bytes(blocks):
        return LOST
    if not is_refused:
        return AWAKE
    return WORKS_LATER if is_as_before else HALF


def wakes(way):
    """Whether a wake works, as far as it says."""
    try:
        way.wake(way.whole)
    except Exception:
        return False
    return True


def in_a_process(step, *arguments):
    """What a step returns in a process that is forked from this one, or None where that ends by itself."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            told = {"returned": step(*arguments)}
        except BaseException:
            told = {"raised": traceback.format_exc()}
        with os.fdopen(writes, "w") as pipe:
            json.dump(told, pipe)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    told = json.loads(text) if text else {"returned": None}
    if "raised" in told:
        sys.exit(told["raised"])
    return told["returned"]


def main():
    (name,) = sys.argv[1:]
    calls = in_a_process(calls_of_a_wake, name)
    for function, count in calls.items():
        for call in range(1, count + 1):
            outcome = in_a_process(with_a_failure, name, function, call) or ENDED
            print(json.dumps({"function": function, "call": call, "outcome": outcome}), flush=True)


if __name__ == "__main__":
    main()
