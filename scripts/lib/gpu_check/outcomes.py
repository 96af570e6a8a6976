"""What a check of a GPU has found: its verdict, its figures, and the page that holds all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HOLDS = "holds"
FAILS = "does not hold"
CUT = "was not finished"
LEFT = "not tried"
FAILURES = (FAILS, CUT)

Cells = dict[str, str]  # a row of a table, by column


class NotTried(Exception):
    """What a check needs is not here."""


@dataclass(frozen=True)
class Outcome:
    """What one check has found.

    Attributes:
        verdict: one of the words above.
        figure: what was measured, in one line.
        numbers: the same for other programs.
        rows: of a table that belongs on the page.
        seconds: what it took.
    """

    verdict: str
    figure: str
    numbers: dict[str, Any] = field(default_factory=dict)
    rows: list[Cells] = field(default_factory=list)
    seconds: float = 0.0


def judge(holds: bool, figure: str, numbers: Mapping[str, Any], rows: Sequence[Cells] = ()) -> Outcome:
    """Return the outcome of a check that was made."""
    return Outcome(HOLDS if holds else FAILS, figure, dict(numbers), [*rows])


def write(outcome: Outcome, file: Path) -> None:
    """Write an outcome for the process that has asked for it."""
    file.write_text(json.dumps(asdict(outcome)))


def read(file: Path) -> Outcome:
    """Read an outcome that another process has written."""
    return Outcome(**json.loads(file.read_text()))


def status(outcomes: Mapping[str, Outcome]) -> int:
    """Return the exit status: 1 if anything does not hold or was not finished."""
    return int(any(outcome.verdict in FAILURES for outcome in outcomes.values()))


def record(outcomes: Mapping[str, Outcome], claims: Mapping[str, str], facts: Mapping[str, str]) -> dict[str, Any]:
    """Return all that was found, as the JSON file has it."""
    checks = {name: {"claim": claims[name], **asdict(outcome)} for name, outcome in outcomes.items()}
    return {"facts": dict(facts), "checks": checks}


def section(outcomes: Mapping[str, Outcome], claims: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """Return a section of a page in Markdown: the machine, what holds, and the tables of the checks that have one."""
    lines = ["## On a GPU", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    rows = []
    for name, outcome in outcomes.items():
        rows.append({"check": name, "what": claims[name], "verdict": outcome.verdict, "figure": outcome.figure})
    lines += ["", *table(rows)]
    for name, outcome in outcomes.items():
        if outcome.rows:
            lines += ["", f"### {name}", "", *table(outcome.rows)]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Cells]) -> list[str]:
    """Return the lines of a table in Markdown."""
    heads = list(rows[0])
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [str(row[head]).replace("|", "\\|").replace("\n", " ") for head in heads]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
