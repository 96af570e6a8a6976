"""Studies that cross factors: what is found of results by seed that a test chooses, said and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import make_run
from scipy import stats
from test_sentences import LOSS, arm

from normbench.evidence.arms import Arm
from normbench.evidence.measures import Metric, accuracy_on
from normbench.evidence.run import Curve
from normbench.evidence.study import RecordedStudy, read_studies
from normbench.results.designs import find_effects
from normbench.results.family import correct
from normbench.results.result import EffectKind, FactorEffect
from normbench.results.statistics import ALPHA, holm
from normbench.show.figures.finals import draw_interactions, draw_learning_rates
from normbench.show.tables import designs_table
from normbench.tell.designs import say_effects, say_effects_not_found

NOISE = np.random.default_rng(0).normal(0, 0.02, (6, 6, 6, 5))  # of settings of three factors, and of five seeds
Cells = Mapping[tuple[Any, ...], Sequence[float | str]]


def study(cells: Cells, *keys: str, metric: Metric = LOSS, constant: Mapping[str, float] = {}) -> RecordedStudy:
    """Arms with results by seed; what a constant predictor reaches is recorded."""
    arms = [arm(ends, metric, **dict(zip(keys, levels, strict=True))) for levels, ends in cells.items()]
    sessions = ({"data": {"constant": constant}},)
    told = (Arm(one.settings, tuple(replace(run, sessions=sessions) for run in one.runs)) for one in arms)
    return RecordedStudy((Path(),), tuple(told), keys)


def found(made: RecordedStudy, metric: Metric = LOSS, **baseline: Any) -> tuple[FactorEffect, ...]:
    return correct(find_effects(made, made.arms, baseline, metric))


def said(ones: Sequence[FactorEffect]) -> list[str]:
    return [*(one.text for kind in say_effects(ones) for one in kind), *say_effects_not_found(ones)]


def warmed(gain: float = 0.9) -> dict[tuple[Any, ...], Sequence[float]]:
    """Post and pre without and with warm-up, which lowers post's loss by so much more."""
    means = {("pre", 0.0): 2.3, ("pre", 0.1): 2.0, ("post", 0.0): 2.4 + gain, ("post", 0.1): 2.1}
    return {cell: mean + NOISE[0, 0, place] for place, (cell, mean) in enumerate(means.items())}


# ---- two factors


def test_what_is_neither_good_nor_bad_is_raised_or_lowered() -> None:
    (one,) = found(study(warmed(), "placement", "schedule.warmup"), placement="pre")
    (sentence,) = said([replace(one, metric=Metric("grad/norm", "", "", judges=False))])
    assert sentence.startswith(
        "warmup=0.1 instead of 0 lowers the grad/norm of post by 0.885 more than that of pre (95 %: "
    )


def test_an_interaction_is_a_difference_of_differences_by_seed() -> None:
    cells = warmed()
    (one,) = found(study(cells, "placement", "schedule.warmup"), placement="pre")
    by_hand = cells["post", 0.1] - cells["post", 0.0] - (cells["pre", 0.1] - cells["pre", 0.0])
    assert one.values == pytest.approx(by_hand)
    assert one.p == pytest.approx(stats.ttest_1samp(by_hand, 0).pvalue)
    (sentence,) = said([one])
    assert sentence.startswith("warmup=0.1 instead of 0 helps post by 0.885 nats more than pre (95 %: 0.836 to 0.934; ")
    assert "; 5 seeds): the validation loss of post falls by 1.183, that of pre by 0.298." in sentence
    (detail,) = [told.detail for kind in say_effects([one]) for told in kind]
    assert detail == "warmup=0.1 instead of 0, post and pre: p < 0.001."
    (row,) = designs_table([one]).rows
    assert row[:3] == ("warmup=0.1 instead of 0", "post", "5")


@pytest.mark.slow
def test_no_interaction_is_seldom_said_to_be_one() -> None:
    random, alarms = np.random.default_rng(1), 0
    for _ in range(200):
        cells = {cell: random.normal(size=5) for cell in product(("pre", "post"), (0.0, 0.1))}
        alarms += found(study(cells, "placement", "schedule.warmup"))[0].real
    assert 2 <= alarms <= 20  # 10 are expected
    (one,) = found(study(warmed(0.0), "placement", "schedule.warmup"))
    assert one.p is not None and one.p >= ALPHA and one.levels == (0.0, 0.1)


