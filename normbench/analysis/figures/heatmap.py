"""Norms × placements: the final loss, or accuracy, as a field of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.analysis.figures.canvas import WIDTH, Drawing, blank
from normbench.analysis.figures.lettering import plain
from normbench.analysis.figures.palette import EMPTY, INK
from normbench.analysis.figures.selection import diverged, value_of, varied_among, words
from normbench.analysis.measures import Metric, final, known
from normbench.analysis.records import Arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_FIELDS = 4
COLUMNS = ("panel", "norm", "placement", "runs", "finished", "diverged", "mean")

# Words in a cell; a dark page leaves them as they are, since the cell keeps its colour.
ON_LIGHT, ON_DARK = "#0e1216", "#fbfbfc"


def heat_map(arms: Sequence[Arm], metric: Metric, choice: str) -> Drawing | None:
    """A table of cells; None where norms or placements do not vary."""
    varied = varied_among(arms)
    if not {"norm", "placement"} <= set(varied):
        return None
    rest = [key for key in varied if key not in ("norm", "placement")]
    fields: dict[str, list[Arm]] = {}
    for arm in arms:
        fields.setdefault(words(arm, rest) if rest else "", []).append(arm)
    titles = list(fields)[:MOST_FIELDS]
    note = f" The first {MOST_FIELDS} of {len(fields)} settings." if len(fields) > MOST_FIELDS else ""
    drawn = [arm for title in titles for arm in fields[title]]
    means = [mean_of(arm, metric) for arm in drawn]
    if not any(np.isfinite(means)):
        return None
    rows_ = sum(len({value_of(arm, "norm") for arm in fields[title]}) for title in titles)
    canvas = blank(WIDTH, 0.52 * rows_ + 0.75 * len(titles))
    axes = canvas.subplots(len(titles), 1, squeeze=False).ravel()
    paint = painter(means, 1 if metric.lower_is_better else -1)
    for one, title in zip(axes, titles, strict=True):
        draw_field(one, fields[title], metric, paint)
        one.set_title(plain(title), loc="left")
    lost = " Runs that diverged are in no mean; they are counted below it." if any(map(lost_of, drawn)) else ""
    return Drawing(
        "norm-placement",
        f"Final {metric.words} by norm and placement",
        f"Mean over the seeds that finished ({metric.symbol}); dark: better.{lost}{choice}{note}",
        f"A table of the final {metric.words} with a row for each norm and a column for each placement.",
        canvas,
        COLUMNS,
        [row(title, arm, metric) for title in titles for arm in fields[title]],
    )


def mean_of(arm: Arm, metric: Metric) -> float:
    """Of the runs that finished; NaN without any."""
    values = known(final(run, metric) for run in arm.runs)
    return float(np.mean(values)) if values else np.nan


def lost_of(arm: Arm) -> int:
    """How many runs diverged."""
    return len(diverged(arm.runs))


def row(title: str, arm: Arm, metric: Metric) -> Sequence[Any]:
    """The data of a cell."""
    finished = len(known(final(run, metric) for run in arm.runs))
    names = (str(value_of(arm, "norm")), str(value_of(arm, "placement")))
    return (title, *names, len(arm.runs), finished, lost_of(arm), mean_of(arm, metric))


def painter(means: Sequence[float], worse: int) -> Any:
    """Value -> a colour of the cell and of its words; what is far worse than the others has the end of the scale.

    worse: the sign of what is worse.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize, to_hex

    values = worse * np.array(known(means))
    q1, q3 = np.quantile(values, [0.25, 0.75])
    scale = Normalize(values.min(), min(values.max(), q3 + 1.5 * (q3 - q1)) + 1e-12, clip=True)

    def paint(value: float) -> tuple[str, str]:
        place = 0.08 + 0.84 * float(scale(worse * value))
        red, green, blue, _ = colormaps["viridis"](place)
        light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
        return to_hex((red, green, blue)), ON_LIGHT if light > 0.18 else ON_DARK

    return paint


def draw_field(axes: Axes, arms: Sequence[Arm], metric: Metric, paint: Any) -> None:
    """One table."""
    norms = list(dict.fromkeys(str(value_of(arm, "norm")) for arm in arms))
    placements = list(dict.fromkeys(str(value_of(arm, "placement")) for arm in arms))
    having = {(str(value_of(arm, "norm")), str(value_of(arm, "placement"))): arm for arm in arms}
    for y, norm in enumerate(norms):
        for x, placement in enumerate(placements):
            draw_cell(axes, x, y, having.get((norm, placement)), metric, paint)
    axes.set_xlim(-0.5, len(placements) - 0.5)
    axes.set_ylim(len(norms) - 0.5, -0.5)
    axes.set_xticks(range(len(placements)), [plain(name, 20) for name in placements])
    axes.set_yticks(range(len(norms)), [plain(name, 20) for name in norms])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def draw_cell(axes: Axes, x: int, y: int, arm: Arm | None, metric: Metric, paint: Any) -> None:
    """A cell with its number, and with how many runs diverged."""
    from matplotlib.patches import Rectangle

    mean = np.nan if arm is None else mean_of(arm, metric)
    known_ = np.isfinite(mean)
    fill, ink = paint(mean) if known_ else (EMPTY, INK)
    axes.add_patch(Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, facecolor=fill, linewidth=0))
    lines = [f"{mean:.3f}" if metric.scale == 1 else f"{mean:.2f}"] if known_ else []
    if arm is not None and lost_of(arm):
        lines.append(f"{lost_of(arm)}/{len(arm.runs)} diverged")
    size = [10.0, 9.0]
    offsets = (-0.18, 0.2) if len(lines) == 2 else (0.0,)
    for text, offset in zip(lines or ["–"], offsets, strict=True):
        axes.text(x, y + offset, text, color=ink, ha="center", va="center", fontsize=size[text.endswith("d")])
