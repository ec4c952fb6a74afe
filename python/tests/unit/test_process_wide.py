import gapless

MIB = 1 << 20
USE = """
import gapless
from gapless import _library
library = _library.load()
block = library.gapless_torch_malloc(5 << 20, 0, None)
"""


def test_conf_from_the_environment(run):
    code = USE + "print(gapless.stats()['budget_bytes'])"
    out = run(code, GAPLESS_CONF="budget:96MiB,log:on", GAPLESS_SIM_CAPACITY="256MiB")
    assert str(96 * MIB) in out and "budget 96 MiB" in out
    out = run(code, GAPLESS_CONF="budget:0.5", GAPLESS_SIM_CAPACITY="256MiB")
    assert str(128 * MIB) in out


def test_conf_errors_and_warnings(run):
    out = run(USE + "print(block); gapless.stats()", GAPLESS_CONF="bugdet:1GiB", fails=True)
    assert "None" in out and "there is no key 'bugdet'; the keys are budget" in out
    out = run(USE, GAPLESS_CONF="expandable_segments:True,max_split_size_mb:64")
    assert out.count("has no effect") == 2 and "expandable_segments is PyTorch's own" in out


def test_configure_comes_first(run):
    out = run("import gapless\ngapless.configure('budget:64MiB')\nprint(gapless.stats()['budget_bytes'])")
    assert str(64 * MIB) in out
    out = run(USE + "gapless.configure('budget:64MiB')", fails=True)
    assert "before the first use" in out


def test_report_trim_and_record(run, tmp_path):
    path = tmp_path / "all.trace"
    out = run(
        USE
        + f"""
with gapless.record({str(path)!r}) as allocator:
    other = library.gapless_torch_malloc(100, 0, None)
    allocator.mark("one")
    library.gapless_torch_free(other, 100, 0, None)
print(gapless.report())
library.gapless_torch_free(block, 5 << 20, 0, None)
print("trimmed", gapless.trim() > 0)
gapless.reset_peaks()
assert gapless.stats()["peak_live_bytes"] == 0
"""
    )
    assert "live" in out and "trimmed True" in out
    assert gapless.replay(path)[0]["ops"] == 3


def test_recording_by_conf_is_completed_at_exit(run, tmp_path):
    path = tmp_path / "run%d.trace.gz"
    run(USE, GAPLESS_CONF=f"record:{path}")
    assert gapless.replay(tmp_path / "run0.trace.gz")[0]["ops"] == 1


def test_report_on_failure(run):
    code = USE + "print(library.gapless_torch_malloc(1 << 40, 0, None))"
    out = run(code, GAPLESS_CONF="budget:64MiB,report_on_failure:on")
    assert "None" in out and "CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity" in out
    assert "region" not in out and "unallocated.\nNo allocator could have served this: the device has 1 GiB in all." in out


def test_pytorch_s_message_has_one_headline(run):
    out = run(USE + "library.gapless_torch_malloc(65 << 20, 0, None)", GAPLESS_CONF="budget:64MiB,report_on_failure:on")
    assert out.startswith("CUDA out of memory. Tried to allocate 65.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of which ")
    assert " is free. 64.00 MiB allowed; Of the allocated memory 5.00 MiB is allocated by PyTorch, and " in out, out
    assert out.count("out of memory") == 1 and out.count("Tried to allocate") == 1, out
    assert "is reserved by PyTorch but unallocated.\nThe budget of 64 MiB that was set stops this" in out, out
    assert "  budget     64 MiB" in out and "Raise it with budget:SIZE in GAPLESS_CONF" in out
    code = USE + "for size in (2 << 30, 1 << 60): library.gapless_torch_malloc(size, 0, None)"
    out = run(code, GAPLESS_CONF="report_on_failure:on")
    assert "CUDA out of memory. Tried to allocate 2.00 GiB." in out and "allowed" not in out
    assert "unallocated.\nNo allocator could have served this" in out
    assert "CUDA out of memory. Tried to allocate more than 1EB memory." in out


def test_every_front_end_s_failure_is_reported(run):
    code = "import gapless\ntry: gapless.DeviceMemory().alloc(65 << 20)\nexcept MemoryError: print('raised')"
    out = run(code, GAPLESS_CONF="budget:64MiB,report_on_failure:on,log:on")
    assert "GPU out of memory. Tried to allocate 65 MiB" in out and "raised" in out
    assert "device 0: a request of 65 MiB failed" in out


