"""The sentences about claims: what is asked, what has come of it, and what a reader must know beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from statistics import fmean
from typing import Any

from normbench.results.claimed import ClaimedEffect, ClaimResult, RegisteredClaim, Suite, Tuning, sample_of
from normbench.results.luck import AT_MOST
from normbench.results.one_rate import AtOneRate, chosen_rates, effects_at_one_rate, has_one_rate
from normbench.results.rules import IN_FAVOUR, OF_A_DIFFERENCE, OF_CLAIMS, OF_SIGN, ClaimKind, Verdict
from normbench.results.statistics import ALPHA, Interval
from normbench.tell.worth import list_limits, say_unreached, write_worth
from normbench.wording import (
    NONE,
    compact,
    count,
    equals,
    estimate,
    list_words,
    p_value,
    percent,
    short,
    significant,
    with_unit,
    write_minutes,
)

NEW_RULE = "2026-11-29"  # the day from which on claims are of kind sized or any, and not larger
SEEDS_OF_MOST = 10  # that most claims have
DECIDED = (*IN_FAVOUR, Verdict.CONTRADICTED)  # which more seeds would not have found sooner
SMALL = 1e-4  # an effect below it is written with an exponent


def write_question(claim: Mapping[str, Any]) -> str:
    """Write what a claim asks of its effect, by what rule."""
    unit = str(claim.get("unit") or "")
    margin = with_unit(short(claim["margin"]), unit)
    measured = f"the effect by seed, {claim['effect']} in {claim['measure']}"
    match ClaimKind(claim["kind"]):
        case ClaimKind.LARGER:
            return f"Is {measured}, above 0, and may it be {margin} or more?"
        case ClaimKind.SIZED:
            return f"Is {measured}, {margin} or more?"
        case ClaimKind.ANY:
            return f"Is {measured}, above 0, by however little?"
        case ClaimKind.PARITY:
            return f"Is {measured}, closer to 0 than {margin}?"
        case ClaimKind.AT_LEAST:
            return f"Is {measured}, above −{margin}?"
        case ClaimKind.EXACT:
            return f"Is {measured}, never farther from 0 than {margin}?"
        case ClaimKind.SLOPE:
            target = with_unit(short(claim.get("target") or 0), unit)
            return f"Is {measured}, closer to {target}, which is the value of theory, than {margin}?"


def write_effect(judgement: ClaimedEffect, unit: str) -> str:
    """Write the mean of an effect, such as `+0.021 nats`, with the digits that its interval gives it."""
    return write_size(judgement.mean, judgement.deciding_interval, unit)


def write_size(mean: float, interval: Interval | None, unit: str) -> str:
    """Write a mean with its unit; a tiny one with an exponent."""
    is_tiny = mean != 0 and abs(mean) < SMALL
    words = compact(mean, 2, sign=True) if is_tiny else estimate(mean, interval, sign=True)[0]
    return with_unit(words, unit)


def write_interval(judgement: ClaimedEffect) -> str:
    """Write the interval from which the verdict follows, such as `95 %: +0.011 to +0.031`; a dash for none."""
    interval = judgement.deciding_interval
    return NONE if interval is None else write_span(judgement.mean, interval, judgement.deciding_level)


def write_span(mean: float, interval: Interval, level: float) -> str:
    """Write an interval of 1 − level, with what it covers."""
    return f"{percent(1 - level, 4)}: {estimate(mean, interval, sign=True)[1]}"


def write_mean(result: ClaimResult, unit: str) -> str:
    """Write the mean effect of a claim that is not judged, such as a trial, with its interval of 95 % and its seeds."""
    sample = sample_of(result.values)
    size = write_size(sample.mean, sample.interval, unit)
    seeds = count(sample.n, "seed")
    if sample.interval is None:
        return f"{size} ({seeds})"
    return f"{size} ({write_span(sample.mean, sample.interval, ALPHA)}; {seeds})"


def write_outcome(result: ClaimResult, scope: str) -> str:
    """Write in a line what a claim has come to: its verdict, its effect, and what that rests on.

    scope: the scale at which its runs were made.
    """
    claim, judgement = result.claim, result.judgement
    unit = str(claim.get("unit") or "")
    if judgement is None:
        words = str(result.status)
        if result.reason:
            words += f" ({result.reason})"
        if result.values:
            words += f"; {claim['effect']} = {write_mean(result, unit)}"
        if len(result.values) > 1:
            words += f", standard deviation {short(sample_of(result.values).sd, 3)}"
        return words
    words = f"{judgement.verdict}; {claim['effect']} = {write_effect(judgement, unit)}"
    if judgement.interval is not None:
        words += f" ({write_interval(judgement)})"
    words += f", {count(judgement.n, 'seed')}, margin {short(claim['margin'])}"
    lost = sum(result.lost.values())
    if lost:
        words += f", {count(lost, 'lost run')}"
    for arm, seeds in (result.unreached or {}).items():
        words += f", arm {arm} never reaches the loss of its reference at {count(seeds, 'seed')}"
    if judgement.note:
        words += f"; {judgement.note}"
    worth = write_worth_of_claim(result)
    if worth:
        words += f"; {worth}"
    return f"{words}; at this scale: {scope}"


def write_worth_of_claim(result: ClaimResult | None) -> str:
    """Write what the difference of a claim is worth, `rms against ln: 0.97 × the time ...`; empty for nothing."""
    worth = result.worth if result else None
    if worth is None or not worth.n:
        return ""
    return f"{worth.arm} against {worth.baseline}: {write_worth(worth)}"


def list_limits_of_worth(result: ClaimResult | None) -> list[str]:
    """Return what a reader must know beside that, a sentence each."""
    worth = result.worth if result else None
    if worth is None:
        return []
    return [sentence for sentence in (say_unreached(worth), *list_limits([worth])) if sentence]


def tell_tuning(entry: RegisteredClaim) -> str:
    """Write which learning rates were chosen for a claim's arms, and what others would cost; empty where none was."""
    result = entry.result
    if result is None or not result.values or not entry.way_of_rates:
        return ""
    if result.tuning is None:
        return "chosen by losses on held-out data that were not kept"
    return "; ".join(write_tuning(tuning, result.tuning, entry) for tuning in result.tuning)


