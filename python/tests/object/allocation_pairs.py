"""Nanoseconds for a pair of an allocation and a free through PyTorch's C++ entry: its own allocator, the plug-in, the object.

Each takes its turn in a process of its own, several times. What counts is the least of many short samples, and the ratio.
"""

import ctypes
import os
import subprocess
import sys

WAYS = ("native", "plug-in", "object")
SHAPES = [(4096, 1), (4096, 64), (3 << 20, 1), (3 << 20, 16)]
TURNS, SAMPLES = 3, 500


def turn(way):
    if way != "native":
        if way == "plug-in":
            os.environ["GAPLESS_TORCH_OBJECTS"] = "off"
        import gapless.torch

        gapless.torch.enable()
    import torch

    torch.cuda.init()
    assert way == "native" or gapless.torch.backend() == way
    pairs = ctypes.CDLL(os.environ["GAPLESS_ALLOCATION_PAIRS"]).allocation_pairs
    pairs.restype = ctypes.c_double
    for size, live in SHAPES:
        size, live = ctypes.c_size_t(size), ctypes.c_size_t(live)
        print(pairs(size, live, ctypes.c_size_t(SAMPLES)))


def main():
    least = {}
    for _ in range(TURNS):
        for way in WAYS:
            out = subprocess.run([sys.executable, __file__, way], check=True, capture_output=True, text=True).stdout
            for shape, took in zip(SHAPES, out.split()):
                least[way, shape] = min(float(took), least.get((way, shape), float("inf")))
    print(f"{'bytes':>9} {'live':>5} " + " ".join(f"{way:>8}" for way in WAYS) + "   object/native object/plug-in")
    for shape in SHAPES:
        native, plug_in, of_object = (least[way, shape] for way in WAYS)
        times = f"{native:8.0f} {plug_in:8.0f} {of_object:8.0f}"
        print(f"{shape[0]:9} {shape[1]:5} {times} {of_object / native:15.2f} {of_object / plug_in:14.2f}")


if __name__ == "__main__":
    turn(sys.argv[1]) if len(sys.argv) > 1 else main()
