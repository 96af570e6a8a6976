"""`sweep.lr=auto`: each arm's learning rate, chosen on a tenth held out of the training data, on seeds of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from normbench.errors import UsageError
from normbench.rundir import write_json
from normbench.sweep.folder import arm_name
from normbench.sweep.plan import Point, SweepPlan, changed
from normbench.sweep.words import SweepConfig, key_of

HELD_OUT = 0.1  # of the training data
RATE, HOLDOUT = "optim.lr", "data.holdout"
SUFFIX = "-lr"  # of the folder of the runs that choose


def check_tunable(plan: SweepPlan, settings: SweepConfig) -> None:
    """Refuse a sweep whose learning rates cannot be chosen.

    Raises:
        UsageError: with the reason.
    """
    for run in plan.runs:
        if word := next((word for word in run.words if key_of(word) == RATE), ""):
            raise UsageError(f"{word} is not for sweep.lr=auto, which sets it itself: leave one of the two out")
        if (held_out := run.prepared.config.tree["data"].get("holdout")) != 0:
            raise UsageError(
                "sweep.lr=auto holds out a tenth of the training data, since what chooses must not judge: choose data "
                f"with data.holdout, and leave it at 0 (here it is {held_out})"
            )
        if run.seed in settings.lr_seeds:
            raise UsageError(
                f"sweep.lr_seeds={settings.lr_seeds} has seed {run.seed}, which is reported: what chooses must not "
                "judge, give other seeds"
            )


def tuning_grid(plan: SweepPlan, settings: SweepConfig) -> list[Point]:
    """Return the runs that choose: each arm at each rate and seed of its own."""
    common = {HOLDOUT: f"{HELD_OUT}", "name": plan.folder.name + SUFFIX}
    points = []
    for first, *_ in plan.arms.values():
        for lr in settings.lr_grid:
            for seed in settings.lr_seeds:
                varied = {RATE: f"{lr:.12g}", "seed": str(seed)}
                points.append(Point(changed(first.words, {**varied, **common}), {**first.arm, **varied}))
    return points


def tuned_grid(plan: SweepPlan, choices: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Return the runs that are reported, each at its arm's own rate; arms without one are left out."""
    rates = {choice["name"]: {RATE: f"{choice['lr']:.12g}"} for choice in choices if choice["lr"] is not None}
    runs = [(run, rates[arm_name(run.arm)]) for run in plan.runs if arm_name(run.arm) in rates]
    return [Point(changed(run.words, rate), {**run.arm, "seed": str(run.seed)}) for run, rate in runs]


def choose(tuning: SweepPlan) -> list[dict[str, Any]]:
    """Choose the rate of each arm that has the lowest mean of the final validation losses."""
    arms: dict[str, Mapping[str, str]] = {}
    losses: dict[str, dict[float, list[float | None]]] = {}
    for run in tuning.runs:
        arm = {key: value for key, value in run.arm.items() if key != RATE}
        summary = run.prepared.directory.ended() or {"status": "failed"}
        loss = summary["metrics"].get("loss/val") if summary["status"] == "finished" else None
        arms[arm_name(arm)] = arm
        of_arm = losses.setdefault(arm_name(arm), {})
        of_arm.setdefault(run.prepared.config.tree["optim"]["lr"], []).append(loss)
    return [chosen(arms[name], losses[name]) for name in arms]


def chosen(arm: Mapping[str, str], rates: Mapping[float, Sequence[float | None]]) -> dict[str, Any]:
    """Choose one arm's rate; a rate is out of the question where a run diverged or failed, and its mean is None.

    rates: with the final losses of their seeds. In the result, edge: of the rates that the best one lies on, if any.
    """
    curve: list[dict[str, Any]] = [
        {"lr": lr, "losses": losses, "mean": None if None in losses else fmean(losses)}  # type: ignore[arg-type]  # none is None here
        for lr, losses in sorted(rates.items())
    ]
    usable = [point for point in curve if point["mean"] is not None]
    best = min(usable, key=lambda point: point["mean"])["lr"] if usable else None
    ends = {curve[0]["lr"]: "lowest", curve[-1]["lr"]: "highest"} if len(curve) > 1 else {}
    return {"name": arm_name(arm), "arm": arm, "lr": best, "edge": ends.get(best), "curve": curve}


def write_choices(path: Path, choices: Sequence[Mapping[str, Any]], settings: SweepConfig) -> None:
    """Note what was chosen, and from what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    how = "mean final validation loss on the tenth held out of the training data"
    seeds, runs = settings.lr_seeds, path.parent.name + SUFFIX
    write_json(path, {"chosen_by": how, "holdout": HELD_OUT, "seeds": seeds, "runs": runs, "arms": choices})


def said(choice: Mapping[str, Any]) -> str:
    """Say what was chosen for an arm; a rate on the edge of the grid may not be the best."""
    if choice["lr"] is None:
        return f"{choice['name']}: every learning rate diverged or failed; the arm is left out"
    edge = f", the {choice['edge']} of sweep.lr_grid: a wider grid may have a better one" if choice["edge"] else ""
    return f"{choice['name']}: lr {choice['lr']:g}{edge}"
