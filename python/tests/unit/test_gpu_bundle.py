"""The bundle's `run` (scripts/gpu-run), over programs that only pretend."""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
# A rule that is answered by a code, and one that is not.
RULES = """#!/bin/sh
case $1 in
    "") echo map_part && echo dead_stream ;;
    map_part) echo 801 ;;
    *) kill -SEGV $$ ;;
esac
"""


@pytest.fixture
def bundle(tmp_path):
    """Runs a bundle whose programs print an empty object; gives the exit code, the results and the report."""
    folder = tmp_path / "bundle"
    (folder / "bin").mkdir(parents=True)
    (folder / "python" / "gpu").mkdir(parents=True)
    shutil.copy(REPOSITORY / "scripts" / "gpu-run", folder / "run")
    shutil.copy(REPOSITORY / "python" / "gpu" / "run.py", folder / "python" / "gpu")
    (folder / "VERSION").write_text("gapless 0\ncommit none\n")
    for name in ("gapless", "conformance", "cuda_properties", "bench-device"):
        (folder / "bin" / name).write_text("#!/bin/sh\necho '{}'\n")
    (folder / "bin" / "rules").write_text(RULES)
    for program in (folder / "bin").iterdir():
        program.chmod(0o755)

    def bundle(*arguments):
        command = [str(folder / "run"), *arguments, str(tmp_path / "results")]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120).returncode
        results = json.loads((tmp_path / "results" / "results.json").read_text())
        return code, results, (tmp_path / "results" / "report.md").read_text()

    bundle.folder = folder
    return bundle


def outcomes(results):
    return {stage["name"]: stage["outcome"] for stage in results["stages"]}


def test_simulated(bundle):
    code, results, report = bundle("--simulated", "--python", sys.executable)
    assert code == 0 and results["simulated"]
    found = outcomes(results)
    assert found.pop("python") == "skipped" and set(found.values()) == {"ok"} and len(found) == 11
    part = results["python"]["parts"][0]
    assert part["outcome"] == "skipped" and part["reason"] in report
    rules = {"map_part": {"answer": 801, "exit_code": 0}, "dead_stream": {"answer": None, "exit_code": 139}}
    assert results["rules"] == rules
    (bundle.folder / "bin" / "rules").unlink()
    code, results, _ = bundle("--simulated", "--only", "rules")
    assert code == 1 and outcomes(results)["rules"] == "failed"


def test_few_files_come_back(bundle):
    bundle("--simulated", "--only", "conformance,machine")
    results = bundle.folder.parent / "results"
    assert sorted(path.name for path in results.iterdir()) == ["all.tar.gz", "report.md", "results.json"]
    with tarfile.open(results / "all.tar.gz") as packed:
        names = packed.getnames()
        machine = packed.extractfile("all/machine.txt").read().decode()
    assert "all/conformance.txt" in names
    for text in ("Linux", "processors", "open files", "nvidia-smi"):
        assert text in machine, text


def test_the_time_for_all_stages_is_a_setting(bundle):
    (bundle.folder / "bin" / "conformance").write_text("#!/bin/sh\nexec sleep 30\n")
    code, results, _ = bundle("--simulated", "--only", "conformance,replay", "--total", "2")
    found = outcomes(results)
    assert code == 1 and found["conformance"] == found["replay"] == "out of time"


def test_only_some_questions(bundle):
    (bundle.folder / "bin" / "gapless").write_text('#!/bin/sh\necho "{\\"asked\\": \\"$*\\"}"\n')
    _, results, _ = bundle("--simulated", "--only", "probe", "--questions", "stream_ids,busy")
    assert "--only stream_ids,busy" in results["probe"]["asked"]


def test_a_checker_where_there_is_one(bundle, monkeypatch):
    code, results, _ = bundle("--only", "sanitizer")
    assert code == 0 and outcomes(results)["sanitizer"] == "skipped"
    tools = bundle.folder / "tools"
    tools.mkdir()
    checker = tools / "compute-sanitizer"
    checker.write_text("#!/bin/sh\n[ \"$5\" = bin/conformance ] && exit 1\n")
    checker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    code, results, _ = bundle("--only", "sanitizer")
    assert code == 1 and outcomes(results)["sanitizer"] == "failed"


def test_only_some_stages(bundle):
    code, results, _ = bundle("--only", "replay,conformance", "--simulated")
    assert code == 0
    assert list(outcomes(results)) == ["doctor", "doctor-json", "conformance", "replay", "replay-oom"]


def test_a_python_that_is_not_there(bundle):
    code, results, report = bundle("--simulated", "--only", "python", "--python", "no-such-python")
    assert code == 0 and outcomes(results)["python"] == "skipped" and results["python"] is None
    assert "there is no no-such-python" in report


def test_a_python_without_pytorch(bundle):
    # On the device, where nothing is simulated. The folder of the package comes first, wherever the tests run.
    (bundle.folder / "python" / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')\n")
    code, results, report = bundle("--only", "python", "--python", sys.executable)
    assert code == 0 and not results["simulated"] and outcomes(results)["python"] == "skipped"
    assert "PyTorch is not there" in results["python"]["parts"][0]["reason"] and "PyTorch is not there" in report


def test_a_part_that_fails_fails_the_run(bundle):
    (bundle.folder / "python" / "torch.py").write_text("raise OSError('broken')\n")
    code, results, report = bundle("--only", "python", "--python", sys.executable)
    assert code == 1 and outcomes(results)["python"] == "failed" and "broken" in report
    (bundle.folder / "bin" / "conformance").write_text("#!/bin/sh\nexit 3\n")
    code, results, _ = bundle("--only", "conformance")
    assert code == 1 and outcomes(results)["conformance"] == "failed"


@pytest.mark.parametrize(
    "arguments", [[], ["--simulated"], ["--only", "python"], ["--what", "folder"], ["--total", "long", "folder"]]
)
def test_usage(bundle, arguments):
    result = subprocess.run([str(bundle.folder / "run"), *arguments], capture_output=True, text=True)
    assert result.returncode == 2 and "./run --simulated RESULTS" in result.stderr
