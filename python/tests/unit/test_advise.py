"""gapless.advise: the objects, and how they show themselves."""

import json
import pickle
import stat

import gapless
import pytest

# 170 MiB, 40 blocks of 4 MiB of which every other one is freed, and a request of 64 MiB that only gapless serves.
BLOCKS = "".join(f"a {number} 4194304 0\n" for number in range(40))
FREES = "".join(f"f {number}\n" for number in range(0, 40, 2))
GOES_THROUGH = f"# capacity_bytes 178257920\n{BLOCKS}{FREES}"
FAILS = f"{GOES_THROUGH}r 67108864 0\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def job(folder):
    for rank in range(12):
        (folder / f"rank_{rank}.trace").write_text(FAILS if rank == 10 else GOES_THROUGH)
    return [f"rank_{rank}.trace" for rank in range(12)]


def test_one_file_is_an_object(folder):
    (folder / "one.trace").write_text(FAILS)
    advice = gapless.advise(folder / "one.trace")
    assert (advice.trace, advice.peak_live_bytes, advice.device_bytes) == ("one", 160 << 20, 170 << 20)
    assert advice.failed is not None and (advice.failed.op_index, advice.failed.bytes) == (60, 64 << 20)
    assert advice.failure_is_recorded and advice.history_complete and not advice.device_is_assumed
    assert advice.live_bytes == 80 << 20
    assert [(holder.blocks, holder.block_bytes, holder.bytes) for holder in advice.holders] == [(20, 4 << 20, 80 << 20)]
    assert advice.peak_holders[0].bytes == 160 << 20
    assert advice.survivors == ["gapless"]
    assert [policy.setting for policy in advice.policies if policy.survives] == ["gapless"]
    # All of the JSON is there.
    assert advice.data["recorder"] == "PyTorch" and json.loads(advice.to_json()) == advice.data


