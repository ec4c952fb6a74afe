"""Each case and each function natively first, then on gapless: what passes natively has to pass there, with the same statistics.

Run by cargo xtask torch-without-gpu. ``-s`` prints the shares.
"""

import os
import sys

import pytest
from differences import EXPANDABLE, LACKS, OTHER_ANSWERS, compare, different, run
from processes import run as run_python


@pytest.fixture(scope="module")
def native():
    return run("native", "off")


@pytest.fixture(scope="module")
def expandable():
    code = """
        import torch
        block = torch.empty(1, device="cuda")
        print([segment["is_expandable"] for segment in torch.cuda.memory_snapshot()])
    """
    assert "[True]" in run_python(code, **EXPANDABLE)
    return run("native", "off", **EXPANDABLE)


@pytest.fixture(scope="module")
def of_object():
    return run("gapless", os.environ["GAPLESS_TORCH_OBJECTS"])


@pytest.fixture(scope="module")
def of_plug_in():
    return run("gapless", "off")


def test_with_the_object(native, of_object):
    assert compare(native, of_object, LACKS["object"], "object") == []


def test_with_the_object_what_expandable_segments_serve(expandable, of_object):
    assert compare(expandable, of_object, LACKS["object"], "object, beside expandable segments") == []


def test_with_the_plug_in(native, of_plug_in):
    wrong = compare(native, of_plug_in, LACKS["plug-in"], "plug-in")
    assert [text for text in wrong if not text.startswith(OTHER_ANSWERS["plug-in"])] == []


def test_every_function_for_memory_is_called():
    import functions

    if sys.modules["torch"].__version__.startswith("2.15."):
        assert functions.not_called() == []


def test_the_rules_notice_what_is_wrong(native):
    stats = native["case", "memory_stats"]["marks"]["six blocks"]
    by_size = {key: 0 for key in stats if "small_pool" in key}
    by_size |= {key: stats[key.replace("large_pool", "all")] for key in stats if "large_pool" in key}
    right = {**stats, **by_size, "inactive_split_bytes.all.current": 0}
    assert different(stats, right) == []
    for key in (
        "num_ooms",
        "requested_bytes.all.peak",
        "allocation.all.freed",
        "allocated_bytes.all.current",
        "reserved_bytes.small_pool.peak",
        "oversize_segments.peak",
    ):
        assert different(stats, {**right, key: right[key] + (1 << 30)}), key
    missing = dict(right)
    del missing["num_sync_all_streams"]
    assert different(stats, missing) == ["num_sync_all_streams is missing"]
