"""Processes that may not end."""
import os
import resource
import signal
import subprocess

# For what allocates without an end.
MOST_BYTES = 6 << 30


def exit_code(command, seconds, folder, environment):
    """The exit code of a command, or `None` if it did not end in time. Ends whatever it has started."""
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
