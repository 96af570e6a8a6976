"""What follows a norm in place, as activations of other libraries do, changes neither its gradient nor its input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from given_models import HOSTS, Given, timm_model
from torch import Tensor, nn
from torch.nn import functional as F

import normbench
from normbench import build
from normbench.config.compose import read
from normbench.config.groups import options, section_of
from normbench.config.recipe import Recipe, resolve
from normbench.contract import trials
from normbench.errors import ContractError, UsageError
from normbench.hosts.steps import copying
from normbench.norms import kernels

FEATURES = 8
IMPLEMENTATIONS = ("auto", "eager", "native", "torch")
PRECISIONS = (torch.float32, torch.bfloat16)


def drop(y: Tensor, inplace: bool) -> Tensor:
    torch.default_generator.manual_seed(0)
    return F.dropout(y, 0.5, training=True, inplace=inplace)


# What may follow, in place or not.
FOLLOWERS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "relu": lambda y, inplace: F.relu(y, inplace=inplace),
    "silu": lambda y, inplace: F.silu(y, inplace=inplace),
    "dropout": drop,
    "add": lambda y, inplace: y.add_(1) if inplace else y.add(1),
    "mul": lambda y, inplace: y.mul_(2) if inplace else y.mul(2),
}


def ways(name: str) -> Iterator[Callable[..., nn.Module]]:
    """What makes a norm, with and without γ, by each implementation that it has."""
    section = section_of("norm", name)
    for affine in (True, False):
        for impl in IMPLEMENTATIONS:
            make = build.factory(resolve("norm", {**section, "affine": affine, "impl": impl}))
            try:
                make(FEATURES)
            except UsageError:  # it has no such implementation
                continue
            yield make


def gradients(norm: nn.Module, x: Tensor, follower: Callable[[Tensor, bool], Tensor], inplace: bool) -> list[Tensor]:
    """The gradients of the input and of the parameters; the input stays as it is."""
    norm = copy.deepcopy(norm)  # of which a batch may move the running statistics
    leaf = x.clone().requires_grad_()
    entering = leaf * 1  # as another layer gives it
    with torch.autocast("cpu", torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        y = follower(norm(entering), inplace)
    found = torch.autograd.grad(y.float().square().sum(), [leaf, *norm.parameters()])
    assert torch.equal(entering, x)
    return list(found)


@pytest.mark.parametrize("name", [name for name in options("norm") if name not in ("own", "none")])
def test_what_follows_works_in_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for few in ("RMS_FEW", "DYT_FEW"):
        monkeypatch.setattr(kernels, few, 0)  # else the formula computes what is so small
    tried = 0
    for make in ways(name):
        for axis in (-1, 1):
            norm = make(FEATURES, channel_dim=axis).train()
            for dtype in PRECISIONS:
                x = torch.randn(4, 6, 3, FEATURES, generator=torch.Generator().manual_seed(0))
                x = x.flatten(1, 2) if axis == -1 else x.movedim(-1, 1)
                for follower in FOLLOWERS.values():
                    expected = gradients(norm, x.to(dtype), follower, inplace=False)
                    found = gradients(norm, x.to(dtype), follower, inplace=True)
                    torch.testing.assert_close(found, expected)
                    tried += 1
    assert tried >= 2 * 2 * 2 * len(PRECISIONS) * len(FOLLOWERS)  # affine or not, auto and eager, both axes


def test_what_follows_a_kernel_of_others_works_in_place() -> None:
    x = torch.randn(3, FEATURES, requires_grad=True)
    y = kernels.DifferentiableOnce.apply((2 * x).view(3, FEATURES))
    (gradient,) = torch.autograd.grad(y.relu_().sum(), x)
    assert torch.equal(gradient, 2.0 * (x > 0))
    with pytest.raises(UsageError, match="no second derivative"):
        torch.autograd.grad(kernels.DifferentiableOnce.apply(2 * x).sum(), x, create_graph=True)


# ---- in models of other libraries

TINY = {
    "resnet": HOSTS["resnet"],
    "torchvision resnet": HOSTS["torchvision resnet"],
    "efficientnet": timm_model("test_efficientnet"),
    "densenet": timm_model("densenet121", growth_rate=4, block_config=(1, 1, 1, 1)),
    "resnetv2": timm_model("resnetv2_50", layers=(1, 1, 1, 1), channels=(8, 16, 24, 32), stem_chs=8),
}


def gradient_of(model: nn.Module, given: Given) -> Tensor:
    """The gradients of all parameters in training, in float64, one after another."""
    torch.default_generator.manual_seed(0)
    logits = model.double().train()(given.example()["x"].double())
    logits.square().sum().backward()
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    return torch.cat([one.flatten() for one in found])


@pytest.mark.parametrize("host", TINY)
@pytest.mark.parametrize("norm", ["dyt", "bhyt", "powernorm", "none"])
def test_given_models_train_with_norms_without_an_affine_part(host: str, norm: str) -> None:
    given = TINY[host]
    settings = {} if norm == "none" else {"affine": False}
    model, table = normbench.swap(given.build(), norm, example=given.example(), **settings)
    norms = [model.get_submodule(path) for path in table[table.becomes != ""].path]
    assert norms
    twin = copy.deepcopy(model)
    with copying([twin.get_submodule(path) for path in table[table.becomes != ""].path]):
        expected = gradient_of(twin, given)
    assert expected.isfinite().all() and expected.any()
    torch.testing.assert_close(gradient_of(model, given), expected)


class Squashing(nn.Module):
    """Returns what autograd keeps."""

    def __init__(self, features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class Passing(Squashing):
    """Returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Halving(Squashing):
    """Halves what it is given, and fails in the backward pass."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x / 2

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            raise RuntimeError("there is no backward")

    def forward(self, x: Tensor) -> Tensor:
        halved: Tensor = self.Function.apply(x)
        return halved


class Block(nn.Module):
    """A pre-activation block: what enters it is read again after an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)
        self.act = nn.ReLU(inplace=True)
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        sum_: Tensor = x + self.linear(self.act(self.norm(x)))
        return sum_


