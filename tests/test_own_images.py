"""One's own images: a folder or a table gives what is stored, splits that stay, one size, and no unreadable ones."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from data_helpers import png, write_parquet
from own_data import CLASSES, pixels, rows_of, write_folder, write_image, write_table
from PIL import Image

from normbench.cli import main
from normbench.data import Images, own_images
from normbench.types import Split

OPTIONS: dict[str, Any] = {"batch_size": 2, "eval_batch_size": 7, "seed": 0, "scaling": "none"}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))


def own(path: Path, **options: Any) -> Images:
    return own_images(path=str(path), **OPTIONS | options)


def stored(data: Images, split: Split) -> list[tuple[np.ndarray, str]]:
    """The images of a split as (height, width, channels), and the names of their classes."""
    images, labels = data.splits[split]
    return [(image.permute(1, 2, 0).numpy(), data.classes[label]) for image, label in zip(images, labels, strict=True)]


def numbers(data: Images, split: Split, each: int = 20) -> list[tuple[str, int]]:
    """Class and number of the images of a folder that `write_folder` made."""
    known = {
        pixels(1000 * index + number).tobytes(): (name, number)
        for index, name in enumerate(data.classes)
        for number in range(each)
    }
    found = [known[image.tobytes()] for image, _ in stored(data, split)]
    assert [name for name, _ in found] == [name for _, name in stored(data, split)]
    return found


# ---- which images train and which validate


def test_a_tenth_of_each_class_validates_by_the_hash_of_its_names(tmp_path: Path) -> None:
    data = own(write_folder(tmp_path / "pets"))
    assert data.classes == CLASSES and data.task.image_shape == (3, 6, 5)

    def rank(image: tuple[str, int]) -> bytes:
        return hashlib.sha256(f"{image[0]}/{image[1]:03}.png".encode()).digest()

    ranked = {name: sorted(((name, number) for number in range(20)), key=rank) for name in CLASSES}
    val = sorted((image for name in CLASSES for image in ranked[name][:2]), key=rank)
    train = sorted((image for name in CLASSES for image in ranked[name][2:]), key=rank)
    assert numbers(data, "val") == val
    assert numbers(data, "train") == train


def test_one_more_image_moves_no_other_but_at_the_boundary(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pets")
    before = set(numbers(own(folder), "val"))
    write_image(folder / "cat" / "020.png", pixels(20))
    after = set(numbers(own(folder), "val", each=21))
    assert len(before) == len(after) == 6
    assert len(before - after) <= 1 and {image for image in before if image[0] != "cat"} <= after


def test_the_last_training_images_are_of_all_classes(tmp_path: Path) -> None:
    """So `data.holdout`, which takes the last ones, holds out something of each."""
    data = own(write_folder(tmp_path / "pets"), holdout=0.3)
    counts = torch.bincount(data.splits["val"].labels, minlength=3)
    assert counts.sum() == 16 and counts.min() >= 2


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("train", "val"), {"train": "train", "val": "val"}),
        (("train", "test"), {"train": "train", "val": "test"}),
        (("Training", "Testing"), {"train": "Training", "val": "Testing"}),
        (("train", "valid", "test"), {"train": "train", "val": "valid", "test": "test"}),
    ],
)
def test_folders_that_are_splits(tmp_path: Path, names: tuple[str, ...], expected: dict[Split, str]) -> None:
    for place, name in enumerate(names):
        for index, class_name in enumerate(CLASSES):
            for number in range(4):
                write_image(
                    tmp_path / "pets" / name / class_name / f"{number}.png", pixels(100 * place + 10 * index + number)
                )
    (tmp_path / "pets" / "notes").mkdir()
    data = own(tmp_path / "pets")
    assert data.classes == CLASSES and data.has_test == ("test" in expected)
    for split, name in expected.items():
        place = names.index(name)
        wanted = {pixels(100 * place + 10 * i + n).tobytes(): c for i, c in enumerate(CLASSES) for n in range(4)}
        assert {image.tobytes(): name for image, name in stored(data, split)} == wanted
    if data.has_test:
        assert sum(len(batch.targets) for batch in data.eval_batches("test")) == data.describe()["test_images"] == 12


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    """Only beside `val` or `test` is it a split."""
    assert own(write_folder(tmp_path / "vehicles", 4, ("bus", "car", "train"))).classes == ("bus", "car", "train")


def test_images_deep_in_a_class_s_folder_count_and_other_files_do_not(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pets", 5)
    write_image(folder / "cat" / "more" / "deep.PNG", pixels(5))
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "dog" / ".hidden.png").write_bytes(b"no image")
    (folder / ".git").mkdir()
    (folder / "labels.csv").write_text("no image")
    data = own(folder)
    assert len(numbers(data, "train", 6)) + len(numbers(data, "val", 6)) == 16


# ---- tables


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_of_paths_is_the_folder_that_it_names(tmp_path: Path, ending: str) -> None:
    folder = write_folder(tmp_path / "pets")
    table = write_table(folder / f"table.{ending}", rows_of(folder))
    assert own(table).fingerprint == own(folder).fingerprint
    assert own(table).classes == own(folder).classes


def test_columns_have_the_names_that_they_are_given(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pets")
    rows = rows_of(folder)
    splits = [("train", "val", "test")[number % 3] for number in range(60)]
    table = write_table(
        folder / "t.csv", {"file": rows["image"], "kind": rows["label"], "part": splits, "image": [1] * 60}
    )
    data = own(table, image_column="file", label_column="kind", split_column="part")
    kinds: tuple[Split, ...] = ("train", "val", "test")
    for place, split in enumerate(kinds):
        assert {f"{name}/{n:03}.png" for name, n in numbers(data, split)} == set(rows["image"][place::3])


def test_whole_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pets")
    rows = rows_of(folder)
    for values in ([10, 2, 1], [10.0, 2.0, 1.0]):
        labels = [values[CLASSES.index(label)] for label in rows["label"]]
        data = own(write_table(folder / "t.parquet", {"image": rows["image"], "label": labels}))
        assert data.classes == ("1", "2", "10")
        assert {name for image, name in stored(data, "val") if image.tobytes() in
                {pixels(n).tobytes() for n in range(20)}} == {"10"}  # fmt: skip


def labelled(folder: Path, labels: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The classes of a CSV file with these labels for the cats, dogs and owls, and what those are called in it."""
    rows = rows_of(write_folder(folder, 4))
    lines = [f"{image},{labels[CLASSES.index(name)]}" for image, name in zip(rows["image"], rows["label"], strict=True)]
    (folder / "t.csv").write_text("\n".join(["image,label", *lines]) + "\n")
    data = own(folder / "t.csv")
    names = {image.tobytes(): name for split in data.splits for image, name in stored(data, split)}
    return data.classes, [names[pixels(1000 * index).tobytes()] for index in range(3)]


