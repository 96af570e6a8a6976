"""What the runs that chose learning rates say of a claim where all of its arms have the same rate.

Where each arm has a rate of its own, an effect is of the norms and of the rates together. The runs that chose have
each arm at several rates, so that they tell how the arms compare at one rate for all, too: by losses on a tenth held
out of the training data, of seeds that are not reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from normbench.results.claimed import ClaimResult, Tuning, sample_of
from normbench.results.effects import FUNCTIONS, ArmValue, Effect, EffectError, Operation, functions_in, parse_effect
from normbench.results.search import RateChoice
from normbench.results.statistics import Sample

LossesByRate = Mapping[float, Mapping[int, float]]  # (nats) of one arm, by rate and reported seed


@dataclass(frozen=True)
class AtOneRate:
    """The effect of a claim with one learning rate for all of its arms, in the runs that chose.

    Attributes:
        rate: the learning rate.
        effect: by reported seed, positive as published.
        unit: of the effect.
        is_chosen: whether an arm has this rate at one of its reported seeds.
    """

    rate: float
    effect: Sample
    unit: str
    is_chosen: bool


def effects_at_one_rate(result: ClaimResult) -> list[AtOneRate]:
    """Return the effect of a claim at each learning rate at which all of its arms have a loss for all of its seeds.

    Of a claim on a loss it is the claim's effect, of the losses that chose in place of those that are judged. Of one
    on the difference of two accuracies it is the difference of these losses, the other way round, as a lower loss is
    the better. There is none of other measures, of arms that have several kinds of runs, and where no rate was chosen
    for each seed by itself.
    """
    tunings = result.tuning or ()
    losses = {tuning.arm: losses_by_rate(tuning.choices) for tuning in tunings}
    effect = pointwise_effect(result.claim)
    has_one_kind_each = len(losses) == len(tunings)
    if effect is None or effect.arms != losses.keys() or not has_one_kind_each:
        return []
    measured, _, _ = str(result.claim.get("measure", "")).partition("/")
    match measured, effect.expression:
        case "loss", _:
            sign, unit = 1.0, str(result.claim.get("unit") or "")
        case "accuracy", Operation("-", (str(), str())):
            sign, unit = -1.0, "nats"
        case _:
            return []
    chosen = chosen_rates(tunings)
    found = []
    for rate in sorted({rate for by_rate in losses.values() for rate in by_rate}):
        by_seed = {arm: by_rate.get(rate, {}) for arm, by_rate in losses.items()}
        if all(result.values.keys() <= of_arm.keys() for of_arm in by_seed.values()):
            values = effect_of(effect, by_seed, result.values)
            sample = sample_of({seed: sign * value for seed, value in values.items()})
            found.append(AtOneRate(rate, sample, unit, rate in chosen))
    return found


def chosen_rates(tunings: Iterable[Tuning]) -> set[float]:
    """Return the rates that arms have at one of their reported seeds."""
    return {rate for tuning in tunings for rate in tuning.search.chosen}


def has_one_rate(tunings: Iterable[Tuning]) -> bool:
    """Tell whether all arms have the same rate at each seed, so that the reported runs are at one rate themselves."""
    by_arm = [{choice.seed: choice.lr for choice in tuning.choices} for tuning in tunings]
    return all(by_seed == by_arm[0] for by_seed in by_arm)


def pointwise_effect(claim: Mapping[str, Any]) -> Effect | None:
    """Return the effect of a claim that needs one value of each arm at a seed; None for another one."""
    try:
        effect = parse_effect(" ".join(str(claim["effect"]).split()), list(claim["arms"]))
    except (EffectError, LookupError):  # of a claim.json that another version has written
        return None
    return effect if functions_in(effect.expression) <= FUNCTIONS.keys() else None


def losses_by_rate(choices: Iterable[RateChoice]) -> dict[float, dict[int, float]]:
    """Return the loss by which a rate was chosen for each seed (nats), by rate; without runs that were lost."""
    losses = dict[float, dict[int, float]]()
    for choice in choices:
        if choice.seed is None:
            continue
        for point in choice.curve:
            mean = choice.means[point["lr"]]
            if math.isfinite(mean):  # NaN is that of a lost run
                losses.setdefault(point["lr"], {})[choice.seed] = mean
    return losses


def effect_of(effect: Effect, by_seed: Mapping[str, Mapping[int, float]], seeds: Iterable[int]) -> Mapping[int, float]:
    """Return an effect of losses at some seeds. by_seed: the losses of each arm (nats)."""
    points = {arm: [ArmValue(seed, {}, of_arm[seed]) for seed in seeds] for arm, of_arm in by_seed.items()}
    return effect.of(points).values
