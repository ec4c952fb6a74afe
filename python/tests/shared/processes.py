"""Pieces of Python in processes of their own."""

import os
import subprocess
import sys
import textwrap


# The settings that enable() passes to the processes that this one starts. Here each decides for itself.
INHERITED = ("GAPLESS_TORCH", "GAPLESS_CONF", "GAPLESS_EXPLAIN_OOM", "GAPLESS_EXPLAIN_OOM_CONF")


def run(code, *arguments, fails=False, **environment):
    result = subprocess.run(
        [sys.executable, *arguments, *(["-c", textwrap.dedent(code)] if code else [])],
        env={**{key: value for key, value in os.environ.items() if key not in INHERITED}, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode != 0) == fails, result.stdout + result.stderr
    return result.stdout + result.stderr
