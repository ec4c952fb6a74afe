"""``python -m gapless_sim``, as ``gapless-sim``."""

from . import main

main()
