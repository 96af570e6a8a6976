"""Preloaded by the server of `killing`: what reads configurations is warm there, a third of a small run's time."""

from __future__ import annotations

from tiny_runs import MODELS, words

from normbench.config.compose import read

for model in MODELS:
    read(words(model)[1:])
