"""How differences change with the size of the model, from results by seed and size that a test chooses."""

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
from normbench.evidence.study import RecordedStudy, read_studies
from normbench.results.answer import Answer
from normbench.results.caveat import CaveatKind
from normbench.results.caveats import Case, rates_of_sizes
from normbench.results.comparisons import compare_all
from normbench.results.effects import slope_weights
from normbench.results.examine import Request, examine
from normbench.results.family import correct, make_tests
from normbench.results.result import EffectKind, Scaling
from normbench.results.scaling import bend_of, bend_weights, find_ladders, height_at
from normbench.show.figures.plots import blank
from normbench.show.figures.sizes import draw_sizes, mark_extrapolated
from normbench.show.figures.style import use_our_style
from normbench.show.report import put_in_words
from normbench.show.tables import scaling_table
from normbench.tell.designs import say_scaling
from normbench.tell.phrases import Said
from normbench.wording import rounded_count

SIZES = {2: 50_000, 3: 160_000, 4: 420_000, 6: 1_300_000, 10: 5_000_000}  # parameters by depth
DECADES = np.log10(list(SIZES.values()))
NOISE = np.random.default_rng(0).normal(0, 0.003, (3, len(SIZES), 5))  # of arms, sizes and seeds
BASELINE = {"norm": "layernorm"}
Losses = Mapping[tuple[str, int], Sequence[float | str]]


def sized(one: Arm, total: int, **config: Any) -> Arm:
    """The arm with so many parameters in each run, and with more of its configuration."""
    runs = []
    for run in one.runs:
        summary = {**run.summary, "ledger": {"parameters": {"total": total}}}
        known = {"model._target_": "normbench.models.Transformer", **one.settings, **config}
        runs.append(replace(run, summary=summary, config=known))
    return replace(one, runs=tuple(runs))


def ladder_study(losses: Losses, key: str = "model.depth", sizes: Mapping[Any, int] = SIZES) -> RecordedStudy:
    """Arms by norm and size; a norm's own parameters are 100 more than the baseline's."""
    arms = []
    for (norm, size), ends in losses.items():
        more = 0 if norm == "layernorm" else 100
        arms.append(sized(arm(ends, LOSS, **{"norm": norm, key: size}), sizes[size] + more))
    return RecordedStudy((Path(),), tuple(arms), ("norm", key))


def planted(slope: float = 0.02, at_smallest: float = 0.01, *, bend: float = 0.0) -> dict[tuple[str, int], list[float]]:
    """Losses of layernorm and of dyt, which is so far above it at the smallest size, and further with each tenfold."""
    losses = {}
    for place, size in enumerate(SIZES):
        from_start = DECADES[place] - DECADES[0]
        gap = at_smallest + slope * from_start + bend * (from_start - 1) ** 2
        base = 2.5 - 0.3 * from_start + NOISE[0, place]
        losses["layernorm", size] = base.tolist()
        losses["dyt", size] = (base + gap + NOISE[1, place]).tolist()
    return losses


def ladders(made: RecordedStudy, **baseline: Any) -> tuple[Scaling, ...]:
    baseline = baseline or BASELINE
    return correct(find_ladders(made.arms, baseline, correct(compare_all(made.arms, baseline, LOSS))))


def differences(losses: Losses) -> np.ndarray:
    """Of dyt, by seed and size."""
    return np.array([np.subtract(losses["dyt", size], losses["layernorm", size]) for size in SIZES]).T


# ---- the numbers


def test_the_slope_is_that_of_a_line_for_each_seed() -> None:
    losses = planted()
    (one,) = ladders(ladder_study(losses))
    lines = np.array([np.polyfit(DECADES, own, 1) for own in differences(losses)])
    assert one.values == pytest.approx(lines[:, 0], rel=1e-9)
    assert one.p == pytest.approx(stats.ttest_1samp(lines[:, 0], 0).pvalue, rel=1e-9)
    assert one.interval == pytest.approx(stats.ttest_1samp(lines[:, 0], 0).confidence_interval(0.95), rel=1e-9)
    assert (one.arm, one.baseline) == ("dyt", "layernorm")


