"""Statistics of one tensor, as tensors: nothing here waits for the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Scalar = Float[Tensor, ""]


def moments(x: Float[Tensor, "..."], channel_dim: int) -> dict[str, Scalar]:
    """Return what describes the values of one activation, over all of its elements.

    mean, std (biased), rms, max (of |x|), kurtosis (E(x−μ)⁴ / σ⁴; 3 for a Gaussian) and dead (share of the channels
    that are exactly 0 at every position of the batch).
    """
    x = x.detach().float()
    mean = x.mean()
    centered = x - mean
    squares = centered.square_()
    variance = squares.mean()
    fourth = squares.square().mean()
    peak = x.abs().amax(dim=[d for d in range(x.ndim) if d != channel_dim % x.ndim])
    return {
        "mean": mean,
        "std": variance.sqrt(),
        "rms": (variance + mean.square()).sqrt(),
        "max": peak.max(),
        "kurtosis": fourth / variance.square(),
        "dead": (peak == 0).float().mean(),
    }


def rms(x: Float[Tensor, "..."]) -> Scalar:
    """Return √ of the mean square of all elements."""
    return x.detach().float().square().mean().sqrt()


def tails(x: Float[Tensor, "..."], channel_dim: int) -> dict[str, Scalar]:
    """Return quantiles of the values, and how far channels stick out.

    q01, q25, q50, q75, q99: of at most 65,536 values from all channels, the nearest one. outlier_ratio: largest
    root mean square of a channel over the (lower) median channel's, of those that are not 0 throughout; outliers:
    share of channels where that is above 6.
    """
    x = x.detach().float()
    step = -(-x.numel() // 65_536)
    while math.gcd(step, x[0].numel()) > 1:  # else it would fall on some channels only
        step += 1
    ranked = x.flatten()[::step].sort().values
    found = {f"q{share:02d}": ranked[round(share / 100 * (ranked.numel() - 1))] for share in (1, 25, 50, 75, 99)}
    channels = x.square().mean(dim=[d for d in range(x.ndim) if d != channel_dim % x.ndim]).sqrt()
    ordered = channels.sort().values
    zeros = (ordered == 0).sum()
    # `nanmedian` and a mask would wait for the device
    median = ordered.gather(0, (zeros + (ordered.numel() - zeros - 1) // 2)[None])
    ratio = channels / median
    return found | {"outlier_ratio": ratio.max(), "outliers": (ratio > 6).float().mean()}


def second_moment(x: Float[Tensor, "..."], channel_dim: int) -> Float[Tensor, "features features"]:
    """Return the mean of x xᵀ over all positions, in float64 where there is one: ranks need its smallest values too."""
    precise = torch.float32 if x.device.type == "mps" else torch.float64
    rows = x.detach().to(precise).movedim(channel_dim, -1).flatten(0, -2)
    return rows.T @ rows / rows.shape[0]


def effective_rank(moment: Float[Tensor, "features features"]) -> float:
    """Return exp of the entropy of the singular values, as shares of their sum (Roy & Vetterli 2007, §2).

    They are those of the rows whose second moment is given. From 1 (all rows on a line) to the number of features.
    """
    if not moment.isfinite().all():
        return float("nan")
    singular = torch.linalg.eigvalsh(moment).clamp_min(0).sqrt()
    return float(torch.special.entr(singular / singular.sum()).sum().exp())


def token_similarity(x: Float[Tensor, "batch ..."], channel_dim: int) -> Scalar:
    """Return the mean cosine between two different positions (tokens, pixels) of a sample, over all pairs and samples.

    There are at least two; the cosine with one that is all 0 is 0.
    """
    rows = x.detach().float().movedim(channel_dim, -1).flatten(1, -2)
    rows = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    count = rows.shape[1]
    pairs = rows.sum(1).square().sum(-1) - rows.square().sum((-1, -2))
    return (pairs / (count * (count - 1))).mean()


def entropy(logits: Float[Tensor, "... choices"]) -> Scalar:
    """Return the mean entropy of softmax(logits), in nats."""
    return torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1).mean()


def total_norm(tensors: list[Tensor]) -> Scalar:
    """Return the Euclidean norm of all elements of all tensors."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))


def gradient_noise(gradients: Iterable[Sequence[Tensor]], size: int) -> tuple[Float[Tensor, " tensors"], Scalar]:
    """Return the variance of one example's gradient, tensor by tensor, and the squared norm of the true gradient.

    gradients: of two or more micro-batches of `size` examples, the mean over these. Both are without bias: with the
    variance s² between n micro-batches S = size·s² and |G|² = |mean|² − s²/n, which is McCandlish et al. 2018, appendix
    A.1, with B_small = size and B_big = n·size. Their noise scale is the sum of the first over the second.
    """
    means: list[Tensor] = []
    deviations: list[Tensor] = []
    for number, sample in enumerate(gradients, 1):  # Welford 1962: a difference of sums would lose small variances
        means = means or [torch.zeros_like(tensor) for tensor in sample]
        moved = torch._foreach_sub([*sample], means)
        deviations.append((1 - 1 / number) * torch.stack(torch._foreach_norm(moved)).square())
        torch._foreach_add_(means, moved, alpha=1 / number)
    variances = torch.stack(deviations).sum(0) / (number - 1)
    return size * variances, total_norm(means).square() - variances.sum() / number


def histogram(x: Float[Tensor, "..."], bins: int = 64) -> tuple[Int64[Tensor, " bins"], Float[Tensor, "2"]]:
    """Count x in equal bins between its extremes; return the counts, and the extremes."""
    x = x.detach().float().flatten()
    low, high = x.aminmax()
    width = ((high - low) / bins).clamp_min(torch.finfo(torch.float32).tiny)
    index = ((x - low) / width).long().clamp_(0, bins - 1)
    counts = torch.zeros(bins, device=x.device, dtype=torch.int64).scatter_add_(0, index, torch.ones_like(index))
    return counts, torch.stack((low, high))
