"""The tests run against the simulated driver: cargo xtask test-python sets that up."""

import os
import subprocess
import sys

import pytest

if "GAPLESS_LIBRARY" not in os.environ:
    pytest.exit("run cargo xtask test-python, which builds the libraries and names them", returncode=2)


@pytest.fixture
def run():
    """Runs a piece of Python in a process of its own: settings and process-wide allocators are per process."""

    def run(code, *, fails=False, **environment):
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (result.returncode != 0) == fails, result.stdout + result.stderr
        return result.stdout + result.stderr

    return run
