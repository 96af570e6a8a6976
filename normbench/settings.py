"""What one key of a configuration may hold, as an annotation says it: `Annotated[float, Setting("decay", above=0)]`.

A norm, placement, model or data set is configured by the annotated signature of its class. It is read from the class's
source, since importing the class would import torch, and a help page or the Tab key is to be answered at once.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial, reduce
from importlib.util import resolve_name
from operator import getitem
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from normbench.errors import LINE, UsageError

Tree = Mapping[str, Any]

ONE: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all control characters but tab and line feed
TURNING = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # which turn the direction of what follows
MANY: dict[type, str] = {int: "integers", float: "numbers", str: "words"}


@dataclass(frozen=True)
class Setting:
    """What one key may hold.

    doc: one line. unit: of the number. low, high: bounds, inclusive. above, below: bounds, exclusive; of the elements,
    where it is a list. length: of a list.
    types, items, choices: allowed types, types of a list's elements, and words; they come from the annotation.
    required: whether it has no default.
    tasks: the kinds of task in which it plays a part; none: in all. word_tasks: those of single words, where they are
    fewer.
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

    @property
    def allowed(self) -> str:
        """What is allowed, in words: `an integer from 1 to 1,000 (steps), or null`; empty where anything is."""
        alternatives = list(self.choices)
        if self.items:
            number = f"{self.length} " if self.length else ""
            alternatives.append(f"a list of {number}{MANY[self.items[0]]}{self.bounds}")
        plain = [kind for kind in self.types if kind in ONE and not (kind is str and self.choices)]
        alternatives += [ONE[kind] + self.bounds for kind in plain]
        if self.unit and alternatives:
            alternatives[-1] += f" ({self.unit})"
        return either([*alternatives, *(["null"] if NoneType in self.types else [])])

    def plays_a_part(self, task: str, value: Any = None) -> bool:
        """Tell whether it, with this value, changes anything in a task of this kind."""
        tasks = next((own for word, own in self.word_tasks if word == value), self.tasks)
        return task in tasks or not tasks

    @property
    def bounds(self) -> str:
        """The bounds in words, behind what they bound: ` from 0 to below 1`."""
        to = "to" if math.isfinite(self.low) else "up to"
        named = {"from": self.low, "above": self.above, to: self.high, f"{to} below": self.below}
        return "".join(f" {word} {bound:,}".removesuffix(".0") for word, bound in named.items() if math.isfinite(bound))

    def check(self, path: str, value: Any) -> Any:
        """Return the value in its own type where that loses nothing: 1e3 is the integer 1000, and 3 the number 3.0.

        Raises:
            UsageError: wrong type or out of bounds.
        """
        if not self.types:
            return value
        typed = [self.typed(item) for item in value] if isinstance(value, list) else self.typed(value)
        if not self.holds(typed, self.types):
            raise UsageError(f"{path}={show(value):.{LINE}} is not allowed: use {self.allowed}")
        return typed

    def typed(self, value: Any) -> Any:
        """Return a value, or an element of a list, as one of the allowed types if it loses nothing by that."""
        types = (*self.types, *self.items)
        if type(value) in types or isinstance(value, bool):
            return value
        if isinstance(value, int) and float in types and abs(value) <= sys.float_info.max:
            return float(value)
        if isinstance(value, float) and int in types and value.is_integer():
            return int(value)
        return str(value) if isinstance(value, int | float) and str in types and not self.choices else value

    def has_type(self, value: Any) -> bool:
        """Tell whether a value is of an allowed type, whatever its bounds."""
        return not self.types or type(self.typed(value)) in self.types

    def holds(self, value: Any, types: tuple[type, ...]) -> bool:
        """Tell whether a value is of one of some types and within the bounds; or a list, and each of its elements."""
        if isinstance(value, list) and self.items:
            right_length = len(value) == (self.length or len(value)) > 0
            return right_length and all(self.holds(item, self.items) for item in value)
        if type(value) not in types:
            return False
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return value is None or (self.low <= value <= self.high and self.above < value < self.below)


def setting_from(annotation: Any) -> Setting:
    """Return what an annotation allows; anything, where it names other types than those of a YAML."""
    noted = (extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, Setting))
    setting = next(noted, Setting())
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    types: list[type] = []
    for part in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if get_origin(part) is Literal:
            setting = replace(setting, choices=(*setting.choices, *get_args(part)))
            types.append(str)
        elif part in (int, float, bool, str, None, NoneType):
            types.append(NoneType if part is None else part)
        elif get_origin(part) in (list, tuple, Sequence) and get_args(part)[0] in MANY:
            setting = replace(setting, items=get_args(part)[:1])
            types.append(list)
        else:
            return replace(setting, choices=(), items=())
    return replace(setting, types=tuple(types))


# ---- words


