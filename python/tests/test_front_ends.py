"""CuPy, RMM and Numba: stand-ins with the interfaces that the plug-ins use, and the real RMM and Numba where installed."""

import importlib.util

import pytest

CUPY = """
import sys, types, ctypes, gapless
cupy = types.ModuleType("cupy"); cupy.cuda = types.ModuleType("cupy.cuda")
memory = types.ModuleType("cupy.cuda.memory")
class Memory:
    def __init__(self, owner, size):
        self.owner, self.size = owner, size
        self.ptr = owner.malloc_function(owner.param, size, 0) or 0
    def __del__(self):
        self.owner.free_function(self.owner.param, self.ptr, 0)
class CFunctionAllocator:
    def __init__(self, param, malloc, free, owner):
        self.param, self.owner = param, owner
        self.malloc_function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(malloc)
        self.free_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free)
    def malloc(self, size):
        return Memory(self, size)
class OutOfMemoryError(MemoryError):
    pass
memory.CFunctionAllocator, memory.OutOfMemoryError = CFunctionAllocator, OutOfMemoryError
cupy.cuda.memory = memory
cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=2)
cupy.cuda.get_device_id = lambda: 0
cupy.cuda.set_allocator = lambda allocator: setattr(cupy, "allocator", allocator)
sys.modules.update({"cupy": cupy, "cupy.cuda": cupy.cuda, "cupy.cuda.memory": memory})

import gapless.cupy
gapless.cupy.enable()
block = cupy.allocator(5 << 20)
assert gapless.stats()["live_bytes"] == 5 << 20
assert [segment["stream"] for segment in gapless.snapshot()["segments"]] == [2]
try:
    cupy.allocator(1 << 40)
except OutOfMemoryError as error:
    print(error.__cause__)
del block
assert gapless.stats()["live_bytes"] == 0
"""


def test_cupy(run):
    assert "Tried to allocate 1 TiB" in run(CUPY)


@pytest.mark.skipif(importlib.util.find_spec("rmm") is None, reason="RMM is not installed")
def test_rmm(run):
    run(
        """
import gapless, gapless.rmm
resource = gapless.rmm.resource()
pointer = resource.allocate(5 << 20)
assert gapless.stats()["live_bytes"] == 5 << 20
resource.deallocate(pointer, 5 << 20)
assert gapless.stats()["live_bytes"] == 0
"""
    )


NUMBA = """
import sys, types, collections, gapless
cuda = types.ModuleType("numba.cuda")
class HostOnlyCUDAMemoryManager:
    def __init__(self, context): self.context = context
    def initialize(self): pass
    def reset(self): pass
class MemoryPointer:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.pointer, self.finalizer = pointer, finalizer
cuda.HostOnlyCUDAMemoryManager, cuda.MemoryPointer = HostOnlyCUDAMemoryManager, MemoryPointer
cuda.MemoryInfo = collections.namedtuple("MemoryInfo", "free total")
cuda.set_memory_manager = lambda manager: setattr(cuda, "manager", manager)
numba = types.ModuleType("numba"); numba.cuda = cuda
sys.modules.update({"numba": numba, "numba.cuda": cuda})
class Context:
    device = types.SimpleNamespace(id=0)
    waits = 0
    def synchronize(self): self.waits += 1

import gapless.numba
gapless.numba.enable()
assert gapless.numba._numba_memory_manager.__name__ == "Manager"
context = Context()
manager = cuda.manager(context)
manager.initialize()
block = manager.memalloc(5 << 20)
assert gapless.stats()["live_bytes"] == 5 << 20
assert 0 < manager.get_memory_info().free < manager.get_memory_info().total
block.finalizer()
assert context.waits == 1 and gapless.stats()["live_bytes"] == 0
manager.reset()
assert gapless.stats()["reserved_bytes"] == 0 and manager.interface_version == 1
"""


def test_numba(run):
    run(NUMBA)


@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="Numba's CUDA target is not installed")
def test_the_real_numba(run):
    run(
        """
import gapless, gapless.numba
gapless.numba.enable()
from numba import cuda
block = cuda.device_array(5 << 20, dtype="uint8")
assert gapless.stats()["live_bytes"] == 5 << 20
assert cuda.current_context().get_memory_info().total == gapless.stats()["budget_bytes"]
del block
assert gapless.stats()["live_bytes"] == 0
"""
    )