@pytest.mark.parametrize("labels", [["10", "2", "1"], ["10.0", "2", "1.0"], [" 10", " 2", " 1"]])
def test_labels_of_a_csv_file_are_numbers_if_all_are(tmp_path: Path, labels: list[str]) -> None:
    assert labelled(tmp_path / "pets", labels) == (("1", "2", "10"), ["10", "2", "1"])


@pytest.mark.parametrize(
    "labels",
    [
        ["01", "1", "10"],
        ["007", "7", "0"],
        ["2024-01-02", "2024-01-01", "2023-12-31"],
        ["true", "false", "maybe"],
        ["12:30", "1e3", "NA"],
        ["10", "2", "12345678901234567890"],
    ],
)
def test_other_labels_of_a_csv_file_are_as_they_are_written(tmp_path: Path, labels: list[str]) -> None:
    assert labelled(tmp_path / "pets", labels) == (tuple(sorted(labels)), labels)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_table_may_hold_the_images_themselves(tmp_path: Path, kind: pa.DataType) -> None:
    images = [pixels(number) for number in range(40)]
    encoded = pa.array([png(image) for image in images], kind)
    labels = pa.array([CLASSES[number % 2] for number in range(40)]).dictionary_encode()
    data = own(write_table(tmp_path / "t.parquet", pa.table({"image": encoded, "label": labels})))
    expected = {image.tobytes(): CLASSES[number % 2] for number, image in enumerate(images)}
    assert {image.tobytes(): name for s in ("train", "val") for image, name in stored(data, s)} == expected  # type: ignore[arg-type]
    assert len(data.splits["val"].labels) == 4


