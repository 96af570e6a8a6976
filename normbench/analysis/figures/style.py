"""What all figures share: one style, arms in panels, panels in a grid with a legend, words, and SVG, PDF and PNG.

Colours, dashes and markers stand in palette.toml, matplotlib's settings in normbench.mplstyle, titles and captions in
captions.toml. A norm has the same colour in all figures.
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
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import quoteattr

import numpy as np
import pandas as pd
from jinja2 import Template

from normbench.analysis.measures import Metric
from normbench.analysis.records import Arm, Run, in_order, shortened
from normbench.analysis.safe import to_csv

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FOLDER = Path(__file__).parent
CAPTIONS = tomllib.loads((FOLDER / "captions.toml").read_text("utf-8"))
PALETTE = tomllib.loads((FOLDER / "palette.toml").read_text("utf-8"))
COLORS = PALETTE["colors"]
DARK: Mapping[str, str] = dict(pair for colors in COLORS.values() for pair in colors.values())
INK, FAINT = (light for light, _ in COLORS["page"].values())
NORMS: Mapping[str, str] = {name: light for name, (light, _) in COLORS["norms"].items()}
OWN, SEQUENCE = ([light for light, _ in COLORS[part].values()] for part in ("own", "sequence"))

Dash = tuple[float, tuple[float, ...]]
PLACEMENTS: Mapping[str, tuple[Dash, str]] = {
    name: ((0, tuple(dashes)), marker) for name, (dashes, marker) in PALETTE["placements"].items()
}
DASHES = tuple(PLACEMENTS.values())

TOGETHER = 6  # so many lines can be told apart in one panel by colour and dashes alone
MOST_PANELS = 12  # are drawn; a caption says where there would have been more
UNDER_WAY = ("running", "interrupted")

COLUMN, PAGE = 3.5, 7.0  # inches: a column and the whole width of a printed page
TALLEST = 8.0  # inches of all panels
ABOVE, BELOW, LEFT, RIGHT, TITLE = 0.26, 0.42, 0.62, 0.12, 0.28  # inches around and between them, for words
LETTER, LINE = 0.067, 0.17  # inches of a letter, at most, and of a line of words
LABELS = 8  # lines at most are named at their ends, each in so many letters; else there is a legend above
LETTERS = 18
STEPS = (1, 2, 3, 4, 5, 10)  # between ticks, by whatever power of ten

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
    return colors | dict(zip([value for value in found if value not in colors], cycle(OWN), strict=False))


def dark_rules(scope: str, drawn: str | None = None) -> str:
    """Return CSS that recolours the figures for a dark page; scope: selects what holds them, such as `.dark`.

    drawn: an SVG, for the rules of its colours alone. A viewer that knows no such rules shows those of a light page.
    """
    return "".join(
        f'{scope} [style*="{paint}: {light}"]{{{paint}:{dark}!important}}'
        for light, dark in DARK.items()
        for paint in ("fill", "stroke")
        if drawn is None or f"{paint}: {light}" in drawn
    )


@contextmanager
def our_style(width: float = COLUMN) -> Iterator[None]:
    """Set matplotlib to our style, whatever a person's own settings are, and back to them at the end.

    width: of figures that are begun within, in inches.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell where it keeps its fonts
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for a letter that the font lacks
        matplotlib.rc_file(FOLDER / "normbench.mplstyle")
        matplotlib.rcParams["figure.figsize"] = width, width
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
    keys = dict.fromkeys(key for arm in arms for key in arm.settings)
    varied = [key for key in keys if len({arm.settings.get(key) for arm in arms}) > 1]
    color_key = "norm" if "norm" in varied else next(iter(varied), "norm")
    rest = [key for key in varied if key != color_key]
    together = len(arms) <= TOGETHER or not rest
    values = [{**config_of(arm), **arm.settings}.get(color_key) for arm in arms]
    colors = colors_of(color_key, values)
    ordered = sorted(colors.keys() & values, key=in_order)
    titles = list(dict.fromkeys(words(arm, rest) for arm in arms))
    panels: dict[str, list[Entry]] = {}
    for place, (arm, value) in enumerate(zip(arms, values, strict=True)):
        title, mine = words(arm, rest), ordered.index(value)
        dash = mine if not (together and rest) else titles.index(title)
        look = PLACEMENTS[title][0] if together and title in PLACEMENTS else DASHES[dash % len(DASHES)][0]
        marker = DASHES[(place if together else mine) % len(DASHES)][1]
        if drawn is None or arm.name in drawn:
            label = words(arm, [*arm.settings] if together else [color_key])
            panels.setdefault("" if together else title, []).append(Entry(arm, label, colors[value], look, marker))
    return list(panels.items())


