"""The wheel holds a shared library and a program: it is for this platform, and for every Python 3."""

import os
import platform

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        # cargo xtask build-wheel says which C library the binaries ask for.
        glibc = os.environ["GAPLESS_WHEEL_GLIBC"].replace(".", "_")
        return "py3", "none", f"manylinux_{glibc}_{platform.machine()}"


class BuildWithStart(build_py):
    """Puts the .pth file beside the package, where Python reads it at its start."""

    def run(self):
        super().run()
        self.copy_file("gapless_start.pth", os.path.join(self.build_lib, "gapless_start.pth"))


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"bdist_wheel": PlatformWheel, "build_py": BuildWithStart}, distclass=PlatformDistribution)
