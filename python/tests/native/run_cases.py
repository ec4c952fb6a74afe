"""Runs cases and functions in this process: ``run_cases.py MODE [SKIPPED]``, where ``MODE`` is native or gapless.

The first ones, as many as ``SKIPPED`` says, are left out. Prints one line of JSON each.
"""

import gc
import json
import sys
import warnings

if sys.argv[1] == "gapless":
    import gapless.torch

    gapless.torch.enable()

import torch  # noqa: E402
import cases  # noqa: E402
import newer_cases  # noqa: E402
from functions import FUNCTIONS  # noqa: E402


def settle():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def tell(kind, name, run):
    settle()
    marks, failure = {}, None

    def mark(label):
        marks[label] = torch.cuda.memory_stats()

    try:
        result = type(run(mark)).__name__
    except BaseException as error:
        failure, result = f"{type(error).__name__}: {error}".splitlines()[0], None
    print(json.dumps({"kind": kind, "name": name, "failure": failure, "result": result, "marks": marks}), flush=True)


torch.cuda.init()
warnings.simplefilter("ignore")
WORK = [("case", name, case) for name, case in {**cases.CASES, **newer_cases.CASES}.items()]
WORK += [("function", name, lambda mark, call=call: call()) for name, call in FUNCTIONS.items()]
for kind, name, run in WORK[int(sys.argv[2]) if len(sys.argv) > 2 else 0 :]:
    print(json.dumps({"kind": kind, "name": name}), flush=True)
    tell(kind, name, run)
