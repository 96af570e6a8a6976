"""How studies sum up their rows: intervals over seeds, paired differences, and lines with bands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.analysis import statistics
from normbench.analysis.figures import style
from normbench.analysis.figures.lines import draw_band
from normbench.analysis.figures.style import Drawing, Entry, Figure
from normbench.analysis.records import Arm
from normbench.analysis.statistics import Interval, Sample
from normbench.analysis.tables import Table
from normbench.analysis.wording import NONE, chance
from normbench.studies.frame import Column, Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[pd.DataFrame], tuple["Axes", str]]

SUMMED = ("95 % interval", "difference", "its 95 % interval", "p")  # columns behind that of a mean
RATIOS = ("95 % interval", "ratio", "its 95 % interval", "p", "detectable factor")  # and of a geometric one
MOST = 6  # sentences of a finding; the tables have the rest
LARGEST = 1e3  # detectable factor that is written
DETECTABLE = (
    "A ratio that is smaller or larger by the detectable factor is found by so many seeds four times in five, after "
    "this correction."
)
TOO_FEW = f"A factor above {LARGEST:,.0f} is not written: more seeds make it smaller."


def keys_of(rows: pd.DataFrame) -> list[str]:
    """Return the settings of the arms: the columns in front of the seed."""
    return [*rows.columns[: rows.columns.get_loc("seed")]]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of Student's 95 % interval; NaN for those where there is none."""
    mean, found = statistics.mean_interval([float(value) for value in values])
    return mean, *(found or (np.nan, np.nan))


def number(value: float, sign: bool = False) -> str:
    """Write a number with three significant digits."""
    return f"{value:{'+' if sign else ''}.3g}".replace("-", "−") if np.isfinite(value) else NONE


def span(ends: Interval | Sequence[float] | None, sign: bool = False) -> str:
    """Write an interval; a dash for none."""
    known = ends is not None and all(np.isfinite(end) for end in ends)
    return " to ".join(number(end, sign) for end in ends) if ends and known else NONE


def is_arm(rows: pd.DataFrame, settings: Mapping[str, Any]) -> pd.Series:
    """Say which rows have these settings."""
    found = pd.Series(True, index=rows.index)
    for key, value in settings.items():
        found &= rows[key].isna() if value is None or value != value else rows[key] == value
    return found


def arms_of(rows: pd.DataFrame, leave_out: Sequence[str] = ()) -> list[Arm]:
    """Return the arms of rows, in their order, by the settings that vary."""
    keys = [key for key in keys_of(rows) if key not in leave_out]
    varied = [key for key in keys if rows[key].nunique(dropna=False) > 1] or keys[:1]
    return [
        Arm(dict(zip(varied, values, strict=True))) for values in rows[varied].drop_duplicates().to_numpy().tolist()
    ]


# ---- one family of tests


@dataclass(frozen=True)
class Paired(Sample):
    """A paired difference that knows what it is of, so that another one with the same numbers is another test.

    of: the value, whether of its logarithms, and the rows of both sides by their index.
    """

    of: Hashable


def paired(value: str, mine: pd.DataFrame, theirs: pd.DataFrame, ratio: bool = False) -> Paired:
    """Return the difference of a value between two sides, paired by seed. ratio: it is a logarithm to base 2."""
    sides = [rows.dropna(subset=[value]) for rows in (mine, theirs)]
    sample = statistics.paired_difference(*(by_seed(side, {}, value) for side in sides))
    of = (value, ratio, *(frozenset(side.index) for side in sides))
    return Paired(sample.values, sample.resolution, sample.seeds, of)


@dataclass(frozen=True)
class Waiting:
    """A cell of a table that cannot be written before all tests of its study are known.

    kind: `p`, or `factor` for the one that so many seeds could have found.
    """

    sample: Paired
    kind: str


def written(tables: Sequence[Table], finding: Sequence[str | Difference]) -> tuple[list[Table], list[str]]:
    """Write what a study states in tables and sentences, p corrected after Holm (1979) over all of it.

    A test that is stated several times counts once, and each of several tests whose numbers agree counts.
    """
    cells = [cell for table in tables for cell in table.frame.to_numpy().ravel() if isinstance(cell, Waiting)]
    told = [one for one in finding if isinstance(one, Difference)]
    stated: list[Waiting | Difference] = [*cells, *told]
    tests = {test_of(one): one.sample for one in stated}
    corrected = statistics.holm([sample.p for sample in tests.values()])
    p_values = dict(zip(tests, corrected, strict=True))
    family = sum(p is not None for p in corrected)
    sentences = [
        difference_told(one, p_values[test_of(one)], family) if isinstance(one, Difference) else one for one in finding
    ]
    return [table_written(table, p_values, family) for table in tables], sentences


