"""A user's own norm, placement, model and data in `normbench train`, from a package outside the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support import REPOSITORY

from normbench import assembly
from normbench.cli import main
from normbench.compose import compose
from normbench.errors import UsageError
from normbench.probes import Probes, Wanted
from normbench.types import Site

EXAMPLE = REPOSITORY / "tests" / "example_package"
SHORT = ["trainer.steps=2", "trainer.eval_batches=1", "quiet=true", "device=cpu", "threads=1"]
SMALL = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2",
         "data.eval_batch_size=512"]  # fmt: skip
MLP = ["model=mlp", "data=digits", "model.depth=1"]

# The words that train each part: by its class, and by the YAML of a directory.
BY_CLASS = {
    "norm": ["norm._target_=mypkg.MyNorm", *SMALL],
    "placement": ["placement._target_=mypkg.parts.Halved", *SMALL],
    "model": ["model._target_=mypkg.parts.TwoLayers", "data=digits"],
    "data": ["data._target_=mypkg.parts.Stripes", "model=mlp", "model.depth=1"],
}
BY_YAML = {
    "norm": ["norm=mynorm", *SMALL],
    "placement": ["placement=halved", *SMALL],
    "model": ["model=twolayers", "data=digits"],
    "data": ["data=stripes", "model=mlp", "model.depth=1"],
    "all": ["norm=mynorm", "placement=halved", "model=twolayers", "data=stripes"],
}
TARGETS = {
    "norm": "mypkg.MyNorm",
    "placement": "mypkg.parts.Halved",
    "model": "mypkg.parts.TwoLayers",
    "data": "mypkg.parts.Stripes",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package as if it were installed."""
    monkeypatch.syspath_prepend(EXAMPLE)


def run_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and summary of the only run under a folder."""
    (summary,) = folder.glob("outputs/train/*/summary.json")
    return yaml.safe_load((summary.parent / "config.yaml").read_text()), json.loads(summary.read_text())


@pytest.mark.parametrize("section", BY_CLASS)
def test_a_class_of_an_installed_package_trains(section: str, here: Path, installed: None) -> None:
    assert main(["train", *BY_CLASS[section], *SHORT]) == 0
    config, summary = run_of(here)
    assert config[section]["_target_"] == TARGETS[section]
    assert summary["choices"][section] == TARGETS[section].rpartition(".")[2].lower()
    assert summary["status"] == "finished"


@pytest.mark.parametrize("section", BY_YAML)
def test_the_yaml_of_a_directory_trains(section: str, here: Path, installed: None) -> None:
    assert main(["train", "--config-dir", str(EXAMPLE / "conf"), *BY_YAML[section], *SHORT]) == 0
    config, summary = run_of(here)
    own = TARGETS if section == "all" else {section: TARGETS[section]}
    assert {name: config[name]["_target_"] for name in own} == own
    assert summary["status"] == "finished"


def test_a_class_of_the_current_directory_trains(here: Path) -> None:
    shutil.copytree(EXAMPLE / "mypkg", here / "mypkg")
    words = [f"{section}._target_={target}" for section, target in TARGETS.items()]
    assert main(["train", *words, "norm.eps=1e-3", *SHORT]) == 0
    config, summary = run_of(here)
    assert config["norm"] == {"_target_": "mypkg.MyNorm", "_partial_": True, "eps": 1e-3}
    assert summary["ledger"]["eps"] == 1e-3


@pytest.mark.slow
def test_the_console_script_finds_a_class_beside_it(here: Path) -> None:
    """Unlike `python -m`, it does not have the current directory on its path."""
    shutil.copytree(EXAMPLE / "mypkg", here / "mypkg")
    script = "import sys; sys.path.remove(''); from normbench.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", script, "train", *BY_CLASS["norm"], *SHORT]
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert run_of(here)[0]["norm"]["_target_"] == "mypkg.MyNorm"


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_flags_may_stand_anywhere_among_the_words(order: tuple[int, ...], installed: None) -> None:
    words = [["norm=mynorm"], ["--config-dir", str(EXAMPLE / "conf")], ["seed=3", "~norm.eps"]]
    assert main(["train", *(word for index in order for word in words[index]), "--cfg", "job"]) == 0


def test_a_changed_class_makes_another_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers would be another's: the same command must not say that it is done already.

    What a process has imported counts, not what has become of the file since.
    """
    shutil.copytree(EXAMPLE / "mypkg", here / "mypkg")
    monkeypatch.syspath_prepend(here)
    source = here / "mypkg/__init__.py"
    for imported in (True, False, True):
        if imported:
            for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
                monkeypatch.delitem(sys.modules, name)
            invalidate_caches()
        assert main(["train", *BY_CLASS["norm"], *SHORT]) == 0
        source.write_text(source.read_text() + "# one line more\n")
    assert len(list(here.glob("outputs/train/mynorm-pre-s0-*"))) == 2
    assert main(["train", *BY_CLASS["norm"], *SHORT]) == 0
    assert len(list(here.glob("outputs/train/mynorm-pre-s0-*"))) == 2


