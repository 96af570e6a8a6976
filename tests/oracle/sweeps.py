"""Thirty sweeps of every design that a report knows, from records that are made here: those of known_studies, and more.

Each function makes one below a folder. What they say is not judged here: it is kept, and compared with what a later
version says of the same records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from known_studies import CONSTANT, SEEDS, STUDIES, losses
from made_runs import make_run, plan

TRANSFORMER = {"model._target_": "normbench.models.Transformer"}
PARAMETERS = {2: 50_000, 3: 160_000, 4: 420_000, 6: 1_300_000}  # by depth
RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def arms_of(folder: Path, gaps: Mapping[str, float], seeds: Sequence[int] = SEEDS, **how: Any) -> None:
    """Make a run of each norm and seed, which ends so many nats above the others."""
    draw = losses(11)
    for seed in seeds:
        for norm, gap in gaps.items():
            make_run(folder, norm=norm, seed=seed, final=draw(seed) + gap, **how)


def one_seed(folder: Path) -> None:
    arms_of(folder, {"layernorm": 0.0, "rmsnorm": 0.1}, [0])


def two_seeds(folder: Path) -> None:
    arms_of(folder, {"layernorm": 0.0, "rmsnorm": 0.1}, [0, 1])


def ten_seeds(folder: Path) -> None:
    """Three arms, with what probes saw of four blocks."""
    arms_of(folder, {"layernorm": 0.0, "rmsnorm": 0.004, "dyt": 0.2}, range(10), probed=20)


def one_arm(folder: Path) -> None:
    arms_of(folder, {"rmsnorm": 0.0})


def other_seeds(folder: Path) -> None:
    """The arms share two seeds of five each."""
    arms_of(folder, {"layernorm": 0.0}, range(5))
    arms_of(folder, {"rmsnorm": -0.05}, range(3, 8))


def same_values(folder: Path) -> None:
    """All differences are the same."""
    for seed in SEEDS:
        make_run(folder, norm="layernorm", seed=seed, final=2.0 + seed)
        make_run(folder, norm="rmsnorm", seed=seed, final=2.5 + seed)


def lost_runs(folder: Path) -> None:
    """Half of DyT's runs diverge, one fails, and one runs out of memory."""
    arms_of(folder, {"layernorm": 0.0}, range(8))
    ends = ["finished"] * 3 + ["diverged"] * 3 + ["failed", "out_of_memory"]
    draw = losses(12)
    for seed, status in enumerate(ends):
        make_run(folder, norm="dyt", seed=seed, final=draw(seed), status=status)


def torn_arms(folder: Path) -> None:
    """Two of DyT's five runs stay at the entropy of the characters' frequencies."""
    draw = losses(13)
    for seed in SEEDS:
        make_run(folder, norm="layernorm", seed=seed, final=draw(seed), data=CONSTANT)
        final = 3.309 if seed in (1, 4) else draw(seed) + 0.05
        make_run(folder, norm="dyt", seed=seed, final=final, data=CONSTANT)


def three_factors(folder: Path) -> None:
    """Norms, placements and widths, crossed."""
    draw = losses(14)
    for seed in range(4):
        for norm in ("layernorm", "rmsnorm", "dyt"):
            for placement in ("pre", "post"):
                for width in (64, 128):
                    worse = 0.1 * (placement == "post") + 0.05 * (norm == "dyt") + 0.2 * (norm == "dyt" and width == 64)
                    settings = {"model.width": width}
                    final = draw(seed) + worse
                    make_run(folder, norm=norm, placement=placement, seed=seed, final=final, settings=settings)


def slope_of_batches(folder: Path) -> None:
    """The difference grows with each halving of the batch."""
    draw = losses(15)
    for seed in SEEDS:
        for batch in (4, 8, 16, 32):
            for norm in ("batchnorm", "groupnorm"):
                worse = 0.05 * (5 - math.log2(batch)) * (norm == "batchnorm")
                settings = {"data.batch_size": batch}
                make_run(folder, norm=norm, seed=seed, final=draw(seed) + worse, settings=settings)


def ladder_of_sizes(folder: Path) -> None:
    """DyT falls behind by 0.02 nats with each tenfold of parameters."""
    draw = losses(16)
    for seed in range(4):
        for depth, total in PARAMETERS.items():
            for norm in ("layernorm", "dyt"):
                gap = 0.02 * math.log10(total / 50_000) * (norm == "dyt")
                settings = {**TRANSFORMER, "model.depth": depth}
                ledger = {"parameters": {"total": total + 100 * (norm == "dyt")}}
                make_run(folder, norm=norm, seed=seed, final=draw(seed) + gap, settings=settings, ledger=ledger)