def tell_rates(result: ClaimResult) -> str:
    """Write the learning rates that were chosen, by arm, such as `rms 0.003, ln 0.01`; empty where none were kept."""
    return ", ".join(f"{tuning.arm} {write_chosen(tuning)}" for tuning in result.tuning or ())


def name_kind(tuning: Tuning, all_of_claim: Sequence[Tuning]) -> str:
    """Write the arm of a choice, with the fewest settings that tell the kind of its runs from the arm's other ones.

    Settings that go together in a sweep, such as a context and its batch, differ together.
    """
    own = tuning.search.arm.settings
    kinds = [other.search.arm.settings for other in all_of_claim if other.arm == tuning.arm]
    others = [kind for kind in kinds if kind != own]
    differing = [key for key in own if any(kind.get(key) != own[key] for kind in others)]
    all_sets = chain.from_iterable(combinations(differing, size) for size in range(len(differing) + 1))
    enough = (keys for keys in all_sets if all(any(kind.get(key) != own[key] for key in keys) for kind in others))
    telling = next(enough, differing)
    words = ", ".join(f"{key}={own[key]}" for key in telling)
    return f"{tuning.arm} ({words})" if words else tuning.arm


def tell_one_rate(entry: RegisteredClaim) -> str:
    """Write what the runs that chose learning rates give with one rate for all arms; empty where they tell nothing."""
    return "; ".join(list_at_one_rate(entry))


def list_at_one_rate(entry: RegisteredClaim) -> list[str]:
    """Return the effect at each rate at which it is known, and at which rates of arms it is not."""
    result = entry.result
    found = effects_at_one_rate(result) if result else []
    if not found or result is None:
        return []
    told = [write_at_one_rate(one) for one in found]
    missing = sorted(chosen_rates(result.tuning or ()) - {one.rate for one in found})
    if missing:
        told.append(f"none at {list_words([*map(short, missing)])}, where not every arm has a loss at each seed")
    return told


