"""Why arms differ or did not train, as far as probes tell, and what to do next; the words are in causes.jinja."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from normbench.analysis.comparisons import Comparison
from normbench.analysis.fairness import own_rates
from normbench.analysis.measures import NAN, TRAINING_LOSS, finite, known
from normbench.analysis.records import LEARNING_RATE, Arm, Run, Study
from normbench.analysis.statistics import seeds_needed
from normbench.analysis.wording import paragraphs

# What is read of a run: a form of tags, of which the first one counts, and the place in its curve.
READ = {
    "entering": (re.compile(r"act/block0+(\.[^/]*)?/rms_in"), 0),
    "passed": (re.compile(r"act/block0+(\.[^/]*)?/rms_out"), 0),
    "gradient": (re.compile("grad/norm"), -1),
}
MOST = 3  # sentences of a kind
OPEN = ("possible", "constant", "unknown", "alike", "one_seed")  # verdicts that more seeds may change


def why(arms: Sequence[Arm], blocks: pd.DataFrame, comparisons: Sequence[Comparison]) -> list[str]:
    """Return what probes show of arms that did not train, and what goes along with differences that are real.

    blocks: of `activations_frame`, over these arms.
    """
    seen = {arm.name: readings(arm, blocks) for arm in arms}
    real = [one for one in comparisons if one.real]
    stuck = {arm.name: seen[arm.name] for arm in arms if not arm.trained}
    return [*alike_in("reasons", "untrained", stuck), *paragraphs("causes.jinja", "along", real, seen)[:MOST]]


def next_steps(
    study: Study, arms: Sequence[Arm], blocks: pd.DataFrame, comparisons: Sequence[Comparison], margin: float | None
) -> list[str]:
    """Return what to do now, with the commands for it. margin: the smallest difference that matters, where it is known.

    Without one, it is half of what so many seeds can show.
    """
    stuck = {arm.name: readings(arm, blocks) for arm in arms if not arm.trained}
    found = [*paragraphs("causes.jinja", "unfinished", study), *alike_in("remedies", "to_train", stuck)]
    ones = [one for one in comparisons if one.verdict(margin) in OPEN]
    if sizes := known(one.detectable for one in ones):
        n, size = min(one.n for one in ones), margin or float(f"{max(sizes) / 2:.1g}")
        more = seeds_needed(size, max(one.sd for one in ones), family=ones[0].family) - n
        if more > 0:
            found += paragraphs("causes.jinja", "seeds", more, size, ones[0].metric, study.more_seeds(more))
    elif ones:
        found += paragraphs("causes.jinja", "pilot", study.more_seeds(4))
    if comparisons and not found:
        chosen = LEARNING_RATE in study.varied or study.fairly_chosen
        name, steps = f"{study.runs[0].config.get('name')}-longer", str(2 * study.runs[0].steps)
        longer = study.command(**{"name": name, "trainer.steps": steps})
        found += paragraphs("causes.jinja", "decided", "" if chosen else own_rates(study), longer)
    return found


def alike_in(words: str, sentence: str, stuck: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a sentence for all arms that did not train of which the same is to be said, whatever their number.

    words, sentence: macros, of what is said of one arm's readings, and of the arms together with it.
    """
    names = defaultdict[str, list[str]](list)
    for name, of in stuck.items():
        names[" ".join(paragraphs("causes.jinja", words, of))].append(name)
    return [text for said, own in names.items() for text in paragraphs("causes.jinja", sentence, own, said)]


# ---- what the probes of an arm say


def readings(arm: Arm, blocks: pd.DataFrame) -> dict[str, float]:
    """Return means over an arm's finished runs; NaN for what was not probed.

    entering, passed: root mean square of what enters and what leaves the first norm at the first probed step. gradient,
    in_blocks: norm of all gradients and of those of the blocks, at the end. stream, first_gradient, last_gradient:
    behind the last block, and of the first and the last one, at the end. saturated: share at the bound, of the block
    with the most. fall: share of the training loss that was lost between the third and the last quarter of the run.
    """
    runs, own = [run for run in arm.runs if run.status == "finished"], blocks[blocks["arm"] == arm.name]
    stream, gradients = ([*own[name]] or [NAN] for name in ("stream RMS", "gradient norm"))
    return {
        **{name: mean(probed(run, *how) for run in runs) for name, how in READ.items()},
        "in_blocks": math.hypot(*gradients),
        "first_gradient": gradients[0],
        "last_gradient": gradients[-1],
        "stream": stream[-1],
        "saturated": float(own["saturated"].max()) if len(own) else NAN,
        "fall": mean(late_fall(run) for run in runs),
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean of those that are finite; NaN of none."""
    return float(np.mean(found)) if (found := known(values)) else NAN


def probed(run: Run, tag: re.Pattern[str], place: int) -> float:
    """Return what a run's first tag of a form has at a place of its curve."""
    curves = (finite(curve).values for name, curve in run.curves.items() if tag.fullmatch(name))
    return next((float(values[place]) for values in curves if len(values)), NAN)


def late_fall(run: Run) -> float:
    """Return the share of a run's training loss that was lost between the third and the last quarter of its record."""
    *_, third, last = np.array_split(finite(run.curves.get(TRAINING_LOSS)).values, 4)
    return float(1 - last.mean() / third.mean()) if len(last) else NAN
