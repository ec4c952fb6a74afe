"""PyTorch's own variables: with each of their keys, gapless does what PyTorch's own allocator does, and refuses what it refuses."""

import json
import sys
from pathlib import Path

import pytest
from processes import ended
from variables_script import CASES

SCRIPT = Path(__file__).with_name("variables_script.py")


def outcomes(way):
    settings = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    if way == "plug-in":
        settings["GAPLESS_TORCH_OBJECTS"] = "off"
    result = ended([sys.executable, str(SCRIPT), way], **settings)
    assert result.returncode == 0, result.stderr
    told = dict(json.loads(line) for line in result.stdout.splitlines() if line.startswith("["))
    return [(case, told.get(number)) for number, case in enumerate(CASES)]


@pytest.fixture(scope="module")
def native():
    return outcomes("native")


def test_every_key_does_what_it_does_natively_with_the_object(native):
    assert outcomes("object") == native


def test_every_key_does_what_it_does_natively_with_the_plug_in(native):
    """PyTorch's function for settings, which the plug-in calls, words two of its errors otherwise."""

    def alike(told):
        if not isinstance(told, str):
            return told
        return told.replace("RuntimeError: sto", "ValueError: sto").replace("in CUDA allocator", "in Accelerator allocator")

    assert outcomes("plug-in") == [(case, alike(told)) for case, told in native]


def test_the_cases_are_not_all_alike(native):
    kinds = {told.partition(":")[0] if isinstance(told, str) else "served" for _, told in native}
    assert {"ValueError", "RuntimeError", "served"} <= kinds
    assert {told["fraction"] for _, told in native if isinstance(told, dict)} == {0.0, 0.25, 0.5, 1.0}
