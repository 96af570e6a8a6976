"""What claims have come to: their effects by seed, judged by the rules with which they were registered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from msgspec import Meta, to_builtins

from normbench.evidence.arms import Arm
from normbench.results.luck import CHOOSES_RATES, ONE_FOR_ALL, false_share
from normbench.results.rules import (
    IN_FAVOUR,
    ClaimKind,
    ClaimRule,
    Verdict,
    level_over_looks,
)
from normbench.results.search import RateChoice, Search
from normbench.results.statistics import POWER, ROUNDING, Interval, Sample
from normbench.results.worth import Worth

FEWEST_EQUAL = 3  # values without which equal ones say nothing
FEWEST_FOR_SPREAD = 5  # seeds without which nobody tells how arms go together
WIDENED = 1.1  # times as large a spread in pairs is worth a word


@dataclass(frozen=True)
class ClaimedEffect(Sample):
    """The effect of a claim by seed, positive as published, and the verdict on it.

    Values that are all the same have no interval: from three on the value decides. Exact claims have none either, as
    there is no chance in them: one value beyond the margin contradicts them.
    """

    rule: ClaimRule

    # What follows from values and rule, and is kept with them.
    DERIVED = (
        "verdict", "n", "mean", "sd", "level", "interval", "inner", "p", "p_against", "note", "power",
        "seeds_to_settle",
    )  # fmt: skip

    @property
    def level(self) -> float:
        """Return the level of each look."""
        return self.rule.level

    @property
    def interval(self) -> Interval | None:
        """Return Student's interval of 1 − level; None where values do not say how they spread."""
        return None if self.is_exact else self.interval_at(self.level)

    @property
    def inner(self) -> Interval | None:
        """Return the interval of 1 − 2·level."""
        return None if self.is_exact else self.interval_at(2 * self.level)

    @property
    def deciding_interval(self) -> Interval | None:
        """Return the interval from which the verdict follows."""
        return None if self.is_exact else self.interval_at(self.deciding_level)

    @property
    def deciding_level(self) -> float:
        """Return 1 less what that interval covers."""
        return 2 * self.rule.one_sided

    @property
    def is_exact(self) -> bool:
        """Tell whether there is no chance in it."""
        return self.rule.kind is ClaimKind.EXACT

    @property
    def farthest(self) -> float:
        """Return the largest distance of a value from 0."""
        return max(map(abs, self.values))

    @cached_property
    def verdict(self) -> Verdict:
        """Return what the seeds say of the claim."""
        if self.is_exact:
            return Verdict.REPRODUCED if self.farthest <= self.rule.margin else Verdict.CONTRADICTED
        if self.deciding_interval is not None:
            return self.rule.decide(self.deciding_interval)
        if self.n < FEWEST_EQUAL:
            return Verdict.INCONCLUSIVE
        return self.rule.decide(Interval(self.mean, self.mean))

    @property
    def p(self) -> float:
        """Return the smallest level at which the claim holds, 1 where the values speak against it.

        That is p of the t test against 0, the larger of the two one-sided tests, or one of them, over all planned
        looks.
        """
        return 1.0 if self.verdict is Verdict.NOT_REPRODUCED else self.p_of_claim_and_opposite[0]

    @property
    def p_against(self) -> float:
        """Return the same for the opposite, which makes a claim contradicted."""
        return self.p_of_claim_and_opposite[1]

    @cached_property
    def p_of_sign(self) -> float:
        """Return p of the test against 0 over all planned looks; 1 where the rule does not tell signs from sizes."""
        p = self.without_rule.p
        return 1.0 if p is None or not self.rule.tells_signs else level_over_looks(p, self.rule.looks)

    @property
    def without_rule(self) -> Sample:
        """Return the values alone."""
        return Sample(self.values, self.resolution, self.seeds)

    @property
    def verdict_by_size(self) -> Verdict:
        """Return what the rule of kind sized says of it, whatever its own rule is."""
        rule = replace(self.rule, kind=ClaimKind.SIZED)
        return replace(self, rule=rule).verdict

    @cached_property
    def turning_seeds(self) -> dict[Verdict, list[int]]:
        """Return the seeds without which, one at a time, the verdict is another, by that other verdict."""
        found: dict[Verdict, list[int]] = {}
        for seed in self.seeds if self.n > 1 else ():
            verdict = self.without(seed).verdict
            if verdict is not self.verdict:
                found.setdefault(verdict, []).append(seed)
        return found

    def without(self, seed: int) -> Self:
        """Return the effect of all other seeds, by the same rule."""
        place = self.seeds.index(seed)
        values = (*self.values[:place], *self.values[place + 1 :])
        seeds = (*self.seeds[:place], *self.seeds[place + 1 :])
        return replace(self, values=values, seeds=seeds)

    @cached_property
    def p_of_claim_and_opposite(self) -> tuple[float, float]:
        """Return p of the claim and p of its opposite over all planned looks.

        That of equal values is the sign test's, 2^(1 − n): chance puts n independent values on one side of a bound no
        more often.
        """
        if self.interval is not None:
            p, p_against = self.rule.test(self)
            return level_over_looks(p, self.rule.looks), level_over_looks(p_against, self.rule.looks)
        chance = 0.0 if self.is_exact else 2.0 ** (1 - self.n)
        is_held, is_contradicted = self.verdict in IN_FAVOUR, self.verdict is Verdict.CONTRADICTED
        return chance if is_held else 1.0, chance if is_contradicted else 1.0

    @property
    def note(self) -> str:
        """Return what the verdict leaves out; empty where that is nothing."""
        if self.is_exact:
            is_beyond = self.verdict is Verdict.CONTRADICTED
            return f"the farthest value from 0 is {self.farthest:.3g}" if is_beyond else ""
        if self.interval is None:
            if self.n == 1:
                return "one seed has no interval"
            if self.n < FEWEST_EQUAL:
                return "two equal values say nothing of how they spread"
            return f"all {self.n} values are the same, so that there is no interval, and the value decides"
        lower, upper = self.interval
        if lower <= 0 <= upper:
            return ""
        if self.verdict is Verdict.NOT_REPRODUCED:  # of claims of kind larger
            return "the effect is real, but smaller than matters"
        if self.verdict is Verdict.PARITY:
            direction = "above" if lower > 0 else "below"
            return f"the difference is real, {direction} 0, but smaller than matters"
        return ""

    @cached_property
    def power(self) -> float | None:
        """Return the share of repetitions that would find a true claim, with the spread seen; None without one."""
        return self.rule.power(self.sd, self.n)

    @property
    def is_underpowered(self) -> bool:
        """Tell whether a true claim would be missed more than once in five times."""
        return self.power is not None and self.power < POWER

    @cached_property
    def seeds_to_settle(self) -> int | None:
        """Return how many seeds in all settle an inconclusive claim, one way or the other, four times in five.

        None for other claims, where more than 1,000 are needed, and where there is no spread.
        """
        is_open = self.verdict is Verdict.INCONCLUSIVE and self.interval is not None
        return self.rule.seeds_to_settle(self) if is_open else None

    def derive(self) -> dict[str, Any]:
        """Return what follows from values and rule, by name."""
        return {name: getattr(self, name) for name in self.DERIVED}


