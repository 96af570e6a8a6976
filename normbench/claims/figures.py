"""The figures of claims: all effects in units of their margins, and the values of one claim by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normbench.results.claimed import RegisteredClaim
from normbench.results.rules import OF_A_DIFFERENCE, ClaimKind, Verdict
from normbench.results.statistics import Interval
from normbench.show.figures.figure import Figure
from normbench.show.figures.finals import draw_searches
from normbench.show.figures.fitting import breadth, fit
from normbench.show.figures.plots import ForestRow, Mark, blank, forest, lay_out
from normbench.show.figures.style import FAINT, INK, NORMS, use_our_style
from normbench.tell.claim_sentences import write_effect, write_interval
from normbench.wording import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FARTHEST = 5.0  # margins: what is farther is cut, with an arrow
NEAR = (-1.4, 1.4)  # margins that are shown at least

# How an effect is drawn, by its verdict.
MARKS = {
    Verdict.REPRODUCED: Mark(NORMS["dyt"], "o", filled=True),
    Verdict.PARITY: Mark(NORMS["dyt"], "s", filled=True),
    Verdict.NOT_REPRODUCED: Mark(NORMS["prmsnorm"], "v", filled=False),
    Verdict.SIZE_UNSETTLED: Mark(NORMS["dyt"], "D", filled=False),
    Verdict.TOO_SMALL: Mark(NORMS["prmsnorm"], "^", filled=False),
    Verdict.OPPOSITE_UNSETTLED: Mark(NORMS["rmsnorm"], "D", filled=False),
    Verdict.OPPOSITE_TOO_SMALL: Mark(NORMS["rmsnorm"], "v", filled=False),
    Verdict.CONTRADICTED: Mark(NORMS["rmsnorm"], "X", filled=True),
    Verdict.INCONCLUSIVE: Mark(NORMS["none"], "o", filled=False),
}


def mark_of(verdict: Verdict) -> Mark:
    """Return how an effect is drawn; a verdict without a mark of its own is drawn as an open one."""
    return MARKS.get(verdict, MARKS[Verdict.INCONCLUSIVE])


# Where the interval of a claim of a difference lies that is reproduced, by its kind.
REPRODUCED = {
    ClaimKind.LARGER: "the interval is above 0 and reaches 1",
    ClaimKind.SIZED: "all of the interval of a claim on size is at 1 or beyond",
    ClaimKind.ANY: "the interval of a claim of any effect is above 0",
}


# ---- all claims


def draw_forest(entries: Sequence[RegisteredClaim], name: str = "claims") -> list[Figure]:
    """Draw the effect of each judged claim with its interval, in units of the margin; nothing where there are none.

    Claims of a difference have a figure, and all others another, as what their intervals have to reach differs.

    name: of the figures.
    """
    shown = [entry for entry in entries if entry.deciding is not None]
    differences = [entry for entry in shown if is_of_difference(entry)]
    others = [entry for entry in shown if not is_of_difference(entry)]
    figures = []
    if differences:
        figures.append(draw_effects(differences, f"{name}-differences", "Claims of a difference"))
    if others:
        figures.append(draw_effects(others, f"{name}-others", "Claims of parity, of no harm, and of a slope"))
    return figures


def draw_effects(entries: Sequence[RegisteredClaim], name: str, title: str) -> Figure:
    """Draw the effects of claims, all of a difference or none."""
    data = data_of(entries)
    ends = data[["effect", "low", "high", "outer_low", "outer_high", "published"]].to_numpy(dtype=float)
    low, high = NEAR
    reach = (max(min(low, float(np.nanmin(ends))), -FARTHEST), min(max(high, float(np.nanmax(ends))), FARTHEST))
    sentences = [
        "Each effect is divided by the margin of its claim, the smallest that matters, and positive as published.",
        f"An arrow leads to what lies beyond {FARTHEST:g} margins.",
    ]
    if data["published"].notna().any():
        sentences.append("Diamonds: what was published, where the same was measured.")
    sentences.append(explain(entries))
    rows = [row_of(entry) for entry in entries]
    with use_our_style():
        if is_of_difference(entries[0]):
            canvas = forest(rows, "effect / margin; right of 0 is as published", {"": reach}, lines_at=(0.0, 1.0))
        else:
            canvas = forest(rows, "effect / margin; the band is ±1", {"": reach}, band=(-1.0, 1.0))
    standings = [f"{entry.name} {entry.standing}" for entry in entries]
    alt = f"A row for each claim: its effect and interval in units of its margin. {'; '.join(standings)}."
    return Figure(name, title, sentences, alt, canvas, data)


def row_of(entry: RegisteredClaim) -> ForestRow:
    """Return the row of a claim: its mean, the interval that decides, thick, and the published size."""
    judgement, deciding = entry.judgement, entry.deciding
    assert judgement is not None and judgement.interval is not None and deciding is not None
    published = published_effect(entry)
    return ForestRow(
        name=entry.name,
        mark=replace(mark_of(judgement.verdict), kind=str(judgement.verdict)),
        mean=in_margins(entry, judgement.mean),
        intervals=[scaled(entry, judgement.interval), scaled(entry, deciding)],
        other=np.nan if published is None else in_margins(entry, published),
    )


def is_of_difference(entry: RegisteredClaim) -> bool:
    """Tell whether a claim says that one arm is larger than another."""
    return entry.kind in OF_A_DIFFERENCE


def explain(entries: Sequence[RegisteredClaim]) -> str:
    """Say what the lines and the band of a figure are."""
    levels = [entry.judgement.level for entry in entries if entry.judgement is not None]
    outer = tell_coverage(levels)
    if is_of_difference(entries[0]):
        kinds = dict.fromkeys(entry.kind for entry in entries)
        reproduced = "; ".join(REPRODUCED[kind] for kind in kinds)
        return f"Reproduced: {reproduced}; 1, the dashed line, is the margin. Intervals are of {outer}."
    inner = tell_coverage([2 * level for level in levels])
    return (
        f"Reproduced, or parity: the thick interval of {inner} lies within the band, or of a claim of no harm to the "
        f"right of its left edge. Slopes are drawn as the distance from the value of theory. Thin: of {outer}."
    )


def tell_coverage(levels: Sequence[float]) -> str:
    """Write what intervals of 1 − level cover, such as `95 %`; claims with two looks have a smaller level."""
    least = percent(1 - max(levels), 4)
    most = percent(1 - min(levels), 4)
    return least if least == most else f"{least}, or {most} where two looks are planned"


def in_margins(entry: RegisteredClaim, value: float) -> float:
    """Return a value of an effect in units of the margin, from the target on."""
    return (value - entry.target) / entry.margin


def scaled(entry: RegisteredClaim, interval: Interval) -> Interval:
    """Return an interval in units of the margin."""
    return Interval(in_margins(entry, interval.lower), in_margins(entry, interval.upper))


def published_effect(entry: RegisteredClaim) -> float | None:
    """Return the published effect where it is of the same measure."""
    value = entry.claim.get("published_effect")
    return None if value is None else float(value)


def data_of(entries: Sequence[RegisteredClaim]) -> pd.DataFrame:
    """Return exactly what a figure shows: a row for each claim, in units of its margin."""
    rows = []
    for entry in entries:
        judgement, deciding = entry.judgement, entry.deciding
        assert judgement is not None and judgement.interval is not None and deciding is not None
        low, high = scaled(entry, deciding)
        outer_low, outer_high = scaled(entry, judgement.interval)
        published = published_effect(entry)
        row = {
            "claim": entry.name,
            "verdict": str(judgement.verdict),
            "effect": in_margins(entry, judgement.mean),
            "low": low,
            "high": high,
            "outer_low": outer_low,
            "outer_high": outer_high,
            "published": np.nan if published is None else in_margins(entry, published),
            "margin": entry.margin,
            "unit": entry.unit,
        }
        rows.append(row)
    return pd.DataFrame(rows)


# ---- one claim


def draw_rates(entry: RegisteredClaim) -> list[Figure]:
    """Draw the losses by which the learning rates of a claim's arms were chosen; nothing where none were kept."""
    tunings = entry.result.tuning if entry.result else None
    if not tunings:
        return []
    with use_our_style():
        return draw_searches([tuning.search for tuning in tunings], f"rates-{entry.name}")


