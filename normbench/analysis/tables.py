"""The tables of a report: data frames of words, which a page, a text and a terminal show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis import wording
from normbench.analysis.comparisons import Comparison, by_seed
from normbench.analysis.measures import IN_BLOCKS, NAN, Yardstick, evaluations_in_words, known
from normbench.analysis.records import Run, Study
from normbench.analysis.sensitivity import Tried
from normbench.analysis.statistics import Interval, mean_interval, paired_difference
from normbench.analysis.wording import NONE, duration, fixed, significant, span

# Columns of what did not finish: the statuses that each counts.
BAD = {
    "diverged": ["diverged"],
    "out of memory": ["out_of_memory"],
    "failed": ["failed"],
    "unfinished": ["running", "interrupted"],
}


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
    marked: frozenset[int] = frozenset()

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells, row by row."""
        return list(self.frame.itertuples(index=False, name=None))

    def transposed(self) -> Table:
        """Return the table with a column for each row: for few rows and many measures."""
        first, *_ = self.frame.columns
        turned = self.frame.set_index(first).T.rename_axis(index=first, columns=None).reset_index()
        return replace(self, frame=turned, heads=1, marked=frozenset())


def made(key: str, title: str, rows: pd.DataFrame | Sequence[Mapping[str, str]], heads: int = 1, **about: Any) -> Table:
    """Return rows as a table without the columns of figures that no row has, with the notes that notes.jinja has."""
    frame = pd.DataFrame(rows)
    frame.columns = frame.columns.astype(str).str.rstrip()  # of two with one heading, one has a space until here
    frame = frame.loc[:, (frame != NONE).any().to_numpy() | (np.arange(frame.shape[1]) < heads)]
    notes = wording.paragraphs("notes.jinja", key.partition("-")[0], {"columns": [*frame], **about})
    return Table(key, title, frame, notes, heads)


# ---- the arms


def results_table(runs: pd.DataFrame, study: Study, by: Yardstick) -> Table:
    """Say how well the arms ended. runs: as `runs_frame` has them."""
    rows = [result_row(name, own, by) for name, own in runs.groupby("arm", sort=False)]
    return made("arms", "Results of each arm", rows, by=by, evaluated=evaluations_in_words(study.runs))


def result_row(name: str, own: pd.DataFrame, by: Yardstick) -> dict[str, str]:
    """Return one arm."""
    finished = own[own["status"] == "finished"]
    row = {"arm": name, "n": ""}
    for place, metric in enumerate(by.metrics):
        values = [metric.scale * value for value in known(finished.get(metric.tag, ()))]
        mean, interval = mean_interval(values, metric.bounds)
        row["n"] = row["n"] or str(len(values)) + (f" of {len(own)}" if len(values) < len(own) else "")
        row[f"{metric.words}, {metric.symbol}"] = fixed(mean, metric.decimals)
        row["95 % interval" + " " * place] = span(interval, metric.decimals)
    primary, timed = by.primary, finished[f"{by.timed}_at_equal_time"].mean()
    best = f"best validation {primary.tag.partition('/')[0]}, {primary.symbol}"
    reach = f"time to {wording.plain(by.target)} nats" if math.isfinite(by.target) else "time to a target"
    return row | {
        best: fixed(finished["best"].mean(), primary.decimals),
        "train–validation gap, nats": fixed(finished["gap"].mean(), 4, sign=True),
        f"loss at {duration(by.seconds)}, nats": fixed(timed, 4),
        reach: time_to_target(own[own["status"].isin(["finished", "diverged"])]) if math.isfinite(by.target) else NONE,
    }


def time_to_target(ended: pd.DataFrame) -> str:
    """Return the median time of an arm's runs to the target, where some never got there also how many did."""
    times = ended["target_seconds"].fillna(math.inf)
    reached = int(np.isfinite(times).sum())
    some = f" ({reached} of {len(times)})" if 0 < reached < len(times) else ""
    return ("not reached" if times.median() == math.inf else duration(times.median())) + some


def costs_table(runs: pd.DataFrame) -> Table:
    """Say what the arms cost and how calm they were."""
    arms = runs.assign(
        memory=runs["peak_memory_bytes"] / 2**20,
        seconds=runs["training_seconds"].where(runs["status"] == "finished"),
        **{words: runs["status"].isin(statuses) for words, statuses in BAD.items()},
    ).groupby("arm", sort=False)
    columns = {
        "step time, ms": arms["step_median_ms"].median().map(significant),
        "p90, ms": arms["step_p90_ms"].median().map(significant),
        "steps timed": arms["steps_timed"].sum().map("{:,.0f}".format),
        "training time": arms["seconds"].mean().map(duration),
        "peak memory, MiB": arms["memory"].median().map(significant),
        **{words: arms[words].agg(lambda own: f"{own.sum()} of {len(own)}" if own.any() else "0") for words in BAD},
        "spikes": arms["spikes"].mean().map(spikes),
    }
    return made("costs", "Cost and stability", pd.DataFrame(columns).reset_index())


def spikes(value: float) -> str:
    """Write a share of steps."""
    return NONE if math.isnan(value) else f"{100 * value:.2g} %" if value else "0 %"


