"""Studies of models of other libraries: what they measure of the norms that stand there."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_helpers import write_questions
from studied import measured, subject

from normbench.studies.folding import Folding
from normbench.studies.invariance import PUBLISHED, SIX_CHANGES, Invariance, by_change, verdict
from normbench.studies.padding import Padding

pytestmark = pytest.mark.slow

GPT2 = ("model=hf", "model.name=gpt2")
LLAMA = ("model=hf", "model.name=llama")
SMALL = ("model.config.hidden_size=16", "model.config.num_hidden_layers=2", "model.config.num_attention_heads=2",
         "model.context=8", "data.batch_size=4", "data.eval_batch_size=8", "trainer.eval_batches=1",
         "trainer.steps=3")  # fmt: skip
VIT = ("model=timm", "model.name=vit_tiny_patch16_224", "model.kwargs.depth=2", "model.kwargs.embed_dim=16",
       "model.kwargs.num_heads=2", "data=digits", "data.batch_size=4", "data.eval_batch_size=8",
       "trainer.steps=3")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "norm", "same_as"),
    [
        ((*GPT2, *SMALL), "own", "layernorm"),
        ((*GPT2, *SMALL), "rmsnorm", "rmsnorm"),
        ((*LLAMA, *SMALL), "own", "rmsnorm"),
        (VIT, "own", "layernorm"),
    ],
)
def test_norms_in_a_given_model_respond_as_published(words: tuple[str, ...], norm: str, same_as: str) -> None:
    pytest.importorskip("timm" if words is VIT else "transformers")
    rows = measured(Invariance(), subject(f"norm={norm}", *words))
    verdicts = by_change(rows.dropna(subset=["deviation"]), ["norm"], "holds", verdict)
    assert " ".join(verdicts[SIX_CHANGES].iloc[0]) == PUBLISHED[same_as]
    assert len(verdicts) == 1 and rows["eps_deviation"].max() > 1e-3
    shifted = rows[(rows["block"] == "last") & (rows["stream_change"] == "stream + c")]
    assert shifted["makes"].tolist() == ["adds the same to it" if same_as == "layernorm" else "changes what it adds"]


def test_texts_are_padded_and_cut_for_a_given_classifier(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_questions(tmp_path)
    words = [word for word in SMALL if word != "model.context=8"]
    one = subject("norm=own", "model=hf", "model.name=bert", "data=banking77", f"data.root={tmp_path}", *words)
    study = Padding(shares=[0.0, 0.5], lengths=[3, 6])
    study.check(one)
    rows = measured(study, one)
    padded = rows[rows["kind"] == "padding"]
    assert padded["level"].tolist() == [0.0, 0.5] and (rows["kind"] == "length").sum() == 2
    assert padded["loss"].iloc[1] == pytest.approx(padded["loss"].iloc[0], rel=1e-5)  # masked, so it changes nothing


def test_norms_of_a_given_classifier_of_images_are_folded() -> None:
    pytest.importorskip("timm")
    rows = measured(Folding(pairs=9), subject("norm=own", *VIT))
    assert rows["folded"].max() > 0 and rows["kept"].max() == 0
    exact = rows[(rows["of"] == "folding") & (rows["bits"] == 53)]
    assert exact["change"].max() < 1e-12
