"""Sends tensors between two processes in both directions: ``ipc_script.py SENDER RECEIVER``, each native, object or plug-in.

A receiver that is "object, keeping" keeps what it has closed mapped.

Bytes are compared, of what is sent whole, in pieces, and freed before it is received. Prints what the sender is left with.
Neither process may call ``ptrace`` or ``pidfd_getfd``, as in most containers.
"""

import ctypes
import errno
import gc
import os
import pickle
import struct
import signal
import sys

ALLOCATOR = "IPC_SCRIPT_ALLOCATOR"
PTRACE, PIDFD_GETFD = 101, 438


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def deny():
    """A filter of system calls, which child processes inherit."""

    def instruction(code, equal, other, value):
        return struct.pack("HBBI", code, equal, other, value)

    load, jump_if_equal, end = 0x20, 0x15, 0x06
    allowed, refused = 0x7FFF0000, 0x00050000 | errno.EPERM
    instructions = [
        instruction(load, 0, 0, 0),
        instruction(jump_if_equal, 2, 0, PTRACE),
        instruction(jump_if_equal, 1, 0, PIDFD_GETFD),
        instruction(end, 0, 0, allowed),
        instruction(end, 0, 0, refused),
    ]
    program = Program(len(instructions), b"".join(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, with_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(seccomp, with_filter, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())
    assert libc.syscall(PIDFD_GETFD, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM



def start(allocator):
    if allocator == "native":
        import gapless.ipc  # noqa: F401
        return
    os.environ["GAPLESS_TORCH_OBJECTS"] = "off" if allocator == "plug-in" else os.environ["IPC_SCRIPT_OBJECTS"]
    import gapless.torch

    gapless.torch.enable()
    if allocator == "object, keeping":
        import gapless.ipc

        gapless.ipc.keep_closed(1 << 30)


if ALLOCATOR not in os.environ:
    deny()
start(os.environ.get(ALLOCATOR) or sys.argv[1])

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from gapless import _library  # noqa: E402
from multiprocessing.reduction import ForkingPickler  # noqa: E402

SIZES = (1, 700, 4096, 300_000, 1 << 20, 6 << 20)


def numbers(size, seed):
    return (torch.arange(size, dtype=torch.int64) * 31 + seed * 7919).to(torch.uint8)


def on_device(host):
    return torch.empty_like(host, device="cuda").copy_(host)


def make(seed):
    """Tensors of storages of their own, and pieces of one."""
    hosts = [numbers(size, seed + index) for index, size in enumerate(SIZES)]
    tensors = [on_device(host) for host in hosts]
    whole = numbers(3 << 20, seed + 99)
    parts, ours = whole.split(1 << 18), on_device(whole).split(1 << 18)
    return [*hosts, *parts], [*tensors, *ours]


def same(hosts, tensors):
    return len(hosts) == len(tensors) and all(torch.equal(host, tensor.cpu()) for host, tensor in zip(hosts, tensors))


def receiver(inbox, outbox):
    while (message := inbox.get()) is not None:
        kind, hosts, tensors = message
        if kind == "pickled":
            tensors = pickle.loads(tensors)
        outbox.put(same(hosts, tensors))
        if kind == "write":
            tensors[-1].copy_(numbers(tensors[-1].numel(), 1000))
            torch.cuda.synchronize()
            outbox.put("written")
        if kind == "answer":
            outbox.put((hosts, [on_device(host) for host in hosts]))
        del message, hosts, tensors
        gc.collect()
    torch.cuda.synchronize()


def settled():
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), len(os.listdir("/proc/self/fd"))


def stale():
    """A tensor that is freed, one whose process is stopped, and one whose process has ended, which nobody had opened."""
    context = mp.get_context("spawn")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=pickles, args=(inbox, outbox))
    child.start()
    # Not by gapless.ipc, which replaces what PyTorch does with handles by itself where the object is used.
    _library.load().gapless_import_patience(50)
    for kind in ("freed", "stopped", "ended"):
        pickled = outbox.get()
        inbox.put("go on")
        assert outbox.get() == kind
        if kind == "stopped":
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
        if kind == "ended":
            child.kill()
            child.join()
        try:
            pickle.loads(pickled)
        except RuntimeError as error:
            print(f"{kind}: {error}".splitlines()[0], flush=True)
        else:
            raise AssertionError(kind)
        finally:
            if kind == "stopped":
                os.kill(child.pid, signal.SIGCONT)
    assert torch.cuda.memory_allocated() == 0
    os._exit(0)


def pickles(inbox, outbox):
    tensor = on_device(numbers(5000, 1))
    # What the reference counts of torch.multiprocessing prevent: the block itself is freed.
    handle = bytes(ForkingPickler.dumps(tensor))
    outbox.put(handle)
    inbox.get()
    torch.cuda.caching_allocator_delete(tensor.data_ptr())
    outbox.put("freed")
    for seed, kind in enumerate(("stopped", "ended"), 2):
        outbox.put(bytes(ForkingPickler.dumps(on_device(numbers(5000, seed)))))
        inbox.get()
        outbox.put(kind)
    inbox.get()


def main():
    os.environ[ALLOCATOR] = sys.argv[2]
    os.environ["GAPLESS_TORCH"] = "0"
    if sys.argv[3:] == ["stale"]:
        stale()
    context = mp.get_context("spawn")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    child = context.Process(target=receiver, args=(inbox, outbox))
    child.start()

    def sent(kind, hosts, tensors):
        inbox.put((kind, hosts, tensors))
        assert outbox.get() is True, kind

    first = None
    for turn in range(3):
        hosts, tensors = make(turn)
        sent("compare", hosts, tensors)
        # The same tensors again: what is open is used again.
        sent("write", hosts, tensors)
        assert outbox.get() == "written"
        assert same([numbers(tensors[-1].numel(), 1000)], [tensors[-1]])

        hosts, tensors = make(turn + 10)
        sent("pickled", hosts, bytes(ForkingPickler.dumps(tensors)))

        # Freed before it is received: what is allocated then lies elsewhere.
        hosts, tensors = make(turn + 20)
        pickled = bytes(ForkingPickler.dumps(tensors))
        del tensors
        gc.collect()
        others = make(turn + 30)
        sent("pickled", hosts, pickled)
        assert same(*others)
        del others

        # From the child. PyTorch lets no plug-in send.
        if sys.argv[2] != "plug-in":
            sent("answer", hosts, make(turn + 20)[1])
            theirs, received = outbox.get()
            assert same(theirs, received)
            del theirs, received
        del hosts
        left = settled()
        first = first or left
        assert left == first, f"{left} are left, {first} after the first turn"
    inbox.put(None)
    child.join()
    assert child.exitcode == 0, child.exitcode
    print(f"allocated {settled()[0]}", flush=True)
    # PyTorch's threads may still run when the interpreter ends, and then end the process in their own way.
    os._exit(0)


if __name__ == "__main__":
    main()
