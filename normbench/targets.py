"""What a section's `_target_` may name, and what it may make: mistakes in a user's own class, in one sentence."""

from __future__ import annotations

import importlib
import pkgutil
import re
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

import torch
from torch import nn

from normbench import contracts
from normbench.config import Tree
from normbench.errors import ContractError, UsageError, explain, place_of
from normbench.models import Initialization
from normbench.training.schedules import Schedule
from normbench.types import Data, Model, Placement

# What each section makes, and how it is called beside its settings.
KINDS: dict[str, tuple[type, str]] = {
    "norm": (nn.Module, "(num_features, *, channel_dim=-1, site=None)"),
    "placement": (Placement, "(branches, norm, site)"),
    "model": (Model, "(task, norm, placement)"),
    "data": (Data, "(*, seed)"),
    "optim": (torch.optim.Optimizer, "(params)"),
    "schedule": (Schedule, "()"),
    "init": (Initialization, "()"),
}


def imported(path: Any, where: str = "") -> Callable[..., Any]:
    """What a dotted path names; `where` begins the complaint.

    Raises:
        UsageError: it cannot be imported, or is neither a class nor a function.
    """
    try:
        if ":" in str(path):
            raise ValueError("it has a colon")
        found = pkgutil.resolve_name(path)
    except (ImportError, ValueError, TypeError, AttributeError) as error:
        if fault := fault_inside(str(path)):
            raise UsageError(f"{where or path} cannot be imported: mend {fault}") from error
        raise UsageError(f"{where or path} cannot be imported ({error}): give package.module.Class") from error
    if not callable(found):
        raise UsageError(f"{where or path} is not a class: give package.module.Class")
    target: Callable[..., Any] = found
    return target


def fault_inside(path: str) -> str:
    """What breaks off the import of a module that is there, and where; empty where the path is wrong.

    pkgutil passes over an ImportError inside a package's module, as if the package had no such name.
    """
    try:
        importlib.import_module(path.rpartition(".")[0] or path)
    except Exception as error:  # a person's module may raise anything
        return explain(error) if place_of(error) else ""
    return ""


def check_kind(section: str, path: str, found: Any) -> Callable[..., Any]:
    """What `<section>._target_` names, if it makes what the section is for.

    Raises:
        ContractError: it is neither such a class nor a function that says that it returns one, or the class lacks
            something.
    """
    kind, _ = KINDS[section]
    made = product(found)
    if not (isinstance(made, type) and issubclass(made, kind)):
        raise ContractError(
            f"{section}._target_={path} makes no {kind.__name__}: give package.module.Class of a class derived from "
            f"{kind.__module__}.{kind.__qualname__}, or a function annotated to return one"
        )
    contracts.check_class(section, path, made, whole=found is made)
    target: Callable[..., Any] = found
    return target


def product(found: Any) -> Any:
    """The class that is named, or that a function's annotation names; None where it names none."""
    if isinstance(found, type):
        return found
    try:
        return get_type_hints(found).get("return")
    except (TypeError, NameError):  # not a function, or an annotation that cannot be resolved
        return None


def checked(tree: Tree, section: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, with a call that does not fit its signature, or a result that lacks something, turned into a sentence.

    An optimizer is left alone: what it refuses, `make_optimizer` says.
    """
    if section == "optim":
        return make

    @wraps(make, assigned=())
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            made = make(*args, **kwargs)
        except TypeError as error:
            if not is_call_mistake(error):
                raise
            raise call_mistake(tree, section, str(error)) from error
        contracts.check_made(section, tree[section]["_target_"], made)
        return made

    return call


def is_call_mistake(error: TypeError) -> bool:
    """Whether arguments did not fit a signature: then the innermost frame is the caller's."""
    innermost = list(traceback.walk_tb(error.__traceback__))[-1][0]
    caller = str(innermost.f_globals.get("__name__"))
    in_caller = caller in (__name__, "normbench.data.factories") or caller.startswith("hydra.")
    return in_caller and re.search(r"unexpected keyword|missing \d+ required|takes .*argument", str(error)) is not None


def call_mistake(tree: Tree, section: str, complaint: str) -> UsageError:
    """What Python says about a call, in a sentence."""
    path, names = tree[section]["_target_"], re.findall(r"'(\w+)'", complaint)
    if "unexpected keyword" in complaint and names[0] in tree[section]:
        return UsageError(
            f"{section}.{names[0]} is not a setting of {path}: leave it out, or remove it with '~{section}.{names[0]}'"
        )
    if "missing" in complaint and not any(name in KINDS[section][1] for name in names):
        listed = " and ".join(f"{section}.{name}" for name in names)
        return UsageError(f"{listed} missing for {path}: set it with +{section}.{names[0]}=VALUE, or give it a default")
    return ContractError(
        f"{section}._target_={path} must take {KINDS[section][1]} and {section}'s settings ({complaint}): change it"
    )
