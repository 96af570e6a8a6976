"""`sweep.lr=auto`: each arm's learning rate, chosen on a tenth held out of the training data, on seeds of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from normbench.errors import UsageError
from normbench.rundir import write_json
from normbench.sweep.grid import Grid, Point, changed, key_of
from normbench.sweep.plan import SweepPlan, arm_name
from normbench.sweep.words import SweepConfig

HELD_OUT = 0.1  # of the training data
RATE, HOLDOUT = "optim.lr", "data.holdout"
SUFFIX = "-lr"  # of the folder of the runs that choose


def check_tunable(plan: SweepPlan, settings: SweepConfig) -> None:
    """Refuse a sweep whose learning rates cannot be chosen.

    Raises:
        UsageError: with the reason.
    """
    for run in plan.runs:
        for word in run.entry.words:
            if key_of(word) in (RATE, HOLDOUT):
                raise UsageError(f"{word} is not for sweep.lr=auto, which sets it itself: leave one of the two out")
        if (held_out := run.prepared.config.tree["data"].get("holdout")) != 0:
            raise UsageError(
                "sweep.lr=auto holds out a tenth of the training data, since what chooses must not judge: choose data "
                f"with data.holdout, and leave it at 0 (here it is {held_out})"
            )
        if run.entry.seed in settings.lr_seeds:
            raise UsageError(
                f"sweep.lr_seeds={settings.lr_seeds} has seed {run.entry.seed}, which is reported: what chooses must "
                "not judge, give other seeds"
            )


def tuning_grid(plan: SweepPlan, settings: SweepConfig) -> Grid:
    """Return the runs that choose: each arm at each rate and seed of its own."""
    common = {HOLDOUT: f"{HELD_OUT}", "name": plan.folder.name + SUFFIX}
    points = []
    for runs in plan.arms.values():
        for lr in settings.lr_grid:
            for seed in settings.lr_seeds:
                varied = {RATE: f"{lr:.12g}", "seed": str(seed)}
                words = changed(runs[0].entry.words, {**varied, **common})
                points.append(Point(words, {**runs[0].entry.arm, **varied}))
    return Grid(tuple(points))


def tuned_grid(plan: SweepPlan, choices: Sequence[Mapping[str, Any]]) -> Grid:
    """Return the runs that are reported, each at its arm's own rate; arms without one are left out."""
    points = []
    for entry in (run.entry for run in plan.runs):
        (lr,) = (choice["lr"] for choice in choices if choice["arm"] == entry.arm)
        if lr is not None:
            words = changed(entry.words, {RATE: f"{lr:.12g}"})
            points.append(Point(words, {**entry.arm, "seed": str(entry.seed)}))
    return Grid(tuple(points))


def choose(tuning: SweepPlan) -> list[dict[str, Any]]:
    """Choose the rate of each arm that has the lowest mean of the final validation losses."""
    arms: dict[str, tuple[Mapping[str, str], dict[float, list[float | None]]]] = {}
    for run in tuning.runs:
        arm = {key: value for key, value in run.entry.arm.items() if key != RATE}
        losses = arms.setdefault(str(arm), (arm, {}))[1].setdefault(run.prepared.config.tree["optim"]["lr"], [])
        summary = run.prepared.directory.ended() or {}
        losses.append(summary["metrics"].get("loss/val") if summary.get("status") == "finished" else None)
    return [chosen(arm, rates) for arm, rates in arms.values()]


def chosen(arm: Mapping[str, str], rates: Mapping[float, Sequence[float | None]]) -> dict[str, Any]:
    """Choose one arm's rate; a rate is out of the question where a run diverged or failed, and its mean is None.

    rates: with the final losses of their seeds. In the result, edge: of the rates that the best one lies on, if any.
    """
    curve = []
    for lr, losses in sorted(rates.items()):
        known = [loss for loss in losses if loss is not None]
        curve.append({"lr": lr, "losses": losses, "mean": fmean(known) if len(known) == len(losses) else None})
    usable: list[Any] = [point for point in curve if point["mean"] is not None]
    best = min(usable, key=lambda point: point["mean"])["lr"] if usable else None
    ends = {curve[0]["lr"]: "lowest", curve[-1]["lr"]: "highest"} if len(curve) > 1 else {}
    return {"name": arm_name(arm), "arm": dict(arm), "lr": best, "edge": ends.get(best), "curve": curve}


def write_choices(path: Path, choices: Sequence[Mapping[str, Any]], settings: SweepConfig) -> None:
    """Note what was chosen, and from what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "chosen_by": "mean final validation loss on the tenth held out of the training data",
        "holdout": HELD_OUT,
        "seeds": settings.lr_seeds,
        "runs": path.parent.name + SUFFIX,
        "arms": choices,
    }
    write_json(path, content)


def said(choice: Mapping[str, Any]) -> str:
    """Say what was chosen for an arm; a rate on the edge of the grid may not be the best."""
    if choice["lr"] is None:
        return f"{choice['name']}: every learning rate diverged or failed; the arm is left out"
    edge = f", the {choice['edge']} of sweep.lr_grid: a wider grid may have a better one" if choice["edge"] else ""
    return f"{choice['name']}: lr {choice['lr']:g}{edge}"