def area_of_rates(folder: Path) -> None:
    """Rates and warm-ups at which each of two placements trains."""
    draw = losses(17)
    for seed in range(3):
        for placement in ("pre", "post"):
            for lr in RATES:
                for warmup in (0, 20):
                    bearable = 3e-3 if placement == "post" and not warmup else 1e-2
                    status = "finished" if lr < bearable else "diverged"
                    final = draw(seed) + abs(math.log10(lr / 1e-3))
                    settings = {"schedule.warmup": warmup}
                    make_run(
                        folder,
                        placement=placement,
                        seed=seed,
                        final=final,
                        lr=lr,
                        status=status,
                        settings=settings,
                        data=CONSTANT,
                    )


def rates_of_norms(folder: Path) -> None:
    """Each norm at four rates, of which the largest is lost without one."""
    draw = losses(18)
    for seed in range(4):
        for norm in ("layernorm", "none"):
            for lr in RATES:
                status = "diverged" if norm == "none" and lr == 1e-2 else "finished"
                final = draw(seed) + 0.3 * abs(math.log10(lr / 2e-3)) + 0.2 * (norm == "none")
                make_run(folder, norm=norm, seed=seed, final=final, lr=lr, status=status, data=CONSTANT)


def ramps(folder: Path) -> None:
    """Rates that grow until runs no longer learn."""
    random = np.random.default_rng(19)
    for seed in range(4):
        for norm, factor in (("layernorm", 1.0), ("rmsnorm", 1.3), ("none", 0.2)):
            rate = 0.1 * factor * math.exp(0.1 * random.standard_normal())
            ramp = {"largest_rate": rate, "last_step": 40, "bore_all": False, "diverged": True}
            summary = {"ramp": ramp, "metrics": {"rate/largest": rate}}
            settings = {"schedule._target_": "normbench.training.schedules.Ramp"}
            make_run(folder, norm=norm, seed=seed, settings=settings, summary=summary, status="diverged")


def accuracies(folder: Path) -> None:
    draw = losses(20)
    for seed in SEEDS:
        for norm, gap in (("batchnorm", 0.0), ("groupnorm", 0.03), ("none", 0.3)):
            loss = draw(seed) + gap
            make_run(folder, norm=norm, seed=seed, final=loss, accuracy=1 - (loss - 1.9) / 3)


def translations(folder: Path) -> None:
    draw = losses(21)
    data = {"kind": "translation", "name": "multi30k"}
    for seed in SEEDS:
        for norm, gap in (("none", 0.0), ("layernorm", -0.1)):
            loss = draw(seed) + gap
            make_run(folder, norm=norm, seed=seed, final=loss, bleu=30 - 10 * (loss - 2), data=data)


def two_tasks(folder: Path) -> None:
    accuracies(folder)
    arms_of(folder, {"layernorm": 0.0, "rmsnorm": 0.1})


def slower_kernels(folder: Path) -> None:
    """RMSNorm's steps take longer, by another implementation."""
    arms_of(folder, {"layernorm": 0.0}, step_ms=10.0, ledger={"implementation": "torch.nn.functional.layer_norm"})
    arms_of(folder, {"rmsnorm": 0.0}, step_ms=13.0, ledger={"implementation": "eager"})


def other_machines(folder: Path) -> None:
    """Half of the seeds come from another version of torch, with more threads."""
    arms_of(folder, {"layernorm": 0.0, "rmsnorm": 0.05}, range(3))
    arms_of(folder, {"layernorm": 0.0, "rmsnorm": 0.05}, range(3, 6), session={"torch": "2.9.0", "threads": 8})


def missing_runs(folder: Path) -> None:
    """A sweep whose last seeds are still to be made."""
    plan(folder, "norm=layernorm,rmsnorm", "seed=range(0,6)")
    arms_of(folder, {"layernorm": 0.0, "rmsnorm": 0.02}, range(4))
    make_run(folder, norm="layernorm", seed=4, status="running")


SWEEPS: dict[str, Callable[[Path], None]] = {
    **STUDIES,
    "one_seed": one_seed,
    "two_seeds": two_seeds,
    "ten_seeds": ten_seeds,
    "one_arm": one_arm,
    "other_seeds": other_seeds,
    "same_values": same_values,
    "lost_runs": lost_runs,
    "torn_arms": torn_arms,
    "three_factors": three_factors,
    "slope_of_batches": slope_of_batches,
    "ladder_of_sizes": ladder_of_sizes,
    "area_of_rates": area_of_rates,
    "rates_of_norms": rates_of_norms,
    "ramps": ramps,
    "accuracies": accuracies,
    "translations": translations,
    "two_tasks": two_tasks,
    "slower_kernels": slower_kernels,
    "other_machines": other_machines,
    "missing_runs": missing_runs,
}
