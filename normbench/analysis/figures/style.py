"""What all figures share: one style, arms in panels, panels in a grid with a legend, words, and SVG and PNG.

Colours, dashes and markers stand in palette.toml, matplotlib's settings in normbench.mplstyle, titles and captions in
captions.toml. A norm has the same colour in all figures.
"""

from __future__ import annotations

import io
import logging
import re
import tomllib
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import quoteattr

import numpy as np
import pandas as pd
from jinja2 import Template

from normbench.analysis.measures import Metric
from normbench.analysis.records import Arm, Run, in_order, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FOLDER = Path(__file__).parent
CAPTIONS = tomllib.loads((FOLDER / "captions.toml").read_text("utf-8"))
PALETTE = tomllib.loads((FOLDER / "palette.toml").read_text("utf-8"))
COLORS = PALETTE["colors"]
DARK: Mapping[str, str] = dict(pair for colors in COLORS.values() for pair in colors.values())
INK, FAINT, EMPTY = (light for light, _ in COLORS["page"].values())
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

WIDTH = 7.0  # inches: 700 pixels of a page, 1,400 of a PNG
TALLEST = 8.0  # inches of all panels
ABOVE, BELOW, LEFT, RIGHT, TITLE = 0.37, 0.55, 0.9, 0.2, 0.35  # inches around and between them, for words
LEGEND_LETTERS = 92  # of a line above the panels

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
def our_style() -> Iterator[None]:
    """Set matplotlib to our style, whatever a person's own settings are, and back to them at the end."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell where it keeps its fonts
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for a letter that the font lacks
        matplotlib.rc_file(FOLDER / "normbench.mplstyle")
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

    There, dashes and markers tell what colours do not. drawn: the names of the arms that are drawn, where not all are;
    the others count for colours, which are the same in all figures.
    """
    varied = varied_among(arms)
    color_key = "norm" if "norm" in varied else next(iter(varied), "norm")
    rest = [key for key in varied if key != color_key]
    together = len(arms) <= TOGETHER or not rest
    values = [arm.settings.get(color_key, arm.runs[0].config.get(color_key)) for arm in arms]
    colors = colors_of(color_key, values)
    titles = list(dict.fromkeys(words(arm, rest) for arm in arms))
    panels: dict[str, list[Entry]] = {}
    for arm, value in zip(arms, values, strict=True):
        title = words(arm, rest)
        look = PLACEMENTS.get(title, DASHES[titles.index(title) % len(DASHES)]) if together else DASHES[0]
        if drawn is None or arm.name in drawn:
            label = arm.name if together else words(arm, [color_key])
            panels.setdefault("" if together else title, []).append(Entry(arm, label, colors[value], *look))
    return list(panels.items())


def first(found: Sequence[Any], most: int, words: str) -> tuple[Sequence[Any], str]:
    """Return the first ones, which are drawn, and a sentence for the caption where there are more."""
    return found[:most], f" The first {most} of {len(found)} {words}." if len(found) > most else ""


def varied_among(arms: Sequence[Arm]) -> list[str]:
    """Return the settings in which some arms differ, in the study's order."""
    return [key for key in (arms[0].settings if arms else ()) if len({arm.settings.get(key) for arm in arms}) > 1]


def words(arm: Arm, keys: Sequence[str]) -> str:
    """Return some of an arm's settings as its name has them."""
    return Arm({key: arm.settings[key] for key in keys}).name if keys else ""


def members(arm: Arm) -> list[Run]:
    """Return the runs that stand for an arm: those that finished; else those under way; else those that diverged."""
    found = ([run for run in arm.runs if run.status in some] for some in (("finished",), UNDER_WAY, ("diverged",)))
    return next(filter(None, found), [])


# ---- panels in a grid with a legend; matplotlib is imported when it is used


