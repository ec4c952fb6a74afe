"""A program as its author writes it, with a memory history: ``script.py PAGE`` writes PyTorch's page for the snapshot."""

import pickle
import sys
from pathlib import Path

import gapless.torch
import torch
from torch.cuda import _memory_viz

MIB = 1 << 20


def weights_of_the_model():
    return [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (40, 7)]


def one_training_step():
    activations = torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")
    del activations


def main(page):
    torch.cuda.memory._record_memory_history()
    weights = weights_of_the_model()
    for _ in range(3):
        one_training_step()
        torch.cuda.empty_cache()
    snapshot = Path(page).with_suffix(".pickle")
    torch.cuda.memory._dump_snapshot(str(snapshot))
    assert gapless.torch.backend() == "object" and len(weights) == 2
    Path(page).write_text(_memory_viz.trace_plot(pickle.loads(snapshot.read_bytes())))


if __name__ == "__main__":
    main(sys.argv[1])
