"""`sweep.lr=`: each arm's learning rate, chosen on a tenth held out of the training data, on seeds of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from normbench.errors import UsageError
from normbench.record.directory import ENDED, RunDirectory
from normbench.record.files import read_json, write_json
from normbench.sweep.folder import arm_name
from normbench.sweep.plan import Point, SweepPlan, changed
from normbench.sweep.words import SETTINGS, SweepConfig, key_of

HELD_OUT = 0.1  # of the training data
RATE, HOLDOUT = "optim.lr", "data.holdout"
BEYOND = 2  # rates that are tried beyond an end of the grid, where the best one lies there
SUFFIX = "-lr"  # of the folder of the runs that choose


def check_tunable(plan: SweepPlan, settings: SweepConfig) -> None:
    """Refuse a sweep whose learning rates cannot be chosen.

    Raises:
        UsageError: with the reason.
    """
    for run in plan.runs:
        if word := next((word for word in run.prepared.config.words if key_of(word) == RATE), ""):
            raise UsageError(f"{word} is not for sweep.lr={settings.lr}, which sets it itself: leave one of them out")
        if (held_out := run.prepared.config.tree["data"].get("holdout")) != 0:
            why = "what chooses must not judge: choose data with data.holdout, and leave it at 0"
            raise UsageError(f"sweep.lr={settings.lr} holds out a tenth, since {why} (here it is {held_out})")
        if run.seed in settings.lr_seeds:
            cure = "what chooses must not judge, give other seeds"
            raise UsageError(f"sweep.lr_seeds={settings.lr_seeds} has seed {run.seed}, which is reported: {cure}")


def propose(grid: Sequence[float], means: Mapping[float, float | None]) -> list[float]:
    """Return the rates that are to be tried next: every other one of the grid first, then those beside the best one.

    So an arm tries five of the seven rates of the default grid, and finds the same one where the loss has one valley.
    Beyond an end of the grid its steps go on, BEYOND at the most. Where no rate is good, the next smaller one is tried.

    Args:
        means: of the final losses of those that were tried; None: a run diverged or failed.
    """
    if not means:
        return [*(grid[1::2] or grid)]
    rates, usable = ladder(grid), {rate: mean for rate, mean in means.items() if mean is not None}
    place = rates.index(min(usable, key=usable.__getitem__) if usable else min(means))
    beside = rates[max(0, place - 1) : place + 2 if usable else place]
    return [rate for rate in beside if rate not in means]


def follow_up(plan: SweepPlan, choosing: SweepPlan, settings: SweepConfig) -> int:
    """Return how many runs the results of those that choose will mostly ask for."""
    rates = len({*settings.lr_grid})
    first = propose(range(rates), {})
    rates_of_an_arm = min(rates, len(first) + 2)
    return max(0, len(plan.arms) * len(settings.lr_seeds) * rates_of_an_arm - len(choosing.runs))


def ladder(grid: Sequence[float]) -> list[float]:
    """Return a grid and BEYOND steps more at each end, as wide as the last one there; a single rate stays alone."""
    if len(grid) < 2:
        return [*grid]
    lower, higher = grid[0] / grid[1], grid[-1] / grid[-2]
    below = [float(f"{grid[0] * lower**step:.4g}") for step in range(BEYOND, 0, -1)]
    above = [float(f"{grid[-1] * higher**step:.4g}") for step in range(1, BEYOND + 1)]
    return [*below, *grid, *(rate for rate in above if rate <= SETTINGS["lr_grid"].high)]


def tuning_grid(plan: SweepPlan, settings: SweepConfig, choices: Sequence[Mapping[str, Any]] = ()) -> list[Point]:
    """Return the runs that choose: each arm at the rates so far and those to be tried next; empty: nothing is next.

    choices: as `choose` makes them of the runs so far.
    """
    common = {HOLDOUT: f"{HELD_OUT}", "name": plan.folder.name + SUFFIX}
    tried = {choice["name"]: {point["lr"]: point["mean"] for point in choice["curve"]} for choice in choices}
    points, grid = list[Point](), sorted({float(f"{lr:.12g}") for lr in settings.lr_grid})
    news = {name: propose(grid, tried.get(name, {})) for name in plan.arms}
    for name, (first, *_) in plan.arms.items():
        for lr in sorted({*tried.get(name, {}), *news[name]}):
            for seed in settings.lr_seeds:
                varied = {RATE: f"{lr:.12g}", "seed": str(seed)}
                words = changed(first.prepared.config.words, {**varied, **common})
                points.append(Point(words, {**first.arm, **varied}))
    return points if any(news.values()) else []


def tuned_grid(plan: SweepPlan, choices: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Return the runs that are reported, each at its arm's own rate; arms without one are left out."""
    rates = {choice["name"]: {RATE: f"{choice['lr']:.12g}"} for choice in choices if choice["lr"] is not None}
    runs = [(run, rates[arm_name(run.arm)]) for run in plan.runs if arm_name(run.arm) in rates]
    return [
        Point(changed(run.prepared.config.words, rate), {**run.arm, "seed": str(run.seed)}, follows=(RATE,))
        for run, rate in runs
    ]