def test_of(one: Waiting | Difference) -> Hashable:
    """Return what tells a test from others: what it is of, which somebody's own sample has in words alone."""
    if isinstance(one, Waiting) or isinstance(one.sample, Paired):
        return one.sample
    return one.what, one.sample


def table_written(table: Table, p_values: Mapping[Hashable, float | None], family: int) -> Table:
    """Write the cells of a table that wait. p_values: corrected, in a family of so many tests."""
    cells = [cell for cell in table.frame.to_numpy().ravel() if isinstance(cell, Waiting)]
    waiting = {cell.kind for cell in cells}
    if not waiting:
        return table

    def factor(cell: Waiting) -> float:
        return statistics.power(statistics.detectable_difference(cell.sample.n, cell.sample.sd, family=family))

    def cell_written(cell: Any) -> Any:
        if not isinstance(cell, Waiting):
            return cell
        if cell.kind == "p":
            return chance(p_values[test_of(cell)])
        return number(found) if (found := factor(cell)) <= LARGEST else NONE

    notes = [f"p values, but not intervals, are corrected by Holm's method for {counted(family)}."] * ("p" in waiting)
    notes += [DETECTABLE] * ("factor" in waiting)
    notes += [TOO_FEW] * any(cell.kind == "factor" and factor(cell) > LARGEST for cell in cells)
    return replace(table, frame=table.frame.map(cell_written), notes=(*table.notes, *notes))


def counted(family: int) -> str:
    """Say for how many tests p is corrected."""
    return "the one test of this study" if family == 1 else f"the {family} tests of this study, its finding included"


# ---- tables


def compared(
    rows: pd.DataFrame,
    *,
    values: Sequence[str],
    columns: Mapping[str, Column],
    by: Sequence[str] = (),
    baseline: Mapping[str, Any] | None = None,
    key: str = "results",
    title: str = "Results",
    notes: Sequence[str] = (),
    ratio: bool = False,
) -> Table:
    """Return the mean of each arm, and with several seeds its interval and its difference from the baseline by seed.

    by: coordinates that have a row each. baseline: settings of the arm with which each is compared that is like it in
    all else. ratio: give geometric means and ratios to the baseline, and the factor that so many seeds could have
    found. Its cells of p and of that factor wait for `written`.
    """
    arms, cells = arms_of(rows), dict[str, list[Any]]()
    several = rows["seed"].nunique() > 1
    groups = [*rows.groupby(list(by), dropna=False, sort=False)] if by else [((), rows)]
    places = [(words, own, arm) for (words, own), arm in product(groups, arms) if is_arm(own, arm.settings).any()]
    labels = [labelled(arm) for _, _, arm in places]
    table: dict[str, list[str]] = {"arm": labels}
    table |= {columns[name].words if name in columns else name: [shown(words[place]) for words, *_ in places]
              for place, name in enumerate(by)}  # fmt: skip
    counts = [str(len(by_seed(own, arm.settings, values[0]))) for _, own, arm in places]
    table |= {"seeds": counts} if len({*counts}) > 1 else {}
    compares = False
    for value in values:
        label, more = columns[value].label, RATIOS if ratio else SUMMED
        heads = [label, *(f"{label}: {word}" if len(values) > 1 else word for word in more)]
        for _, own, arm in places:
            own = own.assign(**{value: np.log2(own[value].where(own[value] > 0))}) if ratio else own
            mine = by_seed(own, arm.settings, value)
            mean, ends = statistics.mean_interval([*mine.values()])
            other = {**arm.settings, **(baseline or {})}
            is_known = several and {*(baseline or {})} <= {*arm.settings} and other != arm.settings
            theirs = own[is_arm(own, other)].dropna(subset=[value]) if is_known else own[:0]
            sample = paired(value, own[is_arm(own, arm.settings)], theirs, ratio) if len(theirs) else None
            written = ratios_written(mean, ends, sample) if ratio else differences_written(mean, ends, sample)
            for head, cell in zip(heads, written, strict=True):
                cells.setdefault(head, []).append(cell)
            compares |= sample is not None
    frame = pd.DataFrame(table | {head: own for head, own in cells.items() if {*own} != {NONE}})
    against = ", ".join(f"{name}={word}" for name, word in (baseline or {}).items())
    means, differences = ("Geometric means", "ratios to") if ratio else ("Means", "differences from")
    said = [f"{means} over {rows['seed'].nunique()} seeds with Student's 95 % interval; {differences} the arm with "
            f"{against} are paired by seed."]  # fmt: skip
    return Table(key, title, frame, (*notes, *(said if compares else ())), heads=1 + len(by))


