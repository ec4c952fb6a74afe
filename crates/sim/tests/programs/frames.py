"""Breaks rules of the driver, most of them by giving back a handle that nobody has, in functions that are then in the stacks.

Lines that a test looks for end with ``# here``. ``frames.py CASE`` has the cases ``everywhere FILE``, which writes to the file,
``locked``, in which all calls keep the interpreter's lock, and ``late``, in which one comes when little is left of it.
"""

import codecs
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time

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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    cuda.cuMemRelease(HANDLE)  # here
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_a_child():
    for _ in range(300):
        cuda.cuMemRelease(HANDLE)  # here


def beside_a_child():
    for _ in range(300):
        cuda.cuMemRelease(HANDLE)  # here


ready = threading.Barrier(8)


def deep(frames, offset):
    if frames == 0:
        ready.wait()
        for _ in range(300):
            cuda.cuMemMap(HANDLE, HANDLE, offset, HANDLE, ctypes.c_uint64(0))
    else:
        deep(frames - 1, offset)


def in_many_threads():
    """Each with another number of frames, many of them. Every second one has an offset, which breaks another rule."""
    threads = [threading.Thread(target=deep, args=(frames, ctypes.c_size_t(frames % 2))) for frames in range(60, 68)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def after_descriptors_were_closed():
    os.closerange(3, 64)
    # This file is somebody's, and nothing is to be written to it.
    with open(sys.argv[2], "w+b", buffering=0) as own:
        own.write(b"as it was")
        cuda.cuMemRelease(HANDLE)
        cuda.cuMemRelease(ctypes.c_uint64(8))
        os.lseek(own.fileno(), 0, os.SEEK_SET)
        assert own.read() == b"as it was"


class Last:
    def __del__(self):
        cuda.cuMemRelease(HANDLE)  # here


def after_all(_, release=cuda.cuMemRelease, handle=HANDLE):
    release(handle)


class AfterAll:
    __del__ = after_all

    def __call__(self, name):
        """As a search for a codec."""


def handled():
    """The real-time signals that have a handler."""
    with open("/proc/self/status") as file:
        caught = int(file.read().split("SigCgt:")[1].split()[0], 16)
    return {number for number in range(signal.SIGRTMIN, signal.NSIG) if caught >> (number - 1) & 1}


def locked():
    keeping.cuInit(0)
    for _ in range(2):
        keeping.cuMemRelease(HANDLE)
        # The interpreter is free meanwhile.
        time.sleep(0.5)
    with_the_lock()


def late():
    cuda.cuInit(0)
    in_the_main_thread()
    codecs.register(AfterAll())


def everywhere():
    before = handled()
    cuda.cuInit(0)
    in_the_main_thread()
    assert len(handled() - before) == 1
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
    beside_a_child()
    assert os.waitpid(child, 0)[1] == 0
    in_many_threads()
    after_descriptors_were_closed()
    global last
    last = Last()


{
    "everywhere": everywhere,
    "locked": locked,
    "late": late,
}[sys.argv[1]]()