def test_probes_know_the_channels_of_a_norm_that_does_not_keep_them(here: Path) -> None:
    """In a CNN the features are the second axis, whether the norm says so or not."""
    norms = assembly.NormsOnRecord(lambda num_features, *, channel_dim, site: torch.nn.Identity())
    norm = norms(3, channel_dim=1, site=Site("conv", 0))
    x = torch.randn(2, 3, 4, 4)
    x[:, 1] = 0
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList()
    wanted = Wanted(activations=True, gradients=False, parameters=False, tails=False, geometry=False, attention=False,
                    updates=False)  # fmt: skip
    probes = Probes(model, norms.made, wanted)  # type: ignore[arg-type]  # no more of a model is looked at
    with probes.watch(histograms=False) as reading:
        norm(x)
    assert reading.numbers()["act/block00.conv/dead_in"] == pytest.approx(1 / 3)


def test_two_norms_at_one_site_are_refused() -> None:
    norms = assembly.NormsOnRecord(lambda num_features, *, channel_dim, site: torch.nn.Identity())
    norms(3, site=Site("mlp", 0))
    norms(3, site=Site("mlp", 1))
    with pytest.raises(UsageError, match=r"two norms stand at block00\.mlp: give"):
        norms(3, site=Site("mlp", 0))


class Defaults:
    """What a user's class may look like to the settings of the one that it replaces."""

    def __init__(self, task: Any, *, width: int, depth: int = 7, context: int = 32) -> None: ...


class HandsOn(Defaults):
    def __init__(self, *args: Any, heads: int = 3, **settings: Any) -> None: ...


@pytest.mark.parametrize("name", ["Defaults", "HandsOn"])
def test_a_class_keeps_its_own_defaults_where_the_command_line_sets_nothing(name: str) -> None:
    """What has no default, and the length of a window, comes from the YAML of the class that is replaced."""
    composition = compose("train", [f"model._target_=test_own_parts.{name}", "+model.extra.one=1"])
    assert composition is not None
    model = assembly.adopt_targets(composition.tree, composition.overridden)["model"]
    assert model == {"_target_": f"test_own_parts.{name}", "width": 128, "context": 64, "extra": {"one": 1}}


def test_another_optimizer_takes_over_the_learning_rate_alone() -> None:
    composition = compose("train", ["optim._target_=torch.optim.SGD", "+optim.momentum=0.5"])
    assert composition is not None
    optim = assembly.adopt_targets(composition.tree, composition.overridden)["optim"]
    assert optim == {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 1e-3, "momentum": 0.5}


# ---- the start of what initialisation does not know


def start(seed: int, **targets: str) -> dict[str, torch.Tensor]:
    """All parameters of that model outside its norms, and those of its norms."""
    from mypkg.parts import Stripes

    words = {"norm": "mypkg.MyNorm", "placement": "normbench.placements.Pre", "model": "broken_parts.Mixed"} | targets
    tree = {section: {"_target_": target} for section, target in words.items()}
    tree["init"] = {"_target_": "normbench.models.Xavier", "embedding_std": 0.02, "residual_scale": False}
    model, norms = assembly.make_model(tree, Stripes(seed=0), seed)
    inside = {id(parameter): site for site, norm in norms.items() for parameter in norm.parameters()}
    return {inside.get(id(parameter), name): parameter.detach() for name, parameter in model.named_parameters()}


def test_what_a_model_draws_itself_follows_from_the_seed_whatever_the_norm(installed: None) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = start(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again, other_seed = start(0), start(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    for drawn in ("convolution.weight", "attention.in_proj_weight", "shift"):
        assert not torch.equal(first[drawn], other_seed[drawn])
    drawing = [start(seed, norm="bad_norms.Drawn", placement="mypkg.parts.Halved") for seed in (0, 0, 1)]
    assert all(torch.equal(drawing[0][name], drawing[1][name]) for name in drawing[0])
    assert len({values["block00.layer"].item() for values in drawing}) == 2
    for name in first.keys() & drawing[0].keys() - {"block00.layer", "block01.layer", "final"}:
        assert torch.equal(first[name], drawing[0][name]), name
