"""Times steps of the transformer at fixed lengths, and their kernels: what an allocator costs the device and the processor."""

import statistics
import time

import measure
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from train_transformer import Transformer

LENGTHS = (64, 256, 512, 768, 1023)
VOCABULARY, LONGEST, WIDTH, HEADS, DEPTH, BATCH = 16000, 1024, 512, 8, 6, 8
UNTIMED, TIMED, PROFILED = 4, 10, 3


class Steps:
    def __init__(self, device):
        self.device = device
        self.model = Transformer(VOCABULARY, LONGEST, WIDTH, HEADS, DEPTH).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def step(self, length):
        """Milliseconds of one step: in all, and until the processor had queued it."""
        text = torch.randint(VOCABULARY // 8, (BATCH, length + 1)).to(self.device)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        logits = self.model(text[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        queued = time.perf_counter()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3, (queued - begin) * 1e3

    def medians(self, length):
        times = [self.step(length) for _ in range(UNTIMED + TIMED)][UNTIMED:]
        return [round(statistics.median(column), 3) for column in zip(*times)]

    def kernels_ms(self, length):
        """What the kernels of a step take together."""
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
            for _ in range(PROFILED):
                self.step(length)
        # Beside the kernels there are spans that cover several of them, such as the optimizer's.
        rows = [row for row in profiled.key_averages() if row.device_type == torch.autograd.DeviceType.CUDA]
        rows = [row for row in rows if not row.is_user_annotation]
        return round(sum(row.self_device_time_total for row in rows) / PROFILED / 1e3, 3)


def main():
    measure.parser(__doc__).parse_args()
    steps = Steps(measure.prepare())
    # The longest first: the memory grows once.
    steps.medians(max(LENGTHS))
    times = {length: steps.medians(length) for length in LENGTHS}
    kernels = {length: steps.kernels_ms(length) for length in LENGTHS}
    measure.finish({"times": {length: [*times[length], kernels[length]] for length in LENGTHS}})


if __name__ == "__main__":
    main()
