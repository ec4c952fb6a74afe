"""Captures training steps in CUDA graphs and replays them, with other memory coming and going in between."""

import copy
import gc

import measure
import torch
from torch import nn

MIB = measure.MIB


def private_bytes():
    # Older versions do not count them.
    return torch.cuda.memory_stats().get("reserved_bytes_by_private_pools", 0)


def churn():
    """Memory that would be a graph's, were it not the graph's alone: taken, overwritten, given back."""
    blocks = [torch.full((size * MIB // 4,), float("nan"), device="cuda") for size in (1, 2, 4, 8, 16, 32, 64)]
    del blocks
    torch.cuda.empty_cache()


def training_step(checks):
    """The whole step of PyTorch's documentation: forward, backward, optimizer."""

    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
        model = model.cuda()
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    data = torch.Generator().manual_seed(1)
    batches = [torch.randn(256, 512, generator=data).cuda() for _ in range(12)]
    targets = [batch.sum(dim=1, keepdim=True).tanh() for batch in batches]
    loss_function = nn.MSELoss()

    model, optimizer = make()
    eager = []
    for batch, target in zip([batches[0]] * 3 + batches, [targets[0]] * 3 + targets):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model(batch), target)
        loss.backward()
        optimizer.step()
        eager.append(loss.item())

    model, optimizer = make()
    static_batch, static_target = batches[0].clone(), targets[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss_function(model(static_batch), static_target).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        static_loss = loss_function(model(static_batch), static_target)
        static_loss.backward()
        optimizer.step()
    captured = []
    for batch, target in zip(batches, targets):
        churn()
        static_batch.copy_(batch)
        static_target.copy_(target)
        graph.replay()
        captured.append(static_loss.item())
    difference = max(abs(one - other) for one, other in zip(eager[3:], captured))
    what = f"12 replays of a training step give the losses of eager steps (within {difference:.1e})"
    checks.expect(difference <= 1e-4, what)
    held = private_bytes()
    graph.replay()
    del static_loss, model, optimizer, graph
    gc.collect()
    torch.cuda.empty_cache()
    # cuBLAS keeps a workspace that it took during the capture.
    return {"graph_bytes": held, "graph_bytes_left": private_bytes()}


def graphed_callables(checks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    twin = copy.deepcopy(model)
    sample = torch.randn(64, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for _ in range(4):
        churn()
        x = torch.randn(64, 256, device="cuda")
        x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
        graphed(x1).square().sum().backward()
        twin(x2).square().sum().backward()
        same = torch.allclose(x1.grad, x2.grad, rtol=1e-4, atol=1e-4)
        checks.expect(same, "make_graphed_callables gives eager gradients")


def two_graphs_one_pool(checks):
    x = torch.zeros(MIB, device="cuda")
    ((x + 1) * 2).sum().item()  # loads the kernels
    pool = torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        y = x + 1
    with torch.cuda.graph(second, pool=pool):
        z = y * 2
    for value in (3.0, 5.0):
        churn()
        x.fill_(value)
        first.replay()
        second.replay()
        checks.expect(bool((z == (value + 1) * 2).all()), "two graphs with one pool")


def dropped_behind_its_replay(checks):
    """Nothing is waited for: a graph goes while its replay is in flight, and its memory is wanted at once."""
    x = torch.zeros(MIB, device="cuda")
    ((x + 1) * 2).sum().item()  # loads the kernels
    found = []
    for number in range(8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ((x + number) * 2).square()
        result = torch.empty_like(x)
        if checks.kernels:
            torch.cuda._sleep(20_000_000)
        graph.replay()
        result.copy_(y)
        # Another replay, whose result nobody reads.
        graph.replay()
        del y, graph
        # Every other time the pool's memory goes back now, after a wait.
        if number % 2:
            churn()
        else:
            torch.full((8 * MIB,), float("nan"), device="cuda")
        found.append(result)
    right = all(bool((result == (2 * number) ** 2).all()) for number, result in enumerate(found))
    checks.expect(right, "graphs are dropped behind their replays")


def mem_pool(checks):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((4 * MIB,), 7, dtype=torch.uint8, device="cuda")
    outside = torch.full((4 * MIB,), 9, dtype=torch.uint8, device="cuda")
    churn()
    checks.expect(int(inside.min()) == 7 and int(outside.max()) == 9, "a MemPool keeps its memory to itself")


def main():
    arguments = measure.parser(__doc__).parse_args()
    checks = measure.Checks(kernels=not arguments.no_kernels)
    torch.cuda.init()
    sizes = {}
    if checks.kernels:
        sizes = training_step(checks)
        graphed_callables(checks)
    two_graphs_one_pool(checks)
    dropped_behind_its_replay(checks)
    mem_pool(checks)
    measure.finish({"checks": checks.done, **sizes})


if __name__ == "__main__":
    main()
