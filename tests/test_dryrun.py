"""`normbench train --dry-run`: what it says against what the run then takes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import refused

from normbench.cli import main
from normbench.training.clock import forget_peak, peak_memory
from normbench.training.estimate import Cost, Estimate

TINY = ["model.depth=2", "model.width=16", "model.heads=2", "model.context=16", "data.eval_batch_size=512",
        "trainer.steps=60", "trainer.eval_batches=2", "trainer.eval_every=20", "trainer.log_every=5",
        "probes.every=20", "probes.histograms_every=30", "threads=1", "device=cpu", "quiet=true"]  # fmt: skip
CNN = ["model=cnn", "model.width=4", "norm=batchnorm", "data=digits", "trainer.steps=8", "threads=1", "device=cpu"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, an empty folder for temporary files, and a terminal that wraps nothing."""
    for name in ("here", "scratch"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path / "here"


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The table of a dry run, which leaves everything as it was."""
    before = files(Path.cwd().parent)
    assert main(["train", *words, "--dry-run"]) == 0
    assert files(Path.cwd().parent) == before
    pairs = (re.split(r"  +", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def files(folder: Path) -> dict[Path, bytes]:
    """Everything in a folder, but for an empty one that torch makes for itself."""
    found = {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
    return {path: content for path, content in found.items() if not path.name.startswith("torchinductor_")}


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def trained(*words: str) -> Path:
    assert main(["train", *words, "quiet=true"]) == 0
    (run,) = Path("outputs/train").iterdir()
    return run


@pytest.mark.parametrize("words", [TINY, [*TINY, "trainer.ema=0.9", "trainer.accumulate=2"], CNN])
def test_it_says_what_the_run_then_takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = dry(capsys, *words)
    run = trained(*words)
    summary = json.loads((run / "summary.json").read_text())
    counts = summary["ledger"]["parameters"]
    assert said["run directory"] == str(run)
    assert said["state"] == "new"
    assert numbers(said["steps"])[0] == summary["steps"]
    assert numbers(said["parameters"]) == [counts["total"], counts["in_norms"], counts["outside_norms"]]
    assert numbers(said["disk, checkpoints"])[0] == pytest.approx((run / "checkpoint.pt").stat().st_size / 1e3, rel=0.1)
    assert numbers(said["memory, peak of a step"])[0] > 100  # torch alone
    recorded = [run / "metrics.jsonl", *run.glob("events*")]
    size = sum(path.stat().st_size for path in recorded) / 1e3
    assert numbers(said["disk, events and metrics"])[0] == pytest.approx(size, rel=0.3)  # beside the texts


def test_what_is_there_already_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(*TINY)
    assert main(["train", *TINY, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{run} is finished already: train would only show its summary"
    assert dry(capsys, *TINY, "rerun=true")["state"] == "new"
    longer = dry(capsys, f"extend={run}", "trainer.steps=100")
    assert longer["state"] == "new; goes on from step 60"
    assert numbers(longer["time of an evaluation"])[1] == 1  # of the 40 steps that are left, the last one's apart
    (run / "summary.json").unlink()
    (run / "status.json").write_text(json.dumps({"status": "interrupted", "step": 60}))
    assert dry(capsys, *TINY)["state"] == "interrupted; goes on from step 60"


def test_a_run_that_diverges_at_once_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    said = dry(capsys, *TINY, "norm=none", "optim=sgd", "optim.lr=1000", "trainer.grad_clip=0", "schedule.warmup=0")
    assert re.match(r"diverges at step \d+: not finite: ", said["training"])
    assert "time in all, about" not in said


@pytest.mark.parametrize(
    "words", [["norm=rmsnrm"], ["model.heads=3"], ["norm=instancenorm"], ["extend=nowhere"], ["--foo"]]
)
def test_it_refuses_what_train_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["train", *words, "--dry-run"], capsys) == refused(["train", *words], capsys)


# ---- the arithmetic


def made_up(every: int, histograms: int, step_ms: float | None) -> Estimate:
    """A log takes 1 s and 10 bytes, an evaluation 2 s and 1 byte, a probe 3 s and 100, with histograms 4 s and 1000."""
    loop: Any = SimpleNamespace(
        compile_seconds=5.0,
        trainer=SimpleNamespace(log_every=5, eval_every=10),
        probing=SimpleNamespace(every=every, histograms_every=histograms),
    )
    costs = {"log": Cost(1, 10), "evaluation": Cost(2, 1), "probe": Cost(3, 100), "histograms": Cost(4, 1000)}
    return Estimate(loop, None, step_ms, 20, costs, last_evaluation=7)


def test_time_and_records_by_hand() -> None:
    result = made_up(20, 40, step_ms=10)
    # logged at 1, 5, ..., 40; evaluations at 10, 20, 30, and the last one; 1 and 40 have histograms, 20 a probe
    assert result.times(40) == {"log": 9, "evaluation": 3, "probe": 1, "histograms": 2}
    assert result.seconds(40) == pytest.approx(5 + 37 * 10 / 1e3 + 9 * 1 + 3 * 2 + 1 * 3 + 2 * 4 + 7)
    assert result.record_bytes(40) == 9 * 10 + 3 * 1 + 1 * 100 + 2 * 1000
    assert made_up(1, 0, step_ms=None).seconds(10) == pytest.approx(5 + 3 * 1 + 10 * 3 + 7)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux forgets the peak so far")
def test_the_peak_is_that_of_what_came_last() -> None:
    device = torch.device("cpu")
    peaks = []
    for size in (300_000_000, 1):
        forget_peak(device)
        assert len(b"x" * size) == size
        peaks.append(peak_memory(device) or 0)
    assert peaks[0] - peaks[1] > 250_000_000
