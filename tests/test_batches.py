"""Batches follow from (seed, step), cover what they should, and leave out what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import (
    IMAGES,
    LABELS,
    LONG,
    TEXT,
    as_lists,
    pets,
    plays,
    random_images,
    write_images,
    write_text,
)

from normbench.data import Images, Text, digits, pydocs
from normbench.data.cache import Cached, Content
from normbench.data.holdout import held_out
from normbench.data.vocabulary import Characters
from normbench.errors import UsageError


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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
