"""The parts of a configuration: what each says, and that each is resolved once."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from normbench.cli import main
from normbench.config import recipe
from normbench.config.compose import read
from normbench.config.recipe import Recipe, resolve
from normbench.errors import UsageError
from normbench.norms import LayerNorm, RMSNorm
from normbench.placements import Post, Pre
from normbench.weights import Plain, Spectral

WORDS = ["norm=layernorm", "norm@qk=rmsnorm", "norm@qk.eps=1e-3", "placement@first1=post", "weights@mlp=spectral"]
SMALL = [
    "model=mlp", "data=digits", "model.depth=2", "model.width=16", "trainer.steps=1", "trainer.eval_batches=1",
    "threads=1",
]  # fmt: skip


def test_a_part_has_its_option_class_settings_and_place() -> None:
    parts = read(WORDS).recipe
    usual, of_heads = parts.parts_of("norm")
    assert (usual.option, usual.made, usual.rule) == ("layernorm", LayerNorm, None)
    assert (of_heads.option, of_heads.made, of_heads.settings["eps"]) == ("rmsnorm", RMSNorm, 1e-3)
    assert of_heads.rule is not None
    assert (of_heads.group, of_heads.rule.place) == ("norm", "qk")
    assert [part.made for part in parts.parts_of("placement")] == [Pre, Post]
    assert [part.made for part in parts.parts_of("weights")] == [Plain, Spectral]  # without a section it is plain
    assert parts.in_words("norm") == "norm=layernorm norm@qk=rmsnorm"
    assert parts.treats_weights
    assert not read(["norm=layernorm"]).recipe.treats_weights


def test_a_run_resolves_each_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = Counter[str]()

    def count(section: str, values: Any, option: str = "") -> recipe.Part:
        resolved[section] += 1
        return resolve(section, values, option)

    monkeypatch.setattr(recipe, "resolve", count)
    assert main(["train", *SMALL, "norm@in=rmsnorm"]) == 0
    sections = ["norm", "placement", "model", "data", "optim", "schedule", "init", "weights", "norm@in", "logger"]
    assert resolved == dict.fromkeys(sections, 1)


def test_a_part_is_imported_when_it_is_asked_for() -> None:
    """So that a run can be looked at though a class of its own, or the package of a logger, is not here."""
    tree = {"norm": {"_target_": "normbench.norms.LayerNorm"}, "optim": {"_target_": "not_here.Optimizer"}}
    parts = Recipe(tree)
    assert parts["norm"].made is LayerNorm
    with pytest.raises(UsageError, match=r"^optim\._target_=not_here\.Optimizer cannot be imported"):
        parts["optim"]


def test_a_configuration_is_sent_to_another_process_without_what_was_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sent_norms.py").write_text("from normbench.norms import LayerNorm\nclass Sent(LayerNorm): ...\n")
    monkeypatch.chdir(tmp_path)
    config = read(["norm._target_=sent_norms.Sent"])
    assert config.recipe["norm"].option == "sent"
    sent = pickle.dumps(config)
    del sys.modules["sent_norms"]
    received = pickle.loads(sent)
    assert "sent_norms" not in sys.modules
    assert received.recipe["norm"].target == "sent_norms.Sent"
