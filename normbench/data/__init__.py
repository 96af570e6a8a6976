"""Data sets: a source is decoded once into a memory-mapped cache, and gives batches that cost nothing in the step.

The functions are what the YAMLs in `conf/data/` name as `_target_`. `Images`, `Text` and `Texts` make batches of what a
`normbench.data.cache.Source` decodes to.
"""

from __future__ import annotations

from normbench.data.images import Images
from normbench.data.own import own_images, text_file
from normbench.data.sources import digits, hub_images, hub_text, hub_texts, pydocs
from normbench.data.text import Text, Texts

__all__ = ["Images", "Text", "Texts", "digits", "hub_images", "hub_text", "hub_texts", "own_images", "pydocs"]
__all__ += ["text_file"]
