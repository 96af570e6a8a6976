"""The tables of a report: rows of words, which a page and a text both show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from normbench.analysis.comparisons import Comparison
from normbench.analysis.evaluation import evaluations_in_words
from normbench.analysis.measures import Measures, Metric, Yardstick, known
from normbench.analysis.records import Run
from normbench.analysis.sensitivity import Tried
from normbench.analysis.statistics import Estimate, Interval, mean_interval, paired_difference
from normbench.analysis.wording import (
    NONE,
    bound,
    chance,
    decimals_of,
    duration,
    fixed,
    plain,
    precision,
    significant,
    span,
)

BAD = {"diverged": "diverged", "out_of_memory": "out of memory", "failed": "failed"}
PRIMARY = "differences"  # the table of which the verdict speaks
UNFINISHED = ("running", "interrupted")


@dataclass(frozen=True)
class Table:
    """A table. key: its anchor. heads: how many of the first columns are words; the others are figures.

    notes: what the figures are. marked: the rows that are to be seen first.
    """

    key: str
    title: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    heads: int = 1
    marked: frozenset[int] = frozenset()


def without_empty(table: Table) -> Table:
    """The table without the columns of figures that no row has."""
    kept = [
        place
        for place in range(len(table.columns))
        if place < table.heads or any(row[place] != NONE for row in table.rows)
    ]
    columns = tuple(table.columns[place] for place in kept)
    return replace(table, columns=columns, rows=tuple(tuple(row[place] for place in kept) for row in table.rows))


def transposed(table: Table) -> Table:
    """The table with a column for each row: for few rows and many measures."""
    first, *others = table.columns
    rows = tuple((name, *(row[place] for row in table.rows)) for place, name in enumerate(others, 1))
    return replace(table, columns=(first, *(row[0] for row in table.rows)), rows=rows, heads=1, marked=frozenset())


def mean_of(values: Iterable[float]) -> float:
    """The mean of those that are known."""
    found = known(values)
    return sum(found) / len(found) if found else math.nan


def middle(values: Iterable[float]) -> float:
    """The median of those that are known."""
    found = known(values)
    return statistics.median(found) if found else math.nan


# ---- the arms


def results_table(measures: Mapping[str, Sequence[Measures]], by: Yardstick) -> Table:
    """How well the arms ended."""
    columns = ["arm", "n"]
    for metric in by.metrics:
        columns += [f"{metric.words}, {metric.symbol}", "95 % interval"]
    best_kind = by.primary.tag.partition("/")[0]
    columns += [f"best validation {best_kind}, {by.primary.symbol}", "train–validation gap, nats"]
    reach = f"time to {plain(by.target)} nats" if math.isfinite(by.target) else "time to a target"
    columns += [f"loss at {duration(by.seconds or math.nan)}, nats", reach]
    rows = tuple(result_row(name, own, by) for name, own in measures.items())
    table = Table("arms", "Results of each arm", results_notes(by, measures), tuple(columns), rows)
    return without_empty(table)


def results_notes(by: Yardstick, measures: Mapping[str, Sequence[Measures]]) -> tuple[str, ...]:
    """What the figures of the results are."""
    split = {"loss/val": "validation", "loss/train": "training"}[by.timed]
    whose = "as asked" if by.given else "where the baseline ends"
    ends = ", ".join(f"0 and 100 {metric.symbol}" for metric in by.metrics if metric.scale == 100) or "0"
    notes = [
        "Means over the n seeds that have a result (of all), with Student's t interval, cut where no value can be "
        f"({ends}); it stands for each arm alone. Seeds that all end the same have none.",
        "The best value on the way is chosen on the validation data, so it flatters: it judges nothing. The gap is the "
        "final validation loss less the mean training loss of the last logged steps, or that of a final evaluation of "
        "the training data where there is one.",
    ]
    if by.seconds is not None and math.isfinite(by.target):
        notes.append(
            f"The two columns of time take the {split} loss: its mean at {duration(by.seconds)} of training, which "
            f"every finished run had, and the median time until {plain(by.target)} nats ({whose}), where a run that "
            "ends above it counts as never; in brackets, how many got there. Training time is step time × steps, "
            "without evaluation, probing, checkpoints and warm-up."
        )
    if batches := evaluations_in_words(one.run for own in measures.values() for one in own):
        notes.append(
            f"On the way runs were evaluated on {batches}, at the last step on all validation data: the best value, "
            "the target and what is reached by a time are of both kinds, the final values of the second alone."
        )
    return tuple(notes)


def result_row(name: str, own: Sequence[Measures], by: Yardstick) -> tuple[str, ...]:
    """One arm."""
    n = len(known(one.final(by.primary) for one in own))
    row = [name, str(n) if n == len(own) else f"{n} of {len(own)}"]
    for metric in by.metrics:
        values = known(one.final(metric) for one in own)
        estimate = mean_interval(values) if values else None
        row += [fixed(estimate.mean, decimals_of(metric)) if estimate else NONE]
        row += [span(cut(estimate, metric.bounds), decimals_of(metric))]
    row.append(fixed(mean_of(one.best[0] for one in own if one.run.status == "finished"), decimals_of(by.primary)))
    row += [fixed(mean_of(one.gap for one in own), 4, sign=True), fixed(mean_of(one.timed_loss for one in own), 4)]
    return (*row, time_to_target(own, by))


def cut(estimate: Estimate | None, bounds: tuple[float, float]) -> Interval | None:
    """The interval of an estimate, as far as values can be."""
    interval = estimate.interval if estimate else None
    low, high = bounds
    return Interval(max(interval.lower, low), min(interval.upper, high)) if interval else None


def time_to_target(own: Sequence[Measures], by: Yardstick) -> str:
    """The median time of an arm's runs to the target, those that ended above it as never; and how many got there."""
    judged = [one for one in own if one.run.ended]
    if not judged or not math.isfinite(by.target):
        return NONE
    times = [one.target_seconds if math.isfinite(one.target_seconds) else math.inf for one in judged]
    reached = sum(map(math.isfinite, times))
    usual = statistics.median(times)
    some = f" ({reached} of {len(judged)})" if 0 < reached < len(judged) else ""
    return (duration(usual) if math.isfinite(usual) else "not reached") + some


