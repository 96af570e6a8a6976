"""A model tells its anatomy, and has norms inside its branches where a factory asks for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support import IMAGES, MATRIX, SMALL, TEXT, TEXTS, TRANSLATIONS, build, random_batch, section
from torch import Tensor, nn

from normbench.build import NormsBySite, build_model, factory
from normbench.config.recipe import Recipe
from normbench.errors import ContractError
from normbench.models import Xavier, initialize
from normbench.norms import NoNorm, RMSNorm
from normbench.probes import Probes
from normbench.types import Anatomy, Block, Branch, Model, NormFacts, Site, Task, norms_in, worst_of

WANTED = {"activations", "gradients", "attention", "geometry", "parameters"}
INSIDE_ATTENTION = ("q", "k", "v", "q_all", "k_all", "context")


@pytest.mark.parametrize("name", MATRIX)
def test_a_model_tells_its_blocks_in_the_order_in_which_they_run(name: str) -> None:
    model_name, task = MATRIX[name]
    placement = "plain" if model_name in ("cnn_plain", "vgg", "mlp_plain", "rnnsearch", "rnn_lm") else "sandwich"
    model, norms = build("layernorm", placement, model_name, task)
    anatomy = model.anatomy()
    ran: list[nn.Module] = []
    for block in anatomy.blocks:
        block.module.register_forward_pre_hook(lambda module, inputs: ran.append(module))
    model(*random_batch(task).arguments)
    assert ran == [block.module for block in anatomy.blocks]
    assert [block.layer for block in anatomy.blocks] == [*range(len(ran))]
    assert {role for block in anatomy.blocks for role in block.branches} == {*model.roles}
    assert dict(anatomy.norms) == norms
    for block in anatomy.blocks:
        assert [*block.norms] == [name for name in norms if name.startswith(block.name)]
        assert block.channel_dim == (1 if model.roles == ("conv",) else -1)
    assert {*anatomy.outer_norms} == {name for name in norms if name.startswith("final")}
    sides = {block.side for block in anatomy.blocks}
    assert sides == ({"encoder", "decoder"} if task is TRANSLATIONS else {""})
    assert anatomy.stem is model.stem


class TwoStreams(nn.Module):
    """A block that is not a placement: two streams on a first axis, of which a linear map moves the second."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack((x[0] + self.linear(x[1]), self.norm(x[1])))


class Foreign(Model):
    """A model that keeps its blocks elsewhere, as one of another library does, and says so by itself."""

    kinds = frozenset({"image_classification"})
    roles = ("linear",)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(TwoStreams(8), TwoStreams(8))
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(self.layers(torch.stack((x, x)))[0])

    def anatomy(self) -> Anatomy:
        blocks = []
        for layer, module in enumerate(self.layers):
            assert isinstance(module, TwoStreams)
            norms = {f"block{layer:02d}.linear": module.norm}
            blocks.append(Block(module, layer, "", {"linear": module.linear}, norms, channel_dim=-1))
        every = {name: norm for block in blocks for name, norm in block.norms.items()}
        return Anatomy(self.embed, tuple(blocks), every)


def test_a_model_with_an_anatomy_of_its_own_is_probed_by_it() -> None:
    model = Foreign()
    initialize(model, Xavier(embedding_std=0.02, residual_scale=False), 0, model.anatomy().norms.values())
    assert not torch.equal(*(block.branches["linear"].weight for block in model.anatomy().blocks))  # type: ignore[arg-type]  # tensors
    with Probes(model, WANTED).watch() as reading:
        model(torch.randn(4, 8)).square().sum().backward()
    numbers = reading.numbers()
    assert {"act/stream01/rms", "act/block01.linear/rms_in", "grad/block00.linear/norm"} <= {*numbers}
    assert "norm/block00.linear/gamma_mean" in numbers and "grad/outside/norm" in numbers


