"""What a class or function may be given by keyword, as the annotations of its signature say it.

Ours and torch's are read from their sources, since importing them would import torch, and a help page or the Tab key
is to be answered at once. Somebody else's are imported, which runs their code: only where a person has named them, or
trusts whoever has.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import InitVar, replace
from functools import cache, partial
from importlib.util import resolve_name
from inspect import Parameter
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, get_type_hints

from normbench.companions import import_module_beside
from normbench.errors import UsageError, comes_from_torchvision, explain, explain_torchvision, place_of
from normbench.settings import Setting, drop_keys, nearest, setting_from

OURS = ("normbench.", "torch.")

# What a constructor is given besides its settings.
GIVEN = {"num_features", "channel_dim", "site", "branches", "task", "norm", "placement", "params", "seed", "content"}

# So many arguments without a default are settings, as the groups of torch.nn.GroupNorm; more are given.
MOST_BARE = 2


def settings_of(target: str, imports: bool = False) -> dict[str, Setting] | None:
    """Return the settings that a class or function takes by keyword; None where it takes any, or cannot be read.

    Args:
        imports: whether one of somebody else's is imported to be read.
    """
    if target.startswith(OURS):
        return settings_in_source(target)
    if imports:
        with suppress(Exception):  # it may hold anything; what is wrong is said where it is to be used
            return settings_of_class(import_target(target))
    return None


def import_target(path: str, where: str = "") -> Callable[..., Any]:
    """Return what a dotted path names.

    Args:
        where: what a complaint begins with, by default the path.

    Raises:
        UsageError: it cannot be imported, or is neither a class nor a function.
    """
    where = where or path
    module, _, name = path.rpartition(".")
    try:
        target = getattr(import_module_beside(module), name)
    except (Exception, SystemExit) as error:  # a person's module may raise anything, or end as a script does
        if comes_from_torchvision(error):
            raise UsageError(f"{where} cannot be imported: {explain_torchvision(module, error)}") from error
        if place_of(error):
            raise UsageError(f"{where} cannot be imported: fix {explain(error)}") from error
        known = vars(sys.modules[module]) if module in sys.modules else ()
        cure = f"{nearest(name, known)}give package.module.Class, such as mynorms.MyNorm of mynorms.py"
        raise UsageError(f"{where} cannot be imported ({error if module else 'no module'}): {cure}") from error
    if not callable(target):
        raise UsageError(f"{where} is not a class: give package.module.Class")
    return target


# ---- somebody else's, imported


@cache
def settings_of_class(made: Callable[..., Any]) -> dict[str, Setting] | None:
    """Return the settings of a class or function, with those that it hands on to its base or to what it returns.

    None where it takes any, or is not written in Python.
    """
    settings: dict[str, Setting] = {}
    hands_on = False
    for maker in makers(made):
        settings_of_maker, hands_on = read_maker(maker)
        settings = {**settings_of_maker, **settings}
        if not hands_on:
            break
    return None if hands_on else settings


def makers(made: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Give what takes the arguments, in turn: a function and what it returns, or what each base of a class begins with.

    That is its `__init__` or `__new__`, or the class itself where it is a dataclass or a NamedTuple.
    """
    if isinstance(made, type):
        for base in made.__mro__[:-1]:  # the last is object
            if "__dataclass_params__" in vars(base) or "_field_defaults" in vars(base):
                yield base
            elif "__init__" in vars(base):
                yield vars(base)["__init__"]
            elif "__new__" in vars(base):
                yield base.__new__
        return
    yield made
    returned = class_made_by(made)
    if returned is not None:
        yield from makers(returned)


def class_made_by(maker: Any) -> type | None:
    """Return what makes something, where it is a class, or the class that a function is annotated to return.

    None where it is neither, or where the annotation cannot be read.
    """
    if isinstance(maker, type):
        return maker
    with suppress(Exception):  # an annotation may hold anything
        plain = inspect.unwrap(maker)
        returned = read_annotation(plain.__annotations__["return"], plain.__globals__)
        if isinstance(returned, type):
            return returned
    return None


