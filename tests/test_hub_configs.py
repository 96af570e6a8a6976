"""Every configuration of a data set of the hub loads a copy that is made as the hub's is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hub_cards import CARDS, write_copy
from hydra.utils import instantiate
from omegaconf import OmegaConf

from normbench.catalog import config_directory
from normbench.types import Batch, Data

CONFIGS: dict[str, Any] = {
    path.stem: OmegaConf.load(path).data
    for path in sorted((config_directory() / "data").glob("*.yaml"))
    if "hub_id" in OmegaConf.load(path).data
}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))


def load(name: str, root: str, monkeypatch: pytest.MonkeyPatch) -> Data:
    """The data of a configuration, all of its own settings included."""
    monkeypatch.setenv("NORMBENCH_DATA", root)
    data: Data = instantiate(CONFIGS[name], seed=0)
    return data


def test_every_configuration_of_the_hub_has_a_card_here() -> None:
    """A new one needs its repository's columns and classes in hub_cards.py."""
    assert {config.hub_id for config in CONFIGS.values()} == set(CARDS)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_loads_what_the_hub_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS[name]
    write_copy(tmp_path, config.hub_id)
    card = CARDS[config.hub_id]
    assert config.get("config") in (None, card.config)
    data = load(name, str(tmp_path), monkeypatch)
    check_batch(data, data.train_batch(0), config.batch_size)
    for batch in data.eval_batches("val"):
        check_batch(data, batch)
    if "label_column" in config:
        assert data.classes == card.columns[config.label_column]  # type: ignore[attr-defined]
    if "image_column" in config:
        height, width, *channels = card.columns[config.image_column]
        assert data.task.image_shape == (*(channels or [1]), height, width)
        expected = {"crop": 4, "flip": True, "cutout": 0} if channels else {"crop": 0, "flip": False, "cutout": 0}
        assert data.describe()["augmentation"] == expected, "the usual recipe for photographs, none for digits"


def check_batch(data: Data, batch: Batch, size: int | None = None) -> None:
    """Inputs and targets are of the task, and there are so many."""
    assert len(batch.inputs) == len(batch.targets) and (size is None or len(batch.inputs) == size)
    assert batch.targets.min() >= 0 and batch.targets.max() < data.task.num_classes
    assert batch.inputs.dtype == (torch.float32 if data.task.image_shape else torch.int64)
    assert batch.inputs.isfinite().all()


@pytest.mark.data
@pytest.mark.parametrize("hub_id", CARDS)
def test_the_cards_are_those_of_the_copies(hub_id: str) -> None:
    """Where there is a real copy, it declares what the small one does."""
    copy = Path(os.environ["NORMBENCH_DATA"]) / hub_id
    if not copy.is_dir():
        pytest.skip(f"NORMBENCH_DATA has no {hub_id}")
    card = CARDS[hub_id]
    builder = datasets.load_dataset_builder(str(copy), card.config)
    assert builder.config.name == card.config
    assert builder.info.features == datasets.Features(card.features)
    assert set(builder.info.splits) == set(card.splits)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if "image_column" not in config])
def test_a_configuration_of_text_loads_the_real_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For images test_data.py does it."""
    root = os.environ["NORMBENCH_DATA"]
    if not (Path(root) / CONFIGS[name].hub_id).is_dir():
        pytest.skip(f"NORMBENCH_DATA has no {CONFIGS[name].hub_id}")
    data = load(name, root, monkeypatch)
    check_batch(data, data.train_batch(0), CONFIGS[name].batch_size)
    assert data.steps_per_epoch > 100
