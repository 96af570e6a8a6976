"""Run directories made without training: what `normbench train` would have left, with results that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from normbench.rundir import fingerprint

CROSSING = {"batchnorm"}
KINDS = {
    "language_model": {"name": "pydocs", "vocabulary_size": 96, "context": 64, "train_tokens": 100_000},
    "image_classification": {"name": "digits", "train_images": 1437, "val_images": 360, "image_shape": [1, 8, 8]},
}


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
    """One run's directory below a folder.

    final, accuracy: the last validation loss (nats) and accuracy (share). test: whether there are test data, which
    give the same. settings: of the configuration, by dotted path. summary, ledger, session, data: what differs there.
    probed: probe at every so many steps, in four blocks. status: an unfinished one (`running`, `interrupted`) has no
    summary, and stops half-way as a `diverged`, `failed` or `out_of_memory` one does.
    """
    tree = configuration(norm, placement, seed, lr, steps, log_every, eval_every, kind, settings or {})
    path = folder / (name or f"{norm}-{placement}-s{seed}-{fingerprint(tree)}")
    path.mkdir(parents=True)
    reached = steps if status == "finished" else steps // 2
    described = {"kind": kind, **KINDS[kind], "fingerprint": "f" * 64, "steps_per_epoch": 50, **(data or {})}
    choices = {"norm": norm, "placement": placement, "model": "nano", "data": str(described["name"])}
    choices |= {"optim": "adamw", "schedule": "cosine", "init": "xavier", "experiment": "None", "probes": "light"}
    lines = list(metrics(steps, reached, log_every, eval_every, first, final, seed, step_ms, lr, accuracy, test))
    if probed:
        lines += [probes(step) for step in range(probed, reached + 1, probed)]
        lines.sort(key=lambda line: line["step"])
    (path / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write(path / "environment.json", {"sessions": [{**environment(described, choices), **(session or {})}]})
    stands = {"status": status, "step": reached, "steps": steps, "message": message}
    write(path / "status.json", {**stands, "pid": 1, "host": "here", "heartbeat": 1.7e9})
    if status not in ("running", "interrupted"):
        made = summarized(
            norm, seed, choices, described, lines, step_ms, reached, {**ledger_of(norm), **(ledger or {})}
        )
        write(path / "summary.json", {**made, **stands, **(summary or {})})
    return path


def make_study(
    folder: Path, finals: Mapping[str, Sequence[float]], *, over: str = "norm", **everywhere: Any
) -> list[Path]:
    """A run for each arm and seed: finals has each arm's last losses by seed, such as {"rmsnorm": [2.1, 2.0, 2.2]}."""
    return [
        make_run(folder, **{over: arm}, seed=seed, final=final, **everywhere)
        for arm, losses in finals.items()
        for seed, final in enumerate(losses)
    ]


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


# ---- the files


