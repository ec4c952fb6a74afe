"""The command line: ``gapless`` and ``python -m gapless``."""

from ._program import main

if __name__ == "__main__":
    main()
