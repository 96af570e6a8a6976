"""What all figures share: one style, arms in panels, each panel a small figure of its own, words, and SVG, PDF and PNG.

Panels of one kind are small multiples: drawn in the same size with the same axes and all words in one size, each with a
title and a caption. A page, which lays them out, shows each as large as it was drawn, also on a phone.

Colours, dashes and markers stand in palette.toml, matplotlib's settings in normbench.mplstyle, titles and captions in
captions.py. A norm has the same colour in all figures.
"""

from __future__ import annotations

import io
import logging
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pandas as pd

from normbench.analysis.measures import Metric
from normbench.analysis.records import Arm, RecordedRun, in_order, shortened
from normbench.analysis.safe import to_csv

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FOLDER = Path(__file__).parent
PALETTE = tomllib.loads((FOLDER / "palette.toml").read_text("utf-8"))
COLORS = PALETTE["colors"]
DARK: Mapping[str, str] = dict(pair for colors in COLORS.values() for pair in colors.values())  # by the light one


def light(part: str) -> dict[str, str]:
    """Return the colours of a part of the palette on a light page, by name."""
    return {name: color for name, (color, _) in COLORS[part].items()}


INK, FAINT = light("page").values()
NORMS: Mapping[str, str] = light("norms")
OWN = list(light("own").values())
SEQUENCE = list(light("sequence").values())

Dash = tuple[float, tuple[float, ...]]
PLACEMENTS: Mapping[str, tuple[Dash, str]] = {
    name: ((0, tuple(dashes)), marker) for name, (dashes, marker) in PALETTE["placements"].items()
}
DASHES = tuple(PLACEMENTS.values())

TOGETHER = 6  # so many lines can be told apart in one panel by colour and dashes alone
MOST_PANELS = 12  # are drawn; a caption says where there would have been more
UNDER_WAY = ("running", "interrupted")

COLUMN = 3.5  # inches: a column of a printed page, and of a web page on a phone
ABOVE, BELOW, LEFT, RIGHT = 0.29, 0.47, 0.7, 0.13  # inches around a panel, for words
BESIDE = 0.8  # inches for a scale of colours
SIZE = 9  # points of all letters, as normbench.mplstyle has it
SALT = "normbench"  # of ids in an SVG, as normbench.mplstyle has it; no style but ours has this one
LINE, SAMPLE = 0.19, 0.6  # inches of a line of words, and of what a legend has in front of its own
WORD = 0.5  # inches between the words of ticks side by side
LABELS = 8  # lines at most are named at their ends, where so many inches stay for lines; else there is a legend above
NARROWEST = 1.2
LEANING = 0.9  # inches of names below an axis that lean
FLAT, LOWEST = 0.62, 1.2  # the height of a panel is this share of its width, and so many inches at least
STEPS = (1, 2, 3, 4, 5, 10)  # between ticks, by whatever power of ten

NOT_RECORDED = "nothing of the kind was recorded"  # why an arm may not be in a figure
SEPARATOR = " · "  # between the settings in an arm's name
VALUES = ("mean", "difference")  # columns of data, one of which says where something is drawn

FAR = 10  # median absolute deviations from the median: what is worse may stand outside of the axes
ROOM = 0.06  # of what an axis shows, at its ends
SQUEEZED = 5  # times the range of the others: where the range of all is more than that

# ---- colours, and matplotlib's settings


def colors_of(key: str, values: Iterable[Any]) -> dict[Any, str]:
    """Return the colour, on a light page, of each value that a setting has in a study.

    Our norms and placements have theirs in every study, a person's own follow in the order of the alphabet. Numbers
    stand along a sequence, other words in the order of our norms' colours.
    """
    found = sorted(set(values), key=in_order)
    if all(isinstance(value, int | float) for value in found):
        step = (len(SEQUENCE) - 1) / max(len(found) - 1, 1)
        return {value: SEQUENCE[round(place * step)] for place, value in enumerate(found)}
    ours = {"norm": NORMS, "placement": PLACEMENTS}.get(key, found)
    colors = dict(zip(ours, NORMS.values(), strict=False))
    others = [value for value in found if value not in colors]
    return colors | dict(zip(others, cycle(OWN), strict=False))


