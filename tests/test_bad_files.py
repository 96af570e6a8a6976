"""Mistakes in files and in a user's own classes: one sentence, exit status 2, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import refused

from normbench.cli import main

pytest_plugins = ["refusals"]
pytestmark = pytest.mark.usefixtures("here")


# ---- options of one's own

LAYERNORM = "_target_: normbench.norms.LayerNorm\n"
IGNORED = "mine/norm/layernorm.yaml has the name of a norm that normbench has already: rename it"


@pytest.mark.parametrize(
    ("name", "text", "words", "complaint"),
    [
        ("own", "eps: [1\n", "norm=own", "own.yaml"),
        ("own", "eps: 1e-5\n", "norm=own", "norm._target_ is missing"),
        ("own", LAYERNORM + "epsilon: 1e-5\n", "norm=own", "norm.epsilon is not a setting of"),
        ("own", LAYERNORM + "eps: ${nowhere}\n", "norm=own", "Interpolation key 'nowhere' not found"),
        ("renorm", LAYERNORM, "norm=reenorm", "did you mean renorm"),
        ("layernorm", LAYERNORM, "norm=layernorm", IGNORED),  # Hydra takes the one in conf/
        ("layernorm", LAYERNORM, "--cfg job", IGNORED),
    ],
)
def test_mistakes_in_a_users_yaml(
    here: Path, name: str, text: str, words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / f"mine/norm/{name}.yaml").write_text(f"# A norm\n{text}")
    assert complaint in refused(["train", "--config-dir", "mine", *words.split()], capsys)


# ---- a user's own class


def test_a_fault_in_a_users_module_is_placed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is right."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (here / "own_package").mkdir()
    (here / "own_package/parts.py").write_text("import torch\n\nimport no_such_module\n")
    sentence = refused(["train", "norm._target_=own_package.parts.MyNorm"], capsys)
    fault = "mend ModuleNotFoundError: No module named 'no_such_module' (parts.py, line 3)"
    assert sentence == f"norm._target_=own_package.parts.MyNorm cannot be imported: {fault}"


def test_a_fault_inside_a_users_class_keeps_its_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its author needs the line."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (here / "own_fault.py").write_text(
        "from torch import nn\n"
        "class Faulty(nn.Identity):\n"
        "    def __init__(self, n, channel_dim, site):\n"
        "        (lambda a: a)()\n"
    )
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        main(["train", "model.depth=1", "model.width=16", "norm._target_=own_fault.Faulty"])
