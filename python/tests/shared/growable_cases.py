"""Tests of gapless.torch.growable, for whatever way PyTorch allocates. The simulated device's memory is the process's own."""

import ctypes
import gc
import os
import threading

import gapless
import gapless.torch
import pytest

gapless.torch.enable()

import torch  # noqa: E402

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert held() == 0


def held():
    return gapless.stats()["range_bytes"]


def limit(size):
    torch.cuda.set_per_process_memory_fraction(size / torch.cuda.get_device_properties(0).total_memory)


def fill(tensor, byte):
    ctypes.memset(tensor.data_ptr(), byte, tensor.numel() * tensor.element_size())


def holds(tensor, byte):
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) == bytes([byte]) * size


def test_it_is_gapless():
    assert gapless.torch.backend() == os.environ.get("GROWABLE_BACKEND", "object")


def test_rows_come_and_go_at_one_address():
    cache = gapless.torch.growable((1 << 20, 4, 1024), dtype=torch.float16)
    assert (len(cache), cache.held_bytes, cache.tensor.shape) == (0, 0, (0, 4, 1024))
    # 8 KiB a row, 8 GiB of addresses: far more than the device has.
    assert (cache.dtype, cache.device) == (torch.float16, torch.device("cuda", 0))
    cache.grow(300)
    start = cache.tensor.data_ptr()
    assert (cache.rows, cache.tensor.shape, cache.held_bytes, held()) == (300, (300, 4, 1024), 4 * MIB, 4 * MIB)
    fill(cache.tensor, 1)
    cache.grow(0)
    cache.grow(212)
    assert cache.held_bytes == 4 * MIB, "the pages had room"
    cache.grow(1000)
    fill(cache.tensor[300:], 2)
    assert (cache.tensor.data_ptr(), cache.whole.data_ptr(), cache.whole.shape) == (start, start, (1 << 20, 4, 1024))
    assert cache.shrink(1000) == 12 * MIB - 4 * MIB
    assert (cache.rows, cache.held_bytes) == (512, 4 * MIB)
    assert cache.shrink(1) == 0, "less than a page"
    assert holds(cache.tensor[:300], 1) and holds(cache.tensor[300:], 2)
    cache.grow(2000)
    assert holds(cache.tensor[:300], 1) and holds(cache.tensor[300:511], 2) and cache.tensor.data_ptr() == start
    assert "rows=2511, max_shape=(1048576, 4, 1024), dtype=torch.float16, device='cuda:0'" in repr(cache)
    cache.close()
    assert held() == 0


def test_what_a_shrink_gives_back_serves_others():
    limit(32 * MIB)
    cache = gapless.torch.growable(64 * MIB, dtype=torch.uint8)
    for _ in range(14):
        cache.grow(2 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="28 MiB held by growable ranges"):
        torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    fill(cache.tensor, 1)
    assert cache.shrink(20 * MIB) == 20 * MIB
    other = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    fill(other, 2)
    assert holds(cache.tensor, 1) and len(cache) == 8 * MIB
    with pytest.raises(gapless.OutOfMemoryError, match="GPU out of memory") as refused:
        cache.grow(20 * MIB)
    assert refused.value.report["range_bytes"] == 8 * MIB
    assert (len(cache), cache.held_bytes) == (8 * MIB, 8 * MIB)
    del other
    cache.grow(20 * MIB)
    assert holds(cache.tensor[: 8 * MIB], 1)


def test_figures_say_what_it_holds():
    torch.cuda.empty_cache()
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    cache = gapless.torch.growable((100, MIB), dtype=torch.uint8)
    cache.grow(6)
    assert torch.cuda.memory_reserved() - reserved == held() == 6 * MIB
    assert torch.cuda.memory_allocated() == allocated
    cache.shrink(6)
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_reserved(), held()) == (reserved, 0)


