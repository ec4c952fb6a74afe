"""Times sleep and wake of tensors with a backup in pinned memory: gapless's, torch_memory_saver's where ``--saver`` is said, or
without either, what a program does by hand: it copies each tensor to pinned memory that it keeps, and empties its storage."""

import os
import time

import measure
import torch

MIB = measure.MIB
SETS = {"64 tensors of 64 MiB": (64, 64 * MIB), "8,192 tensors of 256 KiB": (8192, MIB // 4)}
ROUNDS = 4


class ByHand:
    def __init__(self):
        self._kept = []

    def make(self, build):
        return build()

    def sleep(self, tensors):
        if not self._kept:
            self._kept = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for tensor, kept in zip(tensors, self._kept):
            kept.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
        torch.cuda.empty_cache()

    def wake(self, tensors):
        for tensor, kept in zip(tensors, self._kept):
            tensor.untyped_storage().resize_(kept.nbytes)
            tensor.copy_(kept, non_blocking=True)
        torch.cuda.synchronize()


class Gapless:
    def __init__(self):
        import gapless.torch

        self._torch = gapless.torch

    def make(self, build):
        return build()

    def sleep(self, tensors):
        self._torch.sleep()

    def wake(self, tensors):
        self._torch.wake(retain=True)
        torch.cuda.synchronize()


class Saver:
    def __init__(self):
        from torch_memory_saver import torch_memory_saver

        self._saver = torch_memory_saver
        self._saver.hook_mode = "torch"

    def make(self, build):
        with self._saver.region(tag="weights", enable_cpu_backup=True):
            return build()

    def sleep(self, tensors):
        torch.cuda.synchronize()
        self._saver.pause("weights")

    def wake(self, tensors):
        self._saver.resume("weights")
        torch.cuda.synchronize()


def rounds(way, count, size, kernels):
    """The tensors, and milliseconds of each round's sleep and wake; the bytes come again, and the device has them meanwhile."""
    tensors = way.make(lambda: [torch.full((size,), number % 251, dtype=torch.uint8, device="cuda") for number in range(count)])
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        begin = time.perf_counter()
        way.sleep(tensors)
        slept = time.perf_counter()
        freed = torch.cuda.mem_get_info()[0] - before
        if freed < count * size:
            raise SystemExit(f"a sleep gave {freed / MIB:.0f} MiB back, of {count * size / MIB:.0f}")
        begin_wake = time.perf_counter()
        way.wake(tensors)
        found.append(((slept - begin) * 1e3, (time.perf_counter() - begin_wake) * 1e3))
    if kernels and not all(int(tensor[0]) == int(tensor[-1]) == number % 251 for number, tensor in enumerate(tensors)):
        raise SystemExit("wrong bytes after a wake")
    return tensors, found


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--saver", action="store_true", help="with torch_memory_saver")
    arguments = parser.parse_args()
    torch.cuda.init()
    way = Saver if arguments.saver else Gapless if measure.allocator() in ("object", "plug-in") else ByHand
    times, alive = {}, []
    for name, (count, size) in SETS.items():
        tensors, found = rounds(way(), count, size, not arguments.no_kernels)
        first, later = found[0], [min(column) for column in zip(*found[1:])]
        for which, pair in (("first", first), ("later", later)):
            times[f"{name}, {which} sleep"], times[f"{name}, {which} wake"] = pair
        # Where a tensor of a region is freed outside of one, torch_memory_saver ends the process.
        alive.append(tensors if arguments.saver else None)
        del tensors
    measure.finish({"times_ms": times})
    if arguments.saver:
        os._exit(0)


if __name__ == "__main__":
    main()
