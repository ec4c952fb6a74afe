"""What the functions of this package return that are dictionaries: a type for each, with its keys.

The results are plain dictionaries. ``gapless.Stats`` is the type of ``gapless.stats()``.
"""

from __future__ import annotations

from typing import Literal, Optional, TypedDict

__all__ = [
    "Block",
    "Chunk",
    "FreeMemory",
    "Holder",
    "LineUse",
    "LiveAllocation",
    "OutOfMemoryReport",
    "Phase",
    "Pinned",
    "Refusal",
    "Region",
    "Replay",
    "Snapshot",
    "StreamUse",
]


class Block(TypedDict):
    """A block of a region."""

    addr: int
    bytes: int
    """Rounding included."""
    requested_bytes: int
    """0 for what is free."""
    state: Literal["free", "live", "pending", "claimed"]
    """``pending`` was freed and waits for other streams; ``claimed`` is a call's that is under way."""
    borrowed_by: Optional[int]
    """The stream that it was allocated on, where that is not the region's."""
    recorded_on: list[int]
    """The other streams that a live block was recorded on."""
    pins: int


class Region(TypedDict):
    """A range of addresses for the blocks of one stream."""

    stream: int
    kind: Literal["small", "large"]
    addr: int
    bytes: int
    """Bytes of addresses, mapped or not."""
    poisoned: bool
    """Whether calls of the driver here could not be undone, so that addresses are out of use."""
    blocks: list[Block]
    """In address order, without what is not mapped between them."""


class Chunk(TypedDict):
    """A physical allocation of the driver."""

    handle: int
    bytes: int
    active: Optional[int]
    """The address through which its bytes are handed out; ``None`` when it is idle."""
    stale: list[int]
    """The other addresses that it is mapped at."""
    in_range: bool
    """Whether a growable range holds it."""
    registered: bool


class Snapshot(TypedDict):
    """Everything that an allocator holds: the result of ``gapless.snapshot()``."""

    page_bytes: int
    budget_bytes: int
    regions: list[Region]
    chunks: list[Chunk]


class FreeMemory(TypedDict):
    """Bytes of a device, as the driver reports them."""

    free: int
    total: int


class Holder(TypedDict):
    """A process that has tensors of this one open: an entry of ``gapless.ipc.holders()``."""

    process: Optional[int]
    """``None`` for all processes of other namespaces, as in other containers."""
    blocks: int
    bytes: int
    freed_bytes: int
    """Those of ``bytes`` that were freed here, and are held for that process alone."""


class Pinned(TypedDict):
    """Free bytes that remapping cannot move."""

    by_live_bytes: int
    """In chunks that live allocations use a part of."""
    by_pending_bytes: int
    """In chunks that a pending block uses a part of, and in pending blocks."""
    whole_page_bytes: int
    """Of both, those in whole free pages."""


class StreamUse(TypedDict):
    """The memory of one stream."""

    stream: int
    live_bytes: int
    cached_bytes: int
    pending_bytes: int


class _LiveAllocation(TypedDict):
    addr: int
    bytes: int
    stream: int


class LiveAllocation(_LiveAllocation, total=False):
    """An allocation that has not been freed."""

    asleep: bool
    """There only where it is true: a part of it is asleep, or about to be."""


class LineUse(TypedDict):
    """What a line of the program holds on a device."""

    frame: str
    """Such as ``train.py:12 forward``."""
    bytes: int
    blocks: int


class _OutOfMemoryReport(TypedDict):
    requested_bytes: int
    stream: int
    satisfiable: bool
    """Whether the free bytes cover the request."""
    satisfiable_by_whole_pages: bool
    """Whether completely free chunks and unused budget cover it."""
    page_bytes: int
    device: Optional[FreeMemory]
    others_bytes: int
    """Bytes of the device that others hold."""
    elsewhere_bytes: int
    """Bytes of the device that other allocators of the program hold."""
    budget_bytes: int
    stopped_by_budget: bool
    """Whether a budget that was set is what stops the request."""
    stopped_by_capture: bool
    """Whether free memory cannot be had before the capture of a stream into a graph has ended."""
    reserved_bytes: int
    live_bytes: int
    live_block_bytes: int
    cached_bytes: int
    pending_bytes: int
    open_elsewhere_bytes: int
    holders: list[Holder]
    range_bytes: int
    registered_bytes: int
    asleep_bytes: int
    live_asleep_bytes: int
    """Those of ``live_block_bytes`` that are asleep, or about to be."""
    free_bytes: int
    free_without_budget_bytes: int
    """What would be free if there were no budget."""
    obtainable_bytes: int
    """Free bytes that can be put behind one address range: whole free chunks, and what may still be created."""
    pinned: Pinned
    """The rest of the free bytes."""
    streams: list[StreamUse]
    largest: list[LiveAllocation]
    driver_error: Optional[str]
    """The driver's answer when it had no memory, although the budget allowed it."""
    text: str
    """All of it for a person."""


class OutOfMemoryReport(_OutOfMemoryReport, total=False):
    """Why a request ran out of memory: ``report`` of an exception, and the result of ``oom_report``. Bytes as in ``Stats``."""

    largest_live_by_frame: list[LineUse]
    """In that of ``gapless.last_error()``, with PyTorch's memory history on: what lines of the program hold, most bytes first."""


class Refusal(TypedDict):
    """The request that ended a replay."""

    op_index: int
    """Counted from 0, including marks."""
    requested_bytes: int
    satisfiable: bool
    report: str
    """For a person."""


class Phase(TypedDict):
    """A sleep or a wake of a replay."""

    op_index: int
    kind: Literal["sleep", "wake"]
    live_bytes: int
    mapped_bytes: int
    copied_bytes: int
    modelled_driver_seconds: Optional[float]


class _Replay(TypedDict):
    trace: str
    policy: Literal["gapless", "caching"]
    driver: str
    capacity_bytes: int
    """Memory that the policy was allowed to hold."""
    ops: int
    """Number of ops in the whole recording, including marks."""
    peak_live_bytes: int
    """Of the whole recording, in requested bytes."""
    peak_awake_bytes: int
    peak_reserved_bytes: int
    oom: Optional[Refusal]
    driver_calls: dict[str, int]
    driver_calls_per_step: list[int]
    host_waits: int
    steps: int
    modelled_driver_seconds: Optional[float]
    costs: Optional[str]
    """The name of the table that this time follows."""
    ns_per_op: float


class Replay(_Replay, total=False):
    """A recording under one policy: an entry of the result of ``gapless.replay()``."""

    min_capacity_bytes: Optional[int]
    """With ``search_capacity``: the smallest device on which it survives; ``None`` where none was found."""
    safe_capacity_bytes: Optional[int]
    """With ``search_capacity``: the smallest one such that it survives on it and on all larger ones that were tried."""
    phases: list[Phase]
    """Where the recording has any."""