def either(words: Iterable[str]) -> str:
    """Join words: `a`, `a or b`, `a, b or c`; with a comma before `or` where a word has blanks of its own."""
    *first, last = list(words) or [""]
    if not first:
        return last
    return ", ".join(first) + (", or " if " " in "".join(first) else " or ") + last


def show(value: Any) -> str:
    """Write a value as one would type it."""
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(show, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def printable(text: str) -> str:
    """Return a text without the characters that steer a terminal, such as escape sequences.

    Those that turn the direction of writing are shown by their numbers.
    """
    shown = TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", shown)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X? ` for the known word that is most like one, in whatever case; else nothing."""
    by_lower = {each.lower(): each for each in known}
    return "".join(f"did you mean {by_lower[close]}? " for close in get_close_matches(word.lower(), by_lower, n=1))


# ---- settings of a class, read from its source

# What a constructor is given beside its settings.
GIVEN = {"num_features", "channel_dim", "site", "branches", "task", "norm", "placement", "params", "seed", "content"}

# What annotations are made of; everything else that they name is looked up in the sources.
VOCABULARY = ("typing", "collections.abc", "types", "normbench.settings")


@cache
def settings_of(target: str) -> dict[str, Setting] | None:
    """Return the settings that a class or function takes by keyword; None where it takes any, or cannot be read."""
    module, _, name = target.rpartition(".")
    with suppress(Exception):  # a source may hold anything, or not be there
        found: dict[str, Setting] | None = source_of(module)[name]()
        return found
    return None


@cache
def source_of(module: str) -> Source:
    """Return a module's source, which is found without importing its parents.

    Raises:
        ImportError: there is none.
    """
    for folder in sys.path:
        path = Path(folder, *module.split("."))
        if (inside := path / "__init__.py").is_file():
            return Source(module, ast.parse(inside.read_text("utf-8")))
        if (file := path.with_suffix(".py")).is_file():
            return Source(module.rpartition(".")[0], ast.parse(file.read_text("utf-8")))
    raise ImportError(module)


class Source(dict[str, Any]):
    """What the names of a module mean, as far as annotations need them; a class or function gives its settings."""

    def __init__(self, package: str, tree: ast.Module) -> None:
        super().__init__()
        self.package, self.tree = package, tree

    def __missing__(self, name: str) -> Any:
        """Look for the statement that binds a name."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    module = resolve_name("." * node.level + (node.module or ""), self.package)
                    if alias.name == "*":
                        with suppress(AttributeError, ImportError):
                            return source_of(module)[name]
                    elif (alias.asname or alias.name) == name:
                        known = vars(importlib.import_module(module)) if module in VOCABULARY else source_of(module)
                        return known[alias.name]
            elif isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return partial(self.settings, node)
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
                return self.value(node.value)
        return getattr(builtins, name)

    def value(self, expression: ast.expr) -> Any:
        """Evaluate an annotation, or what one is made of."""
        return eval(compile(ast.Expression(expression), "annotation", "eval"), {"__builtins__": {}}, self)

    def setting(self, annotation: Any, default: Any) -> Setting:
        """Return what an annotation allows; anything, where there is none or it cannot be told from the sources."""
        found = Setting()
        with suppress(Exception):
            found = setting_from(self.value(annotation))
        return replace(found, required=default is None)

    def settings(self, node: Any) -> dict[str, Setting] | None:
        """Return the settings of a class or function, with those that it hands on to its base or to what it returns."""
        maker: Any = node
        bases: list[Any] = [getattr(node, "returns", None)]
        if isinstance(node, ast.ClassDef):
            maker = next((line for line in node.body if getattr(line, "name", "") == "__init__"), None)
            bases = node.bases[:1]
        if maker:
            arguments = maker.args
            words = [*arguments.args[len(arguments.args) - len(arguments.defaults) :], *arguments.kwonlyargs]
            defaults = [*arguments.defaults, *arguments.kw_defaults]
            taken = {word.arg: (word.annotation, default) for word, default in zip(words, defaults, strict=True)}
            bare = arguments.args[isinstance(node, ast.ClassDef) : len(arguments.args) - len(arguments.defaults)]
            if len(bare) < 3:  # one that is not set is given: of torch.nn.GroupNorm's groups and channels, say, either
                taken |= {word.arg: (word.annotation, ...) for word in bare}
        else:  # the fields of a dataclass
            fields = [line for line in node.body if isinstance(line, ast.AnnAssign) and node.decorator_list]
            taken = {ast.unparse(field.target): (field.annotation, field.value) for field in fields}
        own = {name: self.setting(*said) for name, said in taken.items() if name not in GIVEN}
        if not (maker.args.kwarg if maker else bases):
            return own
        more = self[bases[0].id]()
        return None if more is None else {**more, **own}


def lookup(tree: Tree, path: str) -> Any:
    """Return the value at a dotted path.

    Raises:
        KeyError: nothing is there.
    """
    return reduce(getitem, path.split("."), tree)


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Return a nested tree by dotted paths; lists as text, so that rows can be grouped by them."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return found