def read_maker(maker: Callable[..., Any]) -> tuple[dict[str, Setting], bool]:
    """Return the settings of a function, a dataclass or a NamedTuple, and whether it hands on others."""
    if isinstance(maker, type):
        return fields_of(maker), False
    function = inspect.unwrap(maker)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # it is not written in Python
        return {}, True
    hands_on = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    read = partial(read_setting, namespace=getattr(function, "__globals__", {}))
    return settings_among(parameters, read), hands_on


def settings_among(parameters: Iterable[Parameter], read: Callable[[Any], Setting]) -> dict[str, Setting]:
    """Return the settings among the parameters of a function.

    Args:
        parameters: in their order.
        read: gives what an annotation of theirs allows.
    """
    settings: dict[str, Setting] = {}
    bare: dict[str, Setting] = {}
    for parameter in parameters:
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            continue
        if parameter.name in ("self", "cls"):
            continue
        setting = Setting()
        if parameter.name not in GIVEN and parameter.annotation is not Parameter.empty:
            setting = read(parameter.annotation)
        if parameter.default is not Parameter.empty:
            settings[parameter.name] = replace(setting, default=as_in_yaml(parameter.default))
        elif parameter.kind is Parameter.KEYWORD_ONLY:
            settings[parameter.name] = replace(setting, required=True)
        else:
            bare[parameter.name] = setting
    if len(bare) <= MOST_BARE:
        settings |= bare
    return drop_keys(settings, *GIVEN)


def fields_of(made: type) -> dict[str, Setting]:
    """Return the settings that the fields of a dataclass or a NamedTuple are, and what `__post_init__` is given.

    Where names in an annotation are looked up: in the module of the base that has the field.
    """
    settings: dict[str, Setting] = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if name in GIVEN or parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            continue
        module = made.__module__
        for base in reversed(made.__mro__):
            if name in vars(base).get("__annotations__", {}):
                module = base.__module__
        setting = read_setting(parameter.annotation, vars(sys.modules[module]))
        if parameter.default is Parameter.empty:
            settings[name] = replace(setting, required=True)
        else:
            settings[name] = replace(setting, default=as_in_yaml(parameter.default))
    return settings


def as_in_yaml(default: Any) -> Any:
    """Return a default as a YAML would hold it, a tuple as a list; ... for what no YAML could hold."""
    if isinstance(default, tuple):
        return list(default)
    return default if isinstance(default, int | float | str | list | NoneType) else ...


def read_setting(annotation: Any, namespace: dict[str, Any]) -> Setting:
    """Return what an annotation allows; anything, where it cannot be read, which the setting then says."""
    try:
        return setting_from(read_annotation(annotation, namespace))
    except Exception as error:  # an annotation may hold anything
        return Setting(unread=explain(error))


