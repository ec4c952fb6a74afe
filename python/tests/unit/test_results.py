"""The types of what comes as dictionaries: the library writes exactly their keys, and values of their types."""

import gzip
import json

import pytest
from dictionaries import Seen

import gapless
from gapless import _library, _reports, results

# Python that prints one line of JSON: what each call returned, by its name.
EVERYTHING = """
import ctypes, json, os, subprocess, sys
import gapless, gapless.ipc
from gapless import _library, _reports
from gapless.torch._figures import record_history

MIB = 1 << 20
found = {}
library, memory = _library.load(), gapless.DeviceMemory()
graph, tagged = _library.Pool(7, 0), _library.Pool(8, 0)
record_history("all", 100, False)

def inside(pool, size):
    library.gapless_torch_begin_allocate_to_pool(0, pool, None)
    address = memory.alloc(size)
    library.gapless_torch_end_allocate_to_pool(0, pool)
    return address

block = memory.alloc(5 * MIB)
memory.free(memory.alloc(100))
kept = memory.alloc(100)
inside(graph, 3 * MIB)
_library.check(library.gapless_torch_declare_pool(0, tagged, 1, b"weights"))
inside(tagged, 3 * MIB)

handle, offset = ctypes.create_string_buffer(192), ctypes.c_uint64()
_library.check(library.gapless_device_export(0, ctypes.c_void_p(block), handle, ctypes.byref(offset)))
receiver = subprocess.Popen([sys.executable, "-c", '''
import ctypes, sys
from gapless import _library
library, start, size = _library.load(), ctypes.c_void_p(), ctypes.c_uint64()
handle = bytes.fromhex(sys.stdin.readline())
_library.check(library.gapless_device_import(0, handle, len(handle), ctypes.byref(start), ctypes.byref(size)))
print("open", flush=True)
sys.stdin.readline()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
receiver.stdin.write(handle.raw.hex() + "\\n")
receiver.stdin.flush()
assert receiver.stdout.readline() == "open\\n"

found["stats"] = memory.stats()
found["snapshot"] = memory.snapshot()
found["holders"] = gapless.ipc.holders()
found["report"] = _reports.of_device(0)
found["report with a snapshot"] = _reports.of_device(0, snapshot=True)
entries = (_library.TagBackup * 1)(_library.TagBackup(None, 1))
_library.check(library.gapless_sleep_tags(0, entries, 1, _library.Slept.sized()))
found["report of what is asleep"] = _reports.of_device(0, snapshot=True)
try:
    memory.alloc(2 << 30)
except gapless.OutOfMemoryError as error:
    found["exception"] = error.report
found["oom_report"] = memory.oom_report()
found["last_error"] = gapless.last_error().report
found["history"] = _reports.history()
receiver.communicate("\\n")
print(json.dumps(found))
"""
KINDS = {
    "stats": gapless.Stats,
    "snapshot": results.Snapshot,
    "holders": list[results.Holder],
    "report": _reports.DeviceReport,
    "report with a snapshot": _reports.DeviceReport,
    "report of what is asleep": _reports.DeviceReport,
    "exception": results.OutOfMemoryReport,
    "oom_report": results.OutOfMemoryReport,
    "last_error": results.OutOfMemoryReport,
    "history": list[_reports.Event],
}
# What the library has besides those that are read here.
PARTIAL = {_reports.Sums}
# What is made in Python.
IN_PYTHON = {results.LineUse}
TRACE = "# a trace\na 1 5242880 0 train\ns train keep\na 2 1048576 0\nw train\nm 0\nf 1\na 3 104857600 0\n"


def dictionaries():
    """The types, but for those that only have the keys that another one demands."""
    kinds = [kind for module in (results, _reports) for kind in vars(module).values() if hasattr(kind, "__required_keys__")]
    return {kind for kind in kinds if not kind.__name__.startswith("_")}


def test_dictionaries_are_of_their_types(run, tmp_path):
    seen = Seen(PARTIAL)
    found = json.loads(run(EVERYTHING, GAPLESS_SHARE_DIR=str(tmp_path)))
    assert set(found) == set(KINDS)
    for name, kind in KINDS.items():
        seen.expect(kind, found[name], name)
    trace = tmp_path / "turns.trace.gz"
    trace.write_bytes(gzip.compress(TRACE.encode()))
    for capacity in (None, 64 << 20):
        seen.expect(list[results.Replay], gapless.replay(trace, capacity=capacity, search_capacity=True), "replay")
    seen.expect(list[results.Replay], gapless.replay(trace), "replay")
    seen.expect(_reports.Explanation, explained(trace), "explanation")
    seen.expect_all(dictionaries() - IN_PYTHON, but={"largest_live_by_frame"})


def explained(trace):
    function = _library.load().gapless_explain_json
    return _library.read_json(function, str(trace).encode(), json.dumps({"html": "/nowhere/page.html"}).encode())


def test_what_is_public_is_named():
    public = {kind.__name__ for kind in dictionaries() if kind.__module__ == results.__name__}
    assert sorted(public) == results.__all__


def test_the_keys_that_are_checked_are_those_of_the_types():
    """That a type which lacks a key, or has one too many, is noticed."""
    with pytest.raises(AssertionError, match="freed_bytes"):
        Seen().expect(results.Holder, {"process": 1, "blocks": 1, "bytes": 1})
    with pytest.raises(AssertionError, match="more"):
        Seen().expect(results.Holder, {"process": 1, "blocks": 1, "bytes": 1, "freed_bytes": 1, "more": 1})
    with pytest.raises(AssertionError, match="blocks"):
        Seen().expect(results.Holder, {"process": 1, "blocks": None, "bytes": 1, "freed_bytes": 1})
