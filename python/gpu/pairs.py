"""Times pairs of an allocation and a free through torch.cuda, by size: the memory is cached, so no call reaches the driver."""

import time

import measure
import torch

SIZES = {"4 KiB": 4 << 10, "2 MiB": 2 << 20, "64 MiB": 64 << 20}
PAIRS, SAMPLES = 2000, 20


def pair_ns(size):
    """The least of many short samples, each in nanoseconds a pair; Python's part is in it."""
    allocate, free = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    # Neither looks the stream up: that would be most of the time.
    stream = torch.cuda.current_stream().cuda_stream
    least = float("inf")
    for _ in range(SAMPLES):
        begin = time.perf_counter_ns()
        for _ in range(PAIRS):
            free(allocate(size, 0, stream))
        least = min(least, (time.perf_counter_ns() - begin) / PAIRS)
    return least


def tensor_ns(size):
    """The same for tensors, as programs make them."""
    least = float("inf")
    for _ in range(SAMPLES):
        begin = time.perf_counter_ns()
        for _ in range(PAIRS):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        least = min(least, (time.perf_counter_ns() - begin) / PAIRS)
    return least


def main():
    measure.parser(__doc__).parse_args()
    torch.cuda.init()
    times = {name: pair_ns(size) for name, size in SIZES.items()}
    times.update({f"tensor of {name}": tensor_ns(size) for name, size in SIZES.items()})
    measure.finish({"pair_ns": times})


if __name__ == "__main__":
    main()
