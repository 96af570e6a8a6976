"""How arms ended: paired differences, and over crossed factors, learning rates and step time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from normbench.analysis.comparisons import Baseline, Comparison, in_two_groups
from normbench.analysis.designs import Crossing, crossings
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import INK, Drawing, Entry, Figure, described, first, panels_of
from normbench.analysis.measures import Metric, known, loss_on
from normbench.analysis.records import Arm, Study, shortened
from normbench.analysis.sensitivity import are_numbers, is_lost, outcome, searches, tried_levels
from normbench.analysis.statistics import mean_interval
from normbench.analysis.wording import fixed, in_words, precision, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 40  # of the forest plot
MOST_CROSSINGS = 3
TORN = "two groups"  # in the place of a mean
WIDE = 8  # times the smallest of some numbers: over a range from there on an axis is logarithmic
TRAINED = Metric("runs that train", "points", "%", 100.0, 0, (0.0, 100.0), lower_is_better=False)

# ---- differences from the baseline, paired by seed


def forest(comparisons: Sequence[Comparison], arms: Sequence[Arm], note: str) -> list[Figure]:
    """Draw a row for each arm that has a baseline; nothing where no comparison has two seeds."""
    several = [one for one in comparisons if one.n > 1]
    drawn, more = first(several, MOST_ROWS, "rows")
    if not drawn:
        return []
    drawn = sorted(drawn, key=lambda one: one.mean if one.metric.lower_is_better else -one.mean)
    drawn.sort(key=lambda one: bool(one.torn))  # those without a mean last
    metric = drawn[0].metric
    looks = {entry.arm.name: entry for _, entries in panels_of(arms) for entry in entries}
    baselines = list(dict.fromkeys(one.baseline.name for one in drawn))
    names = [one.arm.name + (f" − {other_settings(one)}" if len(baselines) > 1 else "") for one in drawn]
    numbers = [f"{mean_told(one)}  n = {one.n}" for one in drawn]
    data = pd.DataFrame([row for one in drawn for row in rows_of(one)], dtype=object)
    cut, few = [one.arm.name for one in several[MOST_ROWS:]], "fewer than two seeds finished in it and its baseline"
    more += grid.absent(arms, data, cut, few)
    reach = pd.Series([0.0, *data[["difference", "low", "high"]].stack().dropna()], dtype=float)
    close, whole = grid.near(reach, metric.lower_is_better), (reach.min(), reach.max())
    ranges = [whole] if close == whole else [close, whole]
    told = [
        grid.words(one.arm, [*one.arm.settings]) + name.removeprefix(one.arm.name)
        for one, name in zip(drawn, names, strict=True)
    ]
    width = grid.blank(1.0).get_figwidth()
    beside = max(map(grid.breadth, numbers)) + 0.15 if len(ranges) == 1 else 0.0
    lines = [grid.wrapped(words, (width - 0.3) / len(ranges) - beside) for words in told]
    row = 0.42 + grid.LINE * (max(map(len, lines)) - 1)  # inches
    canvas = grid.blank(row * len(drawn) + 0.8)
    height = canvas.get_figheight()
    room = {"left": 0.15 / width, "right": 1 - 0.15 / width, "top": 1 - 0.22 / height, "bottom": 0.56 / height}
    panes = canvas.subplots(1, len(ranges), sharey=True, squeeze=False, gridspec_kw={**room, "wspace": 0.12})[0]
    for axes, (low, high), title in zip(panes, ranges, ("near zero", "all"), strict=False):
        axes.set_title(title if len(ranges) > 1 else "")
        axes.spines["left"].set_visible(False)
        axes.vlines([0] * len(drawn), np.arange(len(drawn)) - 0.12, np.arange(len(drawn)) + 0.46, INK, linewidth=0.8)
        pad = grid.ROOM * ((high - low) or 1)
        axes.set_xlim(low - pad, high + pad)
        axes.locator_params(axis="x", nbins=6 // len(ranges) + 1, min_n_ticks=3)
        for place, one in enumerate(drawn):
            draw_difference(axes, place, one, looks[one.arm.name])
    for place, (one, number) in enumerate(zip(drawn, numbers, strict=True)):
        how = {"va": "bottom", "linespacing": 1.0, "gid": grid.gid_of(one.arm, "")}
        above = place - 0.07 / row
        panes[0].text(0, above, "\n".join(lines[place]), transform=panes[0].get_yaxis_transform(), **how)
        panes[-1].text(1, above, number, transform=panes[-1].get_yaxis_transform(), ha="right", **how)
    panes[0].set(ylim=(len(drawn) - 1 + 0.22 / row, 0.19 / row - 1), yticks=[])  # dots of the last row stand below it
    better, worse = ("better", "worse") if metric.lower_is_better else ("worse", "better")
    about = f"difference of the final {metric.words} ({metric.unit})\n← {better}      {worse} →"
    canvas.supxlabel(about, y=0.02 / height)
    facts = {"metric": metric, "baselines": baselines, "pairs": list(zip(names, numbers, strict=True))}
    facts["torn"] = any(one.torn for one in drawn)
    drawing = Drawing(panes[0], "", "", data)
    return described("differences", "differences", [drawing], note + more, **facts, panes=len(ranges))


def other_settings(one: Comparison) -> str:
    """Name a baseline by the settings that it has otherwise than the arm."""
    mine = one.arm.settings
    return Arm({key: value for key, value in one.baseline.settings.items() if mine.get(key) != value}).name


def mean_told(one: Comparison) -> str:
    """Write the mean of a comparison, or that its arms have none."""
    return TORN if one.torn else fixed(one.mean, precision(one.mean, one.interval), sign=True)


def draw_difference(axes: Axes, place: int, one: Comparison, entry: Entry) -> None:
    """Draw one comparison: mean, interval, below it each seed at its own height; an arrow to a mean beyond.

    Of an arm whose runs end in two groups the seeds alone.
    """
    heights = place + 0.2 + min(0.06, 0.24 / one.n) * np.arange(one.n)
    value = mean_told(one)
    if one.interval:
        value += f" ({span(one.interval, precision(one.mean, one.interval), True)})"
    look: dict[str, Any] = {"color": entry.color, "gid": grid.gid_of(one.arm, value)}
    axes.plot(one.values, heights, ".", markersize=3, markeredgewidth=0, **look)
    if one.torn:
        return
    low, high = axes.get_xlim()
    if one.interval:
        axes.plot(one.interval, [place, place], linewidth=1.6, solid_capstyle="butt", **look)
    if not low <= one.mean <= high:
        arrow, edge = (">", 1) if one.mean > high else ("<", 0)
        axes.plot(edge, place, arrow, transform=axes.get_yaxis_transform(), clip_on=False, markersize=6, **look)
    axes.plot(one.mean, place, entry.marker, markersize=5.5, mfc=entry.color if one.real else "none", **look)


def rows_of(one: Comparison) -> list[dict[str, Any]]:
    """Return what is drawn of a comparison: its mean, where it has one, and each seed."""
    both = {"arm": one.arm.name, "baseline": one.baseline.name}
    low, high = one.interval or (np.nan, np.nan)
    mean = {"kind": "mean", "seed": None, "difference": np.nan if one.torn else one.mean, "low": low, "high": high}
    seeds = zip(one.seeds, one.values, strict=True)
    rows = [{"kind": "seed", "seed": seed, "difference": value} for seed, value in seeds]
    return [both | mean | {"corrected_p": one.corrected}, *(both | row for row in rows)]


def torn_among(arms: Sequence[Arm], metric: Metric) -> list[str]:
    """Return the names of the arms whose runs end in two groups."""
    return [arm.name for arm in arms if in_two_groups(arm, metric, {run.seed for run in arm.runs})]


def mean_of_groups(arms: Sequence[Arm], metric: Metric) -> str:
    """Return a sentence for a figure that draws the mean of arms whose runs end in two groups; empty without any."""
    torn = torn_among(arms, metric)
    said = " The mean tells little where an arm's runs end in two groups, as some did not train"
    return f"{said}: {shortened(torn)}." if torn else ""


def with_means(arms: Sequence[Arm], metric: Metric) -> tuple[list[Arm], str]:
    """Return the arms that have a mean, and a sentence on those whose runs end in two groups, which have none."""
    torn = torn_among(arms, metric)
    said = f" Not shown, as their runs end in two groups: {shortened(torn)}." if torn else ""
    return [arm for arm in arms if arm.name not in torn], said


# ---- over crossed factors, learning rates and step time


def draw_against(
    arms: Sequence[Arm],
    data: pd.DataFrame,
    x: str,
    axis: str,
    metric: Metric,
    crosses: bool = False,
    apart: float = 0,
    what: str = "final",
    expected: Sequence[Arm] | None = None,
) -> tuple[list[grid.Panel], list[Axes], str]:
    """Draw how arms ended along an axis, with lines from low to high; return panels, their axes, and a note.

    x: the column of data with places on the axis; markers are filled where `filled` is yes. crosses: at the upper edge
    in a row for each arm, where runs diverged. apart: how far arms at the same place stand from each other. what: of
    the metric is drawn. expected: the arms of which the note tells, should they not be there; by default those drawn.
    """
    every = panels_of(arms, set(data["arm"]))
    panels, more = first(every, grid.MOST_PANELS, "panels")
    more += grid.absent(arms if expected is None else expected, data, grid.names_in(every[len(panels) :]))
    named: Any = "points" if data["arm"].is_unique else "lines"
    panes = grid.draw_panels(panels, axis, f"{what} {metric.words} ({metric.symbol})", named=named)
    beyond, sentence = grid.limit(panes[0], data, metric, max(len(entries) for _, entries in panels), crosses)
    for (_, entries), pane in zip(panels, panes, strict=True):
        across = pane.get_xaxis_transform()
        for place, entry in enumerate(entries):
            own, look = data[data["arm"] == entry.arm.name], {"color": entry.color, "marker": entry.marker}
            at = own[x] + apart * (place - (len(entries) - 1) / 2)
            spans = own[x] - own.get(f"{x}_low", own[x]), own.get(f"{x}_high", own[x]) - own[x]
            reach = [
                side.clip(0) for side in (own["mean"] - own["low"], own["high"] - own["mean"])
            ]  # a mean is rounded
            full, lost = own["filled"] == "yes", own.loc[own["diverged"] > 0, x] if crosses else []
            line = {"linestyle": entry.dash, "mfc": "none", "elinewidth": 0.8}
            drawn = [
                *pane.errorbar(at, own["mean"], reach, spans, **line, **look).get_children(),
                *pane.plot(at[full], own.loc[full, "mean"], markersize=5, linestyle="", **look),
                *pane.plot(lost, [0.97 - place * grid.ROOM] * len(lost), "x", color=entry.color, transform=across),
                *[grid.arrow(pane, far, place, entry.color, metric) for far in own.loc[beyond, [x, "mean"]].to_numpy()],
            ]
            values = ", ".join(f"{value:.{metric.decimals}f}" for value in own["mean"])
            for artist in drawn:
                artist.set_gid(grid.gid_of(entry.arm, values))
    return [*panels], panes, more + sentence


def drawings_of(
    panels: Sequence[grid.Panel], panes: Sequence[Axes], data: pd.DataFrame, metric: Metric, value: str = "mean"
) -> list[Drawing]:
    """Return panels with their words: where the values of each arm lie. value: the column that has them."""
    drawings = []
    for (title, entries), pane in zip(panels, panes, strict=True):
        own = data[data["arm"].isin([entry.arm.name for entry in entries])]
        told = dict[str, str]()
        for entry in entries:
            values = own.loc[own["arm"] == entry.arm.name, value].dropna()
            if len(values):
                ends = [f"{end:.{metric.decimals}f}" for end in (values.min(), values.max())]
                told[entry.label] = " to ".join(dict.fromkeys(ends))
        drawings.append(Drawing(pane, title, f"From the lowest to the highest: {grid.values_told(told)}", own))
    return drawings


def interactions(arms: Sequence[Arm], baseline: Baseline, metric: Metric, note: str) -> list[Figure]:
    """Draw a figure for each two factors that are crossed: a line for each level of one over those of the other."""
    having, said = with_means(arms, metric)
    drawn = [one for one in crossings(having, baseline, metric) if len(one.cells.columns) > 3]
    return [figure for one in drawn[:MOST_CROSSINGS] for figure in draw_interaction(one, having, metric, note + said)]


def draw_interaction(one: Crossing, arms: Sequence[Arm], metric: Metric, note: str) -> list[Figure]:
    """Draw the means over the seeds with t intervals. arms: all that have a mean."""
    subject, factor = (key.rpartition(".")[2] for key in (one.subject, one.factor))
    rows, places = [], places_of(one.levels)
    for place, level in one.cells.columns:
        seeds = known(one.cells[place, level].groupby(level="seed").mean())
        mean, interval = mean_interval(seeds, metric.bounds)
        low, high = interval or (mean, mean)
        row = {"arm": one.arms[place].name, factor: one.levels[level], "place": places[level], "seeds": len(seeds)}
        rows.append({**row, "filled": "no", "mean": mean, "low": low, "high": high})
    drawings, more = draw_levels(one, arms, rows, metric)
    facts = {"metric": metric, "subject": subject, "factor": factor, "others": len(one.cells.index.names) > 1}
    return described(f"interaction-{subject}-{factor}", "interaction", drawings, note + more, **facts)


def survival(arms: Sequence[Arm], baseline: Baseline, note: str) -> list[Figure]:
    """Draw the share of runs that train over the first factor that is a number; nothing where all of them do.

    Intervals: of a binomial share (Wilson 1927).
    """
    for one in crossings(arms, baseline, TRAINED):
        subject, factor = (key.rpartition(".")[2] for key in (one.subject, one.factor))
        rows, places = [], places_of(one.levels)
        for arm in one.arms if are_numbers(one.levels) else ():
            for level, place in zip(one.levels, places, strict=True):
                runs = [run for run in arm.runs if run.ended and run.config.get(one.factor) == level]
                train = sum(not is_lost(run) for run in runs)
                row = {"arm": arm.name, factor: level, "place": place, "runs": len(runs), "train": train}
                if runs:
                    low, high = stats.binomtest(train, len(runs)).proportion_ci(method="wilson")
                    mean = {"mean": 100 * train / len(runs), "low": 100 * low, "high": 100 * high}
                    rows.append({**row, "filled": "no", **mean})
        if any(row["train"] < row["runs"] for row in rows):
            drawings, more = draw_levels(one, arms, rows, TRAINED, "share of")
            counts = sorted({row["runs"] for row in rows})
            facts = {"subject": subject, "factor": factor, "counts": counts, "rows": rows}
            return described(f"survival-{subject}-{factor}", "survival", drawings, note + more, **facts)
    return []


def draw_levels(
    one: Crossing, arms: Sequence[Arm], rows: Sequence[dict[str, Any]], metric: Metric, what: str = "final"
) -> tuple[list[Drawing], str]:
    """Draw what was found of each arm at each level of a factor, at the level's place; return a note too."""
    data = pd.DataFrame(rows).sort_values("place", kind="stable")
    axis = one.factor.rpartition(".")[2]
    about: Any = {"apart": 0.3 / max(len(one.arms), 4), "what": what, "expected": arms}
    panels, panes, more = draw_against(one.arms, data, "place", axis, metric, **about)
    for pane in panes:
        grid.name_ticks(pane, places_of(one.levels), [in_words(level) for level in one.levels])
    return drawings_of(panels, panes, data.drop(columns=["filled", "place"]), metric), more


