"""Defragmentation, tensors in another process, captured graphs, and sleep and wake, in one process: ``together_script.py``.

The simulated device, on which replays copy, has 256 MiB. The other process is on PyTorch's own allocator, and opens what is sent.
Bytes are compared after each step.
"""

import gc
import os

import gapless
import gapless.torch

IS_RECEIVER = os.environ.get("TOGETHER_RECEIVER") == "1"
if IS_RECEIVER:
    import gapless.ipc  # noqa: F401
else:
    gapless.torch.enable()

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

MIB = 1 << 20
ROUNDS = 4


def of_host(mib, seed):
    """Numbers that say where they are, and from which seed."""
    return torch.arange(mib * MIB // 8, dtype=torch.int64) * 2654435761 + seed


def empty(mib):
    return torch.empty(mib * MIB // 8, dtype=torch.int64, device="cuda")


def filled(mib, seed):
    return empty(mib).copy_(of_host(mib, seed))


def holds(tensor, seed):
    return torch.equal(tensor.cpu(), of_host(tensor.nbytes // MIB, seed))


def free_mib():
    return torch.cuda.mem_get_info()[0] // MIB


def receive(inbox, outbox):
    """Compares the tensor that it has been sent with a seed, and writes the next one. Closes it where there is no seed."""
    sent = None
    while (message := inbox.get()) is not None:
        tensor, seed = message
        if seed is None:
            del sent, tensor, message
            sent = None
            gc.collect()
            torch.cuda.synchronize()
            outbox.put(True)
            continue
        sent = sent if tensor is None else tensor
        is_right = holds(sent, seed)
        sent.copy_(of_host(sent.nbytes // MIB, seed + 1))
        torch.cuda.synchronize()
        outbox.put(is_right)
        del tensor, message


def capture(source, result):
    """A graph that copies from one tensor to another by way of memory of its own, which is free after the capture."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        between = empty(source.nbytes // MIB)
        between.copy_(source)
        result.copy_(between)
        del between
    return graph


def fragmented():
    """Blocks of 4 MiB, every second one freed: what is free lies in holes."""
    blocks = [filled(4, seed) for seed in range(24)]
    return {seed: block for seed, block in enumerate(blocks) if seed % 2}


def main():
    context = mp.get_context("spawn")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    os.environ["TOGETHER_RECEIVER"], os.environ["GAPLESS_TORCH"] = "1", "0"
    child = context.Process(target=receive, args=(inbox, outbox))
    child.start()

    def tell(tensor, seed):
        inbox.put((tensor, seed))
        assert outbox.get() is True, seed

    source, result = filled(5, 0), empty(5)
    with gapless.torch.tag("graphs"):
        graph = capture(source, result)
    with gapless.torch.tag("weights"):
        weights = filled(20, 100)
    with gapless.torch.tag("cache", backup="discard"):
        cache = filled(16, 200)
    for turn in range(ROUNDS):
        blocks = fragmented()
        sent = filled(7, 1000 * turn)
        tell(sent, 1000 * turn)
        assert holds(sent, 1000 * turn + 1)

        # Defragmented around what is open elsewhere: nearly all that is free, in one block.
        gc.collect()
        large = filled(free_mib() + 4 * 12 - 8, 5)
        assert holds(large, 5)
        del large

        slept = gapless.torch.sleep()
        # The pages of what the other process has open stay, and nothing else.
        assert slept.pinned_bytes == 8 * MIB == torch.cuda.memory_reserved(), (slept, torch.cuda.memory_reserved())
        assert set(gapless.torch.asleep()) == {None, "weights", "cache", "graphs"}
        # The other process goes on with it, and another program with all the rest.
        tell(None, 1000 * turn + 1)
        assert holds(sent, 1000 * turn + 2)
        others = empty(free_mib() - 20)
        try:
            gapless.torch.wake()
        except gapless.OutOfMemoryError as short:
            assert "are asleep and need" in str(short)
        else:
            raise AssertionError("there was no memory")
        assert set(gapless.torch.asleep()) == {None, "weights", "cache", "graphs"}
        del others
        # Freed while it is asleep, and allocated anew.
        del blocks[1], blocks[23]
        with gapless.torch.tag("weights"):
            fresh = filled(2, 300)
        gapless.torch.wake()
        assert gapless.torch.asleep() == {}

        assert holds(weights, 100 + turn) and holds(fresh, 300)
        assert all(holds(block, seed) for seed, block in blocks.items())
        weights.copy_(of_host(20, 101 + turn))
        cache.copy_(of_host(16, 200 + turn))
        source.copy_(of_host(5, 10 + turn))
        graph.replay()
        torch.cuda.synchronize()
        assert holds(result, 10 + turn) and holds(cache, 200 + turn)

        # Closed, it sleeps with the rest.
        tell(None, None)
        torch.cuda.ipc_collect()
        gc.collect()
        assert gapless.torch.sleep().pinned_bytes == 0 == torch.cuda.memory_reserved()
        assert gapless.torch.wake("weights") == 22 * MIB
        gapless.torch.wake(wait=60)
        assert holds(sent, 1000 * turn + 2) and holds(result, 10 + turn)
        graph.replay()
        torch.cuda.synchronize()
        del blocks, sent, fresh
    inbox.put(None)
    child.join()
    assert child.exitcode == 0
    print("together", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
