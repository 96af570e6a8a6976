"""Each check on parts that pass it and parts that do not; the small trainings are in test_check.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import pytest
import torch
from bad_norms import BROKEN, SOUND, SPREADING
from support import NORMS, PLACEMENTS, REPOSITORY, read_yaml
from test_norms import INVARIANCES
from torch import nn

from normbench.checking import behaviour, data, models, norms, placements
from normbench.checking.bfloat16 import steps_off
from normbench.checking.outcomes import Check, Outcome, Row, failed, measured, passed, perform
from normbench.checking.part import section_of
from normbench.compose import compose
from normbench.errors import UsageError
from normbench.types import NormFacts

EXAMPLE = REPOSITORY / "tests" / "example_package"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package as if it were installed."""
    monkeypatch.syspath_prepend(EXAMPLE)


def outcomes(rows: Iterable[Row]) -> dict[str, Outcome]:
    return {row.name: row.outcome for row in rows}


def failures(rows: Iterable[Row]) -> dict[str, str]:
    """What failed, and why."""
    return {row.name: row.outcome.figure for row in rows if row.outcome.result == "failed"}


def norm_rows(**section: Any) -> list[Row]:
    """All rows of a norm but those of bfloat16 and of training."""
    part = norms.NormPart({"norm": section})
    return list(perform([*norms.contract(part), *behaviour.behaviour(part), *behaviour.invariances(part)]))


@cache
def our_rows(name: str) -> list[Row]:
    """The same of a norm of ours."""
    return norm_rows(**read_yaml("norm", name))


# ---- norms


@pytest.mark.parametrize("name", NORMS)
def test_our_norms_keep_the_contract(name: str) -> None:
    rows = our_rows(name)
    assert failures(rows) == {}
    assert len(rows) == 26


@pytest.mark.parametrize("name", INVARIANCES)
def test_invariances_are_those_of_the_papers(name: str) -> None:
    found = {row.name: row.outcome for row in our_rows(name) if row.name.startswith("invariant")}
    assert tuple(outcome.result == "yes" for outcome in found.values()) == INVARIANCES[name]


