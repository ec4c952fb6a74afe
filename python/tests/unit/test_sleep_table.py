"""The parts of the table of sleeps (python/tests/modules/measured) that need no PyTorch."""

import gzip
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("modules/measured", "modules", "shared")]

import recorded  # noqa: E402
import table  # noqa: E402

TURNS = """# seed 1
a 1 100 0 train
a 2 50 0 train
s train keep
a 3 30 0 kv_cache
f 2
a 4 40 0 train
w train
s * keep
a 5 60 0
f 3
w *
m 0
"""


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_ops_of_a_trace(tmp_path, ending):
    path = tmp_path / f"turns.trace{ending}"
    path.write_bytes(gzip.compress(TURNS.encode()) if ending else TURNS.encode())
    ops = list(recorded.ops(str(path)))
    assert ops[:3] == [("a", "1", ["100", "0", "train"]), ("a", "2", ["50", "0", "train"]), ("s", "train", ["keep"])]
    assert "".join(op.kind for op in ops) == "aasafawsafwm"
    assert table.has_turns(str(path)) and table.name_of(str(path)) == "turns"


def test_the_most_that_is_awake(tmp_path):
    path = tmp_path / "turns.trace"
    # 100 and 40 of train, 30 of the cache; in the end 60 more, and without the cache.
    path.write_text(TURNS)
    assert recorded.peak_awake(str(path)) == 200
    path.write_text("a 1 100 0 x\na 2 50 0\ns x keep\na 3 60 0\nf 1\nw *\n")
    assert recorded.peak_awake(str(path)) == 150
    # What is freed while it is asleep makes no room among what is awake.
    path.write_text("a 1 100 0 x\ns x keep\nf 1\na 2 200 0\n")
    assert recorded.peak_awake(str(path)) == 200


def test_ratios_of_sleeps():
    sleeps = table.Sleeps()
    small = {"live": 100, "copied": 120, "mapped": 200, "waits": {"cuStreamSynchronize": 2, "cuCtxSynchronize": 1}}
    large = {"live": 2 << 30, "copied": 2 << 30, "mapped": 3 << 30, "waits": {}}
    nothing = {"live": 0, "copied": 0, "mapped": 0, "waits": {}}
    sleeps.add([small, nothing, large])
    assert sleeps == table.Sleeps(copied=[1.2, 1.0], mapped=[1.5], waits=[3, 0])
    assert table.cell(sleeps.copied) == "1.1000, at most 1.2000" and table.cell([]) == "-"


def test_outcomes_of_tests():
    text = """..x
PASSED python/a.py::test_one
XFAIL python/a.py::test_two[None] - vLLM's own
PASSED python/a.py::test_two[tags1]
FAILED python/a.py::test_three - AssertionError
"""
    outcomes = table.outcomes_of_tests(text)
    assert outcomes == {"test_one": {"PASSED"}, "test_two": {"XFAIL", "PASSED"}, "test_three": {"FAILED"}}


def test_ways_to_end():
    ways = ("native", "gapless")
    cases = {
        (f"{name}{ending}", "preload", way): ("passed", "")
        for names, _ in table.ENDINGS.values()
        for name in names
        for ending in ("", "_without_a_backup")
        for way in ways
    }
    tests = {test: {"PASSED"} for _, test in table.ENDINGS.values() if test}
    assert [table.endings_of(cases, tests, way) for way in ways] == [[], []]
    cases["paused_twice_without_a_backup", "preload", "native"] = ("exit 1", "")
    tests["test_short_at_wake_changes_nothing"] = {"XFAIL", "PASSED"}
    assert table.endings_of(cases, {}, "native") == ["a sleep of what is asleep"]
    assert table.endings_of({}, tests, "native") == ["memory short at a wake"]
    assert table.endings_of(cases, {}, "gapless") == []
    with pytest.raises(KeyError):
        table.endings_of({}, {"test_of_something_else": {"PASSED"}}, "native")
