"""Gives handles back that nobody has: each function below breaks the rule ``release_twice`` once, and is in the stack of that call.

Lines that are looked for end with ``# here``.
"""

import ctypes
import faulthandler
import os
import signal
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
# Calls through this one keep the interpreter's lock.
keeping = ctypes.PyDLL("libcuda.so.1")
HANDLE = ctypes.c_uint64(7)


def in_the_main_thread():
    cuda.cuMemRelease(HANDLE)  # here


def in_a_second_thread():
    cuda.cuMemRelease(HANDLE)  # here


def with_the_lock():
    keeping.cuMemRelease(HANDLE)  # here


def with_all_signals_blocked():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    cuda.cuMemRelease(HANDLE)  # here
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_a_child():
    cuda.cuMemRelease(HANDLE)  # here


def after_descriptors_were_closed():
    os.closerange(3, 64)
    # This file is somebody's, and nothing is to be written to it.
    with open(sys.argv[1], "w+b", buffering=0) as own:
        own.write(b"as it was")
        cuda.cuMemRelease(HANDLE)
        cuda.cuMemRelease(ctypes.c_uint64(8))
        os.lseek(own.fileno(), 0, os.SEEK_SET)
        assert own.read() == b"as it was"


def when_it_ends():
    cuda.cuMemRelease(HANDLE)  # here


class Last:
    def __del__(self):
        cuda.cuMemRelease(HANDLE)  # here


def handled():
    """The signals that have something else to call than they have by default."""
    real_time = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    status = open("/proc/self/status").read()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return [number for number in real_time if caught >> (number - 1) & 1]


if __name__ == "__main__":
    before = handled()
    cuda.cuInit(0)
    in_the_main_thread()
    assert len(handled()) <= len(before) + 1
    thread = threading.Thread(target=in_a_second_thread)
    thread.start()
    thread.join()
    with_the_lock()
    with_all_signals_blocked()
    # What a program has asked of it for itself stays as it was.
    assert not faulthandler.is_enabled()
    child = os.fork()
    if child == 0:
        in_a_child()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    when_it_ends()
    if len(sys.argv) > 1:
        after_descriptors_were_closed()
    last = Last()
