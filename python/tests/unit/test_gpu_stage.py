"""The runner of the GPU stage (python/gpu/run.py), over scripts, a PyTorch and a gapless that only pretend."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "gpu" / "run.py"

TORCH = """
class version:
    cuda = "13.0"
class _C:
    _cuda_customAllocator = object()
class cuda:
    is_available = staticmethod(lambda: True)
    get_device_name = staticmethod(lambda device: "a device")
    mem_get_info = staticmethod(lambda device=0: (30 << 30, 40 << 30))
__version__ = "9.9"
"""
# The package's `python -m gapless.torch script`: notifies the script that it is on gapless.
GAPLESS_TORCH = """
import os, runpy, sys
os.environ["ON_GAPLESS"] = "1"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# What `python -m gapless advise` prints: 100 MiB for all of them.
ADVICE = """
import json
settings = ["native", "expandable_segments:True", "gapless"]
print(json.dumps({"policies": [{"setting": name, "smallest_device_bytes": 100 << 20} for name in settings]}))
"""
COMMON = """
import json, os, sys, time
policy = "gapless" if "ON_GAPLESS" in os.environ else \\
    "expandable" if "expandable" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") else "native"
memory = {"backend": os.environ.get("BACKEND", "object") if policy == "gapless" else "native", "expandable": policy != "native",
          "peak_requested": 100 << 20, "peak_allocated": 101 << 20, "peak_reserved": 150 << 20}
training = {"losses": [3.0, 2.0, 1.0], "checksum": [1.5], "step_ms": 2.0, "timed_ms": 6.0, "timed_steps": 3,
            "memory": memory}
"""
TRAINING = """
print("step 1")
if "--limit" in sys.argv and int(sys.argv[sys.argv.index("--limit") + 1]) < 100 << 20:
    sys.exit("torch.OutOfMemoryError: out of memory")
print(json.dumps(training))
"""
SCRIPTS = {
    "train_mlp.py": TRAINING,
    "train_transformer.py": TRAINING,
    "fragmentation.py": """
limit = int(sys.argv[sys.argv.index("--limit") + 1])
print(json.dumps({"limit": limit, "live": 1, "free": 1, "wanted": 1, "hole": 1, "memory": memory, "message": "",
                  "outcome": "served" if policy == "gapless" else "out of memory"}))
""",
    "graphs.py": "print(json.dumps({'checks': ['one', 'two'], 'memory': memory}))",
    "streams.py": "print(json.dumps({'checks': ['one'], 'memory': memory}))",
    "recovery.py": "print(json.dumps({'checks': ['one'], 'memory': memory}))",
    "processes.py": "print(json.dumps({'checks': ['one'], 'memory': memory}))",
    "compiled.py": "print(json.dumps({'checks': ['one'], 'memory': memory}))",
    "step_time.py": "print(json.dumps({'times': {'64': [3.5, 2.0, 3.0]}, 'memory': memory}))",
    "pairs.py": "print(json.dumps({'pair_ns': {'4 KiB': 250.4, '2 MiB': 300.0}, 'memory': memory}))",
    "sleep.py": "print(json.dumps({'checks': ['one'], 'memory': memory, 'conf': os.environ['GAPLESS_CONF']}))",
    "sleep_times.py": "print(json.dumps({'times_ms': {'first sleep': 2.5}, 'memory': memory}))",
    "cupy_arrays.py": "print(json.dumps({'checks': ['one'], 'version': '1.0', 'conf': os.environ['GAPLESS_CONF']}))",
    "numba_arrays.py": "print(json.dumps({'checks': ['one'], 'version': '1.0'}))",
    "rmm_buffers.py": "print(json.dumps({'checks': ['one'], 'version': '1.0'}))",
}
CUPY = "class cuda:\n    class runtime:\n        getDeviceCount = staticmethod(lambda: 1)\n"
LIBRARIES = {
    "numba_cuda": "",
    "numba": "class cuda:\n    current_context = staticmethod(lambda: None)\n",
    "rmm": "DeviceBuffer = dict\n",
    # Not the one of this interpreter's packages, should it have one.
    "torch_memory_saver": None,
}