def test_what_datasets_writes_keeps_its_classes(tmp_path: Path) -> None:
    """Images with bytes and paths, and labels that are numbers of declared names, one of them without an image."""
    columns = {
        "image": [{"bytes": png(pixels(n)), "path": None} for n in range(20)],
        "label": [n % 2 for n in range(20)],
    }
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["owl", "cat", "dog"])}
    write_parquet(tmp_path, columns, features, "train")
    data = own(tmp_path / "train-00000-of-00001.parquet")
    assert data.classes == ("owl", "cat", "dog")
    expected = {pixels(n).tobytes(): ("owl", "cat")[n % 2] for n in range(20)}
    assert {image.tobytes(): name for s in ("train", "val") for image, name in stored(data, s)} == expected  # type: ignore[arg-type]


# ---- what becomes of an image


def two_of_each(folder: Path, **images: np.ndarray | Image.Image) -> Path:
    """A folder of two classes with each of these images in both."""
    for class_name in ("a", "b"):
        for name, image in images.items():
            write_image(folder / class_name / f"{name}.png", image)
    return folder


def values(data: Images) -> set[bytes]:
    """The different images of all splits."""
    return {image.tobytes() for split in data.splits for image, _ in stored(data, split)}


def test_grey_stays_grey_and_beside_colour_has_three_equal_channels(tmp_path: Path) -> None:
    grey, colour = pixels(1, 6, 5), pixels(2)
    alone = own(two_of_each(tmp_path / "grey", x=grey, y=255 - grey))
    assert alone.task.image_shape == (1, 6, 5) and values(alone) == {grey.tobytes(), (255 - grey).tobytes()}
    mixed = own(two_of_each(tmp_path / "mixed", x=grey, y=colour))
    assert values(mixed) == {np.stack([grey] * 3, axis=2).tobytes(), colour.tobytes()}


def test_palettes_and_transparency_become_colour(tmp_path: Path) -> None:
    colour = pixels(2)
    transparent = Image.fromarray(np.concatenate((colour, pixels(3, 6, 5, 1)), axis=2))
    palette = Image.fromarray(colour).quantize(4)
    data = own(two_of_each(tmp_path / "pets", x=transparent, y=palette))
    assert values(data) == {colour.tobytes(), np.asarray(palette.convert("RGB")).tobytes()}


def test_a_turned_photograph_is_put_upright(tmp_path: Path) -> None:
    image = pixels(1, 6, 5)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    for class_name in ("a", "b"):
        write_image(tmp_path / "pets" / class_name / "0.png", np.rot90(image).copy(), exif=exif)
        write_image(tmp_path / "pets" / class_name / "1.png", image)
    assert values(own(tmp_path / "pets")) == {image.tobytes()}


