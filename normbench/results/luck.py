"""How often chance gives a wrong verdict on a claim, by its rule and by how learning rates were chosen.

Where all arms have one rate, or a rate was chosen for each seed by itself, it is at most 5 %. Where an arm has one rate
for all of its seeds, how lucky that choice was is in each of them alike, and no interval has it: how often a verdict is
wrong then depends on how much worse the rates beside the best one are. Where they are as good as it, or so much worse
that nobody chooses them, it is 5 % as well; in between it is up to what stands here, the more the more seeds there are.

tests/test_tuning_luck.py simulates all of this, with two arms that do not differ, or differ by the margin.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from normbench.results.rules import OF_A_DIFFERENCE, ClaimKind
from normbench.results.statistics import ALPHA

ONE_FOR_ALL = "auto"  # of `sweep.lr`: an arm has one rate for all of its seeds
CHOOSES_RATES = ("smoothness",)  # studies that choose a rate for each arm in the same way by themselves


class FalseShares(NamedTuple):
    """How often verdicts are wrong at most, on claims of a difference and on those that have bounds."""

    of_differences: float
    of_bounds: float


# By the most seeds for which it holds.
AT_MOST = {
    5: FalseShares(0.21, 0.15),
    10: FalseShares(0.34, 0.21),
    20: FalseShares(0.44, 0.25),
    math.inf: FalseShares(0.5, 0.5),
}


def false_share(kind: ClaimKind, way_of_rates: str, seeds: int) -> float:
    """Return how often a verdict on a claim is wrong at most.

    Args:
        kind: of the claim.
        way_of_rates: how learning rates were chosen, as `sweep.lr` has it; empty where they were not.
        seeds: how many there are.
    """
    if kind is ClaimKind.EXACT:
        return 0.0
    if way_of_rates != ONE_FOR_ALL:
        return ALPHA
    shares = next(shares for most, shares in AT_MOST.items() if seeds <= most)
    return shares.of_differences if kind in OF_A_DIFFERENCE else shares.of_bounds
