"""What is done to runs and commands from outside: closed streams, signals, damaged records, words nobody writes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from fuzz import faults, make_files
from killing import Server, Trap
from made_runs import make_run, read_study
from support import REPOSITORY, WHOLE
from tiny_runs import run_directory, start

from normbench import load_runs
from normbench.cli import main
from normbench.commands.report import report_of_sweep
from normbench.errors import UsageError
from normbench.record.files import read_json
from normbench.record.metrics import truncate_metrics
from normbench.record.recorder import Recorder
from normbench.record.tensorboard import event_files, truncate_events

pytest_plugins = ["run_fixtures"]

TINY = ["train", "model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "trainer.steps=4", "threads=1",
        "trainer.eval_batches=1", "data.eval_batch_size=512", "device=cpu", "outputs=out"]  # fmt: skip


# ---- streams and signals


@pytest.mark.slow
@pytest.mark.parametrize("how", ["{} | head -n 1", "{} >&- 2>&-", *(["{} >&-"] if WHOLE else [])])
def test_a_run_goes_on_where_nobody_reads_what_it_prints(tmp_path: Path, how: str) -> None:
    command = f'"{sys.executable}" -m normbench {" ".join(TINY)}'
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    script = f"set -o pipefail; {how.format(command)}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = tmp_path.glob("out/train/*")
    assert (read_json(run / "status.json") or {})["status"] == "finished"
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4


@pytest.mark.slow
def test_a_terminal_that_goes_away_interrupts_a_run(server: Server, tmp_path: Path) -> None:
    child = start(server, "transformer", tmp_path, Trap("training > gradients", 13, (signal.SIGHUP,)))
    assert child.wait() == 128 + signal.SIGHUP, child.output
    stands = read_json(run_directory(tmp_path) / "status.json") or {}
    assert (stands["status"], stands["message"]) == ("interrupted", "SIGHUP")
    assert (run_directory(tmp_path) / "checkpoint.pt").exists()


# ---- damaged records


def recorded(folder: Path) -> tuple[Path, Path]:
    """Record ten steps; return metrics.jsonl and the event file."""
    with contextlib.closing(Recorder(folder)) as recorder:
        for step in range(1, 11):
            recorder.scalars(step, {"loss/train": step / 8})
    return folder / "metrics.jsonl", event_files(folder)[-1]


def test_a_damaged_line_takes_no_other_with_it_and_the_file_stays(tmp_path: Path) -> None:
    metrics, _ = recorded(tmp_path)
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([*lines[:3], b"\x00\xff{{\n", *lines[4:], b'{"step": 11']))
    before = metrics.read_bytes()
    said = truncate_metrics(metrics, 8)
    assert said.endswith(f"what can be read of it stays, and the file as it was is {metrics}.damaged1")
    assert Path(f"{metrics}.damaged1").read_bytes() == before
    assert metrics.read_bytes() == b"".join([*lines[:3], *lines[4:8]])
    assert truncate_metrics(metrics, 8) == ""


@pytest.mark.parametrize(("place", "damaged"), [(0.3, True), (0.999, False)])
def test_damaged_events_stay_under_a_name_that_tensorboard_does_not_read(
    tmp_path: Path, place: float, damaged: bool
) -> None:
    _, events = recorded(tmp_path)
    content = bytearray(events.read_bytes())
    content[int(len(content) * place)] ^= 255
    events.write_bytes(content)
    said = truncate_events(tmp_path, 9)
    assert ("is damaged" in said) == damaged == (tmp_path / "events.damaged1").exists()
    assert not damaged or (tmp_path / "events.damaged1").read_bytes() == content


# ---- reports


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_a_report_is_fresh_by_what_runs_say_and_not_by_the_clock(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm")
    report_of_sweep(tmp_path, quiet=True)
    page = tmp_path / "report/report.html"
    late = make_run(tmp_path, norm="rmsnorm")
    for path in (late / "summary.json", late / "status.json"):
        os.utime(path, (1, 1))
    report_of_sweep(tmp_path, quiet=True)
    assert "rmsnorm" in page.read_text()


@pytest.mark.usefixtures("pages_alone")
def test_what_runs_say_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        run = make_run(tmp_path, norm="layernorm", seed=seed)
        make_run(tmp_path, norm="rmsnorm", seed=seed, status="diverged", summary={"message": "\x1b[2J\x9b\x07"})
    (run / "summary.json").write_text('{"status": "\\u001b]0;title\\u0007"}')
    assert main(["report", str(tmp_path)]) == 0
    assert main(["report", f"{tmp_path}/\x1b[31mno"]) == 2
    out, err = capsys.readouterr()
    assert not set("\x1b\x9b\x07") & set(out + err)


# ---- records of another shape

SHAPES = {
    "5": "5", "list": "[]", "other": '{"sessions": 5}', "deep": "[" * 100_000,
    "deeper": '{"a":' * 900 + "1" + "}" * 900,
    "bomb": "a: &a [1,1,1]\n" + "".join(f"{b}: &{b} [{f'*{a},' * 9}]\n" for a, b in pairwise("abcdefghijk")),
    "types": '{"status": [], "step": "x", "steps": null, "metrics": {"loss/val": {}}, "sessions": [{"choices": []}]}',
}  # fmt: skip


@pytest.mark.parametrize("content", SHAPES)
@pytest.mark.parametrize("file", ["config.yaml", "summary.json", "environment.json", "status.json", "metrics.jsonl"])
def test_a_record_of_another_shape_ends_in_one_sentence(
    tmp_path: Path, file: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "runs")
    (run / file).write_text(SHAPES[content])
    for words in (["sample", str(run)], ["train", f"extend={run}", "trainer.steps=200"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and len(err) < 600
    with contextlib.suppress(UsageError):
        read_study([tmp_path])
    assert len(load_runs(tmp_path, metrics=True)[0]) == 1


@pytest.mark.parametrize("name", ["operators_a_step", "host_share_of_step", "batches_a_step"])
def test_a_run_whose_ledger_has_words_for_numbers_is_left_out(tmp_path: Path, name: str) -> None:
    make_run(tmp_path, seed=0)
    wrong = make_run(tmp_path, seed=1, ledger={name: "many"})
    assert read_study([tmp_path]).damaged == ((wrong.name, "summary.json is missing or damaged"),)


# ---- fuzz


@pytest.mark.slow
def test_lines_that_nobody_writes_end_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of the 5,000 that `python tests/fuzz.py` draws."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    make_files(tmp_path)
    assert list(faults(0, 300 if WHOLE else 150)) == []
