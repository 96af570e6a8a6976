"""Run directories made without training: what `normbench train` would have left, with results that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from normbench.record.directory import RunDirectory, fingerprint

if TYPE_CHECKING:  # imports pandas, scipy and matplotlib
    from normbench.evidence.study import RecordedStudy
    from normbench.show.report import Report

FILES = Path(__file__).parent / "made_run"  # a run of layernorm, whose files the others change
IMAGES = {"kind": "image_classification", "name": "digits", "train_images": 1437, "fingerprint": 64 * "f"}


@cache
def config_of_made_runs() -> DictConfig:
    """Return the configuration that the others change, which takes long to read."""
    tree = OmegaConf.load(FILES / "config.yaml")
    assert isinstance(tree, DictConfig)
    return tree


def end_run(directory: RunDirectory, status: str, step: int, loss: float) -> None:
    """Give a directory a summary and nothing else."""
    directory.path.mkdir(parents=True, exist_ok=True)
    summary = json.loads((FILES / "summary.json").read_text())
    write(directory.summary, {**summary, "status": status, "step": step, "metrics": {"loss/val": loss}})


def make_run(
    folder: Path,
    *,
    norm: str = "layernorm",
    placement: str = "pre",
    seed: int = 0,
    final: float = 2.0,
    accuracy: float | None = None,
    bleu: float | None = None,
    lr: float = 1e-3,
    steps: int = 100,
    log_every: int = 10,
    eval_every: int = 20,
    step_ms: float = 10.0,
    status: str = "finished",
    settings: Mapping[str, Any] = {},
    summary: Mapping[str, Any] = {},
    ledger: Mapping[str, Any] = {},
    session: Mapping[str, Any] = {},
    data: Mapping[str, Any] = {},
    probed: int = 0,
    stream: float = 1.0,
    gradient: float = 0.1,
    name: str | None = None,
) -> Path:
    """Make one run's directory below a folder.

    final, accuracy: the last validation loss (nats) and accuracy (share), which only a classifier of images has.
    bleu: the last of the validation data, which only a translator has; data say its `kind`.
    settings: of the configuration, by dotted path. summary, ledger, session, data: what differs there. probed: probe
    at every so many steps, in four blocks. status: an unfinished one (`running`, `interrupted`) has no summary, and
    stops half-way as a `diverged`, `failed` or `out_of_memory` one does.
    """
    environment, summed = (json.loads((FILES / file).read_text()) for file in ("environment.json", "summary.json"))
    told = {**(summed["data"] if accuracy is None else IMAGES), **data}
    tree = deepcopy(config_of_made_runs())
    given = {"seed": seed, "trainer.steps": steps, "trainer.log_every": log_every, "trainer.eval_every": eval_every}
    given |= {"norm._target_": f"normbench.norms.{norm}", "placement._target_": f"normbench.placements.{placement}"}
    for key, value in {**given, "optim.lr": lr, "data.name": told["name"], **settings}.items():
        OmegaConf.update(tree, key, value)
    path = folder / (name or f"{norm}-{placement}-s{seed}-{fingerprint(OmegaConf.to_container(tree))}")
    path.mkdir(parents=True)
    OmegaConf.save(tree, path / "config.yaml")
    reached = steps if status == "finished" else steps // 2
    bent = np.exp(-5 * np.arange(steps + 1) / steps)
    curve = final + (4.5 - final) * (bent - bent[-1]) / (1 - bent[-1])
    lines = list(logged(curve.tolist(), reached, log_every, seed, step_ms, lr))
    for step in range(1, reached + 1):
        if step % eval_every == 0 or step == steps:
            share = {} if accuracy is None else {"accuracy/val": accuracy * step / steps}
            share |= {} if bleu is None else {"bleu/val": bleu * step / steps}
            lines.append({"step": step, "loss/val": float(curve[step]), **share})
    lines += [probes(step, stream, gradient) for step in range(probed, reached + 1, probed)] if probed else []
    lines.sort(key=lambda line: line["step"])
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    choices = {**summed["choices"], "norm": norm, "placement": placement, "data": told["name"]}
    latest = environment["sessions"][0] | {"data": told, "choices": choices, "task": {"kind": told["kind"]}}
    write(path / "environment.json", {"sessions": [latest | dict(session)]})
    stands = {"status": status, "step": reached, "steps": steps, "message": ""}
    write(path / "status.json", {**stands, "pid": 1, "host": "here", "heartbeat": 1.7e9})
    if status not in ("running", "interrupted"):
        crossing = norm == "batchnorm"
        values = {tag: value for line in lines for tag, value in line.items()}
        summed |= {"choices": choices, "seed": seed, "data": told, **stands}
        summed["metrics"] = {tag: values[tag] for tag in values if tag.startswith(("loss/", "accuracy/", "bleu/"))}
        summed["step_time"] = {"median_ms": step_ms, "p90_ms": 1.2 * step_ms, "n": reached}
        summed["norm_facts"]["crosses_samples"] = crossing
        summed["leak"] = "it takes statistics over time" if crossing and accuracy is None else None
        summed["ledger"] |= ledger
        write(path / "summary.json", {**summed, **summary})
    return path


def make_study(
    folder: Path, finals: Mapping[str, Sequence[float]], *, over: str = "norm", **everywhere: Any
) -> list[Path]:
    """Make a run for each arm and seed: finals has each arm's last losses by seed, as {"rmsnorm": [2.1, 2.0, 2.2]}."""
    return [
        make_run(folder, **{over: arm}, seed=seed, final=final, **everywhere)
        for arm, losses in finals.items()
        for seed, final in enumerate(losses)
    ]


