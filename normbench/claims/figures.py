"""The figures of claims: all effects in units of their margins, and the values of one claim by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.results.claimed import Entry
from normbench.results.rules import IN_FAVOUR, ClaimKind, Verdict
from normbench.results.statistics import Interval
from normbench.show.figures.figure import Drawing, Figure, make_figures
from normbench.show.figures.panes import blank, breadth, fit, wrap
from normbench.show.figures.style import INK, NORMS, split_evenly, use_our_style
from normbench.tell.claim_sentences import write_effect, write_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE = 0.15  # inches at the left and at the right of all
ROW = 0.44  # inches
MOST_ROWS = 14  # of a panel
FARTHEST = 5.0  # margins: what is farther is cut, with an arrow
BAND = "#c9ced4"  # of margins, which is the colour of the grid

COLORS = {
    Verdict.REPRODUCED: NORMS["dyt"],
    Verdict.PARITY: NORMS["dyt"],
    Verdict.NOT_REPRODUCED: NORMS["prmsnorm"],
    Verdict.CONTRADICTED: NORMS["rmsnorm"],
    Verdict.INCONCLUSIVE: NORMS["none"],
}
TITLES = {
    True: "Claims of a difference",
    False: "Claims of parity, of no harm, and of a slope",
}


# ---- all claims


def draw_forest(entries: Sequence[Entry], name: str = "claims") -> list[Figure]:
    """Draw the effect of each judged claim with its interval, in units of the margin; nothing where there are none.

    name: of the figures.
    """
    shown = [entry for entry in entries if entry.deciding is not None]
    drawings = []
    with use_our_style():
        for is_difference, title in TITLES.items():
            own = [entry for entry in shown if is_of_difference(entry) == is_difference]
            parts = split_evenly(own, MOST_ROWS)
            for number, part in enumerate(parts, 1):
                heading = f"{title}, {number} of {len(parts)}" if len(parts) > 1 else title
                drawings.append(Drawing(draw_rows(part), heading, explain_panel(part), data_of(part)))
        if not drawings:
            return []
        caption = (
            "Each effect is divided by the margin of its claim, the smallest that matters, and positive as published. "
            f"An arrow leads to what lies beyond {FARTHEST:g} margins. Filled dots: reproduced or parity; crosses: "
            "contradicted."
        )
        published = [published_effect(entry) for entry in shown]
        if any(value is not None for value in published):
            caption += " Diamonds: what was published, where the same was measured."
        if len(drawings) == 1:
            caption = f"{caption} {drawings[0].caption}"
        rows = [f"{entry.name} {entry.standing}" for entry in shown]
        alt = f"A row for each claim: its effect and interval in units of its margin. {'; '.join(rows)}."
        return make_figures(name, "Effects in units of their margins", caption, alt, drawings)


def is_of_difference(entry: Entry) -> bool:
    """Tell whether a claim says that one arm is larger than another."""
    return entry.kind is ClaimKind.LARGER


def explain_panel(entries: Sequence[Entry]) -> str:
    """Say what the lines and the band of a panel are."""
    levels = [entry.judgement.level for entry in entries if entry.judgement is not None]
    outer = tell_coverage(levels)
    if is_of_difference(entries[0]):
        return f"Reproduced: the interval is above 0 and reaches 1, the dashed line. Intervals are of {outer}."
    inner = tell_coverage([2 * level for level in levels])
    return (
        f"Reproduced, or parity: the thick interval of {inner} lies within the band, or of a claim of no harm to the "
        f"right of its left edge. Slopes are drawn as the distance from the value of theory. Thin: of {outer}."
    )


def tell_coverage(levels: Sequence[float]) -> str:
    """Write what intervals of 1 − level cover, such as `95 %`; claims with two looks have a smaller level."""
    least = write_coverage(max(levels))
    most = write_coverage(min(levels))
    return least if least == most else f"{least}, or {most} where two looks are planned"


def write_coverage(level: float) -> str:
    """Write what an interval of 1 − level covers."""
    return f"{100 * (1 - level):.4g} %"


def in_margins(entry: Entry, value: float) -> float:
    """Return a value of an effect in units of the margin, from the target on."""
    return (value - entry.target) / entry.margin


def scaled(entry: Entry, interval: Interval) -> Interval:
    """Return an interval in units of the margin."""
    return Interval(in_margins(entry, interval.lower), in_margins(entry, interval.upper))


def published_effect(entry: Entry) -> float | None:
    """Return the published effect where it is of the same measure."""
    value = entry.claim.get("published_effect")
    return None if value is None else float(value)


def data_of(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return exactly what a panel shows: a row for each claim, in units of its margin."""
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