def judge(values: Mapping[int, float], rule: ClaimRule) -> ClaimedEffect:
    """Return the effect of a claim with its verdict.

    values: effect by seed, all finite. Of a claim that is looked at twice, those of the seeds so far.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values.values())):
        raise ValueError(f"a claim is judged by finite values, at least one, and these are {dict(values)}")
    sample = sample_of(values)
    return ClaimedEffect(sample.values, sample.resolution, sample.seeds, rule)


def sample_of(values: Mapping[int, float]) -> Sample:
    """Return effects by seed, at least one, as a sample, in which those that differ by rounding alone are the same."""
    seeds = tuple(sorted(values))
    effects = tuple(values[seed] for seed in seeds)
    return Sample(effects, ROUNDING * max(map(abs, effects)), seeds)


# ---- one claim

BySeed = Mapping[Annotated[int, Meta(ge=0)], float]


class Status(StrEnum):
    """How far a claim has come."""

    COMPLETE = "complete"
    NOT_COMPLETE = "not complete"
    NOT_RUN = "not run"
    UNCOMMITTED = "uncommitted code"
    TRIAL = "trial"


@dataclass(frozen=True)
class PairedSpread:
    """How the difference of two arms spreads over seeds.

    Attributes:
        paired: its standard deviation where each seed gives one difference, as claims are judged.
        unpaired: what it would be if the arms had nothing in common at a seed, √(sd₁²+sd₂²).
    """

    paired: float
    unpaired: float

    @property
    def is_widened(self) -> bool:
        """Tell whether pairing widens the interval by more than a tenth: arms do not rise and fall together."""
        return self.paired > WIDENED * self.unpaired


@dataclass(frozen=True)
class ArmCell:
    """What was measured of an arm at one place, where it has several values at each seed: a depth, a batch size.

    Attributes:
        arm: its name in the claim.
        keys: settings or columns, with their values, that tell it from the arm's other cells.
        values: of the measure, by seed.
    """

    arm: str
    keys: Mapping[str, str]
    values: BySeed


@dataclass(frozen=True)
class Tuning:
    """How the learning rates of the runs of an arm of a claim were chosen.

    Attributes:
        arm: its name in the claim.
        choices: one for all of its seeds, or one for each; all for one kind of its runs.
    """

    arm: str
    choices: Annotated[tuple[RateChoice, ...], Meta(min_length=1)]

    DERIVED = Search.DERIVED

    @cached_property
    def search(self) -> Search:
        """Return what was tried and chosen, for an arm that is named by its settings."""
        return Search(Arm(self.choices[0].arm), self.choices)


@dataclass(frozen=True)
class ClaimResult:
    """One claim, its runs and the verdict: the content of its claim.json.

    Attributes:
        name: of the claim, which is that of its YAML and of its folder.
        digest: SHA-256 of the claim as it was registered when its runs were made.
        registered: the date of that, as 2026-11-28.
        status: complete ones alone have a verdict; a trial has other words than the claim, and one with uncommitted
            code was made by code that nobody else has.
        reason: why it has no verdict; empty of complete ones and trials.
        claim: the claim as it was then: key and value of its YAML, the defaults included.
        values: the effect by seed, in the claim's unit.
        arms: what was measured, by arm and seed, where that is one number.
        cells: the same of arms that have several values at a seed, where these are not thousands; empty where that was
            not noted.
        lost: how many runs were lost, by arm: those counted with the loss at initialization.
        unreached: at how many seeds an arm never comes down to the loss of its reference in `steps`, by arm: those
            counted with the length of the run; None where that was not noted.
        minutes: that the runs took; None where that is not known.
        machine: `processor` or `gpu`, `cores`, `torch`, `normbench`, `commit`.
        date: of the end of its last run, as 2026-11-28; empty for none.
        words: those of the command that made the runs, `normbench` and its command left out.
        report: path of the report of its runs, from the folder of claim.json; empty for none.
        worth: of a difference in loss between two arms, what it is worth in steps and time; None of other effects, and
            where that was not noted.
        tuning: how learning rates were chosen, by arm and kind of run; None where none was, or that was not noted.
        commits: of the code, of all processes that have worked on its runs, those that chose rates too, in no order; of
            an installed package the empty one. Empty where that was not noted.
    """

    # What claim.json has with what follows from it.
    DERIVED: ClassVar[tuple[str, ...]] = ("judgement", "worth", "tuning")

    name: str
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    registered: str
    status: Status
    reason: str = ""
    claim: Mapping[str, Any] = field(default_factory=dict)
    values: BySeed = field(default_factory=dict)
    arms: Mapping[str, BySeed] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    unreached: Mapping[str, int] | None = None
    minutes: float | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""
    words: tuple[str, ...] = ()
    report: str = ""
    worth: Worth | None = None
    tuning: tuple[Tuning, ...] | None = None
    commits: tuple[str, ...] = ()
    cells: tuple[ArmCell, ...] = ()

    @cached_property
    def judgement(self) -> ClaimedEffect | None:
        """Return the effect with its verdict; None where there is no verdict.

        Raises:
            ValueError, LookupError, TypeError: values or claim are none that can be judged.
        """
        return judge(self.values, rule_of(self.claim)) if self.status is Status.COMPLETE else None

    @cached_property
    def spreads(self) -> PairedSpread | None:
        """Return how a difference of two arms spreads in pairs and without them; None for other effects."""
        if len(self.arms) != 2 or len(self.values) < FEWEST_FOR_SPREAD:
            return None
        one, other = self.arms.values()
        if not self.values.keys() <= one.keys() & other.keys():
            return None
        seeds = sorted(self.values)
        effects = np.array([self.values[seed] for seed in seeds])
        ones = np.array([one[seed] for seed in seeds])
        others = np.array([other[seed] for seed in seeds])
        difference = ones - others
        is_difference = np.allclose(effects, difference) or np.allclose(effects, -difference)
        if not is_difference:
            return None
        alone = math.hypot(float(ones.std(ddof=1)), float(others.std(ddof=1)))
        return PairedSpread(float(difference.std(ddof=1)), alone)

    @property
    def minutes_to_settle(self) -> float | None:
        """Return the minutes of as many seeds as settle an inconclusive claim, all of them counted."""
        if self.judgement is None or self.judgement.seeds_to_settle is None or self.minutes is None:
            return None
        return self.minutes * self.judgement.seeds_to_settle / self.judgement.n

    def as_record(self) -> dict[str, Any]:
        """Return what claim.json holds, by name."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content["judgement"] = self.judgement.derive() if self.judgement else None
        content["worth"] = with_derived(self.worth, self.worth) if self.worth else None
        content["cells"] = to_builtins(self.cells, str_keys=True)
        if self.tuning is not None:
            content["tuning"] = [with_derived(tuning, tuning.search) for tuning in self.tuning]
        return content