def costs_table(measures: Mapping[str, Sequence[Measures]]) -> Table:
    """What the arms cost and how calm they were."""
    columns: tuple[str, ...] = ("arm", "step time, ms", "p90, ms", "steps timed", "training time", "peak memory, MiB")
    notes = (
        "Step time: median over the runs of their medians and 90th percentiles; no warm-up, evaluation or probing.",
        "Spikes: the share of logged training losses, each a mean over its steps, at least 7 standard deviations from "
        "the mean of the 1,000 before.",
    )
    rows = tuple(cost_row(name, own) for name, own in measures.items())
    columns = (*columns, *BAD.values(), "unfinished", "spikes")
    table = without_empty(Table("costs", "Cost and stability", notes, columns, rows))
    return table if "spikes" in table.columns else replace(table, notes=notes[:1])


def cost_row(name: str, own: Sequence[Measures]) -> tuple[str, ...]:
    """One arm."""
    finished = [one for one in own if one.run.status == "finished"]
    timed = sum(int(one.step_time.get("n") or 0) for one in own)
    statuses = [one.run.status for one in own]
    return (
        name,
        significant(middle(one.step_time.get("median_ms") or math.nan for one in own)),
        significant(middle(one.step_time.get("p90_ms") or math.nan for one in own)),
        f"{timed:,}",
        duration(mean_of(one.seconds for one in finished)),
        significant(middle(one.memory for one in own) / 2**20),
        *(share(statuses.count(status), len(own)) for status in BAD),
        share(sum(status in UNFINISHED for status in statuses), len(own)),
        spikes(mean_of(one.spikes for one in own)),
    )


