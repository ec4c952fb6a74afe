"""Growable tensors with the allocator object, and where PyTorch allocates by itself. Most cases are in `growable_cases`."""

import re
from pathlib import Path

import gapless.torch
import pytest

gapless.torch.enable()
pytest.register_assert_rewrite("growable_cases")

import torch  # noqa: E402
from growable_cases import *  # noqa: E402, F403
from processes import run  # noqa: E402

DOCS = Path(__file__).parents[3] / "docs/using/pytorch.md"


def test_the_documentation_s_example_runs():
    section = DOCS.read_text().split("\n## Growable tensors\n")[1].split("\n## ")[0]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    names = {"torch": torch, "gapless": gapless}
    exec(example, names)  # noqa: S102
    assert names["blocks"].shape == (256, 2, 16, 8, 128)
    assert "closed" in repr(names["cache"])


def test_pytorch_s_own_allocator_may_stay():
    run("""
        import gapless, gapless.torch, torch
        beside = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        assert not gapless.torch.is_enabled()
        cache = gapless.torch.growable((64, 1 << 20), dtype=torch.uint8)
        cache.grow(6)
        cache.tensor.copy_(torch.full((6, 1 << 20), 7, dtype=torch.uint8))
        assert cache.tensor.cpu().eq(7).all() and gapless.stats()["range_bytes"] == 6 << 20
        assert torch.cuda.memory_reserved() < 26 << 20
        # The process ends with a tensor that nobody has dropped, and one that only C++ has.
        torch._C._store = cache.tensor
    """)


def test_what_a_range_holds_stays_awake():
    cache = gapless.torch.growable((64, 1 << 20), dtype=torch.uint8)
    cache.grow(4)
    other = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    fill(cache.tensor, 5)  # noqa: F405
    gapless.torch.sleep()
    assert torch.cuda.memory_reserved() == gapless.stats()["range_bytes"] == 4 << 20
    assert holds(cache.tensor, 5)  # noqa: F405
    cache.grow(4)
    gapless.torch.wake()
    assert holds(cache.tensor[:4], 5) and other.numel() == 4 << 20  # noqa: F405
