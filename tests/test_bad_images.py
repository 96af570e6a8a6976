"""Mistakes in one's own images: one sentence, exit status 2, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from data_helpers import png, write_parquet
from own_data import pixels, rows_of, write_folder, write_image, write_table
from pyarrow import parquet
from support import refused

pytest_plugins = ["refusals"]
pytestmark = pytest.mark.usefixtures("here")

TRAIN = ["train", "model=cnn", "data=images", "data.batch_size=2"]


def complaint(path: object, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    return refused([*TRAIN, f"data.path={path}", *more], capsys)


# ---- what data.path names


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("null", "data.path is not set: give a folder with a sub-folder for each class, or a CSV or Parquet file"),
        ("nowhere", "data.path=nowhere does not exist: give a folder"),
        ("nowhere.csv", "data.path=nowhere.csv does not exist: give a folder"),
        ("x" * 300, "cannot be read (File name too long): give a folder"),
        ("~nobody_of_this_name/x", "cannot be read (Could not determine home directory): give a folder"),
    ],
)
def test_a_path_that_leads_nowhere(path: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in complaint(f"'{path}'" if path.startswith("~") else path, capsys)


def test_a_file_that_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images.zip").write_bytes(b"PK")
    assert "images.zip is neither a folder nor a table: give" in complaint(tmp_path / "images.zip", capsys)


# ---- folders


def nothing(folder: Path) -> None:
    folder.mkdir()


def no_classes(folder: Path) -> None:
    write_image(folder / "1.png", pixels(1))


def one_class(folder: Path) -> None:
    write_folder(folder, 4, ("cat",))


def no_images(folder: Path) -> None:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").touch()


def an_empty_class(folder: Path) -> None:
    write_folder(folder, 4)
    (folder / "fox").mkdir()


def one_image(folder: Path) -> None:
    write_folder(folder, 4)
    write_image(folder / "fox" / "1.png", pixels(9))


def a_class_to_judge_alone(folder: Path) -> None:
    write_folder(folder / "train", 4, ("cat", "dog"))
    write_folder(folder / "val", 4, ("cat", "fox"))


def unreadable(folder: Path) -> None:
    write_folder(folder, 5)
    (folder / "cat" / "001.png").write_bytes(b"no image")
    for number in (2, 3, 4):
        (folder / "dog" / f"00{number}.png").write_bytes(png(pixels(number))[:60])


def two_percent_unreadable(folder: Path) -> None:
    write_folder(folder, 100, ("cat", "dog"))
    for number in range(3):
        (folder / "cat" / f"{number:03}.png").write_bytes(b"")


def sixteen_bits(folder: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(3):
            write_image(folder / name / f"{number}.png", pixels(number, 6, 5).astype(np.uint16))


def many_sizes(folder: Path) -> None:
    write_folder(folder, 5)
    write_image(folder / "dog" / "odd.png", pixels(1, 8, 9, 3))


FOLDERS: dict[Callable[[Path], None], str] = {
    nothing: "has no sub-folders: give a folder with a sub-folder for each class",
    no_classes: "has no sub-folders: give a folder with a sub-folder for each class",
    one_class: "has one class only (cat): give images of two or more",
    no_images: "has no images in any of its 2 classes: put some there, with names that end in .jpg, .png",
    an_empty_class: "has no images in the class fox: put some there",
    one_image: "the class fox of data.path=pets has one image: a class needs one to train and one to validate",
    a_class_to_judge_alone: "the class fox of data.path=pets has no image to train on: add some, or remove it",
    unreadable: "4 of the 15 images of data.path=pets cannot be read (",
    two_percent_unreadable: "3 of the 200 images of data.path=pets cannot be read (",
    sixteen_bits: "Pillow's mode I;16, where 8 bits a channel are needed",
    many_sizes: "set data.size, to which all are brought, such as data.size=64",
}


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_folders_that_cannot_be_trained_on(
    make: Callable[[Path], None], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(here / "pets")
    assert FOLDERS[make] in complaint("pets", capsys)


def test_a_class_whose_name_is_not_utf_8(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = os.fsencode(write_folder(here / "pets", 4)) + b"/caf\xe9"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes no such name")
    assert r"the class 'caf\udce9' of data.path=pets has a name that is not UTF-8: rename it" in complaint(
        "pets", capsys
    )


def test_unreadable_images_are_counted_and_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unreadable(here / "pets")
    sentence = complaint("pets", capsys)
    assert sentence.count(".png") == 3 and ", ..." in sentence
    assert "mend or remove them, since no more than 1% are left out" in sentence
    assert complaint("pets", capsys) == sentence, "in the same words the next time"


def test_a_size_out_of_bounds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("0", "-4", "1.5", "big"):
        assert f"data.size={size} is not allowed: use an integer from 1" in complaint(
            "pets", capsys, f"data.size={size}"
        )


def test_too_few_images_for_a_batch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(here / "pets", 4)
    sentence = complaint("pets", capsys, "data.batch_size=64")
    assert "data.batch_size=64 is more than the 9 training images of images: use at most 9" in sentence


# ---- tables


def table(here: Path, ending: str = "csv", **changes: Any) -> Path:
    """A table of a small folder with some columns changed; a column of None is left out."""
    folder = here / "pets" if (here / "pets").exists() else write_folder(here / "pets", 4)
    columns = {name: column for name, column in (rows_of(folder) | changes).items() if column is not None}
    return write_table(folder / f"table.{ending}", columns)


LABELS = ["cat"] * 4 + ["dog"] * 4 + ["owl"] * 4


PARTS = "data.split_column=part"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("changes", "more", "expected"),
    [
        ({"image": None}, "", "TABLE has no column image (columns: label): name the right ones with data.image_column"),
        ({"label": None}, "", "TABLE has no column label (columns: image): name the right ones"),
        ({}, "data.label_column=kind", "TABLE has no column kind (columns: image, label): name the right ones"),
        ({}, PARTS, "TABLE has no column part (columns: image, label): name the right ones"),
        (
            {"label": [0, 1, 2, -1] * 3},
            "",
            "row 3 of TABLE has the label -1: a label is a whole number from 0 or a name",
        ),
        ({"label": [0.5, 1, 2, 3] * 3}, "", "row 0 of TABLE has the label 0.5: a label is a whole number"),
        ({"label": ["a", "b", None, "a"] * 3}, "", "row 2 of TABLE has no label in the column label: fill it"),
        ({"label": [0.0, 1, None, 1] * 3}, "", "row 2 of TABLE has no label in the column label: fill it"),
        ({"label": [0, 1, None, 1] * 3}, "", "row 2 of TABLE has no label in the column label: fill it"),
        ({"label": ["a"] * 12}, "", "TABLE has one class only (a): give images of two or more"),
        ({"label": list(range(12))}, "", "the class 0 of TABLE has one image"),
        ({"part": ["train"] * 11 + ["valley"]}, PARTS, "row 11 of TABLE has the split valley: in the column part use"),
        ({"part": ["train"] * 11 + [None]}, PARTS, "row 11 of TABLE has the split"),
        ({"part": ["train"] * 12}, PARTS, "TABLE has no images that validate: add a split val or test"),
        ({"part": ["val"] * 6 + ["train"] * 6}, PARTS, "the class cat of TABLE has no image to train on: add some"),
        ({"image": [f"no/{n}.png" for n in range(12)]}, "", "12 of the 12 images of TABLE cannot be read (no/"),
        (
            {"image": ["cat/000.png"] * 11 + [None]},
            "",
            "1 of the 12 images of TABLE cannot be read (row 11: nothing is",
        ),
        ({"image": ["cat", *["cat/000.png"] * 11]}, "", "(cat: Is a directory)"),
    ],
)
def test_tables_that_cannot_be_trained_on(
    here: Path, ending: str, changes: dict[str, Any], more: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table(here, ending, **changes)
    path = f"pets/table.{ending}"
    assert expected.replace("TABLE", f"data.path={path}") in complaint(path, capsys, *more.split())


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.csv", b"", "data.path=t.csv cannot be read (Empty CSV file): give a CSV or Parquet file"),
        ("t.csv", b"image,label\n", "data.path=t.csv has no rows: give a table with a row for each image"),
        ("t.csv", b"image,label\na.png,1\nb.png\n", "data.path=t.csv cannot be read (CSV parse error"),
        ("t.csv", b"image,label\na.png,\xff\nb.png,1\n", "row 0 of data.path=t.csv has the label b'\\xff'"),
        ("t.csv", b"image,label\na.png,0\nb.png,NA\n", "row 1 of data.path=t.csv has no label in the column label"),
        ("t.csv", b"image;label\na.png;1\n", "data.path=t.csv has no column image (columns: image;label)"),
        ("t.csv", b"image,image,label\na,b,1\n", "data.path=t.csv has several columns image"),
        ("t.parquet", b"PAR1 no", "data.path=t.parquet cannot be read ("),
        ("t.parquet", b"", "data.path=t.parquet cannot be read ("),
    ],
)
def test_files_that_are_no_tables(
    here: Path, name: str, content: bytes, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / name).write_bytes(content)
    assert expected in complaint(name, capsys)


def test_a_column_that_holds_no_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(here / "t.parquet", {"image": list(range(12)), "label": LABELS})
    expected = (
        "the column image of data.path=t.parquet holds int64: set data.image_column to a column of paths or bytes"
    )
    assert expected in complaint("t.parquet", capsys)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "data.label_column=image",
            "data.image_column and data.label_column both name the column image of TABLE: name",
        ),
        (
            "data.split_column=image",
            "data.image_column and data.split_column both name the column image of TABLE: name",
        ),
        (
            "data.split_column=label",
            "data.label_column and data.split_column both name the column label of TABLE: name",
        ),
    ],
)
def test_one_column_for_two_purposes(
    here: Path, ending: str, more: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table(here, ending)
    path = f"pets/table.{ending}"
    assert expected.replace("TABLE", f"data.path={path}") in complaint(path, capsys, more)


def test_labels_beyond_the_declared_classes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"image": [{"bytes": png(pixels(n)), "path": None} for n in range(12)], "label": [0, 1] * 6}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    write_parquet(here, columns, features, "train")
    file = here / "train-00000-of-00001.parquet"
    good = parquet.read_table(file)
    labels = pa.array([0, 1] * 5 + [0, 2])
    parquet.write_table(good.set_column(1, good.schema.field("label"), labels), file)
    assert f"row 11 of data.path={file.name} has the label 2: labels go from 0 to 1" in complaint(file.name, capsys)


def test_damaged_bytes_are_named_by_their_row(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [png(pixels(n)) for n in range(11)] + [b"no image"]
    write_table(here / "t.parquet", {"image": images, "label": LABELS})
    assert "1 of the 12 images of data.path=t.parquet cannot be read (row 11: no image format" in complaint(
        "t.parquet", capsys
    )