def dark_rules(scope: str, drawn: str | None = None) -> str:
    """Return CSS that recolours the figures for a dark page; scope: selects what holds them, such as `.dark`.

    drawn: an SVG, for the rules of its colours alone. A viewer that knows no such rules shows those of a light page.
    """
    rules = []
    for light, dark in DARK.items():
        for paint in ("fill", "stroke"):
            if drawn is None or f"{paint}: {light}" in drawn:
                rules.append(f'{scope} [style*="{paint}: {light}"]{{{paint}:{dark}!important}}')
    return "".join(rules)


@contextmanager
def our_style(width: float = COLUMN) -> Iterator[None]:
    """Set matplotlib to our style, whatever a person's own settings are, and back to them at the end.

    width: of figures that are begun within, in inches. Within our style only the width is set, as all else takes as
    long as a tenth of a drawing.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell where it keeps its fonts
    from matplotlib import rc_context, rc_file, rcParams

    if rcParams["svg.hashsalt"] == SALT:
        before = rcParams["figure.figsize"]
        rcParams["figure.figsize"] = width, width
        try:
            yield
        finally:
            rcParams["figure.figsize"] = before
        return
    with rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for a letter that the font lacks
        rc_file(FOLDER / "normbench.mplstyle")
        rcParams["figure.figsize"] = width, width
        yield


# ---- which arms, in which panel, and how each looks there


@dataclass(frozen=True)
class Entry:
    """An arm in a panel. label: its words there. color: on a light page."""

    arm: Arm
    label: str
    color: str
    dash: Dash
    marker: str


# Arms that are drawn over each other, behind what they have in common: empty where there is only one panel.
Panel = tuple[str, Sequence[Entry]]


def panels_of(arms: Sequence[Arm], drawn: Container[str] | None = None) -> list[Panel]:
    """Return arms by what they have in common but for the colour: norms share a panel, placements where arms are few.

    In a panel each arm has a marker of its own, and dashes tell what colours do not, or the same in grey. drawn: the
    names of the arms that are drawn, where not all are; the others count for looks, which are the same in all figures.
    """
    color_key, rest = keys_of_looks(arms)
    together = len(arms) <= TOGETHER or not rest
    values = [{**config_of(arm), **arm.settings}.get(color_key) for arm in arms]
    colors = colors_of(color_key, values)
    ordered = sorted(colors.keys() & values, key=in_order)
    titles = list(dict.fromkeys(words(arm, rest) for arm in arms))
    panels: dict[str, list[Entry]] = {}
    for place, (arm, value) in enumerate(zip(arms, values, strict=True)):
        if drawn is not None and arm.name not in drawn:
            continue
        title = words(arm, rest)
        by_color = ordered.index(value)
        if together:
            by_dash = titles.index(title) if rest else by_color
            dash = PLACEMENTS[title][0] if title in PLACEMENTS else dash_of(by_dash)
            entry = Entry(arm, words(arm, [*arm.settings]), colors[value], dash, marker_of(place))
            panels.setdefault("", []).append(entry)
        else:
            entry = Entry(arm, words(arm, [color_key]), colors[value], dash_of(by_color), marker_of(by_color))
            panels.setdefault(title, []).append(entry)
    return list(panels.items())


def keys_of_looks(arms: Sequence[Arm]) -> tuple[str, list[str]]:
    """Return the setting that colours tell, which is the norm where it varies, and all others that vary."""
    keys = dict.fromkeys(key for arm in arms for key in arm.settings)
    varied = [key for key in keys if len({arm.settings.get(key) for arm in arms}) > 1]
    color_key = "norm"
    if varied and "norm" not in varied:
        color_key = varied[0]
    return color_key, [key for key in varied if key != color_key]


def dash_of(number: int) -> Dash:
    """Return one of the dashes, again from the first where there are no more."""
    return DASHES[number % len(DASHES)][0]


def marker_of(number: int) -> str:
    """Return one of the markers, again from the first where there are no more."""
    return DASHES[number % len(DASHES)][1]


def first(found: Sequence[Any], most: int, words: str) -> tuple[Sequence[Any], str]:
    """Return the first ones, which are drawn, and a sentence for the caption where there are more."""
    if len(found) <= most:
        return found, ""
    return found[:most], f" The first {most} of {len(found)} {words}."


def names_in(panels: Sequence[Panel]) -> list[str]:
    """Return the names of the arms in some panels."""
    return [entry.arm.name for _, entries in panels for entry in entries]


def absent(
    arms: Sequence[Arm],
    data: pd.DataFrame,
    cut: Sequence[str] = (),
    lacks: str = NOT_RECORDED,
) -> str:
    """Return a sentence for a caption on the arms that are not in a figure, and why; empty where all are.

    data: what is drawn. cut: names for which there is no room. lacks: why an arm that has results may not be there.
    """
    missing: dict[str, list[str]] = {}
    for arm in arms:
        if is_named(arm, cut):
            missing.setdefault("no room", []).append(arm.name)
        elif not is_drawn(arm, data):
            missing.setdefault(without_result(arm) or lacks, []).append(arm.name)
    words = "; ".join(f"{shortened(names, TOGETHER)} ({why})" for why, names in missing.items())
    return f" Not shown: {words}." if missing else ""


def is_drawn(arm: Arm, data: pd.DataFrame) -> bool:
    """Say whether a row of what is drawn is of an arm: it is named by some settings, columns tell others."""
    value = next(data[name] for name in VALUES if name in data)
    diverged = data.get("diverged", pd.Series(0, data.index)) > 0
    drawn = data[value.notna() | diverged]
    for key, own in arm.settings.items():
        column = key.rpartition(".")[2]
        if column in drawn:
            drawn = drawn[drawn[column] == own]
    return is_named(arm, {*drawn["arm"], *drawn.get("baseline", ())})


def is_named(arm: Arm, names: Iterable[str]) -> bool:
    """Say whether some name is an arm's, or has what the arm has in some of its settings."""
    parts = {*arm.name.split(SEPARATOR)}
    return any({*name.split(SEPARATOR)} <= parts for name in names)


