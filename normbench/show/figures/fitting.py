"""Words and ticks that fit: how wide words are, lines that are no wider, and the ticks of logarithmic axes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from normbench.wording import brief

SIZE = 9  # points of all letters, as normbench.mplstyle has it
WORD, LINE = 0.5, 0.19  # inches: of a tick's words, side by side and above each other


def cut_middle(text: str, most: int = 42) -> str:
    """Return a text, without its middle where it is long."""
    if len(text) <= most:
        return text
    half = most // 2
    begin, end = text[:half], text[len(text) + 1 - half :]
    return f"{begin}…{end}"


@cache
def breadth(text: str) -> float:
    """Return how wide words are in our style, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    points, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=SIZE), False)
    return float(points) / 72


def wrap(text: str, inches: float) -> list[str]:
    """Break words into lines that are no wider; no line ends with a minus, and a wider word is broken anywhere."""
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
    """Return a text that is no wider, without its middle where it has to be cut."""
    most = len(text)
    while breadth(cut_middle(text, most)) > inches and most > 3:
        most -= 1
    return cut_middle(text, most)


def set_log(axis: Any, inches: float) -> None:
    """Make an axis logarithmic, with three ticks or more, written short: 0.5, 1e-4. inches: how long it is."""
    from matplotlib.ticker import FixedLocator

    pane = axis.axes
    is_across = axis is pane.xaxis
    if is_across:
        pane.set_xscale("log")
    else:
        pane.set_yscale("log")
    pane.minorticks_off()
    low, high = sorted(axis.get_view_interval())
    room = inches / (WORD if is_across else LINE)
    ticks = log_ticks(low, high, most=max(3, int(room)))
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(lambda x, _: brief(x))


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return the ticks of a logarithmic axis: three or more, of the roundest numbers that it shows."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    locators = [
        LogLocator(subs=(1.0,), numticks=most),
        LogLocator(subs=(1.0, 3.0), numticks=most),
        LogLocator(subs=(1.0, 2.0, 5.0), numticks=most),
        MaxNLocator(4, min_n_ticks=3),
    ]
    ticks = list[float]()
    for locator in locators:
        values = np.asarray(locator.tick_values(low, high))
        ticks = [float(tick) for tick in values if low <= tick <= high]
        if len(ticks) > 2:
            break
    while len(ticks) > most:
        ticks = ticks[::2]
    return ticks
