"""Small data sets in the hub's layout, for the tests of the data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

from normbench.data import Hub, HubImages, HubText

datasets.disable_progress_bars()

CLASSES = ["cat", "dog", "owl"]
IMAGES: dict[str, Any] = {"batch_size": 6, "eval_batch_size": 4, "seed": 0}
TEXT: dict[str, Any] = {"context": 8, "batch_size": 3, "eval_batch_size": 4, "seed": 0}
LONG = "To be, or not to be, that is the question: whether ’tis nobler in the mind to suffer. " * 3


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_parquet(folder: Path, columns: dict[str, list[Any]], features: dict[str, Any], split: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    table.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))


def write_images(
    root: Path, images: dict[str, list[Any]], labels: dict[str, list[Any]], classes: Any = CLASSES
) -> Path:
    """A hub-layout copy `me/pets`; an image is an array, or the bytes that stand for one."""
    label = datasets.ClassLabel(names=classes) if classes else datasets.Value("int64")
    for split in images:
        encoded = [{"bytes": png(x) if isinstance(x, np.ndarray) else x, "path": None} for x in images[split]]
        columns = {"image": encoded, "label": labels[split]}
        write_parquet(root / "me/pets/data", columns, {"image": datasets.Image(), "label": label}, split)
    return root


def write_text(root: Path, **rows: list[Any]) -> Path:
    """A hub-layout copy `me/plays` with the column `text`."""
    for split, texts in rows.items():
        write_parquet(root / "me/plays", {"text": texts}, {"text": datasets.Value("string")}, split)
    return root


def random_images(*shape: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {split: generator.integers(0, 256, (n, *shape), dtype=np.uint8) for split, n in (("train", 20), ("test", 7))}


LABELS = {"train": [i % 3 for i in range(20)], "test": [2, 0, 1, 1, 0, 2, 2]}


def pets(root: Path, **options: Any) -> HubImages:
    return HubImages("pets", Hub("me/pets", root=str(root)), **options)


def plays(root: Path, **options: Any) -> HubText:
    return HubText("plays", Hub("me/plays", root=str(root)), **options)


def as_lists(images: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    return {split: list(array) for split, array in images.items()}


SMALL = as_lists(random_images(6, 5))
