"""PyTorch's CUDA build on gapless's allocator object, without a GPU: cargo xtask torch-without-gpu sets it up. No kernel runs there."""

import contextlib
import ctypes
import gc
import json
import os
import pickle
import subprocess
import threading
from pathlib import Path

import pytest
from processes import run

import gapless
import gapless.torch

gapless.torch.enable()

import torch  # noqa: E402

MIB = 1 << 20


def empty(size, **options):
    return torch.empty(size, dtype=torch.uint8, device="cuda", **options)


def held_by_pools():
    segments = torch.cuda.memory_snapshot()
    held = sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) != (0, 0))
    stats = torch.cuda.memory_stats_as_nested_dict().get("reserved_bytes_by_private_pools")
    # The newer versions of PyTorch have it among their statistics.
    assert stats is None or sum(pool["all"]["current"] for pool in stats.values()) == held, stats
    return held


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_allocated() == 0


@pytest.fixture
def own_allocator():
    path = os.environ["GAPLESS_OWN_ALLOCATOR"]
    return torch.cuda.memory.CUDAPluggableAllocator(path, "own_malloc", "own_free"), ctypes.CDLL(path)


def count(library, name):
    return ctypes.c_int.in_dll(library, name).value


def test_it_is_the_object():
    assert gapless.torch.is_enabled() and gapless.torch.backend() == "object"
    # What programs compare with before they use what plug-ins lack.
    assert torch.cuda.get_allocator_backend() == "native"
    block = empty(5 * MIB)
    assert gapless.stats()["live_bytes"] == torch.cuda.memory_allocated() == 5 * MIB
    of_accelerators = torch.accelerator if hasattr(torch.accelerator, "memory_allocated") else torch.cuda
    assert of_accelerators.memory_allocated() == 5 * MIB
    del block
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] >= 5 * MIB
    of_accelerators.empty_cache()
    assert torch.cuda.memory_reserved() == 0


@pytest.mark.parametrize(
    "processes, change",
    [
        (0, ""),
        (1, "torch.__version__ = torch.__version__.replace('+', 'a0+')"),
        (1, "torch.version.git_version = 'another'"),
        (1, "torch.version.debug = True"),
    ],
)
def test_another_build_than_the_object_was_compiled_for_is_proved_to_fit(processes, change):
    code = f"""
        import sys
        import torch
        {change}
        forks = []
        sys.addaudithook(lambda event, _: event == "os.fork" and forks.append(event))
        import gapless.torch; gapless.torch.enable()
        print(gapless.torch.backend(), len(forks))
    """
    assert run(code).split() == ["object", str(processes)]


def test_another_allocator_in_its_place_is_noticed():
    code = """
        import os
        import gapless.torch; gapless.torch.enable()
        import torch
        print(gapless.torch.backend(), gapless.torch.is_enabled())
        other = torch.cuda.memory.CUDAPluggableAllocator(os.environ["GAPLESS_OWN_ALLOCATOR"], "own_malloc", "own_free")
        torch.cuda.memory.change_current_allocator(other)
        print(gapless.torch.backend(), gapless.torch.is_enabled())
    """
    assert run(code).split() == ["object", "True", "None", "False"]


def test_the_variable_may_name_the_backend_that_the_object_stands_for():
    code = """
        import gapless.torch; gapless.torch.enable()
        import torch
        print(torch.empty(5, device="cuda").numel(), gapless.torch.backend())
    """
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        for text in ("backend:native", " backend : native , max_split_size_mb:64"):
            assert run(code, **{name: text}).split() == ["5", "object"]


