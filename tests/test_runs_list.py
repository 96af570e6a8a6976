"""`normbench runs`: sweeps and runs in any state, and the commands that go on with them."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import make_run
from support import refused

from normbench.cli import main
from normbench.sweep.folder import Entry, SweepFolder


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the cells of each line by its name, and the commands below."""
    assert main(["runs", *words]) == 0
    table, *commands = re.split(r"\n(?=.* goes on by\n)", capsys.readouterr().out)
    rows = [re.split(r"  +", line.strip()) for line in table.splitlines() if re.search(r"\d:\d\d", line)]
    return {name: cells for name, *cells in rows}, [" ".join(command.split()) for command in commands]


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path / "outputs"


def test_each_run_says_how_it_stands_and_what_goes_on(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = outputs / "train"
    for status in ("finished", "diverged", "failed", "interrupted"):
        make_run(train, name=status, status=status, session={"command": f"normbench train name={status}"})
    make_run(train, name="killed", status="running", session={"command": "normbench train name='killed'"})
    held = make_run(train, name="held", status="running")
    make_run(train, name="held.old1")
    with open(held / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines, commands = listed(capsys)
    assert {name: cells[:2] for name, cells in lines.items()} == {
        "train/finished": ["finished", "100/100"],
        "train/diverged": ["diverged", "50/100"],
        "train/failed": ["failed", "50/100"],
        "train/interrupted": ["interrupted", "50/100"],
        "train/killed": ["interrupted", "50/100"],
        "train/held": ["running", "50/100"],
    }
    assert lines["train/finished"][2:] == ["0:00", "2.0000"]
    names = {"train/killed": "'killed'", "train/failed": "failed", "train/interrupted": "interrupted"}
    assert {*commands} == {f"{run} goes on by normbench train name={word}" for run, word in names.items()}


@pytest.mark.parametrize(("status", "file"), [("finished", "summary.json"), ("interrupted", "status.json")])
def test_a_run_whose_standing_cannot_be_read_is_damaged(
    outputs: Path, capsys: pytest.CaptureFixture[str], status: str, file: str
) -> None:
    run = make_run(outputs / "train", name="run", status=status, session={"command": "normbench train"})
    (run / file).write_text("")
    lines, commands = listed(capsys)
    assert lines["train/run"][0] == "damaged"
    assert commands == ["train/run goes on by normbench train"]


def test_a_sweep_is_a_line_and_its_own_folder_lists_its_runs(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("done", "sweep"):
        folder = SweepFolder(outputs / name)
        runs = [make_run(folder.path, seed=seed, name=f"r{seed}").name for seed in (0, 1)]
        more = ["r2", "r3"] if name == "sweep" else []
        folder.write_plan([Entry(run, {"norm": "layernorm"}, int(run[1]), 100, []) for run in [*runs, *more]], ["w"])
    folder.note_failure("r3", "boom")
    lines, commands = listed(capsys)
    assert {name: cells[0] for name, cells in lines.items()} == {"done": "finished", "sweep": "waiting"}
    assert lines["sweep"][1:3] == ["3/4 runs", "1 failed"]
    assert commands == [f"sweep goes on by normbench sweep --resume {outputs.name}/sweep"]
    lines, commands = listed(capsys, "outputs/sweep")
    assert {name: cells[0] for name, cells in lines.items()} == {".": "waiting", "r0": "finished", "r1": "finished"}
    assert commands == [". goes on by normbench sweep --resume outputs/sweep"]


def test_a_sweep_that_still_chooses_learning_rates_goes_on_by_its_own_command(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SweepFolder(outputs / "a").write_plan((), ["sweep.lr=auto"], ["r lr"])
    SweepFolder(outputs / "a-lr").write_plan([Entry("t", {}, 1000, 4, [])])
    lines, commands = listed(capsys)
    assert {name: cells[0] for name, cells in lines.items()} == {"a": "waiting", "a-lr": "waiting"}
    assert commands == ["a goes on by normbench sweep --resume outputs/a"]
    with SweepFolder(outputs / "a").announce_work():
        lines, commands = listed(capsys)
    assert lines["a"][0] == "running" and commands == []


def test_a_folder_without_runs_is_refused(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "outputs is not a folder: train something first" in refused(["runs"], capsys)
    outputs.mkdir()
    assert "outputs holds no runs: train something first" in refused(["runs"], capsys)
    assert "outptus is not a folder: did you mean outputs? train" in refused(["runs", "outptus"], capsys)


LIST = """
import json, sys
from collections import Counter
opened = Counter()
def note(event, arguments):
    if event == "open":
        opened[str(arguments[0])] += 1
sys.addaudithook(note)
from normbench.cli import main
main(["runs"])
print(json.dumps({"opened": opened, "imported": [*sys.modules]}), file=sys.stderr)
"""


def test_runs_are_listed_by_what_says_how_they_stand_read_once_each(outputs: Path) -> None:
    """A thousand then take a second: neither torch is imported nor what a run logged read."""
    run = make_run(outputs / "train", name="r")
    (run / "checkpoint.pt").write_bytes(b"weights")
    copies = [run.with_name(f"r{number}") for number in range(20)]
    for copy in copies:
        shutil.copytree(run, copy)
    done = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True)
    assert done.stdout.count("100/100") == len(copies) + 1, done.stderr
    told = json.loads(done.stderr)
    assert "torch" not in told["imported"]
    times = {Path(file).name: count for file, count in told["opened"].items() if Path(file).parent.name == "r7"}
    assert times == dict.fromkeys(times, 1)
    assert "status.json" in times
    assert times.keys().isdisjoint(["metrics.jsonl", "checkpoint.pt", *(file.name for file in run.glob("events.*"))])
