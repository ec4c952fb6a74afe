"""The wheel holds a shared library and a program: it is for this platform, and for every Python 3.

In the repository, `cargo xtask build-wheel` builds both and puts them into the package first. In the source distribution they are
not there yet: installing it builds them from the folder `source`, which takes Rust and a C++ compiler.
"""

import glob
import os
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCE = "source"


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        # cargo xtask build-wheel says which C library the binaries ask for. Else they are for this machine.
        platform = sysconfig.get_platform()
        if glibc := os.environ.get("GAPLESS_WHEEL_GLIBC"):
            platform = platform.replace("linux", "manylinux_" + glibc)
        return "py3", "none", platform.replace("-", "_").replace(".", "_")


class BuildWithStart(build_py):
    """Puts the .pth file beside the package, where Python reads it at its start."""

    def run(self):
        super().run()
        self.copy_file("gapless_start.pth", os.path.join(self.build_lib, "gapless_start.pth"))
        package = os.path.abspath(os.path.join(self.build_lib, "gapless"))
        if not os.path.exists(os.path.join(package, "libgapless.so")):
            build_from_source(package)


def build_from_source(package):
    if not shutil.which("cargo"):
        sys.exit("building gapless takes Rust, which is not here: https://rustup.rs, or install a wheel")
    # Another interpreter's variables are not for what is started here.
    environment = dict(os.environ, PYTHON=sys.executable)
    command = ["cargo", "run", "--quiet", "--locked", "--package", "xtask", "--", "build-python-package", package]
    subprocess.run(command, cwd=SOURCE, env=environment, check=True)


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True


def shared_files():
    """What shells and `man` know of the command line: `cargo xtask build-wheel` writes it. Installed, it is below the environment."""
    folders = {}
    for path in glob.glob("share/**", recursive=True):
        if os.path.isfile(path):
            folders.setdefault(os.path.dirname(path), []).append(path)
    return sorted(folders.items())


setup(
    cmdclass={"bdist_wheel": PlatformWheel, "build_py": BuildWithStart},
    data_files=shared_files(),
    distclass=PlatformDistribution,
)
