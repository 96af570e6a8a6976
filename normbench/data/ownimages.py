"""A person's own labelled images: which of them train and which validate, and all of them as pixels of one size."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from normbench.data.cache import Cached, Content, logger
from normbench.data.pixels import image_content
from normbench.errors import UsageError
from normbench.types import Split

SPLITS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
ORDER: tuple[Split, ...] = ("train", "val", "test")
VAL_SHARE = 10  # one image of so many of a class validates, where nothing says which
LARGEST_LOSS = 0.01  # share of images that may be unreadable


class Entry(NamedTuple):
    """One image.

    name: what messages call it. label: index of its class. split: None where nothing says it.
    image: its file, its encoded bytes, or None where a table has neither.
    """

    name: str
    label: int
    split: Split | None
    image: Path | bytes | None

    @property
    def rank(self) -> bytes:
        """A place among other images that depends on its name alone, or on its bytes where it has no name."""
        return hashlib.sha256(self.image if isinstance(self.image, bytes) else os.fsencode(self.name)).digest()


class Listing(NamedTuple):
    """All images, and the names of their classes."""

    entries: list[Entry]
    classes: list[str]


@dataclass(frozen=True)
class OwnImages(Cached, ABC):
    """Images that a path leads to.

    Without splits a tenth of each class validates, chosen by a hash of the names; with `train` and `test` alone the
    images of `test` validate. The images of a split stand in the order of that hash, so that the last ones are of all
    classes. A turned photograph is put upright, an image with transparency or a palette becomes colour, and where
    there is any colour grey images have three equal channels.

    size: side in pixels that each image is brought to, by its shorter side and a cut around its middle; None: as it is.
    """

    name: str
    path: Path
    size: int | None
    kind: ClassVar[str] = "images"

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"data.path={self.path}"

    @abstractmethod
    def listing(self) -> Listing:
        """All images.

        Raises:
            UsageError: what is there cannot be read, or is not what it should be.
        """

    @abstractmethod
    def contents(self) -> list[Any]:
        """What tells this content from any other, as JSON can hold it; images are not read for it."""

    def key(self) -> str:
        return json.dumps([type(self).__name__, str(self.path.resolve()), self.size, self.contents()])

    def load(self) -> Content:
        """Decodes all images.

        Raises:
            UsageError: too many are unreadable, their sizes differ, or a split or class has none.
        """
        from normbench.data.decoding import decode_readable  # Pillow is imported there: a cache hit needs it not

        entries, classes = self.listing()
        entries = in_order(self.divided(entries, classes))
        self.check(entries, classes)
        decoded = decode_readable([(entry.name, entry.image) for entry in entries], self.size, self.where)
        if decoded.faults:
            self.check_losses(decoded.faults, len(entries))
            entries = [entries[index] for index in decoded.kept]
            self.check(entries, classes)
        labels = np.array([entry.label for entry in entries], dtype=np.int64)
        counts = Counter(entry.split for entry in entries)
        ends = np.cumsum([counts[split] for split in ORDER])
        train, val, test = (
            (decoded.pixels[end - counts[split] : end], labels[end - counts[split] : end])
            for split, end in zip(ORDER, ends, strict=True)
        )
        return image_content(train, val, classes, test if counts["test"] else None, len(decoded.faults))

    def divided(self, entries: Sequence[Entry], classes: Sequence[str]) -> list[Entry]:
        """The images with a split each."""
        present = {entry.split for entry in entries}
        if None not in present:
            judges = "test" if "val" not in present else None
            return [entry._replace(split="val") if entry.split == judges else entry for entry in entries]
        members: list[list[Entry]] = [[] for _ in classes]
        for entry in sorted(entries, key=lambda entry: entry.rank):
            members[entry.label].append(entry)
        for name, images in zip(classes, members, strict=True):
            if len(images) == 1:
                raise UsageError(
                    f"the class {name:.80} of {self.where} has one image: a class needs one to train and one to "
                    "validate, so add images or remove the class"
                )
        return [
            entry._replace(split="val" if place < max(1, round(len(images) / VAL_SHARE)) else "train")
            for images in members
            for place, entry in enumerate(images)
        ]

    def check(self, entries: Sequence[Entry], classes: Sequence[str]) -> None:
        """Refuses fewer than two classes, one that is judged by and not learned, and data that nothing is judged by."""
        trained = {entry.label for entry in entries if entry.split == "train"}
        unknown = sorted({entry.label for entry in entries} - trained)
        if unknown:
            raise UsageError(
                f"the class {classes[unknown[0]]:.80} of {self.where} has no image to train on: add some, or remove it"
            )
        if len(trained) < 2:
            raise UsageError(
                f"{self.where} has one class only ({classes[min(trained)]:.80}): give images of two or more"
            )
        if not any(entry.split == "val" for entry in entries):
            raise UsageError(f"{self.where} has no images that validate: add a split val or test")

    def check_losses(self, faults: Sequence[tuple[str, str]], total: int) -> None:
        """Refuses more unreadable images than may be left out, and says which ones are left out."""
        (first, reason), *others = faults
        names = [f"{first:.80}: {reason}", *(f"{name:.80}" for name, _ in others[:2])]
        shown = ", ".join(names) + (", ..." if others[2:] else "")
        if len(faults) > LARGEST_LOSS * total:
            raise UsageError(
                f"{len(faults):,} of the {total:,} images of {self.where} cannot be read ({shown}): mend or remove "
                f"them, since no more than {LARGEST_LOSS:.0%} are left out"
            )
        logger.warning("left out %s of %s images that cannot be read (%s)", f"{len(faults):,}", f"{total:,}", shown)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "path": self.path.name}


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Split by split, and in a split by the hash, which mixes the classes."""
    return sorted(entries, key=lambda entry: (ORDER.index(entry.split or "train"), entry.rank))


def stamp(path: Path) -> list[int] | None:
    """Size and times of a file, which change when it does; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
