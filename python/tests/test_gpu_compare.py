"""`scripts/gpu-compare`, which decides whether a run on a GPU is as good as the one before."""
import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "scripts/gpu-compare"
RESULTS = {
    "stages": [{"name": "doctor", "outcome": "ok"}, {"name": "python", "outcome": "skipped"}],
    "probe": {
        "device": {"name": "A GPU"},
        "answers": {"dead_stream": {"value": {"query": "invalid handle", "ns": 410}, "seconds": 0.2}},
    },
    "bench": [
        {"name": "cached block/cuMemAllocAsync/4 KiB", "mean_ns": 800.0},
        {"name": "cached block/gapless/4 KiB", "mean_ns": 40.0},
        {"name": "cached block/gapless/20 MiB", "mean_ns": 40.0},
    ],
}


def compare(folder, changed, baseline=RESULTS):
    for name, results in [("old", baseline), ("new", changed)]:
        (folder / name).write_text(json.dumps(results))
    ran = subprocess.run([sys.executable, PROGRAM, folder / "old", folder / "new"], capture_output=True, text=True)
    return ran.returncode, ran.stdout + ran.stderr


def with_change(path, value):
    results = copy.deepcopy(RESULTS)
    *folders, last = path
    part = results
    for key in folders:
        part = part[key]
    part[last] = value
    return results


def test_other_times_alone_are_no_failure(tmp_path):
    changed = with_change(["probe", "answers", "dead_stream"], {"value": {"query": "invalid handle", "ns": 9}, "seconds": 7})
    for bench, times in zip(changed["bench"], [2.0, 2.2, 5.0]):
        bench["mean_ns"] *= times
    code, text = compare(tmp_path, changed)
    assert (code, text) == (0, "as before on A GPU: 2 stages, 1 ratios\n")


@pytest.mark.parametrize("path, value, reason", [
    (["stages", 0, "outcome"], "failed", "stage doctor: failed"),
    (["probe", "answers", "dead_stream", "value", "query"], "crash", "probe dead_stream: the answer was"),
    (["probe", "answers"], {}, "probe dead_stream: it was not asked"),
    (["bench", 1, "mean_ns"], 47.0, "bench cached block/gapless/4 KiB against cuMemAllocAsync: 0.05 times before"),
    (["bench"], [], "it was not measured"),
])
def test_what_fails(tmp_path, path, value, reason):
    code, text = compare(tmp_path, with_change(path, value))
    assert code == 1 and reason in text, text


def test_what_cannot_be_compared(tmp_path):
    code, text = compare(tmp_path, with_change(["probe", "device", "name"], "Another"))
    assert code == 2 and "not the same device" in text
    code, text = compare(tmp_path, [])
    assert code == 2 and "new" in text