def test_without_caching_pytorch_stays_with_its_own_allocator():
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            import gapless.torch; gapless.torch.enable()
        import torch
        free = lambda: torch.cuda.mem_get_info()[0] >> 20
        block = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        held = free()
        del block
        print(gapless.torch.backend(), held, free(), [str(one.message).partition(':')[0] for one in told])
    """
    for objects in (os.environ["GAPLESS_TORCH_OBJECTS"], "off"):
        out = run(code, PYTORCH_NO_CUDA_MEMORY_CACHING="1", GAPLESS_TORCH_OBJECTS=objects)
        assert out.strip() == "None 724 1024 [\"gapless leaves this process to PyTorch's own allocator\"]"


def test_a_library_in_the_place_of_cudamalloc_is_named(tmp_path):
    source, library = tmp_path / "interposer.c", tmp_path / "libinterposer.so"
    source.write_text("int cudaMalloc(void **pointer, unsigned long bytes) { (void)pointer; (void)bytes; return 2; }")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            import gapless.torch; gapless.torch.enable(); gapless.torch.enable()
        print([str(one.message).partition(",")[0] for one in told if "cudaMalloc" in str(one.message)])
    """
    for objects in (os.environ["GAPLESS_TORCH_OBJECTS"], "off"):
        assert run(code, GAPLESS_TORCH_OBJECTS=objects).strip() == "[]", "the CUDA runtime is none"
        out = run(code, GAPLESS_TORCH_OBJECTS=objects, LD_PRELOAD=f"{library}:{os.environ['LD_PRELOAD']}")
        assert out.strip() == f"['{library} takes the place of cudaMalloc']"


def test_what_plug_ins_are_refused_is_not_switched_off():
    torch.backends.cudnn.benchmark = True
    assert torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    from torch._inductor import cudagraph_trees

    assert cudagraph_trees.cudagraphify_impl.__module__ == "torch._inductor.cudagraph_trees"


def test_snapshots_have_stack_traces(tmp_path):
    torch.cuda.memory._record_memory_history(max_entries=100)
    try:
        set_metadata = getattr(torch.cuda.memory, "_set_memory_metadata", lambda _: None)
        set_metadata("of this test")
        kept = empty(7 * MIB)
        set_metadata("")
        gone = empty(3 * MIB)
        del gone
        if hasattr(torch.cuda.memory, "_annotate_tensor"):
            torch.cuda.memory._annotate_tensor(kept, "later")
        path = tmp_path / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    data = pickle.loads(path.read_bytes())
    here = test_snapshots_have_stack_traces.__name__

    def is_here(entry):
        return any(frame["name"] == here for frame in entry["frames"])

    block = next(
        block
        for segment in data["segments"]
        for block in segment["blocks"]
        if block["address"] == kept.data_ptr()
    )
    assert block["state"] == "active_allocated" and block["requested_size"] == 7 * MIB and is_here(block)
    trace = [entry for entry in data["device_traces"][0] if not entry["action"].startswith("segment")]
    # A snapshot is an event of PyTorch's own allocator.
    trace = [entry for entry in trace if entry["action"] != "snapshot"]
    actions = ["alloc", "alloc", "free_requested", "free_completed"]
    assert all(is_here(entry) for entry in trace[:4]) and trace[0]["addr"] == kept.data_ptr()
    assert trace[0].get("user_metadata", "of this test") == "of this test"
    if hasattr(torch.cuda.memory, "_annotate_tensor"):
        actions.append("annotate")
        assert trace[4]["addr"] == kept.data_ptr() and trace[4]["user_metadata"] == "later"
    assert [entry["action"] for entry in trace] == actions
    assert [entry["time_us"] for entry in trace] == sorted(entry["time_us"] for entry in trace)
    from torch.cuda import _memory_viz

    assert "<script" in _memory_viz.trace_plot(data)
    assert torch.cuda.memory._snapshot()["device_traces"] == [[]]


def test_stacks_of_live_blocks_only():
    torch.cuda.memory._record_memory_history(context="state", max_entries=100)
    try:
        block = empty(MIB)
        snapshot = torch.cuda.memory._snapshot()
        frames = [part["frames"] for segment in snapshot["segments"] for part in segment["blocks"] if "frames" in part]
        assert any(frame["name"] == "test_stacks_of_live_blocks_only" for part in frames for frame in part)
        entries = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
        assert not any(entry.get("frames") for entry in entries)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del block


