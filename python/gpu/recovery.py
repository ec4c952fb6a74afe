"""Runs out of memory in the middle of a training, catches it, and goes on: with a smaller batch, and with the same losses."""

import gc

import measure
import torch
from torch import nn

MIB = measure.MIB


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(model, optimizer, batch):
    optimizer.zero_grad(set_to_none=True)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def batches():
    data = torch.Generator().manual_seed(1)
    return [torch.randn(256, 512, generator=data) for _ in range(8)]


def trained(on_step=lambda model, number: None):
    model, optimizer = make()
    losses = []
    for number, batch in enumerate(batches()):
        on_step(model, number)
        losses.append(step(model, optimizer, batch.cuda()))
    return losses


def too_large_a_batch(checks):
    """Most of what a batch takes is live when the error comes; all of it is free after it was caught."""
    undisturbed = trained()
    messages = []

    def disturb(model, number):
        if number % 3 != 1:
            return
        live = torch.cuda.memory_allocated()
        try:
            # 6 GiB of activations under a limit of 3 GiB.
            model(torch.zeros(1 << 19, 512, device="cuda")).square().mean().backward()
        except torch.cuda.OutOfMemoryError as error:
            messages.append(str(error))
        model.zero_grad(set_to_none=True)
        gc.collect()
        checks.expect(torch.cuda.memory_allocated() <= live, "a caught error leaves nothing live")

    disturbed = trained(disturb)
    checks.expect(len(messages) == 3 and all("Tried to allocate" in text for text in messages), "the error says what was wanted")
    checks.expect(undisturbed == disturbed, "losses are those of a training without errors")


def everything_is_there_again(checks, limit):
    """What the failed requests held back can be had in one piece."""
    block = torch.full((limit * 3 // 4,), 7, dtype=torch.uint8, device="cuda")
    checks.expect(int(block.min()) == int(block.max()) == 7, "three quarters of the limit are there in one block")


def main():
    arguments = measure.parser(__doc__).parse_args()
    checks = measure.Checks(kernels=not arguments.no_kernels)
    limit = arguments.limit or 3072 * MIB
    measure.prepare(limit)
    too_large_a_batch(checks)
    gc.collect()
    torch.cuda.empty_cache()
    everything_is_there_again(checks, limit)
    measure.finish({"checks": checks.done})


if __name__ == "__main__":
    main()