def draw_rows(entries: Sequence[Entry]) -> Axes:
    """Draw one panel of the forest plot: a row for each claim, its name and verdict above its interval."""
    from matplotlib import rcParams

    width, _ = rcParams["figure.figsize"]
    below, above = 0.62, 0.06
    height = ROW * len(entries) + above + below
    canvas = blank(height)
    across = 1 - 2 * SIDE / width
    up = 1 - (above + below) / height
    pane = canvas.add_axes((SIDE / width, below / height, across, up))
    pane.spines["left"].set_visible(False)
    data = data_of(entries)
    ends = data[["effect", "low", "high", "outer_low", "outer_high", "published"]].to_numpy()
    least = max(min(-1.4, float(np.nanmin(ends))), -FARTHEST)
    most = min(max(1.4, float(np.nanmax(ends))), FARTHEST)
    pad = 0.05 * (most - least)
    pane.set_xlim(least - pad, most + pad)
    pane.set_ylim(len(entries) - 0.5, -0.55)
    pane.set_yticks([])
    if is_of_difference(entries[0]):
        pane.axvline(0, color=INK, linewidth=0.8)
        pane.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        words = "effect / margin; right of 0 is as published"
    else:
        pane.axvspan(-1, 1, color=BAND, alpha=0.45, linewidth=0)
        pane.axvline(0, color=INK, linewidth=0.8)
        words = "effect / margin; the band is −1 to 1"
    room = width - 2 * SIDE
    for place, entry in enumerate(entries):
        told = entry.standing
        label = fit(entry.name, room - breadth(told) - 0.15)
        text_at = place - 0.06
        pane.text(0, text_at, label, transform=pane.get_yaxis_transform(), va="bottom")
        pane.text(1, text_at, told, transform=pane.get_yaxis_transform(), va="bottom", ha="right")
        draw_effect(pane, place + 0.14, entry)
    canvas.supxlabel("\n".join(wrap(words, room)), y=0.02 / height)
    return pane


def color_of(entry: Entry) -> str:
    """Return the colour of a claim's verdict on a light page."""
    return COLORS[entry.judgement.verdict] if entry.judgement else INK


def draw_effect(pane: Axes, height: float, entry: Entry) -> None:
    """Draw the effect of a claim: its mean, a thick interval that decides, a thin one, and the published size."""
    judgement, deciding = entry.judgement, entry.deciding
    assert judgement is not None and judgement.interval is not None and deciding is not None
    color = color_of(entry)
    low, high = pane.get_xlim()
    for interval, thickness in ((judgement.interval, 0.9), (deciding, 2.2)):
        ends = np.clip(scaled(entry, interval), low, high)
        pane.plot(ends, [height, height], color=color, linewidth=thickness, solid_capstyle="butt")
    lower, upper = scaled(entry, judgement.interval)
    beyond: dict[str, Any] = {"color": color, "markersize": 5, "clip_on": False}
    beyond["transform"] = pane.get_yaxis_transform()
    if lower < low:
        pane.plot(0, height, "<", **beyond)
    if upper > high:
        pane.plot(1, height, ">", **beyond)
    mean = in_margins(entry, judgement.mean)
    filling = color if judgement.verdict in IN_FAVOUR else "none"
    marker = "X" if judgement.verdict is Verdict.CONTRADICTED else "o"
    if low <= mean <= high:
        pane.plot(mean, height, marker, color=color, markersize=5, mfc=filling)
    published = published_effect(entry)
    if published is not None and low <= in_margins(entry, published) <= high:
        pane.plot(in_margins(entry, published), height, "D", color=INK, markersize=4, mfc="none")


