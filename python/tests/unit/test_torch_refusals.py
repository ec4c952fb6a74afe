"""The features that PyTorch refuses to allocator plug-ins, over a stand-in for PyTorch. The real one: python/tests/plug_in."""

import os
from pathlib import Path

import pytest

STAND_IN = str(Path(__file__).with_name("torch_stand_in"))
START = """
import sys, warnings
import gapless.torch
gapless.torch._throw_failures = lambda *_: None
warnings.simplefilter("always")
"""
ENABLE = START + "gapless.torch.enable(budget=256 << 20)\nimport torch\n"
IS_CHOSEN = "torch.backends.cudnn.benchmark = True\n"


@pytest.fixture
def run_torch(run):
    def run_torch(code, **options):
        path = os.pathsep.join([STAND_IN, os.environ["PYTHONPATH"]])
        return run(code, PYTHONPATH=path, **options)

    return run_torch


def test_the_stand_in_refuses(run_torch):
    """Without gapless's changes, what the tests below do raises."""
    for code in ("convolution()", "_inductor.compile_fx.call_with_graphs(len, [])", "UntypedStorage()._share_cuda_()"):
        out = run_torch(f"import torch, torch._inductor.compile_fx\n{IS_CHOSEN}torch.{code}", fails=True)
        assert "does not yet support" in out
    code = "import torch, torch._inductor.cudagraph_trees\ntorch._inductor.compile_fx.call_backward_without_graphs(len, [])"
    assert "must not be None" in run_torch("import torch._inductor.compile_fx\n" + code, fails=True)


@pytest.mark.parametrize(
    "choose", ["backends.cudnn.benchmark = True", "backends.cudnn.set_flags(True)", "_C._set_cudnn_benchmark(True)"]
)
def test_benchmark_is_switched_off(run_torch, choose):
    out = run_torch(ENABLE + f"torch.{choose}\n" * 3 + "assert not torch.backends.cudnn.benchmark\ntorch.convolution()")
    assert out.count("RuntimeWarning: gapless has switched off torch.backends.cudnn.benchmark") == 1
    assert "every convolution would raise" in out


def test_benchmark_that_was_on_is_switched_off(run_torch):
    code = START + "import torch\n" + IS_CHOSEN + "gapless.torch.enable()\ntorch.convolution()"
    assert "has switched off torch.backends.cudnn.benchmark" in run_torch(code)


def test_who_asks_for_nothing_is_told_nothing(run_torch):
    out = run_torch(
        ENABLE
        + """
torch.backends.cudnn.benchmark = False
torch.convolution()
import torch._inductor.cudagraph_trees
try:
    torch.backends.cudnn.benchmark = 1
except TypeError as error:
    assert "expects a bool" in str(error)
else:
    raise AssertionError("took a number")
"""
    )
    assert out == ""


@pytest.mark.parametrize("imported_before", [False, True])
def test_compiled_code_runs_without_graphs(run_torch, imported_before):
    before = "import torch._inductor.cudagraph_trees\n" if imported_before else ""
    out = run_torch(
        START
        + before
        + """
gapless.torch.enable()
assert ("torch._inductor" in sys.modules) == ("torch._inductor.cudagraph_trees" in sys.modules), "nothing is imported for it"
import torch._inductor.compile_fx as compiled
for _ in range(3):
    assert compiled.call_with_graphs(sum, [1, 2, 3]) == 6
assert compiled.call_backward_without_graphs(len, [1, 2]) == 2
import torch._inductor.cudagraph_trees as trees
trees.mark_warmup_incomplete()
assert not trees.get_manager(0, False)
"""
    )
    assert out.count("RuntimeWarning: gapless has switched off the CUDA graphs of torch.compile") == 1


def test_the_import_is_an_ordinary_one(run_torch):
    run_torch(
        ENABLE
        + """
import importlib, inspect, torch._inductor.cudagraph_trees as trees
assert trees.__spec__.name == trees.__name__ and trees.__file__.endswith("cudagraph_trees.py")
assert "def mark_warmup_incomplete" in inspect.getsource(trees)
assert importlib.util.find_spec("torch._inductor.no_such_module") is None
assert importlib.reload(trees).cudagraphify_impl(len, [], ()) is len
"""
    )


def test_a_pytorch_without_these_features(run_torch):
    run_torch(
        START
        + """
import torch
for name in [name for name in vars(torch._C) if "accelerator" in name or "cudnn" in name]:
    delattr(torch._C, name)
del torch.backends, torch.UntypedStorage
gapless.torch.enable()
sys.path.insert(0, "")
block = torch.use_the_gpu(5 << 20)
assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["current"] == 5 << 20
assert not hasattr(torch._C, "_accelerator_emptyCache")
"""
    )


def test_accelerators_show_and_empty_gapless(run_torch):
    run_torch(
        ENABLE
        + """
from gapless import _library
accelerator = torch.accelerator
assert accelerator.memory_stats() == {} and accelerator.memory_allocated() == 0
accelerator.empty_cache()
block = torch.use_the_gpu(5 << 20)
assert accelerator.memory_allocated() == 5 << 20 <= accelerator.memory_reserved()
_library.load().gapless_torch_free(block, 5 << 20, 0, None)
assert gapless.stats()["peak_live_bytes"] == 5 << 20
accelerator.reset_peak_memory_stats()
assert gapless.stats()["peak_live_bytes"] == 0
assert accelerator.memory_reserved() > 0
accelerator.empty_cache()
assert accelerator.memory_reserved() == gapless.stats()["reserved_bytes"] == 0
torch._C._accelerator_resetAccumulatedStats(0)
assert torch._C._accelerator_getDeviceStats(0)["allocation"]["all"]["allocated"] == 0
"""
    )


def test_memory_is_not_sent_to_other_processes(run_torch):
    out = run_torch(ENABLE + "torch.UntypedStorage()._share_cuda_()", fails=True)
    assert "cannot be sent to another process" in out and "tensor.cpu()" in out
