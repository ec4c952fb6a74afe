"""``python -m gapless.torch script.py``."""

import sys

from gapless.torch import main

if __name__ == "__main__":
    main(sys.argv[1:])
