"""One's own images: a folder or a table gives what is stored, splits stay, and mistakes get a sentence."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from data_helpers import CLASSES, pixels, png, rows_of, write_folder, write_image, write_parquet, write_table
from PIL import Image

from normbench.data import own_images
from normbench.data.images import Images, decode
from normbench.errors import UsageError
from normbench.types import Split

OPTIONS: dict[str, Any] = {"batch_size": 2, "eval_batch_size": 7, "seed": 0, "scaling": "none"}


def own(path: Path, **options: Any) -> Images:
    return own_images(path=str(path), **OPTIONS | options)


def stored(data: Images, *splits: Split) -> list[tuple[bytes, str]]:
    """Return the images of these splits, or of all, and the names of their classes."""
    rows = [
        row for split in splits or data.labels for row in zip(data.examples[split], data.labels[split], strict=True)
    ]
    return [(image.permute(1, 2, 0).numpy().tobytes(), data.classes[label]) for image, label in rows]


def numbers(data: Images, split: Split) -> list[tuple[str, int]]:
    """Return class and number of the images of a folder that `write_folder` made."""
    known = {pixels(1000 * index + number).tobytes(): number for index in range(3) for number in range(20)}
    return [(name, known[image]) for image, name in stored(data, split)]


# ---- which images train and which validate


def test_a_tenth_of_each_class_validates_by_the_hash_of_its_names(tmp_path: Path) -> None:
    data = own(write_folder(tmp_path / "pets"))
    assert data.classes == CLASSES and data.task.image_shape == (3, 6, 5)

    def rank(image: tuple[str, int]) -> bytes:
        return hashlib.sha256(f"{image[0]}/{image[1]:03}.png".encode()).digest()

    ranked = [sorted(((name, number) for number in range(20)), key=rank) for name in CLASSES]
    for split, part in (("val", slice(2)), ("train", slice(2, None))):
        assert numbers(data, split) == sorted((image for images in ranked for image in images[part]), key=rank)
    held = torch.bincount(own(tmp_path / "pets", holdout=0.3).labels["val"], minlength=3)
    assert held.sum() == 16 and held.min() >= 2, "the last ones are of all classes"


@pytest.mark.parametrize("names", [("Training", "", "Testing"), ("train", "valid", "test")])
def test_folders_that_are_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    for number, name in enumerate(filter(None, names)):
        write_folder(tmp_path / "pets" / name, 4)
        write_image(tmp_path / "pets" / name / "cat" / "own.png", pixels(900 + number))
    (tmp_path / "pets" / "notes").mkdir()
    data = own(tmp_path / "pets")
    splits: list[Split] = ["train", "val", "test"] if names[1] else ["train", "val"]
    assert data.classes == CLASSES and list(data.labels) == splits and data.has_test == ("test" in splits)
    for number, split in enumerate(splits):
        assert len(stored(data, split)) == 13 and (pixels(900 + number).tobytes(), "cat") in stored(data, split)


def test_training_images_alone_in_their_folder_are_divided(tmp_path: Path) -> None:
    """As those of a table train.csv alone in its folder are; as a class of that name they could not be trained on."""
    data = own(write_folder(tmp_path / "pets" / "Train").parent)
    plain = own(write_folder(tmp_path / "plain"))
    assert data.classes == plain.classes == CLASSES
    assert {*stored(data)} == {*stored(plain)} and len(stored(data, "val")) == len(stored(plain, "val"))
    for number in range(3):  # where there are other classes, it is one: of railways
        write_image(tmp_path / "pets" / "car" / f"{number}.png", pixels(900 + number))
    assert own(tmp_path / "pets").classes == ("Train", "car")


def test_images_deep_in_a_class_s_folder_count_and_other_files_do_not(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pets", 5)
    write_image(folder / "cat" / "more" / "deep.PNG", pixels(5))
    (folder / "owl").rename(tmp_path / "elsewhere")
    (folder / "owl").symlink_to(tmp_path / "elsewhere")
    for name in ("cat/notes.txt", "dog/.hidden.png", "dog/.more/hidden.png", ".git/config", "labels.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no image")
    assert len(stored(own(folder))) == 16


# ---- tables


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_of_paths_is_the_folder_that_it_names(tmp_path: Path, ending: str) -> None:
    folder = write_folder(tmp_path / "pets")
    table = write_table(folder / f"table.{ending}", rows_of(folder))
    assert (own(table).fingerprint, own(table).classes) == (own(folder).fingerprint, own(folder).classes)


@pytest.mark.parametrize(
    ("ending", "labels", "classes"),
    [
        ("csv", ["10", "2", "1"], ("1", "2", "10")),
        ("parquet", [10, 2, 1], ("1", "2", "10")),
        ("csv", ["01", "1", "10"], ("01", "1", "10")),
        ("csv", ["12:30", "1e3", "NA"], ("12:30", "1e3", "NA")),
    ],
)
def test_labels_are_whole_numbers_by_size_or_names(
    tmp_path: Path, ending: str, labels: list[Any], classes: tuple[str, ...]
) -> None:
    """Those of a CSV file are numbers if all are."""
    rows = rows_of(write_folder(tmp_path, 4))
    columns = {
        "file": rows["image"],
        "kind": [labels[CLASSES.index(name)] for name in rows["label"]],
        "part": ["train", "val", "test"] * 4,
    }
    table = write_table(tmp_path / f"t.{ending}", columns)
    data = own(table, image_column="file", label_column="kind", split_column="part")
    assert data.classes == classes and [len(part) for part in data.labels.values()] == [4, 4, 4]
    names = dict(stored(data))
    assert [names[pixels(1000 * index).tobytes()] for index in range(3)] == [*map(str, labels)]


def test_numbers_are_named_as_they_are_written(tmp_path: Path) -> None:
    """One with a fraction changes nothing about the others."""
    rows = rows_of(write_folder(tmp_path, 4))
    numbers = [(1, 2.5, 10)[CLASSES.index(name)] for name in rows["label"]]
    lines = [json.dumps({"image": image, "label": label}) for image, label in zip(rows["image"], numbers, strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert own(tmp_path / "t.jsonl").classes == ("1", "2.5", "10")


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_table_may_hold_the_images_themselves(tmp_path: Path, kind: pa.DataType) -> None:
    encoded = pa.array([png(pixels(number)) for number in range(40)], kind)
    labels = pa.array([CLASSES[number % 2] for number in range(40)]).dictionary_encode()
    data = own(write_table(tmp_path / "t.parquet", pa.table({"image": encoded, "label": labels})))
    assert dict(stored(data)) == {pixels(number).tobytes(): CLASSES[number % 2] for number in range(40)}
    assert len(data.labels["val"]) == 4


@pytest.mark.parametrize("key", ["bytes", "path"])
def test_an_image_may_be_an_object_with_its_bytes_or_its_path_alone(tmp_path: Path, key: str) -> None:
    rows = rows_of(write_folder(tmp_path, 4))
    expected = dict(stored(own(write_table(tmp_path / "plain.csv", rows))))
    images = [{key: (tmp_path / image).read_bytes() if key == "bytes" else image} for image in rows["image"]]
    table = pa.table(rows | {"image": images})
    assert dict(stored(own(write_table(tmp_path / "objects.parquet", table)))) == expected


def test_what_datasets_writes_keeps_its_classes(tmp_path: Path) -> None:
    """Also the one of which there is no image."""
    columns = {"image": [{"bytes": png(pixels(n)), "path": None} for n in range(20)], "label": [0, 1] * 10}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["owl", "cat", "dog"])}
    data = own(write_parquet(tmp_path, columns, features, "train"))
    assert data.classes == ("owl", "cat", "dog")
    assert dict(stored(data)) == {pixels(n).tobytes(): ("owl", "cat")[n % 2] for n in range(20)}


# ---- what becomes of an image


def test_grey_stays_grey_and_beside_colour_has_three_equal_channels() -> None:
    grey, colour = pixels(1, 6, 5), pixels(2)
    assert np.array_equal(decode([("0", png(grey)), ("1", png(255 - grey))], ""), np.stack((grey, 255 - grey))[:, None])
    mixed = decode([("0", png(grey)), ("1", png(colour))], "")
    assert np.array_equal(mixed.transpose(0, 2, 3, 1), np.stack((np.stack([grey] * 3, axis=2), colour)))


def test_a_turned_photograph_is_put_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    write_image(tmp_path / "0.png", np.rot90(pixels(1)).copy(), exif=exif)
    assert np.array_equal(decode([("0", tmp_path / "0.png")], "")[0].transpose(1, 2, 0), pixels(1))


@pytest.mark.parametrize(("height", "width"), [(40, 20), (23, 31), (8, 9)])
def test_size_takes_the_middle_by_the_shorter_side(height: int, width: int) -> None:
    """Against the shorter side resized, then the middle cut out."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack((255 * y / height, 255 * x / width, 127 + 100 * np.sin(x / 3)), axis=2).astype(np.uint8)
    scale = 12 / min(height, width)
    whole = Image.fromarray(image).resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = int((whole.width - 12) / 2), int((whole.height - 12) / 2)
    (result,) = decode([("0", png(image))], "here", 12)
    difference = np.abs(
        result.transpose(1, 2, 0) - np.asarray(whole.crop((left, top, left + 12, top + 12)), dtype=float)
    )
    assert difference.mean() < 4 and difference.max() < 25


