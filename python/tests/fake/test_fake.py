"""Recordings without a GPU, beside what stock PyTorch's own allocator counts over the simulated driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DRIVER = ("LD_PRELOAD", "LD_LIBRARY_PATH")
SCRIPTS = ("checkpointing", "convolutions", "fused", "lora", "inference")
MOST_PERCENT = 2


def start(*arguments, **environment):
    names = {key: value for key, value in os.environ.items() if key not in ("GAPLESS_TORCH", "GAPLESS_CONF")}
    environment = {key: value for key, value in {**names, **environment}.items() if value is not None}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300)


def fake(tmp_path, *arguments):
    result = start(
        *("-m", "gapless.record", "--fake", "--gpu", "H100", "-o", tmp_path / "a.trace", *arguments),
        **dict.fromkeys(DRIVER),
        GAPLESS_COMMAND=str(tmp_path / "none"),
    )
    return result.returncode, result.stdout + result.stderr


def header(path):
    lines = [line.split(" ", 2)[1:] for line in path.read_text().splitlines() if line.startswith("# ")]
    return dict(lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_peak_is_that_of_the_real_allocator(name, tmp_path):
    script = ROOT / "examples/fits" / f"{name}.py"
    code, output = fake(tmp_path, script)
    assert code == 0, output
    recorded = int(header(tmp_path / "a.trace")["peak_live_bytes"])
    preload = os.environ["LD_PRELOAD"] + " " + os.environ["GAPLESS_CUBLAS"]
    stock = start(Path(__file__).with_name("stock.py"), script, LD_PRELOAD=preload, GAPLESS_SIM_CAPACITY="8GiB")
    assert stock.returncode == 0, stock.stderr
    real = json.loads(stock.stdout.splitlines()[-1])["peak"]
    difference = 100 * (recorded - real) / real
    print(f"{name}: {recorded:,} bytes recorded, {real:,} counted: {difference:+.2f} %")
    assert abs(difference) <= MOST_PERCENT


@pytest.mark.parametrize(
    "code, words",
    [
        ("if (x > 0).any(): pass", "decides what the script does next"),
        ("x.nonzero()", "the size of the result of aten.nonzero depends on the values"),
        ("torch.autocast('cuda').__enter__()", "autocast on a CUDA device is not followed"),
    ],
)
def test_what_needs_data_names_the_line(code, words, tmp_path):
    script = tmp_path / "needs.py"
    script.write_text(f"import torch\nx = torch.ones(4, device='cuda')\n{code}\n")
    status, output = fake(tmp_path, script)
    assert status == 2 and f"{script}:3: " in output and words in output, output


def test_steps_end_the_run(tmp_path):
    status, output = fake(tmp_path, "--steps", "2", ROOT / "examples/fits/fused.py")
    assert status == 0, output
    lines = (tmp_path / "a.trace").read_text().splitlines()
    assert [line for line in lines if line.startswith("m")] == ["m step 1", "m step 2"]


def test_tied_weights_are_one_storage(tmp_path):
    script = tmp_path / "tied.py"
    script.write_text(
        "import torch\na, b = torch.nn.Linear(999, 999, bias=False), torch.nn.Linear(999, 999, bias=False)\n"
        "b.weight = a.weight\nm = torch.nn.ModuleList([a, b]).cuda()\nassert a.weight is b.weight\n"
        "assert a.weight.is_cuda and torch.cuda.memory_allocated() == 999 * 999 * 4\n"
    )
    status, output = fake(tmp_path, script)
    assert status == 0, output
    assert header(tmp_path / "a.trace")["peak_live_bytes"] == str(999 * 999 * 4)
