"""Memory of the simulated device, for cases: kernels do nothing there, so that bytes come from the host."""

import gc

import torch

MIB = 1 << 20
# What PyTorch's segments and pages may add to a block, or keep of it.
SLACK = 24 * MIB


def pattern(size, seed):
    """Bytes that no other seed has, without a period that divides pages."""
    base = torch.arange(seed, seed + 251, dtype=torch.int64).remainder(256).to(torch.uint8)
    return base.repeat(size // 251 + 1)[:size].contiguous()


def empty(size, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def filled(size, seed, device="cuda"):
    host = pattern(size, seed)
    block = empty(size, device)
    block.copy_(host)
    return block, host


def held(device=None):
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def gives_back(size, step, device=None):
    """A step that gives back at least so many bytes of the device, but for slack."""
    before = held(device)
    step()
    freed = before - held(device)
    assert freed >= size - SLACK, f"{freed / MIB} MiB freed of {size / MIB}"


def takes(size, step, device=None):
    before = held(device)
    step()
    taken = held(device) - before
    assert taken >= size - SLACK, f"{taken / MIB} MiB taken of {size / MIB}"


def empty_cache():
    gc.collect()
    torch.cuda.empty_cache()
