"""The forest plot: differences from the baseline, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.labels import name_settings
from normbench.evidence.measures import Metric
from normbench.results.result import Difference
from normbench.show.figures import captions
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import ForestRow, Mark, forest, gid_of, near_range
from normbench.show.figures.style import Entry, panels_of, take_first, tell_absent
from normbench.wording import fixed, precision, span

MOST_ROWS = 40
TORN = "two groups"  # in the place of a mean
NO_MEAN_YET = "fewer than two seeds finished in it and its baseline"


def draw_forest(differences: Sequence[Difference], arms: Sequence[Arm], notes: Sequence[str] = ()) -> list[Figure]:
    """Draw a row for each arm that has a baseline; nothing where no comparison has two seeds.

    notes: sentences of the caption.
    """
    several = [pair for pair in differences if pair.n > 1]
    shown, more = take_first(several, MOST_ROWS, "rows")
    if not shown:
        return []
    metric = shown[0].metric
    shown = sorted(shown, key=rank)
    data = data_of(shown)
    cut = [pair.arm for pair in several[MOST_ROWS:]]
    absent = tell_absent(arms, data, cut, NO_MEAN_YET)
    ranges = ranges_of(data, metric)
    baselines = baselines_of(shown)
    arm_named = {arm.name: arm for arm in arms}
    entries = {}
    for panel in panels_of(arms):
        for entry in panel.entries:
            entries[entry.arm.name] = entry
    rows, phrases = [], []
    for pair in shown:
        against = "" if len(baselines) == 1 else f" − {other_settings(arm_named[pair.arm], arm_named[pair.baseline])}"
        row = write_row(pair, entries[pair.arm], against)
        rows.append(row)
        phrases.append(f"{pair.arm}{against} {row.words}")
    words = captions.differences(
        metric,
        baselines=baselines,
        rows=phrases,
        torn=any(pair.torn for pair in shown),
        panes=len(ranges),
    )
    better, worse = ("← better", "worse →") if metric.lower_is_better else ("← worse", "better →")
    canvas = forest(rows, f"difference of the {metric.final_words} ({metric.unit})", ranges, ends=(better, worse))
    return [Figure("differences", words.title, [*words.sentences, *notes, *more, *absent], words.alt, canvas, data)]


# ---- the numbers


def rank(one: Difference) -> tuple[bool, float]:
    """Return a key that sorts the best first and those without a mean last."""
    badness = one.mean if one.metric.lower_is_better else -one.mean
    return bool(one.torn), badness


def data_of(shown: Sequence[Difference]) -> pd.DataFrame:
    """Return a row for all that is drawn: each comparison's mean, NaN where it has none, and each of its seeds."""
    rows: list[dict[str, Any]] = []
    for difference in shown:
        names = {"arm": difference.arm, "baseline": difference.baseline}
        mean = np.nan if difference.torn else difference.mean
        low, high = difference.interval or (np.nan, np.nan)
        summary = {"difference": mean, "low": low, "high": high, "corrected_p": difference.corrected}
        rows.append({**names, "kind": "mean", "seed": None, **summary})
        for seed, value in zip(difference.seeds, difference.values, strict=True):
            rows.append({**names, "kind": "seed", "seed": seed, "difference": value})
    return pd.DataFrame(rows, dtype=object)


def ranges_of(data: pd.DataFrame, metric: Metric) -> Mapping[str, tuple[float, float]]:
    """Return the range of all that is drawn; where some of it lies far from the rest, first the range without that."""
    numbers = data[["difference", "low", "high"]].stack().dropna()
    reach = pd.Series([0.0, *numbers], dtype=float)
    close = near_range(reach, metric.lower_is_better)
    whole = (reach.min(), reach.max())
    if close == whole:
        return {"": whole}
    return {"near zero": close, "all": whole}


# ---- the words


def baselines_of(shown: Sequence[Difference]) -> list[str]:
    """Return the names of the baselines, each once."""
    names: dict[str, None] = {}
    for difference in shown:
        names[difference.baseline] = None
    return list(names)


def write_row(one: Difference, entry: Entry, against: str) -> ForestRow:
    """Return the row of a difference. against: what its name says of the baseline."""
    arm = entry.arm
    return ForestRow(
        name=name_settings(arm, list(arm.settings)) + against,
        mark=Mark(entry.color, entry.marker, filled=one.real),
        mean=np.nan if one.torn else one.mean,
        intervals=[] if one.torn or not one.interval else [one.interval],
        words=f"{write_mean(one)}  n = {one.n}",
        dots=one.values,
        gid=gid_of(arm, write_mean_and_interval(one)),
    )


def other_settings(arm: Arm, baseline: Arm) -> str:
    """Name a baseline by the settings in which it differs from the arm."""
    others = {}
    for key, value in baseline.settings.items():
        if arm.settings.get(key) != value:
            others[key] = value
    return Arm(others).name


def write_mean(one: Difference) -> str:
    """Write the mean of a comparison, or that its arms have none."""
    if one.torn:
        return TORN
    return fixed(one.mean, precision(one.mean, one.interval), sign=True)


def write_mean_and_interval(one: Difference) -> str:
    """Write the mean of a comparison, and its interval where it has one."""
    mean, interval = write_mean(one), one.interval
    if interval is None:
        return mean
    return f"{mean} ({span(interval, precision(one.mean, interval), sign=True)})"
