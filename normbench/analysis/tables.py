"""The tables of a report and of a comparison: data frames of words, which a page, a text and a terminal show."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis import statistics, wording
from normbench.analysis.answers import ArmDifference, ArmResult, Effect, EffectKind, Paired, Verdict
from normbench.analysis.comparisons import Comparison, by_seed, in_two_groups
from normbench.analysis.difference_sentences import compared
from normbench.analysis.effect_sentences import step_of
from normbench.analysis.measures import (
    IN_BLOCKS,
    Metric,
    Yardstick,
    evaluations_in_words,
    gradient_noise,
    known,
    ran_as,
)
from normbench.analysis.notes import write_notes
from normbench.analysis.records import ASIDE, Arm, RecordedRun, RecordedStudy
from normbench.analysis.sensitivity import AREA, Area, Search, Tried, is_lost, tried_levels
from normbench.analysis.wording import NONE, duration, fixed, in_words, plain, significant, span
from normbench.config.sections import GROUPS
from normbench.errors import UsageError

# What a difference is called in a word or two, by its verdict.
FOUND = {
    Verdict.DIFFERENT: "{}",
    Verdict.POSSIBLE: "perhaps {}",
    Verdict.CONSTANT: "spread not known",
    Verdict.SAME: "the same",
    Verdict.ONE_SEED: "too few seeds",
    Verdict.NO_SEED: "too few seeds",
    Verdict.UNTRAINED: "did not train",
    Verdict.FLATTERED: "lost runs",
    Verdict.TORN: "two groups",
}

# Of a standard deviation of the paired differences: what is planned for where no difference is asked for.
USUAL_SIZES = (0.5, 1.0, 2.0)

# How runs end that are no result: a column each.
BAD = ("did not train", "diverged", "out of memory", "failed", "unfinished")


@dataclass(frozen=True)
class Table:
    """A table. key: its anchor. heads: how many of the first columns are words; the others are figures.

    notes: what the figures are. marked: the rows that are to be seen first.
    """

    key: str
    title: str
    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    heads: int = 1
    marked: Collection[int] = ()

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells, row by row."""
        return list(self.frame.itertuples(index=False, name=None))

    def transposed(self) -> Table:
        """Return the table with a column for each row: for few rows and many measures."""
        first, *_ = self.frame.columns
        turned = self.frame.set_index(first).T.rename_axis(index=first, columns=None).reset_index()
        return replace(self, frame=turned, heads=1, marked=())


def made(key: str, title: str, rows: Any, heads: int = 1, marked: Collection[int] = (), **about: Any) -> Table:
    """Return rows as a table with its notes, without the columns of figures that no row has.

    A baseline that is the same in all rows stands in the title.
    """
    frame = pd.DataFrame(rows)
    baselines = set(frame.get("against", ()))
    if len(baselines) == 1:
        title = f"{title}, against {baselines.pop()}"
        frame = frame.drop(columns="against")
        heads -= 1
    frame.columns = frame.columns.astype(str).str.rstrip(", ")  # of two with one heading, one has a space until here
    has_figures = (frame != NONE).any().to_numpy()
    is_head = np.arange(frame.shape[1]) < heads
    frame = frame.loc[:, has_figures | is_head]
    notes = write_notes(key.partition("-")[0], [*frame], **about)
    return Table(key, title, frame, notes, heads, marked)


def some_of(number: int, of: int) -> str:
    """Write how many of so many there are: `3 of 5`, or `5` where that is all."""
    return str(of) if number == of else f"{number} of {of}"


# ---- the arms


def results_table(runs: pd.DataFrame, study: RecordedStudy, by: Yardstick, arms: Sequence[ArmResult]) -> Table:
    """Say how well the arms ended. runs: as `runs_frame` has them."""
    rows, badness = [], []
    results = {arm.name: arm.results for arm in arms}
    of_study = {arm.name: arm for arm in study.arms}
    for name, own in runs.groupby("arm", sort=False):
        finished = own[own["status"] == "finished"]
        seeds = {*finished["seed"]}
        torn = any(in_two_groups(of_study[str(name)], metric, seeds) for metric in by.metrics)
        averaged = finished.iloc[:0] if torn else finished  # of two groups there is no mean
        row = {"arm": name, "n": some_of(len(finished), len(own))}
        for place, (metric, result) in enumerate(zip(by.metrics, results[str(name)], strict=True)):
            row[f"{metric.words}, {metric.symbol}"] = fixed(result.mean, metric.decimals)
            row["95 % interval" + " " * place] = span(result.interval, metric.decimals)
        row |= on_the_way(averaged, by)
        target = by.targets.get(str(name))
        if target is not None:
            which = "its target" if len({*by.targets.values()}) > 1 else f"{plain(target)} nats"
            ended = own[own["status"].isin(["finished", "diverged"])]
            row[f"time to {which}"] = time_to_target(ended["target_seconds"].fillna(math.inf))
        rows.append(row)
        badness.append(badness_of(finished, by.primary))
    rows = [rows[place] for place in np.argsort(badness, kind="stable")]
    ran = ran_as(study.arms)
    return made("arms", "Results of each arm", rows, by=by, evaluated=evaluations_in_words(study.runs), ran=ran)


