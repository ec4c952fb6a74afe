"""Frees that cannot be done at once. Nothing here knows a framework."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable


class Frees:
    """Frees blocks, and keeps those whose last use cannot be waited for: while a graph is captured, the device cannot be.

    Frameworks free memory where nobody catches an exception, so such a free is tried again later.
    """

    def __init__(self, free: Callable[..., bool]) -> None:
        """``free`` frees the block that its arguments name, or does nothing and returns ``False``."""
        self._free = free
        self._left: deque[tuple[Any, ...]] = deque()

    def add(self, *block: Any) -> None:
        """Frees a block, now or later."""
        self.settle()
        if not self._free(*block):
            self._left.append(block)

    def settle(self) -> None:
        """Tries once more to free what was left."""
        for _ in range(len(self._left)):
            try:
                block = self._left.popleft()
            except IndexError:
                # Another thread was faster.
                return
            if not self._free(*block):
                self._left.append(block)
