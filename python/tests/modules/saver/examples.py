"""What torch_memory_saver's own examples check, told anew without kernels: one function each, in mode torch or preload.

No case knows of gapless.
"""

import ctypes
import os
import tempfile

import torch
from device_memory import MIB, SLACK, empty, empty_cache, filled, gives_back, held, pattern, takes
from torch_memory_saver import torch_memory_saver as saver


def simple(mode):
    """A region is paused and resumed; what lies outside stays."""
    outside, of_outside = filled(10 * MIB, 1)
    with saver.region():
        inside = empty(300 * MIB)
    address = inside.data_ptr()
    gives_back(300 * MIB, saver.pause)
    assert torch.equal(outside.cpu(), of_outside)
    takes(300 * MIB, saver.resume)
    assert inside.data_ptr() == address
    inside[:1000].copy_(pattern(1000, 2))
    assert torch.equal(inside[:1000].cpu(), pattern(1000, 2)) and torch.equal(outside.cpu(), of_outside)
    empty_cache()
    del outside, inside
    empty_cache()


def graph_and_cache(mode):
    """A graph is replayed after its cache, and in mode preload its own memory too, was away."""
    size = 40 * MIB
    with saver.region(tag="kv_cache"):
        cache, _ = filled(size, 3)
    output = empty(1000)

    def step():
        # Stays in the pool of the graph.
        intermediate = empty(size)
        intermediate.copy_(cache)
        output.copy_(intermediate[-1000:])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graph") if mode == "preload" else torch.cuda.graph(graph):
        step()
    graph.replay()
    assert torch.equal(output.cpu(), pattern(size, 3)[-1000:])
    empty_cache()
    gives_back(size, lambda: saver.pause("kv_cache"))
    if mode == "preload":
        gives_back(size, lambda: saver.pause("graph"))
    other = empty(900 * MIB if mode == "preload" else 850 * MIB)
    del other
    empty_cache()
    if mode == "preload":
        saver.resume("graph")
    saver.resume("kv_cache")
    cache.copy_(pattern(size, 4))
    graph.replay()
    assert torch.equal(output.cpu(), pattern(size, 4)[-1000:])


def backups(mode):
    """Bytes come back where there is a backup, in both kinds of host memory; it is gone after the resume."""
    assert saver.retain_cpu_backup is False
    for backend in ("mmap", "pinned"):
        with saver.region(enable_cpu_backup=True, cpu_backup_backend=backend):
            kept, of_kept = filled(20 * MIB, 10)
            typed = torch.arange(6000, dtype=torch.float32).view(10, 20, 30).to("cuda")
        with saver.region(enable_cpu_backup=False):
            lost, of_lost = filled(20 * MIB, 20)
        saver.pause()
        on_host = saver.get_cpu_backup(typed)
        assert torch.equal(on_host, torch.arange(6000, dtype=torch.float32).view(10, 20, 30))
        assert torch.equal(saver.get_cpu_backup(kept), of_kept)
        unrelated, _ = filled(20 * MIB, 30)
        saver.resume()
        assert torch.equal(kept.cpu(), of_kept) and torch.equal(typed.cpu(), on_host)
        assert not torch.equal(lost[:1000].cpu(), of_lost[:1000])
        assert saver.get_cpu_backup(typed) is None
        del kept, typed, lost, unrelated
        empty_cache()


def bytes_are_back_for_every_stream(mode):
    """A resume has restored what work of another stream reads next."""
    with saver.region(enable_cpu_backup=True, cpu_backup_backend="mmap"):
        restored, host = filled(64 * MIB, 7)
    saver.pause()
    saver.resume()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out = restored.clone()
    stream.synchronize()
    assert torch.equal(out.cpu(), host)


def retained_backups(mode):
    """A backup that is retained keeps its address over cycles and has the newest bytes; tags do not touch each other."""
    with saver.region(tag="retained", enable_cpu_backup=True):
        selected, expected = filled(1024, 40)
    with saver.region(tag="other", enable_cpu_backup=True):
        other, of_other = filled(1024, 80)
    addresses = set()

    def backup_is(expected):
        backup = saver.get_cpu_backup(selected, zero_copy=True)
        assert torch.equal(backup, expected)
        addresses.add(backup.data_ptr())

    saver.pause("retained")
    backup_is(expected)
    assert torch.equal(other.cpu(), of_other)
    saver.retain_cpu_backup = True
    saver.resume("retained")
    backup_is(expected)
    saver.retain_cpu_backup = False
    backup_is(expected)
    for seed in (50, 60):
        expected = pattern(1024, seed)
        selected.copy_(expected)
        saver.pause("retained")
        backup_is(expected)
        saver.retain_cpu_backup = seed == 50
        saver.resume("retained")
        assert torch.equal(selected.cpu(), expected)
        if seed == 50:
            backup_is(expected)
    assert saver.get_cpu_backup(selected) is None
    assert len(addresses) == 1


