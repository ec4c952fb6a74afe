"""Runs PyTorch without a GPU: tensors on a CUDA device have no data, and their storages are noted in a trace.

Small tensors of the CPU are real, so that data loaders, samplers and schedules work. Parameters and large tensors of
floating-point numbers have no data on the CPU either: a model need not fit the machine's memory.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from . import autocast, checkpoints, recurrent
from .steps import optimizers
from .trace import Trace
from .values import Values, is_without_data

aten = torch.ops.aten
_CUDA, _META = torch.device("cuda", 0), torch.device("meta")


class _WithoutDevice(FakeTensorMode):
    """Never initialises the device, whatever ``torch.cuda`` says of it."""

    @property
    def avoid_device_init(self) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return _device_in_cpp(args[0])
        # Some ops are run as others, which ask C++ for the device.
        if kwargs and kwargs.get("device") == _META:
            kwargs = {**kwargs, "device": _CUDA}
        return super().__torch_dispatch__(func, types, args, kwargs)


class Recorder(TorchDispatchMode):
    """Sees every op below autograd. Those of CUDA tensors run without data.

    In PyTorch's C++ code, above all in autograd, which asks the driver about CUDA devices, these tensors are on the device
    ``meta``. In Python they are on ``cuda``. :class:`Devices` translates on the way down, and this class below autograd.
    """

    def __init__(self, trace: Trace, values: Values, workspace_bytes: int) -> None:
        super().__init__()
        self._trace, self._values = trace, values
        self._fake = _WithoutDevice(allow_non_fake_inputs=True)
        self._workspace_bytes = workspace_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.prim.device.default:
            return _device_in_cpp(args[0])
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if kwargs.get("device") == _META:
            kwargs["device"] = _CUDA
        if kwargs.get("device") != _CUDA and not any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in inputs):
            if inputs or not _is_large(func, args, kwargs):
                return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            return self._values.of(args[0])
        if func is aten._pack_padded_sequence.default and not is_without_data(args[1]):
            with self:
                return recurrent.pack(*args)
        args, kwargs = tree_map(self._without_data, (args, kwargs))
        try:
            with self._fake:
                outputs = func(*args, **kwargs)
        except DataDependentOutputException as error:
            if func in _COMPARISONS:
                return self._values.truth(func)
            raise self._values.missing("{} needs the values of a tensor", func) from error
        except DynamicOutputShapeException as error:
            text = "the size of the result of {} depends on the values of a tensor"
            raise self._values.missing(text, func) from error
        except UnsupportedOperatorException as error:
            text = f"{{}} needs the sizes of what {func} returns, of which PyTorch {torch.__version__} has no description"
            raise self._values.missing(text, func) from error
        # Of tensors that were seen before. Kept for tracing only, and a parameter that has a weak reference cannot be moved.
        self._fake.fake_tensor_converter.meta_converter.tensor_memo.clear()
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, FakeTensor) and tensor.device == _CUDA:
                self._trace.storage(tensor.untyped_storage())
        if func in _MATRIX_PRODUCTS and inputs[0].device == _CUDA:
            # cuBLAS's workspace, which PyTorch 2.15 allocates for each call.
            self._trace.short(self._workspace_bytes)
        return outputs

    def parameter(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """A parameter without data in place of one of the CPU; the same one each time, so that tied ones stay tied."""
        if isinstance(parameter, FakeTensor) or type(parameter) is not torch.nn.Parameter:
            return parameter
        known = getattr(parameter, "_gapless_without_data", None)
        if known is None:
            with torch.no_grad(), self._fake:
                empty = torch.empty_strided(
                    parameter.size(), parameter.stride(), dtype=parameter.dtype, device=parameter.device
                )
            known = torch.nn.Parameter(empty, parameter.requires_grad)
            parameter._gapless_without_data = known  # type: ignore[attr-defined]
        return known

    def _without_data(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
            return leaf
        if not leaf.is_meta:
            return self._fake.from_tensor(leaf)
        # Made by torch.tensor, for which ops are not seen.
        with self._fake:
            return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=_CUDA)


class Devices(TorchFunctionMode):
    """Sees every call of PyTorch's functions from Python, and names devices as C++ shall see them."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return args[0].device.type == "cuda"
        if func is torch.Tensor.get_device:
            return 0 if args[0].device.type == "cuda" else -1
        if func is torch.Tensor.cuda:
            moved = {key: value for key, value in kwargs.items() if key in ("non_blocking", "memory_format")}
            return args[0].to(_META, **moved)
        if kwargs.get("device") is not None:
            kwargs["device"] = _named_in_cpp(kwargs["device"])
        if func is torch.Tensor.to:
            args = (args[0], *(_named_in_cpp(one) if isinstance(one, (str, int)) else one for one in args[1:]))
        args = tuple(_named_in_cpp(one) if isinstance(one, torch.device) else one for one in args)
        with self._values.inside(func):
            if func in _READS and is_without_data(args[0]):
                raise self._values.missing("{} needs the values of a tensor")
            return func(*args, **kwargs)


