"""The history of ``explain_oom`` and its budget, over a stand-in for PyTorch's calls."""

import time
import types
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


class Recorder:
    """PyTorch's history, as far as it is asked for here."""

    def __init__(self):
        self.calls, self.allocated, self.enabled = [], 1, None
        self._C = types.SimpleNamespace(
            _cuda_isHistoryEnabled=lambda: self.enabled is not None,
            _cuda_record_memory_history=self._begin,
            _cuda_memoryStats=lambda device: {"allocation": {"all": {"allocated": self.allocated if device == 0 else 0}}},
        )
        memory = types.SimpleNamespace(_record_memory_history=self.record, _record_memory_history_impl=lambda enabled: None)
        self.cuda = types.SimpleNamespace(memory=memory, device_count=lambda: 3)

    def record(self, enabled, context=None, stacks="all", max_entries=0):
        # As PyTorch does, by the name.
        self._C._cuda_record_memory_history(enabled, context, max_entries)

    def _begin(self, enabled, context, max_entries):
        self.enabled = enabled
        self.calls.append((enabled, context, max_entries))

    def wait_for(self, state):
        end = time.monotonic() + 30
        while self.calls[-1][:2] != state:
            assert time.monotonic() < end, self.calls
            time.sleep(0.005)


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def history(recorder, monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT))
    from gapless.torch import _history

    monkeypatch.setattr(_history, "_INTERVAL", 0.01)
    # The tests sleep most of the time.
    monkeypatch.setattr(_history, "_now", lambda: (time.monotonic(), time.monotonic()))
    made = []

    def history(stacks=True):
        made.append(_history.History(recorder, stacks, 1000))
        made[-1].start()
        return made[-1]

    yield history
    for one in made:
        one.end()


def test_few_allocations_are_recorded_with_their_stacks(recorder, history):
    one = history()
    for _ in range(20):
        recorder.allocated += 10
        time.sleep(0.01)
    assert recorder.calls == [("all", "alloc", 1000)] and one.is_whole
    one.end()
    one.end()
    assert recorder.calls[1:] == [(None, None, 1000)]


def test_stacks_are_left_out_where_they_would_take_too_long(recorder, history, monkeypatch):
    from gapless.torch import _history

    # What the history's own thread takes counts as well, which is too much on some machines: time passes when this says so.
    now = 0.0
    monkeypatch.setattr(_history, "_now", lambda: (now, now))
    one = history()
    time.sleep(0.2)
    # 0.1 s of stacks.
    recorder.allocated += 60_000
    recorder.wait_for((None, None))
    assert not one.is_whole
    # There is a budget again.
    now = 3600.0
    recorder.wait_for(("all", "alloc"))


def test_events_are_kept_where_they_fit_into_the_budget(recorder, history, monkeypatch):
    from gapless.torch import _history

    monkeypatch.setattr(_history, "_SHARES", {_history._STACKS: 0.5, _history._EVENTS: 0.1})
    monkeypatch.setattr(_history, "_AT_START", 0.0)
    history()
    rate, begin = 400_000, time.monotonic()
    while recorder.calls[-1][:2] != ("all", None):
        # Stacks of so many take 0.64 of the time, and events 0.2.
        recorder.allocated = 1 + int(rate * (time.monotonic() - begin))
        assert time.monotonic() - begin < 30, recorder.calls
        time.sleep(0.001)


def test_time_that_a_program_does_not_get_does_not_count(recorder, history, monkeypatch):
    from gapless.torch import _history

    monkeypatch.setattr(_history, "_now", lambda: (time.monotonic(), 0.0))
    history()
    time.sleep(0.2)
    recorder.allocated += 60_000
    recorder.wait_for((None, None))
    time.sleep(1.0)
    assert len(recorder.calls) == 2


def test_without_stacks_there_are_events(recorder, history):
    history(stacks=False)
    assert recorder.calls == [("all", None, 1000)]


def test_a_history_of_the_program_ends_this_one(recorder, history):
    original = recorder._C._cuda_record_memory_history
    history()
    recorder.record("all", "state", max_entries=10)
    # Nothing is left of the other, whose entries were more.
    assert recorder.calls == [("all", "alloc", 1000), (None, None, 1000), ("all", "state", 10)]
    assert recorder._C._cuda_record_memory_history == original
    recorder.allocated += 10_000_000
    time.sleep(0.1)
    assert len(recorder.calls) == 3
    # One that is there already stays.
    history()
    assert len(recorder.calls) == 3


def test_counts_that_a_program_resets_are_no_allocations(recorder, history):
    recorder.allocated = 1_000_000_000
    history()
    time.sleep(0.1)
    recorder.allocated = 5
    time.sleep(0.1)
    assert recorder.calls == [("all", "alloc", 1000)]