def first(found: Sequence[Any], most: int, words: str) -> tuple[Sequence[Any], str]:
    """Return the first ones, which are drawn, and a sentence for the caption where there are more."""
    return found[:most], f" The first {most} of {len(found)} {words}." if len(found) > most else ""


def names_in(panels: Sequence[Panel]) -> list[str]:
    """Return the names of the arms in some panels."""
    return [entry.arm.name for _, entries in panels for entry in entries]


def absent(
    arms: Sequence[Arm],
    data: pd.DataFrame,
    cut: Sequence[str] = (),
    lacks: str = "nothing of the kind was recorded",
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
        if (column := key.rpartition(".")[2]) in drawn:
            drawn = drawn[drawn[column] == own]
    return is_named(arm, {*drawn["arm"], *drawn.get("baseline", ())})


def is_named(arm: Arm, names: Iterable[str]) -> bool:
    """Say whether some name is an arm's, or has what the arm has in some of its settings."""
    parts = {*arm.name.split(SEPARATOR)}
    return any({*name.split(SEPARATOR)} <= parts for name in names)


def without_result(arm: Arm) -> str:
    """Say how the runs of an arm ended of which none finished; nothing of another arm."""
    ended = Counter(run.status.replace("_", " ") for run in arm.runs)
    if ended["finished"]:
        return ""
    return f"no run finished: {', '.join(f'{number} {status}' for status, number in ended.items())}"


def words(arm: Arm, keys: Sequence[str]) -> str:
    """Return some of an arm's settings as its name has them, but for proper names: LayerNorm for layernorm.

    Those that the arm leaves as they are, which studies know as `default`, are left out.
    """
    told = {key: proper(arm, key) for key in keys if arm.settings[key] != "default"}
    return Arm(told).name if told else ""


def proper(arm: Arm, key: str) -> Any:
    """Return what an arm has in a setting; of a norm its proper name, or that of a class in other letters."""
    value, config = arm.settings[key], config_of(arm)
    name = PALETTE["names"].get(value) or str(config.get("norm._target_", "")).rpartition(".")[2]
    own = value in PALETTE["names"] or name.casefold() == str(value).casefold()
    return name if key == "norm" and own else value


def config_of(arm: Arm) -> Mapping[str, Any]:
    """Return the configuration of an arm's first run; nothing of an arm without runs."""
    return arm.runs[0].config if arm.runs else {}


def members(arm: Arm) -> list[Run]:
    """Return the runs that stand for an arm: those that finished; else those under way; else those that diverged."""
    found = ([run for run in arm.runs if run.status in some] for some in (("finished",), UNDER_WAY, ("diverged",)))
    return next(filter(None, found), [])


# ---- panels in a grid with a legend; matplotlib is imported when it is used


def blank(height: float) -> Canvas:
    """Return an empty figure, as wide as the style says."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(rcParams["figure.figsize"][0], height))


def draw_grid(
    panels: Sequence[Panel], x: str, y: str, columns: int = 0, *, named: Literal["ends", "lines", "points"] = "ends"
) -> tuple[Canvas, list[Axes]]:
    """Return a figure and its panels, all of one size with common axes: two in a row of a column's width, else three.

    x, y: words of the axes. named: what tells the arms, at the ends of lines where there is room for `label_ends`; else
    a legend above has each label once. Places are given in inches: to find them from the size of all words takes as
    long as to draw the figure.
    """
    looks = {plain(entry.label): entry for _, entries in panels for entry in entries}
    longest = max(map(len, looks))
    at_ends = len(panels) == 1 and len(looks) <= LABELS and longest <= LETTERS and named == "ends"
    canvas = blank(1.0)
    width = canvas.get_figwidth()
    wide = width > (COLUMN + PAGE) / 2
    columns = columns or min(len(panels), 3 if wide and len(panels) != 4 else 2)
    rows, across = -(-len(panels) // columns), max(1, int((width - 0.2) / LETTER / (longest + 7)))
    top = ABOVE if at_ends else ABOVE + LINE * -(-len(looks) // across)
    right = RIGHT + (0.25 + LETTER * longest) * at_ends
    height = min(max(1.2, 0.62 * (width - LEFT - right) / columns) * rows, TALLEST)
    canvas.set_figheight(top + height + BELOW)
    edges = {"left": LEFT / width, "right": 1 - right / width, "bottom": BELOW / (top + height + BELOW)}
    grid = edges | {"top": 1 - top / (top + height + BELOW), "wspace": 0.16, "hspace": TITLE * rows / height}
    panes = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False, gridspec_kw=grid).ravel().tolist()
    for spare in panes[len(panels) :]:
        spare.remove()
    for place, ((title, _), pane) in enumerate(zip(panels, panes, strict=False)):
        pane.set_title(fitted(title, (width - LEFT - right) / columns, 8))
        bins = max(3, int(5 * width / columns / PAGE) + 3 * (columns == 1))
        pane.locator_params(nbins=bins, min_n_ticks=3, steps=STEPS)
        pane.tick_params(labelbottom=place + columns >= len(panels))
    canvas.supxlabel(x, fontsize=8, x=(LEFT + width - right) / 2 / width, y=0.01)
    canvas.supylabel(y, fontsize=8, x=0.01)
    if not at_ends:
        samples = [sample(entry, line=named != "points") for entry in looks.values()]
        canvas.legend(samples, list(looks), loc="upper center", ncols=across)
    return canvas, panes[: len(panels)]


def sample(entry: Entry, line: bool = True, xdata: Any = (), ydata: Any = (), **how: Any) -> Artist:
    """Return a marker, or a short line with it, that looks as an arm does."""
    from matplotlib.lines import Line2D

    dash: Any = entry.dash if line else ""
    return Line2D(xdata, ydata, color=entry.color, linestyle=dash, marker=entry.marker, mfc="none", **how)


def label_ends(axes: Axes, height: float, ends: Sequence[tuple[float, Entry]]) -> None:
    """Write on the right of axes which lines end there, or with an arrow beyond: in their order, not over each other.

    height: of the axes, in inches. ends: the value at which each line ends.
    """
    ordered, (low, high) = sorted(ends, key=lambda end: end[0]), axes.get_ylim()
    heights = axes.transAxes.inverted().transform(axes.transData.transform([(0, end) for end, _ in ordered]))[:, 1]
    gaps = LINE / height * np.arange(len(ordered))
    places = np.maximum.accumulate(heights.clip(0, 1) - gaps) + gaps
    *line, start = (1 + inches * axes.figure.dpi / axes.bbox.width for inches in (0.04, 0.22, 0.28))
    for place, (end, entry) in zip(places - max(places[-1] - 1, 0), ordered, strict=True):
        far = " ↑" if end > high else " ↓" if end < low else ""
        how: dict[str, Any] = {"transform": axes.transAxes, "gid": gid_of(entry.arm, "")}
        axes.add_artist(sample(entry, xdata=line, ydata=[place] * 2, markevery=[1], clip_on=False, **how))
        axes.text(start, place, plain(entry.label) + far, va="center", **how)


def gid_of(arm: Arm, value: str) -> str:
    """Return the name of what is drawn of an arm, of which `Figure.svg` makes a title: the arm, and a value of it."""
    return f"arm {arm.name} | {value.replace('|', ' ')}"


def near(values: Sequence[float], lower_is_better: bool = True) -> tuple[float, float]:
    """Return from where to where values lie, without those so much worse that they would squeeze the others."""
    badness = np.array(values) if lower_is_better else -np.array(values)
    reach = FAR * np.median(np.abs(badness - np.median(badness)))
    close = badness[badness <= np.median(badness) + reach]
    if reach > 0 and np.ptp(badness) > SQUEEZED * np.ptp(close):
        badness = close
    best, worst = float(badness.min()), float(badness.max())
    return (best, worst) if lower_is_better else (-worst, -best)


def limit(axes: Axes, drawn: pd.DataFrame, metric: Metric, lines: int, crosses: bool = False) -> tuple[Any, str]:
    """Let axes show what is near; return which rows lie beyond, for `arrow`, and a sentence about them.

    drawn: arm, mean, low, high. lines: rows of words at an edge where there are any. crosses: some at the upper edge.
    """
    low, high = near(drawn[["mean", "low", "high"]].stack().dropna().astype(float), metric.lower_is_better)
    beyond = (drawn["mean"] < low) | (drawn["mean"] > high)
    pad, up = ROOM * ((high - low) or 1), crosses or (beyond.any() and metric.lower_is_better)
    down = beyond.any() and not metric.lower_is_better
    axes.set_ylim(low - pad * (1 + lines * down), high + pad * (1 + lines * up))
    names = shortened([*dict.fromkeys(drawn.loc[beyond, "arm"])])
    return beyond, f" Beyond the axis, with an arrow: {names}." if beyond.any() else ""


def arrow(axes: Axes, at: Sequence[float], place: int, color: str, metric: Metric) -> Artist:
    """Write at the edge where worse values are, in a row of its own, a value that lies beyond. at: x and the value."""
    x, value = at
    height, sign = (0.97 - place * ROOM, "↑") if metric.lower_is_better else (0.03 + place * ROOM, "↓")
    how: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": color, "fontsize": 7}
    return axes.text(x, height, f"{sign} {value:.{metric.decimals}f}", ha="center", va="center", **how)


def plain(text: str, most: int = 42) -> str:
    """Return words without the middle of long ones."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"


@cache
def breadth(text: str, size: float) -> float:
    """Return how wide words in letters of so many points are, in inches; within `our_style`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    points, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)
    return float(points) / 72


def wrapped(text: str, inches: float, size: float) -> list[str]:
    """Return words in lines that are no wider; a single word that is wider is shortened in the middle.

    No line begins behind a minus.
    """
    lines = [""]
    for word in text.replace("− ", "−\N{NO-BREAK SPACE}").split(" "):
        short = fitted(word, inches, size)
        longer = f"{lines[-1]} {short}".strip()
        if breadth(longer, size) <= inches:
            lines[-1] = longer
        else:
            lines.append(short)
    return [line for line in lines if line]


def fitted(text: str, inches: float, size: float) -> str:
    """Return words that are no wider, without the middle of wider ones."""
    most = len(text)
    while breadth(plain(text, most), size) > inches and most > 3:
        most -= 1
    return plain(text, most)


def log_scale(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis of a drawn figure logarithmic, with three ticks or more in plain words (0.5, not 5 × 10⁻¹; 1e-4)."""
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator

    axes.set(**{f"{name}scale": "log"})
    axes.minorticks_off()
    axis = axes.xaxis if name == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    most = max(3, int(axes.bbox.width / axes.figure.dpi / 0.45)) if name == "x" else None  # words stand apart
    tens = [LogLocator(subs=subs, numticks=most) for subs in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))]
    tried = [locator.tick_values(low, high) for locator in (*tens, MaxNLocator(4, min_n_ticks=3))]
    within = [[tick for tick in map(float, np.asarray(ticks)) if low <= tick <= high] for ticks in tried]
    axis.set_major_locator(FixedLocator(next((ticks for ticks in within if len(ticks) > 2), within[-1])))
    axis.set_major_formatter(lambda x, _: brief(x))