def retained_backups_end_with_the_pool(mode):
    """The host memory of a retained backup is freed with the memory that it is of, asleep or awake."""
    runtime = ctypes.CDLL(None)

    def is_allocated(address):
        error = runtime.cudaHostGetFlags(ctypes.byref(ctypes.c_uint()), ctypes.c_void_p(address))
        runtime.cudaGetLastError()
        return error == 0

    for is_paused in (False, True):
        tag = f"retained {is_paused}"
        with saver.region(tag=tag, enable_cpu_backup=True):
            block, host = filled(4096, 100)
        saver.retain_cpu_backup = True
        saver.pause(tag)
        backup = saver.get_cpu_backup(block, zero_copy=True)
        on_host = backup.data_ptr()
        if not is_paused:
            saver.resume(tag)
            backup = saver.get_cpu_backup(block, zero_copy=True)
        assert backup.data_ptr() == on_host and torch.equal(backup, host)
        assert is_allocated(on_host)
        pool = saver._impl._mem_pools.pop((tag, True, False, "pinned", 0))
        del backup
        with saver._impl._with_region_config(tag=tag, enable_cpu_backup=True, cpu_backup_backend="pinned"):
            del block, pool
            empty_cache()
        assert not is_allocated(on_host)
        saver.retain_cpu_backup = False


def retained_by_the_environment(mode):
    assert saver.retain_cpu_backup is True


def backend_of_the_environment(mode):
    """The kind of host memory comes from the environment where a region names none."""
    saver._ensure_initialized()
    backend = saver._impl._binary_wrapper.cdll.tms_get_cpu_backup_backend
    assert backend() == b"mmap"
    with saver.region(enable_cpu_backup=True):
        block, host = filled(20 * MIB, 10)
    assert backend() == b"mmap"
    saver.pause()
    assert torch.equal(saver.get_cpu_backup(block), host)
    saver.resume()
    assert torch.equal(block.cpu(), host) and saver.get_cpu_backup(block) is None


def backups_on_disk(mode):
    """Files hold the bytes, in a folder that the program names, and do not grow over cycles."""
    place = tempfile.TemporaryDirectory()
    folder = place.name
    saver.set_disk_backup_dir(folder)
    with saver.region(enable_disk_backup=True):
        kept, of_kept = filled(20 * MIB, 10)
    with saver.region():
        lost, of_lost = filled(20 * MIB, 20)
    sizes = set()
    for _ in range(3):
        gives_back(40 * MIB, saver.pause)
        sizes.add(sum(entry.stat().st_size for entry in os.scandir(folder)))
        unrelated, _ = filled(20 * MIB, 30)
        del unrelated
        empty_cache()
        saver.resume()
        assert torch.equal(kept.cpu(), of_kept) and not torch.equal(lost.cpu(), of_lost)
    assert len(sizes) == 1


def trainer_and_engine(mode):
    """Weights and a cache have tags of their own; a graph reads both after they were away."""
    with saver.region(tag="kv_cache"):
        cache, of_cache = filled(60 * MIB, 1)
    with saver.region(tag="model_weights"):
        weights, of_weights = filled(50 * MIB, 2)
    addresses = cache.data_ptr(), weights.data_ptr()
    output = empty(2000)

    def step():
        output[:1000].copy_(cache[:1000])
        output[1000:].copy_(weights[:1000])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay_reads(first, second):
        graph.replay()
        assert torch.equal(output.cpu(), torch.cat([first[:1000], second[:1000]]))

    replay_reads(of_cache, of_weights)
    gives_back(60 * MIB, lambda: saver.pause("kv_cache"))
    gives_back(50 * MIB, lambda: saver.pause("model_weights"))
    takes(50 * MIB, lambda: saver.resume("model_weights"))
    takes(60 * MIB, lambda: saver.resume("kv_cache"))
    assert (cache.data_ptr(), weights.data_ptr()) == addresses
    of_cache, of_weights = pattern(60 * MIB, 3), pattern(50 * MIB, 4)
    cache.copy_(of_cache)
    weights.copy_(of_weights)
    replay_reads(of_cache, of_weights)
    saver.pause("kv_cache")
    assert torch.equal(weights.cpu(), of_weights)
    saver.resume("kv_cache")


def another_device_in_a_region(mode):
    """A region has memory of a device that is not the current one."""
    torch.cuda.set_device(1)

    def block(device, seed):
        with saver.region():
            return empty(100 * MIB, device)

    blocks = []
    takes(100 * MIB, lambda: blocks.append(block("cuda:0", 1)), 0)
    takes(100 * MIB, lambda: blocks.append(block("cuda", 2)), 1)
    takes(100 * MIB, lambda: blocks.append(block("cuda:1", 3)), 1)
    before = held(0), held(1)
    saver.pause()
    saver.resume()
    assert (held(0), held(1)) >= before


