"""The parts of a recording without a GPU that need no PyTorch."""

import os
import subprocess
import sys

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
