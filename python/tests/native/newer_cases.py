"""What PyTorch's tests of its allocator ask for since PyTorch 2.6, each told anew: limits with pools, threads in pools, contexts
and settings in snapshots, actions that a history leaves out, errors in captures. As in ``cases.py``, a case knows nothing of gapless.
"""

import contextlib
import ctypes
import gc
import json
import os
import tempfile
import threading

import torch
from cases import MIB, empty, own_pool, raises_out_of_memory


@contextlib.contextmanager
def limit(mebibytes):
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(mebibytes / 1024)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextlib.contextmanager
def settings(text):
    torch.cuda.memory._set_allocator_settings(text)
    try:
        yield
    finally:
        # An empty text would leave them as they are.
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


@contextlib.contextmanager
def recorded(*arguments, **options):
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(*arguments, **options)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(None)


def in_pool(pool, *sizes):
    with torch.cuda.use_mem_pool(pool):
        return [empty(size * MIB) for size in sizes]


def active_of(pool_id):
    """The active bytes of a pool, in MiB."""
    segments = torch.cuda.memory_snapshot(pool_id)
    return sum(segment["active_size"] for segment in segments) / MIB


def pools_under_a_limit(mark, pool=None):
    pool = pool or torch.cuda.MemPool
    with limit(80):
        keeps, lends = pool(), pool(use_on_oom=True)
        kept, lent = in_pool(keeps, 40), in_pool(lends, 40)
        address = lent[0].data_ptr()
        raises_out_of_memory(40 * MIB)
        kept.clear()
        lent.clear()
        # Only one of the two lends, and no more than it has.
        outside = empty(40 * MIB)
        assert outside.data_ptr() == address
        raises_out_of_memory(30 * MIB)
        mark("lent")
        del outside
        # What it has lent is its own again.
        assert in_pool(lends, 20)[0].data_ptr() == address
        del keeps, lends
        gc.collect()


def pools_of_their_own_allocator_under_a_limit(mark):
    pools_under_a_limit(mark, own_pool)


def pools_that_are_gone_lend_nothing(mark):
    with limit(50):
        for _ in range(10):
            pool = torch.cuda.MemPool(use_on_oom=True)
            block = in_pool(pool, 40)
            del block, pool
        gc.collect()
        kept = empty(40 * MIB)
        raises_out_of_memory(40 * MIB)
        del kept


def pools_in_pools(mark):
    pools, kept = [torch.cuda.MemPool() for _ in range(3)], []
    with torch.cuda.use_mem_pool(pools[0]):
        kept.append(empty(20 * MIB))
        with torch.cuda.use_mem_pool(pools[1]):
            kept.append(empty(20 * MIB))
            with torch.cuda.use_mem_pool(pools[2]):
                kept.append(empty(20 * MIB))
            kept.append(empty(20 * MIB))
        kept.append(empty(20 * MIB))
    assert [active_of(pool.id) for pool in pools] == [40, 40, 20]
    mark("three pools")
    kept.clear()
    assert [active_of(pool.id) for pool in pools] == [0, 0, 0]


def a_pool_is_that_of_its_thread(mark):
    inside, done, seen = threading.Event(), threading.Event(), []

    def with_pool():
        try:
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                block = empty(MIB)
                seen.append((pool.id, block.data_ptr()))
                del block
                inside.set()
                done.wait()
        finally:
            inside.set()

    worker = threading.Thread(target=with_pool)
    worker.start()
    inside.wait()
    try:
        # The pool has a free block of that size, which is not for this thread.
        block = empty(MIB)
        pool_id, address = seen[0]
        assert block.data_ptr() != address and active_of(pool_id) == 0 and active_of((0, 0)) >= 1
    finally:
        done.set()
        worker.join()


def emptying_the_cache_beside_pools(mark):
    pool = torch.cuda.MemPool()
    block = in_pool(pool, 20)
    block.clear()
    torch.cuda.empty_cache()
    outside = empty(20 * MIB)
    del outside
    with torch.cuda.use_mem_pool(pool):
        # Of the pool alone.
        torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    assert held in (20 * MIB, 40 * MIB), held
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def threads_empty_caches_of_pools(mark):
    errors = []

    def work():
        try:
            pool = torch.cuda.MemPool()
            for _ in range(20):
                with torch.cuda.use_mem_pool(pool):
                    block = empty(3 * MIB)
                del block
                torch.cuda.empty_cache()
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors


def tensors_outlive_the_allocator_of_their_pool(mark):
    freed = ctypes.c_int.in_dll(ctypes.CDLL(os.environ["GAPLESS_OWN_ALLOCATOR"]), "own_freed")
    before, pool = freed.value, own_pool()
    block = in_pool(pool, 4)
    del pool
    gc.collect()
    assert freed.value == before
    block.clear()
    torch.cuda.empty_cache()
    assert freed.value == before + 1


def a_pool_of_its_own_allocator_beside_expandable_segments(mark):
    pool = own_pool()
    with settings("expandable_segments:True"):
        kept = in_pool(pool, 1), empty(MIB)
        segments = pool.snapshot()
        assert [segment["is_expandable"] for segment in segments] == [False], segments
        del kept
        gc.collect()
        torch.cuda.empty_cache()


def settings_that_are_wrong(mark):
    for text in (
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "release_lock_on_cudamalloc:none",
        "pinned_use_cuda_host_register:none",
        "pinned_num_register_threads:1024",
    ):
        try:
            torch._C._accelerator_setAllocatorSettings(text)
        except (ValueError, RuntimeError):
            continue
        raise AssertionError(text)


def raw_requests_without_caching(mark):
    def counted():
        before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
        address = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, torch.cuda.current_stream().cuda_stream)
        after = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        return after - before

    torch.cuda.caching_allocator_enable(False)
    try:
        assert counted() == 0
    finally:
        torch.cuda.caching_allocator_enable(True)
    assert counted() == MIB


def stacks_of_contexts(mark):
    for context in ("alloc", "all", "state"):
        kept = []

        def allocates():
            kept.append(empty(3 * MIB))

        def frees():
            kept.clear()

        def empties():
            torch.cuda.empty_cache()

        with recorded(context=context):
            allocates()
            live = json.dumps(torch.cuda.memory._snapshot()["segments"])
            frees()
            empties()
            traces = json.dumps(torch.cuda.memory._snapshot()["device_traces"])
        assert '"allocates"' in live, context
        found = [name for name in ("allocates", "frees", "empties") if f'"{name}"' in traces]
        assert found == {"alloc": ["allocates"], "all": ["allocates", "frees", "empties"], "state": []}[context], (context, found)


def a_context_that_changes(mark):
    kept = []

    def with_stack():
        kept.append(empty(MIB))

    def without_stack():
        kept.append(empty(MIB))

    with recorded(context="all", stacks="python"):
        with_stack()
        torch.cuda.memory._record_memory_history(context=None)
        without_stack()
        text = json.dumps(torch.cuda.memory._snapshot())
    assert '"with_stack"' in text and '"without_stack"' not in text


def texts_of_the_program(mark):
    for context in ("alloc", "all", "state"):
        with recorded(context=context):
            torch.cuda.memory._set_memory_metadata("a text")
            block = empty(3 * MIB)
            del block
            torch.cuda.empty_cache()
            torch.cuda.memory._set_memory_metadata("")
            trace = torch.cuda.memory._snapshot()["device_traces"][0]
        told = {entry["user_metadata"] for entry in trace if entry["action"] != "snapshot"}
        assert trace and told == {"a text"}, (context, told)


def actions_that_are_left_out(mark):
    every = {"alloc", "free_requested", "free_completed"}
    for left_out in (["free_requested"], ["free_requested", "free_completed"], ["alloc"], [], None):
        with recorded(context="all", stacks="python", skip_actions=left_out):
            block = empty(3 * MIB)
            del block
            torch.cuda.synchronize()
            trace = torch.cuda.memory._snapshot()["device_traces"][0]
        found = {entry["action"] for entry in trace} & every
        assert found == every - set(left_out or []), (left_out, found)


