"""How gapless gets into a process: the variable, its children, the runner, settings from several places. Over a stand-in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
MIB = 1 << 20
SHOW = "import torch, gapless.torch; print('on gapless' if gapless.torch.is_enabled() else 'native')"
BUDGET = "import gapless; print('budget', gapless.stats()['budget_bytes'] >> 20)"
THROWER = """
int gapless_torch_throw_prepare(const char *c10, const char *cuda) { return 0; }
void gapless_torch_throw(const char *text, int out_of_memory) {}
"""


@pytest.fixture(scope="session")
def thrower(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thrower")
    source, library = folder / "throw.c", folder / "throw.so"
    source.write_text(THROWER)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


@pytest.fixture
def python(thrower, tmp_path):
    """Runs Python with the stand-in for PyTorch, in a folder of its own. Returns the exit status and both outputs."""

    def python(*arguments, **environment):
        path = os.pathsep.join([str(HERE / "torch_stand_in"), str(PROJECT)])
        result = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path, "GAPLESS_TORCH_THROW": thrower, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return result.returncode, result.stdout, result.stderr

    return python


def code(python, text, **environment):
    status, out, errors = python("-c", text, **environment)
    assert status == 0, out + errors
    return out + errors


# The variable


@pytest.mark.parametrize("order", ["import gapless, torch", "import torch, gapless"])
def test_the_variable_enables_at_import(python, order):
    assert "on gapless" in code(python, f"{order}\n{SHOW}", GAPLESS_TORCH="1")
    for value in ("", "0", "off"):
        assert "native" in code(python, f"{order}\n{SHOW}", GAPLESS_TORCH=value)


def test_code_that_does_not_know_gapless(python):
    """The wheel's .pth file, which Python reads at its start."""
    pth = f"exec(open({str(PROJECT / 'gapless_start.pth')!r}).read())\nimport sys\n"
    out = code(python, pth + "assert 'torch' not in sys.modules\n" + SHOW, GAPLESS_TORCH="1")
    assert "on gapless" in out
    out = code(python, pth + "assert not any('gapless' in name for name in sys.modules)\nprint('nothing')")
    assert "nothing" in out
    # A Python that has to ignore its environment loads nothing that the environment names.
    for flag in ("-E", "-I"):
        status, out, errors = python(
            flag,
            "-c",
            pth + "assert not any('gapless' in name for name in sys.modules)\nprint('nothing')",
            GAPLESS_TORCH="1",
            GAPLESS_LIBRARY="/no/such/file",
        )
        assert status == 0 and "nothing" in out, out + errors
    lines = (PROJECT / "gapless_start.pth").read_text().splitlines()
    assert len(lines) == 1 and lines[0].startswith("import "), "site runs such lines only"


def test_a_library_without_a_folder_is_that_of_the_current_one(python, tmp_path):
    (tmp_path / "mine.so").symlink_to(os.environ["GAPLESS_LIBRARY"])
    assert "0." in code(python, "import gapless; print(gapless.version())", GAPLESS_LIBRARY="mine.so")


def test_who_stays_on_native_is_told_once(python):
    out = code(python, f"import gapless, torch\n{SHOW}", GAPLESS_TORCH="1", GAPLESS_TORCH_THROW="/no/such/file")
    assert out.count("runs on PyTorch's own allocator, although GAPLESS_TORCH is set: /no/such/file cannot be loaded") == 1
    assert "native" in out


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_inherit(python, tmp_path, method):
    (tmp_path / "parent.py").write_text(
        f"""
import multiprocessing, gapless.torch

def work(queue):
    import torch
    queue.put((gapless.torch.is_enabled(), gapless.stats()["budget_bytes"]))

if __name__ == "__main__":
    gapless.torch.enable(budget=96 << 20, record="mine.trace")
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    print(*queue.get())
    child.join()
"""
    )
    status, out, errors = python("parent.py")
    assert (status, out.split()) == (0, ["True", str(96 * MIB)]), out + errors
    assert not (tmp_path / "mine.trace").exists(), "the parent has used nothing, and the child must not write there"


