"""torch_memory_saver and vLLM's sleep mode, from their wheels, beside gapless, measured in one run: ``table.py TRACE...``.

Prints two tables in Markdown: what the sleeps and wakes of each trace copy and map, and the whole comparison. Traces whose tags
sleep and wake are searched for the smallest device. Started with torch_memory_saver's library preloaded, which only its own
processes keep.
"""

import collections
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from outcomes import AWAKE, WORKS_LATER
from processes import ended
from recorded import ops, peak_awake
from saver import table as saver

HERE = Path(__file__).parent
TOGETHER = HERE.parents[1] / "object" / "test_together.py"
# More than any trace holds, in segments as well.
CAPACITY = "1TiB"
GIB = 1 << 30
NO_COPIES = {"GAPLESS_SIM_NO_COPIES": "1"}
# What the smallest device is searched to, of the largest awake peak.
EXACTNESS = 0.0005
# What is measured at the ends of steps, as it is called in `Sleeps`, and what gapless is held to.
RATIOS = (
    ("bytes copied / live", "copied", 1.01),
    ("bytes mapped / live, where over 1 GiB lives", "mapped", 1.03),
)
PYTEST = ("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider")
ON_GAPLESS = ("-m", "gapless.torch")


@dataclass(frozen=True)
class Way:
    """One way of `allocators`, natively or on gapless."""

    name: str
    of: str
    is_on_gapless: bool = False
    environment: dict = field(default_factory=dict, hash=False)

    def started(self, program, *arguments, **environment):
        """Runs a program of this folder to its end."""
        runner = ON_GAPLESS if self.is_on_gapless else ()
        command = [sys.executable, *runner, str(HERE / program), self.of, *arguments]
        return ended(command, **{"LD_PRELOAD": preloaded("saver" in self.of), **self.environment, **environment})

    def run(self, program, *arguments, **environment):
        """Returns what a program of this folder prints, which ends well."""
        result = self.started(program, *arguments, **environment)
        assert result.returncode == 0, f"{self.name}, {program} {arguments}: {result.stdout[-2000:]}{result.stderr[-4000:]}"
        return result.stdout


SAVER = Way("torch_memory_saver", "whole saver", environment=saver.WHOLE)
REGION = Way("torch_memory_saver, in a region", "saver")
VLLM = Way("vLLM", "vllm")
VLLM_BESIDE = Way("vLLM, beside a trainer that stays awake", "vllm beside")
GAPLESS = Way("gapless", "gapless", is_on_gapless=True)
SAVER_ON_GAPLESS = Way("gapless by torch_memory_saver's region", "saver", is_on_gapless=True)
VLLM_ON_GAPLESS = Way("gapless by vLLM's allocator", "vllm", is_on_gapless=True)
OTHERS = (SAVER, REGION, VLLM)
WAYS = (*OTHERS, GAPLESS, SAVER_ON_GAPLESS, VLLM_ON_GAPLESS)
INTERFACES = (GAPLESS, SAVER_ON_GAPLESS, VLLM_ON_GAPLESS)


def preloaded(is_saver):
    """What is preloaded: torch_memory_saver's library comes first."""
    libraries = os.environ["LD_PRELOAD"]
    return libraries if is_saver else libraries.partition(":")[2]


@dataclass
class Sleeps:
    """The ratios of the sleeps and wakes of one way, and how often the host waited in each sleep."""

    copied: list = field(default_factory=list)
    # Where more than 1 GiB was live: else what one page has is much of it.
    mapped: list = field(default_factory=list)
    waits: list = field(default_factory=list)

    def add(self, steps):
        for step in steps:
            if step["live"] == 0:
                continue
            self.copied.append(step["copied"] / step["live"])
            if step["live"] > GIB:
                self.mapped.append(step["mapped"] / step["live"])
            self.waits.append(sum(step["waits"].values()))


def cell(ratios):
    """Mean and most."""
    return f"{sum(ratios) / len(ratios):.4f}, at most {max(ratios):.4f}" if ratios else "-"


def name_of(trace):
    return Path(trace).name.partition(".")[0]


