"""The uses of PyTorch's allocator by scripts, one function each, for the functions of PyTorch that its own allocator tests are for.

A case takes ``mark``, which notes the statistics under a name. It knows nothing of gapless: run natively first, it says what is right.
"""

import ctypes
import gc
import os
import threading

import torch

MIB = 1 << 20


def empty(size, **options):
    return torch.empty(size, dtype=torch.uint8, device="cuda", **options)


def raises_out_of_memory(size, match="CUDA out of memory"):
    try:
        empty(size)
    except torch.cuda.OutOfMemoryError as error:
        assert match in str(error), str(error)
        return
    raise AssertionError("it did not run out of memory")


def settled():
    """Memory that waits for streams is free after that: some allocators look at the next request only."""
    torch.cuda.synchronize()
    empty(1)


def memory_stats(mark):
    mark("before")
    blocks = [empty(size) for size in (1, 512, 1000, MIB, 7 * MIB, 33 * MIB)]
    mark("six blocks")
    assert torch.cuda.memory_allocated() >= sum(block.numel() for block in blocks)
    del blocks[::2]
    mark("three blocks")
    torch.cuda.empty_cache()
    mark("three blocks, nothing cached")
    torch.cuda.reset_peak_memory_stats()
    mark("peaks were reset")
    torch.cuda.reset_accumulated_memory_stats()
    mark("counts were reset")
    blocks.clear()
    mark("after")


def memory_of_stages(mark):
    for size in (1, 20, 5):
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        block = empty(size * MIB)
        del block
        assert torch.cuda.max_memory_allocated() - base == size * MIB
        assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
        mark(f"stage of {size} MiB")


def empty_cache(mark):
    block = empty(64 * MIB)
    del block
    assert torch.cuda.memory_reserved() >= 64 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    mark("emptied")


def empty_tensors(mark):
    block = empty(0)
    assert block.data_ptr() == 0
    mark("a tensor without bytes")


def raw_allocations(mark):
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    mark("one")
    torch.cuda.caching_allocator_delete(address)
    mark("none")
    try:
        torch.cuda.caching_allocator_delete(address)
    except RuntimeError:
        return
    raise AssertionError("freed twice")


def out_of_memory(mark):
    raises_out_of_memory(2 << 30, "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1024.00 MiB")
    mark("a failure")
    assert empty(4 * MIB).numel() == 4 * MIB


def out_of_memory_of_an_exabyte(mark):
    raises_out_of_memory(1 << 60, "more than 1EB memory")


def out_of_memory_and_again(mark):
    block = empty(600 * MIB)
    raises_out_of_memory(600 * MIB)
    del block
    block = empty(900 * MIB)
    mark("a failure and a success")
    del block


def memory_fraction(mark):
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    for wrong in (-0.1, 1.1):
        try:
            torch.cuda.set_per_process_memory_fraction(wrong)
        except ValueError:
            continue
        raise AssertionError("a wrong fraction was taken")
    torch.cuda.set_per_process_memory_fraction(0.0)
    assert torch.cuda.get_per_process_memory_fraction() == 0.0
    raises_out_of_memory(1)
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        empty(200 * MIB)
        torch.cuda.empty_cache()
        raises_out_of_memory(300 * MIB, "256.00 MiB allowed")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    mark("a failure")


