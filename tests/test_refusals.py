"""The list of refusals: each applies to the two choices that it names, and to none of them alone."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from support import section

from normbench.config.recipe import Recipe
from normbench.config.refusals import OF_MAKING, OF_SETTINGS, Combination, Refusal, find_refusal, refuse
from normbench.errors import CombinationRefused, UsageError

NAMES = {"norm": "rmsnorm", "norm@qk": "dyt", "model": "mine", "data": "texts", "optim": "sgd", "init": "mup",
         "schedule": "ramp", "weights@mlp": "spectral"}  # fmt: skip
PLAIN: dict[str, Any] = {group: section(group, NAMES[group]) for group in ("norm", "optim", "init", "schedule")}
PLAIN |= {group: {"_target_": "mine.Own"} for group in ("model", "data")}
OPAQUE = PLAIN | {"at": {"norm@qk": section("norm", "dyt") | {"impl": "compile"}}}
OFFSET = PLAIN | {"at": {"norm@qk": section("norm", "dyt") | {"offset": 1.0}}}
OF_LENGTH_1 = PLAIN | {"at": {"weights@mlp": section("weights", "unit")}}
TREATED = PLAIN | {"at": {"weights@mlp": section("weights", "spectral")}}
HOSTED = SimpleNamespace(hosted=True, recompute=False)
WITHOUT_STACK = SimpleNamespace(hosted=False, recompute=None)

# What a run has for each side of a refusal that is between settings: an attribute, or settings.
SIDES: dict[str, dict[str, Any]] = {
    "trainer.shard=true": {"trainer.shard": True},
    "trainer.ema": {"trainer.ema": 0.9},
    "trainer.swa": {"trainer.swa": 0.5},
    "probes.updates=true": {"probes.updates": True},
    "trainer.compile": {"trainer.compile": True},
    "trainer.compile=cudagraphs or graph": {"trainer.compile": "cudagraphs"},
    "trainer.compile=graph": {"trainer.compile": "graph"},
    "trainer.recompute=true": {"trainer.recompute": True},
    "trainer.precision=fp16": {"trainer.precision": "fp16"},
    "trainer.norm_dtype=bf16": {"trainer.norm_dtype": "bf16"},
    "trainer.accumulate above 1": {"trainer.accumulate": 2},
    "a treatment of weights": {"recipe": Recipe(TREATED, NAMES)},
    "norm.impl=compile or liger": {"recipe": Recipe(OPAQUE, NAMES)},
    "norm.offset": {"recipe": Recipe(OFFSET, NAMES)},
    "a device other than CUDA": {"device": "cpu"},
    "several processes": {"processes": 2},
    "launcher=local": {"launcher": "local"},
    "sweep.stack": {"sweep.stack": 2},
    "extend": {"extend": "a run"},
    "a study that trains by itself": {"study": True},
    "sweep.lr=auto or each": {"sweep.lr": "auto"},
    "data.holdout": {"data.holdout": 0.1},
    "data without data.holdout": {"data.holdout": None},
    "a seed": {"seed": 7},
    "the same one of sweep.lr_seeds": {"sweep.lr_seeds": [7, 8]},
    "sweep.lr_seeds that serve several reported seeds": {"sweep.lr_seeds": [1000, 1001, 1001, 1002]},
    "init=mup": {"scales_rates": True},
    "an optimizer other than Adam": {"not_adam": True},
    "optim=muon, adamh or muonh": {"needs_matrices": True},
    "optim=adamh or muonh": {"keeps_norms": True},
    "weights=unit": {"recipe": Recipe(OF_LENGTH_1, NAMES)},
    "an optimizer that is not fused": {"not_fused": True},
    "schedule=ramp": {"ramps": True},
    "optim.lr": {"given": ["optim.lr"], "optim.lr": 0.1},
    "a model of another library": {"model": SimpleNamespace(hosted=True, recompute=False)},
    "a model of another library, or without a stack of blocks": {
        "model": SimpleNamespace(hosted=False, recompute=None)
    },
    "data whose batches have lengths of their own": {"data": SimpleNamespace(pads=True)},
}


def run_with(*sides: str) -> Combination:
    """A run with which nothing is wrong, but for some sides."""
    parts: dict[str, Any] = {
        "norm": SimpleNamespace(),
        "placement": SimpleNamespace(),
        "model": SimpleNamespace(hosted=False, recompute=False),
        "data": SimpleNamespace(pads=False),
        "task": None,
        "recipe": Recipe(PLAIN, NAMES),
    }
    settings: dict[str, Any] = {"seed": 0, "data.holdout": 0, "trainer.compile": False}
    for side in sides:
        for key, value in SIDES[side].items():
            of_run = parts if key in Combination.__dataclass_fields__ else settings
            of_run[key] = value
    return Combination(**parts, settings=settings)


def sides_of(rule: Refusal) -> tuple[str, str]:
    """The two sides of a refusal; the words of one may have a "with" of their own."""
    for first in SIDES:
        second = rule.what.removeprefix(f"{first} with ")
        if second != rule.what and second in SIDES:
            return first, second
    raise AssertionError(f"SIDES lacks a side of {rule.what}")


@pytest.mark.parametrize("rule", OF_SETTINGS, ids=lambda rule: rule.what)
def test_each_refusal_needs_both_of_its_sides(rule: Refusal) -> None:
    first, second = sides_of(rule)
    assert rule.applies(run_with(first, second))
    assert find_refusal(run_with(first), OF_SETTINGS) is None
    assert find_refusal(run_with(second), OF_SETTINGS) is None
    sentence = rule.say(run_with(first, second))
    assert re.fullmatch(rf"\S.* with \S.* is refused: {re.escape(rule.reason)}; {re.escape(rule.instead)}", sentence)


@pytest.mark.parametrize(
    ("sides", "sentence"),
    [
        (("trainer.shard=true", "trainer.ema"), "trainer.shard=true with trainer.ema=0.9 is refused: "),
        (("norm.impl=compile or liger", "sweep.stack"), "norm=rmsnorm norm@qk=dyt with sweep.stack=2 is refused: "),
        (("trainer.compile=graph", "several processes"), "trainer.compile=graph with 2 processes is refused: "),
        (("init=mup", "a treatment of weights"), "init=mup with weights@mlp=spectral is refused: "),
        (("data.holdout", "sweep.lr=auto or each"), "data.holdout=0.1 with sweep.lr=auto is refused: "),
        (("a seed", "the same one of sweep.lr_seeds"), "seed=7 with sweep.lr_seeds=[7,8] is refused: "),
        (("trainer.ema", "a study that trains by itself"), "trainer.ema=0.9 with a study that trains by itself is "),
    ],
)
def test_a_sentence_has_what_was_given(sides: tuple[str, str], sentence: str) -> None:
    run = run_with(*sides)
    rule = find_refusal(run, OF_SETTINGS)
    assert rule is not None and rule.say(run).startswith(sentence)


@pytest.mark.parametrize("rule", OF_SETTINGS, ids=lambda rule: rule.what)
def test_a_sweep_leaves_out_what_its_runs_are_and_stops_at_how_they_are_made(rule: Refusal) -> None:
    with pytest.raises(UsageError) as refused:
        refuse(run_with(*sides_of(rule)), [rule])
    leaves_out = isinstance(refused.value, CombinationRefused)
    assert leaves_out != any(key in OF_MAKING for key in rule.between)