def row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def replays(traces, threads):
    """Prints what each trace comes to, and returns the sleeps of all by way."""
    row("trace", "copied / live: gapless", "mapped / live: gapless", *(f"both: {way.name}" for way in OTHERS))
    row("---", *["--:"] * (2 + len(OTHERS)))
    everything = {way: Sleeps() for way in WAYS}
    runs = {
        (trace, way): threads.submit(way.run, "steps.py", trace, GAPLESS_SIM_CAPACITY=CAPACITY, **NO_COPIES)
        for trace in traces
        for way in WAYS
    }
    for trace in traces:
        here = {way: Sleeps() for way in WAYS}
        for way in WAYS:
            steps = json.loads(runs[trace, way].result())
            assert way.is_on_gapless or all(step["copied"] == step["mapped"] for step in steps), "segments are copied whole"
            here[way].add(steps)
            everything[way].add(steps)
        print_sleeps(name_of(trace), here)
    print_sleeps("all step ends", everything)
    return everything


def print_sleeps(name, of):
    row(name, cell(of[GAPLESS].copied), cell(of[GAPLESS].mapped), *(cell(of[way].copied) for way in OTHERS))


# The ways to end a process or to leave it half awake: the cases of torch_memory_saver, and the test of vLLM's allocator.
ENDINGS = {
    "memory short at a wake": (("short_at_wake",), "test_short_at_wake_changes_nothing"),
    "a sleep of what is asleep": (("paused_twice",), "test_twice_asleep"),
    "a wake of what is awake": (("resumed_twice", "resumed_without_a_pause"), "test_awake_already"),
    "an allocation while asleep": (("allocated_while_paused",), "test_an_allocation_in_a_sleeping_tag"),
    "a free while asleep": (("freed_while_paused",), "test_a_free_while_it_sleeps"),
    "work in flight at a sleep": (("paused_under_work",), None),
    "memory given back outside of a region": (("pool_given_back_outside_of_a_region",), None),
}


def is_case_of(name, cases):
    return name.removesuffix("_without_a_backup") in cases


def vllm_tests(is_on_gapless):
    """What the tests of vLLM's allocator come to, by their names without parameters: the set of outcomes."""
    runner = ON_GAPLESS if is_on_gapless else ()
    result = ended([sys.executable, *runner, *PYTEST, str(HERE.parent / "vllm_allocator")], LD_PRELOAD=preloaded(False))
    return outcomes_of_tests(result.stdout)


def outcomes_of_tests(text):
    """The outcomes of tests in what pytest prints, by their names without parameters."""
    outcomes = collections.defaultdict(set)
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) \S+::(\w+)", text, re.MULTILINE):
        outcomes[name].add(outcome)
    return dict(outcomes)


def endings_of(cases, tests, way):
    """Those of `ENDINGS` that do not pass: of torch_memory_saver's cases, of vLLM's tests, or of both, where they are given."""
    missed = []
    for name, (its_cases, its_test) in ENDINGS.items():
        came_to = {outcome for (case, _, its_way), (outcome, _) in cases.items() if its_way == way and is_case_of(case, its_cases)}
        assert came_to or not cases, name
        of_test = tests[its_test] if tests and its_test else set()
        if came_to - {saver.PASSED} or of_test - {"PASSED"}:
            missed.append(name)
    return missed


def counted(names):
    return f"{len(names)}: {', '.join(names)}" if names else "0"


def failures(way):
    """What a wake comes to, each call of the driver failing once: how often."""
    lines = way.run("failing.py").splitlines()
    return collections.Counter(json.loads(line)["outcome"] for line in lines)


def told(outcomes):
    return ", ".join(f"{outcome}: {count}" for outcome, count in outcomes.most_common())


def is_enough(way, trace, capacity):
    """Whether a trace whose tags sleep and wake ends well on a device."""
    result = way.started("turns.py", trace, GAPLESS_SIM_CAPACITY=str(capacity), **NO_COPIES)
    text = result.stdout + result.stderr
    assert result.returncode == 0 or re.search("out of memory", text, re.IGNORECASE), text[-4000:]
    return result.returncode == 0


def smallest(way, trace):
    """The smallest device for a trace, over its largest awake peak, found by halving."""
    peak = peak_awake(trace)
    too_small, large = 0.999, 3.0
    assert is_enough(way, trace, int(large * peak))
    while large - too_small > EXACTNESS:
        middle = (too_small + large) / 2
        if is_enough(way, trace, int(middle * peak)):
            large = middle
        else:
            too_small = middle
    return large


