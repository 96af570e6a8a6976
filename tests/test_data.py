"""Data: sources give what was stored, and each configuration loads a copy that is made as the hub's is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import data_helpers
import datasets
import numpy as np
import pytest
import torch
import yaml
from data_helpers import IMAGES, LABELS, LONG, TEXT, pets, plays, random_images, write_images, write_text
from hydra.utils import instantiate
from omegaconf import OmegaConf
from support import WHOLE

from normbench.contract.data import check_batch
from normbench.data import digits, hub_text, pydocs
from normbench.types import ImageClassification

CONF = Path(__file__).parents[1] / "conf" / "data"


# ---- sources


@pytest.mark.parametrize(("shape", "channels"), [((6, 5), 1), ((6, 5, 3), 3)], ids=["grey", "colour"])
def test_hub_images_give_the_stored_pixels_and_labels(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    stored = random_images(*shape)
    data = pets(write_images(tmp_path, stored, LABELS), scaling="none")
    for split, part in (("train", "train"), ("val", "test")):
        batches = list(data.eval_batches(split))  # type: ignore[arg-type]  # str, not Literal
        inputs = torch.cat([batch.inputs for batch in batches])
        expected = torch.from_numpy(np.stack(stored[part])).reshape(-1, 6, 5, channels)
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs, expected.permute(0, 3, 1, 2).float())
        assert torch.cat([batch.targets for batch in batches]).tolist() == LABELS[part]
        assert all(len(batch.targets) == 4 for batch in batches[:-1])
    assert data.task == ImageClassification(num_classes=3, image_shape=(channels, 6, 5))
    assert data.classes == ("cat", "dog", "owl")
    assert data.steps_per_epoch == 3


def test_hub_and_local_copy_have_one_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    copy = write_text(tmp_path, train=[LONG], validation=[LONG], test=["end"]) / "me/plays"
    files = {split: str(copy / f"{split}-00000-of-00001.parquet") for split in ("train", "validation", "test")}
    fetched = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "hf"))
    load_dataset = Mock(return_value=fetched)
    with monkeypatch.context() as patch:
        patch.setattr("normbench.data.hub.explain_silence", str)
        patch.setattr(datasets, "load_dataset", load_dataset)
        hub = hub_text(name="plays", hub_id="me/plays", revision="v1", **TEXT)
        other = hub_text(name="plays", hub_id="me/plays", revision="v2", **TEXT)
    assert load_dataset.call_args_list[0] == call("me/plays", name=None, revision="v1")
    assert hub.fingerprint == other.fingerprint == plays(tmp_path).fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == 3, "another revision may hold another text"


def test_pydocs_is_every_topic_and_a_tenth_that_repeats_no_other_validates() -> None:
    from pydoc_data.topics import topics

    data = pydocs(**TEXT)
    pages = [text.encode() for _, text in sorted(topics.items())]
    train = data.examples["train"].tobytes()
    val = data.examples["val"].tobytes()
    in_train = [page for page in pages if page in train]
    in_val = [page for page in pages if page in val]
    assert sorted(in_train + in_val) == sorted(pages)
    assert len(train + val) + 1 == len(b"\n".join(pages))
    assert 0.08 < len(val) / len(train + val) < 0.12
    assert data.task.num_classes == 256
    assert train.startswith(pages[0])
    assert data.decode(data.examples["train"][:500]) == pages[0][:500].decode()
    seen = {train[start : start + 200] for start in range(len(train) - 199)}
    assert not any(val[start : start + 200] in seen for start in range(len(val) - 199))


def test_digits_are_sklearns_in_a_fixed_order() -> None:
    from sklearn.datasets import load_digits

    original = load_digits()
    order = np.random.RandomState(0).permutation(1797)
    data = digits(**IMAGES, scaling="none")
    batches = [*data.eval_batches("train"), *data.eval_batches("val")]
    found = torch.cat([batch.inputs for batch in batches])[:, 0].numpy()
    assert np.array_equal(torch.cat([batch.targets for batch in batches]), original.target[order])
    assert np.abs(found - original.images[order] * 255 / 16).max() <= 0.5
    assert (len(data.labels["train"]), len(data.labels["val"])) == (1500, 297)


# ---- configurations


def load_config(name: str, **overrides: Any) -> Any:
    return OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), {"data": overrides}).data


# What repositories hold, as their cards declare it: the configuration, the folder of its files, the splits, and the
# columns: text, images, numbers or how many classes there are. What is behind a `-` has labels of -1.
THREE = "train validation test"
CARDS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "wikitext2": ("wikitext-2-v1", "wikitext-2-v1", THREE, {"text": "text"}),
    "wikitext103": ("wikitext-103-v1", "wikitext-103-v1", THREE, {"text": "text"}),
    "text8": ("default", "data", THREE, {"text": "text"}),
    "banking77": ("default", "data", "train test", {"text": "text", "label": 77}),
    "sst2": ("default", "data", "train validation -test", {"idx": "number", "sentence": "text", "label": 2}),
    "imdb": ("plain_text", "plain_text", "train test -unsupervised", {"text": "text", "label": 2}),
    "ag_news": ("default", "data", "train test", {"text": "text", "label": 4}),
    "fashion_mnist": ("fashion_mnist", "fashion_mnist", "train test", {"image": "image", "label": 10}),
    "cifar100": ("cifar100", "cifar100", "train test", {"img": "image", "fine_label": 100, "coarse_label": 20}),
}
FEATURES = {"text": datasets.Value("string"), "image": datasets.Image(), "number": datasets.Value("int32")}
ROWS = {
    "text": [LONG] * 200,
    "image": [{"bytes": data_helpers.png(data_helpers.pixels(0, 28, 28)), "path": None}] * 200,
    "number": [*range(200)],
}


@pytest.mark.parametrize("name", CARDS)
def test_a_configuration_loads_what_the_hub_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration, folder, splits, columns = CARDS[name]
    config = load_config(name, batch_size=5, holdout=0.5)
    files = []
    for split in splits.split():
        name_of_split = split.removeprefix("-")
        features = {}
        rows = {}
        for column, kind in columns.items():
            if kind in ROWS:
                features[column] = FEATURES[kind]
                rows[column] = ROWS[kind]
            else:
                features[column] = datasets.ClassLabel(num_classes=kind)
                rows[column] = [row % kind for row in range(200)] if split == name_of_split else [-1] * 200
        data_helpers.write_parquet(tmp_path / config.hub_id / folder, rows, features, name_of_split)
        files.append({"split": name_of_split, "path": f"{folder}/{name_of_split}-*"})
    head = {"configs": [{"config_name": configuration, "data_files": files, "default": True}]}
    (tmp_path / config.hub_id / "README.md").write_text(f"---\n{yaml.safe_dump(head)}---\n")
    monkeypatch.setenv("NORMBENCH_DATA", str(tmp_path))
    data = instantiate(config, seed=0)
    for batch in (data.train_batch(0), *data.eval_batches("val", 2)):
        check_batch(name, batch, data)
    if "label_column" in config:
        assert len(data.classes) == columns[config.label_column]
        assert len(data.labels["val"]) == 100


def test_enwik8_is_the_hubs_conversion_cut_at_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion has no card, and beside the whole text as one row its lines, which would come twice."""
    text = (LONG * 9 + "é" * 300)[-1999:]
    for folder, rows in (("enwik8", text.splitlines()), ("enwik8-raw", [text])):
        file = data_helpers.write_parquet(
            tmp_path / "LTCB/enwik8" / folder / "train", {"text": rows}, {"text": FEATURES["text"]}, "0000"
        )
        file.rename(file.with_name("0000.parquet"))
    monkeypatch.setenv("NORMBENCH_DATA", str(tmp_path))
    data = instantiate(load_config("enwik8", context=8, batch_size=2), seed=0)
    whole = text.encode()
    size = len(whole)
    found = {split: tokens.tobytes() for split, tokens in data.examples.items()}
    assert data.has_test
    assert [*found] == ["train", "val", "test"]
    assert found["train"] == whole[: size * 18 // 20].decode(errors="ignore").encode()
    assert whole.endswith(found["test"])
    assert 0 <= size - sum(map(len, found.values())) <= 6
    assert found["val"] in whole
    assert 0 <= size // 20 - len(found["val"]) <= 3


# ---- the real data sets


def real(name: str) -> Any:
    """Return the data set of that config from the copies in NORMBENCH_DATA."""
    config = load_config(name)
    if not (Path(os.environ["NORMBENCH_DATA"]) / config.hub_id).is_dir():
        pytest.skip(f"NORMBENCH_DATA has no {config.hub_id}")
    return instantiate(config, seed=0)


CIFAR10 = ("cifar10_jpeg", (3, 32, 32), 50_000, [0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616])
WIKITEXT2 = {"train": 2_088_628, "val": 217_646, "test": 245_569}


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "tokens", "vocabulary_size"),
    [
        ("tinyshakespeare", {"train": 1_003_854, "val": 111_540}, 65),
        pytest.param("wikitext2", WIKITEXT2, 33_278, marks=pytest.mark.slow),
    ],
)
def test_real_text(name: str, tokens: dict[str, int], vocabulary_size: int) -> None:
    """As nanoGPT has it; by words as pytorch/examples' corpus, and Merity et al. 2017, table 1."""
    data = real(name)
    assert {split: len(each) for split, each in data.examples.items()} == tokens
    assert data.task.vocabulary_size == vocabulary_size


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "texts", "longest", "cut"),
    [("sst2", [67_349, 872], 57, 0), *([("imdb", [25_000, 25_000], 2_883, 48_584)] if WHOLE else [])],
)
def test_real_labelled_texts(name: str, texts: list[int], longest: int, cut: int) -> None:
    data = real(name)
    assert [len(labels) for labels in data.labels.values()] == texts and len(data.classes) == 2
    assert max(map(len, data.examples["train"])) == longest and data.describe()["cut"] == cut
    assert abs(data.constant["accuracy/val"] - 0.5) < 0.01


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "train", "mean", "deviation"),
    [
        ("mnist", (1, 28, 28), 60_000, [0.1307], [0.3081]),
        *([("fashion_mnist", (1, 28, 28), 60_000, [0.2860], [0.3530])] if WHOLE else []),
        *([CIFAR10] if WHOLE else []),
    ],
)
def test_real_images(name: str, shape: Any, train: int, mean: list[float], deviation: list[float]) -> None:
    data = real(name)
    assert data.task.image_shape == shape and [len(labels) for labels in data.labels.values()] == [train, 10_000]
    tolerance = 3e-3 if name == "cifar10_jpeg" else 1e-4  # published are those of the lossless images
    assert np.allclose(data.describe()["shift"], mean, atol=tolerance)
    assert np.allclose(data.describe()["divisor"], deviation, atol=tolerance)
