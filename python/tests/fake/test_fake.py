"""Recordings without a GPU, beside what stock PyTorch's own allocator counts over the simulated driver."""

import json
import os
import sys
from pathlib import Path

import pytest
from processes import ended

ROOT = Path(__file__).parents[3]
DRIVER = ("LD_PRELOAD", "LD_LIBRARY_PATH")
# The last one asks whether each text has ended: the values that it reads are 0 on both sides.
SCRIPTS = {
    **{name: (ROOT / "examples/fits", ()) for name in ("checkpointing", "convolutions", "fused", "lora", "inference")},
    **{name: (Path(__file__).with_name("scripts"), ()) for name in ("diffusion", "autocast_vit", "packed_lstm", "gan")},
    "generation": (Path(__file__).with_name("scripts"), ("--assume", "0")),
}
MOST_PERCENT = 2


def start(*arguments, folder=None, **environment):
    return ended([sys.executable, *map(str, arguments)], cwd=folder, **environment)


def fake(tmp_path, *arguments, folder=None):
    result = start(
        *("-m", "gapless.record", "--fake", "--gpu", "H100", "-o", tmp_path / "a.trace", *arguments),
        **dict.fromkeys(DRIVER),
        folder=folder,
        GAPLESS_COMMAND=str(tmp_path / "none"),
    )
    return result.returncode, result.stdout + result.stderr


def header(path):
    lines = [line.split(" ", 2)[1:] for line in path.read_text().splitlines() if line.startswith("# ")]
    return dict(lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_peak_is_that_of_the_real_allocator(name, tmp_path):
    folder, options = SCRIPTS[name]
    script = folder / f"{name}.py"
    code, output = fake(tmp_path, *options, script)
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
        ("if (x > 0).any(): pass", "torch.Tensor.__bool__ needs the values of a torch.bool tensor"),
        ("with torch.inference_mode(): print(x.argmax().item())", "torch.Tensor.item needs the values of a torch.int64 tensor"),
        ("x.nonzero()", "the size of the result of torch.Tensor.nonzero depends on the values of a tensor"),
        ("x[x > 0]", "the size of the result of torch.Tensor.__getitem__ depends on the values of a tensor"),
        ("x.cpu().numpy()", "torch.Tensor.numpy needs the values of a tensor"),
        ("import pickle; pickle.dumps(x)", "torch.Tensor.__reduce_ex__ needs the values of a tensor"),
        ("torch.allclose(x, x)", "torch.allclose needs the values of tensors"),
        (
            "torch.nn.utils.rnn.pack_padded_sequence(x[:, None, None], x.long()[:1].cpu())",
            "the size of the result of aten._pack_padded_sequence depends on the values of a tensor",
        ),
    ],
)
def test_what_needs_data_is_one_line_with_function_and_place(code, words, tmp_path):
    script = tmp_path / "needs.py"
    script.write_text(f"import torch\nx = torch.ones(4, device='cuda')\n{code}\n")
    status, output = fake(tmp_path, script)
    reason = f"gapless.record: {script}:3: {words}, which are not known without a GPU; 0 steps before it; change it for this run\n"
    assert (status, output) == (2, reason)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["needs.py"]


def test_what_needs_data_says_how_many_steps_come_before_it(tmp_path):
    script = tmp_path / "needs.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\nwith torch.inference_mode():\n  for _ in range(9):\n"
        "    y = model(torch.ones(1, 4, device='cuda'))\n    if _ == 1 and y.argmax() == 3: break\n"
    )
    status, output = fake(tmp_path, script)
    assert status == 2 and output.endswith("; 2 steps before it; --steps 2 records what comes before it\n"), output
    status, output = fake(tmp_path, "--steps", "2", script)
    ended = "2 steps recorded in {}; --steps ended the run after the forward pass of Linear at {}:5\n"
    assert status == 0 and ended.format(tmp_path / "a.trace", script) in output, output
    status, output = fake(tmp_path, "--assume", "0", script)
    assert status == 0 and f"{script}:6: the value of a tensor is not known without a GPU: it is False in this run" in output
    assert "9 steps recorded" in output


def test_steps_end_the_run(tmp_path):
    status, output = fake(tmp_path, "--steps", "2", ROOT / "examples/fits/fused.py")
    assert status == 0, output
    lines = (tmp_path / "a.trace").read_text().splitlines()
    assert [line for line in lines if line.startswith("m")] == ["m step 1", "m step 2"]
    assert "; --steps ended the run after the step() of AdamW at " in output


def test_steps_end_the_recording_where_the_script_goes_on(tmp_path):
    script = tmp_path / "on.py"
    script.write_text(
        "import torch\ndef train():\n  try: optimizer.step()\n  finally: torch.ones(9999, device='cuda')\n"
        "x = torch.nn.Parameter(torch.ones(4, device='cuda'))\nx.grad = torch.ones_like(x)\n"
        "optimizer = torch.optim.SGD([x])\ntrain()\n"
    )
    status, output = fake(tmp_path, "--steps", "1", script)
    assert status == 0 and f"; --steps ended the run after the step() of SGD at {script}:3 in train\n" in output, output
    assert header(tmp_path / "a.trace")["peak_live_bytes"] == "32"


