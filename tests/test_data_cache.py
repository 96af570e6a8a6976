"""Data: the cache is safe, and what cannot be loaded gets a sentence."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from data_helpers import IMAGES, LABELS, LONG, SMALL, TEXT, pets, plays, png, write_images, write_text

from normbench.data import cache, digits, hub_images, pydocs
from normbench.errors import RunFailure, UsageError

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---- the cache


def test_a_hit_imports_nothing_heavy(tmp_path: Path) -> None:
    root = write_images(tmp_path, SMALL, LABELS)
    expected = [pets(root).fingerprint, digits(**IMAGES).fingerprint]
    script = (
        "import sys, json; from normbench.data import *; o = dict(batch_size=2, eval_batch_size=2, seed=0)\n"
        "a = hub_images(name='pets', hub_id='me/pets', root=sys.argv[1], **o); b = digits(**o); a.train_batch(0)\n"
        "print(json.dumps([[a.fingerprint, b.fingerprint], "
        "[m for m in ('datasets', 'PIL', 'pyarrow', 'pandas', 'sklearn') if m in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", script, root], cwd=ROOT, capture_output=True, text=True)
    assert json.loads(done.stdout) == [expected, []], done.stderr


def test_the_slower_of_two_takes_what_the_faster_made(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faster may have mapped it."""
    write, inodes = cache.write, []

    def overtaken(content: cache.Content, folder: Path) -> None:
        monkeypatch.setattr(cache, "write", write)
        pydocs(**TEXT)
        inodes.extend(file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*")))
        write(content, folder)

    monkeypatch.setattr(cache, "write", overtaken)
    pydocs(**TEXT)
    assert inodes and inodes == [file.stat().st_ino for file in sorted(cache_folder.glob("text-*/*"))]
    assert not list(cache_folder.glob(".partial-*"))


def test_changed_sources_are_decoded_anew(tmp_path: Path, cache_folder: Path) -> None:
    found = [pets(write_images(tmp_path, SMALL, LABELS))]
    other = [SMALL["train"][0] ^ 1, *SMALL["train"][1:]]
    found.append(pets(write_images(tmp_path, SMALL | {"train": other}, LABELS)))
    assert len({data.fingerprint for data in found}) == len(list(cache_folder.iterdir())) == 2
    (tmp_path / "me/pets/README.md").write_text("---\nlicense: mit\n---\n")
    found.append(pets(tmp_path))
    assert len({str(data.source.key) for data in found}) == 3
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "me").rename(tmp_path / "elsewhere/me")
    moved = pets(tmp_path / "elsewhere")
    assert (moved.source.key, moved.fingerprint) == (found[2].source.key, found[1].fingerprint)


def test_what_older_versions_made_is_read(cache_folder: Path) -> None:
    """Names of cache folders and their content do not change, or everybody decodes everything again."""
    content = cache.Content({"train": np.arange(3, dtype=np.uint8)}, {"left_out": 0})
    opened = cache.Source("mine", "text", ["a", 1, None], lambda: content).open()
    (folder,) = cache_folder.iterdir()
    assert folder.name == "text-7f6a7617e08f3a85f141"
    assert opened[1] == "ecbfc5b17eb7bf3595fc473d85e3c184be606379ec663f9fc03bf876077d15e4"
    assert set(json.loads((folder / "meta.json").read_text())) == {"facts", "sha256"}


def test_writes_to_an_array_never_reach_the_file(cache_folder: Path) -> None:
    data = digits(**IMAGES)
    (file,) = cache_folder.glob("*/train_images.npy")
    before = file.read_bytes()
    data.splits["train"].examples.fill_(0)
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


def flip_last_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: flip_last_byte(entry / "val_labels.npy"),
        lambda entry: os.truncate(entry / "train_images.npy", 1000),
        lambda entry: (entry / "val_images.npy").unlink(),
        lambda entry: os.truncate(entry / "meta.json", 40),
    ],
)
def test_damage_is_found(damage: Callable[[Path], object], cache_folder: Path) -> None:
    digits(**IMAGES)
    (entry,) = cache_folder.iterdir()
    damage(entry)
    with pytest.raises(RunFailure, match=r"the data cache .* is damaged .*: remove it, and it is made anew"):
        digits(**IMAGES)


def test_full_disk(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFailure, match=r"cannot be written .No space left on device.: set NORMBENCH_CACHE"):
        digits(**IMAGES)
    assert not list(cache_folder.iterdir())


# ---- mistakes


def copy(images: list[Any] = SMALL["test"], labels: list[Any] = LABELS["test"], **options: Any) -> Callable[..., Path]:
    """Return what writes a copy with these images and labels to validate, or these classes."""
    return lambda root: write_images(root, SMALL | {"test": images}, LABELS | {"test": labels}, **options)


def truncated(root: Path) -> Path:
    os.truncate(copy()(root) / "me/pets/data/test-00000-of-00001.parquet", 700)
    return root


def only_training(root: Path) -> Path:
    return write_images(root, {"train": SMALL["train"]}, LABELS)


BAD_IMAGES: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "no root": (Path.absolute, {}, "no copy of me/pets in data.root=.*NORMBENCH_DATA.*data=digits"),
    "truncated": (truncated, {}, "me/pets cannot be read .Could not open Parquet.*set data.root"),
    "no test split": (only_training, {}, r"me/pets has no split test \(splits: train\)"),
    "no rows": (copy([], []), {}, "me/pets cannot be read .*set data.root"),
    "undecodable": (copy([b"no", *SMALL["test"][1:]]), {}, "1 of the 27 images of me/pets .*row 0 of test: no image"),
    "half an image": (copy([png(SMALL["test"][2])[:50]] * 7), {}, "row 2 of test: .*mend or remove"),
    "size": (copy([np.zeros((5, 5), np.uint8)] * 7), {}, "row 0 of test of me/pets differs in size"),
    "missing label": (copy(labels=[0, 1, 2, None, 0, 1, 2]), {}, "label None: labels go from 0 to 2"),
    "label -1": (copy(labels=[0, 1, 2, 1, 0, -1, 2]), {}, "label -1: labels go from 0 to 2"),
    "no classes": (copy(classes=None), {}, "label of me/pets declares no classes"),
    "no column": (copy(), {"image_column": "img"}, r"no column img \(columns: image, label\)"),
    "no images": (copy(), {"image_column": "label"}, "27 of the 27 images .*: no image is there.*data.image_column"),
}


@pytest.mark.parametrize(("make", "options", "message"), BAD_IMAGES.values(), ids=list(BAD_IMAGES))
def test_bad_images(
    tmp_path: Path, cache_folder: Path, make: Callable[[Path], Path], options: dict[str, Any], message: str
) -> None:
    root = make(tmp_path / "root")
    with pytest.raises(UsageError, match=message) as caught:
        pets(root, **options)
    assert "\n" not in str(caught.value) and ": " in str(caught.value)
    assert not cache_folder.exists() or not list(cache_folder.iterdir())


def test_bad_text(tmp_path: Path) -> None:
    root = write_text(tmp_path, train=[LONG, None], validation=[LONG], test=[LONG])
    with pytest.raises(UsageError, match=r"me/plays \(train\) has rows that are no text: set data.text_column"):
        plays(root)


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **options: object) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UsageError, match=r"me/pets cannot be read \(Name or service not known.*data.root.*data=pydocs"):
        hub_images(name="pets", hub_id="me/pets", **IMAGES)
