"""How a run ends: its summary, what follows it in the directory, and the tables that a person sees."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from normbench.config.trust import foreign_class
from normbench.record.console import show_table
from normbench.record.directory import Status
from normbench.record.files import read_json
from normbench.record.loggers import Scalar, finite
from normbench.record.tensorboard import RESULTS, event_files
from normbench.runs.ledger import make_ledger
from normbench.runs.notes import caveats
from normbench.runs.plan import Run
from normbench.settings import flat, key_of
from normbench.training.clock import peak_memory
from normbench.training.loop import Loop

NOTEWORTHY = ("compile_seconds", "skipped_steps", "leak", "padding")  # in the closing table, where there is any


def make_summary(
    run: Run, loop: Loop, norms: Mapping[str, nn.Module], status: Status, step: int, message: str
) -> dict[str, Any]:
    """Return what summary.json holds of a run that has ended as a result, which analysis reads."""
    results: dict[str, float] = {}
    for tag, value in loop.latest.items():
        kind = tag.partition("/")[0]
        if kind in RESULTS:
            results[tag] = value
    ledger = make_ledger(loop.model, norms, run.config.tree, run.device)
    return {
        "steps": run.steps,
        "choices": dict(run.config.choices.groups),
        "seed": run.config.closed.seed,
        "stack": run.stack,
        "metrics": finite(results),
        "step_time": loop.clock.summary(),
        "peak_memory_bytes": peak_memory(run.device, loop.graph is not None),  # since this process took the run up
        "compile_seconds": loop.compile_seconds or None,
        "skipped_steps": int(loop.precision.skipped),
        "data": run.data.describe(),
        "norm_facts": vars(run.facts),
        **caveats(run),
        "extends": run.parent.path.name if run.parent else None,
        "ledger": {**ledger, **loop.early.found()},
        "status": status,
        "step": step,
        "message": message,
    }


def settle(run: Run, summary: Mapping[str, Any]) -> None:
    """Write the final status, and delete checkpoints that are not kept.

    This follows the summary. The next command on the run does it again, in case a kill came between the two.
    """
    directory = run.directory
    status = read_json(directory.status) or {}
    if status.get("status") != summary["status"]:
        directory.write_status(summary["status"], summary["step"], summary["steps"], summary["message"])
    if run.config.closed.trainer.keep_checkpoint == "none":
        for path in (directory.checkpoint, directory.previous, directory.best):
            path.unlink(missing_ok=True)


def show_summary(run: Run, summary: Mapping[str, Any], before: Sequence[str] = ()) -> None:
    """Print the lines in `before`, the closing tables, and commands that show more; for a quiet run its directory."""
    directory = run.directory.path
    if run.config.closed.quiet:
        print(directory)
        return
    for line in before:
        print(line)
    show_table(directory.name, closing_rows(summary))
    show_table("ledger", flat(summary["ledger"]))
    if any(event_files(directory)):
        print(f"look at the curves: {shlex.join(['normbench', 'tensorboard', str(directory.parent)])}")
    if summary["status"] == "finished" and run.config.closed.trainer.keep_checkpoint != "none":
        command = ["normbench", "sample", str(directory)]
        if foreign_class(run.config.tree):
            command.append("--trust")
        print(f"see what it has learned: {shlex.join(command)}")
    if run.parent is None:
        print(f"compare it over seeds: {shlex.join(comparison_command(run))}")


def closing_rows(summary: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the rows of the closing table: how the run ended, its results, and its time."""
    status = summary["status"]
    if summary["message"]:
        status += f" at step {summary['step']}: {summary['message']}"
    rows: dict[str, Scalar] = {"status": status, **dict(sorted(summary["metrics"].items()))}
    data = summary["data"]
    constant = data.get("constant") or {}
    for tag, value in constant.items():  # what always giving the same answer reaches
        if tag in summary["metrics"]:
            rows[f"{tag}, constant guess"] = value
    if "bleu" in data:
        rows["bleu"] = f"beam {data['beam']}, {data['bleu']}"
    for key, value in summary["step_time"].items():
        if value is not None:
            rows[f"step time, {key}"] = value
    for name in NOTEWORTHY:
        if summary[name]:
            rows[name.replace("_", " ")] = summary[name]
    return rows


def comparison_command(run: Run) -> list[str]:
    """Return the command that makes a run with several seeds, and with another norm where it names only a norm."""
    words = []
    norm_words = []
    has_norm_settings = False
    for word in run.config.words:
        key = key_of(word)
        if key == "norm":
            norm_words.append(word)
        elif key not in ("seed", "name", "quiet", "rerun"):
            words.append(word)
            has_norm_settings = has_norm_settings or key.startswith("norm.")
    command = ["normbench", "sweep", *words]
    if has_norm_settings:  # which another norm may not have
        command += norm_words
    else:
        norm = run.config.choices.groups["norm"]
        other = "rmsnorm" if norm == "layernorm" else "layernorm"
        command.append(f"norm={norm},{other}")
    return [*command, "seed=0,1,2"]