def test_what_harms_is_said_to_harm() -> None:
    cells = {(norm, size): 2 + (norm == "dyt") * (size == "b") + (size == "b") / 2 + NOISE[1, 0, i]
             for i, (norm, size) in enumerate(product(("layernorm", "dyt"), "ab"))}  # fmt: skip
    (sentence,) = said(found(study(cells, "norm", "model"), norm="layernorm"))
    assert sentence.startswith("b instead of a harms dyt by 0.999")
    assert " nats more than layernorm (95 %" in sentence


def test_three_numbers_have_a_slope_per_doubling() -> None:
    accuracy, sizes = accuracy_on("val"), (2, 8, 32)
    cells = {(norm, size): 90 + (norm == "batchnorm") * (np.log2(size) - 5) + NOISE[2, i, j]
             for i, norm in enumerate(("groupnorm", "batchnorm", "dyt")) for j, size in enumerate(sizes)}  # fmt: skip
    made = study(cells, "norm", "data.batch_size", metric=accuracy)
    two = found(made, accuracy, norm="groupnorm")
    slopes = {norm: np.polyfit([1, 3, 5], [cells[norm, size] for size in sizes], 1)[0] for norm, _ in cells}
    assert [one.arm for one in two] == ["batchnorm", "dyt"]
    for one in two:
        assert one.values == pytest.approx(slopes[one.arm] - slopes["groupnorm"])
    assert [one.corrected for one in two] == holm([one.p for one in two])
    assert {one.kind for one in two} == {EffectKind.SLOPE} and {one.factor for one in two} == {"data.batch_size"}
    assert [one.p is not None and one.p < ALPHA for one in two] == [True, False]
    first, _ = said(two)
    assert first.startswith("Each doubling of batch_size helps batchnorm ")
    (figure,) = draw_interactions(made.arms, {"norm": "groupnorm"}, accuracy)
    drawn = figure.data.set_index(["arm", "batch_size"])["mean"]
    assert drawn["batchnorm", 8] == pytest.approx(np.mean(cells["batchnorm", 8]))


