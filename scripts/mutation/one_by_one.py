"""Tries changes one by one: those that cannot be put behind a switch. The tests are built for each."""
import queue
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

import work_copy

from . import listing
from .areas import area_of, areas_of
from .processes import exit_code
from .switches import byte_of, starts_of_lines

# Few programs at first: building them is most of the time.
QUICK = ["--package=gapless", "--package=gapless-trace", "--test=replay_figures", "--test=ranges", "--test=last_resort"]
PACKAGES = ["--package=gapless", "--package=gapless-testkit", "--package=gapless-instrumented", "--package=gapless-trace"]
REST = PACKAGES + ["--lib"] + [f"--test={test}" for test in [
    "addresses", "alignment", "alloc_again", "captures", "device_budget", "ends", "faults", "figures", "fork", "further_regions",
    "graphs", "host_mapping_limit", "kept", "large", "listeners", "lost_device", "mapping_limit", "metadata", "own_stream",
    "pinned_pages", "pins", "placement", "properties", "refused_chunks", "registered", "regressions", "replay", "settings",
    "small_worlds", "stress", "tickets", "whole_blocks", "worked_example"]]
# By area, with the seconds after which a change is taken as noticed. All the rest of the core takes some 30 seconds as it is.
GROUPS = {
    "core": [("replay", QUICK, 15), ("unit tests", ["--package=gapless", "--lib"], 60), ("other tests", REST, 200)],
    "share": [("its own tests", ["--package=gapless-share", "--lib", "--tests"], 120),
              ("sharing in C", ["--package=gapless-capi", "--test=sharing"], 120)],
    "process": [("its own tests", ["--package=gapless-process", "--lib", "--tests"], 60),
                ("two devices", ["--package=gapless-testkit", "--test=process"], 60),
                ("the C interface", ["--package=gapless-capi"] + [f"--test={test}" for test in [
                    "figures", "foreign_streams", "fuzz_seeds", "last_error", "listeners", "null_pointers", "pools", "registered",
                    "sharing", "torch_object", "two_devices", "two_devices_stress"]], 200)],
}
LONGEST_BUILD = 900


def outcomes(out, jobs, changes, environment):
    """Yields the names of changes, with what becomes of each."""
    trees = queue.SimpleQueue()
    for job in range(jobs if changes else 0):
        trees.put(Tree(out / f"tree-{job}", areas_of(changes), environment))

    def outcome(change):
        tree = trees.get()
        try:
            return tree.outcome(change)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(outcome, change): change["name"] for change in changes}
        for future in as_completed(running):
            yield running[future], future.result()


class Tree:
    """A copy of the repository in which one change is made at a time."""

    def __init__(self, path, areas, environment):
        self.path, self.environment = path, listing.ENVIRONMENT | environment | {"RUSTFLAGS": "--cap-lints=allow"}
        work_copy.copy_files(path)
        # None of the tests of the core here takes the simulated libcuda, which would be built again for each change.
        for manifest in [path / "Cargo.toml", path / "crates/testkit/Cargo.toml"]:
            lines = manifest.read_text().splitlines(keepends=True)
            manifest.write_text("".join(line for line in lines if not line.startswith("gapless-sim-libcuda")))
        listing.add_profile(path)
        for name, tests, _ in [group for area in areas for group in GROUPS[area.name]]:
            if self.cargo("test", ["--no-run", *tests], LONGEST_BUILD) != 0:
                sys.exit(f"{name}: the tests do not build without a change, or {path}/target is from a run that was cut short")

    def outcome(self, change):
        """What becomes of a change, and which tests notice."""
        path, area = self.path / change["file"], area_of(change["file"])
        source = path.read_bytes()
        path.write_bytes(changed(source, change))
        try:
            if self.cargo("check", [f"--package={area.package}", "--lib"], LONGEST_BUILD) != 0:
                return "does not compile", "the compiler"
            for name, tests, seconds in GROUPS[area.name]:
                if self.cargo("test", ["--no-run", *tests], LONGEST_BUILD) != 0:
                    return "does not compile", "the compiler"
                ended = self.cargo("test", tests, seconds)
                if ended != 0:
                    return ("endless" if ended is None else "caught"), name
            return "lives", "built for itself"
        finally:
            path.write_bytes(source)

    def cargo(self, command, arguments, seconds):
        """The exit code of a cargo command, or `None` if it did not end in time."""
        return exit_code(["cargo", command, "--quiet", "--profile=mutants", *arguments], seconds, self.path, self.environment)


def changed(source, change):
    """A source with a change made to it."""
    lines = starts_of_lines(source)
    start, end = (byte_of(source, lines, change["span"][side]) for side in ("start", "end"))
    return source[:start] + change["replacement"].encode() + source[end:]