def share(count: int, total: int) -> str:
    """How many of all."""
    return f"{count} of {total}" if count else "0"


def spikes(value: float) -> str:
    """A share of steps."""
    return NONE if not math.isfinite(value) else f"{100 * value:.2g} %" if value else "0 %"


# ---- the differences


def differences_table(comparisons: Sequence[Comparison], metric: Metric, key: str) -> Table:
    """Each arm against its baseline."""
    columns = (
        "arm", "against", "seeds", f"difference, {metric.unit}", "95 % interval", "effect size", "p", "p after Holm",
        "Wilcoxon p", "smallest to be shown", "found",
    )  # fmt: skip
    family = max((one.family for one in comparisons), default=1)
    rows = tuple(difference_row(one, NONE if family == 1 else chance(one.corrected)) for one in comparisons)
    marked = frozenset(place for place, one in enumerate(comparisons) if one.real)
    table = without_empty(Table(key, f"Differences in {metric.words}", (), columns, rows, heads=2, marked=marked))
    notes = tuple(difference_notes(table.columns, metric, family, key == PRIMARY))
    return of_one_baseline(replace(table, notes=notes), "from")


def difference_notes(columns: Sequence[str], metric: Metric, family: int, primary: bool) -> Iterator[str]:
    """What the columns of differences are. primary: whether the verdict speaks of them; it explains the others."""
    better = "below zero" if metric.lower_is_better else "above zero"
    yield f"Arm less baseline, paired by seed: {better}, the arm is better."
    if "p after Holm" in columns:
        speaks = "which is the one that the verdict speaks of" if primary else "of which the verdict does not speak"
        yield (
            f"Holm corrects p for the {family} comparisons of this table alone, {speaks}. Perhaps: p is below 0.05, "
            "and not once corrected."
        )
    if not primary:
        return
    if "p" in columns:
        yield (
            "Interval and p: paired t; the 95 % are each interval's own, not that of all together. Where every seed "
            "differs by the same, there is neither, as the spread is not known."
        )
        if family == 1:
            yield "One comparison, so p is not corrected; a report over more arms corrects it and may find less."
    if "effect size" in columns:
        yield (
            "Effect size: how many standard deviations of the differences by seed their mean is from zero, unbiased "
            "(Hedges' g): at 1, about five in six seeds differ in the same direction."
        )
    if "Wilcoxon p" in columns:
        yield "Wilcoxon: the test of signed ranks, from six seeds on."
    if "smallest to be shown" in columns:
        yield (
            "Smallest to be shown: a true difference of this size would have been found four times in five with so "
            f"many seeds{', correction included' if family > 1 else ''}, if the spread is as measured."
        )


def difference_row(one: Comparison, corrected: str) -> tuple[str, ...]:
    """One comparison. corrected: its p after Holm."""
    paired, total = one.paired, len(one.seeds)
    places = precision(paired.mean, one.interval) if paired else 0
    return (
        one.arm.name,
        one.baseline.name,
        str(one.n) + (f" of {total}" if one.n < total else ""),
        fixed(paired.mean if paired else None, places, sign=bool(paired and paired.mean)),
        span(one.interval, places, sign=True),
        fixed(paired.effect_size if paired else None, 2, sign=True),
        chance(paired.p if paired else None),
        corrected,
        chance(paired.wilcoxon_p if paired else None),
        bound(one.detectable),
        found(one),
    )


def found(one: Comparison) -> str:
    """The last column."""
    if one.paired is None or one.n < 2:
        return "too few seeds"
    if not one.paired.spreads:
        return "spread not known" if one.paired.mean else "the same"
    worth = "better" if one.better else "worse"
    return worth if one.real else f"perhaps {worth}" if one.possible else "not shown"


