"""The tables of a report and of a comparison: data frames of words, which a page, a text and a terminal show."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis import statistics, wording
from normbench.analysis.answers import ArmResult, Difference, Effect, EffectKind, Paired, Verdict
from normbench.analysis.comparisons import Comparison, by_seed, in_two_groups
from normbench.analysis.measures import IN_BLOCKS, Yardstick, evaluations_in_words, gradient_noise, known, ran_as
from normbench.analysis.notes import write_notes
from normbench.analysis.records import ASIDE, Arm, Run, Study
from normbench.analysis.sensitivity import AREA, Area, Search, Tried, is_lost, tried_levels
from normbench.analysis.sentences import compared, step_of
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
    if len(names := set(frame.get("against", ()))) == 1:
        title, frame, heads = f"{title}, against {names.pop()}", frame.drop(columns="against"), heads - 1
    frame.columns = frame.columns.astype(str).str.rstrip(", ")  # of two with one heading, one has a space until here
    frame = frame.loc[:, (frame != NONE).any().to_numpy() | (np.arange(frame.shape[1]) < heads)]
    notes = write_notes(key.partition("-")[0], [*frame], **about)
    return Table(key, title, frame, notes, heads, marked)


# ---- the arms


def results_table(runs: pd.DataFrame, study: Study, by: Yardstick, arms: Sequence[ArmResult]) -> Table:
    """Say how well the arms ended. runs: as `runs_frame` has them."""
    rows, badness = [], []
    by_name = {arm.name: arm for arm in arms}
    live = {arm.name: arm for arm in study.arms}
    for name, own in runs.groupby("arm", sort=False):
        finished = own[own["status"] == "finished"]
        seeds = {*finished["seed"]}
        torn = any(in_two_groups(live[str(name)], metric, seeds) for metric in by.metrics)
        averaged = finished.iloc[:0] if torn else finished  # of two groups there is no mean
        row = {"arm": name, "n": f"{len(finished)} of {len(own)}" if len(finished) < len(own) else str(len(own))}
        for place, (metric, result) in enumerate(zip(by.metrics, by_name[str(name)].results, strict=True)):
            row[f"{metric.words}, {metric.symbol}"] = fixed(result.mean, metric.decimals)
            row["95 % interval" + " " * place] = span(result.interval, metric.decimals)
        best = f"best {by.on_way.words} during training, {by.on_way.symbol}"
        row[best] = fixed(averaged["best"].mean(), by.on_way.decimals)
        row["train–validation gap, nats"] = fixed(averaged["gap"].mean(), 4, sign=True)
        row[f"loss at {duration(by.seconds)}, nats"] = fixed(averaged[f"{by.timed}_at_equal_time"].mean(), 4)
        if (target := by.targets.get(str(name))) is not None:
            ended = own[own["status"].isin(["finished", "diverged"])]
            which = "its target" if len({*by.targets.values()}) > 1 else f"{plain(target)} nats"
            row[f"time to {which}"] = time_to_target(ended["target_seconds"].fillna(math.inf))
        rows.append(row)
        mean = finished[by.primary.tag].mean() if by.primary.tag in finished else math.nan
        badness.append(math.inf if math.isnan(mean) else mean if by.primary.lower_is_better else -mean)
    rows = [rows[place] for place in np.argsort(badness, kind="stable")]
    ran = ran_as(study.arms)
    return made("arms", "Results of each arm", rows, by=by, evaluated=evaluations_in_words(study.runs), ran=ran)


def time_to_target(times: pd.Series) -> str:
    """Return the median time of an arm's runs to the target, where some never got there also how many did."""
    reached = int(np.isfinite(times).sum())
    some = f" ({reached} of {len(times)})" if 0 < reached < len(times) else ""
    return ("not reached" if times.median() == math.inf else duration(times.median())) + some


