"""The tables of a report and of a comparison: data frames of words, which a page, a text and a terminal show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from normbench.config.rules import short_name
from normbench.config.sections import GROUPS
from normbench.errors import UsageError
from normbench.evidence.arms import Arm, Pair
from normbench.evidence.facts import ran_as
from normbench.evidence.measures import (
    IN_BLOCKS,
    Metric,
    evaluations_in_words,
    final,
    finite_numbers,
    gradient_noise,
    seconds_at,
)
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import ASIDE, RecordedStudy
from normbench.evidence.yardstick import Yardstick
from normbench.results.answer import Answer, ArmEnd, ArmResult
from normbench.results.caveat import OF_TIMES, Caveat
from normbench.results.comparisons import by_seed, in_two_groups
from normbench.results.result import Difference, DifferenceAtSize, EffectKind, FactorEffect, Paired, Scaling
from normbench.results.rules import Verdict
from normbench.results.search import Search
from normbench.results.sensitivity import AREA, Area, TriedLevels, count_trained, tried_levels
from normbench.results.statistics import (
    Sample,
    mean_interval,
    paired_difference,
    paired_power,
    sd_upper_limit,
    seeds_needed,
)
from normbench.results.worth import Ratio, Worth
from normbench.show.table_notes import write_notes
from normbench.tell.designs import name_effect
from normbench.tell.verdicts import word_of_side
from normbench.tell.worth import list_limits, write_ratio_to_loss
from normbench.wording import (
    NONE,
    bound,
    compact,
    duration,
    effect_size,
    fixed,
    in_words,
    multiple,
    p_value,
    percent,
    plain,
    precision,
    rounded_count,
    short,
    significant,
    span,
    whole,
)

# What a difference is called in a word or two, by its verdict.
VERDICT_WORDS = {
    Verdict.DIFFERENT: "{}",
    Verdict.POSSIBLE: "perhaps {}",
    Verdict.CONSTANT: "spread not known",
    Verdict.SAME: "the same",
    Verdict.WITHIN: "within the margin",
    Verdict.ONE_SEED: "too few seeds",
    Verdict.NO_SEED: "too few seeds",
    Verdict.UNTRAINED: "did not train",
    Verdict.FLATTERED: "lost runs",
    Verdict.TORN: "two groups",
}

MOST_SEEDS = 5  # that a cell names
MOST_RUNS = 200  # in the table of all runs, of which runs.csv has all

# Of a standard deviation of the paired differences: what is planned for where no difference is asked for.
USUAL_SIZES = (0.5, 1.0, 2.0)

# What the headings of columns of times begin with, and the sign of caveats that concern them.
TIMES = ("time to", "loss at", "step time", "90th percentile", "training time", "ratio of step times")
OF_TIME = "†"

OF_FEW = "‡"  # the sign of what is seen on the way, where runs are evaluated on less there than at the end

# How runs end that are no result: a column each.
BAD = ("did not train", "diverged", "out of memory", "failed", "unfinished")


@dataclass(frozen=True)
class Table:
    """A table of words, as pages show it.

    Attributes:
        key: its anchor in a page.
        title: in words.
        frame: its cells.
        notes: what its columns are.
        heads: how many of the first columns are words; the others are numbers.
        marked: the places of the rows that a reader should see first.
        warnings: what a reader of some columns must know, each behind the sign that their headings have.
    """

    key: str
    title: str
    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    heads: int = 1
    marked: Collection[int] = ()
    warnings: tuple[str, ...] = ()

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells, row by row."""
        return list(self.frame.itertuples(index=False, name=None))

    def transposed(self) -> Table:
        """Return the table with a column for each row: for few rows and many measures."""
        first, *_ = self.frame.columns
        turned = self.frame.set_index(first).T.rename_axis(index=first, columns=None).reset_index()
        return replace(self, frame=turned, heads=1, marked=())


def make_table(
    key: str, title: str, rows: Sequence[Mapping[str, str]] | pd.DataFrame, heads: int = 1, **about: Any
) -> Table:
    """Return rows as a table with its notes, without the columns of numbers that no row has.

    A baseline that is the same in all rows stands in the title. heads: how many of the first columns are words.
    about: what the notes are made of.
    """
    frame = pd.DataFrame(rows)
    baselines = set(frame["against"]) if "against" in frame else set()
    if len(baselines) == 1:
        title = f"{title}, against {baselines.pop()}"
        frame = frame.drop(columns="against")
        heads -= 1
    frame.columns = frame.columns.astype(str).str.rstrip(", ")  # a heading that two columns share has a space in one
    has_numbers = (frame != NONE).any().to_numpy()
    is_head = np.arange(frame.shape[1]) < heads
    frame = frame.loc[:, has_numbers | is_head]
    notes = write_notes(key.partition("-")[0], list(frame), **about)
    return Table(key, title, frame, notes, heads)


