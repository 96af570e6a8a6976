"""A user's own norm, placement, model and data in `normbench train`, from a package outside the repository."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support import IMAGES, REPOSITORY

from normbench.build import NormsBySite, factory, make_model
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.recipe import Recipe
from normbench.errors import UsageError
from normbench.probes import Probes
from normbench.types import Model, Site

EXAMPLE = REPOSITORY / "tests" / "example_package"
FOLDER = ["--config-dir", str(EXAMPLE / "conf")]
SHORT = ["trainer.steps=2", "trainer.eval_batches=1", "quiet=true", "device=cpu", "threads=1"]
SMALL = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2",
         "data.eval_batch_size=512"]  # fmt: skip
TARGETS = {
    "norm": "mypkg.MyNorm",
    "placement": "mypkg.parts.Halved",
    "model": "mypkg.parts.TwoLayers",
    "data": "mypkg.parts.Stripes",
}
OWN_NORM = [f"norm._target_={TARGETS['norm']}", *SMALL]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the example package be imported anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
        monkeypatch.delitem(sys.modules, name)
    invalidate_caches()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget(monkeypatch)
    return folder


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package as if it were installed."""
    monkeypatch.syspath_prepend(EXAMPLE)


def run_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return configuration and summary of the only run under a folder."""
    (summary,) = folder.glob("outputs/train/*/summary.json")
    return yaml.safe_load((summary.parent / "config.yaml").read_text()), json.loads(summary.read_text())


def test_the_yamls_of_a_directory_train(here: Path, installed: None) -> None:
    words = ["norm=mynorm", *FOLDER, "placement=halved", "model=twolayers", "data=stripes"]
    assert main(["train", *words, *SHORT]) == 0
    config, summary = run_of(here)
    assert {name: config[name]["_target_"] for name in TARGETS} == TARGETS
    assert summary["status"] == "finished"


def test_a_class_of_the_current_directory_trains(here: Path) -> None:
    """Which is not on the path, as it is not for the console script."""
    shutil.copytree(EXAMPLE / "mypkg", here / "mypkg")
    words = [f"{section}._target_={target}" for section, target in TARGETS.items()]
    assert main(["train", *words, "norm.eps=1e-3", *SHORT]) == 0
    config, summary = run_of(here)
    assert config["norm"] == {"_target_": "mypkg.MyNorm", "_partial_": True, "eps": 1e-3}
    assert summary["ledger"]["eps"] == 1e-3
    named = {section: target.rpartition(".")[2].lower() for section, target in TARGETS.items()}
    assert summary["choices"].items() >= named.items()


OWN_SETTING = """
from typing import Annotated

from normbench.norms import RMSNorm
from normbench.settings import Setting


class Damped(RMSNorm):
    def __init__(self, *args, beta0: Annotated[float, Setting("how much is left", low=0, high=1)] = 0.5, **settings):
        super().__init__(*args, **settings)
        self.beta0 = beta0

    def forward(self, x):
        return self.beta0 * super().forward(x)
"""


def test_a_setting_of_a_new_norm_is_written_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the signature of its class: it is taken, checked and explained from there."""
    (here / "damping.py").write_text(OWN_SETTING)
    (here / "conf/norm").mkdir(parents=True)
    (here / "conf/norm/damped.yaml").write_text(
        "# a norm that leaves a part\n_target_: damping.Damped\n_partial_: true"
    )
    words = ["--config-dir", "conf", "norm=damped"]
    assert main(["train", *words, "norm.beta0=0.25", *SMALL, *SHORT]) == 0
    assert run_of(here)[0]["norm"]["beta0"] == 0.25
    assert main(["train", *words, "norm.beta0=2"]) == 2
    assert "norm.beta0=2 is not allowed: use a number from 0 to 1" in capsys.readouterr().err
    assert main(["train", *words, "--help"]) == 0
    assert "how much is left" in capsys.readouterr().out


ODDLY_WRITTEN = """
from __future__ import annotations

import typing as t
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from torch import nn

from normbench.settings import Setting

if TYPE_CHECKING:
    from fractions import Fraction

try:
    Share = Annotated[float, Setting("a share", low=0, high=1)]
except ImportError:
    Share = float
Count: type = Annotated[int, Setting("how many", low=1)]


class Odd(nn.Identity):
    def __init__(
        self,
        num_features,
        *,
        share: Share = 0.5,
        count: Count = 1,
        kind: t.Literal["a", "b"] = "a",
        gain: t.Optional[Annotated[float, Setting(below=2)]] = None,
        sizes: t.List[int] = (1,),
        part: Fraction = 1,
        whole: Annotated[complex, Setting(low=0)] = 1,
    ):
        super().__init__()


@dataclass
class Start:
    share: Share
    count: Count = 1


class Pair(t.NamedTuple):
    share: Share
    count: int = 1


def make(num_features, *, kind: t.Literal["a"] = "a", **rest) -> Odd:
    return Odd(num_features, **rest)
"""