def plan(folder: Path, *words: str) -> None:
    """Note the words of a sweep beside its runs, as it does."""
    (folder / ".sweep/plans").mkdir(parents=True, exist_ok=True)
    write(folder / f".sweep/plans/{fingerprint({'words': [*words]})}.json", {"words": words, "asked": [], "runs": []})


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def logged(
    curve: Sequence[float], reached: int, log_every: int, seed: int, step_ms: float, lr: float
) -> Iterator[dict[str, Any]]:
    """Return the lines of training, with noise."""
    random = np.random.default_rng(seed)
    for step in range(1, reached + 1):
        if step % log_every == 0 or step == 1:
            loss = curve[step] - 0.05 + 0.01 * random.standard_normal()
            line = {"step": step, "loss/train": loss, "optim/lr": lr, "grad/norm": 0.5 + 0.1 * random.random()}
            time = {"time/step_ms": step_ms * (1 + 0.02 * random.random())} if step > log_every else {}
            yield {**line, **time, "weight/norm": 90.0}


def probes(step: int, stream: float, gradient: float) -> dict[str, Any]:
    """Return a line of the probes. stream: its RMS at the first block. gradient: its norm there."""
    line: dict[str, Any] = {"step": step}
    for block in range(4):
        site = f"block{block:02}.mlp"
        line |= {f"act/{site}/rms_in": stream * (1 + block), f"act/{site}/rms_out": 1.0}
        line |= {f"grad/{site}/norm": gradient / (1 + block), f"act/stream{block:02}/rms": stream * (1 + block)}
        line |= {f"norm/{site}/gamma_mean": 1.0 + step / 1e4}
    return line


# ---- runs as analysis reads them, where all have one task


def read_study(folders: Sequence[Path]) -> RecordedStudy:
    from normbench.evidence.study import read_studies

    [study] = read_studies(folders)
    return study


def make_report(folders: Sequence[Path], missing: Mapping[str, str] | None = None, **request: Any) -> Report:
    from normbench.results.examine import Request
    from normbench.show.report import make_reports

    [report] = make_reports(folders, Request(**request), missing)
    return report


def seal(run: Path) -> None:
    """Let the digests of a run be those of its files, as whoever changes somebody's run would."""
    directory = RunDirectory(run)
    directory.write_summary(json.loads(directory.summary.read_text()))
