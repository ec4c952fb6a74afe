"""Cases and functions of each way to allocate, and what differs between two of them. The rules are those of docs/using/pytorch.md."""

import json
import sys
from pathlib import Path

from processes import ended

HERE = Path(__file__).parent
COUNTS = ("current", "peak", "allocated", "freed")

# What is refused. docs/using/pytorch.md lists each.
LACKS = {
    "object": {"case": set(), "function": set()},
    "plug-in": {
        "case": {
            "caching_switched_off",
            "checkpoints",
            "cudnn_benchmark",
            "history_with_stacks",
            "out_of_memory_observers",
            "pools",
            "pools_lend_when_nothing_else_is_left",
            "pools_that_do_not_split",
            "pools_with_an_allocator_of_their_own",
            "pools_with_an_allocator_of_their_own_lend",
            "profiler_figures",
            "sent_to_other_processes",
            "three_recordings",
            # newer_cases.py
            "a_context_that_changes",
            "a_pool_of_its_own_allocator_beside_expandable_segments",
            "actions_of_segments_that_are_left_out",
            "actions_that_are_left_out",
            "plots",
            "pools_of_their_own_allocator_under_a_limit",
            "pools_under_a_limit",
            "raw_requests_without_caching",
            "settings_are_in_snapshots",
            "stacks_of_contexts",
            "tensors_outlive_the_allocator_of_their_pool",
            "texts_of_the_program",
        },
        "function": {
            "torch._C._cuda_attach_out_of_memory_observer",
            "torch._C._cuda_checkPoolLiveAllocations",
            "torch._C._cuda_getCheckpointState",
            "torch._C._cuda_isHistoryEnabled",
            "torch._C._cuda_setCheckpointPoolState",
            "torch.UntypedStorage._share_cuda_",
            "torch.cuda.MemPool.use_count",
        },
    },
}
# Differences of the plug-in in what it answers: PyTorch asks a plug-in for tensors without bytes, too.
OTHER_ANSWERS = {"object": (), "plug-in": ("empty_tensors, a tensor without bytes: allocation ", "torch._C._cuda_getAllocator is ")}
# PyTorch's own allocator with its other layout. The calls for it break no capture on a device.
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "GAPLESS_SIM_LAX_CAPTURES": "1"}


def run(mode, objects, **settings):
    """What each case and each function comes to. One that ends the process has failed, and the next ones run in another process."""
    command = [sys.executable, str(HERE / "run_cases.py"), mode]
    settings.update(GAPLESS_TORCH_OBJECTS=objects, GAPLESS_TORCH="0" if mode == "native" else "")
    told = {}
    while True:
        result = ended([*command, str(len(told))], **settings)
        before = len(told)
        for line in result.stdout.splitlines():
            if line.startswith("{"):
                one = json.loads(line)
                # The first of two lines is that it begins.
                ended_here = {"failure": f"the process ended with {result.returncode}", "result": None, "marks": {}}
                told[one["kind"], one["name"]] = {**ended_here, **one}
        if result.returncode == 0:
            return told
        assert len(told) > before, result.stdout[-2000:] + result.stderr[-4000:]


def compare(native, ours, lacks, backend):
    """Prints the shares, and returns what differs otherwise than the rules allow."""
    wrong = []
    for kind in ("case", "function"):
        counted = [name for of, name in native if of == kind and native[of, name]["failure"] is None]
        failed = [name for name in counted if ours[kind, name]["failure"] is not None]
        print(f"{backend}: {len(counted) - len(failed)} of {len(counted)} {kind}s that pass natively; not: {failed}")
        wrong += [f"{name}: {ours[kind, name]['failure']}" for name in failed if name not in lacks[kind]]
        wrong += [f"{name} passes" for name in lacks[kind] if name in counted and name not in failed]
        for name in set(counted) - set(failed):
            one, two = native[kind, name], ours[kind, name]
            if one["result"] != two["result"]:
                wrong.append(f"{name} is {two['result']}, natively {one['result']}")
            for label in one["marks"]:
                differences = different(one["marks"][label], two["marks"][label])
                wrong += [f"{name}, {label}: {difference}" for difference in differences]
    return wrong


def different(native, ours):
    """The rules for each key, as texts of what breaks them."""
    wrong = [f"{key} is missing" for key in native.keys() - ours.keys() if "private_pools" not in key]
    for key in ("num_ooms", "num_oom_rejections", "max_split_size"):
        if key in native and native[key] != ours[key]:
            wrong.append(f"{key} is {ours[key]}, natively {native[key]}")
    for metric in ("oversize_allocations", "oversize_segments"):
        wrong += [f"{metric}.{count}" for count in COUNTS if ours[f"{metric}.{count}"] != native[f"{metric}.{count}"]]

    def of(stats, metric, kind="all"):
        return {count: stats[f"{metric}.{kind}.{count}"] for count in COUNTS}

    # Requests are the same, whoever serves them.
    for metric in ("allocation", "requested_bytes"):
        one, two = of(native, metric), of(ours, metric)
        peak = one.pop("peak"), two.pop("peak")
        # Counts have a peak only as far as they were looked at.
        fits = peak[0] == peak[1] if metric == "requested_bytes" else two["current"] <= peak[1] <= peak[0]
        if one != two or not fits:
            wrong.append(f"{metric} is {two}, peak {peak[1]}; natively {one}, peak {peak[0]}")
    # Bytes without rounding: between the requested ones and native's.
    for count in COUNTS:
        least, most = native[f"requested_bytes.all.{count}"], native[f"allocated_bytes.all.{count}"]
        if not least <= ours[f"allocated_bytes.all.{count}"] <= most:
            wrong.append(f"allocated_bytes.all.{count} is {ours[f'allocated_bytes.all.{count}']}, not {least} to {most}")
    for metric in ("allocation", "allocated_bytes", "segment", "reserved_bytes", "active", "active_bytes"):
        figures = of(ours, metric)
        if not 0 <= figures["current"] <= figures["peak"] or min(figures.values()) < 0:
            wrong.append(f"{metric} is {figures}")
        # There are no pools by size.
        if of(ours, metric, "large_pool") != figures or any(of(ours, metric, "small_pool").values()):
            wrong.append(f"{metric} by size")
    if ours["reserved_bytes.all.current"] < ours["allocated_bytes.all.current"]:
        wrong.append("more is allocated than is reserved")
    held = ours["reserved_bytes.all.current"] - ours["active_bytes.all.current"]
    if not 0 <= ours["inactive_split_bytes.all.current"] <= max(held, 0):
        wrong.append(f"inactive_split_bytes is {ours['inactive_split_bytes.all.current']} of {held} that are free")
    return wrong