def out_of_memory_observers(mark):
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, size, total, free: seen.append((device, size, total)))
    raises_out_of_memory(2 << 30)
    assert seen == [(0, 2 << 30, 1 << 30)], seen
    # What the driver is asked for: a segment. In the end the limit, where there is one.
    full = empty(1022 * MIB)
    for size in (10 * MIB - 513, 10 * MIB - 511, 10 * MIB, 11 * MIB + 1):
        raises_out_of_memory(size)
    del full
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        full = empty(256 * MIB)
        for size in (1, MIB, MIB + 1, 3 * MIB):
            raises_out_of_memory(size)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    segments = [(size // MIB, total // MIB) for _, size, total in seen[1:]]
    assert segments == [(20, 1024), (10, 1024), (10, 1024), (12, 1024), (2, 256), (2, 256), (20, 256), (20, 256)], segments


def pinned_memory(mark):
    host = torch.arange(5000, dtype=torch.int64).to(torch.uint8).pin_memory()
    assert host.is_pinned() and not host.clone().is_pinned()
    block = host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(block.cpu(), host)


def record_stream(mark):
    block = empty(8 * MIB)
    block.record_stream(torch.cuda.Stream())
    del block
    settled()
    mark("used by two streams")


def record_stream_of_a_view(mark):
    base = empty(8 * MIB)
    view = base[MIB:]
    view.record_stream(torch.cuda.Stream())
    del base, view
    settled()
    mark("a view was used by two streams")


def streams(mark):
    kept = []
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(empty(5 * MIB))
    mark("three streams")
    kept.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def threads(mark):
    errors = []

    def work(seed):
        try:
            live = []
            for step in range(200):
                live.append(empty(1 + (step * seed * 7919) % (2 * MIB)))
                if len(live) > 10:
                    live.pop(step % 10)
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors
    assert torch.cuda.memory_stats()["allocation.all.current"] == 0


def snapshot(mark):
    kept = [empty(size) for size in (100, 5 * MIB)]
    segments = torch.cuda.memory_snapshot()
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["device"] == 0 and segment["segment_type"] in ("small", "large")
    found = {block["address"] for segment in segments for block in segment["blocks"] if block["state"] != "inactive"}
    assert {block.data_ptr() for block in kept} <= found


def history(mark):
    torch.cuda.memory._record_memory_history()
    try:
        block = empty(3 * MIB)
        address = block.data_ptr()
        del block
        raised = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    trace = [entry for entry in raised["device_traces"][0] if entry.get("addr") == address]
    actions = [entry["action"] for entry in trace if not entry["action"].startswith("segment")]
    assert actions == ["alloc", "free_requested", "free_completed"], actions


def sizes_in_a_history(mark):
    """A request that is no multiple of what allocators round to: 511284 bytes, in a block of 511488."""
    asked, other = 311 * 411 * 4, torch.cuda.Stream()
    torch.cuda.memory._record_memory_history()
    try:
        block = empty(asked)
        address = block.data_ptr()
        live = block_at(address)
        if hasattr(torch.cuda.memory, "_annotate_tensor"):
            torch.cuda.memory._annotate_tensor(block, "text")
        block.record_stream(other)
        del block
        waits = block_at(address)
        settled()
        raises_out_of_memory((2 << 30) + 100)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert (live["size"], live["requested_size"], live["state"]) == (511488, asked, "active_allocated"), live
    assert (waits["size"], waits["requested_size"], waits["state"]) == (511488, asked, "active_pending_free"), waits
    sizes = [(entry["action"], entry["size"]) for entry in trace if entry.get("addr") == address]
    # The next block may have the same address. PyTorch annotates from 2.14 on.
    sizes = [one for one in sizes if not one[0].startswith("segment") and one != ("annotate", asked)][:3]
    assert sizes == [("alloc", asked), ("free_requested", asked), ("free_completed", asked)], sizes
    assert [entry["size"] for entry in trace if entry["action"] == "oom"] == [(2 << 30) + 512]
    assert all(entry["size"] % 512 == 0 for entry in trace if entry["action"].startswith("segment"))
    assert {entry["compile_context"] for entry in trace if "compile_context" in entry} <= {"N/A"}


def block_at(address):
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    return next(block for block in blocks if block["address"] == address)


def active_bytes_are_those_of_blocks(mark):
    def active():
        stats = torch.cuda.memory_stats()
        return stats["active.all.current"], stats["active_bytes.all.current"]

    number, size = active()
    blocks = [empty(1), empty(8), empty(311 * 411 * 4)]
    mark("three blocks")
    assert active() == (number + 3, size + 512 + 512 + 511488)
    del blocks[:2]
    assert active() == (number + 1, size + 511488)


def history_with_stacks(mark):
    torch.cuda.memory._record_memory_history()
    try:
        block = empty(3 * MIB)
        raised = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    blocks = [part for segment in raised["segments"] for part in segment["blocks"]]
    own = next(part for part in blocks if part["address"] == block.data_ptr())
    assert any(frame["name"] == "history_with_stacks" for frame in own["frames"])


def viewers(mark):
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history()
    try:
        kept = [empty(size * MIB) for size in (1, 20)]
        del kept[0]
        data = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert "<script" in _memory_viz.trace_plot(data)
    assert "<script" in _memory_viz.segment_plot(data)


def summary(mark):
    block = empty(3 * MIB)
    for abbreviated in (False, True):
        assert "Allocated memory" in torch.cuda.memory_summary(abbreviated=abbreviated)
    del block


def mem_get_info(mark):
    free, total = torch.cuda.mem_get_info()
    block = empty(100 * MIB)
    assert free - torch.cuda.mem_get_info()[0] >= 100 * MIB and total == 1 << 30
    del block


def profiler_figures(mark):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        block = empty(6 * MIB)
        del block
    figures = [event.device_memory_usage for event in profile.events()]
    assert 6 * MIB in figures and -6 * MIB in figures, figures


def graphs(mark):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        inside = empty(16 * MIB)
        temporary = empty(8 * MIB)
        del temporary
    mark("captured")
    graph.replay()
    del graph
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() >= 16 * MIB
    del inside
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    mark("the graph is gone")


def graphs_share_a_pool(mark):
    pool = torch.cuda.graph_pool_handle()
    recorded, kept = [], []
    for _ in range(2):
        recorded.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(recorded[-1], pool=pool, stream=torch.cuda.Stream()):
            kept.append(empty(4 * MIB))
    assert kept[0].data_ptr() != kept[1].data_ptr()
    mark("two graphs")
    kept.clear()
    recorded.clear()


def pools(mark):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = empty(16 * MIB)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    outside = empty(MIB)
    assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
    mark("inside and outside")
    del inside, outside, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    mark("the pool is gone")


def pools_of_threads(mark):
    made = []

    def work():
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            made.append((pool, empty(2 * MIB)))

    for _ in range(3):
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
    assert len({pool.id for pool, _ in made}) == 3
    mark("three pools")
    made.clear()


def pools_lend_when_nothing_else_is_left(mark):
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        big = empty(700 * MIB)
    address = big.data_ptr()
    del big
    block = empty(700 * MIB)
    assert block.data_ptr() == address


def own_pool(**options):
    allocator = torch.cuda.memory.CUDAPluggableAllocator(os.environ["GAPLESS_OWN_ALLOCATOR"], "own_malloc", "own_free")
    return torch.cuda.MemPool(allocator.allocator(), **options)


def pools_with_an_allocator_of_their_own_lend(mark):
    pool = own_pool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        big = empty(600 * MIB)
    address = big.data_ptr()
    del big
    block = empty(500 * MIB)
    assert block.data_ptr() == address
    del block
    blocks = [empty(50 * MIB) for _ in range(18)]
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    raises_out_of_memory(200 * MIB)
    del blocks, pool
    gc.collect()
    torch.cuda.empty_cache()
    pool = own_pool()
    with torch.cuda.use_mem_pool(pool):
        big = empty(600 * MIB)
    del big
    raises_out_of_memory(500 * MIB)


def pools_that_do_not_split(mark):
    for options in ({}, {"use_on_oom": True}):
        pool = torch.cuda.MemPool(no_split=True, **options)
        with torch.cuda.use_mem_pool(pool):
            blocks = [empty(size) for size in (3 * MIB, 3 * MIB, 100, 600 * MIB)]
        shown = pool.snapshot()
        assert len(shown) == 4 and all(len(segment["blocks"]) == 1 for segment in shown), shown
        assert pool.use_count() == 1
        address = blocks[3].data_ptr()
        del blocks
        if options:
            block = empty(500 * MIB)
            assert block.data_ptr() == address
            del block
        else:
            raises_out_of_memory(500 * MIB)
        del pool
        gc.collect()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0


def checkpoints(mark):
    device, pool, stream = torch.cuda.current_device(), torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        kept = [empty(3 * MIB), empty(100)]
    state = torch._C._cuda_getCheckpointState(device, pool)
    addresses = {block.data_ptr() for block in kept}
    assert torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses)
    storages = [block.untyped_storage()._cdata for block in kept]
    torch._C._cuda_setCheckpointPoolState(device, state, storages, [])
    kept.clear()
    assert torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses)
    for address in addresses:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    assert torch._C._cuda_checkPoolLiveAllocations(device, pool, set())
    del graph


