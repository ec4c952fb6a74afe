"""Passes tensors between two processes with torch.multiprocessing, there and back, while the sender's other memory moves; and
reads what a process had sent that was killed."""

import os
import time

import measure
import torch
import torch.multiprocessing

MIB = measure.MIB
SIZES = (700, 300_000, 2 * MIB, 6 * MIB + 300)


def filled(size, value):
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def holds(block, value):
    return int(block.min()) == int(block.max()) == value


def start_gapless():
    """A child process runs on what its parent runs on, which sets the variable for it."""
    if os.environ.get("GAPLESS_TORCH"):
        import gapless  # noqa: F401 - the import enables it


def child(questions, answers):
    start_gapless()
    while (question := questions.get()) is not None:
        value, blocks = question
        seen = [(int(block.min()), int(block.max())) for block in blocks]
        for block in blocks:
            block.fill_(value + 100)
        torch.cuda.synchronize()
        del blocks, question
        answers.put(seen)
    back = [filled(size, 200 + number) for number, size in enumerate(SIZES)]
    answers.put(back)
    # The memory is the sender's: it lives until the receiver has looked.
    questions.get()


def killed(answers):
    """Sends tensors, and is killed before it can end."""
    start_gapless()
    answers.put([filled(size, 100 + number) for number, size in enumerate(SIZES)])
    time.sleep(600)


def killed_sender(checks, context):
    """What has arrived stays, whatever becomes of its sender. PyTorch's own memory is gone with the process."""
    answers = context.Queue()
    other = context.Process(target=killed, args=(answers,))
    other.start()
    blocks = answers.get(timeout=50)
    other.kill()
    other.join(timeout=50)
    others = [filled(4 * MIB, 77) for _ in range(32)]
    right = all(holds(block, 100 + number) for number, block in enumerate(blocks))
    checks.expect(right and all(holds(block, 77) for block in others), "what a killed process had sent is still there")


def main():
    arguments = measure.parser(__doc__).parse_args()
    checks = measure.Checks(kernels=not arguments.no_kernels)
    torch.cuda.init()
    context = torch.multiprocessing.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    other = context.Process(target=child, args=(questions, answers))
    other.start()
    for value in range(8):
        sent = [filled(size, value) for size in SIZES]
        around = [filled(4 * MIB, 77) for _ in range(32)]
        questions.put((value, sent))
        del around[::2]
        # Needs the holes, so that chunks move while others are open in the other process.
        joined = filled(64 * MIB, 99)
        seen = answers.get(timeout=50)
        checks.expect(seen == [(value, value)] * len(sent), "the receiver reads what was written")
        checks.expect(all(holds(block, value + 100) for block in sent), "the sender reads what the receiver has written")
        right = holds(joined, 99) and all(holds(block, 77) for block in around)
        checks.expect(right, "blocks beside them keep their content")
        del sent, around, joined
    questions.put(None)
    back = answers.get(timeout=50)
    right = all(holds(block, 200 + number) for number, block in enumerate(back))
    checks.expect(right, "what the other process sends is read here")
    del back
    questions.put(None)
    other.join(timeout=50)
    checks.expect(other.exitcode == 0, "the other process ends well")
    if measure.allocator() == "object":
        killed_sender(checks, context)
    measure.finish({"checks": checks.done})


if __name__ == "__main__":
    main()
