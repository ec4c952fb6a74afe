"""What is changed: crates, each with how many of its changes may live."""
from typing import NamedTuple


class Area(NamedTuple):
    name: str
    package: str
    # What the paths of its files begin with, and those of them that are changed.
    folder: str
    globs: list
    # Of those changes that compile.
    most_percent: float
    # The packages whose tests come to it.
    tested_by: list
    # How its code names the module of the switches, which is in the lowest crate.
    switches: str


AREAS = [
    Area(
        name="core",
        package="gapless",
        folder="src/",
        globs=[f"src/{part}" for part in ["pages.rs", "heap/**", "segment/**", "stream/**", "physical/**", "allocator/**"]],
        most_percent=2.0,
        tested_by=["gapless", "gapless-testkit", "gapless-instrumented", "gapless-trace", "gapless-share", "gapless-process",
                   "gapless-capi"],
        switches="crate::mutants",
    ),
    Area(
        name="share",
        package="gapless-share",
        folder="crates/share/src/",
        globs=["crates/share/src/**"],
        most_percent=3.0,
        tested_by=["gapless-share", "gapless-process", "gapless-capi"],
        switches="::gapless::mutants",
    ),
    Area(
        name="process",
        package="gapless-process",
        folder="crates/process/src/",
        globs=["crates/process/src/**"],
        most_percent=3.0,
        tested_by=["gapless-process", "gapless-testkit", "gapless-capi"],
        switches="::gapless::mutants",
    ),
]


def area_of(file):
    """The area of a file."""
    return next(area for area in AREAS if file.startswith(area.folder))


def areas_of(changes):
    """The areas of changes, in the order of the list."""
    return [area for area in AREAS if any(change["file"].startswith(area.folder) for change in changes)]
