"""What comparisons say, in plain sentences: one for each arm, or one for many that say the same.

Nothing is called a difference unless its p, corrected after Holm, is below 0.05; where none is found, the sentence says
how large one may still be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from normbench.analysis.comparisons import Comparison, by_seed, shortened
from normbench.analysis.measures import Metric
from normbench.analysis.power import detectable_difference
from normbench.analysis.statistics import equivalence
from normbench.analysis.wording import bound, count, equals, fixed, plain, precision, span

MOST = 8  # sentences of a kind; the table has the others


@dataclass(frozen=True)
class Kind:
    """What can be said of a comparison. is_so: whether it is. one: the sentence; several: that for many.

    Differences have no sentence for many; the largest come first.
    """

    is_so: Callable[[Comparison, float | None], bool]
    one: Callable[[Comparison, float | None], str]
    several: Callable[[Sequence[Comparison], float | None], str] | None = None

    def order(self, one: Comparison) -> float:
        """A sort key."""
        return 0.0 if self.several or one.paired is None else -abs(one.paired.mean)


def compared_words(comparisons: Sequence[Comparison], margin: float | None) -> Iterator[str]:
    """What is said of the comparisons. margin: in the metric's unit; differences within it do not matter."""
    groups: dict[Kind, list[Comparison]] = {kind: [] for kind in KINDS}
    left: list[Comparison] = []
    for one in comparisons:
        kind = next((kind for kind in KINDS if kind.is_so(one, margin)), None)
        (groups[kind] if kind else left).append(one)
    many = sum(len(found) for kind, found in groups.items() if kind.several) > MOST
    for kind, found in groups.items():
        if kind.several and many and len(found) > 1:
            yield kind.several(found, margin)
        else:
            yield from at_most([kind.one(one, margin) for one in sorted(found, key=kind.order)])
    if single := [one for one in left if one.n == 1]:
        yield too_few(single, comparisons)
    if apart := [one.arm.name for one in left if one.n == 0]:
        yield f"{shortened(apart)}: no seed has finished both there and in the baseline, so nothing can be said."


def at_most(texts: list[str]) -> list[str]:
    """The first ones, and how many more there are."""
    more = len(texts) - MOST
    return texts if more <= 0 else [*texts[:MOST], f"{more} more of this kind are in the table."]


# ---- differences


def different(one: Comparison, margin: float | None) -> str:
    """A difference that was found."""
    corrected = " after Holm" if one.family > 1 else ""
    return (
        f"{one.arm.name} is {worth(one)} than {one.baseline.name}: {measured(one)}, p {equals(one.corrected)}"
        f"{corrected}){survivors(one)}{against(one, margin)}."
    )


def possible(one: Comparison, margin: float | None) -> str:
    """A difference that only the other comparisons make uncertain."""
    assert one.paired is not None
    return (
        f"{one.arm.name} may be {worth(one)} than {one.baseline.name}: {measured(one)}, p {equals(one.paired.p)})"
        f"{survivors(one)}{against(one, margin)}; not certain after correction for {one.family} comparisons "
        f"(p {equals(one.corrected)}): add seeds."
    )


def measured(one: Comparison) -> str:
    """The difference and its interval, up to where p stands."""
    assert one.paired is not None
    places = precision(one.paired.mean, one.interval)
    return (
        f"its {one.metric.words} is {fixed(abs(one.paired.mean), places)} {one.metric.unit} {way(one)} "
        f"(95 %: {span(one.interval, places, sign=True)}; {seeds_of(one)}"
    )


def worth(one: Comparison) -> str:
    """Which way it is for the arm."""
    return "better" if one.better else "worse"


def way(one: Comparison) -> str:
    """Which way the value is."""
    return "lower" if one.paired and one.paired.mean < 0 else "higher"


def seeds_of(one: Comparison) -> str:
    """How many seeds there are, and of how many."""
    total = len(one.seeds)
    return f"{one.n} of {total} seeds" if one.n < total else count(one.n, "seed")


def survivors(one: Comparison, comma: str = ",") -> str:
    """That other seeds were lost."""
    return f"{comma} among the seeds that survived" if one.survived else ""


def against(one: Comparison, margin: float | None) -> str:
    """How a difference compares with the margin."""
    if margin is None or one.interval is None:
        return ""
    if one.interval.reach <= margin:
        return f"; it is within the margin of {size(margin, one.metric)}"
    nearest = min(abs(one.interval.lower), abs(one.interval.upper))
    return f"; it may be within the margin of {size(margin, one.metric)}" if nearest <= margin else ""


def stuck(one: Comparison, margin: float | None) -> str:
    """A difference that is the same in each seed, which does not say how far chance reaches."""
    assert one.paired is not None
    amount = fixed(abs(one.paired.mean), precision(one.paired.mean, None))
    return (
        f"{one.arm.name} and {one.baseline.name} differ by the same {amount} {one.metric.unit} in {each_seed(one)} "
        f"({one.arm.name} is {way(one)} in {one.metric.words}), so the spread is not known: add seeds."
    )


def each_seed(one: Comparison) -> str:
    """Such as `each of 5 seeds`."""
    return f"each of {count(one.n, 'seed')}{' that survived' if one.survived else ''}"


# ---- no difference


def same(one: Comparison, margin: float | None) -> str:
    """Equal results."""
    return f"{pair(one)} end with the same {one.metric.words} in {each_seed(one)}."


def several_same(ones: Sequence[Comparison], margin: float | None) -> str:
    """Many equal results."""
    return f"{len(ones)} arms end with the same {ones[0].metric.words} as {baselines(ones)} in each seed: {arms(ones)}."


