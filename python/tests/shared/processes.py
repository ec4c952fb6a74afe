"""Processes of tests: programs, and pieces of Python."""

import os
import subprocess
import sys
import textwrap


# The settings that enable() passes to the processes that this one starts. Here each decides for itself.
INHERITED = ("GAPLESS_TORCH", "GAPLESS_CONF", "GAPLESS_EXPLAIN_OOM", "GAPLESS_EXPLAIN_OOM_CONF")
# No process here takes a minute on a machine that has nothing else to do. This is for those that hang: no machine is so busy.
LIMIT_S = 3600


def ended(command, cwd=None, **environment):
    """Runs a program to its end, with what is added to the environment, or taken from it by None."""
    variables = {key: value for key, value in os.environ.items() if key not in INHERITED}
    variables = {key: value for key, value in {**variables, **environment}.items() if value is not None}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=LIMIT_S)


def run(code, *arguments, fails=False, **environment):
    """Returns what a piece of Python prints in a process of its own, which ends well, or fails."""
    result = ended([sys.executable, *arguments, *(["-c", textwrap.dedent(code)] if code else [])], **environment)
    assert (result.returncode != 0) == fails, result.stdout + result.stderr
    return result.stdout + result.stderr
