"""Batches of one example, of which some norms can take no statistic, are refused before a run is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import refused
from torch import Tensor, nn

from normbench import build
from normbench.config.compose import read
from normbench.data import own_texts
from normbench.errors import UsageError
from normbench.training.evaluation import reads_batch
from normbench.types import Batch, Data, ImageClassification, Split

pytest_plugins = ["refusals"]

EXAMPLES = 7
CPU = torch.device("cpu")
OF_TIMM = "model=timm model.name=resnet18 model.kwargs.layers=[1,1,1,1] model.kwargs.channels=[8,8,16,16]"
OF_TORCHVISION = "model=torchvision model.name=mobilenet_v3_small"


class Leftover(Data):
    """Seven images, the last of which is a batch of its own where there are three in each."""

    kind = "image_classification"
    fingerprint = "leftover-1"

    def __init__(self, *, seed: int, batch_size: int = 3, eval_batch_size: int = EXAMPLES) -> None:
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.images = torch.randn(EXAMPLES, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        self.labels = torch.arange(EXAMPLES) % 2
        self.task = ImageClassification(num_classes=2, image_shape=(1, 8, 8))
        self.steps_per_epoch = -(-EXAMPLES // batch_size)

    def train_batch(self, step: int) -> Batch:
        first = step % self.steps_per_epoch * self.batch_size
        return self.batch(torch.arange(EXAMPLES)[first : first + self.batch_size])

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        for indices in torch.arange(EXAMPLES).split(self.eval_batch_size)[:limit]:
            yield self.batch(indices)

    def batch(self, indices: Tensor) -> Batch:
        return Batch(self.images[indices], self.labels[indices])

    def describe(self) -> dict[str, Any]:
        return {"name": "leftover", "examples": EXAMPLES}


class Small(Leftover):
    """Images of which a CNN leaves one position."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self.images = self.images[..., :4, :4]
        self.task = ImageClassification(num_classes=2, image_shape=(1, 4, 4))


class Held(nn.Module):
    """A norm of a user's own that holds one of torch."""

    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(num_features)

    def forward(self, x: Tensor) -> Tensor:
        normalized: Tensor = self.norm(x)
        return normalized


OURS = f"data._target_={__name__}.Leftover data.batch_size=3"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (f"{OF_TIMM} norm=own data=digits data.batch_size=1", "does not train on a batch of 1 of the images"),
        (f"{OF_TORCHVISION} norm=own data=digits data.batch_size=1", "does not train on a batch of 1 of the images"),
        (f"{OF_TIMM} norm=batchnorm data=digits data.batch_size=1", "has 1 value for a statistic"),
        (f"model=mlp norm=batchnorm {OURS} trainer.steps=3", "has 1 value for a statistic"),
        (
            "model=mlp norm._target_=torch.nn.BatchNorm1d data=digits data.batch_size=1",
            "not train on a batch of 1 of the",
        ),
        (
            f"model=mlp norm._target_={__name__}.Held data=digits data.batch_size=1",
            "not train on a batch of 1 of the im",
        ),
        (f"model=mlp norm._target_={__name__}.Held {OURS} trainer.steps=3", "not train on a batch of 1 of the images"),
        (
            f"model=cnn norm._target_=torch.nn.InstanceNorm2d data._target_={__name__}.Small",
            "InstanceNorm2d refuses what",
        ),
        ("model=mlp norm=batchnorm norm.track_running_stats=false data=digits data.eval_batch_size=1", "val has a bat"),
    ],
    ids=[
        "timm's own",
        "torchvision's own",
        "ours in timm's",
        "the last of an epoch",
        "torch's in ours",
        "one's own in ours",
        "one's own, the last of an epoch",
        "one position",
        "an evaluation's",
    ],
)
def test_a_batch_of_one_is_refused_before_the_run(
    words: str, told: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in ("timm", "torchvision"):
        if f"model={library}" in words:
            pytest.importorskip(library)
    assert told in refused(["train", *words.split()], capsys)


def rehearse(words: str, data: Data, batches: int) -> None:
    """Try a model on data, as before a run of so many batches."""
    model, norms = build.make_model(read(words.split()).recipe, data.task, seed=0)
    build.rehearse(model, norms, data, CPU, batches=batches)


@pytest.mark.parametrize("words", [f"{OF_TIMM} norm=own", "model=mlp norm=batchnorm"])
def test_a_short_last_batch_is_tried_where_the_run_comes_to_it(words: str) -> None:
    if "timm" in words:
        pytest.importorskip("timm")
    data = Leftover(seed=0)
    rehearse(words, data, batches=2)
    rehearse(words, Leftover(seed=0, batch_size=5), batches=9)
    with pytest.raises(UsageError, match=r"batch of 1 of the images|has 1 value for a statistic"):
        rehearse(words, data, batches=3)


@pytest.mark.parametrize("norm", ["frn", "instancenorm", "switchable"])
def test_a_single_position_is_refused_by_what_takes_statistics_of_positions(norm: str) -> None:
    """FRN would leave the sign alone of it, and the others nothing."""
    make = build.factory(read([f"norm={norm}"]).recipe["norm"])
    module = make(4, channel_dim=1)
    with pytest.raises(UsageError, match="has 1 value for a statistic, and needs at least 2: use input with time or"):
        module(torch.randn(3, 4, 1, 1))
    assert module(torch.randn(3, 4, 1, 2)).isfinite().all()


def test_evaluation_batches_of_one_are_refused_where_a_norm_reads_the_batch() -> None:
    reads = "model=mlp norm=batchnorm norm.track_running_stats=false"
    rehearse(reads, Leftover(seed=0), batches=1)
    with pytest.raises(UsageError, match=r"^val has a batch of 1 of the images, .*another data.eval_batch_size"):
        rehearse(reads, Leftover(seed=0, eval_batch_size=2), batches=1)
    rehearse("model=mlp norm=batchnorm", Leftover(seed=0, eval_batch_size=2), batches=1)
    assert reads_batch(nn.BatchNorm2d(3, track_running_stats=False))
    assert not reads_batch(nn.BatchNorm2d(3))


@pytest.mark.parametrize("norm", ["norm=batchnorm", "norm._target_=torch.nn.BatchNorm1d"])
def test_a_text_of_one_token_alone_is_tried_where_the_run_comes_to_it(norm: str, tmp_path: Path) -> None:
    rows = [f"{f'word{number} ' * (1 + number % 9)},{number % 2}" for number in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]))
    data = own_texts(path=str(tmp_path / "t.csv"), context=16, batch_size=1, eval_batch_size=8, seed=0)
    lengths = [data.train_batch(step).inputs.shape[1] for step in range(data.steps_per_epoch)]
    first = lengths.index(1)
    assert first > 0
    words = f"model=nano model.depth=1 model.width=8 model.heads=2 model.context=16 {norm}"
    rehearse(words, data, batches=first)
    for batches in (first + 1, 10 * data.steps_per_epoch):
        with pytest.raises(UsageError, match=r"batch of 1 of the texts|has 1 value for a statistic"):
            rehearse(words, data, batches)
