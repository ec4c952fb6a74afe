"""A refusal says what lines of the program hold, where a memory history has stacks."""

from processes import run

SCRIPT = """
import gapless.torch
gapless.torch.enable()
import gapless, torch

def load():
    return torch.empty(300 << 20, dtype=torch.uint8, device="cuda")

def grow(keep):
    for _ in range(3):
        keep.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))

def refused(size):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return str(error), gapless.last_error().report
    raise AssertionError("served")

torch.cuda.memory._record_memory_history()
keep = [load()]
grow(keep)
text, report = refused(700 << 20)
rows = report["largest_live_by_frame"]
assert [(row["frame"].split("/")[-1], row["bytes"] >> 20, row["blocks"]) for row in rows] == [
    ("script.py:7 load", 300, 1), ("script.py:11 grow", 300, 3)], rows
assert text.splitlines()[-2].split() == ["300", "MiB", "in", "1", "block", "at", __file__ + ":7", "load"], text
# An error of another kind on the same thread has none of it.
try:
    gapless.Allocator(99)
except gapless.GaplessError:
    assert gapless.last_error().report is None
torch.cuda.memory._record_memory_history(enabled=None)
text, report = refused(701 << 20)
assert "by line" not in text and "largest_live_by_frame" not in report
"""


def test_what_lines_hold(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run(None, str(path))
