"""Tensors that cross streams: what a stream still reads must not be overwritten by what comes after it."""

import threading

import measure
import torch

MIB = measure.MIB
NUMBERS = 4 * MIB
# Long enough for a host that does not wait to be far ahead of the GPU.
CYCLES = 10_000_000
CHECKS = []


def full(value, numbers=NUMBERS):
    return torch.full((numbers,), float(value), device="cuda")


def expect(condition, what):
    if not condition:
        raise SystemExit(f"wrong: {what}")
    CHECKS.append(what)


def sums_are(sums, numbers, what):
    torch.cuda.synchronize()
    seen = [total.item() for total in sums]
    wanted = [float(value * numbers) for value in range(len(sums))]
    expect(seen == wanted, f"{what}: {len(sums)} sums" if seen == wanted else f"{what}: {seen} in place of {wanted}")


def recorded():
    """A block freed on its stream while another one, which was recorded, still reads it."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    sums = []
    for value in range(16):
        block = full(value)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
            sums.append(block.sum(dtype=torch.float64))
        block.record_stream(side)
        del block
        for _ in range(3):
            full(-1)
    sums_are(sums, NUMBERS, "record_stream")


def waited_for():
    """A block of one stream used on another, with streams that wait for each other and no record_stream."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    sums = []
    for value in range(16):
        block = full(value)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES // 4)
            sums.append(block.sum(dtype=torch.float64))
        main.wait_stream(side)
        del block
        full(-1)
    sums_are(sums, NUMBERS, "wait_stream")


def handed_over():
    """Under a limit that holds one large block, which two streams want in turn."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    numbers = 96 * MIB
    measure.set_limit(torch.cuda.memory_reserved() + 4 * numbers + 160 * MIB)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    sums = []
    for value in range(12):
        with torch.cuda.stream(streams[value % 2]):
            block = full(value, numbers)
            torch.cuda._sleep(CYCLES)
            sums.append(block.sum(dtype=torch.float64))
            del block
    sums_are(sums, numbers, "two streams take turns with the same memory")
    measure.set_limit(torch.cuda.mem_get_info()[1])


def threads():
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
                        if (block.min().item(), block.max().item()) != (value, value):
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
    expect(not errors, f"four threads on four streams {errors}" if errors else "four threads on four streams")


def main():
    measure.parser(__doc__).parse_args()
    torch.cuda.init()
    recorded()
    waited_for()
    handed_over()
    threads()
    measure.finish({"checks": CHECKS})


if __name__ == "__main__":
    main()
