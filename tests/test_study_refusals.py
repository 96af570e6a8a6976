"""What studies cannot measure is refused in a sentence, before anything is trained, measured or left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import refused

pytest_plugins = ["refusals"]

TEXT = ("model.depth=1", "model.width=8", "model.heads=1", "model.context=8", "threads=1")
ONE_A_BATCH = ("model=mlp", "data=digits", "data.batch_size=1", "norm=batchnorm", "seed=0", "threads=1")
SIGMOIDS = ("model=mlp_plain", "model.width=16", "optim=sgd", "norm=none", "seed=0")
CNN = ("model=cnn_plain", "model.width=4", "optim=sgd", "norm=none", "seed=0")


@pytest.mark.parametrize(
    ("study", "words", "said"),
    [
        ("bench", ONE_A_BATCH, "has 1 value for a statistic"),
        ("folding", (*TEXT, "norm=none"), "nothing of this model can be folded"),
        ("folding", (*TEXT, "study.pairs=1"), "study.pairs=1 is not allowed"),
        ("padding", ("sweep.tie=null", "norm=layernorm", "data=pydocs", "model.context=32"), "labelled texts"),
        ("robustness", ("study.dropped=2",), "study.dropped=[2"),
        ("saturation", (*SIGMOIDS, "model.activation=relu"), "the model has no sigmoids"),
        ("saturation", ("model=cnn", "norm=none", "seed=0"), "the model has no sigmoids"),
        ("saturation", (*SIGMOIDS, "study.edge=0.5"), "study.edge=0.5 is not allowed"),
        ("saturation", (*SIGMOIDS, "trainer.ema=0.9"), "trainer.ema=0.9 with a study that trains"),
        (
            "smoothness",
            (*CNN, "trainer.precision=fp16"),
            "trainer.precision=fp16 with a study that",
        ),
        ("smoothness", (*CNN, "study.rates=-1"), "study.rates=[-1"),
        ("smoothness", (*CNN, "study.every=0"), "study.every=0"),
        ("statistics", ("norm=layernorm",), "norm=layernorm keeps no running mean and variance: choose norm=batchnorm"),
        ("statistics", ("norm.track_running_stats=false",), "keeps no running mean and variance"),
    ],
)
def test_what_a_study_cannot_measure_is_refused(
    study: str, words: tuple[str, ...], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(["study", study, *words], capsys)
