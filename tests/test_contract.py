"""The contract of norms, placements, models and data: ours keep it, and a broken part fails where it is broken."""

from __future__ import annotations

import itertools
import multiprocessing
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import NORMS, PLACEMENTS, REPOSITORY, WHOLE, refused

from normbench.cli import main
from normbench.commands.check import find_part, find_section
from normbench.config.compose import read
from normbench.contract import PARTS, trials
from normbench.contract.checks import CheckResult, Fact, NotApplicable, Part, run_check, takes_settings
from normbench.contract.norms import NormPart, bfloat16_is_close
from normbench.errors import UsageError

pytest_plugins = ["refusals"]

EXAMPLE = REPOSITORY / "tests" / "example_package"


@pytest.fixture(autouse=True)
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package as if it were installed, and a wide terminal."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "120")


# ---- our own parts

OURS = [
    *(f"norm={name}" for name in NORMS),
    *("norm=groupnorm norm.groups=5", "norm=groupnorm norm.across_time=true norm.groups=3",
      "norm=batchnorm norm.track_running_stats=false", "norm=instancenorm norm.track_running_stats=true",
      "norm=batchnorm norm.masked=false", "norm=batchnorm norm.freeze_after=100"),
    # three values may lie so close that rounding of their mean alone is 1e-5 of their deviation: ε keeps that small
    "norm=ghostbatchnorm norm.ghost=3 norm.eps=0.01",
    *(f"placement={name}" for name in PLACEMENTS),
    *(f"model={name} model.width=16" for name in ("cnn", "resnet20", "mlp", "cnn_plain", "mlp_plain")),
    *("model=nano model.depth=1 model.width=16", "data=pydocs data.context=32"),
    "data=digits data.crop=2 data.flip=true data.cutout=3",
]  # fmt: skip


def quick_rows(made: Part) -> dict[str, CheckResult]:
    """Return the rows of a part, but for those of small trainings, which the matrix does too, and of processes."""
    quick = {key: each for key, each in made.contract().items() if "trains" not in key and "bfloat16" not in key}
    return {key: run_check(key, each, made) for key, each in {"class": takes_settings, **quick}.items()}


def rows_of(section: str, name: str) -> dict[str, CheckResult]:
    """Return the quick rows of a part of `bad_parts`."""
    defaults = dict(read([]).tree["model"], width=16) if name in ("Peeking", "ReadingPadding") else {}
    return quick_rows(PARTS[section]({**read([]).tree, section: {**defaults, "_target_": f"bad_parts.{name}"}}))


