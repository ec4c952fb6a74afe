"""Every function of PyTorch for memory of the device that a stock script can call, with a call of each."""

import os
import re
import tempfile

import torch

MIB = 1 << 20


def empty(size=MIB):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def allocated_raw():
    address = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, torch.cuda.current_stream().cuda_stream)
    torch._C._cuda_cudaCachingAllocator_raw_delete(address)


def deleted_raw():
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MIB))


def in_a_pool(begin):
    pool = torch.cuda.graph_pool_handle()
    begin(0, pool)
    block = empty()
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)
    del block


def in_a_pool_of_a_capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        in_a_pool(CORE._cuda_beginAllocateCurrentStreamToPool)


def checkpointed(call):
    pool, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream()):
        block = empty()
    answer = call(pool)
    del block
    return answer


def set_checkpoint(pool):
    torch._C._cuda_setCheckpointPoolState(0, torch._C._cuda_getCheckpointState(0, pool), [], [])


def with_history(call):
    torch.cuda.memory._record_memory_history()
    try:
        return call()
    finally:
        torch.cuda.memory._record_memory_history(None)


def of_pool(call):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = empty()
    answer = call(pool)
    del block
    return answer


def sent():
    block = empty()
    *_, counter, offset, _, _ = block.untyped_storage()._share_cuda_()
    # As a receiver does when it is done.
    torch.UntypedStorage._release_ipc_counter(counter, offset, device="cuda:0")


def annotated():
    block = empty()
    torch.cuda.memory._annotate_tensor(block, "text")


def dumped():
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.memory._dump_snapshot(os.path.join(folder, "snapshot.pickle"))


def switched_off():
    with torch.cuda.memory.caching_allocator_disabled():
        return empty().numel()


CORE, CUDA = torch._C, torch.cuda.memory
# Older versions of PyTorch have none: its functions fail there natively.
ACCELERATOR = getattr(torch, "accelerator", None)

