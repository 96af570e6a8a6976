"""Mistakes in files and in a user's own classes: one sentence, exit status 2, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import refused

from normbench.cli import main

pytest_plugins = ["refusals"]
pytestmark = pytest.mark.usefixtures("here")


# ---- folders and files


def test_outputs_that_is_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "taken").touch()
    assert "outputs=taken cannot be written" in refused(["train", "outputs=taken"], capsys)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# A norm\neps: [1\n", "own.yaml"),
        ("# A norm\neps: 1e-5\n", "norm._target_ is missing"),
        ("# A norm\n_target_: normbench.norms.LayerNorm\nepsilon: 1e-5\n", "norm.epsilon is not a setting of"),
        ("# A norm\n_target_: normbench.norms.LayerNorm\neps: ${nowhere}\n", "Interpolation key 'nowhere' not found"),
    ],
)
def test_mistakes_in_a_users_yaml(here: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/own.yaml").write_text(text)
    assert complaint in refused(["train", "--config-dir", "mine", "norm=own"], capsys)


def test_an_option_that_is_missing_in_the_users_directory_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/renorm.yaml").write_text("# A norm\n_target_: normbench.norms.LayerNorm\n")
    assert "did you mean renorm" in refused(["train", "--config-dir", "mine", "norm=reenorm"], capsys)


@pytest.mark.parametrize("words", [["norm=layernorm"], [], ["--cfg", "job"], ["--help"]])
def test_an_option_of_ones_own_that_would_be_ignored(
    here: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra takes the one in conf/."""
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/layernorm.yaml").write_text("# A norm\n_target_: normbench.norms.LayerNorm\n")
    sentence = refused(["train", "--config-dir=mine", *words], capsys)
    assert "mine/norm/layernorm.yaml has the name of a norm that normbench has already: rename it" in sentence


# ---- a user's own class


@pytest.mark.parametrize("path", ["own_broken.MyNorm", "own_package.parts.MyNorm"])
def test_a_fault_in_a_users_module_is_placed(
    here: Path, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is right."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = here / f"{path.rpartition('.')[0].replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("import torch\n\nimport no_such_module\n")
    sentence = refused(["train", f"norm._target_={path}"], capsys)
    fault = f"ModuleNotFoundError: No module named 'no_such_module' ({file.name}, line 3)"
    assert sentence == f"norm._target_={path} cannot be imported: mend {fault}"


def test_a_fault_inside_a_users_class_keeps_its_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its author needs the line."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (here / "own_fault.py").write_text(
        "from torch import nn\n"
        "def helper(a): ...\n"
        "class Faulty(nn.Identity):\n"
        "    def __init__(self, n, channel_dim, site):\n"
        "        super().__init__()\n"
        "        helper()\n"
    )
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        main(["train", "model.depth=1", "model.width=16", "norm._target_=own_fault.Faulty"])
