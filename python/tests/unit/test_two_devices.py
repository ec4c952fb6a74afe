"""Two devices in one process: what PyTorch's plug-in interface does between them, over the simulated driver."""

import pytest

DRIVER = """
import ctypes, time, gapless
from gapless import _library
library = _library.load()
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
BYTES = 4 << 20

def check(code): assert code == 0, code

def use(device):
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))

def stream():
    handle = ctypes.c_void_p()
    check(cuda.cuStreamCreate(ctypes.byref(handle), 1))
    return handle

def fill(address, byte, stream=None):
    check(cuda.cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(BYTES), stream))

def copy(target, source, stream=None):
    u64 = ctypes.c_uint64
    check(cuda.cuMemcpyDtoDAsync_v2(u64(target), u64(source), ctypes.c_size_t(BYTES), stream))

def wait(stream=None): return cuda.cuStreamSynchronize(stream)

def read(address):
    target = ctypes.create_string_buffer(16)
    check(cuda.cuMemcpyDtoH_v2(target, ctypes.c_uint64(address), ctypes.c_size_t(16)))
    return target.raw
"""
MOVE = """
here = library.gapless_torch_malloc(BYTES, 0, None)
use(0); fill(here, 7); check(wait())
there = library.gapless_torch_malloc(BYTES, 1, None)
use(1); copy(there, here)
outcome = wait()
print("moved" if outcome == 0 and read(there) == bytes([7] * 16) else f"lost {outcome}")
"""
TWO = {"GAPLESS_SIM_DEVICES": "2", "GAPLESS_SIM_CAPACITY": "256MiB"}


def test_a_tensor_moves_to_the_other_device(run):
    out = run(DRIVER + MOVE, **TWO)
    assert "moved" in out and "gapless:" not in out, out


@pytest.mark.parametrize("peers", ["none", "0"])
def test_the_key_keeps_others_out(run, peers):
    out = run(DRIVER + MOVE, GAPLESS_CONF=f"peers:{peers}", **TWO)
    assert "lost 700" in out and "gapless:" not in out, out


def test_devices_without_a_path_are_told(run):
    out = run(DRIVER + MOVE, GAPLESS_SIM_PEERS="none", **TWO)
    assert "lost 700" in out
    assert out.count("there is no peer access between device 1 and device 0") == 1, out
    assert 't.cpu().to("cuda:1")' in out and "cudaMemcpyPeerAsync" in out


def test_a_stream_of_the_other_device_is_recorded(run):
    out = run(
        DRIVER
        + """
here = library.gapless_torch_malloc(BYTES, 0, None)
use(0); fill(here, 7); check(wait())
there = library.gapless_torch_malloc(BYTES, 1, None)
use(1)
reader = stream()
library.gapless_torch_record_stream(here, reader)
library.gapless_torch_free(here, BYTES, 0, None)
next = library.gapless_torch_malloc(BYTES, 0, None)
library.gapless_torch_free(next, BYTES, 0, None)
check(wait(reader))
library.gapless_torch_reset()
assert gapless.stats(0)["live_bytes"] == 0
library.gapless_torch_record_stream(there, 0xdead0000)
print("done")
""",
        **TWO,
    )
    assert "done" in out
    assert out.count("gapless:") == 1 and "memory of device 1 cannot be recorded on stream 0xdead0000" in out, out
