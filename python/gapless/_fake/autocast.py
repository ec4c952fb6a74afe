"""Autocast on the CUDA device, for tensors without data.

PyTorch's own kernels for autocast are written in C++, where these tensors are not on a CUDA device, and leave them as they are.
Those here do what PyTorch's do to each op: the lists are those of ATen/autocast_mode.h in PyTorch 2.15. An op that only another
version has in its lists is not cast.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any, Callable

import torch
from torch.utils._pytree import tree_map

aten = torch.ops.aten
_KEY = "AutocastCUDA"

_LOWER_PRECISION = """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    _scaled_dot_product_flash_attention scaled_dot_product_attention
"""
_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar
    softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
    mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d
    upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
    linalg_matrix_sqrth
"""
# These take the type of the result.
_FLOAT32_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
# Of these, an overload takes the type of the result.
_FLOAT32_OVERLOAD = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}

# The casts of weights that live until the outermost context ends: PyTorch casts each weight once.
_casts: dict[int, tuple[Any, Any]] = {}


def install() -> Any:
    """Registers the kernels, and forgets the casts of weights where PyTorch does. Returns what has to stay alive."""
    library = torch.library.Library("aten", "IMPL")
    policies = (
        (_LOWER_PRECISION, _in_lower_precision),
        (_FLOAT32, _in_float32),
        (_FLOAT32_RESULT, _with_float32_result),
        (_WIDEST, _in_widest),
        (" ".join(_FLOAT32_OVERLOAD), _with_float32_overload),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*overrid", category=UserWarning)
        for names, policy in policies:
            for name in names.split():
                if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEY):
                    packet, _, overload = name.partition(".")
                    op = getattr(getattr(aten, packet), overload or "default")
                    library.impl(op, _kernel(op, policy), _KEY)
    forget = torch.clear_autocast_cache

    def clear() -> None:
        _casts.clear()
        forget()

    torch.clear_autocast_cache = clear
    return library


def lowered(*arguments: Any) -> Any:
    """The arguments as they are under autocast for an op that runs in lower precision."""
    if not torch.is_autocast_enabled("cuda"):
        return arguments
    return _cast(torch.get_autocast_dtype("cuda"), arguments)


def _kernel(op: Any, policy: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return policy(op, args, kwargs)

    return kernel


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA))


def _in_lower_precision(op: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _cast(torch.get_autocast_dtype("cuda"), (args, kwargs))
    return op(*args, **kwargs)


def _in_float32(op: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _cast(torch.float32, (args, kwargs))
    return op(*args, **kwargs)


def _with_float32_result(op: Any, args: Any, kwargs: Any) -> Any:
    place = [argument.name for argument in op._schema.arguments].index("dtype")
    if _is_eligible(args[0]) and kwargs.get("dtype") is None and (len(args) <= place or args[place] is None):
        args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
    return op(*args, **kwargs)


def _with_float32_overload(op: Any, args: Any, kwargs: Any) -> Any:
    taking = getattr(op.overloadpacket, _FLOAT32_OVERLOAD[str(op).partition(".")[2]])
    return taking(*args, **kwargs, dtype=torch.float32 if _is_eligible(args[0]) else args[0].dtype)


def _in_widest(op: Any, args: Any, kwargs: Any) -> Any:
    dtypes: set[Any] = set()
    tree_map(lambda leaf: dtypes.add(leaf.dtype) if _is_eligible(leaf) else None, (args, kwargs))
    widest = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")
    args, kwargs = _cast(widest, (args, kwargs))
    return op(*args, **kwargs)


def _is_eligible(leaf: Any) -> bool:
    on_device = isinstance(leaf, torch.Tensor) and leaf.device.type in ("cuda", "meta")
    return on_device and leaf.is_floating_point() and leaf.dtype is not torch.float64


def _cast(dtype: torch.dtype, arguments: Any) -> Any:
    return tree_map(functools.partial(_cast_one, dtype), arguments)


def _cast_one(dtype: torch.dtype, leaf: Any) -> Any:
    if not _is_eligible(leaf) or leaf.dtype is dtype:
        return leaf
    is_weight = leaf.dtype is torch.float32 and leaf.requires_grad and leaf.is_leaf and not leaf._is_view()
    is_kept = torch.is_autocast_cache_enabled() and not torch.is_inference_mode_enabled()
    if not is_weight or not is_kept or dtype is not torch.get_autocast_dtype("cuda"):
        return leaf.to(dtype)
    known = _casts.get(id(leaf))
    if known is None or known[0]() is not leaf:
        known = _casts[id(leaf)] = (weakref.ref(leaf), leaf.to(dtype))
    return known[1]