def has_turns(trace):
    return any(op.kind == "s" for op in ops(trace))


def compare(sleeps, turns, threads):
    """Prints the comparison. Returns which of gapless's bounds do not hold."""
    found = {(way, trace): threads.submit(smallest, way, trace) for trace in turns for way in (SAVER, VLLM_BESIDE, GAPLESS)}
    tests = {is_on_gapless: threads.submit(vllm_tests, is_on_gapless) for is_on_gapless in (False, True)}
    failed = {way: threads.submit(failures, way) for way in (REGION, VLLM, *INTERFACES)}
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    expandable = {way: threads.submit(way.run, "defragmenting.py", **conf) for way in (REGION, VLLM)}
    together = threads.submit(ended, [sys.executable, *PYTEST, str(TOGETHER)], LD_PRELOAD=preloaded(False))
    of_endings = [name for cases, _ in ENDINGS.values() for name in cases]
    cases = saver.run([*saver.EXAMPLES, *(case for case in saver.ENDINGS if is_case_of(case.name, of_endings))])
    missed = []

    def line(what, *cells, holds):
        row(what, *cells)
        if not holds:
            missed.append(what)

    row("", "torch_memory_saver 0.0.10", "vLLM 0.33.0", "gapless")
    row("---", "---", "---", "---")
    rows = [(case.name, mode) for case in saver.EXAMPLES for mode in case.modes]
    passed = {way: sum(cases[name, mode, way][0] == saver.PASSED for name, mode in rows) for way in saver.WAYS}
    native, on_gapless = (f"{passed[way]} of {len(rows)}" for way in saver.WAYS)
    holds = passed["gapless"] == len(rows)
    line("what torch_memory_saver's examples check, in both modes", native, "-", on_gapless, holds=holds)
    endings = endings_of(cases, tests[True].result(), "gapless")
    line(
        "ways to end the process or to leave it half awake",
        counted(endings_of(cases, {}, "native")),
        counted(endings_of({}, tests[False].result(), "native")),
        counted(endings),
        holds=not endings,
    )
    of_gapless = sum((failed[way].result() for way in INTERFACES), collections.Counter())
    line(
        "a wake, each call of the driver failing once",
        *(told(failed[way].result()) for way in (REGION, VLLM)),
        told(of_gapless),
        holds=set(of_gapless) <= {WORKS_LATER, AWAKE},
    )
    for what, ratios, bound in RATIOS:
        worst = max(max(getattr(sleeps[way], ratios), default=0) for way in INTERFACES)
        native = (cell(getattr(sleeps[way], ratios)) for way in (SAVER, VLLM))
        text = f"{cell(getattr(sleeps[GAPLESS], ratios))}; by any interface at most {worst:.4f}"
        line(what, *native, text, holds=worst <= bound)
    for trace in turns:
        ratios = [found[way, trace].result() for way in (SAVER, VLLM_BESIDE, GAPLESS)]
        what = f"smallest device / largest awake peak, {name_of(trace)}"
        line(what, *(f"{ratio:.4f}" for ratio in ratios), holds=ratios[-1] <= 1.005)
    waits = [sleeps[way].waits or [0] for way in (SAVER, VLLM, GAPLESS)]
    texts = (f"{min(counts)} to {max(counts)}" for counts in waits)
    line("waits of the host in a sleep", *texts, holds=max(waits[-1]) <= 1)
    is_together = together.result().returncode == 0 and "PASSED" in together.result().stdout
    line(
        "together with defragmentation: PyTorch's expandable segments, or gapless's with tensors for others and graphs",
        *(expandable[way].result().strip() for way in (REGION, VLLM)),
        "yes" if is_together else "no",
        holds=is_together,
    )
    return missed


def main():
    traces = [os.path.abspath(trace) for trace in sys.argv[1:]]
    turns = [trace for trace in traces if has_turns(trace)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        try:
            sleeps = replays([trace for trace in traces if trace not in turns], threads)
            print()
            missed = compare(sleeps, turns, threads)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    sys.exit("\n".join(f"gapless misses its bound: {what}" for what in missed) or None)


if __name__ == "__main__":
    main()