def places_of(levels: Sequence[Any]) -> list[float]:
    """Return where levels stand on an axis: words in a row; numbers by size, over a wide range by its logarithm.

    On average two neighbours have the distance 1.
    """
    places = np.arange(len(levels), dtype=float)
    if are_numbers(levels):
        places = np.array(levels, dtype=float)
        places = np.log(places) if 0 < WIDE * places.min() <= places.max() else places
        places *= (len(levels) - 1) / np.ptp(places)
    found: list[float] = places.tolist()
    return found


def learning_rates(study: Study, metric: Metric) -> list[Figure]:
    """Draw each arm over its learning rates; nothing where no arm has two, or none has finished."""
    tried = tried_levels(study.arms, fewest=1)
    rows = [
        {
            "arm": one.arm.name,
            "learning_rate": rate,
            **outcome(arm, metric),
            "filled": "yes" if rate == one.best else "no",
            "largest": 2 ** np.mean([*one.largest.values()]) if one.largest else np.nan,
        }
        for one in tried
        for rate, arm in one.by_level.items()
    ]
    if not any(row["finished"] for row in rows) or all(len(one.by_level) < 2 for one in tried):
        return []
    data, arms = pd.DataFrame(rows), [one.arm for one in tried]
    crosses = data["diverged"].any()
    panels, panes, more = draw_against(arms, data, "learning_rate", "learning rate", metric, crosses)
    row = 6 / 72 / grid.size_of(panes[0])[1]  # a marker is 5 points high
    low, high = panes[0].get_ylim()
    panes[0].set_ylim(low - row * max(len(entries) for _, entries in panels) * (high - low), high)
    for (_, entries), pane in zip(panels, panes, strict=True):
        for place, entry in enumerate(entries):
            largest = data.loc[data["arm"] == entry.arm.name, "largest"].iloc[0]
            look: dict[str, Any] = {"color": entry.color, "gid": grid.gid_of(entry.arm, "the largest rate that trains")}
            pane.plot(largest, row * (place + 0.5), "^", transform=pane.get_xaxis_transform(), **look)
    grid.log_scale(panes[0], "x")
    drawings = drawings_of(panels, panes, data.rename(columns={"filled": "best"}), metric)
    facts = {"metric": metric, "crosses": crosses, "arms": shortened([arm.name for arm in arms])}
    note = more + mean_of_groups([arm for one in tried for arm in one.by_level.values()], metric)
    return described("learning-rates", "learning-rates", drawings, note, **facts)


