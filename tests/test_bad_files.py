"""Mistakes in files and in a user's own classes: one sentence, exit status 2, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
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
        ("mine", "eps: [1\n", "norm=mine", "mine.yaml"),
        ("mine", "eps: 1e-5\n", "norm=mine", "norm._target_ is missing"),
        ("mine", LAYERNORM + "epsilon: 1e-5\n", "norm=mine", "norm.epsilon is not a setting of"),
        ("mine", LAYERNORM + "eps: ${nowhere}\n", "norm=mine", "Interpolation key 'nowhere' not found"),
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
    fault = "fix ModuleNotFoundError: No module named 'no_such_module' (parts.py, line 3)"
    assert sentence == f"norm._target_=own_package.parts.MyNorm cannot be imported: {fault}"


def test_a_fault_in_python_s_own_library_is_placed_where_it_was_called(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "parsing.py").write_text("import json\n\njson.loads('{')\n")
    assert refused(["train", "norm._target_=parsing.Norm"], capsys).endswith("(parsing.py, line 3)")


def test_a_fault_in_a_folder_with_the_name_of_a_library_is_not_that_library_s(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "torchvision").mkdir()
    (here / "torchvision/falling.py").write_text("raise ValueError('mine')\n")
    monkeypatch.syspath_prepend(here / "torchvision")
    said = refused(["train", "norm._target_=falling.Norm"], capsys)
    assert said.endswith("fix ValueError: mine (falling.py, line 1)")


@pytest.mark.parametrize(("line", "said"), [("raise SystemExit", "SystemExit"), ("sys.exit(3)", "SystemExit: 3")])
def test_a_module_that_exits_is_placed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "exiting", raising=False)
    (here / "exiting.py").write_text(f"import sys\n{line}\n")
    sentence = refused(["train", "norm._target_=exiting.Norm"], capsys)
    assert sentence == f"norm._target_=exiting.Norm cannot be imported: fix {said} (exiting.py, line 2)"


def test_a_mistake_found_by_a_library_is_placed_where_it_was_called(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    library = here / "site-packages" / "somebodys.py"
    library.parent.mkdir()
    library.write_text("def give_up():\n    raise ValueError('no')\n")
    monkeypatch.syspath_prepend(str(library.parent))
    (here / "calling.py").write_text("import somebodys\n\nsomebodys.give_up()\n")
    sentence = refused(["train", "norm._target_=calling.Norm"], capsys)
    assert sentence.endswith("fix ValueError: no (calling.py, line 3)")


def test_a_class_that_exits_is_no_success(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (here / "leaving.py").write_text(
        "import sys\nfrom torch import nn\n"
        "class Norm(nn.Identity):\n"
        "    def __init__(self, n, *, channel_dim=-1, site=None):\n"
        "        sys.exit(0)\n"
    )
    assert main(["train", "model.depth=1", "model.width=16", "norm._target_=leaving.Norm"]) == 1
    assert "ended the process (SystemExit: 0 (leaving.py, line 5))" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["report"], ["runs"], ["study", "mapping"]])
def test_links_that_go_round_are_no_folder(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    (here / "loop").symlink_to("loop")
    assert refused([*words, "loop"], capsys).startswith("loop is not a folder")


@pytest.mark.parametrize("words", ["train --cfg job", "runs", "list norm", "swap hf:gpt2 --out out"])
def test_a_current_folder_that_is_gone_is_told(here: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    here.rmdir()
    assert main(words.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("normbench: the current folder is no longer there: go to another one")
    assert told.count("\n") == 1


# ---- where commands write


def command(words: str, where: str = "/dev/null", **environment: str) -> tuple[int, str]:
    """Give a command in a process of its own; return its exit status and what it says on standard error."""
    code = "import sys; from normbench.cli import main; sys.exit(main())"
    with open(where, "w") as out:
        call = [sys.executable, "-c", code, *words.split()]
        done = subprocess.run(call, stdout=out, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    return done.returncode, done.stderr


def test_a_full_disk_behind_standard_output_is_told_in_a_sentence(here: Path) -> None:
    said = "normbench: not all that this command printed could be written (No space left on device): make room\n"
    assert command("list norm", "/dev/full") == (1, said)


def test_a_temporary_folder_with_a_long_path_is_told_in_a_sentence(here: Path, tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    status, said = command("sweep seed=0,1 trainer.steps=1", TMPDIR=str(folder))
    assert status == 2 and said.startswith("normbench: the process that starts runs cannot make its files in ")
    assert said.count("\n") == 1 and "TMPDIR" in said


@pytest.mark.parametrize("word", ["norm.eps=range(nan,1)", "seed=range(0,nan)", "seed=range(0,4,nan)"])
def test_a_range_of_what_is_no_number_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no values that can be counted" in refused(["sweep", word, "--dry-run"], capsys)


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
