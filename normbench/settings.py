"""What one key of a configuration may hold, as an annotation says it: `Annotated[float, Setting("decay", above=0)]`.

A norm, placement, model or data set is configured by the annotated signature of its class.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from normbench.errors import LINE, UsageError

Tree = Mapping[str, Any]
Value = TypeVar("Value")

# Settings of norms that those in a model of another library take from the norms in whose place they come, with
# model.norm_settings=own, unless a word gives them.
LIKE_HOST = ("eps", "momentum", "groups")

SINGULAR: dict[type, str] = {
    int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "keys with values",
}  # fmt: skip
PLURAL: dict[type, str] = {int: "integers", float: "numbers", str: "words"}
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all control characters but tab and line feed
TURNING = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # which turn the direction of what follows


@dataclass(frozen=True)
class Setting:
    """What one key may hold.

    Attributes:
        doc: what it is, in one line.
        unit: of the number.
        low, high: bounds, inclusive; of the elements, where it is a list.
        above, below: bounds, exclusive.
        length: of a list.
        types, items, choices: allowed types, types of a list's elements, and words; they come from the annotation.
        required: whether it has no default.
        tasks: the kinds of task in which it plays a part; none: in all.
        word_tasks: those of single words, where they are fewer.
        unread: why its annotation cannot be read, so that any value is allowed.
        default: its value where a configuration is without it; ... where it has none, or none that can be read.
    """

    doc: str = ""
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    length: int | None = None
    types: tuple[type, ...] = ()
    items: tuple[type, ...] = ()
    choices: tuple[str, ...] = ()
    required: bool = False
    tasks: tuple[str, ...] = ()
    word_tasks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    unread: str = ""
    default: Any = ...

    def __post_init__(self) -> None:
        for bound in (self.low, self.high, self.above, self.below):
            if not isinstance(bound, int | float):
                raise TypeError(f"{bound!r} is not a bound of a Setting: give a number")

    @property
    def allowed(self) -> str:
        """What is allowed, in words: `an integer from 1 to 1,000 (steps), or null`; empty where anything is."""
        alternatives = list(self.choices)
        if self.items:
            number = f"{self.length} " if self.length else ""
            alternatives.append(f"a list of {number}{PLURAL[self.items[0]]}{self.bounds}")
        for kind in self.types:
            is_word = kind is str and self.choices
            if kind in SINGULAR and not is_word:
                alternatives.append(SINGULAR[kind] + self.bounds)
        if self.unit and alternatives:
            alternatives[-1] += f" ({self.unit})"
        if NoneType in self.types:
            alternatives.append("null")
        return either(alternatives)

    @property
    def bounds(self) -> str:
        """The bounds in words, to follow what they bound: ` from 0 to below 1`."""
        to, below = "up to", "below"
        if math.isfinite(self.low):
            to, below = "to", "to below"
        elif math.isfinite(self.above):
            below = "and below"
        named = (("from", self.low), ("above", self.above), (to, self.high), (below, self.below))
        words = ""
        for word, bound in named:
            if math.isfinite(bound):
                words += f" {word} {bound:,}".removesuffix(".0")
        return words

    def plays_a_part(self, task: str, value: Any = None) -> bool:
        """Tell whether it, with this value, changes anything in a task of this kind."""
        tasks = self.tasks
        for word, own in self.word_tasks:
            if word == value:
                tasks = own
        return not tasks or task in tasks

    def check(self, path: str, value: Any) -> Any:
        """Return the value in its own type where that loses nothing: 1e3 is the integer 1000, and 3 the number 3.0.

        Raises:
            UsageError: wrong type or out of bounds.
        """
        if not self.types:
            return value
        converted = self.convert(value)
        if not self.holds(converted, self.types):
            raise UsageError(f"{path}={show(value):.{LINE}} is not allowed: use {self.allowed}")
        return converted

    def convert(self, value: Any) -> Any:
        """Return a value, or a list of values, as one of the allowed types if it loses nothing by that."""
        if isinstance(value, list):
            return [self.convert(item) for item in value]
        types = (*self.types, *self.items)
        if type(value) in types or isinstance(value, bool):
            return value
        if isinstance(value, int) and float in types and abs(value) <= sys.float_info.max:
            return float(value)
        if isinstance(value, float) and int in types and value.is_integer():
            return int(value)
        if isinstance(value, int | float) and str in types and not self.choices:
            return str(value)
        return value

    def is_default(self, value: Any) -> bool:
        """Tell whether a value is the default, in whatever type it is written."""
        converted = self.convert(value)
        return type(converted) is type(self.default) and bool(converted == self.default)

    def has_type(self, value: Any) -> bool:
        """Tell whether a value is of an allowed type, whatever its bounds."""
        return not self.types or type(self.convert(value)) in self.types

    def holds(self, value: Any, types: tuple[type, ...]) -> bool:
        """Tell whether a value is of one of some types and within the bounds; or a list, and each of its elements."""
        if isinstance(value, list) and self.items:
            if not value or len(value) != (self.length or len(value)):
                return False
            return all(self.holds(item, self.items) for item in value)
        if type(value) not in types:
            return False
        if isinstance(value, str):
            return not self.choices or value in self.choices
        if isinstance(value, dict):
            return True
        return value is None or (self.low <= value <= self.high and self.above < value < self.below)

    @property
    def is_bounded(self) -> bool:
        """Whether it bounds a number or the length of a list."""
        bounds = (self.low, self.high, self.above, self.below)
        return self.length is not None or any(math.isfinite(bound) for bound in bounds)


def setting_from(annotation: Any) -> Setting:
    """Return what an annotation allows; anything, where it names other types than those of a YAML."""
    noted, kinds = take_apart(annotation)
    setting = noted[0] if noted else Setting()
    if len(noted) > 1:
        return replace(setting, unread="it notes more than one Setting")
    types: list[type] = []
    items: tuple[type, ...] = ()
    choices: list[str] = []
    for kind in kinds:
        arguments = get_args(kind)
        if kind in (int, float, bool, str):
            types.append(kind)
        elif kind in (None, NoneType):
            types.append(NoneType)
        elif get_origin(kind) is Literal and all(isinstance(word, str) for word in arguments):
            choices += arguments
            types.append(str)
        elif get_origin(kind) in (list, tuple, Sequence) and arguments and arguments[0] in PLURAL:
            items = arguments[:1]
            types.append(list)
        elif get_origin(kind) is Mapping:
            types.append(dict)
        elif setting.is_bounded or get_origin(kind) is Literal:
            return replace(setting, unread=f"{kind} is not a type of settings")
        else:
            return setting
    return replace(setting, types=tuple(types), items=items, choices=tuple(choices))


def take_apart(annotation: Any) -> tuple[list[Setting], list[Any]]:
    """Return the settings that an annotation notes, and the types that it allows, one for each part of a union."""
    annotation = getattr(annotation, "__value__", annotation)  # of what a `type` statement has named
    if get_origin(annotation) is Annotated:
        kind, *extras = get_args(annotation)
        own = [extra for extra in extras if isinstance(extra, Setting)]
        noted, kinds = take_apart(kind)
        return [*own, *noted], kinds
    if get_origin(annotation) not in (Union, UnionType):
        return [], [annotation]
    settings: list[Setting] = []
    kinds = []
    for part in get_args(annotation):
        noted, allowed = take_apart(part)
        settings += noted
        kinds += allowed
    return settings, kinds


# ---- words


def key_of(word: str) -> str:
    """Return the key that a word of a command line sets or deletes."""
    return word.lstrip("+~").partition("=")[0]


def either(words: Iterable[str]) -> str:
    """Join words: `a`, `a or b`, `a, b or c`; with a comma before `or` where a word has blanks of its own."""
    *first, last = list(words) or [""]
    if not first:
        return last
    has_blanks = any(" " in word for word in first)
    before_last = ", or " if has_blanks else " or "
    return ", ".join(first) + before_last + last


def show(value: Any) -> str:
    """Write a value as one would type it."""
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(show, value))}]"
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def printable(text: str) -> str:
    """Return a text without the characters that steer a terminal, such as escape sequences.

    Those that turn the direction of writing are shown by their numbers.
    """
    shown = TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", shown)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X? ` for the known word that is most like one, in whatever case; else nothing."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]}? " if close else ""


# ---- trees


def lookup(tree: Tree, path: str) -> Any:
    """Return the value at a dotted path.

    Raises:
        KeyError: nothing is there.
    """
    return reduce(getitem, path.split("."), tree)


def drop_keys(values: Mapping[str, Value], *keys: str) -> dict[str, Value]:
    """Return a copy of values by key that is without some keys, which need not be there."""
    return {key: value for key, value in values.items() if key not in keys}


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Return a nested tree by dotted paths; lists as text, so that rows can be grouped by them."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{path}.")
        elif isinstance(value, list):
            found[path] = json.dumps(value)
        else:
            found[path] = value
    return found
