"""The program that the wheel brings."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the program that the wheel brings, or the one that ``GAPLESS_COMMAND`` names."""
    path = program()
    if not path.exists():
        print(f"{path} does not exist: install gapless from a wheel, or name the program in GAPLESS_COMMAND", file=sys.stderr)
        raise SystemExit(2)
    os.execv(path, ["gapless", *sys.argv[1:]])


def program() -> Path:
    """The program that the wheel brings, or the one that ``GAPLESS_COMMAND`` names. It may not exist."""
    return Path(os.environ.get("GAPLESS_COMMAND") or Path(__file__).with_name("bin") / "gapless")