def on_the_way(runs: pd.DataFrame, by: Yardstick) -> dict[str, str]:
    """Return what the runs of an arm reached before their end, in the mean."""
    loss = runs[f"{by.timed}_at_equal_time"].mean()
    return {
        f"best {by.on_way.words} during training, {by.on_way.symbol}": fixed(runs["best"].mean(), by.on_way.decimals),
        "train–validation gap, nats": fixed(runs["gap"].mean(), 4, sign=True),
        f"loss at {duration(by.seconds)}, nats": fixed(loss, 4),
    }


def badness_of(finished: pd.DataFrame, metric: Metric) -> float:
    """Return a number that sorts the best arm first, and one without a result last."""
    mean = finished[metric.tag].mean() if metric.tag in finished else math.nan
    if math.isnan(mean):
        return math.inf
    return float(mean if metric.lower_is_better else -mean)


def time_to_target(times: pd.Series) -> str:
    """Return the median time of an arm's runs to the target, where some never got there also how many did."""
    median = times.median()
    told = "not reached" if median == math.inf else duration(median)
    reached = int(np.isfinite(times).sum())
    if 0 < reached < len(times):
        told += f" ({reached} of {len(times)})"
    return told


def costs_table(runs: pd.DataFrame) -> Table:
    """Say what the arms cost and how calm they were."""
    ends = runs["status"].str.replace("_", " ").replace(["running", "interrupted"], "unfinished")
    ends = ends.mask(runs["trained"].eq(False), "did not train")
    seconds = runs["training_seconds"].where(runs["status"] == "finished")
    memory = runs["peak_memory_bytes"] / 2**20
    arms = runs.assign(end=ends, seconds=seconds, memory=memory).groupby("arm", sort=False)
    columns = {}
    if runs["processes"].max() > 1:
        columns["processes"] = arms["processes"].max().map(str)
    columns["norms run as"] = arms["implementation"].agg(either)
    columns["step time, ms"] = arms["step_median_ms"].median().map(significant)
    columns["90th percentile, ms"] = arms["step_p90_ms"].median().map(significant)
    operators = arms["operators_a_step"].median()
    if operators.any():
        columns["operators a step"] = operators.map("{:,.0f}".format, na_action="ignore").fillna(NONE)
    columns["steps timed"] = arms["steps_timed"].sum().map("{:,.0f}".format)
    columns["training time"] = arms["seconds"].mean().map(duration)
    columns["peak memory, MiB"] = arms["memory"].median().map(significant)
    for end in BAD:
        columns[end] = arms["end"].agg(partial(count_of, end=end))
    columns["spikes"] = arms["spikes"].mean().map(percent)
    return made("costs", "Cost and stability", pd.DataFrame(columns).reset_index())


def either(names: pd.Series) -> str:
    """Return the names that there are, such as `a or b`."""
    return " or ".join(filter(None, names.unique())) or NONE


def count_of(ends: pd.Series, end: str) -> str:
    """Write how many runs of an arm have ended like this, and of how many."""
    number = int(ends.eq(end).sum())
    return f"{number} of {len(ends)}" if number else "0"


def percent(share: float) -> str:
    """Write a share."""
    return NONE if math.isnan(share) else f"{100 * share:.2g} %"


