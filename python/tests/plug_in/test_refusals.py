"""The features that PyTorch refuses to allocator plug-ins, with the real PyTorch."""

import pytest
from processes import run

START = """
        import warnings
        import gapless.torch; gapless.torch.enable()
        import torch
        warnings.simplefilter("always")
"""


def test_benchmark_is_switched_off():
    code = """
        for _ in range(2):
            torch.backends.cudnn.benchmark = True
            assert not torch.backends.cudnn.benchmark
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                assert not torch._C._get_cudnn_benchmark()
    """
    assert run(START + code).count("gapless has switched off torch.backends.cudnn.benchmark") == 1


@pytest.mark.parametrize("first", ["", "import torch._inductor.cudagraph_trees"])
def test_compiled_code_runs_without_graphs(first):
    # Kernels of inductor need a GPU; this backend uses the same graphs around PyTorch's own kernels.
    code = """
        weight = torch.empty(4, 4, device="cuda", requires_grad=True)
        x = torch.empty(4, 4, device="cuda")
        compiled = torch.compile(lambda x: (x * weight).sin(), backend="cudagraphs")
        for _ in range(5):
            compiled(x).sum().backward()
        assert weight.grad is not None
        with torch.no_grad():
            results = [compiled(x) for _ in range(3)]
        assert len({result.data_ptr() for result in results}) == 3, "a later call overwrites no result"
        assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools"] == 0

        from torch._inductor import compile_fx
        options = dict(device_index=0, stack_traces=[], is_backward=False, is_inference=True)
        compiled = compile_fx.cudagraphify(lambda inputs: [sum(inputs)], (), **options)
        assert compiled([1, 2]) == compiled([3]) == [3]
    """
    out = run(START.replace("import gapless", f"{first}\n        import gapless") + code)
    assert out.count("gapless has switched off the CUDA graphs of torch.compile") == 1


def test_graphs_without_trees_run_and_overwrite_their_results():
    """Why they are not what compiled code gets: a program has to ask for them."""
    code = """
        from torch._inductor import compile_fx, config
        config.triton.cudagraph_trees = False
        options = dict(device_index=0, stack_traces=[], is_backward=False, is_inference=True)
        compiled = compile_fx.cudagraphify(lambda inputs: [inputs[0] + 1], (), **options)
        one, two = (compiled([torch.empty(4, device="cuda")])[0] for _ in range(2))
        assert one.data_ptr() == two.data_ptr()
        assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools"] > 0
    """
    assert "switched off" not in run(START + code)


def test_memory_is_not_sent_to_other_processes():
    for share in ("untyped_storage()._share_cuda_()", "_typed_storage()._share_cuda_()"):
        out = run(
            START
            + f"""
        torch.empty(1, device="cuda").{share}
        """,
            fails=True,
        )
        assert "cannot be sent to another process" in out
    code = """
        from multiprocessing.reduction import ForkingPickler
        import torch.multiprocessing
        ForkingPickler.dumps(torch.empty(1, device="cuda"))
    """
    assert "cannot be sent to another process" in run(START + code, fails=True)