# ---- one claim


def draw_seeds(entry: Entry) -> Figure | None:
    """Draw what the seeds of a claim have shown: the arms' values, joined by seed, and the effects with their mean.

    None where there are no values.
    """
    result = entry.result
    if result is None or not result.values:
        return None
    with use_our_style():
        from matplotlib import rcParams

        arms = {arm: by_seed for arm, by_seed in result.arms.items() if by_seed}
        width, _ = rcParams["figure.figsize"]
        height, below, above, left = 1.75, 0.42, 0.26, 0.62
        canvas = blank(height)
        share = (width - left - 0.1) / width
        bottom, up = below / height, 1 - (below + above) / height
        effects_left = left / width
        if arms:
            part = 0.46 * share
            pane = canvas.add_axes((left / width, bottom, part, up))
            draw_arms(pane, arms, part * width)
            pane.set_title(fit(str(entry.claim["measure"]), part * width))
            effects_left = left / width + part + 0.62 / width
        effects = canvas.add_axes((effects_left, bottom, 1 - 0.1 / width - effects_left, up))
        draw_effects(effects, entry)
        effects.set_title(title_effects(entry, (1 - effects_left) * width))
        alt = f"{entry.name}: {tell_values(entry)}"
        data = pd.DataFrame({"seed": list(result.values), "effect": list(result.values.values())})
        figure = Figure(f"claim-{entry.name}", "By seed", tell_values(entry), alt, canvas, data)
        figure.svg  # noqa: B018  # drawn here, in our style
        return figure


def title_effects(entry: Entry, inches: float) -> str:
    """Return the title of the effects, no wider than that: what they are and their unit, or one of the two."""
    if entry.unit:
        for title in (f"effect, {entry.unit}", entry.unit):
            if breadth(title) <= inches:
                return title
    return "effect"


def tell_values(entry: Entry) -> str:
    """Write what the figure of one claim shows."""
    result, judgement = entry.result, entry.judgement
    assert result is not None
    told = f"Each dot is a seed, {len(result.values)} in all."
    if result.arms:
        told = f"Left: what was measured by arm, a line for each seed. Right: the effect of each seed. {told}"
    if judgement is None or judgement.interval is None:
        return told
    size = write_effect(judgement, entry.unit)
    return f"{told} The bar is their mean, {size}, with its interval ({write_interval(judgement)})."


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
    pane.locator_params(axis="y", nbins=4, min_n_ticks=3)
    pane.ticklabel_format(axis="y", useOffset=False)


def draw_effects(pane: Axes, entry: Entry) -> None:
    """Draw the effect of each seed, their mean with its interval, and the margin as a band or a dashed line."""
    result, judgement = entry.result, entry.judgement
    assert result is not None
    values = list(result.values.values())
    color = color_of(entry)
    spread = np.linspace(-0.3, 0.3, len(values)) if len(values) > 1 else np.zeros(1)
    pane.plot(spread, values, "o", color=NORMS["layernorm"], markersize=2.6, alpha=0.75)
    deciding = entry.deciding
    if judgement is not None and deciding is not None:
        pane.plot([0.6, 0.6], deciding, color=color, linewidth=2.2, solid_capstyle="butt")
        pane.plot(0.6, judgement.mean, "o", color=color, markersize=5)
    pane.axhline(entry.target, color=INK, linewidth=0.8)
    if entry.kind is ClaimKind.LARGER:
        pane.axhline(entry.margin, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    elif entry.margin:
        pane.axhspan(entry.target - entry.margin, entry.target + entry.margin, color=BAND, alpha=0.45, linewidth=0)
    pane.set_xlim(-0.5, 0.85)
    pane.set_xticks([0.05], ["seeds and mean" if deciding else "seeds"])
    pane.locator_params(axis="y", nbins=4, min_n_ticks=3)
    pane.ticklabel_format(axis="y", useOffset=False)
