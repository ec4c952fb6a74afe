"""Has vLLM's allocator sleep and wake; with the argument ``short``, a wake is tried first that the device has no memory for.

A wake that fails is tried again. Prints what it leaves, and ends with status 1 where the next one fails or bytes are lost.
"""

import sys

import torch

try:
    # The rest of vLLM, where only its allocator is there.
    import vllm_stand_ins

    vllm_stand_ins.install()
except ImportError:
    pass

from vllm.device_allocator import get_mem_allocator_instance  # noqa: E402

MIB = 1 << 20
BLOCKS, SIZE = 16, 64 * MIB


def held():
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


allocator = get_mem_allocator_instance()
torch.cuda.init()
with allocator.use_memory_pool("weights"):
    blocks = []
    for byte in range(BLOCKS):
        block = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        block.copy_(torch.full((SIZE,), byte, dtype=torch.uint8))
        blocks.append(block)
allocator.sleep(("weights",))
others = None
if "short" in sys.argv:
    free, _ = torch.cuda.mem_get_info()
    others = torch.empty(free - 900 * MIB, dtype=torch.uint8, device="cuda")
asleep = held()
try:
    allocator.wake_up(["weights"])
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}")
    print(f"{held() - asleep} of {BLOCKS * SIZE // MIB} MiB are held after it", flush=True)
    del others
    torch.cuda.empty_cache()
    allocator.wake_up(["weights"])
    print("the next wake works", flush=True)
assert all(block.cpu().eq(byte).all() for byte, block in enumerate(blocks)), "bytes are lost"
