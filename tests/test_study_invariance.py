"""The study of invariances, against the published tables, by hand, and against torch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from studied import measured, subject, subjects, tables_of
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from normbench.studies.block_invariance import Call, blocks_frame, bound_of, exponent_of, measure_block, tell_blocks
from normbench.studies.invariance import (
    CHANGES,
    SIX_CHANGES,
    C,
    Invariance,
    beside_published,
    deviation,
    measure_responses,
    weight_normed,
)
from normbench.types import Block

# field.md §3: W × c, W + 1·cᵀ, one weight vector × c, data × c, data + c, one sample × c.
# Ba et al. 2016, table 1; Zhang & Sennrich 2019, table 1.
TABLE = {
    "batchnorm": "yes no yes yes yes no",
    "weightnorm": "yes no yes no no no",
    "layernorm": "yes yes no yes no yes",
    "rmsnorm": "yes no no yes no yes",
    "prmsnorm": "yes no no yes no yes",
    "dyt": "no no no no no no",
    "none": "no no no no no no",
}
# Of norms whose layout decides: groupnorm at each position, instancenorm over the positions of a sample.
BY_LAYOUT = {"groupnorm": "yes yes no yes no yes", "instancenorm": "yes no yes yes yes yes"}
# Over space as well, in images: a shift of all weight vectors differs from pixel to pixel.
IN_IMAGES = {"groupnorm": "yes no no yes no yes", "layernorm": TABLE["layernorm"], "batchnorm": TABLE["batchnorm"]}

TINY = ("model=nano", "data=digits", "model.patch=2", "model.depth=1", "model.width=32", "data.batch_size=8")


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    norms = {*TABLE, *BY_LAYOUT} - {"weightnorm"}
    return measured(Invariance(), *subjects(*TINY, norm=sorted(norms)))


def verdicts(rows: pd.DataFrame) -> dict[str, str]:
    """The six verdicts of each norm."""
    table = tables_of(Invariance(), rows)[0]
    return {row["norm"]: " ".join(row[change] for change in SIX_CHANGES) for row in table.frame.to_dict("records")}


def test_every_cell_is_as_published(rows: pd.DataFrame) -> None:
    assert verdicts(rows) == TABLE | BY_LAYOUT
    frame = tables_of(Invariance(), rows)[0].frame.set_index("norm")
    assert set(frame.loc[[*TABLE], "published"]) == {"the same"}
    assert set(frame.loc[[*BY_LAYOUT], "published"]) == {"–"}
    of_tables = rows[rows["norm"].isin(list(TABLE)) & rows["change"].isin(SIX_CHANGES)]
    assert (of_tables["departs"] == 0).all()
    assert rows["departs"].notna().sum() == len(of_tables)


def test_a_response_that_is_not_as_published_is_counted() -> None:
    row = {"change": "data × c", "holds": False}
    assert beside_published("layernorm", row) == {"departs": 1}
    assert beside_published("none", row) == {"departs": 0}
    assert beside_published("groupnorm", row) == {}


def test_all_data_precisions_and_sides_have_been_measured(rows: pd.DataFrame) -> None:
    own = rows[rows["norm"] == "layernorm"].dropna(subset=["deviation"])
    assert set(own["input"]) == {"random", "block00.attention", "final"}
    assert set(own["precision"]) == {"float32", "float64"}
    assert len(own) == 3 * 2 * 2 * len(CHANGES)
    exact = own[(own["precision"] == "float64") & own["holds"].astype(bool)]
    assert exact["deviation"].max() < 1e-11
    assert own.loc[~own["holds"].astype(bool), "deviation"].min() > 0.01


def test_in_images_the_layout_decides() -> None:
    words = ("model=cnn", "model.width=8", "data.batch_size=8")
    images = measured(Invariance(), *subjects(*words, norm=list(IN_IMAGES)))
    assert verdicts(images) == IN_IMAGES


def test_the_gradient_of_scaled_weights_is_smaller_by_the_factor(rows: pd.DataFrame) -> None:
    frame = tables_of(Invariance(), rows)[0].frame.set_index("norm")
    assert set(frame.loc[["batchnorm", "layernorm", "rmsnorm", "weightnorm"], "exponent"]) == {"−1"}
    assert frame.loc["none", "exponent"] != "−1"
    torch.manual_seed(0)
    x, w, target = (torch.randn(6, 4, dtype=torch.float64) for _ in range(3))

    def gradient(weights: torch.Tensor) -> torch.Tensor:
        weights = weights.clone().requires_grad_()
        (nn.functional.layer_norm(x @ weights.T, (6,)) * target.repeat(1, 2)[:, :6]).sum().backward()
        return weights.grad

    torch.testing.assert_close(gradient(C * w), gradient(w) / C, rtol=1e-4, atol=1e-4)  # with eps


def test_a_change_is_told_from_none_by_hand() -> None:
    """norm(Wx) = Wx, of two samples with one feature."""
    w, x = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    found = pd.DataFrame(
        measure_responses(lambda w, x: x @ w.T, w, x, torch.tensor([0.5]).double(), torch.zeros(2, 1).double(), 1e-8)
    )
    output = found[found["of"] == "output"].set_index("change")
    assert output["deviation"].round(9).to_dict() == {
        "as it is": 0.0,
        "W × c": 2.0,
        "W + 1·cᵀ": 0.25,  # Wx from (2, 6) to (2.5, 7.5)
        "one weight vector × c": 2.0,
        "data × c": 2.0,
        "data + c": round(np.sqrt(2) / np.sqrt(40), 9),  # (3, 7)
        "one sample × c": round(4 / np.sqrt(40), 9),  # (6, 6)
    }
    assert output.loc["data + c", ["mean_in", "first_out"]].tolist() == [5.0, 3.0]
    assert output.loc["as it is", "std_in"] == pytest.approx(np.sqrt(8))


def test_weightnorm_is_torchs() -> None:
    torch.manual_seed(0)
    linear = weight_norm(nn.Linear(4, 3, bias=False, dtype=torch.float64))
    x, v = torch.randn(5, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    layer = weight_normed(linear.weight.detach())
    with torch.no_grad():
        linear.parametrizations.weight.original1.copy_(v)
        torch.testing.assert_close(layer(v, x), linear(x))


def test_eps_counts_where_the_input_is_small(rows: pd.DataFrame) -> None:
    """LayerNorm of data with a root mean square of s: about 1 − s / √(s² + eps) away from its value without eps."""
    own = rows[(rows["norm"] == "layernorm") & (rows["input"] == "random")].dropna(subset=["scale"]).set_index("scale")
    small, large = own["eps_deviation"].loc[1e-4], own["eps_deviation"].loc[1.0]
    assert small == pytest.approx(1 - 1e-4 / np.sqrt(1e-8 + 1e-5), rel=0.01)
    assert large == pytest.approx(0.5e-5, rel=0.4)  # eps / 2, as the variance differs by position
    assert rows[rows["norm"].isin(["dyt", "none"])]["eps_deviation"].isna().all()


@pytest.mark.parametrize(
    ("words", "multiplied", "shifted"),
    [
        ("norm=layernorm placement=parallel", "adds the same to it", "adds the same to it"),
        ("norm=layernorm placement=pre", "changes what it adds", "adds the same to it"),
        ("norm=rmsnorm placement=pre", "changes what it adds", "changes what it adds"),
        ("norm=layernorm norm@qk=rmsnorm placement=post", "removes it", "changes what it adds"),
        ("norm=layernorm norm@mlp=rmsnorm placement=pre", "changes what it adds", "changes what it adds"),
        ("scheme=rezero", "adds the same to it", "adds the same to it"),  # which adds nothing at the start
    ],
)
def test_blocks_answer_to_a_changed_stream_by_all_of_their_norms(words: str, multiplied: str, shifted: str) -> None:
    one = measured(Invariance(), subject(*words.split(), *TINY))
    frame = blocks_frame(one)
    assert list(frame["block"]) == ["first", "last"]
    assert set(frame["stream × c"]) == {multiplied} and set(frame["stream + c"]) == {shifted}
    assert f"the last block {shifted}" in tell_blocks(one)[1]
    assert not one["input"].dropna().str.endswith(".q").any()  # another norm than the one that is measured


class Divided(nn.Module):
    """x / RMS(x), at each position."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize(
    ("module", "multiplied", "shifted", "exponent"),
    [
        (Divided(), "removes it", "changes what it adds", 0.0),
        (nn.LayerNorm(4, eps=0.0, elementwise_affine=False), "removes it", "removes it", 0.0),
        (nn.ReLU(), "passes it on", "changes what it adds", 1.0),
        (nn.Identity(), "adds the same to it", "adds the same to it", 1.0),
    ],
)
def test_what_a_block_makes_of_its_stream_by_hand(
    module: nn.Module, multiplied: str, shifted: str, exponent: float
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    first, second, *scaled = measure_block(Block(module, 0, "", {}, {}, -1), Call(x, (), {}), bound_of(x.dtype))
    assert (first["makes"], second["makes"]) == (multiplied, shifted)
    assert first["exponent"] == pytest.approx(exponent, abs=1e-12)
    own = next(row for row in scaled if row["stream_scale"] == 1)
    largest = scaled[-1]["stream_rms"] / own["stream_rms"]
    assert largest == pytest.approx(100.0**exponent)


def test_a_block_that_gives_0_has_no_exponent() -> None:
    assert exponent_of(0.5, 2.0) == pytest.approx(1.0)
    assert np.isnan(exponent_of(0.0, 0.0)) and np.isnan(exponent_of(0.0, 1.0))


def test_findings_are_four_tables_and_two_figures(rows: pd.DataFrame) -> None:
    study = Invariance()
    found, blocks, worst, moments = tables_of(study, rows)
    assert list(blocks.frame["block"][:2]) == ["first", "last"] and len(blocks.frame) == 2 * rows["norm"].nunique() - 2
    assert "groupnorm: features of a group at one position" in found.notes[0]
    assert len(worst.frame) == 9 * 2 * 2
    assert list(moments.frame["change"][:5]) == ["as it is", "W × c", "W + 1·cᵀ", "data × c", "data + c"]
    figures = study.figures(rows)
    assert [figure.name for figure in figures] == ["blocks", "eps"]
    assert {*figures[1].data["norm"]} == {*TABLE, *BY_LAYOUT} - {"weightnorm", "dyt", "none"}
    of_dyt = study.figures(rows[rows["norm"] == "dyt"].dropna(axis=1, how="all"))
    assert [figure.name for figure in of_dyt] == ["blocks"]


def test_the_same_seed_measures_the_same() -> None:
    one, again = (measured(Invariance(), subject("norm=rmsnorm", *TINY)) for _ in range(2))
    pd.testing.assert_frame_equal(one, again)
    assert deviation(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0])) == pytest.approx(0.75)
