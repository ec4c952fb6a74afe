"""The wheel holds a program and libraries: it is for this platform, and for every Python 3. `cargo xtask build-sim --wheel` builds
them, and puts them into the package first.
"""

import os
import sysconfig

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        platform = sysconfig.get_platform().replace("linux", "manylinux_" + os.environ["GAPLESS_WHEEL_GLIBC"])
        return "py3", "none", platform.replace("-", "_").replace(".", "_")


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"bdist_wheel": PlatformWheel}, distclass=PlatformDistribution)
