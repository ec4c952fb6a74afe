"""torch_memory_saver's class on gapless, over stand-ins for that and for tags. The real ones: python/tests/modules/saver."""

import sys
import types
import warnings
from contextlib import contextmanager

import pytest

from gapless.torch import _memory_saver, _sleep

BACKUP = {"enable_cpu_backup": True}
PAGEABLE = {"enable_cpu_backup": True, "cpu_backup_backend": "mmap"}
# A backup that gapless does not make.
LIBRARY = {"enable_disk_backup": True}
WITHOUT = {"enable_cpu_backup": False, "enable_disk_backup": False, "cpu_backup_backend": None}


class Library:
    """The functions of torch_memory_saver's library."""

    def __init__(self, told):
        self.backend = b"pinned"
        self.retains = False
        self.set_memory_margin_bytes = lambda value: told.append(("margin", value))
        self.tms_get_cpu_backup_backend = lambda: self.backend
        self.tms_get_retain_cpu_backup = lambda: self.retains


def entrypoint(told):
    """torch_memory_saver's module, whose class tells what it is asked to do itself."""

    class Impl:
        def __init__(self, hook_mode="preload"):
            self._hook_mode = hook_mode
            self._binary_wrapper = types.SimpleNamespace(cdll=Library(told))
            self._device_module = types.SimpleNamespace(is_current_stream_capturing=lambda: False)
            self._mem_pools = {}

        def _current_device(self):
            return 0

        @contextmanager
        def region(self, tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend):
            told.append(("region", tag))
            yield

        @contextmanager
        def cuda_graph(self, cuda_graph, pool, stream, capture_error_mode, tag, enable_cpu_backup, cpu_backup_backend):
            told.append(("graph", tag))
            yield

        @contextmanager
        def _with_region_config(self, tag, enable_cpu_backup, cpu_backup_backend, enable_disk_backup=False):
            told.append(("config", tag))
            yield
            told.append(("config ends", tag))

        def pause(self, tag):
            told.append(("pause", tag))

        def resume(self, tag):
            told.append(("resume", tag))

        def get_cpu_backup(self, x, zero_copy=False):
            told.append(("backup", zero_copy))
            return "bytes"

    return types.SimpleNamespace(_TorchMemorySaverImpl=Impl)


class Tags:
    def __init__(self, told):
        self.told = told
        self.failure = None
        self.sleeping = set()
        self.waits = 0

    @contextmanager
    def tag(self, name, backup):
        kinds = {"with a backup": "pinned", "with a pageable backup": "pageable"}
        assert backup == next((kind for ending, kind in kinds.items() if name.endswith(ending)), "discard")
        self.told.append(("tag", name))
        yield
        self.told.append(("tag ends", name))

    def sleep(self, *names):
        if self.failure:
            raise self.failure
        self.told.append(("sleep", *names))
        self.sleeping.update(names)

    def wake(self, *names, retain=False):
        if self.failure:
            raise self.failure
        self.told.append(("wake", *names, *(["retained"] if retain else [])))
        self.sleeping -= set(names) or set(self.sleeping)

    def asleep(self):
        return dict.fromkeys(self.sleeping, 1)

    def pool_of(self, name):
        return f"pool of {name}"

    def backup_of(self, tensor, copy):
        return "copied" if copy else "shared"

    def wait_for_devices(self):
        self.waits += 1


@pytest.fixture
def told():
    return []


@pytest.fixture
def tags(told):
    return Tags(told)


@pytest.fixture
def start(told, tags, monkeypatch):
    """Starts the class in a mode, where gapless serves PyTorch or does not."""

    def start(hook_mode="torch", serves=True, module=None):
        module = module or entrypoint(told)
        monkeypatch.setitem(sys.modules, "torch_memory_saver.entrypoint", module)
        _memory_saver.serve_regions(lambda: serves, tags)
        return module._TorchMemorySaverImpl(hook_mode=hook_mode)

    return start


def make(saver, tag, **options):
    with saver.region(tag=tag, **{**WITHOUT, **options}):
        pass


