"""PyTorch's CUDA build on gapless, without a GPU: cargo xtask torch-without-gpu sets it up. No kernel runs there."""

import ctypes
import gc
import json
import os
import pickle
import threading
from pathlib import Path

import pytest
from processes import run

import gapless
import gapless.torch

gapless.torch.enable(budget=512 << 20)

import torch  # noqa: E402

MIB = 1 << 20


def empty(size, **options):
    return torch.empty(size, dtype=torch.uint8, device="cuda", **options)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def test_it_is_gapless():
    assert gapless.torch.is_enabled()
    gapless.torch.enable()
    block = empty(5 * MIB)
    assert gapless.stats()["live_bytes"] == 5 * MIB
    assert gapless.stats()["budget_bytes"] == 512 * MIB
    del block


def test_figures():
    before = torch.cuda.memory_allocated()
    block = empty(20 * MIB)
    assert torch.cuda.memory_allocated() - before == 20 * MIB
    del block
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 20 * MIB
    assert torch.cuda.memory_reserved() <= torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before


def test_memory_stats_has_all_keys():
    block = empty(3 * MIB)
    stats = torch.cuda.memory_stats()
    for metric in (
        "allocation allocated_bytes segment reserved_bytes active active_bytes inactive_split inactive_split_bytes "
        "requested_bytes"
    ).split():
        for pool in ("all", "large_pool", "small_pool"):
            for kind in ("current", "peak", "allocated", "freed"):
                assert isinstance(stats[f"{metric}.{pool}.{kind}"], int)
    for metric in ("oversize_allocations", "oversize_segments"):
        assert stats[f"{metric}.current"] == 0
    for key in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"):
        assert stats[key] >= 0
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert stats["allocation.all.current"] >= 1
    assert torch.cuda.memory_stats_as_nested_dict()["allocation"]["all"]["current"] >= 1
    del block


def test_summary():
    block = empty(3 * MIB)
    for abbreviated in (False, True):
        text = torch.cuda.memory_summary(abbreviated=abbreviated)
        assert "PyTorch CUDA memory summary, device ID 0" in text and "GPU reserved memory" in text
    del block


def test_mem_get_info_and_empty_cache():
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    block = empty(64 * MIB)
    assert torch.cuda.mem_get_info()[0] <= free - 64 * MIB
    del block
    assert torch.cuda.mem_get_info()[0] < free
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info() == (free, total)
    assert torch.cuda.memory_reserved() == 0


@pytest.mark.skipif(not hasattr(torch._C, "_accelerator_getDeviceStats"), reason="this PyTorch has no such figures")
def test_accelerators_show_and_empty_gapless():
    block = empty(20 * MIB)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() >= 20 * MIB
    assert torch.accelerator.memory_stats() == torch.cuda.memory_stats()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    del block
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.cuda.memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] == 0
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == gapless.stats()["reserved_bytes"] == 0
    if hasattr(torch.accelerator, "get_memory_info"):
        assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()