def test_the_slope_is_that_of_one_fit_with_a_level_for_each_seed() -> None:
    """Least squares over all differences with seeds as blocks, which a mixed model of balanced data gives too."""
    losses = planted()
    (one,) = ladders(ladder_study(losses))
    own = differences(losses)
    seeds, sizes = own.shape
    design = np.column_stack([np.tile(DECADES, seeds), np.kron(np.eye(seeds), np.ones((sizes, 1)))])
    coefficients, *_ = np.linalg.lstsq(design, own.ravel())
    assert one.mean == pytest.approx(coefficients[0], rel=1e-9)


def test_what_is_extrapolated_is_where_the_lines_are_a_decade_on() -> None:
    losses = planted()
    (one,) = ladders(ladder_study(losses))
    beyond = [np.polyval(np.polyfit(DECADES, own, 1), DECADES[-1] + 1) for own in differences(losses)]
    assert one.extrapolated.parameters == pytest.approx(5e7)
    assert one.extrapolated.values == pytest.approx(beyond, rel=1e-9)
    assert height_at(5e7, one.sizes, one.seeds).values == pytest.approx(beyond, rel=1e-9)
    half = stats.t.ppf(0.975, 4) * np.std(beyond, ddof=1) / np.sqrt(5)
    mean = np.mean(beyond)
    assert one.extrapolated.interval == pytest.approx((mean - half, mean + half), rel=1e-9)
    # the same from one regression of the means by size, whose design all seeds share
    x = np.column_stack([np.ones_like(DECADES), DECADES])
    at = np.array([1, DECADES[-1] + 1])
    assert at @ np.linalg.solve(x.T @ x, x.T @ differences(losses).mean(axis=0)) == pytest.approx(mean, rel=1e-9)


def test_a_bend_is_the_coefficient_of_the_square() -> None:
    losses = planted(bend=0.05)
    (one,) = ladders(ladder_study(losses))
    curved = [np.polyfit(DECADES, own, 2)[0] for own in differences(losses)]
    assert bend_of(one.sizes, one.seeds).values == pytest.approx(curved, rel=1e-6)
    assert bend_weights(DECADES) @ (3 + 2 * DECADES) == pytest.approx(0, abs=1e-9)
    assert slope_weights(DECADES) @ (3 + 2 * DECADES) == pytest.approx(2)


def test_seeds_that_lack_a_size_and_sizes_that_did_not_train_are_left_out() -> None:
    losses: dict[tuple[str, int], Sequence[float | str]] = {**planted()}
    losses["dyt", 4] = ["failed", *losses["dyt", 4][1:]]
    losses["dyt", 10] = ["diverged"] * 5
    (one,) = ladders(ladder_study(losses))
    assert one.seeds == (1, 2, 3, 4) and one.left_out == ("dyt · depth=10",)
    own = np.array([[*losses["dyt", size]][1:] for size in (2, 3)], dtype=float)
    base = np.array([[*losses["layernorm", size]][1:] for size in (2, 3)], dtype=float)
    assert [size.values for size in one.sizes][:2] == [tuple(row) for row in own - base]
    ((sentence, _),) = say_scaling([one])
    assert sentence.endswith("finished in both: dyt · depth=10.") and "from 50 thousand to 1.3 million" not in sentence
    assert "at 1.3 million" in sentence and "4 of 5 seeds" in sentence


# ---- what is a ladder


@pytest.mark.parametrize(
    ("key", "sizes", "is_one"),
    [
        ("model.width", {16: 1_000, 32: 4_000, 64: 16_000}, True),
        ("model", {"nano": 1_000, "small": 4_000, "gpt2": 16_000}, True),
        ("model.width", {16: 1_000, 64: 16_000}, False),  # a line through two points
        ("model.context", {16: 1_000, 32: 1_100, 64: 1_200}, False),  # of one size, more or less
        ("model.dropout", {0.0: 1_000, 0.1: 1_000, 0.2: 16_000}, False),
        ("model.mlp", {"gelu": 1_000, "swiglu": 4_000, "relu": 16_000}, False),
        ("data.vocabulary", {16: 1_000, 32: 4_000, 64: 16_000}, False),
        ("model.width", {16: 0, 32: 0, 64: 0}, False),  # of runs that have recorded none
    ],
)
def test_a_ladder_has_three_sizes_of_one_kind_of_model(key: str, sizes: Mapping[Any, int], is_one: bool) -> None:
    losses = {(norm, size): [2.0, 2.1, 2.3] for norm, size in product(("layernorm", "dyt"), sizes)}
    made = ladder_study(losses, key, sizes)
    assert bool(ladders(made)) == is_one
    if key == "model":
        first, *others = made.arms
        mixed = replace(made, arms=(sized(first, 1_000, **{"model._target_": "normbench.models.CNN"}), *others))
        assert not ladders(mixed)


