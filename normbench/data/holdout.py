"""Which training data are held out: what chooses does not judge."""

from __future__ import annotations

import math

from normbench.errors import UsageError


def held_out(total: int, holdout: float, unit: str) -> int:
    """How many of `total` training examples are held out.

    Args:
        total: number of training examples.
        holdout: share (below 1) or number (from 1), 0 for none.
        unit: what is counted, for the error.

    Raises:
        UsageError: negative, not finite, not a whole number, or nothing left to train on.
    """
    share = 0 <= holdout < 1
    if not math.isfinite(holdout) or holdout < 0 or not (share or float(holdout).is_integer()):
        raise UsageError(
            f"data.holdout={holdout:g} is not allowed: use a share from 0 to below 1, or a whole number of {unit}"
        )
    count = round(total * holdout) if share else int(holdout)
    if count >= total:
        raise UsageError(f"data.holdout={holdout:g} leaves none of the {total:,} training {unit}: hold out fewer")
    if share and holdout and not count:
        raise UsageError(f"data.holdout={holdout:g} of {total:,} training {unit} is none: hold out more, or 0 for none")
    return count


def check_size(key: str, value: int) -> int:
    """A number of examples.

    Raises:
        UsageError: not a whole number from 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{key}={value} is not allowed: use a whole number from 1")
    return value