def test_a_region_without_a_backup_is_a_tag(start, told):
    make(start(), "cache")
    assert told == [("tag", "cache"), ("config", "cache"), ("config ends", "cache"), ("tag ends", "cache")]


def test_a_region_with_a_backup_is_another_tag(start, told):
    saver = start()
    make(saver, "weights")
    told.clear()
    make(saver, "weights", **BACKUP)
    name = "weights with a backup"
    assert told == [("tag", name), ("config", "weights"), ("config ends", "weights"), ("tag ends", name)]
    # Under the keys of torch_memory_saver.
    assert saver._mem_pools == {
        ("weights", False, False, "", 0): "pool of weights",
        ("weights", True, False, "pinned", 0): "pool of weights with a backup",
    }
    told.clear()
    saver.pause("weights")
    saver.resume("weights")
    assert told == [("sleep", "weights", name), ("wake", "weights", name)]


@pytest.mark.parametrize(("options", "backend"), [(PAGEABLE, b"pinned"), (BACKUP, b"mmap")])
def test_a_region_with_a_pageable_backup_is_a_third_tag(start, told, options, backend):
    saver = start()
    saver._binary_wrapper.cdll.backend = backend
    make(saver, "weights")
    told.clear()
    make(saver, "weights", **options)
    name = "weights with a pageable backup"
    assert told == [("tag", name), ("config", "weights"), ("config ends", "weights"), ("tag ends", name)]
    assert saver._mem_pools["weights", True, False, "mmap", 0] == f"pool of {name}"
    told.clear()
    saver.pause("weights")
    saver.resume("weights")
    assert told == [("sleep", "weights", name), ("wake", "weights", name)]


def test_backups_are_retained_where_the_library_is_told_so(start, told):
    saver = start()
    make(saver, "a", **BACKUP)
    make(saver, "b", **BACKUP)
    told.clear()
    saver.pause(None)
    saver._binary_wrapper.cdll.retains = True
    saver.resume("a")
    saver.resume(None)
    assert told[1:] == [
        ("wake", "a with a backup", "retained"),
        ("wake", "a with a backup", "b with a backup", "retained"),
    ]


@pytest.mark.parametrize(
    ("options", "backend"),
    [(LIBRARY, b"pinned"), (BACKUP, b"elsewhere"), ({"enable_cpu_backup": True, "cpu_backup_backend": "elsewhere"}, b"mmap")],
)
def test_a_region_with_another_backup_is_of_the_library(start, told, options, backend):
    saver = start()
    saver._binary_wrapper.cdll.backend = backend
    make(saver, "weights", **options)
    assert told == [("region", "weights")]


def test_mode_preload_has_regions_on_gapless_and_the_rest_in_the_library(start, told):
    saver = start("preload")
    make(saver, "cache")
    assert told.pop(0) == ("tag", "cache")
    told.clear()
    of_graph = {"cuda_graph": None, "pool": None, "stream": None, "capture_error_mode": "global"}
    with saver.cuda_graph(**of_graph, tag="graph", enable_cpu_backup=False, cpu_backup_backend=None):
        pass
    saver.pause("graph")
    saver.pause(None)
    saver.resume(None)
    # Everything was paused at the end: one call.
    assert told == [
        ("graph", "graph"),
        ("pause", "graph"),
        ("sleep", "cache"),
        # On other devices, for example.
        ("pause", "cache"),
        ("pause", "default"),
        ("wake", "cache"),
        ("resume", None),
    ]


def test_a_region_in_a_capture_is_of_the_library(start, told):
    saver = start()
    saver._device_module.is_current_stream_capturing = lambda: True
    make(saver, "cache")
    assert told == [("region", "cache")]


def test_where_the_library_has_no_memory_nothing_waits(start, told, tags):
    saver = start()
    make(saver, "cache")
    told.clear()
    saver.pause(None)
    saver.resume(None)
    assert told == [("sleep", "cache"), ("wake", "cache")] and tags.waits == 0


