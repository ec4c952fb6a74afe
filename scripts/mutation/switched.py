"""Tries changes that are all in one program, each behind a switch."""
import hashlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import work_copy

from . import listing, switches
from .areas import area_of, areas_of
from .processes import exit_code

# What looks at the sources or builds programs of its own; and what does as others do, over a simulation that takes longer.
NOT_RUN = {"layering", "c_programs", "header", "kernels", "kernel_sources", "cuda_properties"}
# A test that takes this long, beside a multiple of its usual time, does not end.
LEAST_SECONDS, TIMES = 8, 5


class Switched:
    """The tests, built with all changes to the areas of which some are tried."""

    def __init__(self, out, changes, tried, environment):
        self.areas = areas_of([change for change in changes if change["name"] in tried])
        # What the compiler would warn of is meant.
        environment = environment | {"RUSTFLAGS": "--cap-lints=allow"}
        self.tree, self.environment = out / "tree-switched", listing.ENVIRONMENT | environment
        self.changes = {number: change for number, change in enumerate(changes, 1)
                        if area_of(change["file"]) in self.areas}
        self.build()
        self.look(out / "reached")

    def build(self):
        """Weaves and builds, without the changes that do not compile."""
        changes, refused = dict(self.changes), set()
        libraries = [f"--package={area.package}" for area in self.areas]
        while True:
            work_copy.copy_files(self.tree)
            listing.add_profile(self.tree)
            woven, without_form = switches.weave(self.tree, changes)
            messages, _, code = self.cargo("check", *libraries, "--lib", "--features=gapless/internals")
            wrong = without_form | {number for message in messages for number in behind(message, woven)}
            if code == 0 and not wrong:
                break
            if not wrong:
                sys.exit("an error that no change explains:\n" + "\n".join(message["rendered"] for message in messages))
            changes = {number: change for number, change in changes.items() if number not in wrong}
            # What a function cannot return behind a switch it cannot return at all. Others may be wrong in this form only.
            refused |= {number for number in wrong - without_form if self.changes[number]["genre"] == "FnValue"}
        self.switched = changes
        self.refused = [self.changes[number]["name"] for number in refused]
        self.left_out = [change for number, change in self.changes.items() if number not in changes and number not in refused]
        packages = sorted({f"--package={package}" for area in self.areas for package in area.tested_by})
        messages, programs, code = self.cargo("test", "--no-run", "--lib", "--tests", *packages)
        if code:
            sys.exit("the tests do not build:\n" + "\n".join(message["rendered"] for message in messages))
        self.tests = [test for program in programs if program["target"]["name"] not in NOT_RUN for test in tests_of(program)]

    def cargo(self, command, *arguments):
        """The errors of a cargo command, the test programs it built, and its exit code."""
        process = subprocess.run(["cargo", command, "--profile=mutants", "--message-format=json", *arguments], cwd=self.tree,
                                 env=self.environment, stdout=subprocess.PIPE, text=True)
        lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
        errors = [line["message"] for line in lines
                  if line["reason"] == "compiler-message" and line["message"]["level"] == "error"]
        programs = [line for line in lines if line.get("executable") and line["profile"]["test"]]
        return errors, programs, process.returncode

    def look(self, folder):
        """Finds out how long each test takes, and which switches it comes to. Of a program that is as it was, this is known."""
        folder.mkdir(exist_ok=True)
        for test in self.tests:
            file = folder / f"{test.name}.json".replace("/", ".").replace(" ", ".")
            known = json.loads(file.read_text()) if file.exists() else None
            program = hashlib.sha256(Path(test.path).read_bytes()).hexdigest()
            if not known or known["program"] != program:
                known = {"program": program, **self.look_at(test, file.with_suffix(".reached"))}
                file.write_text(json.dumps(known))
                print(f"{test.name}: {known['seconds']:.1f} s, comes to {len(known['reached'])} changes", flush=True)
            test.seconds, test.reached = known["seconds"], set(known["reached"])

    def look_at(self, test, file):
        """Runs a test without a change, once to write down the switches, which takes time of its own, and once for its time."""
        file.unlink(missing_ok=True)
        if self.run(test, f"reached:{file}", 600) != 0:
            sys.exit(f"{test.name} fails without a change")
        start = time.monotonic()
        self.run(test, 0, 600)
        seconds = time.monotonic() - start
        return {"seconds": seconds, "reached": sorted(set(map(int, file.read_text().split()))) if file.exists() else []}

    def run(self, test, change, seconds):
        """The exit code of a test program, or `None` if it did not end."""
        environment = self.environment | {"GAPLESS_CHANGE": str(change), "CARGO_MANIFEST_DIR": test.folder}
        return exit_code([test.path, "--quiet", test.filter], seconds, test.folder, environment)

    def outcome(self, number):
        """What becomes of a change, and the test that notices."""
        left = {test for test in self.tests if number in test.reached}
        count = len(left)
        while left:
            # What notices most in its time comes first.
            test = max(left, key=lambda test: (test.caught + 1) / (test.tried + 2) / (test.seconds + 0.01))
            left.remove(test)
            test.tried += 1
            ended = self.run(test, number, LEAST_SECONDS + TIMES * test.seconds)
            if ended != 0:
                test.caught += 1
                return ("endless" if ended is None else "caught"), test.name
        return "lives", f"{count} tests come to it"

    def outcomes(self, jobs, names):
        """Yields the names of those changes that have a switch, with what becomes of them."""
        numbers = [number for number, change in self.switched.items() if change["name"] in names]
        with ThreadPoolExecutor(jobs) as pool:
            running = {pool.submit(self.outcome, number): self.switched[number]["name"] for number in numbers}
            for future in as_completed(running):
                yield running[future], future.result()


class Test:
    """A test program, or those of its tests that a filter lets through."""

    def __init__(self, artifact, filter=""):
        self.path, self.filter = artifact["executable"], filter
        self.folder = artifact["manifest_path"].rpartition("/")[0]
        package = self.folder.rpartition("/")[2] if "/crates/" in self.folder else "gapless"
        self.name = f'{package}/{artifact["target"]["name"]}{filter and " " + filter}'
        self.tried = self.caught = 0


def tests_of(artifact):
    """A test program as it is; but the many unit tests of a library by its modules."""
    if "lib" not in artifact["target"]["kind"]:
        return [Test(artifact)]
    listed = subprocess.run([artifact["executable"], "--list"], stdout=subprocess.PIPE, check=True, text=True).stdout
    modules = {"::".join(name.split("::")[:2]) for name in listed.splitlines() if name.endswith(": test")}
    return [Test(artifact, module) for module in sorted(modules)]


def behind(message, woven):
    """The changes that an error may come from."""
    for span in sorted(message["spans"], key=lambda span: not span["is_primary"]):
        if span["file_name"] in woven:
            if found := woven[span["file_name"]].changes_at(span["byte_start"], span["byte_end"]):
                return found
    return set()
