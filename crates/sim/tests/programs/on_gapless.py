"""Asks gapless for what a training loop asks for, each thing once more where that fails: ``python -m gapless.torch on_gapless.py``.

Ends with status 1 where something fails twice in a row or a byte is lost. With the argument ``sleeps`` memory sleeps as well.
"""

import ctypes
import sys

import gapless.torch
import torch

MIB = 1 << 20


def again(step, *arguments):
    try:
        return step(*arguments)
    except RuntimeError as error:
        print(f"{step.__name__}: {str(error).splitlines()[0]}", flush=True)
        return step(*arguments)


def empty(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def filled(mib, byte):
    block = again(empty, mib)
    # No kernel runs on the simulated device; its memory is the host's.
    ctypes.memset(block.data_ptr(), byte, block.numel())
    return byte, block


def have_their_bytes(blocks):
    return all(ctypes.string_at(block.data_ptr(), block.numel()) == bytes([byte]) * block.numel() for byte, block in blocks)


blocks = [filled(20, byte) for byte in range(8)]
# What is free is in four holes, and the device has no more.
del blocks[::2]
blocks.append(filled(70, 9))
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    blocks.append(filled(10, 10))
    blocks[0][1].record_stream(side)
if "sleeps" in sys.argv:
    again(gapless.torch.sleep)
    again(gapless.torch.wake)
assert have_their_bytes(blocks), "bytes are lost"
blocks.clear()
# The block that was recorded on the side stream is free once that one has completed.
again(torch.cuda.synchronize)
again(torch.cuda.empty_cache)