def a_region_for_each_device(mode):
    """Each device is the current one for its region; both are paused and resumed."""
    blocks = []
    for device in range(2):
        torch.cuda.set_device(device)
        with saver.region(tag="t"):
            blocks.append(empty(100 * MIB, f"cuda:{device}"))
    before = held(0), held(1)
    saver.pause("t")
    assert all(then - held(device) >= 100 * MIB - SLACK for device, then in enumerate(before))
    saver.resume("t")
    assert all(held(device) >= then for device, then in enumerate(before))
    for device, block in enumerate(blocks):
        block[:1000].copy_(pattern(1000, device))
        assert torch.equal(block[:1000].cpu(), pattern(1000, device))


def backups_of_each_device(mode):
    """What was paused on two devices is resumed by one call, on whichever is the current one."""
    blocks = []
    for device in range(2):
        torch.cuda.set_device(device)
        with saver.region(tag=f"of {device}", enable_cpu_backup=True, cpu_backup_backend="mmap"):
            blocks.append(filled(64 * MIB, device, f"cuda:{device}"))
    for device in range(2):
        torch.cuda.set_device(device)
        saver.pause(f"of {device}")
    torch.cuda.set_device(0)
    saver.resume()
    assert torch.cuda.current_device() == 0
    assert all(torch.equal(block.cpu(), host) for block, host in blocks)


def a_whole_trainer(mode):
    """Everything of the process is paused: a trainer whose environment asks for it, with memory that is left out."""
    first, of_first = filled(MIB, 1)
    held_at_first = held()
    weights = [filled(size, seed) for seed, size in enumerate((64 * MIB, MIB, 1024, 42))]

    def forward_pass():
        assert all(torch.equal(block.cpu(), host) for block, host in weights)
        activations = [empty(128 * MIB), empty(128 * MIB)]
        del activations

    forward_pass()
    held_awake = held()
    assert held_awake >= held_at_first + 300 * MIB
    saver.pause()
    held_paused = held()
    assert held_paused <= held_at_first + SLACK
    with saver.disable():
        assert held() == held_paused
        outside, of_outside = filled(64 * MIB, 53)
        assert torch.equal(outside.cpu(), of_outside)
        more = empty(256 * MIB)
        assert held() >= held_paused + 320 * MIB
        del outside, more
    assert held() <= held_paused + 10 * MIB
    saver.resume()
    assert abs(held() - held_awake) <= SLACK
    held_again = held()
    forward_pass()
    assert abs(held() - held_again) <= MIB
    # What is cached makes room.
    a, b = empty(300 * MIB), empty(300 * MIB)
    del a, b
    c = empty(600 * MIB)
    assert torch.equal(first.cpu(), of_first)
    del c


def regions_in_regions(mode):
    """The inner region counts, and the outer one again after it; the environment's is the outermost."""
    saver._ensure_initialized()
    cdll = saver._impl._binary_wrapper.cdll

    def state():
        return (
            cdll.tms_get_interesting_region(),
            cdll.tms_get_enable_cpu_backup(),
            cdll.tms_get_current_tag(),
            cdll.tms_get_cpu_backup_backend(),
        )

    assert state() == (True, True, b"default", b"pinned")
    weight, of_weight = filled(40 * MIB, 42)
    with saver.region(tag="grad_buffer", enable_cpu_backup=False):
        assert state() == (True, False, b"grad_buffer", b"pinned")
        gradients, of_gradients = filled(40 * MIB, 99)
    assert state() == (True, True, b"default", b"pinned")
    with saver.region(enable_cpu_backup=True, cpu_backup_backend="mmap"):
        assert state() == (True, True, b"default", b"mmap")
        empty(1024)
    assert state() == (True, True, b"default", b"pinned")
    gives_back(80 * MIB, saver.pause)
    saver.resume()
    assert torch.equal(weight.cpu(), of_weight) and not torch.equal(gradients.cpu(), of_gradients)
    gradients.copy_(of_gradients)
    assert torch.equal(gradients.cpu(), of_gradients)
    extra, of_extra = filled(40 * MIB, 7)
    saver.pause()
    saver.resume()
    assert torch.equal(extra.cpu(), of_extra)


def memory_of_another_library(mode):
    """A library's own cudaMalloc is paused with the rest, whatever its size."""
    api = ctypes.CDLL(None)
    pointer = ctypes.c_void_p()
    assert api.cudaSetDevice(0) == 0 and api.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(6912)) == 0
    api.tms_pause(None)
    api.tms_resume(None)
    assert api.cudaFree(pointer) == 0
