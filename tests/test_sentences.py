"""What is said of comparisons, from results by seed that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from normbench.evidence.arms import Arm, best_rate
from normbench.evidence.baselines import usual_baseline
from normbench.evidence.measures import Metric, accuracy_on, loss_on
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy, choose_contenders
from normbench.results.answer import Answer, ArmResult, Cause, Question, Stuck
from normbench.results.caveats import Case, few_examples, lost_runs, open_rates, skewed_differences, unequal_choices
from normbench.results.comparisons import compare_all
from normbench.results.examine import state_arms
from normbench.results.family import Family, correct, make_tests
from normbench.results.result import Difference, LostRuns
from normbench.results.statistics import fisher_p, least_fisher_p
from normbench.show.tables import differences_table
from normbench.tell.phrases import Said
from normbench.tell.sentences import say, say_details, say_diverged, say_lost, say_stuck, say_why
from normbench.tell.verdicts import say_found, say_not_found
from normbench.wording import (
    bound,
    compact,
    count,
    effect_size,
    estimate,
    list_words,
    p_value,
    percent,
    short,
    with_unit,
)

LOSS, ACCURACY = loss_on("val"), accuracy_on("val")
BASE = [2.00, 2.10, 2.05, 1.98, 2.04]


def arm(results: Sequence[float | str], metric: Metric = LOSS, **settings: object) -> Arm:
    """An arm with a run for each seed: its value in the metric's unit, or the status of a run without one."""
    return Arm(settings, tuple(run(seed, result, metric) for seed, result in enumerate(results)))


def run(seed: int, result: float | str, metric: Metric) -> RecordedRun:
    """One run in memory."""
    status = result if isinstance(result, str) else "finished"
    metrics = {} if isinstance(result, str) else {metric.tag: result / metric.scale}
    summary = {} if status in ("running", "interrupted") else {"metrics": metrics}
    return RecordedRun(str(seed), Path(str(seed)), status, 1, 1, "", seed, {}, summary, ({},), {}, "")


def every_arm(
    arms: Mapping[str, Sequence[float | str]], base: Sequence[float | str] = BASE, metric: Metric = LOSS
) -> list[Arm]:
    """Layernorm and others, by their results."""
    return [arm(base, metric, norm="layernorm"), *(arm(own, metric, norm=name) for name, own in arms.items())]


def comparisons(
    arms: Mapping[str, Sequence[float | str]], base: Sequence[float | str] = BASE, metric: Metric = LOSS
) -> tuple[Difference, ...]:
    """Each arm against layernorm."""
    return correct(compare_all(every_arm(arms, base, metric), {"norm": "layernorm"}, metric))


def case_of(arms: Sequence[Arm], differences: Sequence[Difference]) -> Case:
    """What caveats of arms and of their differences are read from."""
    return Case(RecordedStudy((), tuple(arms), ("norm",), ()), arms, differences)


def words(found: Sequence[Difference], margin: float | None = None) -> str:
    stated = correct([replace(one, margin=margin) for one in found])
    return "\n".join(one.text for one in sentences(stated))


def details(found: Sequence[Difference]) -> str:
    """What these sentences rest on."""
    return "\n".join(one.detail for one in sentences(found))


def sentences(stated: Sequence[Difference]) -> list[Said]:
    told = [one for kind in say_found(stated) for one in kind]
    return [*told, *say_not_found(stated)]


def rows(found: Sequence[Difference]) -> list[tuple[str, ...]]:
    """The rows of their table."""
    return differences_table(found).rows


def said(made: RecordedStudy, found: Sequence[Difference] = (), survivals: Sequence[LostRuns] = ()) -> list[str]:
    """The sentences of an answer, and then what they rest on."""
    nothing = {"others": (), "effects": (), "causes": (), "caveats": (), "next": (), "damaged": {}, "missing": {}}
    answer = Answer(
        question=Question("", LOSS, None, (), (), (), (), (), None, (), (), ""),
        baseline={},
        metrics=(LOSS,),
        arms=state_arms(made, made.arms, [LOSS]),
        differences=tuple(found),
        losses=tuple(survivals),
        **nothing,
    )
    statements = say(answer)
    return [*(one.text for one in statements), *say_details(statements, answer)]