MEASURED = {  # invariances as in the papers; evaluation differs, crosses samples in evaluation
    **dict.fromkeys(("norm=batchnorm", "norm=batchrenorm", "norm=ghostbatchnorm"), "yes no yes yes yes no, yes no"),
    "norm=layernorm": "yes yes no yes no yes, no no",
    "norm=rmsnorm": "yes no no yes no yes, no no",
    "norm=prmsnorm": "yes no no yes no yes, no no",
    "norm=groupnorm": "yes yes no yes no yes, no no",
    "norm=dyt": "no no no no no no, no no",
    **dict.fromkeys(("norm=none", "norm=scale"), "no no no no no no, no no"),
    **dict.fromkeys(("norm=derf", "norm=dyisru"), "no no no no no no, no no"),
    **dict.fromkeys(("norm=scalenorm", "norm=crmsnorm", "norm=unitnorm", "norm=bhyt"), "yes no no yes no yes, no no"),
    "norm=seednorm": "yes no no yes no yes, no no",  # at its start
    "norm=tapernorm": "yes no no yes no yes, no no",  # in its first batches
    "norm=gatedrmsnorm": "yes no no yes no yes, no no",
    "norm=adanorm": "yes yes no yes no yes, no no",
    "norm=frn": "yes no yes yes no yes, no no",
    "norm=evonorm_b0": "yes no yes yes no no, yes no",
    "norm=powernorm": "yes no no yes no yes, yes no",
    "norm=evonorm_s0": "no no no no no no, no no",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", OURS)
def test_our_parts_keep_the_contract(words: str) -> None:
    rows = quick_rows(find_part(words.split())[1])
    assert {key: row.measured for key, row in rows.items() if row.result == "failed"} == {}
    if words in MEASURED:
        others = "evaluation differs from training", "crosses samples in evaluation"
        invariances = " ".join(row.result for key, row in rows.items() if key.startswith("invariant"))
        assert f"{invariances}, {' '.join(rows[key].result for key in others)}" == MEASURED[words]


# ---- broken parts: the checks that fail, and words of what they say

CHANGED_SHAPES = ("follows a branch that changes the shape, flat", "follows a branch that changes the shape, image")
BROKEN: dict[str, dict[str, dict[str, str]]] = {
    "norm": {
        "Detached": {"gradcheck": "Jacobian mismatch"},
        "Idle": {"gradient in every parameter": "no finite gradient in weight: let"},
        "Unseeded": {"constructor": "draws from random: draw from torch"},
        "Forgetful": dict.fromkeys(("layouts agree at one position", "deepcopy and state_dict"), "largest difference"),
        "GradMatters": {"torch.no_grad changes nothing": "largest difference"},
        "Lying": {
            "crosses samples in training": "yes (deviation",
            "sees later time steps": "always (deviation",
            "counts padding": "yes (deviation",
            "centers: norm(x + c) = norm(x)": "no (deviation",
        },
        "Squashing": {"what follows in place": "modified by an inplace operation"},
        "Passing": {"what follows in place": "changes the norm's input, which is its output"},
        "NoNumber": {"float32 against float64": "largest difference inf"},
    },
    "placement": {
        "Halfway": {"skip is residual_gain · x": "0.5 · x"},
        "Deaf": {"hands context to its branches": "hand **context on"},
        "Shortcutless": dict.fromkeys(CHANGED_SHAPES, ""),
        "Normless": {"gradient in every parameter": "no finite gradient in norms."},
        "Negative": {"constructor": "branch_gain=-1"},
        "Boundless": {"constructor": "branch_gain=inf"},
        "Siteless": {"constructor": "made without site="},
        "Hidden": {"constructor": "put all branches in self.branches"},
        "Cut": {
            **dict.fromkeys((f"keeps {axes}" for axes in trials.AXES.values()), "to ["),
            **dict.fromkeys(CHANGED_SHAPES, "add to branch.shortcut(x)"),
            "skip is residual_gain · x": "",
            "streams enter and leave": " to [",
        },
        "Drawing": {"made and run without random numbers": "draws from torch"},
    },
    "model": {
        "OwnDraws": {"images: the seed decides the start": "draws from random"},
        "OwnGenerator": {"images: the seed decides the start": "draws from elsewhere"},
        "Restless": {"images: evaluation is repeatable": "largest difference"},
        "OtherRoles": {"images: constructor": "and its blocks"},
        "Strided": {"images: gradients are safe on the CPU": "skip: a 1 × 1 convolution with a stride"},
        "Short": {"images: constructor": "the model's logits have the shape (2, 4)"},
        "Peeking": {"text: sees no later token": "largest difference"},
        "ReadingPadding": {"texts: padding changes nothing": "largest difference"},
    },
    "data": {
        "FromOne": {"constructor and first batches": "has targets from 1 to 2: the task has 2, so they go from 0 to 1"},
        "OneHot": {"constructor and first batches": "has targets of [8, 2] of int64: the task needs [8] of int64"},
        "Impure": {"seed and step decide a batch": "draws from torch"},
        "Wrapped": {"evaluation covers each example once": "80 examples, 16 of them equal to others"},
        "Sampled": {"evaluation and fingerprint are the same each time": "take the split in order"},
        "Unlimited": {"batches fit the task": "eval_batches('val', 1): 4 batches"},
        "NamedBySeed": {"evaluation and fingerprint are the same each time": "stripes-0 becomes stripes-1"},
        "PaddedInFront": {"constructor and first batches": "pad after the text"},
        "PaddedText": {"constructor and first batches": "padding would count in the loss"},
        "NoTest": {"batches fit the task": "eval_batches('test', None): 0 batches"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(("section", "name"), [(section, name) for section in BROKEN for name in BROKEN[section]])
def test_a_broken_part_fails_where_it_is_broken(section: str, name: str) -> None:
    rows, expected = rows_of(section, name), BROKEN[section][name]
    failed = {key: row.measured for key, row in rows.items() if row.result == "failed"}
    if "constructor" in next(iter(expected)):  # nothing behind it is run
        failed = dict(list(failed.items())[:1])
    assert list(failed) == list(expected)
    for key, words in expected.items():
        assert words in failed[key]


@pytest.mark.parametrize(
    ("section", "name", "expected"),
    [
        ("norm", "Rms", {"draws random numbers": "no", "evaluation differs from training": "no"}),
        ("norm", "Honest", {"sees later time steps": "passed", "counts padding": "passed"}),
        ("norm", "Noisy", {"draws random numbers": "yes", "evaluation differs from training": "yes"}),
        ("norm", "Drawn", {"constructor": "passed"}),
        ("placement", "Strong", {"skip is residual_gain · x": "passed"}),
        ("data", "Words", {"batches fit the task": "passed"}),
    ],
)
def test_an_unusual_part_does_not_fail(section: str, name: str, expected: dict[str, str]) -> None:
    rows = rows_of(section, name)
    assert [key for key, row in rows.items() if row.result == "failed"] == []
    assert {key: rows[key].result for key in expected} == expected


# ---- small trainings, and bfloat16

OF_ONE_BRANCH = [name for name in PLACEMENTS if name not in ("b2t", "parallel", "plain")]


def trained(section: dict[str, Any], ground: str = "MLP") -> CheckResult:
    """Return the row of a norm's training in a small model."""
    norm = NormPart({"norm": section})
    return run_check("", norm.contract()[f"trains: {ground}"], norm)


@pytest.mark.slow
def test_a_norm_trains_in_every_placement_that_goes_with_it() -> None:
    row = trained({"_target_": "bad_parts.Single"})
    assert row.result == "passed" and row.measured.startswith(f"{', '.join(OF_ONE_BRANCH)}; the loss falls ")
    assert trained({"_target_": "mypkg.MyNorm"}, "plain MLP").measured.startswith("plain; ")
    row = trained(trials.sections("norm")["instancenorm"])
    assert row.result == "not applicable" and row.measured.startswith("its statistics run over time or space")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Idle", "admin: no finite gradient in blocks.0.branches.linear.between.0.weight"),
        ("Exploding", "the loss or its gradient is not finite"),
        ("Growing", "the loss of one batch does not fall with admin"),
        ("Raising", "admin: AttributeError: 'Tensor' object has no attribute 'no_such_thing' (bad_parts.py, line "),
    ],
)
def test_what_goes_wrong_in_training_is_told(name: str, words: str) -> None:
    row = trained({"_target_": f"bad_parts.{name}"})
    assert row.result == "failed" and words in row.measured


def fork_trials(patch: pytest.MonkeyPatch) -> None:
    """Let the process that tries bfloat16 be a fork of this one, which need not import torch."""
    fork = multiprocessing.get_context("fork")
    patch.setattr("normbench.contract.norms.multiprocessing", SimpleNamespace(get_context=lambda method: fork))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "result", "words"),
    [
        ("Centering", "failed", "take statistics in float32"),
        ("Single", "passed", "the result is torch.float32, which trainer.precision=bf16 takes too"),
        ("Dying", "not applicable", "stops a process that uses bfloat16"),
    ],
)
def test_bfloat16_is_measured_in_a_process_of_its_own(
    name: str, result: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sound one in a process that begins anew, as the command has it."""
    if name != "Single":
        fork_trials(monkeypatch)
    row = run_check("", bfloat16_is_close, NormPart({"norm": {"_target_": f"bad_parts.{name}"}}))
    if row.result == "not applicable" and result != row.result:
        pytest.skip(row.measured)
    assert row.result == result
    assert words in row.measured


# ---- how checks run


def test_what_comes_of_a_check() -> None:
    def raising(error: Exception) -> Callable[[Part], str]:
        def check(part: Part) -> str:
            raise error

        return check

    before, some = torch.get_rng_state(), Part({})
    not_made_for_it = run_check("a", raising(NotApplicable("it is no bird")), some)
    assert not_made_for_it == CheckResult("a", "not applicable", "it is no bird")
    assert run_check("a", lambda part: Fact(bool(torch.rand(3).sum() > 0)), some) == CheckResult("a", "yes")
    assert run_check("a", lambda part: None, some) == CheckResult("a", "passed")
    wrong_setting = raising(UsageError("norm.groups=7 does not divide 24: choose another"))
    assert run_check("a", wrong_setting, some).result == "failed"
    with pytest.raises(UsageError, match="does not divide"):
        run_check("constructor", wrong_setting, some)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_section_of_a_class_is_found() -> None:
    found = [find_section(f"mypkg.{name}") for name in ("MyNorm", "parts.Halved", "parts.TwoLayers", "parts.Stripes")]
    assert found == ["norm", "placement", "model", "data"]
    assert [find_section("torch.nn.Identity"), find_section("normbench.data.digits")] == ["norm", "data"]


# ---- the command


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return exit status and what was printed; nothing is left behind."""
    before = sorted(Path.cwd().rglob("*"))
    status = main(["check", *words])
    out, err = capsys.readouterr()
    assert (err, sorted(Path.cwd().rglob("*"))) == ("", before)
    return status, out


def counts(out: str) -> str:
    """Return what the last line counts."""
    return out.splitlines()[-1].partition(": ")[2].partition(", in ")[0]


REFUSED = {
    "normbench.models.transformer.MLP": "cannot be checked: give a norm",
    "MyNorm": "check MyNorm does not name a part",
    "mypkg.MyNorm epz=3": "epz",
    "norm=rmsnorm placement=pre": "check is given norm and placement, and takes one with its settings: give",
}


@pytest.mark.parametrize(("words", "complaint"), REFUSED.items(), ids=REFUSED)
def test_check_refuses_what_it_cannot_check(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint in refused(["check", *words.split()], capsys)


def test_a_part_that_cannot_be_used_fails_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "torch.nn.Linear")
    assert (status, counts(out)) == (1, "1 passed, 1 failed, 0 not applicable, 0 measured")
    assert "needs in_features and out_features" in out


def test_data_of_ones_own_pass(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["mypkg.parts.Stripes", "batch_size=4"], ["--config-dir", f"{EXAMPLE}/conf", "data=stripes"]):
        status, out = run(capsys, *words)
        assert (status, counts(out)) == (0, "7 passed, 0 failed, 0 not applicable, 1 measured")


@pytest.mark.parametrize("patch", [5, 64])
def test_patches_tile_the_images_that_a_model_is_tried_on(patch: int) -> None:
    _, part = find_part(["model=vit_tiny", f"model.patch={patch}", "model.depth=1"])
    row = run_check("constructor", part.contract()["images: constructor"], part)
    assert row.result == "passed"
    shown = takes_settings(part)
    assert shown.startswith("normbench.models.Transformer(") and f"patch={patch}" in shown and "_partial_" not in shown


@pytest.fixture
def some_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part train with the usual norms or placements and a tenth of the others, the next time the next tenth.

    And let bfloat16 be tried in a fork.
    """
    if WHOLE:
        return
    fork_trials(monkeypatch)
    usual = ("layernorm", "pre", "plain")
    train_with_each = trials.train_with_each
    trained = itertools.count()

    def train_with_some(group: str, *given: Any, **settings: Any) -> str:
        found = trials.sections(group)
        share = list(found)[next(trained) % 10 :: 10]
        chosen = {name: section for name, section in found.items() if name in usual or name in share}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trials, "sections", {group: chosen}.__getitem__)
            return train_with_each(group, *given, **settings)

    monkeypatch.setattr(trials, "train_with_each", train_with_some)


@pytest.mark.slow
@pytest.mark.usefixtures("some_partners")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mypkg.MyNorm eps=1e-6", "21 passed, 0 failed, 0 not applicable, 13 measured"),
        ("norm=instancenorm", "17 passed, 0 failed, 8 not applicable, 9 measured"),
        ("mypkg.parts.Halved", "18 passed, 0 failed, 3 not applicable, 0 measured"),
    ],
)
def test_sound_parts_pass(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, *words.split())
    assert (status, counts(out)) == (0, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("some_partners")
@pytest.mark.parametrize(
    "words", ["mypkg.parts.TwoLayers width=8", *(["model=nano model.depth=1 model.width=16"] if WHOLE else [])]
)
def test_sound_models_pass_with_every_norm_and_placement(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, *words.split())
    assert status == 0
    assert " 0 failed, " in counts(out)
    for norm in NORMS:
        assert re.search(rf"\b{norm} trains +(passed|not applicable)", out), norm


# ---- what train refuses of a class of one's own

CLASSIFIER = ["model=mlp", "model.depth=1", "model.width=8", "data=digits"]
NOT_TRAINED = {
    "norm=bad_parts.Wider": "returns the shape",
    "norm=bad_parts.Unfinished": "norm._target_=bad_parts.Unfinished has no forward",
    "norm=bad_parts.Half": "returns torch.float16 for an input of torch.float32 at block00",
    "placement=bad_parts.Doubled": "two norms stand at block00.linear: give each norm",
    "model=bad_parts.Short": "the model's logits have the shape (2, 9), and the data need (2, 10)",
    "data=bad_parts.Rms": "makes no Data",
    "data=bad_parts.NoKind": "has no describe and no eval_batches and no train_batch and no kind",
    "data=bad_parts.Sourceless": "nowhere.Sourceless'> has no source file, by which its runs are told apart",
    "data=bad_parts.Taskless": "has no task and no steps_per_epoch: python -m pydoc normbench.types.Data says",
    "data=bad_parts.Tuples": "train_batch(0) gives a tuple: return a normbench.types.Batch",
    "data=bad_parts.OneHot": "train_batch(0) has inputs of (8, 1, 8, 8) and targets of (8, 2)",
}


@pytest.mark.parametrize(("word", "complaint"), NOT_TRAINED.items())
def test_train_refuses_a_class_that_it_cannot_use(
    word: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    section, _, path = word.partition("=")
    words = [each for each in CLASSIFIER if not each.startswith(section)]
    assert complaint in refused(["train", *words, f"{section}._target_={path}"], capsys)
