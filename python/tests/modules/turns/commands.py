"""What the two processes have in common: tensors whose bytes can be told, and commands that a test sends as lines."""

import gc
import json
import sys

import torch

MIB = 1 << 20


def of_host(mib, seed):
    """Numbers that say where they are, and from which seed."""
    return torch.arange(mib * MIB // 8, dtype=torch.int64) * 2654435761 + seed


def write(tensor, seed):
    tensor.copy_(of_host(tensor.nbytes // MIB, seed))


def empty(mib):
    return torch.empty(mib * MIB // 8, dtype=torch.int64, device="cuda")


def filled(mib, seed):
    tensor = empty(mib)
    write(tensor, seed)
    return tensor


def check(tensor, seed):
    assert torch.equal(tensor.cpu(), of_host(tensor.nbytes // MIB, seed)), f"bytes of seed {seed}, {tensor.nbytes >> 20} MiB"


def free_mib():
    return torch.cuda.mem_get_info()[0] // MIB


def serve(commands):
    """Does what each line says, a name and numbers, and answers with a line."""
    for line in sys.stdin:
        name, *numbers = line.split()
        answer = commands[name](*map(int, numbers))
        gc.collect()
        print(json.dumps(answer), flush=True)