def shifted(*by: float) -> list[float]:
    """The baseline's losses and more."""
    return [loss + more for loss, more in zip(BASE, by, strict=True)]


# ---- differences

WORSE, NEAR = shifted(0.1, 0.11, 0.09, 0.105, 0.095), shifted(0.003, -0.002, 0.001, -0.001, 0.001)
WITHIN = shifted(0.001, 0.0011, 0.0009, 0.00105, 0.00095)


@pytest.mark.parametrize(
    ("ours", "base", "margin", "said"),
    [
        (WORSE, BASE, None, "dyt is worse than layernorm: its validation loss is 0.1000 nats higher (95 %: +0.0901 "),
        (WITHIN, BASE, 0.01, "dyt and layernorm are the same within the margin of 0.01 nats, though not equal: dyt's"),
        (WITHIN, BASE, 0.001, "); it may be within the margin of 0.001 nats."),
        (shifted(1e-7, 1.1e-7, 0.9e-7, 1.05e-7, 0.95e-7), BASE, None, "validation loss is 0.0000001000 nats higher"),
        (BASE, BASE, 0.01, "dyt and layernorm end with the same validation loss in each of 5 seeds."),
        ([2.1, 2.2], BASE, None, "dyt and layernorm differ by the same 0.10 nats in each of 2 seeds (dyt is higher in"),
        (NEAR, BASE, None, "dyt and layernorm do not differ by more than 0.0029 nats (5 seeds, 95 %)."),
        (NEAR, BASE, 0.01, "dyt and layernorm are the same within the margin of 0.01 nats: they do not differ by"),
        (NEAR, BASE, 0.001, "dyt and layernorm: no difference was found, but they may differ by up to 0.0029 nats (5"),
        ([2.001, 2.102], BASE[:2], 1.0, "dyt and layernorm: too few seeds to tell; they may differ by up to 0.0"),
        ([2.05, 2.06], [2.0, 2.1], None, "dyt and layernorm: too few seeds to tell; they may differ by up to 0."),
        ([2.0], [1.5], None, "With one seed for each arm nothing can be said about differences: add at least 2 seeds."),
        ([2.0], BASE, None, "dyt: one seed has finished both there and in the baseline, so nothing can be said: add"),
        (
            ["failed", 2.0],
            [2.0],
            None,
            "dyt: no seed has a result both there and in the baseline, so there are no values",
        ),
    ],
)
def test_each_result_has_its_sentence(
    ours: list[float | str], base: list[float], margin: float | None, said: str
) -> None:
    assert said in words(comparisons({"dyt": ours}, base), margin)


def test_a_difference_of_accuracies_that_is_the_same_in_each_seed_is_not_called() -> None:
    counts = {"rmsnorm": [100 * n / 360 for n in (341, 344)]}
    found = comparisons(counts, [100 * n / 360 for n in (340, 343)], ACCURACY)
    assert not found[0].real and found[0].detectable is None
    assert rows(found) == [("rmsnorm", "2", "+0.28", "0.500", "spread not known")]
    assert rows(comparisons({"rmsnorm": BASE}))[0][-1] == "the same"


def test_a_difference_that_correction_alone_makes_uncertain_is_told_apart() -> None:
    arms = {f"norm{n}": shifted(0.01, -0.011, 0.002 * n, -0.01, 0.001) for n in range(12)}
    found = comparisons({**arms, "dyt": shifted(0.01, 0.02, 0.03, 0.015, 0.012)})
    first, others = words(found).splitlines()
    assert others.startswith("No difference was found in 12 comparisons (norm")
    assert first.startswith("dyt may be worse than layernorm: its validation loss is 0.0174 nats higher (95 %: +0.007")
    assert first.endswith("); not certain after correction for 13 tests: repeat it with new seeds.")
    assert "; after correction for 13 tests p = 0." in details(found)
    assert {row[0]: row[-1] for row in rows(found)}["dyt"] == "perhaps worse"


# ---- seeds


