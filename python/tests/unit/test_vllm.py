"""vLLM's plug-in over stand-ins for vLLM and for tags. The real ones: python/tests/modules/vllm_allocator."""

import logging
import sys
import types
import warnings

import pytest

import gapless.torch
import gapless.vllm

MODULE = "vllm.device_allocator.cumem"
LOGGER = logging.getLogger("vllm_stand_in")


class Tags:
    """Pools with tags, and what is asked of them."""

    def __init__(self):
        self.told = []
        self.pools = []
        self.sleeping = {}
        self.refused = None

    def make(self, tag, kind="ordinary"):
        self.pools.append({"id": (0, len(self.pools)), "kind": kind, "tag": tag})

    def named(self, tag):
        return [pool["id"] for pool in self.pools if pool["tag"] == tag]

    def sleep_each(self, wanted):
        self.expect_served(("sleep", *wanted))
        for name, backup in wanted:
            self.sleeping.update(dict.fromkeys(self.named(name), backup))
        return gapless.torch.Slept()

    def wake(self, *names):
        self.expect_served(("wake", *names))
        for pool in (pool for name in names for pool in self.named(name)):
            self.sleeping.pop(pool, None)
        return 0

    def expect_served(self, call):
        self.told.append(call)
        if self.refused in call:
            raise gapless.GaplessError(1, "refused")

    def asleep(self):
        return {pool["tag"]: 1 for pool in self.pools if pool["id"] in self.sleeping}


@pytest.fixture
def tags(monkeypatch):
    tags = Tags()
    for name in ("wake", "asleep"):
        monkeypatch.setattr(gapless.torch, name, getattr(tags, name))
    monkeypatch.setattr(gapless.vllm._sleep, "sleep_each", tags.sleep_each)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=lambda: None)))
    return tags


@pytest.fixture
def allocator(tags):
    """The allocator, with a pool of each tag, and one of a trainer's own."""
    allocator = gapless.vllm.TagAllocator("default", ("weights", "kv_cache"), LOGGER)
    for tag in ("weights", "kv_cache", "runtime"):
        tags.make(allocator._used(tag))
    tags.make(allocator._used("cudagraph"), "graph")
    tags.make("weights")
    return allocator


@pytest.fixture
def start(monkeypatch):
    """Registers the plug-in in a process with a version of vLLM, and imports its allocator. Returns that, and the warnings."""

    def start(version, numbers, imported_later=True):
        class CuMemAllocator:
            instance = None
            default_tag = "default"

            @staticmethod
            def get_instance():
                CuMemAllocator.instance = CuMemAllocator.instance or "vLLM's own"
                return CuMemAllocator.instance

        cumem = types.SimpleNamespace(CuMemAllocator=CuMemAllocator, DEFERRABLE_TAGS=("weights",), logger=LOGGER)
        monkeypatch.setattr(gapless.vllm, "_registered", False)
        of_version = types.SimpleNamespace(__version__=version, __version_tuple__=numbers)
        monkeypatch.setitem(sys.modules, "vllm.version", of_version)
        monkeypatch.setitem(sys.modules, MODULE, cumem)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            gapless.vllm.register()
            gapless.vllm.register()
        return CuMemAllocator, [str(warning.message) for warning in warned]

    return start


def serve(monkeypatch, does=True):
    monkeypatch.setattr(gapless.torch, "is_enabled", lambda: does)


@pytest.mark.parametrize(("version", "numbers"), [("0.33.0", (0, 33, 0)), ("0.33.2.dev1+g1", (0, 33, 2, "dev1"))])
def test_the_known_version_is_served(start, monkeypatch, version, numbers):
    cumem, warned = start(version, numbers)
    serve(monkeypatch)
    assert isinstance(cumem.get_instance(), gapless.vllm.TagAllocator)
    assert cumem.get_instance() is cumem.instance and warned == []


def test_where_gapless_does_not_serve_nothing_changes(start, monkeypatch):
    cumem, _ = start("0.33.0", (0, 33, 0))
    serve(monkeypatch, False)
    assert cumem.get_instance() == "vLLM's own"
    serve(monkeypatch)
    assert cumem.get_instance() == "vLLM's own", "it has memory already"


