"""What else torch_memory_saver's interface promises, as its users call it: one function each, in mode torch or preload."""

import contextlib

import torch
from device_memory import MIB, empty, gives_back, held, pattern
from torch_memory_saver import torch_memory_saver as saver


def bad_arguments(mode):
    def refuses(kind, call):
        try:
            with call():
                pass
        except kind:
            return
        raise AssertionError(f"no {kind.__name__}")

    saver._ensure_initialized()
    refuses(AssertionError, lambda: saver.region(enable_cpu_backup=True, enable_disk_backup=True))
    refuses(ValueError, lambda: saver.region(cpu_backup_backend="mmap"))
    refuses(AssertionError, lambda: saver.disable())
    try:
        saver.hook_mode = mode
    except (AssertionError, AttributeError):
        pass
    else:
        raise AssertionError("hook_mode was taken after the start")
    assert saver.enabled is True


def tags_that_nobody_has(mode):
    with saver.region(tag="weights"):
        block = empty(40 * MIB)
    before = held()
    saver.pause("nobody")
    saver.resume("nobody")
    assert held() == before
    # An empty name means all.
    gives_back(40 * MIB, lambda: saver.pause(""))
    saver.resume("")
    del block


def regions_with_an_error_inside(mode):
    """An exception that leaves a region leaves the settings as they were."""
    saver._ensure_initialized()
    cdll = saver._impl._binary_wrapper.cdll
    with contextlib.suppress(KeyError), saver.region(tag="weights", enable_cpu_backup=True):
        raise KeyError
    assert not cdll.tms_get_interesting_region() and cdll.tms_get_current_tag() == b"default"
    assert not cdll.tms_get_enable_cpu_backup()


def region_in_a_capture(mode):
    """Memory of a region that is made while a graph is captured is paused with the others, and the graph is replayed."""
    output = empty(1000)
    with saver.region(tag="a"):
        empty(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with saver.region(tag="a"):
            inside = empty(40 * MIB)
        output.copy_(inside[:1000])
    gives_back(40 * MIB, saver.pause)
    saver.resume()
    inside.copy_(pattern(40 * MIB, 5))
    graph.replay()
    assert torch.equal(output.cpu(), pattern(1000, 5))


def library_buffers_left_out(mode):
    """slime's way to leave a library's buffers out: the flag itself, for a while."""
    saver._ensure_initialized()
    cdll = saver._impl._binary_wrapper.cdll
    with saver.region(tag="weights"):
        inside = empty(40 * MIB)
        was = cdll.tms_get_interesting_region()
        cdll.tms_set_interesting_region(False)
        assert not cdll.tms_get_interesting_region()
        cdll.tms_set_interesting_region(was)
    gives_back(40 * MIB, saver.pause)
    saver.resume()
    del inside
