"""Folders and tables of images as people have them, for the tests of one's own images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import csv, parquet

CLASSES = ("cat", "dog", "owl")


def pixels(seed: int, *shape: int) -> np.ndarray:
    """Random pixels, (height, width) or (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, shape or (6, 5, 3), dtype=np.uint8)


def write_image(path: Path, image: np.ndarray | Image.Image, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(path, **options)


def write_folder(root: Path, each: int = 20, classes: tuple[str, ...] = CLASSES) -> Path:
    """A folder with so many random PNGs of each class; the image of class c and number n is `pixels(1000 c + n)`."""
    for index, name in enumerate(classes):
        for number in range(each):
            write_image(root / name / f"{number:03}.png", pixels(1000 * index + number))
    return root


def rows_of(root: Path) -> dict[str, list[Any]]:
    """The columns `image` and `label` of such a folder."""
    paths = sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    return {"image": paths, "label": [path.split("/")[0] for path in paths]}


def write_table(path: Path, columns: dict[str, list[Any]] | pa.Table) -> Path:
    """A CSV or Parquet file, as its name says."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)
    return path
