"""Least squares for norms: γ and β of each feature by a line, and the slope α of a bounded norm by a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

Columns = Float[np.ndarray, "values columns"]
Numbers = Float[np.ndarray, " columns"]

STEEPNESS = -3, 2  # log10 of α × the inputs' standard deviation: from a line to a step


class Lines(NamedTuple):
    """What fits y = γx+β best, column by column. left: the share of the variance of all y that is left."""

    gamma: Numbers
    beta: Numbers
    left: float


def fit_lines(x: Columns, y: Columns, shifted: bool = True) -> Lines:
    """Fit y = γx+β by least squares, with a γ and a β for each column; β is 0 without `shifted`."""
    y_mean = y.mean(0)
    centred = x
    target = y
    if shifted:
        centred = x - x.mean(0)
        target = y - y_mean
    squares = np.square(centred).sum(0)
    products = (centred * target).sum(0)
    gamma = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0)
    beta = y_mean - gamma * x.mean(0) if shifted else np.zeros_like(gamma)
    error = np.square(target - gamma * centred).sum()
    return Lines(gamma, beta, float(error / np.square(y - y_mean).sum()))


def find_slope(scale: float, left: Callable[[float], float]) -> float:
    """Return the slope α of a bounded function, such as tanh(αx), with which least is left.

    Args:
        scale: the standard deviation of its inputs.
        left: gives what a fit with an α leaves.
    """

    def left_at(steepness: float) -> float:
        return left(10**steepness / scale)

    best = minimize_scalar(left_at, bounds=STEEPNESS, method="bounded")
    return float(10 ** float(best.x) / scale)


@torch.no_grad()
def fit_norm(norm: Any, x: Tensor, y: Tensor, mask: Tensor | None = None, rows: int = 4096) -> float:
    """Fit a norm's γ and β, and its α if it has one, to give y for x; return what share of the variance is left.

    What else it learns stays as it is. Least squares over all features of some positions, evenly spread.

    Args:
        norm: with `weight` (γ), `bias` (β) and `alpha` (α), as far as it has these; in evaluation mode.
        x: what enters it, features along its `channel_dim`.
        y: what it is to give.
        mask: which positions are real, that alone are fitted; None: all. The norm takes it too.
        rows: how many positions are fitted.
    """
    weight: nn.Parameter | None = getattr(norm, "weight", None)
    bias: nn.Parameter | None = getattr(norm, "bias", None)
    masked = {} if mask is None else {"mask": mask}

    def columns_of(values: Tensor) -> Columns:
        return some_columns(values, norm.channel_dim, mask, rows)

    wanted = columns_of(y)
    offset: float = getattr(norm, "offset", 0.0)  # of γ, beside what is stored
    if weight is not None:
        weight.fill_(1 - offset)
    if bias is not None:
        bias.zero_()
    one_gain = weight is not None and weight.numel() == 1

    def lines() -> Lines:
        given = columns_of(norm(x, **masked))
        if one_gain:
            return fit_lines(given.reshape(-1, 1), wanted.reshape(-1, 1), bias is not None)
        return fit_lines(given, wanted, bias is not None)

    def left_with(alpha: float) -> float:
        norm.alpha.fill_(alpha)
        return lines().left

    alpha: nn.Parameter | None = getattr(norm, "alpha", None)
    if alpha is not None and alpha.numel() == 1:
        real = x if mask is None else x[mask]
        norm.alpha.fill_(find_slope(float(real.double().std()), left_with))
    fitted = lines()
    if weight is not None:
        weight.copy_(torch.from_numpy(fitted.gamma).view(weight.shape) - offset)
    if bias is not None:
        bias.copy_(torch.from_numpy(fitted.beta).expand(bias.shape))
    error = columns_of(norm(x, **masked)) - wanted
    return float(np.square(error).sum() / np.square(wanted - wanted.mean(0)).sum())


def some_columns(x: Tensor, channel_dim: int, mask: Tensor | None, rows: int) -> Columns:
    """Return the features of some positions, evenly spread over all that are real, in double precision."""
    features_last = x.movedim(channel_dim, -1)
    all_rows = features_last.flatten(0, -2) if mask is None else features_last[mask]
    some = torch.linspace(0, len(all_rows) - 1, min(rows, len(all_rows))).long()
    return np.asarray(all_rows[some.to(x.device)].double().cpu())
