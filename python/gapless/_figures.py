"""The figures of an allocator, and PyTorch's keys for them. Written by cargo xtask generate-figures; do not edit."""

from __future__ import annotations

from typing import Any, TypedDict


class Stats(TypedDict):
    """What ``gapless.stats()`` returns. Bytes, unless a name says otherwise."""

    live_bytes: int
    """Bytes requested by live allocations."""
    peak_live_bytes: int
    """Highest ``live_bytes``; exact while streams do not race."""
    live_allocations: int
    """Number of live allocations."""
    cached_bytes: int
    """Bytes that are free and mapped: available without a driver call."""
    pending_bytes: int
    """Bytes that were freed and wait for other streams, for a pin, or, exposed, for going back to the driver."""
    idle_bytes: int
    """Bytes of chunks that nothing maps."""
    reserved_bytes: int
    """Bytes of all chunks held. ``live_bytes`` is at most that."""
    peak_reserved_bytes: int
    """Highest ``reserved_bytes``."""
    budget_bytes: int
    """The most bytes that may be held, of a device by its pools as well."""
    allocs: int
    """Number of allocations so far."""
    frees: int
    """Number of frees so far."""
    failed_allocs: int
    """Number of requests that ran out of memory: blocks, growths of ranges, registered blocks. A device counts requests for
    blocks, each once however many of its pools refused it, and those that exceed the addresses of a region."""
    refused_frees: int
    """Number of frees that were refused."""
    harvested_chunks: int
    """Number of completely free chunks that were remapped: mapped at other addresses, where a request needed them."""
    host_waits: int
    """Number of times the host waited for a stream."""
    driver_calls: dict[str, int]
    """Number of driver calls that put memory behind addresses or take it away; JSON has all calls by kind."""
    largest_with_remapping_bytes: int
    """Bytes of the largest block available when every completely free chunk is remapped and the budget is used up. Memory that
    waits for streams counts as free: a request that needs it waits as well."""
    range_bytes: int
    """Bytes of chunks of growable ranges, and of dropped ones that could not be unmapped yet."""
    registered_bytes: int
    """Bytes of registered blocks, and of dropped ones that could not be unmapped yet."""
    live_block_bytes: int
    """Bytes of live allocations, rounding included."""
    free_chunk_bytes: int
    """Those of ``cached_bytes`` in completely free chunks, which a trim returns to the driver. What pools have free stays with
    them."""
    peak_live_allocations: int
    """Highest ``live_allocations`` that statistics have shown."""
    active_bytes: int
    """Bytes of live allocations, and of those that were freed and wait for other streams, rounding included."""
    peak_active_bytes: int
    """Highest ``active_bytes`` that statistics have shown; ``peak_live_bytes`` at least."""
    kept_free_bytes: int
    """Those of ``cached_bytes`` that a trim would not return to the driver: beside live blocks, or in pools."""
    peak_kept_free_bytes: int
    """Highest ``kept_free_bytes`` that statistics have shown."""
    allocated_bytes: int
    """Bytes requested by all allocations so far."""
    freed_bytes: int
    """Bytes requested by the allocations that were freed so far."""
    chunks: int
    """Number of chunks held."""
    peak_chunks: int
    """Highest ``chunks``."""
    created_chunks: int
    """Number of chunks created so far. Calls to the driver that failed created none."""
    released_chunks: int
    """Number of chunks released so far. Those of a pool that has ended count as released."""
    created_bytes: int
    """Bytes of all chunks created so far."""
    released_bytes: int
    """Bytes of the chunks released so far. Those of a pool that has ended count as released."""
    mappings: int
    """Number of mappings, stale ones included."""
    borrowed: int
    """Number of allocations served by cross-stream reuse: in a free block of another stream."""
    reused_views: int
    """Number of ``harvested_chunks`` that were still mapped where they were needed, so that no driver call was made."""
    failed_driver_calls: int
    """Number of driver calls that failed."""
    poisoned: int
    """Number of driver sequences that could not be undone, so that addresses were taken out of use."""
    streams: int
    """Number of streams seen."""
    metadata_bytes: int
    """Bytes of host memory behind all of this."""
    largest_cached_bytes: int
    """Bytes of the largest block available without a driver call, on the stream where it is cached."""
    free_bytes: int
    """All bytes that are free: cached, pending, idle, and not held yet."""
    pending_allocations: int
    """Number of allocations that were freed and wait for other streams."""
    open_elsewhere_bytes: int
    """Those of ``pending_bytes`` that others have open: another process, or whoever has pinned them."""
    asleep_bytes: int
    """Bytes of pages that are asleep: what a wake needs. The live allocations in them count in ``live_bytes``, and nothing of
    them in ``reserved_bytes``."""
    sizes: list[dict[str, int]]
    """Number of allocations by size."""
    fragmentation: dict[str, Any]
    """Those of the figures that say how fragmented the free memory is."""