def test_a_class_may_write_its_annotations_as_it_likes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "oddly.py").write_text(ODDLY_WRITTEN)
    refused = {"share": 2, "count": 0, "kind": "c", "gain": 3, "sizes": "[1.5]"}
    for target in ("Odd", "make"):
        for name, value in refused.items():
            word = f"norm.{name}={value}"
            assert main(["train", f"norm._target_=oddly.{target}", word]) == 2
            assert f"{word} is not allowed: use " in capsys.readouterr().err
    with pytest.raises(UsageError, match="share is missing"):
        read(["init._target_=oddly.Start"])
    for target in ("Start", "Pair"):
        words = [f"init._target_=oddly.{target}", "init.share=1"]
        assert read(words).tree["init"]["share"] == 1
    with pytest.raises(UsageError, match="use an integer"):
        read(["init._target_=oddly.Start", "init.share=1", "init.count=a"])


def test_a_setting_called_name_is_no_part_of_a_run_s_name(here: Path) -> None:
    (here / "named.py").write_text(
        "from normbench.types import Model\n"
        "class Named(Model):\n"
        "    def __init__(self, task, norm, placement, *, name: str = 'a'):\n"
        "        super().__init__()\n"
    )
    config = read(["model._target_=named.Named", "model.name=b", "data=pydocs"])
    assert config.choices.words == ("layernorm", "pre", "named")


def test_a_start_of_weights_is_derived_from_ours(here: Path) -> None:
    (here / "starts.py").write_text(
        "from normbench.models import Initialization\n"
        "@Initialization.register\n"
        "class Registered:\n"
        "    embedding_std, residual_scale, factor = 0.02, False, 1.0\n"
        "    def std(self, fan_in, fan_out):\n"
        "        return 0.02\n"
        "def make(**settings) -> Initialization:\n"
        "    return Registered()\n"
    )
    with pytest.raises(
        UsageError, match=r"starts\.Registered makes no Initialization: give .* of a class derived from"
    ):
        factory(read(["init._target_=starts.Registered"]).recipe["init"])
    with pytest.raises(
        UsageError, match=r"starts\.make gives something of type Registered: return something of a class"
    ):
        factory(read(["init._target_=starts.make"]).recipe["init"])()


