"""Runs cases in mode torch or preload, each in a process that is forked from this one before CUDA starts: ``run.py MODE NAME...``.

Prints one line of JSON each: how the process ended, and what it printed.
"""

import json
import os
import sys
import tempfile

import endings
import examples
import interface
import torch
from torch_memory_saver import torch_memory_saver as saver

CASES = {name: case for module in (examples, interface, endings) for name, case in vars(module).items()}


def run(name, mode):
    saver.hook_mode = mode
    CASES[name](mode)
    torch.cuda.synchronize()
    print("passed", flush=True)
    if not name.startswith("ends_by_itself"):
        # torch_memory_saver's free calls exit(1) outside of a region, so also when the interpreter ends its pools.
        os._exit(0)


def main():
    mode, *names = sys.argv[1:]
    for name in names:
        with tempfile.TemporaryFile() as told:
            child = os.fork()
            if child == 0:
                for stream in (1, 2):
                    os.dup2(told.fileno(), stream)
                return run(name, mode)
            _, status = os.waitpid(child, 0)
            told.seek(0)
            text = told.read().decode(errors="replace")
        print(json.dumps({"name": name, "exit": os.waitstatus_to_exitcode(status), "text": text}), flush=True)


if __name__ == "__main__":
    main()
