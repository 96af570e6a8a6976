"""What a claim has come to: the content of claim.json, beside the runs of the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any

from normbench.analysis.statistics import Interval
from normbench.claims.verdicts import Judgement, Kind, Verdict
from normbench.record.files import read_json, write_json
from normbench.record.shapes import NUMBER, Shape

CLAIM_FILE = "claim.json"


class Status(StrEnum):
    """How far a claim has come."""

    COMPLETE = "complete"
    NOT_COMPLETE = "not complete"
    NOT_RUN = "not run"
    TRIAL = "trial"


BOUNDS = (NoneType, [(int, float)])
JUDGEMENT = {
    "verdict": str,
    "n": int,
    "mean": (int, float),
    "sd": (int, float),
    "level": (int, float),
    "interval": BOUNDS,
    "inner": BOUNDS,
    "p": (int, float),
    "p_against": (int, float),
    "note": str,
    "power": NUMBER,
    "seeds_to_settle": (int, NoneType),
}
SHAPE: Shape = {
    "name": str,
    "digest": str,
    "registered": str,
    "status": str,
    "reason": str,
    "claim": dict,
    "values": {str: (int, float)},
    "arms": {str: {str: (int, float)}},
    "lost": {str: int},
    "unreached": ({str: int}, NoneType),  # which results of before 2026-11-28 do not have
    "judgement": (NoneType, JUDGEMENT),
    "minutes": NUMBER,
    "machine": dict,
    "date": str,
    "words": [str],
    "report": str,
}


@dataclass(frozen=True)
class ClaimResult:
    """One claim, its runs and the verdict.

    Attributes:
        name: of the claim, which is that of its YAML and of its folder.
        digest: sha256 of the claim as it was registered when its runs were made.
        registered: the date of that, as 2026-11-28.
        status: complete ones alone have a verdict; a trial has other words than the claim.
        reason: why it is not run or not complete; empty otherwise.
        claim: the claim as it was then: key and value of its YAML, the defaults included.
        values: the effect by seed, in the claim's unit.
        arms: what was measured, by arm and seed, where that is one number.
        lost: how many runs were lost, by arm: those counted with the loss at initialization.
        unreached: at how many seeds an arm never comes down to the loss of its reference in `steps`, by arm: those
            counted with the length of the run; None where that was not noted.
        judgement: None where there is no verdict.
        minutes: that the runs took; None where that is not known.
        machine: `processor` or `gpu`, `cores`, `torch`, `normbench`, `commit`.
        date: of the end of its last run, as 2026-11-28; empty for none.
        words: those of the command that made the runs, `normbench` and its command left out.
        report: path of the report of its runs, from the folder of claim.json; empty for none.
    """

    name: str
    digest: str
    registered: str
    status: Status
    reason: str = ""
    claim: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[int, float] = field(default_factory=dict)
    arms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    unreached: Mapping[str, int] | None = None
    judgement: Judgement | None = None
    minutes: float | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""
    words: Sequence[str] = ()
    report: str = ""

    @property
    def minutes_to_settle(self) -> float | None:
        """Return the minutes of as many seeds as settle an inconclusive claim, all of them counted."""
        if self.judgement is None or self.judgement.seeds_to_settle is None or self.minutes is None:
            return None
        return self.minutes * self.judgement.seeds_to_settle / self.judgement.n


def write_result(result: ClaimResult, path: Path) -> None:
    """Write claim.json."""
    write_json(path, asdict(result))


def read_result(path: Path) -> ClaimResult | None:
    """Return what a claim.json holds, or None where it is missing or damaged."""
    content = read_json(path, SHAPE)
    if content is None or content["status"] not in list(Status):
        return None
    judgement = content["judgement"]
    if (judgement is not None) != (content["status"] == Status.COMPLETE):
        return None
    if judgement is not None and not (_is_judgement(judgement) and content["claim"].get("kind") in list(Kind)):
        return None
    values = _by_seed(content["values"])
    arms = {arm: _by_seed(measured) for arm, measured in content["arms"].items()}
    if values is None or None in arms.values():
        return None
    known: dict[str, Any] = {key: content.get(key) for key in SHAPE}
    known |= {
        "status": Status(content["status"]),
        "values": values,
        "arms": arms,
        "judgement": None if judgement is None else _read_judgement(judgement),
        "words": tuple(content["words"]),
    }
    return ClaimResult(**known)


def _by_seed(measured: Mapping[str, float]) -> dict[int, float] | None:
    """Return values by seed, in JSON a word; None where one is no number."""
    if not all(seed.isdecimal() for seed in measured):
        return None
    return {int(seed): float(value) for seed, value in measured.items()}


def _is_judgement(content: Mapping[str, Any]) -> bool:
    """Tell whether a judgement in JSON has a verdict that there is, and intervals with two ends."""
    are_intervals = all(content[key] is None or len(content[key]) == 2 for key in ("interval", "inner"))
    return are_intervals and content["verdict"] in list(Verdict)


def _read_judgement(content: Mapping[str, Any]) -> Judgement:
    known = {key: content[key] for key in JUDGEMENT}
    known["verdict"] = Verdict(content["verdict"])
    for key in ("interval", "inner"):
        bounds = content[key]
        known[key] = None if bounds is None else Interval(*bounds)
    return Judgement(**known)


def read_results(folder: Path) -> dict[str, ClaimResult]:
    """Return the results below a folder by name, in order: NAME/claim.json, and NAME.json where they are published."""
    found = dict[str, ClaimResult]()
    for path in sorted([*folder.glob(f"*/{CLAIM_FILE}"), *folder.glob("*.json")]):
        result = read_result(path)
        if result is not None:
            found[result.name] = result
    return dict(sorted(found.items()))
