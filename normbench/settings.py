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
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from normbench.errors import UsageError

Tree = Mapping[str, Any]

ONE: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
MANY: dict[type, str] = {int: "integers", float: "numbers", str: "words"}


@dataclass(frozen=True)
class Setting:
    """What one key may hold.

    doc: one line. unit: of the number. low, high: bounds, inclusive. above, below: bounds, exclusive; of the elements,
    where it is a list. length: of a list.
    types, items, choices: allowed types, types of a list's elements, and words; they come from the annotation.
    required: whether it has no default.
    """

    doc: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    length: int | None = None
    types: tuple[type, ...] = ()
    items: tuple[type, ...] = ()
    choices: tuple[str, ...] = ()
    required: bool = False

    @property
    def allowed(self) -> str:
        """What is allowed, in words: `an integer from 1 to 1,000 (steps), or null`; empty where anything is."""
        alternatives = list(self.choices)
        if self.items:
            number = f"{self.length} " if self.length else ""
            alternatives.append(f"a list of {number}{MANY[self.items[0]]}{self.bounds}")
        spoken_of = {list, NoneType, str if self.choices else NoneType}
        plain = [kind for kind in self.types if kind not in spoken_of]
        alternatives += [ONE[kind] + (self.bounds if kind in (int, float) else "") for kind in plain]
        if self.unit and alternatives:
            alternatives[-1] += f" ({self.unit})"
        return either([*alternatives, *(["null"] if NoneType in self.types else [])])

    @property
    def bounds(self) -> str:
        """The bounds in words, behind what they bound: ` from 0 to below 1`."""
        start = f" from {count(self.low)}" if self.low is not None else ""
        start += f" above {count(self.above)}" if self.above is not None else ""
        end = f" to {count(self.high)}" if self.high is not None else ""
        end += f" to below {count(self.below)}" if self.below is not None else ""
        return start + (end.replace(" to", " up to", 1) if self.low is None else end)

    def check(self, path: str, value: Any) -> Any:
        """Return the value in its own type where that loses nothing: 1e3 is the integer 1000, and 3 the number 3.0.

        Raises:
            UsageError: wrong type or out of bounds.
        """
        if not self.types:
            return value
        typed = [self.typed(item) for item in value] if isinstance(value, list) else self.typed(value)
        if not self.holds(typed):
            raise UsageError(f"{path}={show(value)} is not allowed: use {self.allowed}")
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

    def holds(self, value: Any) -> bool:
        """Tell whether a value is of an allowed type and within the bounds."""
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
        """Tell whether a number is finite and within the bounds."""
        return (
            -math.inf < number < math.inf
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )


def setting_from(annotation: Any) -> Setting:
    """Return what an annotation allows; anything, where it names other types than those of a YAML."""
    noted = [extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, Setting)]
    setting = noted[0] if noted else Setting()
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


def count(number: float) -> str:
    """Write a bound as a person reads it: `1,000,000`, `0.05`, `0.00002`."""
    return f"{int(number):,}" if float(number).is_integer() else f"{number:.15f}".rstrip("0")


