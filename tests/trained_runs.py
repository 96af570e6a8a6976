"""A pytest plugin: three tiny runs of each kind, trained once for all tests."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from data_helpers import write_questions

from normbench.cli import main

SIZE = ["model.depth=1", "model.width=16", "model.heads=2", "model.context=16"]
SHORT = ["threads=1", "device=cpu", "quiet=true", "data.eval_batch_size=512", "trainer.eval_batches=2"]

WORDS = {
    "text": [*SIZE, "norm=rmsnorm", "trainer.steps=20", "trainer.ema=0.9", "trainer.keep_checkpoint=best",
             "trainer.eval_every=10"],
    "images": ["model=cnn", "model.width=4", "norm=batchnorm", "data=digits", "trainer.epochs=2"],
    "texts": [*SIZE, "data=banking77", "data.batch_size=8", "trainer.steps=40"],
}  # fmt: skip


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run directories of a language model, an image classifier and a text classifier."""
    folder = tmp_path_factory.mktemp("trained")
    write_questions(folder / "hub")
    words = {**WORDS, "texts": [*WORDS["texts"], f"data.root={folder / 'hub'}"]}
    with contextlib.chdir(folder):
        return {kind: folder / train(own) for kind, own in words.items()}


def train(words: list[str]) -> str:
    """A quiet run; returns its directory."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["train", *words, *SHORT]) == 0
    return out.getvalue().strip().splitlines()[-1]