MEASURED = {  # evaluation differs, crosses samples in evaluation, layouts agree over time and space
    "batchnorm": ("yes", "no", "yes"),
    "groupnorm": ("no", "no", "no"),
    "layernorm": ("no", "no", "yes"),
    "instancenorm": ("no", "no", "yes"),
    "none": ("no", "no", "yes"),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_only_measured(name: str) -> None:
    found = outcomes(our_rows(name))
    names = ("evaluation differs from training", "crosses samples in evaluation", "layouts agree over time and space")
    assert tuple(found[each].result for each in names) == MEASURED[name]
    assert found["takes a mask"].result == "no"


@pytest.mark.parametrize(
    ("settings", "sees_future"),
    [
        ({"_target_": "normbench.norms.BatchNorm"}, "training"),
        ({"_target_": "normbench.norms.BatchNorm", "track_running_stats": False}, "always"),
        ({"_target_": "normbench.norms.GroupNorm", "across_time": True, "groups": 3}, "always"),
        ({"_target_": "normbench.norms.InstanceNorm", "track_running_stats": True}, "training"),
    ],
)
def test_facts_are_measured_under_the_options(settings: dict[str, Any], sees_future: str) -> None:
    row = outcomes(norm_rows(**settings))["sees later time steps"]
    assert row.result == "passed"
    assert row.figure.startswith(f"{sees_future} (") and row.figure.endswith(f"facts.sees_future={sees_future}")


@pytest.mark.parametrize(("groups", "width"), [(2, 24), (5, 30), (32, 128)])
def test_a_norm_is_tried_on_features_that_its_groups_divide(groups: int, width: int) -> None:
    rows = norm_rows(_target_="normbench.norms.GroupNorm", groups=groups)
    assert failures(rows) == {}
    assert outcomes(rows)["keeps (batch, features)"].figure == f"[6, {width}]"


@pytest.mark.parametrize(("patch", "pixels"), [(7, 35), (4, 32), (33, 33)])
def test_a_model_is_tried_on_images_that_its_patches_tile(patch: int, pixels: int) -> None:
    part = models.ModelPart({"model": read_yaml("model", "nano") | {"patch": patch}})
    assert part.side == pixels


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_norm_fails_where_it_is_broken(name: str) -> None:
    found = failures(norm_rows(_target_=f"bad_norms.{name}"))
    assert set(found) >= set(BROKEN[name]) if name in SPREADING else list(found) == list(BROKEN[name])
    for row, words in BROKEN[name].items():
        assert words in found[row]


@pytest.mark.parametrize("name", SOUND)
def test_an_unusual_norm_does_not_fail(name: str) -> None:
    found = outcomes(norm_rows(_target_=f"bad_norms.{name}"))
    assert [row for row, outcome in found.items() if outcome.result == "failed"] == []
    for row, result in SOUND[name].items():
        assert found[row].result == result


def test_the_example_norm_has_no_facts_to_compare_with() -> None:
    rows = norm_rows(_target_="mypkg.MyNorm")
    assert failures(rows) == {}
    found = outcomes(rows)
    assert found["sees later time steps"].result == found["crosses samples in training"].result == "no"
    assert found["invariant: W × c"].result == found["invariant: one sample × c"].result == "yes"
    assert found["constructor"].figure.endswith("parameters: weight [24]")


def test_steps_of_bfloat16_are_counted() -> None:
    expected = torch.tensor([1.0, 1.5, -2.0], dtype=torch.float64)
    assert steps_off(expected, expected) == 0
    assert steps_off(expected * (1 + 3 * 2.0**-7), expected) == pytest.approx(3)
    assert steps_off(torch.full_like(expected, math.nan), expected) == math.inf


# ---- placements


@pytest.mark.parametrize("name", PLACEMENTS)
def test_our_placements_keep_the_contract(name: str) -> None:
    assert failures(placement_rows(**read_yaml("placement", name))) == {}


def placement_rows(**section: Any) -> list[Row]:
    """All rows of a placement but those of training."""
    checks = placements.contract(placements.PlacementPart({"placement": section}))
    return list(perform(check for check in checks if not check.name.startswith("trains")))


PLACEMENT_FAULTS = {
    "Forgetful": ("skip is residual_gain · x",),
    "Deaf": ("hands context to its branches",),
    "Shortcutless": (
        "follows a branch that changes the shape, flat",
        "follows a branch that changes the shape, image",
    ),
    "Idle": ("gradient in every parameter",),
    "Hidden": ("norms and branches are submodules",),
    "Doubled": ("norms have sites of their own",),
    "Cut": (
        "keeps (batch, features)",
        "keeps (batch, time, features)",
        "keeps (batch, channels, height, width)",
        "follows a branch that changes the shape, flat",
        "follows a branch that changes the shape, image",
        "skip is residual_gain · x",
    ),
    "Drawing": ("made and run without random numbers",),
    "Growing": ("deepcopy and state_dict",),
    "Negative": ("gains are positive numbers",),
}


@pytest.mark.parametrize("name", PLACEMENT_FAULTS)
def test_a_broken_placement_fails_where_it_is_broken(name: str) -> None:
    assert tuple(failures(placement_rows(_target_=f"broken_parts.{name}"))) == PLACEMENT_FAULTS[name]


def test_the_gain_of_deepnorm_is_measured() -> None:
    figure = outcomes(placement_rows(_target_="normbench.placements.Deep"))["skip is residual_gain · x"].figure
    assert figure == "1.316 · x, residual=True, residual_gain=1.316"  # (2·3 branches / 2)^¼, of one branch a layer


@pytest.mark.parametrize("name", ["Strong", "Each"])
def test_the_gain_stands_once_or_for_each_of_several_branches(name: str) -> None:
    assert failures(placement_rows(_target_=f"broken_parts.{name}")) == {}


# ---- models


def model_rows(**section: Any) -> list[Row]:
    """All rows of a model but those of training."""
    composition = compose("train", [])
    assert composition is not None
    checks = models.contract(models.ModelPart({**composition.tree, "model": section}))
    return list(perform(check for check in checks if not check.name.endswith("trains")))


def test_a_patch_that_does_not_tile_32_pixels() -> None:
    assert failures(model_rows(**read_yaml("model", "nano") | {"depth": 1, "width": 16, "patch": 7})) == {}


@pytest.mark.parametrize("name", ["nano", "cnn", "resnet20", "mlp", "cnn_plain", "mlp_plain"])
def test_our_models_keep_the_contract(name: str) -> None:
    rows = model_rows(**read_yaml("model", name) | {"width": 16})
    assert failures(rows) == {}
    assert len(rows) == (17 if name == "nano" else 5)


MODEL_FAULTS = {
    "OwnDraws": ("images: the seed decides the start",),
    "Restless": ("images: evaluation is repeatable",),
    "OtherRoles": ("images: blocks have the branches of roles",),
    "Short": ("images: logits of the task's shape",),
    "Unmade": ("images: constructor",),
    "Peeking": ("text: sees no later token",),
    "MeanOfAll": ("texts: padding changes nothing",),
}


@pytest.mark.parametrize("name", MODEL_FAULTS)
def test_a_broken_model_fails_where_it_is_broken(name: str) -> None:
    settings = read_yaml("model", "nano") | {"width": 16} if name in ("Peeking", "MeanOfAll") else {}
    assert tuple(failures(model_rows(**settings | {"_target_": f"broken_parts.{name}"}))) == MODEL_FAULTS[name]


# ---- data


def data_rows(**section: Any) -> list[Row]:
    checks = data.contract(data.DataPart({"data": section}))
    return list(perform(check for check in checks if check.name != "a small model trains"))


@pytest.mark.parametrize("name", ["digits", "pydocs"])
def test_our_data_keep_the_contract(name: str) -> None:
    composition = compose("train", [f"data={name}"])
    assert composition is not None
    rows = data_rows(**composition.tree["data"])
    assert failures(rows) == {}
    examples = {"digits": "297 examples, 0 of them", "pydocs": "each begins where the one before ends"}
    assert examples[name] in outcomes(rows)["evaluation covers each example once"].figure


def test_padded_texts_keep_the_contract() -> None:
    rows = data_rows(_target_="bad_parts.Words")
    assert failures(rows) == {}
    assert outcomes(rows)["masks"].figure == "37.5% of the places are padding"
    assert outcomes(rows)["another seed, other batches"].result == "no"


DATA_FAULTS = {
    "Seeding": ("no global random numbers",),
    "SeededAtStart": ("seed and step decide a batch",),
    "Later": ("training batches fit the task",),
    "Wrapped": ("evaluation covers each example once",),
    "Sampled": ("evaluation is the same each time",),
    "Unlimited": ("evaluation keeps to a limit", "training data can be evaluated"),
    "NamedBySeed": ("fingerprint is the same each time",),
    "PaddedInFront": ("masks",),
    "NoTest": ("test split",),
    "Overlapping": ("evaluation covers each example once",),
}


@pytest.mark.parametrize("name", DATA_FAULTS)
def test_broken_data_fail_where_they_are_broken(name: str) -> None:
    assert tuple(failures(data_rows(_target_=f"broken_parts.{name}"))) == DATA_FAULTS[name]


# ---- what the rows are made of


def test_a_check_that_raises_has_failed_and_the_others_go_on() -> None:
    def broken() -> Outcome:
        raise ValueError("no such thing\nand more")

    rows = list(perform([Check("a", broken), Check("b", broken), Check("c", lambda: passed("fine"))]))
    assert rows[0].outcome.result == "failed"
    assert rows[0].outcome.figure.startswith("ValueError: no such thing (test_checking.py, line ")
    assert rows[1].outcome == failed("as above")
    assert rows[2].outcome == passed("fine")


def test_nothing_comes_behind_a_decisive_failure() -> None:
    checks = [Check("a", partial(failed, "no"), decisive=True), Check("b", passed)]
    assert [row.name for row in perform(checks)] == ["a"]
    assert [row.name for row in perform([Check("a", passed, decisive=True), Check("b", passed)])] == ["a", "b"]


def test_checks_leave_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    rows = list(perform([Check("a", lambda: measured(bool(torch.rand(3).sum() > 0)))]))
    assert rows[0].outcome.result == "yes"
    assert torch.equal(torch.get_rng_state(), before)


def test_the_kind_of_a_part_is_found() -> None:
    from mypkg import MyNorm
    from mypkg.parts import Halved, Layer, Stripes, TwoLayers

    found = [section_of("", part) for part in (MyNorm, Halved, TwoLayers, Stripes, nn.Identity)]
    assert found == ["norm", "placement", "model", "data", "norm"]
    for other in (Layer, NormFacts, torch.optim.SGD, print):
        with pytest.raises(UsageError, match=r"mypkg\.X is nothing that can be checked: give a norm"):
            section_of("mypkg.X", other)