def without_result(arm: Arm) -> str:
    """Say how the runs of an arm ended where none finished; empty where one did."""
    ended = Counter(run.status.replace("_", " ") for run in arm.runs)
    if ended["finished"]:
        return ""
    counts = [f"{number} {status}" for status, number in ended.items()]
    return f"no run finished: {', '.join(counts)}"


def words(arm: Arm, keys: Sequence[str]) -> str:
    """Return some of an arm's settings as its name has them, but for proper names: LayerNorm for layernorm.

    Those that the arm leaves as they are, which studies know as `default`, are left out.
    """
    told = {key: proper(arm, key) for key in keys if arm.settings[key] != "default"}
    return Arm(told).name if told else ""


def proper(arm: Arm, key: str) -> Any:
    """Return what an arm has in a setting; of a norm its proper name, or that of a class in other letters."""
    value = arm.settings[key]
    if key != "norm":
        return value
    if value in PALETTE["names"]:
        return PALETTE["names"][value]
    class_name = str(config_of(arm).get("norm._target_", "")).rpartition(".")[2]
    return class_name if class_name.casefold() == str(value).casefold() else value


def config_of(arm: Arm) -> Mapping[str, Any]:
    """Return the configuration of an arm's first run; nothing of an arm without runs."""
    return arm.runs[0].config if arm.runs else {}


def members(arm: Arm) -> list[RecordedRun]:
    """Return the runs that stand for an arm: those that finished; else those under way; else those that diverged."""
    for statuses in (("finished",), UNDER_WAY, ("diverged",)):
        found = [run for run in arm.runs if run.status in statuses]
        if found:
            return found
    return []


# ---- panels in a grid with a legend; matplotlib is imported when it is used


