"""Studies of models of other libraries: what they measure of the norms that stand there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data_helpers import write_questions
from studied import measured, subject
from support import WHOLE

from normbench.studies.folding import fold, logits_of
from normbench.studies.invariance import PUBLISHED, RANDOM, SIX_CHANGES, Invariance, by_change, verdict
from normbench.studies.padding import Padding
from normbench.studies.removal import Removal

pytestmark = pytest.mark.slow

GPT2 = ("model=hf", "model.name=gpt2")
LLAMA = ("model=hf", "model.name=llama")
SMALL = ("model.config.hidden_size=16", "model.config.num_hidden_layers=2", "model.config.num_attention_heads=2",
         "model.context=8", "data.batch_size=4", "data.eval_batch_size=8", "trainer.eval_batches=1",
         "trainer.steps=3")  # fmt: skip
VIT = ("model=timm", "model.name=vit_tiny_patch16_224", "model.kwargs.depth=2", "model.kwargs.embed_dim=16",
       "model.kwargs.num_heads=2", "data=digits", "data.batch_size=4", "data.eval_batch_size=8",
       "trainer.steps=3")  # fmt: skip
CONVNEXT = ("model=timm", "model.name=convnext_atto", "model.kwargs.depths=[1,1,1,1]",
            "model.kwargs.dims=[8,8,8,8]", "data=digits", "data.batch_size=4", "trainer.steps=3")  # fmt: skip


RESNET = ("model=timm", "model.name=resnet18", "model.kwargs.layers=[1,1,1,1]", "model.kwargs.channels=[8,8,8,8]",
          "data=digits", "data.batch_size=4", "trainer.steps=3")  # fmt: skip


@pytest.mark.parametrize("norm", ["own", "batchnorm"] if WHOLE else ["own"])
def test_batch_norms_in_a_given_model_respond_as_published(norm: str) -> None:
    """Of which torch's takes no ε of 0."""
    pytest.importorskip("timm")
    rows = measured(Invariance(), subject(f"norm={norm}", *RESNET)).dropna(subset=["deviation"])
    verdicts = by_change(rows[rows["input"] == RANDOM], ["norm"], "holds", verdict)
    assert " ".join(verdicts[SIX_CHANGES].iloc[0]) == PUBLISHED["batchnorm"]


@pytest.mark.parametrize(
    ("words", "norm", "same_as"),
    [
        ((*GPT2, *SMALL), "own", "layernorm"),
        ((*LLAMA, *SMALL), "own", "rmsnorm"),
        *([((*GPT2, *SMALL), "rmsnorm", "rmsnorm"), (VIT, "own", "layernorm")] if WHOLE else []),
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


@pytest.mark.parametrize(
    ("words", "folded", "kept", "bound"),
    [
        (VIT, 5, 0, 1e-12),  # which torch.fx can follow, and those below torch.export
        ((*GPT2, *SMALL, "model.config.tie_word_embeddings=false"), 5, 0, 1e-12),
        ((*GPT2, *SMALL), 4, 5, 1e-12),  # the output layer is tied
        ((*LLAMA, *SMALL), 5, 0, 1e-6),  # whose own norms compute in float32
        (CONVNEXT, 7, 9, 1e-12),  # means that a convolution in groups writes, and norms before one
    ],
)
def test_norms_of_given_models_are_folded(words: tuple[str, ...], folded: int, kept: int, bound: float) -> None:
    pytest.importorskip("transformers" if "model=hf" in words else "timm")
    one = subject("norm=own", *words)
    model, norms = one.build()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in norms.values():
            for parameter in norm.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    found = fold(model, norms, one.task.random_batch(2, generator))
    assert (len(found.done), len(found.refused)) == (folded, kept), found
    batch = one.task.random_batch(4, generator)
    expected = logits_of(model.double(), batch)
    torch.testing.assert_close(
        logits_of(found.model, batch), expected, rtol=0, atol=bound * float(expected.abs().max())
    )


def test_norms_that_are_taken_out_of_a_given_model_go_into_its_layers() -> None:
    pytest.importorskip("transformers")
    rows = measured(Removal(tune_steps=[3]), subject("norm=own", *GPT2, *SMALL))
    order = ["none", "block00.mlp", "block01.mlp", "block00.attention", "block01.attention", "final"]
    assert rows["site"].tolist() == order
    last = rows.iloc[-1]
    assert (last["left"], last["folded"], last["unfolded"]) == (0, 4, 1)  # the output layer is tied
    assert last["change"] < 1e-12 and last["increase"] == last["loss"] - last["control"]