def actions_of_segments_that_are_left_out(mark):
    of_segments = ["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
    with recorded(context="all", stacks="python", skip_actions=of_segments):
        block = empty(30 * MIB)
        del block
        torch.cuda.empty_cache()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert {entry["action"] for entry in trace} - {"snapshot"} == {"alloc", "free_requested", "free_completed"}, trace


def frames_and_the_last_event(mark):
    with recorded("state", stacks="python"):
        block = empty(311 * 411 * 4)
        told = torch.cuda.memory._snapshot()
        assert all("frames" in segment for segment in told["segments"])
        with tempfile.NamedTemporaryFile(suffix=".svg") as file, contextlib.suppress(OSError):
            # Fetches a program where there is a network.
            torch.cuda.memory._save_segment_usage(file.name)
    with recorded():
        del block
        other = empty(30 * MIB)
        del other
        torch.cuda.empty_cache()
        last = [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0] if entry["action"] != "snapshot"][-1]
    assert last in ("segment_free", "segment_unmap"), last


def plots(mark):
    from torch.cuda import _memory_viz

    for context, stacks in (("all", "all"), ("all", "python"), (None, "python")):
        with recorded("all", context=context, stacks=stacks):
            block = empty(128 * 128 * 4)
            del block
            kept = empty(5 * MIB)
            told = torch.cuda.memory._snapshot()
        text = json.dumps(told)
        # Leaves events out of what it is given.
        for page in (
            _memory_viz.trace_plot(told),
            _memory_viz.trace_plot(told, filter_freed=True),
            _memory_viz.segment_plot(told),
        ):
            assert "<script" in page
        assert ('"plots"' in text) == (context is not None) and ("at::" in text) == (stacks == "all"), (context, stacks)
        sizes = [entry["size"] for entry in told["device_traces"][0]]
        assert f'"size": {128 * 128 * 4}' in text and 128 * 128 * 4 not in sizes, sizes
        del kept


def a_capture_that_runs_out_of_memory(mark):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            empty(1 << 40)
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        raise AssertionError("it did not run out of memory")
    del graph
    gc.collect()
    torch.cuda.synchronize()
    block = empty(600 * MIB)
    mark("afterwards")
    del block


def captures_in_a_pool_of_the_program(mark):
    pool, graphs, kept = torch.cuda.MemPool(), [], []
    for _ in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=pool.id, stream=torch.cuda.Stream()):
            kept.append(empty(4 * MIB))
    assert active_of(pool.id) == 8
    for graph in graphs:
        graph.replay()
    mark("two graphs")
    graphs[0].reset()
    kept.clear()
    del graphs, graph, pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def a_graph_that_is_captured_again(mark):
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    for _ in range(3):
        with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream()):
            inside = empty(8 * MIB)
        graph.replay()
        torch.cuda.synchronize()
        del inside
        graph.reset()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


# The last ones: PyTorch keeps the largest split that they set, and counts what is larger from then on.


def a_limit_over_both_layouts(mark):
    with limit(120):
        kept = []
        for expandable in ("False", "True", "False"):
            with settings(f"expandable_segments:{expandable},max_split_size_mb:40"):
                kept.append(empty(40 * MIB))
        raises_out_of_memory(40 * MIB)
        kept.clear()
        block = empty(120 * MIB)
        del block
        torch.cuda.empty_cache()


def a_failure_with_a_largest_split(mark):
    with settings("max_split_size_mb:1024"):
        raises_out_of_memory(1 << 40)


def settings_are_in_snapshots(mark):
    def shown():
        return torch.cuda.memory._snapshot()["allocator_settings"]

    keys = set(shown())
    assert {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments"} <= keys
    with settings("max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:[64:8,>:2]"):
        told = shown()
    assert (told["max_split_size"], told["garbage_collection_threshold"]) == (64 * MIB, 0.5), told
    assert told["roundup_power2_divisions"]["64"] == 8, told
    assert set(told) == keys


def a_capture_that_ends_with_an_error(mark):
    """The program's own error, and one of CUDA's: a wait for a stream that is captured. PyTorch 2.8 keeps the second one's pool."""
    stream = torch.cuda.Stream()
    for breaks in (lambda: 1 / 0, stream.synchronize):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                inside = empty(5 * MIB)
                breaks()
        except (ZeroDivisionError, RuntimeError):
            pass
        else:
            raise AssertionError("it was no error")
        inside = None
        del graph
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert inside is None and torch.cuda.memory_reserved() == 0
    assert empty(600 * MIB).numel() == 600 * MIB


CASES = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", None) == __name__ and value.__code__.co_varnames[:1] == ("mark",)
}
