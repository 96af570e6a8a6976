"""`normbench show`: values, units, what is allowed, and where each value was written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from support import refused

from normbench.catalog import GROUPS
from normbench.cli import main
from normbench.config import KEYS
from normbench.keys import show
from normbench.origins import leaves

SMALL = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2", "trainer.steps=2",
         "trainer.eval_batches=1", "data.eval_batch_size=512", "quiet=true", "device=cpu"]  # fmt: skip

OWN_NORM = """\
from torch import nn

class MyNorm(nn.Module):
    def __init__(self, num_features, *, channel_dim=-1, site=None, eps=1e-5):
        super().__init__()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, str]]:
    """What `normbench show` prints for a program: key -> column -> text."""
    assert main(["show", *words]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    names = heading.split()
    starts = [heading.index(name) for name in names]
    cuts = [slice(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    table = [[line[cut].strip() for cut in cuts] for line in lines]
    assert all(line == line.rstrip() for line in lines)
    return {row[0]: dict(zip(names, row, strict=True)) for row in table}


def origin(rows: dict[str, dict[str, str]], key: str) -> str:
    return rows[key]["from"]


def test_every_key_has_its_value_its_unit_and_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those that `--cfg job` prints."""
    words = ["norm=groupnorm", "model.width=64", "trainer.steps=1e3"]
    rows = shown(capsys, *words)
    assert main(["train", *words, "--cfg", "job", "--resolve"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    written = dict(leaves(tree, ""))
    assert rows.keys() == {path for path in written if not path.endswith("_partial_")} | GROUPS.keys()
    for path in rows.keys() & KEYS.keys():
        assert rows[path]["value"] == show(KEYS[path].check(path, written[path]))
        assert rows[path]["unit"] == KEYS[path].unit
        assert rows[path]["allowed"]
    assert rows["trainer.steps"]["value"] == "1000"  # in its own type
    assert rows["model.depth"]["allowed"] == "an integer from 1 to 1,000"
    assert (rows["trainer.eval_every"]["unit"], rows["norm.groups"]["allowed"]) == (
        "steps", "auto or an integer from 1 to 1,000,000",
    )  # fmt: skip


def test_each_value_names_the_file_that_has_the_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(capsys, "norm=rmsnorm", "data=mnist", "model=cnn", "optim.lr=0.1", "seed=3")
    assert origin(rows, "norm.eps") == "conf/norm/rmsnorm.yaml"
    assert origin(rows, "trainer.epochs") == "conf/data/mnist.yaml"  # a YAML of the whole configuration
    assert origin(rows, "trainer.grad_clip") == "conf/train.yaml"
    assert origin(rows, "data.root") == "conf/data/mnist.yaml: ${oc.env:NORMBENCH_DATA,null}"
    assert origin(rows, "optim.betas") == "conf/optim/adamw.yaml"  # which adamw_images builds on
    assert (origin(rows, "optim.lr"), origin(rows, "seed")) == ("command line", "command line")
    choosers = {"norm": "command line", "optim": "conf/model/cnn.yaml", "placement": "conf/train.yaml"}
    assert {group: origin(rows, group) for group in choosers} == choosers
    assert rows["optim"]["value"] == "adamw_images"


def test_an_experiment_and_a_folder_of_the_users_own_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/own.yaml").write_text("# Mine\n_target_: normbench.norms.RMSNorm\neps: 1e-3\n")
    rows = shown(capsys, "--config-dir", "mine", "experiment=nanogpt_cpu", "norm=own", "~norm.bias")
    assert origin(rows, "norm.eps") == "mine/norm/own.yaml"
    assert origin(rows, "trainer.steps") == "conf/experiment/nanogpt_cpu.yaml"
    assert origin(rows, "optim") == "conf/experiment/nanogpt_cpu.yaml"
    assert rows["experiment"]["value"] == "nanogpt_cpu"
    assert "norm.bias" not in rows


def test_a_class_of_the_users_own_drops_what_the_replaced_one_is_set(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own default of eps holds."""
    (here / "own_shown.py").write_text(OWN_NORM)
    rows = shown(capsys, "norm._target_=own_shown.MyNorm")
    assert [path for path in rows if path.startswith("norm.")] == ["norm._target_"]
    rows = shown(capsys, "norm._target_=own_shown.MyNorm", "norm.eps=0.1")
    assert (rows["norm.eps"]["value"], origin(rows, "norm.eps")) == ("0.1", "command line")


def test_an_extended_run_shows_its_own_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "norm=dyt"]) == 0
    run = capsys.readouterr().out.strip()
    rows = shown(capsys, f"extend={run}", "trainer.steps=4")
    assert (rows["norm._target_"]["value"], origin(rows, "norm._target_")) == (
        "normbench.norms.DyT", f"{run}/config.yaml",
    )  # fmt: skip
    assert (rows["trainer.steps"]["value"], origin(rows, "trainer.steps")) == ("4", "command line")


@pytest.mark.parametrize("words", [["norm=rmsnrm"], ["seed=-1"], ["model.heads=3"], ["--config-dir", "nowhere"]])
def test_it_refuses_what_train_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["show", *words], capsys) == refused(["train", *words], capsys)


def test_a_yaml_that_is_a_list_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/listed.yaml").write_text("- eps\n- 3\n")
    words = ["--config-dir", "mine", "norm=listed"]
    assert refused(["show", *words], capsys) == refused(["train", *words], capsys)


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_it_is_a_table_by_sections(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["show", "norm=rmsnorm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert text.index("\nnorm: γ·x/√(mean(x²)+ε)") < text.index("\n eps ") < text.index("\nplacement: ")
