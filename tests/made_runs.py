"""Run directories made without training: what `normbench train` would have left, with results that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from normbench.rundir import fingerprint

FILES = Path(__file__).parent / "made_run"  # a run of layernorm, whose files the others change
IMAGES = {"name": "digits", "train_images": 1437, "val_images": 360, "image_shape": [1, 8, 8]}


def make_run(
    folder: Path,
    *,
    norm: str = "layernorm",
    placement: str = "pre",
    seed: int = 0,
    final: float = 2.0,
    first: float = 4.5,
    kind: str = "language_model",
    lr: float = 1e-3,
    steps: int = 100,
    log_every: int = 10,
    eval_every: int = 20,
    step_ms: float = 10.0,
    status: str = "finished",
    message: str = "",
    test: bool = False,
    accuracy: float | None = None,
    settings: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    ledger: Mapping[str, Any] | None = None,
    session: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    probed: int = 0,
    name: str | None = None,
) -> Path:
    """Make one run's directory below a folder.

    final, accuracy: the last validation loss (nats) and accuracy (share). test: whether there are test data, which
    give the same. settings: of the configuration, by dotted path. summary, ledger, session, data: what differs there.
    probed: probe at every so many steps, in four blocks. status: an unfinished one (`running`, `interrupted`) has no
    summary, and stops half-way as a `diverged`, `failed` or `out_of_memory` one does.
    """
    given = {"seed": seed, "trainer.steps": steps, "trainer.log_every": log_every, "trainer.eval_every": eval_every}
    given |= {"norm._target_": f"normbench.norms.{norm}", "placement._target_": f"normbench.placements.{placement}"}
    tree = configuration({**given, "optim.lr": lr, "data.name": described(kind)["name"], **(settings or {})})
    path = folder / (name or f"{norm}-{placement}-s{seed}-{fingerprint(tree)}")
    path.mkdir(parents=True)
    reached = steps if status == "finished" else steps // 2
    falling = losses(steps, first, final)
    lines = [*logged(falling, reached, log_every, eval_every, seed, step_ms, lr, accuracy, test)]
    lines += [probes(step) for step in range(probed, reached + 1, probed)] if probed else []
    lines.sort(key=lambda line: line["step"])
    (path / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {**described(kind), **(data or {})}
    environment, summed = (json.loads((FILES / file).read_text()) for file in ("environment.json", "summary.json"))
    choices = {**summed["choices"], "norm": norm, "placement": placement, "data": told["name"]}
    latest = environment["sessions"][0] | {"data": told, "choices": choices, "task": {"kind": kind}}
    write(path / "environment.json", {"sessions": [latest | dict(session or {})]})
    stands = {"status": status, "step": reached, "steps": steps, "message": message}
    write(path / "status.json", {**stands, "pid": 1, "host": "here", "heartbeat": 1.7e9})
    if status not in ("running", "interrupted"):
        final_values = {tag: value for line in lines for tag, value in line.items()}
        crossing = norm == "batchnorm"
        summed |= {"choices": choices, "seed": seed, "data": told, **stands}
        summed["metrics"] = {tag: final_values[tag] for tag in final_values if tag.startswith(("loss/", "accuracy/"))}
        summed["step_time"] = {"median_ms": step_ms, "p90_ms": 1.2 * step_ms, "n": reached}
        summed["norm_facts"]["crosses_samples"] = crossing
        summed["leak"] = "it takes statistics over time" if crossing and kind == "language_model" else None
        summed["ledger"] |= ledger or {}
        write(path / "summary.json", {**summed, **(summary or {})})
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


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def described(kind: str) -> dict[str, Any]:
    """Describe the data of a kind of task."""
    text: dict[str, Any] = json.loads((FILES / "summary.json").read_text())["data"]
    return text if kind == "language_model" else {**IMAGES, "kind": kind, "fingerprint": text["fingerprint"]}


def configuration(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.yaml with some settings, by dotted path."""
    tree: dict[str, Any] = yaml.safe_load((FILES / "config.yaml").read_text())
    for key, value in settings.items():
        *sections, last = key.split(".")
        target = tree
        for section in sections:
            target = target[section]
        target[last] = value
    return tree


def losses(steps: int, first: float, final: float) -> list[float]:
    """Return a loss for each step, which falls from the first to the final one."""
    bent = np.exp(-5 * np.arange(steps + 1) / steps)
    curve = final + (first - final) * (bent - bent[-1]) / (1 - bent[-1])
    return [*curve.tolist()[:-1], final]


def logged(
    curve: Sequence[float], reached: int, log_every: int, eval_every: int, seed: int, step_ms: float, lr: float,
    accuracy: float | None, test: bool,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Return the lines of training, with noise, and of evaluations; on test data at the end."""
    random, steps = np.random.default_rng(seed), len(curve) - 1
    for step in range(1, reached + 1):
        if step % log_every == 0 or step == 1:
            loss = curve[step] - 0.05 + 0.01 * random.standard_normal()
            line = {"step": step, "loss/train": loss, "optim/lr": lr, "grad/norm": 0.5 + 0.1 * random.random()}
            time = {"time/step_ms": step_ms * (1 + 0.02 * random.random())} if step > log_every else {}
            yield {**line, **time, "weight/norm": 90.0}
        if step % eval_every == 0 or step == steps:
            splits = ("val", "test") if test and step == steps else ("val",)
            found = {f"loss/{split}": curve[step] for split in splits}
            if accuracy is not None:
                found |= {f"accuracy/{split}": accuracy * step / steps for split in splits}
            yield {"step": step, **found}


def probes(step: int) -> dict[str, Any]:
    """Return a line of the probes."""
    line: dict[str, Any] = {"step": step}
    for block in range(4):
        site = f"block{block:02}.mlp"
        line |= {f"act/{site}/rms_in": 1.0 + block, f"act/{site}/rms_out": 1.0, f"grad/{site}/norm": 0.1 / (1 + block)}
        line |= {f"act/stream{block:02}/rms": 1.0 + block, f"norm/{site}/gamma_mean": 1.0 + step / 1e4}
    return line
