"""What one key of a configuration may hold: its types, unit, bounds and one line of documentation."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from normbench.errors import UsageError

ONE: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
MANY: dict[type, str] = {int: "integers", float: "numbers", str: "words"}


@dataclass(frozen=True)
class Key:
    """What one key may hold.

    doc: one line. types: allowed types (NoneType: `null` is allowed). unit: of the number.
    low, high: bounds, inclusive. above, below: bounds, exclusive. choices: allowed words.
    items: what the elements of a list are (the bounds are theirs). length: of a list.
    """

    doc: str
    types: tuple[type, ...] = ()
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    items: tuple[type, ...] = ()
    length: int | None = None

    @property
    def allowed(self) -> str:
        """What is allowed, in words: `an integer from 1 to 1,000 (steps), or null`."""
        alternatives = list(self.choices)
        if self.items:
            number = f"{self.length} " if self.length else ""
            alternatives.append(f"a list of {number}{MANY[self.items[0]]}{self.bounds}")
        alternatives += [ONE[kind] + (self.bounds if kind in (int, float) else "") for kind in self.plain_types]
        if self.unit:
            alternatives[-1] += f" ({self.unit})"
        return either([*alternatives, "null"] if NoneType in self.types else alternatives)

    @property
    def plain_types(self) -> list[type]:
        """The types that `choices` and `items` do not speak of."""
        spoken_of = {list, NoneType, str if self.choices else NoneType}
        return [kind for kind in self.types if kind not in spoken_of]

    @property
    def bounds(self) -> str:
        """The bounds in words, behind what they bound: ` from 0 to below 1`."""
        start = f" from {count(self.low)}" if self.low is not None else ""
        start += f" above {count(self.above)}" if self.above is not None else ""
        end = f" to {count(self.high)}" if self.high is not None else ""
        end += f" to below {count(self.below)}" if self.below is not None else ""
        return start + (end.replace(" to", " up to", 1) if self.low is None else end)

    def check(self, path: str, value: Any) -> Any:
        """The value, in its own type where that loses nothing: 1e3 is the integer 1000, and 3 the number 3.0.

        Raises:
            UsageError: wrong type or out of bounds.
        """
        typed = [self.typed(item) for item in value] if isinstance(value, list) else self.typed(value)
        if not self.holds(typed):
            raise UsageError(f"{path}={show(value)} is not allowed: use {self.allowed}")
        return typed

    def typed(self, value: Any) -> Any:
        """A value, or an element of a list, as one of the allowed types if it loses nothing by that."""
        types = (*self.types, *self.items)
        if type(value) in types or isinstance(value, bool):
            return value
        if isinstance(value, int) and float in types and abs(value) <= sys.float_info.max:
            return float(value)
        if isinstance(value, float) and int in types and value.is_integer():
            return int(value)
        return str(value) if isinstance(value, int | float) and str in types and not self.choices else value

    def holds(self, value: Any) -> bool:
        """Whether a value is of an allowed type and within the bounds."""
        if isinstance(value, list) and self.items:
            right_length = len(value) == self.length if self.length else len(value) > 0
            return right_length and all(
                type(item) in self.items and (isinstance(item, str) or self.within(item)) for item in value
            )
        if type(value) not in self.types:
            return False
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return value is None or isinstance(value, bool) or self.within(value)

    def within(self, number: float) -> bool:
        """Whether a number is finite and within the bounds."""
        return (
            -math.inf < number < math.inf
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )


def either(words: Iterable[str]) -> str:
    """`a`, `a or b`, `a, b or c`; with a comma before `or` where a word has blanks of its own."""
    *first, last = words
    if not first:
        return last
    return ", ".join(first) + (", or " if " " in "".join(first) else " or ") + last


def count(number: float) -> str:
    """A bound as a person reads it: `1,000,000`, `0.05`."""
    return f"{int(number):,}" if float(number).is_integer() else f"{number:g}"


def show(value: Any) -> str:
    """A value as one would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list):
        return f"[{','.join(show(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{show(item)}' for name, item in value.items())}}}"
    return str(value)