def differences_written(mean: float, ends: Interval | None, sample: Paired | None) -> tuple[str | Waiting, ...]:
    """Write a mean, its interval, the mean and interval of paired differences, and their p."""
    if sample is None:
        return number(mean), span(ends), NONE, NONE, NONE
    return number(mean), span(ends), number(sample.mean, True), span(sample.interval, True), p_of(sample)


def ratios_written(mean: float, ends: Interval | None, sample: Paired | None) -> tuple[str | Waiting, ...]:
    """Write the same of values whose logarithms to base 2 are given, and the factor that could have been detected."""
    if sample is None:
        return number(statistics.power(mean)), span(ends and ends.powers), NONE, NONE, NONE, NONE
    factor = Waiting(sample, "factor") if sample.sd else NONE
    found = number(statistics.power(sample.mean)), span(sample.interval and sample.interval.powers)
    return number(statistics.power(mean)), span(ends and ends.powers), *found, p_of(sample), factor


def p_of(sample: Paired) -> str | Waiting:
    """Return the cell of a sample's p; a dash where it has none."""
    return NONE if sample.p is None else Waiting(sample, "p")


def by_seed(rows: pd.DataFrame, settings: Mapping[str, Any], value: str) -> dict[int, float]:
    """Return the mean value of an arm's rows for each seed."""
    own = rows[is_arm(rows, settings)].dropna(subset=[value])
    return {int(seed): float(one) for seed, one in own.groupby("seed")[value].mean().items()}


def labelled(arm: Arm) -> str:
    """Name an arm, its norm by its proper name."""
    return style.words(arm, [*arm.settings])


def shown(value: Any) -> str:
    """Write a coordinate."""
    return number(value) if isinstance(value, float) else str(value)


# ---- a finding in words


def estimated(values: Mapping[int, float], references: Mapping[str, float]) -> str:
    """Write the mean of values by seed with its interval, and say with which of some references that is consistent."""
    mean, ends = statistics.mean_interval([*values.values()])
    if ends is None:
        return f"{number(mean)}: {why_unknown(len(values))}"
    within = [name for name, value in references.items() if ends.lower <= value <= ends.upper]
    without = [name for name in references if name not in within]
    said = "consistent with " + ", and with ".join(within) if within else "not consistent with " + " or ".join(without)
    if len(within) > 1:
        said += "; more seeds would tell them apart"
    elif within and without:
        said += ", and not with " + " or ".join(without)
    return f"{number(mean)} (95 % {span(ends)}, {len(values)} seeds): {said}"


def why_unknown(seeds: int) -> str:
    """Say why values of seeds have no interval."""
    if seeds == 1:
        return "one seed, which says nothing about how seeds differ; give several, such as seed=0,1,2"
    return "the same in all seeds, whose spread is therefore not known"


def differences_told(samples: Mapping[str, Sample], unit: str = "", ratio: bool = False) -> list[Difference]:
    """Tell each difference, by what it is of. ratio: they are of logarithms to base 2, and are told as ratios."""
    return [Difference(what, sample, unit, ratio) for what, sample in samples.items()]