def test_a_changed_image_is_decoded_anew(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pets", 3)
    first = own(folder)
    write_image(folder / "cat" / "000.png", pixels(77))
    rows = rows_of(folder)
    table = write_table(folder / "t.csv", rows)
    objects = write_table(
        folder / "t.parquet", pa.table(rows | {"image": [{"path": image} for image in rows["image"]]})
    )
    assert (pixels(77).tobytes(), "cat") in stored(own(folder))
    assert own(folder).fingerprint == own(table).fingerprint == own(objects).fingerprint != first.fingerprint
    write_image(folder / "cat" / "000.png", pixels(78))
    assert (pixels(78).tobytes(), "cat") in stored(own(table))
    assert (pixels(78).tobytes(), "cat") in stored(own(objects))
    facts = json.dumps(own(folder).describe())
    assert str(tmp_path) not in facts and '"path": "pets"' in facts


# ---- mistakes


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_whatever_is_wrong_with_a_file_it_is_an_image_or_named(kind: str) -> None:
    file, generator = io.BytesIO(), np.random.default_rng(0)
    Image.fromarray(pixels(1, 16, 16, 3)).save(file, kind)
    for _ in range(20):
        data = bytearray(file.getvalue())
        for place in generator.integers(0, len(data), 8):
            data[place] = generator.integers(256)
        try:
            damaged = bytes(data[: generator.integers(1, len(data) + 1)])
            assert decode([("it", damaged)], "here", 16).shape[2:] == (16, 16)
        except UsageError as error:
            assert "1 of the 1 images of here cannot be read (it: " in str(error) and "\n" not in str(error)


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nowhere": (lambda folder: None, "is neither a file nor a folder: give"),
    "no folder": (Path.touch, "cannot be read .*: give a folder"),
    "one class": (lambda folder: write_folder(folder, 4, ("cat",)), "all images of .* have one class, cat: give two"),
    "one image": (lambda folder: write_folder(folder, 1), "has too few images of the class (cat|dog|owl): give two"),
    "unreadable": (
        lambda folder: [write_folder(folder, 5).joinpath(f"dog/{name}.png").write_bytes(b"no") for name in "xy"],
        r"2 of the 17 images of .*dog/.\.png: cannot identify.*: fix or remove them",
    ),
    "many sizes": (
        lambda folder: write_image(write_folder(folder, 5) / "dog/x.png", pixels(1, 8, 9, 3)),
        "dog/.*png of .* differs in size .*: all images must have the same size, so set",
    ),
}


