"""Small sweeps that are planned only, and studies of a user's own for them."""

from __future__ import annotations

from pathlib import Path

from normbench.sweeping.conduct import Sweep, understand
from normbench.sweeping.grid import read_grid

DIGITS = ["model=cnn", "model.width=4", "data=digits", "trainer.steps=4", "device=cpu", "threads=1"]


def varied(*words: str) -> list[dict[str, str]]:
    return [dict(point.varied) for point in read_grid(words).points]


def planned(*words: str) -> Sweep:
    return understand([*words, *DIGITS])


def own_study(folder: Path, name: str, content: str) -> list[str]:
    """The words that choose a study that is written for one test."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{content}")
    return [f"experiment={name}", f"hydra.searchpath=['file://{folder}']"]


def params(*lines: str) -> str:
    """What a study's YAML holds for the sweep."""
    return "hydra:\n  sweeper:\n    params:\n" + "".join(f"      {line}\n" for line in lines)