def test_survivors_are_said_to_be() -> None:
    better = [1.4 + 0.01 * more for more in range(5)]
    ends = {"rmsnorm": ["diverged", "diverged", *better[2:]]}
    found = comparisons(ends)
    assert words(found) == (
        "rmsnorm is not called better than layernorm, as it lost 2 of 5 seeds and layernorm none: on the 3 seeds that "
        "survived in both, the validation loss of rmsnorm is 0.59 nats lower."
    )
    assert details(found) == "rmsnorm and layernorm: with lost runs ranked last, p = 0.750 (signed ranks)."
    (one,) = lost_runs(case_of(every_arm(ends), found))
    (evidence,) = one.found
    assert (evidence.value, evidence.arms, evidence.numbers) == ("diverged", ("rmsnorm",), {"lost": 2, "runs": 5})
    worse = [1.4, 1.41, 1.42, 1.43, 1.44]
    found = comparisons({"rmsnorm": ["diverged", *BASE[1:]]}, ["failed", *worse[1:]])  # as many in both
    assert words(found).startswith("rmsnorm is worse than layernorm: ") and "; 4 of 5 seeds)" in words(found)
    assert words(found).endswith("), among the seeds that survived.")


def test_a_seed_that_was_lost_in_both_arms_counts_among_all_and_one_under_way_is_not_lost() -> None:
    found = comparisons({"rmsnorm": ["failed", *NEAR[1:]]}, ["diverged", *BASE[1:]])
    assert "among the seeds that survived (4 of 5 seeds, 95 %)" in words(found)
    under_way = {"rmsnorm": [*NEAR[:4], "running"]}
    found = comparisons(under_way)
    assert words(found).endswith("(4 of 5 seeds, 95 %).") and not [*lost_runs(case_of(every_arm(under_way), found))]


# ---- runs that are lost


def lost(**results: Sequence[float | str]) -> tuple[RecordedStudy, Family]:
    """Arms whose data say that a constant guess reaches 2.5, and all that is tested of them."""
    arms = []
    for norm, own in results.items():
        sessions = ({"data": {"constant": {"loss/val": 2.5}}},)
        arms.append(Arm({"norm": norm}, tuple(replace(one, sessions=sessions) for one in arm(own).runs)))
    made = RecordedStudy((), tuple(arms), ("norm",))
    return made, make_tests(made, made.arms, {"norm": "layernorm"}, LOSS)


@pytest.mark.parametrize("ends", [["diverged"] * 5, [2.49] * 5, ["diverged", "diverged", 2.49, 2.5, 2.6]])
def test_five_of_five_lost_against_none_is_a_difference(ends: list[float | str]) -> None:
    """Of the 252 ways to choose five of ten, two are as far out."""
    made, found = lost(layernorm=BASE, dyt=ends)
    (one,) = found.losses
    assert one.real and one.corrected == pytest.approx(2 / 252) and one.family == 1
    assert one.lost == (5, 0) and one.runs == (5, 5)
    told = said(made, found.differences, found.losses)
    (sentence,) = [text for text in told if "less often" in text]
    assert sentence.startswith("dyt trains less often than layernorm: 5 of 5 runs ")
    assert sentence.endswith(", against none of 5.")
    assert "Lost runs, dyt and layernorm: Fisher's exact test, p = 0.008." in told


def test_lost_runs_that_more_learning_rates_make_uncertain_are_said_to_be() -> None:
    made, _ = lost(layernorm=BASE, dyt=["diverged"] * 5)
    layernorm, dyt = made.arms
    found = make_tests(made, [layernorm, replace(dyt, rates_tried=20)], {"norm": "layernorm"}, LOSS)
    (sentence,) = [text for text in said(made, (), found.losses) if "less often" in text]
    assert sentence.startswith("dyt may train less often than layernorm: ")
    assert sentence.endswith("; not certain after correction for more learning rates.")


def test_so_few_lost_runs_that_none_could_be_shown_are_not_tested() -> None:
    _, found = lost(layernorm=BASE, dyt=["diverged", "diverged", *BASE[2:]])
    assert [one.p_before_holm for one in found.losses] == [None] and found.differences[0].family == 1
    for fewer in range(6):
        ways = [fisher_p((one, fewer - one), (5, 5)) for one in range(fewer + 1)]
        assert least_fisher_p((0, fewer), (5, 5)) == pytest.approx(min(ways))


