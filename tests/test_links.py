"""Links in folders of results: what a command writes never lands where they lead."""

from __future__ import annotations

import errno
import io
import os
import resource
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from conftest import draw_for_pages_alone
from made_claims import claims_and_digests, write_all
from made_runs import make_run, read_study
from test_claims import read_one, write_claim

from normbench.claims.claim import read_claim, read_claims
from normbench.claims.drafts import write_draft
from normbench.claims.page import write_page
from normbench.claims.registering import register
from normbench.claims.run import ClaimRun
from normbench.claims.suite import Way
from normbench.cli import main
from normbench.errors import UsageError
from normbench.record.directory import RunDirectory
from normbench.record.files import make_folder, write_bytes
from normbench.record.loggers import Lines
from normbench.show.studied import save_study
from normbench.show.tensorboard import ARMS, MARK, write_arms
from normbench.studies.study import write_journal
from normbench.sweep.folder import Entry, SweepFolder
from normbench.sweep.launchers import Submitit
from normbench.sweep.sweep import report_nothing

ENTRY = Entry("run", {"norm": "layernorm"}, 0, 3, [])


def claim_of(here: Path) -> ClaimRun:
    """A claim that is registered; nothing of it is made."""
    if not (here / "conf").exists():
        write_claim(here, seeds=2)
        register(read_one(here), "a test", "2026-11-28")
    claims = read_claims([here / "conf"])
    return ClaimRun.of(claims["tiny"], claims, Way())


def run_claim(here: Path) -> None:
    claim_of(here).run(report_nothing)


def keep_claim(here: Path) -> None:
    one = claim_of(here)
    one.keep(one.empty_result("a test"))


def note_claim(here: Path) -> None:
    claim_of(here).write_note()


def set_claim_aside(here: Path) -> None:
    (here / "outputs/claims/tiny").mkdir(parents=True)
    one = claim_of(here)
    one.move_aside(one.runs_folder, "b" * 64)


def write_claims_page(here: Path) -> None:
    write_page(here / "outputs/claims", *claims_and_digests())


def report_claims(here: Path) -> None:
    explain(["claims", "--report"])


def draft_claim(here: Path) -> None:
    SweepFolder(here / "sweep").write_plan([ENTRY], ["norm=layernorm"], ["run"])
    write_draft("mine", here / "sweep", here / "conf")


def register_claim(here: Path) -> None:
    path = write_claim(here)
    register(read_claim(path), "a test", "2026-11-28")


def plan_sweep(here: Path) -> None:
    SweepFolder(here / "outputs/sweep").write_plan([ENTRY], ["norm=layernorm"], ["run"])


def note_failure(here: Path) -> None:
    SweepFolder(here / "outputs/sweep").note_failure("run", "boom")


def submit(here: Path) -> None:
    Submitit("local", 1, 1).start([], 1, here / "outputs/sweep/.sweep")


def hold_run(here: Path) -> None:
    with RunDirectory(here / "outputs/sweep/run").hold():
        pass


def log_step(here: Path) -> None:
    Lines(here / "outputs/sweep/run", 0)


def write_rows(here: Path) -> None:
    write_journal(here / "outputs/sweep/studies/depth/rows.jsonl", "a", [{"loss": 1.0}])


def write_study(here: Path) -> None:
    save_study(here / "outputs/sweep/studies/depth", {"title": "A study"}, [], [])


def write_report(here: Path) -> None:
    for seed in (0, 1):
        make_run(here / "outputs/sweep", norm="layernorm", seed=seed)
    explain(["report", "outputs/sweep"])


def explain(words: list[str]) -> None:
    """Raise what a command has been refused with."""
    with redirect_stderr(io.StringIO()) as said:
        status = main(words)
    if status == 2:
        raise UsageError(said.getvalue())