def test_out_of_memory():
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.cuda.OutOfMemoryError) as raised:
        empty(600 * MIB)
    text = str(raised.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of wh")
    assert "is allocated by PyTorch" in text
    assert "The budget of 512 MiB that was set stops this: 600 MiB were asked for" in text
    assert text.count("out of memory") == text.count("Tried to allocate") == 1
    assert gapless.last_error().report["requested_bytes"] == 600 * MIB
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate 8192.00 GiB"):
        empty(8 << 40)
    assert isinstance(raised.value, RuntimeError)
    assert "The last request that failed" in gapless.report()
    del raised
    empty(400 * MIB)


def test_free_memory_is_joined():
    blocks = [empty(64 * MIB) for _ in range(8)]
    del blocks[::2]
    joined = empty(256 * MIB)
    assert joined.numel() == 256 * MIB
    del blocks, joined


def test_memory_fraction():
    try:
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        with pytest.raises(torch.cuda.OutOfMemoryError):
            empty(300 * MIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(0.5)
    empty(300 * MIB)


def test_record_stream():
    side = torch.cuda.Stream()
    event = torch.cuda.Event()
    block = empty(8 * MIB)
    with torch.cuda.stream(side):
        event.record(side)
    block.record_stream(side)
    recorded = [
        part for segment in gapless.snapshot()["regions"] for part in segment["blocks"] if part["recorded_on"]
    ]
    assert [part["recorded_on"] for part in recorded] == [[side.cuda_stream]]
    del block
    torch.cuda.synchronize()
    assert gapless.stats()["live_bytes"] == 0


def test_streams_share_memory():
    """Memory freed on one stream serves a request on another, with the budget used up and no wait of the host."""
    block = empty(400 * MIB)
    del block
    with torch.cuda.stream(torch.cuda.Stream()):
        other = empty(400 * MIB)
    assert other.numel() == 400 * MIB
    del other


def test_snapshot(tmp_path):
    blocks = [empty(size) for size in (100, 70_000, 3 * MIB)]
    del blocks[1]
    segments = torch.cuda.memory_snapshot()
    assert sum(segment["allocated_size"] for segment in segments) >= 3 * MIB + 100
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    data = pickle.loads(path.read_bytes())
    assert data["segments"] and data["device_traces"] == [[]]
    from torch.cuda import _memory_viz

    assert "<script" in _memory_viz.segment_plot(data)
    assert _memory_viz.segsum(data)
    del blocks


def test_memory_history(tmp_path):
    with pytest.warns(UserWarning, match="without their stack traces"):
        torch.cuda.memory._record_memory_history(max_entries=100)
    try:
        kept = empty(7 * MIB)
        address = kept.data_ptr()
        del kept
        blocks = [empty(size) for size in (100, 3 * MIB)]
        path = tmp_path / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        data = pickle.loads(path.read_bytes())
        trace = [event for event in data["device_traces"][0] if not event["action"].startswith("segment")]
        assert [event["action"] for event in trace] == ["alloc", "free_requested", "free_completed", "alloc", "alloc"]
        assert trace[0]["addr"] == address and trace[0]["size"] == 7 * MIB
        from torch.cuda import _memory_viz

        assert "<script" in _memory_viz.trace_plot(data)
        assert "a = seg_1[0:7.0MiB]\ndel a # 7.0MiB" in _memory_viz.trace(data)
        result = gapless.replay(path)[0]
        assert result["oom"] is None and result["peak_live_bytes"] >= 7 * MIB
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert torch.cuda.memory._snapshot()["device_traces"] == [[]]
    del blocks


def test_graph_capture():
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        inside = empty(16 * MIB)
        temporary = empty(32 * MIB)
        address = temporary.data_ptr()
        del temporary
        again = empty(32 * MIB)
        assert again.data_ptr() == address
        del again
    graph.replay()
    stats = torch.cuda.memory_stats()
    assert stats["reserved_bytes_by_private_pools"] >= 48 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools"] >= 48 * MIB
    outside = [empty(32 * MIB) for _ in range(4)]
    assert all(block.data_ptr() != address for block in outside)
    graph.replay()
    del inside, outside, graph
    gc.collect()
    assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools"] == 0


def test_mem_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = empty(16 * MIB)
    outside = empty(16 * MIB)
    assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools"] == 16 * MIB
    assert gapless.stats()["live_bytes"] == 32 * MIB
    assert [segment["allocated_size"] for segment in pool.snapshot()] == [16 * MIB]
    with torch.cuda.use_mem_pool(pool):
        more = empty(8 * MIB)
    assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools"] == 24 * MIB
    del more
    del inside, outside, pool
    gc.collect()
    assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools"] == 0


def test_threads():
    errors = []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            live = {}
            with torch.cuda.stream(torch.cuda.Stream()):
                for slot in torch.randint(0, 20, (1500,), generator=generator).tolist():
                    live[slot] = empty(1 + slot * slot * 5000)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    gc.collect()
    assert torch.cuda.memory_allocated() == 0


def test_a_recording_replays(tmp_path):
    path = tmp_path / "out.trace.gz"
    with gapless.record(path) as recording:
        blocks = [empty(size * MIB) for size in range(1, 10)]
        recording.mark("step 1")
        del blocks
        gc.collect()
    result = gapless.replay(path)[0]
    assert result["peak_live_bytes"] == 45 * MIB and result["ops"] == 19 and result["oom"] is None


def test_too_late():
    code = "import torch; torch.empty(1, device='cuda'); import gapless.torch; gapless.torch.enable()"
    assert "too late" in run(code, fails=True)


def test_conf_errors():
    code = "import gapless.torch; gapless.torch.enable(); import torch; torch.empty(1, device='cuda')"
    assert "there is no key 'bugdet'" in run(code, fails=True, GAPLESS_CONF="bugdet:1")
    out = run(code, GAPLESS_CONF="expandable_segments:True,budget:0.5")
    assert "expandable_segments is PyTorch's own and has no effect" in out
    assert "cannot be used" in run("import gapless.torch; gapless.torch.enable(slack=0.1)", fails=True)


def test_a_script_as_it_is(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "block = torch.empty(5 << 20, dtype=torch.uint8, device='cuda')\n"
        "print('arguments', sys.argv[1:], torch.cuda.memory_allocated(), __name__)\n"
        "import gapless.torch\n"
        "assert gapless.torch.is_enabled()\n"
    )
    out = run(None, "-m", "gapless.torch", str(script), "--epochs", "3")
    assert f"arguments ['--epochs', '3'] {5 * MIB} __main__" in out


GPU_SCRIPTS = Path(__file__).resolve().parents[2] / "gpu"


def gpu_script(name, *arguments, on_gapless=True):
    prefix = ["-m", "gapless.torch"] if on_gapless else []
    out = run(None, *prefix, str(GPU_SCRIPTS / name), "--no-kernels", *arguments, GAPLESS_SIM_CAPACITY="4GiB")
    found = json.loads(out.rstrip().rsplit("\n", 1)[-1])
    assert found["memory"]["backend"] == ("plug-in" if on_gapless else "native")
    return found


def test_fragmentation_against_the_native_allocator():
    """The case of the GPU stage, on PyTorch's own allocator, too."""
    native, gapless_s = (
        gpu_script("fragmentation.py", "--limit", str(256 * MIB), on_gapless=on_gapless)
        for on_gapless in (False, True)
    )
    assert native["outcome"] == "out of memory" and "64.00 MiB" in native["message"]
    assert gapless_s["outcome"] == "served"
    assert gapless_s["memory"]["peak_reserved"] <= 256 * MIB
    assert native["live"] == gapless_s["live"] and native["free"] == gapless_s["free"] > 64 * MIB


@pytest.mark.parametrize("on_gapless", [False, True])
@pytest.mark.parametrize("name, checks", [("streams.py", 4), ("graphs.py", 3)])
def test_the_gpu_stage_s_scripts(name, checks, on_gapless):
    assert len(gpu_script(name, on_gapless=on_gapless)["checks"]) == checks


def test_raw_allocations():
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == before + 3 * MIB
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before


def test_two_devices():
    code = """
        import gapless.torch; gapless.torch.enable(budget=0.5)
        import torch
        one = torch.empty(5 << 20, dtype=torch.uint8, device="cuda:0")
        two = torch.empty(7 << 20, dtype=torch.uint8, device="cuda:1")
        print([torch.cuda.memory_allocated(device) for device in (0, 1)])
        two.record_stream(torch.cuda.Stream(1))
        del one, two
        torch.cuda.synchronize(1)
        torch.cuda.empty_cache()
        print([torch.cuda.memory_reserved(device) for device in (0, 1)])
    """
    out = run(code, GAPLESS_SIM_DEVICES="2")
    assert f"[{5 * MIB}, {7 * MIB}]" in out and "[0, 0]" in out


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_a_program_starts(tmp_path, method):
    script = tmp_path / "parent.py"
    script.write_text(
        "import torch\n"
        "def work(queue):\n"
        "    block = torch.empty(5 << 20, dtype=torch.uint8, device='cuda')\n"
        "    queue.put((torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated()))\n"
        "if __name__ == '__main__':\n"
        f"    context = torch.multiprocessing.get_context({method!r})\n"
        "    queue = context.Queue()\n"
        "    child = context.Process(target=work, args=(queue,))\n"
        "    child.start()\n"
        "    print(*queue.get())\n"
        "    child.join()\n"
    )
    # The tests have no wheel whose .pth file does this.
    (tmp_path / "sitecustomize.py").write_text((Path(__file__).parents[2] / "gapless_start.pth").read_text())
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    assert f"pluggable {5 * MIB}" in run(None, "-m", "gapless.torch", str(script), PYTHONPATH=path)
    assert f"native {5 * MIB}" in run(None, str(script), PYTHONPATH=path)
    assert f"pluggable {5 * MIB}" in run(None, str(script), PYTHONPATH=path, GAPLESS_TORCH="1")


def test_a_tag_sleeps_and_wakes():
    with gapless.torch.tag("weights"):
        weights = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    ctypes.memset(weights.data_ptr(), 7, weights.numel())
    assert gapless.torch.sleep("weights").live_bytes == 4 * MIB
    asleep = [segment for segment in torch.cuda.memory_snapshot() if segment["asleep"]]
    assert [(segment["address"], segment["total_size"]) for segment in asleep] == [(weights.data_ptr(), 4 * MIB)]
    assert gapless.torch.asleep() == {"weights": 4 * MIB}
    assert gapless.torch.wake() == 4 * MIB
    assert ctypes.string_at(weights.data_ptr(), 16) == bytes([7]) * 16
