"""A person's folder of images, one sub-folder a class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.data.ownimages import SPLITS, Entry, Listing, OwnImages, stamp
from normbench.errors import UsageError
from normbench.types import Split


@dataclass(frozen=True)
class ImageFolder(OwnImages):
    """A folder with a sub-folder for each class, or with such folders named `train` and `val` or `test`.

    An image is a file, however deep in its class's folder, whose name ends as Pillow's formats do. Names that begin
    with a dot are passed over. Classes are in the alphabetical order of their names.
    """

    def contents(self) -> list[Any]:
        return [[str(path.relative_to(self.path)), stamp(path)] for _, _, path in self.files()]

    def listing(self) -> Listing:
        files = list(self.files())
        classes = sorted({name for folder, _ in self.parts() for name in names_in(folder)})
        if not classes:
            raise UsageError(f"{self.where} has no sub-folders: give a folder with a sub-folder for each class")
        for name in classes:
            if name != name.encode(errors="ignore").decode():  # it has surrogates for bytes, which no record can hold
                raise UsageError(f"the class {name!r:.80} of {self.where} has a name that is not UTF-8: rename it")
        empty = sorted(set(classes) - {class_name for _, class_name, _ in files})
        if empty:
            of_them = f"the class {empty[0]:.80}" if files else f"any of its {len(classes)} classes"
            raise UsageError(
                f"{self.where} has no images in {of_them}: put some there, with names that end in .jpg, .png or the "
                "like, or remove the folder"
            )
        places = {name: index for index, name in enumerate(classes)}
        entries = [
            Entry(str(path.relative_to(self.path)), places[class_name], split, path)
            for split, class_name, path in files
        ]
        return Listing(entries, classes)

    def parts(self) -> list[tuple[Path, Split | None]]:
        """The folders that hold the classes' folders, with the split of each."""
        splits = [(folder, SPLITS[folder.name.casefold()]) for folder in subfolders(self.path)
                  if folder.name.casefold() in SPLITS]  # fmt: skip
        known = {split for _, split in splits}
        return list(splits) if "train" in known and len(known) > 1 else [(self.path, None)]

    def files(self) -> Iterator[tuple[Split | None, str, Path]]:
        """Split, class and path of each image, in alphabetical order.

        Raises:
            UsageError: a folder cannot be read.
        """
        endings = image_endings()
        try:
            for root, split in self.parts():
                for folder in subfolders(root):
                    yield from ((split, folder.name, path) for path in images_in(folder, endings))
        except OSError as fault:
            raise UsageError(f"{fault.filename} cannot be read ({fault.strerror}): make it readable") from fault


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, in alphabetical order."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def names_in(folder: Path) -> list[str]:
    """The names of the folders in a folder."""
    return [path.name for path in subfolders(folder)]


def images_in(folder: Path, endings: set[str]) -> Iterator[Path]:
    """The images in a folder and in those below it, in alphabetical order."""

    def refuse(fault: OSError) -> None:
        raise fault

    for parent, below, names in os.walk(folder, onerror=refuse):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in endings:
                yield Path(parent, name)


def image_endings() -> set[str]:
    """How the names of the files end that Pillow can open, such as `.png`."""
    from PIL import Image

    formats = Image.registered_extensions()
    return {ending for ending, name in formats.items() if name in Image.OPEN}
