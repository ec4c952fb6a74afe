"""All that gapless does for a trainer beside an engine, in one process at once."""

import sys
import tempfile
from pathlib import Path

from processes import ended

SCRIPT = Path(__file__).with_name("together_script.py")


def test_defragmentation_tensors_for_others_graphs_and_sleep():
    # A folder whose name is short enough for sockets.
    with tempfile.TemporaryDirectory() as folder:
        result = ended(
            [sys.executable, str(SCRIPT)],
            GAPLESS_SIM_SHARED=f"{folder}/devices",
            GAPLESS_SIM_CAPACITY="256MiB",
            GAPLESS_SHARE_DIR=f"{folder}/share",
        )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert "together" in result.stdout.splitlines()
