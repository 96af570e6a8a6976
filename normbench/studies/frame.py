"""What a study is: one class that measures subjects, which are points of a grid of configurations or trained runs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from torch import nn

from normbench import build
from normbench.config import compose
from normbench.config.groups import options, section_of
from normbench.config.recipe import Recipe
from normbench.config.schema import UNHASHED_KEYS, check_values
from normbench.config.signatures import settings_of_class
from normbench.errors import UsageError
from normbench.evidence.baselines import OF_HOST
from normbench.record.directory import fingerprint
from normbench.results.rows import Column, ResultTable, Stated, compare, compare_with_baseline, keys_of, values_of
from normbench.runs.identity import digest_weights, own_code, source_digest
from normbench.runs.load import TrainedRun, load_model
from normbench.runs.plan import without
from normbench.settings import Setting, Tree, key_of
from normbench.show.figures.figure import Figure
from normbench.show.tables import Table
from normbench.studies.figures import draw_curves
from normbench.training.memory import memory_of
from normbench.types import Data, Model, NormFacts, Task

Row = dict[str, Any]  # a coordinate (layer, step, ...) or a measured number by column

# Coordinates that TensorBoard takes for steps and curves for their axis, the first that there is.
PLACES = ("step", "layer", "position", "depth", "round")


class LeftOut(NamedTuple):
    """What a study does not measure, in words, and why."""

    what: str
    why: str


@dataclass(eq=False)
class Subject:
    """What is measured: a point of a grid with its model at initialisation, or a trained run.

    A subject equals only itself.

    Attributes:
        settings: what tells its arm from others, the norm always.
        tree: the configuration.
        load: reads the data.
        path: the run's directory, for a trained one.
        trust: as `TrainedRun` has it.
    """

    settings: Mapping[str, Any]
    tree: Tree
    device: torch.device
    load: Callable[[], Data]
    path: Path | None = None
    trust: bool = False

    @property
    def seed(self) -> int:
        """Return the seed of its configuration."""
        return int(self.tree["seed"])

    @cached_property
    def data(self) -> Data:
        """Return the data, which are read once."""
        return self.load()

    @cached_property
    def recipe(self) -> Recipe:
        """Return the parts of its configuration."""
        return Recipe(self.tree)

    @property
    def task(self) -> Task:
        """Return what the data ask of the model."""
        return self.data.task

    @property
    def facts(self) -> NormFacts:
        """Return what the norm declares about itself."""
        return build.norm_facts(self.recipe)

    @property
    def has_average(self) -> bool:
        """Tell whether it is a trained run that has kept an average of its weights."""
        trainer = self.tree["trainer"]
        kept = trainer["ema"] is not None or trainer.get("swa") is not None  # which older runs do not have
        return kept and self.path is not None

    def build(self, averaged: bool = False) -> tuple[Model, dict[str, nn.Module]]:
        """Return a model of its own, in evaluation mode, which calls every norm, and its norms by site.

        Args:
            averaged: with the average of a run's weights in place of the last ones.

        Raises:
            UsageError: the run has no such weights.
        """
        model, norms = build.make_model(self.recipe, self.task, self.seed)
        if self.path:
            trained = load_model(TrainedRun(self.path, self.trust), ema=averaged)
            model.load_state_dict(trained.state_dict())
        model.call_every_norm()
        return model.to(self.device).eval(), norms

    def key(self, study: Study) -> str:
        """Return eight hexadecimal digits for all that decides about its rows: study, configuration, weights, code.

        Raises:
            UsageError: the run has no weights.
        """
        saved = None
        if self.path:
            weights = self.path / "checkpoint.pt"
            if not weights.exists():
                cure = "trainer.keep_checkpoint=last keeps it, train it again"
                raise UsageError(f"{self.path} has no checkpoint: {cure}")
            saved = weights.stat().st_mtime_ns
        content: dict[str, Any] = {
            "study": [type(study).__name__, study.settings],
            "config": without(self.tree, UNHASHED_KEYS),
            "device": device_name(self.device),
            "weights": saved,
            "code": [our_code(), own_code(self.recipe), source_digest(type(study))],
        }
        given_weights = digest_weights(self.recipe["model"])
        if given_weights:
            content["given_weights"] = given_weights
        return fingerprint(content)


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, whose numbers and times no other has; of another device its kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def our_code() -> str:
    """Return a digest of all code of normbench."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Study(ABC):
    """An experiment; a subclass's annotated signature says what can be set by `study.KEY=VALUE`.

    A study measures; it may say in its own way what was found, in sentences, tables and figures. By default these are
    the means of all measured numbers, against the baseline. The class says `trains` and `together`; all other
    attributes stand in conf/study/NAME.yaml, which names the class.

    Attributes:
        trains: whether it measures runs that are trained first, or given.
        together: whether all subjects are measured at once.
        name: the word that names it on the command line.
        title: of its page.
        source: the papers that it follows.
        words: of the grid, as `normbench sweep` takes them; a person's own replace them, key by key.
        columns: of measured numbers and coordinates: words, unit, scale.
        captions: title and words of figures.
        baseline: the arm that others are compared with; of a model of another library it is norm=own, where an arm has
            that.
        miniature: words with which the tests make it in a second.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    words: ClassVar[Sequence[str]]
    columns: ClassVar[dict[str, Column]]
    captions: ClassVar[Mapping[str, Mapping[str, Any]]]
    baseline: Mapping[str, Any] = {"norm": "layernorm"}
    miniature: ClassVar[Sequence[str]] = (
        "model.depth=2", "model.width=16", "model.heads=2", "model.context=16", "data.batch_size=4",
        "data.eval_batch_size=8", "trainer.steps=4", "norm=layernorm,rmsnorm",
    )  # fmt: skip
    trains: ClassVar[bool] = False
    together: ClassVar[bool] = False

    settings: dict[str, Any]  # as they were set

    def __init_subclass__(cls) -> None:
        """Take the attributes of the class from the YAML that names it, if there is one."""
        path = f"{cls.__module__}.{cls.__qualname__}"
        cls.name = cls.__name__.lower()
        for name in options("study"):
            section = section_of("study", name)
            if section["_target_"] == path:
                cls.name = name
                cls.title = section["title"]
                cls.source = section["source"]
                cls.words = section["words"]
                cls.columns = {}
                for column, words in section["columns"].items():
                    cls.columns[column] = Column(*words)
                cls.captions = section.get("captions", {})
                cls.baseline = section.get("baseline", cls.baseline)
                cls.miniature = section.get("miniature", cls.miniature)

    # ---- what is measured

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

    # ---- what was found; rows: the settings of the arm, the seed, and what `measure` yields

    def choose_baseline(self, rows: pd.DataFrame) -> None:
        """Compare with the norms that a model of another library has by itself, where some arms have them and some not.

        Reports do so too.
        """
        norms = {*rows["norm"]}
        if OF_HOST["norm"] in norms and len(norms) > 1:
            self.baseline = OF_HOST

    def finding(self, rows: pd.DataFrame) -> Sequence[Stated]:
        """Return what was found: differences from the baseline, numbers where there is none, or sentences."""
        stated = list[Stated]()
        for metric in self.measured_in(rows):
            stated += self.compare_or_tell(rows, metric, f"mean {self.columns[metric].words}")
        return stated

    def tables(self, rows: pd.DataFrame) -> Sequence[Table | ResultTable]:
        """Return what was found as tables."""
        metrics = self.measured_in(rows)
        return [compare(rows, values=metrics, columns=self.columns, baseline=self.baseline, title=self.title)]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        """Draw what was found."""
        place = place_in(rows)
        if place is None:
            return []
        drawings = list[Figure]()
        for metric in self.measured_in(rows):
            words = self.columns[metric].words
            caption = f"By {self.columns[place].words}."
            title_and_caption = {"title": words, "caption": caption, **self.captions.get(metric, {})}
            drawings += draw_curves(metric, rows, x=place, y=metric, columns=self.columns, **title_and_caption)
        return drawings

    def measured_in(self, rows: pd.DataFrame) -> list[str]:
        """Return the numbers that were measured, in the order of the study's columns."""
        settings = keys_of(rows)
        return [name for name in measured_numbers(rows, self.columns) if name not in settings]

    def compare_or_tell(self, rows: pd.DataFrame, metric: str, number: str, ratio: bool = False) -> list[Stated]:
        """Return how a number differs from the baseline's in each other arm; the number itself where there is none.

        Args:
            rows: of the study.
            metric: the column of the number.
            number: what it is, in words, such as `effective smoothness`.
            ratio: take ratios and geometric means.
        """
        column = self.columns[metric]
        differences = compare_with_baseline(rows, metric, self.baseline, number, column.unit, ratio, column.better)
        if differences:
            return list(differences)
        return list(values_of(rows, metric, number, column.unit, ratio))


