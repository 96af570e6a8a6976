"""Studies in which nothing differs, and how many of them claim something: `python tests/null_studies.py 2000`.

The last design is beyond what a t test can do, which is why answers of few seeds say what they assume.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from normbench.evidence.arms import Arm
from normbench.evidence.baselines import usual_baseline
from normbench.evidence.run import Curve, RecordedRun
from normbench.evidence.study import RecordedStudy, choose_contenders
from normbench.evidence.yardstick import metrics_of
from normbench.results.family import Family, make_tests

Random = np.random.Generator
Ends = Callable[[Random, int], Sequence[float | None]]  # of an arm's seeds; None of a run that diverged

SEEDS = 5
LUCK, NOISE = 0.05, 0.02  # nats: what all arms of a seed share, and what is each run's own
CONSTANT = 2.3  # the loss of a constant guess
NORMS, PLACEMENTS = ("layernorm", "rmsnorm", "dyt"), ("pre", "post", "deep")
STEPS = 100


def run(seed: int, loss: float | None, on_way: Sequence[float] = ()) -> RecordedRun:
    """A run in memory, with evaluations of a few batches on the way to the one of all data."""
    metrics = {} if loss is None else {"loss/val": loss}
    steps = np.linspace(0, STEPS, len(on_way) + 2)[1:].round().astype(int)
    curve = Curve(steps, np.array([*on_way, np.nan if loss is None else loss]))
    session = {"task": {"kind": "language_model"}, "data": {"constant": {"loss/val": CONSTANT}}}
    config = {"trainer.eval_batches": 4}
    status = "diverged" if loss is None else "finished"
    about = (config, {"metrics": metrics}, (session,), {"loss/val": curve}, False)
    return RecordedRun(str(seed), Path(str(seed)), status, STEPS, STEPS, "", seed, *about)


def study(random: Random, cells: Sequence[Mapping[str, Any]], draw: Callable[[Random], float | None]) -> RecordedStudy:
    """Arms whose runs are all drawn alike, with the luck that their seeds share."""
    luck = random.normal(0, LUCK, SEEDS)
    arms = []
    for settings in cells:
        ends = [draw(random) for _ in range(SEEDS)]
        runs = [run(seed, None if end is None else end + luck[seed]) for seed, end in enumerate(ends)]
        arms.append(Arm(settings, tuple(runs)))
    return RecordedStudy((), tuple(arms), tuple(cells[0]))


def gaussian(random: Random) -> float:
    return 2.0 + NOISE * random.standard_normal()


def failing(random: Random) -> float | None:
    """Three in ten runs are lost: half of them diverge, the others end at a constant guess."""
    lot = random.random()
    return None if lot < 0.15 else CONSTANT + NOISE * random.standard_normal() if lot < 0.3 else gaussian(random)


def arms_of(*norms: str) -> list[dict[str, Any]]:
    return [{"norm": norm} for norm in norms]


def crossed(number: int) -> list[dict[str, Any]]:
    pairs = product(NORMS[:number], PLACEMENTS[:number])
    return [{"norm": norm, "placement": placement} for norm, placement in pairs]


def best_on_the_way(random: Random) -> RecordedStudy:
    """Two arms that are equally good at their best, and worse behind it; all data are easier than the few batches.

    All runs train, so that nothing differs in what is lost.
    """
    true = {"layernorm": [2.0, 1.6, 1.5, 1.6, 1.7, 1.8], "rmsnorm": [2.1, 1.9, 1.6, 1.5, 1.6, 1.6]}
    luck, arms = random.normal(0, LUCK, SEEDS), []
    for norm, losses in true.items():
        ends = np.array(losses) + NOISE * random.standard_normal((SEEDS, 6)) + luck[:, None]
        runs = [run(seed, own[-1] - 0.15, own[:-1]) for seed, own in enumerate(ends.tolist())]
        arms.append(Arm({"norm": norm}, tuple(runs)))
    return RecordedStudy((), tuple(arms), ("norm",))


def skewed(random: Random) -> RecordedStudy:
    """Two arms that are equally good on average, one of which has rare bad seeds, which a t test does not expect."""
    mean = np.exp(1.5**2 / 2)
    ends = {"layernorm": NOISE / 10 * random.standard_normal(SEEDS)}
    ends["dyt"] = NOISE * (random.lognormal(sigma=1.5, size=SEEDS) - mean)
    arms = [Arm({"norm": norm}, tuple(map(run, range(SEEDS), 2.0 + own))) for norm, own in ends.items()]
    return RecordedStudy((), tuple(arms), ("norm",))


DESIGNS: dict[str, Callable[[Random], RecordedStudy]] = {
    "3 arms": lambda random: study(random, arms_of(*NORMS), gaussian),
    "2 × 2": lambda random: study(random, crossed(2), gaussian),
    "3 × 3": lambda random: study(random, crossed(3), gaussian),
    "failures": lambda random: study(random, arms_of(*NORMS), failing),
    "--metric best": best_on_the_way,
    "skewed": skewed,
}


def finds_any(family: Family) -> bool:
    """Whether anything is called a difference."""
    results = (*family.differences, *family.effects, *family.losses, *family.scaling)
    return any(result.real for result in results)


def tests_of(made: RecordedStudy, metric: str | None = None) -> Family:
    """What a report states of a study."""
    baseline = usual_baseline(made)
    arms, _ = choose_contenders(made, baseline)
    return make_tests(made, arms, baseline, metrics_of(made, metric)[0])


def claims(name: str, number: int, seed: int = 0) -> float:
    """The share of so many null studies of a design that claims something."""
    random = np.random.default_rng(seed)
    metric = "best" if name == "--metric best" else None
    return float(np.mean([finds_any(tests_of(DESIGNS[name](random), metric)) for _ in range(number)]))


if __name__ == "__main__":
    for design in DESIGNS:
        print(f"{design:14} {claims(design, int(sys.argv[1])):.1%} of {int(sys.argv[1]):,}", flush=True)