def brief(x: float) -> str:
    """Write a number of a logarithmic axis: 0.5, 1000, 1e-4, 2e5."""
    return f"{x:g}" if 1e-3 <= x < 1e5 else re.sub(r"\.?0*e\+?(-?)0*", r"e\1", f"{x:.2e}")


# ---- a figure and its words


@dataclass(frozen=True)
class Figure:
    """A figure. title, caption, alt: for a page. data: exactly what is drawn, for a CSV."""

    name: str
    title: str
    caption: str
    alt: str
    canvas: Canvas
    data: pd.DataFrame

    @cached_property
    @our_style()
    def svg(self) -> str:
        """Draw it without a background, ready to stand in a page: no prolog, and ids that no other figure has.

        The rules for a dark page hold where the file is looked at by itself: a page that holds the figure has its own.
        Comments, which hold words of a person's, go. Each use of a marker says its outline's colour again, where rules
        find it, so the marker itself does not.
        """
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = buffer.getvalue().decode()
        text = re.sub(r"<!--.*?-->\s*|\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r'<g id="arm ([^"]*) \| ([^"|]*)">', r'<g data-arm="\1"><title>\1 \2</title>', text)
        text = re.sub(r'\bid="arm ([^"]*) \| [^"|]*"', r'data-arm="\1"', text)  # of what is no group: an empty band
        text = with_ids(text, self.name)
        text = re.sub(r'(<path id="[^"]+" d="[^"]*" style=")stroke: #[0-9a-f]{6};? ?', r"\1", text)
        rules = f"@media screen and (prefers-color-scheme:dark){{{dark_rules('svg.nb-figure:root', text)}}}"
        text = text.replace('<style type="text/css">*{', f'<style type="text/css">{rules}.nb-figure *{{')
        attributes = f'class="nb-figure" role="img" aria-label={quoteattr(self.alt)}'
        return text.replace("<svg ", f"<svg {attributes} ", 1)

    @our_style()
    def drawn(self, suffix: str, **how: Any) -> bytes:
        """Draw it on white for print, as PDF or PNG; words are shapes there, as fonts take twice the time."""
        from matplotlib.patheffects import Normal
        from matplotlib.text import Text

        buffer, words = io.BytesIO(), self.canvas.findobj(Text) if suffix == "pdf" else []
        for text in words:
            text.set_path_effects([Normal()])
        self.canvas.savefig(buffer, format=suffix, facecolor="white", **how)
        for text in words:
            text.set_path_effects([])
        return buffer.getvalue()

    def files(self) -> dict[str, bytes]:
        """Return the content of its files, by name."""
        found = {"svg": self.svg.encode(), "csv": to_csv(self.data, lineterminator="\n")}
        found["pdf"] = self.drawn("pdf", metadata={"CreationDate": None})
        found["png"] = self.drawn("png", dpi=300, pil_kwargs={"compress_level": 3})  # half the time, a tenth larger
        return {f"{self.name}.{suffix}": content for suffix, content in found.items()}


def with_ids(svg: str, within: str) -> str:
    """Return an SVG with a word in front of its ids, so that they are its own in a page of many; within: the word."""
    named = re.sub(r'\bid="([^"]+)"', rf'id="{within}-\1"', svg)
    return re.sub(r'\b(xlink:href="|url\()#', rf"\1#{within}-", named)


def described(name: str, kind: str, canvas: Canvas, data: pd.DataFrame, note: str, **facts: Any) -> Figure:
    """Return a finished drawing with the words that captions.toml has for its kind; note: the caption's end."""
    texts = [" ".join(Template(text).render(facts).split()) for text in CAPTIONS[kind].values()]
    title, caption, alt = (text[0].upper() + text[1:] for text in texts)
    return Figure(name, title, caption + note, alt, canvas, data)
