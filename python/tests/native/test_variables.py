"""PyTorch's two variables: gapless takes the limit from the one that PyTorch's own allocator reads."""

import os
import subprocess
import sys

import pytest

NATIVE = """
import torch
torch.cuda.init()
print(torch.cuda.get_allocator_backend(), torch.cuda.get_per_process_memory_fraction())
"""
GAPLESS = """
import gapless.torch
gapless.torch.enable()
import torch
torch.cuda.init()
print(gapless.torch.backend(), gapless.stats()["budget_bytes"] / torch.cuda.mem_get_info()[1])
"""
FRACTION = "per_process_memory_fraction:{}"
OTHER = "max_split_size_mb:64"


def limit(on_gapless, cuda, accelerator):
    inherited = ("GAPLESS_TORCH", "GAPLESS_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    settings = {key: value for key, value in os.environ.items() if key not in inherited}
    variables = {"PYTORCH_CUDA_ALLOC_CONF": cuda, "PYTORCH_ALLOC_CONF": accelerator}
    settings.update({name: value for name, value in variables.items() if value is not None})
    script = GAPLESS if on_gapless else NATIVE
    result = subprocess.run([sys.executable, "-c", script], env=settings, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    backend, fraction = result.stdout.split()
    assert backend == ("object" if on_gapless else "native")
    return float(fraction)


@pytest.mark.parametrize(
    "cuda, accelerator",
    [
        (FRACTION.format(0.5), FRACTION.format(0.25)),
        (FRACTION.format(0.5), None),
        (None, FRACTION.format(0.25)),
        (OTHER, FRACTION.format(0.25)),
        (FRACTION.format(0.5), OTHER),
        ("", FRACTION.format(0.25)),
    ],
)
def test_both_allocators_read_the_same_variable(cuda, accelerator):
    assert limit(True, cuda, accelerator) == pytest.approx(limit(False, cuda, accelerator), abs=0.01)