@pytest.fixture
def stage(tmp_path):
    """Runs the runner over the fakes, some of them replaced; gives the exit code, the parts by name, and the rest."""
    package, scripts = tmp_path / "package", tmp_path / "scripts"
    (package / "gapless").mkdir(parents=True)
    scripts.mkdir()

    def stage(*arguments, torch=TORCH, cupy=CUPY, environment=None, **replaced):
        (package / "gapless" / "__init__.py").write_text("")
        (package / "gapless" / "torch.py").write_text(GAPLESS_TORCH)
        (package / "gapless" / "__main__.py").write_text(ADVICE)
        # A module that fails to be imported as a missing one does, wherever the tests run.
        for name, text in {**LIBRARIES, "torch": torch, "cupy": cupy}.items():
            missing = f"raise ModuleNotFoundError('No module named {name}')"
            (package / f"{name}.py").write_text(missing if text is None else text)
        for name, text in {**SCRIPTS, **{f"{key}.py": text for key, text in replaced.items()}}.items():
            (scripts / name).write_text(COMMON + textwrap.dedent(text))
        command = [sys.executable, str(RUN), "--package", str(package), "--scripts", str(scripts)]
        command += ["--json", str(tmp_path / "out.json"), "--table", str(tmp_path / "out.md"), *arguments]
        began = time.monotonic()
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})}
        )
        found = json.loads((tmp_path / "out.json").read_text())
        parts = {part["name"]: part for part in found["parts"]}
        table = (tmp_path / "out.md").read_text()
        return result.returncode, parts, table, result.stderr, time.monotonic() - began

    return stage


def outcomes(parts):
    return {name: part["outcome"] for name, part in parts.items()}


def test_all_is_well(stage):
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1", "GAPLESS_CONF": "budget:1GiB"}
    code, parts, table, _, _ = stage(environment=settings)
    assert set(outcomes(parts).values()) == {"ok"}, outcomes(parts)
    assert code == 0
    timed = ["environment", "mlp", "transformer", "steps", "pairs", "sleep_times"]
    assert list(parts)[:6] == timed
    assert "64 3.50/3.50/3.50" in parts["steps"]["reason"]
    assert parts["sleep_times"]["reason"] == "ms, by hand/gapless: first sleep 2.5/2.5"
    assert parts["sleep"]["runs"]["gapless"]["conf"].startswith("backups:/")
    others = "graphs streams recovery processes compiled fragmentation limited advise sleep cupy numba rmm"
    assert sorted(list(parts)[6:]) == sorted(others.split())
    assert "4 KiB 250.40/250.40/250.40, 2 MiB 300.00/300.00/300.00" in parts["pairs"]["reason"]
    assert list(parts["mlp"]["runs"]) == ["native", "expandable", "gapless"]
    assert parts["fragmentation"]["runs"]["native"]["limit"] == 8 << 30
    assert parts["cupy"]["runs"]["gapless"]["conf"] == f"budget:{2 << 30}"
    assert "106 MiB" in parts["limited"]["reason"]
    assert "| mlp | gapless | 100 | 101 | 150 | 1.500 | 2.00 | 2.00, 2.00 | 6 | 1.000000 |" in table
    assert "Python" in table and "a device" in table


def test_the_plug_in_is_not_what_users_get(stage):
    on_plug_in = {"BACKEND": "plug-in"}
    code, parts, table, _, _ = stage("--parts", "mlp", environment=on_plug_in)
    assert code == 1 and "allocated through 'plug-in', not 'object'" in parts["mlp"]["reason"]
    assert "under gapless: `plug-in`" in table
    code, parts, _, _, _ = stage("--parts", "mlp", "--plug-in", environment=on_plug_in)
    assert code == 0 and parts["mlp"]["outcome"] == "ok"
    code, _, table, _, _ = stage("--parts", "mlp")
    assert code == 0 and "under gapless: `object`" in table


@pytest.mark.parametrize(
    "torch, reason",
    [
        (None, "PyTorch is not there"),
        (TORCH.replace('"13.0"', "None"), "is not a CUDA build"),
        (TORCH.replace("lambda: True", "lambda: False"), "sees no GPU"),
        (TORCH.replace("_cuda_customAllocator", "other"), "no interface for allocators"),
    ],
)
def test_it_is_skipped_with_a_reason(stage, torch, reason):
    code, parts, table, err, _ = stage(torch=torch)
    assert code == 77
    assert outcomes(parts) == {"environment": "skipped"}
    assert reason in parts["environment"]["reason"] and reason in table and reason in err


def test_simulated(stage):
    code, parts, table, _, _ = stage("--simulated")
    assert code == 77 and outcomes(parts) == {"environment": "skipped"} and "simulated" in table


def test_pytorch_that_does_not_start(stage):
    code, parts, _, _, _ = stage(torch="raise OSError('libsomething.so: cannot open')")
    assert code == 1 and parts["environment"]["outcome"] == "failed"
    assert "libsomething.so: cannot open" in parts["environment"]["reason"]


def test_a_missing_cupy_is_skipped(stage):
    code, parts, _, _, _ = stage("--parts", "cupy,graphs", cupy=None)
    assert code == 0 and outcomes(parts) == {"environment": "ok", "graphs": "ok", "cupy": "skipped"}
    assert "No module named cupy" in parts["cupy"]["reason"]