def warn(table: Table, sign: str, beginnings: tuple[str, ...], warning: str) -> Table:
    """Return a table with a warning, whose sign is put behind the headings of columns that begin so, if there are some.

    So that it is read where the numbers are that it is about, also by those who read nothing else.
    """
    headings = [f"{name} {sign}" if str(name).startswith(beginnings) else name for name in table.frame]
    if headings == list(table.frame):
        return table
    frame = table.frame.set_axis(headings, axis="columns")
    sentence = f"{sign} {warning[0].upper()}{warning[1:]}."
    return replace(table, frame=frame, warnings=(*table.warnings, sentence))


def warn_of_times(table: Table, caveats: Iterable[Caveat]) -> Table:
    """Return a table whose columns of times say what is unfair about times."""
    unfair = say_of_times(caveats)
    return warn(table, OF_TIME, TIMES, unfair) if unfair else table


def say_of_times(caveats: Iterable[Caveat]) -> str:
    """Return what is unfair about times; empty where nothing is."""
    return "; ".join(caveat.text for caveat in caveats if caveat.kind in OF_TIMES)


def some_of(number: int, of: int) -> str:
    """Write a number of a total, such as `3 of 5`; `5` alone where it is all of them."""
    return str(of) if number == of else f"{number} of {of}"


# ---- the arms


def summary_table(answer: Answer) -> Table:
    """Return the table that a page begins with: how each arm that is compared ended, and what was found, best first."""
    metric = answer.question.metric
    differences = {difference.arm: difference for difference in answer.differences}
    worth_of = {worth.arm: worth for worth in answer.worth}
    in_time = any(worth.of_time for worth in answer.worth)
    baselines = {difference.baseline for difference in answer.differences}
    compared = [arm for arm in answer.arms if arm.compared_as is not None]
    compared.sort(key=lambda arm: badness_of_mean(arm.results[0].mean, metric))
    rows = []
    for arm in compared:
        name, end = str(arm.compared_as), arm.results[0]
        row = {"arm": name, "seeds": some_of(end.n, len(arm.seeds)), heading_of(metric): write_mean(metric, end)}
        if name in differences:
            difference = differences[name]
            row["against"] = difference.baseline
            row.update(columns_of_difference(difference))
            row["found"] = found_in(difference)
            if name in worth_of:
                what = "time" if in_time else "steps"
                row[f"{what} to the same loss"] = write_ratio_to_loss(worth_of[name], in_time)
        elif name in baselines:
            row["found"] = "baseline"
        elif not differences:
            row["95 % interval"] = write_interval(metric, end)
        rows.append(row)
    frame = pd.DataFrame(rows).fillna(NONE)
    if differences:
        frame["found"] = frame.pop("found")  # the last column
    title = metric.final_words[0].upper() + metric.final_words[1:]
    if len(baselines) == 1:
        title += f", and its difference from {baselines.pop()}"
        frame = frame.drop(columns="against")
    return make_table("summary", title, frame, metric=metric, paired=bool(differences))


def results_table(runs: pd.DataFrame, study: RecordedStudy, yardstick: Yardstick, arms: Sequence[ArmResult]) -> Table:
    """Return the table of how well the arms ended, the best one first. runs: as `runs_frame` has them."""
    results = {arm.name: arm for arm in arms}
    rows, badness = [], []
    for arm in study.arms:
        runs_of_arm = runs[runs["arm"] == arm.name]
        finished = runs_of_arm[runs_of_arm["status"] == "finished"]
        rows.append(result_row(arm, runs_of_arm, finished, yardstick, results[arm.name]))
        badness.append(badness_of(finished, yardstick.primary))
    best_first = np.argsort(badness, kind="stable")
    evaluated = evaluations_in_words(study.runs)
    table = make_table(
        "arms",
        "Results of each arm",
        [rows[place] for place in best_first],
        yardstick=yardstick,
        evaluated=evaluated,
        ran=ran_as(study.arms),
    )
    if not evaluated or not any(is_worse_on_the_way(runs_of_arm, yardstick) for _, runs_of_arm in runs.groupby("arm")):
        return table
    few = f"on {evaluated}, while the final value is on all validation data: so it may be worse than that"
    return warn(table, OF_FEW, ("best ",), few)