def with_derived(part: Worth | Tuning, source: Worth | Search) -> dict[str, Any]:
    """Return what claim.json holds of a part of a result: its fields, and what follows from them. source: has that."""
    content: dict[str, Any] = to_builtins(part, str_keys=True)
    for name in part.DERIVED:
        content[name] = to_builtins(getattr(source, name), str_keys=True)
    return content


def rule_of(claim: Mapping[str, Any]) -> ClaimRule:
    """Return the rule by which a claim is judged. claim: key and value of its YAML.

    Raises:
        ValueError, LookupError, TypeError: it is not a claim.
    """
    return ClaimRule(ClaimKind(claim["kind"]), claim["margin"], claim.get("target") or 0.0, len(claim["seeds"]))


@dataclass(frozen=True)
class Corrected:
    """A claim among all that are registered: p after Holm's correction, and the verdict that it leaves.

    p, p_against, p_of_sign: as `ClaimedEffect` has them, corrected. verdict: None for a claim that is not judged.
    """

    p: float
    p_against: float
    verdict: Verdict | None
    p_of_sign: float = 1.0


NOT_JUDGED = Corrected(1.0, 1.0, None)
WITHDRAWN = "withdrawn"  # how a claim stands whose test was found not to be a fair one
NOT_SETTLED = "not settled"  # and one of which the opposite was found after its runs, under other conditions


