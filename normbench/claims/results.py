"""What a claim has come to: the content of claim.json, beside the runs of the claim."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from textwrap import shorten
from types import NoneType
from typing import Any

from normbench.claims.claim import OLDER
from normbench.claims.verdicts import Judgement, Kind, Verdict, judge
from normbench.errors import explain
from normbench.record.digests import find_altered, write_with_digests
from normbench.record.files import read_json
from normbench.record.shapes import DIGESTS, NUMBER, Shape
from normbench.results.effects import EffectError, Point, parse_effect
from normbench.results.statistics import Interval

CLAIM_FILE = "claim.json"
PAGE_FILE = "claims.json"  # of the page, beside the folders of results

# What of a claim decides how its values are judged, and what they are.
RULE = ("kind", "margin", "target", "seeds", "effect", "arms", "measure", "where", "unit")
CLOSE = 1e-9  # of values that were written and read again
DIGEST = re.compile(r"[0-9a-f]{64}")


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
    "digest": DIGEST,
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
READ: Shape = {**SHAPE, DIGESTS: (dict, NoneType)}


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
    """Write claim.json, with a digest of what it holds."""
    write_with_digests(path, asdict(result), [path.name])


def read_result(path: Path) -> ClaimResult | None:
    """Return what a claim.json holds, or None where it is missing, damaged, or of another claim than its place says."""
    try:
        return load_result(path)
    except ValueError:
        return None


def load_result(path: Path) -> ClaimResult:
    """Return what a claim.json holds.

    Raises:
        ValueError: it is missing, damaged, or of another claim than its place says.
    """
    content = read_json(path, READ)
    if content is None or content["status"] not in list(Status):
        raise ValueError(f"{path} is missing or damaged")
    if not all(map(is_finite, numbers_in(content))):
        raise ValueError(f"{path} is damaged (a number in it is not finite)")
    name = name_of_place(path)
    if content["name"] != name:
        raise ValueError(f"{path} is the result of claim {content['name']}, and lies where that of {name} belongs")
    altered = True
    with suppress(OSError, ValueError, RecursionError):
        altered = bool(find_altered(path))
    if altered:
        raise ValueError(f"{path} changed after it had been written")
    judgement = content["judgement"]
    values = _by_seed(content["values"])
    arms = {arm: _by_seed(measured) for arm, measured in content["arms"].items()}
    has_verdict = content["status"] == Status.COMPLETE
    is_readable = judgement is None or (_is_judgement(judgement) and content["claim"].get("kind") in list(Kind))
    if values is None or None in arms.values() or (judgement is not None) != has_verdict or not is_readable:
        raise ValueError(f"{path} is damaged")
    known: dict[str, Any] = {key: content.get(key) for key in SHAPE}
    known |= {
        "status": Status(content["status"]),
        "values": values,
        "arms": arms,
        "judgement": None if judgement is None else _read_judgement(judgement),
        "words": tuple(content["words"]),
    }
    return ClaimResult(**known)


def name_of_place(path: Path) -> str:
    """Return the name of the claim whose result belongs into a file: NAME/claim.json, or NAME.json where published.

    In the folder of older ones it is NAME-DIGEST/claim.json.
    """
    if path.name != CLAIM_FILE:
        return path.stem
    folder = path.absolute().parent
    return re.sub(r"-[0-9a-f]{8}\d*$", "", folder.name) if folder.parent.name == OLDER else folder.name


def is_digested(path: Path) -> bool:
    """Tell whether a claim.json holds a digest, which those of before 2026-11-29 do not."""
    return bool((read_json(path, {}) or {}).get(DIGESTS))


def _by_seed(measured: Mapping[str, float]) -> dict[int, float] | None:
    """Return values by seed, in JSON a word; None where one is no number."""
    if not all(map(is_seed, measured)):
        return None
    return {int(seed): float(value) for seed, value in measured.items()}


def is_seed(text: str) -> bool:
    """Tell whether a text of a record is a seed: an integer from 0, within 64 bits."""
    return text.isdecimal() and len(text) <= 19


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


def read_results(folder: Path, left_out: list[str]) -> dict[str, ClaimResult]:
    """Return the results below a folder by name, in order: NAME/claim.json, and NAME.json where they are published.

    Args:
        left_out: to which a sentence is added for each file that cannot be used.
    """
    found = dict[str, ClaimResult]()
    for path in sorted([*folder.glob(f"*/{CLAIM_FILE}"), *folder.glob("*.json")]):
        if path.name == PAGE_FILE:
            continue
        try:
            result = load_result(path)
        except ValueError as error:
            left_out.append(str(error))
        else:
            found[result.name] = result
    return dict(sorted(found.items()))


# ---- what follows from what


def numbers_in(content: Any) -> Iterator[float]:
    """Yield all numbers in what a JSON holds."""
    if isinstance(content, dict):
        for value in content.values():
            yield from numbers_in(value)
    elif isinstance(content, list):
        for value in content:
            yield from numbers_in(value)
    elif isinstance(content, int | float):
        yield content


def is_finite(value: float) -> bool:
    """Tell whether a number is finite, and no integer that is too large for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def find_differences(before: Any, again: Any, path: str = "") -> Iterator[str]:
    """Yield a phrase for each value in which two records differ, of any shape that a JSON has, key by key.

    Args:
        before: as it was written.
        again: as it is computed again.
        path: of both, from the whole.
    """
    if isinstance(before, Mapping) and isinstance(again, Mapping):
        for key in dict.fromkeys([*before, *again]):
            place = f"{path}.{key}" if path else str(key)
            yield from find_differences(before.get(key), again.get(key), place)
    elif is_list(before) and is_list(again) and len(before) == len(again):
        for number, (one, other) in enumerate(zip(before, again, strict=True)):
            yield from find_differences(one, other, f"{path}[{number}]")
    elif not is_same(before, again):
        yield f"{path} is {show_value(again)}, and not {show_value(before)}"


