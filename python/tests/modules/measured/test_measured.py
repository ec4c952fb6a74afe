"""The programs that measure sleeps, over traces that are small enough to be copied, natively and on gapless."""

import json

import outcomes
import pytest
import table

MIB = 1 << 20
# 60 MiB live at the end of a step in which others came and went, on two streams, and 50 MiB at that of the next.
TRACE = f"""# made by test_measured.py
a 1 {30 * MIB} 0
a 2 {24 * MIB} 0
a 3 {30 * MIB} 0
f 2
a 4 {12 * MIB} 7
f 4
m 0
f 3
a 5 {20 * MIB} 7
m 1
"""
LIVE = [60 * MIB, 50 * MIB]
TURNS = f"""a 1 {40 * MIB} 0 train
s train keep
a 2 {20 * MIB} 0 weights
a 3 {36 * MIB} 0 kv_cache
f 2
s weights keep
s kv_cache discard
w train
f 1
w kv_cache
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "small.trace"
        path.write_text(text)
        return str(path)

    return write


def steps(way, trace, **environment):
    return json.loads(way.run("steps.py", trace, GAPLESS_SIM_CAPACITY="1GiB", **environment))


def bytes_of(steps):
    """What each step comes to, but for waits: gapless waits for nothing that has completed by then, which depends on other load."""
    return [{name: value for name, value in step.items() if name != "waits"} for step in steps]


@pytest.mark.parametrize("way", table.WAYS, ids=lambda way: way.name)
def test_what_sleeps_at_the_ends_of_steps(way, write):
    trace = write(TRACE)
    moved, counted = steps(way, trace), steps(way, trace, **table.NO_COPIES)
    assert [step["live"] for step in moved] == LIVE
    assert bytes_of(moved) == bytes_of(counted), "what is counted does not depend on bytes that move"
    for step in moved + counted:
        waits = sum(step["waits"].values())
        if way.is_on_gapless:
            assert step["live"] <= step["copied"] <= 1.01 * step["live"]
            assert step["live"] <= step["mapped"] <= step["live"] + 4 * MIB
            # torch_memory_saver's library may have memory of any tag: its pause waits for the device as well.
            assert waits <= 1 + (way is table.SAVER_ON_GAPLESS)
        else:
            # Segments are copied and mapped whole, each with a wait.
            assert step["live"] <= step["copied"] == step["mapped"]
            assert waits >= 2


@pytest.mark.parametrize("way", [table.SAVER, table.VLLM_BESIDE, table.GAPLESS], ids=lambda way: way.name)
def test_the_smallest_device_for_turns(way, write):
    trace = write(TURNS)
    assert table.has_turns(trace) and table.peak_awake(trace) == 56 * MIB
    assert table.is_enough(way, trace, 256 * MIB)
    assert not table.is_enough(way, trace, 50 * MIB)


def test_ways_to_defragment():
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert table.REGION.run("defragmenting.py", **expandable).startswith("refused: ")
    assert table.VLLM.run("defragmenting.py", **expandable).strip() == "off"


def test_calls_of_a_wake_that_fail():
    found = {way: set(table.failures(way)) for way in (table.REGION, table.VLLM, table.GAPLESS)}
    assert found[table.REGION] == {outcomes.ENDED}
    assert outcomes.HALF in found[table.VLLM] and outcomes.LOST in found[table.VLLM]
    assert found[table.GAPLESS] == {outcomes.WORKS_LATER, outcomes.AWAKE}
