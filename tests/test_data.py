"""Data: sources give what was stored, batches follow from (seed, step), each config builds."""

from __future__ import annotations

import inspect
import json
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
from normbench.data.cache import Cached, Content
from normbench.data.holdout import held_out
from normbench.data.vocabulary import Bytes, Characters
from normbench.errors import UsageError
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


# --- batches --------------------------------------------------------------------------------------


def test_text_windows_follow_from_seed_and_step_alone() -> None:
    first, second, other = pydocs(**TEXT), pydocs(**TEXT), pydocs(**TEXT | {"seed": 1})
    backwards = {step: second.train_batch(step) for step in (7, 3, 0)}
    for step, batch in backwards.items():
        assert torch.equal(first.train_batch(step).inputs, batch.inputs)
    assert not torch.equal(first.train_batch(0).inputs, first.train_batch(1).inputs)
    assert not torch.equal(first.train_batch(0).inputs, other.train_batch(0).inputs)


class Counting(Cached):
    """A text whose tokens are their own places."""

    name = kind = "counting"

    def key(self) -> str:
        return self.name

    def load(self) -> Content:
        return Content({"train": np.arange(1000), "val": np.arange(100)}, {})

    def vocabulary(self, facts: dict[str, Any]) -> Characters:
        return Characters("".join(map(chr, range(1000))))

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}


def test_an_epoch_of_text_takes_each_token_once_but_at_the_ends() -> None:
    data = Text(Counting(), **TEXT)
    assert data.steps_per_epoch == 123 // 3, "windows of 8 in 1,000 tokens, less one for the cut"
    cuts = []
    for epoch in range(4):
        starts = [window[0] for window in windows_of_an_epoch(data, epoch)]
        assert len({start % 8 for start in starts}) == 1 and len(set(starts)) == len(starts) == 123
        assert starts != sorted(starts)
        cuts.append(min(starts))
    assert len(set(cuts)) > 1 and max(cuts) < 16, "each epoch cuts elsewhere"


def windows_of_an_epoch(data: Text, epoch: int) -> list[list[int]]:
    """The training windows of an epoch, each with its last target."""
    found = []
    for step in range(epoch * data.steps_per_epoch, (epoch + 1) * data.steps_per_epoch):
        inputs, targets, _ = data.train_batch(step)
        assert inputs.shape == targets.shape == (3, 8) and inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        found += torch.cat((inputs, targets[:, -1:]), dim=1).tolist()
    return found


def test_shortest_text_has_one_window(tmp_path: Path) -> None:
    root = write_text(tmp_path, train=["abcdefghi"], validation=["abcdefgh"], test=["i"])
    data = Text(plays(root), **TEXT | {"batch_size": 1})
    for step in range(5):
        inputs, targets, _ = data.train_batch(step)
        assert inputs.tolist() == [list(range(8))] and targets.tolist() == [list(range(1, 9))]
    assert data.steps_per_epoch == 1
    with pytest.raises(UsageError, match=r"data.batch_size=3 is more than the 1 training windows .* at most 1"):
        Text(plays(root), **TEXT)


@pytest.mark.parametrize("length", [9, 16, 17, 18, 33, 40, 41, 100])
def test_evaluation_takes_every_target_once(tmp_path: Path, length: int) -> None:
    text = "".join(chr(97 + i % 26) for i in range(length))
    data = Text(plays(write_text(tmp_path, train=[LONG], validation=[text[:-1]], test=[text[-1:]])), **TEXT)
    batches = list(data.eval_batches("val"))
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    inputs = torch.cat([batch.inputs.flatten() for batch in batches])
    assert data.decode(targets) == text[1:] and data.decode(inputs) == text[:-1]
    assert all(len(batch.inputs) <= 4 for batch in batches)
    remainder = (length - 1) % 8
    assert tuple(batches[-1].inputs.shape) == (1, remainder) or (not remainder and batches[-1].inputs.shape[1] == 8)


def test_limited_text_evaluation_spreads_over_the_split() -> None:
    data = pydocs(**TEXT)
    batches = list(data.eval_batches("val", limit=5))
    assert [tuple(batch.inputs.shape) for batch in batches] == [(3, 8)] * 5
    val = data.splits["val"]
    starts = [round(i * (len(val) - 9) / 14 - 0.5 + 1e-9) for i in range(15)]  # floor
    expected = np.stack([val[start : start + 8] for start in starts])
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), torch.from_numpy(expected.astype(np.int64)))
    assert torch.equal(batches[-1].targets[-1], torch.from_numpy(val[-8:].astype(np.int64)))
    again = list(data.eval_batches("val", limit=5))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(batches, again, strict=True))


def numbered(data: Images, steps: range) -> list[list[int]]:
    """Which training images the batches hold, found by their pixels."""
    rows = data.splits["train"].images.flatten(1).float()
    found = []
    for step in steps:
        pixels = data.train_batch(step).inputs.flatten(1)
        found.append([int((rows == row).all(1).nonzero()) for row in pixels])
    return found


