"""Has PyTorch's own way to defragment on, and says what becomes of it where memory can sleep: ``defragmenting.py WAY``.

``PYTORCH_CUDA_ALLOC_CONF`` says ``expandable_segments:True``.
"""

import os
import sys

import allocators
import torch


def main():
    try:
        way = allocators.named[sys.argv[1]]()
        with way.region(way.whole):
            block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    except RuntimeError as refused:
        print(f"refused: {refused}", flush=True)
    else:
        address = block.data_ptr()
        segments = torch.cuda.memory_snapshot()
        (its,) = (found for found in segments if found["address"] <= address < found["address"] + found["total_size"])
        print("on" if its["is_expandable"] else "off", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
