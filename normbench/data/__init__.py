"""Data sets: a source is decoded once into a memory-mapped cache, and gives batches that cost nothing in the step."""

from __future__ import annotations

from normbench.data.cache import Content, Source
from normbench.data.embedded import Digits, PythonDocs
from normbench.data.factories import digits, hub_images, hub_text, hub_texts, own_images, pydocs, text_file
from normbench.data.hub import Hub
from normbench.data.imagefolder import ImageFolder
from normbench.data.images import Images
from normbench.data.imagetable import ImageTable
from normbench.data.sources import HubImages, HubText, HubTexts
from normbench.data.text import Text, TextSource
from normbench.data.textfile import TextFile
from normbench.data.texts import Texts

__all__ = [
    "Content",
    "Digits",
    "Hub",
    "HubImages",
    "HubText",
    "HubTexts",
    "ImageFolder",
    "ImageTable",
    "Images",
    "PythonDocs",
    "Source",
    "Text",
    "TextFile",
    "TextSource",
    "Texts",
    "digits",
    "hub_images",
    "hub_text",
    "hub_texts",
    "own_images",
    "pydocs",
    "text_file",
]
