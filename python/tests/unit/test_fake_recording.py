"""The parts of a recording without a GPU that need no PyTorch."""

import os
import subprocess
import sys

import pytest

from gapless._fake.trace import Trace


class Storage:
    def __init__(self, size):
        self._cdata, self.size = id(self), size

    def nbytes(self):
        return self.size


def test_storages_live_from_the_first_sight_to_their_end(tmp_path):
    trace = Trace()
    one, two = Storage(100), Storage(50)
    trace.storage(one)
    trace.storage(one)
    trace.storage(two)
    one.size = 300
    trace.storage(one)
    trace.mark("step 1")
    del two
    trace.storage(Storage(0))
    trace.write(tmp_path / "a.trace", {"made": "here"})
    assert (tmp_path / "a.trace").read_text().splitlines() == [
        "# made here",
        "# events 6",
        "# peak_live_bytes 350",
        *("a 0 100 0", "a 1 50 0", "f 0", "a 2 300 0", "m step 1", "f 1"),
    ]
    assert trace.live_bytes == 300


def test_after_the_end_nothing_is_noted(tmp_path):
    trace = Trace()
    one = Storage(100)
    trace.storage(one)
    trace.end()
    two = Storage(900)
    trace.storage(two)
    trace.short(900)
    del one
    trace.write(tmp_path / "a.trace", {})
    assert (tmp_path / "a.trace").read_text().splitlines() == ["# events 1", "# peak_live_bytes 100", "a 0 100 0"]


def test_a_trace_is_written_whole_or_not_at_all(tmp_path):
    trace = Trace()
    trace.mark("\udc80")  # A text that no file can have.
    path = tmp_path / "a.trace"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        trace.write(path, {})
    assert [file.name for file in tmp_path.iterdir()] == ["a.trace"] and path.read_text() == "before"
    (tmp_path / "link.trace").symlink_to(path)
    Trace().write(tmp_path / "link.trace", {})
    assert (tmp_path / "link.trace").is_symlink() and path.read_text().startswith("# events 0")
    Trace().write("/dev/null", {})
    assert not os.path.isfile("/dev/null")


def record(tmp_path, *arguments, command="exit 3"):
    """Runs ``python -m gapless.record`` beside a PyTorch that says that it was imported, and a command ``gapless``."""
    (tmp_path / "torch.py").write_text('__version__ = "2.7.1"; print("imported")')
    (tmp_path / "gapless").write_text(f"#!/bin/sh\n{command}\n")
    (tmp_path / "gapless").chmod(0o755)
    result = subprocess.run(
        [sys.executable, "-m", "gapless.record", "--fake", *map(str, arguments), "x.py"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.path.abspath('python')}", "GAPLESS_COMMAND": str(tmp_path / "gapless")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stdout, result.stderr


def test_what_cannot_be_written_is_refused_before_the_run(tmp_path):
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none/a.trace", "No such file or directory")):
        refusal = f"gapless.record: -o {path} cannot be written: {why}\n"
        assert record(tmp_path, "-o", path) == (2, "", refusal)
    assert record(tmp_path, "-o", tmp_path / "a.trace")[1] == "imported\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("a.trace")]


def test_a_device_that_is_not_known_is_refused_before_the_run(tmp_path):
    command = "cat > /dev/null; shift $(($# - 2)); echo \"error: what is $1 $2?\" >&2; exit 2"
    assert record(tmp_path, "--gpu", "GT 1", command=command) == (2, "", "gapless.record: error: what is --gpu GT 1?\n")
    assert record(tmp_path, "--gpu", "H100")[1] == "imported\n"


@pytest.mark.parametrize("named, code", [([], 0), (["--device", "1GiB"], 3), (["--gpu", "H100"], 3)])
def test_without_a_named_device_nothing_does_not_fit(named, code, tmp_path, monkeypatch, capsys):
    import gapless.record  # noqa: F401

    advice = '{"peak_live_bytes": 5, "policies": [{"setting": "native", "oom_op": 1, "smallest_device_bytes": 2097152}]}'
    (tmp_path / "gapless").write_text(f"#!/bin/sh\necho '{advice}'; exit 3\n")
    (tmp_path / "gapless").chmod(0o755)
    monkeypatch.setenv("GAPLESS_COMMAND", str(tmp_path / "gapless"))
    module = sys.modules["gapless.record"]
    options = module._options(["--fake", *named, "x.py"])
    assert module._advise(options, "a.trace", 5) == code
    assert ("does not fit" if named else "needs a device of 2.0 MiB with native defaults") in capsys.readouterr().out


def test_a_program_may_be_a_module_or_code():
    import gapless.record  # noqa: F401

    options = sys.modules["gapless.record"]._options
    assert options(["--fake", "--steps", "2", "-m", "package", "--steps", "3"]).program == ["-m", "package", "--steps", "3"]
    assert options(["--fake", "-c", "pass", "-o", "x"]).program == ["-c", "pass", "-o", "x"]
    assert options(["--fake", "x.py", "-c"]).program == ["x.py", "-c"]


def test_the_module_is_called_as_the_function_is(run):
    run("import gapless; f = gapless.record; import gapless.record; assert callable(f) and callable(gapless.record)")
    run("from gapless.record import main; import gapless; assert callable(gapless.record) and main(['--fake', 'x.py']) == 2")


def test_an_old_pytorch_is_named(tmp_path):
    (tmp_path / "torch.py").write_text('__version__ = "2.7.1+cu126"')
    code = "import sys, gapless.record; sys.exit(gapless.record.main(['--fake', 'x.py']))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "PyTorch 2.7.1+cu126 is too old to run without a GPU: 2.8 or newer is needed" in result.stderr


def test_the_sentence():
    from gapless.record import sentence

    policies = [("native", 7, 25.1), ("expandable_segments:True", None, 20.3), ("gapless", None, 20.0)]
    keys = ("setting", "oom_op", "smallest_device_bytes")
    advice = {"peak_live_bytes": int(19.8 * 2**30)}
    advice["policies"] = [dict(zip(keys, (name, op, int(size * 2**30)))) for name, op, size in policies]
    assert sentence(advice, "a 24.0 GiB device") == (
        "peak live 19.8 GiB; fits a 24.0 GiB device with expandable segments or gapless, not with native defaults (25.1 GiB)"
    )
    assert sentence(advice, None).startswith("peak live 19.8 GiB; needs a device of 25.1 GiB with native defaults, ")
    advice["policies"] = advice["policies"][:1]
    assert "does not fit" in sentence(advice, "a 24.0 GiB device")
