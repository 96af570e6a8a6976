"""`normbench check` as its users run it: what it takes, table, exit status, and the trainings among its checks."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import NORMS, PLACEMENTS, REPOSITORY, read_yaml, refused

from normbench.checking import bfloat16, matrix
from normbench.checking.bfloat16 import bfloat16_error
from normbench.checking.norms import NormPart
from normbench.checking.samples import Tiny
from normbench.cli import main

pytest_plugins = ["refusals"]

EXAMPLE = REPOSITORY / "tests" / "example_package"
GROUNDS = {ground.name: ground for ground in matrix.GROUNDS}


@pytest.fixture(autouse=True)
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package and the broken parts, as if they were installed; a wide terminal."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "120")


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit status and what was printed; nothing is left behind."""
    before = sorted(Path.cwd().rglob("*"))
    status = main(["check", *words])
    out, err = capsys.readouterr()
    assert err == ""
    assert sorted(Path.cwd().rglob("*")) == before
    return status, out


def rows_of(page: str) -> list[tuple[str, str, str]]:
    """The rows of the table, their wrapped lines joined."""
    rows: list[list[str]] = []
    begins = next(line for line in page.splitlines() if " result " in line)
    columns = [0, begins.index(" result "), begins.index(" measured")]
    for line in page.splitlines()[3:-2]:
        cells = [line[start:end].strip() for start, end in zip(columns, [*columns[1:], None], strict=True)]
        if cells[1]:
            rows.append(cells)
        else:
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
    return [(row[0], row[1], row[2]) for row in rows]


# ---- what is refused


BY_CLASS = {
    "collections.OrderedDict": "is nothing that can be checked: give a norm",
    "normbench.models.transformer.MLP": "is nothing that can be checked: give a norm",
    "torch.optim.SGD": "is nothing that can be checked: give a norm",
    "math.sqrt": "is nothing that can be checked: give a norm",
    "math.pi": "math.pi is not a class",
    "mypkg:MyNorm": "names no part: give a class",
    "mypkg.Mine": "cannot be imported",
    "nowhere.MyNorm": "nowhere.MyNorm cannot be imported (No module named 'nowhere')",
    "MyNorm": "check MyNorm names no part",
}
WORDS = {
    "": "check needs a part: give a class",
    "eps=3": "check eps=3 names no part: give a class",
    "optim=adamw": "check optim=adamw names no part",
    "mypkg.MyNorm epz=3": "epz is not a setting of mypkg.MyNorm: did you mean eps? leave it out",
    "mypkg.MyNorm eps": "'eps' is not KEY=VALUE",
    "mypkg.MyNorm eps=1,2": "eps=1,2 gives several values",
    "mypkg.MyNorm ~eps": "~eps has nothing to delete: leave it out",
    "norm=rmsnrom": "norm=rmsnrom is unknown: did you mean rmsnorm or prmsnorm?",
    "norm=rmsnorm placement=pre": "check is given norm and placement, and takes one: give",
    "norm=rmsnorm trainer.steps=3": "trainer.steps is no setting of norm: check takes those of the part alone",
    "norm=rmsnorm norm.groups=2": "norm.groups is not a setting of norm=rmsnorm: leave it out",
    "norm.eps=3": "norm.eps=3 is not allowed",
    "norm=dyt norm.impl=torch": "torch has no operator for dyt",
    "data=mnist data.root=nowhere": "no copy of ylecun/mnist in data.root=nowhere",
    "norm.eps=0.1": "check is given no part, and takes one: give a class",
    "--config-dir nowhere norm=rmsnorm": "nowhere is not a folder",
}


@pytest.mark.parametrize(("words", "complaint"), {**BY_CLASS, **WORDS}.items(), ids=[*BY_CLASS, *WORDS])
def test_check_refuses_what_it_cannot_check(words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint in refused(["check", *words.split()], capsys)


def test_check_shows_no_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "norm=rmsnorm", "--cfg", "job"]) == 2
    assert "check shows no configuration: normbench train norm=rmsnorm --cfg job does" in capsys.readouterr().err


# ---- the whole command


AT_ONCE = {
    "bad_parts.Silent": "norm._target_=bad_parts.Silent has no forward: write",
    "bad_parts.BadFacts": "has facts that are no NormFacts: make them",
    "bad_parts.no_module": "gives something of type int: return a Module",
    "bad_parts.NoSlots": "placement._target_=bad_parts.NoSlots has no slots: set",
    "bad_parts.NoNorms": "keeps no norms: put",
    "bad_parts.NoKinds": "model._target_=bad_parts.NoKinds has no kinds: set",
    "bad_parts.NoBlocks": "has no blocks: keep",
    "bad_parts.NoKind": "data._target_=bad_parts.NoKind has no kind: set",
    "bad_parts.FromOne": "targets from 1 to 2: the task has 2",
    "torch.nn.LayerNorm": "must take (num_features, *, channel_dim=-1, site=None)",
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_part_that_cannot_be_used_fails_at_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = checked(capsys, name)
    assert status == 1
    counts = rf"{re.escape(name)}: [01] passed, 1 failed, 0 not applicable, 0 measured, in \d s"
    assert re.fullmatch(counts, out.splitlines()[-1])
    (failed,) = [row for row in rows_of(out) if row[1] == "failed"]
    assert AT_ONCE[name] in failed[2]


def test_data_of_ones_own_pass(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["mypkg.parts.Stripes", "batch_size=4"], ["--config-dir", f"{EXAMPLE}/conf", "data=stripes"]):
        status, out = checked(capsys, *words)
        assert (status, "12 passed, 0 failed, 2 not applicable, 1 measured" in out) == (0, True)
        assert "64 examples, 0 of them equal to others" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["mypkg.MyNorm", "eps=1e-6"],
        ["norm=mynorm", "--config-dir", f"{EXAMPLE}/conf"],
    ],
)
def test_a_norm_of_ones_own_passes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out = checked(capsys, *words)
    name = "mypkg.MyNorm" if "mypkg" in " ".join(words) else "norm=mynorm"
    assert status == 0
    assert f" {name}, a norm " in out
    assert f"{name}: 20 passed, 0 failed, 0 not applicable, 14 measured, in " in out
    assert "deep, parallel, post, post_inside, pre, sandwich; the loss falls by" in out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batchnorm", "groupnorm", "dyt", "none"])
