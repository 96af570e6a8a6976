"""Each placement against its formula, with stub branches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from normbench.placements import Deep, Parallel, Plain, Post, PostInside, Pre, Sandwich
from normbench.types import Branch, Placement, Site


class Stub(Branch):
    """f(x) = a·x + b, and a shortcut that a test can tell from x."""

    def __init__(self, a: float, b: float, skip: float = 1.0) -> None:
        super().__init__()
        self.in_features = self.out_features = 3
        self.a, self.b, self.skip = a, b, skip

    def forward(self, x: Tensor, **context: object) -> Tensor:
        assert context == {"mark": 7}
        return self.a * x + self.b

    def shortcut(self, x: Tensor) -> Tensor:
        return self.skip * x


class Double(nn.Module):
    """A norm that a test can follow: N(x) = x² + 1."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def forward(self, x: Tensor) -> Tensor:
        return x * x + 1


def make(placement: type[Placement], *branches: Stub, layers: int = 1) -> tuple[Placement, list[str]]:
    names: list[str] = []

    def norm(num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        assert num_features == 3
        assert site is not None
        names.append(site.name)
        return Double(site)

    roles = dict(zip(("attention", "mlp"), branches, strict=False))
    site = Site("block", 1, layers, branches=layers * len(branches))
    return placement(roles, norm, site), names  # type: ignore[call-arg]  # the subclasses' constructor


def n(x: Tensor) -> Tensor:
    return x * x + 1


def f(x: Tensor) -> Tensor:
    return 2 * x + 3


def g(x: Tensor) -> Tensor:
    return -x + 0.5


X = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)

ONE_BRANCH = {
    Pre: lambda x: x + f(n(x)),
    Post: lambda x: n(x + f(x)),
    PostInside: lambda x: x + n(f(x)),
    Sandwich: lambda x: x + n(f(n(x))),
    Plain: f,
}


@pytest.mark.parametrize("placement", ONE_BRANCH)
def test_formula_of_one_branch(placement: type[Placement]) -> None:
    block, _ = make(placement, Stub(2, 3))
    assert torch.equal(block(X, mark=7), ONE_BRANCH[placement](X))


@pytest.mark.parametrize("placement", [Pre, Post, PostInside, Sandwich])
def test_two_branches_follow_each_other(placement: type[Placement]) -> None:
    block, names = make(placement, Stub(2, 3), Stub(-1, 0.5))
    first, _ = make(placement, Stub(2, 3))
    second, _ = make(placement, Stub(-1, 0.5))
    assert torch.equal(block(X, mark=7), second(first(X, mark=7), mark=7))
    slots = [".in", ".out"] if placement is Sandwich else [""]
    assert names == [f"block01.{role}{slot}" for role in ("attention", "mlp") for slot in slots]


def test_parallel_reads_one_norm() -> None:
    block, names = make(Parallel, Stub(2, 3), Stub(-1, 0.5))
    assert torch.allclose(block(X, mark=7), X + f(n(X)) + g(n(X)))
    assert names == ["block01"]


@pytest.mark.parametrize("placement", [Pre, Post, PostInside, Sandwich])
def test_the_skip_is_the_branch_s_shortcut(placement: type[Placement]) -> None:
    """Where a branch changes the shape, the placement adds its shortcut in place of x."""
    block, _ = make(placement, Stub(0, 0, skip=5.0))
    zero = torch.zeros_like(X)
    expected = {Pre: 5 * X, Post: n(5 * X), PostInside: 5 * X + n(zero), Sandwich: 5 * X + n(zero)}
    assert torch.equal(block(X, mark=7), expected[placement])


@pytest.mark.parametrize("layers", [1, 6, 18, 100])
def test_deepnorm_constants(layers: int) -> None:
    """Wang et al. 2022, table 1, decoder only with M layers: α = (2M)^¼, β = (8M)^−¼; αβ = 1/√2."""
    block, _ = make(Deep, Stub(2, 3), Stub(-1, 0.5), layers=layers)
    alpha, beta = block.residual_gain, block.branch_gain
    y = n(alpha * X + f(X))
    assert torch.allclose(block(X, mark=7), n(alpha * y + g(y)))
    assert alpha == pytest.approx((2 * layers) ** 0.25)
    assert beta == pytest.approx((8 * layers) ** -0.25)
    assert alpha * beta == pytest.approx(1 / math.sqrt(2))