def configuration(
    norm: str,
    placement: str,
    seed: int,
    lr: float,
    steps: int,
    log_every: int,
    eval_every: int,
    kind: str,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """config.yaml."""
    tree: dict[str, Any] = {
        "name": "made", "outputs": "outputs", "seed": seed, "device": "auto", "threads": 1, "quiet": False,
        "rerun": False, "extend": None,
        "trainer": {"steps": steps, "epochs": None, "grad_clip": 1.0, "log_every": log_every,
                    "eval_every": eval_every, "eval_batches": 20, "precision": "fp32", "decay_norms": False},
        "norm": {"_target_": f"normbench.norms.{norm}", "_partial_": True, "eps": 1e-5},
        "placement": {"_target_": f"normbench.placements.{placement}", "_partial_": True},
        "optim": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": lr, "betas": [0.9, 0.99]},
        "schedule": {"_target_": "normbench.training.schedules.Cosine", "warmup": 0.05, "final": 0.1},
        "init": {"_target_": "normbench.models.Xavier", "residual_scale": True},
        "probes": {"every": 50, "activations": True},
        "data": {"name": KINDS[kind]["name"], "_target_": "normbench.data.made", "batch_size": 16},
        "model": {"_target_": "normbench.models.GPT", "depth": 4, "width": 128},
    }  # fmt: skip
    for key, value in settings.items():
        *sections, last = key.split(".")
        target = tree
        for section in sections:
            target = target[section]
        target[last] = value
    return tree


def metrics(
    steps: int,
    reached: int,
    log_every: int,
    eval_every: int,
    first: float,
    final: float,
    seed: int,
    step_ms: float,
    lr: float,
    accuracy: float | None,
    test: bool,
) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl: losses that fall from the first to the final one, the training loss with noise."""
    random = np.random.default_rng(seed)
    bent = np.exp(-5 * np.arange(steps + 1) / steps)
    curve = final + (first - final) * (bent - bent[-1]) / (1 - bent[-1])
    curve[-1] = final
    for step in range(1, reached + 1):
        if step % log_every == 0 or step == 1:
            loss = curve[step] - 0.05 + 0.01 * random.standard_normal()
            line = {"step": step, "loss/train": loss, "optim/lr": lr, "grad/norm": 0.5 + 0.1 * random.random()}
            line["weight/norm"] = 90.0
            if step > log_every:
                line |= {
                    "time/step_ms": step_ms * (1 + 0.02 * random.random()),
                    "time/tokens_per_second": 1e6 / step_ms,
                }
            yield line
        if step % eval_every == 0 or step == steps:
            splits = ("val", "test") if test and step == steps else ("val",)
            line = {"step": step} | {f"loss/{split}": float(curve[step]) for split in splits}
            if accuracy is not None:
                line |= {f"accuracy/{split}": accuracy * step / steps for split in splits}
            yield line


def probes(step: int) -> dict[str, Any]:
    """A line of the probes."""
    line: dict[str, Any] = {"step": step}
    for block in range(4):
        site = f"block{block:02}.mlp"
        line |= {f"act/{site}/rms_in": 1.0 + block, f"act/{site}/rms_out": 1.0, f"grad/{site}/norm": 0.1 / (1 + block)}
        line |= {f"act/stream{block:02}/rms": 1.0 + block, f"norm/{site}/gamma_mean": 1.0 + step / 1e4}
    return line


def environment(described: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """One of environment.json's sessions."""
    return {
        "time": "2026-01-01T00:00:00+00:00",
        "command": "normbench train",
        "commit": "0" * 40,
        "machine": "x86_64",
        "system": "Linux",
        "cpu": "a processor",
        "cores": 2,
        "device": "cpu",
        "accelerator": None,
        "threads": 1,
        "python": "3.11.7",
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
        "data": dict(described),
        "choices": dict(choices),
        "task": {"kind": described["kind"], "num_classes": 96, "vocabulary_size": 96, "context": 64},
    }


def ledger_of(norm: str) -> dict[str, Any]:
    """The ledger in summary.json."""
    return {
        "norms": 9,
        "eps": 1e-5,
        "eps_place": "inside the root",
        "implementation": "eager",
        "affine_parameters": "weight+bias",
        "norm_parameters_decayed": False,
        "parameters": {"in_norms": 2304, "outside_norms": 800_000, "total": 802_304},
        "init": "xavier",
        "branch_gain": 1.0,
        "residual_gain": 1.0,
        "precision": "fp32",
        "batches_a_step": 1,
        "compiled": False,
        "threads": 1,
        "device": "cpu",
    }


def summarized(
    norm: str,
    seed: int,
    choices: Mapping[str, str],
    described: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    step_ms: float,
    reached: int,
    ledger: Mapping[str, Any],
) -> dict[str, Any]:
    """summary.json without how the run ended."""
    latest = {tag: value for line in lines for tag, value in line.items()}
    return {
        "choices": dict(choices),
        "seed": seed,
        "metrics": {tag: value for tag, value in latest.items() if tag.split("/")[0] in ("loss", "accuracy")},
        "step_time": {"median_ms": step_ms, "p90_ms": 1.2 * step_ms, "n": reached},
        "peak_memory_bytes": 300_000_000,
        "data": dict(described),
        "norm_facts": {
            "statistics_over": "features",
            "crosses_samples": norm in CROSSING,
            "sees_future": "training" if norm in CROSSING else "never",
        },
        "leak": "it takes statistics over time" if norm in CROSSING and described["kind"] == "language_model" else None,
        "padding": None,
        "ledger": dict(ledger),
    }
