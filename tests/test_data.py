"""Data: sources give what was stored, and each config builds."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from data_helpers import (
    CLASSES,
    IMAGES,
    LABELS,
    LONG,
    SMALL,
    TEXT,
    as_lists,
    pets,
    plays,
    random_images,
    write_images,
    write_text,
)
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf

from normbench.data import Digits, Hub, HubText, Images, Text, digits, pydocs
from normbench.data.vocabulary import Bytes, Characters
from normbench.types import Split

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf" / "data"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- sources --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)], ids=["grey", "colour"])
def test_hub_images_give_the_stored_pixels_and_labels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    stored = random_images(*shape)
    data = Images(pets(write_images(tmp_path, as_lists(stored), LABELS)), **IMAGES, scaling="none")
    parts: dict[Split, str] = {"train": "train", "val": "test"}
    for split, part in parts.items():
        batches = list(data.eval_batches(split))
        inputs = torch.cat([batch.inputs for batch in batches])
        expected = stored[part][..., None] if len(shape) == 2 else stored[part]
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs, torch.from_numpy(expected).permute(0, 3, 1, 2).float())
        assert torch.cat([batch.targets for batch in batches]).tolist() == LABELS[part]
        assert [len(batch.targets) for batch in batches][:-1] == [4] * (len(batches) - 1)
    assert data.task.image_shape == (1 if len(shape) == 2 else 3, 6, 5)
    assert data.classes == tuple(CLASSES) and data.task.num_classes == 3
    assert data.steps_per_epoch == 3


def test_hub_text_joins_validation_and_test(tmp_path: Path) -> None:
    root = write_text(tmp_path, train=["abcabc", "abcab"], validation=["cabb"], test=["bac", "dd"])
    data = Text(plays(root), **TEXT | {"context": 2})
    assert data.vocabulary == tuple("abcd")
    assert {split: data.decode(torch.from_numpy(tokens)) for split, tokens in data.splits.items()} == {
        "train": "abcabcabcab",
        "val": "cabbbacdd",
    }
    assert data.task.num_classes == 4 and data.task.context == 2 and data.task.causal


def test_hub_and_local_copy_have_one_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    copy = write_text(tmp_path, train=[LONG], validation=[LONG], test=["end"]) / "me/plays"
    local = Text(plays(tmp_path), **TEXT)
    files = {split: str(copy / f"{split}-00000-of-00001.parquet") for split in ("train", "validation", "test")}
    fetched = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "hf"))
    asked: list[Any] = []
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, *args, **options: asked.append(args))

    def load_dataset(*args: Any, **options: Any) -> Any:
        asked.append((args, options))
        return fetched

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    hub = Text(HubText("plays", Hub("me/plays", revision="v1")), **TEXT)
    assert asked == [("me/plays",), (("me/plays", None), {"revision": "v1"})]
    assert hub.fingerprint == local.fingerprint
    assert hub.source.key() != HubText("plays", Hub("me/plays", revision="v2")).key()


def test_pydocs_is_every_topic_and_its_last_tenth_validates() -> None:
    from pydoc_data.topics import topics

    data = pydocs(**TEXT)
    expected = "\n".join(text for _, text in sorted(topics.items())).encode()
    train, val = data.splits["train"], data.splits["val"]
    assert train.tobytes() + val.tobytes() == expected
    assert len(train) == len(expected) * 9 // 10 and len(expected) > 300_000
    assert data.task.num_classes == 256
    assert data.decode(torch.from_numpy(train[:500])) == expected[:500].decode()


def test_digits_are_sklearns_in_a_fixed_order() -> None:
    from sklearn.datasets import load_digits

    original = load_digits()
    data = digits(**IMAGES, scaling="none")
    batches = [*data.eval_batches("train"), *data.eval_batches("val")]
    pixels, labels = (
        torch.cat([b.inputs for b in batches])[:, 0].numpy(),
        torch.cat([b.targets for b in batches]).numpy(),
    )
    order = np.random.RandomState(0).permutation(1797)
    assert np.array_equal(labels, original.target[order])
    assert np.abs(pixels - original.images[order] * 255 / 16).max() <= 0.5
    assert (len(data.splits["train"].labels), len(data.splits["val"].labels)) == (1500, 297)
    assert set(data.splits["val"].labels.tolist()) == set(range(10))


@pytest.mark.parametrize("text", ["banana ’tis", "".join(map(chr, range(32, 400)))], ids=["few", "more than 256"])
def test_characters_decode_to_what_they_encode(text: str) -> None:
    vocabulary = Characters.learn([text])
    tokens = vocabulary.encode(text)
    assert tokens.tolist() == [sorted(set(text)).index(character) for character in text]
    assert tokens.dtype == (np.uint8 if len(set(text)) <= 256 else np.uint16)
    assert vocabulary.decode(tokens) == text
    assert Bytes().decode(Bytes().encode(text)) == text


def test_symbols_of_bytes_are_printable() -> None:
    assert len(set(Bytes.symbols)) == 256 and all(symbol.isprintable() for symbol in Bytes.symbols)


# --- configuration --------------------------------------------------------------------------------


def load_config(name: str, **overrides: Any) -> DictConfig:
    config = OmegaConf.load(CONF / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    return OmegaConf.merge(config, {"data": overrides})  # type: ignore[return-value]


@pytest.mark.parametrize("file", sorted(CONF.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_config_fits_its_target(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NORMBENCH_DATA", raising=False)
    first, second = file.read_text().splitlines()[:2]
    assert first == "# @package _global_" and second.startswith("# ") and len(second) <= 110
    config = load_config(file.stem)
    data: Any = OmegaConf.to_container(config.data, resolve=True)
    assert data["name"] == file.stem and data.get("root") is None and config.trainer.epochs >= 1
    factory = get_method(data.pop("_target_"))
    built = get_type_hints(factory)["return"]
    accepted = {*inspect.signature(factory).parameters, *inspect.signature(built).parameters} - {
        "seed",
        "source",
        "options",
    }
    assert set(data) <= accepted
    assert {"batch_size", "eval_batch_size", "holdout"} <= set(data)


def test_flat_overrides_reach_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, SMALL, LABELS)
    monkeypatch.setenv("NORMBENCH_DATA", str(tmp_path))
    config = load_config("mnist", hub_id="me/pets", batch_size=5, scaling="none", holdout=4)
    data = instantiate(config.data, seed=3)
    assert (data.batch_size, data.scaling, len(data.splits["train"].labels), data.seed) == (5, "none", 16, 3)
    monkeypatch.chdir(tmp_path.parent)
    config = load_config("mnist", hub_id="me/pets", root=tmp_path.name, batch_size=5)
    assert instantiate(config.data, seed=3).fingerprint == data.fingerprint


def test_context_follows_the_model() -> None:
    assert instantiate(load_config("pydocs").data, seed=0).context == 64
    config = OmegaConf.merge(load_config("pydocs"), {"model": {"context": 17}})
    assert instantiate(config.data, seed=0).task.context == 17


def test_embedded_configs_need_nothing() -> None:
    for name, size in (("pydocs", 12), ("digits", 64)):
        data = instantiate(load_config(name).data, seed=0)
        assert len(data.train_batch(0).inputs) == size
    assert isinstance(data, Images) and isinstance(data.source, Digits)


# --- the real data sets ---------------------------------------------------------------------------


def real(name: str, **overrides: Any) -> Any:
    """The data set of that config from the copies in NORMBENCH_DATA."""
    root = os.environ.get("NORMBENCH_DATA")
    if not root:
        pytest.skip("NORMBENCH_DATA is not set")
    config = load_config(name, **overrides)
    if not (Path(root) / config.data.hub_id).is_dir():
        pytest.skip(f"NORMBENCH_DATA has no {config.data.hub_id}")
    return instantiate(config.data, seed=0)


@pytest.mark.data
def test_tinyshakespeare_is_nanogpts() -> None:
    data = real("tinyshakespeare")
    assert [len(data.splits[split]) for split in ("train", "val")] == [1_003_854, 111_540]
    assert len(data.vocabulary) == 65 and data.vocabulary[:3] == ("\n", " ", "!")
    assert data.decode(torch.from_numpy(data.splits["train"][:14])) == "First Citizen:"
    assert sum(batch.targets.numel() for batch in data.eval_batches("val")) == 111_539


MNIST_COUNTS = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
REAL: dict[str, tuple[tuple[int, ...], tuple[list[int], list[int]], list[float], list[float]]] = {
    "mnist": ((1, 28, 28), MNIST_COUNTS, [0.1307], [0.3081]),
    "fashion_mnist": ((1, 28, 28), ([6000] * 10, [1000] * 10), [0.2860], [0.3530]),
    "cifar10_jpeg": ((3, 32, 32), ([5000] * 10, [1000] * 10), [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", list(REAL))
def test_real_images(name: str) -> None:
    shape, counts, mean, deviation = REAL[name]
    data = real(name)
    assert data.task.image_shape == shape
    assert [torch.bincount(data.splits[split].labels).tolist() for split in ("train", "val")] == list(counts)
    tolerance = 3e-3 if name == "cifar10_jpeg" else 1e-4  # published are those of the lossless images
    assert np.allclose(data.describe()["shift"], mean, atol=tolerance)
    assert np.allclose(data.describe()["divisor"], deviation, atol=tolerance)


@pytest.mark.data
def test_exact_cifar10_subset_matches_what_datasets_decodes() -> None:
    import datasets

    data = real("cifar10", hub_id="uoft-cs/cifar10-exact-subset", scaling="none")
    assert data.task.image_shape == (3, 32, 32) and data.classes[0] == "airplane"
    copy = Path(os.environ["NORMBENCH_DATA"]) / "uoft-cs/cifar10-exact-subset"
    reference = datasets.load_dataset(str(copy), split="test", streaming=True).take(50)
    batch = next(data.eval_batches("val"))
    for row, example in enumerate(reference):
        assert np.array_equal(batch.inputs[row].permute(1, 2, 0).numpy(), np.asarray(example["img"], dtype=np.float32))
        assert batch.targets[row] == example["label"]