@pytest.mark.parametrize(("height", "width"), [(40, 20), (20, 40), (31, 23), (8, 9)])
def test_size_takes_the_middle_by_the_shorter_side(tmp_path: Path, height: int, width: int) -> None:
    """Against the shorter side resized, then the middle cut out."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack((255 * y / height, 255 * x / width, 127 + 100 * np.sin(x / 3)), axis=2).astype(np.uint8)
    size = 12
    scale = size / min(height, width)
    whole = Image.fromarray(image).resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (whole.width - size) / 2, (whole.height - size) / 2
    reference = np.asarray(whole.crop((int(left), int(top), int(left) + size, int(top) + size)), dtype=float)
    data = own(two_of_each(tmp_path / "pets", x=image, y=image), size=size)
    for result, _ in stored(data, "train"):
        assert result.shape == (size, size, 3)
        assert np.abs(result - reference).mean() < 4 and np.abs(result - reference).max() < 25


def test_images_of_the_size_already_stay_as_they_are(tmp_path: Path) -> None:
    image = pixels(1, 8, 8, 3)
    assert values(own(two_of_each(tmp_path / "pets", x=image, y=image), size=8)) == {image.tobytes()}


# ---- what cannot be read, and what changes


def test_a_few_unreadable_images_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path / "pets", 67)
    (folder / "dog" / "003.png").write_bytes(b"no image")
    cut = folder / "owl" / "005.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    with caplog.at_level(logging.WARNING, "normbench"):
        data = own(folder)
    assert "left out 2 of 201 images that cannot be read" in caplog.text
    assert "dog/003.png" in caplog.text and "owl/005.png" in caplog.text
    assert data.describe()["left_out"] == 2
    kept = {*numbers(data, "train", 67), *numbers(data, "val", 67)}
    assert kept == {(name, n) for name in CLASSES for n in range(67)} - {("dog", 3), ("owl", 5)}


def test_a_changed_image_is_decoded_anew(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "pets", 3)
    first = own(folder)
    assert own(folder).source.key() == first.source.key()
    write_image(folder / "cat" / "000.png", pixels(77))
    table = write_table(folder / "t.csv", rows_of(folder))
    second, third = own(folder), own(table)
    assert pixels(77).tobytes() in values(second)
    assert second.fingerprint == third.fingerprint != first.fingerprint
    write_image(folder / "cat" / "000.png", pixels(78))
    assert pixels(78).tobytes() in values(own(table))


def test_the_record_has_no_local_path(tmp_path: Path) -> None:
    facts = own(write_folder(tmp_path / "pets", 3)).describe()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["name"], facts["path"], facts["train_images"], facts["left_out"]) == ("images", "pets", 6, 0)
    assert str(tmp_path) not in json.dumps(facts)


@pytest.mark.parametrize("name", ["pets", "pets/table.csv"])
def test_a_run_on_ones_own_images(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(write_folder(tmp_path / "pets", 4) / "table.csv", rows_of(tmp_path / "pets"))
    words = f"train data=images data.path={name} data.size=8 data.batch_size=4 data.crop=1 data.flip=true model=cnn"
    assert main([*words.split(), "trainer.steps=2", "threads=1", "quiet=true"]) == 0
    (summary,) = tmp_path.glob("outputs/*/*/summary.json")
    data = json.loads(summary.read_text())["data"]
    assert data["image_shape"] == [3, 8, 8] and data["classes"] == list(CLASSES)


def damaged(kind: str, number: int) -> bytes:
    """A file of this kind with some bytes turned, dropped or doubled."""
    file = io.BytesIO()
    Image.fromarray(pixels(1, 16, 16, 3)).save(file, kind)
    data, generator = bytearray(file.getvalue()), np.random.default_rng(number)
    for place in generator.integers(0, len(data), 8):
        data[place] = generator.integers(256)
    return bytes(data[: generator.integers(1, len(data) + 1)])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "ICO"])
def test_whatever_is_wrong_with_a_file_it_is_an_image_or_left_out(tmp_path: Path, kind: str) -> None:
    from normbench.data.decoding import decode_readable

    files = [(str(number), damaged(kind, number)) for number in range(60)]
    decoded = decode_readable(files, 16, "here")
    assert sorted([*decoded.kept, *(int(name) for name, _ in decoded.faults)]) == list(range(60))
    assert all(reason and "\n" not in reason for _, reason in decoded.faults)
