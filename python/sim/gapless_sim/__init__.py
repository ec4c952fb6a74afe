"""gapless-sim: programs over a simulated CUDA driver, without a GPU.

``gapless-sim run -- PROGRAM`` runs one, and ``gapless-sim run --sweep -- PROGRAM`` has each of its driver calls fail in turn.
"""

import os
import sys
from pathlib import Path

__version__ = "0.3.0"

_FOLDER = Path(__file__).parent


def libraries() -> str:
    """The folder of the libraries, for ``LD_LIBRARY_PATH`` of a program that cannot be started by ``gapless-sim run``."""
    return os.fspath(_FOLDER / "lib" / "gapless-sim")


def main() -> None:
    """Runs the program that the wheel brings."""
    os.execv(_FOLDER / "bin" / "gapless-sim", ["gapless-sim", *sys.argv[1:]])