def write_at_one_rate(found: AtOneRate) -> str:
    """Write the effect at one rate, such as `+0.12 nats (95 %: +0.10 to +0.14) at 0.001`."""
    size = write_size(found.effect.mean, found.effect.interval, found.unit)
    interval = found.effect.interval
    span = f" ({write_span(found.effect.mean, interval, ALPHA)})" if interval else ""
    return f"{size}{span} at {short(found.rate)}"


def write_chosen(tuning: Tuning) -> str:
    """Write the rates that were chosen for an arm, and where each of its seeds has one, for how many seeds."""
    seeds_at = Counter(tuning.search.chosen)
    rates = []
    for rate in sorted(seeds_at):
        is_one = len(tuning.choices) == 1
        rates.append(short(rate) if is_one else f"{short(rate)} ({count(seeds_at[rate], 'seed')})")
    return " and ".join(rates) or "none"


def write_tuning(tuning: Tuning, all_of_claim: Sequence[Tuning], entry: RegisteredClaim) -> str:
    """Write which rates were chosen for an arm of a claim, and what the next ones would cost."""
    words = f"{name_kind(tuning, all_of_claim)} at {write_chosen(tuning)}"
    costs = list_costs(tuning, entry)
    if costs:
        words += f", where the next rate costs {' and '.join(costs)}"
    return words


def list_costs(tuning: Tuning, entry: RegisteredClaim) -> list[str]:
    """Return what the rates next to the one chosen most often would cost, of a claim on losses in margins too."""
    costs = []
    for rate, cost in tuning.search.neighbours.items():
        of_margin = ""
        if entry.measures_losses:
            of_margin = f" ({compact(cost / entry.margin, 2)} of the margin)"
        costs.append(f"{compact(cost, 2)} nats{of_margin} at {short(rate)}")
    return costs


def write_on_gpu(entry: RegisteredClaim) -> str:
    """Write what the same sentence has come to on a GPU, with the effect; a dash where nothing has been run there."""
    there = entry.on_gpu
    if there is None or there.judgement is None:
        return NONE
    judgement = there.judgement
    interval = write_interval(judgement)
    seeds = count(judgement.n, "seed")
    told = seeds if interval == NONE else f"{interval}; {seeds}"
    is_kept = there.corrected.verdict == judgement.verdict
    after = "" if is_kept else f", {write_corrected(there)} after Holm's correction"
    return f"{judgement.verdict}{after}, {write_effect(judgement, there.unit)} ({told})"


def write_corrected(entry: RegisteredClaim) -> str:
    """Write what Holm's correction leaves of a verdict; a dash where there is none."""
    verdict = entry.corrected.verdict
    return NONE if verdict is None else str(verdict)


def write_corrected_p(entry: RegisteredClaim) -> str:
    """Write the corrected p of a verdict, such as `p = 0.012`; empty where it rests on none."""
    judgement = entry.judgement
    if judgement is None or judgement.verdict in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE):
        return ""
    if judgement.verdict in OF_SIGN:
        return f"p {equals(entry.corrected.p_of_sign)}"
    if judgement.verdict is Verdict.CONTRADICTED:
        p, alone = entry.corrected.p_against, judgement.p_against
    else:
        p, alone = entry.corrected.p, judgement.p
    return "no chance in it" if alone == 0 else f"p {equals(p)}"


def write_power(judgement: ClaimedEffect) -> str:
    """Write the power of a claim in percent."""
    if judgement.power is None:
        return NONE
    return f"{min(100 * judgement.power, 99.9):.0f} %" if judgement.power < 0.995 else "> 99 %"


def write_settling(entry: RegisteredClaim) -> str:
    """Write what would settle an inconclusive claim, and what that costs; empty for other claims."""
    judgement, result = entry.judgement, entry.result
    if judgement is None or result is None or judgement.verdict is not Verdict.INCONCLUSIVE:
        return ""
    if judgement.n < 2:
        return "More seeds would settle it."
    if judgement.seeds_to_settle is None:
        return "More than 1,000 seeds would be needed to settle it: the effect seen is next to a bound of the claim."
    clause = (
        f"{judgement.seeds_to_settle:,} seeds in all would settle it four times in five, if mean and spread stay so"
    )
    minutes = result.minutes_to_settle
    return f"{clause}: about {write_minutes(minutes)}." if minutes else f"{clause}."


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


