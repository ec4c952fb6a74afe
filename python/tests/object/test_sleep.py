"""Sleep and wake: tags, captured graphs, figures and snapshots. The simulated device's memory is the process's own."""

import ctypes
import gc
import threading
import time

import gapless
import gapless.torch
import pytest

gapless.torch.enable()

import torch  # noqa: E402

MIB = 1 << 20


def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def filled(mib, byte):
    tensor = empty(mib * MIB)
    ctypes.memset(tensor.data_ptr(), byte, tensor.numel())
    return tensor


def holds(tensor, byte):
    return ctypes.string_at(tensor.data_ptr(), tensor.numel()) == bytes([byte]) * tensor.numel()


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gapless.torch.wake()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_allocated() == 0
    assert gapless.torch.asleep() == {}


def test_a_tag_sleeps_and_wakes():
    with gapless.torch.tag("weights"):
        weights = [filled(13, 1), filled(3, 2)]
    other = filled(5, 3)
    assert all(segment["segment_pool_id"] != (0, 0) for segment in torch.cuda.memory_snapshot() if segment["total_size"] > 8 * MIB)
    addresses = [tensor.data_ptr() for tensor in weights]
    reserved = torch.cuda.memory_reserved()
    slept = gapless.torch.sleep("weights")
    assert (slept.live_bytes, slept.copied_bytes, slept.released_bytes) == (16 * MIB, 16 * MIB, 16 * MIB)
    # What is asleep is allocated, and holds nothing.
    assert torch.cuda.memory_allocated() == 21 * MIB
    assert torch.cuda.memory_reserved() == reserved - 16 * MIB
    assert gapless.torch.asleep() == {"weights": 16 * MIB}
    assert holds(other, 3)
    assert gapless.torch.sleep("weights") == gapless.torch.Slept(), "a second time"
    assert gapless.torch.wake("weights") == 16 * MIB
    assert gapless.torch.wake("weights") == 0, "a second time"
    assert [tensor.data_ptr() for tensor in weights] == addresses
    assert holds(weights[0], 1) and holds(weights[1], 2) and holds(other, 3)


def test_everything_sleeps():
    with gapless.torch.tag("weights"):
        weights = filled(6, 1)
    with gapless.torch.tag("kv_cache", backup="discard"):
        cache = filled(8, 2)
    own = filled(4, 3)
    slept = gapless.torch.sleep()
    assert (slept.live_bytes, slept.copied_bytes) == (18 * MIB, 10 * MIB)
    assert torch.cuda.memory_reserved() == 0
    assert gapless.torch.asleep() == {"weights": 6 * MIB, "kv_cache": 8 * MIB, None: 4 * MIB}
    assert gapless.torch.wake("kv_cache") == 8 * MIB
    assert gapless.torch.wake() == 10 * MIB
    assert holds(weights, 1) and holds(own, 3) and not holds(cache, 2)
    gapless.torch.tag("kv_cache", backup="pinned")
    ctypes.memset(cache.data_ptr(), 4, cache.numel())
    assert gapless.torch.sleep("kv_cache", backup="pinned").copied_bytes == 8 * MIB
    gapless.torch.wake()
    assert holds(cache, 4)


def test_bytes_come_back_from_pageable_memory():
    with gapless.torch.tag("weights", backup="pageable"):
        weights = filled(6, 1)
    own = filled(4, 2)
    gapless.torch.sleep("weights")
    backup = gapless.torch.backup_of(weights)
    assert bool((backup == 1).all()) and backup.numel() == weights.numel()
    gapless.torch.sleep(backup="pageable")
    assert torch.cuda.memory_reserved() == 0
    gapless.torch.wake()
    assert holds(weights, 1) and holds(own, 2)


def test_a_file_needs_a_directory():
    weights = filled(6, 1)
    with pytest.raises(gapless.GaplessError, match="no directory for backups in files is set"):
        gapless.torch.sleep(backup="file")
    assert gapless.torch.asleep() == {} and holds(weights, 1)


def test_a_sleeping_tag_serves_and_frees():
    with gapless.torch.tag("weights"):
        kept, freed = filled(4, 1), filled(6, 2)
    gapless.torch.sleep("weights")
    with gapless.torch.tag("weights"):
        fresh = filled(2, 3)
    del freed
    gc.collect()
    assert torch.cuda.memory_reserved() == 2 * MIB
    assert gapless.torch.wake("weights") == 4 * MIB
    assert holds(kept, 1) and holds(fresh, 3)


def test_tags_nest():
    with gapless.torch.tag("outer"):
        with gapless.torch.tag("inner"):
            inner = filled(2, 1)
        outer = filled(4, 2)
    assert gapless.torch.sleep("outer").live_bytes == 4 * MIB
    assert holds(inner, 1)
    assert gapless.torch.sleep("inner", "none").live_bytes == 2 * MIB
    assert gapless.torch.wake("inner", "outer", "none") == 6 * MIB
    assert holds(inner, 1) and holds(outer, 2)