PLACES: list[tuple[str, Callable[[Path], None]]] = [
    ("outputs/claims", run_claim),
    ("outputs/claims/tiny", run_claim),
    ("outputs/claims/tiny-lr", run_claim),
    ("outputs/claims/older", run_claim),
    ("outputs/claims/tiny", keep_claim),
    ("outputs/claims/tiny", note_claim),
    ("outputs/claims/older", set_claim_aside),
    ("outputs/claims/figures", write_claims_page),
    ("outputs/claims", report_claims),
    ("conf/claim", draft_claim),
    ("conf/claim/REGISTERED", register_claim),
    ("outputs/sweep/.sweep", plan_sweep),
    ("outputs/sweep/.sweep/plans", plan_sweep),
    ("outputs/sweep/.sweep/failures", note_failure),
    ("outputs/sweep/.sweep/submitit", submit),
    ("outputs/sweep/run/.lock", hold_run),
    ("outputs/sweep/run/metrics.jsonl", log_step),
    ("outputs/sweep/studies/depth/rows.jsonl", write_rows),
    ("outputs/sweep/studies/depth/figures", write_study),
    ("outputs/sweep/report", write_report),
    ("outputs/sweep/report/figures", write_report),
]


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize("leads_to", ["folder", "nothing"])
@pytest.mark.parametrize(("place", "write"), PLACES, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_nothing_is_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, write: Callable[[Path], None], leads_to: str
) -> None:
    draw_for_pages_alone(monkeypatch)
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    elsewhere.mkdir()
    (elsewhere / "theirs").write_text("as it was")
    before = content_of(elsewhere)
    link = here / place
    link.parent.mkdir(parents=True)
    if write in (run_claim, keep_claim, note_claim, set_claim_aside):
        claim_of(here)
    link.symlink_to(elsewhere if leads_to == "folder" else elsewhere / "nothing")
    with pytest.raises((UsageError, IsADirectoryError), match=r"and nothing is written there|Is a directory"):
        write(here)
    assert content_of(elsewhere) == before
    assert link.is_symlink()


def test_arms_for_tensorboard_are_not_written_through_a_link(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for seed in (0, 1):
        make_run(here, norm="layernorm", seed=seed)
    elsewhere.mkdir()
    (elsewhere / MARK).touch()  # as if it were ours
    (elsewhere / "theirs").write_text("as it was")
    before = content_of(elsewhere)
    (here / ARMS).symlink_to(elsewhere)
    assert not write_arms(here, [read_study([here])])
    assert content_of(elsewhere) == before


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "figures").symlink_to("there")
    assert make_folder(tmp_path, "figures", "more") == tmp_path / "figures/more"
    assert (tmp_path / "there/more").is_dir()


def test_files_take_the_place_of_links_to_files(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("as it was")
    link = tmp_path / "claims.html"
    link.symlink_to(theirs)
    write_bytes(link, b"new")
    assert theirs.read_text() == "as it was" and link.read_bytes() == b"new" and not link.is_symlink()


# ---- a disk that is full, or cannot be written


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("where", ["write", "fsync"])
def test_a_full_disk_is_told_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_for_pages_alone(monkeypatch)
    write_all(tmp_path / "outputs/claims")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    if where == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
        assert main(["claims", "--report"]) == 1
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            status = main(["claims", "--report"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert status == 1
    said = capsys.readouterr().err
    assert said.startswith("normbench: the disk is full: outputs/claims/") and said.count("\n") == 1
    assert ".tmp" not in said and not list(tmp_path.rglob("*.tmp"))


def test_a_disk_that_cannot_be_written_is_told_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draw_for_pages_alone(monkeypatch)

    def refuse(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("normbench.record.files.open", refuse, raising=False)
    assert main(["claims", "--report"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("normbench: outputs/claims/") and "(Read-only file system): give another path" in said
    assert ".tmp" not in said and said.count("\n") == 1


@pytest.mark.parametrize("word", ["inf", "nan", "1.5", "-1", "two", "1e400", "true", "null", "[1,2]", "1" * 5000, ""])
def test_what_is_no_seed_is_refused_in_a_sentence(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "eps", "--trial", "--dry-run", f"seed={word}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("normbench: seed=") and said.count("\n") == 1
