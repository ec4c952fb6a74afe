"""Tensors between two processes that share a simulated device, with PyTorch's own allocator and with gapless."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from processes import ended

SCRIPT = Path(__file__).with_name("ipc_script.py")


@pytest.fixture
def folder():
    """A folder whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def run(sender, receiver, folder, *arguments):
    result = ended(
        [sys.executable, str(SCRIPT), sender, receiver, *arguments],
        GAPLESS_SIM_SHARED=str(folder / "devices"),
        GAPLESS_SHARE_DIR=str(folder / "share"),
        IPC_SCRIPT_OBJECTS=os.environ["GAPLESS_TORCH_OBJECTS"],
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [
        ("native", "native"),
        ("object", "object"),
        ("object", "native"),
        ("native", "object"),
        ("object", "plug-in"),
        ("object", "object, keeping"),
    ],
)
def test_both_ways(sender, receiver, folder):
    assert "allocated 0" in run(sender, receiver, folder)


# PyTorch itself opens the event that comes with a tensor first, which has ended with its process.
@pytest.mark.parametrize(("receiver", "says"), [("object", "CUDA error: invalid resource handle"), ("native", "has ended")])
def test_what_is_gone_is_said(receiver, says, folder):
    """Here the process that is started sends, and the first one receives."""
    freed, stopped, ended = run(receiver, "object", folder, "stale").splitlines()
    assert freed.startswith("freed: ") and "has been freed" in freed
    assert stopped.startswith("stopped: ") and "has not answered" in stopped
    assert ended.startswith("ended: ") and says in ended