def test_a_graph_captured_inside_has_the_tag():
    with gapless.torch.tag("graphs"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            captured = empty(4 * MIB)
    torch.cuda.synchronize()
    ctypes.memset(captured.data_ptr(), 1, captured.numel())
    slept = gapless.torch.sleep("graphs")
    assert slept.asleep_bytes >= 4 * MIB
    gapless.torch.wake("graphs")
    assert holds(captured, 1)
    graph.replay()
    torch.cuda.synchronize()
    del captured
    graph.reset()


def test_a_wake_that_is_short_changes_nothing_and_waits():
    with gapless.torch.tag("weights"):
        weights = filled(20, 1)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(32 * MIB / total)
    gapless.torch.sleep("weights")
    others = filled(24, 2)
    began = time.monotonic()
    with pytest.raises(gapless.OutOfMemoryError, match="20 MiB of tag weights are asleep and need 20 MiB"):
        gapless.torch.wake("weights", wait=0.05)
    assert time.monotonic() - began >= 0.05
    with pytest.raises(torch.cuda.OutOfMemoryError, match="20 MiB of tag weights are asleep and need 20 MiB"):
        empty(12 * MIB)
    assert gapless.torch.asleep() == {"weights": 20 * MIB}
    assert holds(others, 2)
    waking = threading.Thread(target=gapless.torch.wake, args=("weights",), kwargs={"wait": 60.0})
    waking.start()
    time.sleep(0.05)
    del others
    waking.join()
    assert holds(weights, 1)


def test_a_backup_can_be_read():
    with gapless.torch.tag("weights"):
        weights = filled(3, 1).view(torch.float16).view(3, -1)
    other = filled(2, 2)
    of_weights = weights.cpu()
    assert gapless.torch.backup_of(weights) is None
    gapless.torch.sleep("weights")
    backup = gapless.torch.backup_of(weights)
    assert torch.equal(backup, of_weights) and backup.device.type == "cpu" and backup.data_ptr() % 2 == 0
    shared = gapless.torch.backup_of(weights, copy=False)
    assert torch.equal(shared, backup) and shared.data_ptr() != backup.data_ptr()
    assert torch.equal(gapless.torch.backup_of(weights[1:, :]), of_weights[1:])
    assert gapless.torch.backup_of(other) is None and gapless.torch.backup_of(weights[:0]) is None
    for byte in (3, 4):
        gapless.torch.wake("weights", retain=True)
        kept = gapless.torch.backup_of(weights, copy=False)
        assert torch.equal(kept, of_weights) and kept.data_ptr() == shared.data_ptr()
        ctypes.memset(weights.data_ptr(), byte, 3 * MIB)
        gapless.torch.sleep("weights")
        assert gapless.torch.backup_of(weights, copy=False).data_ptr() == shared.data_ptr()
        of_weights = torch.full((3 * MIB,), byte, dtype=torch.uint8).view(torch.float16).view(3, -1)
        assert torch.equal(gapless.torch.backup_of(weights), of_weights)
    gapless.torch.wake()
    assert gapless.torch.backup_of(weights) is None
    for bad in (weights.t(), backup):
        with pytest.raises(ValueError, match="a backup is of a contiguous tensor on a GPU"):
            gapless.torch.backup_of(bad)


def test_misuse_is_refused():
    for name in ("", None, 7):
        with pytest.raises(ValueError, match="a tag needs a name"):
            gapless.torch.tag(name)
    with pytest.raises(ValueError, match="backup is 'discard' or 'pinned' or 'pageable' or 'file', not 'disk'"):
        gapless.torch.tag("weights", backup="disk")
    with pytest.raises(ValueError, match="not 'disk'"):
        gapless.torch.sleep(backup="disk")
    for wait in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="wait is a number of seconds"):
            gapless.torch.wake(wait=wait)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        block = empty(2 * MIB)
        with pytest.raises(gapless.GaplessError, match="a graph may be being captured on device 0") as refused:
            gapless.torch.sleep()
        assert refused.value.kind == gapless.ErrorKind.CANNOT_WAIT
    del block
    graph.reset()


def test_snapshots_say_what_is_asleep():
    with gapless.torch.tag("weights"):
        weights = filled(4, 1)
    own = filled(2, 2)
    assert [segment["asleep"] for segment in torch.cuda.memory_snapshot()] == [False, False]
    gapless.torch.sleep("weights")
    with gapless.torch.tag("weights"):
        fresh = filled(2, 3)
    segments = torch.cuda.memory_snapshot()
    found = {(segment["address"], segment["total_size"]) for segment in segments if segment["asleep"]}
    assert found == {(weights.data_ptr(), 4 * MIB)}
    awake = sum(segment["total_size"] for segment in segments if not segment["asleep"])
    assert awake == torch.cuda.memory_reserved() == 4 * MIB
    assert all(segment["total_size"] == sum(block["size"] for block in segment["blocks"]) for segment in segments)
    gapless.torch.wake()
    assert holds(weights, 1) and holds(own, 2) and holds(fresh, 3)
