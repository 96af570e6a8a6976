"""Factors that are crossed: how the arms ended over the levels of another factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from normbench.analysis.comparisons import Baseline
from normbench.analysis.designs import Crossing, crossings
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import Figure, described
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm
from normbench.analysis.statistics import mean_interval
from normbench.analysis.wording import in_words

MOST = 3  # figures


def interactions(arms: Sequence[Arm], baseline: Baseline, metric: Metric, note: str) -> list[Figure]:
    """Draw a figure for each two factors that are crossed."""
    drawn = [one for one in crossings(arms, baseline, metric) if len(one.cells.columns) > 3]
    return [draw_interaction(one, metric, note) for one in drawn[:MOST]]


def draw_interaction(one: Crossing, metric: Metric, note: str) -> Figure:
    """Draw a line for each level of the subject over those of the factor, with t intervals."""
    subject, factor = (key.rpartition(".")[2] for key in (one.subject, one.factor))
    rows = []
    for place, level in one.cells.columns:
        seeds = known(one.cells[place, level].groupby(level="seed").mean())
        mean, interval = mean_interval(seeds, metric.bounds)
        low, high = interval or (mean, mean)
        row = {"arm": one.arms[place].name, factor: one.levels[level], "place": level, "seeds": len(seeds)}
        rows.append({**row, "mean": mean, "low": low, "high": high})
    data = pd.DataFrame(rows)
    panels = grid.panels_of(one.arms, set(data["arm"]))
    canvas, panes = grid.draw_grid(panels, factor, f"final {metric.words} ({metric.symbol})", named="lines")
    beyond, more = grid.limit(panes[0], data, metric, max(len(entries) for _, entries in panels))
    for (_, entries), pane in zip(panels, panes, strict=True):
        for place, entry in enumerate(entries):
            shift = 0.03 * (place - (len(entries) - 1) / 2)
            own = data[data["arm"] == entry.arm.name]
            reach = own["mean"] - own["low"], own["high"] - own["mean"]
            look: dict[str, Any] = {
                "color": entry.color,
                "marker": entry.marker,
                "linestyle": entry.dash,
                "mfc": "none",
            }
            drawn = pane.errorbar(own["place"] + shift, own["mean"], reach, elinewidth=1, **look).get_children()
            for at in own.loc[beyond, ["place", "mean"]].to_numpy():
                drawn += (grid.arrow(pane, at, place, entry.color, metric),)
            for artist in drawn:
                artist.set_gid(grid.gid_of(entry.arm, ""))
        pane.set_xticks(range(len(one.levels)), [grid.plain(in_words(level), 20) for level in one.levels])
    facts = {"metric": metric, "subject": subject, "factor": factor, "others": len(one.cells.index.names) > 1}
    return described(f"interaction-{subject}-{factor}", "interaction", canvas, data, note + more, **facts)
