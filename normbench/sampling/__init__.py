"""What a trained model does: the text that it writes, and how it classifies validation data."""

from __future__ import annotations

from normbench.sampling.classes import Classified, classify
from normbench.sampling.page import draw_page
from normbench.sampling.text import Sampling, generate

__all__ = ["Classified", "Sampling", "classify", "draw_page", "generate"]
