"""Data: the cache is safe, and what cannot be loaded gets a sentence."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import numpy as np
import pytest
from data_helpers import IMAGES, LABELS, SMALL, TEXT, pets, plays, write_images, write_parquet

import normbench.data
from normbench.data import cache, digits, hub_images, own_texts, pydocs
from normbench.errors import RunFailure, UsageError


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---- the cache


def test_a_hit_imports_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_images(tmp_path, SMALL, LABELS)
    made = [pets(root).fingerprint, digits(**IMAGES).fingerprint]
    heavy = {"datasets", "PIL", "pyarrow", "pandas", "sklearn"}
    monkeypatch.setattr(normbench, "data", normbench.data)  # what is imported again is forgotten afterwards
    for name in list(sys.modules):
        if name.partition(".")[0] in heavy or name.startswith("normbench.data"):
            monkeypatch.delitem(sys.modules, name)
    for name in heavy:
        monkeypatch.setitem(sys.modules, name, None)  # its import fails
    fresh = import_module("normbench.data")
    hits = fresh.hub_images(name="pets", hub_id="me/pets", root=str(root), **IMAGES), fresh.digits(**IMAGES)
    assert [data.fingerprint for data in hits] == made


def test_the_slower_of_two_takes_what_the_faster_made(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faster may have mapped it."""
    rename, inodes = os.rename, []

    def overtaken(partial: Path, folder: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        pydocs(**TEXT)
        inodes.extend(file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*")))
        rename(partial, folder)

    monkeypatch.setattr(os, "rename", overtaken)
    pydocs(**TEXT)
    assert inodes and inodes == [file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*"))]
    assert not list(cache_folder.glob(".partial-*"))


def test_changed_sources_are_decoded_anew(tmp_path: Path, cache_folder: Path) -> None:
    found = [pets(write_images(tmp_path, SMALL, LABELS))]
    other = [SMALL["train"][0] ^ 1, *SMALL["train"][1:]]
    found.append(pets(write_images(tmp_path, SMALL | {"train": other}, LABELS)))
    assert len({data.fingerprint for data in found}) == len(list(cache_folder.iterdir())) == 2
    (tmp_path / "me/pets/README.md").write_text("---\nlicense: mit\n---\n")
    pets(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "me").rename(tmp_path / "elsewhere/me")
    assert pets(tmp_path / "elsewhere").fingerprint == found[1].fingerprint
    assert len(list(cache_folder.iterdir())) == 3, "the README counts, and where the copy is does not"


def test_what_older_versions_made_is_read(cache_folder: Path) -> None:
    """Names of cache folders and their content do not change, or everybody decodes everything again."""
    arrays = {"train": np.arange(3, dtype=np.uint8)}
    content = cache.read_or_decode("mine", "text", ["a", 1, None], lambda: (arrays, {"left_out": 0}))
    (folder,) = cache_folder.iterdir()
    assert folder.name == "text-7f6a7617e08f3a85f141" and content.facts == {"left_out": 0}
    assert content.fingerprint == "ecbfc5b17eb7bf3595fc473d85e3c184be606379ec663f9fc03bf876077d15e4"
    assert set(json.loads((folder / "meta.json").read_text())) == {"facts", "sha256"}


@pytest.mark.parametrize("version", [2, 3])
def test_what_older_versions_made_without_equal_rows_is_made_again(
    version: int, tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what judges would be equal to what trains without a word; the fingerprint is that of the older version."""
    made = SMALL | {"test": [*SMALL["test"][:5], *SMALL["train"][:2]]}
    root = write_images(tmp_path, made, LABELS)
    keys: list[Any] = []

    def read_or_decode(name: str, kind: str, key: Any, *rest: Any, **about: Any) -> cache.Content:
        keys.append(key)
        return cache.read_or_decode(name, kind, key, *rest, **about)

    monkeypatch.setattr("normbench.data.sources.read_or_decode", read_or_decode)
    data = pets(root)
    (folder,) = cache_folder.iterdir()
    shutil.rmtree(folder)
    older = hashlib.sha256(json.dumps([version, "images", json.dumps(keys[0])]).encode()).hexdigest()
    arrays = {name: array for name, array in data.content.arrays.items() if not name.endswith("_kinds")}
    cache.publish(arrays, {"classes": data.classes}, cache_folder / f"images-{older[:20]}")
    again = pets(root)
    assert again.fingerprint == data.fingerprint == cache.fingerprint_arrays(arrays)
    assert again.describe()["val_images_seen_in_training"] == 2


def test_equal_rows_take_a_few_bytes_each(cache_folder: Path, tmp_path: Path) -> None:
    bytes_of = {}
    for name, different in (("equal", 20), ("different", 2000)):
        rows = "".join(f"{row % different:04},{row % 2}\n" for row in range(2000))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + rows)
        data = own_texts(path=str(tmp_path / f"{name}.csv"), level="byte", **TEXT)
        sizes = [file.stat().st_size for file in cache_folder.glob("*/meta.json")]
        sizes += [file.stat().st_size for file in cache_folder.glob("*/*_kinds.npy")]
        bytes_of[name] = sum(sizes)
        shutil.rmtree(cache_folder)
    assert data.describe().get("repeated_texts") is None
    assert bytes_of["equal"] - bytes_of["different"] < 2000 * 2, "which says of each row to which it is equal"


def test_writes_to_an_array_never_reach_the_file(cache_folder: Path) -> None:
    data = digits(**IMAGES)
    (file,) = cache_folder.glob("*/train_images.npy")
    before = file.read_bytes()
    data.examples["train"].fill_(0)
    assert file.read_bytes() == before


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


@pytest.mark.parametrize("file", ["val_labels.npy", "meta.json"])
@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), Path.unlink])
def test_damage_is_found(damage: Callable[[Path], object], file: str, cache_folder: Path) -> None:
    digits(**IMAGES)
    (entry,) = cache_folder.iterdir()
    damage(entry / file)
    with pytest.raises(RunFailure, match=r"the data cache .* is damaged .*: remove it, and it will be made again"):
        digits(**IMAGES)


def test_full_disk(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(RunFailure, match=r"cannot be written .No space left on device.: set NORMBENCH_CACHE"):
        digits(**IMAGES)
    assert not list(cache_folder.iterdir())


# ---- mistakes


def truncated(root: Path) -> Path:
    os.truncate(write_images(root, SMALL, LABELS) / "me/pets/data/test-00000-of-00001.parquet", 700)
    return root


def labelled(*labels: int | None) -> Callable[[Path], Path]:
    """Return what writes a copy with these labels to validate."""
    images = SMALL | {"test": SMALL["test"][: len(labels)]}
    return lambda root: write_images(root, images, LABELS | {"test": list(labels)})


BAD_IMAGES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "truncated": (truncated, "image", "me/pets cannot be read .Could not open Parquet.*set data.root"),
    "no column": (labelled(1), "img", "it has no img, but image, label.: name"),
    "missing label": (labelled(0, 1, 2, None), "image", "row 3 of test of me/pets has no label: .* from 0 to 2"),
    "no images": (labelled(1), "label", "21 of the 21 images .*row 0 of train: .*data.image_column"),
}


@pytest.mark.parametrize(("make", "column", "message"), BAD_IMAGES.values(), ids=list(BAD_IMAGES))
def test_bad_images(
    tmp_path: Path, cache_folder: Path, make: Callable[[Path], Path], column: str, message: str
) -> None:
    root = make(tmp_path / "root")
    with pytest.raises(UsageError, match=message) as caught:
        pets(root, image_column=column)
    assert "\n" not in str(caught.value) and ": " in str(caught.value)
    assert not cache_folder.exists() or not list(cache_folder.iterdir())


def test_classes_must_be_declared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"column label of me/pets declares no classes: set data.label_column"):
        pets(write_images(tmp_path, SMALL, LABELS, classes=None))


@pytest.mark.parametrize("row", [None, 3])
def test_rows_that_are_no_text(row: object, tmp_path: Path) -> None:
    columns = {"text": [row] * 4}
    for split in ("train", "validation", "test"):
        write_parquet(tmp_path / "me/plays", columns, {"text": datasets.Value("int64")}, split)
    with pytest.raises(UsageError, match=r"its text is not always text, set data.text_column"):
        plays(tmp_path)


@pytest.fixture
def answering_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that answers a first request."""
    monkeypatch.setattr("normbench.data.hub.explain_silence", str)


@pytest.mark.usefixtures("answering_hub")
def test_a_full_disk_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    full = RuntimeError("it broke")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    for fault, expected in ((full, RunFailure), (MemoryError(), MemoryError)):
        monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=fault))
        with pytest.raises(expected):
            hub_images(name="pets", hub_id="me/pets", **IMAGES)


@pytest.mark.usefixtures("answering_hub")
def test_a_network_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=ConnectionError("Name or service not known")))
    with pytest.raises(UsageError, match=r"me/pets cannot be read \(Name or service not known.*data.root.*data=pydocs"):
        hub_images(name="pets", hub_id="me/pets", **IMAGES)