def costs_table(runs: pd.DataFrame) -> Table:
    """Say what the arms cost and how calm they were."""
    ends = runs["status"].str.replace("_", " ").replace(["running", "interrupted"], "unfinished")
    ends = ends.mask(runs["trained"].eq(False), "did not train")
    sums = {"memory": runs["peak_memory_bytes"] / 2**20} | {words: ends.eq(words) for words in BAD}
    sums["seconds"] = runs["training_seconds"].where(runs["status"] == "finished")
    arms = runs.assign(**sums).groupby("arm", sort=False)
    counts = arms["operators_a_step"].median()
    columns = {
        **({"processes": arms["processes"].max().map(str)} if runs["processes"].max() > 1 else {}),
        "norms run as": arms["implementation"].agg(lambda own: " or ".join(filter(None, own.unique())) or NONE),
        "step time, ms": arms["step_median_ms"].median().map(significant),
        "90th percentile, ms": arms["step_p90_ms"].median().map(significant),
        **({"operators a step": counts.map("{:,.0f}".format, na_action="ignore").fillna(NONE)} if counts.any() else {}),
        "steps timed": arms["steps_timed"].sum().map("{:,.0f}".format),
        "training time": arms["seconds"].mean().map(duration),
        "peak memory, MiB": arms["memory"].median().map(significant),
        **{words: arms[words].agg(lambda own: f"{own.sum()} of {len(own)}" if own.any() else "0") for words in BAD},
        "spikes": arms["spikes"].mean().map(lambda share: NONE if math.isnan(share) else f"{100 * share:.2g} %"),
    }
    return made("costs", "Cost and stability", pd.DataFrame(columns).reset_index())