# Settings


def test_arguments_and_the_environment_are_put_together(python):
    enable = "import gapless.torch; gapless.torch.enable({})\n"
    out = code(python, enable.format("chunk='4MiB'") + BUDGET, GAPLESS_CONF="budget:64MiB,log:on")
    assert "budget 64" in out and "gapless: device 0" in out
    assert "budget 80" in code(python, enable.format("budget=80 << 20") + BUDGET, GAPLESS_CONF="budget:64MiB")
    out = code(python, enable.format("log=True") + BUDGET, GAPLESS_CONF="peers:[0,1],budget:64MiB", GAPLESS_SIM_DEVICES="2")
    assert "budget 64" in out
    out = code(python, "import gapless; gapless.configure('budget:48MiB')\n" + enable.format("log=True") + BUDGET)
    assert "budget 48" in out and "gapless: device 0" in out


def test_pytorch_s_own_variable(python):
    enable = "import gapless.torch; gapless.torch.enable({})\n"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        conf = {name: "expandable_segments:True,per_process_memory_fraction:0.25", "GAPLESS_SIM_CAPACITY": "256MiB"}
        assert "budget 64" in code(python, enable.format("") + BUDGET, **conf)
        assert "budget 80" in code(python, enable.format("budget=80 << 20") + BUDGET, **conf)
        assert "budget" in code(python, enable.format("") + BUDGET, **{name: "backend:native"})
        status, _, errors = python("-c", enable.format(""), **{name: "per_process_memory_fraction:2"})
        assert status == 1 and "give a fraction above 0 and at most 1" in errors


def test_another_allocator_than_pytorch_s_own_is_not_replaced(python):
    """As with backend:cudaMallocAsync in PyTorch's variable, or where a program has put one in."""
    code = "import torch, gapless.torch; torch.cuda.memory.get_allocator_backend = lambda: {!r}; gapless.torch.enable()"
    for taken in ("cudaMallocAsync", "pluggable"):
        status, _, errors = python("-c", code.format(taken))
        assert status == 1 and f"PyTorch allocates through '{taken}' already" in errors


def test_which_of_pytorch_s_two_variables_is_read(python):
    """As PyTorch does: see tests/native/test_variables.py."""
    enable = "import gapless.torch; gapless.torch.enable()\n" + BUDGET
    quarter, half = (f"per_process_memory_fraction:{fraction}" for fraction in (0.25, 0.5))
    size = {"GAPLESS_SIM_CAPACITY": "256MiB"}
    assert "budget 128" in code(python, enable, PYTORCH_CUDA_ALLOC_CONF=half, PYTORCH_ALLOC_CONF=quarter, **size)
    assert "budget 64" not in code(python, enable, PYTORCH_CUDA_ALLOC_CONF="", PYTORCH_ALLOC_CONF=quarter, **size)


def test_a_second_call_with_other_settings(python):
    twice = "import gapless, gapless.torch; gapless.torch.enable(budget=64 << 20)\n{}\ngapless.torch.enable({})\n"
    assert "budget 96" in code(python, twice.format("", "budget=96 << 20") + BUDGET)
    use = "gapless.stats()"
    for same in ("", "budget=64 << 20"):
        assert "budget 64" in code(python, twice.format(use, same) + BUDGET)
    status, _, errors = python("-c", twice.format(use, "budget=96 << 20, log=True"))
    assert status == 1 and "too late for 'budget:100663296,log:on': gapless is in use, with 'budget:67108864'" in errors


@pytest.mark.parametrize("settings, said", [("budget=1", "2MiB or more"), ("chunk='3MiB'", "a multiple of 2MiB")])
def test_absurd_values_are_refused_at_once(python, settings, said):
    status, _, errors = python("-c", f"import gapless.torch; gapless.torch.enable({settings})")
    assert status == 1 and said in errors.splitlines()[-1]


