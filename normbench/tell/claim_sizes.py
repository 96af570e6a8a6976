"""What the sentence of a claim says of the size of its effect, and what is tested of it: the two are to be the same."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normbench.results.rules import ClaimKind
from normbench.wording import percent, short, with_unit

# Units of logarithms of ratios, by the base of the logarithm: there a size is a factor.
BASES = {"doublings": 2.0, "log ratio": math.e}
POINTS = "percentage points"

NUMBER = r"(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
WORDS_OF_FACTORS = {
    r"half as|half the|by half|halves|in half": 2.0,
    r"twice|doubles|double the": 2.0,
    r"a third as|three times": 3.0,
    r"a quarter as|a fourth as|four times": 4.0,
    r"a tenth as|ten times|an order of magnitude": 10.0,
}
AS_A_FACTOR = (rf"factor of (?:at least )?{NUMBER}", rf"{NUMBER}(?: times|-fold|×)")
AS_A_SHARE = (
    rf"by (?:at least |more than )?{NUMBER} ?%",
    rf"{NUMBER} ?% (?:less|more|fewer|faster|slower|better|worse|of )",
)

CLOSE = 0.02  # of sizes, relative: as far as a sentence rounds a margin
CLOSE_SHARE = 0.1  # of a share, which stands for a logarithm too: log 1.05 is 0.049


@dataclass(frozen=True)
class NamedSize:
    """A size that a sentence names.

    Attributes:
        text: of the sentence.
        values: what it may be in the unit of the claim; none where that has another one.
        tolerance: how far, relatively, it may be from what is meant.
    """

    text: str
    values: tuple[float, ...]
    tolerance: float = CLOSE

    def is_size(self, size: float) -> bool:
        """Tell whether it names a size in the unit of the claim."""
        return any(math.isclose(value, size, rel_tol=self.tolerance) for value in self.values)


def find_sizes(sentence: str, unit: str) -> list[NamedSize]:
    """Return the sizes of effects that a sentence names. unit: of the claim.

    Numbers that belong to something else, such as 12 blocks or batches of 2, are none.
    """
    sizes = []
    if unit and unit not in BASES:
        for found in re.finditer(rf"{NUMBER} ?(?:{words_of(unit)})\b", sentence):
            sizes.append(NamedSize(found[0], (float(found["number"]),)))
    base = BASES.get(unit)
    for words, factor in WORDS_OF_FACTORS.items():
        for found in re.finditer(rf"\b(?:{words})\b", sentence):
            sizes.append(NamedSize(found[0], logarithms(factor, base)))
    for pattern in AS_A_FACTOR:
        for found in re.finditer(pattern, sentence):
            sizes.append(NamedSize(found[0], logarithms(float(found["number"]), base)))
    for pattern in AS_A_SHARE:
        for found in re.finditer(pattern, sentence):
            text = found[0].strip()
            sizes.append(NamedSize(text, shares(float(found["number"]), unit, text), CLOSE_SHARE))
    return sizes


def words_of(unit: str) -> str:
    """Return a pattern of how a sentence may write a unit."""
    if unit.startswith(POINTS):
        return "percentage points?|points?"
    return re.escape(unit.removesuffix("s")) + "s?"


def logarithms(factor: float, base: float | None) -> tuple[float, ...]:
    """Return a factor in a unit of logarithms; nothing in another unit."""
    return () if base is None or factor <= 0 else (abs(math.log(factor, base)),)


def shares(percentage: float, unit: str, text: str) -> tuple[float, ...]:
    """Return a percentage in the unit of a claim: more or less than before by that, or the share itself.

    text: that names it. What is faster by 20 % may take a sixth less time, or a fifth.
    """
    share = percentage / 100
    base = BASES.get(unit)
    if base is not None:
        more = logarithms(1 + share, base)
        less = logarithms(1 - share, base)
        if text.endswith(("less", "fewer")):
            return less
        return more if text.endswith("more") else (*more, *less)
    if unit.startswith("share"):
        return (share,)
    return (percentage,) if unit.startswith(POINTS) else ()


def names_size(claim: Mapping[str, Any]) -> bool:
    """Tell whether the sentence of a claim names its margin, and no other size. claim: key and value of its YAML."""
    unit, margin, sentence = str(claim.get("unit") or ""), float(claim["margin"]), str(claim["claim"])
    if not unit:
        return any(math.isclose(float(number), margin) for number in re.findall(NUMBER, sentence))
    sizes = find_sizes(sentence, unit)
    return len(sizes) > 0 and all(size.is_size(margin) for size in sizes)


def write_margin(claim: Mapping[str, Any]) -> str:
    """Write the margin of a claim as a sentence names it: `0.02 nats`, `5 %`, `a factor of 2`."""
    unit, margin = str(claim.get("unit") or ""), float(claim["margin"])
    base = BASES.get(unit)
    if base is None:
        return with_unit(short(margin), unit)
    factor = base**margin
    return f"a factor of {short(factor, 3)}" if factor >= 1.5 else percent(factor - 1)


def write_least(claim: Mapping[str, Any]) -> str:
    """Write how the sentence of a claim may say that its effect is as large as the margin."""
    unit, margin = str(claim.get("unit") or ""), float(claim["margin"])
    if BASES.get(unit, 1.0) ** margin == 2:
        return "half as many (or: twice as many)"
    return f"by at least {write_margin(claim)}"


def write_tested(claim: Mapping[str, Any]) -> str:
    """Write the sentence that is tested: that of the claim, with the size that it leaves out."""
    sentence = str(claim["claim"]).rstrip(".")
    margin = write_margin(claim)
    match ClaimKind(claim["kind"]):
        case ClaimKind.LARGER:
            return f"{sentence}: the effect is above 0, and not shown to be below {margin}"
        case ClaimKind.SIZED:
            return sentence if names_size(claim) else f"{sentence}, {write_least(claim)}"
        case ClaimKind.ANY:
            return f"{sentence}, by however little"
        case ClaimKind.PARITY:
            return sentence if names_size(claim) else f"{sentence}, to within {margin}"
        case ClaimKind.AT_LEAST:
            return sentence if names_size(claim) else f"{sentence}, where less than {margin} against it counts as none"
        case ClaimKind.EXACT:
            return f"{sentence}, to within {margin}" if claim["margin"] else f"{sentence}, without exception"
        case ClaimKind.SLOPE:
            slope = claim.get("unit") or "slope"
            return f"{sentence}: {slope} {short(float(claim.get('target') or 0))}, to within {short(claim['margin'])}"


def find_mismatch(claim: Mapping[str, Any]) -> str:
    """Return what the sentence of a claim says otherwise than its rule tests, and what to write; empty for nothing.

    claim: key and value of its YAML.
    """
    sentence, unit = str(claim["claim"]), str(claim.get("unit") or "")
    sizes = find_sizes(sentence, unit)
    kind = ClaimKind(claim["kind"])
    if kind is ClaimKind.LARGER:
        return (
            f"kind: larger is of claims that were registered until 2026-11-29: write sized, with a sentence that names "
            f"its size ({write_least(claim)}), or any, with one that says that there is an effect"
        )
    others = [size.text for size in sizes if not size.is_size(float(claim["margin"]))]
    if kind is ClaimKind.SIZED and 0 < len(others) < len(sizes):
        return f"kind: sized tests the margin alone, and the sentence says '{others[0]}' besides: leave that out"
    if kind is ClaimKind.SIZED and not names_size(claim):
        return (
            f"kind: sized tests an effect of {with_unit(short(claim['margin']), unit)} or more, and the sentence names "
            f"no such size: with this margin it should say {write_least(claim)}, as in '{write_tested(claim)}'; "
            "without a size it is of kind any"
        )
    if kind is ClaimKind.ANY and sizes:
        return (
            f"kind: any tests no size, and the sentence says '{sizes[0].text}': leave that out, or write kind: sized "
            "with it as the margin"
        )
    if kind in (ClaimKind.PARITY, ClaimKind.AT_LEAST) and sizes and not names_size(claim):
        return (
            f"the sentence says '{sizes[0].text}', and the margin is {write_margin(claim)}: write the same in both, or "
            f"no size in the sentence, which is then shown as '{write_tested({**claim, 'claim': '…'})}'"
        )
    return ""
