"""Asks PyTorch for 300 MiB four times, with ``empty_cache`` after each error. Ends with status 1 where the last request fails."""

import sys

import torch


def request():
    try:
        return torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
        torch.cuda.empty_cache()
        return None


blocks = [request() for _ in range(4)]
served = blocks[-1] is not None
print(f"last request {'served' if served else 'refused'}, {torch.cuda.memory_reserved() >> 20} MiB reserved")
blocks.clear()
torch.cuda.empty_cache()
sys.exit(not served)