def is_worse_on_the_way(own: pd.DataFrame, yardstick: Yardstick) -> bool:
    """Tell whether an arm's best value on the way, which should be at least as good as the final one, is worse."""
    metric = yardstick.during_training
    finished = own[own["status"] == "finished"]
    if metric != yardstick.primary or metric.tag not in finished:
        return False
    gain = finished["best"].mean() - finished[metric.tag].mean()
    return bool(gain > 0 if metric.lower_is_better else gain < 0)


def result_row(
    arm: Arm, own: pd.DataFrame, finished: pd.DataFrame, yardstick: Yardstick, result: ArmResult
) -> dict[str, str]:
    """Return the row of how well an arm ended. own: the rows of its runs. finished: those of the runs that finished."""
    row = {"arm": arm.name, "n": some_of(len(finished), len(own))}
    for place, (metric, metric_result) in enumerate(zip(yardstick.metrics, result.results, strict=True)):
        row[heading_of(metric)] = write_mean(metric, metric_result)
        row["95 % interval" + " " * place] = write_interval(metric, metric_result)
    seeds = set(finished["seed"])
    if any(in_two_groups(arm, metric, seeds) for metric in yardstick.metrics):
        finished = finished[:0]  # of two groups there is no mean
    row.update(columns_during_training(finished, yardstick))
    target = yardstick.targets.get(arm.name)
    if target is not None:
        targets = set(yardstick.targets.values())
        which = "its target" if len(targets) > 1 else f"{plain(target)} nats"
        ended = own[own["status"].isin(["finished", "diverged"])]
        times = ended["target_seconds"].fillna(math.inf)
        row[f"time to {which}"] = time_to_target(times, ended["seed"])
    return row


def heading_of(metric: Metric) -> str:
    """Return what heads a column of a metric's values; a mean of logarithms is written as what they are of."""
    return metric.words if metric.in_doublings else f"{metric.words}, {metric.symbol}"


def write_mean(metric: Metric, end: ArmEnd) -> str:
    """Write the mean of an arm's results."""
    return significant(2**end.mean) if metric.in_doublings else fixed(end.mean, metric.decimals)


def write_interval(metric: Metric, end: ArmEnd) -> str:
    """Write the interval of the mean of an arm's results."""
    if not metric.in_doublings:
        return span(end.interval, metric.decimals)
    if end.interval is None:
        return NONE
    return f"{significant(2**end.interval.lower)} to {significant(2**end.interval.upper)}"


def columns_during_training(runs: pd.DataFrame, yardstick: Yardstick) -> dict[str, str]:
    """Return the columns of what the runs of an arm reached before their end, on average."""
    loss = runs[f"{yardstick.timed}_at_equal_time"].mean()
    metric = yardstick.during_training
    return {
        f"best {metric.words} during training, {metric.symbol}": fixed(runs["best"].mean(), metric.decimals),
        "train–validation gap, nats": fixed(runs["gap"].mean(), 4, sign=True),
        f"loss at {duration(yardstick.seconds)}, nats": fixed(loss, 4),
    }


def badness_of(finished: pd.DataFrame, metric: Metric) -> float:
    """Return a number that sorts the best arm first, and one without a result last. finished: the rows of its runs."""
    return badness_of_mean(finished[metric.tag].mean() if metric.tag in finished else math.nan, metric)


def badness_of_mean(mean: float, metric: Metric) -> float:
    """Return a number that sorts the best mean first, and one that is missing last."""
    if math.isnan(mean):
        return math.inf
    return float(mean if metric.lower_is_better else -mean)


def time_to_target(times: pd.Series, seeds: pd.Series) -> str:
    """Write the median time of an arm's runs to the target, how many reached it, and which, where not all did."""
    median = times.median()
    words = "not reached" if median == math.inf else duration(median)
    has_reached = np.isfinite(times)
    reached = int(has_reached.sum())
    if not 0 < reached < len(times):
        return words
    fewer = has_reached if reached <= len(times) / 2 else ~has_reached
    which = name_seeds(sorted(seeds[fewer]))
    if fewer is not has_reached:
        which = f"not {which}"
    return f"{words} ({reached} of {len(times)}: {which})"