def test_losses_that_differ(stage):
    text = "training['losses'][1] += 1e-7 * (policy == 'gapless'); print(json.dumps(training))"
    code, parts, _, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 1 and parts["mlp"]["outcome"] == "failed"
    assert "gapless does not give the losses of the native allocator: from step 2 on, 2.0 and" in parts["mlp"]["reason"]
    # What PyTorch's own allocators do is reported, and fails nothing.
    text = "training['losses'][1] += 1e-7 * (policy == 'expandable'); print(json.dumps(training))"
    code, parts, _, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 0 and "PyTorch's two own allocators differ as well" in parts["mlp"]["reason"]
    text = "training['losses'] = [float('nan')]; print(json.dumps(training))"
    code, parts, _, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 1


def test_the_faster_of_two_runs_counts(stage, tmp_path):
    runs = tmp_path / "runs"
    text = f"""
        with open({str(runs)!r}, "a") as file:
            file.write(policy + "\\n")
        training["step_ms"] = 5.0 - len(open({str(runs)!r}).read().split()) / 2
        print(json.dumps(training))
    """
    code, parts, table, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 0, parts
    assert runs.read_text().split() == "native expandable gapless gapless expandable native".split()
    assert parts["mlp"]["runs"]["gapless"]["step_ms"] == 3.0 and parts["mlp"]["runs"]["gapless"]["rounds_ms"] == [3.5, 3.0]
    assert "| 2.00 | 4.50, 2.00 |" in table
    text = f"""
        with open({str(runs)!r}, "a") as file:
            file.write(policy + "\\n")
        training["losses"][2] += (policy == "gapless") * len(open({str(runs)!r}).read().split())
        print(json.dumps(training))
    """
    code, parts, _, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 1 and "two runs differ" in parts["mlp"]["reason"]


def test_weights_that_differ(stage):
    text = "training['checksum'] = [policy]; print(json.dumps(training))"
    code, parts, _, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 1 and "the weights after the last step differ" in parts["mlp"]["reason"]


def test_a_run_that_was_not_on_gapless(stage):
    text = "memory['backend'] = 'native'; print(json.dumps(training))"
    code, parts, _, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 1 and "allocated through 'native', not 'object'" in parts["mlp"]["reason"]


def test_one_that_fails_does_not_keep_the_others(stage):
    code, parts, table, err, _ = stage(
        graphs="sys.exit('wrong: a graph')",
        streams="if policy == 'gapless': os.kill(os.getpid(), 11)\nprint(json.dumps({'checks': [], 'memory': memory}))",
        cupy_arrays="print('no json')",
        train_mlp="raise ValueError('no kernel')",
    )
    assert code == 1
    assert outcomes(parts) == {
        "environment": "ok",
        "mlp": "failed",
        "fragmentation": "ok",
        "transformer": "ok",
        "pairs": "ok",
        "steps": "ok",
        "recovery": "ok",
        "processes": "ok",
        "compiled": "ok",
        "graphs": "failed",
        "streams": "failed",
        "cupy": "failed",
        "limited": "ok",
        "advise": "ok",
        "sleep": "ok",
        "sleep_times": "ok",
        "numba": "ok",
        "rmm": "ok",
    }
    assert parts["graphs"]["reason"] == "gapless: wrong: a graph; native: wrong: a graph"
    assert parts["streams"]["reason"] == "gapless: killed by signal 11; native: ok"
    assert parts["cupy"]["reason"] == "exit code 0 and no result"
    assert parts["mlp"]["reason"] == "native: ValueError: no kernel"
    assert "Traceback" in err and "ValueError: no kernel" in table


def test_a_crash_after_the_result(stage):
    text = "print(json.dumps(training), flush=True)\nif policy == 'gapless': os.kill(os.getpid(), 11)"
    code, parts, table, _, _ = stage("--parts", "mlp", train_mlp=text)
    assert code == 1 and parts["mlp"]["reason"] == "gapless: killed by signal 11 after its result"
    assert "| mlp | gapless | 100 | 101 | 150 |" in table


def test_fragmentation_that_shows_nothing(stage):
    served = SCRIPTS["fragmentation.py"].replace('"out of memory"', '"served"')
    code, parts, _, _, _ = stage("--parts", "fragmentation", fragmentation=served)
    assert code == 1 and "the case shows nothing here" in parts["fragmentation"]["reason"]
    failed = SCRIPTS["fragmentation.py"].replace('"served"', '"out of memory"')
    code, parts, _, _, _ = stage("--parts", "fragmentation", fragmentation=failed)
    assert code == 1 and "gapless ran out of memory" in parts["fragmentation"]["reason"]


