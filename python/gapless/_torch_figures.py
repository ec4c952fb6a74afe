"""gapless's statistics in PyTorch's form: ``memory_stats`` and the memory snapshot. Needs no PyTorch."""

from __future__ import annotations

import bisect
import sys
from typing import Any, Iterator, Optional

from . import _library

_METRICS = (
    "allocation",
    "allocated_bytes",
    "segment",
    "reserved_bytes",
    "active",
    "active_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
)
# The largest number of events in a history: PyTorch's own default has no limit.
MOST_EVENTS = 1 << 20
# The viewer takes a block with an empty stack for one from before the recording.
_NO_FRAMES = {"filename": "gapless", "line": 0, "name": "keeps no stack traces"}
_STATES = {"live": "active_allocated", "pending": "active_pending_free", "free": "inactive"}


class Figures:
    """The statistics of one device, and what the accumulated ones were at their last reset."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.peaks: dict[str, int] = {}
        self.base: dict[str, int] = {}

    def report(self, snapshot: bool = False) -> dict[str, Any]:
        """The library's own report: the main allocator and the pools."""
        return _library.read_json(_library.load().gapless_torch_report_json, self.device, int(snapshot))

    def nested(self) -> dict[str, Any]:
        """What ``torch._C._cuda_memoryStats`` returns. gapless has no pools by size: everything is in ``large_pool``."""
        report = self.report()
        all_stats = [report["main"], *(pool["stats"] for pool in report["pools"])]
        past = report["past_pools"]

        def total(key: str) -> int:
            return sum(stats[key] for stats in all_stats)

        def highest(key: str) -> int:
            # Peaks do not fall when a pool ends.
            return report["main"][key] + max(past[key], total(key) - report["main"][key])

        since = {
            "allocs": total("allocs") + past["allocs"] - self.base.get("allocs", 0),
            "frees": total("frees") + past["frees"] - self.base.get("frees", 0),
            "allocated_bytes": report["allocated_bytes"] - self.base.get("allocated_bytes", 0),
            "freed_bytes": report["freed_bytes"] - self.base.get("freed_bytes", 0),
        }
        live, requested = total("live_block_bytes"), total("live_bytes")
        reserved, pending = total("reserved_bytes"), total("pending_bytes")
        # What empty_cache leaves: free blocks beside live ones, and all that pools have free.
        main = report["main"]
        in_pools = sum(pool["stats"]["cached_bytes"] for pool in report["pools"])
        not_releasable = max(0, main["cached_bytes"] - main["free_chunk_bytes"]) + in_pools
        all_created = total("created_bytes") + past["created_bytes"]
        created_bytes = all_created - self.base.get("created_bytes", 0)
        released_bytes = all_created - reserved - self.base.get("released_bytes", 0)
        # At least the peak of live bytes. Blocks that wait for streams are added as far as they were seen.
        active_peak = max(highest("peak_live_bytes"), self._peak("active_bytes", requested + pending))
        created, given_back = self._chunks(report)
        created -= self.base.get("created", 0)
        given_back -= self.base.get("given_back", 0)
        figures = {
            "allocation": (total("live_allocations"), None, since["allocs"], since["frees"]),
            # Requested bytes, not rounded ones: the peak is exact for these only.
            "allocated_bytes": (requested, highest("peak_live_bytes"), since["allocated_bytes"], since["freed_bytes"]),
            "requested_bytes": (requested, highest("peak_live_bytes"), since["allocated_bytes"], since["freed_bytes"]),
            "active": (total("live_allocations"), None, since["allocs"], since["frees"]),
            "active_bytes": (requested + pending, active_peak, since["allocated_bytes"], since["freed_bytes"]),
            "segment": (total("chunks"), highest("peak_chunks"), created, given_back),
            "reserved_bytes": (reserved, highest("peak_reserved_bytes"), created_bytes, released_bytes),
            # Blocks are not split off anything that would have to stay whole: the bytes are known, the rest does not apply.
            "inactive_split": (0, 0, 0, 0),
            "inactive_split_bytes": (not_releasable, None, 0, 0),
        }
        result: dict[str, Any] = {}
        for metric in _METRICS:
            current, peak, allocated, freed = figures[metric]
            peak = self._peak(metric, current) if peak is None else max(peak, current)
            values = {"current": current, "peak": peak, "allocated": allocated, "freed": freed}
            nothing = dict.fromkeys(values, 0)
            result[metric] = {"all": values, "large_pool": dict(values), "small_pool": nothing}
        for metric in ("oversize_allocations", "oversize_segments"):
            result[metric] = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        result.update(
            num_alloc_retries=0,
            num_ooms=report["out_of_memory"] - self.base.get("out_of_memory", 0),
            num_sync_all_streams=total("host_waits") + past["host_waits"] - self.base.get("host_waits", 0),
            num_device_alloc=created,
            num_device_free=given_back,
            num_oom_rejections=0,
            max_split_size=-1,
            reserved_bytes_by_private_pools=sum(pool["stats"]["reserved_bytes"] for pool in report["pools"]),
            # Not in PyTorch's own statistics: bytes with rounding.
            live_block_bytes=live,
        )
        return result

    def reset_accumulated(self) -> None:
        """``reset_accumulated_memory_stats``: counts start from their current values."""
        report = self.report()
        all_stats = [report["main"], *(pool["stats"] for pool in report["pools"])]
        for key in ("allocs", "frees", "created_bytes", "host_waits"):
            self.base[key] = sum(stats[key] for stats in all_stats) + report["past_pools"][key]
        self.base["released_bytes"] = self.base["created_bytes"] - sum(stats["reserved_bytes"] for stats in all_stats)
        self.base["created"], self.base["given_back"] = self._chunks(report)
        for key in ("allocated_bytes", "freed_bytes", "out_of_memory"):
            self.base[key] = report[key]

    def reset_peaks(self) -> None:
        """``reset_peak_memory_stats``: peaks start from current values."""
        self.peaks.clear()
        _library.check(_library.load().gapless_torch_reset_peaks(self.device))

    def _peak(self, metric: str, current: int) -> int:
        # gapless keeps no peaks of counts: the highest value that was returned so far.
        self.peaks[metric] = max(current, self.peaks.get(metric, 0))
        return self.peaks[metric]

    @staticmethod
    def _chunks(report: dict[str, Any]) -> tuple[int, int]:
        """Chunks created, and released: those of pools that are gone count as released."""
        all_stats = [report["main"], *(pool["stats"] for pool in report["pools"])]
        created = report["past_pools"]["created"] + sum(stats["created_chunks"] for stats in all_stats)
        return created, created - sum(stats["chunks"] for stats in all_stats)

    def segments(self, pool: Optional[tuple[int, int]] = None) -> Iterator[dict[str, Any]]:
        """The segments of a PyTorch snapshot: one for each run of mapped addresses without a gap."""
        report = self.report(snapshot=True)
        parts = [((0, 0), report["snapshot"])]
        parts += [(tuple(part["id"]), part["snapshot"]) for part in report["pools"]]
        for name, snapshot in parts:
            if pool is not None and pool != (0, 0) and name != pool:
                continue
            for segment in snapshot["regions"]:
                for run in _runs(segment["blocks"]):
                    yield self._segment(segment, run, name)

    def _segment(self, segment: dict[str, Any], run: list[dict[str, Any]], pool: tuple[int, int]) -> dict[str, Any]:
        blocks = [
            {
                "address": block["addr"],
                "size": block["bytes"],
                "requested_size": block["requested_bytes"],
                "state": _STATES[block["state"]],
                "frames": [],
            }
            for block in run
        ]
        allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        active = sum(block["size"] for block in blocks if block["state"] != "inactive")
        return {
            "device": self.device,
            "address": blocks[0]["address"],
            "total_size": sum(block["size"] for block in blocks),
            "allocated_size": allocated,
            "active_size": active,
            "requested_size": sum(block["requested_size"] for block in blocks),
            "stream": segment["stream"],
            # PyTorch knows these two.
            "segment_type": "small" if segment["kind"] == "small" else "large",
            "segment_pool_id": pool,
            "is_expandable": True,
            "frames": [],
            "blocks": blocks,
        }


