"""Advice on recordings: what ``gapless advise`` says of a program that ran out of memory, as objects."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any, Iterable, Optional, Sequence, TypeVar, Union, overload

from . import _program
from ._frames import _size

_Path = Union[str, "os.PathLike[str]"]
_OnePath = TypeVar("_OnePath", bound=_Path)


class AdviseError(RuntimeError):
    """There is no advice; the text says why."""


@dataclass(frozen=True)
class Holder:
    """Live blocks that one place in the program allocated; where places are not recorded, blocks of one size."""

    origin: Optional[str]
    """The place, such as ``forward (model.py:12)``."""
    block_bytes: Optional[int]
    """Size of each block, if all have the same."""
    blocks: int
    bytes: int
    oldest_op: int
    newest_op: int


@dataclass(frozen=True)
class PolicyOutcome:
    """The outcome of the run under one policy, on the device of the advice."""

    setting: str
    """``native``, ``gapless``, or what to paste into ``PYTORCH_CUDA_ALLOC_CONF``."""
    as_recorded: bool
    not_replayed: Optional[str]
    oom_op: Optional[int]
    smallest_device_bytes: Optional[int]
    driver_calls: int
    host_waits: int

    @property
    def survives(self) -> bool:
        """Whether it was replayed to the end."""
        return self.not_replayed is None and self.oom_op is None


@dataclass(frozen=True)
class FailedRequest:
    """A request that was refused."""

    op_index: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Advice:
    """Advice on one recording. What each key says: ``docs/using/advise.md``; ``data`` has those that are no attributes."""

    file: str
    """The file, as it was named."""
    trace: str
    peak_live_bytes: int
    peak_reserved_bytes: Optional[int]
    device_bytes: int
    device_is_assumed: bool
    steps: int
    failed: Optional[FailedRequest]
    """The request that failed in the recorded run, or else natively on this device."""
    failure_is_recorded: bool
    live_bytes: int
    """What was live when it failed, or else at the peak."""
    history_complete: bool
    holders: list[Holder]
    """The largest holders at that moment, at most ten."""
    peak_holders: list[Holder]
    """The largest holders at the peak, at most fifty."""
    policies: list[PolicyOutcome]
    """Empty if there is no verdict."""
    survivors: list[str]
    """The policies that survive, the simplest first."""
    data: dict[str, Any] = field(compare=False)
    """All of what ``gapless advise --json`` printed."""

    def to_json(self) -> str:
        """The line of ``gapless advise --json``, which ``gapless advise --merge`` and :func:`merge_advice` take."""
        return _line(self.data)

    def __repr__(self) -> str:
        return f"<Advice on {self.file!r}: {'; '.join(self._facts())}>"

    def __str__(self) -> str:
        lines = [f"{self.file}: {'; '.join(self._facts())}"]
        lines += [f"  {_size(holder.bytes):>12}  {_describe(holder)}" for holder in self.holders]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        policies = [
            [
                f"{policy.setting} (as it ran)" if policy.as_recorded else policy.setting,
                _outcome(policy),
                "none found" if policy.smallest_device_bytes is None else _size(policy.smallest_device_bytes),
                f"{policy.driver_calls:,}",
                f"{policy.host_waits:,}",
            ]
            for policy in self.policies
        ]
        holders = [[_size(holder.bytes), _describe(holder)] for holder in self.holders]
        return (
            f"<p><b>{escape(self.file)}</b>: {escape('; '.join(self._facts()))}</p>"
            + _table(["setting", "outcome", "smallest device", "driver calls", "host waits"], policies)
            + _table(["held", "largest holders"], holders)
        )

    def _facts(self) -> list[str]:
        facts = [f"peak {_size(self.peak_live_bytes)} on a device of {_size(self.device_bytes)}"]
        if self.failed is not None:
            failed = f"{_size(self.failed.bytes)} at op {self.failed.op_index:,}, when {_size(self.live_bytes)} were live"
            facts.append(f"refused {failed}" if self.failure_is_recorded else f"native would refuse {failed}")
        if not self.policies:
            facts.append("no verdict")
        elif not self.survivors:
            facts.append("nothing that was tried survives")
        else:
            facts.append("survives with " + ", ".join(self.survivors))
        return facts


@dataclass(frozen=True)
class PolicyOnRanks:
    """A policy on all ranks of a job."""

    setting: str
    replayed_on: int
    fails_on: list[str]
    smallest_device_bytes: Optional[int]
    """The smallest device on which every rank survives."""
    driver_calls: int
    host_waits: int


@dataclass(frozen=True)
class Odd:
    """The rank that differs from all others."""

    rank: str
    why: str
    """``failed_alone``, ``survived_alone`` or ``peak``."""


@dataclass(frozen=True)
class Fit:
    """A device on which every rank fits."""

    setting: str
    device_bytes: int
    gpu: Optional[str]
    """The smallest GPU that ``gapless advise`` knows with so much memory."""


@dataclass(frozen=True, repr=False)
class JobAdvice:
    """Advice on the recordings of one job, a rank each."""

    ranks: list[Advice]
    """In the order of their names, numbers by their value."""
    errors: dict[str, str]
    """The files without advice, and why."""
    failed: list[str]
    """The ranks whose recorded run ended with a request that failed."""
    odd: Optional[Odd]
    policies: list[PolicyOnRanks]
    survivors: list[str]
    """The policies that survive on every rank, the simplest first."""
    fits: list[Fit]
    data: dict[str, Any] = field(compare=False)
    """All of the last line of ``gapless advise --json``."""

    def to_json(self) -> str:
        """The lines of ``gapless advise --json`` for its files."""
        lines = [rank.to_json() for rank in self.ranks]
        lines += [_line({"version": _VERSION, "file": file, "error": reason}) for file, reason in self.errors.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<JobAdvice on {len(self.ranks)} ranks: {'; '.join(self._facts())}>"

    def __str__(self) -> str:
        width = max((len(row[0]) for row in self._rows()), default=0)
        lines = [f"{name:<{width}}  {peak:>12}  {failed:>14}  {holder}" for name, peak, failed, holder in self._rows()]
        return "\n".join([*lines, *self._facts()])

    def _repr_html_(self) -> str:
        facts = "".join(f"<li>{escape(fact)}</li>" for fact in self._facts())
        return f"<ul>{facts}</ul>" + _table(["rank", "peak", "failed op", "largest holder"], self._rows())

    def _rows(self) -> list[list[str]]:
        rows = []
        for rank in self.ranks:
            holder = rank.holders[0] if rank.holders else None
            failed = "-" if rank.failed is None else f"{rank.failed.op_index:,}"
            rows.append(
                [
                    f"{rank.file} (odd)" if self.odd is not None and self.odd.rank == rank.file else rank.file,
                    _size(rank.peak_live_bytes),
                    failed if rank.failed is None or rank.failure_is_recorded else f"replay: {failed}",
                    "-" if holder is None else f"{_size(holder.bytes)} {_describe(holder)}",
                ]
            )
        return rows + [[file, "-", "-", f"no advice: {reason}"] for file, reason in self.errors.items()]

    def _facts(self) -> list[str]:
        facts = [f"{len(self.failed)} of {len(self.ranks)} ranks failed"]
        if self.errors:
            facts.append(f"no advice on {len(self.errors)} file" + "s"[: len(self.errors) - 1])
        if self.odd is not None:
            why = {"failed_alone": "it alone failed", "survived_alone": "it alone did not fail"}
            facts.append(f"the odd one is {self.odd.rank}: {why.get(self.odd.why, 'its peak is far from the median')}")
        if self.survivors:
            facts.append("survives on all: " + ", ".join(self.survivors))
        else:
            facts.append("nothing that was tried survives on all")
        for fit in self.fits[:1]:
            facts.append(f"fits all: {fit.gpu or 'no GPU known here'}, with {fit.setting}, which needs {_size(fit.device_bytes)}")
        return facts


@dataclass(frozen=True)
class Change:
    """A figure of two recordings."""

    old_bytes: int
    new_bytes: int

    @property
    def percent(self) -> Optional[float]:
        """How much more the new one is, in percent of the old one; ``None`` where that is 0."""
        return None if self.old_bytes == 0 else (self.new_bytes - self.old_bytes) / self.old_bytes * 100

    def __str__(self) -> str:
        share = "" if self.percent is None else f" ({self.percent:+.2f} %)"
        return f"{_size(self.old_bytes)} to {_size(self.new_bytes)}{share}"


@dataclass(frozen=True)
class HolderChange:
    """What one place in the program held at the peak of each recording."""

    origin: Optional[str]
    """The function and the name of its file, such as ``forward (model.py)``."""
    block_bytes: Optional[int]
    """Size of each block, where places are not recorded."""
    old_bytes: Optional[int]
    """``None`` where it was not among the largest."""
    new_bytes: Optional[int]
    growth_bytes: int
    """Negative where the new recording has less."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """What has changed from an old recording of a program to a new one."""

    old: str
    """The file, as it was named."""
    new: str
    tolerance_percent: float
    regression: bool
    """Whether the peak grew by more than the tolerance, or the new run alone ran out of memory."""
    peak: Change
    """The most that was asked for at once."""
    reserved: Optional[Change]
    """The peak of what PyTorch's defaults hold, if both recordings allow a verdict."""
    fails_now: bool
    """Whether the new run ended with a request that was refused, and the old one did not."""
    holders: list[HolderChange]
    """First those that hold more, the largest growth first."""
    data: dict[str, Any] = field(compare=False)
    """All of what ``gapless advise --json --against`` printed."""

    def to_json(self) -> str:
        """The line of ``gapless advise --json --against``."""
        return _line(self.data)

    def __repr__(self) -> str:
        return f"<Comparison of {self.new!r} with {self.old!r}: {'; '.join(self._facts())}>"

    def __str__(self) -> str:
        lines = [f"{self.new} against {self.old}: {'; '.join(self._facts())}"]
        lines += [f"  {growth:>13}  {place}" for growth, _, _, place in self._rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts = escape("; ".join(self._facts()))
        head = f"<p><b>{escape(self.new)}</b> against <b>{escape(self.old)}</b>: {facts}</p>"
        return head + _table(["change", "old", "new", "held by"], self._rows())

    def _rows(self) -> list[list[str]]:
        def size(held: Optional[int]) -> str:
            return "not listed" if held is None else _size(held)

        rows = []
        for holder in self.holders:
            sign = "-" if holder.growth_bytes < 0 else "+"
            place = holder.origin
            if place is None:
                place = "blocks of several sizes" if holder.block_bytes is None else f"blocks of {_size(holder.block_bytes)}"
            rows.append([f"{sign}{_size(abs(holder.growth_bytes))}", size(holder.old_bytes), size(holder.new_bytes), place])
        return rows

    def _facts(self) -> list[str]:
        facts = [f"peak {self.peak}"]
        if self.reserved is not None:
            facts.append(f"reserved {self.reserved}")
        if self.fails_now:
            facts.append("the new run alone ran out of memory")
        verdict = "a regression" if self.regression else "no regression"
        return [*facts, f"{verdict} at a tolerance of {self.tolerance_percent:g} %"]


@overload
def advise(
    path: _Path,
    *,
    device: Union[int, str, None] = None,
    gpu: Optional[str] = None,
    settings: Sequence[str] = (),
    snapshot_device: Optional[int] = None,
    strip_paths: bool = False,
    html: Optional[_Path] = None,
) -> Advice: ...


@overload
def advise(
    path: Union[list[_OnePath], tuple[_OnePath, ...]],
    *,
    device: Union[int, str, None] = None,
    gpu: Optional[str] = None,
    settings: Sequence[str] = (),
    snapshot_device: Optional[int] = None,
    strip_paths: bool = False,
    html: Optional[_Path] = None,
) -> JobAdvice: ...


@overload
def advise(
    path: _Path,
    *,
    against: _Path,
    tolerance: Optional[float] = None,
    snapshot_device: Optional[int] = None,
    strip_paths: bool = False,
) -> Comparison: ...


def advise(
    path: Union[_Path, Sequence[_Path]],
    *,
    device: Union[int, str, None] = None,
    gpu: Optional[str] = None,
    settings: Sequence[str] = (),
    snapshot_device: Optional[int] = None,
    strip_paths: bool = False,
    html: Optional[_Path] = None,
    against: Optional[_Path] = None,
    tolerance: Optional[float] = None,
) -> Union[Advice, JobAdvice, Comparison]:
    """Says what held the memory of a recorded program, and which setting or device would have helped, without a GPU.

    ``path`` is a recording (a PyTorch memory snapshot, an RMM log, a trace), or a list of several: one for each rank of a job. Of
    several, a file without advice is in :attr:`JobAdvice.errors`. The other arguments are those of ``gapless advise``, which this
    runs: ``device`` is a number of bytes or a text such as ``"24GiB"``, and ``html`` a page to write.

    With ``against``, an older recording of the same program or a file with what ``gapless advise --json`` printed for one, it says
    what has changed since: :attr:`Comparison.regression` where the peak grew by more than ``tolerance`` percent (2 if it is not
    given). That takes one ``path``, and no device, settings or page.

    Raises :class:`AdviseError` where there is no advice on the one file, where arguments are wrong, and without the program.
    """
    arguments: list[str] = []
    given = {"device": device, "gpu": gpu, "snapshot-device": snapshot_device, "against": against, "tolerance": tolerance}
    for name, value in given.items():
        if value is not None:
            arguments.append(f"--{name}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    if strip_paths:
        arguments.append("--strip-paths")
    for setting in settings:
        arguments += ["--setting", setting]
    if against is not None:
        files = [path] if isinstance(path, (str, os.PathLike)) else path
        return _comparison(_objects([*arguments, *_page(html), "--", *(os.fspath(file) for file in files)]))
    if isinstance(path, (str, os.PathLike)):
        results, _ = _run([*arguments, *_page(html), "--", os.fspath(path)])
        return _advice(_only(results))
    paths = [os.fspath(one) for one in path]
    if not paths:
        raise AdviseError("no files: name at least one recording")
    if len(paths) > 1:
        return _job(*_run([*arguments, *_page(html), "--", *paths]))
    # One file alone has no line for all.
    results, _ = _run([*arguments, "--", *paths])
    return _job(*_run(["--merge", *_page(html), "--", "-"], _line(results[0])))


def merge_advice(results: Iterable[Union[Advice, JobAdvice, _Path]], *, html: Optional[_Path] = None) -> JobAdvice:
    """Puts the advice on the ranks of a job together, which other processes and machines have made.

    ``results`` are objects that :func:`advise` returned there, and files with what ``gapless advise --json`` printed. Where a
    recording may be bad, ``advise([path])`` returns an object that says so, in place of an exception.
    """
    lines: list[str] = []
    paths: list[str] = []
    for result in results:
        if isinstance(result, (Advice, JobAdvice)):
            lines.append(result.to_json())
        else:
            paths.append(os.fspath(result))
    if not lines and not paths:
        raise AdviseError("no results: name at least one")
    files = [*paths, "-"] if lines else paths
    return _job(*_run(["--merge", *_page(html), "--", *files], "\n".join(lines)))


def _page(html: Optional[_Path]) -> list[str]:
    return [] if html is None else ["--html", os.fspath(html)]


def _run(arguments: list[str], given: Optional[str] = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Runs ``gapless advise``; returns its objects for files, and the one for all, which is empty for one file."""
    objects = _objects(arguments, given)
    return [one for one in objects if "file" in one], next((one for one in objects if "files" in one), {})


def _objects(arguments: list[str], given: Optional[str] = None) -> list[dict[str, Any]]:
    """Runs ``gapless advise``; returns all objects that it prints."""
    command = [os.fspath(_program.program()), "advise", "--json", *arguments]
    try:
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    except OSError as error:
        hint = "install gapless from a wheel, or name the program in GAPLESS_COMMAND"
        raise AdviseError(f"{command[0]} cannot be run ({error.strerror}): {hint}") from error
    try:
        objects = [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError as error:
        raise AdviseError(f"{command[0]} printed no JSON: is it the program gapless?") from error
    said = done.stderr.strip()
    if not objects or done.returncode not in _DONE:
        raise AdviseError(said.removeprefix("error: ") if said else f"{command[0]} ended with {done.returncode}")
    if any(one.get("version") != _VERSION for one in objects):
        raise AdviseError(f"{command[0]} is of another version than this package: install both from one wheel")
    return objects


def _only(results: list[dict[str, Any]]) -> dict[str, Any]:
    [result] = results
    if "error" in result:
        raise AdviseError(f"{result['file']}: {result['error']}")
    return result


def _advice(result: dict[str, Any]) -> Advice:
    failed = result["failed"]
    return _made(
        Advice,
        {
            **result,
            "failed": None if failed is None else _made(FailedRequest, failed),
            "holders": [_made(Holder, holder) for holder in result["holders"]],
            "peak_holders": [_made(Holder, holder) for holder in result["peak_holders"]],
            "policies": [_made(PolicyOutcome, policy) for policy in result["policies"]],
            "data": result,
        },
    )


def _job(results: list[dict[str, Any]], job: dict[str, Any]) -> JobAdvice:
    return _made(
        JobAdvice,
        {
            **job,
            "ranks": [_advice(result) for result in results if "error" not in result],
            "errors": {result["file"]: result["error"] for result in results if "error" in result},
            "odd": None if job["odd"] is None else _made(Odd, job["odd"]),
            "policies": [_made(PolicyOnRanks, policy) for policy in job["policies"]],
            "fits": [_made(Fit, fit) for fit in job["fits"]],
            "data": job,
        },
    )


def _comparison(objects: list[dict[str, Any]]) -> Comparison:
    [compared] = objects
    return _made(
        Comparison,
        {
            **compared,
            "peak": _made(Change, compared["peak"]),
            "reserved": None if compared["reserved"] is None else _made(Change, compared["reserved"]),
            "holders": [_made(HolderChange, holder) for holder in compared["holders"]],
            "data": compared,
        },
    )


_T = TypeVar("_T")


def _made(kind: type[_T], values: dict[str, Any]) -> _T:
    """Makes an object of those of the values that it has a place for."""
    return kind(**{one.name: values[one.name] for one in fields(kind)})  # type: ignore[arg-type]


def _line(result: dict[str, Any]) -> str:
    return json.dumps(result, separators=(",", ":"), ensure_ascii=False)


def _describe(holder: Holder) -> str:
    blocks = f"{holder.blocks:,} block" + ("" if holder.blocks == 1 else "s")
    if holder.block_bytes is not None:
        blocks += f" of {_size(holder.block_bytes)}"
    return blocks if holder.origin is None else f"{holder.origin} ({blocks})"


def _outcome(policy: PolicyOutcome) -> str:
    if policy.not_replayed is not None:
        return "not replayed"
    return "survives" if policy.oom_op is None else f"fails at op {policy.oom_op:,}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    def row(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return f"<table><thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"


# The form of the results.
_VERSION = 1
# Advice, bad input whose line says so, and nothing that survives.
_DONE = (0, 2, 3)
