"""RMM through gapless.rmm: content, holes joined, streams, pools of RMM over gapless, and an error when memory runs out."""

import gc

import gapless
import gapless.rmm
from checked import MIB, expect, finish


def filled(size, value, stream=None):
    import rmm

    given = {} if stream is None else {"stream": stream}
    return rmm.DeviceBuffer.to_device(bytes([value]) * size, **given)


def holds(buffer, value):
    return buffer.tobytes() == bytes([value]) * buffer.size


def main():
    import rmm
    from rmm.pylibrmm.stream import Stream

    gapless.rmm.enable()
    buffer = filled(5 * MIB, 7)
    expect(gapless.stats()["live_bytes"] == 5 * MIB, "buffers are gapless's memory")
    expect(holds(buffer, 7), "what is copied there and back is the same")
    del buffer
    expect(gapless.stats()["live_bytes"] == 0, "freed buffers go back")

    budget, size = gapless.stats()["budget_bytes"], 4 * MIB
    blocks = {number: filled(size, number % 251) for number in range(int(budget * 0.9) // size)}
    for number in range(0, len(blocks), 2):
        del blocks[number]
    joined = filled(budget // 4, 255)
    kept = all(holds(block, number % 251) for number, block in blocks.items())
    expect(kept and holds(joined, 255), "holes are joined, and what is live keeps its content")

    try:
        rmm.DeviceBuffer(size=budget)
    except (MemoryError, gapless.OutOfMemoryError) as error:
        expect(True, f"running out of memory raises {type(error).__name__}")
    else:
        expect(False, "more than the budget was served")
    del blocks, joined
    gc.collect()
    expect(gapless.stats()["live_bytes"] == 0, "all of them go back")

    streams = [Stream() for _ in range(2)]
    found = [filled(MIB, value, streams[value % 2]) for value in range(16)]
    for stream in streams:
        stream.synchronize()
    expect(all(holds(buffer, value) for value, buffer in enumerate(found)), "two streams")
    del found

    pool = rmm.mr.PoolMemoryResource(gapless.rmm.resource(), initial_pool_size=64 * MIB)
    rmm.mr.set_current_device_resource(pool)
    found = [filled(MIB, value) for value in range(32)]
    expect(all(holds(buffer, value) for value, buffer in enumerate(found)), "RMM's pool over gapless")
    del found
    gapless.rmm.enable()
    del pool
    gc.collect()
    expect(gapless.stats()["live_bytes"] == 0, "the pool goes back")
    finish(version=rmm.__version__, budget=budget)


if __name__ == "__main__":
    main()
