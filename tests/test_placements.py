"""Each placement against its formula, with stub branches."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from normbench.placements import Deep, Parallel, Plain, Post, PostInside, Pre, Sandwich
from normbench.types import Branch, Placement, Site


class Stub(Branch):
    """f(x) = a·x + b, and a shortcut that a test can tell from x: 5x."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.in_features = self.out_features = 3
        self.a, self.b = a, b

    def forward(self, x: Tensor, **context: object) -> Tensor:
        assert context == {"mark": 7}
        return self.a * x + self.b

    def shortcut(self, x: Tensor) -> Tensor:
        return 5 * x


class Square(nn.Module):
    """A norm that a test can follow: N(x) = x² + 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x + 1


def make(placement: type[Placement], *branches: Stub, layers: int = 1) -> tuple[Placement, list[str]]:
    names: list[str] = []

    def norm(num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        assert num_features == 3 and site is not None
        names.append(site.name)
        return Square()

    roles = dict(zip(("attention", "mlp"), branches, strict=False))
    site = Site("block", 1, layers, branches=layers * len(branches))
    return placement(roles, norm, site), names  # type: ignore[call-arg]  # the subclasses' constructor


n, F, G = Square(), Stub(2, 3), Stub(-1, 0.5)
X = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)


def f(x: Tensor) -> Tensor:
    return 2 * x + 3


ONE_BRANCH = {
    Pre: lambda x: 5 * x + f(n(x)),
    Post: lambda x: n(5 * x + f(x)),
    PostInside: lambda x: 5 * x + n(f(x)),
    Sandwich: lambda x: 5 * x + n(f(n(x))),
    Plain: f,
}


@pytest.mark.parametrize("placement", ONE_BRANCH)
def test_formula_of_one_branch(placement: type[Placement]) -> None:
    """The skip is the branch's shortcut, which is x unless the branch changes the shape."""
    assert torch.equal(make(placement, F)[0](X, mark=7), ONE_BRANCH[placement](X))


@pytest.mark.parametrize("placement", [Pre, Post, PostInside, Sandwich])
def test_two_branches_follow_each_other(placement: type[Placement]) -> None:
    block, names = make(placement, F, G)
    first, second = make(placement, F)[0], make(placement, G)[0]
    assert torch.equal(block(X, mark=7), second(first(X, mark=7), mark=7))
    slots = [".in", ".out"] if placement is Sandwich else [""]
    assert names == [f"block01.{role}{slot}" for role in ("attention", "mlp") for slot in slots]


def test_parallel_reads_one_norm() -> None:
    block, names = make(Parallel, F, G)
    assert torch.allclose(block(X, mark=7), X + f(n(X)) - n(X) + 0.5)
    assert names == ["block01"]


@pytest.mark.parametrize("layers", [1, 6, 100])
def test_deepnorm_constants(layers: int) -> None:
    """Wang et al. 2022, table 1, decoder only with M layers: α = (2M)^¼, β = (8M)^−¼; αβ = 1/√2."""
    block, _ = make(Deep, F, G, layers=layers)
    alpha, beta = block.residual_gain, block.branch_gain
    y = n(alpha * 5 * X + f(X))
    assert torch.allclose(block(X, mark=7), n(alpha * 5 * y - y + 0.5))
    assert alpha == pytest.approx((2 * layers) ** 0.25)
    assert beta == pytest.approx((8 * layers) ** -0.25)
    assert alpha * beta == pytest.approx(1 / math.sqrt(2))
    inverted, _ = make(partial(Deep, gain="inverse"), F, G, layers=layers)  # type: ignore[arg-type]  # called as a class
    assert inverted.residual_gain == alpha
    assert inverted.branch_gain == pytest.approx((8 * layers) ** 0.25)
