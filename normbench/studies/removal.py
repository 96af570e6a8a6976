"""What a trained model loses as its norms are taken out one by one: with their statistics held they are linear."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.hosts import Adapter
from normbench.studies.findings import Findings, Told, compare, keys_of
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.fx_graph import is_blind_to_mean
from normbench.studies.mapping import vectors
from normbench.training.evaluation import evaluate, to_device
from normbench.types import Batch, Model, Site

ROLES = ("mlp", "attention")  # whose norms go first, in this order; those outside the blocks go last
TOLERANCE = 1e-4


class Removal(Study):
    """Take norms out of a trained model one by one, and measure its loss after each.

    The deviation σ of LayerNorm, or the root mean square of RMSNorm, is held at its mean over a training batch, of the
    model as it is by then. What is left is linear in its input, so that it can be folded into the layers that read it:
    at inference there is no norm any more. Norms of MLPs go first, then those of attention, then others in the blocks,
    then those outside, each from the first block to the last. Nothing is trained in between.
    """

    trains = True

    def check(self, subject: Subject) -> None:
        model, norms = subject.build()
        batch = subject.task.random_batch(2, torch.Generator().manual_seed(0))
        self.removable(model, norms, to_device(batch, subject.device))

    def removable(self, model: Model, norms: dict[str, nn.Module], batch: Batch) -> list[str]:
        """Return the sites of norms that are linear where their statistics are held, in the order in which they go.

        Raises:
            UsageError: no norm is.
        """
        seen = see_norms(model, norms, batch)
        found = []
        for site, (x, _) in seen.items():
            if is_linear_when_held(norms[site], x):
                found.append(site)
        if not found:
            why = "none of its norms is linear where its statistics are held"
            raise UsageError(f"nothing can be taken out of this model ({why}): take norm=layernorm or norm=rmsnorm")
        return sorted(found, key=lambda site: order_of(norms[site]))

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        calibration = to_device(subject.data.train_batch(0), subject.device)
        batches = list(subject.data.eval_batches("val", subject.tree["trainer"]["eval_batches"]))

        def loss() -> float:
            return evaluate(model, batches, subject.task, subject.device)["loss"]

        sites = self.removable(model, norms, calibration)
        whole = loss()
        yield {"round": 0, "site": "none", "loss": whole, "increase": 0.0}
        for number, site in enumerate(sites, 1):
            x, mask = see_norms(model, norms, calibration)[site]
            held = read_norm(norms[site], x)
            scale = vectors(held.spread(x), held.axis, mask).mean()
            norms[site].register_forward_hook(replace(held, scale=scale).hold)
            found = loss()
            yield {"round": number, "site": site, "loss": found, "increase": found - whole}

    def finding(self, rows: pd.DataFrame) -> list[Told]:
        what = "Loss added without any of the norms that can be taken out"
        return self.compare_or_tell(last_round(rows), "increase", what)

    def tables(self, rows: pd.DataFrame) -> list[Findings]:
        all_out = compare(
            last_round(rows),
            values=["loss", "increase", "round"],
            columns=self.columns,
            baseline=self.baseline,
            title="Without norms",
        )
        by_round = compare(
            rows, values=["increase"], by=["round"], columns=self.columns, key="rounds", title="Norm by norm"
        )
        return [all_out, by_round]


def last_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows after all norms are taken out, of each arm and seed."""
    keys = [*keys_of(rows), "seed"]
    return rows[rows["round"] == rows.groupby(keys, dropna=False)["round"].transform("max")]


def order_of(norm: Any) -> tuple[int, int]:
    """Return by what norms are ordered: the rank of their role, and their block."""
    site: Site = norm.stands_at
    if site.layer is None:
        return len(ROLES) + 1, 0
    rank = ROLES.index(site.role) if site.role in ROLES and site.slot in ("", "in", "out") else len(ROLES)
    return rank, site.layer


@torch.no_grad()
def see_norms(model: Model, norms: dict[str, nn.Module], batch: Batch) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return what enters each norm for a batch in its last call, and the mask that comes with it."""
    seen = dict[str, tuple[Tensor, Tensor | None]]()
    hooks = []
    for site, norm in norms.items():

        def see(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any], site: str = site) -> None:
            seen[site] = given[0], named.get("mask")

        hooks.append(norm.register_forward_pre_hook(see, with_kwargs=True))
    model(*batch.arguments)
    for hook in hooks:
        hook.remove()
    return seen


@dataclass(frozen=True)
class HeldNorm:
    """LayerNorm or RMSNorm with a statistic that is held.

    Attributes:
        axis: of the features.
        centers: whether the mean is subtracted.
        eps: added to the mean square.
        shift: β, with one position.
        scale: what is divided by in place of the statistic.
    """

    axis: int
    centers: bool
    eps: float
    shift: Tensor
    scale: Tensor

    def spread(self, x: Tensor) -> Tensor:
        """Return what the norm divides by at each position."""
        if self.centers:
            x = x - x.mean(self.axis, keepdim=True)
        return torch.sqrt(x.square().mean(self.axis, keepdim=True) + self.eps)

    def hold(self, norm: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> Tensor:
        """Return what the norm, which gives y, gives with the scale; a hook of its forward."""
        return (y - self.shift) * self.spread(given[0]) / self.scale + self.shift


@torch.no_grad()
def read_norm(norm: Any, x: Tensor) -> HeldNorm:
    """Return what a norm would be with its statistic held at 1, from what it does to its input x."""
    shape = [1] * x.ndim
    shape[norm.channel_dim] = x.shape[norm.channel_dim]
    eps = Adapter(norm.channel_dim).read_eps(norm) or 0.0
    shift = norm(x.new_zeros(shape))
    precise = copy.deepcopy(norm).double()  # a mean of 1 leaves few digits of what is small
    return HeldNorm(norm.channel_dim, is_blind_to_mean(precise, x.double()), eps, shift, x.new_ones(()))


@torch.no_grad()
def is_linear_when_held(norm: Any, x: Tensor) -> bool:
    """Tell whether a norm is linear, but for β, where the statistic of its input is held."""
    norm = copy.deepcopy(norm).double()
    x = x.double()
    held = read_norm(norm, x)
    other = 0.3 * x.roll(1, norm.channel_dim) + x.flip(norm.channel_dim)

    def without_shift(x: Tensor) -> Tensor:
        return held.hold(norm, (x,), norm(x)) - held.shift

    both = without_shift(x) + without_shift(other)
    error = (without_shift(x + other) - both).abs().max()
    return bool(both.any() and error <= TOLERANCE * both.abs().max())
