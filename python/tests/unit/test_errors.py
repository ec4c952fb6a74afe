"""The content of an exception: the kind of the failure, CUDA's code, and the report of the request that failed."""

import threading
import types

import pytest

import gapless

MIB = 1 << 20


def test_kinds_of_failures():
    with gapless.Allocator(budget=16 * MIB) as allocator:
        with pytest.raises(gapless.OutOfMemoryError) as raised:
            allocator.alloc(17 * MIB)
        assert raised.value.status is gapless.Status.OUT_OF_MEMORY
        assert raised.value.kind is gapless.ErrorKind.OUT_OF_MEMORY and raised.value.code == 0
        assert raised.value.report["requested_bytes"] == 17 * MIB
        assert raised.value.report["text"] == str(raised.value)
        with pytest.raises(gapless.GaplessError) as raised:
            allocator.alloc(1, stream=0xDEAD0)
        assert raised.value.kind is gapless.ErrorKind.FOREIGN_STREAM and raised.value.code == 400
        assert raised.value.report is None
        with pytest.raises(gapless.GaplessError) as raised:
            allocator.free(12345)
        assert raised.value.status is gapless.Status.NOT_ALLOCATED
        assert raised.value.kind is gapless.ErrorKind.NONE and raised.value.code == 0


def test_numbers_of_a_newer_library_are_what_they_are(monkeypatch):
    numbers = {"gapless_last_error_status": 99, "gapless_last_error_kind": 99, "gapless_last_error_code": 0}
    newer = types.SimpleNamespace(gapless_last_error=lambda: b"new", **{name: lambda its=its: its for name, its in numbers.items()})
    monkeypatch.setattr(gapless._library, "load", lambda: newer)
    error = gapless.last_error()
    assert (error.status, error.kind, str(error)) == (99, gapless.ErrorKind.NONE, "new")


def test_a_full_device_is_not_a_lost_one(run):
    code = """
import gapless
allocator = gapless.Allocator(budget=16 << 20)
for size in (17 << 20, 1, 1):
    try:
        allocator.alloc(size)
    except gapless.GaplessError as error:
        print(type(error).__name__, error.kind.name, error.code)
"""
    # The first chunk is created when the device is opened.
    out = run(code, GAPLESS_SIM_FAIL="cuMemCreate:2:700")
    assert out.split("\n")[:3] == [
        "OutOfMemoryError OUT_OF_MEMORY 0",
        "GaplessError DEVICE_LOST 700",
        "GaplessError DEVICE_LOST 700",
    ], out


def test_every_thread_has_its_own_report():
    """The device's last report is that of whoever failed last; an exception has that of its own request."""
    failures, turns = {}, threading.Barrier(2, timeout=60)

    with gapless.Allocator(budget=16 * MIB) as allocator:

        def ask(size):
            for _ in range(50):
                turns.wait()
                try:
                    allocator.alloc(size)
                except gapless.OutOfMemoryError as error:
                    failures.setdefault(size, []).append((error.report["requested_bytes"], str(error)))
                turns.wait()
                # Everybody has failed by now, and still this thread's last error is its own.
                assert gapless.last_error().report["requested_bytes"] == size

        threads = [threading.Thread(target=ask, args=(size * MIB,)) for size in (17, 23)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert allocator.oom_report()["requested_bytes"] in failures
    for size, seen in failures.items():
        assert len(seen) == 50
        assert all(requested == size and f"Tried to allocate {size // MIB} MiB" in text for requested, text in seen)


def test_the_last_error_of_a_thread():
    seen = []

    def ask():
        seen.append(gapless.last_error())
        with gapless.Allocator(budget=16 * MIB) as allocator:
            with pytest.raises(gapless.OutOfMemoryError):
                allocator.alloc(17 * MIB)
            allocator.free(allocator.alloc(1))
        seen.append(gapless.last_error())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen[0] is None
    assert isinstance(seen[1], gapless.OutOfMemoryError) and seen[1].report["requested_bytes"] == 17 * MIB