def blank(height: float) -> Canvas:
    """Return an empty figure, as wide as the style says."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(rcParams["figure.figsize"][0], height))


def draw_panels(
    panels: Sequence[Panel], x: str, y: str, *, named: Literal["ends", "lines", "points"] = "ends"
) -> list[Axes]:
    """Return the axes of panels, each in a figure of its own: all of one size, and with common limits.

    x, y: words of the axes. named: what tells the arms, at the ends of lines where there is room for `label_ends`; else
    a legend above. Places are given in inches: to find them from the size of all words takes as long as to draw.
    """
    width = blank(1.0).get_figwidth()
    labels = []
    longest, deepest = 0.0, 1  # inches, and lines, of a label
    for _, entries in panels:
        own = {}
        for entry in entries:
            lines = wrap(entry.label, width - SAMPLE) or [""]
            longest = max(longest, *map(breadth, lines))
            deepest = max(deepest, len(lines))
            own["\n".join(lines)] = entry
        labels.append(own)
    most = max(map(len, labels))
    beside = RIGHT + 0.32 + longest
    at_ends = named == "ends" and most <= LABELS and deepest == 1 and width - LEFT - beside >= NARROWEST
    across = max(1, int((width - 0.2) / (longest + SAMPLE)))
    top, right = ABOVE, RIGHT
    if at_ends:
        right = beside
    else:
        rows = -(-most // across)
        top += LINE * deepest * rows
    height = max(LOWEST, FLAT * (width - LEFT - right))
    panes: list[Axes] = []
    for own in labels:
        first_pane = panes[0] if panes else None
        pane = draw_pane(height, x, y, top=top, right=right, sharex=first_pane, sharey=first_pane)
        pane.locator_params(nbins=5, min_n_ticks=3, steps=STEPS)
        if not at_ends:
            samples = [sample(entry, line=named != "points") for entry in own.values()]
            pane.figure.legend(samples, list(own), loc="upper center", ncols=min(across, len(own)))
        panes.append(pane)
    return panes


def draw_pane(
    height: float, x: str, y: str, *, top: float = ABOVE, bottom: float = BELOW, right: float = RIGHT, **how: Any
) -> Axes:
    """Return axes in a figure of their own. All lengths are inches, of the axes and of the room for words around them.

    x, y: words of the axes, in several lines where they are long. how: as matplotlib has it.
    """
    whole = top + height + bottom
    canvas = blank(whole)
    width = canvas.get_figwidth()
    below, beside = wrap(x, width), wrap(y, whole)
    bottom += LINE * (len(below) - 1)
    left = LEFT + LINE * (len(beside) - 1)
    whole = top + height + bottom
    canvas.set_figheight(whole)
    across = width - left - right
    pane = canvas.add_axes((left / width, bottom / whole, across / width, height / whole), **how)
    canvas.supxlabel("\n".join(below), x=(left + across / 2) / width, y=0.01)
    canvas.supylabel("\n".join(beside), x=0.01)
    for axis in (pane.xaxis, pane.yaxis):
        axis.set_label_coords(0.5, 0.5)  # of no words: else a place for them is sought in each drawing
    return pane


def canvas_of(pane: Axes) -> Canvas:
    """Return the figure that axes are in."""
    return cast("Canvas", pane.figure)


def size_of(pane: Axes) -> tuple[float, float]:
    """Return the width and height of axes in inches."""
    part = pane.get_position()
    width, height = canvas_of(pane).get_size_inches()
    return part.width * width, part.height * height


def add_color_bar(pane: Axes, mesh: Any, words: str) -> None:
    """Add the scale of colours to a pane that has `BESIDE` inches at its right. words: what the colours are."""
    canvas = canvas_of(pane)
    place = pane.get_position()
    width = canvas.get_figwidth()
    bar = canvas.add_axes((1 - (BESIDE - 0.15) / width, place.y0, 0.1 / width, place.height))
    canvas.colorbar(mesh, cax=bar)
    bar.set_title(words)


def sample(entry: Entry, line: bool = True, xdata: Any = (), ydata: Any = (), **how: Any) -> Artist:
    """Return a marker, or a short line with it, that looks as an arm does."""
    from matplotlib.lines import Line2D

    dash: Any = entry.dash if line else ""
    return Line2D(xdata, ydata, color=entry.color, linestyle=dash, marker=entry.marker, mfc="none", **how)


def label_ends(axes: Axes, ends: Sequence[tuple[float, Entry]]) -> None:
    """Write on the right of axes which lines end there, or with an arrow beyond: in their order, not over each other.

    Where there is a legend nothing is written. ends: the value at which each line ends.
    """
    if canvas_of(axes).legends or not ends:
        return
    ordered = sorted(ends, key=lambda end: end[0])
    low, high = axes.get_ylim()
    on_screen = axes.transData.transform([(0, end) for end, _ in ordered])
    heights = axes.transAxes.inverted().transform(on_screen)[:, 1]
    _, height = size_of(axes)
    gaps = LINE / height * np.arange(len(ordered))
    places = np.maximum.accumulate(heights.clip(0, 1) - gaps) + gaps
    places -= max(places[-1] - 1, 0)
    inch = axes.figure.dpi / axes.bbox.width  # of the width of the axes
    line = [1 + 0.04 * inch, 1 + 0.22 * inch]
    start = 1 + 0.28 * inch
    for place, (end, entry) in zip(places, ordered, strict=True):
        label = plain(entry.label)
        if end > high:
            label += " ↑"
        elif end < low:
            label += " ↓"
        how: dict[str, Any] = {"transform": axes.transAxes, "gid": gid_of(entry.arm, "")}
        axes.add_artist(sample(entry, xdata=line, ydata=[place] * 2, markevery=[1], clip_on=False, **how))
        axes.text(start, place, label, va="center", **how)


def gid_of(arm: Arm, value: str) -> str:
    """Return the name of what is drawn of an arm, of which `Figure.svg` makes a title: the arm, and a value of it."""
    return f"arm {quote(arm.name, safe=' ')} | {quote(value, safe=' ')}"


def near(values: Sequence[float], lower_is_better: bool = True) -> tuple[float, float]:
    """Return from where to where values lie, without those so much worse that they would squeeze the others."""
    badness = np.array(values) if lower_is_better else -np.array(values)
    middle = np.median(badness)
    reach = FAR * np.median(np.abs(badness - middle))
    close = badness[badness <= middle + reach]
    if reach > 0 and np.ptp(badness) > SQUEEZED * np.ptp(close):
        badness = close
    best, worst = float(badness.min()), float(badness.max())
    return (best, worst) if lower_is_better else (-worst, -best)


def limit(axes: Axes, drawn: pd.DataFrame, metric: Metric, lines: int, crosses: bool = False) -> tuple[Any, str]:
    """Let axes show what is near; return which rows lie beyond, for `arrow`, and a sentence about them.

    drawn: arm, mean, low, high. lines: rows of words at an edge where there are any. crosses: some at the upper edge.
    """
    values = drawn[["mean", "low", "high"]].stack().dropna().astype(float)
    low, high = near(values, metric.lower_is_better)
    beyond = (drawn["mean"] < low) | (drawn["mean"] > high)
    pad = ROOM * ((high - low) or 1)
    below, above = pad, pad
    if crosses or (beyond.any() and metric.lower_is_better):
        above = pad * (1 + lines)
    if beyond.any() and not metric.lower_is_better:
        below = pad * (1 + lines)
    axes.set_ylim(low - below, high + above)
    if not beyond.any():
        return beyond, ""
    names = shortened([*dict.fromkeys(drawn.loc[beyond, "arm"])])
    return beyond, f" Beyond the axis, with an arrow: {names}."


def arrow(axes: Axes, at: Sequence[float], place: int, color: str, metric: Metric) -> Artist:
    """Write at the edge where worse values are, in a row of its own, a value that lies beyond. at: x and the value."""
    x, value = at
    text = f"{value:.{metric.decimals}f}"
    how: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": color, "ha": "center", "va": "center"}
    if metric.lower_is_better:
        return axes.text(x, 0.97 - place * ROOM, f"↑ {text}", **how)
    return axes.text(x, 0.03 + place * ROOM, f"↓ {text}", **how)


def plain(text: str, most: int = 42) -> str:
    """Return words without the middle of long ones."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}…{text[len(text) + 1 - half :]}"


