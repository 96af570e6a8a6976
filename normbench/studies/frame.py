"""What a study is: one class that measures subjects, which are points of a grid of configurations or trained runs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import nn

from normbench import build
from normbench.analysis.figures.style import Figure
from normbench.analysis.statistics import Sample
from normbench.analysis.tables import Table
from normbench.config import compose
from normbench.config.groups import options, section_of
from normbench.config.schema import UNHASHED_KEYS, checked_values
from normbench.config.signatures import settings_of_class
from normbench.errors import UsageError
from normbench.record.directory import fingerprint
from normbench.runs.load import TrainedRun, load_model
from normbench.runs.plan import without
from normbench.settings import Setting, Tree
from normbench.sweep.words import key_of
from normbench.training.memory import memory_of
from normbench.types import Data, Model, NormFacts, Task

Row = dict[str, Any]  # a coordinate (layer, step, ...) or a measured number by column


@dataclass(frozen=True)
class Column:
    """What a measured number is. words: as a table's head or an axis has it. scale: of an axis, linear or log."""

    words: str
    unit: str = ""
    scale: str = "linear"

    @property
    def label(self) -> str:
        """Return the words with the unit."""
        return f"{self.words} ({self.unit})" if self.unit else self.words


@dataclass(frozen=True)
class Difference:
    """A difference that a finding tells of; its sentence waits until all tests of the study are known.

    what: the difference, in words that begin the sentence. sample: its values by seed. ratio: they are logarithms to
    base 2, and are told as a ratio.
    """

    what: str
    sample: Sample
    unit: str = ""
    ratio: bool = False


@dataclass
class Subject:
    """What is measured: a point of a grid with its model at initialisation, or a trained run.

    settings: what tells its arm from others, the norm always. load: reads the data. path: the run's directory.
    """

    settings: Mapping[str, Any]
    tree: Tree
    device: torch.device
    load: Callable[[], Data]
    path: Path | None = None
    trust: bool = False

    @property
    def seed(self) -> int:
        """Return the seed."""
        return int(self.tree["seed"])

    @cached_property
    def data(self) -> Data:
        """The data."""
        return self.load()

    @property
    def task(self) -> Task:
        """Return what the data ask of the model."""
        return self.data.task

    @property
    def facts(self) -> NormFacts:
        """Return what the norm declares about itself."""
        return build.norm_facts(self.tree)

    def build(self) -> tuple[Model, dict[str, nn.Module]]:
        """Return a model of its own, in evaluation mode, and its norms by site.

        Raises:
            UsageError: the run has no such weights.
        """
        model, norms = build.make_model(self.tree, self.task, self.seed)
        if self.path:
            model.load_state_dict(load_model(TrainedRun(self.path, self.trust)).state_dict())
        return model.to(self.device).eval(), norms

    def key(self, study: Study) -> str:
        """Return what decides about its rows, in eight digits: study, configuration, weights, and all code.

        Raises:
            UsageError: the run has no weights.
        """
        weights = self.path / "checkpoint.pt" if self.path else None
        if weights and not weights.exists():
            raise UsageError(f"{self.path} has no checkpoint: trainer.keep_checkpoint=last keeps it, train it anew")
        content = {
            "study": [type(study).__name__, study.settings],
            "config": without(self.tree, UNHASHED_KEYS),
            "device": device_name(self.device),
            "weights": weights and weights.stat().st_mtime_ns,
            "code": [our_code(), build.own_code(self.tree), build.source_digest(type(study))],
        }
        return fingerprint(content)


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, whose numbers and times no other has; of another device its kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def our_code() -> str:
    """Return a digest of all code of normbench."""
    files = sorted(Path(__file__).parent.parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


class Study(ABC):
    """An experiment; a subclass's annotated signature says what can be set by `study.KEY=VALUE`.

    trains: whether it measures runs that are trained first, or given. together: whether all subjects are measured at
    once. What is said of it stands in conf/study/NAME.yaml. title: of its page. source: papers. words: of the grid, as
    `normbench sweep` takes them; a person's own replace them, key by key. columns: of measured numbers and coordinates:
    words, unit, scale. captions: title and words of figures. baseline: the arm that others are compared with.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    words: ClassVar[Sequence[str]]
    columns: ClassVar[dict[str, Column]]
    captions: ClassVar[Mapping[str, Mapping[str, Any]]]
    baseline: ClassVar[Mapping[str, Any]] = {"norm": "layernorm"}
    trains: ClassVar[bool] = False
    together: ClassVar[bool] = False

    settings: dict[str, Any]  # as they were set

    def __init_subclass__(cls) -> None:
        name = cls.__module__.rpartition(".")[2]
        for key, value in section_of("study", name).items() if name in options("study") else ():
            found = {column: Column(*words) for column, words in value.items()} if key == "columns" else value
            setattr(cls, key, found)

    def check(self, subject: Subject) -> None:  # noqa: B027 (most studies take every subject)
        """Refuse a subject before anything is trained or measured.

        Raises:
            UsageError: it cannot be measured.
        """

    @abstractmethod
    def measure(self, subject: Subject) -> Iterator[Row]:
        """Yield what is measured of a subject."""

    def measure_together(self, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Row]]:
        """Yield what is measured of all subjects at once, each row with its subject."""
        for subject in subjects:
            for row in self.measure(subject):
                yield subject, row

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        """Say what was found in sentences with its numbers, their intervals and the number of seeds."""
        return []

    @abstractmethod
    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Say what was found. rows: the settings of the arm, the seed, and what `measure` yields."""

    @abstractmethod
    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        """Draw what was found."""


def study_class(name: str) -> type[Study]:
    """Return the study of this name."""
    module = import_module(f"normbench.studies.{name}").__name__
    return next(one for one in Study.__subclasses__() if one.__module__ == module)


def known_settings(kind: type[Study]) -> dict[str, Setting]:
    """Return what can be set of a study."""
    return settings_of_class(kind) or {}


def make_study(kind: type[Study], words: Sequence[str]) -> Study:
    """Return a study with what words such as `study.KEY=VALUE` set.

    Raises:
        UsageError: an unknown key, a wrong type, a value out of bounds.
    """
    known, given = known_settings(kind), dict[str, Any]()
    for word in words:
        name, value = key_of(word).partition(".")[2], word.partition("=")[2]
        listed = name in known and known[name].items and not value.startswith("[") and value != "null"  # no brackets
        given[name] = compose.value_of(f"[{value}]" if listed else value)
    given = checked_values("study.", given, known, f"study {kind.__module__.rpartition('.')[2]}")
    study = kind(**given)
    study.settings = given
    return study


def check_memory(needed: float, what: str, device: torch.device | None = None) -> None:
    """Refuse what needs more memory than there is; needed: bytes.

    Raises:
        UsageError: it would not fit.
    """
    free, _ = memory_of(device or torch.device("cpu"))
    if needed > free:
        raise UsageError(f"{what} needs about {needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} are free: use less")
