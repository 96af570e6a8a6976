"""claim.json, beside the runs of a claim: written, read, and held against itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from msgspec import ValidationError, convert

from normbench.claims.claim import OLDER, list_seeds
from normbench.errors import explain
from normbench.record.digests import find_altered, write_with_digests
from normbench.record.files import read_content, read_json
from normbench.record.forms import DIGESTS
from normbench.record.machine import is_changed
from normbench.results.claimed import ClaimResult
from normbench.results.effects import ArmValue, EffectError, parse_effect
from normbench.results.search import RateChoice
from normbench.wording import short

CLAIM_FILE = "claim.json"
MOST_FAULTS = 3  # of a result that are told
PAGE_FILE = "claims.json"  # of the page, beside the folders of results
PACKAGE = Path(__file__).parent.parent

# What of a claim decides how its values are judged, and what they are.
RULE = ("kind", "margin", "target", "seeds", "first_seed", "effect", "arms", "measure", "where", "unit")
ALTERED = "changed after it had been written"
CLOSE = 1e-9  # of values that were written and read again


def write_result(result: ClaimResult, path: Path) -> None:
    """Write claim.json, with a digest of what it holds."""
    write_with_digests(path, result.as_record(), [path.name])


def read_result(path: Path) -> ClaimResult | None:
    """Return what a claim.json holds, or None where it is missing, damaged, or of another claim than its place says."""
    try:
        return load_result(path)
    except ValueError:
        return None


def load_result(path: Path) -> ClaimResult:
    """Return what a claim.json holds.

    Raises:
        ValueError: it is missing, damaged, or of another claim than its place says, or contradicts itself.
    """
    checked = check_result(path)
    if checked.is_altered:
        raise ValueError(f"{path} {ALTERED}")
    if checked.faults:
        raise ValueError(blame_result(checked.result.name, checked.faults))
    return checked.result


@dataclass(frozen=True)
class CheckedResult:
    """What a claim.json holds, and whether it can be so.

    Attributes:
        content: as it is written.
        result: the same, with what follows from it computed again.
        is_altered: whether it is not as its digest says.
        faults: a phrase for each value that does not follow from others.
        can_be_judged: whether a verdict can be computed from it.
    """

    content: Mapping[str, Any]
    result: ClaimResult
    is_altered: bool
    faults: Sequence[str]
    can_be_judged: bool


def read_published_result(path: Path) -> ClaimResult | None:
    """Return a published result as its digest says; None where it is missing, damaged or was changed.

    That its values follow from each other, which takes a list of all of them half a second, is for `check_result`.
    """
    try:
        _, result = read_form(path)
    except ValueError:
        return None
    return None if differs_from_digest(path) else result


def read_form(path: Path) -> tuple[Mapping[str, Any], ClaimResult]:
    """Return what a claim.json holds, as it is written and as a result.

    Raises:
        ValueError: it is missing, damaged, or of another claim than its place says.
    """
    content = read_content(path, json.loads)
    try:
        result = convert(content, ClaimResult, str_keys=True)
    except (ValidationError, OverflowError):
        raise ValueError(f"{path} is missing or damaged") from None
    if not all(map(is_finite, numbers_in(content))):
        raise ValueError(f"{path} is damaged (a number in it is not finite)")
    name = name_of_place(path)
    if result.name != name:
        raise ValueError(f"{path} is the result of claim {result.name}, and lies where that of {name} belongs")
    return content, result


def differs_from_digest(path: Path) -> bool:
    """Tell whether a claim.json is not as its digest says, or has none that can be read."""
    with suppress(OSError, ValueError, RecursionError):
        return bool(find_altered(path))
    return True


def check_result(path: Path) -> CheckedResult:
    """Return what a claim.json holds, with what of it does not follow from its values and its claim.

    Raises:
        ValueError: it is missing, damaged, or of another claim than its place says.
    """
    content, result = read_form(path)
    is_altered = differs_from_digest(path)
    try:
        faults = list(find_faults(result))
        again = to_json(result.as_record())
        for key in result.DERIVED:
            faults += find_differences(content.get(key), again[key], key)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        return CheckedResult(content, result, is_altered, [f"it cannot be judged ({explain(error)})"], False)
    return CheckedResult(content, result, is_altered, faults, True)


def blame_result(name: str, faults: Sequence[str]) -> str:
    """Say what of the result of a claim does not follow from its own values and its claim."""
    faults_in_words = "; ".join(faults[:MOST_FAULTS])
    if len(faults) > MOST_FAULTS:
        faults_in_words += f"; and {len(faults) - MOST_FAULTS} more"
    return f"the result of {name} contradicts itself: by its values and its claim {faults_in_words}"


def name_of_place(path: Path) -> str:
    """Return the name of the claim whose result belongs into a file: NAME/claim.json, or NAME.json where published.

    In the folder of older ones it is NAME-DIGEST/claim.json.
    """
    if path.name != CLAIM_FILE:
        return path.stem
    folder = path.absolute().parent
    return re.sub(r"-[0-9a-f]{8}\d*$", "", folder.name) if folder.parent.name == OLDER else folder.name


def published_directory() -> Path:
    """Return the folder of the published results, NAME.json: inside of the installed package, or docs of a checkout."""
    installed = PACKAGE / "published"
    return installed if installed.is_dir() else PACKAGE.parent / "docs" / "claims"


def list_published(folder: Path) -> list[Path]:
    """Return the files of a folder that hold results as they are published."""
    return [path for path in sorted(folder.glob("*.json")) if path.name != PAGE_FILE]


def is_digested(path: Path) -> bool:
    """Tell whether a claim.json holds a digest, which those of before 2026-11-29 do not."""
    return bool((read_json(path) or {}).get(DIGESTS))


def is_seed(text: str) -> bool:
    """Tell whether a text of a record is a seed: an integer from 0, within 64 bits."""
    return text.isdecimal() and len(text) <= 19


def read_results(folder: Path, left_out: list[str]) -> dict[str, ClaimResult]:
    """Return the results below a folder by name, in order: NAME/claim.json, and NAME.json where they are published.

    Args:
        left_out: to which a sentence is added for each file that cannot be used.
    """
    results = dict[str, ClaimResult]()
    for path in sorted([*folder.glob(f"*/{CLAIM_FILE}"), *list_published(folder)]):
        try:
            result = load_result(path)
        except ValueError as error:
            left_out.append(str(error))
        else:
            results[result.name] = result
    return dict(sorted(results.items()))


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
        for number, (item_before, item_again) in enumerate(zip(before, again, strict=True)):
            yield from find_differences(item_before, item_again, f"{path}[{number}]")
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
    return short(value) if isinstance(value, float) else shorten(str(value), 80) or "empty"


def find_faults(result: ClaimResult) -> Iterator[str]:
    """Yield what of a result does not follow from its own values and its claim, or cannot be.

    Whether its values follow from its runs shows where these are: `verify` says so.
    """
    if result.minutes is not None and result.minutes < 0:
        yield f"minutes is {show_value(result.minutes)}"
    if result.date and not re.fullmatch(r"\d{4}-\d\d-\d\d", result.date):
        yield f"date is {show_value(result.date)}, which is not a date"
    counted = {*result.lost, *(result.unreached or {}), *result.arms, *(cell.arm for cell in result.cells)}
    for arm in sorted(counted - {*result.claim.get("arms", ())}):
        yield f"{arm} is not an arm of the claim"
    for arm, number in (result.unreached or {}).items():
        if not 0 <= number <= len(result.values):
            yield f"unreached.{arm} is {number} of {len(result.values)} seeds"
    for arm, number in result.lost.items():
        if number < 0:
            yield f"lost.{arm} is {number}"
    if result.worth is not None:
        if not {result.worth.arm, result.worth.baseline} <= {*result.claim.get("arms", ())}:
            yield f"worth is of {result.worth.arm} and {result.worth.baseline}, which are not arms of the claim"
        if result.judgement and not {*result.worth.seeds, *result.worth.lost} <= {*result.values}:
            yield "worth has other seeds than values"
    for tuning in result.tuning or ():
        if tuning.arm not in result.claim.get("arms", ()):
            yield f"tuning is of {tuning.arm}, which is not an arm of the claim"
        for choice in tuning.choices:
            yield from find_faults_of_choice(tuning.arm, choice, result)
    for arm, measured in result.arms.items():
        if result.judgement and {*measured} != {*result.values}:
            yield f"arms.{arm} has other seeds than values"
    for cell in result.cells:
        if result.judgement and not {*result.values} <= {*cell.values}:
            yield f"a cell of {cell.arm} has other seeds than values"
    if result.judgement is None:
        return
    if is_changed(result.machine.get("commit")):
        yield f"it has no verdict, as its runs are of uncommitted code ({result.machine['commit']})"
    seeds = sorted(result.values)
    if seeds != list_seeds(result.claim, len(seeds)) or len(seeds) not in result.claim["seeds"]:
        yield f"its seeds are {', '.join(map(str, seeds))}, and not the first {result.claim['seeds'][-1]} of the claim"
    yield from find_differences(result.values, effects_again(result), "values")


def find_faults_of_choice(arm: str, choice: RateChoice, result: ClaimResult) -> Iterator[str]:
    """Yield what of the choice of a learning rate does not follow from its losses, or is of no seed of the result."""
    means = {rate: mean for rate, mean in choice.means.items() if math.isfinite(mean)}
    best = min(means.values(), default=None)
    if choice.lr is not None and (choice.lr not in means or means[choice.lr] != best):
        yield f"tuning of {arm} has chosen {show_value(choice.lr)}, which has not the lowest loss"
    if choice.seed is not None and result.judgement and choice.seed not in result.values:
        yield f"tuning of {arm} is for seed {choice.seed}, which has no value"


def find_other_rule(result: ClaimResult, claim: Mapping[str, Any]) -> list[str]:
    """Return in what a result was judged by another rule than that of a claim. claim: key and value of its YAML."""
    before = {key: result.claim.get(key) for key in RULE}
    now = {key: claim.get(key) for key in RULE}
    return list(find_differences(to_json(before), to_json(now), "claim"))


def effects_again(result: ClaimResult) -> Mapping[int, float]:
    """Return the effect by seed from what was measured of the arms; as it is where it rests on more, such as steps."""
    claim = result.claim
    effect = parse_effect(claim["effect"], [*claim["arms"]])
    points: dict[str, list[ArmValue]] = {arm: [] for arm in claim["arms"]}
    for arm, values in result.arms.items():
        points[arm] += [ArmValue(seed, {}, value) for seed, value in values.items()]
    for cell in result.cells:
        points[cell.arm] += [ArmValue(seed, cell.keys, value) for seed, value in cell.values.items()]
    if not all(points.values()):
        return result.values
    try:
        return effect.of(points).values
    except EffectError:  # it is over steps, or over keys that were not noted
        return result.values


def to_json(content: Any) -> Any:
    """Return content as JSON has it."""
    return json.loads(json.dumps(content))
