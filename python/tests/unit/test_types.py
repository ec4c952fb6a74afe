"""What mypy says of programs that use the package."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2]
WRONG = {
    'gapless.snapshot()["regions"][0]["blocks"][0]["adr"]': 'TypedDict "Block" has no key "adr"',
    'gapless.ipc.holders()[0]["processes"]': 'TypedDict "Holder" has no key "processes"',
    'gapless.replay("trace")[0]["peak_bytes"]': 'TypedDict "Replay" has no key "peak_bytes"',
    'gapless.stats()["live"]': 'TypedDict "Stats" has no key "live"',
    "gapless.DeviceMemory().close()": '"DeviceMemory" has no attribute "close"',
    'gapless.DeviceMemory().alloc(1, "stream")': 'Argument 2 to "alloc"',
}
RIGHT = """
import gapless, gapless.ipc
class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 5
stream = Stream()
address: int = gapless.DeviceMemory().alloc(1, stream)
gapless.DeviceMemory().free_on(address, 5)
status: gapless.Status = gapless.Status.GONE
report = gapless.DeviceMemory().oom_report()
free: int = report["pinned"]["by_live_bytes"] if report else 0
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_keys_and_arguments_that_are_wrong_are_found(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--follow-imports=silent", "--ignore-missing-imports"]
    done = subprocess.run([*command, str(program)], cwd=PACKAGE, capture_output=True, text=True)
    first = RIGHT.count("\n") + 1
    errors = [line.partition("program.py:")[2] for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == len(WRONG), done.stdout + done.stderr
    for at, (error, said) in enumerate(zip(errors, WRONG.values())):
        assert error.startswith(f"{first + at}: error: {said}"), error
