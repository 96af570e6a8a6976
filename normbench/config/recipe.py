"""A configuration's parts, each resolved once: its option, its class, its settings, and the places for which it is.

A part is what makes one thing of a run: the norm, the norm at `qk`, the optimizer, a logger. `normbench.build` makes
things of parts. A part's class is imported when the part is first asked for, so that a model can be made though the
class of a logger is not installed here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

from normbench.config.groups import options, section_of
from normbench.config.rules import Rule, is_rule, read_rule, rule_sections, section_at
from normbench.config.sections import BY_NAME, CLASS_SECTIONS, LOGGER
from normbench.config.signatures import class_made_by, import_target
from normbench.errors import ContractError, UsageError, explain
from normbench.settings import Tree


@dataclass(frozen=True)
class Part:
    """One part of a run.

    Attributes:
        section: where the configuration has it, such as `norm`, or `norm@qk` of one that is for some places.
        group: what it is chosen from: `norm` of `norm@qk`.
        rule: says for which places it is; None of one for all other places.
        option: what was chosen; empty where that is not known.
        target: what makes it: package.module.Class.
        maker: the class or function of that name.
        made: the class of what that makes.
        settings: what it is given by keyword.
    """

    section: str
    group: str
    rule: Rule | None
    option: str
    target: str
    maker: Callable[..., Any]
    made: Any
    settings: Mapping[str, Any]

    @property
    def kind(self) -> type:
        """Return the base of what it makes."""
        return kind_of(self.group)

    @property
    def where(self) -> str:
        """Return the word that names its class, with which a complaint begins."""
        return name_target(self.section, self.target)


@dataclass(frozen=True)
class Recipe:
    """The parts of a configuration.

    Attributes:
        tree: the configuration, checked.
        options: what was chosen, by section; nothing where that is not known.
        resolved: the parts that were asked for so far, which configurations with the same sections may share.
    """

    tree: Tree
    options: Mapping[str, str] = field(default_factory=dict)
    resolved: dict[str, Part] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, section: str) -> Part:
        """Return the part of a section or a rule.

        Raises:
            UsageError: as `resolve` does.
        """
        if section not in self.resolved:
            self.resolved[section] = resolve(section, section_at(self.tree, section), self.options.get(section, ""))
        return self.resolved[section]

    @cached_property
    def all_rules(self) -> list[Rule]:
        """Return all rules in the order in which they were given."""
        return [read_rule(key) for key in rule_sections(self.tree)]

    def rules(self, group: str) -> list[Rule]:
        """Return the rules of a group in the order in which they were given."""
        return [rule for rule in self.all_rules if rule.group == group]

    def sections_of(self, group: str) -> list[str]:
        """Return the names of all sections that choose of a group: its own, and those of its rules."""
        return [group, *(rule.key for rule in self.rules(group))]

    def parts_of(self, group: str) -> list[Part]:
        """Return the parts that are chosen of a group: the one for all places, then those of its rules."""
        return [self[section] for section in self.sections_of(group)]

    def all_parts(self) -> list[Part]:
        """Return all parts but the loggers: that of each section, then those of rules."""
        sections = [*CLASS_SECTIONS, *(rule.key for rule in self.all_rules)]
        return [self[section] for section in sections]

    def loggers(self) -> list[Part]:
        """Return the parts that are loggers."""
        loggers: list[Part] = []
        for name, values in self.tree[LOGGER].items():
            path = f"{LOGGER}.{name}"
            if path not in self.resolved:
                self.resolved[path] = resolve(LOGGER, values, name)
            loggers.append(self.resolved[path])
        return loggers

    @property
    def treats_weights(self) -> bool:
        """Tell whether weights are treated anywhere."""
        return "weights" in self.tree or bool(self.rules("weights"))

    def in_words(self, group: str) -> str:
        """Return what was chosen of a group, its rules too: `norm=layernorm norm@qk=rmsnorm`."""
        chosen = [section for section in self.sections_of(group) if section in self.options]
        return " ".join(self.choice_of(section, group) for section in chosen)

    def choice_of(self, section: str, group: str) -> str:
        """Return the word for what a section has: its option, or the class that was set in place of the option's."""
        option = self.options[section]
        target = str(section_at(self.tree, section).get("_target_"))
        if option in options(group) and section_of(group, option).get("_target_") != target:
            return name_target(section, target)
        return f"{section}={option}"


