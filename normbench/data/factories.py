"""What the YAMLs in `conf/data/` name as `_target_`: data from flat keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normbench.data.embedded import Digits, PythonDocs
from normbench.data.hub import Hub
from normbench.data.imagefolder import ImageFolder
from normbench.data.images import Images
from normbench.data.imagetable import ENDINGS, ImageTable
from normbench.data.sources import HubImages, HubText, HubTexts
from normbench.data.text import Text
from normbench.data.textfile import TextFile, given
from normbench.data.texts import Texts
from normbench.errors import UsageError


def hub_text(
    *,
    name: str,
    hub_id: str,
    revision: str = "main",
    root: str | None = None,
    config: str | None = None,
    text_column: str = "text",
    level: str = "character",
    vocabulary_size: int | None = None,
    lines: bool = False,
    val_splits: Sequence[str] = ("validation", "test"),
    test_splits: Sequence[str] | None = None,
    holdout: float = 0,
    **options: Any,
) -> Text:
    """A text of the hub; `options` are Text's."""
    hub = Hub(hub_id, revision, root, config)
    splits = tuple(val_splits), tuple(test_splits or ())
    source = HubText(name, hub, text_column, level, vocabulary_size, lines, *splits, holdout)
    return Text(source, holdout=holdout, **options)


def hub_texts(
    *,
    name: str,
    hub_id: str,
    revision: str = "main",
    root: str | None = None,
    config: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    level: str = "lowercase_word",
    vocabulary_size: int | None = None,
    val_split: str = "test",
    holdout: float = 0,
    **options: Any,
) -> Texts:
    """Labelled texts of the hub; `options` are Texts'."""
    hub = Hub(hub_id, revision, root, config)
    source = HubTexts(name, hub, text_column, label_column, level, vocabulary_size, val_split, holdout)
    return Texts(source, holdout=holdout, **options)


def hub_images(
    *,
    name: str,
    hub_id: str,
    revision: str = "main",
    root: str | None = None,
    config: str | None = None,
    image_column: str = "image",
    label_column: str = "label",
    **options: Any,
) -> Images:
    """Labelled images of the hub; `options` are Images'."""
    return Images(HubImages(name, Hub(hub_id, revision, root, config), image_column, label_column), **options)


def text_file(*, name: str = "text", path: str | None, **options: Any) -> Text:
    """A person's own text file, by bytes; `options` are Text's."""
    return Text(TextFile(name, given(path)), **options)


def own_images(
    *,
    name: str = "images",
    path: str | None,
    size: int | None = None,
    image_column: str = "image",
    label_column: str = "label",
    split_column: str | None = None,
    **options: Any,
) -> Images:
    """A person's own images, in a folder or named by a table; `options` are Images'.

    Raises:
        UsageError: there is neither at `path`.
    """
    place, is_table = own_place(path)
    if is_table:
        return Images(ImageTable(name, place, size, image_column, label_column, split_column), **options)
    return Images(ImageFolder(name, place, size), **options)


def own_place(path: str | None) -> tuple[Path, bool]:
    """What `data.path` names, and whether it is a table and not a folder.

    Raises:
        UsageError: it names neither.
    """
    what = "give a folder with a sub-folder for each class, or a CSV or Parquet file (.csv, .parquet)"
    if not path:
        raise UsageError(f"data.path is not set: {what}, such as data.path=my_images")
    try:
        place = Path(path).expanduser()
        is_folder, is_file = place.is_dir(), place.is_file()
    except (OSError, RuntimeError) as fault:  # a name that is too long, a home that is not there
        reason = getattr(fault, "strerror", None) or str(fault).rstrip(".")
        raise UsageError(f"data.path={path:.100} cannot be read ({reason}): {what}") from fault
    if not is_folder and not is_file:
        raise UsageError(f"data.path={path} does not exist: {what}")
    if is_file and place.suffix.lower() not in ENDINGS:
        raise UsageError(f"data.path={path} is neither a folder nor a table: {what}")
    return place, is_file


def pydocs(*, name: str = "pydocs", **options: Any) -> Text:
    """Python's language reference, by bytes; `options` are Text's."""
    return Text(PythonDocs(name), **options)


def digits(*, name: str = "digits", **options: Any) -> Images:
    """scikit-learn's digits; `options` are Images'."""
    return Images(Digits(name), **options)
