"""Replays a trace whose tags sleep and wake, by a way of `allocators`: ``turns.py WAY TRACE``. The tag ``train`` is the program.

Ends with an error that says so where the device has too little memory.
"""

import os
import sys

import allocators
from recorded import ops
from tensors import Tensors

PROGRAM = "train"


def replay(path, way):
    discarded = {name for kind, name, rest in ops(path) if kind == "s" and rest == ["discard"]}
    tensors, current, region = Tensors(), None, None
    for kind, name, rest in ops(path):
        if kind == "a":
            size, stream, tag = rest
            if tag != current:
                if region is not None:
                    region.__exit__(None, None, None)
                region = way.region(way.whole or tag if tag == PROGRAM else tag, tag not in discarded)
                region.__enter__()
                current = tag
            tensors.allocate(name, int(size), stream)
        elif kind == "f":
            tensors.free(name)
        elif kind in "sw":
            tag = way.whole or name if name == PROGRAM else name
            if kind == "s":
                way.prepare()
                way.sleep(tag)
            else:
                way.wake(tag)


def main():
    name, path = sys.argv[1:]
    replay(path, allocators.named[name]())
    os._exit(0)


if __name__ == "__main__":
    main()
