"""Claims: effects and YAMLs as they are read, and small claims that are run, stopped, verified and registered again."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import draw_for_pages_alone
from killing import Server, Trap
from scipy import stats
from support import REPOSITORY

from normbench.claims.checks import PlannedPoint, check_claim, check_tag
from normbench.claims.claim import Claim, read_claims
from normbench.claims.files import read_result
from normbench.claims.measuring import StudyRows, measure_rows, points_of_run
from normbench.claims.registering import register
from normbench.claims.registration import why_unregistered
from normbench.claims.run import ClaimRun, Cost, choose_within
from normbench.claims.suite import Way
from normbench.claims.verify import Verification, verify
from normbench.cli import main
from normbench.errors import UsageError
from normbench.evidence.run import Curve, RecordedRun
from normbench.record.digests import write_with_digests
from normbench.results.effects import ArmValue, Descent, EffectError, parse_effect
from normbench.sweep.folder import Entry

pytest_plugins = ["run_fixtures"]

WORDS = [
    "model=nano", "model.depth=2", "model.width=16", "model.heads=2", "model.context=16", "data=pydocs",
    "data.batch_size=4", "data.eval_batch_size=128", "trainer.eval_batches=1", "trainer.steps=3", "trainer.log_every=1",
    "probes=off", "norm=rmsnorm,layernorm",
]  # fmt: skip
MACHINE = ["device=cpu", "threads=1", "launcher=local"]

TINY: dict[str, Any] = {
    "claim": "RMSNorm is as good as LayerNorm",
    "source": "Zhang & Sennrich 2019",
    "published": "BLEU within 0.6",
    "registered": None,
    "words": WORDS,
    "seeds": 2,
    "arms": {"rms": "norm=rmsnorm", "ln": "norm=layernorm"},
    "measure": "loss/val",
    "effect": "ln - rms",
    "kind": "parity",
    "margin": 1000,
    "unit": "nats",
    "minutes": 1,
    "scope": "nothing",
}


def write_claim(folder: Path, name: str = "tiny", **changes: Any) -> Path:
    """Write the YAML of a claim, which is JSON: a key a line; what is changed to ... is left out."""
    path = folder / "conf" / "claim" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {key: value for key, value in (TINY | changes).items() if value is not ...}
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in content.items()) + "\n")
    return path


def read_one(folder: Path, name: str = "tiny") -> Claim:
    return read_claims([folder / "conf"])[name]


def complaint(folder: Path, **changes: Any) -> str:
    """What is said of a claim with changes before it is run."""
    write_claim(folder, **changes)
    with pytest.raises(UsageError) as caught:
        check_claim(read_one(folder), [0, 1])
    return str(caught.value)


def write_rows(path: Path, effects: Sequence[float], commit: str = "fa7f780aa0011") -> None:
    """Write the rows of a study, of two arms that differ by an effect for each seed, as a study leaves them.

    commit: of the code that has measured them.
    """
    lines = ["norm,seed,loss"]
    for seed, effect in enumerate(effects):
        lines += [f"rmsnorm,{seed},1.0", f"layernorm,{seed},{1 + effect}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    machine = {"cpu": "Xeon", "cores": 2, "packages": {"torch": "2.13.0"}, "commit": commit}
    write_with_digests(path.with_name("study.json"), {"session": machine}, ["rows.csv", "study.json"])


# ---- effects


def effect_of(text: str, points: dict[str, list[ArmValue]]) -> float:
    """The effect of points, all of seed 0."""
    values = parse_effect(text, [*points]).of(points).values
    assert [*values] == [0]
    return values[0]


def test_effects_compute_what_their_expressions_say() -> None:
    points = {"a": [ArmValue(0, {}, 3.0)], "b": [ArmValue(0, {}, 2.0)], "c": [ArmValue(0, {}, 0.5)]}
    expected = {
        "a - b": 1.0,
        "-(a + b) * 2 / c": -20.0,
        "log(a / b)": math.log(1.5),
        "log2(a) - abs(b - a)": math.log2(3) - 1,
        "min(a, b) + max(b, c)": 4.0,
        "mean(a, b, c)": 5.5 / 3,
        "kendall(a, b, c)": stats.kendalltau([0, 1, 2], [3.0, 2.0, 0.5]).statistic,
        "kendall(c, b, b, a)": stats.kendalltau([0, 1, 2, 3], [0.5, 2.0, 2.0, 3.0]).statistic,
        "kendall(a, a, a)": 0.0,
    }
    for text, value in expected.items():
        assert effect_of(text, points) == pytest.approx(value, rel=1e-15)


def test_an_effect_has_a_value_for_each_seed_whatever_the_order_of_its_points() -> None:
    points = {
        "a": [ArmValue(0, {"n": "2"}, 3.0), ArmValue(1, {"n": "2"}, 4.0), ArmValue(2, {"n": "2"}, 1.0)],
        "b": [ArmValue(2, {"m": "8"}, 1.0), ArmValue(0, {"m": "8"}, 2.0), ArmValue(1, {"m": "8"}, 1.0)],
    }
    assert parse_effect("a - b", ["a", "b"]).of(points).values == {0: 1.0, 1: 3.0, 2: 0.0}
    # Where a function is not defined there is no value, and there is one at all other seeds.
    for text in ("log(a - b)", "1 / (a - b)", "max(log(a - b), a - b)", "mean(log(a - b), a)"):
        values = parse_effect(text, ["a", "b"]).of(points).values
        assert [math.isfinite(value) for value in values.values()] == [True, True, False], text
    points["b"].pop()
    with pytest.raises(EffectError, match="not all arms have a value at seed 1"):
        parse_effect("a - b", ["a", "b"]).of(points)


def test_slopes_and_means_go_over_the_keys_that_arms_leave_open() -> None:
    sizes = [2, 8, 32]
    values = {"bn": [0.4, 0.1, 0.3], "gn": [0.2, 0.25, 0.15]}
    points = {}
    for arm, own in values.items():
        points[arm] = [
            ArmValue(0, {"data.batch_size": str(size)}, value) for size, value in zip(sizes, own, strict=True)
        ]
    difference = np.subtract(values["bn"], values["gn"])
    by_octave = stats.linregress(np.log2(sizes), difference).slope
    assert effect_of("slope(bn - gn, log2(data.batch_size))", points) == pytest.approx(by_octave)
    by_size = stats.linregress(sizes, difference).slope
    assert effect_of("slope(bn - gn, data.batch_size)", points) == pytest.approx(by_size)
    assert effect_of("mean(abs(bn - gn), data.batch_size)", points) == pytest.approx(0.5 / 3)
    assert effect_of("mean(bn) - mean(gn)", points) == pytest.approx(difference.mean())
    with pytest.raises(EffectError, match=r"bn has 3 values .* data\.batch_size"):
        effect_of("bn - gn", points)
    with pytest.raises(EffectError, match=r"model\.depth does not vary"):
        effect_of("slope(bn - gn, model.depth)", points)
    points["gn"].pop()
    with pytest.raises(EffectError, match=r"not all arms have a value at data\.batch_size=32"):
        effect_of("slope(bn - gn, data.batch_size)", points)
    words = {"a": [ArmValue(0, {"norm": name}, 1.0) for name in ("rmsnorm", "layernorm")]}
    with pytest.raises(EffectError, match="slope over norm: norm has the value rmsnorm, which is not a number"):
        effect_of("slope(a, norm)", words)
    with pytest.raises(EffectError, match=r"slope over data\.batch_size needs two values"):
        effect_of("slope(bn, data.batch_size)", {"bn": points["bn"][:1]})


def test_a_slope_over_one_key_may_be_of_means_over_another() -> None:
    points = []
    for seed in (0, 1):
        for depth in (2, 4, 6):
            for block in (0, 1):
                value = (seed + 1) * depth + block  # with blocks whose mean is ½ more
                points.append(ArmValue(seed, {"model.depth": str(depth), "block": str(block)}, float(value)))
    effect = parse_effect("slope(mean(a, block), model.depth)", ["a"])
    assert effect.of({"a": points}).values == pytest.approx({0: 1.0, 1: 2.0})
    both = parse_effect("mean(a, model.depth, block)", ["a"])
    assert both.of({"a": points}).values == pytest.approx({0: 4.5, 1: 8.5})


def test_steps_are_those_to_the_last_loss_of_another_arm() -> None:
    slow = Descent([10, 20, 30], [3.0, 2.5, 2.0], 30)
    fast = Descent([10, 20, 30], [2.4, 2.0, 1.5], 30)
    points = {"slow": [ArmValue(0, {}, 2.0, slow)], "fast": [ArmValue(0, {}, 1.5, fast)]}
    steps = parse_effect("steps(fast, slow)", ["slow", "fast"]).of(points)
    assert steps.values == {0: 20} and not steps.unreached
    # The slow one never comes down to 1.5: the length of the run is a bound, and the effect says so.
    bound = parse_effect("log2(steps(slow, slow) / steps(slow, fast))", ["slow", "fast"]).of(points)
    assert bound.values == {0: 0} and bound.unreached == {"slow": {0}}
    by_depth = {"slow": [ArmValue(7, {"depth": "2"}, 2.0, slow), ArmValue(7, {"depth": "4"}, 2.0, slow)]}
    by_depth["fast"] = [ArmValue(7, {"depth": "2"}, 2.0, slow), ArmValue(7, {"depth": "4"}, 1.5, fast)]
    over_depths = parse_effect("mean(steps(slow, fast), depth)", ["slow", "fast"]).of(by_depth)
    assert over_depths.values == {7: 30} and over_depths.unreached == {"slow": {7}}
    assert not parse_effect("slow - fast", ["slow", "fast"]).of(points).unreached
    by_depth["fast"].pop()
    with pytest.raises(EffectError, match="fast has no value to which slow is compared"):
        parse_effect("mean(steps(slow, fast), depth)", ["slow", "fast"]).of(by_depth)
    with pytest.raises(EffectError, match=r"steps\(\) needs evaluations on the way, and slow has none"):
        effect_of("steps(slow, slow)", {"slow": [ArmValue(0, {}, 2.0)]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a - c", "c is not an arm"),
        ("exp(a) - b", "exp is not a function"),
        ("a ** 2 - b", "a ** 2 is not allowed"),
        ("a -", "is not an expression"),
        ("slope(a - b)", r"slope\(\) has 1 arguments"),
        ("__import__('os').system('x')", "is not allowed"),
        ("1 - 2", "names no arm"),
        ("mean(a - b)", "a - b is not an arm"),
        ("a + slope(2, depth)", "slope and mean are of arms, not of a number"),
        ("slope(a, 3)", "3 is not a key"),
        ("a if b else 1", "is not allowed"),
        ("Add(a, b)", "Add is not a function"),
    ],
)
def test_an_effect_that_cannot_be_read_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(EffectError, match=said.replace("*", r"\*").replace("\\\\", "\\")):
        parse_effect(text, ["a", "b"])


# ---- YAMLs


@pytest.mark.parametrize(
    ("changes", "line", "said"),
    [
        ({"sizes": 3}, 15, "sizes is unknown"),
        ({"kind": "bigger"}, 10, "kind: bigger is not larger, sized, any, parity, at_least, exact or slope"),
        ({"margin": 0}, 11, "margin: 0 is not above 0"),
        ({"margin": -1}, 11, "margin: -1 is not a number from 0"),
        ({"margin": math.nan}, 11, "margin: NaN is not a number from 0"),
        ({"margin": True}, 11, "margin: true is not a number from 0"),
        ({"claim": ["a", "b"]}, 1, "claim: [a,b] is not a text"),
        ({"words": "norm=rmsnorm"}, 5, "words: norm=rmsnorm is not a list of words such as"),
        ({"words": [3]}, 5, "words: [3] is not a list of words such as"),
        ({"seeds": "two"}, 6, "seeds: two is not a number of seeds, or two"),
        ({"registered": "soon"}, 4, "registered: soon is not a date such as 2026-11-28"),
        ({"pilot": {"seeds": 5}}, 15, "pilot.sd is missing: give a number from 0"),
        ({"pilot": {"sd": 0.1, "seed": 5}}, 15, "pilot.seed is unknown: did you mean seeds? keys are sd, seeds"),
        ({"pilot": {"sd": -0.1}}, 15, "pilot.sd: -0.1 is not a number from 0"),
        ({"pilot": 3}, 15, "pilot: 3 is not what a pilot has shown, as {sd: 0.016, seeds: 5}"),
        ({"at_scale": {"hours": "a"}}, 15, "at_scale.hours: a is not a number"),
        ({"at_scale": {"hours": 3}}, 15, "at_scale.words is missing"),
        ({"at_scale": {"words": []}}, 15, "at_scale: words is missing"),
        ({"unit": None, "sizes": None, "scope": None}, 14, "scope is missing: give a text"),
        ({"seeds": [5, 3]}, 6, "seeds: [5,3]"),
        ({"effect": "ln - dyt"}, 9, "dyt is not an arm"),
        ({"effect": "ln"}, 7, "rms is not in the effect"),
        ({"words": [*WORDS, "seed=0,1"]}, 5, "seed=0,1 does not belong here"),
        ({"words": [*WORDS, "layernorm"]}, 5, "layernorm is not KEY=VALUE"),
        ({"words": [*WORDS, "model.deptth=2"]}, 5, "model.deptth is unknown"),
        ({"arms": {"rms": "norm=rmsnorm", "ln": "norm=dyt"}}, 7, "ln fits none of the runs"),
        ({"words": [*WORDS, "placement=pre,post"]}, 9, "which differ in placement"),
        ({"words": [*WORDS, "sweep.exclude='norm=rmsnorm,seed=1'"]}, 7, "rms lacks seed 1"),
        ({"study": "fold"}, 15, "study=fold is unknown"),
        ({"study": "invariance", "measure": "loss"}, 8, "study invariance has no column loss"),
        ({"measure": "los/val"}, 8, "no run logs los/val: "),
        ({"measure": "loss/vall"}, 8, "no run logs loss/vall: "),
        ({"target": 0.5}, 15, "target is for kind: slope"),
        ({"scope": ...}, 1, "scope is missing"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_said_with_file_and_line(tmp_path: Path, changes: dict[str, Any], line: int, said: str) -> None:
    message = complaint(tmp_path, **changes)
    assert message.startswith(f"{tmp_path / 'conf' / 'claim' / 'tiny.yaml'}, line {line}: ")
    assert said in message


def test_every_tag_that_runs_log_may_be_measured(tmp_path: Path) -> None:
    reference = (REPOSITORY / "docs" / "reference.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", reference[reference.index("## What the tags mean") :], re.MULTILINE)
    tags = [tag for row in rows for tag in re.findall(r"`(\w+/[\w./]+)`", row)]
    assert len(tags) > 20 and {"weight/norm", "noise/scale"} <= {*tags}
    ours, theirs = ([PlannedPoint({}, {"data._target_": target}, 0)] for target in ("normbench.data.X", "mine.X"))
    write_claim(tmp_path, measure="f1/val")  # of a task that comes with data of a person's own
    claim = read_one(tmp_path)
    check_tag(claim, theirs)
    with pytest.raises(UsageError, match="no run logs f1/val"):
        check_tag(claim, ours)
    for tag in tags:
        check_tag(replace(claim, measure=tag), ours)


def test_the_command_that_registers_a_claim_is_one_for_a_shell(tmp_path: Path) -> None:
    write_claim(tmp_path / "my folder")
    why = why_unregistered(read_one(tmp_path / "my folder"))
    command = why[why.index("normbench claims") : why.index(" does so")]
    assert shlex.split(command)[2:5] == ["tiny", "--config-dir", str(tmp_path / "my folder" / "conf")]


def test_arms_may_name_what_is_fixed_and_what_is_default(tmp_path: Path) -> None:
    arms = {"rms": "norm=rmsnorm trainer.steps=3", "ln": ["norm=layernorm", "placement=pre"]}
    write_claim(tmp_path, arms=arms, words=[*WORDS, "placement=pre"])
    check_claim(read_one(tmp_path), [0, 1])


def test_rows_of_a_study_are_chosen_by_columns(tmp_path: Path) -> None:
    write_claim(tmp_path, study="depth", measure="loss", where={"of": "folded"}, arms={"rms": "norm=rmsnorm layer=2,3"},
                effect="mean(rms)")  # fmt: skip
    claim = read_one(tmp_path)
    rows = []
    for layer in range(4):
        for of in ("folded", "rounded"):
            rows.append({"norm": "rmsnorm", "seed": "0", "layer": f"{layer}.0", "of": of, "loss": f"{layer}"})
    points = measure_rows(claim, StudyRows(rows, {})).points
    assert claim.effect.of(points).values == {0: 2.5}
    with pytest.raises(UsageError, match=r"line 16: where: study depth has no column of"):
        without = [{key: value for key, value in row.items() if key != "of"} for row in rows]
        measure_rows(claim, StudyRows(without, {}))


def recorded(status: str, **curves: list[float]) -> RecordedRun:
    """A run of which no file is there."""
    logged = {tag: Curve(np.arange(1, len(values) + 1), np.array(values)) for tag, values in curves.items()}
    session = {"task": {"num_classes": 65}, "data": {"constant": {"accuracy/val": 0.25}}}
    summary = {"metrics": {tag: values[-1] for tag, values in curves.items()}}
    return RecordedRun("run", Path("run"), status, 3, 3, "", 0, {}, summary, [session], logged, False)


def test_a_lost_run_counts_as_a_model_before_training(tmp_path: Path) -> None:
    entry = Entry("run", {"norm": "rmsnorm"}, 0, 3, [])
    for measure, value in {"loss/val": math.log(65), "accuracy/val": 25.0, "bleu/val": 0.0}.items():
        write_claim(tmp_path, measure=measure)
        points, is_lost = points_of_run(read_one(tmp_path), recorded("diverged", **{measure: [9.0]}), entry, False)
        assert is_lost
        assert [point.value for point in points] == [pytest.approx(value)]
    write_claim(tmp_path, effect="log2(steps(rms, ln))", measure="loss/val")
    (lost,), _ = points_of_run(read_one(tmp_path), recorded("diverged", **{"loss/val": [3.0, 2.0]}), entry, False)
    (slow,), _ = points_of_run(read_one(tmp_path), recorded("finished", **{"loss/val": [5.0, 4.0]}), entry, False)
    steps = parse_effect("steps(rms, ln)", ["rms", "ln"])
    # Where it first is below log 65, and not 2.0.
    assert steps.of({"ln": [lost], "rms": [slow]}).values == {0: 2}
    assert steps.of({"ln": [slow], "rms": [lost]}).values == {0: 1}
    (never,), _ = points_of_run(read_one(tmp_path), recorded("diverged"), entry, False)
    assert steps.of({"ln": [slow], "rms": [never]}).values == {0: 3}
    write_claim(tmp_path, measure="rate/largest")
    with pytest.raises(UsageError, match="line 8: measure: run diverged"):
        points_of_run(read_one(tmp_path), recorded("diverged"), entry, False)


def test_a_measure_of_each_block_has_the_block_for_a_key(tmp_path: Path) -> None:
    write_claim(tmp_path, measure="act/stream{block}/rms", effect="slope(log(rms / ln), block)")
    claim = read_one(tmp_path)
    check_claim(claim, [0, 1])
    rms = recorded("finished", **{"act/stream00/rms": [5.0, 1.0], "act/stream01/rms": [2.0], "loss/val": [1.0]})
    points, _ = points_of_run(claim, rms, Entry("run", {"norm": "rmsnorm"}, 0, 3, []), False)
    ln = [ArmValue(0, {"block": "0"}, 1.0), ArmValue(0, {"block": "1"}, 4.0)]
    assert claim.effect.of({"rms": points, "ln": ln}).values == pytest.approx({0: math.log(0.5)})


def test_the_shortest_claims_that_fit_are_taken() -> None:
    costs = {}
    for name, minutes in {"long": 20.0, "b": 5.0, "a": 5.0, "short": 1.0, "done": 0.0}.items():
        costs[name] = Cost(name, minutes)
    choice = choose_within(costs, 11.5)
    assert list(choice.taken) == ["done", "short", "a", "b"]
    assert choice.left_out == {"long": 20.0}
    costs |= {"of_a": Cost("a", 5.0), "of_long": Cost("long", 20.0, 0.5)}
    assert choose_within(costs, 11.5).taken == {"done": 0, "short": 1, "a": 5, "of_a": 0, "b": 5}
    assert choose_within(costs, 32).taken["of_long"] == 0.5
    assert choose_within(costs, 0.5).left_out["of_long"] == 20.5


def test_a_claim_has_a_name_that_names_nothing_else(tmp_path: Path) -> None:
    for name in ("my claim", "-x", "a.b", "all", "older", "figures", "tiny-lr"):
        path = write_claim(tmp_path, name)
        with pytest.raises(UsageError, match=f"^{name} cannot name a claim"):
            read_claims([tmp_path / "conf"])
        path.unlink()


def test_a_registration_is_a_line_of_its_own(tmp_path: Path) -> None:
    path = write_claim(tmp_path)
    noted = f"other 2026-11-01 {'a' * 64} a reason"
    (path.parent / "REGISTERED").write_text(noted)  # an editor may leave out the last line's end
    register(read_one(tmp_path), "to see", "2026-11-28")
    assert (path.parent / "REGISTERED").read_text().splitlines()[0] == noted
    assert why_unregistered(read_one(tmp_path)) == ""


def test_a_folder_of_runs_gives_no_words_but_for_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_claim(tmp_path)
    claims = read_claims([tmp_path / "conf"])
    one = ClaimRun.of(claims["tiny"], claims, Way())
    one.write_note(how={"device": "cpu", "norm._target_": "somebody.Norm", "threads": "1"})
    assert one.how() == ["device=cpu", "threads=1"]
    (one.runs_folder / "registration.json").write_text('{"how": ["norm._target_=somebody.Norm"]}')
    assert one.how() == []


def test_verification_repeats_the_planned_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_claim(tmp_path, study="depth", words=["norm=rmsnorm,layernorm"], seeds=[3, 6], measure="loss",
                kind="any", margin=0.1)  # fmt: skip
    register(read_one(tmp_path), "to see", "2026-11-28")
    claims = read_claims([tmp_path / "conf"])
    one = ClaimRun.of(claims["tiny"], claims, Way())
    rows = one.rows_file(one.runs_folder)
    one.write_note()

    def keep(*effects: float) -> Verification:
        write_rows(rows, effects)
        seeds = range(len(effects))
        one.keep(one.gather_result(one.measure_study(seeds), seeds))
        (found,) = verify([one])
        return found

    assert keep(0.21, 0.2, 0.22).wrong == []
    assert keep(0.21, -0.2, 0.02, 0.2, 0.21, 0.22).wrong == []
    (wrong,) = keep(0.21, 0.2, 0.22, 0.2, 0.21, 0.22).wrong
    assert wrong == "it was reproduced after 3 seeds, and was not to go on"
    (wrong,) = keep(0.21, -0.2, 0.02).wrong
    assert wrong == "it is inconclusive after 3 seeds, and was to go on to 6"
    rows.write_text("norm,seed,loss\nrmsnorm,none,1.0\n")
    (found,) = verify([one])
    assert "has rows.csv changed after the study had ended" in found.wrong[0]
    write_with_digests(rows.with_name("study.json"), {}, ["rows.csv", "study.json"])
    (found,) = verify([one])
    assert "rows.csv is damaged in row 1" in found.wrong[0]


@pytest.mark.parametrize("width", [60, 80])
def test_the_list_has_a_line_for_each_claim(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    sentence = "RMSNorm is as good as LayerNorm, and a sentence that is longer than any terminal is wide goes on and on"
    path = write_claim(tmp_path, "a-claim-of-mine", claim=sentence, needs=["hub"])
    register(read_one(tmp_path, path.stem), "to see", "2026-11-28")
    assert main(["claims", "--config-dir", "conf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (own,) = (line for line in lines if line.startswith(path.stem))
    assert own.split()[-3:] == ["needs", "hub", "1"] and "…" in own and len(own) == width
    claims = read_claims([tmp_path / "conf"])
    for name in claims:
        assert len([line for line in lines if line.startswith(f"{name} ")]) == 1, name
    assert lines[-2].startswith(f"0 of {len(claims) - 1} claims were judged here, in ")
    assert lines[-1].startswith("0 of 1 of your own were judged")
    path.write_text(path.read_text().replace("1000", "500"))
    assert main(["claims", "--config-dir", "conf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(f"{path.stem}: is not as it was registered on 2026-11-28")]


# ---- claims that are run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `normbench claims` in an empty folder, without the reports on runs, which have tests of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr("normbench.commands.report.report_of_sweep", lambda folder, quiet: None)
    monkeypatch.setattr("normbench.record.machine.CHECKOUT", tmp_path)  # as of an installed package
    draw_for_pages_alone(monkeypatch)
    return lambda *words: main(["claims", "--config-dir", "conf", *words])


@pytest.mark.slow
def test_a_claim_is_run_verified_and_set_aside_by_a_new_registration(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write_claim(tmp_path)
    shared = {"words": ..., "seeds": ..., "minutes": ..., "kind": "any", "effect": "log(rms / ln)"}
    write_claim(tmp_path, "other", **shared, runs_of="tiny")
    both = ["tiny", "other"]
    assert run("tiny", *MACHINE) == 2
    assert "tiny is not registered" in capsys.readouterr().err
    assert run("tiny", "trainer.steps=4") == 2
    assert "add --trial" in capsys.readouterr().err
    assert run(*both, "--register", "--reason", "a first one") == 0
    assert run(*both, "--minutes", "0.5", *MACHINE) == 2
    assert "the shortest takes 1 minute" in capsys.readouterr().err

    assert run(*both, *MACHINE) == 0
    claims = tmp_path / "outputs" / "claims"
    tiny, other = (read_result(claims / name / "claim.json") for name in ("tiny", "other"))
    assert tiny is not None and tiny.judgement is not None and tiny.judgement.verdict == "parity"
    assert other is not None and other.judgement is not None
    for seed, difference in tiny.values.items():
        losses = {arm: tiny.arms[arm][seed] for arm in ("ln", "rms")}
        assert difference == losses["ln"] - losses["rms"] != 0
        assert other.values[seed] == pytest.approx(math.log(losses["rms"] / losses["ln"]), rel=1e-12)
    summaries = [json.loads(path.read_text()) for path in claims.glob("tiny/*/summary.json")]
    assert len(summaries) == 4
    assert {one["metrics"]["loss/val"] for one in summaries} == {
        value for arm in tiny.arms.values() for value in arm.values()
    }
    assert not (claims / "other" / ".sweep").exists()
    assert ">parity</span>" in (claims / "claims.html").read_text()

    capsys.readouterr()
    assert run("--verify", "outputs/claims") == 0
    assert "tiny: verified, parity" in capsys.readouterr().out
    shutil.copytree(claims, tmp_path / "tampered")
    note = tmp_path / "tampered" / "tiny" / "claim.json"
    write_with_digests(note, {**json.loads(note.read_text()), "lost": {"ln": 1}, "unreached": {"rms": 2}}, [note.name])
    assert run("tiny", "--verify", "tampered") == 1
    told = capsys.readouterr().out
    assert "by its runs lost.ln is nothing, and not 1" in told
    assert "by its runs unreached.rms is nothing, and not 2" in told
    metrics = next((tmp_path / "tampered" / "tiny").glob("rmsnorm-*-s1-*/metrics.jsonl"))
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[-1]["loss/val"] = 1.0
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("tiny", "--verify", "tampered") == 1
    assert "metrics.jsonl changed after the run had ended" in capsys.readouterr().out

    # The same runs, called those of a claim with other words.
    shutil.copytree(claims, tmp_path / "claims-of-others")
    before = read_one(tmp_path)
    write_claim(tmp_path, words=[word.replace("trainer.steps=3", "trainer.steps=4") for word in WORDS])
    assert run("tiny", "--register", "--reason", "longer") == 0
    for name in ("claim.json", "registration.json"):
        note = tmp_path / "claims-of-others" / "tiny" / name
        content = json.loads(note.read_text().replace(before.digest, read_one(tmp_path).digest))
        write_with_digests(note, content, [name] if name == "claim.json" else [])
    capsys.readouterr()
    assert run("tiny", "--verify", "claims-of-others") == 1
    assert "has trainer.steps=3, where the claim has 4" in capsys.readouterr().out
    write_claim(tmp_path, registered=before.registered)
    assert run("tiny", "--register", "--reason", "as it was") == 0

    assert run("--new", "mine", "outputs/claims/tiny") == 0
    draft = read_claims([tmp_path / "conf"])["mine"]
    assert draft.seeds == (2,)
    assert draft.arms == {"rmsnorm": {"norm": ("rmsnorm",)}, "layernorm": {"norm": ("layernorm",)}}
    check_claim(draft, [0, 1])
    assert run("mine", "--register", "--reason", "before it is filled in") == 2
    assert "mine.yaml, line 1: claim is as --new has written it" in capsys.readouterr().err
    (tmp_path / "conf" / "claim" / "mine.yaml").unlink()

    write_claim(tmp_path, margin=500, seeds=1, registered=read_one(tmp_path).registered)
    assert why_unregistered(read_one(tmp_path))
    assert run("tiny", *MACHINE) == 2
    assert "tiny is not as it was registered" in capsys.readouterr().err
    assert run("tiny", "--register", "--reason", "a smaller margin") == 0
    assert run("--verify", "outputs/claims") == 1
    assert run() == 0
    assert "tiny: was run for the registration of" in capsys.readouterr().out
    assert run("--report") == 0
    assert capsys.readouterr().out.endswith("outputs/claims/claims.html\n")
    assert "<s>parity" in (claims / "claims.html").read_text()
    assert run("tiny", *MACHINE) == 0
    assert len(list((claims / "older").glob("tiny-*/claim.json"))) == 1
    assert run("tiny", "--verify", "outputs/claims") == 0


@pytest.mark.slow
def test_runs_of_uncommitted_code_are_measured_and_have_no_verdict_until_they_are_made_again(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_claim(tmp_path, seeds=1)
    assert run("tiny", "--register", "--reason", "to see") == 0
    (tmp_path / ".git").mkdir()  # of normbench's own checkout, which differs from its commit
    monkeypatch.setattr("normbench.record.machine.ask_git", lambda *words: "f00")
    capsys.readouterr()
    assert run("tiny", *MACHINE) == 0
    told = capsys.readouterr().out
    assert "normbench's code or conf has uncommitted changes, so that new runs give no verdict" in told
    file = tmp_path / "outputs" / "claims" / "tiny" / "claim.json"
    result = read_result(file)
    assert result is not None and (result.status, result.judgement) == ("uncommitted code", None)
    assert [*result.values] == [0] and "(f00+changes)" in result.reason
    monkeypatch.setattr("normbench.record.machine.ask_git", lambda *words: "f00" if "HEAD" in words else "")
    assert run("tiny", *MACHINE) == 0  # the runs are as they were
    again = read_result(file)
    assert again is not None and again.judgement is None
    assert "remove outputs/claims/tiny, and run the claim again" in again.reason
    assert run("--verify", "outputs/claims") == 1
    shutil.rmtree(tmp_path / "outputs" / "claims" / "tiny")
    assert run("tiny", *MACHINE) == 0
    clean = read_result(file)
    assert clean is not None and clean.judgement is not None and clean.machine["commit"] == "f00"
    assert clean.values == result.values


@pytest.mark.slow
def test_a_trial_has_seeds_of_its_own_and_no_verdict(tmp_path: Path, run: Callable[..., int]) -> None:
    write_claim(tmp_path)
    assert run("tiny", "--trial", "trainer.steps=2", "seed=105", *MACHINE) == 0
    result = read_result(tmp_path / "outputs" / "claims-trial" / "tiny" / "claim.json")
    assert result is not None
    assert (result.status, result.judgement, list(result.values)) == ("trial", None, [105])
    assert not (tmp_path / "outputs" / "claims").exists()
    assert "trial" in (tmp_path / "outputs" / "claims-trial" / "claims.html").read_text()


@pytest.mark.slow
def test_a_killed_claim_goes_on_to_the_same_numbers(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, run: Callable[..., int]
) -> None:
    results = []
    for name in ("whole", "killed"):
        write_claim(tmp_path / name, seeds=1)
        monkeypatch.chdir(tmp_path / name)
        assert run("tiny", "--register", "--reason", "a test") == 0
        result_file = tmp_path / name / "outputs" / "claims" / "tiny" / "claim.json"
        if name == "killed":
            command = ["claims", "--config-dir", "conf", "tiny", *MACHINE]
            for trap in (Trap("checkpoint", nth=2), Trap("half of a write to registration.json", nth=2)):
                child = server.start(command, tmp_path / name, trap)
                assert child.wait() == -signal.SIGKILL, child.output
                assert list(result_file.parent.glob("*/status.json"))
                assert not result_file.exists()
        assert run("tiny", *MACHINE) == 0
        results.append(read_result(result_file))
    whole, killed = results
    assert whole is not None and killed is not None
    assert (killed.values, killed.arms, killed.judgement) == (whole.values, whole.arms, whole.judgement)


@pytest.mark.parametrize("before", [None, "copies"])
def test_where_data_are_is_said_for_one_command(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    if before is not None:
        monkeypatch.setenv("NORMBENCH_DATA", before)
    assert main(["claims", "data.root=elsewhere"]) == 0
    assert os.environ.get("NORMBENCH_DATA") == before