def step_times_table(comparisons: Sequence[Comparison]) -> Table | None:
    """How long a step takes, as a multiple of the baseline's; None where no seed was timed in both."""
    columns = ("arm", "against", "seeds", "ratio of step times", "95 % interval")
    rows = tuple(row for one in comparisons if (row := step_time_row(one)))
    if not rows:
        return None
    notes = (
        "Median step time over that of the baseline, paired by seed: geometric mean of the ratios with the t interval "
        "of their logarithms. Runs that shared a machine with others have disturbed times.",
    )
    table = Table("step-times", "Step time, as a multiple", notes, columns, rows, heads=2)
    return of_one_baseline(without_empty(table), "of")


def of_one_baseline(table: Table, link: str) -> Table:
    """The table with the baseline's name, its second column, behind the title and `link`, where all rows have one."""
    names = {row[1] for row in table.rows}
    if len(names) != 1:
        return table
    rows = tuple((row[0], *row[2:]) for row in table.rows)
    title, columns = f"{table.title} {link} {names.pop()}", (table.columns[0], *table.columns[2:])
    return replace(table, title=title, columns=columns, rows=rows, heads=1)


def step_time_row(one: Comparison) -> tuple[str, ...] | None:
    """One comparison."""
    ours, theirs = (log_step_times(arm.runs) for arm in (one.arm, one.baseline))
    if not ours.keys() & theirs.keys():
        return None
    ratio = paired_difference(ours, theirs)
    ends = Interval(math.exp(ratio.interval.lower), math.exp(ratio.interval.upper)) if ratio.interval else None
    places = precision(math.exp(ratio.mean), ends) if ends else 2
    return one.arm.name, one.baseline.name, str(ratio.n), fixed(math.exp(ratio.mean), places), span(ends, places)


def log_step_times(runs: Sequence[Run]) -> dict[int, float]:
    """The logarithm of the median step time (ms) by seed; of several with one seed their mean."""
    found: dict[int, list[float]] = {}
    for run in runs:
        if median := (run.summary.get("step_time") or {}).get("median_ms"):
            found.setdefault(run.seed, []).append(math.log(median))
    return {seed: mean_of(values) for seed, values in found.items()}


# ---- learning rates


def rates_table(tried: Sequence[Tried]) -> Table:
    """How the arms take to the learning rate."""
    columns = ("arm", "rates tried", "best rate", "loss there, nats", "sensitivity, nats", "95 % interval", "lost runs")
    notes = (
        "Sensitivity: the mean over the rates of min(final validation loss, loss at the start), less the loss at the "
        "best rate (Wortsman et al. 2023), averaged over the seeds that ended at every rate; lower is calmer. A run "
        "that diverged counts its loss at the start. Its interval is cut at 0, below which it cannot be.",
    )
    return without_empty(Table("rates", "Learning-rate sensitivity", notes, columns, tuple(map(rate_row, tried))))


def rate_row(one: Tried) -> tuple[str, ...]:
    """One arm."""
    estimate = mean_interval(one.sensitivity) if one.sensitivity else None
    return (
        one.name,
        ", ".join(f"{rate:g}" for rate in one.losses),
        f"{one.best:g}",
        fixed(one.losses[one.best], 4),
        fixed(estimate.mean if estimate else None, 4),
        span(cut(estimate, (0.0, math.inf)), 4),
        ", ".join(f"{count} at {rate:g}" for rate, count in one.lost.items()) or "0",
    )


# ---- runs that give no result


def lost_table(runs: Iterable[tuple[str, Measures]]) -> Table | None:
    """What did not finish, and why; None where all did."""
    columns = ("run", "arm", "seed", "status", "step", "why", "its command")
    rows = tuple(lost_row(arm, one.run) for arm, one in runs if one.run.status != "finished")
    return Table("lost", "Runs that did not finish", (), columns, rows, heads=len(columns)) if rows else None


def lost_row(arm: str, run: Run) -> tuple[str, ...]:
    """One of them."""
    stands, reached = run.status.replace("_", " "), f"{run.step:,} of {run.steps:,}"
    why, command = (" ".join(str(text).split()) or NONE for text in (run.message, run.session.get("command") or ""))
    return run.name, arm, str(run.seed), stands, reached, why, command
