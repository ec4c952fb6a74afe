"""Tries changes one by one, by cargo-mutants: those that cannot be put behind a switch. Each is built for itself."""
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import work_copy

from . import listing

# Few binaries at first: building them is most of the time.
QUICK = ["--package=gapless-trace", "--test=replay_figures", "--test=ranges", "--test=last_resort"]
REST = ["--package=gapless-testkit", "--package=gapless-trace", "--lib"] + [f"--test={test}" for test in [
    "addresses", "alignment", "alloc_again", "captures", "device_budget", "ends", "faults", "figures", "fork", "further_regions",
    "graphs", "host_mapping_limit", "kept", "large", "listeners", "lost_device", "mapping_limit", "metadata", "own_stream",
    "pinned_pages", "pins", "placement", "properties", "refused_chunks", "registered", "regressions", "replay", "settings",
    "small_worlds", "stress", "tickets", "whole_blocks", "worked_example"]]
UNITS = ["--package=gapless", "--lib"]
# With the seconds after which a change is taken as noticed. All the rest takes some 30 seconds as it is.
GROUPS = [(QUICK, 15), (UNITS, 60), (REST, 200)]
NAMES = {"MissedMutant": "lives", "CaughtMutant": "caught", "Timeout": "endless", "Unviable": "does not compile",
         "Success": "compiles"}


def copy_tree(tree):
    work_copy.copy_files(tree)
    # None of the tests here takes the simulated libcuda, which would be built again for each change.
    for manifest in [tree / "Cargo.toml", tree / "crates/testkit/Cargo.toml"]:
        lines = manifest.read_text().splitlines(keepends=True)
        manifest.write_text("".join(line for line in lines if not line.startswith("gapless-sim-libcuda")))
    listing.add_profile(tree)


def outcomes(out, jobs, names, environment):
    """What becomes of changes by name, each with what noticed it."""
    trees = [out / f"tree-{job}" for job in range(jobs)]
    for tree in trees:
        copy_tree(tree)
    with ThreadPoolExecutor(jobs) as pool:
        found = {}
        for some in pool.map(lambda tree, own: one_tree(tree, own, environment), trees, [names[job::jobs] for job in range(jobs)]):
            found |= some
    return found


def one_tree(tree, names, environment):
    # What does not compile is found without building a test.
    found = run(tree, UNITS, 600, names, environment, "--check") if names else {}
    names = [name for name, (outcome, _) in found.items() if outcome == "compiles"]
    for tests, seconds in GROUPS:
        if names:
            found |= run(tree, tests, seconds, names, environment)
            names = [name for name, (outcome, _) in found.items() if outcome == "lives"]
    return found


def run(tree, tests, seconds, names, environment, *options):
    out = tree.with_name(f"{tree.name}.out")
    shutil.rmtree(out, ignore_errors=True)
    command = ["cargo", "mutants", "--in-place", "--config", listing.write_config(out, tests), "--output", str(out),
               "--timeout", str(seconds), *options]
    for name in names:
        command += ["--re", f"^{re.escape(name)}$"]
    # That lets all fields of structs through.
    if not any("delete field" in name for name in names):
        command += ["--exclude-re", "delete field"]
    # 2: mutants lived; 3: a test ran out of time, which is a catch. Anything else is no result.
    if subprocess.run(command, cwd=tree, env=listing.ENVIRONMENT | environment).returncode not in (0, 2, 3):
        sys.exit("cargo mutants failed")
    results = json.loads((out / "mutants.out/outcomes.json").read_text())["outcomes"]
    summaries = {result["scenario"]["Mutant"]["name"]: result["summary"]
                 for result in results if isinstance(result["scenario"], dict)}
    return {name: (NAMES[summaries[name]], "cargo mutants") for name in names}