def test_limited_tells_what_the_others_do(stage):
    text = """
        if "--limit" in sys.argv:
            if policy == "native":
                sys.stderr.write("torch.OutOfMemoryError: out of memory\\nmore of it\\n")
                sys.exit(1)
        print(json.dumps(training))
    """
    code, parts, _, _, _ = stage("--parts", "transformer,limited", train_transformer=text)
    assert code == 0
    assert "native: out of memory; expandable: survives; gapless: survives" in parts["limited"]["reason"]
    code, parts, _, _, _ = stage("--parts", "limited")
    assert code == 0 and parts["limited"]["outcome"] == "skipped"


def test_advice_is_tried(stage):
    code, parts, _, _, _ = stage("--parts", "advise")
    assert code == 0
    tried = "native at 100 MiB: survives; native at 98 MiB: out of memory; expandable at 100 MiB: survives"
    assert tried in parts["advise"]["reason"]
    never = TRAINING.replace("100 << 20", "1 << 10")
    code, parts, _, _, _ = stage("--parts", "advise", train_transformer=never)
    assert code == 1 and "the advice does not hold: native at 98 MiB: survives" in parts["advise"]["reason"]


def test_it_ends_in_time_with_all_children(stage, tmp_path):
    pids = tmp_path / "pids"
    text = f"""
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open({str(pids)!r}, "a") as file:
            file.write(f"{{os.getpid()}} {{child.pid}} ")
        time.sleep(600)
    """
    code, parts, _, _, seconds = stage("--seconds", "6", "--jobs", "1", "--parts", "graphs,streams", graphs=text)
    assert code == 1 and seconds < 30
    assert outcomes(parts) == {"environment": "ok", "graphs": "out of time", "streams": "out of time"}
    assert "no time was left" in parts["streams"]["reason"]
    for pid in pids.read_text().split():
        with pytest.raises(ProcessLookupError):
            wait_for_end(int(pid))


def wait_for_end(pid):
    for _ in range(100):
        os.kill(pid, 0)
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            state = "Z"
        if state == "Z":
            raise ProcessLookupError
        time.sleep(0.05)


def test_a_signal_ends_the_children_too(tmp_path, stage):
    stage("--simulated")  # writes the fakes
    pid_file = tmp_path / "pid"
    (tmp_path / "scripts" / "graphs.py").write_text(
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = [sys.executable, str(RUN), "--package", str(tmp_path / "package"), "--parts", "graphs"]
    command += ["--scripts", str(tmp_path / "scripts"), "--json", str(tmp_path / "out.json")]
    runner = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(400):
        if pid_file.exists() and pid_file.read_text():
            break
        time.sleep(0.05)
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(timeout=20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        wait_for_end(int(pid_file.read_text()))
    assert json.loads((tmp_path / "out.json").read_text())["parts"][0]["outcome"] == "ok"


def test_parts_run_side_by_side_and_timed_ones_alone(stage, tmp_path):
    times = tmp_path / "times"
    text = f"""
        began = time.monotonic()
        time.sleep(1)
        with open({str(times)!r}, "a") as file:
            file.write(f"{{os.path.basename(sys.argv[0])}} {{began}} {{time.monotonic()}}\\n")
        print(json.dumps({{**training, "checks": ["one"], "pair_ns": {{}}}}))
    """
    parts = ("mlp", "pairs", "graphs", "streams")
    code, parts, _, _, _ = stage("--parts", ",".join(parts), train_mlp=text, pairs=text, graphs=text, streams=text)
    assert code == 0, parts
    runs = sorted((float(began), float(ended), name) for name, began, ended in map(str.split, times.read_text().splitlines()))
    alone = [run for run in runs if run[2] in ("train_mlp.py", "pairs.py")]
    assert len(alone) == 9 and alone == runs[:9]
    assert all(before[1] <= after[0] for before, after in zip(alone, runs[1:]))
    assert runs[10][0] < runs[9][1], "graphs and streams did not run at once"


def test_the_scripts_compile():
    for script in RUN.parent.glob("*.py"):
        text = script.read_text()
        compile(text, str(script), "exec")
        # Programs as anybody writes them. Of gapless know those of libraries that have no other way, those that sleep, and one that
        # starts processes, since nothing is installed. What they share says what has allocated. No part of the stage is what
        # explain_oom costs.
        libraries = ("cupy_arrays.py", "numba_arrays.py", "rmm_buffers.py")
        others = ("run.py", "measure.py", "processes.py", "sleep.py", "sleep_times.py", "explain_cost.py")
        if script.name not in libraries + others:
            assert "import gapless" not in text and "gapless.torch" not in text