def pools_with_an_allocator_of_their_own(mark):
    path = os.environ["GAPLESS_OWN_ALLOCATOR"]
    allocator, library = torch.cuda.memory.CUDAPluggableAllocator(path, "own_malloc", "own_free"), ctypes.CDLL(path)
    allocated, freed = (ctypes.c_int.in_dll(library, name) for name in ("own_allocated", "own_freed"))
    before = allocated.value, freed.value
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = empty(24 * MIB)
    outside = empty(4 * MIB)
    assert allocated.value == before[0] + 1
    assert sum(segment["allocated_size"] for segment in pool.snapshot()) == 24 * MIB
    mark("inside and outside")
    del inside, outside, pool
    gc.collect()
    assert freed.value == before[1] + 1


def record(graph, pool, stream, sizes):
    """A recording: blocks that stay, and one that goes within it."""
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        temporary = empty(3 * MIB)
        kept = [empty(size) for size in sizes]
        del temporary
    return kept


def three_recordings(mark):
    """The steps of cudagraph trees: the state after each recording is kept, and set again before another branch is recorded."""
    device, stream = torch.cuda.current_device(), torch.cuda.Stream()
    pool = torch.cuda.graph_pool_handle()
    graphs, states, addresses, live = [], [], [], []
    for sizes in ([5 * MIB, 700], [9 * MIB, 512 << 10, 100], [40 * MIB]):
        graphs.append(torch.cuda.CUDAGraph())
        live += record(graphs[-1], pool, stream, sizes)
        states.append(torch._C._cuda_getCheckpointState(device, pool))
        addresses.append({block.data_ptr() for block in live})
    for which in (0, 2, 1, 0, 1, 2):
        stale = [block.untyped_storage()._cdata for block in live]
        torch._C._cuda_setCheckpointPoolState(device, states[which], stale, [])
        live.clear()
        assert torch._C._cuda_checkPoolLiveAllocations(device, pool, addresses[which])
        assert not torch._C._cuda_checkPoolLiveAllocations(device, pool, set())
        for graph in graphs[: which + 1]:
            graph.replay()
        # What is recorded from here on keeps off what is live.
        branch = torch.cuda.CUDAGraph()
        more = record(branch, pool, stream, [2 * MIB, 30 * MIB])
        assert not {block.data_ptr() for block in more} & addresses[which]
        torch.cuda.synchronize()
        del more, branch
        # The tensors of this state belong to nobody.
        for address in addresses[which]:
            torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    graphs.clear()


def caching_switched_off(mark):
    torch.cuda.caching_allocator_enable(False)
    try:
        assert not torch._C._cuda_cudaCachingAllocator_is_enabled()
        block = empty(MIB)
        del block
    finally:
        torch.cuda.caching_allocator_enable(True)


def accelerator_statistics(mark):
    block = empty(9 * MIB)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == 9 * MIB
    assert torch.accelerator.max_memory_allocated() >= 9 * MIB
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == 9 * MIB
    del block
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == 0
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0


def cudnn_benchmark(mark):
    torch.backends.cudnn.benchmark = True
    try:
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = False


def sent_to_other_processes(mark):
    block = empty(3 << 20)
    *_, counter, offset, _, _ = block.untyped_storage()._share_cuda_()
    mark("sent")
    del block
    mark("until it is received")
    torch.UntypedStorage._release_ipc_counter(counter, offset, device="cuda:0")
    torch.cuda.ipc_collect()
    mark("done")


CASES = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__code__", None) is not None and value.__code__.co_varnames[:1] == ("mark",)
}
