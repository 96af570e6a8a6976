"""Norms fitted to what another gives: against numpy's least squares, and against themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from normbench.norms import BatchNorm, Derf, DyT, LayerNorm, NoNorm, RMSNorm, ScaleNorm
from normbench.norms.fitting import fit_lines, fit_norm
from normbench.studies.swaps import part


def test_lines_are_those_of_numpy_column_by_column() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 3)) + 1
    y = generator.normal(size=(50, 3)) + 2 * x
    lines = fit_lines(x, y)
    through_zero = fit_lines(x, y, shifted=False)
    errors = []
    for column in range(3):
        slope, intercept = np.polyfit(x[:, column], y[:, column], 1)
        assert (lines.gamma[column], lines.beta[column]) == pytest.approx((slope, intercept))
        (slope_alone,), *_ = np.linalg.lstsq(x[:, [column]], y[:, column], rcond=None)
        assert (through_zero.gamma[column], through_zero.beta[column]) == pytest.approx((slope_alone, 0))
        errors.append(np.square(y[:, column] - slope * x[:, column] - intercept).sum())
    assert lines.left == pytest.approx(sum(errors) / np.square(y - y.mean(0)).sum())


def test_a_feature_that_is_always_the_same_has_no_slope() -> None:
    lines = fit_lines(np.ones((4, 1)), np.arange(4.0)[:, None])
    assert lines.gamma == [0] and lines.beta == [1.5]


@pytest.mark.parametrize("kind", [DyT, Derf, LayerNorm, RMSNorm, ScaleNorm])
@pytest.mark.parametrize("channel_dim", [-1, 1])
def test_a_norm_is_found_again(kind: type[nn.Module], channel_dim: int) -> None:
    torch.manual_seed(0)
    x = 3 * torch.randn(6, 7, 5).movedim(-1, channel_dim)
    wanted, norm = kind(5, channel_dim=channel_dim), kind(5, channel_dim=channel_dim)
    with torch.no_grad():
        for name, parameter in wanted.named_parameters():
            if name != "shift":  # Derf's, which is not fitted
                parameter.add_(torch.rand(parameter.shape))
    with torch.no_grad():
        expected = wanted(x)
    assert fit_norm(norm, x, expected) < 1e-6
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=5e-3)
    for name, parameter in norm.named_parameters():
        torch.testing.assert_close(parameter, wanted.get_parameter(name), rtol=2e-3, atol=2e-3)


def test_what_cannot_be_fitted_is_what_is_left() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 6) + 4
    y = LayerNorm(6)(x).detach()
    norm = RMSNorm(6)
    left = fit_norm(norm, x, y)
    bare = np.asarray((x / x.square().mean(-1, keepdim=True).add(1e-5).sqrt()).double())
    gamma = (bare * y.double().numpy()).sum(0) / np.square(bare).sum(0)
    assert norm.weight.tolist() == pytest.approx(gamma.tolist(), rel=1e-5)
    assert 0.5 < left <= 2
    assert fit_norm(NoNorm(6), x, x) == 0


@pytest.mark.parametrize("kind", [DyT, RMSNorm, BatchNorm])
def test_padding_plays_no_part(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 7, 5)
    y = LayerNorm(5)(x).detach()
    mask = torch.arange(7) < torch.tensor([7, 1, 4, 5, 2, 7])[:, None]
    alone, padded = kind(5).eval(), kind(5).eval()
    left = fit_norm(alone, x[mask], y[mask])
    garbage = torch.where(mask[..., None], x, 100.0)
    assert fit_norm(padded, garbage, torch.where(mask[..., None], y, -50.0), mask) == pytest.approx(left)
    for name, parameter in padded.named_parameters():
        torch.testing.assert_close(parameter, alone.get_parameter(name))


def test_running_statistics_serve_as_they_are() -> None:
    torch.manual_seed(0)
    x = 2 * torch.randn(64, 4) + 1
    norm = BatchNorm(4).eval()
    assert fit_norm(norm, x, 3 * x - 1) < 1e-10
    torch.testing.assert_close(norm(x), 3 * x - 1, rtol=0, atol=1e-4)


def test_norms_that_share_a_gain_are_fitted_each_by_itself() -> None:
    first, second = nn.LayerNorm(4), nn.LayerNorm(4)
    second.weight = first.weight
    part([first, second])
    assert second.weight is not first.weight
    with torch.no_grad():
        second.weight.fill_(3.0)
    assert first.weight.tolist() == [1.0] * 4
    assert [name for name, _ in second.named_parameters()] == ["weight", "bias"]
