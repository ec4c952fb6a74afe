"""The wheel holds a shared library: it is for this platform, and for every Python 3."""

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        # cargo xtask build-wheel checks that the libraries ask for no newer C library than this says.
        return "py3", "none", "manylinux_2_34_x86_64"


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"bdist_wheel": PlatformWheel}, distclass=PlatformDistribution)