@cache
def breadth(text: str) -> float:
    """Return how wide words are, in inches; within `our_style`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    points, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=SIZE), False)
    return float(points) / 72


def wrap(text: str, inches: float) -> list[str]:
    """Return words in lines that are no wider; no line ends with a minus, and a wider word is broken anywhere."""
    lines = [""]
    for word in text.replace("− ", "−\N{NO-BREAK SPACE}").split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if breadth(longer) <= inches:
            lines[-1] = longer
            continue
        rest = word
        while rest:
            most = len(rest)
            while breadth(rest[:most]) > inches and most > 1:
                most -= 1
            lines.append(rest[:most])
            rest = rest[most:]
    return [line for line in lines if line]


def fit(text: str, inches: float) -> str:
    """Return words that are no wider, without the middle of wider ones."""
    most = len(text)
    while breadth(plain(text, most)) > inches and most > 3:
        most -= 1
    return plain(text, most)


def name_ticks(pane: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Name places on the axis below; names that have no room beside each other lean, and the figure grows for them."""
    low, high = pane.get_xlim()
    across, _ = size_of(pane)
    apart = min(np.diff(sorted(places)), default=high - low) * across / (high - low)  # inches
    if max(map(breadth, names)) < apart - 0.05:
        pane.set_xticks(places, names)
        return
    short = [fit(name, LEANING) for name in names]
    pane.set_xticks(places, short, rotation=40, ha="right", rotation_mode="anchor")
    canvas = canvas_of(pane)
    box = pane.get_position()
    height = canvas.get_figheight()
    whole = height + 0.65 * max(map(breadth, short))  # 0.65: the sine of the angle
    canvas.set_figheight(whole)
    bottom = 1 - (1 - box.y0) * height / whole
    pane.set_position((box.x0, bottom, box.width, box.height * height / whole))