def name_seeds(seeds: Sequence[int]) -> str:
    """Name seeds in a cell: `seed 2`, `seeds 0, 3`, or the first of many."""
    listed = ", ".join(map(str, seeds[:MOST_SEEDS]))
    if len(seeds) > MOST_SEEDS:
        listed += ", …"
    return f"seed {listed}" if len(seeds) == 1 else f"seeds {listed}"


def costs_table(runs: pd.DataFrame) -> Table:
    """Return the table of what the arms cost and how stable they were."""
    ends = runs["status"].str.replace("_", " ").replace(["running", "interrupted"], "unfinished")
    ends = ends.mask(runs["trained"].eq(False), "did not train")
    has_several_processes = runs["processes"].max() > 1
    rows = []
    for name, runs_of_arm in runs.assign(end=ends).groupby("arm", sort=False):
        finished = runs_of_arm[runs_of_arm["status"] == "finished"]
        row = {"arm": str(name)}
        if has_several_processes:
            row["processes"] = str(runs_of_arm["processes"].max())
        row["norms run as"] = join_distinct(runs_of_arm["implementation"])
        row["step time, ms"] = significant(runs_of_arm["step_median_ms"].median())
        row["90th percentile, ms"] = significant(runs_of_arm["step_p90_ms"].median())
        row["operators a step"] = whole(runs_of_arm["operators_a_step"].median())
        row["steps timed"] = whole(runs_of_arm["steps_timed"].sum())
        row["training time"] = duration(finished["training_seconds"].mean())
        row["peak memory, MiB"] = significant(runs_of_arm["peak_memory_bytes"].median() / 2**20)
        for end in BAD:
            row[end] = count_of(runs_of_arm["end"], end)
        row["spikes"] = percent(runs_of_arm["spikes"].mean())
        rows.append(row)
    return make_table("costs", "Cost and stability", rows)


def join_distinct(names: pd.Series) -> str:
    """Join names, each once, such as `a or b`."""
    distinct = [name for name in names.unique() if name]
    return " or ".join(distinct) or NONE


def count_of(ends: pd.Series, end: str) -> str:
    """Write how many runs of an arm ended in one way, and of how many."""
    number = int(ends.eq(end).sum())
    return f"{number} of {len(ends)}" if number else "0"


