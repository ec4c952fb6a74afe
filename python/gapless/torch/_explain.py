"""``explain_oom``: a report beside each out-of-memory error, whichever allocator PyTorch uses.

PyTorch calls an observer before it raises the error. That one writes PyTorch's own snapshot and has the C library advise on it; no
call of it asks the driver for anything. Whatever fails here is a line on stderr: the error is PyTorch's in any case.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any, Iterator, Optional, Union

from .. import _conf, _library
from .._frames import _size
from .._reports import Explanation
from .._start import EXPLAIN_VARIABLE
from ._history import History

# The settings besides the folder of the reports, in processes whose code does not ask for reports.
SETTINGS_VARIABLE = "GAPLESS_EXPLAIN_OOM_CONF"

_BEGAN = time.time()
# Seconds that rank 0 waits at its end for reports of other ranks that have begun.
_PATIENCE = 5.0


class _Settings:
    """What a report is and where it goes."""

    def __init__(self, folder: Union[str, os.PathLike[str]], limit: int, stacks: bool, max_entries: int) -> None:
        if limit < 0 or max_entries < 1:
            raise ValueError(f"a limit of {limit} and {max_entries} entries: at least 0 and 1 are needed")
        # Programs change their folder.
        self.folder = Path(folder).absolute()
        self.limit = limit
        self.stacks = stacks
        self.max_entries = max_entries

    def text(self) -> str:
        """All but the folder, for the processes that this one starts."""
        stacks = "on" if self.stacks else "off"
        return _conf.text({"limit": str(self.limit), "stacks": stacks, "max_entries": str(self.max_entries)})


_settings: Optional[_Settings] = None
_is_attached = False
_history: Optional[History] = None
_refusals = 0
# Held by the thread that makes a report.
_reporting = threading.Lock()
_is_first: Optional[bool] = None


def explain_oom(
    folder: Union[str, os.PathLike[str]] = "oom", *, limit: int = 3, stacks: bool = True, max_entries: int = 100_000
) -> None:
    """Has each ``torch.cuda.OutOfMemoryError`` from now on come with a report, whichever allocator PyTorch uses.

    Before the error is raised, PyTorch's snapshot is written to ``folder/rank-R-pid-P-N.pickle``, with the page and the JSON of
    ``gapless advise`` beside it, and a summary of about ten lines is printed on stderr. The error stays PyTorch's. After ``limit``
    reports of a process, each further error has one line.

    From the start of CUDA on, PyTorch keeps the newest ``max_entries`` events of memory, with the Python stacks of allocations
    unless ``stacks`` is false, as far as that takes little time. A history that the program records itself is left as it is.

    Processes that this one starts do the same: ``GAPLESS_EXPLAIN_OOM`` carries the folder. A further call changes settings; the
    history keeps those of the first one after CUDA has started.

    Raises ``RuntimeError`` where PyTorch has no CUDA or lets nobody observe its errors, ``ValueError`` for a bad setting.
    """
    import torch

    settings = _Settings(folder, limit, stacks, max_entries)
    if not hasattr(torch._C, "_cuda_attach_out_of_memory_observer"):
        raise RuntimeError(f"PyTorch {torch.__version__} has no CUDA, so that no error can be explained")
    if torch.cuda.memory.get_allocator_backend() == "pluggable":
        raise RuntimeError("PyTorch lets nobody observe the out-of-memory errors of an allocator plug-in")
    _start(torch, settings)


def explain_by_environment(torch: Any) -> None:
    """As :func:`explain_oom`, with what the environment says. Does nothing where PyTorch has no CUDA."""
    if hasattr(torch._C, "_cuda_attach_out_of_memory_observer"):
        given = _conf.split(os.environ.get(SETTINGS_VARIABLE, ""))
        unknown = given.keys() - {"limit", "stacks", "max_entries"}
        if unknown:
            raise ValueError(f"{SETTINGS_VARIABLE} has no key {unknown.pop()!r}: its keys are limit, stacks and max_entries")
        explain_oom(
            os.environ[EXPLAIN_VARIABLE],
            limit=int(given.get("limit", 3)),
            stacks=given.get("stacks", "on") not in ("off", "0", "false"),
            max_entries=int(given.get("max_entries", 100_000)),
        )


def _start(torch: Any, settings: _Settings) -> None:
    global _settings, _is_attached
    _settings = settings
    os.environ[EXPLAIN_VARIABLE], os.environ[SETTINGS_VARIABLE] = str(settings.folder), settings.text()
    if not _is_attached:
        _is_attached = True
        # Not before the program itself starts CUDA: a process that forks must not have started it.
        torch.cuda._lazy_call(_attach)


def _attach() -> None:
    global _history
    try:
        import torch

        assert _settings is not None
        torch._C._cuda_attach_out_of_memory_observer(_observe)
        atexit.register(_sum_up)
        _history = History(torch, _settings.stacks, _settings.max_entries)
        _history.start()
    except Exception as error:
        _say(f"gapless: out-of-memory errors are not explained: {_words(error)}")


def _observe(device: int, requested: int, _total: int, free: int) -> None:
    """Makes a report, or says in one line why there is none. PyTorch raises its error after this."""
    global _refusals
    settings = _settings
    assert settings is not None
    _refusals += 1
    asked = _asked(device, requested)
    if _refusals > settings.limit:
        _say(f"gapless: {asked}, error {_refusals} of this process. Reports end after {settings.limit}")
        return
    # Another thread makes one, and this one is not held up.
    if not _reporting.acquire(blocking=False):
        _say(f"gapless: {asked}. Another report is being made")
        return
    collects = gc.isenabled()
    # Objects of the program are not to be looked at here, nor the millions that a snapshot consists of.
    gc.disable()
    try:
        _say(_report(settings, device, requested, free))
    except Exception as error:
        _say(f"gapless: {asked}. There is no report: {_words(error)}")
    finally:
        if collects:
            gc.enable()
        _reporting.release()


def _report(settings: _Settings, device: int, requested: int, free: int) -> str:
    """Writes the files of a report and returns what is to be printed."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    recording = _unused(settings.folder / f"rank-{_rank()}-pid-{os.getpid()}-{_refusals}.pickle")
    _write(recording, _snapshot(device, requested, free))
    page = recording.with_suffix(".html")
    options = {
        "snapshot_device": device,
        "threads": _threads(),
        "html": str(page),
        "json": str(recording.with_suffix(".json")),
    }
    function = _library.load().gapless_explain_json
    explained: Explanation = _library.read_json(function, os.fsencode(recording), json.dumps(options).encode())
    shown = page if page.exists() else recording
    problems = [f"gapless: {problem}" for problem in explained["problems"]]
    asked = _asked(device, requested)
    if not _prints_all(settings.folder):
        return "\n".join([f"gapless: {asked}: {shown}", *problems])
    lines = [*explained["lines"], *_missing(), f"Report: {shown}"]
    # Below a bar of progress, which may be there.
    return "\n".join(["", f"gapless: {asked}", *(f"  {line}" for line in lines), *problems])