def test_arguments_are_those_of_the_command(folder):
    (folder / "one.trace").write_text(FAILS)
    advice = gapless.advise("one.trace", device="1GiB", settings=["native", "gapless"], html=folder / "page.html")
    assert advice.device_bytes == 1 << 30 and advice.survivors == ["native", "gapless"]
    assert (folder / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert gapless.advise("one.trace", device=1 << 30, settings=["native"]).device_bytes == 1 << 30
    assert gapless.advise("one.trace", gpu="H100", settings=["native"]).device_bytes > 1 << 34


def test_it_shows_itself(folder):
    (folder / "one.trace").write_text(FAILS)
    advice = gapless.advise("one.trace", settings=["native", "gapless"])
    facts = "peak 160 MiB on a device of 170 MiB; refused 64 MiB at op 60, when 80 MiB were live; survives with gapless"
    assert repr(advice) == f"<Advice on 'one.trace': {facts}>"
    assert str(advice) == f"one.trace: {facts}\n        80 MiB  20 blocks of 4 MiB"
    html = advice._repr_html_()
    assert f"<b>one.trace</b>: {facts}" in html
    assert "<td>native</td><td>fails at op 60</td>" in html and "<td>gapless</td><td>survives</td>" in html


def test_a_notebook_runs_nothing_of_a_recording(folder):
    hostile = "<img src=x onerror=alert(1)>.trace"
    (folder / hostile).write_text(GOES_THROUGH)
    (folder / "other.trace").write_text("<script>")
    for shown in (gapless.advise(hostile), gapless.advise([hostile, "other.trace"])):
        assert "<img" not in shown._repr_html_() and "&lt;img src=x onerror=alert(1)&gt;.trace" in shown._repr_html_()


def test_several_files_are_the_ranks_of_a_job(folder, job):
    advice = gapless.advise(job[::-1], html="job.html")
    assert [rank.file for rank in advice.ranks] == job, "numbers by their value"
    assert (advice.failed, advice.odd) == (["rank_10.trace"], gapless._advise.Odd("rank_10.trace", "failed_alone"))
    assert advice.survivors == ["gapless"] and advice.errors == {}
    assert advice.fits[0].setting == "gapless" and advice.fits[0].gpu == "RTX 4060"
    native = next(policy for policy in advice.policies if policy.setting == "native")
    assert (native.replayed_on, native.fails_on) == (12, ["rank_10.trace"])
    assert "aria-expanded" in (folder / "job.html").read_text()
    facts = (
        "1 of 12 ranks failed; the odd one is rank_10.trace: it alone failed; survives on all: gapless; "
        "fits all: RTX 4060, with gapless, which needs 160 MiB"
    )
    assert repr(advice) == f"<JobAdvice on 12 ranks: {facts}>"
    lines = str(advice).splitlines()
    assert len(lines) == 12 + 4 and lines[10].split() == "rank_10.trace (odd) 160 MiB 60 80 MiB 20 blocks of 4 MiB".split()
    html = advice._repr_html_()
    assert html.count("<tr>") == 13 and "<li>survives on all: gapless</li>" in html


def test_a_recording_is_compared_with_an_older_one(folder):
    (folder / "old.trace").write_text("a 1 104857600 0\na 2 52428800 0\n")
    (folder / "new.trace").write_text("a 1 104857600 0\na 2 62914560 0\n")
    changed = gapless.advise("new.trace", against=folder / "old.trace")
    assert (changed.old, changed.new) == (str(folder / "old.trace"), "new.trace")
    assert (changed.peak.old_bytes, changed.peak.new_bytes) == (150 << 20, 160 << 20)
    assert changed.peak.percent == pytest.approx(100 / 15)
    assert changed.regression and not changed.fails_now and changed.tolerance_percent == 2
    assert changed.reserved is not None and changed.reserved.new_bytes == 160 << 20
    moved = [(holder.block_bytes, holder.old_bytes, holder.new_bytes, holder.growth_bytes) for holder in changed.holders]
    assert moved == [(60 << 20, 0, 60 << 20, 60 << 20), (50 << 20, 50 << 20, 0, -50 << 20)]
    facts = "peak 150 MiB to 160 MiB (+6.67 %); reserved 150 MiB to 160 MiB (+6.67 %); a regression at a tolerance of 2 %"
    assert repr(changed) == f"<Comparison of 'new.trace' with '{folder}/old.trace': {facts}>"
    first, *places = str(changed).splitlines()
    assert first == f"new.trace against {folder}/old.trace: {facts}"
    assert places == ["        +60 MiB  blocks of 60 MiB", "        -50 MiB  blocks of 50 MiB"]
    assert f"<b>new.trace</b> against <b>{folder}/old.trace</b>: {facts}" in changed._repr_html_()
    assert "<td>+60 MiB</td><td>0 B</td><td>60 MiB</td><td>blocks of 60 MiB</td>" in changed._repr_html_()
    assert json.loads(changed.to_json()) == changed.data
    # With what the command printed for the old one, and with another tolerance.
    (folder / "old.json").write_text(gapless.advise("old.trace").to_json())
    tolerated = gapless.advise("new.trace", against="old.json", tolerance=7.5)
    assert not tolerated.regression and tolerated.tolerance_percent == 7.5
    assert tolerated.peak == changed.peak and tolerated.holders == changed.holders
    # A run that fails now is a regression, however little it needs.
    (folder / "fails.trace").write_text("# capacity_bytes 178257920\na 1 1048576 0\nr 104857600 0\n")
    failed = gapless.advise("fails.trace", against="old.trace")
    assert failed.fails_now and failed.regression and "the new run alone ran out of memory" in repr(failed)


def test_a_comparison_takes_two_recordings_and_a_tolerance(folder):
    (folder / "one.trace").write_text(GOES_THROUGH)
    (folder / "bad.trace").write_text("f 1\n")
    for wrong, reason in [
        (lambda: gapless.advise("one.trace", against="none.trace"), "none.trace: cannot be read: No such file"),
        (lambda: gapless.advise("bad.trace", against="one.trace"), "bad.trace: line 1: free of id 1"),
        (lambda: gapless.advise("one.trace", against="bad.trace", tolerance=-1), "tolerance"),
        (lambda: gapless.advise("one.trace", tolerance=1), "against"),
        (lambda: gapless.advise("one.trace", against="bad.trace", gpu="H100"), "cannot be used with"),
        (lambda: gapless.advise(["one.trace", "bad.trace"], against="two.trace"), "give one"),
        (lambda: gapless.advise("one.trace", against="one.trace"), "given twice"),
    ]:
        with pytest.raises(gapless.AdviseError, match=reason):
            wrong()


def test_one_bad_file_leaves_the_others(job):
    advice = gapless.advise([*job[:2], "none.trace"])
    assert [rank.file for rank in advice.ranks] == job[:2]
    assert list(advice.errors) == ["none.trace"] and "No such file" in advice.errors["none.trace"]
    assert "no advice on 1 file" in repr(advice) and "no advice: cannot be read" in advice._repr_html_()
    # A list of one file is a job of one rank.
    assert [rank.file for rank in gapless.advise(job[:1]).ranks] == job[:1]
    assert list(gapless.advise(["none.trace"]).errors) == ["none.trace"]


def test_results_of_other_processes_are_merged(folder, job):
    expected = gapless.advise(job)
    # As they come from a process pool, Ray or MPI.
    ranks = [pickle.loads(pickle.dumps(gapless.advise(path))) for path in job]
    assert gapless.merge_advice(ranks) == expected
    for rank in ranks:
        (folder / f"{rank.trace}.json").write_text(rank.to_json())
    files = [f"{rank.trace}.json" for rank in ranks]
    assert gapless.merge_advice([*ranks[:6], *files[6:]], html="merged.html") == expected
    # A bad recording is a line, too.
    (folder / "bad.trace").write_text("f 1\n")
    parts = [pickle.loads(pickle.dumps(gapless.advise(paths))) for paths in (job[:5], ["bad.trace"], job[5:])]
    assert gapless.merge_advice(parts) == gapless.advise([*job, "bad.trace"])
    gapless.advise(job, html="direct.html")
    assert (folder / "merged.html").read_bytes() == (folder / "direct.html").read_bytes()


def test_errors_say_what_to_do(folder, job, monkeypatch):
    (folder / "bad.trace").write_text("f 1\n")
    for wrong, reason in [
        (lambda: gapless.advise("none.trace"), "none.trace: cannot be read: No such file"),
        (lambda: gapless.advise("bad.trace"), "bad.trace: line 1: free of id 1"),
        (lambda: gapless.advise("-x.trace"), "-x.trace: cannot be read"),
        (lambda: gapless.advise([]), "name at least one recording"),
        (lambda: gapless.advise([job[0], job[0]]), "rank_0.trace is given twice"),
        (lambda: gapless.advise(job[0], device="lots"), "24GiB"),
        (lambda: gapless.advise(job[0], gpu="A100"), "did you mean A100 40GB or A100 80GB?"),
        (lambda: gapless.merge_advice([]), "no results"),
    ]:
        with pytest.raises(gapless.AdviseError, match=reason.replace("?", "[?]")):
            wrong()
    monkeypatch.setenv("GAPLESS_COMMAND", str(folder / "none"))
    with pytest.raises(gapless.AdviseError, match="install gapless from a wheel, or name the program in GAPLESS_COMMAND"):
        gapless.advise(job[0])
    for printed, reason in [("hello", "printed no JSON"), ('{"version": 9, "file": "x"}', "of another version")]:
        program = folder / "program"
        program.write_text(f"#!/bin/sh\necho '{printed}'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("GAPLESS_COMMAND", str(program))
        with pytest.raises(gapless.AdviseError, match=reason):
            gapless.advise(job[0])
