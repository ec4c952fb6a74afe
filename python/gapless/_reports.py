"""What the library reports to the modules of this package, which programs do not see: a type for each, with its keys."""

from __future__ import annotations

from typing import Literal, Optional, TypedDict

from . import _library
from .results import Snapshot


class Sums(TypedDict):
    """Those of an allocator's figures that are read here. The library writes more of them."""

    live_bytes: int
    reserved_bytes: int
    asleep_bytes: int


class Asleep(TypedDict):
    """What is asleep of a tag."""

    tag: Optional[str]
    """``None`` for memory without one."""
    live_bytes: int
    asleep_bytes: int
    """Bytes of pages: what a wake needs."""


class _Pool(TypedDict):
    id: list[int]
    """The two halves of PyTorch's name of it."""
    kind: Literal["graph", "ordinary"]
    stats: Sums


class Pool(_Pool, total=False):
    """A pool of a device."""

    tag: str
    """Where it has one."""
    snapshot: Snapshot


class _DeviceReport(TypedDict):
    main: Sums
    pools: list[Pool]
    condemned_bytes: int
    """Bytes of pools that were released, and go back to the driver when memory is wanted."""
    asleep: list[Asleep]


class DeviceReport(_DeviceReport, total=False):
    """A device's own memory and its pools. The keys that need not be there are those of a snapshot."""

    asleep_blocks: list[int]
    """The addresses of the live allocations that are asleep."""
    snapshot: Snapshot


class Event(TypedDict):
    """An event of the memory history."""

    action: Literal["alloc", "free", "oom"]
    device: int
    addr: int
    """For a request that ran out of memory, the bytes that the device had free."""
    bytes: int
    """0 for a free whose front end does not say."""
    stream: int
    time_us: int


class Explanation(TypedDict):
    """A report on a recording, as far as it is printed."""

    lines: list[str]
    problems: list[str]
    """Why files could not be written."""


def of_device(device: int, snapshot: bool = False) -> DeviceReport:
    """The library's report of a device, with a snapshot if that is asked for."""
    return _library.read_json(_library.load().gapless_torch_report_json, device, int(snapshot))


def history() -> list[Event]:
    """The events of all devices, the oldest first."""
    return _library.read_json(_library.load().gapless_torch_history_json)
