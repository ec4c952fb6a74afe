"""The history of allocations, as torch.cuda.memory._record_memory_history has it: no PyTorch is needed for it."""

SETUP = """
import ctypes, random
import gapless
from gapless import _library
from gapless.torch._figures import Figures, record_history, snapshot

MIB = 1 << 20
library = _library.load()
gapless.configure("budget:64MiB,region:2GiB")
figures = [Figures(0)]

def malloc(size, stream=0):
    return library.gapless_torch_malloc(size, 0, stream)

def free(address, size, stream=0):
    library.gapless_torch_free(address, size, 0, stream)

def trace():
    return snapshot(figures)["device_traces"][0]

# What the viewer does with a snapshot: back in time from its end, with every block in a segment at every moment.
def viewer(data):
    segments = [(s["address"], s["address"] + s["total_size"]) for s in data["segments"]]
    blocks = {b["address"]: b["requested_size"] for s in data["segments"] for b in s["blocks"]
              if b["state"] != "inactive"}
    live = [sum(blocks.values())]
    for event in reversed(data["device_traces"][0]):
        action, size = event["action"], event["size"]
        address = event.get("addr")
        if action == "free_completed":
            assert address not in blocks
            blocks[address] = size
        elif action == "alloc":
            assert blocks.pop(address) >= size
        elif action == "segment_unmap":
            assert all(address + size <= start or end <= address for start, end in segments)
            segments.append((address, address + size))
        elif action == "segment_map":
            segments.remove((address, address + size))
        for address in blocks:
            assert any(start <= address < end for start, end in segments), hex(address)
        live.append(sum(blocks.values()))
    return live[::-1]
"""


def test_events(run):
    run(
        SETUP
        + """
before = malloc(3 * MIB)
assert trace() == []
record_history("all", 1000, False)
block = malloc(5 * MIB, 2)
free(block, 5 * MIB, 2)
free(before, 3 * MIB)
library.gapless_torch_on_failure(None)
assert malloc(100 * MIB) is None
events = [event for event in trace() if not event["action"].startswith("segment")]
actions = [(event["action"], event["size"], event["stream"]) for event in events]
assert actions == [
    ("alloc", 5 * MIB, 2), ("free_requested", 5 * MIB, 2), ("free_completed", 5 * MIB, 2),
    ("free_requested", 3 * MIB, 0), ("free_completed", 3 * MIB, 0), ("oom", 100 * MIB, 0),
], actions
assert events[0]["addr"] == block and events[5]["device_free"] > 0 and "addr" not in events[5]
assert events[0]["time_us"] <= events[5]["time_us"] and events[0]["frames"][0]["name"]
assert viewer(snapshot(figures)) [0] == 3 * MIB
record_history("all", 1000, True)
assert trace() == []
malloc(MIB)
assert len(trace()) == 1
record_history(None, 1000, False)
assert trace() == []
malloc(MIB)
assert trace() == []
"""
    )


def test_the_viewer_can_go_back_while_memory_moves(run):
    run(
        SETUP
        + """
dice = random.Random(3)
live = [(malloc(size), size) for size in (MIB, 7 * MIB)]
record_history("all", 10_000, False)
peak = total = sum(size for _, size in live)
for step in range(600):
    size = dice.choice([700, 100_000, 3 * MIB, 9 * MIB, 20 * MIB])
    while live and (total + size > 50 * MIB or dice.random() < 0.3):
        address, freed = live.pop(dice.randrange(len(live)))
        free(address, freed)
        total -= freed
    address = malloc(size)
    if address is not None:
        live.append((address, size))
        total += size
        peak = max(peak, total)
    if step % 150 == 149:
        gapless.trim()
        data = snapshot(figures)
        seen = viewer(data)
        assert seen[0] == 8 * MIB and seen[-1] == total and max(seen) == peak
assert any(event["action"] == "segment_unmap" for event in data["device_traces"][0])
assert gapless.stats()["harvested_chunks"] > 0
record_history("all", 50, False)
viewer(snapshot(figures))
"""
    )


def test_cupy_s_failures_do_not_call_pytorch_s_handler(run):
    run(
        SETUP
        + """
called = []
handler = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int)(lambda text, oom: called.append(oom))
library.gapless_torch_on_failure(ctypes.cast(handler, ctypes.c_void_p))
assert library.gapless_cupy_malloc(0, 1 << 40, 0) is None and called == []
assert b"Tried to allocate 1 TiB" in library.gapless_last_error()
assert malloc(1 << 40) is None and called == [1]
"""
    )