# The fields of ``gapless_stats`` behind its size, in their order.
FIELDS = (
    "live_bytes",
    "peak_live_bytes",
    "live_allocations",
    "cached_bytes",
    "pending_bytes",
    "idle_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "budget_bytes",
    "allocs",
    "frees",
    "failed_allocs",
    "refused_frees",
    "harvested_chunks",
    "host_waits",
    "driver_calls",
    "largest_with_remapping_bytes",
    "range_bytes",
    "registered_bytes",
    "live_block_bytes",
    "free_chunk_bytes",
    "peak_live_allocations",
    "active_bytes",
    "peak_active_bytes",
    "kept_free_bytes",
    "peak_kept_free_bytes",
    "allocated_bytes",
    "freed_bytes",
    "chunks",
    "peak_chunks",
    "created_chunks",
    "released_chunks",
    "created_bytes",
    "released_bytes",
    "mappings",
    "borrowed",
    "reused_views",
    "failed_driver_calls",
    "poisoned",
    "streams",
    "metadata_bytes",
    "largest_cached_bytes",
    "free_bytes",
    "pending_allocations",
    "open_elsewhere_bytes",
    "asleep_bytes",
)

# The figure that has the value of a key of PyTorch's ``memory_stats()``.
TORCH_KEYS = {
    "allocated_bytes.all.current": "live_bytes",
    "requested_bytes.all.current": "live_bytes",
    "allocated_bytes.all.peak": "peak_live_bytes",
    "requested_bytes.all.peak": "peak_live_bytes",
    "allocation.all.current": "live_allocations",
    "active.all.current": "live_allocations",
    "reserved_bytes.all.current": "reserved_bytes",
    "reserved_bytes.all.peak": "peak_reserved_bytes",
    "allocation.all.allocated": "allocs",
    "active.all.allocated": "allocs",
    "allocation.all.freed": "frees",
    "active.all.freed": "frees",
    "num_ooms": "failed_allocs",
    "num_sync_all_streams": "host_waits",
    "allocation.all.peak": "peak_live_allocations",
    "active.all.peak": "peak_live_allocations",
    "active_bytes.all.current": "active_bytes",
    "active_bytes.all.peak": "peak_active_bytes",
    "inactive_split_bytes.all.current": "kept_free_bytes",
    "inactive_split_bytes.all.peak": "peak_kept_free_bytes",
    "allocated_bytes.all.allocated": "allocated_bytes",
    "requested_bytes.all.allocated": "allocated_bytes",
    "active_bytes.all.allocated": "allocated_bytes",
    "allocated_bytes.all.freed": "freed_bytes",
    "requested_bytes.all.freed": "freed_bytes",
    "active_bytes.all.freed": "freed_bytes",
    "segment.all.current": "chunks",
    "segment.all.peak": "peak_chunks",
    "segment.all.allocated": "created_chunks",
    "num_device_alloc": "created_chunks",
    "segment.all.freed": "released_chunks",
    "num_device_free": "released_chunks",
    "reserved_bytes.all.allocated": "created_bytes",
    "reserved_bytes.all.freed": "released_bytes",
}