def choose(tuning: SweepPlan, grid: Sequence[float]) -> list[dict[str, Any]]:
    """Choose the rate of each arm that has the lowest mean of the final validation losses. grid: that was searched.

    Raises:
        UsageError: the record of a run is not as the run has left it.
    """
    arms: dict[str, tuple[Mapping[str, str], dict[float, list[float | None]]]] = {}
    for run in tuning.runs:
        arm = {key: value for key, value in run.arm.items() if key != RATE}
        summary = run.prepared.directory.ended() or {"status": "failed"}
        check_unaltered(run.prepared.directory, summary)
        loss = summary["metrics"].get("loss/val") if summary["status"] == "finished" else None
        _, losses = arms.setdefault(arm_name(arm), (arm, {}))
        losses.setdefault(run.prepared.config.tree["optim"]["lr"], []).append(loss)
    return [chosen(*each, grid) for each in arms.values()]


def check_unaltered(run: RunDirectory, summary: Mapping[str, Any]) -> None:
    """Refuse a run whose record was changed after it had ended, if it has: it chooses by what was measured.

    Raises:
        UsageError: it was.
    """
    if summary["status"] in ENDED and (altered := run.altered()):
        what = f"{run.path} cannot choose a learning rate, as its {' and '.join(altered)} changed after it had ended"
        raise UsageError(f"{what}: remove that folder, and the same command makes the run anew")


def chosen(
    arm: Mapping[str, str], rates: Mapping[float, Sequence[float | None]], grid: Sequence[float] = ()
) -> dict[str, Any]:
    """Choose one arm's rate; a rate is out of the question where a run diverged or failed, and its mean is None.

    rates: with the final losses of their seeds. In the result, edge: of those tried that the best one lies on, if any
    and unless the grid goes on beyond it, where a draw may have stopped short.
    """
    means = {lr: fmean(each) for lr, each in sorted(rates.items()) if None not in each}  # type: ignore[arg-type]  # none is None here
    curve = [{"lr": lr, "losses": losses, "mean": means.get(lr)} for lr, losses in sorted(rates.items())]
    best = min(means, key=means.__getitem__, default=None)
    ends: dict[Any, str] = {min(rates): "lowest", max(rates): "highest"} if len(rates) > 1 else {}
    edge = None if best and grid and min(grid) < best < max(grid) else ends.get(best)
    return {"name": arm_name(arm), "arm": arm, "lr": best, "edge": edge, "curve": curve}


def write_choices(path: Path, choices: Sequence[Mapping[str, Any]], settings: SweepConfig) -> None:
    """Note what was chosen, and from what, beside what was chosen for other arms."""
    names = {choice["name"] for choice in choices}
    others = [choice for choice in (read_json(path) or {}).get("arms", []) if choice["name"] not in names]
    how = "mean final validation loss on the tenth held out of the training data"
    seeds, runs = settings.lr_seeds, path.parent.name + SUFFIX
    write_json(path, {"chosen_by": how, "holdout": HELD_OUT, "seeds": seeds, "runs": runs, "arms": [*others, *choices]})


def said(choice: Mapping[str, Any]) -> str:
    """Say what was chosen for an arm; a rate on the edge of those tried may not be the best."""
    if choice["lr"] is None:
        return f"{choice['name']}: every learning rate diverged or failed; the arm is left out"
    edge = f", the {choice['edge']} of those tried: a wider sweep.lr_grid may have a better one"
    return f"{choice['name']}: lr {choice['lr']:g}{edge if choice['edge'] else ''}"
