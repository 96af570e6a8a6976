"""What padding costs a classifier of texts: padded and cut by hand, and beside a norm that counts it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from data_helpers import write_questions
from studied import measured, subject, tables_of
from support import refused
from trained_runs import SIZE

from normbench.errors import UsageError
from normbench.studies.padding import Padding, of_length, pad
from normbench.types import Batch

pytest_plugins = ["refusals"]


def test_texts_are_sorted_by_length_and_padded_again() -> None:
    inputs = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 0], [9, 9, 9, 9]])
    mask = torch.arange(4) < torch.tensor([[3], [2], [3], [4]])
    batches = [Batch(inputs, torch.arange(4), mask), Batch(inputs[3:, :3], torch.tensor([7]), mask[3:, :3])]
    found = of_length(batches, range(3, 5))
    assert {length: texts.tolist() for length, (texts, _) in found.items()} == {
        3: [[1, 2, 3], [6, 7, 8], [9, 9, 9]],
        4: [[9, 9, 9, 9]],
    }
    assert found[3][1].tolist() == [0, 2, 7] and found[4][1].tolist() == [3]
    (batch,) = pad(*found[3], 5)
    assert batch.inputs.tolist() == [[1, 2, 3, 0, 0], [6, 7, 8, 0, 0], [9, 9, 9, 0, 0]]
    assert batch.mask is not None and batch.mask.tolist() == [[True] * 3 + [False] * 2] * 3
    assert batch.targets.tolist() == [0, 2, 7]
    study = Padding(shares=[0.5, 0.75], lengths=[2])
    for kind, level, length, real in (("padding", 0.75, 12, 3), ("length", 2, 2, 2)):
        (batch,) = study.batches(kind, level, {3: found[3]})
        assert batch.inputs.shape[1] == length and batch.mask is not None and batch.mask.sum() == 3 * real


def test_padding_moves_the_norm_that_counts_it_alone(tmp_path: Path) -> None:
    write_questions(tmp_path)
    study, parts = Padding(shares=[0.0, 0.25, 0.5], lengths=[3, 6]), []
    texts = ["data=banking77", f"data.root={tmp_path}", "data.batch_size=8", *SIZE]
    across = ["norm=groupnorm", "norm.across_time=true"]
    for words, masked in (
        (["norm=layernorm"], "default"),
        ([*across, "norm.masked=true"], True),
        ([*across, "norm.masked=false"], False),
    ):
        one = subject(*texts, *words, **{"norm.masked": masked})
        study.check(one)
        rows = measured(study, one)
        shown = rows[rows["kind"] == "padding"]
        moved = (shown["loss"] - shown["loss"].iloc[0]).abs()
        assert len(rows) == 5 and shown["level"].tolist() == [0.0, 0.25, 0.5]
        assert (moved[1:] > 1e-4).all() if masked is False else (moved < 1e-6).all()
        assert (rows.groupby("kind")["change"].first() == 0).all()
        parts.append(rows)
    rows = pd.concat(parts)
    (table, other), figures = tables_of(study, rows), study.figures(rows)
    assert table.title == "Accuracy by the share of padding, at 0.5" and other.title.endswith(", at 6")
    assert table.frame["arm"].tolist() == ["LayerNorm", "GroupNorm · masked=true", "GroupNorm · masked=false"]
    assert [figure.name for figure in figures] == ["padding", "length"]
    assert figures[0].data.groupby("counted").size().tolist() == [6, 6]  # LayerNorm is in both subplots


def test_what_cannot_be_measured_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    translator: Any = SimpleNamespace(tree={"data": {"_target_": "normbench.data.hub_translation"}})
    with pytest.raises(UsageError, match="labelled texts"):
        Padding().check(translator)
    write_questions(tmp_path)
    words = ["sweep.tie=null", "norm=layernorm", f"data.root={tmp_path}", "data.batch_size=8", "study.lengths=100"]
    assert "study.lengths" in refused(["study", "padding", *words], capsys)
    assert not (tmp_path / "outputs").exists()
