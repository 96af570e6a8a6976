"""What a check is, how it runs, and what several contracts measure alike.

A contract is a list of checks by name. A check is a function of the part. It returns what it measured, in words, or a
Fact of which neither answer is wrong; it raises ContractError where the part does not do what every part of its kind
must do, and NotApplicable where the part is not made for that.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normbench import build
from normbench.config.recipe import resolve
from normbench.errors import ContractError, UsageError, explain
from normbench.settings import Tree, show


class NotApplicable(Exception):
    """The part is not made for what a check is about."""


class Fact(NamedTuple):
    """A yes or no that is neither right nor wrong."""

    holds: bool
    measured: str = ""


Check = Callable[[Any], str | Fact | None]


@dataclass(frozen=True)
class CheckResult:
    """What came of a check."""

    name: str
    result: str  # passed, failed, not applicable, or of a Fact yes or no
    measured: str = ""


@dataclass(frozen=True)
class Part:
    """A norm, placement, model or data set under its settings, in the configuration of a run."""

    section: ClassVar[str]
    tree: Tree

    @property
    def made_class(self) -> Any:
        """The class of the part."""
        return resolve(self.section, self.tree[self.section]).made

    def factory(self, **changes: Any) -> Callable[..., Any]:
        """Return what makes the part, with some settings changed."""
        return build.factory(resolve(self.section, {**self.tree[self.section], **changes}))

    def contract(self) -> Mapping[str, Check]:
        """Return the checks of the part by name."""
        raise NotImplementedError


def takes_settings(part: Part) -> str:
    """The class has what every class of its kind has, and takes the settings."""
    part.factory()
    settings = part.tree[part.section]
    words = [f"{key}={show(value)}" for key, value in settings.items() if not key.startswith("_")]
    return f"{settings['_target_']}({', '.join(words)})"


def check(part: Part) -> list[CheckResult]:
    """Run the checks of a part; return what came of each.

    Raises:
        UsageError: as `check_each` does.
    """
    return list(check_each(part))


def check_each(part: Part, begin: Callable[[str], object] = lambda name: None) -> Iterator[CheckResult]:
    """Run the checks of a part one after another, and yield what came of each.

    Args:
        part: what is checked.
        begin: called with the name of each check before it.

    Raises:
        UsageError: the part cannot be made with these settings, and they are wrong, not the part.
    """
    begin("class")
    first = run_check("class", takes_settings, part)
    yield first
    if first.result != "passed":
        return
    for name, function in part.contract().items():
        begin(name)
        row = run_check(name, function, part)
        yield row
        if row.result == "failed" and "constructor" in name:  # the others could say nothing
            return


def run_check(name: str, function: Check, part: Part) -> CheckResult:
    """Run one check; random numbers go on afterwards as if nothing had been checked.

    Raises:
        UsageError: as `check` does.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            answer = function(part)
    except NotApplicable as reason:
        return CheckResult(name, "not applicable", str(reason))
    except Exception as error:  # a person's code may raise anything: that is a failed row
        wrong_settings = isinstance(error, UsageError) and not isinstance(error, ContractError)
        if wrong_settings and (name == "class" or "constructor" in name):
            raise
        return CheckResult(name, "failed", explain(error))
    if isinstance(answer, Fact):
        return CheckResult(name, "yes" if answer.holds else "no", answer.measured)
    return CheckResult(name, "passed", answer or "")


def expect(good: bool, measured: str) -> str:
    """Return what was measured, or raise ContractError with it."""
    if not good:
        raise ContractError(measured)
    return measured


def expect_small(difference: float, most: float = 0.0) -> str:
    """Return a difference in words; ContractError if it is larger than `most`."""
    return expect(difference <= most, f"largest difference {difference:.1e}" if difference else "to the bit")


def difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a share of the largest expected value, and infinity for what is not finite.

    Of several differences the largest counts, and Python's `max` may pass over a NaN.
    """
    actual = actual.detach().double()
    expected = expected.detach()
    largest = (actual - expected.double()).abs().max()
    size = expected.abs().max().clamp_min(1e-30)  # what is expected may be 0 everywhere
    share = float(largest / size)
    return share if math.isfinite(share) else math.inf


def gradients_arrive(module: nn.Module) -> str:
    """Every parameter has a finite gradient, which a backward pass has left."""
    count = 0
    without = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        count += 1
        if parameter.grad is None or not parameter.grad.isfinite().all():
            without.append(name)
    expect(not without, f"no finite gradient in {', '.join(without[:3])}: let the loss depend on every parameter")
    return f"{count} parameters"


def drawn_by(action: Callable[[], object]) -> str:
    """Return from which global random numbers, which belong to dropout, an action draws; empty for none."""
    before = random_states()
    action()
    after = random_states()
    return " and ".join(name for name in before if before[name] != after[name])


def random_states() -> dict[str, bytes]:
    """Return the states of the global random numbers, by the module that has them."""
    states = {
        "torch": torch.get_rng_state().numpy(),
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
    }
    return {name: pickle.dumps(state) for name, state in states.items()}
