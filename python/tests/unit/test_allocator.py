import gzip
import pickle
import threading

import pytest

import gapless

MIB = 1 << 20


@pytest.fixture
def allocator():
    with gapless.Allocator(budget=64 * MIB) as allocator:
        yield allocator


def test_version():
    assert gapless.version().count(".") == 2


def test_alloc_and_free(allocator):
    block = allocator.alloc(3 * MIB)
    assert block % 512 == 0
    assert allocator.stats()["live_bytes"] == 3 * MIB
    aligned = allocator.alloc(100, alignment=MIB)
    assert aligned % MIB == 0
    allocator.free(block)
    allocator.free(aligned)
    assert allocator.trim() > 0
    assert allocator.stats()["reserved_bytes"] == 0


def test_misuse_is_an_error(allocator):
    block = allocator.alloc(10)
    with pytest.raises(gapless.GaplessError, match="inside"):
        allocator.free(block + 1)
    allocator.free(block)
    with pytest.raises(gapless.GaplessError, match="freed before"):
        allocator.free(block)
    with pytest.raises(ValueError):
        allocator.alloc(-1)
    with pytest.raises(gapless.GaplessError, match="power of two"):
        allocator.alloc(1, alignment=3)
    with pytest.raises(gapless.GaplessError, match="not a stream"):
        allocator.alloc(1, stream=0xDEAD0)


def test_out_of_memory_explains(allocator):
    assert allocator.oom_report() is None
    with pytest.raises(MemoryError, match="The budget of 64 MiB that was set stops this"):
        allocator.alloc(65 * MIB)
    report = allocator.oom_report()
    assert report["satisfiable"] is False and "Tried to allocate 65 MiB" in report["text"]
    assert report["stopped_by_budget"] is True and "No allocator" not in report["text"]
    with pytest.raises(MemoryError, match="No allocator could have served this"):
        allocator.alloc(2 * 1024 * MIB)
    allocator.set_budget(128 * MIB)
    allocator.free(allocator.alloc(65 * MIB))


def test_free_memory_is_joined(allocator):
    blocks = [allocator.alloc(8 * MIB) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    joined = allocator.alloc(32 * MIB)
    for block in [joined, *blocks[1::2]]:
        allocator.free(block)


def test_a_leak_is_told():
    allocator = gapless.Allocator(budget=8 * MIB)
    allocator.alloc(100)
    with pytest.raises(gapless.GaplessError, match="never freed"):
        allocator.close()
    with pytest.raises(gapless.GaplessError, match="null"):
        allocator.stats()


def test_threads(allocator):
    def work():
        for size in range(1, 200):
            allocator.free(allocator.alloc(size * 1000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocator.stats()["allocs"] == 4 * 199


def test_a_recording_replays(allocator, tmp_path):
    path = tmp_path / "out.trace.gz"
    before = allocator.alloc(MIB)
    allocator.start_recording(path)
    with pytest.raises(gapless.GaplessError, match="already"):
        allocator.start_recording(path)
    block = allocator.alloc(5 * MIB)
    allocator.free(before)
    allocator.mark("step 1")
    allocator.free(block)
    allocator.stop_recording()
    lines = gzip.open(path, "rt").read().splitlines()
    ops = [line for line in lines if not line.startswith("#")]
    assert ops == [f"a 1 {5 * MIB} 0", "m step 1", "f 1"]
    results = gapless.replay(path)
    assert [result["policy"] for result in results] == ["gapless", "caching"]
    assert results[0]["oom"] is None and results[0]["peak_live_bytes"] == 5 * MIB
    small = gapless.replay(path, capacity=4 * MIB, policies=["gapless"])
    assert small[0]["oom"]["satisfiable"] is False


def test_replay_reads_what_pytorch_writes(tmp_path):
    frames = [{"filename": "model.py", "line": 12, "name": "forward"}]
    entry = {"stream": 0, "frames": frames, "time_us": 1}
    history = [
        {"action": "alloc", "addr": 4096, "size": 3 * MIB, **entry},
        {"action": "free_requested", "addr": 4096, "size": 3 * MIB, **entry},
        {"action": "free_completed", "addr": 4096, "size": 3 * MIB, **entry},
        {"action": "oom", "device_free": 0, "size": 9 * MIB, **entry},
    ]
    for protocol in (2, 3, 4):
        path = tmp_path / "snapshot.pickle"
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [history]}, file, protocol=protocol)
        result = gapless.replay(path, policies=["gapless"], search_capacity=True)[0]
        # The refused request never was live, but a device that serves it has to be as large.
        assert result["ops"] == 3 and result["peak_live_bytes"] == 3 * MIB
        assert result["min_capacity_bytes"] >= 9 * MIB
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(gapless.GaplessError, match="cut short"):
        gapless.replay(path)
    with pytest.raises(gapless.GaplessError, match="expected `gapless`"):
        gapless.replay(path, policies=["best"])