def test_figures_in_the_shapes_of_pytorch(run):
    out = run(
        USE
        + """
from gapless.torch._figures import Figures, snapshot
figures = Figures(0)
stats = figures.nested()
assert stats["allocated_bytes"]["all"]["current"] == 5 << 20, stats
assert stats["allocation"]["all"] == {"current": 1, "peak": 1, "allocated": 1, "freed": 0}
assert stats["reserved_bytes"]["all"]["current"] >= 5 << 20
for metric in stats.values():
    if isinstance(metric, dict) and "all" in metric:
        assert set(metric) == {"all", "large_pool", "small_pool"}
        assert set(metric["all"]) == {"current", "peak", "allocated", "freed"}
segments = snapshot([figures])["segments"]
assert sum(segment["allocated_size"] for segment in segments) == 5 << 20
for segment in segments:
    at = segment["address"]
    for part in segment["blocks"]:
        assert part["address"] == at
        at += part["size"]
    assert at == segment["address"] + segment["total_size"]
library.gapless_torch_free(block, 5 << 20, 0, None)
figures.reset_accumulated()
figures.reset_peaks()
stats = figures.nested()
assert stats["allocation"]["all"] == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}, stats["allocation"]
assert stats["allocated_bytes"]["all"]["peak"] == 0
print("done")
"""
    )
    assert "done" in out


def test_every_figure_is_the_same_by_whatever_way_it_is_read(run):
    run(
        USE
        + """
from gapless._figures import FIELDS, TORCH_KEYS, Stats
from gapless.torch._figures import Figures
freed = library.gapless_torch_malloc(3 << 20, 0, None)
library.gapless_torch_free(freed, 3 << 20, 0, None)
figures = Figures(0)
json, now, torch = gapless.stats(), figures.now(), figures.nested()
names = {*FIELDS, "sizes", "fragmentation"}
assert set(json) == names, set(json) ^ names
assert set(Stats.__annotations__) == names, set(Stats.__annotations__) ^ names
for name in FIELDS:
    if name != "driver_calls":
        assert getattr(now, name) == json[name], name
for key, name in TORCH_KEYS.items():
    value = torch
    for part in key.split("."):
        value = value[part]
    assert value == json[name], key
metrics = [metric for metric, value in torch.items() if isinstance(value, dict) and "all" in value]
shown = {f"{metric}.all.{count}" for metric in metrics for count in torch[metric]["all"]}
shown |= {metric for metric in torch if metric.startswith("num_")}
assert set(TORCH_KEYS) < shown
without = {"num_alloc_retries", "num_oom_rejections", "inactive_split_bytes.all.allocated", "inactive_split_bytes.all.freed"}
without |= {f"inactive_split.all.{count}" for count in ("current", "peak", "allocated", "freed")}
assert shown - set(TORCH_KEYS) == without, shown - set(TORCH_KEYS)
"""
    )


def test_figures_are_measured(run):
    run(
        """
import gapless
from gapless.torch._figures import Figures
MIB, figures, memory = 1 << 20, Figures(0), gapless.DeviceMemory(0)

def of(metric):
    return figures.nested()[metric]["all"]

blocks = [memory.alloc(2 * MIB) for _ in range(8)]
for block in blocks[::2]:
    memory.free(block)
assert of("inactive_split_bytes")["current"] == 0, "whole chunks go back with empty_cache"
small = [memory.alloc(100) for _ in range(3)]
cached = gapless.stats()["cached_bytes"]
reserved, segments = of("reserved_bytes"), of("segment")
assert reserved["current"] == reserved["peak"] == reserved["allocated"] and reserved["freed"] == 0, reserved
assert segments["current"] == segments["peak"] == segments["allocated"] > 0 and segments["freed"] == 0, segments
gapless.trim()
held = of("reserved_bytes")
assert held["freed"] == reserved["current"] - held["current"] > 0 and held["allocated"] == reserved["allocated"], held
left = of("inactive_split_bytes")["current"]
assert left == gapless.stats()["cached_bytes"] < cached, "the rest of the pages of small blocks"
assert of("segment")["peak"] == segments["peak"] > of("segment")["current"]
figures.reset_accumulated()
figures.reset_peaks()
for metric in ("reserved_bytes", "segment"):
    values = of(metric)
    assert values["allocated"] == values["freed"] == 0 and values["peak"] == values["current"], values
"""
    )