@pytest.mark.parametrize(
    ("norm", "error", "said"),
    [
        (Squashing, ContractError, "^Block works in place on what Squashing returns.*with .clone"),
        (Passing, ContractError, "^Block works in place on what Passing returns.*with .clone"),
        (Halving, UsageError, "^Block does not train with Halving .*there is no backward"),
    ],
)
def test_a_swap_tells_of_a_norm_that_does_not_train_there(norm: Any, error: type[Exception], said: str) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    old = model.norm
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=said) as raised:
        normbench.swap(model, norm, example=torch.randn(4, FEATURES))
    assert str(raised.value).endswith("the model is as it was")
    assert model.norm is old and not model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_tells_of_a_norm_that_does_not_train_there() -> None:
    pytest.importorskip("timm")
    words = ["model=timm", "model.name=resnet18", "model.kwargs.layers=[1,1,1,1]", "model.kwargs.channels=[8,8,16,16]"]
    tree = read([*words, f"norm._target_={__name__}.Squashing"]).tree
    model, norms = build.make_model(Recipe(tree), trials.IMAGES, seed=0)
    with pytest.raises(
        ContractError, match=r"^model=timm model.name=resnet18 works in place on what Squashing returns"
    ):
        build.rehearse(model, norms, trials.tiny_data(trials.IMAGES), torch.device("cpu"))


def test_no_norm_leaves_its_input_to_who_reads_it_again() -> None:
    model = Block().eval()
    x = torch.randn(4, FEATURES)
    normbench.swap(model, "none", example=x)
    entering = model.linear(x)
    torch.testing.assert_close(model(x), entering + model.linear(entering.relu()))


def test_a_norm_that_nothing_works_on_in_place_may_keep_its_output() -> None:
    model = Block()
    model.act = nn.ReLU()
    state = torch.get_rng_state()
    normbench.swap(model, Squashing, example=torch.zeros(4, FEATURES))
    assert isinstance(model.norm, Squashing) and torch.equal(torch.get_rng_state(), state)