def test_image_epochs_are_permutations_that_follow_from_seed_and_epoch(tmp_path: Path) -> None:
    source = pets(write_images(tmp_path, as_lists(random_images(6, 5)), LABELS))
    first, second = (Images(source, **IMAGES, scaling="none") for _ in range(2))
    epochs = [numbered(first, range(3 * epoch, 3 * epoch + 3)) for epoch in range(4)]
    for epoch in epochs:
        flat = [image for batch in epoch for image in batch]
        assert len(flat) == len(set(flat)) == 18  # 20 images, the last incomplete batch dropped
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 4
    assert numbered(second, range(7, 8)) == [epochs[2][1]] and numbered(second, range(1)) == [epochs[0][0]]
    assert numbered(Images(source, **IMAGES | {"seed": 1}, scaling="none"), range(1)) != [epochs[0][0]]
    batch = first.train_batch(4)
    assert batch.targets.tolist() == [LABELS["train"][i] for i in epochs[1][1]]


def test_limited_image_evaluation_spreads_over_the_split() -> None:
    data = digits(**IMAGES | {"eval_batch_size": 10}, scaling="none")
    batches = list(data.eval_batches("val", limit=3))
    assert [len(batch.targets) for batch in batches] == [10, 10, 10]
    expected = data.splits["val"].images[[297 * i // 30 for i in range(30)]].float()
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), expected)
    assert sum(len(batch.targets) for batch in data.eval_batches("val", limit=1000)) == 297


def test_no_evaluation_batch_is_a_lone_image() -> None:
    """BatchNorm without running statistics could not evaluate it."""
    data = digits(**IMAGES | {"eval_batch_size": 296})
    assert [len(batch.targets) for batch in data.eval_batches("val")] == [149, 148]


@pytest.mark.parametrize("holdout", [0, 5, 0.4])
def test_standard_scaling_is_that_of_the_images_trained_on(tmp_path: Path, holdout: float) -> None:
    stored = random_images(6, 5, 3)
    source = pets(write_images(tmp_path, as_lists(stored), LABELS))
    used = stored["train"][: 20 - (int(holdout) if holdout >= 1 else round(20 * holdout))].astype(np.float64)
    mean, std = used.mean(axis=(0, 1, 2)), used.std(axis=(0, 1, 2))
    data = Images(source, **IMAGES, holdout=holdout)
    scaled = torch.cat([batch.inputs for batch in data.eval_batches("train")])
    expected = ((used - mean) / std).transpose(0, 3, 1, 2)
    torch.testing.assert_close(scaled.double(), torch.from_numpy(expected.copy()), rtol=1e-5, atol=1e-6)
    unit = torch.cat([batch.inputs for batch in Images(source, **IMAGES, scaling="unit").eval_batches("val")])
    assert torch.equal(unit, torch.from_numpy(stored["test"]).permute(0, 3, 1, 2).float() / 255)
    assert np.allclose(np.array(data.describe()["shift"]) * 255, mean, atol=1e-3)


def test_a_channel_without_variation_stays_finite(tmp_path: Path) -> None:
    black = {"train": [np.zeros((4, 4), np.uint8)] * 20, "test": [np.zeros((4, 4), np.uint8)] * 7}
    batch = Images(pets(write_images(tmp_path, black, LABELS)), **IMAGES).train_batch(0)
    assert torch.equal(batch.inputs, torch.zeros(6, 1, 4, 4))


@pytest.mark.parametrize(
    ("holdout", "count"), [(0, 0), (0.1, 6000), (0.29, 17400), (5000, 5000), (5000.0, 5000), (1, 1)]
)
def test_held_out_share_or_number(holdout: float, count: int) -> None:
    assert held_out(60_000, holdout, "images") == count


@pytest.mark.parametrize("holdout", [-1, -0.1, 60_000, 1e9, 2.5, float("nan"), float("inf"), 1e-9])
def test_held_out_bounds(holdout: float) -> None:
    with pytest.raises(UsageError, match=r"data.holdout=.*: "):
        held_out(60_000, holdout, "images")


def test_holdout_takes_the_last_of_the_training_data() -> None:
    whole, part = pydocs(**TEXT), pydocs(**TEXT, holdout=0.1)
    joined = np.concatenate([part.splits["train"], part.splits["val"]])
    assert np.array_equal(joined, whole.splits["train"]) and len(part.splits["val"]) == round(0.1 * len(joined))
    images, rest = digits(**IMAGES), digits(**IMAGES, holdout=100)
    assert torch.equal(rest.splits["val"].images, images.splits["train"].images[1400:])
    assert torch.equal(rest.splits["train"].labels, images.splits["train"].labels[:1400])
    assert rest.fingerprint == images.fingerprint


def test_descriptions_are_json_and_say_what_was_used() -> None:
    text, images = pydocs(**TEXT, holdout=100).describe(), digits(**IMAGES, holdout=100).describe()
    assert json.loads(json.dumps(text)) == text and json.loads(json.dumps(images)) == images
    assert (text["name"], text["val_tokens"], text["vocabulary_size"], text["level"]) == ("pydocs", 100, 256, "byte")
    assert (images["train_images"], images["classes"], images["scaling"]) == (1400, [*"0123456789"], "standard")
    assert len(text["fingerprint"]) == len(images["fingerprint"]) == 64


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