def test_sizes_are_not_compared_with_each_other_nor_over_what_else_varies() -> None:
    keys = ("norm", "placement", "model.depth", "model.width")
    tied = {(2, 40): 50_000, (3, 60): 160_000, (3, 80): 420_000}
    arms = []
    for norm, placement, (depth, width) in product(("layernorm", "dyt"), ("pre", "post"), tied):
        settings = dict(zip(keys, (norm, placement, depth, width), strict=True))
        arms.append(sized(arm([2.0, 2.1 + len(norm) / 50, 2.3], LOSS, **settings), tied[depth, width]))
    made = RecordedStudy((Path(),), tuple(arms), keys)
    assert [one.arm for one in ladders(made)] == ["dyt · pre", "dyt · post"]
    assert not ladders(made, **{"norm": "layernorm", "model.depth": 2, "model.width": 40})


# ---- the words


def said(losses: Losses) -> str:
    made = ladder_study(losses)
    (one,) = make_tests(made, made.arms, BASELINE, LOSS).scaling
    (told,) = say_scaling([one])
    return "\n".join(told)


@pytest.mark.parametrize(
    ("slope", "start", "words"),
    [
        (
            0.02,
            0.01,
            "The difference between dyt and layernorm in the validation loss grows with the size of the model: ",
        ),
        (-0.02, 0.06, " shrinks with the size of the model: dyt less layernorm goes from +0.0"),
        (-0.03, 0.03, " changes its sign with the size of the model: "),
        (0.0, 0.03, "No change of the difference between dyt and layernorm in the validation loss with the size of "),
    ],
)
def test_it_is_said_whether_a_difference_grows_or_vanishes(slope: float, start: float, words: str) -> None:
    sentence = said(planted(slope, start))
    assert words in sentence
    assert "Extrapolated to 50 million parameters, a decade beyond the largest model that was trained" in sentence
    assert "it bends" not in sentence


def test_a_bend_warns_of_the_line_and_few_seeds_of_certainty() -> None:
    bent = said(planted(bend=0.05))
    assert "But it bends, so the line is no guide" in bent and bent.endswith("; bend, p < 0.001.")
    assert said(planted(0.05)).endswith("\nChange with size, dyt and layernorm: p < 0.001 after Holm.")
    two = {key: ends[:2] for key, ends in planted().items()}
    made = ladder_study(two)
    (one,) = make_tests(made, made.arms, BASELINE, LOSS).scaling
    ((sentence, _),) = say_scaling([replace(one, corrected=0.2, family=9)])
    assert ("may grow" in sentence) == (one.p is not None and one.p < 0.05)
    alone = ladders(ladder_study({key: ends[:1] for key, ends in planted().items()}))[0]
    assert say_scaling([alone]) == [] and scaling_table([alone]).rows[0][:2] == ("dyt", "1")


def test_the_same_change_in_each_seed_has_no_interval() -> None:
    losses = {(norm, size): [2.0 + (norm == "dyt") * place / 4] * 3
              for norm, (place, size) in product(("layernorm", "dyt"), enumerate(SIZES))}  # fmt: skip
    assert "(the same in each of 3 seeds). Extrapolated to 50 million" in said(losses)
    still = {key: [2.0] * 3 for key in losses}
    assert "was found, over 5 sizes from 50 thousand to 5 million parameters (3 seeds)." in said(still)


def test_large_numbers_in_words() -> None:
    numbers = (950, 61_440, 999_900, 4_850_000, 49e6, 1.24e9)
    assert [rounded_count(number) for number in numbers] == [
        "950", "61 thousand", "1 million", "4.8 million", "49 million", "1.2 billion"
    ]  # fmt: skip


