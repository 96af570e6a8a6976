"""Cells of tables that compute nothing in a spreadsheet, whoever wrote their words."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

# A cell that begins like this is a formula to a spreadsheet, unless it is a number or goes from one to another.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
FIGURE = r"[+-]?([\d.,]+(e[+-]?\d+)?|inf|nan)"
NUMBERS = re.compile(rf"{FIGURE}( to {FIGURE})?( ?%)?", re.IGNORECASE)


def is_formula(cell: Any) -> bool:
    """Tell whether a spreadsheet would compute a cell."""
    return isinstance(cell, str) and cell.startswith(FORMULA) and not NUMBERS.fullmatch(cell)


def to_csv(frame: pd.DataFrame, **how: Any) -> bytes:
    """Return a table as CSV; what a spreadsheet would compute is quoted by an apostrophe, as they do themselves.

    how: as pandas has it.
    """
    frame = frame.rename(columns={name: f"'{name}" for name in frame if is_formula(name)})
    for name in frame.select_dtypes(exclude=["number", "bool", "datetime"]):
        computed = frame[name].map(is_formula).astype(bool)
        if computed.any():
            quoted = "'" + frame[name].astype(str)
            frame = frame.assign(**{name: frame[name].astype(object).mask(computed, quoted)})
    return frame.to_csv(index=False, **how).encode()
