"""How far norms are from float64: by hand, for norms whose error is known, and in the rows and tables of the study."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from studied import subject
from torch import Tensor, nn

from normbench.norms.batchnorm import BatchNorm
from normbench.norms.rmsnorm import RMSNorm
from normbench.studies.bench import DRIFT, Bench
from normbench.studies.drift import EXPORTED, INPUTS, export_norm, inputs_for, measure_drift

FLOAT32_ROUNDING = 2.0**-24


def drift_of(
    norm: nn.Module, reference: nn.Module, name: str, dtype: torch.dtype = torch.float32
) -> tuple[float, float]:
    """Return the drift of output and gradient on the input of a name."""
    x = dict(inputs_for(8, 32, dtype))[name]
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    return measure_drift(norm, reference.double(), x, dy)


class Off(nn.Module):
    """Is 0.25 off in float32, and its gradient twice the right one."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.dtype == torch.float64 else 2 * x - x.detach() + 0.25


def test_an_error_is_a_share_of_the_largest_value_and_of_one_at_least() -> None:
    assert drift_of(Off(), Off(), "±0.001") == pytest.approx((0.25, 1.0), rel=1e-5)
    x = dict(inputs_for(8, 32, torch.float32))["mean of 1,000 sd"]
    output, gradient = drift_of(Off(), Off(), "mean of 1,000 sd")
    assert output == pytest.approx(0.25 / x.max().item(), rel=1e-3)
    assert gradient == pytest.approx(1.0)
    assert drift_of(nn.Identity(), nn.Identity(), "ordinary") == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_eps_that_depends_on_the_format_is_a_drift_known_by_hand(dtype: torch.dtype) -> None:
    """torch.nn.RMSNorm(eps=None) takes the eps of the format of the input, or of its statistics, by version."""
    norm = nn.RMSNorm(32, eps=None).to(dtype)
    output, _ = drift_of(norm, nn.RMSNorm(32, eps=None), "±0.001", dtype)
    square = torch.tensor(0.001, dtype=dtype).double().item() ** 2
    expected = [1 - 1 / math.sqrt(1 + torch.finfo(format_).eps / square) for format_ in (torch.float32, dtype)]
    assert any(output == pytest.approx(drift, abs=4 * torch.finfo(dtype).eps) for drift in expected)
    assert output > 0.05
    with_eps = nn.RMSNorm(32, eps=1e-6).to(dtype)
    output, _ = drift_of(with_eps, nn.RMSNorm(32, eps=1e-6), "±0.001", dtype)
    assert output < torch.finfo(dtype).eps


def test_squares_that_overflow_are_told() -> None:
    """The square of 1e37 is infinite in float32: its reciprocal root is 0, and the formula's in float64 is 1e-37."""
    output, _ = drift_of(RMSNorm(32, impl="eager"), RMSNorm(32, impl="eager"), "±1e37")
    assert output == 1
    output, _ = drift_of(nn.LayerNorm(32), nn.LayerNorm(32), "±1e37")
    assert output == math.inf or output >= 1
    assert "±1e37" not in dict(inputs_for(8, 32, torch.float16)), "which has no such number"


@pytest.mark.parametrize("norm", [RMSNorm(32, impl="native"), RMSNorm(32, impl="eager"), nn.LayerNorm(32)])
def test_ordinary_inputs_are_off_by_roundings(norm: nn.Module) -> None:
    reference = RMSNorm(32, impl="eager") if isinstance(norm, RMSNorm) else nn.LayerNorm(32)
    for drift in drift_of(norm, reference, "ordinary"):
        assert 0 < drift < 8 * FLOAT32_ROUNDING


def test_running_statistics_stay_as_they_are_and_serve_both() -> None:
    norm = BatchNorm(32).eval()
    norm.running_mean.fill_(0.5)
    norm.running_var.fill_(4)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    output, _ = drift_of(norm, BatchNorm(32).eval(), "ordinary")
    assert output < 8 * FLOAT32_ROUNDING
    drift_of(norm.train(), BatchNorm(32), "±1e37")
    torch.testing.assert_close(dict(norm.named_buffers()), before, rtol=0, atol=0)


@pytest.mark.parametrize("norm", [nn.LayerNorm(32), RMSNorm(32), BatchNorm(32)])
def test_an_exported_norm_is_the_norm_in_evaluation(norm: nn.Module) -> None:
    x = dict(inputs_for(8, 32, torch.float32))["ordinary"]
    exported = export_norm(norm, x)
    assert exported.implementation == EXPORTED
    torch.testing.assert_close(exported.norm(x), norm.eval()(x))
    assert norm.eval().state_dict().keys() == exported.norm.state_dict().keys()


def test_rows_and_tables_of_the_study() -> None:
    study = Bench(rows=[8], features=[32], dtypes=["float32"], implementations=["torch", "eager"], rounds=1, steps=0)
    rows = [{"norm": "rmsnorm", "seed": 0, **row} for row in study.measure(subject("norm=rmsnorm"))]
    frame = pd.DataFrame(rows)
    drift = frame[frame["passes"] == DRIFT]
    measured = drift.groupby("implementation", sort=False)["input"].agg(list)
    assert [*measured.index] == ["torch", "eager", EXPORTED]
    assert all(names == [*INPUTS] for names in measured)
    assert set(drift["torch"]) == {torch.__version__}
    tables = {table.key: table for table in study.tables(frame)}
    assert "left-out" not in tables
    table = tables["drift-float32-8-32"]
    assert torch.__version__ in table.title
    outputs = table.frame[table.frame["of the"] == "output"].set_index("implementation")
    assert outputs.loc["eager", "±1e37"] == "1.0e+00"
    off = Bench(rows=[8], features=[32], dtypes=["float32"], implementations=["eager"], rounds=1, steps=0, drift=False)
    assert all("drift" not in row for row in off.measure(subject("norm=rmsnorm")))
