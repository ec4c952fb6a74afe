"""gapless's statistics in PyTorch's form: ``memory_stats`` and the memory snapshot. Needs no PyTorch."""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
import sys
from typing import Any, Iterator, Optional

from .. import _library, _reports
from .._figures import TORCH_KEYS
from .._numbers import Status
from ..results import Block, Region

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
_COUNTS = ("current", "peak", "allocated", "freed")
# Those that no figure has are 0.
_NUMBERS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "num_oom_rejections")
# The largest number of events in a history: PyTorch's own default has no limit.
MOST_EVENTS = 1 << 20
# The viewer takes a block with an empty stack for one from before the recording.
_NO_FRAMES = {"filename": "gapless", "line": 0, "name": "keeps no stack traces"}
_STATES = {"live": "active_allocated", "pending": "active_pending_free", "free": "inactive"}


class Figures:
    """The statistics of one device."""

    def __init__(self, device: int) -> None:
        self.device = device

    def report(self, snapshot: bool = False) -> _reports.DeviceReport:
        """The library's own report: the main allocator and the pools."""
        return _reports.of_device(self.device, snapshot)

    def now(self, pool: Optional[_library.Pool] = None) -> _library.Stats:
        """The figures of the device, pools included, or of a pool. Counts are those since they were reset."""
        stats = _library.Stats(size=ctypes.sizeof(_library.Stats))
        _library.check(_library.load().gapless_torch_get_stats(self.device, pool, stats))
        return stats

    def nested(self) -> dict[str, Any]:
        """The answer of ``torch._C._cuda_memoryStats``. gapless has no pools by size: everything is in ``large_pool``."""
        now = self.now()
        # What has no figure is 0: blocks are not split off anything that would have to stay whole, for one.
        values: dict[str, int] = dict.fromkeys(_NUMBERS, 0)
        values.update((key, getattr(now, figure)) for key, figure in TORCH_KEYS.items())
        result: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
        for metric in _METRICS:
            counts = {count: values.get(f"{metric}.all.{count}", 0) for count in _COUNTS}
            result[metric] = {"all": counts, "large_pool": dict(counts), "small_pool": dict.fromkeys(_COUNTS, 0)}
        for metric in ("oversize_allocations", "oversize_segments"):
            result[metric] = dict.fromkeys(_COUNTS, 0)
        result.update(
            max_split_size=-1,
            reserved_bytes_by_private_pools=sum(self._reserved_by(pool) for pool in self._pools()),
            # Not in PyTorch's own statistics: bytes with rounding.
            live_block_bytes=now.live_block_bytes,
        )
        return result

    def reset_accumulated(self) -> None:
        """``reset_accumulated_memory_stats``: counts start from 0."""
        _library.check(_library.load().gapless_torch_reset_counts(self.device))

    def reset_peaks(self) -> None:
        """``reset_peak_memory_stats``: peaks start from current values."""
        _library.check(_library.load().gapless_torch_reset_peaks(self.device))

    def _pools(self) -> list[_library.Pool]:
        number = ctypes.c_uint64(64)
        while True:
            pools = (_library.Pool * number.value)()
            status = _library.load().gapless_torch_pools(self.device, pools, len(pools), number)
            if status != Status.BUFFER_TOO_SMALL:
                _library.check(status)
                return list(pools[: number.value])

    def _reserved_by(self, pool: _library.Pool) -> int:
        try:
            return int(self.now(pool).reserved_bytes)
        except _library.GaplessError as error:
            # It has ended since.
            if error.status == Status.NOT_FOUND:
                return 0
            raise

    def segments(self, pool: Optional[tuple[int, int]] = None) -> Iterator[dict[str, Any]]:
        """The segments of a PyTorch snapshot: one for each run of mapped addresses without a gap."""
        report = self.report(snapshot=True)
        asleep = set(report["asleep_blocks"])
        parts = [((0, 0), report["snapshot"])]
        parts += [((part["id"][0], part["id"][1]), part["snapshot"]) for part in report["pools"]]
        for name, snapshot in parts:
            if pool is not None and pool != (0, 0) and name != pool:
                continue
            for segment in snapshot["regions"]:
                for run in _runs(segment["blocks"]):
                    yield from divided(self._segment(segment, run, name), asleep)

    def _segment(self, segment: Region, run: list[Block], pool: tuple[int, int]) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [
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


def asleep_blocks(device: int) -> set[int]:
    """The addresses of the live allocations of a device that are asleep."""
    live, pages = ctypes.c_uint64(), ctypes.c_uint64()
    _library.check(_library.load().gapless_asleep(device, None, live, pages))
    return set(Figures(device).report(snapshot=True)["asleep_blocks"]) if pages.value else set()


def divided(segment: dict[str, Any], asleep: set[int]) -> Iterator[dict[str, Any]]:
    """The parts of a segment that are asleep, and those that are not, each a segment whose key ``asleep`` says which it is."""

    def is_asleep(block: dict[str, Any]) -> bool:
        return block["state"] != "inactive" and block["address"] in asleep

    if not any(map(is_asleep, segment["blocks"])):
        yield {**segment, "asleep": False}
        return
    for key, group in itertools.groupby(segment["blocks"], is_asleep):
        blocks = list(group)
        active = [block for block in blocks if block["state"] != "inactive"]
        yield {
            **segment,
            "address": blocks[0]["address"],
            "total_size": sum(block["size"] for block in blocks),
            "allocated_size": sum(block["size"] for block in active if block["state"] == "active_allocated"),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in blocks),
            "blocks": blocks,
            "asleep": key,
        }


def mark_asleep(torch: Any) -> None:
    """Has the segments of PyTorch's own snapshots say whether they are asleep."""
    original = torch._C._cuda_memorySnapshot

    @functools.wraps(original, assigned=("__doc__",), updated=())
    def marked(*arguments: Any, **options: Any) -> Any:
        answer = original(*arguments, **options)
        segments = answer["segments"]
        asleep = {device: asleep_blocks(device) for device in {segment["device"] for segment in segments}}
        answer["segments"] = [part for segment in segments for part in divided(segment, asleep[segment["device"]])]
        return answer

    torch._C._cuda_memorySnapshot = marked


def _runs(blocks: list[Block]) -> Iterator[list[Block]]:
    """Runs of blocks that touch, in address order: the viewer expects the blocks of a segment to cover all of it."""
    run: list[Block] = []
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
    for event in _reports.history():
        device, addr, size, stream = event["device"], event["addr"], event["bytes"], event["stream"]
        if device not in traces:
            continue

        if event["action"] == "free":
            size, stream = live.pop((device, addr), (size, stream))

        def entry(
            action: str, size: int, key: str = "addr", event: _reports.Event = event, stream: int = stream
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
            trace.append(entry("oom", _rounded(size), "device_free"))
        elif event["action"] == "alloc":
            live[device, addr] = size, stream
            own = _unmapped(mapped[device], addr, _rounded(size))
            trace += [entry("segment_map", own)] * (own > 0) + [entry("alloc", size)]
        elif size > 0:
            own = _unmapped(mapped[device], addr, _rounded(size))
            trace += [entry("free_requested", size), entry("free_completed", size)]
            trace += [entry("segment_unmap", own)] * (own > 0)
    return [traces[device] for device in devices]


def _rounded(size: int) -> int:
    """What a block of so many bytes occupies: PyTorch tells this of a request that failed."""
    return -(-size // 512) * 512


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