def test_a_folder_of_tables_is_told_from_one_of_images(tmp_path: Path) -> None:
    """As `datasets` writes one: its tables may hold images, and each is one that `data.path` may name."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train-00000-of-00001.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match=r"no images, but tables such as data/train-00000-of-00001\.parquet: give"):
        own(tmp_path)


@pytest.mark.parametrize(("make", "complaint"), FOLDERS.values(), ids=list(FOLDERS))
def test_folders_that_cannot_be_trained_on(make: Callable[[Path], object], complaint: str, tmp_path: Path) -> None:
    make(tmp_path / "pets")
    with pytest.raises(UsageError, match=complaint):
        own(tmp_path / "pets")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"image": None}, "has no column image: set data.image_column to one of label"),
        ({"label": ["a", "b", None, "a"] * 3}, "row 2 of .* has no label: each row needs one"),
        ({"image": [None] * 12}, r"12 of the 12 images of .* cannot be read \(row \d+: there is no image"),
        ({"part": ["train"] * 11 + ["valley"]}, "row 11 of .* has no split but 'valley': write train, val"),
        ({"part": ["train"] * 11 + [""]}, "row 11 of .* has no split: write train, val or test"),
        (
            {"label": [0.0, 1.0, -1.0] * 4, "part": ["train", "train", "test"] * 4},
            r"label -1(\.0)?, .*seem to be hidden",
        ),
        ({"image": [f"no/{n}.png" for n in range(12)]}, r"12 of the 12 images of .* cannot be read \(no/"),
    ],
)
def test_tables_that_cannot_be_trained_on(tmp_path: Path, ending: str, changes: dict[str, Any], complaint: str) -> None:
    rows = rows_of(write_folder(tmp_path, 4)) | changes
    columns = {name: column for name, column in rows.items() if column is not None}
    table = write_table(tmp_path / f"table.{ending}", columns)
    with pytest.raises(UsageError, match=complaint):
        own(table, split_column="part" if "part" in changes else None)


def test_other_columns_of_a_table_do_not_matter(tmp_path: Path) -> None:
    """Neither a type that `datasets` does not know, nor a header that is repeated; labels may be categories."""
    rows = rows_of(write_folder(tmp_path, 4))
    expected = own(write_table(tmp_path / "plain.csv", rows)).fingerprint
    pairs = pa.array([[("a", 1)]] * 12, pa.map_(pa.string(), pa.int64()))
    table = pa.table(rows | {"pairs": pairs, "label": pa.array(rows["label"]).dictionary_encode()})
    assert own(write_table(tmp_path / "odd.parquet", table)).fingerprint == expected
    lines = [f"{image},{label},1,2" for image, label in zip(rows["image"], rows["label"], strict=True)]
    (tmp_path / "repeated.csv").write_text("\n".join(["image,label,note,note", *lines]))
    assert own(tmp_path / "repeated.csv").fingerprint == expected
    with pytest.raises(UsageError, match=r"row 0 of .* has a list in its column pairs .*: set data.label_column"):
        own(tmp_path / "odd.parquet", label_column="pairs")


def test_a_folder_whose_name_is_no_utf8(tmp_path: Path) -> None:
    write_folder(tmp_path, 4)
    os.rename(tmp_path / "cat", os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(UsageError, match=r"cannot be read \('utf-8' codec"):
        own(tmp_path)
