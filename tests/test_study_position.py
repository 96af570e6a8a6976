"""The study of positions, by hand on what a model's blocks give, and on attention and channels that are planted."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from studied import measured, subject, subjects, tables_of

from normbench.errors import UsageError
from normbench.models.transformer import Attention
from normbench.norms import NoNorm
from normbench.studies.position import Position, name_largest, see_attention
from normbench.types import Site

SMALL = ("model.depth=2", "model.width=16", "model.heads=2", "model.context=8", "data.eval_batch_size=16")


def test_means_and_deviations_are_those_of_each_position() -> None:
    one = subject(*SMALL, "norm@qk=rmsnorm")
    rows = measured(Position(batches=1), one)
    model, norms = one.build()
    seen: dict[str, torch.Tensor] = {}
    for name, module in [*norms.items(), ("stream", model.blocks[1])]:
        module.register_forward_hook(
            lambda module, inputs, output, name=name: seen.update({name: output.detach().flatten(2)})
        )
    (batch,) = one.data.eval_batches("val", 1)
    model(*batch.arguments)
    sites = ("block01.mlp", "block01.attention.q", "final")
    places = {**{("norm", site): site for site in sites}, ("stream", "block01"): "stream"}
    for (what, site), name in places.items():
        own = rows[(rows["what"] == what) & (rows["site"] == site)]
        assert own["position"].tolist() == [*range(8)]
        x = seen[name].flatten(2).numpy().astype(float)
        assert own["mean"].tolist() == pytest.approx(x.mean((0, 2)), abs=1e-6)
        assert own["std"].tolist() == pytest.approx(x.std((0, 2)), rel=1e-6)
    channels = rows[(rows["what"] == "channels") & (rows["site"] == "block01")]["channel_rms"]
    rms = np.sqrt(np.square(seen["stream"].numpy().astype(float)).mean((0, 1)))
    assert channels.tolist() == pytest.approx(rms / np.sort(rms)[len(rms) // 2 - 1])
    assert rows[rows["site"] == "final"]["block"].eq(2).all()


@pytest.mark.slow
def test_blocks_have_their_own_number_from_a_hundred_on() -> None:
    rows = measured(Position(batches=1), subject("model.depth=102", "model.width=4", "model.heads=1", *SMALL[3:]))
    assert rows["block"].max() == 102  # that of the norm behind the last one
    numbers = rows["site"].str.extract(r"block(\d+)")[0].dropna().astype(int)
    assert rows["block"][numbers.index].eq(numbers).all() and numbers.max() == 101


def attention_of(weights: Any) -> list[float]:
    """What is found of attention whose logits are given, (time, time), for one window and one head."""
    found: Any = defaultdict(list)
    inner: Any = type("Inner", (), {"logits": lambda self, q, k, mask: torch.tensor(weights)[None, None]})()
    nothing = torch.zeros(1, 1, len(weights), 1)
    see_attention(found, "block00", inner, (nothing, nothing, nothing, None), None)
    (values,) = found["attention", "position", "block00"]
    return values["attention"].tolist()


def test_attention_that_is_alike_everywhere_is_1() -> None:
    assert attention_of(np.log(np.tril(np.ones((8, 8))) + 1e-300)) == pytest.approx([1] * 6)


def test_a_position_that_all_look_at_gets_its_share_more() -> None:
    logits = np.where(np.tril(np.ones((8, 8))) > 0, 0.0, -np.inf)
    logits[:, 0] = 50  # all of what a query has
    far = range(2, 8)  # a quarter of the context or more behind position 0
    first, *others = attention_of(logits)
    assert first == pytest.approx(6 / sum(1 / (query + 1) for query in far))
    assert others == pytest.approx([0] * 5, abs=1e-12)


def test_attention_is_that_of_the_models_own_branch() -> None:
    torch.manual_seed(0)
    site = Site("attention", 0)
    branch = Attention(8, 2, causal=True, bias=False, dropout=0.0, norm=NoNorm, site=site).eval()
    x, found = torch.randn(2, 4, 8), defaultdict(list)  # type: ignore[var-annotated]
    branch.inner.register_forward_hook(partial(see_attention, found, "block00"))
    with torch.no_grad():
        branch(x)
        q, k, _ = branch.qkv(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
    logits = (q @ k.transpose(-2, -1) / 2).masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf)
    weights = logits.softmax(-1).mean((0, 1)).tolist()
    expected = []
    for key in range(3):
        far = range(key + 1, 4)
        got = sum(weights[query][key] for query in far)
        uniform = sum(1 / (query + 1) for query in far)
        expected.append(got / uniform)
    assert found["attention", "position", "block00"][0]["attention"].tolist() == pytest.approx(expected, rel=1e-5)


def test_what_sticks_out_is_named_with_where_and_in_how_many_seeds() -> None:
    values = {(0, 0, 3): 9.0, (1, 0, 3): 8.0, (0, 1, 5): 7.0, (0, 1, 6): 5.0}
    rows = pd.DataFrame([(*key, value) for key, value in values.items()], columns=["seed", "block", "channel", "rms"])
    found = name_largest(rows, "channel", "rms", 6.0)
    assert found == {"number": 2, "largest": 9.0, "named": "3 (block 0: 9.0; in 2 seeds), 5 (block 1: 7.0; in 1 seeds)"}
    assert name_largest(rows, "channel", "rms", 10.0)["named"] == "none"


def test_a_model_of_images_is_refused() -> None:
    with pytest.raises(UsageError, match=r"study position is for language models, not for images: use data=pydocs"):
        Position().check(subject("model=cnn"))


def test_its_tables_and_figures_show_all_arms() -> None:
    study = Position(batches=1, outlier=1.0)
    rows = measured(study, *subjects(*SMALL, seeds=2, norm=("none", "rmsnorm")))
    vectors, named = tables_of(study, rows)
    assert vectors.frame[["what", "positions"]].drop_duplicates().to_numpy().tolist() == [
        ["norm", "all"], ["stream", "all"], ["norm", "the first"], ["stream", "the first"]
    ]  # fmt: skip
    assert named.frame["what"].tolist() == ["outlier channels"] * 2 + ["attention sinks"] * 2
    assert "block" in named.frame["named"].iloc[0]
    assert [figure.name for figure in study.figures(rows)] == ["std", "mean", "attention"]