def show(value: Any) -> str:
    """Write a value as one would type it."""
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


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X? ` for the known word that is most like one, or the two that are; else nothing."""
    likeness = {other: SequenceMatcher(None, word, other).ratio() for other in known}
    enough = max(0.6, max(likeness.values(), default=0) - 0.15)
    close = sorted((other for other in likeness if likeness[other] >= enough), key=likeness.__getitem__, reverse=True)
    return f"did you mean {' or '.join(close[:2])}? " if close else ""


# ---- settings of a class, read from its source

# What a constructor is given by name beside its settings; what it is given by position has no default.
GIVEN = {"channel_dim", "site", "seed"}

# What annotations are made of; everything else that they name is looked up in the sources.
VOCABULARY = ("typing", "collections.abc", "types", "normbench.settings")


@cache
def settings_of(target: str) -> dict[str, Setting] | None:
    """Return the settings that a class or function takes by keyword; None where it takes any, or cannot be read."""
    try:
        source, node = Source(target.rpartition(".")[0]).definition(target.rpartition(".")[2])
        return source.settings(node)
    except (LookupError, OSError, SyntaxError, ImportError, ValueError, RecursionError):
        return None


class Source(dict):
    """A module's source, and as a mapping the values of its names as far as annotations need them."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module
        self.package, self.tree = parsed(module)

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        source, node = self.definition(name)
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            raise LookupError(name)
        return node if source is None else source.value(node.value)

    def definition(self, name: str) -> tuple[Any, Any]:
        """Return the statement that binds a name, with its source; for a word of VOCABULARY None and what it means.

        Raises:
            LookupError: it is not bound at the top of the module.
        """
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        module = resolve_name("." * node.level + (node.module or ""), self.package)
                        if module in VOCABULARY:
                            return None, getattr(importlib.import_module(module), alias.name)
                        return Source(module).definition(alias.name)
            elif name in bound_names(node):
                return self, node
        raise LookupError(name)

    def value(self, expression: ast.expr) -> Any:
        """Evaluate an annotation, or what one is made of."""
        return eval(compile(ast.Expression(expression), self.module, "eval"), {"__builtins__": {}}, self)

    def settings(self, node: Any) -> dict[str, Setting] | None:
        """Return the settings of a class or function, with those that it hands on to its base or to what it returns."""
        if type(node) not in (ast.ClassDef, ast.FunctionDef):
            return None  # a class by another name, or what a call has made
        maker: Any = node
        bases = [node.returns] if isinstance(node, ast.FunctionDef) else node.bases[:1]
        if isinstance(node, ast.ClassDef):
            maker = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        own: dict[str, Setting] = {}
        if maker is not None:
            arguments = maker.args
            optional = arguments.args[len(arguments.args) - len(arguments.defaults) :] if arguments.defaults else []
            defaults = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            known = [*((word, False) for word in optional), *((word, default is None) for word, default in defaults)]
            own = {word.arg: self.setting(word.annotation, needed) for word, needed in known if word.arg not in GIVEN}
            if arguments.kwarg is None:
                return own
        elif any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            annotated = [line for line in node.body if isinstance(line, ast.AnnAssign)]
            own = {ast.unparse(line.target): self.setting(line.annotation, line.value is None) for line in annotated}
        if not bases or not isinstance(bases[0], ast.Name):
            return None if bases or maker is not None else own
        source, base = self.definition(bases[0].id)
        more = None if source is None else source.settings(base)
        return None if more is None else {**more, **own}

    def setting(self, annotation: ast.expr | None, required: bool) -> Setting:
        """Return what an annotation allows; anything, where it cannot be told from the sources."""
        try:
            found = Setting() if annotation is None else setting_from(self.value(annotation))
        except (LookupError, OSError, SyntaxError, TypeError, AttributeError, NameError, ImportError):
            found = Setting()
        return replace(found, required=required)


def bound_names(node: ast.stmt) -> list[str]:
    """Return the names that a class, a function or an assignment binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    return [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]


@cache
def parsed(module: str) -> tuple[str, ast.Module]:
    """Return the package and the syntax tree of a module, which is found without importing its parents.

    Raises:
        ImportError: there is no such module with a source.
    """
    path, name, spec = None, "", None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            raise ImportError(module)
        path = list(spec.submodule_search_locations or [])
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise ImportError(module)
    return spec.parent or "", ast.parse(Path(spec.origin).read_text("utf-8"))


def lookup(tree: Tree, path: str) -> Any:
    """Return the value at a dotted path.

    Raises:
        KeyError: nothing is there.
    """
    for part in path.split("."):
        if not isinstance(tree, Mapping):
            raise KeyError(path)
        tree = tree[part]
    return tree


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Return a nested tree by dotted paths; lists as text, so that rows can be grouped by them."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return found