def is_list(value: Any) -> bool:
    """Tell whether a value is a list in a JSON."""
    return isinstance(value, list | tuple)


def is_same(before: Any, again: Any) -> bool:
    """Tell whether two values are the same, numbers but for rounding."""
    if is_number(before) and is_number(again):
        return math.isclose(before, again, rel_tol=CLOSE, abs_tol=CLOSE * CLOSE)
    return isinstance(before, bool) == isinstance(again, bool) and bool(before == again)


def is_number(value: Any) -> bool:
    """Tell whether a value is a number, which in JSON true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def show_value(value: Any) -> str:
    """Write a value of a record in a few letters."""
    if value is None:
        return "nothing"
    return f"{value:.6g}" if isinstance(value, float) else shorten(str(value), 80) or "empty"


def rule_of(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a claim decides how its values are judged, as JSON has it."""
    return {key: claim.get(key) for key in RULE}


def judge_by_rule(values: Mapping[int, float], claim: Mapping[str, Any]) -> Judgement:
    """Judge values by the rule of a claim, as its YAML has it.

    Raises:
        ValueError: there are no values.
        LookupError, TypeError: it is not a claim.
    """
    looks = len(claim["seeds"])
    target = claim.get("target") or 0.0
    return judge(values, Kind(claim["kind"]), claim["margin"], target=target, looks=looks)


def find_faults(result: ClaimResult, claim: Mapping[str, Any]) -> list[str]:
    """Return what of a result does not follow from its own values by seed and the rule of its claim; empty for nothing.

    Whether its values follow from its runs shows where these are: `verify` says so.

    Args:
        claim: key and value of the YAML for which the result counts.
    """
    try:
        return list(_find_faults(result, claim))
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        return [f"it cannot be judged ({explain(error)})"]


def _find_faults(result: ClaimResult, claim: Mapping[str, Any]) -> Iterator[str]:
    own_rule, rule = to_json(rule_of(result.claim)), to_json(rule_of(claim))
    yield from find_differences(own_rule, rule, "claim")
    if result.minutes is not None and result.minutes < 0:
        yield f"minutes is {result.minutes:g}"
    if result.date and not re.fullmatch(r"\d{4}-\d\d-\d\d", result.date):
        yield f"date is {show_value(result.date)}, which is not a date"
    counted = {*result.lost, *(result.unreached or {}), *result.arms}
    for arm in sorted(counted - {*claim["arms"]}):
        yield f"{arm} is not an arm of the claim"
    for arm, number in (result.unreached or {}).items():
        if not 0 <= number <= len(result.values):
            yield f"unreached.{arm} is {number} of {len(result.values)} seeds"
    for arm, number in result.lost.items():
        if number < 0:
            yield f"lost.{arm} is {number}"
    for arm, measured in result.arms.items():
        if result.judgement and {*measured} != {*result.values}:
            yield f"arms.{arm} has other seeds than values"
    if result.judgement is None:
        return
    seeds = sorted(result.values)
    if seeds != list(range(len(seeds))) or len(seeds) not in claim["seeds"]:
        yield f"its seeds are {', '.join(map(str, seeds))}, and not the first {claim['seeds'][-1]}"
    yield from find_differences(result.values, effects_again(result, claim), "values")
    judged = judge_by_rule(result.values, claim)
    yield from find_differences(to_json(asdict(result.judgement)), to_json(asdict(judged)), "judgement")


def effects_again(result: ClaimResult, claim: Mapping[str, Any]) -> Mapping[int, float]:
    """Return the effect by seed from the arms' values; as it is where it rests on more than a value for each arm."""
    effect = parse_effect(claim["effect"], [*claim["arms"]])
    if not {*claim["arms"]} <= {*result.arms}:
        return result.values
    points = {}
    for arm in claim["arms"]:
        points[arm] = [Point(seed, {}, result.arms[arm][seed]) for seed in result.values]
    try:
        return effect.of(points).values
    except EffectError:  # it is over steps, or over keys
        return result.values


def to_json(content: Any) -> Any:
    """Return content as JSON has it."""
    return json.loads(json.dumps(content))
