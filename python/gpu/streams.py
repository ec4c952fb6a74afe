"""Tensors that cross streams: what a stream still reads must not be overwritten by what comes after it."""

import threading

import measure
import torch

MIB = measure.MIB
NUMBERS = 4 * MIB
# Long enough for a host that does not wait to be far ahead of the GPU.
CYCLES = 10_000_000


def full(value, numbers=NUMBERS):
    return torch.full((numbers,), float(value), device="cuda")


def extremes(block):
    return block.amin(), block.amax()


def expect_values(checks, seen, what):
    """The n-th block that was read held n all over."""
    torch.cuda.synchronize()
    seen = [(low.item(), high.item()) for low, high in seen]
    right = all(pair == (value, value) for value, pair in enumerate(seen))
    checks.expect(right, what if right or not checks.kernels else f"{what}: {seen}")


def recorded(checks):
    """A block freed on its stream while another one, which was recorded, still reads it."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    seen = []
    for value in range(16):
        block = full(value)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
            seen.append(extremes(block))
        block.record_stream(side)
        del block
        for _ in range(3):
            full(-1)
    expect_values(checks, seen, "record_stream")


def waited_for(checks):
    """A block of one stream used on another, with streams that wait for each other and no record_stream."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    seen = []
    for value in range(16):
        block = full(value)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES // 4)
            seen.append(extremes(block))
        main.wait_stream(side)
        del block
        full(-1)
    expect_values(checks, seen, "wait_stream")


def handed_over(checks):
    """Under a limit that holds one large block, which two streams want in turn."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    numbers = 96 * MIB
    measure.set_limit(torch.cuda.memory_reserved() + 4 * numbers + 160 * MIB)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    seen = []
    for value in range(12):
        with torch.cuda.stream(streams[value % 2]):
            block = full(value, numbers)
            torch.cuda._sleep(CYCLES)
            seen.append(extremes(block))
            del block
    expect_values(checks, seen, "two streams take turns with the same memory")
    measure.set_limit(torch.cuda.mem_get_info()[1])


def threads(checks):
    """Threads on streams of their own that allocate, write, check and free."""
    errors = []

    def work(number):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                live = {}
                for step in range(300):
                    slot = (step * 7 + number) % 12
                    old = live.pop(slot, None)
                    if old is not None:
                        value, block = old
                        if (block.min().item(), block.max().item()) != (value, value) and checks.kernels:
                            raise AssertionError(f"thread {number}, step {step}: a block lost its content")
                    value = float(number * 1000 + step)
                    live[slot] = (value, full(value, 1000 + (step * step * 131) % MIB))
        except BaseException as error:  # reported by the main thread
            errors.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise SystemExit(f"wrong: {errors}")
    checks.expect(True, "four threads on four streams keep their blocks' content")


def main():
    arguments = measure.parser(__doc__).parse_args()
    checks = measure.Checks(kernels=not arguments.no_kernels)
    torch.cuda.init()
    recorded(checks)
    waited_for(checks)
    handed_over(checks)
    threads(checks)
    measure.finish({"checks": checks.done})


if __name__ == "__main__":
    main()
