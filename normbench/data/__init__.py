"""Data sets: a source is decoded once into a memory-mapped cache, and gives batches that cost nothing in the step."""

from __future__ import annotations

from normbench.data.cache import Content, Source
from normbench.data.embedded import Digits, PythonDocs
from normbench.data.factories import digits, hub_images, hub_text, pydocs
from normbench.data.images import Images
from normbench.data.sources import Hub, HubImages, HubText
from normbench.data.text import Text, TextSource

__all__ = [
    "Content",
    "Digits",
    "Hub",
    "HubImages",
    "HubText",
    "Images",
    "PythonDocs",
    "Source",
    "Text",
    "TextSource",
    "digits",
    "hub_images",
    "hub_text",
    "pydocs",
]
