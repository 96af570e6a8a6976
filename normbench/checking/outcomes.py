"""What a check finds: passed or failed, not applicable, or the yes or no of what is only measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from normbench.errors import ContractError, UsageError, explain

Result = Literal["passed", "failed", "not applicable", "yes", "no"]


@dataclass(frozen=True)
class Outcome:
    """The result of a check, and what was measured, or why."""

    result: Result
    figure: str = ""


@dataclass(frozen=True)
class Check:
    """One row to come. Where a decisive one fails, the others could say nothing."""

    name: str
    run: Callable[[], Outcome]
    decisive: bool = False


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    outcome: Outcome


def passed(figure: str = "") -> Outcome:
    return Outcome("passed", figure)


def failed(figure: str) -> Outcome:
    return Outcome("failed", figure)


def not_applicable(reason: str) -> Outcome:
    return Outcome("not applicable", reason)


def measured(found: bool, figure: str = "") -> Outcome:
    """A yes or no that is neither right nor wrong."""
    return Outcome("yes" if found else "no", figure)


def judged(good: bool, figure: str) -> Outcome:
    return passed(figure) if good else failed(figure)


def perform(checks: Iterable[Check], begin: Callable[[str], object] = str) -> Iterator[Row]:
    """Run the checks one after another; `begin` hears the name of each before it runs.

    What a check raises is its failure: most likely the part's own, and the others still tell something. Random numbers
    go on afterwards as if nothing had been checked.

    Raises:
        UsageError: by a decisive check, where the settings and not the part are wrong.
    """
    told: Outcome | None = None
    for check in checks:
        begin(check.name)
        try:
            with torch.random.fork_rng(devices=[]):
                outcome = check.run()
        except Exception as error:  # a person's code may raise anything: that is a failed row
            if check.decisive and isinstance(error, UsageError) and not isinstance(error, ContractError):
                raise
            outcome = failed(explain(error))
        yield Row(check.name, failed("as above") if outcome == told else outcome)
        told = outcome if outcome.result == "failed" else told
        if check.decisive and outcome.result == "failed":
            return