def search(study: Study) -> list[Figure]:
    """Draw what each arm reached at the learning rates of which one was chosen for it, where one was."""
    found = searches(study)
    rows = []
    for one in found:
        for rate, losses in one.losses.items():
            ends = known(losses) if rate in one.means else []
            reached = {"mean": one.means[rate], "low": min(ends, default=np.nan), "high": max(ends, default=np.nan)}
            counts = {"seeds": len(losses), "diverged": one.lost[rate]}
            chosen = "yes" if rate == one.chosen else "no"
            rows.append({"arm": one.arm.name, "learning_rate": rate, **counts, **reached, "filled": chosen})
    data = pd.DataFrame(rows)
    if not rows or data["mean"].isna().all():
        return []
    crosses, metric = bool(data["diverged"].any()), loss_on("val")
    arms = [one.arm for one in found]
    how: Any = {"crosses": crosses, "what": "held-out"}
    panels, panes, more = draw_against(arms, data, "learning_rate", "learning rate", metric, **how)
    grid.log_scale(panes[0], "x")
    facts = {"crosses": crosses, "seeds": data["seeds"].max(), "arms": shortened([arm.name for arm in arms])}
    drawings = drawings_of(panels, panes, data.rename(columns={"filled": "chosen", "diverged": "lost"}), metric)
    return described("learning-rate-search", "search", drawings, more, **facts)


