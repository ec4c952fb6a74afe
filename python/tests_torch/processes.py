"""Pieces of Python in processes of their own."""

import os
import subprocess
import sys
import textwrap


def run(code, *arguments, fails=False, **environment):
    result = subprocess.run(
        [sys.executable, *arguments, *(["-c", textwrap.dedent(code)] if code else [])],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode != 0) == fails, result.stdout + result.stderr
    return result.stdout + result.stderr
