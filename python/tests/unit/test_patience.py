"""How long a thread waits for a process that has sent memory."""

import threading

import pytest

import gapless
import gapless.ipc
from gapless import _library


def milliseconds():
    library = _library.load()
    now = library.gapless_import_patience(0)
    library.gapless_import_patience(now)
    return now


def test_the_innermost_holds_in_its_thread():
    elsewhere = []
    with gapless.ipc.patience(2):
        with pytest.raises(KeyError), gapless.ipc.patience(0.05):
            thread = threading.Thread(target=lambda: elsewhere.append(milliseconds()))
            thread.start()
            thread.join()
            assert milliseconds() == 50
            raise KeyError
        assert milliseconds() == 2000
        with gapless.ipc.patience(float("inf")):
            assert milliseconds() == 2**64 - 1
    assert (milliseconds(), elsewhere) == (10_000, [10_000])


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_no_time_to_wait(seconds):
    with pytest.raises(ValueError, match="cannot wait"), gapless.ipc.patience(seconds):
        pass
