"""All claims side by side: what is registered, what it has come to, and the words for that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.claims.claim import FIRST_TRIAL_SEED, OLDER
from normbench.claims.results import CLAIM_FILE, ClaimResult, Status, find_faults, load_result, read_results
from normbench.claims.verdicts import IN_FAVOUR, Corrected, Judgement, Kind, Suite, Verdict, correct_verdicts, sample_of
from normbench.results.statistics import Interval
from normbench.settings import key_of
from normbench.wording import NONE, count, equals, fixed, p_value, precision, significant, span, with_unit

NOT_RUN = "not run"
ORDER = (*Verdict, Status.NOT_COMPLETE, Status.TRIAL, NOT_RUN)  # of what claims have come to, in tables
OF_FOLDER = ("outputs", "name", "sweep.extend", "sweep.report")  # words that a command on claims itself gives its runs
MOST_FAULTS = 3  # of a result that are told
SMALL = 1e-4  # an effect below it is written with an exponent


@dataclass(frozen=True)
class Entry:
    """A claim and what it has come to.

    Attributes:
        name: of the claim.
        claim: key and value of its YAML as it is registered now.
        result: of its runs for this registration; None where there are none.
        older: results of earlier registrations, which do not count.
        corrected: its verdict among all that are registered.
    """

    name: str
    claim: Mapping[str, Any]
    result: ClaimResult | None
    older: Sequence[ClaimResult]
    corrected: Corrected

    @property
    def kind(self) -> Kind:
        """Return what the claim says of its effect."""
        return Kind(self.claim["kind"])

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
    def judgement(self) -> Judgement | None:
        """Return the verdict with its numbers; None where there is none."""
        return self.result.judgement if self.result else None

    @property
    def standing(self) -> str:
        """Return what the claim has come to in a word or two: a verdict, or why there is none."""
        if self.judgement:
            return self.judgement.verdict
        return self.result.status if self.result else NOT_RUN

    @property
    def reason(self) -> str:
        """Return why there is no verdict; empty where there is one."""
        if self.judgement:
            return ""
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
        return deciding_interval(self.judgement, self.kind) if self.judgement else None


@dataclass(frozen=True)
class Family:
    """Claims among which Holm's correction counts: those that come with normbench, or a person's own.

    Attributes:
        entries: of its registered claims, sorted by what they have come to.
        suite: their corrected verdicts.
    """

    entries: Sequence[Entry]
    suite: Suite


def read_families(
    folder: Path,
    claims: Mapping[str, Mapping[str, Any]],
    digests: Mapping[str, str],
    left_out: list[str],
    own: Container[str] = (),
) -> tuple[Family, Family]:
    """Return normbench's registered claims, and a person's own, so that neither changes what is said of the other.

    Args:
        folder, claims, digests, left_out: as `read_entries` has them.
        own: names of a person's own claims.
    """
    ours = {name: claim for name, claim in claims.items() if name not in own}
    theirs = {name: claim for name, claim in claims.items() if name in own}
    found = Family(*read_entries(folder, ours, digests, left_out))
    return found, Family(*read_entries(folder, theirs, digests, []))  # of the same files


def read_entries(
    folder: Path, claims: Mapping[str, Mapping[str, Any]], digests: Mapping[str, str], left_out: list[str]
) -> tuple[list[Entry], Suite]:
    """Return the registered claims of a family with what is found below a folder, and the suite that they are.

    They are sorted by `ORDER` and by name. A result of which something does not follow from its own values, or that
    does not lie where those of its claim do, counts as none.

    Args:
        folder: of NAME/claim.json, or of NAME.json where they are published.
        claims: key and value of the YAML of each registered claim, by name.
        digests: sha256 of each as it is registered.
        left_out: to which a sentence is added for each result that does not count.
    """
    found = read_results(folder, left_out)
    older = read_older(folder, left_out)
    current = dict[str, ClaimResult]()
    for name, result in found.items():
        is_current = digests.get(name) == result.digest
        if name not in claims or not (is_current or result.judgement):
            continue
        faults = find_faults(result, claims[name] if is_current else result.claim)
        if faults:
            left_out.append(blame_result(result, faults))
        elif is_current:
            current[name] = result
        else:
            older.append(result)
    judgements = dict[str, Judgement | None]()
    for name in claims:
        own = current.get(name)
        judgements[name] = own.judgement if own else None
    suite = correct_verdicts(judgements)
    entries = []
    for name, claim in claims.items():
        before = [result for result in older if result.name == name]
        entries.append(Entry(name, claim, current.get(name), before, suite.corrected[name]))
    entries.sort(key=lambda entry: (ORDER.index(entry.standing), entry.name))
    return entries, suite


def read_older(folder: Path, left_out: list[str]) -> list[ClaimResult]:
    """Return the results with a verdict that were put aside below a folder, each for an earlier registration.

    left_out: as `read_entries` has it.
    """
    found = []
    for path in sorted(folder.glob(f"{OLDER}/*/{CLAIM_FILE}")):
        try:
            result = load_result(path)
        except ValueError as error:
            left_out.append(str(error))
            continue
        if result.judgement:
            faults = find_faults(result, result.claim)
            if faults:
                left_out.append(blame_result(result, faults))
            else:
                found.append(result)
    return found


def blame_result(result: ClaimResult, faults: Sequence[str]) -> str:
    """Say what of a result does not follow from its own values and its claim."""
    told = "; ".join(faults[:MOST_FAULTS])
    if len(faults) > MOST_FAULTS:
        told += f"; and {len(faults) - MOST_FAULTS} more"
    return f"the result of {result.name} contradicts itself: by its values and its claim {told}"


# ---- words


def write_question(claim: Mapping[str, Any]) -> str:
    """Write what a claim asks of its effect, by what rule."""
    unit = str(claim.get("unit") or "")
    margin = with_unit(write_bound(claim["margin"]), unit)
    measured = f"the effect by seed, {claim['effect']} in {claim['measure']}"
    kind = Kind(claim["kind"])
    if kind is Kind.LARGER:
        return f"Is {measured}, above 0, and may it be {margin} or more?"
    if kind is Kind.PARITY:
        return f"Is {measured}, closer to 0 than {margin}?"
    if kind is Kind.AT_LEAST:
        return f"Is {measured}, above −{margin}?"
    if kind is Kind.EXACT:
        return f"Is {measured}, never farther from 0 than {margin}?"
    target = with_unit(write_bound(claim.get("target") or 0), unit)
    return f"Is {measured}, closer to {target}, which is the value of theory, than {margin}?"


def write_bound(value: float) -> str:
    """Write a bound of an effect: 0.03, 1e-9, −0.5."""
    written = re.sub(r"e([+-])0*", r"e\1", f"{value:g}")
    return written.replace("-", "−", 1) if value < 0 else written


def deciding_interval(judgement: Judgement, kind: Kind) -> Interval | None:
    """Return the interval from which a verdict follows."""
    return judgement.interval if kind is Kind.LARGER else judgement.inner


def write_effect(judgement: Judgement, kind: Kind, unit: str) -> str:
    """Write the mean of an effect, such as `+0.021 nats`, with the digits that its interval gives it."""
    mean = judgement.mean
    if mean and abs(mean) < SMALL:
        written = f"{mean:+.1e}".replace("-", "−")
    else:
        digits = precision(mean, deciding_interval(judgement, kind))
        written = fixed(mean, digits, sign=True)
    return with_unit(written, unit)


def write_interval(judgement: Judgement, kind: Kind) -> str:
    """Write the interval from which the verdict follows, such as `95 %: +0.011 to +0.031`; a dash for none."""
    interval = deciding_interval(judgement, kind)
    if interval is None:
        return NONE
    level = judgement.level if kind is Kind.LARGER else 2 * judgement.level
    digits = precision(judgement.mean, interval)
    return f"{100 * (1 - level):.4g} %: {span(interval, digits, sign=True)}"


def write_mean(result: ClaimResult, unit: str) -> str:
    """Write the mean effect of a claim that is not judged, such as a trial, with its interval of 95 % and its seeds."""
    sample = sample_of(result.values)
    digits = precision(sample.mean, sample.interval)
    size = with_unit(fixed(sample.mean, digits, sign=True), unit)
    seeds = count(sample.n, "seed")
    if sample.interval is None:
        return f"{size} ({seeds})"
    return f"{size} (95 %: {span(sample.interval, digits, sign=True)}; {seeds})"


def write_corrected(entry: Entry) -> str:
    """Write what Holm's correction leaves of a verdict; a dash where there is none."""
    verdict = entry.corrected.verdict
    return NONE if verdict is None else str(verdict)