def test_our_norms_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = checked(capsys, f"norm={name}")
    assert (status, ", 0 failed, " in out) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACEMENTS)
def test_our_placements_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = checked(capsys, f"placement={name}")
    assert (status, ", 0 failed, " in out) == (0, True)
    trained = [line for line in out.splitlines() if "trains:" in line and "passed" in line]
    assert len(trained) == {"parallel": 2, "plain": 2}.get(name, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["mypkg.parts.Halved"],
        ["mypkg.parts.TwoLayers", "width=8"],
        ["model=nano", "model.depth=1", "model.width=16"],
        ["model=cnn", "model.width=8"],
        ["model=resnet20", "model.width=8"],
        ["model=mlp", "model.width=16"],
        ["model=cnn_plain", "model.width=8"],
        ["model=mlp_plain", "model.width=16"],
        ["data=digits"],
        ["data=pydocs", "data.context=32"],
    ],
)
def test_other_parts_pass(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out = checked(capsys, *words)
    assert (status, ", 0 failed, " in out) == (0, True)


@pytest.mark.slow
def test_a_norm_that_breaks_its_contract_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = checked(capsys, "bad_norms.Idle")
    assert status == 1
    assert "none in weight for (batch, features)" in out
    assert "deep (and 5 more): no finite gradient in" in out


# ---- bfloat16


def child(monkeypatch: pytest.MonkeyPatch, status: int, out: str = "", err: str = "") -> None:
    """Let the process that measures end so."""
    done = subprocess.CompletedProcess([], status, out, err)
    monkeypatch.setattr(bfloat16.subprocess, "run", lambda *_, **__: done)


def test_how_the_process_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    part = NormPart({"norm": {"_target_": "mypkg.MyNorm"}})
    child(monkeypatch, -signal.SIGILL)
    assert bfloat16_error(part).result == "not applicable"
    child(monkeypatch, -signal.SIGSEGV)
    assert bfloat16_error(part).figure == "the process ended by SIGSEGV"
    child(monkeypatch, 1, err="Traceback\nImportError: no torch\n")
    assert bfloat16_error(part).figure == "ImportError: no torch"
    child(monkeypatch, 0, out='a note\n{"complaint": "it is too wide"}\n')
    assert bfloat16_error(part).figure == "it is too wide"
    child(monkeypatch, 0, out='{"steps": 0.5, "exact": 0.99}')
    assert bfloat16_error(part).figure == "off by up to 0.5 steps of bfloat16, 99.0% rounded once"
    child(monkeypatch, 0, out='{"steps": 7.0, "exact": 0.3}')
    assert bfloat16_error(part).result == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "result", "words"),
    [
        ("mypkg.MyNorm", "passed", "100.0% rounded once"),
        ("bad_norms.Rms", "passed", "rounded once"),
        ("bad_norms.Centering", "failed", "take statistics in float32"),
        ("bad_norms.Wide", "failed", "Wide returns torch.float32 for an input of torch.bfloat16"),
    ],
)
def test_bfloat16_is_measured_in_a_process_of_its_own(target: str, result: str, words: str) -> None:
    outcome = bfloat16_error(NormPart({"norm": {"_target_": target}}))
    if outcome.figure.startswith("this CPU"):
        pytest.skip(outcome.figure)
    assert outcome.result == result
    assert words in outcome.figure


# ---- small trainings


def trained(section: dict[str, Any], ground: str) -> Any:
    place = GROUNDS[ground]
    return matrix.over_placements({**place.tree, "norm": section}, place.data, matrix.STEPS)


def test_a_norm_trains_in_every_placement_that_goes_with_it() -> None:
    assert trained({"_target_": "mypkg.MyNorm"}, "MLP").figure.startswith(
        "deep, post, post_inside, pre, sandwich; the loss falls by "
    )
    assert trained({"_target_": "mypkg.MyNorm"}, "plain MLP").figure.startswith("plain; ")
    refused_there = trained(read_yaml("norm", "instancenorm"), "MLP")
    assert refused_there.result == "not applicable"
    assert refused_there.figure.startswith("its statistics run over time or space")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Idle", "deep (and 4 more): no finite gradient in blocks.0.branches.linear.between.0.weight"),
        ("Single", ""),
        ("Exploding", "the loss is not finite"),
        ("Growing", "the loss of one batch does not fall with deep, "),
        ("Raising", "deep (and 4 more): ValueError: not today (bad_norms.py, line "),
    ],
)
def test_what_goes_wrong_in_training_is_told(name: str, words: str) -> None:
    outcome = trained({"_target_": f"bad_norms.{name}"}, "MLP")
    assert outcome.result == ("failed" if words else "passed")
    assert words in outcome.figure


def test_every_norm_trains_in_a_placement() -> None:
    place = GROUNDS["MLP"]
    tree = {**place.tree, "placement": {"_target_": "mypkg.parts.Halved"}}
    outcome = matrix.over_norms(tree, Tiny("image_classification"), matrix.STEPS)
    expected = ", ".join(name for name in NORMS if name != "instancenorm")
    assert outcome.figure.startswith(f"{expected}; the loss falls by ")
