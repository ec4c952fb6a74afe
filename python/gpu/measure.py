"""What the scripts beside this one share: one way to set up, to time a step, and to say what was seen.

Nothing here depends on which allocator is in use.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time

import torch

MIB = 1 << 20
# Steps that are not timed: the first ones load kernels and grow the memory.
WARM_UP = 5


def parser(description):
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--limit", type=int, help="the most bytes of the GPU that this process may hold")
    made.add_argument("--small", action="store_true", help="for a small GPU, or none")
    made.add_argument("--no-kernels", action="store_true", help="where kernels do not run: memory only, no content")
    return made


def prepare(limit=None):
    """Seeds and settings under which two runs give the same bits; the device."""
    torch.manual_seed(0)
    # Only warns: an operation without a deterministic kernel is seen in the losses.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("highest")
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    set_limit(limit)
    torch.cuda.reset_peak_memory_stats()
    return device


def record(path):
    """Records every allocation and free from now on, where a path is given; :func:`finish` writes the snapshot there."""
    if path is not None:
        torch.cuda.memory._record_memory_history(context=None, max_entries=10**7)


def set_limit(limit):
    """At most ``limit`` bytes of the device for this process."""
    torch.cuda.init()
    if limit is not None:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))


class Checks:
    """What was looked at and found right; the first thing that is wrong ends the script."""

    def __init__(self, kernels):
        self.kernels = kernels
        self.done = []

    def expect(self, right, what):
        if self.kernels and not right:
            raise SystemExit(f"wrong: {what}")
        if what not in self.done:
            self.done.append(what)


class Steps:
    """Losses and times of a training's steps."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        self.losses = []
        self.milliseconds = []

    @contextlib.contextmanager
    def step(self):
        self._wait()
        begin = time.perf_counter()
        yield self
        self._wait()
        self.milliseconds.append((time.perf_counter() - begin) * 1e3)

    def _wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def add_loss(self, loss):
        self.losses.append(loss.item())
        if len(self.losses) % 10 == 0:
            print(f"step {len(self.losses)}: loss {self.losses[-1]:.6f}", flush=True)

    def figures(self, model):
        timed = self.milliseconds[WARM_UP:] or self.milliseconds
        weights = torch.stack([weight.detach().double().sum() for weight in model.parameters()])
        return {
            "losses": self.losses,
            "checksum": weights.cpu().tolist(),
            "step_ms": statistics.median(timed),
            "timed_ms": sum(timed),
            "timed_steps": len(timed),
        }


def allocator():
    """What allocates: gapless's ``object`` or ``plug-in`` where the process is on gapless, else PyTorch's name of its allocator."""
    on_gapless = sys.modules.get("gapless.torch")
    return (on_gapless and on_gapless.backend()) or torch.cuda.get_allocator_backend()


def memory():
    """What ``torch.cuda`` says about memory, where there is a GPU."""
    if not torch.cuda.is_available():
        return {"backend": None}
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    return {
        "backend": allocator(),
        "expandable": any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()),
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        # Without the rounding, which allocators do differently.
        "peak_requested": stats["requested_bytes.all.peak"],
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "device_used": total - free,
        "retries": stats["num_alloc_retries"],
    }


def finish(figures, snapshot=None):
    """Writes the snapshot, where one was recorded, and the last line of the output."""
    if snapshot is not None:
        torch.cuda.synchronize()
        torch.cuda.memory._dump_snapshot(snapshot)
    print(json.dumps({**figures, "memory": memory()}), flush=True)
