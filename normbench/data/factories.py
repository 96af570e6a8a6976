"""What the YAMLs in `conf/data/` name as `_target_`: data from flat keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normbench.data.embedded import Digits, PythonDocs
from normbench.data.hub import Hub
from normbench.data.images import Images
from normbench.data.sources import HubImages, HubText, HubTexts
from normbench.data.text import Text
from normbench.data.textfile import TextFile, given
from normbench.data.texts import Texts


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
    **options: Any,
) -> Text:
    """A text of the hub; `options` are Text's."""
    hub = Hub(hub_id, revision, root, config)
    splits = tuple(val_splits), tuple(test_splits or ())
    return Text(HubText(name, hub, text_column, level, vocabulary_size, lines, *splits), **options)


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
    **options: Any,
) -> Texts:
    """Labelled texts of the hub; `options` are Texts'."""
    hub = Hub(hub_id, revision, root, config)
    return Texts(HubTexts(name, hub, text_column, label_column, level, vocabulary_size, val_split), **options)


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


def pydocs(*, name: str = "pydocs", **options: Any) -> Text:
    """Python's language reference, by bytes; `options` are Text's."""
    return Text(PythonDocs(name), **options)


def digits(*, name: str = "digits", **options: Any) -> Images:
    """scikit-learn's digits; `options` are Images'."""
    return Images(Digits(name), **options)