# ---- among all that a report says


def test_it_is_one_of_the_tests_and_stands_for_the_slope_per_doubling() -> None:
    made = ladder_study(planted())
    found = make_tests(made, made.arms, BASELINE, LOSS)
    assert EffectKind.SLOPE not in {one.kind for one in found.effects}
    assert len(found.differences) == 5 and {one.family for one in (*found.differences, *found.scaling)} == {6}
    only_two = replace(made, arms=tuple(one for one in made.arms if one.settings["model.depth"] in (2, 10)))
    assert make_tests(only_two, only_two.arms, BASELINE, LOSS).scaling == ()


@pytest.mark.slow
def test_the_answer_keeps_it(tmp_path: Path) -> None:
    """As values, as a sentence, as a table and as a figure; and rates that were chosen for no size are a caveat."""
    shown = (2, 4, 10)
    for norm, size, seed in product(("layernorm", "dyt"), shown, range(2)):
        end = planted()[norm, size][seed]
        total = SIZES[size] + 50 * (norm == "dyt")
        ledger = {"parameters": {"total": total}}
        settings = {"model.depth": size, "model.width": 20 * size}
        make_run(tmp_path, norm=norm, seed=seed, final=end, lr=0.01 / size, settings=settings, ledger=ledger)
    (study,) = read_studies([tmp_path])
    report = put_in_words(examine(study, BASELINE, Request()))
    answer = report.answer
    assert Answer.from_json(answer.to_json()) == answer
    (one,) = answer.scaling
    assert [size.parameters for size in one.sizes] == [SIZES[size] for size in shown]
    assert one.sizes[0].settings == {"model.depth": 2}
    assert one.extrapolated.values == pytest.approx(np.add(one.at_largest.values, one.values))
    assert [Said(text, detail) for text, key, detail in report.verdict if key == "scaling"] == say_scaling([one])
    (table,) = (table for table in report.tables if table.key == "scaling")
    assert table.title.endswith("against layernorm") and dict(zip(table.frame, table.rows[0], strict=True)) == {
        **dict(zip(table.frame, table.rows[0], strict=True)), "arm": "dyt", "seeds": "2", "sizes": "3",
        "parameters": "50 thousand to 5 million", "extrapolated to": "50 million",
    }  # fmt: skip
    (caveat,) = (one for one in answer.caveats if "each size of the model" in one.text)
    assert caveat.kind == CaveatKind.LEARNING_RATE and [one.value for one in caveat.found] == [
        "0.005", "0.0025", "0.001"
    ]  # fmt: skip
    tried = replace(study, varied=(*study.varied, "optim.lr"))
    case = Case(tried, report.arms, ladders=report.family.scaling)
    assert not [*rates_of_sizes(case)] and not [*rates_of_sizes(Case(study, report.arms))]
    (figure,) = draw_sizes(report.family.scaling, report.arms)
    drawn = figure.data.set_index("kind")
    assert drawn.loc["extrapolated", "parameters"].max() == 50_000_000
    assert drawn.loc["line", "parameters"].max() == 5_000_000
    assert drawn.loc["mean", "difference"].tolist() == pytest.approx([size.mean for size in one.sizes])
    assert drawn.loc["extrapolated", "difference"].iloc[-1] == pytest.approx(one.extrapolated.mean)
    (pane,) = figure.canvas.axes
    dashes = {line.get_linestyle() for line in pane.lines if len(line.get_xdata()) > 2}
    assert len(dashes) == 2 and [text.get_text() for text in pane.texts] == ["extrapolated"]
    assert "extrapolated" in figure.caption and "extrapolated" in figure.alt


def test_what_is_said_of_the_extrapolated_part_is_not_cut_where_that_part_is_narrow() -> None:
    with use_our_style():
        canvas = blank(2.0)
        pane = canvas.subplots()
        pane.set(xscale="log", xlim=(1e3, 1e7))
        mark_extrapolated(pane, 1e6)
        canvas.draw_without_rendering()
        (mark,) = pane.texts
        assert mark.get_window_extent().x1 <= pane.get_window_extent().x1 + 1e-6
