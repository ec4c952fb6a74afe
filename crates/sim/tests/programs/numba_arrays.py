"""Asks numba-cuda for arrays, each once more where that fails, and gives them back.

Ends with status 1 where something fails twice or bytes are lost. With ``NUMBA_CUDA_MEMORY_MANAGER=gapless.numba`` they are gapless's.
"""

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


def again(step, *arguments):
    try:
        return step(*arguments)
    except (CudaAPIError, MemoryError, RuntimeError) as error:
        print(f"{step.__name__}: {str(error).splitlines()[0]}", flush=True)
        return step(*arguments)


def empty(mib):
    return cuda.device_array(mib << 20, dtype=numpy.uint8)


host = numpy.arange(1 << 20).astype(numpy.uint8)
arrays = [again(empty, 20) for _ in range(8)]
copied = again(cuda.to_device, host)
assert (again(copied.copy_to_host) == host).all(), "bytes are lost"
del arrays[::2]
# numba frees later, some at a time.
again(cuda.current_context().deallocations.clear)
arrays.append(again(empty, 70))
del arrays, copied
again(cuda.current_context().deallocations.clear)
again(cuda.synchronize)
again(cuda.current_context().reset)