@pytest.mark.parametrize(
    ("name", "stuck", "finished", "start"),
    [
        ("all runs", 1, 1, "the one run did not train: its validation loss"),
        ("all runs", 3, 3, "each of the 3 runs did not train: their validation loss"),
        ("all runs", 2, 3, "2 of 3 runs did not train: their validation loss"),
        ("rmsnorm", 2, 3, "rmsnorm did not train in 2 of 3 runs: its validation loss"),
    ],
)
def test_runs_of_which_nothing_varies_have_no_name(name: str, stuck: int, finished: int, start: str) -> None:
    """`all runs did not train` could mean one of them."""
    runs = tuple(Stuck(str(number), 3.0, 3.1, None) for number in range(stuck))
    statuses = {"finished": finished, "diverged": 1, "failed": 1}
    arm = ArmResult(name, {}, name, (0,), statuses, False, runs, ())
    (text,) = say_stuck({name: arm})
    assert text.startswith(start)
    assert all(name not in text for text in [*say_diverged([arm]), *say_lost([arm])]) == (name == "all runs")
    assert name not in say_why([Cause(name, None, ())])[0] or name == "rmsnorm"


def test_runs_in_two_groups_have_no_interval() -> None:
    made, found = lost(layernorm=BASE, dyt=[2.01, 2.49, 2.04, 2.5, 2.03])
    (one,) = found.differences
    assert one.p is one.interval is one.effect_size is one.detectable is one.p_before_holm is None and not one.real
    told = "\n".join(said(made, found.differences))
    assert "no mean, interval or p is given, as the runs of dyt end in two groups far apart: 3 of 5 trained" in told
    assert one.ranked_p is None and rows([one]) == [("dyt", "5", "two groups")]
    _, near = lost(layernorm=BASE, dyt=[2.34, 2.36, 2.37, 2.3, 2.39])  # about the bound of 2.375, in one group
    assert near.differences[0].interval is not None


# ---- how sure


def test_what_few_seeds_assume_is_said_and_signed_ranks_stand_beside() -> None:
    made = RecordedStudy((), (arm(BASE, norm="layernorm"), arm(WORSE, norm="dyt")), ("norm",))
    told = said(made, comparisons({"dyt": WORSE}))
    assert "; signed ranks 0.062." in told[1] and "hold where differences by seed are Gaussian" in told[2]
    assert "with five ranks or fewer its p cannot be below 0.05" in told[2]
    found = comparisons({"dyt": [*WORSE, "diverged"]}, [*BASE, 2.0])  # the lost run is the sixth rank
    told = said(made, found)
    assert "; signed ranks 0.031." in told[1] and "Gaussian" in told[2] and "cannot be below" not in told[2]
    many = [2.0 + 0.01 * seed for seed in range(10)]
    found = comparisons({"dyt": [loss + 0.1 + 0.001 * (loss % 0.03) for loss in many]}, many)
    assert [text for text in said(made, found) if "Gaussian" in text or "ranks" in text] == []


def test_one_seed_that_decides_is_named() -> None:
    certain = shifted(0.05, 0.09, 0.002, 0.08, 0.07)
    (one,) = comparisons({"dyt": certain})
    assert one.deciding
    seed, p = one.deciding.seed, one.deciding.p
    others = [place for place in range(5) if place != seed]
    values = np.array(certain) - BASE
    assert one.real and p == pytest.approx(stats.ttest_1samp(values[others], 0).pvalue) and p >= 0.05
    assert f"; it rests on seed {seed}, without which it would not be certain: look at its run." in details([one])
    outlier = shifted(0.01, 0.012, 0.009, 0.011, 0.5)
    (one,) = comparisons({"dyt": outlier})
    assert details([one]) == "dyt and layernorm: it rests on seed 4, an outlier: look at its run."
    assert "seed 4" not in words([one])
    assert comparisons({"dyt": WORSE})[0].deciding is None


# ---- learning rates


