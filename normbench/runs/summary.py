"""How a run ends: its summary, what follows it in the directory, and the tables that a person sees."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from normbench.config.trust import foreign_class
from normbench.errors import RunFailure
from normbench.probes.probes import LOST_STEPS
from normbench.record.console import show_table
from normbench.record.directory import RunDirectory, Status
from normbench.record.files import read_json
from normbench.record.loggers import Scalar, finite
from normbench.record.metrics import logged_lines
from normbench.record.tensorboard import RESULTS, event_files
from normbench.runs.ledger import kept_norms_row, make_ledger
from normbench.runs.notices import caveats
from normbench.runs.plan import Run
from normbench.settings import key_of
from normbench.training.clock import peak_memory
from normbench.training.loop import Loop

NOTEWORTHY = (
    "compile_seconds",
    "skipped_steps",
    "share_of_norm_steps_lost",
    "leak",
    "padding",
)  # in the closing table, where there is any


def make_summary(
    run: Run, loop: Loop, norms: Mapping[str, nn.Module], status: Status, step: int, message: str
) -> dict[str, Any]:
    """Return what summary.json holds of a run that has ended as a result, which analysis reads."""
    results: dict[str, float] = {}
    for tag, value in loop.latest.items():
        kind = tag.partition("/")[0]
        if kind in RESULTS:
            results[tag] = value
    ramp = ramp_result(run, loop, step if status == "diverged" else None)
    if ramp and ramp["largest_rate"]:
        results["rate/largest"] = ramp["largest_rate"]
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
        **lost_steps(run, loop),
        "data": run.data.describe(),
        "norm_facts": vars(run.facts),
        **caveats(run),
        "extends": run.parent.path.name if run.parent else None,
        "ledger": {**ledger, **kept_norms_row(loop.stepper.optimizer), **loop.early.found()},
        "status": status,
        "step": step,
        "message": message,
        **({"ramp": ramp} if ramp else {}),
    }


def lost_steps(run: Run, loop: Loop) -> dict[str, float]:
    """Return which share of the steps of norms in 16 bits rounded to nothing, over all steps that probes looked at."""
    if not loop.probes.rounded:
        return {}
    loop.recorder.flush()
    shares: list[float] = []
    for line in logged_lines(run.directory.metrics):
        if LOST_STEPS in line.numbers:
            shares.append(line.numbers[LOST_STEPS])
    return {"share_of_norm_steps_lost": fmean(shares)} if shares else {}


def ramp_result(run: Run, loop: Loop, bad_step: int | None) -> dict[str, Any] | None:
    """Return how far a run came whose learning rate grows; None of other runs.

    `largest_rate` is the rate of its last good step, `last_step`, or None where it had none; `bore_all` tells whether
    that is the last step of all, and `diverged` whether the guard has ended the run.

    Args:
        run: whose losses are logged.
        loop: of the run.
        bad_step: at which it diverged, counted from 1; None where it has not.
    """
    stepper = loop.stepper
    if not stepper.schedule.ramps:
        return None
    loop.recorder.flush()
    losses: dict[int, float] = {}
    for line in logged_lines(run.directory.metrics):
        if "loss/train" in line.numbers:
            losses[int(line.step)] = line.numbers["loss/train"]
    constant = run.data.describe().get("constant") or {}
    factor = run.config.closed.trainer.divergence_factor
    last = last_good_step(losses, constant.get("loss/val", math.inf), factor)
    if bad_step is not None and last == max(losses, default=0):  # nothing was logged between
        last = bad_step - 1
    rate = stepper.base_lr * stepper.schedule.factor(last - 1, stepper.steps) if last else None
    return {
        "largest_rate": rate,
        "last_step": last,
        "bore_all": last == loop.steps,
        "diverged": bad_step is not None,
    }


def last_good_step(losses: Mapping[int, float], constant: float, factor: float) -> int:
    """Return the last logged step after which a run never again keeps half of what it had learned; 0 for none.

    What it has learned is how far its training loss fell at the lowest below its first value or, if that is less, below
    a constant guess. A run that learns nothing is judged as the guard does: by a multiple of its first loss.

    Args:
        losses: of training, by the step at which they are logged.
        constant: the loss of a constant guess.
        factor: by how much the guard allows a loss to exceed the first one.
    """
    if not losses:
        return 0
    first = losses[min(losses)]
    start = min(first, constant)
    lowest = min(losses.values())
    most = (start + lowest) / 2 if lowest < start else factor * first
    return max((step for step, loss in losses.items() if loss <= most), default=0)


def settle(run: Run, summary: Mapping[str, Any]) -> None:
    """Write the final status, and delete checkpoints that are not kept.

    This follows the summary. The next command on the run does it again, in case a kill came between the two: see
    `settle_ended`.
    """
    directory = run.directory
    if not has_status(directory, summary):
        directory.write_status(summary["status"], summary["step"], summary["steps"], summary["message"])
    for path in not_kept(run):
        path.unlink(missing_ok=True)


def settle_ended(run: Run, summary: Mapping[str, Any]) -> None:
    """Do what a kill has left undone at the end of a run, where it may be written, and nobody else does it."""
    is_left = any(path.exists() for path in not_kept(run)) or any(run.directory.half_written())
    if is_left or not has_status(run.directory, summary):
        with suppress(OSError, RunFailure), run.directory.hold():
            settle(run, summary)


def has_status(directory: RunDirectory, summary: Mapping[str, Any]) -> bool:
    """Tell whether a run's status is that of its summary."""
    status = read_json(directory.status) or {}
    return status.get("status") == summary["status"]


def not_kept(run: Run) -> list[Path]:
    """Return the checkpoints that a run does not keep once it has ended.

    The one before the last is for a run at work, in case the last is damaged; which step it is of depends on where the
    run was stopped.
    """
    directory = run.directory
    if run.config.closed.trainer.keep_checkpoint == "none":
        return [directory.checkpoint, directory.previous, directory.best]
    return [directory.previous]


def show_summary(run: Run, summary: Mapping[str, Any], before: Sequence[str] = ()) -> None:
    """Print the lines in `before`, the closing tables, and commands that show more; for a quiet run its directory."""
    directory = run.directory.path
    if run.config.closed.quiet:
        print(directory)
        return
    for line in before:
        print(line)
    show_table(directory.name, closing_rows(summary))
    print(f"what silently differs between comparisons: {shlex.join(['normbench', 'runs', str(directory), '--ledger'])}")
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
        if summary.get(name):  # not every run has it
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
        if run.config.recipe["model"].made.hosted and norm != "own":
            other = "own"
        command.append(f"norm={norm},{other}")
    return [*command, "seed=0,1,2"]