def write_corrected_p(entry: Entry) -> str:
    """Write the corrected p of a verdict, such as `p = 0.012`; empty where it rests on none."""
    judgement = entry.judgement
    if judgement is None or judgement.verdict in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE):
        return ""
    if judgement.verdict is Verdict.CONTRADICTED:
        p, alone = entry.corrected.p_against, judgement.p_against
    else:
        p, alone = entry.corrected.p, judgement.p
    return "no chance in it" if alone == 0 else f"p {equals(p)}"


def write_power(judgement: Judgement) -> str:
    """Write the power of a claim in percent."""
    if judgement.power is None:
        return NONE
    return f"{min(100 * judgement.power, 99.9):.0f} %" if judgement.power < 0.995 else "> 99 %"


def write_settling(entry: Entry) -> str:
    """Write what would settle an inconclusive claim, and what that costs; empty for other claims."""
    judgement, result = entry.judgement, entry.result
    if judgement is None or result is None or judgement.verdict is not Verdict.INCONCLUSIVE:
        return ""
    if judgement.n < 2:
        return "More seeds would settle it."
    if judgement.seeds_to_settle is None:
        return "More than 1,000 seeds would be needed to settle it: the effect seen is next to a bound of the claim."
    told = f"{judgement.seeds_to_settle:,} seeds in all would settle it four times in five, if mean and spread stay so"
    minutes = result.minutes_to_settle
    return f"{told}: about {write_minutes(minutes)}." if minutes else f"{told}."


