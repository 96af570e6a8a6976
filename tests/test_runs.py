"""Whole runs through the command line: what they reach, and that probes and compilation leave no trace."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from run_records import read_json
from support import EXPERIMENTS, WHOLE, refused, write_few_pairs

from normbench.cli import main
from normbench.config.compose import read as parse
from normbench.data import pydocs
from normbench.errors import UsageError
from normbench.runs.plan import prepare
from normbench.runs.summary import last_good_step
from normbench.training import loop as training_loop
from normbench.training.checkpoint import read

TINY = ["model.depth=2", "model.width=16", "model.heads=2", "model.context=16", "trainer.eval_batches=1",
        "threads=1", "device=cpu", "quiet=true"]  # fmt: skip


def train(folder: Path, *words: str) -> Path:
    """Run `normbench train` in this process; returns the run directory."""
    with chdir(folder):
        assert main(["train", *words]) == 0
    return newest_run(folder)


def newest_run(folder: Path) -> Path:
    return max(folder.glob("outputs/*/*/status.json"), key=lambda path: path.stat().st_mtime_ns).parent


def in_a_process(folder: Path, *words: str) -> Path:
    """Run `normbench train` as a person would; returns the run directory."""
    command = [sys.executable, "-m", "normbench", "train", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return newest_run(folder)


def summary_of(run: Path) -> dict[str, Any]:
    return read_json(run / "summary.json")


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss/train"]) for line in metrics_of(run) if "loss/train" in line]


@pytest.mark.slow
def test_probes_change_no_bit_of_a_run(tmp_path: Path) -> None:
    words = [*TINY, "norm=batchnorm", "placement=sandwich", "model.dropout=0.2", "trainer.steps=9"]
    words += ["trainer.log_every=1"]
    often = ["probes=full", "probes.every=3", "probes.histograms_every=4"]
    runs = [train(tmp_path, *words, *more, f"name={n}") for n, more in enumerate((["probes=off"], [], often))]
    states = [read(run / "checkpoint.pt") for run in runs]
    for run, state in zip(runs, states, strict=True):
        assert losses(run) == losses(runs[0])
        assert state["model"].keys() == states[0]["model"].keys()
        assert all(torch.equal(state["model"][key], value) for key, value in states[0]["model"].items())
    silent, probed = ({tag.split("/")[0] for line in metrics_of(run) for tag in line} for run in (runs[0], runs[-1]))
    assert {"act", "grad", "norm"} <= probed and "act" not in silent


@pytest.mark.slow
def test_batches_are_paired_across_norms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every norm and placement sees the same batches in the same order."""
    from normbench.data.text import Text

    seen: list[list[torch.Tensor]] = []
    original = Text.train_batch

    def spy(data: Text, step: int) -> Any:
        batch = original(data, step)
        seen[-1].append(batch.inputs.clone())
        return batch

    monkeypatch.setattr(Text, "train_batch", spy)
    for norm, placement in (("layernorm", "pre"), ("none", "parallel"), ("batchnorm", "deep")):
        seen.append([])
        train(tmp_path, *TINY, f"norm={norm}", f"placement={placement}", "trainer.steps=5")
    assert len(seen[0]) >= 5
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


