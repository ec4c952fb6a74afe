"""A program whose free memory is in many pieces: fills a limit with small blocks, frees every second one, and asks for
one block larger than any of the gaps and half as large as all of them together."""

import measure
import torch

BLOCK = 4 * measure.MIB


def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def check(block, value, what):
    low, high = int(block.min()), int(block.max())
    if (low, high) != (value, value):
        raise SystemExit(f"{what} holds {low} to {high} in place of {value}")


def main():
    arguments = measure.parser(__doc__).parse_args()
    limit = arguments.limit or 4096 * measure.MIB
    measure.set_limit(limit)

    count = int(limit * 0.9) // BLOCK
    blocks = {number: empty(BLOCK) for number in range(count)}
    if not arguments.no_kernels:
        for number, block in blocks.items():
            block.fill_(number % 251)
        torch.cuda.synchronize()
    block = None
    for number in range(0, count, 2):
        del blocks[number]
    free = count * BLOCK - torch.cuda.memory_allocated()
    wanted = limit // 4
    figures = {"limit": limit, "live": torch.cuda.memory_allocated(), "free": free, "wanted": wanted, "hole": BLOCK}
    try:
        joined = empty(wanted)
    except torch.cuda.OutOfMemoryError as error:
        figures.update(outcome="out of memory", message=str(error))
    else:
        figures.update(outcome="served", message="")
        if not arguments.no_kernels:
            joined.fill_(255)
            for number, block in blocks.items():
                check(block, number % 251, f"block {number}")
            check(joined, 255, "the joined block")
        assert joined.numel() == wanted
    measure.finish(figures)


if __name__ == "__main__":
    main()