def write_suite(suite: Suite) -> list[str]:
    """Write the sentences about all claims together."""
    if not suite.entries:
        return ["No claim is registered yet."]
    registered = count(len(suite.entries), "registered claim")
    judged = len(suite.judgements)
    if not judged:
        return [f"None of {registered} has a verdict yet."]
    standings = Counter(entry.standing for entry in suite.entries)
    counts = [f"{standings[verdict]} {verdict}" for verdict in OF_CLAIMS if standings[verdict]]
    beginning = f"{judged} of {registered} have a verdict, each at the scale at which it ran"
    sentences = [f"{beginning}: {', '.join(counts)}."]
    if suite.withdrawn:
        why = ", as their tests were found not to be fair ones, and count with p = 1"
        sentences.append(write_withdrawn(suite.withdrawn, why))
    if suite.not_settled:
        why = "as what was found after the runs says the opposite under other conditions, with p = 1 each"
        sentences.append(f"{len(suite.not_settled)} more ran and had no verdict, {why}.")
    sentences += tell_chances(suite)
    reproduced, parity = suite.count(Verdict.REPRODUCED), suite.count(Verdict.PARITY)
    contradicted = suite.count(Verdict.CONTRADICTED)
    sentences.append(
        f"After Holm's correction over all {registered}, run or not, {reproduced} of the {judged} judged claims "
        f"reproduce at this scale, {parity} are parity and {contradicted} contradicted."
    )
    return sentences


def write_withdrawn(withdrawn: Sequence[RegisteredClaim], why: str = "") -> str:
    """Write how many claims are withdrawn, why, and what had come out: what is taken back is told with what stays."""
    came_out = Counter[Verdict]()
    for entry in withdrawn:
        came_out.update(result.judgement.verdict for result in entry.older[-1:] if result.judgement)
    counts = [f"{came_out[verdict]} {verdict}" for verdict in OF_CLAIMS if came_out[verdict]]
    before = f"before that, {list_words(counts, len(counts))}" if counts else "none had run"
    verb = "is" if len(withdrawn) == 1 else "are"
    return f"{len(withdrawn)} more {verb} withdrawn{why} ({before})."


def tell_chances(suite: Suite) -> list[str]:
    """Write how many verdicts chance gives at most, by how learning rates were chosen."""
    sentences = []
    for chance in suite.chances:
        if not chance.verdicts:
            continue
        most = significant(chance.wrong, 2)
        if not chance.shares_luck:
            which = f"{count(chance.verdicts, 'verdict')} whose runs have rates that were fixed, or chosen seed by seed"
            sentences.append(f"Each is tested by itself at 5 %: of {which}, chance gives up to {most} wrong ones.")
            continue
        worst = AT_MOST[SEEDS_OF_MOST]
        shares = f"{percent(worst.of_differences)} of differences and {percent(worst.of_bounds)} of parities"
        sentences.append(
            f"{count(chance.verdicts, 'verdict')} rest on one learning rate for all seeds of an arm (sweep.lr=auto, or "
            f"a study that chooses so), and how lucky its choice was is in no interval: in simulations with "
            f"{SEEDS_OF_MOST} seeds 5 % are wrong where the next rate costs nothing or much, and up to {shares} in "
            f"between, which would be {most} of these."
        )
    return sentences