def activations_table(blocks: pd.DataFrame) -> Table:
    """Return the table of what probes measured last in the first, the middle and the last block of each arm.

    blocks: as `activations_frame` has them.
    """
    rows = []
    for name, blocks_of_arm in blocks.groupby("arm", sort=False):
        row = {"arm": str(name), "n": str(blocks_of_arm["seeds"].max()), "blocks": str(len(blocks_of_arm))}
        last = len(blocks_of_arm) - 1
        shown_blocks = blocks_of_arm.iloc[sorted({0, len(blocks_of_arm) // 2, last})]
        for column in IN_BLOCKS:
            values = shown_blocks[column]
            written = " → ".join(map(significant, values))
            row[column] = written if values.notna().any() else NONE
        trend = math.nan
        if blocks_of_arm["mean γ"].nunique() > 2:
            trend = blocks_of_arm["block"].corr(blocks_of_arm["mean γ"], method="spearman")
        row["γ with depth"] = fixed(trend, 2, sign=True)
        rows.append(row)
    return make_table("activations", "Activations by depth", rows, heads=3)


# ---- the differences


def columns_of_pair(one: Paired) -> dict[str, str]:
    """Return the columns that say which arms are compared, and over how many seeds."""
    return {"arm": one.arm, "against": one.baseline, "seeds": some_of(one.n, one.tried)}


def differences_table(found: Sequence[Difference], primary: bool = True) -> Table:
    """Return the table of the differences of arms from their baselines. primary: whether the answer speaks of them."""
    metric, family = found[0].metric, found[0].family
    key = "differences" if primary else f"differences-{metric.kind}"
    ordered = sorted(found, key=badness_of_difference)
    rows = []
    for difference in ordered:
        is_corrected = family > 1 or difference.corrected != difference.p
        row = {
            **columns_of_pair(difference),
            **columns_of_difference(difference),
            "effect size": effect_size(difference.effect_size),
            "p": p_value(difference.p),
            "p after Holm": p_value(difference.corrected) if is_corrected else NONE,
            "Wilcoxon p": p_value(difference.ranked_p),
            "minimum detectable effect": detectable_of(difference),
            "found": found_in(difference),
        }
        rows.append(row)
    title = f"Differences in {metric.words}"
    table = make_table(key, title, rows, heads=2, metric=metric, family=family, primary=primary)
    return replace(table, marked=places_of_real(ordered))


def columns_of_difference(one: Difference) -> dict[str, str]:
    """Return the columns of a mean difference and its interval."""
    digits = precision(one.mean, one.interval) if one.n else 0
    return {
        f"difference, {one.metric.unit}": NONE if one.torn else fixed(one.mean, digits, sign=bool(one.mean)),
        "95 % interval": span(one.interval, digits, sign=True),
    }


def places_of_real(found: Sequence[Paired]) -> list[int]:
    """Return the places of the rows that may be called differences."""
    return [place for place, paired in enumerate(found) if paired.real]


def badness_of_difference(one: Difference) -> float:
    """Return a number that sorts the best arm first, and one without a difference last."""
    return badness_of_mean(one.mean if one.n else math.nan, one.metric)


def found_in(one: Difference) -> str:
    """Write the verdict in a word or two."""
    return VERDICT_WORDS.get(one.verdict, "not shown").format(word_of_side(one))


def detectable_of(one: Difference) -> str:
    """Write the detectable difference, and its interval in brackets."""
    interval = one.detectable_interval
    if interval is None:
        return NONE
    least, most = bound(interval.lower), bound(interval.upper)
    return f"{bound(one.detectable)} ({least} to {most})"


def step_times_table(pairs: Sequence[Pair]) -> Table:
    """Return the table of how long a step takes, as a multiple of the baseline's, where seeds were timed in both."""
    rows, sides = [], []
    for arm, baseline in pairs:
        sides += [arm, baseline]
        ratio = ratio_of(arm, baseline, lambda run: run.step_ms)
        if ratio.n:
            row = columns_of_sides(arm, baseline, ratio.n)
            row["ratio of step times"], row["95 % interval"] = write_ratio(ratio)
            rows.append(row)
    return make_table("step-times", "Ratios of step times", rows, heads=2, ran=ran_as(sides))


def worth_table(found: Sequence[Worth]) -> Table:
    """Return the table of what arms take to the losses of their baselines, in steps and in time."""
    rows = []
    for worth in found:
        if not worth.n:
            continue
        row = {"arm": worth.arm, "against": worth.baseline, "seeds": some_of(worth.n, worth.n + len(worth.lost))}
        row["steps to the same loss, ×"], row["95 % interval"] = columns_of_ratio(worth.of_steps)
        row["step time, ×"], row["95 % interval "] = columns_of_ratio(worth.of_step_time)
        row["time to the same loss, ×"], row["95 % interval  "] = columns_of_ratio(worth.of_time)
        row["seeds that end above the baseline"] = str(len(worth.unreached))
        rows.append(row)
    limits = list_limits(found)
    return make_table("worth", "What it is worth: steps and time to the same loss", rows, heads=2, limits=limits)


def columns_of_ratio(ratio: Ratio | None) -> tuple[str, str]:
    """Return the columns of a ratio and its interval."""
    return (NONE, NONE) if ratio is None else multiple(ratio.mean, ratio.interval)


def crosses_samples(run: RecordedRun) -> bool:
    """Tell whether what a run's norm makes of a sample depends on others."""
    norm_facts = run.summary.get("norm_facts", {})
    return bool(norm_facts.get("crosses_samples"))


def noise_table(pairs: Sequence[Pair]) -> Table:
    """Return the table of how noisy gradients are, as multiples of the baseline's, where seeds were probed in both."""
    rows, crossing = [], set[str]()
    for arm, baseline in pairs:
        variance = ratio_of(arm, baseline, lambda run: gradient_noise(run).variance)
        if not variance.n:
            continue
        scale = ratio_of(arm, baseline, lambda run: gradient_noise(run).scale)
        scales = finite_numbers(gradient_noise(run).scale for run in arm.runs)
        mean_scale, _ = mean_interval(scales)
        row = columns_of_sides(arm, baseline, variance.n)
        row["ratio of gradient variances"], row["95 % interval"] = write_ratio(variance)
        row["ratio of noise scales"], row["95 % interval "] = write_ratio(scale)
        row["noise scale, examples"] = significant(mean_scale)
        rows.append(row)
        for side in (arm, baseline):
            if any(map(crosses_samples, side.runs)):
                crossing.add(side.name)
    return make_table("noise", "Gradient noise", rows, heads=2, crossing=sorted(crossing))


def columns_of_sides(arm: Arm, baseline: Arm, seeds: int) -> dict[str, str]:
    """Return the columns that say which arms are compared, and over how many seeds."""
    return {"arm": arm.name, "against": baseline.name, "seeds": str(seeds)}


def ratio_of(arm: Arm, baseline: Arm, measure: Callable[[RecordedRun], float]) -> Sample:
    """Return the logarithms to base 2 of the ratios of an arm to its baseline, by seed. measure: of a run."""
    return paired_difference(logarithms(arm, measure), logarithms(baseline, measure))


def write_ratio(ratio: Sample) -> tuple[str, str]:
    """Write the geometric mean of ratios and its t interval. ratio: their logarithms to base 2."""
    return multiple(2.0**ratio.mean, None if ratio.interval is None else ratio.interval.as_ratios)


def logarithms(arm: Arm, measure: Callable[[RecordedRun], float]) -> dict[int, float]:
    """Return the logarithm to base 2 of what is measured of an arm's runs, by seed."""
    exponents = {}
    for seed, value in by_seed(arm.runs, measure).items():
        exponents[seed] = math.log2(value)
    return exponents


def designs_table(found: Sequence[FactorEffect]) -> Table:
    """Return the table of what factors do to arms, less what they do to their baselines."""
    rows = []
    for effect in found:
        if not effect.n:
            continue
        row = {"what": name_effect(effect), **columns_of_pair(effect)}
        if effect.kind == EffectKind.LARGEST:
            row.update(columns_of_largest(effect))
        else:
            row.update(columns_of_effect(effect))
        row["p"] = p_value(effect.p)
        row["p after Holm"] = NONE if effect.family == 1 else p_value(effect.corrected)
        rows.append(row)
    kinds = {effect.kind for effect in found}
    family = max((effect.family for effect in found), default=1)
    table = make_table("designs", "Crossed factors", rows, heads=3, kinds=kinds, family=family)
    return replace(table, marked=places_of_real(found))


def columns_of_largest(one: FactorEffect) -> dict[str, str]:
    """Return the columns of the largest levels at which an arm and its baseline train, and their ratio."""
    of_arm = sum(one.own) / one.n
    of_baseline = sum(one.other) / one.n
    ends = one.interval.as_ratios if one.interval else None
    return {
        "for the arm": compact(2**of_arm),
        "for the baseline": compact(2**of_baseline),
        "difference": f"× {compact(2**one.mean, 2)}",
        "95 % interval": span(ends, 2),
    }


def columns_of_effect(one: FactorEffect) -> dict[str, str]:
    """Return the columns of what a factor does to an arm and to its baseline, and the difference of the two."""
    of_arm = sum(one.own) / one.n
    of_baseline = sum(one.other) / one.n
    digits = precision(one.mean, one.interval)
    has_sign = one.kind != EffectKind.AREA
    return {
        "for the arm": fixed(of_arm, digits, sign=has_sign),
        "for the baseline": fixed(of_baseline, digits, sign=has_sign),
        "difference": f"{fixed(one.mean, digits, sign=True)} {one.metric.unit}",
        "95 % interval": span(one.interval, digits, sign=True),
    }


def scaling_table(found: Sequence[Scaling]) -> Table:
    """Return the table of how differences change with the size of the model."""
    rows = []
    for scaling in found:
        digits = precision(scaling.mean, scaling.interval)
        unit = scaling.metric.unit
        smallest = rounded_count(scaling.sizes[0].parameters)
        largest = rounded_count(scaling.sizes[-1].parameters)
        row = {
            **columns_of_pair(scaling),
            "sizes": str(len(scaling.sizes)),
            "parameters": f"{smallest} to {largest}",
            f"change for each tenfold, {unit}": fixed(scaling.mean, digits, sign=True),
            "95 % interval": span(scaling.interval, digits, sign=True),
            "p": p_value(scaling.p),
            "p after Holm": NONE if scaling.family == 1 else p_value(scaling.corrected),
            f"line at the smallest, {unit}": fixed(scaling.at_smallest.mean, digits, sign=True),
            f"line at the largest, {unit}": fixed(scaling.at_largest.mean, digits, sign=True),
            "extrapolated to": rounded_count(scaling.extrapolated.parameters),
            f"extrapolated, {unit}": fixed(scaling.extrapolated.mean, digits_of(scaling.extrapolated), sign=True),
            "95 % interval ": span(scaling.extrapolated.interval, digits_of(scaling.extrapolated), sign=True),
            "p of a bend": p_value(scaling.bend_p),
        }
        rows.append(row)
    family = max((scaling.family for scaling in found), default=1)
    table = make_table("scaling", "Differences by the size of the model", rows, heads=2, family=family)
    return replace(table, marked=places_of_real(found))


def digits_of(one: DifferenceAtSize) -> int:
    """Return with how many decimals to write a difference at a size."""
    return precision(one.mean, one.interval)


# ---- levels of settings that are numbers, and runs that give no result


def survival_table(arms: Sequence[Arm], key: str) -> Table:
    """Return the table of how many runs of arms train at each level of a setting, and up to which level they do."""
    word = short_name(key)
    rows = []
    for levels in tried_levels(arms, key):
        row = {"arm": levels.arm.name}
        all_train, most_train = [], []  # levels
        for level, arm in levels.by_level.items():
            ended = [run for run in arm.runs if run.ended]
            if not ended:
                continue
            train = count_trained(ended)
            row[plain(level)] = f"{train} of {len(ended)}"
            if train == len(ended):
                all_train.append(level)
            if 2 * train >= len(ended):
                most_train.append(level)
        row["all train up to"] = plain(max(all_train)) if all_train else NONE
        row["most train up to"] = plain(max(most_train)) if most_train else NONE
        rows.append(row)
    return make_table(f"survival-{word}", f"Runs that train, by {word}", rows)


def areas_table(mapped: Sequence[Area]) -> Table:
    """Return the table of the share of a grid of two settings in which arms train."""
    rows = []
    for area in mapped:
        share, interval = mean_interval(list(area.shares.values()), AREA.bounds)
        row = {
            "arm": area.arm.name,
            "grid of": area.words,
            "seeds": str(len(area.shares)),
            "cells": str(len(area.cells)),
            "trains, %": fixed(share, 1),
            "95 % interval": span(interval, 1),
        }
        rows.append(row)
    return make_table("areas", "Share of a grid that trains", rows, heads=2)


def rates_table(tried: Sequence[TriedLevels]) -> Table:
    """Return the table of how sensitive arms are to the learning rate."""
    rows = []
    for levels in tried:
        sensitivity, interval = mean_interval(list(levels.sensitivity.values()), (0.0, math.inf))
        lost = []
        for rate, number in levels.lost.items():
            if number:
                lost.append(f"{number} at {short(rate)}")
        row = {
            "arm": levels.arm.name,
            "rates tried": ", ".join(map(short, levels.losses)),
            "best rate": short(levels.best) if levels.trains_at_best else NONE,
            "loss there, nats": fixed(levels.losses[levels.best], 4) if levels.trains_at_best else NONE,
            "sensitivity, nats": fixed(sensitivity, 4),
            "95 % interval": span(interval, 4),
            "lost or did not train": ", ".join(lost) or "0",
        }
        rows.append(row)
    return make_table("rates", "Learning-rate sensitivity", rows)


def search_table(found: Sequence[Search]) -> Table:
    """Return the table of the learning rates that were tried for each arm, their held-out losses, and the choice."""
    rates = set[float]()
    seeds = 0
    for search in found:
        for rate, losses in search.losses.items():
            rates.add(rate)
            seeds = max(seeds, len(losses))
    rows = []
    for search in found:
        row = {"arm": search.arm.name}
        row["chosen"] = write_counts([short(rate) for rate in sorted(search.chosen)])
        for rate in sorted(rates):
            row[f"at {short(rate)}"] = search_cell(search, rate)
        row["at an end of those tried"] = write_counts(search.edges)
        row["curvature, nats per doubling²"] = NONE if search.curvature is None else significant(search.curvature, 2)
        row["what the next rate costs, nats"] = write_neighbours(search)
        rows.append(row)
    length = min((search.length for search in found), default=1.0)
    title = "Search for the learning rate, held-out loss in nats"
    return make_table("search", title, rows, seeds=seeds, length=length)


def write_neighbours(search: Search) -> str:
    """Write how much higher the loss is at the rates next to the best one, such as `+0.012 at 0.001`."""
    costs = [f"{fixed(cost, 3, sign=True)} at {short(rate)}" for rate, cost in search.neighbours.items()]
    return ", ".join(costs) or NONE


def write_counts(words: Sequence[str]) -> str:
    """Write words, each once, with how often it stands there where that is several times: `0.003 (6), 0.01 (4)`."""
    number_of = Counter(words)
    if len(words) == len(number_of) == 1:
        return words[0]
    return ", ".join(f"{word} ({number})" for word, number in number_of.items()) or NONE


def search_cell(one: Search, rate: float) -> str:
    """Write what an arm reached at a rate."""
    if rate not in one.losses:
        return NONE
    if one.lost[rate]:
        return f"{one.lost[rate]} lost"
    return fixed(one.means[rate], 4)


def lost_table(study: RecordedStudy) -> Table:
    """Return the table of the runs that did not finish, and why."""
    rows = []
    for arm, run in study.pairs:
        if run.status == "finished":
            continue
        row = {
            "run": run.name,
            "arm": arm.name,
            "seed": str(run.seed),
            "status": run.status.replace("_", " "),
            "step": f"{whole(run.step)} of {whole(run.steps)}",
            "why": run.message or NONE,
            "its command": run.session["command"],
        }
        rows.append(row)
    return make_table("lost", "Runs that did not finish", rows, heads=7)


def runs_table(study: RecordedStudy, metric: Metric) -> Table:
    """Return the table of all runs. metric: the primary one."""
    rows = []
    for arm, run in study.pairs:
        row = {
            "run": run.name,
            "arm": arm.name,
            "seed": str(run.seed),
            "status": run.status.replace("_", " "),
            "step": whole(run.step),
            f"{metric.words}, {metric.symbol}": fixed(final(run, metric), metric.decimals),
            "training time": duration(float(seconds_at(run, run.step))),
        }
        rows.append(row)
    return make_table("runs", "All runs", rows[:MOST_RUNS], heads=4, left_out=len(rows[MOST_RUNS:]))


# ---- two arms


def settings_table(study: RecordedStudy, first: Arm, second: Arm) -> Table:
    """Return the table of the settings in which two arms differ, groups first."""
    keys = set[str]()
    for run in (*first.runs, *second.runs):
        keys.update(study.settings_of(run))
    settings = {key for key in keys.difference(GROUPS, ASIDE) if not key.endswith("_target_")}
    shown = [*GROUPS, *sorted(settings)]
    frame = pd.DataFrame({"setting": shown})
    for arm in (first, second):
        frame[arm.name] = [values_of(study, arm, key) for key in shown]
    frame = frame[frame[first.name] != frame[second.name]]
    notes = () if len(frame) else ("The configurations do not differ.",)
    return Table("settings", "What differs", frame, notes, heads=3)


def values_of(study: RecordedStudy, arm: Arm, key: str) -> str:
    """Write the values that the runs of an arm have in a setting."""
    values: dict[Any, None] = {}  # each once, in their order
    for run in arm.runs:
        values[study.value_of(run, key)] = None
    return ", ".join(map(in_words, values))


def plan_table(one: Difference, difference: float | None) -> Table:
    """Return the table of how many seeds are needed to find a difference; where none is given, of three sizes.

    For each: the seeds by the pilot's standard deviation of paired differences; those by its upper 80 % limit; and the
    share of studies of the pilot's size that would find the difference.

    one: the pilot. difference: in the metric's unit.

    Raises:
        UsageError: the pilot has fewer than two pairs, or no spread, or an arm that did not train, or only in part.
    """
    needs = "a plan needs a pilot whose runs all train"
    if one.untrained:
        raise UsageError(f"{needs}, and those of {' and '.join(one.untrained)} did not: make them train first")
    if one.torn:
        raise UsageError(f"{needs}, and some of {one.torn[0].arm} did not: make them train first")
    n = one.n
    sd = one.sd
    if not sd:
        needs = "a plan needs a pilot of two seeds or more in both arms that do not all differ by the same"
        raise UsageError(f"{needs}, and {n} finished in both: run more seeds")
    cautious = sd_upper_limit(sd, n)
    sizes = [share * sd for share in USUAL_SIZES] if difference is None else [difference]
    rows = []
    for size in sizes:
        power = paired_power(size, sd, n)
        row = {
            f"difference, {one.metric.unit}": plain(size, 3),
            "seeds": whole(seeds_needed(size, sd)),
            "cautious": whole(seeds_needed(size, cautious)),
            f"found with {n} seeds": f"{fixed(100 * power, 0)} %",
        }
        rows.append(row)
    return make_table("plan", "Seeds that a difference needs", rows, heads=0, n=n, sd=sd, unit=one.metric.unit)