def test_a_device_without_virtual_memory_management(run):
    out = run("import gapless; gapless.DeviceMemory(0)", fails=True, GAPLESS_SIM_NO_VMM="1")
    assert "leave gapless.torch.enable() and GAPLESS_TORCH out" in out and "PlainAllocator" not in out


def test_pools_keep_what_they_have(run):
    out = run(
        USE
        + """
from ctypes import byref, c_size_t
Pool = _library.Pool
library.gapless_torch_begin_allocate_to_pool(0, Pool(7, 0), None)
inside = library.gapless_torch_malloc(4 << 20, 0, None)
library.gapless_torch_free(inside, 4 << 20, 0, None)
again = library.gapless_torch_malloc(4 << 20, 0, None)
assert again == inside
library.gapless_torch_end_allocate_to_pool(0, Pool(7, 0))
outside = library.gapless_torch_malloc(4 << 20, 0, None)
library.gapless_torch_free(again, 4 << 20, 0, None)
library.gapless_torch_reset()
from gapless.torch._figures import Figures
report = Figures(0).report(snapshot=True)
assert [pool["id"] for pool in report["pools"]] == [[7, 0]]
assert report["pools"][0]["stats"]["reserved_bytes"] >= 4 << 20, "a pool gives nothing back"
size = c_size_t()
assert library.gapless_torch_base_alloc(outside + 100, byref(size)) == outside and size.value == 4 << 20
library.gapless_torch_release_pool(0, Pool(7, 0))
report = Figures(0).report()
assert report["pools"] == [] and report["condemned_bytes"] >= 4 << 20, "a replay may be in flight"
library.gapless_torch_reset()
assert Figures(0).report()["condemned_bytes"] == 0
library.gapless_torch_free(outside, 4 << 20, 0, None)
library.gapless_torch_set_fraction(0.25, 0)
print("budget", gapless.stats()["budget_bytes"])
""",
        GAPLESS_SIM_CAPACITY="256MiB",
    )
    assert f"budget {64 * MIB}" in out


def test_frees_of_others_are_told_and_harmless(run):
    out = run(USE + "library.gapless_torch_free(12345, 1, 0, None)\nprint('alive')")
    assert "alive" in out and "not allocated by this allocator" in out


def test_the_viewer_knows_two_types_of_segments(run):
    run(
        USE
        + """
from gapless.torch._figures import Figures, snapshot
figures = Figures(0)
small = library.gapless_torch_malloc(100, 0, None)
report = figures.report(snapshot=True)
assert {region["kind"] for region in report["snapshot"]["regions"]} == {"small", "large"}
report["snapshot"]["regions"][0]["kind"] = "of another kind"
figures.report = lambda snapshot=False: report
assert {segment["segment_type"] for segment in snapshot([figures])["segments"]} <= {"small", "large"}
"""
    )


def test_nothing_closes_the_memory_of_a_device(run):
    out = run(
        """
import gapless
memory = gapless.DeviceMemory()
assert not isinstance(memory, gapless.Allocator)
for call in ("close", "__enter__", "__exit__"):
    assert hasattr(gapless.Allocator, call) and not hasattr(memory, call), call
block = memory.alloc(5 << 20)
try:
    gapless._library.check(memory._library.gapless_destroy(memory._handle))
except gapless.GaplessError as error:
    print(error)
assert memory.stats()["live_bytes"] == 5 << 20 and gapless.DeviceMemory().stats()["live_bytes"] == 5 << 20
memory.free(block)
"""
    )
    assert "it lives as long as the process" in out


def test_the_two_kinds_of_memory_differ_in_what_only_one_of_them_means(run, tmp_path):
    def calls(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert calls(gapless.Allocator) - calls(gapless.DeviceMemory) == {"close"}
    assert calls(gapless.DeviceMemory) - calls(gapless.Allocator) == {"free_on"}
    out = run(
        f"""
import gapless
with gapless.record({str(tmp_path / "trace")!r}) as memory:
    assert isinstance(memory, gapless.DeviceMemory)
print("device", gapless.DeviceMemory(1).device, memory.device)
""",
        GAPLESS_SIM_DEVICES="2",
    )
    assert "device 1 0" in out
