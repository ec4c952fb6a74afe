"""Growable tensors with the plug-in, in a process of their own, since some change the budget."""

import sys
from pathlib import Path

from processes import ended

CASES = Path(__file__).parents[1] / "shared/growable_cases.py"


def test_growable_tensors():
    result = ended([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)], GROWABLE_BACKEND="plug-in")
    assert result.returncode == 0, result.stdout + result.stderr
