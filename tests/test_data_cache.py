"""Data: the cache is safe, and every mistake gets a sentence."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import (
    IMAGES,
    LABELS,
    LONG,
    SMALL,
    TEXT,
    as_lists,
    pets,
    plays,
    png,
    random_images,
    write_images,
    write_text,
)

from normbench.data import Content, Hub, HubImages, Images, PythonDocs, Text, cache, digits, pydocs
from normbench.errors import RunFailure, UsageError

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- cache ----------------------------------------------------------------------------------------


def run_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_hit_imports_nothing_heavy(tmp_path: Path) -> None:
    root = write_images(tmp_path, as_lists(random_images(6, 5)), LABELS)
    expected = [Images(pets(root), **IMAGES).fingerprint, digits(**IMAGES).fingerprint]
    script = (
        "import sys, json; from normbench.data import *; o = dict(batch_size=2, eval_batch_size=2, seed=0)\n"
        "a = hub_images(name='pets', hub_id='me/pets', root=sys.argv[1], **o); b = digits(**o); a.train_batch(0)\n"
        "print(json.dumps([[a.fingerprint, b.fingerprint], "
        "[m for m in ('datasets', 'PIL', 'pyarrow', 'pandas', 'sklearn') if m in sys.modules]]))"
    )
    out, err = run_python(script, root).communicate(timeout=60)
    assert json.loads(out) == [expected, []], err


def test_two_processes_at_once_share_one_folder(tmp_path: Path, cache_folder: Path) -> None:
    script = (
        "import os, sys, time, pathlib; from normbench.data import PythonDocs, Text\n"
        "class Slow(PythonDocs):\n"
        "    def load(self):\n"
        "        folder = pathlib.Path(sys.argv[1]); (folder / f'{os.getpid()}.here').touch()\n"
        "        while len(list(folder.glob('*.here'))) < 2: time.sleep(0.01)\n"
        "        return super().load()\n"
        "print(Text(Slow(), context=8, batch_size=2, eval_batch_size=2, seed=0).fingerprint)"
    )
    results = [process.communicate(timeout=60) for process in [run_python(script, tmp_path) for _ in range(2)]]
    assert {out.strip() for out, _ in results} == {pydocs(**TEXT).fingerprint}, results
    assert len(list(cache_folder.iterdir())) == 1


def test_the_slower_of_two_takes_what_the_faster_made(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = PythonDocs.load
    inodes: list[int] = []

    def overtaken(self: PythonDocs) -> Content:
        monkeypatch.setattr(PythonDocs, "load", load)
        pydocs(**TEXT)
        inodes.extend(file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*")))
        return load(self)

    monkeypatch.setattr(PythonDocs, "load", overtaken)
    pydocs(**TEXT)
    assert inodes and inodes == [file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*"))]
    assert not list(cache_folder.glob(".partial-*"))


def test_a_folder_that_appears_after_the_look_for_it_stays(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have mapped it."""
    read = cache.read
    inodes: list[int] = []

    def overtaken(folder: Path) -> tuple[Content, str] | None:
        monkeypatch.setattr(cache, "read", read)
        found = read(folder)
        pydocs(**TEXT)
        inodes.extend(file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*")))
        return found

    monkeypatch.setattr(cache, "read", overtaken)
    pydocs(**TEXT)
    assert inodes and inodes == [file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*"))]


@pytest.mark.parametrize(("times", "enough"), [(2, True), (3, False)])
def test_a_folder_that_others_take_away_is_made_again(
    times: int, enough: bool, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, published = cache.publish, []

    def taken_away(partial: Path, folder: Path) -> None:
        publish(partial, folder)
        published.append(folder)
        if len(published) <= times:
            cache.discard(folder)

    monkeypatch.setattr(cache, "publish", taken_away)
    if enough:
        assert len(digits(**IMAGES).train_batch(0).targets) == IMAGES["batch_size"]
    else:
        with pytest.raises(RunFailure, match="changes while it is read: set NORMBENCH_CACHE"):
            digits(**IMAGES)
    assert len(published) == 3


def flip_last_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda entry: flip_last_byte(entry / "val_labels.npy"),
    "truncated": lambda entry: os.truncate(entry / "train_images.npy", 1000),
    "empty": lambda entry: os.truncate(entry / "train_images.npy", 0),
    "missing": lambda entry: (entry / "val_images.npy").unlink(),
    "no meta": lambda entry: (entry / "meta.json").unlink(),
    "half meta": lambda entry: os.truncate(entry / "meta.json", 40),
    "other meta": lambda entry: (entry / "meta.json").write_text("[1, 2]"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_logged_once_and_mended(
    damage: Callable[[Path], object], cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = digits(**IMAGES).train_batch(0)
    caplog.clear()
    (entry,) = cache_folder.iterdir()
    damage(entry)
    with caplog.at_level(logging.WARNING, "normbench"):
        mended = digits(**IMAGES)
        assert [record.name for record in caplog.records] == ["normbench"] and "damaged" in caplog.text
        assert torch.equal(mended.train_batch(0).inputs, before.inputs)
        digits(**IMAGES)
    assert len(caplog.records) == 1
    assert not list(cache_folder.glob(".partial-*"))


def test_changed_sources_are_decoded_anew(tmp_path: Path, cache_folder: Path) -> None:
    stored = random_images(6, 5)
    source = pets(write_images(tmp_path, as_lists(stored), LABELS))
    keys, prints = [source.key()], [Images(source, **IMAGES).fingerprint]
    stored["train"][3, 0, 0] ^= 1
    write_images(tmp_path, as_lists(stored), LABELS)
    keys, prints = [*keys, source.key()], [*prints, Images(source, **IMAGES).fingerprint]
    assert len(set(keys)) == len(set(prints)) == len(list(cache_folder.iterdir())) == 2
    assert pets(tmp_path, label_column="other").key() not in keys
    (tmp_path / "me/pets/README.md").write_text("---\nlicense: mit\n---\n")
    assert source.key() not in keys
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "me").rename(elsewhere / "me")
    assert Images(pets(elsewhere), **IMAGES).fingerprint == prints[1]


def test_writes_to_an_array_never_reach_the_file(cache_folder: Path) -> None:
    data = digits(**IMAGES)
    (file,) = cache_folder.glob("*/train_images.npy")
    before = file.read_bytes()
    data.splits["train"].images.fill_(0)
    assert file.read_bytes() == before


def test_leftovers_of_killed_processes_go_after_a_day(cache_folder: Path) -> None:
    old, new = cache_folder / ".partial-old", cache_folder / ".partial-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    digits(**IMAGES)
    assert not old.exists() and new.exists()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NORMBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "normbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.cache_folder() == Path("/home/someone/.cache/normbench")


def test_unwritable_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UsageError, match=r"cannot be written .*: set NORMBENCH_CACHE"):
        digits(**IMAGES)


def test_full_disk(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailure, match="no space left"):
        digits(**IMAGES)
    assert not list(cache_folder.iterdir())


# --- mistakes -------------------------------------------------------------------------------------


def changed(split: str, row: int, image: Any) -> dict[str, list[Any]]:
    return {
        name: [*images[:row], image, *images[row + 1 :]] if name == split else images for name, images in SMALL.items()
    }


def empty_copy(root: Path) -> Path:
    (root / "me/pets").mkdir(parents=True)
    return root


def broken_card(root: Path) -> Path:
    (write_images(root, SMALL, LABELS) / "me/pets/README.md").write_text("---\nconfigs: [1,\n---\n")
    return root


def truncate_test_file(root: Path) -> Path:
    os.truncate(write_images(root, SMALL, LABELS) / "me/pets/data/test-00000-of-00001.parquet", 700)
    return root


def scramble_test_file(root: Path) -> Path:
    file = write_images(root, SMALL, LABELS) / "me/pets/data/test-00000-of-00001.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(300) + content[304:])
    return root


BAD_IMAGES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no root": (
        lambda root: root / "nowhere",
        "no copy of me/pets in data.root=.*does not exist.*NORMBENCH_DATA.*data=digits",
    ),
    "no parquet": (empty_copy, "has no Parquet file.*data=digits"),
    "truncated": (truncate_test_file, "test-00000-of-00001.parquet is not a whole Parquet file"),
    "scrambled": (scramble_test_file, "test-00000-of-00001.parquet is not a whole Parquet file"),
    "no test split": (
        lambda root: write_images(root, {"train": SMALL["train"]}, LABELS),
        "no split test .splits: train",
    ),
    "no rows": (
        lambda root: write_images(root, SMALL | {"test": []}, LABELS | {"test": []}),
        "no rows in the split test",
    ),
    "undecodable": (
        lambda root: write_images(root, changed("train", 13, b"nonsense"), LABELS),
        "row 13 of .*train.*decoded",
    ),
    "half an image": (
        lambda root: write_images(root, changed("test", 2, png(SMALL["test"][2])[:50]), LABELS),
        "row 2 of .*test.*decoded",
    ),
    "no image": (lambda root: write_images(root, changed("test", 6, b""), LABELS), "row 6 of .*test.*decoded"),
    "size": (
        lambda root: write_images(root, changed("train", 4, np.zeros((5, 5), np.uint8)), LABELS),
        "row 4 .*the same",
    ),
    "sizes of splits": (
        lambda root: write_images(root, SMALL | {"test": [np.zeros((9, 9), np.uint8)] * 7}, LABELS),
        "1, 9, 9. in test",
    ),
    "colours": (
        lambda root: write_images(root, changed("train", 0, np.zeros((6, 5, 4), np.uint8)), LABELS),
        "mode RGBA: use",
    ),
    "missing label": (
        lambda root: write_images(root, SMALL, LABELS | {"test": [0, 1, 2, None, 0, 1, 2]}),
        "row 3 of .*test.* label None: labels go from 0 to 2",
    ),
    "label -1": (
        lambda root: write_images(root, SMALL, LABELS | {"test": [0, 1, 2, 1, 0, -1, 2]}),
        "row 5 .* label -1",
    ),
    "no classes": (
        lambda root: write_images(root, SMALL, LABELS, classes=None),
        "label of me/pets declares no classes",
    ),
    "card": (broken_card, "me/pets cannot be loaded"),
}


@pytest.mark.parametrize(("make", "message"), BAD_IMAGES.values(), ids=list(BAD_IMAGES))
def test_bad_images(tmp_path: Path, cache_folder: Path, make: Callable[[Path], Path], message: str) -> None:
    source = pets(make(tmp_path / "root"))
    with pytest.raises(UsageError, match=message) as caught:
        Images(source, **IMAGES)
    assert "\n" not in str(caught.value) and ": " in str(caught.value)
    assert not cache_folder.exists() or not list(cache_folder.iterdir())


def test_wrong_columns(tmp_path: Path) -> None:
    root = write_images(tmp_path, SMALL, LABELS)
    for options, message in (
        ({"image_column": "img"}, r"no column img in the split train \(columns: image, label\)"),
        ({"label_column": "image"}, "image of me/pets declares no classes"),
        ({"image_column": "label"}, "label of me/pets holds no images"),
    ):
        with pytest.raises(UsageError, match=message):
            Images(pets(root, **options), **IMAGES)


def test_bad_text(tmp_path: Path) -> None:
    root = write_text(tmp_path / "none", train=[LONG, None], validation=[LONG], test=[LONG])
    with pytest.raises(UsageError, match=r"row 1 of me/plays \(train\) is no text"):
        Text(plays(root), **TEXT)
    root = write_text(tmp_path / "short", train=[LONG], validation=["abcd"], test=["efgh"])
    with pytest.raises(
        UsageError, match=r"data.context=8 is too long for the 8 tokens of plays \(val\): use at most 7"
    ):
        Text(plays(root), **TEXT)
    with pytest.raises(UsageError, match=r"data.context=8 is too long for the 5 tokens of plays \(train\)"):
        Text(plays(root), **TEXT, holdout=len(LONG) - 5)


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*args: object, **options: object) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    with pytest.raises(
        UsageError, match=r"me/pets cannot be fetched from the hub \(Name or service not known.*data.root.*data=pydocs"
    ):
        Images(HubImages("pets", Hub("me/pets")), **IMAGES)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_sizes_are_whole_numbers_from_one(value: Any) -> None:
    for key in ("context", "batch_size", "eval_batch_size"):
        with pytest.raises(UsageError, match=f"data.{key}={value} is not allowed: use a whole number from 1"):
            pydocs(**TEXT | {key: value})
    with pytest.raises(UsageError, match=f"data.batch_size={value} is not allowed"):
        digits(**IMAGES | {"batch_size": value})


def test_mistakes_with_images() -> None:
    with pytest.raises(
        UsageError, match=r"data\.batch_size=1,501 is more than the 1,500 training images of digits: use at most"
    ):
        digits(**IMAGES | {"batch_size": 1501})
    with pytest.raises(UsageError, match=r"data\.scaling=minmax is unknown: use none, unit, standard"):
        digits(**IMAGES, scaling="minmax")
