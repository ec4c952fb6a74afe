"""Which interface of PyTorch's is used, and the proof before an allocator object is. The real ones: python/tests/object."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gapless.torch import _object

STAND_IN = str(Path(__file__).with_name("torch_stand_in"))
ENABLE = """
import warnings
import gapless.torch
gapless.torch._throw_failures = lambda *_: None
warnings.simplefilter("always")
gapless.torch.enable(budget=256 << 20)
gapless.torch.enable(budget=256 << 20)
assert gapless.torch.is_enabled()
"""


@pytest.fixture
def run_torch(run):
    def run_torch(code, **options):
        return run(code, PYTHONPATH=os.pathsep.join([STAND_IN, os.environ["PYTHONPATH"]]), **options)

    return run_torch


def test_without_an_object_the_plug_in_is_used_and_says_so_once(run_torch, tmp_path):
    out = run_torch(ENABLE, GAPLESS_TORCH_OBJECTS=str(tmp_path))
    assert out.count("gapless uses PyTorch's plug-in interface") == 1
    assert "this gapless has no allocator object for PyTorch 2.15" in out


def test_a_file_that_is_none(run_torch, tmp_path):
    (tmp_path / "_torch_object_2_15.so").write_text("no library")
    out = run_torch(ENABLE, GAPLESS_TORCH_OBJECTS=str(tmp_path))
    assert "_torch_object_2_15.so cannot be loaded" in out


def test_who_wants_the_plug_in_is_told_nothing(run_torch):
    assert "plug-in" not in run_torch(ENABLE, GAPLESS_TORCH_OBJECTS="off")


def test_only_the_very_release_goes_without_a_proof():
    def is_known(version, commit="abc", debug=False):
        torch = SimpleNamespace(__version__=version, version=SimpleNamespace(git_version=commit, debug=debug))
        return _object._is_of_commit(torch, "2.15.0", "abc")

    assert is_known("2.15.0") and is_known("2.15.0+cu132")
    assert not is_known("2.15.0a0+gitabc") and not is_known("2.15.1+cu132")
    assert not is_known("2.15.0+cu132", commit="abcd") and not is_known("2.15.0+cu132", debug=True)


def test_a_check_may_end_in_any_way():
    assert _object._in_a_child(lambda: None) is None
    assert _object._in_a_child(lambda: "wrong") == "wrong"
    assert _object._in_a_child(lambda: os.kill(os.getpid(), 11)) == "reading what it answers ended in signal 11"


def test_what_is_read_is_compared_with_what_was_planted():
    planted = {**_object._planted_stats(), **_object._planted_snapshot()}
    assert _object._different({**planted, "more": 1}, planted, "all") is None
    stats = _object._planted_stats()
    stats["active"]["all"]["peak"] += 1
    assert "statistics.active.all.peak is read as 1026" in _object._different(stats, _object._planted_stats(), "statistics")
    snapshot = _object._planted_snapshot()
    snapshot["device_traces"][0].pop()
    found = _object._different(snapshot, _object._planted_snapshot(), "snapshot")
    assert found == "snapshot.device_traces[0] has 1 entries instead of 2"


def test_a_check_that_says_nothing_has_not_passed():
    def raises():
        raise MemoryError

    assert _object._in_a_child(lambda: None) is None
    assert _object._in_a_child(lambda: "wrong") == "wrong"
    assert _object._in_a_child(raises) == "reading what it answers ended without a word"
