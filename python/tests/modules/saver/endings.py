"""What ends a process of torch_memory_saver 0.0.10, or loses bytes there: one function each, in mode torch or preload."""

import ctypes
import functools
import sys
import threading

import torch
from device_memory import MIB, SLACK, empty, empty_cache, filled, held
from torch_memory_saver import torch_memory_saver as saver


def two_tags(backup):
    with saver.region(tag="a", enable_cpu_backup=backup):
        a = filled(200 * MIB, 1)
    with saver.region(tag="b", enable_cpu_backup=backup):
        b = filled(200 * MIB, 2)
    return a, b


def are_awake(blocks, backup):
    """Blocks have memory, and their bytes where there was a backup."""
    for block, host in blocks:
        if not backup:
            block.copy_(host)
    assert all(torch.equal(block.cpu(), host) for block, host in blocks)


def short_at_wake(mode, backup=True):
    """The device is short at a resume, which is refused as a whole; it works once there is memory."""
    blocks = two_tags(backup)
    saver.pause()
    others = [empty(300 * MIB), empty(400 * MIB)]
    before = held()
    try:
        saver.resume()
    except RuntimeError:
        pass
    else:
        raise AssertionError("nobody had the memory")
    assert held() == before
    others.clear()
    empty_cache()
    saver.resume()
    are_awake(blocks, backup)


def paused_twice(mode, backup=True):
    blocks = two_tags(backup)
    saver.pause()
    before = held()
    saver.pause()
    saver.pause("a")
    assert held() == before
    saver.resume()
    are_awake(blocks, backup)


def resumed_twice(mode, backup=True):
    blocks = two_tags(backup)
    saver.pause()
    saver.resume()
    saver.resume()
    saver.resume("a")
    are_awake(blocks, backup)


def resumed_without_a_pause(mode, backup=True):
    blocks = two_tags(backup)
    saver.resume()
    are_awake(blocks, backup)


def paused_as_a_whole_after_a_tag(mode, backup=True):
    """One tag is away already when all are paused, and is awake already when all are resumed."""
    blocks = two_tags(backup)
    saver.pause("a")
    saver.pause()
    saver.resume("b")
    saver.resume()
    are_awake(blocks, backup)


def allocated_while_paused(mode, backup=True):
    blocks = two_tags(backup)
    saver.pause("a")
    with saver.region(tag="a", enable_cpu_backup=backup):
        fresh = filled(50 * MIB, 3)
    assert torch.equal(fresh[0].cpu(), fresh[1])
    saver.resume("a")
    assert torch.equal(fresh[0].cpu(), fresh[1])
    are_awake(blocks, backup)


def freed_while_paused(mode, backup=True):
    a, b = two_tags(backup)
    saver.pause()
    del a
    saver.resume()
    are_awake([b], backup)
    with saver.region(tag="a", enable_cpu_backup=backup):
        again = filled(200 * MIB, 4)
    are_awake([again, b], backup)


def pool_given_back_outside_of_a_region(mode, backup=True):
    """Pools end where no region is."""
    blocks = two_tags(backup)
    del blocks
    saver._impl._mem_pools.clear()
    empty_cache()
    assert held() <= SLACK


def ends_by_itself(mode, backup=True):
    """The interpreter ends while a script has tensors of a region."""
    sys.modules["__main__"].kept_to_the_end = two_tags(backup)


WITH_AND_WITHOUT_A_BACKUP = (
    short_at_wake,
    paused_twice,
    resumed_twice,
    resumed_without_a_pause,
    paused_as_a_whole_after_a_tag,
    allocated_while_paused,
    freed_while_paused,
    pool_given_back_outside_of_a_region,
    ends_by_itself,
)
for case in WITH_AND_WITHOUT_A_BACKUP:
    globals()[f"{case.__name__}_without_a_backup"] = functools.partial(case, backup=False)


def paused_under_work(mode):
    """Work that was queued before a pause reads its bytes, though they are not needed after it."""
    with saver.region(tag="a"):
        block, host = filled(200 * MIB, 1)
    out = empty(200 * MIB)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    is_over = ctypes.c_bool(False)
    with torch.cuda.stream(stream):
        held_back = ctypes.CDLL("libcuda.so.1").gapless_sim_hold(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(is_over))
        assert held_back == 0
        out.copy_(block)
        block.record_stream(stream)
    threading.Timer(1, lambda: setattr(is_over, "value", True)).start()
    saver.pause("a")
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), host)
    saver.resume("a")


def more_than_there_is_in_a_region(mode):
    """A request in a region that the device cannot serve raises what PyTorch raises."""
    with saver.region(tag="a"):
        try:
            empty(4096 * MIB)
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("there is no such memory")


def backup_of_other_memory(mode):
    """Memory that was made outside of regions has no backup."""
    outside = empty(MIB)
    with saver.region(tag="a", enable_cpu_backup=True):
        inside = filled(20 * MIB, 2)
    saver.pause()
    assert saver.get_cpu_backup(outside) is None
    saver.resume()
    are_awake([inside], backup=True)


def backup_of_a_region_without(mode):
    with saver.region(tag="a"):
        block = empty(20 * MIB)
    saver.pause()
    assert saver.get_cpu_backup(block) is None
    saver.resume()
