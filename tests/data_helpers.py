"""Small data sets in the hub's layout, and folders and tables of images as people have them, for the tests."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import csv, parquet

from normbench.data import hub_images, hub_text
from normbench.data.images import Images
from normbench.data.text import Text

datasets.disable_progress_bars()

CLASSES = ("cat", "dog", "owl")
QUESTIONS = ["card", "cash", "fees"]
IMAGES: dict[str, Any] = {"batch_size": 6, "eval_batch_size": 4, "seed": 0}
TEXT: dict[str, Any] = {"context": 8, "batch_size": 3, "eval_batch_size": 4, "seed": 0}
LONG = "To be, or not to be, that is the question: whether ’tis nobler in the mind to suffer. " * 3
LABELS = {"train": [i % 3 for i in range(20)], "test": [2, 0, 1, 1, 0, 2, 2]}


def pixels(seed: int, *shape: int) -> np.ndarray:
    """Return random pixels, (height, width) or (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, shape or (6, 5, 3), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


# ---- the hub's layout


def write_parquet(folder: Path, columns: dict[str, list[Any]], features: dict[str, Any], split: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{split}-00000-of-00001.parquet"
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(str(file))
    return file


def write_questions(root: Path) -> None:
    """A copy of banking77 in the hub's layout, with questions that one word decides."""
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=QUESTIONS)}
    for split, count in (("train", 60), ("test", 12)):
        labels = [row % 3 for row in range(count)]
        first = 0 if split == "train" else 10  # so that no text is in both
        texts = [f"Where is my {QUESTIONS[label]} number {first + row % 7}?" for row, label in enumerate(labels)]
        write_parquet(root / "legacy-datasets/banking77", {"text": texts, "label": labels}, features, split)


def write_images(
    root: Path, images: dict[str, list[Any]], labels: dict[str, list[Any]], classes: Any = CLASSES
) -> Path:
    """Write a hub-layout copy `me/pets`."""
    label = datasets.ClassLabel(names=list(classes)) if classes else datasets.Value("int64")
    for split in images:
        encoded = [{"bytes": png(image), "path": None} for image in images[split]]
        columns = {"image": encoded, "label": labels[split]}
        write_parquet(root / "me/pets/data", columns, {"image": datasets.Image(), "label": label}, split)
    return root


def write_text(root: Path, **rows: list[Any]) -> Path:
    """Write a hub-layout copy `me/plays` with the column `text`."""
    for split, texts in rows.items():
        write_parquet(root / "me/plays", {"text": texts}, {"text": datasets.Value("string")}, split)
    return root


def random_images(*shape: int) -> dict[str, list[Any]]:
    return {split: list(pixels(seed, n, *shape)) for seed, (split, n) in enumerate((("train", 20), ("test", 7)))}


SMALL = random_images(6, 5)


def pets(root: Path, **options: Any) -> Images:
    return hub_images(name="pets", hub_id="me/pets", root=str(root), **IMAGES | options)


def plays(root: Path, **options: Any) -> Text:
    return hub_text(name="plays", hub_id="me/plays", root=str(root), **TEXT | options)


# ---- one's own


def write_image(path: Path, image: np.ndarray, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


def write_folder(root: Path, each: int = 20, classes: tuple[str, ...] = CLASSES) -> Path:
    """Write so many random PNGs of each class; the image of class c and number n is `pixels(1000 c + n)`."""
    for index, name in enumerate(classes):
        for number in range(each):
            write_image(root / name / f"{number:03}.png", pixels(1000 * index + number))
    return root


def rows_of(root: Path) -> dict[str, list[Any]]:
    """Return the columns `image` and `label` of such a folder."""
    paths = sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    return {"image": paths, "label": [path.split("/")[0] for path in paths]}


def write_table(path: Path, columns: dict[str, list[Any]] | pa.Table) -> Path:
    """Write a CSV or Parquet file, as its name says."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(table, path)
    return path
