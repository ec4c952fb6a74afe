"""PyTorch's history of memory events, kept within a share of the program's time.

The events of an allocation take half a microsecond and its stack one, whatever the kernels take. That is nothing for most
programs; one whose kernels take no time spends a fifth of its time on it. So what is recorded is counted against a budget: where
it is used up, stacks are left out until there is more of it, and where events alone are too many for it, these too.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import threading
import time
from typing import Any, Callable, Optional

# What is recorded, and what it takes for each allocation with its free, in seconds, as measured by python/gpu/explain_cost.py.
_NOTHING, _EVENTS, _STACKS = 0, 1, 2
_COSTS = (0.0, 0.5e-6, 1.6e-6)
# The share of the time that may be spent, with stacks and without.
_SHARES = {_STACKS: 0.02, _EVENTS: 0.005}
# The budget, as seconds whose share it is: at the start of a program, at most, and from which on everything is recorded again.
_AT_START, _MOST, _AGAIN = 1.0, 2.0, 0.8
# Seconds between two looks at the number of allocations.
_INTERVAL = 0.05
_RECORDERS = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class History:
    """The history of one process. A program that records one itself ends this one."""

    def __init__(self, torch: Any, stacks: bool, max_entries: int) -> None:
        self._torch = torch
        self._max_entries = max_entries
        self._most = _STACKS if stacks else _EVENTS
        self._level = _NOTHING
        self._ended = threading.Event()
        self._lock = threading.Lock()
        # The thread whose call is this one's own.
        self._choosing: Optional[int] = None
        self._recorders = {name: getattr(torch._C, name) for name in _RECORDERS if hasattr(torch._C, name)}
        # PyTorch looks for annotations in the calling thread, where not told otherwise, and another one may end the history.
        options = inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters
        self._more = {"global_record_annotations": True} if "global_record_annotations" in options else {}
        # Whether all that was asked for was recorded at any time.
        self.is_whole = True

    def start(self) -> None:
        """Records from now on, unless the program does already."""
        if self._torch._C._cuda_isHistoryEnabled():
            return
        for name, recorder in self._recorders.items():
            setattr(self._torch._C, name, self._given_way(recorder))
        self._choose(self._most)
        threading.Thread(target=self._keep_within_budget, name="gapless history", daemon=True).start()
        # Threads of PyTorch that take a stack while Python ends would end the process.
        atexit.register(self.end)

    def end(self) -> None:
        """Ends the history. Nothing happens after the first call."""
        with self._lock:
            if not self._ended.is_set():
                self._ended.set()
                for name, recorder in self._recorders.items():
                    setattr(self._torch._C, name, recorder)
                self._choose(_NOTHING)

    def _given_way(self, recorder: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(recorder, assigned=("__doc__",), updated=())
        def record(*arguments: Any) -> Any:
            if threading.get_ident() != self._choosing:
                # PyTorch also writes past the end of a history that is made smaller while it has entries.
                self.end()
            return recorder(*arguments)

        return record

    def _choose(self, level: int) -> None:
        """Records at a level. After a gap, the history begins anew."""
        if level == self._level:
            return
        self._level, self._choosing = level, threading.get_ident()
        try:
            enabled, context = None if level == _NOTHING else "all", "alloc" if level == _STACKS else None
            self._torch.cuda.memory._record_memory_history(
                enabled, context=context, stacks="python", max_entries=self._max_entries, **self._more
            )
        finally:
            self._choosing = None

    def _keep_within_budget(self) -> None:
        share = _SHARES[self._most]
        budget = _AT_START * share
        allocations, now, own = _Allocations(self._torch), _now(), time.thread_time()
        while not self._ended.wait(_INTERVAL):
            before, now = now, _now()
            # On a busy machine, the program gets less than the time that passes.
            passed, made = min(after - at for after, at in zip(now, before)), allocations.since_last()
            # Most of this thread's time goes to giving back a history that ends.
            earlier, own = own, time.thread_time()
            budget = min(budget + passed * share - made * _COSTS[self._level] - (own - earlier), _MOST * share)
            with self._lock:
                if self._ended.is_set():
                    return
                if budget <= 0:
                    fitting = [level for level in range(self._level) if made * _COSTS[level] <= passed * share * 0.75]
                    self._choose(max(fitting, default=_NOTHING))
                    self.is_whole = False
                elif budget >= _AGAIN * share:
                    self._choose(self._most)


def _now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


class _Allocations:
    """How many allocations there were on all devices."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._counts: dict[int, int] = {}
        self._next = 0
        self.since_last()

    def since_last(self) -> int:
        """Since the last call. Of devices without allocations, each call looks at one."""
        self._next = (self._next + 1) % max(1, self._torch.cuda.device_count())
        made = 0
        for device in {*self._counts, self._next}:
            count = self._torch._C._cuda_memoryStats(device)["allocation"]["all"]["allocated"]
            if count:
                # They begin anew where a program resets them.
                made += max(0, count - self._counts.get(device, count))
                self._counts[device] = count
        return made
