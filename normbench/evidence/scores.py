"""Two scores of a run: how sensitive it is to the learning rate, and how many spikes its curve has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

SPIKE = 7.0  # standard deviations


def learning_rate_sensitivity(losses: Mapping[float, float], loss_at_init: float) -> float | None:
    """Return the mean over rates of min(loss, loss at initialisation) − the best rate's loss (Wortsman et al. 2023).

    losses: final loss by learning rate, in nats; one that is not finite, of a run that diverged, counts as the loss at
    initialisation. Several seeds: one call a seed, then `mean_interval`. None where no rate ends below the start, so
    that there is no best one to measure from.
    """
    capped = []
    for loss in losses.values():
        capped.append(min(loss, loss_at_init) if math.isfinite(loss) else loss_at_init)
    best = min(capped)
    if best >= loss_at_init:
        return None
    return math.fsum(loss - best for loss in capped) / len(capped)


def count_spikes(values: Sequence[float] | np.ndarray, *, history: int = 1_000, fewest: int = 50) -> tuple[int, int]:
    """Count points at least 7 standard deviations from the mean of the last 1,000 before them (OLMo 2, 2025).

    values: losses or gradient norms in the order of steps; what is not finite is left out. Returns the spikes and how
    many points were judged: those with `fewest` points before them, as with few, noise alone reaches 7 deviations.
    """
    points = np.asarray(values, dtype=float)
    points = points[np.isfinite(points)]
    series = pd.Series(points)
    before = series.shift().rolling(history, min_periods=fewest)
    distance = np.abs(points - before.mean().to_numpy())
    spikes = (distance >= SPIKE * before.std().to_numpy()) & (distance > 0)
    return int(spikes.sum()), max(len(points) - fewest, 0)
