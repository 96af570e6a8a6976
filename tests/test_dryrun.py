"""`normbench train --dry-run`: what it says against what the run then takes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import refused

from normbench.cli import main
from normbench.scratch import MARK, clear_all, make_dry_folder
from normbench.training.checkpoint import write
from normbench.training.clock import Clock
from normbench.training.estimate import Estimate, estimate

TINY = ["model.depth=1", "model.width=16", "model.heads=2", "model.context=16", "data.eval_batch_size=512",
        "trainer.steps=10", "trainer.eval_batches=2", "threads=1", "device=cpu"]  # fmt: skip
CNN = ["model=cnn", "model.width=4", "norm=batchnorm", "data=digits", "trainer.steps=25", "threads=1", "device=cpu"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, an empty folder for temporary files, and a terminal that wraps nothing."""
    for name in ("here", "scratch"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path / "here"


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, str]]:
    """What a dry run prints, and the table in it; it leaves everything as it was."""
    before = files(Path.cwd().parent)
    assert main(["train", *words, "--dry-run"]) == 0
    assert files(Path.cwd().parent) == before
    said = capsys.readouterr().out
    pairs = (re.split(r"  +", line.strip(), maxsplit=1) for line in said.splitlines())
    return said, {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def files(folder: Path) -> dict[Path, bytes]:
    """Everything in a folder, but for an empty one that torch makes for itself."""
    found = {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
    return {path: content for path, content in found.items() if not path.name.startswith("torchinductor_")}


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


@pytest.mark.parametrize(
    ("words", "evaluated"),
    [([*TINY, "trainer.ema=0.9", "trainer.accumulate=2"], range(1, 11)), (CNN, [*range(3, 25, 3), 25])],
)
def test_it_says_what_the_run_then_takes(
    words: list[str], evaluated: Sequence[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the evaluations there are about ten, whatever the run's length."""
    said, table = dry(capsys, *words)
    assert main(["train", *words, "quiet=true"]) == 0
    (run,) = Path("outputs/train").iterdir()
    total = json.loads((run / "summary.json").read_text())["ledger"]["parameters"]["total"]
    assert f"run directory: {run}" in said and f"({total:,} parameters)" in said
    assert numbers(table["disk, checkpoints"])[0] == pytest.approx(
        (run / "checkpoint.pt").stat().st_size / 1e3, rel=0.1
    )
    size, unit = table["memory, peak of a step"].split()[:2]
    assert float(size) * {"MB": 1, "GB": 1_000}[unit] > 100  # torch alone
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/val" in line] == [*evaluated]
    assert numbers(table["time of an evaluation"])[1] == len(evaluated) - 1


@pytest.mark.slow
def test_what_is_there_already_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *TINY, "quiet=true"]) == 0
    (run,) = Path("outputs/train").iterdir()
    assert f"{run} has finished already: rerun=true makes it again" in dry(capsys, *TINY)[0]
    assert "going on" not in dry(capsys, *TINY, "rerun=true")[0]
    assert "going on from step 10" in dry(capsys, f"extend={run}", "trainer.steps=20")[0]
    (run / "summary.json").unlink()
    (run / "status.json").write_text(json.dumps({"status": "interrupted", "step": 7, "steps": 10}))
    with open(run / "checkpoint.pt", "wb") as file:
        write({"step": 5}, file)
    said, table = dry(capsys, *TINY, "trainer.eval_every=2", "trainer.keep_checkpoint=best", "schedule.warmup=10")
    assert table["state"] == "new" and table["disk, checkpoints"].endswith(" of the best weights")
    assert "the run ends within its warm-up of 10 steps" in said
    assert "going on" not in said and numbers(table["time of an evaluation"])[1] == 4
    said, table = dry(capsys, *TINY)
    assert "going on from step 5" in said and table["state"] == "interrupted"
    assert dry(capsys, *TINY, "trainer.keep_checkpoint=none")[1]["disk, checkpoints"].endswith(", none stays")


def test_a_run_that_diverges_at_once_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, "norm=none", "optim=sgd", "optim.lr=1000", "trainer.grad_clip=0", "schedule.warmup=0"]
    assert re.search(r"training diverges at step \d+: not finite: ", dry(capsys, *words)[0])


@pytest.mark.parametrize("words", [["norm=rmsnrm"], ["model.heads=3"], ["extend=nowhere"]])
def test_it_refuses_what_train_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["train", *words, "--dry-run"], capsys) == refused(["train", *words], capsys)


