"""A stand-in for PyTorch: what gapless.torch touches, with PyTorch's semantics for allocator plug-ins.

What PyTorch refuses to a plug-in raises here, too. Its own allocator, which a plug-in leaves without work, has no figures.
"""

import sys
import types


def refused(name):
    def function(*_):
        raise RuntimeError(f"CUDAPluggableAllocator does not yet support {name}. If you need it, please file an issue")

    return function


__version__ = "2.15.0"
_C = types.SimpleNamespace(
    _cuda_customAllocator=object,
    _cuda_memoryStats=refused("getDeviceStats"),
    _cuda_resetPeakMemoryStats=refused("resetPeakStats"),
    _cuda_resetAccumulatedMemoryStats=refused("resetAccumulatedStats"),
    _cuda_memorySnapshot=refused("snapshot"),
    # torch.accelerator asks PyTorch's own allocator, whichever is in use.
    _accelerator_isAllocatorInitialized=lambda: False,
    _accelerator_emptyCache=lambda: None,
    _accelerator_getDeviceStats=lambda device: dict.fromkeys(
        ("allocated_bytes", "reserved_bytes"), {"all": {"current": 0}}
    ),
    _accelerator_resetPeakStats=lambda device: None,
    _accelerator_resetAccumulatedStats=lambda device: None,
    benchmark=False,
)


def _set_cudnn_benchmark(value):
    if not isinstance(value, bool):
        raise TypeError(f"set_benchmark_cudnn expects a bool, but got {type(value).__name__}")
    _C.benchmark = value


_C._set_cudnn_benchmark = _set_cudnn_benchmark
_C._get_cudnn_benchmark = lambda: _C.benchmark


class ContextProp:
    def __init__(self, getter, setter):
        self.getter, self.setter = getter, setter

    def __get__(self, obj, objtype):
        return self.getter()

    def __set__(self, obj, value):
        self.setter(value)


class CudnnModule(types.ModuleType):
    benchmark = ContextProp(_C._get_cudnn_benchmark, _C._set_cudnn_benchmark)


def set_flags(benchmark):
    _C._set_cudnn_benchmark(benchmark)


def convolution():
    """The first call of a convolution."""
    if _C._get_cudnn_benchmark():
        refused("cacheInfo")()


backends = types.ModuleType("torch.backends")
backends.cudnn = CudnnModule("torch.backends.cudnn")
backends.cudnn.set_flags = set_flags


class UntypedStorage:
    _share_cuda_ = refused("shareIpcHandle")


cuda = types.ModuleType("torch.cuda")
cuda.memory = types.ModuleType("torch.cuda.memory")
cuda.initialized = False
cuda.is_initialized = lambda: cuda.initialized
cuda.device_count = lambda: 1
cuda.current_device = lambda: 0


class CUDAPluggableAllocator:
    def __init__(self, path, allocate, free):
        self._allocator = types.SimpleNamespace(set_reset_fn=lambda address: None)


cuda.memory.CUDAPluggableAllocator = CUDAPluggableAllocator
cuda.memory.get_allocator_backend = lambda: "native"
cuda.memory.change_current_allocator = lambda allocator: None


def empty_cache():
    if cuda.is_initialized():
        from gapless import _library

        _library.load().gapless_torch_reset()


cuda.empty_cache = empty_cache

# torch.accelerator.memory, as PyTorch has it in Python.
accelerator = types.ModuleType("torch.accelerator")


def accelerator_stats(device=0):
    if not _C._accelerator_isAllocatorInitialized():
        return {}
    nested = _C._accelerator_getDeviceStats(device)
    metrics = ("allocated_bytes", "reserved_bytes")
    return {f"{metric}.all.current": nested[metric]["all"]["current"] for metric in metrics}


def accelerator_empty_cache():
    if _C._accelerator_isAllocatorInitialized():
        _C._accelerator_emptyCache()


accelerator.memory_stats = accelerator_stats
accelerator.memory_allocated = lambda device=0: accelerator_stats(device).get("allocated_bytes.all.current", 0)
accelerator.memory_reserved = lambda device=0: accelerator_stats(device).get("reserved_bytes.all.current", 0)
accelerator.reset_peak_memory_stats = lambda device=0: _C._accelerator_resetPeakStats(device)
accelerator.empty_cache = accelerator_empty_cache

for module in (cuda, cuda.memory, backends, backends.cudnn, accelerator):
    sys.modules[module.__name__] = module


def use_the_gpu(size):
    """Allocates through the plug-in, as the first tensor does."""
    from gapless import _library

    cuda.initialized = True
    return _library.load().gapless_torch_malloc(size, 0, None)
