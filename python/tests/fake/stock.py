"""Runs a script over the simulated driver, and prints what the allocator counted: PyTorch's own, unless the process is on gapless.

cuDNN has no stand-in: a convolution allocates its results here, and nothing else. No kernel runs, so that the memory of a
tensor has no values: those that the script reads are 0.
"""

import json
import os
import runpy
import sys
import traceback

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class WithoutKernels(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.is_inference_mode_enabled() and func._can_decompose():
            # Made of other ops, which autograd would have split it into.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func is aten._local_scalar_dense.default and args[0].is_cuda:
            return torch.zeros((), dtype=args[0].dtype).item()
        if func is aten.convolution.default:
            tensors = [None if tensor is None else tensor.to("meta") for tensor in args[:3]]
            shaped = func(*tensors, *args[3:])
            return torch.empty_strided(shaped.size(), shaped.stride(), dtype=shaped.dtype, device=args[0].device)
        if func is aten.convolution_backward.default:
            gradient, tensor, weight, bias, *_, wanted = args
            return (
                torch.empty_like(tensor) if wanted[0] else None,
                torch.empty_like(weight) if wanted[1] else None,
                gradient.new_empty(bias) if wanted[2] else None,
            )
        return func(*args, **(kwargs or {}))


def end(code):
    # PyTorch's threads may still run when the interpreter ends, and then end the process in their own way, or keep it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
script, *snapshot = sys.argv[1:]
if snapshot:
    torch.cuda.memory._record_memory_history(context=None)
try:
    with WithoutKernels():
        runpy.run_path(script, run_name="__main__")
except Exception:
    traceback.print_exc()
    end(1)
if snapshot:
    torch.cuda.memory._dump_snapshot(snapshot[0])
stats = torch.cuda.memory_stats()
on_gapless = sys.modules.get("gapless.torch")
served_by = (on_gapless and on_gapless.backend()) or torch.cuda.get_allocator_backend()
counted = {"served_by": served_by, "peak": stats["requested_bytes.all.peak"], "allocs": stats["allocation.all.allocated"]}
# In one piece: torchrun's processes write to one pipe, without a buffer.
sys.stdout.write(json.dumps(counted) + "\n")
end(0)