def _named_in_cpp(device: Any) -> Any:
    on_device = isinstance(device, int) and not isinstance(device, bool) or str(device).split(":")[0] == "cuda"
    return _META if on_device else device


def _device_in_cpp(tensor: Any) -> torch.device:
    # Inside a kernel, ``device`` is ``meta`` for all of them.
    return _META if tensor.device.type == "cuda" else tensor.device


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    """Chooses the kernel of ``scaled_dot_product_attention`` as PyTorch does on a GPU from Ampere on."""
    plain = torch._C._nn.scaled_dot_product_attention
    query, key, value, attn_mask = autocast.lowered(query, key, value, attn_mask)
    head = query.size(-1)
    if query.device.type != "cuda" or query.dim() != 4 or head % 8 or value.size(-1) != head or enable_gqa:
        if query.device.type != "cuda":
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None and head <= 256:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(bias.logical_not(), float("-inf"))
        bias = bias.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, bias, needs_gradient, dropout_p, is_causal, scale=scale)[0]


def _backward(
    tensor: Any, gradient: Any = None, retain_graph: Optional[bool] = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """``Tensor.backward``, during which a mode for functions stays on: hooks and checkpoints call functions again."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def install(recorder: Recorder) -> Any:
    """Makes autograd, optimizers, modules and data loaders work with tensors without data. Returns what has to stay alive."""
    dispatch = FakeTensor.__torch_dispatch__

    def with_device(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return _device_in_cpp(args[0])
        return dispatch(func, types, args, kwargs)

    torch.Tensor.backward = _backward  # type: ignore[assignment]
    torch.nn.functional.scaled_dot_product_attention = _attention
    torch._C._InferenceMode = _WithoutGradients  # type: ignore[misc]
    torch.is_inference_mode_enabled = lambda: _WithoutGradients.is_on
    checkpoints.install()
    recurrent.install()
    # C++ sees no CUDA device to guard.
    torch._C._ensureCUDADeviceGuardSet = lambda: None  # type: ignore[attr-defined]
    # Older versions allocate on the device whatever the mode of the tensors says.
    for name in ("init_gpu_context", "init_cuda_context"):
        setattr(fake_tensor, name, lambda *_: None)
    FakeTensor.__torch_dispatch__ = classmethod(with_device)  # type: ignore[assignment]
    for module in (optimizers, torch.utils._foreach_utils):
        supported: list[Any] = module._foreach_supported_types
        supported.append(FakeTensor)
    modules = torch.nn.modules.module
    modules.register_module_parameter_registration_hook(
        lambda _module, _name, parameter: None if parameter is None else recorder.parameter(parameter)
    )
    loader = torch.utils.data.DataLoader
    made = loader.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        # In this process: workers would not run without data.
        kwargs.update(num_workers=0, pin_memory=False, persistent_workers=False, prefetch_factor=None)
        made(self, *args[:5], **kwargs)

    loader.__init__ = make  # type: ignore[method-assign]
    return autocast.install()


class _WithoutGradients:
    """``torch.inference_mode``: what has to be seen would not be, since PyTorch leaves out autograd and so much that is below."""

    is_on = False

    def __init__(self, is_on: bool) -> None:
        self._is_on = is_on

    def __enter__(self) -> None:
        self._before = (_WithoutGradients.is_on, torch.is_grad_enabled())
        _WithoutGradients.is_on = self._is_on
        torch.set_grad_enabled(not self._is_on)

    def __exit__(self, *_: object) -> None:
        _WithoutGradients.is_on, gradients = self._before
        torch.set_grad_enabled(gradients)


def _is_large(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an op without tensors makes a large tensor of floating-point numbers on the CPU."""
    sizes = args[0] if args and isinstance(args[0], (list, tuple)) else ()
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    elements = 1
    for size in sizes:
        elements *= size if isinstance(size, int) else 0
    return dtype.is_floating_point and elements >= _LARGE_ELEMENTS


_LARGE_ELEMENTS = 64 << 10
_COMPARISONS = {aten.equal.default, aten.allclose.default}
_READS = {torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__, torch.Tensor.__reduce_ex__}
_MATRIX_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.mm.out,
    aten.addmm.out,
    aten.bmm.out,
    aten.baddbmm.out,
}
