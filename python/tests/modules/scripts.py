"""vLLM's sleep mode and torch_memory_saver's two modes, as their users call them: ``scripts.py NAME``, the name of a function here.

A script knows nothing of gapless. What is printed at the end is what served it.
"""

import gc
import os
import sys

import gapless.torch
import torch

MIB = 1 << 20


def filled(size, seed):
    host = torch.arange(size, dtype=torch.int64).add_(seed).to(torch.uint8)
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    block.copy_(host)
    return block, host


def held_of_device():
    free, total = torch.cuda.mem_get_info()
    return total - free


def others_use_the_memory():
    """While the module sleeps, an ordinary request gets what it has given back."""
    block = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
    assert block.numel() == 700 * MIB
    del block
    gc.collect()
    torch.cuda.empty_cache()


def vllm():
    import vllm_stand_ins

    vllm_stand_ins.install()
    from vllm.device_allocator.cumem import CuMemAllocator

    ordinary, of_ordinary = filled(20 * MIB, 1)
    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        weights, of_weights = filled(300 * MIB, 2)
        temporary = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        del temporary
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    addresses = weights.data_ptr(), cache.data_ptr()
    assert allocator.get_current_usage() >= 500 * MIB
    for _ in range(3):
        before = held_of_device()
        allocator.sleep(offload_tags=("weights",))
        assert before - held_of_device() >= 500 * MIB, (before, held_of_device())
        others_use_the_memory()
        allocator.wake_up(["weights"])
        assert torch.equal(weights.cpu(), of_weights)
        allocator.wake_up(["kv_cache"])
        assert (weights.data_ptr(), cache.data_ptr()) == addresses
        cache.copy_(torch.ones(200 * MIB, dtype=torch.uint8))
        assert int(cache[-1:].cpu()) == 1
        assert torch.equal(ordinary.cpu(), of_ordinary)
    graph = torch.cuda.CUDAGraph()
    with allocator.cudagraph_pool() as pool, torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream()):
        inside = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
    assert inside.data_ptr() in allocator.pointer_to_data
    del inside, graph, weights, cache
    gc.collect()
    allocator.release_pools()
    assert allocator.get_current_usage() == 0


def torch_memory_saver(mode="torch"):
    from torch_memory_saver import torch_memory_saver as saver

    saver.hook_mode = mode
    ordinary, of_ordinary = filled(20 * MIB, 1)
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights, of_weights = filled(300 * MIB, 2)
    with saver.region(tag="cache"):
        cache = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
        with saver.disable():
            outside = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    addresses = weights.data_ptr(), cache.data_ptr()
    for _ in range(3):
        before = held_of_device()
        saver.pause("weights")
        saver.pause("cache")
        assert before - held_of_device() >= 500 * MIB, (before, held_of_device())
        assert torch.equal(saver.get_cpu_backup(weights), of_weights)
        others_use_the_memory()
        saver.resume("cache")
        saver.resume("weights")
        assert (weights.data_ptr(), cache.data_ptr()) == addresses
        assert torch.equal(weights.cpu(), of_weights)
        cache.copy_(torch.ones(200 * MIB, dtype=torch.uint8))
        assert int(cache[-1:].cpu()) == 1
        assert torch.equal(ordinary.cpu(), of_ordinary) and outside.numel() == MIB
    del weights, cache, outside
    gc.collect()
    torch.cuda.empty_cache()


def torch_memory_saver_preloaded():
    """Its default: its library takes the place of cudaMalloc."""
    torch_memory_saver("preload")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    torch.cuda.synchronize()
    print("passed on", gapless.torch.backend() or "native", flush=True)
    # torch_memory_saver's free calls exit(1) outside of a region, so also when the interpreter ends its pools.
    os._exit(0)
