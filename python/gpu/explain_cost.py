"""What `gapless.torch.explain_oom` costs: the time of training steps as a ratio to that without it, and the seconds of a report.

Instructions are repeatable where time is not: `valgrind --tool=callgrind` counts those of so many steps with `--only`, and the
difference of two such counts has no start of a program in it.
"""

import statistics
import sys
import tempfile
import time

import measure
import torch
import torch.nn.functional as F
from gapless.torch import _explain, _history
from torch import nn
from train_transformer import Transformer

VOCABULARY, LONGEST, WIDTH, HEADS, DEPTH, BATCH, LENGTH = 1000, 128, 128, 4, 4, 8, 64
WAYS = {"stacks": True, "no stacks": False}
MAX_ENTRIES = 100_000


class Training:
    def __init__(self, device):
        self.text = torch.zeros(BATCH, LENGTH + 1, dtype=torch.long, device=device)
        self.model = Transformer(VOCABULARY, LONGEST, WIDTH, HEADS, DEPTH).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def steps(self, number):
        for _ in range(number):
            self.optimizer.zero_grad()
            logits = self.model(self.text[:, :-1])
            F.cross_entropy(logits.reshape(-1, VOCABULARY), self.text[:, 1:].reshape(-1)).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        torch.cuda.synchronize()


def seconds(training, number):
    """The processor's, which other programs disturb less than the clock's, of a few steps."""
    begin = time.process_time()
    training.steps(number)
    return time.process_time() - begin


def ratios(training, arguments):
    """For each way, the quartiles of the ratios of pairs (steps with it and those beside them without), and that of the least."""
    found, least, stock = {way: [] for way in WAYS}, {}, []
    for number in range(arguments.pairs):
        for way, stacks in WAYS.items():
            times = {}
            for on in (True, False) if number % 2 else (False, True):
                history = _history.History(torch, stacks, MAX_ENTRIES)
                if on:
                    history.start()
                times[on] = seconds(training, arguments.steps)
                history.end()
            found[way].append(times[True] / times[False])
            for on, passed in times.items():
                least[way, on] = min(passed, least.get((way, on), passed))
            stock.append(times[False] / arguments.steps * 1e3)
    quartiles = {way: [round(cut, 3) for cut in statistics.quantiles(pairs, n=4)] for way, pairs in found.items()}
    of_least = {way: round(least[way, True] / least[way, False], 3) for way in WAYS}
    return {"ratios": quartiles, "ratios_of_least": of_least, "stock_ms": round(statistics.median(stock), 2)}


def report(training, events):
    """Seconds of a report of so many events with all their stacks, and the MiB of the host's memory that the history takes."""
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) >> 8

    before = resident()
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=events, clear_history=True)
    training.steps(100)
    in_steps = len(torch.cuda.memory._snapshot()["device_traces"][0])
    training.steps(max(0, events - in_steps) * 100 // in_steps + 1)
    held = resident() - before
    with tempfile.TemporaryDirectory() as folder:
        # The history is the program's then.
        _explain.explain_oom(folder, limit=1)
        begin = time.perf_counter(), time.process_time()
        try:
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            passed = time.perf_counter() - begin[0], time.process_time() - begin[1]
            return {"seconds": round(passed[0], 2), "processor_seconds": round(passed[1], 2), "history_MiB": held}
    sys.exit("a request of 32 TiB was served")


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3000, help="of a run, each with a history of its own")
    parser.add_argument("--only", choices=["stock", *WAYS], help="nothing but the steps, in one way, and no report")
    parser.add_argument("--events", type=int, default=1_000_000, help="of the report")
    arguments = parser.parse_args()
    training = Training(measure.prepare())
    if arguments.only:
        history = _history.History(torch, WAYS.get(arguments.only, False), MAX_ENTRIES)
        training.steps(measure.WARM_UP)
        if arguments.only != "stock":
            history.start()
        training.steps(arguments.steps)
        history.end()
        measure.finish({"way": arguments.only, "steps": arguments.steps})
        return
    training.steps(100)
    found = ratios(training, arguments)
    measure.finish({**found, "report": report(training, arguments.events)})


if __name__ == "__main__":
    main()
