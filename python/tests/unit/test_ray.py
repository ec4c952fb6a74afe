"""Advice on the ranks of a job, made by tasks of Ray: the example of docs/using/advise.md, on a local instance."""

import os
import re
from pathlib import Path

import gapless
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: python -m pip install ray")

DOCS = Path(__file__).parents[3] / "docs/using/advise.md"
BLOCKS = "".join(f"a {number} 4194304 0\n" for number in range(40))
FREES = "".join(f"f {number}\n" for number in range(0, 40, 2))
GOES_THROUGH = f"# capacity_bytes 178257920\n{BLOCKS}{FREES}"


def example():
    """The block of the document that imports Ray."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    [block] = [block for block in blocks if "import ray" in block]
    return block


@pytest.fixture
def local():
    # Workers find the package and the program as this process does.
    environment = {name: os.environ[name] for name in ("PYTHONPATH", "GAPLESS_COMMAND", "GAPLESS_LIBRARY") if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in environment["PYTHONPATH"].split(os.pathsep))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    yield
    ray.shutdown()


def test_tasks_advise_and_the_driver_merges(local, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks").mkdir()
    for rank in range(5):
        (tmp_path / f"ranks/rank_{rank}.pickle").write_text(GOES_THROUGH + ("r 67108864 0\n" if rank == 2 else ""))
    (tmp_path / "ranks/rank_5.pickle").write_text("f 1\n")
    code = example()
    # Tasks have a folder of their own.
    assert 'glob.glob("ranks/' in code
    names = {"__name__": "example"}
    exec(compile(code.replace('glob.glob("ranks/', f'glob.glob("{tmp_path}/ranks/'), str(DOCS), "exec"), names)
    paths = [str(tmp_path / f"ranks/rank_{rank}.pickle") for rank in range(6)]
    expected = gapless.advise(paths, html="direct.html")
    assert expected.odd == gapless._advise.Odd(paths[2], "failed_alone") and list(expected.errors) == [paths[5]]
    assert capsys.readouterr().out == f"{expected}\n"
    assert (tmp_path / "job.html").read_bytes() == (tmp_path / "direct.html").read_bytes()
