"""torch.compile, plain and with the CUDA graphs of its mode "reduce-overhead": losses are those of eager mode."""

import copy

import measure
import torch
from torch import nn

MIB = measure.MIB
STEPS = 12


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).cuda()


def churn():
    """Memory that would be a graph's, were it not the graph's alone."""
    blocks = [torch.full((size * MIB // 4,), float("nan"), device="cuda") for size in (1, 2, 4, 8, 16)]
    del blocks


def train(model, run, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in batches:
        churn()
        optimizer.zero_grad(set_to_none=True)
        loss = (run(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    arguments = measure.parser(__doc__).parse_args()
    checks = measure.Checks(kernels=not arguments.no_kernels)
    torch.cuda.init()
    data = torch.Generator().manual_seed(1)
    batches = [torch.randn(64, 256, generator=data).cuda() for _ in range(STEPS)]
    model = make()
    twin = copy.deepcopy(model)
    eager = train(twin, twin, batches)
    for mode in ("default", "reduce-overhead"):
        twin = copy.deepcopy(model)
        losses = train(twin, torch.compile(twin, mode=mode), batches)
        difference = max(abs(one - other) for one, other in zip(eager, losses))
        checks.expect(difference <= 1e-3, f"mode {mode}: losses of eager steps (within {difference:.1e})")
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    measure.finish({"checks": checks.done})


if __name__ == "__main__":
    main()
