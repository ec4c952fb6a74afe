"""CuPy through gapless.cupy: content, figures, gaps joined, two streams, and an error when memory runs out."""

import gapless
import gapless.cupy
from checked import MIB, expect, finish


def main():
    import cupy

    gapless.cupy.enable()
    block = cupy.empty(5 * MIB, dtype=cupy.uint8)
    expect(gapless.stats()["live_bytes"] == 5 * MIB, "arrays are gapless's memory")
    del block
    expect(gapless.stats()["live_bytes"] == 0, "freed arrays go back")

    numbers = cupy.arange(MIB, dtype=cupy.int64)
    expect(int((numbers * 2).sum()) == MIB * (MIB - 1), "a kernel computes on it")
    del numbers

    budget, size = gapless.stats()["budget_bytes"], 4 * MIB
    blocks = {number: cupy.full(size, number % 251, dtype=cupy.uint8) for number in range(int(budget * 0.9) // size)}
    for number in range(0, len(blocks), 2):
        del blocks[number]
    joined = cupy.full(budget // 4, 255, dtype=cupy.uint8)
    kept = all(int(block.min()) == int(block.max()) == number % 251 for number, block in blocks.items())
    expect(kept and int(joined.min()) == 255, "holes are joined, and what is live keeps its content")

    try:
        cupy.empty(budget, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError as error:
        expect("Tried to allocate" in str(error.__cause__), "running out of memory raises CuPy's error")
    else:
        expect(False, "more than the budget was served")
    del blocks, joined

    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    sums = []
    for value in range(16):
        with streams[value % 2]:
            sums.append(cupy.full(16 * MIB, value, dtype=cupy.int32).sum(dtype=cupy.int64))
    for stream in streams:
        stream.synchronize()
    expect([int(total) for total in sums] == [16 * MIB * value for value in range(16)], "two streams")
    finish(version=cupy.__version__, budget=budget)


if __name__ == "__main__":
    main()
