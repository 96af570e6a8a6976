"""The tables of a report: rows of words, which a page and a text both show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from normbench.analysis.comparisons import Comparison
from normbench.analysis.measures import Measures, Metric, Yardstick, known
from normbench.analysis.records import Run
from normbench.analysis.sensitivity import Tried
from normbench.analysis.statistics import Interval, mean_interval

NONE = "–"
BAD = {"diverged": "diverged", "out_of_memory": "out of memory", "failed": "failed"}
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


# ---- figures in words


def fixed(value: float | None, digits: int, sign: bool = False) -> str:
    """A number with so many decimals."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent."""
    if not math.isfinite(value) or value == 0:
        return NONE if value else "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def decimals_of(metric: Metric) -> int:
    """Decimals of a metric's values."""
    return 2 if metric.scale == 100 else 4


def chance(p: float | None) -> str:
    """A p value."""
    return NONE if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def span(interval: Interval | None, digits: int, sign: bool = False) -> str:
    """An interval."""
    return f"{fixed(interval.lower, digits, sign)} to {fixed(interval.upper, digits, sign)}" if interval else NONE


def duration(seconds: float) -> str:
    """A time for people."""
    if not math.isfinite(seconds):
        return NONE
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{significant(seconds / size)} {unit}"
    return f"{significant(seconds)} s"


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
    columns += [f"loss at {duration(by.seconds or math.nan)}, nats", f"time to {significant(by.target)} nats"]
    split = {"loss/val": "validation", "loss/train": "training"}[by.timed]
    whose = "as asked" if by.given else "where the baseline ends"
    notes = (
        "Means over the seeds that finished (n finished of all), with Student's t interval; other columns are means.",
        "The best value on the way is chosen on the validation data, so it flatters: it judges nothing.",
        f"The two columns of time take the {split} loss: at {duration(by.seconds or math.nan)} of training, which "
        f"every finished run had, and until {significant(by.target)} nats ({whose}). Training time is step time × "
        "steps, without evaluation, probing, checkpoints and warm-up.",
    )
    rows = tuple(result_row(name, own, by) for name, own in measures.items())
    return Table("arms", "Results of each arm", notes, tuple(columns), rows)


def result_row(name: str, own: Sequence[Measures], by: Yardstick) -> tuple[str, ...]:
    """One arm."""
    finished = sum(one.run.status == "finished" for one in own)
    row = [name, str(finished) if finished == len(own) else f"{finished} of {len(own)}"]
    for metric in by.metrics:
        values = known(one.final(metric) for one in own)
        estimate = mean_interval(values) if values else None
        row += [fixed(estimate.mean, decimals_of(metric)) if estimate else NONE]
        row += [span(estimate.interval if estimate else None, decimals_of(metric))]
    row.append(fixed(mean_of(one.best[0] for one in own if one.run.status == "finished"), decimals_of(by.primary)))
    row += [fixed(mean_of(one.gap for one in own), 4, sign=True), fixed(mean_of(one.timed_loss for one in own), 4)]
    times = known(one.target_seconds for one in own)
    some = f" ({len(times)} of {len(own)})" if 0 < len(times) < len(own) else ""
    return (*row, (duration(mean_of(times)) if times else "not reached") + some)


def costs_table(measures: Mapping[str, Sequence[Measures]]) -> Table:
    """What the arms cost and how calm they were."""
    columns = ("arm", "step time, ms", "p90, ms", "steps timed", "training time", "peak memory, MiB")
    notes = (
        "Step time: median over the runs of their medians and 90th percentiles; no warm-up, evaluation or probing.",
        "Spikes: the share of logged training losses at least 7 standard deviations from the mean of the 1,000 before.",
    )
    rows = tuple(cost_row(name, own) for name, own in measures.items())
    return Table("costs", "Cost and stability", notes, (*columns, *BAD.values(), "unfinished", "spikes"), rows)


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
    baselines = {one.baseline.name for one in comparisons}
    same = len(baselines) == 1
    columns = (
        "arm", *(() if same else ("against",)), "seeds", f"difference, {metric.unit}", "95 % interval", "effect size",
        "p", "p after Holm", "Wilcoxon p", "smallest to be shown", "found",
    )  # fmt: skip
    better = "below zero" if metric.lower_is_better else "above zero"
    notes = (
        f"Arm less baseline, paired by seed: {better}, the arm is better. Interval and p: paired t. Effect size: mean "
        "over standard deviation of the differences, unbiased (Hedges' g). Holm corrects p over this table; each "
        "interval stands for itself. Wilcoxon: signed ranks, from six seeds on.",
        "Smallest to be shown: a true difference of this size would have been found four times in five with so "
        "many seeds, correction included.",
    )
    rows = [difference_row(one, decimals_of(metric)) for one in comparisons]
    marked = frozenset(place for place, one in enumerate(comparisons) if one.real)
    title = f"Differences in {metric.words}" + (f" from {baselines.pop()}" if same else "")
    shown = tuple((row[0], *row[2:]) if same else row for row in rows)
    return Table(key, title, notes, columns, shown, heads=1 if same else 2, marked=marked)


def difference_row(one: Comparison, digits: int) -> tuple[str, ...]:
    """One comparison."""
    paired = one.paired
    return (
        one.arm.name,
        one.baseline.name,
        str(one.n) + (f" of {one.n + len(one.unpaired)}" if one.unpaired else ""),
        fixed(paired.mean if paired else None, digits, sign=True),
        span(one.interval, digits, sign=True),
        fixed(paired.effect_size if paired else None, 2, sign=True),
        chance(paired.p if paired else None),
        chance(one.corrected),
        chance(paired.wilcoxon_p if paired else None),
        fixed(one.detectable, digits),
        found(one),
    )


def found(one: Comparison) -> str:
    """The last column."""
    if one.interval is None:
        return "too few seeds"
    return ("better" if one.better else "worse") if one.real else "no difference"


# ---- learning rates


def rates_table(tried: Sequence[Tried]) -> Table:
    """How the arms take to the learning rate."""
    columns = ("arm", "rates tried", "best rate", "loss there, nats", "sensitivity, nats", "95 % interval", "lost runs")
    notes = (
        "Sensitivity: the mean over the rates of min(final validation loss, loss at the start), less the loss at the "
        "best rate (Wortsman et al. 2023), averaged over the seeds that ended at every rate; lower is calmer. A run "
        "that diverged counts its loss at the start.",
    )
    return Table("rates", "Learning-rate sensitivity", notes, columns, tuple(map(rate_row, tried)))


def rate_row(one: Tried) -> tuple[str, ...]:
    """One arm."""
    estimate = mean_interval(one.sensitivity) if one.sensitivity else None
    return (
        one.name,
        ", ".join(f"{rate:g}" for rate in one.losses),
        f"{one.best:g}",
        fixed(one.losses[one.best], 4),
        fixed(estimate.mean if estimate else None, 4),
        span(estimate.interval if estimate else None, 4),
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
