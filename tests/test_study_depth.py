"""The study of depth, against models whose blocks are taken out or put in another order, and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from studied import measured, subject, subjects, tables_of
from torch import nn

from normbench.errors import UsageError
from normbench.studies.depth import Depth, angular_distance
from normbench.training.evaluation import evaluate

SMALL = ("model.depth=3", "model.width=16", "model.heads=2", "model.context=8", "data.eval_batch_size=16")
LIVELY = "init.embedding_std=1"


@pytest.mark.parametrize("placement", ["pre", "post", "x0"])
def test_a_block_is_skipped_as_in_a_model_that_has_none_there(placement: str) -> None:
    one = subject(f"placement={placement}", LIVELY, *SMALL)
    rows = measured(Depth(batches=2), one)
    blocks = rows[rows["what"] == "block"].set_index("layer")

    def loss(*order: int) -> float:
        model, _ = one.build()
        model.blocks = nn.ModuleList([model.blocks[place] for place in order])
        return evaluate(model, one.data.eval_batches("val", 2), one.task, one.device)["loss"]

    whole = loss(0, 1, 2)
    assert rows["loss"].iloc[0] == pytest.approx(whole, rel=1e-6)
    skipped = [loss(1, 2) - whole, loss(0, 2) - whole, loss(0, 1) - whole]
    assert blocks["skipped"].tolist() == pytest.approx(skipped, abs=1e-6)
    assert max(map(abs, skipped)) > 1e-3
    swapped = [loss(1, 0, 2) - whole, loss(0, 2, 1) - whole, math.nan]
    assert blocks["swapped"].tolist() == pytest.approx(swapped, abs=1e-6, nan_ok=True)


def test_the_angular_distance_is_in_half_turns() -> None:
    one = torch.tensor([[1.0, 0.0], [2.0, 0.0]]).double()
    for other, angle in (
        ([[3.0, 0.0], [1.0, 0.0]], 0),
        ([[0.0, 5.0], [0.0, -1.0]], 0.5),
        ([[-1.0, 0.0], [1.0, 0.0]], 0.5),
    ):
        assert angular_distance(one, torch.tensor(other).double()) == pytest.approx(angle, abs=1e-7)


def test_streams_are_those_before_and_behind_each_block() -> None:
    one = subject(LIVELY, *SMALL)
    pairs = measured(Depth(batches=1), one).query("what == 'pair'").set_index(["layer", "to"])["distance"]
    model, _ = one.build()
    seen: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.extend((inputs[0], output)))
    (batch,) = one.data.eval_batches("val", 1)
    with torch.no_grad():
        model(*batch.arguments)
    cosines = torch.cosine_similarity(seen[2].double(), seen[5].double(), dim=-1)
    assert pairs[1, 3] == pytest.approx(float(cosines.acos().mean()) / math.pi, rel=1e-5)
    assert len(pairs) == 6


def test_blocks_of_a_cnn_that_change_the_shape_are_left_out() -> None:
    rows = measured(Depth(batches=1), subject("model=cnn", "model.width=4"))
    found = {what: own["layer"].tolist() for what, own in rows.groupby("what") if what in ("block", "left out")}
    assert found == {"block": [0, 2], "left out": [1]}
    assert rows["swapped"].isna().all()  # each has a neighbour that changes it
    assert rows[rows["what"] == "pair"][["layer", "to"]].to_numpy().tolist() == [[0, 1], [2, 3]]
    assert "left out: 1." in tables_of(Depth(), rows)[1].notes[0]


def test_a_model_whose_blocks_all_change_the_shape_is_refused() -> None:
    with pytest.raises(UsageError, match="keep the stream's shape, and none here does: use model=nano"):
        Depth().check(subject("model=mlp_plain", "model.depth=1", "placement=plain"))


def test_its_tables_and_figures_show_all_arms() -> None:
    study = Depth(batches=1)
    rows = measured(study, *subjects(*SMALL, seeds=2, placement=("pre", "post")))
    whole, halves, blocks = tables_of(study, rows)
    assert whole.frame["arm"].tolist() == ["pre", "post"]
    assert halves.frame["blocks"].unique().tolist() == ["first half", "deeper half"]
    assert len(blocks.frame) == 6
    worth, maps = study.figures(rows)
    assert [pane.get_title("left") for pane in worth.canvas.axes] == ["block skipped", "block swapped"]
    assert [pane.get_title("left") for pane in maps.canvas.axes[:2]] == ["pre", "post"]
    assert len(maps.canvas.axes) == 3  # with their scale
    assert all(figure.svg.startswith("<svg") for figure in (worth, maps))