def rates(**results: Sequence[float | str]) -> RecordedStudy:
    """Arms by norm and learning rate, `layernorm_3` at 0.003."""
    arms = []
    for name, own in results.items():
        norm, _, rate = name.partition("_")
        arms.append(arm(own, norm=norm, **{"optim.lr": float(rate) / 1000}))
    return RecordedStudy((), tuple(arms), ("norm", "optim.lr"), ())


def test_a_run_that_is_still_going_does_not_make_its_rate_lose() -> None:
    study = rates(layernorm_1=[2.0, 2.1], layernorm_3=[1.5, 1.6], rmsnorm_1=[2.0, 2.1], rmsnorm_3=[1.5, "running"])
    arms, chosen = choose_contenders(study, {"norm": "layernorm"})
    assert chosen and [one.runs[0].summary["metrics"]["loss/val"] for one in arms] == [1.5, 1.5]
    (caveat,) = open_rates(Case(study))
    assert caveat.serious and caveat.text.endswith("not final, as lr 0.003 lacks seed 1")
    assert [(one.value, one.arms, one.seeds) for one in caveat.found] == [("0.003", ("rmsnorm",), (1,))]


def test_a_rate_is_chosen_by_fewest_losses_then_over_the_seeds_that_all_have_ended() -> None:
    for lost in ("diverged", "out_of_memory"):
        study = rates(layernorm_1=[2.0, 2.1], layernorm_3=[1.5, lost])
        assert best_rate(study.arms).settings["optim.lr"] == 1e-3 and not list(open_rates(Case(study)))
    study = rates(layernorm_1=[2.0, 1.0, "failed"], layernorm_3=[1.9, "interrupted", 3.0], layernorm_10=["running"])
    assert best_rate(study.arms).settings["optim.lr"] == 3e-3  # by seed 0, the only one of both


# ---- the baseline


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (["groupnorm deep", "groupnorm post", "layernorm deep", "layernorm post"], {"norm": "layernorm"}),
        (["layernorm pre", "rmsnorm post"], {"norm": "layernorm", "placement": "pre"}),
        (["dyt post", "rmsnorm deep"], {"norm": "dyt", "placement": "post"}),
        (["layernorm own", "own own"], {"norm": "own"}),
    ],
)
def test_the_usual_baseline_is_what_is_there_of_it(cells: list[str], wanted: dict[str, str]) -> None:
    arms = tuple(arm([2.0], **dict(zip(("norm", "placement"), cell.split(), strict=True))) for cell in cells)
    assert usual_baseline(RecordedStudy((), arms, ("norm", "placement"))) == wanted


def test_small_validation_sets_say_their_own_uncertainty() -> None:
    """Of 297 digits one image is 0.34 points; the standard error of 98 % of them is √(0.98·0.02 / 297) = 0.8 points."""
    arms = [arm([98.0, 98.3], ACCURACY, norm=norm) for norm in ("layernorm", "rmsnorm")]
    found = compare_all(arms, {"norm": "layernorm"}, ACCURACY)
    arms[0].runs[0].sessions[0]["data"] = {"val_images": 297}
    (one,) = few_examples(case_of(arms, found))
    (evidence,) = one.found
    standard_error = (0.98 * 0.02 / 297) ** 0.5
    assert evidence.arms == ("layernorm",)
    assert evidence.numbers == pytest.approx({"examples": 297, "accuracy": 0.98, "standard_error": standard_error})
    assert "each of which counts 0.34 points" in one.text and "98.0 % would differ by about 0.8 points" in one.text
    arms[0].runs[0].sessions[0]["data"] = {"val_images": 50_000}
    assert not [*few_examples(case_of(arms, found))] and not [
        *few_examples(case_of(arms, comparisons({"rmsnorm": BASE})))
    ]


