"""The door to given models in Python: `normbench.swap`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from given_models import HOSTS, OTHERS
from support import REPOSITORY
from torch import nn

import normbench
from normbench.errors import UsageError
from normbench.norms import RMSNorm

PAGE = (REPOSITORY / "docs/given_models.md").read_text("utf-8")


def test_the_scripts_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block.replace("vit_tiny_patch16_224", "test_vit"), names)
    replaced = names["table"][names["table"].becomes != ""]
    assert list(replaced.site) == [f"block0{layer}.attention.{slot}" for layer in (0, 1) for slot in "qk"]
    assert "blocks.0.norm1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "places"), [("gpt2", "final"), ("gemma3", "first1.qk"), ("resnet", ["stem", "shortcut"])]
)
def test_norms_of_some_places(name: str, places: Any) -> None:
    given = HOSTS[name]
    model, table = normbench.swap(given.build(), "rmsnorm", where=places)
    assert list(table.columns) == ["path", "norm", "site", "features", "becomes", "eps", "kept", "lost", "left"]
    replaced = table[table.becomes == "RMSNorm"]
    expected = {
        "gpt2": ["final"],
        "gemma3": ["block00.attention.q", "block00.attention.k"],
        "resnet": ["stem", *(f"block0{layer}.conv.shortcut" for layer in range(4))],
    }
    assert list(replaced.site) == expected[name]
    for path, module in model.named_modules():
        assert isinstance(module, RMSNorm) == (path in set(replaced.path))
    assert set(replaced.kept) == {"γ"}
    assert set(replaced.lost) == {{"gpt2": "β", "gemma3": "", "resnet": "β, statistics"}[name]}


def test_settings_examples_and_norms_of_ones_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=1e-3))
    x = torch.randn(2, 4)
    for example in (x, (x,), {"input": x}, lambda model: model(x)):
        normbench.swap(model, "dyt", example=example, alpha0=0.25)
    assert model[1].alpha.item() == 0.25
    _, table = normbench.swap(model, RMSNorm, example=x, eps=1e-2)
    assert table.to_dict("records")[0]["becomes"] == "RMSNorm" and model[1].eps == 1e-2
    normbench.swap(model, "torch.nn.LayerNorm", example=x, elementwise_affine=False)
    assert isinstance(model[1], nn.LayerNorm) and model[1].weight is None
    normbench.swap(model, nn.RMSNorm, example=x, keep="nothing")
    torch.testing.assert_close(model(x), nn.RMSNorm(4)(model[0](x)))


@dataclass
class Maker:
    """Makes norms, and has no hash, as dataclasses that may change have none."""

    affine: bool

    def __call__(self, features: int) -> nn.Module:
        return nn.RMSNorm(features, elementwise_affine=self.affine)


def test_a_norm_is_made_by_whatever_can_be_called() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    normbench.swap(model, Maker(affine=False), example=torch.randn(2, 4))
    assert isinstance(model[1], nn.RMSNorm) and model[1].weight is None


def test_alpha_of_a_language_model_is_that_of_the_paper() -> None:
    model, _ = normbench.swap(HOSTS["llama"].build(), "dyt")
    assert model.model.layers[0].input_layernorm.alpha.item() == 1  # narrower than the narrowest LLaMA
    model, _ = normbench.swap(HOSTS["bert"].build(), "dyt")
    assert model.bert.embeddings.LayerNorm.alpha.item() == 0.5


@pytest.mark.parametrize(
    ("name", "how", "sentence"),
    [
        ("vit", {"norm": "rmsnrm"}, "norm=rmsnrm is unknown: did you mean rmsnorm"),
        ("vit", {"norm": "own"}, "norm=own is what the model has"),
        ("vit", {"norm": "dyt", "alpha": 1.0}, "norm.alpha is not a setting of .*DyT: did you mean alpha0"),
        ("vit", {"norm": "dyt", "alpha0": -1}, "norm.alpha0=-1 is not allowed"),
        ("vit", {"norm": "rmsnorm", "where": "atention"}, "where=atention fits no norm .*: did you mean attention"),
        ("vit", {"norm": "rmsnorm", "where": "qk"}, "where=qk fits no norm of this model: a place is words"),
        ("vit", {"norm": "rmsnorm", "where": []}, r"where=\[\] names no place: leave it out"),
        ("vit", {"norm": "rmsnorm", "keep": "all"}, "keep=all is unknown: use weights or nothing"),
        ("vit", {"norm": "rmsnorm", "example": torch.zeros(2, 3)}, "the forward pass of VisionTransformer fails"),
        ("vit", {"norm": "rmsnorm", "example": 3}, "example=int is none: give a batch"),
        ("convnext", {"norm": "instancenorm"}, "ConvNeXt does not run with InstanceNorm in the places of its norms"),
        ("vit", {"norm": "groupnorm", "groups": 5}, "norm.groups=5 makes 5 groups of 32 features"),
        ("llama", {"norm": "instancenorm"}, "norm=instancenorm with a causal model is refused: its statistics"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_and_leaves_the_model_as_it_was(name: str, how: dict[str, Any], sentence: str) -> None:
    model = HOSTS[name].build()
    modules = list(model.modules())
    with pytest.raises(UsageError, match=f"^{sentence}"):
        normbench.swap(model, **how)
    assert all(before is after for before, after in zip(modules, model.modules(), strict=True))


def test_a_model_without_norms_or_without_a_known_input_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="no input is known for Linear: give example="):
        normbench.swap(nn.Linear(3, 3), "rmsnorm")
    with pytest.raises(UsageError, match="the model has no norm that can be replaced"):
        normbench.swap(nn.Linear(3, 3), "rmsnorm", example=torch.zeros(2, 3))


def test_what_stays_and_what_leaks_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="normalizes by a function, normalize, which stays as it is"):
        normbench.swap(OTHERS["swin2"].build(), "rmsnorm")
    with pytest.warns(UserWarning, match="norm=batchnorm takes statistics over time in training"):
        normbench.swap(HOSTS["gpt2"].build(), "batchnorm")