@pytest.mark.slow
def test_an_equal_run_with_other_threads_is_named_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "model=mlp", "model.width=8", "trainer.steps=2", "device=cpu"]
    told = []
    for more in (["threads=2"], ["threads=1"], ["threads=1"], ["threads=1", "seed=1"]):
        assert main([*words, *more]) == 0
        told.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")])
    (first,) = [
        path for path in tmp_path.glob("outputs/train/*-s0-*") if "threads=2" in (path / "environment.json").read_text()
    ]
    note = f"note: {first.relative_to(tmp_path)} is this run with threads=2, which shows it; here it is made again"
    assert told == [[], [note], [], []]
    assert main(["sweep", *words[1:], "name=train", "threads=3", "seed=0,1", "sweep.report=false"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert line.endswith("; here it is made again; and so for 1 more")
    for path in first.parent.glob("*/environment.json"):
        path.unlink()
    assert main([*words, "threads=4"]) == 0  # of which nobody knows now


def test_golden_curve(tmp_path: Path) -> None:
    """A loss curve that an earlier version gave: a change of it must be meant. (digits are the same everywhere.)"""
    words = ["model=mlp", "model.width=32", "data=digits", "norm=layernorm", "threads=1", "device=cpu", "quiet=true"]
    run = train(tmp_path, *words, "trainer.steps=60", "trainer.log_every=20")
    assert [step for step, _ in losses(run)] == [1, 20, 40, 60]
    assert [loss for _, loss in losses(run)] == pytest.approx(GOLDEN, rel=1e-4)


GOLDEN = [2.7287108898, 2.1103190372, 1.2969514847, 0.9898358345]


QUICK = ("smoke", "norms_cnn")  # of the experiments
WIDE = ("nanogpt_cpu", "ladder", "lr_sensitivity", "norms_lm", "warmup")  # of which the last evaluation takes long


@pytest.mark.data
@pytest.mark.parametrize(
    "experiment", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS]
)
def test_every_experiment_runs_in_miniature(tmp_path: Path, experiment: str) -> None:
    words = ["trainer.steps=3", "trainer.eval_batches=1", "threads=1", "quiet=true"]
    if experiment in WIDE:
        words.append("model.width=32")
    if experiment == "rnnsearch_norms":
        write_few_pairs(tmp_path)  # all sentences of a split are translated
        words += [f"data.root={tmp_path}", "data.batch_size=4", "model.width=16", "model.embedding=16"]
    run = train(tmp_path, f"experiment={experiment}", *words)
    assert summary_of(run)["status"] == "finished"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler")
def test_compiled_runs_have_the_same_probes_and_no_trace_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SGD: Adam's first step goes ±lr along gradients that are 0 but for rounding.

    By the compiler's graphs, forward and backward; with the whole matrix by machine code, for which g++ takes most of
    the time: test_norm_kernels and test_study_bench have it made of norms.
    """
    asked = []

    def compiled_so(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        asked.append(options)
        return torch.compile(function, backend="aot_eager")

    if not WHOLE:
        monkeypatch.setattr(training_loop, "compiled", compiled_so)
    words = [*TINY, "norm=batchnorm", "placement=pre", "model.dropout=0.1", "trainer.steps=12", "trainer.log_every=1"]
    words += ["probes=full", "probes.every=5", "probes.histograms_every=0", "trainer.accumulate=2", "optim=sgd"]
    words += ["model.depth=1"]
    eager = train(tmp_path, *words)
    torch.compiler.reset()
    compiled = train(tmp_path, *words, "trainer.compile=true")
    torch.compiler.reset()
    silent = train(tmp_path, *words, "trainer.compile=true", "probes=off")
    assert WHOLE or len(asked) == 2
    assert all(options["fallback_random"] for options in asked)  # else dropout masks are others than eager mode's
    assert losses(compiled) == losses(silent)
    assert [loss for _, loss in losses(compiled)] == pytest.approx([loss for _, loss in losses(eager)], rel=1e-4)
    a, b = read(compiled / "checkpoint.pt")["model"], read(silent / "checkpoint.pt")["model"]
    assert all(torch.equal(value, b[key]) for key, value in a.items())
    probed = [[line for line in metrics_of(run) if any("act/" in tag for tag in line)] for run in (eager, compiled)]
    first, again = probed[0][0], probed[1][0]  # the same weights, batch and masks at the first step
    assert first["step"] == again["step"] == 1 and first == pytest.approx(again, rel=1e-4, abs=1e-6)


def test_replaying_a_step_whole_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["train", "device=cpu", "trainer.compile=cudagraphs", f"outputs={tmp_path}"], capsys)
    assert said.startswith("trainer.compile=cudagraphs with device=cpu is refused: a CUDA GPU alone ")
    assert refused(["train", "trainer.compile=graphs"], capsys).startswith("trainer.compile=graphs is not allowed: ")


@pytest.mark.parametrize("how", ["cudagraphs", "graph"])
def test_steps_of_many_lengths_are_not_replayed_whole(how: str) -> None:
    """A graph would be captured anew for each length of a padded batch."""
    config = parse(["data=banking77", f"trainer.compile={how}", "trainer.steps=1", "optim.lr=1e-3"])
    with pytest.raises(UsageError, match=f"^trainer.compile={how} with data=banking77 is refused: "):
        prepare(config, device=torch.device("cuda"))


# With what one graph of a step does not go, and what is said of it.
NOT_RECORDED = {
    "trainer.accumulate=2": "trainer.compile=graph with trainer.accumulate=2 is refused: ",
    "trainer.precision=fp16": "trainer.compile=graph with trainer.precision=fp16 is refused: ",
    "optim._target_=torch.optim.RAdam": "trainer.compile=graph with optim._target_=torch.optim.RAdam is refused: ",
    "+optim.foreach=true": "trainer.compile=graph with optim=adamw is refused: ",
    "trainer.shard=true": "trainer.shard=true with trainer.compile=graph is refused: ",
    "trainer.recompute=true": "trainer.recompute=true with trainer.compile=graph is refused: ",
}


@pytest.mark.parametrize("word", NOT_RECORDED)
def test_what_one_graph_of_a_step_cannot_hold_is_refused(word: str) -> None:
    words = ["trainer.compile=graph", "trainer.steps=1", "optim.lr=1e-3", word]
    with pytest.raises(UsageError) as refusal:
        prepare(parse(words), device=torch.device("cuda"))
    assert NOT_RECORDED[word] in str(refusal.value)


def test_one_graph_of_a_step_is_refused_to_several_processes_and_to_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(["trainer.compile=graph", "trainer.steps=1", "optim.lr=1e-3"])
    with pytest.raises(UsageError, match="compile=graph with device=cpu is refused: a CUDA GPU alone "):
        prepare(config, device=torch.device("cpu"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="compile=graph with 2 processes is refused: "):
        prepare(config, device=torch.device("cuda"))


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_steps_that_are_replayed_whole_are_the_compiled_steps_and_faster(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    words = ["device=cuda", "model.dropout=0.1", "trainer.steps=60", "trainer.log_every=1", "trainer.eval_every=60"]
    runs = [in_a_process(tmp_path, *words, f"trainer.compile={how}") for how in ("true", "cudagraphs")]
    plain, replayed = ([loss for _, loss in losses(run)] for run in runs)
    assert replayed == pytest.approx(plain, rel=1e-4)
    times = [summary_of(run)["step_time"]["median_ms"] for run in runs]
    tell(f"a step replayed whole takes {times[1] / times[0]:.2f} of a compiled step's time")
    assert times[1] < times[0]


FIRST_COMMAND = ["norm=rmsnorm", "placement=pre", "trainer.steps=300", "trainer.eval_every=300"]
SMALLER = [] if WHOLE else ["model.depth=1", "model.width=64", "optim.lr=1e-2"]  # takes a seventh of the time


@pytest.mark.slow
def test_the_readme_s_first_command_beats_a_bigram_model(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """Already in a fraction of its steps; by a smaller model at a higher rate, except with the whole matrix.

    The bigram model is of the bytes: add-one smoothed counts of what follows which.
    """
    data = pydocs(context=64, batch_size=12, eval_batch_size=64, seed=0)
    counts = torch.ones(256, 256, dtype=torch.float64)
    batches = {split: list(data.eval_batches(split)) for split in ("train", "val")}
    for batch in batches["train"]:
        pairs = 256 * batch.inputs.flatten() + batch.targets.flatten()
        counts += torch.bincount(pairs, minlength=256 * 256).view(256, 256)
    log_p = (counts / counts.sum(1, keepdim=True)).log()
    reference = -torch.cat([log_p[batch.inputs, batch.targets].flatten() for batch in batches["val"]]).mean().item()
    assert 2.0 < reference < 3.0
    found = summary_of(train(tmp_path, *FIRST_COMMAND, *SMALLER))
    assert found["status"] == "finished"
    assert found["metrics"]["loss/val"] < reference - 0.1
    model = "first command" if WHOLE else "first command with a smaller model"
    tell(f"{model}: validation loss {found['metrics']['loss/val']:.4f}, bigram model {reference:.4f}")


# ---- a learning rate that grows until a run diverges


def test_a_ramp_ends_with_the_largest_rate_that_it_bore(tmp_path: Path) -> None:
    words = [*TINY, "norm=none", "optim=sgd", "optim.lr=1", "schedule=ramp", "probes=off", "trainer.grad_clip=0"]
    run = train(tmp_path, *words, "schedule.final=1e9", "trainer.steps=60", "trainer.log_every=1")
    summary = summary_of(run)
    ramp = summary["ramp"]
    assert (summary["status"], ramp["bore_all"], ramp["diverged"]) == ("diverged", False, True)
    rates = {line["step"]: line["optim/lr"] for line in metrics_of(run) if "optim/lr" in line}
    assert ramp["last_step"] < summary["step"]
    assert ramp["largest_rate"] == summary["metrics"]["rate/largest"] == pytest.approx(rates[ramp["last_step"]])
    gentle = summary_of(train(tmp_path, *words, "schedule.start=1e-6", "schedule.final=1e-5", "trainer.steps=5"))
    assert (gentle["status"], gentle["ramp"]["bore_all"], gentle["ramp"]["last_step"]) == ("finished", True, 5)
    assert gentle["metrics"]["rate/largest"] == pytest.approx(1e-5)
    assert "ramp" not in summary_of(train(tmp_path, *words[:-3], "trainer.steps=2"))


def test_a_run_bears_a_rate_while_it_keeps_half_of_what_it_learned() -> None:
    fell = {1: 5.0, 10: 3.0, 20: 1.0, 30: 2.4, 40: 1.9, 50: 2.1, 60: 9.0}
    assert last_good_step(fell, constant=3.0, factor=3.0) == 40, "2 is the middle between 3 and 1"
    assert last_good_step(fell, constant=math.inf, factor=3.0) == 50, "3 is the middle between 5 and 1"
    assert last_good_step(fell | {60: 1.5}, constant=3.0, factor=3.0) == 60
    assert last_good_step({1: 5.0, 10: 14.0, 20: 16.0}, constant=3.0, factor=3.0) == 10, "it has learned nothing"
    assert last_good_step({}, constant=3.0, factor=3.0) == 0