def write_minutes(minutes: float) -> str:
    """Write how long runs take: `25 seconds`, `13 minutes`, `4.2 hours`."""
    if minutes < 1:
        return f"{60 * minutes:.0f} seconds"
    if minutes < 120:
        return f"{minutes:.0f} minutes"
    hours = minutes / 60
    return f"{hours:.1f} hours" if hours < 10 else f"{hours:,.0f} hours"


def settling_words(entry: Entry) -> list[str]:
    """Return the words that try an inconclusive claim with as many new seeds as settle it; none for other claims."""
    judgement = entry.judgement
    if judgement is None or not judgement.seeds_to_settle or judgement.verdict is not Verdict.INCONCLUSIVE:
        return []
    last = FIRST_TRIAL_SEED + judgement.seeds_to_settle
    return ["--trial", f"seed=range({FIRST_TRIAL_SEED},{last})"]


def trial_words(entry: Entry) -> list[str]:
    """Return the words with which a claim was tried, other than those that it has itself; none for other claims."""
    result = entry.result
    if result is None or result.status is not Status.TRIAL:
        return []
    own = entry.claim["words"]
    return [word for word in result.words if word not in own and key_of(word) not in OF_FOLDER]


def write_machine(result: ClaimResult) -> str:
    """Write what the runs of a claim were made on, and with which versions."""
    machine = result.machine
    parts = [str(machine.get("gpu") or machine.get("processor") or "")]
    if isinstance(machine.get("cores"), int):
        parts.append(count(machine["cores"], "core"))
    for package in ("torch", "normbench"):
        if machine.get(package):
            parts.append(f"{package} {machine[package]}")
    if machine.get("commit"):
        parts.append(f"commit {str(machine['commit'])[:9]}")
    return ", ".join(part for part in parts if part)


def write_suite(entries: Sequence[Entry], suite: Suite) -> list[str]:
    """Write the sentences about all claims together."""
    if not entries:
        return ["No claim is registered yet."]
    registered = count(len(entries), "registered claim")
    if not suite.judged:
        return [f"None of {registered} has a verdict yet."]
    standings = Counter(entry.standing for entry in entries)
    each = [f"{standings[verdict]} {verdict}" for verdict in Verdict if standings[verdict]]
    told = f"{suite.judged} of {registered} have a verdict, each at the scale at which it ran"
    sentences = [f"{told}: {', '.join(each)}."]
    if suite.by_chance:
        most = significant(suite.by_chance, 2)
        told = "Each is tested by itself at 5 %, so that chance gives up to"
        sentences.append(f"{told} {most} wrong verdicts among them.")
    reproduced, contradicted = suite.count(*IN_FAVOUR), suite.count(Verdict.CONTRADICTED)
    sentences.append(
        f"After Holm's correction over all {registered}, run or not, {reproduced} of the {suite.judged} judged claims "
        f"reproduce at this scale (parity included) and {contradicted} are contradicted."
    )
    return sentences


def list_notes(entry: Entry) -> list[str]:
    """Return what a reader must know beside a verdict: what it leaves out, low power, lost runs."""
    notes = []
    judgement, result = entry.judgement, entry.result
    if judgement and judgement.note:
        notes.append(f"{judgement.note[0].upper()}{judgement.note[1:]}.")
    if judgement and judgement.is_underpowered:
        power = write_power(judgement)
        notes.append(f"Underpowered: with this spread {judgement.n} seeds find the claim in {power} of repetitions.")
    if result and entry.lost:
        by_arm = ", ".join(f"{arm} {number}" for arm, number in result.lost.items() if number)
        notes.append(f"Lost runs, which count with the loss at initialization: {by_arm}.")
    if entry.unreached:
        by_arm = ", ".join(f"arm {arm} at {count(number, 'seed')}" for arm, number in entry.unreached.items())
        stands = "The length of the run stands for the steps there, which would be more, so that the effect is a bound"
        notes.append(f"The loss that steps() asks for is never reached by {by_arm}. {stands}.")
    return notes


def tell_p(entry: Entry) -> str:
    """Write p of a claim by itself, and that of its opposite where that is smaller; a dash where there is none."""
    judgement = entry.judgement
    if judgement is None or judgement.interval is None:
        return NONE
    if judgement.p_against < judgement.p:
        return f"{p_value(judgement.p_against)}, against the claim"
    return p_value(judgement.p)
