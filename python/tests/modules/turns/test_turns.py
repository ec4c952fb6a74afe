"""An engine with vLLM's sleep mode and a trainer on gapless, two processes that take turns on a device too small for both."""

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Awake, the trainer needs 144 MiB and its activations, and the engine 128 MiB.
CAPACITY_MIB = 224
TURNS = 10


class Process:
    """One of the two, which does what it is told."""

    def __init__(self, *command, **environment):
        variables = {**os.environ, **environment}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen([sys.executable, *command], env=variables, text=True, bufsize=1, **pipes)
        self.told = []

    def begin(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def has_answered(self, within):
        return bool(select.select([self.process.stdout], [], [], within)[0])

    def answer(self):
        """The next line that is one of an answer: others are of warnings and errors."""
        for line in self.process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                self.told.append(line)
        raise AssertionError("".join(self.told))

    def ask(self, *words):
        self.begin(*words)
        return self.answer()


@pytest.fixture
def start():
    """Starts processes that share a device."""
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        shared = {"GAPLESS_SIM_SHARED": f"{folder}/devices", "GAPLESS_SIM_CAPACITY": f"{CAPACITY_MIB}MiB"}

        def start(script, on_gapless):
            runner = ["-m", "gapless.torch"] if on_gapless else []
            processes.append(Process(*runner, str(HERE / script), **shared))
            return processes[-1]

        yield start
        for its in processes:
            its.process.stdin.close()
            its.process.wait()


@pytest.mark.parametrize(("on_gapless", "allocator"), [(False, "CuMemAllocator"), (True, "TagAllocator")])
def test_ten_turns(start, on_gapless, allocator):
    engine = start("engine.py", on_gapless)
    assert engine.ask("start") == allocator
    engine.ask("generate", 0)
    assert engine.ask("suspend", 1) >= 128
    trainer = start("trainer.py", True)
    assert trainer.ask("start") == "object"
    level = 1
    for turn in range(1, TURNS + 1):
        assert trainer.ask("step", turn) >= 144
        assert trainer.ask("sleep") == 0, "nothing is held"
        engine.ask("resume_weights", level, turn)
        engine.ask("resume_cache")
        engine.ask("generate", turn)
        # There is no room for both.
        assert "are asleep and need" in trainer.ask("wake", 0)
        trainer.begin("wake", 600)
        assert not trainer.has_answered(0.1)
        level = 1 + turn % 2
        engine.ask("suspend", level)
        assert trainer.answer() is None