def read_annotation(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Return what an annotation means, which may be text, where names mean what they do in a namespace."""
    holder = SimpleNamespace(__annotations__={"it": annotation})
    meaning = get_type_hints(holder, namespace, include_extras=True)["it"]
    if isinstance(meaning, InitVar):  # of a dataclass
        return read_annotation(meaning.type, namespace)
    return meaning


# ---- ours and torch's, read from the source

# What annotations are made of; everything else that they name is looked up in the sources.
VOCABULARY = ("typing", "collections.abc", "types", "normbench.settings")


@cache
def settings_in_source(target: str) -> dict[str, Setting] | None:
    """Return what `settings_of_class` does, from the source alone, for classes that are written as plainly as ours."""
    module, _, name = target.rpartition(".")
    with suppress(Exception):  # a source may hold anything, or not be there
        settings: dict[str, Setting] | None = source_of(module)[name]()
        return settings
    return None


@cache
def source_of(module: str) -> Source:
    """Return a module's source, which is found without importing its parents.

    Raises:
        ImportError: there is none.
    """
    for folder in sys.path:
        path = Path(folder, *module.split("."))
        package = path / "__init__.py"
        if package.is_file():
            return Source(module, ast.parse(package.read_text("utf-8")))
        file = path.with_suffix(".py")
        if file.is_file():
            return Source(module.rpartition(".")[0], ast.parse(file.read_text("utf-8")))
    raise ImportError(module)


class Source(dict[str, Any]):
    """What the names of a module mean, as far as annotations need them; a class or function gives its settings."""

    def __init__(self, package: str, tree: ast.Module) -> None:
        super().__init__()
        self.package = package
        self.tree = tree

    def __missing__(self, name: str) -> Any:
        """Look for the statement that binds a name."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom):
                module = resolve_name("." * node.level + (node.module or ""), self.package)
                for alias in node.names:
                    if alias.name == "*":
                        with suppress(AttributeError, ImportError):
                            return source_of(module)[name]
                    elif name == (alias.asname or alias.name):
                        return name_in(module, alias.name)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return partial(self.read_settings, node)
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
                return self.evaluate(node.value)
        return getattr(builtins, name)

    def evaluate(self, expression: ast.expr) -> Any:
        """Evaluate an annotation, or what one is made of."""
        return eval(compile(ast.Expression(expression), "annotation", "eval"), {"__builtins__": {}}, self)

    def read_settings(self, node: ast.ClassDef | ast.FunctionDef) -> dict[str, Setting] | None:
        """Return the settings of a class or function, with those that it hands on to its base or to what it returns."""
        if isinstance(node, ast.FunctionDef):
            return self.settings_of_function(node.args, node.returns)
        base = node.bases[0] if node.bases else None
        for line in node.body:
            if isinstance(line, ast.FunctionDef) and line.name == "__init__":
                return self.settings_of_function(line.args, base)
        settings = settings_among(self.fields(node), self.read_setting)
        return self.add_rest(base, settings) if base else settings

    def settings_of_function(self, arguments: ast.arguments, rest: ast.expr | None) -> dict[str, Setting] | None:
        """Return the settings of a function. rest: what takes those that it hands on."""
        settings = settings_among(self.parameters(arguments), self.read_setting)
        return self.add_rest(rest, settings) if arguments.kwarg else settings

    def add_rest(self, maker: ast.expr | None, own: dict[str, Setting]) -> dict[str, Setting] | None:
        """Return the settings of what takes the rest, and one's own; None where anything is taken."""
        more = self[maker.id]() if isinstance(maker, ast.Name) else None
        return None if more is None else {**more, **own}

    def parameters(self, arguments: ast.arguments) -> list[Parameter]:
        """Return what a function takes by keyword."""
        without_default = len(arguments.args) - len(arguments.defaults)
        defaults = [*[None] * without_default, *arguments.defaults]
        parameters: list[Parameter] = []
        for argument, default in zip(arguments.args, defaults, strict=True):
            parameters.append(
                self.parameter(argument.arg, argument.annotation, default, Parameter.POSITIONAL_OR_KEYWORD)
            )
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            parameters.append(self.parameter(argument.arg, argument.annotation, default))
        return parameters

    def fields(self, node: ast.ClassDef) -> list[Parameter]:
        """Return what a dataclass takes; nothing where a class is none."""
        parameters: list[Parameter] = []
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and node.decorator_list:
                default = line.value
                if isinstance(default, ast.Call):  # field(default=1.0, kw_only=True)
                    default = {keyword.arg: keyword.value for keyword in default.keywords}.get("default", default)
                parameters.append(self.parameter(ast.unparse(line.target), line.annotation, default))
        return parameters

    def parameter(
        self, name: str, annotation: ast.expr | None, default: ast.expr | None, kind: Any = Parameter.KEYWORD_ONLY
    ) -> Parameter:
        """Return a parameter with its default, where the sources tell what that is; its annotation stays as written."""
        value: Any = Parameter.empty
        if default is not None:
            value = ...
            with suppress(Exception):
                value = self.evaluate(default) if isinstance(default, ast.Name) else ast.literal_eval(default)
        return Parameter(name, kind, default=value, annotation=annotation or Parameter.empty)

    def read_setting(self, annotation: ast.expr) -> Setting:
        """Return what an annotation allows, which is anything where the sources do not tell."""
        with suppress(Exception):
            return setting_from(self.evaluate(annotation))
        return Setting()


def name_in(module: str, name: str) -> Any:
    """Return what a name of a module means; only the few modules that annotations are made of are imported."""
    if module in VOCABULARY:
        return vars(importlib.import_module(module))[name]
    return source_of(module)[name]
