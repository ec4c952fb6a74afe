"""Numba through gapless.numba: content, a kernel, holes joined, two streams, and an error when memory runs out."""

import sys
import warnings

import gapless
import gapless.numba
from checked import MIB, expect, finish


def doubled(cuda, numba, numpy):
    # A small launch leaves most of the GPU idle, which is no matter here.
    warnings.simplefilter("ignore", numba.core.errors.NumbaPerformanceWarning)

    @cuda.jit
    def double(out):
        for index in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            out[index] *= 2

    host = numpy.arange(MIB)
    block = cuda.to_device(host)
    double[64, 256](block)
    expect((block.copy_to_host() == 2 * host).all(), "a kernel computes on it")


def main():
    gapless.numba.enable()
    import numba
    import numba_cuda
    import numpy
    from numba import cuda

    def filled(size, value, stream=0):
        return cuda.to_device(numpy.full(size, value, dtype=numpy.uint8), stream=stream)

    def holds(block, value):
        found = block.copy_to_host()
        cuda.synchronize()
        return int(found.min()) == int(found.max()) == value

    context = cuda.current_context()
    block = cuda.device_array(5 * MIB, dtype=numpy.uint8)
    expect(gapless.stats()["live_bytes"] == 5 * MIB, "arrays are gapless's memory")
    del block
    context.deallocations.clear()
    expect(gapless.stats()["live_bytes"] == 0, "freed arrays go back")

    if "--no-kernels" not in sys.argv:
        doubled(cuda, numba, numpy)

    budget, size = gapless.stats()["budget_bytes"], 4 * MIB
    blocks = {number: filled(size, number % 251) for number in range(int(budget * 0.9) // size)}
    for number in range(0, len(blocks), 2):
        del blocks[number]
    context.deallocations.clear()
    joined = filled(budget // 4, 255)
    kept = all(holds(block, number % 251) for number, block in blocks.items())
    expect(kept and holds(joined, 255), "holes are joined, and what is live keeps its content")

    try:
        cuda.device_array(budget, dtype=numpy.uint8)
    except gapless.OutOfMemoryError as error:
        expect("Tried to allocate" in str(error), "running out of memory says what was wanted")
    else:
        expect(False, "more than the budget was served")
    del blocks, joined
    context.deallocations.clear()

    streams = [cuda.stream() for _ in range(2)]
    found = [filled(16 * MIB, value, streams[value % 2]) for value in range(16)]
    for stream in streams:
        stream.synchronize()
    expect(all(holds(block, value) for value, block in enumerate(found)), "two streams")
    finish(version=numba_cuda.__version__, budget=budget)


if __name__ == "__main__":
    main()