# The runner

PROGRAM = """
import os, sys
print(__name__, sys.argv, globals().get("__file__"), sys.path[0])
import gapless.torch, torch
print(gapless.torch.is_enabled())
def fail(): raise KeyError("lost")
if "fail" in sys.argv: fail()
if "leave" in sys.argv: sys.exit(7)
"""


@pytest.mark.parametrize(
    "arguments", [["folder/program.py"], ["-m", "folder.program"], ["-c", PROGRAM], ["folder"], ["-m", "folder"]]
)
@pytest.mark.parametrize("rest", [["one", "-x"], ["fail"], ["leave"]])
def test_programs_run_as_python_runs_them(python, tmp_path, arguments, rest):
    (tmp_path / "folder").mkdir()
    for name in ("program.py", "__main__.py"):
        (tmp_path / "folder" / name).write_text(PROGRAM)
    plain = python(*arguments, *rest, GAPLESS_TORCH="1")
    by_runner = python("-m", "gapless.torch", *arguments, *rest)
    assert plain[1].endswith("True\n")
    assert by_runner == plain


def test_what_cannot_be_started(python, tmp_path):
    for arguments in (["missing.py"], ["-m", "no_such_module"]):
        by_runner = python("-m", "gapless.torch", *arguments)
        assert by_runner == python(*arguments) and len(by_runner[2].splitlines()) == 1
    status, _, errors = python("-m", "gapless.torch", "-m")
    assert status == 2 and errors.endswith("Argument expected for the -m option\n")
    (tmp_path / "wrong.py").write_text("def f(:\n")
    assert python("-m", "gapless.torch", "wrong.py") == python("wrong.py")
    status, _, errors = python("-m", "gapless.torch")
    assert status == 2 and "script.py" in errors and "-m package.module" in errors


def test_classes_of_a_script_can_be_pickled(python, tmp_path):
    (tmp_path / "program.py").write_text(
        "import pickle\nclass C: pass\nassert type(pickle.loads(pickle.dumps(C()))) is C\nprint('same')"
    )
    assert python("-m", "gapless.torch", "program.py")[1] == "same\n"


# The package


def test_the_command_line(python, tmp_path):
    status, _, errors = python("-m", "gapless", "doctor", GAPLESS_COMMAND="")
    assert status == 2 and "install gapless from a wheel" in errors
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho called with $0 \"$@\"\n")
    program.chmod(0o755)
    status, out, errors = python("-m", "gapless", "replay", "a b", GAPLESS_COMMAND=str(program))
    assert (status, errors) == (0, "") and out.endswith("replay a b\n")


def test_the_version_is_that_of_the_library(python):
    code(python, "import gapless; assert gapless.__version__ == gapless.version()")


def test_a_recording_without_a_block(python, tmp_path):
    text = """
import gapless
recording = gapless.record("one.trace")
memory = gapless.DeviceMemory(0)
memory.free(memory.alloc(100))
recording.mark("step")
recording.stop()
recording.stop()
gapless.record("two.trace.gz")
memory.free(memory.alloc(100))
print(gapless.replay("one.trace")[0]["ops"])
"""
    # An allocation, a free and a mark.
    assert "3\n" in code(python, text)
    assert "2\n" in code(python, "import gapless; print(gapless.replay('two.trace.gz')[0]['ops'])")


def test_functions_follow_the_current_device(python):
    text = """
import gapless, torch
torch.cuda.initialized = True
torch.cuda.current_device = lambda: 1
gapless.DeviceMemory(1).alloc(5 << 20)
assert gapless.report().startswith("gapless, device 1") and gapless.stats()["live_bytes"] == 5 << 20
assert gapless.report(0).startswith("gapless, device 0") and gapless.stats(0)["live_bytes"] == 0
"""
    code(python, text, GAPLESS_SIM_DEVICES="2")
