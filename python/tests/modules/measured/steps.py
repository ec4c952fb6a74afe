"""Replays a trace by a way of `allocators`, and has its memory sleep and wake where its steps end: ``steps.py WAY TRACE``.

Prints a line of JSON: for each step the requested bytes that were live, what the driver was told to copy to the host in the sleep,
what the wake took from the device, and how often the host waited in the sleep. With ``GAPLESS_SIM_NO_COPIES`` the driver copies
nothing: traces hold more than hosts have.
"""

import json
import os
import sys

import allocators
import simulation
from recorded import ops
from tensors import Tensors


def replay(path, way):
    """What each sleep and wake comes to."""
    tensors, steps = Tensors(), []
    trace = ops(path)
    while True:
        with way.region(way.whole):
            for kind, name, rest in trace:
                if kind == "a":
                    tensors.allocate(name, int(rest[0]), rest[1])
                elif kind == "f":
                    tensors.free(name)
                elif kind == "m":
                    break
            else:
                return steps
        steps.append(sleep_and_wake(way, tensors.requested))


def sleep_and_wake(way, live):
    way.prepare()
    simulation.restart_counts()
    way.sleep(way.whole)
    counted = simulation.counts()
    asleep = simulation.held()
    way.wake(way.whole)
    mapped = simulation.held() - asleep
    return {"live": live, "copied": counted.get("bytes_to_host", 0), "mapped": mapped, "waits": simulation.waits(counted)}


def main():
    name, path = sys.argv[1:]
    print(json.dumps(replay(path, allocators.named[name]())), flush=True)
    # torch_memory_saver's free calls exit(1) where the interpreter ends its pools.
    os._exit(0)


if __name__ == "__main__":
    main()
