"""Whoever goes on with a run, loads it or chooses by it reads it through one door, which tells what was changed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_runs import make_run

import normbench
from normbench.cli import main
from normbench.config.compose import read
from normbench.errors import UsageError
from normbench.evidence.run import read_run
from normbench.record.directory import RunDirectory
from normbench.runs.load import TrainedRun
from normbench.runs.plan import prepare
from normbench.runs.reading import DamagedRun
from normbench.studies.folding import fold_run
from normbench.studies.sample import sample
from normbench.studies.swaps import swap

pytest_plugins = ["trained_runs"]

DOORS: dict[str, Callable[[Path], object]] = {
    "load": normbench.load,
    "sample": sample,
    "swap": lambda run: swap([str(run), "norm=dyt"], None),
    "fold": lambda run: fold_run(str(run), None),
    "extend": lambda run: prepare(read([f"extend={run}", "trainer.steps=30"])),
}


def replaced(old: str, new: str) -> Callable[[str], str]:
    """A change of a file in which a text must stand."""

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


CHANGES: dict[tuple[str, str], Callable[[str], str]] = {
    ("config.yaml", "config.yaml changed after the run had ended"): replaced("eps: ", "eps: 1"),
    ("metrics.jsonl", "metrics.jsonl changed after the run had ended"): lambda text: text + text.splitlines()[-1],
    ("environment.json", "environment.json changed after the run had ended"): lambda text: text + " ",
    ("environment.json", "environment.json is missing or damaged"): lambda text: "",
    ("environment.json", "environment.json is missing or damaged "): lambda text: '{"sessions": []}',
    ("environment.json", "environment.json is missing or damaged  "): lambda text: text[: len(text) // 2],
    ("config.yaml", "config.yaml is missing or damaged"): lambda text: "a: [",
    ("summary.json", "summary.json changed after the run had ended"): replaced('"status"', '"state": 1, "status"'),
}


@pytest.mark.parametrize(("file", "reason"), CHANGES)
def test_what_was_changed_is_told_at_each_door_as_in_a_report(
    file: str, reason: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(runs["text"], tmp_path / "run"))
    path = run / file
    path.write_text(CHANGES[file, reason](path.read_text()))
    for door in DOORS.values():
        with pytest.raises(UsageError, match=f"run is damaged, {reason.strip()}: make the run again with rerun=true"):
            door(run)
    with pytest.raises(DamagedRun) as damaged:
        read_run(RunDirectory(run), "run")
    assert damaged.value.reason == reason.strip()


def test_a_file_that_is_gone_is_told_too(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["text"], tmp_path / "run"))
    (run / "environment.json").unlink()
    for door in DOORS.values():
        with pytest.raises(UsageError, match=r"environment.json is missing or damaged"):
            door(run)


def test_the_command_line_says_it_in_a_line(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(runs["text"], tmp_path / "run"))
    (run / "environment.json").write_text("")
    for words in (["swap", str(run), "norm=dyt"], ["sample", str(run)], ["fold", str(run)]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "is damaged, environment.json is missing or damaged" in error and error.count("\n") == 1


def test_what_is_shown_of_a_run_that_was_changed_says_so(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = runs["text"]
    run = Path(shutil.copytree(source, tmp_path / "outputs" / source.parent.name / source.name))
    command = shlex.split(RunDirectory(run).sessions()[-1]["command"])[1:]
    summary = (run / "summary.json").read_text()
    for text, changed in ((summary, False), (summary.replace('"loss/val": ', '"loss/val": 1'), True)):
        (run / "summary.json").write_text(text)
        assert main([*command, "quiet=false"]) == 0
        warning = "warning: summary.json changed after the run had ended, so these numbers may not"
        assert (warning in capsys.readouterr().out) == changed
    assert main(["runs", str(run), "--ledger"]) == 2
    assert "is damaged, summary.json changed after the run had ended" in capsys.readouterr().err


def test_a_run_of_before_that_noted_no_digests_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert RunDirectory(run).find_altered() == []
    assert TrainedRun(run).tree["seed"] == 0


@pytest.mark.parametrize("lacking", ["optim:", "schedule:"])
def test_a_configuration_without_a_section_is_damaged(lacking: str, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    lines = (run / "config.yaml").read_text()
    assert lacking in lines
    (run / "config.yaml").write_text(lines.replace(lacking, f"no_{lacking}"))
    with pytest.raises(UsageError, match=r"is damaged, config.yaml lacks a section"):
        TrainedRun(run)