def within(one: Comparison, margin: float | None) -> str:
    """Arms that may be taken for the same."""
    assert margin is not None
    return (
        f"{pair(one)} are the same within the margin of {size(margin, one.metric)}: they do not differ by more than "
        f"{reach(one)}{survivors(one, '')} {evidence(one)}."
    )


def several_within(ones: Sequence[Comparison], margin: float | None) -> str:
    """Many of them."""
    assert margin is not None
    return (
        f"{len(ones)} arms are the same as {baselines(ones)} within the margin of {size(margin, ones[0].metric)} "
        f"(95 %): {arms(ones)} ({seeds_each(ones)})."
    )


def unknown(one: Comparison, margin: float | None) -> str:
    """A difference that so few seeds do not show."""
    return (
        f"{pair(one)}: too few seeds to tell; they may differ by up to {reach(one)}{survivors(one, '')} "
        f"{evidence(one)}{beyond(one.metric, margin)}."
    )


def several_unknown(ones: Sequence[Comparison], margin: float | None) -> str:
    """Many of them."""
    widest = widest_of(ones)
    return (
        f"Too few seeds to tell whether {len(ones)} arms differ from {baselines(ones)}: {arms(ones)} "
        f"({seeds_each(ones)}); by up to {reach(widest)} (95 %, the widest: {widest.arm.name})."
    )


def alike(one: Comparison, margin: float | None) -> str:
    """A difference that was not found."""
    if margin is None:
        return f"{pair(one)} do not differ by more than {reach(one)}{survivors(one, '')} {evidence(one)}."
    return (
        f"{pair(one)}: no difference was found, but they may differ by up to {reach(one)}{survivors(one, '')} "
        f"{evidence(one)}{beyond(one.metric, margin)}."
    )


def several_alike(ones: Sequence[Comparison], margin: float | None) -> str:
    """Many of them."""
    widest = widest_of(ones)
    return (
        f"No difference from {baselines(ones)} was found for {len(ones)} arms: {arms(ones)} ({seeds_each(ones)}). "
        f"They do not differ by more than {reach(widest)} (95 %, the widest: {widest.arm.name})"
        f"{beyond(widest.metric, margin)}."
    )


def beyond(metric: Metric, margin: float | None) -> str:
    """That the margin does not hold."""
    return "" if margin is None else f", more than the margin of {size(margin, metric)}"


def pair(one: Comparison) -> str:
    """The names of both."""
    return f"{one.arm.name} and {one.baseline.name}"


def reach(one: Comparison) -> str:
    """How large a difference may be at most."""
    assert one.interval is not None
    return f"{bound(one.interval.reach)} {one.metric.unit}"


def evidence(one: Comparison) -> str:
    """From how many seeds it is known, and how surely."""
    return f"({seeds_of(one)}, 95 %)"


def size(value: float, metric: Metric) -> str:
    """A margin with its unit."""
    return f"{plain(value)} {metric.unit}"


def arms(ones: Sequence[Comparison]) -> str:
    """The names of the arms."""
    return shortened([one.arm.name for one in ones])


def baselines(ones: Sequence[Comparison]) -> str:
    """The names of what they are compared with."""
    return shortened(list(dict.fromkeys(one.baseline.name for one in ones)), 3)


def seeds_each(ones: Sequence[Comparison]) -> str:
    """How many seeds the arms have, and which have fewer."""
    most = max(one.n for one in ones)
    fewer = [f"{one.arm.name} {one.n}" for one in ones if one.n < most]
    return f"{count(most, 'seed')} each" + (f", but {shortened(fewer, 6)}" if fewer else "")


def widest_of(ones: Sequence[Comparison]) -> Comparison:
    """The one that may differ most."""
    return max(ones, key=lambda one: one.interval.reach if one.interval else 0.0)


# ---- what cannot be said


def too_few(ones: Sequence[Comparison], comparisons: Sequence[Comparison]) -> str:
    """What is said where there is one seed."""
    family = len(comparisons)
    sizes = [(n, detectable_difference(n, 1.0, family=family)) for n in (3, 5, 10)]
    first, *others = [f"{fixed(found, 1)} times{{}} with {n}" for n, found in sizes]
    spread = " the standard deviation of the differences by seed"
    told = ", ".join([f"{first.format(spread)} seeds", *(text.format("") for text in others)])
    if all(len(one.seeds) == 1 for one in comparisons):
        whose = "With one seed for each arm nothing can be said about differences"
    else:
        whose = f"{arms(ones)}: one seed has finished both there and in the baseline, so nothing can be said"
    return (
        f"{whose}: add at least 2 seeds. To be found four times in five, a difference must be {told} "
        f"({count(family, 'comparison')})."
    )


# ---- which sentence it is


def is_wide(one: Comparison, margin: float | None) -> bool:
    """Whether the interval reaches further than all runs of both arms lie apart: so few seeds show nothing."""
    values = [value for arm in (one.arm, one.baseline) for value in by_seed(arm.runs, one.metric).values()]
    return one.interval is not None and one.interval.reach > max(values) - min(values)


def is_within(one: Comparison, margin: float | None) -> bool:
    """Whether the arms are the same within the margin."""
    return margin is not None and one.paired is not None and equivalence(one.paired, margin).holds


def is_constant(one: Comparison) -> bool:
    """Whether two or more seeds differ by the same."""
    return one.paired is not None and one.paired.sd == 0


KINDS = (
    Kind(lambda one, _: one.real, different),
    Kind(lambda one, _: one.possible, possible),
    Kind(lambda one, _: is_constant(one) and bool(one.paired and one.paired.mean), stuck),
    Kind(lambda one, _: is_constant(one), same, several_same),
    Kind(is_within, within, several_within),
    Kind(is_wide, unknown, several_unknown),
    Kind(lambda one, _: one.interval is not None, alike, several_alike),
)