def step_time_against(arms: Sequence[Arm], metric: Metric, note: str) -> list[Figure]:
    """Draw the Pareto plot; nothing for fewer than two arms with both figures."""
    rows = []
    having, said = with_means(arms, metric)
    for arm in having:
        ms = known(run.step_ms for run in arm.runs)
        times = {"step_ms": np.median(ms), "step_ms_low": min(ms), "step_ms_high": max(ms)} if ms else {}
        rows.append({"arm": arm.name, **outcome(arm, metric), **times})
    data = pd.DataFrame(rows).dropna()
    if len(data) < 2 or "step_ms" not in data:
        return []
    badness = data["mean"] * (1 if metric.lower_is_better else -1)
    ordered = data.assign(badness=badness).sort_values(["step_ms", "badness"])
    # those for which no other is at least as fast and better
    front = ordered[ordered["badness"] < ordered["badness"].cummin().shift(fill_value=np.inf)]
    data["filled"] = np.where(data["arm"].isin(front["arm"]), "yes", "no")
    panels, panes, more = draw_against(arms, data, "step_ms", "step time (ms)", metric, expected=having)
    for pane in panes:
        pane.step(front["step_ms"], front["mean"], where="post", color=INK, lw=1, linestyle=(0, (1, 2)), zorder=1)
    data = data.rename(columns={"mean": "final", "low": "final_low", "high": "final_high", "filled": "on_front"})
    name = f"step-time-{metric.tag.partition('/')[0]}"
    drawings = drawings_of(panels, panes, data, metric, "final")
    facts = {"metric": metric, "front": list(front["arm"]), "arms": shortened([arm.name for arm in arms])}
    return described(name, "step-time", drawings, note + more + said, **facts)