def test_an_outlier_is_warned_of_with_the_test_of_ranks_beside() -> None:
    base = [2.0 + 0.01 * seed for seed in range(6)]
    ours = [loss + more for loss, more in zip(base, (0.01, 0.012, 0.009, 0.011, 0.01, 0.5), strict=True)]
    (one,) = skewed_differences(case_of([], comparisons({"rmsnorm": ours}, base)))
    assert one.found[0].arms == ("rmsnorm", "layernorm")
    assert one.found[0].numbers == {"ranks": 6, "ranked_p": pytest.approx(2 / 2**6)}
    assert one.text.endswith("the test of signed ranks gives p = 0.031")
    (one,) = skewed_differences(case_of([], comparisons({"rmsnorm": ours[1:]}, base[1:])))
    assert one.found[0].numbers == {"ranks": 5, "ranked_p": pytest.approx(2 / 2**5)}
    assert one.text.endswith("gives p = 0.062, and cannot give less than 0.05 with fewer than 6 seeds")
    (one,) = skewed_differences(case_of([], comparisons({"rmsnorm": ["diverged", *ours[1:]]}, base)))
    assert one.found[0].numbers["ranks"] == 6  # the lost run is the last one


def test_an_arm_with_more_rates_to_choose_from_is_named_and_its_p_corrected() -> None:
    layernorm, dyt = arm(BASE, norm="layernorm"), replace(arm(WORSE, norm="dyt"), rates_tried=4)
    found = correct(compare_all([layernorm, dyt], {"norm": "layernorm"}, LOSS))
    assert found[0].p is not None and found[0].corrected == pytest.approx(4 * found[0].p)
    (one,) = unequal_choices(case_of([layernorm, dyt], found))
    assert [(side.arms[0], side.numbers["rates"]) for side in one.found] == [("dyt", 4), ("layernorm", 1)]
    assert one.text.endswith(", so p is multiplied by 4")
    assert [*unequal_choices(case_of([layernorm, replace(dyt, rates_tried=1)], comparisons({"dyt": WORSE})))] == []
    many = correct(compare_all([layernorm, replace(dyt, rates_tried=100_000)], {"norm": "layernorm"}, LOSS))
    assert words(many).endswith("; not certain after correction for more learning rates: repeat it with new seeds.")
    assert "; after correction for more learning rates p = 0.930; signed ranks " in details(many)


def test_effect_sizes_are_capped() -> None:
    assert [effect_size(size) for size in (None, 1.234, 10.5, -412.0)] == ["–", "+1.23", "> 10", "< −10"]


def test_p_is_not_rounded_over_the_level_and_bounds_have_no_exponent() -> None:
    chances = {0.0497: "0.0497", 0.0503: "0.050", 0.0009: "< 0.001", 1.0: "1.000"}
    assert {p: p_value(p) for p in chances} == chances
    bounds = {1.23e-5: "0.000013", 2e-5: "0.00002", 1e-7: "0.0000001", 0.0123: "0.013"}
    assert {value: bound(value) for value in bounds} == bounds


def test_a_unit_of_1_is_in_the_singular() -> None:
    assert [with_unit("1", unit) for unit in ("doublings", "percentage points", "nats", "")] == [
        "1 doubling",
        "1 percentage point",
        "1 nat",
        "1",
    ]
    assert with_unit("1.0", "nats") == "1.0 nats"


def test_an_estimate_has_the_digits_that_its_interval_gives_it() -> None:
    assert estimate(-0.4894, (-0.629, -0.35)) == ("−0.49", "−0.63 to −0.35")
    assert estimate(0.1, (0.09, 0.11), sign=True) == ("+0.100", "+0.090 to +0.110")
    assert estimate(2.0, None) == ("2.0", "–")
    assert estimate(2.0, (1e-30, 1e40)) == ("2", "1e−30 to 1e+40")


def test_numbers_of_one_kind_are_written_in_one_way() -> None:
    assert [short(value) for value in (0.03, 1e-9, -0.5, 0.0, 3e6)] == ["0.03", "1e-9", "−0.5", "0", "3e6"]
    assert [compact(value) for value in (0.12345, -1.2e-5, float("nan"))] == ["0.123", "−1.2e−05", "–"]
    assert [percent(share) for share in (0.05, 0.987, 1.0, float("nan"))] == ["5 %", "99 %", "100 %", "–"]
    assert [count(number, "run") for number in (1, 2, 1234)] == ["1 run", "2 runs", "1,234 runs"]
    assert [list_words([*"abc"][:number]) for number in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