class Asking:
    """A factory that asks for norms at the optional places of some slots or roles, and none elsewhere."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        return NoNorm(num_features, channel_dim=channel_dim)

    def optional(self, num_features: int, *, channel_dim: int = -1, site: Site) -> nn.Module | None:
        if site.slot in self.words or site.role in self.words:
            return RMSNorm(num_features, channel_dim=channel_dim, site=site)
        return None


def asked(model: str, task: Task, *words: str, **settings: Any) -> tuple[Model, dict[str, nn.Module]]:
    """Return a model whose factory asks for norms at these places, and its norms."""
    norms = NormsBySite(Asking(*words), seed=0)
    tree = {"placement": section("placement", "pre"), "model": section("model", model, **SMALL[model] | settings)}
    place = factory(Recipe(tree)["placement"])
    made: Model = factory(Recipe(tree)["model"])(task, norms, place)
    initialize(made, Xavier(embedding_std=0.02, residual_scale=False), 0, norms.made.values())
    return made, norms.made


PLACES = {
    "nano": (TEXT, (*INSIDE_ATTENTION, "hidden", "stem")),
    "seq2seq": (TRANSLATIONS, (*INSIDE_ATTENTION, "hidden", "stem")),
    "resnet18": (IMAGES, ("shortcut", "stem")),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_norm_at_an_optional_place_learns_and_moves_no_weight(name: str) -> None:
    """All other weights start as without it, under the same names; every norm gets a gradient and is probed."""
    task, words = PLACES[name]
    bare, none = asked(name, task)
    assert not any({*site.split(".")} & {*words} for site in none)
    model, norms = asked(name, task, *words)
    start = model.state_dict()
    assert {*bare.state_dict()} < {*start}
    assert all(torch.equal(start[key], value) for key, value in bare.state_dict().items())
    found = {site.rpartition(".")[2] for site in norms if site not in none}
    assert found == {*words}
    batch = random_batch(task)
    with Probes(model, WANTED).watch() as reading:
        task.loss(model(*batch.arguments), batch.targets).backward()
    numbers = reading.numbers()
    for site in norms:
        if site not in none:
            gradient: Any = norms[site].weight.grad  # type: ignore[union-attr]  # of an RMSNorm
            assert gradient.abs().sum() > 0
            assert f"act/{site}/rms_in" in numbers


def test_queries_and_keys_are_normalized_by_head_and_values_stay() -> None:
    """As Qwen 3 has it: RMSNorm of each head's features, before the rotation, which keeps lengths."""
    model, norms = asked("nano", TEXT, "q", "k", position="rotary")
    assert {name for name in norms if name.endswith((".q", ".k"))} == {
        f"block{layer:02d}.attention.{slot}" for layer in range(2) for slot in "qk"
    }
    for name in ("block00.attention.q", "block00.attention.k"):
        assert norms[name].num_features == 8
    seen: list[Tensor] = []
    (inner,) = model.anatomy().blocks[0].attention().values()
    inner.register_forward_pre_hook(lambda module, inputs: seen.extend(inputs[:3]))
    model(*random_batch(TEXT).arguments)
    q, k, v = (x.square().mean(dim=-1) for x in seen)
    assert torch.allclose(q, torch.ones_like(q), rtol=0.05) and torch.allclose(k, torch.ones_like(k), rtol=0.05)
    assert not torch.allclose(v, torch.ones_like(v), rtol=0.5)


def test_norms_inside_attention_are_told_of_padding() -> None:
    model, norms = asked("nano", TEXTS, *INSIDE_ATTENTION, "hidden", "stem")
    shapes: dict[str, Any] = {}

    def see(name: str, norm: nn.Module, inputs: tuple[Tensor], context: dict[str, Any]) -> None:
        shapes[name] = (inputs[0].shape[:-1], context["mask"].shape)

    for name, norm in norms.items():
        if name.startswith(("block00", "stem")) and isinstance(norm, RMSNorm):
            norm.register_forward_pre_hook(partial(see, name), with_kwargs=True)
    model(*random_batch(TEXTS).arguments)
    assert len(shapes) == len(INSIDE_ATTENTION) + 2
    assert all(positions == mask for positions, mask in shapes.values())


def test_a_factory_that_knows_no_optional_places_has_no_norm_there() -> None:
    tree = {"norm": section("norm", "rmsnorm"), "placement": section("placement", "pre")}
    model, norms = build_model(Recipe(tree | {"model": section("model", "nano", **SMALL["nano"])}), TEXT, 0)
    assert [*norms] == ["block00.attention", "block00.mlp", "block01.attention", "block01.mlp", "final"]
    assert {*norms_in(model)} == {*norms}


def test_a_norm_class_may_call_something_else_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RMSNorm, "optional", True, raising=False)
    _, norms = build("rmsnorm")
    assert [*norms] == ["block00.attention", "block00.mlp", "block01.attention", "block01.mlp", "final"]


def test_a_branch_of_a_user_s_own_needs_no_norm_inside() -> None:
    block = Block(nn.Identity(), 0, "", {"own": Branch()}, {}, -1)
    assert block.attention() == {} and block.name == "block00"


def test_facts_of_several_norms_are_those_of_the_worst() -> None:
    quiet = NormFacts("features of one position", centers=True)
    loud = NormFacts("batch", centers=False, crosses_samples=True, sees_future="training")
    wide = NormFacts("time", centers=False, sees_future="always", needs_positions=True, counts_padding=True)
    assert worst_of([quiet]) == quiet and worst_of([loud, loud]) == loud
    assert worst_of([quiet, loud]) == replace(loud, statistics_over="features of one position; batch", centers=True)
    assert worst_of([wide, loud, quiet]).sees_future == "always"
    assert worst_of([loud, wide]) == replace(wide, statistics_over="batch; time", crosses_samples=True)


class Bare(Model):
    """A model that says nothing of its inside."""

    kinds = Foreign.kinds
    roles = ("linear",)

    def __init__(self, task: Any, norm: Any, placement: Any) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Telling(Bare):
    def anatomy(self) -> Anatomy:
        return Anatomy(None, (Block(self.head, 0, "", {"linear": self.head}, {}, -1),), {})


def test_a_model_has_blocks_or_an_anatomy_of_its_own() -> None:
    tree = {"norm": section("norm", "rmsnorm"), "placement": section("placement", "pre")}
    model, _ = build_model(Recipe(tree | {"model": {"_target_": f"{__name__}.Telling"}}), IMAGES, 0)
    assert len(model.anatomy().blocks) == 1
    with pytest.raises(ContractError, match="has no blocks"):
        build_model(Recipe(tree | {"model": {"_target_": f"{__name__}.Bare"}}), IMAGES, 0)