def list_notes(entry: RegisteredClaim) -> list[str]:
    """Return what a reader must know beside a verdict: what it leaves out, low power, lost runs, what was found."""
    notes = [tell_withdrawal(entry)] if entry.withdrawn else []
    judgement, result = entry.judgement, entry.result
    if judgement and judgement.note:
        notes.append(f"{judgement.note[0].upper()}{judgement.note[1:]}.")
    if judgement:
        notes += tell_size(judgement, entry.unit)
    if judgement and judgement.is_underpowered and judgement.verdict not in DECIDED:
        power = write_power(judgement)
        seeds = f"with this spread {judgement.n} seeds would find what it says in {power} of repetitions"
        notes.append(f"Underpowered: {seeds} if {say_assumed(judgement, entry.unit)}.")
    if judgement:
        notes += tell_turning(judgement)
    if result and judgement and result.spreads and result.spreads.is_widened:
        paired, alone = short(result.spreads.paired, 2), with_unit(short(result.spreads.unpaired, 2), entry.unit)
        arms = "The arms do not rise and fall together over the seeds, so that pairing widens the interval"
        notes.append(
            f"{arms}: the standard deviation of the difference is {paired}, and {alone} if they were unpaired."
        )
    if judgement and judgement.rule.kind is ClaimKind.LARGER and judgement.verdict_by_size != judgement.verdict:
        notes.append(f"By the rule for claims that are registered from {NEW_RULE} on: {judgement.verdict_by_size}.")
    if result and entry.lost:
        by_arm = ", ".join(f"{arm} {number}" for arm, number in result.lost.items() if number)
        notes.append(f"Lost runs, which count with the loss at initialization, or a constant guess: {by_arm}.")
    if entry.unreached:
        by_arm = ", ".join(f"arm {arm} at {count(number, 'seed')}" for arm, number in entry.unreached.items())
        stands = "The length of the run stands for the steps there, which would be more, so that the effect is a bound"
        notes.append(f"The loss that steps() asks for is never reached by {by_arm}. {stands}.")
    if judgement and result:
        notes += tell_unlike_rates(result, entry.unit)
        notes += tell_other_sign(entry)
    notes += list_found(entry.claim)
    if entry.changed:
        notes.append(f"{entry.changed}. Its verdict is of the runs that were registered.")
    return notes


def tell_size(judgement: ClaimedEffect, unit: str) -> list[str]:
    """Return what a word leaves unsaid of the size of an effect: a sentence, or none.

    That a claim holds by less than matters, or in spite of a harm that is real, or that an inconclusive one differs
    from 0 all the same.
    """
    interval = judgement.interval
    if interval is None or judgement.rule.kind is ClaimKind.SLOPE:  # whose target is not 0
        return []
    margin = with_unit(short(judgement.rule.margin), unit)
    if judgement.verdict is Verdict.INCONCLUSIVE and (interval.lower > 0 or interval.upper < 0):
        side = "above" if interval.lower > 0 else "below"
        return [f"By itself, at 95 %, the effect is {side} 0; whether by more than {margin} is open."]
    if judgement.verdict is not Verdict.REPRODUCED:
        return []
    if judgement.rule.kind is ClaimKind.ANY and interval.upper < judgement.rule.margin:
        return [f"The effect is real, but smaller than {margin}, the smallest that was registered to matter."]
    if judgement.rule.kind is ClaimKind.AT_LEAST and interval.upper < 0:
        return [f"A harm is real, but smaller than {margin}, the smallest that was registered to matter."]
    return []


def tell_unlike_rates(result: ClaimResult, unit: str) -> list[str]:
    """Return what rests on the learning rates that were chosen for each seed of two arms: a sentence, or none.

    Where one arm has another rate than the other, the effect is of both, and runs that choose may prefer another rate
    than those that are reported, the more so the shorter they are.
    """
    if not result.tuning or len(result.tuning) != 2:
        return []
    first, second = ({choice.seed: choice.lr for choice in tuning.choices} for tuning in result.tuning)
    seeds = [seed for seed in result.values if seed in first and seed in second]
    alike = [result.values[seed] for seed in seeds if first[seed] == second[seed]]
    others = [result.values[seed] for seed in seeds if first[seed] != second[seed]]
    if not others:
        return []
    length = min(choice.length for tuning in result.tuning for choice in tuning.choices)
    chose = f", which runs of {percent(length)} of the steps have chosen" if length < 1 else ""
    if not alike:
        return [f"The two arms have the same learning rate at no seed{chose}."]
    there, elsewhere = (with_unit(compact(fmean(values), 2, sign=True), unit) for values in (alike, others))
    where = f"at {len(alike)} of {count(len(seeds), 'seed')}"
    said = f"there the effect is {there} in the mean, and {elsewhere} at the others"
    return [f"The two arms have the same learning rate {where}{chose}: {said}."]