def activations_table(blocks: pd.DataFrame) -> Table:
    """Say what probes measured last in the first, the middle and the last block of each arm.

    blocks: as `activations_frame` has them.
    """
    rows = []
    for name, own in blocks.groupby("arm", sort=False):
        shown = own.iloc[sorted({0, len(own) // 2, len(own) - 1})]
        row = {"arm": name, "n": str(own["seeds"].max()), "blocks": str(len(own))}
        for quantity in IN_BLOCKS:
            words = " → ".join(map(significant, shown[quantity]))
            row[quantity] = words if shown[quantity].notna().any() else NONE
        rows.append(row)
    return made("activations", "Activations by depth", rows, heads=3)


# ---- the differences


def differences_table(comparisons: Sequence[Comparison], primary: bool = True) -> Table:
    """Compare each arm with its baseline. primary: whether the verdict speaks of this table."""
    metric, family = comparisons[0].metric, comparisons[0].family
    key = "differences" if primary else f"differences-{metric.tag.partition('/')[0]}"
    rows, title = [difference_row(one) for one in comparisons], f"Differences in {metric.words}"
    table = made(key, title, rows, heads=2, metric=metric, family=family, primary=primary)
    marked = frozenset(place for place, one in enumerate(comparisons) if one.real)
    return of_one_baseline(replace(table, marked=marked), "from")


def difference_row(one: Comparison) -> dict[str, str]:
    """Return one comparison."""
    paired, total = one.paired, len(one.seeds)
    places = wording.precision(paired.mean, one.interval) if one.n else 0
    return {
        "arm": one.arm.name,
        "against": one.baseline.name,
        "seeds": str(one.n) + (f" of {total}" if one.n < total else ""),
        f"difference, {one.metric.unit}": fixed(paired.mean, places, sign=bool(paired.mean)),
        "95 % interval": span(one.interval, places, sign=True),
        "effect size": fixed(paired.effect_size, 2, sign=True),
        "p": wording.chance(paired.p),
        "p after Holm": NONE if one.family == 1 else wording.chance(one.corrected),
        "Wilcoxon p": wording.chance(paired.wilcoxon_p),
        "smallest to be shown": wording.bound(one.detectable),
        "found": found(one),
    }


def found(one: Comparison) -> str:
    """Say in a word or two what was found."""
    worth = "better" if one.better else "worse"
    words = {"different": worth, "possible": f"perhaps {worth}", "constant": "spread not known", "same": "the same"}
    return words.get(one.verdict(), "too few seeds" if one.n < 2 else "not shown")


def step_times_table(comparisons: Sequence[Comparison]) -> Table:
    """Say how long a step takes, as a multiple of the baseline's, where seeds were timed in both."""
    rows = []
    for one in comparisons:
        ratio = paired_difference(*(by_seed(arm.runs, log_step_time) for arm in (one.arm, one.baseline)))
        if ratio.n:
            ends = ratio.interval and Interval(math.exp(ratio.interval.lower), math.exp(ratio.interval.upper))
            mean = math.exp(ratio.mean)
            places = wording.precision(mean, ends) if ends else 2
            row = {"arm": one.arm.name, "against": one.baseline.name, "seeds": str(ratio.n)}
            rows.append({**row, "ratio of step times": fixed(mean, places), "95 % interval": span(ends, places)})
    return of_one_baseline(made("step-times", "Step time, as a multiple", rows, heads=2), "of")


def log_step_time(run: Run) -> float:
    """Return the logarithm of the median step time (ms); NaN where it has none."""
    return math.log((run.summary.get("step_time") or {}).get("median_ms") or NAN)


def of_one_baseline(table: Table, link: str) -> Table:
    """Return the table with the baseline's name behind the title and `link`, where all rows have the same."""
    names = table.frame["against"].unique() if table.rows else []
    if len(names) != 1:
        return table
    return replace(table, title=f"{table.title} {link} {names[0]}", frame=table.frame.drop(columns="against"), heads=1)


# ---- learning rates, and runs that give no result


def rates_table(tried: Sequence[Tried]) -> Table:
    """Say how the arms take to the learning rate."""
    rows = []
    for one in tried:
        sensitivity, interval = mean_interval(one.sensitivity, (0.0, math.inf))
        rows.append(
            {
                "arm": one.arm.name,
                "rates tried": ", ".join(f"{rate:g}" for rate in one.losses),
                "best rate": f"{one.best:g}",
                "loss there, nats": fixed(one.losses[one.best], 4),
                "sensitivity, nats": fixed(sensitivity, 4),
                "95 % interval": span(interval, 4),
                "lost runs": ", ".join(f"{count} at {rate:g}" for rate, count in one.lost.items() if count) or "0",
            }
        )
    return made("rates", "Learning-rate sensitivity", rows)


def lost_table(study: Study) -> Table:
    """Name what did not finish, and why."""
    rows = [
        {
            "run": run.name,
            "arm": arm.name,
            "seed": str(run.seed),
            "status": run.status.replace("_", " "),
            "step": f"{run.step:,} of {run.steps:,}",
            "why": " ".join(run.message.split()) or NONE,
            "its command": " ".join(str(run.session.get("command") or "").split()) or NONE,
        }
        for arm in study.arms
        for run in arm.runs
        if run.status != "finished"
    ]
    return made("lost", "Runs that did not finish", rows, heads=7)