def activations_table(blocks: pd.DataFrame) -> Table:
    """Say what probes measured last in the first, the middle and the last block of each arm.

    blocks: as `activations_frame` has them.
    """
    rows = []
    for name, own in blocks.groupby("arm", sort=False):
        shown = own.iloc[sorted({0, len(own) // 2, len(own) - 1})]
        words = shown[[*IN_BLOCKS]].apply(lambda own: " → ".join(map(significant, own)) if own.notna().any() else NONE)
        trend = own["block"].corr(own["mean γ"], method="spearman") if own["mean γ"].nunique() > 2 else math.nan
        row = {"arm": name, "n": str(own["seeds"].max()), "blocks": str(len(own)), **words}
        rows.append(row | {"γ with depth": fixed(trend, 2, sign=True)})
    return made("activations", "Activations by depth", rows, heads=3)


# ---- the differences


def pair_of(one: Paired) -> dict[str, str]:
    """Return the columns that say what is compared, and over how many seeds."""
    seeds = f"{one.n} of {one.tried}" if one.n < one.tried else str(one.n)
    return {"arm": one.arm, "against": one.baseline, "seeds": seeds}


def differences_table(found: Sequence[Difference], primary: bool = True) -> Table:
    """Compare each arm with its baseline. primary: whether the verdict speaks of this table."""
    metric, family = found[0].metric, found[0].family
    sign = 1 if metric.lower_is_better else -1
    comparisons = sorted(found, key=lambda one: sign * one.mean if one.n else math.inf)
    key = "differences" if primary else f"differences-{metric.tag.partition('/')[0]}"
    title, rows = f"Differences in {metric.words}", []
    for one in comparisons:
        places = wording.precision(one.mean, one.interval) if one.n else 0
        row = pair_of(one) | {
            f"difference, {metric.unit}": NONE if one.torn else fixed(one.mean, places, sign=bool(one.mean)),
            "95 % interval": span(one.interval, places, sign=True),
            "effect size": wording.effect(one.effect_size),
            "p": wording.chance(one.p),
            "p after Holm": NONE if family == 1 and one.corrected == one.p else wording.chance(one.corrected),
            "Wilcoxon p": wording.chance(one.ranked_p),
            "minimum detectable effect": detectable_of(one),
            "found": FOUND.get(one.verdict, "not shown").format(compared(one).partition(" ")[0]),
        }
        rows.append(row)
    marked = [place for place, one in enumerate(comparisons) if one.real]
    return made(key, title, rows, 2, marked, metric=metric, family=family, primary=primary)


def detectable_of(one: Difference) -> str:
    """Write the detectable difference, and its interval in brackets."""
    interval = one.detectable_interval
    if interval is None:
        return NONE
    return f"{wording.bound(one.detectable)} ({wording.bound(interval.lower)} to {wording.bound(interval.upper)})"


def step_times_table(comparisons: Sequence[Comparison]) -> Table:
    """Say how long a step takes, as a multiple of the baseline's, where seeds were timed in both."""
    rows = [row for one in comparisons if (row := ratios_of(one, {"step times": lambda run: run.step_ms}))]
    ran = ran_as(side for one in comparisons for side in (one.arm, one.baseline))
    return made("step-times", "Ratios of step times", rows, heads=2, ran=ran)


def noise_table(comparisons: Sequence[Comparison]) -> Table:
    """Say how noisy gradients are, as multiples of the baseline's, where seeds were probed in both."""
    measured: dict[str, Callable[[Run], float]] = {"gradient variances": lambda run: gradient_noise(run)[0],
                                                   "noise scales": lambda run: gradient_noise(run)[1]}  # fmt: skip
    rows, crossing = [], set[str]()
    for one in comparisons:
        if row := ratios_of(one, measured):
            scale, _ = statistics.mean_interval(known(gradient_noise(run)[1] for run in one.arm.runs))
            rows.append({**row, "noise scale, examples": significant(scale)})
            crossing |= {side.name for side in (one.arm, one.baseline) for run in side.runs
                         if run.summary.get("norm_facts", {}).get("crosses_samples")}  # fmt: skip
    return made("noise", "Gradient noise", rows, heads=2, crossing=sorted(crossing))


def ratios_of(one: Comparison, measured: Mapping[str, Callable[[Run], float]]) -> dict[str, str]:
    """Return a row of ratios of what is measured of runs to the baseline's, by seed; empty where no seed has the first.

    They are geometric means with the t interval of the logarithms.
    """
    row: dict[str, str] = {}
    for place, (name, measure) in enumerate(measured.items()):
        sides = (by_seed(arm.runs, measure) for arm in (one.arm, one.baseline))
        ratio = statistics.paired_difference(*({seed: math.log2(side[seed]) for seed in side} for side in sides))
        if not row and not ratio.n:
            return {}
        mean, ends = 2.0**ratio.mean, ratio.interval and ratio.interval.powers
        places = wording.precision(mean, ends) if ends else 2
        row = row or {"arm": one.arm.name, "against": one.baseline.name, "seeds": str(ratio.n)}
        row |= {f"ratio of {name}": fixed(mean, places), "95 % interval" + " " * place: span(ends, places)}
    return row


def designs_table(found: Sequence[Effect]) -> Table:
    """Say what factors do to arms, less what they do to their baselines."""
    rows = []
    for one in (one for one in found if one.n):
        ratio, places = one.kind == EffectKind.LARGEST, wording.precision(one.mean, one.interval)
        own, other = (sum(side) / one.n for side in (one.own, one.other))
        ends = one.interval.powers if ratio and one.interval else one.interval
        row = {
            "what": step_of(one),
            **pair_of(one),
            "for the arm": f"{2**own:.3g}" if ratio else fixed(own, places, sign=one.kind != EffectKind.AREA),
            "for the baseline": f"{2**other:.3g}" if ratio else fixed(other, places, sign=one.kind != EffectKind.AREA),
            "difference": f"× {2**one.mean:.2g}" if ratio else f"{fixed(one.mean, places, True)} {one.metric.unit}",
            "95 % interval": span(ends, 2 if ratio else places, sign=not ratio),
            "p": wording.chance(one.p),
            "p after Holm": NONE if one.family == 1 else wording.chance(one.corrected),
        }
        rows.append(row)
    marked = [place for place, one in enumerate(found) if one.real]
    kinds = {one.kind for one in found}
    return made(
        "designs", "Crossed factors", rows, 3, marked, kinds=kinds, family=max((one.family for one in found), default=1)
    )


# ---- levels of settings that are numbers, and runs that give no result


def survival_table(arms: Sequence[Arm], key: str) -> Table:
    """Say at which levels of a setting arms train, in how many of the runs that have ended, and up to which level."""
    rows, word = [], key.rpartition(".")[2]
    for one in tried_levels(arms, key):
        ended = {level: [not is_lost(run) for run in arm.runs if run.ended] for level, arm in one.by_level.items()}
        row = {"arm": one.arm.name} | {f"{plain(at)}": f"{sum(own)} of {len(own)}" for at, own in ended.items() if own}
        for words, share in (("all", 1.0), ("most", 0.5)):
            upto = max((at for at, own in ended.items() if own and sum(own) >= share * len(own)), default=None)
            row[f"{words} train up to"] = NONE if upto is None else plain(upto)
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
        row = {
            "arm": one.arm.name,
            "rates tried": ", ".join(f"{rate:g}" for rate in one.losses),
            "best rate": f"{one.best:g}",
            "loss there, nats": fixed(one.losses[one.best], 4),
            "sensitivity, nats": fixed(sensitivity, 4),
            "95 % interval": span(interval, 4),
            "lost or did not train": ", ".join(f"{n} at {rate:g}" for rate, n in one.lost.items() if n) or "0",
        }
        rows.append(row)
    return made("rates", "Learning-rate sensitivity", rows)


def search_table(found: Sequence[Search]) -> Table:
    """Say among which learning rates that of each arm was chosen, and how these did on the data that choose."""
    rates = sorted({rate for one in found for rate in one.losses})
    rows = []
    for one in found:
        means = {f"at {rate:g}": search_cell(one, rate) for rate in rates}
        chosen = NONE if one.chosen is None else f"{one.chosen:g}"
        rows.append({"arm": one.arm.name, "chosen": chosen, **means, "at an end of those tried": one.edge or NONE})
    return made("search", "Search for the learning rate, held-out loss in nats", rows, seeds=search_seeds(found))


def search_cell(one: Search, rate: float) -> str:
    """Write what an arm reached at a rate."""
    if rate not in one.losses:
        return NONE
    return f"{one.lost[rate]} lost" if one.lost[rate] else fixed(one.means[rate], 4)


def search_seeds(found: Sequence[Search]) -> int:
    """Return how many seeds have chosen, at the most."""
    return max((len(own) for one in found for own in one.losses.values()), default=0)


def lost_table(study: Study) -> Table:
    """Name what did not finish, and why."""
    rows = [
        {
            "run": run.name,
            "arm": arm.name,
            "seed": str(run.seed),
            "status": run.status.replace("_", " "),
            "step": f"{run.step:,} of {run.steps:,}",
            "why": run.message or NONE,
            "its command": run.session["command"],
        }
        for arm, run in study.pairs
        if run.status != "finished"
    ]
    return made("lost", "Runs that did not finish", rows, heads=7)


# ---- two arms


def settings_table(first: Arm, second: Arm) -> Table:
    """Say in which settings the arms differ, groups first."""
    keys = {key for run in (*first.runs, *second.runs) for key in run.config if not key.endswith("_target_")}
    shown = [*GROUPS, *sorted(keys.difference(GROUPS, ASIDE))]
    frame = pd.DataFrame({"setting": shown})
    for arm in (first, second):
        values = [dict.fromkeys(run.config.get(key) for run in arm.runs) for key in shown]
        frame[arm.name] = [", ".join(map(in_words, own)) for own in values]
    frame = frame[frame[first.name] != frame[second.name]]
    notes = () if len(frame) else ("The configurations do not differ.",)
    return Table("settings", "What differs", frame, notes, heads=3)


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
    n, sd = one.n, one.sd
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
