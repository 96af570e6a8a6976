"""What is left of a run for analysis and for the person: summary.json, and the closing tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from normbench.ledger import make_ledger
from normbench.memory import peak
from normbench.plan import Plan
from normbench.recording import Sink
from normbench.rundir import RunDirectory
from normbench.training.loop import Loop
from normbench.training.precision import Precision
from normbench.types import Model

RESULTS = ("loss", "accuracy", "perplexity")

# What the closing table shows where there is something to show.
NOTEWORTHY = {
    "compile_seconds": "compile time, s",
    "skipped_steps": "steps left out (fp16)",
    "leak": "leak",
    "padding": "padding",
}


def leak(plan: Plan) -> str | None:
    """Return what the norm shows the model of its targets in training, if anything."""
    if plan.data.task.shown_by(plan.facts) == "training":
        return (
            f"{plan.choices.groups['norm']} takes statistics over time, so in training each position is "
            "shown its future; the training loss is not comparable, and the summary is marked"
        )
    return None


def padding(plan: Plan) -> str | None:
    """What padded texts do to the norm's statistics, if anything."""
    if plan.data.pads and plan.facts.sees_future != "never":
        return (
            f"{plan.choices.groups['norm']} takes statistics over time, and counts the padding of shorter "
            "texts in them; the summary is marked"
        )
    return None


def summarize(
    plan: Plan, loop: Loop, model: Model, norms: Mapping[str, nn.Module], precision: Precision
) -> dict[str, Any]:
    """What analysis reads of the whole run, less how it ended (status, step, message)."""
    return {
        "steps": plan.steps,
        "choices": dict(plan.choices.groups),
        "seed": plan.config.seed,
        "metrics": {
            tag: value if math.isfinite(value) else None  # JSON has no other word for it
            for tag, value in loop.latest.items()
            if tag.split("/")[0] in RESULTS
        },
        "step_time": loop.clock.summary(),
        "peak_memory_bytes": peak(plan.device),  # since this process took the run up
        "compile_seconds": loop.compile_seconds or None,
        "skipped_steps": int(precision.skipped),
        "data": plan.data.describe(),
        "norm_facts": vars(plan.facts),
        "leak": leak(plan),
        "padding": padding(plan),
        "extends": plan.parent.path.name if plan.parent else None,
        "ledger": make_ledger(model, norms, plan.tree, plan.device),
    }


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration by dotted paths; lists as text."""
    result: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return result


def show_summary(directory: RunDirectory, summary: Mapping[str, Any], console: Sink) -> None:
    """The closing tables, and how to see more."""
    status = summary["status"] + (f" at step {summary['step']}: {summary['message']}" if summary["message"] else "")
    rows = [("status", status), *sorted(summary["metrics"].items())]
    rows += [(f"step time, {key}", value) for key, value in summary["step_time"].items()]
    rows += [(words, summary[key]) for key, words in NOTEWORTHY.items() if summary[key]]
    console.summary(directory.path.name, rows)
    console.summary("ledger", flat(summary["ledger"]).items())
    console.message(f"look at the curves: normbench tensorboard {directory.path.parent}")