def place_in(rows: pd.DataFrame) -> str | None:
    """Return the column of the coordinate that orders rows, one of PLACES; None where they have none."""
    for name in PLACES:
        if name in rows:
            return name
    return None


def measured_numbers(rows: pd.DataFrame, columns: Mapping[str, Column]) -> list[str]:
    """Return the columns that hold what was measured, and not the place where it was."""
    place = place_in(rows)
    measured = []
    for name in columns:
        is_measured = name in rows and name != place
        if is_measured and pd.api.types.is_numeric_dtype(rows[name]):
            measured.append(name)
    return measured


def study_class(name: str) -> type[Study]:
    """Return the class that the YAML of a study names."""
    module, _, class_name = section_of("study", name)["_target_"].rpartition(".")
    kind: type[Study] = getattr(import_module(module), class_name)
    return kind


def known_settings(kind: type[Study]) -> dict[str, Setting]:
    """Return what can be set of a study."""
    return settings_of_class(kind) or {}


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that set something of a study, `study.KEY=VALUE`, and all others."""
    of_study, others = [], []
    for word in words:
        if key_of(word).startswith("study."):
            of_study.append(word)
        else:
            others.append(word)
    return of_study, others


def make_study(kind: type[Study], words: Sequence[str]) -> Study:
    """Return a study with what words such as `study.KEY=VALUE` set.

    Raises:
        UsageError: an unknown key, a wrong type, a value out of bounds.
    """
    known = known_settings(kind)
    settings = dict[str, Any]()
    for word in words:
        name = key_of(word).partition(".")[2]
        value = word.partition("=")[2]
        if takes_list(known.get(name)) and not value.startswith("[") and value != "null":
            value = f"[{value}]"  # which a person need not write
        settings[name] = compose.value_of(value)
    settings = check_values("study.", settings, known, f"study {kind.name}")
    study = kind(**settings)
    study.settings = settings
    return study


def takes_list(setting: Setting | None) -> bool:
    """Tell whether a setting holds several values."""
    return setting is not None and bool(setting.items)


def check_memory(needed: float, what: str, device: torch.device | None = None) -> None:
    """Refuse what needs more memory than there is.

    Args:
        needed: bytes.
        what: what needs them, in words that begin the complaint.
        device: whose memory it is; by default the CPU's.

    Raises:
        UsageError: it would not fit.
    """
    free, _ = memory_of(device or torch.device("cpu"))
    if needed > free:
        needed_gib, free_gib = needed / 2**30, free / 2**30
        raise UsageError(f"{what} needs about {needed_gib:,.1f} GiB, and {free_gib:,.1f} are free: use less")
