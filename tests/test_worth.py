"""What a difference in loss is worth in steps and time: by hand, by simulation, in reports and on claims."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim_documents import make_page
from conftest import draw_for_pages_alone
from made_claims import NOW, claims_and_digests, complete
from made_runs import make_report, make_run, make_study
from scipy import stats
from scipy.interpolate import interp1d

from normbench.claims.files import load_result, write_result
from normbench.claims.page import write_page
from normbench.claims.suite import read_suite
from normbench.evidence.arms import Arm
from normbench.evidence.run import Curve, RecordedRun
from normbench.results.answer import Answer
from normbench.results.effects import ArmValue, Descent, EffectError, doublings_of_steps, parse_effect
from normbench.results.worth import Worth, worth_of
from normbench.tell.claim_sentences import write_outcome
from normbench.tell.worth import list_limits, say_unreached, write_worth

STEPS = np.linspace(50, 500, 10)
STUDIES = 10_000


def run(seed: int, losses: Sequence[float], ms: float = 10.0, status: str = "finished", **config: Any) -> RecordedRun:
    """A run in memory that was evaluated on the same data each time."""
    curve = Curve(STEPS.astype(int)[: len(losses)], np.array(losses))
    session = {"task": {"kind": "language_model", "num_classes": 65}, "data": {}, "cpu": "Xeon", "threads": 1}
    about = {"metrics": {"loss/val": losses[-1]}, "step_time": {"median_ms": ms, "n": 490}, "stack": 1}
    curves = {"loss/val": curve}
    path = Path(str(seed))
    return RecordedRun(str(seed), path, status, 500, 500, "", seed, config, about, [session], curves, False)


def falling(end: float, power: float = 0.35) -> np.ndarray:
    """A loss that falls as a power of the step, and ends there."""
    return end + 9 * (STEPS**-power - STEPS[-1] ** -power)


def arm(name: str, ends: Sequence[float], ms: Sequence[float] | float = 10.0, **config: Any) -> Arm:
    times = ms if isinstance(ms, Sequence) else [ms] * len(ends)
    pairs = enumerate(zip(ends, times, strict=True))
    runs = [run(seed, falling(end).tolist(), time, **config) for seed, (end, time) in pairs]
    return Arm({"norm": name}, tuple(runs))


def test_a_loss_that_is_met_twice_is_worth_nothing() -> None:
    """Both fall to 2.2 and overfit to ends 0.5 nats apart: on the way down the higher end is met at the same step."""
    ways_down = [3.5, 2.8, 2.2]
    overfit = [Arm({"norm": name}, (run(0, [*ways_down, end]),)) for name, end in (("rms", 2.4), ("ln", 2.9))]
    assert "the loss of rms rises again towards the end" in worth_of(overfit[0], overfit[1]).reason
    noisy = Arm({"norm": "rms"}, (run(0, [*ways_down, 2.21]),))  # as evaluations differ
    assert not worth_of(noisy, noisy).reason


# ---- by hand


def test_steps_between_evaluations_are_on_a_line_over_their_logarithm() -> None:
    losses = falling(2.0)
    descent = Descent(STEPS.tolist(), losses.tolist(), 500)
    step_of = interp1d(losses[::-1], np.log(STEPS)[::-1])  # scipy's, of a curve without noise
    for target in (2.001, 2.05, 2.31, losses[3], losses[-1]):
        assert descent.steps_to(target) == pytest.approx(math.exp(step_of(target)), rel=1e-12)
    assert descent.steps_to(losses[0] + 1) == 50 and descent.steps_to(1.99) is None
    # With noise it is the first crossing, and the steps of registered claims are those of evaluations, as they were.
    noisy = Descent([10, 20, 40, 80], [3.0, 2.0, 2.5, 1.5], 80)
    assert noisy.steps_to(2.5) == pytest.approx(10 * 2**0.5) and noisy.steps_to(1.5) == pytest.approx(80)
    assert noisy.first_step(2.4) == 20


def test_the_loss_is_the_one_that_both_come_down_to() -> None:
    better, worse = (Descent(STEPS.tolist(), falling(end).tolist(), 500) for end in (1.95, 2.0))
    # The curve of an arm that is better by 0.05 nats passes the other's last loss where 9·s^−p has that much to fall.
    inside = interp1d(falling(1.95)[::-1], np.log(STEPS)[::-1])(2.0)
    expected = (float(inside) - math.log(500)) / math.log(2)
    assert doublings_of_steps(better, worse) == pytest.approx(expected)
    assert doublings_of_steps(worse, better) == pytest.approx(-expected)
    assert doublings_of_steps(worse, worse) == 0
    points = {"a": [ArmValue(0, {}, 1.95, better)], "b": [ArmValue(0, {}, 2.0, worse)]}
    forth = parse_effect("speedup(a, b)", ["a", "b"]).of(points)
    assert forth.values == {0: pytest.approx(-expected)} and not forth.unreached
    assert parse_effect("speedup(b, a)", ["a", "b"]).of(points).values == {0: pytest.approx(expected)}
    points["a"] = [ArmValue(0, {}, 1.95, Descent([500], [1.95], 500))]
    with pytest.raises(EffectError, match=r"speedup\(\) needs evaluations on the way, and a has 1"):
        parse_effect("speedup(a, b)", ["a", "b"]).of(points)
    for evaluations in (1, 4):  # of 500 steps, after which the run was lost: what both came down to is no effect of 0
        lost = Descent(STEPS.tolist()[:evaluations], falling(1.95).tolist()[:evaluations], 500, is_lost=True)
        points["a"] = [ArmValue(0, {}, 9.0, lost)]
        for effect in ("speedup(a, b)", "speedup(b, a)"):
            assert math.isnan(parse_effect(effect, ["a", "b"]).of(points).values[0])
    # Evaluations on other data than those on the way, as the last one is, are none of these: the run is whole without.
    points["a"] = [ArmValue(0, {}, 1.95, Descent(STEPS.tolist()[:-1], falling(1.95).tolist()[:-1], 500))]
    assert math.isfinite(parse_effect("speedup(a, b)", ["a", "b"]).of(points).values[0])


def test_a_worth_is_a_geometric_mean_with_a_t_interval_and_the_price_of_a_step() -> None:
    ends, base = [1.96, 1.99, 2.03, 1.97], [2.0, 2.01, 2.02, 2.0]
    ms, ms_base = [9.0, 9.2, 9.1, 8.8], [10.0, 10.2, 9.9, 10.1]
    worth = worth_of(arm("rmsnorm", ends, ms), arm("layernorm", base, ms_base))
    logarithms = []
    for end, other in zip(ends, base, strict=True):
        target = max(end, other)
        steps = [math.log(500)] * 2
        for place, last in enumerate((end, other)):
            if last < target:
                steps[place] = float(interp1d(falling(last)[::-1], np.log(STEPS)[::-1])(target))
        logarithms.append(steps[0] - steps[1])
    times = np.array(logarithms) + np.log(np.divide(ms, ms_base))
    for ratio, by_hand in ((worth.of_steps, logarithms), (worth.of_time, times)):
        assert ratio is not None and ratio.interval is not None
        assert ratio.mean == pytest.approx(stats.gmean(np.exp(by_hand)))
        fitted = stats.ttest_1samp(by_hand, 0).confidence_interval()
        assert ratio.interval == pytest.approx(np.exp([fitted.low, fitted.high]))
    assert worth.of_step_time is not None
    assert worth.of_step_time.mean == pytest.approx(stats.gmean(np.divide(ms, ms_base)))
    assert worth.unreached == (2,) and worth.bounds == () and worth.lost == () and not worth.no_time
    assert "At 1 of 4 seeds rmsnorm does not come down to the last loss of layernorm" in say_unreached(worth)


def test_what_is_no_basis_is_told() -> None:
    base = arm("layernorm", [2.0, 2.1, 2.2])
    plain = worth_of(arm("rmsnorm", [2.0, 2.1, 2.3]), base)
    assert plain.no_time == "" and len(plain.price) == 3 and list_limits([plain]) == []

    def no_time_of(changed: Arm) -> str:
        worth = worth_of(changed, base)
        assert worth.steps == plain.steps and worth.price == () and worth.of_time is None
        assert "the steps to the same loss" in write_worth(worth) and "time" not in write_worth(worth)
        return worth.no_time

    same = arm("rmsnorm", [2.0, 2.1, 2.3])
    stacked = [replace(one, summary={**one.summary, "stack": 3}) for one in same.runs]
    assert "trained together as one model" in no_time_of(replace(same, runs=tuple(stacked)))
    elsewhere = [replace(one, sessions=[{**one.session, "cpu": "EPYC"}]) for one in same.runs]
    assert "across processors" in no_time_of(replace(same, runs=tuple(elsewhere)))
    assert "3.0-fold between seeds of rmsnorm" in no_time_of(arm("rmsnorm", [2.0, 2.1, 2.3], [10.0, 10.0, 30.0]))
    untimed = [replace(one, summary={**one.summary, "step_time": {"median_ms": None, "n": 1}}) for one in same.runs]
    assert "not all runs have a step time" in no_time_of(replace(same, runs=tuple(untimed)))
    few = [replace(one, summary={**one.summary, "step_time": {"median_ms": 10.0, "n": 9}}) for one in same.runs]
    assert "fewer than 10 steps" in no_time_of(replace(same, runs=tuple(few)))


def test_arms_of_which_nothing_can_be_said() -> None:
    base = arm("layernorm", [2.0, 2.1])
    other_batches = worth_of(arm("rmsnorm", [2.0, 2.1], **{"data.batch_size": 8}), base)
    assert "differ in data.batch_size" in other_batches.reason and write_worth(other_batches) == "–"
    once = Arm({"norm": "rmsnorm"}, tuple(run(seed, [2.0]) for seed in (0, 1)))
    assert "two evaluations" in worth_of(once, base).reason
    # A run that is lost is counted, and what is left is the other seeds'.
    whole = arm("rmsnorm", [2.0, 2.1])
    lost = replace(whole, runs=(whole.runs[0], replace(whole.runs[1], status="diverged")))
    worth = worth_of(lost, base)
    assert worth.seeds == (0,) and worth.lost == (1,) and worth.of_steps and worth.of_steps.interval is None
    assert list_limits([worth]) == ["rmsnorm: seeds at which one of the two did not finish are left out."]
    # One that is there at its first evaluation may have been there before.
    fast = worth_of(arm("dyt", [0.5, 0.5]), base)
    assert fast.bounds == (0, 1) and fast.of_steps is not None and fast.of_steps.mean == pytest.approx(0.1)
    with pytest.raises(ValueError, match="one ratio a seed, not 1 of 2"):
        Worth("a", "b", seeds=(0, 1), steps=(0.5,))
    with pytest.raises(ValueError, match="seeds that it does not have"):
        Worth("a", "b", seeds=(0,), steps=(0.5,), unreached=(3,))


# ---- by simulation


def draw(random: np.random.Generator, n: int, speed: float, wiggle: float, luck: np.ndarray) -> np.ndarray:
    """Curves of an arm, (studies, seeds, evaluations), each with noise of its own; it takes 1 / speed of the steps."""
    own = 0.012 * random.standard_normal((STUDIES, n, 1))
    noise = wiggle * random.standard_normal((STUDIES, n, len(STEPS)))
    return 1.5 + 9 * (STEPS * speed) ** -0.35 + luck + own + noise


def logarithms(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """What `doublings_of_steps` gives, (studies, seeds), on all at once."""
    target = np.maximum(one[..., -1], other[..., -1])
    places = []
    for losses in (one, other):
        first = (losses <= target[..., None]).argmax(-1)
        before = np.maximum(first - 1, 0)
        below = np.take_along_axis(losses, first[..., None], -1)[..., 0]
        above = np.take_along_axis(losses, before[..., None], -1)[..., 0]
        share = np.where(first == 0, 1.0, (above - target) / np.where(first == 0, 1.0, above - below))
        log = np.log2(STEPS)
        places.append(log[before] + share * (log[first] - log[before]))
    return np.asarray(places[0] - places[1])


def excluding(values: np.ndarray, truth: float = 0.0) -> float:
    """The share of studies whose 95 % interval does not have the truth in it; values that are NaN are left out."""
    return float((stats.ttest_1samp(values, truth, axis=1, nan_policy="omit").pvalue < 0.05).mean())


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("wiggle", [0.0, 0.004, 0.02])
def test_equal_arms_are_worth_the_same_in_19_of_20_studies(n: int, wiggle: float, tell: Callable[[str], None]) -> None:
    random = np.random.default_rng(4)
    luck = 0.02 * random.standard_normal((STUDIES, n, 1))
    share = excluding(logarithms(*(draw(random, n, 1.0, wiggle, luck) for _ in range(2))))
    tell(f"{n} seeds, evaluations with noise of {wiggle}: {share:.1%} of equal arms are told apart")
    assert share <= 0.055


@pytest.mark.parametrize("speed", [0.8, 0.9, 1.1, 1.25])
def test_a_ratio_of_steps_is_the_true_one(speed: float, tell: Callable[[str], None]) -> None:
    random = np.random.default_rng(6)
    luck = 0.02 * random.standard_normal((STUDIES, 10, 1))
    found = logarithms(draw(random, 10, speed, 0.004, luck), draw(random, 10, 1.0, 0.004, luck))
    mean, share = 2 ** found.mean(), excluding(found, -math.log2(speed))
    tell(f"an arm that takes {1 / speed:.3f} of the steps: {mean:.3f}, and {share:.1%} of intervals do not have it")
    assert mean == pytest.approx(1 / speed, rel=0.01) and share <= 0.07


def test_simulated_worths_are_those_of_the_package() -> None:
    random = np.random.default_rng(0)
    luck = 0.02 * random.standard_normal((STUDIES, 10, 1))
    pair = [draw(random, 10, speed, 0.02, luck)[0] for speed in (1.1, 1.0)]
    sides = []
    for name, curves in zip(("rmsnorm", "layernorm"), pair, strict=True):
        runs = [run(seed, losses.tolist()) for seed, losses in enumerate(curves)]
        sides.append(Arm({"norm": name}, tuple(runs)))
    assert worth_of(*sides).steps == pytest.approx(logarithms(*(curves[None] for curves in pair))[0])


def test_leaving_out_seeds_that_end_above_would_tell_equal_arms_apart(tell: Callable[[str], None]) -> None:
    """And so would the length of the run in place of the steps that they would take."""
    random = np.random.default_rng(1)
    luck = 0.02 * random.standard_normal((STUDIES, 10, 1))
    one, other = (draw(random, 10, 1.0, 0.004, luck) for _ in range(2))
    found = logarithms(one, other)
    is_above = one[..., -1] > other[..., -1]
    has_two = (~is_above).sum(1) > 1
    left_out = excluding(np.where(is_above, np.nan, found)[has_two])
    cut = excluding(np.where(is_above, 0.0, found))
    tell(f"{left_out:.0%} of equal arms are told apart without seeds that end above, {cut:.0%} with a bound for them")
    assert 0.5 < left_out < 0.75 and 0.35 < cut < 0.6


# ---- in reports


def rows_of(report: Any, key: str) -> list[dict[str, str]]:
    (table,) = (one for one in report.tables if one.key == key)
    return [dict(zip(table.frame.columns, row, strict=True)) for row in table.rows]


def test_a_report_has_it_beside_the_difference(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for norm, end, ms in (("layernorm", 2.0, 10.0), ("rmsnorm", 2.02, 8.0)):
        for seed in range(4):
            noise = random.standard_normal(2)
            make_run(tmp_path, norm=norm, seed=seed, final=end + 0.003 * noise[0], step_ms=ms + 0.05 * noise[1])
    report = make_report([tmp_path])
    (worth,) = report.answer.worth
    assert worth.of_steps and worth.of_time and worth.of_steps.mean > 1 > worth.of_time.mean
    assert (worth.arm, worth.baseline, worth.unreached) == ("rmsnorm", "layernorm", (0, 1, 2, 3))
    (row,) = rows_of(report, "worth")
    assert row["seeds that end above the baseline"] == "4" and row["step time, ×"] == "0.799"
    text = report.answer.to_json()
    assert json.loads(text)["worth"][0]["of_time"]["mean"] == worth.of_time.mean
    assert Answer.from_json(text) == report.answer
    older = json.loads(text)
    del older["worth"]
    assert Answer.from_json(json.dumps(older)).worth == ()


def test_a_report_of_stacks_has_steps_alone(tmp_path: Path) -> None:
    ends = {"layernorm": [2.0, 2.1], "rmsnorm": [2.01, 2.12]}
    make_study(tmp_path, ends, summary={"stack": 2})
    report = make_report([tmp_path])
    (row,) = rows_of(report, "worth")
    assert "steps to the same loss, ×" in row and "time to the same loss, ×" not in row
    (table,) = (one for one in report.tables if one.key == "worth")
    assert any("times are no basis, as seeds were trained together" in note for note in table.notes)


# ---- on claims


def test_claims_have_it_in_their_files_and_a_changed_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_for_pages_alone(monkeypatch)
    claims, digests = claims_and_digests()
    ten = tuple(range(10))
    steps = tuple(-0.05 + 0.01 * (seed - 4.5) for seed in ten)
    price = tuple(0.02 + 0.001 * (seed - 4.5) for seed in ten)
    worth = Worth("one", "two", ten, steps, price, unreached=(9,))
    path = tmp_path / "larger" / "claim.json"
    path.parent.mkdir()
    write_result(complete("larger", claims["larger"], 0.03, digest=NOW, worth=worth), path)
    result = load_result(path)
    assert result.worth == worth
    whole = json.loads(path.read_text())
    assert whole["worth"]["of_steps"]["mean"] == pytest.approx(stats.gmean(np.exp2(steps)))
    write_page(tmp_path, claims, digests)
    page = (tmp_path / "claims.html").read_text()
    said = "one against two: 0.979 × the time to the same loss (95 %: 0.9"
    assert said in page and "does not come down to the last loss of two" in page
    assert said in write_outcome(result, "small")
    documented = make_page(read_suite(tmp_path, claims, digests, []), [])
    assert f"| `larger` | {said}" in documented and "At 1 of 10 seeds one does not come down" in documented
    row = (tmp_path / "claims.csv").read_text()
    assert "time_ratio" in row and "0.979" in row
    for key, value in (("of_time", None), ("n", 9), ("steps", [0.0] * 10), ("unreached", [12]), ("arm", "three")):
        changed = json.loads(json.dumps(whole))
        changed["worth"][key] = value
        del changed["digests"]
        path.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match="larger"):
            load_result(path)
