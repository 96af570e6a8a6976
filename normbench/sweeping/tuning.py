"""`sweep.lr=auto`: each arm's learning rate, chosen on a tenth held out of the training data, on seeds of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from normbench.errors import UsageError
from normbench.rundir import write_json
from normbench.sweeping.folder import SweepFolder
from normbench.sweeping.grid import Grid, Point
from normbench.sweeping.plan import ArmKey, PlannedRun, SweepPlan, arm_key, arm_names
from normbench.sweeping.settings import SweepConfig

HELD_OUT = 0.1  # of the training data
RATE, HOLDOUT = "optim.lr", "data.holdout"
SUFFIX = "-lr"  # of the folder of the runs that choose


@dataclass(frozen=True)
class Rate:
    """One learning rate of an arm's curve.

    losses: final validation loss of each seed; None: it diverged or failed. mean: None unless all are there.
    """

    lr: float
    losses: tuple[float | None, ...]
    mean: float | None


@dataclass(frozen=True)
class Choice:
    """The learning rate of an arm, and the curve that it was chosen from. edge: of the grid that it lies on, if any."""

    arm: Mapping[str, str]
    lr: float | None
    edge: str | None
    curve: tuple[Rate, ...]


def check_tunable(plan: SweepPlan, grid: Grid, settings: SweepConfig) -> None:
    """Refuse a sweep whose learning rates cannot be chosen.

    Raises:
        UsageError: with the reason.
    """
    for point in grid.points:
        for word in point.words:
            if word.lstrip("+~").partition("=")[0] in (RATE, HOLDOUT):
                raise UsageError(f"{word} is not for sweep.lr=auto, which sets it itself: leave one of the two out")
    for run in plan.runs:
        if HOLDOUT.partition(".")[2] not in run.tree["data"]:
            raise UsageError(
                f"sweep.lr=auto needs training data to hold a tenth out of, and data={run.choices.groups['data']} has "
                "no data.holdout: give optim.lr"
            )
        if (held_out := run.tree["data"]["holdout"]) != 0:
            raise UsageError(
                f"data.holdout={held_out} is not for sweep.lr=auto, which holds out a tenth itself: what chooses must "
                "not judge, set data.holdout=0 in the experiment"
            )
        if "lr" not in run.tree["optim"]:
            raise UsageError(f"sweep.lr=auto needs an optimizer with lr: {run.tree['optim']['_target_']} has none")
    if reported := sorted({run.seed for run in plan.runs} & set(settings.lr_seeds)):
        raise UsageError(
            f"sweep.lr_seeds={settings.lr_seeds} has seed {reported[0]}, which is reported: what chooses must not "
            "judge, give other seeds"
        )


def tuning_grid(plan: SweepPlan, settings: SweepConfig) -> Grid:
    """The runs that choose: each arm at each rate and seed of its own."""
    name = plan.folder.name + SUFFIX
    points = [
        Point(
            changed(runs[0].words, {RATE: f"{lr:.12g}", HOLDOUT: f"{HELD_OUT}", "seed": str(seed), "name": name}),
            {**runs[0].arm, RATE: f"{lr:.12g}", "seed": str(seed)},
        )
        for runs in plan.arms.values()
        for lr in settings.lr_grid
        for seed in settings.lr_seeds
    ]
    return Grid(tuple(points))


def tuned_grid(plan: SweepPlan, choices: Sequence[Choice]) -> Grid:
    """The runs that are reported, each at its arm's own rate; arms without one are left out."""
    rates = {arm_key(choice.arm): choice.lr for choice in choices}
    points = [
        Point(changed(run.words, {RATE: f"{lr:.12g}"}), {**run.arm, "seed": str(run.seed)})
        for run in plan.runs
        if (lr := rates[arm_key(run.arm)]) is not None
    ]
    return Grid(tuple(points))


def changed(words: Sequence[str], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Words with some settings changed or added."""
    kept = [word for word in words if word.lstrip("+~").partition("=")[0] not in settings]
    return (*kept, *(f"{key}={value}" for key, value in settings.items()))


def choose(tuning: SweepPlan) -> list[Choice]:
    """The rate of each arm with the lowest mean of the final validation losses; one that diverges is infinitely bad."""
    folder = SweepFolder(tuning.folder)
    arms: dict[ArmKey, dict[float, list[PlannedRun]]] = {}
    for run in tuning.runs:
        arm = arm_key({key: value for key, value in run.arm.items() if key != RATE})
        arms.setdefault(arm, {}).setdefault(float(run.tree["optim"]["lr"]), []).append(run)
    return [
        chosen(dict(arm), [rate(folder, lr, runs) for lr, runs in sorted(rates.items())]) for arm, rates in arms.items()
    ]


def rate(folder: SweepFolder, lr: float, runs: Sequence[PlannedRun]) -> Rate:
    """What some seeds have made of one rate."""
    losses = tuple(final_loss(folder.run(run.name).ended()) for run in runs)
    known = [loss for loss in losses if loss is not None]
    return Rate(lr, losses, fmean(known) if len(known) == len(losses) else None)


def final_loss(summary: Mapping[str, Any] | None) -> float | None:
    """The validation loss that a run has ended with; None: it has not, or diverged."""
    if summary is None or summary["status"] != "finished":
        return None
    loss: float | None = summary["metrics"].get("loss/val")
    return loss if loss is not None and math.isfinite(loss) else None


def chosen(arm: Mapping[str, str], curve: Sequence[Rate]) -> Choice:
    """The best rate of a curve, which is in ascending order."""
    usable = [point for point in curve if point.mean is not None]
    if not usable:
        return Choice(arm, None, None, tuple(curve))
    best = min(usable, key=lambda point: point.mean or 0.0)
    edge = "lowest" if best is curve[0] else "highest" if best is curve[-1] else None
    return Choice(arm, best.lr, edge if len(curve) > 1 else None, tuple(curve))


def write_choices(path: Path, choices: Sequence[Choice], settings: SweepConfig) -> None:
    """Note what was chosen, and from what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "chosen_by": "mean final validation loss on the tenth held out of the training data",
        "holdout": HELD_OUT,
        "seeds": list(settings.lr_seeds),
        "runs": path.parent.name + SUFFIX,
        "arms": [{"name": name, **asdict(choice)} for name, choice in named(choices)],
    }
    write_json(path, content)


def named(choices: Sequence[Choice]) -> list[tuple[str, Choice]]:
    """Each choice with a name that no other has."""
    return list(zip(arm_names([choice.arm for choice in choices]), choices, strict=True))


def lines(choices: Sequence[Choice]) -> list[str]:
    """What was chosen, in words; a rate on the edge of the grid may not be the best."""
    told = []
    for name, choice in named(choices):
        if choice.lr is None:
            told.append(f"{name}: every learning rate diverged or failed; the arm is left out")
        else:
            edge = f", the {choice.edge} of sweep.lr_grid: a wider grid may have a better one" if choice.edge else ""
            told.append(f"{name}: lr {choice.lr:g}{edge}")
    return told