def test_out_of_memory_observers():
    seen = []

    def observe(device, alloc, total, free):
        seen.append((device, alloc, total))

    torch._C._cuda_attach_out_of_memory_observer(observe)
    held = empty(512 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate 600"):
        empty(600 * MIB)
    assert seen == [(0, 600 * MIB, 1 << 30)]
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    del held


def test_graphs_are_captured_and_replayed():
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        inside = empty(16 * MIB)
        temporary = empty(32 * MIB)
        address = temporary.data_ptr()
        del temporary
    graph.replay()
    assert held_by_pools() >= 48 * MIB
    torch.cuda.empty_cache()
    assert held_by_pools() >= 48 * MIB
    outside = [empty(32 * MIB) for _ in range(4)]
    assert all(block.data_ptr() != address for block in outside)
    graph.replay()
    del inside, outside, graph
    gc.collect()
    torch.cuda.empty_cache()
    assert held_by_pools() == 0 and torch.cuda.memory_reserved() == 0


def test_mem_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = empty(16 * MIB)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    outside = empty(16 * MIB)
    assert held_by_pools() == 16 * MIB and gapless.stats()["live_bytes"] == 32 * MIB
    assert [segment["allocated_size"] for segment in pool.snapshot()] == [16 * MIB]
    with torch.cuda.use_mem_pool(pool):
        more = empty(8 * MIB)
    assert held_by_pools() == 24 * MIB
    del more, inside, outside, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert held_by_pools() == 0


def test_nested_mem_pools():
    one, two = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(one):
        with torch.cuda.use_mem_pool(two):
            inner = empty(4 * MIB)
        outer = empty(2 * MIB)
    assert [pool.snapshot()[0]["allocated_size"] for pool in (one, two)] == [2 * MIB, 4 * MIB]
    del inner, outer


def test_a_pool_lends_when_nothing_else_is_left():
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        big = empty(600 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        empty(600 * MIB)
    address = big.data_ptr()
    del big
    lent = empty(600 * MIB)
    assert lent.data_ptr() == address
    del lent


def test_a_pool_with_an_allocator_of_its_own(own_allocator):
    allocator, library = own_allocator
    before = count(library, "own_allocated"), count(library, "own_freed")
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = empty(24 * MIB)
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            of_gapless = empty(MIB)
    assert count(library, "own_allocated") == before[0] + 1
    assert gapless.stats()["live_bytes"] == MIB and held_by_pools() >= 24 * MIB
    assert torch.cuda.memory_allocated() == 25 * MIB
    assert sum(segment["allocated_size"] for segment in pool.snapshot()) == 24 * MIB
    inside.record_stream(torch.cuda.Stream())
    outside = empty(4 * MIB)
    assert gapless.stats()["live_bytes"] == 5 * MIB
    del inside, outside, of_gapless
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.memory_allocated() == 0
    del pool
    gc.collect()
    assert count(library, "own_freed") == before[1] + 1


def test_a_pool_of_registered_blocks():
    pool = gapless.torch.registered_pool()
    with torch.cuda.use_mem_pool(pool):
        tensors = [empty(size) for size in (3 * MIB, 24 * MIB, 512)]
    of_gapless = empty(MIB)
    segments = pool.snapshot()
    assert gapless.stats()["registered_bytes"] == sum(segment["total_size"] for segment in segments) > 0
    chunks = {chunk["bytes"] for chunk in gapless.snapshot()["chunks"] if chunk["registered"]}
    assert chunks == {segment["total_size"] for segment in segments}, "each segment is one chunk"
    before = [tensor.data_ptr() for tensor in tensors]
    torch.cuda.empty_cache()
    assert [tensor.data_ptr() for tensor in tensors] == before
    with torch.cuda.use_mem_pool(pool), pytest.raises(torch.cuda.OutOfMemoryError):
        empty(2000 * MIB)
    del tensors, of_gapless, pool
    gc.collect()
    assert gapless.stats()["registered_bytes"] == 0


def test_gapless_yields_to_pools_with_an_allocator_of_their_own(own_allocator):
    """The device has 1 GiB. What gapless has cached goes back when PyTorch's own allocator needs it."""
    allocator, library = own_allocator
    cached = empty(500 * MIB)
    del cached
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = empty(800 * MIB)
    assert torch.cuda.memory_allocated() == 800 * MIB
    stats = torch.cuda.memory_stats()
    assert stats["num_alloc_retries"] >= 1 and stats["num_ooms"] == 0, "an attempt that was made again is no failure"
    assert stats["reserved_bytes.all.freed"] >= 500 * MIB
    del inside, pool


@pytest.mark.parametrize("limit", ["fraction", "variable", "budget"])
def test_one_limit_for_both_allocators(limit):
    code = f"""
        import os
        import gapless.torch; gapless.torch.enable({'budget="256MiB"' if limit == "budget" else ""})
        import torch, gc
        MIB = 1 << 20
        own = torch.cuda.memory.CUDAPluggableAllocator(os.environ["GAPLESS_OWN_ALLOCATOR"], "own_malloc", "own_free")
        makers = [lambda: torch.cuda.MemPool(own.allocator()), gapless.torch.registered_pool, lambda: None]
        held = []

        def served(pool, size):
            try:
                with torch.cuda.use_mem_pool(pool) if pool else torch.cuda.stream(None):
                    held.append(torch.empty(size * MIB, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError:
                return False
            return True

        def nothing_held():
            held.clear()
            gc.collect()
            torch.cuda.empty_cache()

        if {limit!r} == "fraction":
            torch.cuda.set_per_process_memory_fraction(0.25)
        for one in range(3):
            for two in range(3):
                # 256 MiB in all: 50 MiB more than the first 200 fit, 100 do not, and all of it again once both pools are gone.
                first, second = makers[one](), makers[two]()
                assert served(first, 200) and not served(second, 100) and served(second, 50), (one, two)
                first = second = None
                nothing_held()
                second = makers[two]()
                assert served(second, 250), (one, two)
                second = None
                nothing_held()
        # A limit that comes later counts what is held.
        pool = makers[0]()
        assert served(pool, 200)
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert served(None, 300) and not served(pool, 40) and not served(None, 40)
        print(torch.cuda.get_per_process_memory_fraction())
    """
    conf = "per_process_memory_fraction:0.25" if limit == "variable" else ""
    assert run(code, PYTORCH_CUDA_ALLOC_CONF=conf).split() == ["0.5"]


def test_compiled_code_runs_with_graph_trees():
    weight = torch.empty(64, 64, device="cuda", requires_grad=True)
    x = torch.empty(64, 64, device="cuda")
    compiled = torch.compile(lambda x: (x * weight).sin(), backend="cudagraphs")
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        weight.grad = None
        compiled(x).sum().backward()
    assert weight.grad is not None
    assert held_by_pools() > 0
    with torch.no_grad():
        addresses = set()
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            addresses.add(compiled(x).data_ptr())
    assert len(addresses) < 6, "a graph replays at its addresses"
    del weight, x, compiled
    torch._dynamo.reset()
    from torch._inductor import cudagraph_trees

    cudagraph_trees.reset_cudagraph_trees()


def test_profilers_get_figures():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        block = empty(6 * MIB)
        del block
    figures = [event.device_memory_usage for event in profile.events()]
    assert 6 * MIB in figures and -6 * MIB in figures


def test_memory_of_pools_is_sent_to_other_processes_too():
    """Covers the memory that python/tests/native/ipc_script.py does not send."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(4 * MIB)
    device, handle, size, offset, *counter, _, _ = tensor.untyped_storage()._share_cuda_()
    assert (device, handle[:8], size, offset) == (0, b"gapless2", 4 * MIB, 0)
    # As a receiver does when it is done.
    torch.UntypedStorage._release_ipc_counter(*counter, device="cuda:0")


def test_memory_fraction():
    try:
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        with pytest.raises(torch.cuda.OutOfMemoryError):
            empty(300 * MIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(0.5)
    empty(300 * MIB)


def test_caching_can_be_switched_off():
    torch.cuda.caching_allocator_enable(False)
    try:
        block = empty(MIB)
        assert gapless.stats()["live_bytes"] == 0
        del block
    finally:
        torch.cuda.caching_allocator_enable(True)
    block = empty(MIB)
    assert gapless.stats()["live_bytes"] == MIB
    del block


def test_threads_with_a_history_that_comes_and_goes():
    errors = []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            pool = torch.cuda.MemPool()
            live = {}
            with torch.cuda.stream(torch.cuda.Stream()):
                for slot in torch.randint(0, 20, (400,), generator=generator).tolist():
                    with torch.cuda.use_mem_pool(pool) if slot % 5 == 0 else contextlib.nullcontext():
                        live[slot] = empty(1 + slot * slot * 5000)
                    others.append(live.pop((slot * 7) % 20, None))
                    del others[: max(0, len(others) - 30)]
        except Exception as error:
            errors.append(error)

    # Freed by whichever thread comes next.
    others = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        torch.cuda.memory._record_memory_history(max_entries=1000)
        torch.cuda.memory._snapshot()
        torch.cuda.memory_stats()
        torch.cuda.memory._record_memory_history(enabled=None)
    assert not errors
    others.clear()


def test_raw_allocations_and_wrong_frees():
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert gapless.stats()["live_bytes"] == 3 * MIB
    torch.cuda.caching_allocator_delete(address)
    for wrong in (address, 4096):
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            torch.cuda.caching_allocator_delete(wrong)


@pytest.mark.parametrize("peers", ["auto", "none"])
def test_copies_between_two_devices(peers):
    """Without access to each other's memory the devices copy through the peer copy: a plain one would lose the device."""
    code = f"""
        import gapless.torch; gapless.torch.enable(budget=0.5, peers="{peers}")
        import torch
        assert gapless.torch.backend() == "object"
        one = torch.frombuffer(bytearray(range(256)) * 1024, dtype=torch.uint8).to("cuda:0")
        two = one.to("cuda:1")
        assert two.cpu().tolist() == list(range(256)) * 1024
        print([torch.cuda.memory_allocated(device) for device in (0, 1)])
        two.record_stream(torch.cuda.Stream(1))
        one.record_stream(torch.cuda.Stream(1))
        del one, two
        torch.cuda.synchronize(1)
        torch.cuda.empty_cache()
        print([torch.cuda.memory_reserved(device) for device in (0, 1)])
    """
    out = run(code, GAPLESS_SIM_DEVICES="2")
    assert "[262144, 262144]" in out and "[0, 0]" in out


GPU_SCRIPTS = Path(__file__).resolve().parents[2] / "gpu"


@pytest.mark.parametrize("name", ["graphs", "streams", "processes", "pairs", "fragmentation", "sleep"])
def test_the_scripts_of_the_gpu_stage(name, tmp_path):
    script = str(GPU_SCRIPTS / f"{name}.py")
    settings = {"GAPLESS_SIM_CAPACITY": "6GiB", "GAPLESS_CONF": f"backups:{tmp_path}"}
    out = run(None, "-m", "gapless.torch", script, "--small", "--no-kernels", **settings)
    found = json.loads(next(line for line in out.splitlines() if line.startswith('{"')))
    assert found["memory"]["backend"] == "object"
    assert found.get("checks") or found.get("pair_ns") or found["outcome"] == "served"
