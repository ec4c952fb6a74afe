"""Stand-ins for CuPy, RMM and Numba with the interfaces that the plug-ins use, as pieces of Python for `run`."""

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
"""

RMM = """
import sys, types, gapless
rmm = types.ModuleType("rmm"); rmm.mr = types.ModuleType("rmm.mr")
class CallbackMemoryResource:
    def __init__(self, allocate, deallocate):
        self.allocate, self.deallocate = allocate, deallocate
rmm.mr.CallbackMemoryResource = CallbackMemoryResource
sys.modules.update({"rmm": rmm, "rmm.mr": rmm.mr})

import gapless.rmm
resource = gapless.rmm.resource()
"""

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
"""