@dataclass(frozen=True)
class RegisteredClaim:
    """A claim and what it has come to.

    Attributes:
        name: of the claim.
        claim: key and value of its YAML as it is registered now.
        result: of its runs for this registration; None where there are none.
        older: results that do not count: of earlier registrations, or of a claim that is withdrawn.
        corrected: its verdict among all that are registered.
        witness: a commit of its runs, where all of theirs hold its registration; empty where nothing but the
            word of whoever registered it says that it is older than they.
        changed: in which settings its words ask for other runs now than when it was registered; empty for none.
        on_gpu: the claim that tests the same sentence on a GPU; None where there is none.
    """

    name: str
    claim: Mapping[str, Any]
    result: ClaimResult | None
    older: Sequence[ClaimResult] = ()
    corrected: Corrected = NOT_JUDGED
    witness: str = ""
    changed: str = ""
    on_gpu: RegisteredClaim | None = None

    @property
    def kind(self) -> ClaimKind:
        """Return what the claim says of its effect."""
        return ClaimKind(self.claim["kind"])

    @property
    def margin(self) -> float:
        """Return the smallest effect that matters."""
        return float(self.claim["margin"])

    @property
    def target(self) -> float:
        """Return the value that theory gives, 0 for all but slopes."""
        return float(self.claim.get("target") or 0.0)

    @property
    def unit(self) -> str:
        """Return the unit of the effect."""
        return str(self.claim.get("unit") or "")

    @property
    def way_of_rates(self) -> str:
        """Return how the learning rates of its runs are chosen: `auto` or `each`; empty where they are not."""
        if self.claim.get("study") in CHOOSES_RATES:
            return ONE_FOR_ALL
        for word in self.claim.get("words") or ():
            key, _, value = str(word).strip("'\"").partition("=")
            if key == "sweep.lr" and value != "null":
                return value
        return ""

    @property
    def measures_losses(self) -> bool:
        """Tell whether its effect is in nats of a loss, as the losses are by which rates are chosen."""
        return str(self.claim.get("measure", "")).startswith("loss/") and self.unit == "nats"

    @property
    def judgement(self) -> ClaimedEffect | None:
        """Return the effect with its verdict; None where there is none, or its own confounds say the opposite."""
        return None if self.opposed else self.by_runs_alone

    @property
    def by_runs_alone(self) -> ClaimedEffect | None:
        """Return the effect with the verdict of its runs, whatever was found besides; None where there is none."""
        return self.result.judgement if self.result else None

    @property
    def opposed(self) -> str:
        """Return where the opposite of its verdict was found, in words; empty where that was nowhere."""
        if self.by_runs_alone is None:
            return ""
        return " and ".join(found["opposite"] for found in self.claim.get("found") or () if found.get("opposite"))

    @property
    def withdrawn(self) -> Mapping[str, Any] | None:
        """Return `date`, `why` and `by`, the claims in its place, of a claim whose test counts no longer."""
        return self.claim.get("withdrawn")

    @property
    def standing(self) -> str:
        """Return what the claim has come to in a word or two: a verdict, or why there is none."""
        if self.withdrawn:
            return WITHDRAWN
        if self.judgement:
            return self.judgement.verdict
        if self.opposed:
            return NOT_SETTLED
        return self.result.status if self.result else Status.NOT_RUN

    @property
    def reason(self) -> str:
        """Return why there is no verdict; empty where there is one."""
        if self.judgement:
            return ""
        if self.withdrawn:
            return f"it was withdrawn on {self.withdrawn['date']}"
        if self.opposed:
            return f"its own confounds say the opposite {self.opposed}"
        if self.result is None:
            return "its runs have not been made"
        if self.result.status is Status.TRIAL:
            return "a trial, which has other words or seeds than the claim and no verdict"
        return self.result.reason

    @property
    def lost(self) -> int:
        """Return how many runs were lost, and count with the loss at initialization."""
        return sum(self.result.lost.values()) if self.result else 0

    @property
    def unreached(self) -> Mapping[str, int]:
        """Return at how many seeds an arm's steps are a bound, as it never comes down to the loss asked for, by arm."""
        return (self.result.unreached or {}) if self.result else {}

    @property
    def deciding(self) -> Interval | None:
        """Return the interval from which the verdict follows."""
        return self.judgement.deciding_interval if self.judgement else None


