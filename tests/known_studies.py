"""Ten studies whose answer is known, from records that are made here: `python tests/known_studies.py FOLDER` makes all.

Each function makes one below a folder. A seed has a luck of its own that all arms share, and each run has some noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from made_runs import make_report, make_run, plan

from normbench.show.report import save

SEEDS = range(5)
LUCK, NOISE = 0.05, 0.01  # nats


def losses(seed: int = 0) -> Callable[[int], float]:
    """Return what draws a final loss around 2 nats for each seed."""
    random = np.random.default_rng(seed)
    luck = 2.0 + LUCK * random.standard_normal(1_000)
    return lambda seed: float(luck[seed] + NOISE * random.standard_normal())


def true_difference(folder: Path) -> None:
    """RMSNorm is 0.08 nats better."""
    draw = losses()
    for seed in SEEDS:
        make_run(folder, norm="layernorm", seed=seed, final=draw(seed))
        make_run(folder, norm="rmsnorm", seed=seed, final=draw(seed) - 0.08)


def no_difference(folder: Path) -> None:
    draw = losses(1)
    for seed in SEEDS:
        for norm in ("layernorm", "rmsnorm", "dyt"):
            make_run(folder, norm=norm, seed=seed, final=draw(seed))


def never_trains(folder: Path) -> None:
    """DyT stands at the entropy of character frequencies, as its stream is too small for it."""
    draw = losses(2)
    for seed in SEEDS:
        make_run(folder, norm="layernorm", seed=seed, final=draw(seed), probed=20, data=CONSTANT)
        final = CONSTANT["constant"]["loss/val"] - 0.001 * draw(seed)
        make_run(folder, norm="dyt", seed=seed, final=final, probed=20, data=CONSTANT, stream=0.03, gradient=1e-5)


def survivors(folder: Path) -> None:
    """RMSNorm loses the two seeds that would end worst; there is no difference otherwise."""
    draw = losses(3)
    finals = {seed: draw(seed) for seed in SEEDS}
    worst = sorted(finals, key=finals.__getitem__)[-2:]
    for seed in SEEDS:
        make_run(folder, norm="layernorm", seed=seed, final=draw(seed))
        make_run(
            folder,
            norm="rmsnorm",
            seed=seed,
            final=finals[seed] - 0.06,
            status="diverged" if seed in worst else "finished",
        )


def batch_sizes(folder: Path) -> None:
    """BatchNorm is 16.7 points worse at batch 2 and level at 32; the learning rate follows the batch size."""
    draw = losses(4)
    for seed in SEEDS:
        for batch, lr in ((2, 6.25e-5), (32, 1e-3)):
            for norm in ("batchnorm", "groupnorm"):
                worse = 0.5 * (norm == "batchnorm" and batch == 2)
                settings = {"data.batch_size": batch}
                loss = draw(seed) + worse
                accuracy = 1 - (loss - 1.9) / 3
                make_run(folder, norm=norm, seed=seed, final=loss, lr=lr, settings=settings, accuracy=accuracy)


def crossed(interaction: float) -> Callable[[Path], None]:
    """Warm-up helps both placements by 0.1 nats, and post by so much more."""

    def make(folder: Path) -> None:
        draw = losses(5)
        for seed in SEEDS:
            for placement in ("pre", "post"):
                for warmup in (0, 50):
                    worse = (0.1 + interaction * (placement == "post")) * (not warmup)
                    settings = {"schedule.warmup": warmup}
                    make_run(folder, placement=placement, seed=seed, final=draw(seed) + worse, settings=settings)

    return make


def skewed(folder: Path) -> None:
    """RMSNorm is level in all seeds but one, in which it is much worse."""
    draw = losses(6)
    for seed in range(8):
        make_run(folder, norm="layernorm", seed=seed, final=draw(seed))
        make_run(folder, norm="rmsnorm", seed=seed, final=draw(seed) + 0.02 + 0.6 * (seed == 3))


def unequal_rates(folder: Path) -> None:
    """RMSNorm has seven rates to choose from, LayerNorm two; all do equally well."""
    draw = losses(7)
    for seed in SEEDS:
        for norm, rates in (("layernorm", (1e-3, 3e-3)), ("rmsnorm", np.geomspace(1e-3, 3e-3, 7).round(6).tolist())):
            for lr in rates:
                make_run(folder, norm=norm, seed=seed, final=draw(seed), lr=lr)


def identical_step_times(folder: Path) -> None:
    """The machine slows down by a fifth while all runs do the same work, seed by seed."""
    draw, random = losses(8), np.random.default_rng(8)
    pace = iter(np.linspace(10, 12, 2 * len(SEEDS)))
    for seed in SEEDS:
        for norm in random.permutation(["layernorm", "rmsnorm"]):
            make_run(folder, norm=str(norm), seed=seed, final=draw(seed), step_ms=float(next(pace)))


def cut_short(folder: Path) -> None:
    """RMSNorm is 0.08 nats better, and has run with three of five seeds yet."""
    draw = losses(9)
    plan(folder, "norm=layernorm,rmsnorm", "seed=range(0,5)")
    for seed in SEEDS:
        make_run(folder, norm="layernorm", seed=seed, final=draw(seed))
        state = "finished" if seed < 3 else "interrupted"
        make_run(folder, norm="rmsnorm", seed=seed, final=draw(seed) - 0.08, status=state)


CONSTANT = {"constant": {"loss/val": 3.309}}

STUDIES: dict[str, Callable[[Path], None]] = {
    "true_difference": true_difference,
    "no_difference": no_difference,
    "never_trains": never_trains,
    "survivors": survivors,
    "batch_sizes": batch_sizes,
    "interaction": crossed(0.9),
    "no_interaction": crossed(0.0),
    "skewed": skewed,
    "unequal_rates": unequal_rates,
    "identical_step_times": identical_step_times,
    "cut_short": cut_short,
}


def made(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, make in STUDIES.items():
        make(folder / name)
        yield name, folder / name


if __name__ == "__main__":
    for name, study in made(Path(sys.argv[1])):
        report = make_report([study])
        save(report, study / "report")
        print(
            f"# {name}",
            *(one.text for one in report.verdict),
            *report.details,
            "why:",
            *report.why,
            "caveats:",
            *(caveat.text for caveat in report.answer.caveats),
            "next:",
            *report.next,
            "",
            sep="\n",
        )