def log_scale(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis of a drawn figure logarithmic, with three ticks or more in plain words (0.5, not 5 × 10⁻¹; 1e-4)."""
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator

    axes.set(**{f"{name}scale": "log"})
    axes.minorticks_off()
    across, up = size_of(axes)
    axis, most = (axes.xaxis, int(across / WORD)) if name == "x" else (axes.yaxis, int(up / LINE))
    most = max(3, most)
    low, high = sorted(axis.get_view_interval())
    locators = [LogLocator(subs=subs, numticks=most) for subs in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))]
    for locator in (*locators, MaxNLocator(4, min_n_ticks=3)):
        ticks = [float(tick) for tick in np.asarray(locator.tick_values(low, high)) if low <= tick <= high]
        if len(ticks) > 2:
            break
    while len(ticks) > most:
        ticks = ticks[::2]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(lambda x, _: brief(x))


def brief(x: float) -> str:
    """Write a number of a logarithmic axis: 0.5, 1000, 1e-4, 2e5."""
    if 1e-3 <= x < 1e5:
        return f"{x:g}"
    return re.sub(r"\.?0*e\+?(-?)0*", r"e\1", f"{x:.2e}")


# ---- a figure and its words


@dataclass(frozen=True)
class Group:
    """Figures that belong together, one for each panel: small multiples. caption: what holds for all of them."""

    name: str
    title: str
    caption: str


@dataclass(frozen=True)
class Figure:
    """A figure, which is one panel. title, caption, alt: for a page. data: exactly what is drawn, for a CSV."""

    name: str
    title: str
    caption: str
    alt: str
    canvas: Canvas
    data: pd.DataFrame
    group: Group | None = None

    @cached_property
    @our_style()
    def svg(self) -> str:
        """Draw it without a background, ready to stand in a page: no prolog, and ids that no other figure has."""
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return finish(buffer.getvalue().decode(), self.name, self.alt)

    @our_style()
    def render(self, suffix: str, **how: Any) -> bytes:
        """Draw it on white for print, as PDF or PNG; words are shapes there, as fonts take twice the time.

        One panel of several has its title above it, which in a page stands outside of the drawing.
        """
        from matplotlib.patheffects import Normal
        from matplotlib.text import Text

        titled = self.canvas.axes[:1] if self.group else []
        for pane in titled:
            pane.set_title(fit(self.title, self.canvas.get_figwidth() - LEFT))
        words = self.canvas.findobj(Text) if suffix == "pdf" else []
        for text in words:
            text.set_path_effects([Normal()])
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format=suffix, facecolor="white", **how)
        for text in words:
            text.set_path_effects([])
        for pane in titled:
            pane.set_title("")
        return buffer.getvalue()

    @our_style()
    def files(self) -> dict[str, bytes]:
        """Return the content of its files, by name."""
        found = {"svg": self.svg.encode(), "csv": to_csv(self.data, lineterminator="\n")}
        found["pdf"] = self.render("pdf", metadata={"CreationDate": None})
        quick = {"compress_level": 3}  # half the time, a tenth larger
        found["png"] = self.render("png", dpi=300, pil_kwargs=quick)
        return {f"{self.name}.{suffix}": content for suffix, content in found.items()}


def finish(drawing: str, name: str, alt: str) -> str:
    """Return an SVG of matplotlib's as it may stand in a page.

    The rules for a dark page hold where the file is looked at by itself: a page that holds the figure has its own.
    Comments, which hold words of a person's, go. Each use of a marker says its outline's colour again, where rules
    find it, so the marker itself does not.
    """
    text = drawing[drawing.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(arm [^"]*)">', titled_group, text)
    text = re.sub(r'\bid="(arm [^"]*)"', lambda found: of_arm(found[1])[0], text)  # of an empty band, no group
    text = with_ids(text, name)
    text = re.sub(r'(<path id="[^"]+" d="[^"]*" style=")stroke: #[0-9a-f]{6};? ?', r"\1", text)
    rules = f"@media screen and (prefers-color-scheme:dark){{{dark_rules('svg.nb-figure:root', text)}}}"
    text = text.replace('<style type="text/css">*{', f'<style type="text/css">{rules}.nb-figure *{{')
    attributes = f'class="nb-figure" role="img" aria-label={quoteattr(alt)}'
    return text.replace("<svg ", f"<svg {attributes} ", 1)


def of_arm(gid: str) -> tuple[str, str]:
    """Return the attribute that names the arm of what is drawn, and the words of its title. gid: as `gid_of` has it."""
    arm, _, told = gid.removeprefix("arm ").partition(" | ")
    name = unquote(arm)
    return f"data-arm={quoteattr(name)}", f"{name} {unquote(told)}"


def titled_group(found: re.Match[str]) -> str:
    """Return the beginning of a group of an SVG that has an arm's name and value as its title."""
    attribute, title = of_arm(found[1])
    return f"<g {attribute}><title>{escape(title)}</title>"


def is_wide(figure: Figure) -> bool:
    """Tell whether a figure needs more than a column of a page."""
    return bool(figure.canvas.get_figwidth() > COLUMN)


def with_ids(svg: str, within: str) -> str:
    """Return an SVG with a word in front of its ids, so that they are its own in a page of many; within: the word."""
    named = re.sub(r'\bid="([^"]+)"', rf'id="{within}-\1"', svg)
    return re.sub(r'\b(xlink:href="|url\()#', rf"\1#{within}-", named)


@dataclass(frozen=True)
class Drawing:
    """A panel that has been drawn: its axes, its own words, and exactly what is drawn, for a CSV."""

    pane: Axes
    title: str
    caption: str
    data: pd.DataFrame


def in_figures(name: str, title: str, caption: str, alt: str, drawings: Sequence[Drawing]) -> list[Figure]:
    """Return a figure for each panel; the words are those of the only one, or of the group of several."""
    if len(drawings) == 1:
        return [Figure(name, title, caption, alt, canvas_of(drawings[0].pane), drawings[0].data)]
    group = Group(name, title, caption)
    figures = []
    for place, one in enumerate(drawings, start=1):
        own_alt = f"{alt} {one.title}: {one.caption}"
        canvas = canvas_of(one.pane)
        figures.append(Figure(f"{name}-{place}", one.title, one.caption, own_alt, canvas, one.data, group))
    return figures


def values_told(values: Mapping[str, str]) -> str:
    """Write what each arm's value in a panel is, for its caption."""
    told = [f"{label} {value}" for label, value in values.items()]
    return f"{', '.join(told) or 'nothing'}."