# ---- all claims


@dataclass(frozen=True)
class Chance:
    """How many verdicts chance gives at most.

    Attributes:
        shares_luck: whether arms have one learning rate for all of their seeds, whose luck no interval has.
        verdicts: how many there are of the kind.
        wrong: how many of them may be wrong, if no claim is true.
    """

    shares_luck: bool
    verdicts: int
    wrong: float


@dataclass(frozen=True)
class Suite:
    """Registered claims that are corrected together: those that come with normbench, or a person's own.

    entries: sorted by what they have come to.
    """

    entries: Sequence[RegisteredClaim]

    @property
    def judgements(self) -> list[ClaimedEffect]:
        """Return the effects that have a verdict."""
        return [entry.judgement for entry in self.entries if entry.judgement is not None]

    @property
    def by_chance(self) -> float:
        """Return how many verdicts chance gives at most: those without an interval have none."""
        return sum(chance.wrong for chance in self.chances)

    @property
    def chances(self) -> list[Chance]:
        """Return the same apart: with one rate for all seeds of an arm, and with any other way of choosing rates."""
        return [self.chance_of(shares_luck=False), self.chance_of(shares_luck=True)]

    def chance_of(self, shares_luck: bool) -> Chance:
        """Return it of the claims whose arms have one rate for all of their seeds, or of all others."""
        shares = []
        for entry in self.entries:
            judgement = entry.judgement
            is_among = (entry.way_of_rates == ONE_FOR_ALL) == shares_luck
            if judgement is not None and judgement.interval is not None and is_among:
                shares.append(false_share(entry.kind, entry.way_of_rates, judgement.n))
        return Chance(shares_luck, len(shares), sum(shares))

    @property
    def withdrawn(self) -> list[RegisteredClaim]:
        """Return the claims whose tests count no longer."""
        return [entry for entry in self.entries if entry.withdrawn]

    @property
    def not_settled(self) -> list[RegisteredClaim]:
        """Return the claims that were run, and whose own confounds say the opposite."""
        return [entry for entry in self.entries if entry.opposed]

    def count(self, *verdicts: Verdict) -> int:
        """Return how many claims have one of these verdicts after correction."""
        return sum(entry.corrected.verdict in verdicts for entry in self.entries)
