"""Who has what open that this process has sent."""

import pytest

import gapless.ipc


def test_nobody_has_anything_open():
    assert gapless.ipc.holders() == []
    gapless.ipc.cut_off(1)
    gapless.ipc.cut_off(None)


@pytest.mark.parametrize("process", [0, -1, 2**32])
def test_no_process_has_such_a_number(process):
    with pytest.raises(ValueError, match="no process"):
        gapless.ipc.cut_off(process)
