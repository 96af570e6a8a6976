"""The study of mappings, against scipy's fit, by hand, and against DyT, which is what is fit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import curve_fit
from studied import measured, subject, subjects, tables_of
from support import TEXTS, random_batch

from normbench.config import compose
from normbench.studies.depth import streams_of
from normbench.studies.frame import Subject
from normbench.studies.mapping import Mapping, bare, fit, vectors

SMALL = ("model.depth=2", "model.width=16", "model.heads=2", "model.context=8", "data.eval_batch_size=8")


def moved(*words: str) -> Subject:
    """A subject whose norms have a γ and a β that are not those of the start."""
    one = subject(*SMALL, *words)
    build = one.build

    def built():  # type: ignore[no-untyped-def]
        model, norms = build()
        generator = torch.Generator().manual_seed(1)
        for norm in norms.values():
            for parameter in norm.parameters():
                parameter.data.add_(torch.rand(parameter.shape, generator=generator))
        return model, norms

    one.build = built  # type: ignore[method-assign]
    return one


def test_the_fit_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=2_000) * 3
    y = 1.7 * np.tanh(0.4 * x) - 0.2 + 0.1 * generator.normal(size=x.size)
    found = fit(x, y)
    (gamma, alpha, beta), _ = curve_fit(lambda x, gamma, alpha, beta: gamma * np.tanh(alpha * x) + beta, x, y)
    assert [found[name] for name in ("gamma", "alpha", "beta")] == pytest.approx([gamma, alpha, beta], rel=1e-3)
    left = np.var(y - gamma * np.tanh(alpha * x) - beta) / np.var(y)
    assert found["tanh_left"] == pytest.approx(left, rel=1e-6)
    slope, intercept = np.polyfit(x, y, 1)
    assert found["line_left"] == pytest.approx(np.var(y - slope * x - intercept) / np.var(y))
    assert found["bend"] == found["line_left"] - found["tanh_left"]
    assert found["bend_share"] == pytest.approx(1 - left / (np.var(y - slope * x - intercept) / np.var(y)), rel=1e-4)
    assert found["reach"] == pytest.approx(found["alpha"] * np.quantile(np.abs(x), 0.99))


def test_a_line_is_fitted_by_a_tanh_that_is_one() -> None:
    x = np.linspace(-4, 4, 500)
    found = fit(x, 3 * x + 1)
    assert found["line_left"] == pytest.approx(0, abs=1e-12)
    assert found["tanh_left"] < 1e-6
    assert found["bend_share"] == 0, "of nothing but rounding there is no share"
    assert found["gamma"] * found["alpha"] == pytest.approx(3, rel=1e-3)


def test_dyt_is_found_again_whatever_its_gamma_and_beta() -> None:
    one = moved("norm=dyt")
    _, norms = one.build()
    fits = measured(Mapping(), one).query("kind == 'fit'").set_index("site")
    assert set(fits.index) == set(norms)
    for site, norm in norms.items():
        found = fits.loc[site]
        assert found["alpha"] == pytest.approx(norm.alpha.item(), rel=1e-3)
        assert (found["gamma"], found["beta"]) == pytest.approx((1, 0), abs=1e-3)
        assert found["tanh_left"] < 1e-6


def test_layernorm_is_a_line_for_each_token_and_an_s_for_all() -> None:
    rows = measured(Mapping(), moved("norm=layernorm"))
    points = rows[rows["kind"] == "point"]
    assert points["site"].unique().tolist() == ["block00.attention", "block01.attention", "final"]
    slopes = []
    for _, token in points[points["site"] == "final"].groupby("token"):
        slope, intercept = np.polyfit(token["input"], token["output"], 1)
        assert np.allclose(token["output"], slope * token["input"] + intercept, atol=1e-5)
        slopes.append(slope)
    assert slopes == sorted(slopes, reverse=True)  # tokens stand in the order of their deviation
    fits = rows[rows["kind"] == "fit"]
    assert (fits["tanh_left"] <= fits["line_left"] + 1e-6).all()
    assert fits["line_left"].between(0, 0.5).all()


def test_a_norm_is_copied_without_its_gamma_and_beta() -> None:
    norm = torch.nn.LayerNorm(4)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 4)
    assert torch.equal(bare(norm)(x), torch.nn.functional.layer_norm(x, (4,)))
    assert not torch.equal(norm.weight, torch.ones(4))


def test_vectors_are_those_of_positions_that_are_no_padding() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert torch.equal(vectors(x, -1, mask), x[mask])
    assert torch.equal(vectors(x, 1, None), x.transpose(1, 2).reshape(8, 3))
    of_heads = torch.arange(48.0).view(2, 3, 2, 4)
    assert torch.equal(vectors(of_heads, -1, mask[..., None].expand(2, 3, 2)), of_heads[mask].flatten(0, 1))


def test_padding_does_not_count_behind_a_class_token() -> None:
    tree = compose.read(["model.pool=class_token", *SMALL]).tree
    one = Subject({}, tree, torch.device("cpu"), lambda: SimpleNamespace(task=TEXTS))
    batch = random_batch(TEXTS, size=3)
    assert batch.mask is not None and not batch.mask.all()
    for stream in streams_of(one, batch):
        assert len(stream) == 3 + batch.mask.sum()
    other = batch._replace(inputs=torch.where(batch.mask, batch.inputs, 1))
    assert torch.equal(stream, streams_of(one, other)[-1])


def test_the_norms_of_a_cnn_are_read_by_channel() -> None:
    one = subject("model=cnn", "model.width=4", "norm=batchnorm")
    rows = measured(Mapping(tokens=50, drawn=4), one)
    assert rows["site"].iloc[0] == "block00.conv"  # the first that is passed, not the first that is made
    assert (rows["kind"] == "point").sum() == 3 * 16


def test_its_tables_and_figures_show_all_arms() -> None:
    study = Mapping(tokens=64, drawn=8)
    rows = measured(study, *subjects(*SMALL, seeds=2, norm=("layernorm", "dyt")))
    over, layers = tables_of(study, rows)
    assert over.frame["arm"].tolist() == ["LayerNorm", "DyT"]
    assert len(layers.frame) == 2 * rows["site"].nunique()
    figures = study.figures(rows)
    subplots = {figure.name: len(figure.canvas.axes) for figure in figures}
    assert subplots == {"mapping": 6, "errors": 2, "histograms": 6}
    assert {*figures[1].data["fit"]} == {"of a tanh", "of a line"}
    assert all(figure.svg.startswith("<svg") for figure in figures)