def test_with_a_margin_regions_are_of_the_library(start, told):
    saver = start()
    saver._binary_wrapper.cdll.set_memory_margin_bytes(1 << 30)
    make(saver, "cache")
    saver._binary_wrapper.cdll.set_memory_margin_bytes(0)
    make(saver, "cache")
    assert told[:2] == [("margin", 1 << 30), ("region", "cache")]
    assert told[2:4] == [("margin", 0), ("tag", "cache")]


def test_tags_sleep_and_wake_by_name(start, told, tags):
    saver = start()
    make(saver, "a")
    make(saver, "b")
    make(saver, "weights", **LIBRARY)
    told.clear()
    for tag in ("a", "nobody", None):
        saver.pause(tag)
    for tag in ("weights", "", None):
        saver.resume(tag)
    assert told == [
        ("sleep", "a"),
        ("sleep", "a", "b"),
        ("pause", None),
        ("resume", "weights"),
        ("wake", "a", "b"),
        ("wake", "a", "b"),
    ]
    # Before the library pauses.
    assert tags.waits == 1


def test_what_others_have_put_to_sleep_stays_asleep(start, told, tags):
    saver = start()
    make(saver, "a")
    make(saver, "b")
    saver.pause(None)
    tags.sleep("of others")
    told.clear()
    saver.resume(None)
    assert told[0] == ("wake", "a", "b") and tags.sleeping == {"of others"}


def test_a_tag_on_gapless_and_in_the_library(start, told):
    saver = start()
    make(saver, "a")
    make(saver, "a", **LIBRARY)
    told.clear()
    for _ in range(2):
        saver.pause("a")
    for _ in range(2):
        saver.resume("a")
    assert told == [("sleep", "a"), ("pause", "a"), ("sleep", "a"), ("wake", "a"), ("resume", "a"), ("wake", "a")]


def test_nothing_is_paused_in_the_library_where_gapless_refuses(start, told, tags):
    saver = start()
    make(saver, "a")
    make(saver, "a", **LIBRARY)
    told.clear()
    for call in (saver.pause, saver.resume):
        tags.failure = RuntimeError("short")
        with pytest.raises(RuntimeError, match="short"):
            call(None)
        assert told == []
        tags.failure = None
        call(None)
        told.clear()


def test_memory_that_goes_on_being_made_in_a_paused_tag_does_not_wake_it(start, told):
    saver = start()
    make(saver, "a", **LIBRARY)
    saver.pause("a")
    make(saver, "a", **LIBRARY)
    told.clear()
    saver.pause("a")
    saver.resume("a")
    assert told == [("resume", "a")]


def test_backups_of_gapless_are_its_own(start, told, monkeypatch):
    saver = start()
    monkeypatch.setattr(_memory_saver, "_is_gapless", lambda address: address == 1)

    def tensor(address, **facts):
        return types.SimpleNamespace(**{"is_cuda": True, "is_contiguous": lambda: True, "data_ptr": lambda: address, **facts})

    assert saver.get_cpu_backup(tensor(1)) == "copied" and saver.get_cpu_backup(tensor(1), zero_copy=True) == "shared"
    assert told == []
    # Whatever is no memory of the device is the library's to judge.
    for other in (tensor(2), tensor(1, is_cuda=False), tensor(1, is_contiguous=lambda: False)):
        assert saver.get_cpu_backup(other, zero_copy=True) == "bytes"
    assert told == [("backup", True)] * 3


def test_where_gapless_does_not_serve_nothing_changes(start, told):
    saver = start(serves=False)
    make(saver, "cache")
    saver.pause("cache")
    saver.pause("cache")
    assert told == [("region", "cache"), ("pause", "cache"), ("pause", "cache")]


def test_another_version_is_left_as_it_is(start, told):
    module = entrypoint(told)
    original = module._TorchMemorySaverImpl
    original.pause = lambda self, tag, deeply: None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        start(module=module)
    assert module._TorchMemorySaverImpl is original
    assert "does not know this version of torch_memory_saver" in str(warned[0].message)


def test_the_module_has_what_regions_ask_for():
    asked = ("tag", "sleep", "wake", "backup_of", "pool_of", "wait_for_devices")
    assert [name for name in asked if not callable(getattr(_sleep, name, None))] == []
