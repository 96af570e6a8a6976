"""Which combinations are refused, and why: the list of `refusals.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `normbench list` shows the refusals without the second that torch takes
    from normbench.types import Data, Model, NormFacts, Placement


@dataclass(frozen=True)
class Refusal:
    """One reason to refuse. between: the sections whose choices clash. when: a condition on what they declare."""

    between: list[str]
    what: str
    reason: str
    instead: str
    when: str


LIST = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
REFUSALS = [Refusal(**rule) for rule in LIST["refusal"]]


@cache
def condition(text: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return an expression of Jinja as a function of what it names."""
    from jinja2 import Environment, StrictUndefined

    return Environment(undefined=StrictUndefined).compile_expression(text)


def refusal(norm: NormFacts, placement: type[Placement], model: type[Model], data: type[Data]) -> Refusal | None:
    """Return the first reason to refuse this combination, or None."""
    from normbench.types import Task

    parts = {"norm": norm, "placement": placement, "model": model, "data": data, "task": Task.by_kind.get(data.kind)}
    return next((rule for rule in REFUSALS if condition(rule.when)(parts)), None)
