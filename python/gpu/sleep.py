"""Sleep and wake on gapless: what goes back to the device, who can have it meanwhile, and what comes again."""

import contextlib
import ctypes
import gc
import subprocess
import sys

import measure
import torch
from torch import nn

MIB = measure.MIB
CYCLES = 200_000_000
# What may stay awake beside what is live: blocks of PyTorch's own, such as those of cuBLAS.
SLACK = 64 * MIB


class Device:
    """The driver itself: memory of the device that is not the allocator's."""

    def __init__(self):
        self._driver = ctypes.CDLL("libcuda.so.1")

    def make_current(self):
        context = ctypes.c_void_p()
        self._must("cuInit", 0)
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._must("cuCtxSetCurrent", context)

    @contextlib.contextmanager
    def block(self, size):
        """So many bytes, which have been written."""
        address = ctypes.c_uint64()
        self._must("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._must("cuMemsetD8Async", address, ctypes.c_ubyte(0xEE), ctypes.c_size_t(size), None)
        self._must("cuCtxSynchronize")
        try:
            yield
        finally:
            self._must("cuMemFree_v2", address)

    def _must(self, name, *arguments):
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name} answers {code}")


def held():
    free, total = torch.cuda.mem_get_info()
    return total - free


def numbers(mib, start):
    return torch.arange(start, start + mib * MIB // 4, dtype=torch.int32, device="cuda")


def holds(block, start):
    return torch.equal(block, numbers(block.numel() * 4 // MIB, start))


def given_back(sleep):
    """How many bytes of the device a sleep gave back, and what it says of itself."""
    before = held()
    slept = sleep()
    return before - held(), slept


def kinds_of_backup(checks, gapless, unit):
    """64 blocks in each kind of backup, and one that is not kept."""
    for backup in ("pinned", "pageable", "file"):
        with gapless.tag(backup, backup=backup):
            blocks = [numbers(unit, start) for start in range(64)]
        with gapless.tag("scratch", backup="discard"):
            scratch = numbers(32 * unit, 0)
        places = [block.data_ptr() for block in blocks]
        freed, slept = given_back(lambda: gapless.sleep(backup, "scratch"))
        checks.expect(freed >= 96 * unit * MIB, "memory goes back to the device")
        checks.expect(slept.copied_bytes == 64 * unit * MIB, "what is discarded is not copied")
        gapless.wake()
        right = all(holds(block, start) for start, block in enumerate(blocks))
        checks.expect(right and places == [block.data_ptr() for block in blocks], f"the bytes are there again: {backup}")
        del blocks, scratch


def behind_work(checks, gapless, unit):
    """A sleep waits for what uses the memory, on whatever stream."""
    with gapless.tag("work"):
        block, out = numbers(4 * unit, 1), torch.zeros(4 * unit * MIB // 4, dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        out.copy_(block)
    block.record_stream(side)
    out.record_stream(side)
    gapless.sleep()
    gapless.wake()
    checks.expect(holds(block, 1) and holds(out, 1), "a sleep waits for work that is queued")


def for_another_process(checks, gapless, unit):
    """Most of the device sleeps, and another process has it."""
    size = int(torch.cuda.mem_get_info()[0] * 0.6) // MIB * MIB
    with gapless.tag("most", backup="discard"):
        most = torch.empty(size, dtype=torch.uint8, device="cuda")
    kept = numbers(16 * unit, 5)
    gapless.sleep()
    other = subprocess.run([sys.executable, __file__, "--other", str(size)], capture_output=True, text=True, timeout=50)
    checks.expect(other.returncode == 0, f"another process has the memory {other.stderr[-300:]}".strip())
    gapless.wake(wait=20)
    checks.expect(holds(kept, 5) and most.numel() == size, "and gives it back before the wake")


def short_of_memory(checks, gapless, unit):
    """A wake that the device has no memory for changes nothing."""
    with gapless.tag("large"):
        blocks = [numbers(4 * unit, start) for start in range(64)]
    from gapless import OutOfMemoryError

    gapless.sleep()
    asleep = gapless.asleep()
    free = torch.cuda.mem_get_info()[0]
    with Device().block(free - 128 * unit * MIB):
        before = held()
        try:
            gapless.wake()
        except OutOfMemoryError as error:
            checks.expect("asleep" in str(error), "a wake that is short of memory says so")
        else:
            checks.expect(False, "a wake that is short of memory fails")
        checks.expect(gapless.asleep() == asleep and held() - before <= 2 * MIB, "and leaves everything asleep")
    gapless.wake()
    right = all(holds(block, start) for start, block in enumerate(blocks))
    checks.expect(right, "once there is memory, a wake works")


def graphs(checks, gapless, _unit):
    """A graph that was captured before a sleep replays after the wake."""
    weights, x = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        (x * weights).relu()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * weights).relu()
    graph.replay()
    expected = y.clone()
    for _ in range(3):
        gapless.sleep()
        gapless.wake()
        y.zero_()
        graph.replay()
    checks.expect(torch.equal(y, expected), "a graph replays after a wake")


def training(checks, gapless, _unit):
    """A training that sleeps after every second step has the losses of one that does not."""

    def losses(between):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data, found = torch.Generator().manual_seed(1), []
        for step in range(10):
            batch = torch.randn(256, 1024, generator=data).cuda()
            optimizer.zero_grad(set_to_none=True)
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            if step % 2:
                between()
        return found

    def nap():
        freed, slept = given_back(gapless.sleep)
        checks.expect(freed >= slept.asleep_bytes > 0, "a whole process sleeps")
        checks.expect(torch.cuda.memory_reserved() <= SLACK, "nothing is reserved while it sleeps")
        gapless.wake(retain=True)

    checks.expect(losses(lambda: None) == losses(nap), "losses are those of a training that does not sleep")


def main():
    parser = measure.parser(__doc__)
    parser.add_argument("--other", type=int, help="take so many bytes of the device, as another process")
    arguments = parser.parse_args()
    if arguments.other is not None:
        device = Device()
        device.make_current()
        with device.block(arguments.other):
            return
    import gapless.torch

    checks = measure.Checks(kernels=not arguments.no_kernels)
    measure.prepare(arguments.limit)
    cases = [kinds_of_backup, behind_work, short_of_memory, graphs, for_another_process]
    # Where no kernel runs, cuBLAS does not start.
    for case in cases if arguments.no_kernels else [*cases, training]:
        case(checks, gapless.torch, 1 if arguments.small else 16)
        gc.collect()
        torch.cuda.empty_cache()
    measure.finish({"checks": checks.done})


if __name__ == "__main__":
    main()
