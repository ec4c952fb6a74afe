"""The workflow of docs/using/advise.md, which checks every pull request: its steps as a runner runs them, but for installing."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import gapless._program
import pytest

DOCS = Path(__file__).parents[3] / "docs/using/advise.md"
# In place of PyTorch, a script is its own recording. The recorder ends with what the script's last line says.
RECORDER = """\
#!/bin/sh
[ "$1 $2 $3 $4 $5 $6" = "-m gapless.record --fake --steps 3 -o" ] && [ "$8" = train.py ] || exit 9
grep -v '^# exit' train.py > "$7"
exit $(sed -n 's/^# exit //p' train.py)
"""
# How a runner starts a step without a shell of its own, and one with `shell: bash`.
USUAL = ["bash", "-e", "-c"]
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]


def steps():
    """The text of each step that runs something, with how it is started."""
    [workflow] = re.findall(r"```yaml\n(# .github/workflows/memory.yml\n.*?)```", DOCS.read_text(), re.DOTALL)
    found = []
    for step in re.split(r"^      - ", workflow, flags=re.MULTILINE)[1:]:
        if step.startswith("run: |\n"):
            found.append(["".join(line[10:] + "\n" for line in step.splitlines()[1:] if line.startswith(" " * 10)), USUAL])
        elif step.startswith("run: "):
            found.append([step.splitlines()[0][len("run: ") :], BASH if "\n        shell: bash\n" in step else USUAL])
    return found


@pytest.fixture
def runner(tmp_path):
    """Runs the workflow for two versions of a script; returns the exit code of each step, up to the first that fails."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gapless").symlink_to(shutil.which(os.fspath(gapless._program.program())))
    (programs / "python").write_text(RECORDER)
    (programs / "python").chmod(0o755)
    summary = tmp_path / "summary.md"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(summary)}

    def run(old, new):
        for name, text in (("old", old), ("new", new)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "train.py").write_text(text)
        [(install, _), *rest] = steps()
        assert install.startswith("pip install torch ") and len(rest) == 2
        codes = []
        for text, shell in rest:
            done = subprocess.run([*shell, text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
            codes.append(done.returncode)
            if done.returncode != 0:
                break
        return codes, summary.read_text() if summary.exists() else ""

    return run


def script(mebibytes, code=0):
    return f"a 1 {mebibytes << 20} 0\n# exit {code}\n"


def test_a_pull_request_passes_unless_the_peak_grows(runner):
    codes, summary = runner(script(100), script(101))
    assert codes == [0, 0] and "The peak did not grow by more than the 2 % that are tolerated." in summary
    codes, summary = runner(script(100), script(103))
    assert codes == [0, 3] and "The peak grew by 3.00 %" in summary


def test_a_script_that_fits_no_device_is_compared_and_one_that_ends_is_not(runner):
    assert runner(script(100, 3), script(100, 3))[0] == [0, 0]
    assert runner(script(100), script(100, 1))[0] == [1]
    assert runner(script(100, 1), script(100))[0] == [1]