def _asked(device: int, requested: int) -> str:
    rank = f" on rank {_rank()}" if _ranks() > 1 else ""
    return f"out of memory{rank}: {_size(requested)} on cuda:{device}"


def _missing() -> list[str]:
    """Says what was not recorded so that it takes little time."""
    is_whole = _history is None or _history.is_whole
    return [] if is_whole else ["Of the many allocations of this program, a part was recorded: all would take too much of its time"]


def _snapshot(device: int, requested: int, free: int) -> dict[str, Any]:
    """PyTorch's snapshot, whose history ends with the request that is refused."""
    import torch

    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    traces = snapshot["device_traces"]
    traces += [[] for _ in range(len(traces), device + 1)]
    # It lacks where there is no history, or one that leaves it out.
    if all(entry["action"] != "oom" for entry in traces[device][-2:]):
        event = {"action": "oom", "device_free": free, "size": requested, "stream": 0, "frames": []}
        traces[device].append({**event, "time_us": time.time_ns() // 1000})
    return snapshot


def _write(path: Path, snapshot: dict[str, Any]) -> None:
    """Writes a snapshot as a whole or not at all."""
    partial = path.with_name(f".{path.name}")
    try:
        with open(partial, "wb") as file:
            pickle.dump(snapshot, file, protocol=4)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _unused(path: Path) -> Path:
    """A path with a higher number, where a process of an earlier run with the same numbers has left files."""
    stem, _, number = path.stem.rpartition("-")
    while path.exists():
        number = str(int(number) + 1)
        path = path.with_name(f"{stem}-{number}{path.suffix}")
    return path


def _threads() -> int:
    """How many threads may replay: the cores, shared by the ranks of this machine."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


def _number_of(variables: tuple[str, ...], function: str, otherwise: int) -> int:
    """A number that ``torch.distributed`` has, or else what started the process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, function)())
    found = (os.environ.get(variable, "") for variable in variables)
    return next((int(text) for text in found if text.isdigit()), otherwise)


def _rank() -> int:
    return _number_of(("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"), "get_rank", 0)


def _ranks() -> int:
    return _number_of(("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"), "get_world_size", 1)


def _prints_all(folder: Path) -> bool:
    """Whether this process prints whole summaries: of the ranks that one process has started, the first that has a report does."""
    global _is_first
    if _is_first is None:
        _is_first = _ranks() == 1 or _claim(folder / f".first-{os.getppid()}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}")
    return _is_first


def _claim(path: Path) -> bool:
    try:
        # Left by another job whose parent had the same number.
        if path.stat().st_mtime < _BEGAN:
            path.unlink()
    except OSError:
        pass
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _sum_up() -> None:
    """At the end of rank 0: what the reports of all ranks say together."""
    try:
        settings = _settings
        if settings is None or _rank() != 0 or _ranks() == 1:
            return
        end = time.monotonic() + _PATIENCE
        while any(not path.with_suffix(".json").exists() for path in _reports(settings.folder)) and time.monotonic() < end:
            time.sleep(0.05)
        # The last report of each process.
        results = {path.stem.rpartition("-")[0]: path.with_suffix(".json") for path in _reports(settings.folder)}
        results = {name: path for name, path in results.items() if path.exists()}
        if len(results) > 1:
            from .. import _advise

            page = settings.folder / "ranks.html"
            job = _advise.merge_advice(results.values(), html=page)
            lines = [*str(job).splitlines(), f"Report: {page}"]
            _say("\n".join(["gapless: the ranks that ran out of memory", *(f"  {line}" for line in lines)]))
    except Exception as error:
        _say(f"gapless: there is no summary of the ranks: {_words(error)}")


def _reports(folder: Path) -> Iterator[Path]:
    """The recordings of this run, in order."""
    found = [path for path in folder.glob("rank-*-pid-*-*.pickle") if path.stat().st_mtime >= _BEGAN]
    return iter(sorted(found, key=lambda path: (path.stat().st_mtime, path.name)))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _say(text: str) -> None:
    """Prints on stderr, as far as that is possible."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except Exception:
        pass
