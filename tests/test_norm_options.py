"""What the norms decide from their options, what they refuse, and whether the facts they declare are true."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from test_norms import CONF, FEATURES, NAMES, OPERATORS, implementations, make, options, random_input
from torch import nn

from normbench.errors import UsageError
from normbench.norms import DyT, GroupNorm, PartialRMSNorm
from normbench.types import Norm, NormFacts, Site

# --- the YAML files are the registry


@pytest.mark.parametrize("name", NAMES)
def test_yaml_shows_every_option_with_its_default(name: str) -> None:
    settings = options(name)
    norm = make(name, site=Site("mlp", 0))
    assert isinstance(norm, Norm) and isinstance(norm.facts, NormFacts)
    assert settings.pop("_target_") == f"normbench.norms.{type(norm).__name__}"
    assert settings.pop("_partial_") is True
    assert settings.pop("impl") == "auto"
    own = inspect.signature(type(norm)).parameters.values()
    defaults = {each.name: each.default for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert settings == {key: value for key, value in defaults.items() if key not in ("channel_dim", "site", "impl")}
    assert (CONF / f"{name}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize("name", NAMES)
def test_norm_knows_its_place_and_its_implementation(name: str) -> None:
    site = Site("conv", 1, 3)
    norm = make(name, channel_dim=1, site=site)
    assert (norm.num_features, norm.channel_dim) == (FEATURES, 1)
    assert norm.eps == options(name).get("eps")
    assert make(name, impl="eager").implementation == "eager"
    if name in OPERATORS:
        assert norm.implementation.startswith("torch.nn.functional.")
        assert make(name, channel_dim=1, impl="torch").implementation == norm.implementation
    else:
        assert norm.implementation == "eager"


# --- affine


@pytest.mark.parametrize("name", NAMES)
def test_affine_and_bias(name: str) -> None:
    kept, x = {"alpha"} if name == "dyt" else set(), random_input("sequence")
    if "affine" in options(name):
        plain, affine = make(name, affine=False), make(name, affine=True)
        assert {key for key, _ in plain.named_parameters()} == kept
        torch.testing.assert_close(plain(x), affine(x))
        assert plain.settings()["affine"] is False and affine.settings()["affine"] is True
    if "bias" in options(name):
        without, both = make(name, bias=False), make(name)
        assert without.bias is None and without.settings()["bias"] is False and both.settings()["bias"] is True
        with torch.no_grad():
            both.bias.fill_(0.5)
        torch.testing.assert_close(without(x) + 0.5, both(x))


# --- decisions


@pytest.mark.parametrize(("width", "groups"), [(4, 1), (6, 1), (8, 2), (64, 16), (124, 31), (128, 32), (384, 32)])
def test_auto_groups(width: int, groups: int) -> None:
    norm = GroupNorm(width)
    assert norm.groups == norm.settings()["groups"] == groups


LLAMA = [(64, 1.0, 1.0), (1024, 1.0, 1.0), (2047, 1.0, 1.0), (2048, 1.0, 0.5), (4096, 0.8, 0.2), (6000, 0.6, 0.15),
         (8192, 0.2, 0.05)]  # fmt: skip


@pytest.mark.parametrize(("width", "attention", "others"), LLAMA)
def test_llama_alpha0(width: int, attention: float, others: float) -> None:
    norms = [DyT(width, alpha0="llama", bias=False, site=Site(role, 0)) for role in ("attention", "mlp", "final")]
    assert [norm.settings()["alpha0"] for norm in norms] == [attention, others, others]
    torch.testing.assert_close([norm.alpha.item() for norm in norms], [attention, others, others])


def test_saturation_counts_what_is_beyond_099() -> None:
    norm = DyT(4, alpha0=2.0)
    edge = math.atanh(0.99) / 2
    share = norm.saturation(torch.tensor([[0.0, edge * 1.001, -edge * 1.001, edge * 0.999]]))
    assert share.shape == () and share.item() == 0.5 and not share.requires_grad


@pytest.mark.parametrize(
    ("width", "fraction", "k"),
    [(16, 0.0625, 8), (4, 0.0625, 4), (128, 0.0625, 8), (129, 0.0625, 9), (300, 0.07, 21), (10, 1.0, 10)],
)
def test_partial_features_are_rounded_up(width: int, fraction: float, k: int) -> None:
    norm = PartialRMSNorm(width, fraction=fraction)
    assert norm.k == norm.settings()["k"] == k
    x = torch.randn(3, width)
    x[:, k:] *= 100  # what is not counted does not change the rest
    kept = nn.functional.rms_norm(x[:, :k], (k,), eps=norm.eps)
    torch.testing.assert_close(norm(x)[:, :k], kept)


# --- refusals

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"impl": "torch"}, "auto or eager") for name in NAMES if name not in OPERATORS),
    ("batchnorm", {"eps": 0, "impl": "torch"}, "auto or eager"),
    ("groupnorm", {"groups": 5}, "choose a divisor"),
    ("groupnorm", {"groups": 12}, "lower norm.groups"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused_options(name: str, changes: dict[str, Any], words: str) -> None:
    # a constructor called as a model does it, so that what is raised is not wrapped by Hydra
    settings = {key: value for key, value in (options(name) | {"width": FEATURES} | changes).items() if key[0] != "_"}
    with pytest.raises(UsageError, match=words):
        type(make(name))(settings.pop("width"), **settings)


SINGLE: list[tuple[str, dict[str, Any], tuple[int, ...], str]] = [
    ("batchnorm", {}, (1, FEATURES), "larger batches"),
    ("batchnorm", {"channel_dim": 1}, (1, FEATURES, 1, 1), "larger batches"),
    ("instancenorm", {}, (6, FEATURES), "another norm"),
    ("groupnorm", {"channel_dim": 1, "groups": FEATURES}, (6, FEATURES, 1, 1), "lower norm.groups"),
    ("groupnorm", {"across_time": True, "groups": FEATURES}, (6, 1, FEATURES), "lower norm.groups"),
]


@pytest.mark.parametrize(("name", "changes", "shape", "words"), SINGLE)
def test_statistics_of_a_single_value_are_refused(
    name: str, changes: dict[str, Any], shape: tuple[int, ...], words: str
) -> None:
    for impl in implementations(name):
        with pytest.raises(UsageError, match=words):
            make(name, **changes, impl=impl)(torch.randn(shape))