def draw_seeds(entry: RegisteredClaim) -> Figure | None:
    """Draw what the seeds of a claim have shown: the arms' values, joined by seed, and the effects with their mean.

    None where there are no values.
    """
    result = entry.result
    if result is None or not result.values:
        return None
    arms = {arm: by_seed for arm, by_seed in result.arms.items() if by_seed}
    text = tell_values(entry)
    with use_our_style():
        canvas = blank(1.9)
        *before, effects = canvas.subplots(1, 2 if arms else 1, squeeze=False)[0]
        room = canvas.get_figwidth() / (2 if arms else 1) - 0.7  # inches of words above
        for pane in before:
            draw_arms(pane, arms, room)
            pane.set_title(fit(str(entry.claim["measure"]), room))
        draw_seeds_and_mean(effects, entry)
        effects.set_title(title_effects(entry, room))
        for pane in canvas.axes:
            pane.locator_params(axis="y", nbins=4, min_n_ticks=3)
            pane.ticklabel_format(axis="y", useOffset=False)
        lay_out(canvas)
    data = pd.DataFrame({"seed": list(result.values), "effect": list(result.values.values())})
    return Figure(f"claim-{entry.name}", "By seed", [text], f"{entry.name}: {text}", canvas, data)


def title_effects(entry: RegisteredClaim, inches: float) -> str:
    """Return the title of the effects, no wider than that: what they are and their unit, or one of the two."""
    if entry.unit:
        for title in (f"effect, {entry.unit}", entry.unit):
            if breadth(title) <= inches:
                return title
    return "effect"


