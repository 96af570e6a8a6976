"""Learning rates that a sweep chooses on a tenth held out of the training data, on seeds that are not reported.

With `sweep.lr=auto` an arm has one rate, chosen on the seeds `sweep.lr_seeds`. How lucky that choice was is shared by
all reported seeds, which therefore look more alike than they are: of equal arms with ten seeds, up to one 95 % interval
in three excludes 0, and not one in twenty (tests/test_tuning_luck.py). With `sweep.lr=each` each reported seed has a
rate that was chosen on a seed of its own, so that the luck of choosing is a part of what differs from seed to seed, and
intervals hold what they promise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from normbench import build
from normbench.config.refusals import CHOOSES_RATE, HOLDOUT, OF_SETTINGS, RATE, RATE_SEEDS, refuse
from normbench.record.digests import find_altered, write_with_digests
from normbench.record.files import read_json
from normbench.runs.reading import check_unaltered
from normbench.settings import drop_keys, key_of
from normbench.sweep.folder import arm_name
from normbench.sweep.plan import PlannedRun, Point, SweepPlan, replace_settings
from normbench.sweep.words import SETTINGS, SweepConfig
from normbench.wording import count, short

HELD_OUT = 0.1  # of the training data
EACH = "each"  # of sweep.lr: a choice for each seed
RATES_BEYOND = 2  # how many rates at most are tried beyond an end of the grid, where the best one lies there
STEPS = "trainer.steps"
SUFFIX = "-lr"  # of the folder of the runs that choose

# The final losses of an arm's runs by learning rate; None: a run diverged or failed.
Losses = Mapping[float, Sequence[float | None]]


def check_tunable(plan: SweepPlan, settings: SweepConfig) -> None:
    """Refuse a sweep whose learning rates cannot be chosen.

    Raises:
        UsageError: with the reason.
    """
    choosing_seeds = list[int]()
    for seed in dict.fromkeys(chosen_for(run.seed, settings) for run in plan.runs):
        choosing_seeds += seeds_that_choose(seed, settings)
    making = {CHOOSES_RATE: settings.lr, RATE_SEEDS: choosing_seeds}
    for run in plan.runs:
        config = run.prepared.config
        given = set(map(key_of, config.words))
        refuse(build.combine(config.recipe, making, given), OF_SETTINGS)


def chosen_for(seed: int, settings: SweepConfig) -> int | None:
    """Return for which reported seed a rate is chosen, where a seed is reported; None: one choice is for all."""
    return seed if settings.lr == EACH else None


def seeds_that_choose(seed: int | None, settings: SweepConfig) -> list[int]:
    """Return the seeds of the runs that choose a rate. seed: the reported one that it is for, None: it is for all."""
    return [number + (seed or 0) for number in settings.lr_seeds]


def propose(grid: Sequence[float], means: Mapping[float, float | None]) -> list[float]:
    """Return the rates to try next: every other one of the grid first, then those beside the best one.

    So an arm tries five of the seven rates of the default grid, and finds the same one where the loss has one valley.
    Where the best one is at an end, up to RATES_BEYOND rates beyond the grid follow, in steps like its last one there.
    Where no rate is good, the next smaller one is tried.

    Args:
        means: of the final losses of those that were tried; None: a run diverged or failed.
    """
    if not means:
        return list(grid[1::2] or grid)
    rates = extend_grid(grid)
    usable = {rate: mean for rate, mean in means.items() if mean is not None}
    if usable:
        best = min(usable, key=usable.__getitem__)
        index = rates.index(best)
        candidates = rates[max(0, index - 1) : index + 2]
    else:
        index = rates.index(min(means))
        candidates = rates[max(0, index - 1) : index]
    return [rate for rate in candidates if rate not in means]


def follow_up(plan: SweepPlan, choosing: SweepPlan, settings: SweepConfig) -> int:
    """Return how many further runs the results of those that choose will mostly ask for."""
    rates = len(set(settings.lr_grid))
    tried_first = len(propose(range(rates), {}))
    tried = min(rates, tried_first + 2)  # and one on each side of the best
    choices = len(plan.runs) if settings.lr == EACH else len(plan.arms)
    whole = choices * len(settings.lr_seeds) * tried
    return max(0, whole - len(choosing.runs))


def extend_grid(grid: Sequence[float]) -> list[float]:
    """Return a grid with RATES_BEYOND more at each end, in steps like the last one there; a single rate stays alone."""
    if len(grid) < 2:
        return list(grid)
    down = grid[0] / grid[1]
    up = grid[-1] / grid[-2]
    rates = list(grid)
    for step in range(1, RATES_BEYOND + 1):
        lower = round_to(4, grid[0] * down**step)
        rates.insert(0, lower)
        higher = round_to(4, grid[-1] * up**step)
        if higher <= SETTINGS["lr_grid"].high:
            rates.append(higher)
    return rates


def round_to(digits: int, number: float) -> float:
    """Return a number with so many significant digits."""
    return float(f"{number:.{digits}g}")


def tuning_grid(plan: SweepPlan, settings: SweepConfig, choices: Sequence[Mapping[str, Any]] = ()) -> list[Point]:
    """Return the runs that choose: each arm at the rates tried so far and those to try next; empty: nothing is next.

    Args:
        choices: as `choose` makes them of the runs so far.
    """
    tried = dict[tuple[str, int | None], dict[float, float | None]]()
    for name, runs in plan.arms.items():
        for run in runs:
            tried[name, chosen_for(run.seed, settings)] = {}
    for choice in choices:
        means = tried[choice["name"], choice.get("seed")]
        for point in choice["curve"]:
            means[point["lr"]] = point["mean"]
    grid = sorted({round_to(12, lr) for lr in settings.lr_grid})
    following = {unit: propose(grid, means) for unit, means in tried.items()}
    if not any(following.values()):
        return []

    common = {HOLDOUT: f"{HELD_OUT}", "name": plan.folder.name + SUFFIX}
    points: list[Point] = []
    for unit, means in tried.items():
        name, reported_seed = unit
        first = plan.arms[name][0]
        for lr in sorted({*means, *following[unit]}):
            for seed in seeds_that_choose(reported_seed, settings):
                varied = {RATE: f"{lr:.12g}", "seed": str(seed)}
                changed = {**varied, **common, **length_of(first, settings)}
                words = replace_settings(first.prepared.config.words, changed)
                points.append(Point(words, {**first.arm, **varied}))
    return points


def length_of(run: PlannedRun, settings: SweepConfig) -> dict[str, str]:
    """Return the settings that make a run as long as those are that choose its rate.

    With `sweep.lr=each` shorter ones keep what intervals promise, whatever they choose: what they cost or gain is in
    each seed by itself. A rate that is best early may not be so in the end, which the arms have in common.
    """
    if settings.lr_length == 1:
        return {}
    steps = run.prepared.config.tree["trainer"]["steps"]  # which planning has counted where epochs are asked for
    return {STEPS: str(max(1, round(steps * settings.lr_length)))}


def tuned_grid(plan: SweepPlan, choices: Sequence[Mapping[str, Any]], settings: SweepConfig) -> list[Point]:
    """Return the runs that are reported, each at the rate that was chosen for it; those without one are left out."""
    rates = {(choice["name"], choice.get("seed")): choice["lr"] for choice in choices}
    points = []
    for run in plan.runs:
        lr = rates.get((arm_name(run.arm), chosen_for(run.seed, settings)))
        if lr is not None:
            words = replace_settings(run.prepared.config.words, {RATE: f"{lr:.12g}"})
            points.append(Point(words, {**run.arm, "seed": str(run.seed)}, follows=(RATE,)))
    return points


def choose(plan: SweepPlan, tuning: SweepPlan, settings: SweepConfig) -> list[dict[str, Any]]:
    """Choose rates, of each arm or of each of its seeds, by the lowest mean of the final validation losses.

    Args:
        plan: the runs that are reported.
        tuning: the runs that choose.
        settings: of the sweep.

    Raises:
        UsageError: the record of a run is not as the run has left it.
    """
    arms: dict[str, Mapping[str, str]] = {}
    losses: dict[tuple[str, int], dict[float, float | None]] = {}  # by arm and seed, then by rate
    for run in tuning.runs:
        directory = run.prepared.directory
        summary = directory.read_result()
        loss = None
        if summary is not None:
            check_unaltered(directory)
            if summary["status"] == "finished":
                loss = summary["metrics"].get("loss/val")
        without_rate = drop_keys(run.arm, RATE)
        name = arm_name(without_rate)
        arms[name] = without_rate
        lr = run.prepared.config.tree["optim"]["lr"]
        losses.setdefault((name, run.seed), {})[lr] = loss

    choices = []
    for name, arm in arms.items():
        for reported_seed in dict.fromkeys(chosen_for(run.seed, settings) for run in plan.arms[name]):
            rates: dict[float, list[float | None]] = {}
            for seed in seeds_that_choose(reported_seed, settings):
                for lr, loss in losses.get((name, seed), {}).items():
                    rates.setdefault(lr, []).append(loss)
            choice = choose_rate(arm, rates, settings.lr_grid, reported_seed)
            choices.append({**choice, "length": settings.lr_length})
    return choices


def choose_rate(
    arm: Mapping[str, str], rates: Losses, grid: Sequence[float] = (), seed: int | None = None
) -> dict[str, Any]:
    """Return the choice of one rate; one at which a run diverged or failed cannot be it, and its mean is None.

    seed: the reported one that it is for; None: it is for all seeds of the arm.

    `edge` of the choice says at which end of the rates that were tried the best one lies. It is None where it lies at
    neither, and where the grid goes on beyond it, since there the choice may only follow from noise.
    """
    curve: list[dict[str, Any]] = []
    means: dict[float, float] = {}
    for lr, losses in sorted(rates.items()):
        known = [loss for loss in losses if loss is not None]
        if len(known) == len(losses):
            means[lr] = fmean(known)
        curve.append({"lr": lr, "losses": losses, "mean": means.get(lr)})
    best = min(means, key=means.__getitem__, default=None)

    edge = None
    goes_on = best is not None and grid and min(grid) < best < max(grid)
    if len(rates) > 1 and not goes_on:
        if best == max(rates):
            edge = "highest"
        elif best == min(rates):
            edge = "lowest"
    choice = {"name": arm_name(arm), "arm": arm, "lr": best, "edge": edge, "curve": curve}
    return choice if seed is None else {**choice, "seed": seed}


def write_choices(path: Path, choices: Sequence[Mapping[str, Any]], settings: SweepConfig) -> None:
    """Note what was chosen, and from what, beside what was chosen for other arms and seeds."""
    chosen = {(choice["name"], choice.get("seed")) for choice in choices}
    before = read_json(path) or {}
    if before and find_altered(path):
        before = {}  # what other arms had is not known any more
    others = [choice for choice in before.get("arms", []) if (choice["name"], choice.get("seed")) not in chosen]
    content = {
        "chosen_by": "mean final validation loss on the tenth held out of the training data",
        "holdout": HELD_OUT,
        "seeds": settings.lr_seeds,
        "runs": path.parent.name + SUFFIX,
        "arms": [*others, *choices],
    }
    write_with_digests(path, content, [path.name])


def describe_choices(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was chosen: a line for each arm, and where each seed has its own rate, how many seeds have which."""
    by_arm = defaultdict[str, list[Mapping[str, Any]]](list)
    for choice in choices:
        by_arm[choice["name"]].append(choice)
    lines = []
    for name, of_arm in by_arm.items():
        seeds_at = Counter(choice["lr"] for choice in of_arm)
        rates = sorted(lr for lr in seeds_at if lr is not None)
        if len(of_arm) == 1 or not rates:
            lines.append(describe_choice(of_arm[0]))
            continue
        parts = [f"lr {short(lr)} for {count(seeds_at[lr], 'seed')}" for lr in rates]
        if None in seeds_at:
            parts.append(f"none for {count(seeds_at[None], 'seed')}, left out as every rate diverged or failed")
        at_edge = sum(choice["edge"] is not None for choice in of_arm)
        edge = f" ({at_edge} at an end of those tried: a wider sweep.lr_grid may have better ones)" if at_edge else ""
        lines.append(f"{name}: {', '.join(parts)}{edge}")
    return lines


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Say what was chosen for an arm; a rate at the edge of those tried may not be the best."""
    name = choice["name"]
    lr = choice["lr"]
    edge = choice["edge"]
    if lr is None:
        return f"{name}: every learning rate diverged or failed; the arm is left out"
    if edge:
        return f"{name}: lr {short(lr)}, the {edge} of those tried: a wider sweep.lr_grid may have a better one"
    return f"{name}: lr {short(lr)}"