def test_other_factors_are_averaged_and_what_is_not_there_is_left_out() -> None:
    keys, every = ("norm", "placement", "model.depth"), product(("layernorm", "dyt"), ("pre", "post"), (2, 4))
    cells = {cell: 2 + (cell[1:] == ("post", 4)) + NOISE[3, i % 6, i // 6] for i, cell in enumerate(every)}
    del cells["dyt", "post", 4]
    made = {(one.factor, one.arm): one for one in found(study(cells, *keys), norm="layernorm", placement="pre")}
    assert made.keys() == {("placement", "dyt"), ("model.depth", "dyt"), ("model.depth", "post")}
    assert made["model.depth", "post"].mean == pytest.approx(1, abs=0.1)  # of layernorm alone
    by_hand = (
        cells["dyt", "pre", 4] - cells["dyt", "pre", 2] - (cells["layernorm", "pre", 4] - cells["layernorm", "pre", 2])
    )
    assert made["model.depth", "dyt"].values == pytest.approx(by_hand)
    assert not found(study({("dyt", 0.1): [1, 2], ("none", 0.2): [1, 2]}, "norm", "schedule.warmup"))


def test_a_run_that_diverged_counts_as_a_constant_predictor() -> None:
    cells: Cells = warmed() | {("post", 0.0): [3.6, "diverged", 2.9, "failed", 3.3]}
    (one,) = found(study(cells, "placement", "schedule.warmup", constant={"loss/val": 3.5}), placement="pre")
    assert one.seeds == (0, 1, 2, 4) and one.tried == 5
    assert one.own == pytest.approx(np.array(cells["post", 0.1])[[0, 1, 2, 4]] - [3.5, 3.5, 2.9, 3.3])  # type: ignore[operator]  # numbers


def test_an_arm_that_did_not_train_is_in_no_interaction(tmp_path: Path) -> None:
    """Nor one that diverged in most of its runs; the others still are."""
    every = product(("pre", "post", "deep"), (0, 50, 100), range(3))
    for placement, warmup, seed in every:
        final = 2 + 0.1 * seed + 0.01 * np.sin(7 * seed + warmup + len(placement))
        final = 3.31 + seed / 1e3 if (placement, warmup) == ("post", 0) else final
        how: dict[str, Any] = {"settings": {"schedule.warmup": warmup}, "data": {"constant": {"loss/val": 3.309}}}
        how |= {"status": "diverged"} if (placement, warmup) == ("deep", 50) and seed else {}
        make_run(tmp_path, placement=placement, seed=seed, final=final, **how)
    (study_of_all,) = read_studies([tmp_path])
    shown = correct(find_effects(study_of_all, study_of_all.arms, {"placement": "pre"}, LOSS))
    compared = {(one.arm, *one.levels) for one in shown if one.n and one.kind == EffectKind.CHANGE}
    assert compared == {("deep", 0, 100), ("post", 50, 100)}


def test_an_arm_whose_runs_end_in_two_groups_is_in_no_interaction() -> None:
    """Its mean says how many runs did not train, of which four of ten make an interaction here."""
    norms, placements = ("layernorm", "rmsnorm"), ("pre", "post")
    noise = np.random.default_rng(0).normal(0, 0.02, (4, 10))
    whole = {cell: 2 + noise[place] for place, cell in enumerate(product(norms, placements))}
    stuck = np.where(np.arange(10) < 4, 3.0, whole["rmsnorm", "post"])
    baseline, constant = {"norm": "layernorm"}, {"loss/val": 3.0}
    made = study({**whole, ("rmsnorm", "post"): stuck}, "norm", "placement", constant=constant)
    assert found(study(whole, "norm", "placement", constant=constant), **baseline)
    assert not found(made, **baseline)


def test_one_factor_or_one_seed_gives_no_sentence() -> None:
    assert not found(study({("dyt",): [1.0, 2.0], ("none",): [1.0, 2.0]}, "norm"))
    assert not said(found(study({cell: ends[:1] for cell, ends in warmed().items()}, "placement", "schedule.warmup")))


# ---- learning rates


def tried(cells: Cells) -> RecordedStudy:
    """Norms at learning rates, with a loss of 4 at the start."""
    made = study(cells, "norm", "optim.lr", constant={"loss/val": 3.3})
    start = {"loss/train": Curve(np.array([1]), np.array([4.0]))}
    arms = (Arm(one.settings, tuple(replace(run, curves=start) for run in one.runs)) for one in made.arms)
    return replace(made, arms=tuple(arms))


def test_the_largest_rate_that_trains_and_the_sensitivity_are_paired() -> None:
    ends = {
        "layernorm": ([2.0] * 4, [2.1, 2.2, 2.1, 2.2], [2.5] * 4),
        "none": ([2.0] * 4, [3.3, 3.3, 2.4, 3.3], ["diverged"] * 4),
    }
    cells = {(norm, rate): own for norm, rows in ends.items() for rate, own in zip((0.01, 0.1, 1.0), rows, strict=True)}
    rate, sensitivity = found(tried(cells), norm="layernorm")[-2:]
    assert [2**own for own in rate.own] == pytest.approx([0.01, 0.01, 0.1, 0.01])
    assert sensitivity.own == pytest.approx([(1.3 + 2) / 3, (1.3 + 2) / 3, (0.4 + 2) / 3, (1.3 + 2) / 3])
    assert sensitivity.other == pytest.approx([0.6 / 3, 0.7 / 3, 0.6 / 3, 0.7 / 3])
    first, second = said([rate, sensitivity])
    assert first.startswith(
        "layernorm trains up to lr 1 (the largest tried), none up to 0.01 to 0.1, at rates 56.2 times as"
    )
    assert second.startswith("none is 0.81 nats more sensitive to the learning rate than layernorm (95 %: ")
    other = {(norm, at): own for (norm, at), own in cells.items() if (norm, at) != ("none", 0.1)}
    kinds = [one.kind for one in found(tried(other), norm="layernorm")]
    assert EffectKind.LARGEST not in kinds  # other rates were tried


@pytest.mark.parametrize("end", [3.3, "diverged"])
def test_arms_that_train_at_no_rate_are_not_contrasted(end: float | str) -> None:
    """Nothing is known of what neither bears; where one of the two trains, the other has half the lowest."""
    rates = (0.01, 0.1, 1.0)
    nowhere: Cells = {(norm, rate): [end] * 3 for norm in ("layernorm", "none", "dyt") for rate in rates}
    assert not found(tried(nowhere), norm="layernorm")
    somewhere = {**nowhere, **{("dyt", rate): [2.0, 2.1, 2.2] for rate in rates}}
    effects = [one for one in found(tried(somewhere), norm="layernorm") if one.kind == EffectKind.LARGEST]
    assert [one.arm for one in effects] == ["dyt"] and effects[0].family == 1
    assert [2**other for other in effects[0].other] == pytest.approx([0.005] * 3)


def test_arms_that_train_at_the_highest_rate_are_not_contrasted_in_the_largest() -> None:
    """Neither was tried at a rate that it does not bear."""
    everywhere: Cells = {(norm, rate): [2.0, 2.1, 2.2] for norm in ("layernorm", "dyt") for rate in (0.01, 0.1, 1.0)}
    low_fails: Cells = {**everywhere, ("dyt", 0.01): ["diverged"] * 3}
    for cells in (everywhere, low_fails):
        kinds = {one.kind for one in found(tried(cells), norm="layernorm")}
        assert EffectKind.SENSITIVITY in kinds and EffectKind.LARGEST not in kinds
    one_seed_fails: Cells = {**everywhere, ("dyt", 1.0): [2.0, 2.1, "diverged"]}
    kinds = {one.kind for one in found(tried(one_seed_fails), norm="layernorm")}
    assert {EffectKind.SENSITIVITY, EffectKind.LARGEST} <= kinds


@pytest.mark.parametrize(
    ("seeds", "words"),
    [(2, "; it may be as large as the values that were tried can show (2 seeds, 95 %)."), (8, "up to")],
)
def test_a_difference_in_the_largest_rate_is_told_as_far_as_rates_can_show_it(seeds: int, words: str) -> None:
    """From half the lowest to the highest is a factor of 20 here; of two seeds the interval reaches to 10 ** 8."""
    trains = [2.0 + seed / 10 for seed in range(seeds)]
    one_does_not = [3.3, *trains[1:]]
    cells: Cells = {(norm, rate): trains for norm in ("layernorm", "none") for rate in (0.01, 0.1)}
    cells = {**cells, ("none", 0.01): one_does_not, ("none", 0.1): one_does_not}
    effects = [one for one in found(tried(cells), norm="layernorm") if one.kind == EffectKind.LARGEST]
    (sentence,) = said(effects)
    assert sentence.startswith("The largest learning rate that trains: no difference was found") and words in sentence


@pytest.mark.parametrize("end", [3.3, "diverged"])
def test_arms_that_train_nowhere_in_a_grid_are_not_contrasted(end: float | str) -> None:
    every = list(product(("layernorm", "none"), (0.01, 0.1, 1.0), (2, 4, 8)))
    keys, constant = ("norm", "optim.lr", "model.depth"), {"loss/val": 3.3}
    nowhere: Cells = {cell: [end] * 3 for cell in every}
    everywhere: Cells = {cell: [2.0, 2.1, 2.2] for cell in every}
    assert not found(study(nowhere, *keys, constant=constant), norm="layernorm")
    effects = found(study(everywhere, *keys, constant=constant), norm="layernorm")
    assert all(one.kind != EffectKind.AREA for one in effects)
    somewhere = {**nowhere, ("none", 0.01, 2): [2.0, 2.1, 2.2]}
    (one,) = found(study(somewhere, *keys, constant=constant), norm="layernorm")
    assert one.kind == EffectKind.AREA and one.own == pytest.approx([100 / 9] * 3)


def test_no_triangle_is_where_no_rate_was_tried() -> None:
    cells: Cells = {
        (norm, rate): [2.0, 2.1] if norm == "layernorm" else [3.3, 3.3]
        for norm in ("layernorm", "none")
        for rate in (0.01, 0.1)
    }
    (figure,) = draw_learning_rates(tried(cells), LOSS)
    largest = figure.data.groupby("arm")["largest"].first()
    assert largest["layernorm"] == pytest.approx(0.1) and np.isnan(largest["none"])