def tell_other_sign(entry: RegisteredClaim) -> list[str]:
    """Return what the runs that chose rates give with one rate for all arms, where that has another sign: a sentence.

    Nothing if at each chosen rate the interval lies on the same side of 0 as that of the claim, or both hold 0. Claims
    of parity and of no harm are not about a sign.
    """
    result, judgement = entry.result, entry.judgement
    if result is None or judgement is None or entry.kind not in OF_A_DIFFERENCE or has_one_rate(result.tuning or ()):
        return []
    side = side_of(judgement.interval)
    chosen = [found for found in effects_at_one_rate(result) if found.is_chosen]
    if all(side_of(found.effect.interval) == side for found in chosen):
        return []
    of_losses = "" if entry.measures_losses or entry.unit == "log ratio" else ", in the loss"
    runs = "the runs that chose rates give another picture"
    return [f"With one learning rate for all arms {runs}{of_losses}: {tell_one_rate(entry)}."]


def side_of(interval: Interval | None) -> int:
    """Return on which side of 0 an interval lies, 1 or -1; 0 where it holds 0 or there is none."""
    if interval is None or interval.lower <= 0 <= interval.upper:
        return 0
    return 1 if interval.lower > 0 else -1


def tell_withdrawal(entry: RegisteredClaim) -> str:
    """Write why the test of a claim counts no longer, and what stands for it; empty for other claims."""
    if not entry.withdrawn:
        return ""
    sentence = f"{entry.withdrawn['why'].rstrip('.')}."
    others = entry.withdrawn["by"]
    if not others:
        return f"{sentence} No other claim stands for it."
    verb = "stands" if len(others) == 1 else "stand"
    return f"{sentence} {list_words(others)} {verb} for it."


def tell_turning(judgement: ClaimedEffect) -> list[str]:
    """Write which single seeds a verdict hangs on, each left out by itself; nothing where there is none."""
    sentences = []
    for verdict, seeds in judgement.turning_seeds.items():
        which = (
            f"seed {seeds[0]}" if len(seeds) == 1 else f"any one of seeds {list_words([*map(str, seeds)], len(seeds))}"
        )
        if len(seeds) == judgement.n:
            which = "any one of its seeds"
        sentences.append(f"The verdict turns with a single seed: without {which} it is {verdict}.")
    return sentences


def write_registered(entry: RegisteredClaim) -> str:
    """Write when a claim was registered, and what says that this was before its runs."""
    day = str(entry.claim["registered"])
    if entry.result is None or not entry.result.values:
        return day
    if entry.witness:
        return f"{day}, and noted in the commit with which its runs were made, {entry.witness[:9]}"
    return f"{day}, which is older than its runs by the word of whoever registered it alone"


def list_found(claim: Mapping[str, Any]) -> list[str]:
    """Return what was found after the runs of a claim to be behind its effect, each with its day."""
    return [f"Found after the runs, {found['date']}: {found['what']}" for found in claim.get("found") or ()]


def say_assumed(judgement: ClaimedEffect, unit: str) -> str:
    """Say for which effect power is told: there is none, it is what theory gives, or it is only so large."""
    effect = judgement.rule.assumed_effect
    if judgement.rule.kind in OF_A_DIFFERENCE:
        return f"the effect were only {with_unit(short(effect), unit)}"
    return f"it were just {with_unit(short(effect), unit)}" if effect else "there were none"


def tell_p(entry: RegisteredClaim) -> str:
    """Write p of a claim by itself, and that of its opposite where that is smaller; a dash where there is none."""
    judgement = entry.judgement
    if judgement is None or judgement.interval is None:
        return NONE
    if judgement.p_against < judgement.p:
        return f"{p_value(judgement.p_against)}, against the claim"
    return p_value(judgement.p)
