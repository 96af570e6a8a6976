"""What a difference in loss is worth in compute, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from normbench.results.worth import Ratio, Worth
from normbench.wording import NONE, count, join_first, multiple

MOST = 6  # arms that a sentence names


def write_worth(worth: Worth) -> str:
    """Write what an arm takes to the same loss; a dash where there is nothing.

    Such as `0.97 × the time to the same loss (95 %: 0.92 to 1.02), 0.99 × the steps (0.97 to 1.01)`, or the steps alone
    where times are no basis.
    """
    if worth.of_steps is None:
        return NONE
    if worth.of_time is None:
        return write_ratio(worth.of_steps, " the steps to the same loss", "95 %: ")
    time = write_ratio(worth.of_time, " the time to the same loss", "95 %: ")
    return f"{time}, {write_ratio(worth.of_steps, ' the steps')}"


def write_ratio_to_loss(worth: Worth, in_time: bool) -> str:
    """Write the ratio of times to the same loss, or of steps, with its interval; a dash where there is none."""
    ratio = worth.of_time if in_time else worth.of_steps
    return NONE if ratio is None else write_ratio(ratio)


def write_ratio(ratio: Ratio, what: str = "", covers: str = "") -> str:
    """Write a ratio with its interval: `0.97 × the steps (0.93 to 1.02)`. covers: what the interval does."""
    mean, interval = multiple(ratio.mean, ratio.interval)
    return f"{mean} ×{what}" if interval == NONE else f"{mean} ×{what} ({covers}{interval})"


def say_unreached(worth: Worth) -> str:
    """Say at how many seeds an arm does not come down to its baseline's last loss; empty for none."""
    if not worth.unreached:
        return ""
    seeds = f"{len(worth.unreached)} of {count(worth.n, 'seed')}"
    ends = f"{worth.arm} does not come down to the last loss of {worth.baseline}"
    return f"At {seeds} {ends}; what both come down to there is the last loss of {worth.arm}."


def list_limits(found: Sequence[Worth]) -> list[str]:
    """Return what is not measured of arms, a sentence for all of which it is true."""
    arms_of = defaultdict[str, list[str]](list)
    for worth in found:
        if worth.reason:
            arms_of[f"nothing is said of steps and time, as {worth.reason}"].append(worth.arm)
        if worth.no_time:
            arms_of[f"times are no basis, as {worth.no_time}"].append(worth.arm)
        if worth.bounds:
            at_first = "at some seeds one of the two is there at its first evaluation"
            arms_of[f"{at_first}, so that the ratio may be farther from 1"].append(worth.arm)
        if worth.lost:
            arms_of["seeds at which one of the two did not finish are left out"].append(worth.arm)
    return [f"{join_first(arms, MOST)}: {what}." for what, arms in arms_of.items()]