def test_a_forward_pass_that_fails_is_no_step(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\nwith torch.no_grad():\n"
        "  try: model(torch.ones(1, 3, device='cuda'))\n  except RuntimeError: pass\n"
        "  model(torch.ones(1, 4, device='cuda'))\n"
    )
    status, output = fake(tmp_path, script)
    assert status == 0 and "gapless: 1 step recorded" in output, output


def test_autocast_has_a_kernel_for_each_op_that_pytorch_casts():
    names = "import torch; print(*torch._C._dispatch_get_registrations_for_dispatch_key('AutocastCUDA'))"
    cast = {name.partition("::")[2] for name in start("-c", names).stdout.split()}
    lists = "a._LOWER_PRECISION, a._FLOAT32, a._FLOAT32_RESULT, a._WIDEST, *a._FLOAT32_OVERLOAD"
    ours = f"from gapless._fake import autocast as a; print({lists})"
    # An error in any case, and what is called within convolutions and recurrent layers on a device.
    others = {"binary_cross_entropy", "_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose"}
    assert cast - set(start("-c", ours).stdout.split()) <= others


def test_autocast_gives_the_types_that_it_gives_on_a_device(tmp_path):
    script = tmp_path / "types.py"
    script.write_text(
        "import torch\nx, y = torch.ones(4, 4, device='cuda'), torch.ones(4, 4, device='cuda', dtype=torch.bfloat16)\n"
        "f, calls = torch.nn.functional, []\n"
        "with torch.autocast('cuda', torch.bfloat16):\n"
        "  for r in (x @ x, f.linear(x, y), x + y, y.exp(), y.softmax(-1), y.sum(), y.sum(dtype=torch.bfloat16), y.norm(),\n"
        "    y.norm(2, 1), torch.addcmul(y, y, x), torch.addcmul(y, y, y), torch.cat((x, y)), f.mse_loss(y, y),\n"
        "    f.layer_norm(y, (4,)), x.double().exp()):\n"
        "    calls.append(str(r.dtype))\n"
        "  with torch.autocast('cuda', enabled=False): calls.append(str((x @ x).dtype))\n"
        "print('types', *calls)\n"
    )
    _, recorded = fake(tmp_path, script)
    preload = os.environ["LD_PRELOAD"] + " " + os.environ["GAPLESS_CUBLAS"]
    real = start(Path(__file__).with_name("stock.py"), script, LD_PRELOAD=preload)
    types = [line for line in real.stdout.splitlines() if line.startswith("types")]
    assert types and types[0] in recorded, recorded + real.stdout + real.stderr


def test_what_was_saved_is_loaded_and_no_file_is_written(tmp_path):
    script = tmp_path / "saves.py"
    script.write_text(
        "import io, torch\nmodel = torch.nn.Linear(64, 64).cuda()\nmodel.tied = model.weight\n"
        "torch.save(model, 'model.pt')\nfile = io.BytesIO()\ntorch.save({'weights': model.state_dict(), 'epoch': 3}, file)\n"
        "before = torch.cuda.memory_allocated()\nloaded = torch.load('model.pt', weights_only=False)\n"
        "assert torch.cuda.memory_allocated() - before == 64 * 65 * 4 and loaded.tied is loaded.weight\n"
        "assert loaded.weight.is_cuda and isinstance(loaded.weight, torch.nn.Parameter) and loaded.weight.requires_grad\n"
        "loaded = torch.load(file, map_location='cpu')\n"
        "assert loaded['epoch'] == 3 and not loaded['weights']['bias'].is_cuda\nmodel.load_state_dict(loaded['weights'])\n"
        "torch.save({'n': torch.arange(6)}, 'data.pt')\nloaded = torch.load('data.pt', map_location='cuda')\n"
        "assert loaded['n'].is_cuda and loaded['n'].shape == (6,)\n"
    )
    status, output = fake(tmp_path, script, folder=tmp_path)
    assert status == 0, output
    assert f"{script}:4: torch.save writes no file in this run: tensors have no data without a GPU" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.trace", "data.pt", "saves.py"]


def test_a_script_that_fails_leaves_no_recording(tmp_path):
    script = tmp_path / "fails.py"
    for code, words in (
        ("raise ValueError('bad')", "ValueError: bad\ngapless.record: {}:2: the script ended with an error"),
        ("raise SystemExit(3)", "gapless.record: the script ended itself: exit code 3"),
        ("raise SystemExit('no data')", "gapless.record: the script ended itself: no data"),
    ):
        script.write_text(f"import torch; x = torch.ones(4, device='cuda')\n{code}\n")
        status, output = fake(tmp_path, script)
        assert status == 2 and words.format(script) in output and "record.py" not in output, output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fails.py"]


def test_code_is_named_by_its_line(tmp_path):
    status, output = fake(tmp_path, "-c", "import torch\ntorch.ones(4, device='cuda').nonzero()")
    assert status == 2 and "<string>:2: the size of the result of torch.Tensor.nonzero depends" in output, output


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
