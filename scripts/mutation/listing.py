"""The changes that cargo-mutants lists, and how they are built."""
import json
import os
import subprocess

from .areas import AREAS

# Each copy is built in a folder of its own.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
CONFIG = f"""\
examine_globs = {json.dumps([glob for area in AREAS for glob in area.globs])}
exclude_globs = ["**/tests.rs"]
# Text for people.
exclude_re = ["impl .*Debug", "impl .*Display"]
"""
PROFILE = """
[profile.mutants]
inherits = "test"
debug = false
incremental = true
"""


def list_changes(tree, folder):
    """All changes that can be made to the code in `tree`, each with its name, place and kind. Writes settings to `folder`."""
    config = folder / "config.toml"
    config.write_text(CONFIG)
    packages = [f"--package={area.package}" for area in AREAS]
    command = ["cargo", "mutants", "--list", "--json", "--config", str(config), *packages]
    listed = subprocess.run(command, cwd=tree, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(listed)


def add_profile(tree):
    manifest = tree / "Cargo.toml"
    manifest.write_text(manifest.read_text() + PROFILE)
