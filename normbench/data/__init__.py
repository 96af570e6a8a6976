"""Data sets: a source is decoded once into a memory-mapped cache, and gives batches that cost nothing in the step.

The functions are what the YAMLs in `conf/data/` name as `_target_`. `Images`, `Text`, `Texts` and `Translations`, which
they return, make batches of a `normbench.data.cache.Content`.
"""

from __future__ import annotations

from normbench.data.own import own_images, own_texts, text_file
from normbench.data.sources import digits, hub_images, hub_text, hub_texts, pydocs
from normbench.data.translation import hub_translation

__all__ = [
    "digits",
    "hub_images",
    "hub_text",
    "hub_texts",
    "hub_translation",
    "own_images",
    "own_texts",
    "pydocs",
    "text_file",
]
