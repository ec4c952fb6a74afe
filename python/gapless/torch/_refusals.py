"""The features that PyTorch refuses to every allocator plug-in, switched off before it raises.

For some of its features PyTorch asks a C++ interface that a plug-in cannot provide, and raises wherever one is in use. Those
features only make a program faster, so it runs without them, and a warning says so at the first use of each.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any, Callable, Optional

from .. import _ipc
from .._imports import after_import

_TREES = "torch._inductor.cudagraph_trees"
_warned: set[str] = set()


def switch_off(torch: Any) -> None:
    """Switches off what would raise."""
    _switch_off_benchmark(torch)
    after_import(_TREES, _switch_off_graph_trees)
    _refuse_sending(torch)
    _ipc.accept(torch)


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _switch_off_benchmark(torch: Any) -> None:
    """``torch.backends.cudnn.benchmark`` stays ``False``: it asks the allocator how large a workspace can be.

    No plug-in is asked that, so the first call of every convolution would raise.
    """
    original = getattr(torch._C, "_set_cudnn_benchmark", None)
    if original is None:
        return

    @functools.wraps(original, assigned=("__doc__",), updated=())
    def set_benchmark(value: Any) -> None:
        if value is True:
            _warn_once(
                "gapless has switched off torch.backends.cudnn.benchmark: PyTorch cannot ask an allocator plug-in how large "
                "a workspace can be, and every convolution would raise. cuDNN's heuristics choose the algorithms"
            )
            value = False
        original(value)

    if torch._C._get_cudnn_benchmark():
        set_benchmark(True)
    torch._C._set_cudnn_benchmark = set_benchmark
    # The property has kept the function that it was made with.
    switch = vars(type(torch.backends.cudnn)).get("benchmark")
    if switch is not None and hasattr(switch, "setter"):
        switch.setter = set_benchmark


class _NoManager:
    """Stands in for the manager of graph trees where there is none: its calls do nothing."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _switch_off_graph_trees(trees: ModuleType) -> None:
    """Compiled code runs without CUDA graphs: graph trees ask the allocator for checkpoints of its pools.

    Graphs without trees, ``torch._inductor.config.triton.cudagraph_trees = False``, would run. But they overwrite what one
    call has returned in the next one, unseen, so they are not what a program gets that has not asked for them.
    """
    if not hasattr(trees, "cudagraphify_impl"):
        return
    get_manager = getattr(trees, "get_manager", None)

    def cudagraphify(model: Any, *_: Any, **__: Any) -> Any:
        _warn_once(
            "gapless has switched off the CUDA graphs of torch.compile (mode='reduce-overhead' or 'max-autotune'): PyTorch "
            "cannot ask an allocator plug-in for checkpoints of its pools, and every compiled graph would raise. Compiled "
            "code runs without them"
        )
        return model

    # What is not recorded has no manager. Some callers take for granted that a compiled forward pass has made one.
    def find_manager(device_index: Optional[int] = None, create_if_none_exists: bool = True) -> Any:
        assert get_manager is not None
        found = get_manager(device_index, create_if_none_exists)
        return _NoManager() if found is None else found

    trees.cudagraphify_impl = cudagraphify  # type: ignore[attr-defined]
    if get_manager is not None:
        trees.get_manager = find_manager  # type: ignore[attr-defined]


def _refuse_sending(torch: Any) -> None:
    """No plug-in's memory can be sent to another process: say what to do, in place of a request to file an issue."""

    def share(self: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "gapless's memory cannot be sent to another process: PyTorch asks only an allocator object for it, and gapless is "
            "in use as a plug-in here. Use a version of PyTorch that gapless has an object for, or send a copy in host memory, "
            "tensor.cpu()"
        )

    storage: Any = getattr(torch, "UntypedStorage", None)
    original = getattr(storage, "_share_cuda_", None)
    if original is not None:
        storage._share_cuda_ = functools.wraps(original, assigned=("__doc__",), updated=())(share)
