"""What the YAMLs in `conf/data/` name as `_target_`: data from flat keys."""

from __future__ import annotations

from typing import Any

from normbench.data.embedded import Digits, PythonDocs
from normbench.data.images import Images
from normbench.data.sources import Hub, HubImages, HubText
from normbench.data.text import Text


def hub_text(
    *,
    name: str,
    hub_id: str,
    revision: str = "main",
    root: str | None = None,
    text_column: str = "text",
    **options: Any,
) -> Text:
    """A text of the hub, by characters; `options` are Text's."""
    return Text(HubText(name, Hub(hub_id, revision, root), text_column), **options)


def hub_images(
    *,
    name: str,
    hub_id: str,
    revision: str = "main",
    root: str | None = None,
    image_column: str = "image",
    label_column: str = "label",
    **options: Any,
) -> Images:
    """Labelled images of the hub; `options` are Images'."""
    return Images(HubImages(name, Hub(hub_id, revision, root), image_column, label_column), **options)


def pydocs(*, name: str = "pydocs", **options: Any) -> Text:
    """Python's language reference, by bytes; `options` are Text's."""
    return Text(PythonDocs(name), **options)


def digits(*, name: str = "digits", **options: Any) -> Images:
    """scikit-learn's digits; `options` are Images'."""
    return Images(Digits(name), **options)