def test_a_tensor_keeps_the_memory():
    cache = gapless.torch.growable((100, MIB), dtype=torch.uint8)
    cache.grow(4)
    kept = cache.tensor[1:3]
    fill(kept, 3)
    for end in (cache.close, lambda: None):
        end()
        if end is cache.close:
            with pytest.raises(RuntimeError, match="this growable tensor is closed"):
                cache.grow(1)
            assert "closed" in repr(cache) and len(cache) == 0
        gc.collect()
        assert holds(kept, 3) and held() == 4 * MIB
    del kept
    gc.collect()
    assert held() == 0
    # The object goes without a word, and the tensor after it, on another thread.
    cache = gapless.torch.growable((100, MIB), dtype=torch.uint8)
    cache.grow(4)
    kept = [cache.tensor]
    del cache
    gc.collect()
    assert held() == 4 * MIB
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert held() == 0
    with gapless.torch.growable((100, MIB), dtype=torch.uint8) as cache:
        cache.grow(4)
    cache.close()
    assert held() == 0


def test_streams_that_use_it_are_known(capfd):
    recorded, of_a_tensor, current = (torch.cuda.Stream() for _ in range(3))
    for capturing in (recorded, of_a_tensor, current):
        cache = gapless.torch.growable((100, MIB), dtype=torch.uint8)
        with torch.cuda.stream(current):
            cache.grow(4)
        cache.record_stream(recorded.cuda_stream if capturing is current else recorded)
        cache.tensor[2:].record_stream(of_a_tensor)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(capturing):
            graph.capture_begin()
            with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(gapless.GaplessError) as refused:
                cache.shrink(2)
            assert refused.value.kind == gapless.ErrorKind.CANNOT_WAIT
            graph.capture_end()
        assert (len(cache), cache.held_bytes) == (4, 4 * MIB)
        assert cache.shrink(2) == 2 * MIB
        graph.reset()
    with pytest.raises(gapless.NotAStreamError):
        cache.record_stream("recorded")
    assert "gapless:" not in capfd.readouterr().err


def test_a_shrink_waits_for_the_current_stream():
    cache = gapless.torch.growable((100, MIB), dtype=torch.uint8)
    cache.grow(4)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=side):
        with pytest.raises(gapless.GaplessError) as refused:
            cache.shrink(2)
        assert refused.value.kind == gapless.ErrorKind.CANNOT_WAIT
        cache.grow(2)
    assert (len(cache), cache.held_bytes) == (6, 6 * MIB)
    assert cache.shrink(2) == 2 * MIB
    graph.reset()


@pytest.mark.parametrize("shape", [(), 0, -1, (4, 0), (4, -2), 1.5, (2.5, 2), "ab", None])
def test_shapes_that_cannot_be(shape):
    with pytest.raises(ValueError, match="max_shape is the most rows and the sizes of a row, whole numbers from 1 on"):
        gapless.torch.growable(shape)


def test_misuse_is_refused():
    for dtype in ("float32", 4):
        with pytest.raises(TypeError, match="dtype is a torch.dtype, not"):
            gapless.torch.growable(4, dtype=dtype)
    with pytest.raises(ValueError, match="are more than a tensor can have"):
        gapless.torch.growable((1 << 40, 1 << 40))
    with pytest.raises(gapless.GaplessError):
        gapless.torch.growable(1 << 60, dtype=torch.uint8)
    with pytest.raises(ValueError, match="a growable tensor is on a GPU, not on cpu"):
        gapless.torch.growable(4, device="cpu")
    assert gapless.torch.growable(4).dtype == torch.get_default_dtype()
    cache = gapless.torch.growable((4, MIB), dtype=torch.uint8, device=0)
    cache.grow(3)
    with pytest.raises(ValueError, match="there are 3 rows of at most 4: cannot grow by 2"):
        cache.grow(2)
    with pytest.raises(ValueError, match="there are 3 rows: cannot shrink by 4"):
        cache.shrink(4)
    for change in (cache.grow, cache.shrink):
        with pytest.raises(ValueError, match="a number of rows is not negative, as -1 is"):
            change(-1)
        with pytest.raises(TypeError):
            change(1.5)
    assert (len(cache), cache.held_bytes) == (3, 4 * MIB)
