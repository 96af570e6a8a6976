"""Words and numbers in figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis


def plain(text: str, most: int = 44) -> str:
    """Words as they are written: no mathematics, no letters that the font lacks, cut in the middle where too long."""
    known = letters()
    text = "".join(letter if ord(letter) in known else "?" for letter in text)
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[len(text) - most // 2 + 1 :]}"
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")  # a leading _ would hide it from a legend


@cache
def letters() -> frozenset[int]:
    """The letters that the font has."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def log_ticks(axis: Axis, values: Sequence[float] = ()) -> None:
    """Ticks of a logarithmic axis in plain words (0.5, not 5 × 10⁻¹), two or more; values: where they shall be."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 1
    subs = (1.0,) if decades >= 3 else (1.0, 3.0) if decades >= 1.6 else (1.0, 2.0, 5.0)
    axis.set_major_locator(FixedLocator(values) if values else LogLocator(base=10, subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(short))


def short(value: float, _: object = None) -> str:
    """A number in few letters."""
    return f"{value:.0e}".replace("e-0", "e−").replace("e+0", "e") if not 1e-3 <= abs(value) < 1e5 else f"{value:g}"