def _runs(blocks: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Runs of blocks that touch, in address order: the viewer expects the blocks of a segment to cover all of it."""
    run: list[dict[str, Any]] = []
    end = None
    for block in blocks:
        if block["state"] not in _STATES:
            continue
        if run and block["addr"] != end:
            yield run
            run = []
        run.append(block)
        end = block["addr"] + block["bytes"]
    if run:
        yield run


def record_history(enabled: Optional[str], max_entries: int, clear: bool) -> None:
    """``_record_memory_history``: ``enabled`` is "all", or "state", or ``None`` to stop.

    "state" asks for the stack traces of live blocks only, which gapless does not have: nothing is recorded.
    """
    wanted = min(max_entries, MOST_EVENTS) if enabled == "all" else 0
    _library.load().gapless_torch_record_history(wanted, int(clear))


def _traces(segments: list[dict[str, Any]], devices: list[int]) -> list[list[dict[str, Any]]]:
    """The recorded events in the form of PyTorch's ``device_traces``: one list for each device.

    The viewer goes back in time from the segments of the snapshot, and expects every block to begin in one of them. A
    block whose addresses are no longer mapped gets a ``segment_map`` of its own before it and a ``segment_unmap`` after it.
    """
    mapped = {
        device: sorted((s["address"], s["address"] + s["total_size"]) for s in segments if s["device"] == device)
        for device in devices
    }
    traces: dict[int, list[dict[str, Any]]] = {device: [] for device in devices}
    # What is live at an address. Not every front end says at a free how large the allocation was, and on which stream.
    live: dict[tuple[int, int], tuple[int, int]] = {}
    for event in _library.read_json(_library.load().gapless_torch_history_json):
        device, addr, size, stream = (event[key] for key in ("device", "addr", "bytes", "stream"))
        if device not in traces:
            continue

        if event["action"] == "free":
            size, stream = live.pop((device, addr), (size, stream))

        def entry(
            action: str, size: int, key: str = "addr", event: dict[str, Any] = event, stream: int = stream
        ) -> dict[str, Any]:
            return {
                "action": action,
                key: event["addr"],
                "size": size,
                "stream": stream,
                "time_us": event["time_us"],
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": [_NO_FRAMES],
            }

        trace = traces[device]
        if event["action"] == "oom":
            trace.append(entry("oom", size, "device_free"))
        elif event["action"] == "alloc":
            live[device, addr] = size, stream
            own = _unmapped(mapped[device], addr, size)
            trace += [entry("segment_map", own)] * (own > 0) + [entry("alloc", size)]
        elif size > 0:
            own = _unmapped(mapped[device], addr, size)
            trace += [entry("free_requested", size), entry("free_completed", size)]
            trace += [entry("segment_unmap", own)] * (own > 0)
    return [traces[device] for device in devices]


def _unmapped(mapped: list[tuple[int, int]], addr: int, size: int) -> int:
    """Returns how many of the ``size`` bytes from ``addr`` on come before the next range; 0 if ``addr`` is in one."""
    after = bisect.bisect_right(mapped, (addr, sys.maxsize))
    if after > 0 and addr < mapped[after - 1][1]:
        return 0
    return min(size, mapped[after][0] - addr) if after < len(mapped) else size


def snapshot(figures: list[Figures], pool: Optional[tuple[int, int]] = None) -> dict[str, Any]:
    """A PyTorch snapshot with the recorded history, if any; for a pool only its segments."""
    segments = [segment for each in figures for segment in each.segments(pool)]
    devices = [each.device for each in figures]
    return {
        "segments": segments,
        "device_traces": [[] for _ in devices] if pool is not None else _traces(segments, devices),
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "backend": "gapless",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": True,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": True,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": {},
        },
        "external_annotations": [],
    }
