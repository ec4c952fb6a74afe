"""Events of segments in histories: what appears and disappears under addresses, as viewers read it."""

import gc
import random

import gapless.torch
import pytest
from processes import run

gapless.torch.enable()

import torch  # noqa: E402

MIB = 1 << 20


def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@pytest.fixture
def history(request):
    context = getattr(request, "param", "all")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.cuda.memory._record_memory_history(context=context)
    yield lambda: torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0


def events(snapshot, action):
    return [entry for entry in snapshot["device_traces"][0] if entry["action"] == action]


def drawn_backwards(snapshot):
    """Draws as a viewer does: from the segments of now back through the events. Returns the segments before the first one."""
    segments = sorted([one["address"], one["address"] + one["total_size"], one["stream"]] for one in snapshot["segments"])
    for entry in reversed(snapshot["device_traces"][0]):
        if "addr" not in entry:
            continue
        start, end = entry["addr"], entry["addr"] + entry["size"]
        around = [one for one in segments if one[0] <= start and end <= one[1]]
        touched = [one for one in segments if one[0] < end and start < one[1]]
        if entry["action"] == "segment_map":
            assert around, f"{entry} is in no segment of {segments}"
            own = around[0]
            segments.remove(own)
            parts = [[own[0], start, own[2]], [end, own[1], own[2]]]
            segments = sorted(segments + [part for part in parts if part[0] < part[1]])
        elif entry["action"] == "segment_unmap":
            assert not touched, f"{entry} overlaps {touched}"
            new = [start, end, entry["stream"]]
            for other in [one for one in segments if one[2] == new[2] and (one[1] == start or one[0] == end)]:
                segments.remove(other)
                new = [min(new[0], other[0]), max(new[1], other[1]), new[2]]
            segments = sorted([*segments, new])
        elif entry["action"] in ("alloc", "free_completed"):
            assert any(one[0] <= start < one[1] for one in segments), f"{entry} begins in no segment of {segments}"
    return segments


def test_what_is_mapped_and_unmapped_is_told(history):
    block = empty(20 * MIB)
    address = block.data_ptr()
    del block
    torch.cuda.empty_cache()
    told = history()
    mapped, unmapped = events(told, "segment_map"), events(told, "segment_unmap")
    assert sum(entry["size"] for entry in mapped) == sum(entry["size"] for entry in unmapped) >= 20 * MIB
    assert any(entry["addr"] <= address < entry["addr"] + entry["size"] for entry in mapped)
    actions = [entry["action"] for entry in told["device_traces"][0] if entry["action"] != "snapshot"]
    assert actions[0] == "segment_map" and actions[-1] == "segment_unmap"
    assert actions.index("alloc") > actions.index("segment_map")
    # Whose request it was.
    assert all(any(frame["name"] == "empty" for frame in entry["frames"]) for entry in mapped)
    assert all(any(frame["name"] == "empty_cache" for frame in entry["frames"]) for entry in unmapped)
    assert drawn_backwards(told) == []


@pytest.mark.parametrize("history", ["state", "alloc"], indirect=True)
def test_stacks_are_as_many_as_asked_for(history, request):
    block = empty(20 * MIB)
    del block
    torch.cuda.empty_cache()
    wanted = request.node.callspec.params["history"] == "alloc"
    told = history()
    assert all(bool(entry.get("frames")) == wanted for entry in events(told, "segment_map"))
    assert not any(entry.get("frames") for entry in events(told, "segment_unmap"))


def test_nothing_is_told_of_what_was_there_before():
    kept = empty(20 * MIB)
    torch.cuda.memory._record_memory_history()
    try:
        told = torch.cuda.memory._snapshot()
        assert events(told, "segment_map") == [] and drawn_backwards(told) != []
        del kept
        torch.cuda.empty_cache()
        told = torch.cuda.memory._snapshot()
        assert events(told, "segment_map") == []
        assert sum(entry["size"] for entry in events(told, "segment_unmap")) >= 20 * MIB
        assert drawn_backwards(told) != []
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def test_a_history_can_be_taken_up_again(history):
    torch.cuda.memory._record_memory_history(enabled=None)
    block = empty(30 * MIB)
    del block
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(context="all")
    assert events(history(), "segment_map") == []
    block = empty(30 * MIB)
    assert sum(entry["size"] for entry in events(history(), "segment_map")) >= 30 * MIB
    del block


@pytest.mark.parametrize("seed", range(4))
def test_events_and_segments_fit_together(history, seed):
    """Sizes, streams and pools at random; memory moves from one to another."""
    draw = random.Random(seed)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    pools, live = [torch.cuda.MemPool() for _ in range(2)], []
    for step in range(150):
        size = draw.choice([1000, 300 << 10, 3 * MIB, 17 * MIB, 60 * MIB])
        with torch.cuda.stream(draw.choice(streams)):
            try:
                if draw.random() < 0.2:
                    with torch.cuda.use_mem_pool(draw.choice(pools)):
                        live.append(empty(size))
                else:
                    live.append(empty(size))
            except torch.cuda.OutOfMemoryError:
                live = live[::2]
        while len(live) > 12:
            live.pop(draw.randrange(len(live)))
        if draw.random() < 0.05:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        if step % 30 == 29:
            drawn_backwards(history())
    live.clear()
    del pools
    gc.collect()
    told = history()
    drawn_backwards(told)
    assert events(told, "segment_map") and events(told, "segment_unmap")


def test_trackers_are_told_before_memory_is_unmapped():
    # A tracker stays attached as long as the process lives.
    script = """
import ctypes, os, gapless.torch
gapless.torch.enable()
import torch
torch.cuda.init()
library = ctypes.CDLL(os.environ["GAPLESS_TRACKER"])
def told(name):
    return ctypes.c_size_t.in_dll(library, "tracker_" + name).value
library.tracker_attach()
block = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
assert told("mapped") >= 100 << 20 and told("unmapped") == 0
del block
torch.cuda.empty_cache()
assert told("unmapped") == told("mapped") and told("unreachable") == 0
before = torch.cuda.mem_get_info()
ctypes.c_bool.in_dll(library, "tracker_refuses").value = True
try:
    torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    raise AssertionError("a tracker that throws was not heard")
except RuntimeError as error:
    print(error)
torch.cuda.empty_cache()
assert torch.cuda.mem_get_info() == before and torch.cuda.memory_allocated() == 0
assert torch.empty(100 << 20, dtype=torch.uint8, device="cuda").numel() == 100 << 20
"""
    told = run(script)
    assert "listener" in told, told