def test_the_time_by_hand() -> None:
    def seconds(every: int, histograms: int, step_ms: float | None, steps: int) -> float:
        probing = SimpleNamespace(every=every, histograms_every=histograms)
        loop: Any = SimpleNamespace(compile_seconds=5, eval_every=10, probing=probing)
        times = {"probed_ms": 110, "evaluation": 2, "last_evaluation": 7}
        return Estimate(loop, peak=None, step_ms=step_ms, measured=20, checkpoint=1, **times).seconds(steps)

    # 5 probed steps (1, 15, 20, 30, 40) of 40; evaluations at 10, 20, 30, and the last one
    assert seconds(20, 15, 10, 40) == pytest.approx(5 + (35 * 10 + 5 * 110) / 1e3 + 3 * 2 + 7)
    assert seconds(1, 0, None, 10) == pytest.approx(5 + 1.1 + 7)


class TimedLoop:
    """A loop in a time of its own, in which a step takes as long as the test says."""

    device = torch.device("cpu")
    steps, graph = 1000, None
    model = SimpleNamespace(train=lambda: None)
    stepper = SimpleNamespace(grad_norm=torch.zeros(()))

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.step = 0
        self.clock = Clock(self.device)

    def perf_counter(self) -> float:
        return self.now

    def train_step(self) -> None:
        self.clock.start()
        self.now += self.seconds
        self.step += 1
        self.clock.stop()

    def evaluations(self, last: bool) -> Iterator[SimpleNamespace]:
        batch = SimpleNamespace(targets=torch.zeros(2))
        yield SimpleNamespace(batches=[batch], _replace=lambda batches: batches)

    def evaluate_one(self, evaluation: object) -> None:
        self.now += 1

    def state(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("seconds", "taken", "measured"),
    [
        (0.01, 25, 20),  # five of which warm up
        (0.11, 14, 9),  # longer than 1.5 s
        (0.2, 10, 5),
        (0.3, 10, 5),
        (0.8, 10, 7),  # after 2 s none warms up any more
        (5.0, 2, 1),  # the first has taken more than 2 s, and with the second there are 8
    ],
)
def test_long_steps_are_few(
    seconds: float, taken: int, measured: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten at the least, unless they take more than eight seconds."""
    loop: Any = TimedLoop(seconds)
    for module in ("clock", "estimate"):
        monkeypatch.setattr(f"normbench.training.{module}.time", loop)
    found = estimate(loop, tmp_path)
    probed = 2  # the first and the last
    evaluation = 1.0  # second
    assert loop.now == pytest.approx((taken + probed) * seconds + evaluation)
    assert found.measured == measured and found.step_ms == pytest.approx(1e3 * seconds)


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux forgets the peak so far")
def test_the_peak_is_that_of_what_came_last() -> None:
    """In a process of its own: one that has run other tests may hold free memory, which nothing needs to ask for."""
    code = """
from torch import device
from normbench.training.clock import forget_peak, peak_memory
for size in (300_000_000, 1):
    forget_peak(device("cpu"))
    assert len(b"x" * size) == size
    print(peak_memory(device("cpu")))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(found[0]) - int(found[1]) > 250_000_000


def test_what_a_killed_dry_run_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of one that is at work."""
    use = "with make_dry_folder() as folder: print(folder, flush=True); input()"
    code = f"from normbench.scratch import make_dry_folder\n{use}"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    command = [sys.executable, "-c", code]
    begun = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    killed, at_work = (Path(str(one.stdout and one.stdout.readline().strip())) for one in begun)
    begun[0].kill()
    begun[0].communicate()
    assert killed.is_dir()
    with make_dry_folder() as folder:
        assert [*sorted((tmp_path / "scratch").iterdir())] == sorted([at_work, folder])
    begun[1].communicate("\n")
    assert begun[1].returncode == 0
    assert [*(tmp_path / "scratch").iterdir()] == []


@pytest.mark.parametrize("case", ["pipe", "link", "somebody else's"])
def test_a_mark_that_is_not_ours_is_left_alone(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe would be waited for without end."""
    mark = tmp_path / "scratch" / "normbench-theirs" / MARK
    mark.parent.mkdir()
    if case == "pipe":
        os.mkfifo(mark)
    elif case == "link":
        (tmp_path / "file").touch()
        mark.symlink_to(tmp_path / "file")
    else:
        mark.touch()
        own = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
    clear_all()
    assert mark.is_symlink() or mark.exists()