def tell_values(entry: RegisteredClaim) -> str:
    """Write what the figure of one claim shows."""
    result, judgement = entry.result, entry.judgement
    assert result is not None
    text = f"Each dot is a seed, {len(result.values)} in all."
    if result.arms:
        text = f"Left: what was measured by arm, a line for each seed. Right: the effect of each seed. {text}"
    if judgement is None or judgement.interval is None:
        return text
    size = write_effect(judgement, entry.unit)
    return f"{text} The bar is their mean, {size}, with its interval ({write_interval(judgement)})."


def draw_arms(pane: Axes, arms: Mapping[str, Mapping[int, float]], inches: float) -> None:
    """Draw the values of arms side by side, those of one seed joined."""
    places = range(len(arms))
    seeds = set[int]()
    for by_seed in arms.values():
        seeds.update(by_seed)
    for seed in sorted(seeds):
        values = [by_seed.get(seed, np.nan) for by_seed in arms.values()]
        pane.plot(places, values, "-o", color=NORMS["layernorm"], linewidth=0.6, markersize=2.6, alpha=0.75)
    pane.set_xlim(-0.35, len(arms) - 0.65)
    room = inches / len(arms) - 0.04
    names = [fit(arm, room) for arm in arms]
    pane.set_xticks(list(places), names)


def draw_seeds_and_mean(pane: Axes, entry: RegisteredClaim) -> None:
    """Draw the effect of each seed, their mean with its interval, and the margin as a band or a dashed line."""
    result, judgement = entry.result, entry.judgement
    assert result is not None
    values = list(result.values.values())
    color = mark_of(judgement.verdict).color if judgement else INK
    spread = np.linspace(-0.3, 0.3, len(values)) if len(values) > 1 else np.zeros(1)
    pane.plot(spread, values, "o", color=NORMS["layernorm"], markersize=2.6, alpha=0.75)
    deciding = entry.deciding
    if judgement is not None and deciding is not None:
        pane.plot([0.6, 0.6], deciding, color=color, linewidth=2.2, solid_capstyle="butt")
        pane.plot(0.6, judgement.mean, "o", color=color, markersize=5)
    pane.axhline(entry.target, color=INK, linewidth=0.8)
    if is_of_difference(entry):
        pane.axhline(entry.margin, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    elif entry.margin:
        pane.axhspan(entry.target - entry.margin, entry.target + entry.margin, color=FAINT, alpha=0.45, linewidth=0)
    pane.set_xlim(-0.5, 0.85)
    pane.set_xticks([0.05], ["seeds and mean" if deciding else "seeds"])