def difference_told(one: Difference, p: float | None, family: int) -> str:
    """Say how large a difference is and whether it can be told from none.

    p: after Holm's correction in a family of so many tests. It is called a difference where that is below 0.05.
    """
    sample = one.sample
    mean = number(statistics.power(sample.mean)) if one.ratio else number(sample.mean, True)
    size = f"{mean} times" if one.ratio else f"{mean} {one.unit}".rstrip()
    ends = sample.interval and (sample.interval.powers if one.ratio else sample.interval)
    if ends is None or p is None or sample.p is None:
        found = "no difference in any seed" if sample.n > 1 and not sample.mean else why_unknown(sample.n)
        return f"{one.what}: {size}: {found}."
    holm = " after Holm" if family > 1 else ""
    if p < statistics.ALPHA:
        found = f"a difference, {p_told(p)}{holm}"
    elif sample.p < statistics.ALPHA:
        found = f"not certain, {p_told(sample.p)} by itself and {chance(p)} after Holm; repeat it with new seeds"
    else:
        found = f"no difference can be told, {p_told(p)}{holm}; more seeds would narrow the interval"
    return f"{one.what}: {size} (95 % {span(ends, sign=not one.ratio)}, {sample.n} seeds): {found}."


def p_told(p: float) -> str:
    """Write `p = 0.012`, or `p < 0.001`."""
    return f"p = {chance(p)}".replace("= <", "<")


def against_baseline(
    rows: pd.DataFrame, value: str, baseline: Mapping[str, Any], what: str, ratio: bool = False
) -> dict[str, Sample]:
    """Return how a value of each arm differs from that of the arm that has the baseline's settings and all else alike.

    what: the value, in words that begin each sentence. ratio: take differences of logarithms to base 2.
    """
    if ratio:
        rows = rows.assign(**{value: np.log2(rows[value].where(rows[value] > 0))})
    samples = dict[str, Sample]()
    for arm in arms_of(rows):
        other = {**arm.settings, **baseline}
        if other == arm.settings or not {*baseline} <= {*arm.settings}:
            continue
        sample = paired(value, rows[is_arm(rows, arm.settings)], rows[is_arm(rows, other)], ratio)
        if sample.n:
            samples[f"{what}, {labelled(arm)} against {labelled(Arm(other))}"] = sample
    return samples


def values_told(rows: pd.DataFrame, value: str, column: Column, what: str, ratio: bool = False) -> list[str]:
    """Say how large a value of each arm is, where there is nothing to compare it with.

    ratio: give geometric means.
    """
    if ratio:
        rows = rows.assign(**{value: np.log2(rows[value].where(rows[value] > 0))})
    said = list[str]()
    for arm in arms_of(rows):
        values = by_seed(rows, arm.settings, value)
        if not values:
            continue
        mean, ends = statistics.mean_interval([*values.values()])
        size = number(statistics.power(mean) if ratio else mean) + f" {column.unit}".rstrip()
        if ends is None:
            said.append(f"{what}, {labelled(arm)}: {size}: {why_unknown(len(values))}.")
        else:
            said.append(
                f"{what}, {labelled(arm)}: {size} (95 % {span(ends.powers if ratio else ends)}, {len(values)} seeds)."
            )
    return said


def change_in_arms(
    rows: pd.DataFrame, first: pd.Series, second: pd.Series, value: str, what: str, unit: str
) -> list[Difference]:
    """Say how a value differs within each arm between two kinds of its rows, paired by seed."""
    samples = dict[str, Sample]()
    for arm in arms_of(rows):
        own = is_arm(rows, arm.settings)
        sample = paired(value, rows[own & first], rows[own & second])
        if sample.n:
            samples[f"{what}, {labelled(arm)}"] = sample
    return differences_told(samples, unit)


def shortened_finding(sentences: Sequence[str]) -> list[str]:
    """Return the first sentences of a finding, and how many more its tables stand for."""
    more = len(sentences) - MOST
    return [*sentences[:MOST], *([f"{more} more of this kind are in the tables."] if more > 0 else [])]


def plain_table(key: str, title: str, rows: Sequence[Mapping[str, Any]], heads: int = 1, *notes: str) -> Table:
    """Return rows as a table, numbers with three digits."""
    cells = [{name: value if isinstance(value, str) else shown(value) for name, value in row.items()} for row in rows]
    return Table(key, title, pd.DataFrame(cells), notes, heads)