def resolve(section: str, values: Tree, option: str = "") -> Part:
    """Return the part that a section stands for.

    Args:
        section: its name, or the key of a rule.
        values: what it holds.
        option: what was chosen.

    Raises:
        UsageError: its class cannot be imported, makes something else than the section is for, or is a logger that
            needs a package which is not installed.
    """
    rule = read_rule(section) if is_rule(section) else None
    group = rule.group if rule else section
    target = str(values["_target_"])
    where = name_target(section, target)
    maker = import_target(target, where)
    made = class_made_by(maker)
    kind = kind_of(group)
    if made is None or kind not in made.__mro__:  # one that is only registered with its base inherits nothing
        base = BY_NAME[group].makes
        cure = f"give package.module.Class of a class derived from {base}, or a function annotated to return one"
        raise ContractError(f"{where} makes no {kind.__name__}: {cure}")
    check_signature(maker, where)
    check_made(where, kind, missing_in_class(maker, made, kind))
    package = getattr(made, "package", "") if section == LOGGER else ""
    if package and find_spec(package) is None:
        raise UsageError(f"logger={package} is not installed: pip install 'normbench[{package}]'")
    settings = {name: value for name, value in values.items() if not name.startswith("_")}
    return Part(section, group, rule, option, target, maker, made, settings)


def name_target(section: str, target: str) -> str:
    """Return the word that names the class of a section."""
    return f"{section}._target_={target}"


@cache
def kind_of(group: str) -> type:
    """Return the base of what a group's parts make."""
    kind = import_target(BY_NAME[group].makes)
    assert isinstance(kind, type)
    return kind


@cache
def signature_of(maker: Callable[..., Any]) -> inspect.Signature:
    """Return what a class or function takes, which takes long to find where a model makes many norms of one class."""
    return inspect.signature(maker)


@cache
def check_signature(maker: Callable[..., Any], where: str) -> None:
    """Refuse a class or function of which Python cannot tell what it takes.

    Raises:
        ContractError: with what Python says.
    """
    try:
        signature_of(maker)
    except Exception as error:  # what stands in place of `__init__` may raise anything
        raise ContractError(f"{where} does not tell what it takes ({explain(error)}): give it an __init__") from error


def missing_in_class(maker: Callable[..., Any], made: type, kind: type) -> list[str]:
    """Return what a class must have, as its base says, and has not."""
    from torch import nn  # a help page does without the second that this takes

    missing = sorted(getattr(maker, "__abstractmethods__", ()))
    missing += missing_attributes(made, kind, "ClassVar")
    if getattr(maker, "forward", None) is nn.Module.forward:
        missing.append("forward")
    return missing


def missing_attributes(made: object, kind: type, said: str = "") -> list[str]:
    """Return the attributes that a base announces and something of it has not.

    Args:
        made: a class, or an object of one.
        kind: the base.
        said: what must be in the annotation of an attribute.
    """
    missing: list[str] = []
    for name, annotation in kind.__annotations__.items():
        if said in str(annotation) and not hasattr(made, name):
            missing.append(name)
    return missing


def check_made(where: str, kind: type, missing: list[str]) -> None:
    """Refuse a class, or what it makes, that lacks something.

    Raises:
        ContractError: with what it lacks.
    """
    if missing:
        raise ContractError(f"{where} has no {' and no '.join(missing)}: {help_command(kind)} says what it is for")


def help_command(kind: type) -> str:
    """Return the command that shows what a class says of itself."""
    return f"python -m pydoc {kind.__module__}.{kind.__qualname__}"