def activations_table(blocks: pd.DataFrame) -> Table:
    """Say what probes measured last in the first, the middle and the last block of each arm.

    blocks: as `activations_frame` has them.
    """
    rows = []
    for name, own in blocks.groupby("arm", sort=False):
        row = {"arm": name, "n": str(own["seeds"].max()), "blocks": str(len(own))}
        shown = own.iloc[sorted({0, len(own) // 2, len(own) - 1})]
        for column in IN_BLOCKS:
            values = shown[column]
            row[column] = " → ".join(map(significant, values)) if values.notna().any() else NONE
        trend = math.nan
        if own["mean γ"].nunique() > 2:
            trend = own["block"].corr(own["mean γ"], method="spearman")
        row["γ with depth"] = fixed(trend, 2, sign=True)
        rows.append(row)
    return made("activations", "Activations by depth", rows, heads=3)


# ---- the differences


def pair_of(one: Paired) -> dict[str, str]:
    """Return the columns that say what is compared, and over how many seeds."""
    return {"arm": one.arm, "against": one.baseline, "seeds": some_of(one.n, one.tried)}


def differences_table(found: Sequence[ArmDifference], primary: bool = True) -> Table:
    """Compare each arm with its baseline. primary: whether the verdict speaks of this table."""
    metric, family = found[0].metric, found[0].family
    key = "differences" if primary else f"differences-{metric.tag.partition('/')[0]}"
    ordered = sorted(found, key=badness_of_difference)
    rows = []
    for one in ordered:
        places = wording.precision(one.mean, one.interval) if one.n else 0
        is_corrected = family > 1 or one.corrected != one.p
        row = pair_of(one)
        row[f"difference, {metric.unit}"] = NONE if one.torn else fixed(one.mean, places, sign=bool(one.mean))
        row["95 % interval"] = span(one.interval, places, sign=True)
        row["effect size"] = wording.effect(one.effect_size)
        row["p"] = wording.chance(one.p)
        row["p after Holm"] = wording.chance(one.corrected) if is_corrected else NONE
        row["Wilcoxon p"] = wording.chance(one.ranked_p)
        row["minimum detectable effect"] = detectable_of(one)
        row["found"] = found_in(one)
        rows.append(row)
    marked = [place for place, one in enumerate(ordered) if one.real]
    about: dict[str, Any] = {"metric": metric, "family": family, "primary": primary}
    return made(key, f"Differences in {metric.words}", rows, 2, marked, **about)


def badness_of_difference(one: ArmDifference) -> float:
    """Return a number that sorts the best arm first, and one without a difference last."""
    if not one.n:
        return math.inf
    return one.mean if one.metric.lower_is_better else -one.mean


def found_in(one: ArmDifference) -> str:
    """Write the verdict in a word or two."""
    better_or_worse, _, _ = compared(one).partition(" ")
    return FOUND.get(one.verdict, "not shown").format(better_or_worse)


def detectable_of(one: ArmDifference) -> str:
    """Write the detectable difference, and its interval in brackets."""
    interval = one.detectable_interval
    if interval is None:
        return NONE
    return f"{wording.bound(one.detectable)} ({wording.bound(interval.lower)} to {wording.bound(interval.upper)})"


def step_times_table(comparisons: Sequence[Comparison]) -> Table:
    """Say how long a step takes, as a multiple of the baseline's, where seeds were timed in both."""
    rows, sides = [], []
    for one in comparisons:
        sides += [one.arm, one.baseline]
        row = ratios_of(one, {"step times": step_ms})
        if row:
            rows.append(row)
    return made("step-times", "Ratios of step times", rows, heads=2, ran=ran_as(sides))


def step_ms(run: RecordedRun) -> float:
    """Return how long a step of a run takes."""
    return run.step_ms


def gradient_variance(run: RecordedRun) -> float:
    """Return the variance of a run's gradients."""
    variance, _ = gradient_noise(run)
    return variance


def noise_scale(run: RecordedRun) -> float:
    """Return the noise scale of a run's gradients."""
    _, scale = gradient_noise(run)
    return scale


def noise_table(comparisons: Sequence[Comparison]) -> Table:
    """Say how noisy gradients are, as multiples of the baseline's, where seeds were probed in both."""
    rows, crossing = [], set[str]()
    for one in comparisons:
        row = ratios_of(one, {"gradient variances": gradient_variance, "noise scales": noise_scale})
        if not row:
            continue
        scale, _ = statistics.mean_interval(known(noise_scale(run) for run in one.arm.runs))
        rows.append({**row, "noise scale, examples": significant(scale)})
        for side in (one.arm, one.baseline):
            if any(run.summary.get("norm_facts", {}).get("crosses_samples") for run in side.runs):
                crossing.add(side.name)
    return made("noise", "Gradient noise", rows, heads=2, crossing=sorted(crossing))


def ratios_of(one: Comparison, measured: Mapping[str, Callable[[RecordedRun], float]]) -> dict[str, str]:
    """Return a row of ratios of what is measured of runs to the baseline's, by seed; empty where no seed has the first.

    They are geometric means with the t interval of the logarithms.
    """
    row: dict[str, str] = {}
    for place, (name, measure) in enumerate(measured.items()):
        ratio = statistics.paired_difference(logarithms(one.arm, measure), logarithms(one.baseline, measure))
        if not row:
            if not ratio.n:
                return {}
            row = {"arm": one.arm.name, "against": one.baseline.name, "seeds": str(ratio.n)}
        mean = 2.0**ratio.mean
        ends = ratio.interval.powers if ratio.interval else None
        places = wording.precision(mean, ends) if ends else 2
        row[f"ratio of {name}"] = fixed(mean, places)
        row["95 % interval" + " " * place] = span(ends, places)
    return row


def logarithms(arm: Arm, measure: Callable[[RecordedRun], float]) -> dict[int, float]:
    """Return the logarithm to base 2 of what is measured of an arm's runs, by seed."""
    return {seed: math.log2(value) for seed, value in by_seed(arm.runs, measure).items()}


def designs_table(found: Sequence[Effect]) -> Table:
    """Say what factors do to arms, less what they do to their baselines."""
    rows = []
    for one in found:
        if not one.n:
            continue
        own, other = sum(one.own) / one.n, sum(one.other) / one.n
        row = {"what": step_of(one), **pair_of(one)}
        if one.kind == EffectKind.LARGEST:  # of logarithms
            row["for the arm"] = f"{2**own:.3g}"
            row["for the baseline"] = f"{2**other:.3g}"
            row["difference"] = f"× {2**one.mean:.2g}"
            row["95 % interval"] = span(one.interval.powers if one.interval else None, 2)
        else:
            places = wording.precision(one.mean, one.interval)
            has_sign = one.kind != EffectKind.AREA
            row["for the arm"] = fixed(own, places, sign=has_sign)
            row["for the baseline"] = fixed(other, places, sign=has_sign)
            row["difference"] = f"{fixed(one.mean, places, sign=True)} {one.metric.unit}"
            row["95 % interval"] = span(one.interval, places, sign=True)
        row["p"] = wording.chance(one.p)
        row["p after Holm"] = NONE if one.family == 1 else wording.chance(one.corrected)
        rows.append(row)
    marked = [place for place, one in enumerate(found) if one.real]
    kinds = {one.kind for one in found}
    family = max((one.family for one in found), default=1)
    return made("designs", "Crossed factors", rows, 3, marked, kinds=kinds, family=family)


# ---- levels of settings that are numbers, and runs that give no result


def survival_table(arms: Sequence[Arm], key: str) -> Table:
    """Say at which levels of a setting arms train, in how many of the runs that have ended, and up to which level."""
    rows = []
    word = key.rpartition(".")[2]
    for one in tried_levels(arms, key):
        row = {"arm": one.arm.name}
        shares = {}
        for level, arm in one.by_level.items():
            ended = [run for run in arm.runs if run.ended]
            if ended:
                train = sum(not is_lost(run) for run in ended)
                shares[level] = train / len(ended)
                row[plain(level)] = f"{train} of {len(ended)}"
        for words, least in (("all", 1.0), ("most", 0.5)):
            levels = [level for level, share in shares.items() if share >= least]
            row[f"{words} train up to"] = plain(max(levels)) if levels else NONE
        rows.append(row)
    return made(f"survival-{word}", f"Runs that train, by {word}", rows)


def areas_table(mapped: Sequence[Area]) -> Table:
    """Say in which share of a grid of two settings arms train."""
    rows = []
    for one in mapped:
        share, interval = statistics.mean_interval([*one.shares.values()], AREA.bounds)
        row = {"arm": one.arm.name, "grid of": one.words, "seeds": str(len(one.shares)), "cells": str(len(one.cells))}
        rows.append({**row, "trains, %": fixed(share, 1), "95 % interval": span(interval, 1)})
    return made("areas", "Share of a grid that trains", rows, heads=2)


def rates_table(tried: Sequence[Tried]) -> Table:
    """Say how the arms take to the learning rate."""
    rows = []
    for one in tried:
        sensitivity, interval = statistics.mean_interval([*one.sensitivity.values()], (0.0, math.inf))
        lost = [f"{number} at {rate:g}" for rate, number in one.lost.items() if number]
        row = {
            "arm": one.arm.name,
            "rates tried": ", ".join(f"{rate:g}" for rate in one.losses),
            "best rate": f"{one.best:g}",
            "loss there, nats": fixed(one.losses[one.best], 4),
            "sensitivity, nats": fixed(sensitivity, 4),
            "95 % interval": span(interval, 4),
            "lost or did not train": ", ".join(lost) or "0",
        }
        rows.append(row)
    return made("rates", "Learning-rate sensitivity", rows)


def search_table(found: Sequence[Search]) -> Table:
    """Say among which learning rates that of each arm was chosen, and how these did on the data that choose."""
    rates = sorted({rate for one in found for rate in one.losses})
    rows = []
    for one in found:
        row = {"arm": one.arm.name, "chosen": NONE if one.chosen is None else f"{one.chosen:g}"}
        for rate in rates:
            row[f"at {rate:g}"] = search_cell(one, rate)
        row["at an end of those tried"] = one.edge or NONE
        rows.append(row)
    seeds = max((len(losses) for one in found for losses in one.losses.values()), default=0)
    return made("search", "Search for the learning rate, held-out loss in nats", rows, seeds=seeds)


def search_cell(one: Search, rate: float) -> str:
    """Write what an arm reached at a rate."""
    if rate not in one.losses:
        return NONE
    if one.lost[rate]:
        return f"{one.lost[rate]} lost"
    return fixed(one.means[rate], 4)


def lost_table(study: RecordedStudy) -> Table:
    """Name what did not finish, and why."""
    rows = []
    for arm, run in study.pairs:
        if run.status == "finished":
            continue
        row = {
            "run": run.name,
            "arm": arm.name,
            "seed": str(run.seed),
            "status": run.status.replace("_", " "),
            "step": f"{run.step:,} of {run.steps:,}",
            "why": run.message or NONE,
            "its command": run.session["command"],
        }
        rows.append(row)
    return made("lost", "Runs that did not finish", rows, heads=7)


# ---- two arms


def settings_table(first: Arm, second: Arm) -> Table:
    """Say in which settings the arms differ, groups first."""
    keys = set[str]()
    for run in (*first.runs, *second.runs):
        keys.update(key for key in run.config if not key.endswith("_target_"))
    shown = [*GROUPS, *sorted(keys.difference(GROUPS, ASIDE))]
    frame = pd.DataFrame({"setting": shown})
    for arm in (first, second):
        frame[arm.name] = [values_of(arm, key) for key in shown]
    frame = frame[frame[first.name] != frame[second.name]]
    notes = () if len(frame) else ("The configurations do not differ.",)
    return Table("settings", "What differs", frame, notes, heads=3)


def values_of(arm: Arm, key: str) -> str:
    """Write what the runs of an arm have in a setting."""
    values = dict.fromkeys(run.config.get(key) for run in arm.runs)
    return ", ".join(map(in_words, values))


def plan(one: Comparison, difference: float | None) -> Table:
    """Say how many seeds a difference needs, from the pilot's spread of paired differences; without one, three sizes.

    For each: by the pilot's standard deviation; by its upper 80 % limit; and the share of studies of the pilot's size
    that would find it.

    Raises:
        UsageError: the pilot has fewer than two pairs, or no spread, or runs of an arm end in two groups.
    """
    if one.torn:
        needs = "a plan needs a pilot whose runs all train"
        raise UsageError(f"{needs}, and some of {one.torn[0].name} did not: make them train first")
    n = one.n
    sd = one.sd
    if not sd:
        needs = "a plan needs a pilot of two seeds or more in both arms that do not all differ by the same"
        raise UsageError(f"{needs}, and {n} finished in both: run more seeds")
    cautious = statistics.sd_upper_limit(sd, n)
    sizes = [share * sd for share in USUAL_SIZES] if difference is None else [difference]
    columns = {
        f"difference, {one.metric.unit}": [plain(float(f"{size:.3g}")) for size in sizes],
        "seeds": [f"{statistics.seeds_needed(size, sd):,}" for size in sizes],
        "cautious": [f"{statistics.seeds_needed(size, cautious):,}" for size in sizes],
        f"found with {n} seeds": [f"{100 * statistics.paired_power(size, sd, n):.0f} %" for size in sizes],
    }
    return made("plan", "Seeds that a difference needs", columns, heads=0, n=n, sd=sd, unit=one.metric.unit)
