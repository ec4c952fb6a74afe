"""torch_memory_saver natively and on gapless: each case of this folder in a process of its own. Prints a table.

What a case comes to has to be what is written here, on both sides: what begins to pass has to be noticed as well. Started with
torch_memory_saver's library preloaded, which mode torch does without.
"""

import itertools
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from processes import ended

HERE = Path(__file__).parent
WAYS = ("native", "gapless")
BOTH = ("torch", "preload")
PASSED = "passed"
ENDED = "exit 1"
WHOLE = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
TWO_DEVICES = {"GAPLESS_SIM_DEVICES": "2"}


@dataclass
class Case:
    """A case, its modes, and what it comes to natively and on gapless: for both modes, or for each. A tuple is what it may be."""

    name: str
    modes: tuple = BOTH
    environment: dict = field(default_factory=dict)
    native: object = PASSED
    gapless: object = PASSED


EXAMPLES = [
    Case("simple"),
    Case("graph_and_cache"),
    Case("backups"),
    Case("bytes_are_back_for_every_stream"),
    Case("retained_backups"),
    Case("retained_backups_end_with_the_pool"),
    Case("retained_by_the_environment", environment={"TMS_RETAIN_CPU_BACKUP": "1"}),
    Case("backend_of_the_environment", environment={"TMS_INIT_CPU_BACKUP_BACKEND": "mmap"}),
    Case("backups_on_disk"),
    Case("trainer_and_engine"),
    Case("another_device_in_a_region", ("preload",), TWO_DEVICES),
    Case("a_region_for_each_device", environment=TWO_DEVICES),
    Case("backups_of_each_device", environment=TWO_DEVICES),
    Case("a_whole_trainer", ("preload",), WHOLE),
    Case("regions_in_regions", ("preload",), WHOLE),
    Case("memory_of_another_library", ("preload",), {"TMS_INIT_ENABLE": "1"}),
]
INTERFACE = [
    Case("bad_arguments"),
    Case("tags_that_nobody_has"),
    Case("regions_with_an_error_inside"),
    Case("region_in_a_capture"),
    Case("library_buffers_left_out"),
]
ENDED_IN_TORCH = {"torch": ENDED, "preload": PASSED}
ENDINGS = [
    Case("short_at_wake", native=ENDED),
    Case("short_at_wake_without_a_backup", native=ENDED),
    Case("paused_twice", native=ENDED),
    Case("paused_twice_without_a_backup", native=ENDED),
    Case("resumed_twice", native=ENDED),
    Case("resumed_twice_without_a_backup", native=ENDED),
    Case("resumed_without_a_pause", native=ENDED),
    Case("resumed_without_a_pause_without_a_backup", native=ENDED),
    Case("paused_as_a_whole_after_a_tag", native=ENDED),
    Case("paused_as_a_whole_after_a_tag_without_a_backup", native=ENDED),
    Case("allocated_while_paused", native=ENDED),
    Case("allocated_while_paused_without_a_backup", native=ENDED),
    Case("freed_while_paused"),
    Case("freed_while_paused_without_a_backup"),
    Case("pool_given_back_outside_of_a_region", native=ENDED_IN_TORCH),
    Case("pool_given_back_outside_of_a_region_without_a_backup", native=ENDED_IN_TORCH),
    Case("ends_by_itself", native=ENDED_IN_TORCH),
    Case("ends_by_itself_without_a_backup", native=ENDED_IN_TORCH),
    Case("paused_under_work", native="signal 6"),
    Case("more_than_there_is_in_a_region", native=ENDED_IN_TORCH),
    Case("backup_of_other_memory", native=ENDED),
    Case("backup_of_a_region_without", native=ENDED),
]
PARTS = {
    "what torch_memory_saver's examples check": EXAMPLES,
    "the rest of its interface": INTERFACE,
    "what ends its processes": ENDINGS,
}


def outcome(exit_code, text):
    """What a case came to, and the line that says why it did not pass."""
    lines = text.strip().splitlines() or [""]
    error = next((line for line in reversed(lines) if line.partition(":")[0].endswith("Error")), None)
    if exit_code < 0:
        return f"signal {-exit_code}", error or lines[-1]
    if exit_code > 0:
        return (error.partition(":")[0], error) if error else (f"exit {exit_code}", lines[-1])
    return (PASSED, "") if PASSED in lines else ("ended early", lines[-1])


def outcomes(way, mode, environment, names):
    """What cases come to that need the same environment."""
    preloaded = os.environ["LD_PRELOAD"]
    if mode == "torch":
        preloaded = preloaded.partition(":")[2]
    enabled = ["-m", "gapless.torch"] if way == "gapless" else []
    command = [sys.executable, *enabled, str(HERE / "run.py"), mode, *names]
    result = ended(command, LD_PRELOAD=preloaded, OMP_NUM_THREADS="1", **dict(environment))
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [case["name"] for case in told] == names, result.stdout[-2000:] + result.stderr[-4000:]
    return {(case["name"], mode, way): outcome(case["exit"], case["text"]) for case in told}


def run(cases):
    """What cases come to: by name, mode and way."""
    runs = {}
    for case in cases:
        for mode, way in itertools.product(case.modes, WAYS):
            runs.setdefault((way, mode, tuple(case.environment.items())), []).append(case.name)
    found = {}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for of_run in threads.map(lambda run: outcomes(*run[0], run[1]), runs.items()):
            found.update(of_run)
    return found


def main():
    chosen = sys.argv[1:]
    cases = {part: [case for case in of_part if not chosen or case.name in chosen] for part, of_part in PARTS.items()}
    found = run(itertools.chain(*cases.values()))
    surprises = []
    for part, of_part in cases.items():
        rows = [(case, mode) for case in of_part for mode in case.modes]
        passed = [sum(found[case.name, mode, way][0] == PASSED for case, mode in rows) for way in WAYS]
        print(f"{part}: {passed[0]} of {len(rows)} pass natively, {passed[1]} on gapless")
        for case, mode in rows:
            print(f"  {case.name:54}{mode:10}" + "".join(f"{found[case.name, mode, way][0]:20}" for way in WAYS).rstrip())
            for way, expected in zip(WAYS, (case.native, case.gapless)):
                expected = expected[mode] if isinstance(expected, dict) else expected
                came_to, line = found[case.name, mode, way]
                allowed = expected if isinstance(expected, tuple) else (expected,)
                if came_to not in allowed:
                    surprises.append(f"{case.name}, {mode}, {way}: {came_to} instead of {' or '.join(allowed)}: {line}")
    sys.exit("\n".join(surprises) or None)


if __name__ == "__main__":
    main()