def blank(height: float) -> Canvas:
    """Return an empty figure."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(WIDTH, height))


def draw_grid(
    panels: Sequence[Panel], x: str, y: str, columns: int = 0, *, markers: bool = False
) -> tuple[Canvas, list[Axes]]:
    """Return a figure and its panels, all of one size with common axes: three in a row, or two where that fills rows.

    x, y: words of the axes. The legend above has each label once; markers: with its marker. Places are given in inches:
    to find them from the size of all words takes as long as to draw the figure.
    """
    from matplotlib.lines import Line2D

    columns = columns or (2 if len(panels) == 4 else min(len(panels), 3))
    rows = -(-len(panels) // columns)
    looks = {plain(entry.label): entry for _, entries in panels for entry in entries}
    across = max(1, LEGEND_LETTERS // (max(map(len, looks)) + 7))
    top = ABOVE + 0.2 * -(-len(looks) // across)
    height = min((3.4, 2.5, 2.1)[columns - 1] * rows, TALLEST)
    canvas = blank(top + height + BELOW)
    edges = {"left": LEFT / WIDTH, "right": 1 - RIGHT / WIDTH, "bottom": BELOW / (top + height + BELOW)}
    grid = edges | {"top": 1 - top / (top + height + BELOW), "wspace": 0.16, "hspace": TITLE * rows / height}
    panes = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False, gridspec_kw=grid).ravel().tolist()
    for spare in panes[len(panels) :]:
        spare.remove()
    for place, ((title, _), pane) in enumerate(zip(panels, panes, strict=False)):
        pane.set_title(plain(title))
        pane.locator_params(nbins=8 if columns == 1 else 4)
        pane.tick_params(labelbottom=place + columns >= len(panels))
        pane.xaxis.set_label_coords(0, 0)  # it has none, whose place would be sought
        pane.yaxis.set_label_coords(0, 0)
    canvas.supxlabel(x, fontsize=10)
    canvas.supylabel(y, fontsize=10)
    lines = [
        Line2D([], [], color=e.color, linestyle=e.dash, marker=e.marker if markers else "", markerfacecolor="none")
        for e in looks.values()
    ]
    canvas.legend(lines, list(looks), loc="upper center", ncols=across)
    return canvas, panes[: len(panels)]


def near(values: Sequence[float], lower_is_better: bool = True) -> tuple[float, float]:
    """Return from where to where values lie, without those so much worse that they would squeeze the others."""
    badness = np.array(values) if lower_is_better else -np.array(values)
    reach = FAR * np.median(np.abs(badness - np.median(badness)))
    close = badness[badness <= np.median(badness) + reach]
    if reach > 0 and np.ptp(badness) > SQUEEZED * np.ptp(close):
        badness = close
    best, worst = float(badness.min()), float(badness.max())
    return (best, worst) if lower_is_better else (-worst, -best)


def limit(axes: Axes, axis: Literal["x", "y"], drawn: pd.DataFrame, metric: Metric, lines: int = 0) -> str:
    """Let an axis show what is near, with room for some lines at its end; return a sentence about what is beyond it.

    drawn: an arm's value, which tells where it is, and from where to where it reaches, in columns, by the arm's name.
    """
    low, high = near(drawn.stack().dropna().astype(float), metric.lower_is_better)
    line = ROOM * ((high - low) or 1)
    axes.set(**{f"{axis}lim": (low - line, high + (lines + 1) * line)})
    value = drawn.iloc[:, 0]
    beyond = list(dict.fromkeys(drawn.index[(value < low) | (value > high)]))
    return f" Beyond the axis: {shortened(beyond)}." if beyond else ""


def plain(text: str, most: int = 44) -> str:
    """Return words without the middle of long ones."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"


def log_scale(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis of a drawn figure logarithmic, with ticks in plain words (0.5, not 5 × 10⁻¹), two or more."""
    from matplotlib.ticker import LogLocator

    axes.set(**{f"{name}scale": "log"})
    axes.minorticks_off()
    axis = axes.xaxis if name == "x" else axes.yaxis
    decades = np.ptp(np.log10(axis.get_view_interval()))
    subs = (1.0,) if decades >= 2 else (1.0, 3.0) if decades >= 1 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")


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
        text = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'\b(xlink:href="|url\()#', rf"\1#{self.name}-", text)
        text = re.sub(r'(<path id="[^"]+" d="[^"]*" style=")stroke: #[0-9a-f]{6};? ?', r"\1", text)
        rules = f"@media screen and (prefers-color-scheme:dark){{{dark_rules('svg.nb-figure:root', text)}}}"
        text = text.replace('<style type="text/css">*{', f'<style type="text/css">{rules}.nb-figure *{{')
        attributes = f'class="nb-figure" role="img" aria-label={quoteattr(self.alt)}'
        return text.replace("<svg ", f"<svg {attributes} ", 1)

    @cached_property
    @our_style()
    def png(self) -> bytes:
        """Draw it 1,400 pixels wide on white; packed in half the usual time, a tenth larger."""
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format="png", dpi=200, facecolor="white", pil_kwargs={"compress_level": 3})
        return buffer.getvalue()

    def files(self) -> dict[str, bytes]:
        """Return the content of its files, by name."""
        table = self.data.to_csv(index=False, lineterminator="\n")
        return {f"{self.name}.svg": self.svg.encode(), f"{self.name}.png": self.png, f"{self.name}.csv": table.encode()}


def described(name: str, kind: str, canvas: Canvas, data: pd.DataFrame, note: str, **facts: Any) -> Figure:
    """Return a finished drawing with the words that captions.toml has for its kind; note: the caption's end."""
    texts = [" ".join(Template(text).render(facts).split()) for text in CAPTIONS[kind].values()]
    title, caption, alt = (text[0].upper() + text[1:] for text in texts)
    return Figure(name, title, caption + note, alt, canvas, data)