def curves(
    name: str,
    rows: pd.DataFrame,
    *,
    x: str,
    y: str,
    columns: Mapping[str, Column],
    title: str,
    caption: str,
    panel: str | None = None,
    log: str = "",
    band: tuple[str, str] | None = None,
) -> list[Figure]:
    """Draw a line for each arm: the mean over seeds, with a band from the lowest to the highest.

    panel: a coordinate that has a figure for each value. log: axes with a logarithmic scale, "x", "y" or "xy", beside
    those whose column says so. band: columns of the band's ends in place of the seeds' range.
    """
    log += "".join(axis for axis, column in (("x", x), ("y", y)) if columns[column].scale == "log")
    rows = rows.replace([np.inf, -np.inf], np.nan).dropna(subset=[x, y])
    if rows.empty:
        return [Figure(name, title, f"{caption} Nothing was finite.", title, style.blank(1.0), rows)]
    arms, keys = arms_of(rows, [x]), [key for key in keys_of(rows) if key != x]
    low, high = band or (y, y)
    places = [*keys, *([panel] if panel else []), x]
    found = {"mean": (y, "mean"), "low": (low, "mean" if band else "min"), "high": (high, "mean" if band else "max")}
    data = rows.groupby(places, dropna=False, sort=False).agg(**found, seeds=("seed", "nunique")).reset_index()
    values = [*dict.fromkeys(rows[panel])] if panel else [None]
    titled = columns[panel].words if panel and panel in columns else panel
    cells = list[Cell]()
    for value, (words, entries) in product(values, style.panels_of(arms)):
        own = data[data[panel] == value] if panel else data
        lines = {entry.arm.name: own[is_arm(own, entry.arm.settings)].sort_values(x) for entry in entries}
        at = f"{titled} {shown(value)}".strip() if panel else ""
        if any(len(line) for line in lines.values()):
            cells.append(Cell(" · ".join(filter(None, (words, at))), entries, lines))
    drawn, more = style.first(cells, style.MOST_PANELS, "panels")
    with style.our_style():
        panels = [(cell.title, cell.entries) for cell in drawn]
        panes = style.draw_panels(panels, columns[x].label, columns[y].label)
        for cell, pane in zip(drawn, panes, strict=True):
            for place, entry in enumerate(cell.entries):
                line = cell.lines[entry.arm.name]
                if len(line):
                    draw_band(pane, line.assign(x=line[x]), entry, place / len(cell.entries))
        if (data[x] % 1 == 0).all() and "x" not in log:
            panes[0].locator_params(axis="x", integer=True, min_n_ticks=2)
        for axis in {*log}:
            style.log_scale(panes[0], axis)
        drawings = [cell.finished(pane) for cell, pane in zip(drawn, panes, strict=True)]
    seeds = int(data["seeds"].max())
    range_of = f" Line: mean of {seeds} seeds; band: from the lowest to the highest." if seeds > 1 and not band else ""
    alt = f"{columns[y].words} against {columns[x].words} for {', '.join(map(labelled, arms))}."
    return style.in_figures(name, title[0].upper() + title[1:], caption + range_of + more, alt, drawings)


@dataclass(frozen=True)
class Cell:
    """What a panel of curves shows. lines: of each arm, by its name, from left to right; empty for one without rows."""

    title: str
    entries: Sequence[Entry]
    lines: Mapping[str, pd.DataFrame]

    def finished(self, pane: Axes) -> Drawing:
        """Name the lines that are drawn, and tell where they end."""
        drawn = [entry for entry in self.entries if len(self.lines[entry.arm.name])]
        ends = {entry.arm.name: self.lines[entry.arm.name]["mean"].iloc[-1] for entry in drawn}
        style.label_ends(pane, [(ends[entry.arm.name], entry) for entry in drawn])
        told = style.values_told({entry.label: number(ends[entry.arm.name]) for entry in drawn})
        return Drawing(pane, self.title, f"At the right end: {told}", pd.concat(self.lines.values(), ignore_index=True))


def draw_cells(
    name: str, cells: Sequence[tuple[str, pd.DataFrame]], draw: Draw, title: str, caption: str
) -> list[Figure]:
    """Return a figure for each cell: its words and its rows. draw: draws rows, and tells what they show."""
    drawings, (chosen, more) = list[Drawing](), style.first(cells, style.MOST_PANELS, "panels")
    with style.our_style():
        for words, rows in chosen:
            pane, told = draw(rows)
            drawings.append(Drawing(pane, words, told, rows))
    return style.in_figures(name, title, caption + more, caption, drawings)