FUNCTIONS = {
    "torch._C._accelerator_emptyCache": lambda: CORE._accelerator_emptyCache(),
    "torch._C._accelerator_getDeviceStats": lambda: CORE._accelerator_getDeviceStats(0),
    "torch._C._accelerator_getMemoryInfo": lambda: CORE._accelerator_getMemoryInfo(0),
    "torch._C._accelerator_isAllocatorInitialized": lambda: CORE._accelerator_isAllocatorInitialized(),
    "torch._C._accelerator_resetAccumulatedStats": lambda: CORE._accelerator_resetAccumulatedStats(0),
    "torch._C._accelerator_resetPeakStats": lambda: CORE._accelerator_resetPeakStats(0),
    "torch._C._accelerator_getAllocatorSettings": lambda: CORE._accelerator_getAllocatorSettings(),
    "torch._C._accelerator_setAllocatorSettings": lambda: CORE._accelerator_setAllocatorSettings(""),
    "torch._C._cuda_annotateMemory": annotated,
    "torch._C._cuda_allocationTraceback": lambda: with_history(lambda: CORE._cuda_allocationTraceback(empty().data_ptr())),
    "torch._C._cuda_attach_out_of_memory_observer": lambda: CORE._cuda_attach_out_of_memory_observer(lambda *_: None),
    "torch._C._cuda_beginAllocateCurrentStreamToPool": in_a_pool_of_a_capture,
    "torch._C._cuda_beginAllocateCurrentThreadToPool": lambda: in_a_pool(CORE._cuda_beginAllocateCurrentThreadToPool),
    "torch._C._cuda_beginAllocateToPool": lambda: in_a_pool(CORE._cuda_beginAllocateToPool),
    "torch._C._cuda_endAllocateToPool": lambda: in_a_pool(CORE._cuda_beginAllocateToPool),
    "torch._C._cuda_releasePool": lambda: in_a_pool(CORE._cuda_beginAllocateToPool),
    "torch._C._cuda_checkPoolLiveAllocations": lambda: checkpointed(
        lambda pool: CORE._cuda_checkPoolLiveAllocations(0, pool, set())
    ),
    "torch._C._cuda_getCheckpointState": lambda: checkpointed(lambda pool: CORE._cuda_getCheckpointState(0, pool)),
    "torch._C._cuda_setCheckpointPoolState": lambda: checkpointed(set_checkpoint),
    "torch._C._cuda_cudaCachingAllocator_enable": lambda: CORE._cuda_cudaCachingAllocator_enable(True),
    "torch._C._cuda_cudaCachingAllocator_is_enabled": lambda: CORE._cuda_cudaCachingAllocator_is_enabled(),
    "torch._C._cuda_cudaCachingAllocator_raw_alloc": allocated_raw,
    "torch._C._cuda_cudaCachingAllocator_raw_delete": allocated_raw,
    "torch._C._cuda_emptyCache": lambda: CORE._cuda_emptyCache(),
    "torch._C._cuda_getAllocator": lambda: CORE._cuda_getAllocator(),
    "torch._C._cuda_getAllocatorBackend": lambda: CORE._cuda_getAllocatorBackend(),
    "torch._C._cuda_getMemoryFraction": lambda: CORE._cuda_getMemoryFraction(0),
    "torch._C._cuda_setMemoryFraction": lambda: CORE._cuda_setMemoryFraction(1.0, 0),
    "torch._C._cuda_getMemoryMetadata": lambda: CORE._cuda_getMemoryMetadata(),
    "torch._C._cuda_setMemoryMetadata": lambda: CORE._cuda_setMemoryMetadata(""),
    "torch._C._cuda_memoryMetadataSupported": lambda: CORE._cuda_memoryMetadataSupported(),
    "torch._C._cuda_isHistoryEnabled": lambda: with_history(CORE._cuda_isHistoryEnabled),
    "torch._C._cuda_memorySnapshot": lambda: CORE._cuda_memorySnapshot((0, 0)),
    "torch._C._cuda_memoryStats": lambda: CORE._cuda_memoryStats(0),
    "torch._C._cuda_record_memory_history": lambda: with_history(empty),
    "torch._C._cuda_record_memory_history_legacy": lambda: CUDA._record_memory_history_legacy(False),
    "torch._C._cuda_resetAccumulatedMemoryStats": lambda: CORE._cuda_resetAccumulatedMemoryStats(0),
    "torch._C._cuda_resetPeakMemoryStats": lambda: CORE._cuda_resetPeakMemoryStats(0),
    "torch._C._cuda_ipc_collect": lambda: CORE._cuda_ipc_collect(),
    "torch.UntypedStorage._share_cuda_": sent,
    "torch.cuda.MemPool.snapshot": lambda: of_pool(lambda pool: pool.snapshot()),
    "torch.cuda.MemPool.use_count": lambda: of_pool(lambda pool: pool.use_count()),
    "torch.cuda.memory._annotate_tensor": annotated,
    "torch.cuda.memory._dump_snapshot": dumped,
    "torch.cuda.memory._record_memory_history": lambda: with_history(empty),
    "torch.cuda.memory._set_allocator_settings": lambda: CUDA._set_allocator_settings(""),
    "torch.cuda.memory._snapshot": lambda: CUDA._snapshot(),
    "torch.cuda.memory.CUDAPluggableAllocator": lambda: CUDA.CUDAPluggableAllocator,
    "torch.cuda.memory.MemPool": lambda: of_pool(lambda pool: pool.id),
    "torch.cuda.memory.use_mem_pool": lambda: of_pool(lambda pool: pool.id),
    "torch.cuda.memory.caching_allocator_alloc": deleted_raw,
    "torch.cuda.memory.caching_allocator_delete": deleted_raw,
    "torch.cuda.memory.caching_allocator_disabled": switched_off,
    "torch.cuda.memory.caching_allocator_enable": lambda: CUDA.caching_allocator_enable(True),
    "torch.cuda.memory.change_current_allocator": lambda: CUDA.change_current_allocator,
    "torch.cuda.memory.empty_cache": lambda: CUDA.empty_cache(),
    "torch.cuda.memory.get_allocator_backend": lambda: CUDA.get_allocator_backend(),
    "torch.cuda.memory.get_per_process_memory_fraction": lambda: CUDA.get_per_process_memory_fraction(),
    "torch.cuda.memory.set_per_process_memory_fraction": lambda: CUDA.set_per_process_memory_fraction(1.0),
    "torch.cuda.memory.max_memory_allocated": lambda: CUDA.max_memory_allocated(),
    "torch.cuda.memory.max_memory_cached": lambda: CUDA.max_memory_cached(),
    "torch.cuda.memory.max_memory_reserved": lambda: CUDA.max_memory_reserved(),
    "torch.cuda.memory.mem_get_info": lambda: CUDA.mem_get_info(),
    "torch.cuda.memory.memory_allocated": lambda: CUDA.memory_allocated(),
    "torch.cuda.memory.memory_cached": lambda: CUDA.memory_cached(),
    "torch.cuda.memory.memory_reserved": lambda: CUDA.memory_reserved(),
    "torch.cuda.memory.memory_snapshot": lambda: CUDA.memory_snapshot(),
    "torch.cuda.memory.memory_stats": lambda: CUDA.memory_stats(),
    "torch.cuda.memory.memory_stats_as_nested_dict": lambda: CUDA.memory_stats_as_nested_dict(),
    "torch.cuda.memory.memory_summary": lambda: CUDA.memory_summary(),
    "torch.cuda.memory.reset_accumulated_memory_stats": lambda: CUDA.reset_accumulated_memory_stats(),
    "torch.cuda.memory.reset_max_memory_allocated": lambda: CUDA.reset_max_memory_allocated(),
    "torch.cuda.memory.reset_max_memory_cached": lambda: CUDA.reset_max_memory_cached(),
    "torch.cuda.memory.reset_peak_memory_stats": lambda: CUDA.reset_peak_memory_stats(),
    "torch.accelerator.empty_cache": lambda: ACCELERATOR.empty_cache(),
    "torch.accelerator.get_memory_info": lambda: ACCELERATOR.get_memory_info(),
    "torch.accelerator.max_memory_allocated": lambda: ACCELERATOR.max_memory_allocated(),
    "torch.accelerator.max_memory_reserved": lambda: ACCELERATOR.max_memory_reserved(),
    "torch.accelerator.memory_allocated": lambda: ACCELERATOR.memory_allocated(),
    "torch.accelerator.memory_reserved": lambda: ACCELERATOR.memory_reserved(),
    "torch.accelerator.memory_stats": lambda: ACCELERATOR.memory_stats(),
    "torch.accelerator.reset_accumulated_memory_stats": lambda: ACCELERATOR.reset_accumulated_memory_stats(),
    "torch.accelerator.reset_peak_memory_stats": lambda: ACCELERATOR.reset_peak_memory_stats(),
}

# Of host memory, of libraries' workspaces, classes, or calls of what has other names in FUNCTIONS.
OTHER = re.compile(
    r"[Hh]ost|Workspace|[Cc]ublas|_cuda_CUDAAllocator|_cuda_(customAllocator|changeCurrentAllocator)|tunableop"
    r"|conv_benchmark_empty_cache|list_gpu_processes"
)
OF_MEMORY = re.compile(r"[Aa]lloc|[Mm]emory|[Pp]ool|[Cc]ache|[Ss]tats|[Cc]heckpoint|[Hh]istory|ipc")


def not_called():
    """Names of PyTorch that look like functions for memory, and that FUNCTIONS lacks."""
    names = [f"torch._C.{name}" for name in dir(CORE) if re.match("_cuda_|_accelerator_", name)]
    names += [f"torch.cuda.memory.{name}" for name in CUDA.__all__]
    names += [f"torch.accelerator.{name}" for name in ACCELERATOR.__all__]
    return [name for name in names if OF_MEMORY.search(name) and not OTHER.search(name) and name not in FUNCTIONS]