def test_an_annotation_that_cannot_be_read_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "unreadable.py").write_text(ODDLY_WRITTEN)
    words = ["norm._target_=unreadable.Odd", "norm.part=3", "norm.whole=-1", "norm.count=3", *SMALL, *SHORT]
    assert main(["train", *words, "quiet=false"]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: norm.")]
    assert len(warnings) == 2
    assert "norm.part may be anything, since its annotation in unreadable.Odd cannot be read (NameError" in warnings[0]
    assert "norm.whole may be anything" in warnings[1] and "complex" in warnings[1]


BUILT_ODDLY = """
import dataclasses
from torch import nn
from normbench.settings import Setting
from typing import Annotated, NamedTuple


class Plain(nn.Module):
    def forward(self, x):
        return x


class Given(Plain):
    def __post_init__(self, *given):
        nn.Module.__init__(self)


@dataclasses.dataclass(eq=False)
class Passed(Given):
    num_features: int
    channel_dim: int = -1
    site: object = None
    scale: dataclasses.InitVar["int"] = 3


@dataclasses.dataclass(eq=False)
class Keyword(Given):
    num_features: int
    _: dataclasses.KW_ONLY
    channel_dim: int = -1
    site: object = None
    scale: int = dataclasses.field(default_factory=int)
    bound: Annotated[int, Setting("a bound", low=0)] = 1


class Unannotated(Keyword):
    __annotations__ = {}


del Keyword.__annotations__["bound"]
lost = [("num_features", int), ("channel_dim", int, -1), ("site", object, None), ("scale", int, 1)]
Lost = dataclasses.make_dataclass("Lost", lost, bases=(Given,), eq=False)
Lost.__module__ = "no.such.module"


@dataclasses.dataclass(eq=False, slots=True)
class Slots(Given):
    num_features: int
    channel_dim: int = -1
    site: object = None
    scale: int = 1


class Raises:
    def __get__(self, *owner):
        raise RuntimeError("not here")


class Broken(Plain):
    __init__ = Raises()


class Unsigned(Plain):
    __signature__ = "none"

    def __init__(self, num_features, channel_dim=-1, site=None, scale: int = 1):
        super().__init__()


def turns(num_features) -> Plain:
    return Plain()


turns.__wrapped__ = turns
"""


def test_a_class_may_be_built_as_it_likes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "built.py").write_text(BUILT_ODDLY)
    for name in ("Passed", "Keyword", "Unannotated", "Slots"):
        words = [f"norm._target_=built.{name}", "norm.scale=2", *SMALL, *SHORT]
        assert main(["train", *words]) == 0, name
        assert main(["train", *words, "norm.scale=a"]) == 2
        assert "norm.scale=a is not allowed: use an integer" in capsys.readouterr().err
    for name in ("Lost", "Broken", "Unsigned", "turns"):
        assert main(["train", f"norm._target_=built.{name}", *SMALL, *SHORT]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith("normbench: ") and name in said
    (here / "misbuilt.py").write_text(BUILT_ODDLY.replace("low=0", "low='0'"))
    assert main(["train", "norm._target_=misbuilt.Slots", *SMALL, *SHORT]) == 2
    assert "fix TypeError: '0' is not a bound of a Setting: give a number (misbuilt.py" in capsys.readouterr().err


def test_a_changed_class_makes_another_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers would be another's: the same command must not say that it is done already.

    What a process has imported counts, not what has become of the file since.
    """
    shutil.copytree(EXAMPLE / "mypkg", here / "mypkg")
    monkeypatch.syspath_prepend(here)
    source = here / "mypkg/__init__.py"
    for imported in (True, False, True, False):
        if imported:
            forget(monkeypatch)
        assert main(["train", *OWN_NORM, *SHORT]) == 0
        source.write_text(source.read_text() + "# one line more\n")
    assert len(list(here.glob("outputs/train/mynorm-pre-s0-*"))) == 2


def test_probes_know_the_channels_of_a_norm_that_does_not_keep_them() -> None:
    """In a CNN the features are the second axis, whether the norm says so or not."""
    norms = NormsBySite(lambda num_features, *, channel_dim, site: torch.nn.Identity(), seed=0)
    model = Model()
    model.blocks = torch.nn.ModuleList()
    model.norm = norms(3, channel_dim=1, site=Site("conv", 0))
    x = torch.randn(2, 3, 4, 4)
    x[:, 1] = 0
    with Probes(model, {"activations"}).watch() as reading:
        model.norm(x)
    assert reading.numbers()["act/block00.conv/dead_in"] == pytest.approx(1 / 3)


class Defaults:
    """What a user's class may look like to the settings of the one that it replaces."""

    def __init__(self, task: Any, *, width: int, depth: int = 7, context: int = 32) -> None: ...


class HandsOn(Defaults):
    def __init__(self, *args: Any, heads: int = 3, **settings: Any) -> None: ...


@pytest.mark.parametrize("name", ["Defaults", "HandsOn"])
def test_a_class_keeps_its_own_defaults_where_the_command_line_sets_nothing(name: str) -> None:
    """What has no default, and the length of a window, comes from the YAML of the class that is replaced."""
    model = read([f"model._target_=test_own_parts.{name}"]).tree["model"]
    assert model == {"_target_": f"test_own_parts.{name}", "width": 128, "context": 64}


def start(
    seed: int, norm: str = "mypkg.MyNorm", placement: str = "normbench.placements.Pre"
) -> dict[str, torch.Tensor]:
    """Return all parameters of a model outside its norms, and those of its norms by their site."""
    words = {"norm": norm, "placement": placement, "model": "bad_parts.Mixed", "init": "normbench.models.Xavier"}
    tree: dict[str, Any] = {section: {"_target_": target} for section, target in words.items()}
    tree["init"] |= {"embedding_std": 0.02, "residual_scale": False}
    model, norms = make_model(Recipe(tree), IMAGES, seed)
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
    drawing = [start(seed, "bad_parts.Drawn", "mypkg.parts.Halved") for seed in (0, 0, 1)]
    assert all(torch.equal(drawing[0][name], drawing[1][name]) for name in drawing[0])
    assert len({values["block00.layer"].item() for values in drawing}) == 2
    for name in first.keys() & drawing[0].keys() - {"block00.layer", "block01.layer", "final"}:
        assert torch.equal(first[name], drawing[0][name]), name


def test_a_model_whose_convolutions_are_not_safe_on_the_cpu_is_warned_of(
    installed: None, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model._target_=bad_parts.Strided", "data=digits", *SHORT[:2], *SHORT[3:]]
    assert main(["train", *words]) == 0
    assert "warning: skip: a 1 × 1 convolution with a stride" in capsys.readouterr().out