@pytest.mark.parametrize(("version", "numbers"), [("0.32.1", (0, 32, 1)), ("0.34.0rc1", (0, 34, 0)), ("1.33.0", (1, 33, 0))])
def test_another_version_is_left_as_it_is(start, monkeypatch, version, numbers):
    monkeypatch.setenv("GAPLESS_TORCH", "1")
    cumem, warned = start(version, numbers)
    assert warned == [f"gapless leaves vLLM's sleep mode as it is: it knows version 0.33, and this is {version}"]
    serve(monkeypatch)
    assert cumem.get_instance() == "vLLM's own"
    monkeypatch.delenv("GAPLESS_TORCH")
    serve(monkeypatch, False)
    assert start(version, numbers)[1] == [], "nobody has asked for gapless"


def test_a_call_is_one_sleep_and_one_wake(allocator, tags):
    allocator.sleep(("weights", "runtime", "cudagraph"))
    kept = [("vllm.weights", "pinned"), ("vllm.kv_cache", "discard"), ("vllm.runtime", "pinned"), ("vllm.cudagraph", "pinned")]
    assert tags.told == [("sleep", *kept)]
    tags.told.clear()
    allocator.wake_up(["kv_cache"])
    assert tags.told == [("wake", "vllm.kv_cache", "vllm.runtime", "vllm.cudagraph")]
    assert set(tags.asleep()) == {"vllm.weights"}


def test_a_pool_of_a_trainer_is_left_alone(allocator, tags):
    allocator.sleep()
    assert "weights" not in tags.asleep()


@pytest.mark.parametrize("refused", [("vllm.runtime", "pinned"), ("vllm.cudagraph", "discard")])
def test_a_sleep_that_is_refused_changes_nothing(allocator, tags, refused):
    allocator.sleep(("weights",))
    allocator.wake_up([])
    sleeping = dict(tags.sleeping)
    tags.refused = refused
    with pytest.raises(gapless.GaplessError):
        allocator.sleep(("weights", "runtime"))
    assert tags.sleeping == sleeping, "weights and cache were asleep before"


def test_a_wake_that_is_refused_changes_nothing(allocator, tags):
    allocator.sleep(())
    sleeping = dict(tags.sleeping)
    tags.refused = "vllm.runtime"
    with pytest.raises(gapless.GaplessError):
        allocator.wake_up()
    assert tags.sleeping == sleeping


def test_what_is_asleep_keeps_its_backup(allocator, caplog):
    with caplog.at_level(logging.WARNING):
        allocator.sleep(("weights",))
        allocator.sleep(("weights",))
        assert caplog.records == []
        allocator.discard("weights")
        allocator.discard("weights")
        assert [record.getMessage() for record in caplog.records] == [
            "gapless: ['weights'] are asleep already, and what becomes of their bytes stays as it was."
        ] * 2
        caplog.clear()
        allocator.wake_up()
        allocator.discard("weights")
        assert caplog.records == []


def test_usage_is_that_of_its_tags_beside_pools_without_one(run):
    run(
        """
import gapless, gapless.vllm
from gapless import _library
library, memory, MIB = _library.load(), gapless.DeviceMemory(), 1 << 20
gapless.vllm._sleep.devices = lambda: [0]
allocator = gapless.vllm.TagAllocator("default", (), None)
assert allocator.get_current_usage() == 0
tagged, other = _library.Pool(7, 0), _library.Pool(8, 0)
_library.check(library.gapless_torch_declare_pool(0, tagged, 1, allocator._used("weights").encode()))
for pool, size in ((tagged, 6 * MIB), (other, 40 * MIB)):
    library.gapless_torch_begin_allocate_to_pool(0, pool, None)
    memory.alloc(size)
    library.gapless_torch_end_allocate_to_pool(0, pool)
assert 6 * MIB <= allocator.get_current_usage() < 40 * MIB
"""
    )
