"""A library of models: what it has, and how a model of it is built for a task.

None is imported before a model of it is asked for. Models start at random unless weights are asked for: else nothing is
downloaded, no file is read, and no code ever runs beside that of the installed packages.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from textwrap import shorten
from typing import Any, ClassVar

from torch import nn

from normbench.errors import UsageError, explain
from normbench.hosts.callers import Caller
from normbench.hosts.importing import import_library, refuse_other_torchvision
from normbench.hosts.weights import PRETRAINED, RANDOM, Saved, refuse_code
from normbench.hub import explain_silence, is_empty, look_here_alone, models_kept
from normbench.settings import nearest, show
from normbench.types import Task

Options = Mapping[str, Any]

# What options may not hold, since it would load something: see `refuse_loading`.
LOADING = ("pretrained", "checkpoint", "weights", "cache_dir", "hub", "trust_remote_code", "auto_map", "code_revision")
DRAWING = "init_weights"  # an option of GoogLeNet and Inception v3 that loads nothing: how weights are drawn


@dataclass(frozen=True)
class Host:
    """A model of another library, with what calls it.

    Attributes:
        module: the model.
        call: gives the logits of the module for inputs and, where texts are padded, their mask.
        packages: whose code it is, with their versions.
        decided: the sizes that the task and the library decided, and nobody gave.
        anew: the names of the parameters that start at random though all others are trained.
    """

    module: nn.Module
    call: Caller
    packages: Mapping[str, str]
    decided: Mapping[str, Any]
    anew: Sequence[str] = ()

    @property
    def head(self) -> nn.Module | None:
        """Return the output layer; None where it has no weights of its own, or where that is not known."""
        return self.call.head(self.module)

    @property
    def stem(self) -> nn.Module | None:
        """Return what embeds tokens; None of a model of images."""
        return self.call.stem(self.module)


class Library(ABC):
    """A library of models, which has no state of its own.

    Attributes:
        word: its option of `model=`, and the extra that installs it.
        packages: whose versions decide about numbers, the first of which is imported.
        options: the setting that holds the options of a model.
        kinds: the tasks that its models can do.
        where_names_are: where a person finds the names of its models.
        cure_of_forward: what to do where a model cannot be called with the data.
        name_in_folder: the key with a model's name in the config.json beside its weights.
    """

    word: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    options: ClassVar[str]
    kinds: ClassVar[frozenset[str]]
    where_names_are: ClassVar[str]
    cure_of_forward: ClassVar[str]
    name_in_folder: ClassVar[str] = "architecture"

    def load(self, module: str = "") -> Any:
        """Import the library, or a module of it.

        Raises:
            UsageError: it is not installed, or what it needs does not fit.
        """
        library = import_library(self.packages[0])
        return import_module(f"{self.packages[0]}.{module}") if module else library

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages whose code runs."""
        return dict(installed(self.packages))

    def check(self, name: str, options: Options, kind: str) -> None:
        """Refuse a model that there is not, and options that would load something.

        Args:
            name: of the model.
            options: of it.
            kind: of the task.

        Raises:
            UsageError: with the nearest names.
        """
        if not self.has(name, kind):
            what = f"model.name={name} is not a model of {self.packages[0]} {version(self.packages[0])}"
            cure = f"{nearest(name, self.names(kind))}{self.where_names_are}"
            raise UsageError(f"{what} for {kind.replace('_', ' ')}: {cure}")
        refuse_loading(f"model.{self.options}", options)

    def explain_silence(self) -> str:
        """Return why that from which trained weights come does not answer; empty where it does."""
        return explain_silence()

    def reach(self, name: str) -> None:
        """Refuse trained weights where none are kept here and their source does not answer, before anything is read.

        Raises:
            UsageError: with the folder in which they were looked for.
        """
        silence = self.explain_silence() if is_empty(models_kept()) else ""
        if silence:
            raise UsageError(self.say_unreachable(name, silence))

    def say_unreachable(self, name: str, silence: str) -> str:
        """Return a sentence on trained weights that are not here, and whose source does not answer."""
        given = f"the weights of model={self.word} model.name={name} are not here"
        cure = "connect to a network, or give the folder or file of a copy, as model.weights=PATH"
        return f"{given} ({models_kept()} does not have them), and {silence}: {cure}"

    @abstractmethod
    def names(self, kind: str) -> list[str]:
        """Return the names of the models for a kind of task."""

    def has(self, name: str, kind: str) -> bool:
        """Tell whether it has a model of this name for a kind of task."""
        return name in self.names(kind)

    @abstractmethod
    def make(self, name: str, options: Options, task: Task, image_size: int | str | None) -> Host:
        """Return a model for a task, with starting weights that are drawn from torch's random numbers."""

    @abstractmethod
    def make_trained(self, name: str, options: Options, task: Task, image_size: int | str | None, weights: str) -> Host:
        """Return a model for a task, with weights that were trained. weights: `pretrained`, or where they are.

        Raises:
            UsageError: they are not there, or do not fit.
        """

    def check_saved(self, name: str, saved: Saved, where: str) -> None:
        """Refuse a folder that says that its weights are of another model.

        Raises:
            UsageError: with the name that it says.
        """
        said = saved.about.get(self.name_in_folder)
        if said is not None and said != name:
            raise UsageError(f"{where} has weights of {said}, not of {name}: set model.name={said}")

    def build(
        self, name: str, options: Options, task: Task, image_size: int | str | None = "auto", weights: str = RANDOM
    ) -> Host:
        """Return a model for a task, with weights that are drawn from torch's random numbers, or were trained.

        Args:
            name: of the model.
            options: of it, beside what the task decides: classes, channels, size, vocabulary.
            task: what it is to do.
            image_size: pixels of the shorter side to which images are scaled; None: they stay as they are; "auto":
                see `scaled_size`.
            weights: `random`; `pretrained`, those that the library has by the model's name; or a folder or file.

        Raises:
            UsageError: there is no such model, it cannot be built, or the weights are not there or do not fit.
        """
        if weights == PRETRAINED:
            refuse_loading(f"model.{self.options}", options)
            self.load()  # which sets how much the hub's client says
            silence = self.explain_silence()
            try:
                with say_nothing("huggingface_hub"), look_here_alone(silence):
                    return self.make_trained(name, options, task, image_size, weights)
            except UsageError:
                raise
            except Exception as error:  # of the network, or of what comes from it
                refuse_other_torchvision(self.packages[0], error)
                if silence:
                    raise UsageError(self.say_unreachable(name, silence)) from error
                what = f"model={self.word} model.name={name} has no weights on the hub, or it cannot be reached"
                cure = "give the folder or file of a copy, as model.weights=PATH"
                raise UsageError(f"{what} ({explain(error)}): {cure}") from error
        self.check(name, options, task.kind)
        try:
            if weights != RANDOM:
                return self.make_trained(name, options, task, image_size, weights)
            return self.make(name, options, task, image_size)
        except UsageError:
            raise
        except Exception as error:  # of a library that is given what it does not take
            refuse_other_torchvision(self.packages[0], error)
            said = shorten(str(error), 200)  # of several lines the last may tell what is wrong
            what = f"model={self.word} model.name={name} cannot be built ({type(error).__name__}: {said})"
            cure = f"see model.{self.options}={show(dict(options))}"
            raise UsageError(f"{what}: {cure}, or choose another model.name") from error


# ---- what is installed, and what is refused


def installed(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Give the version of each package that is installed."""
    for name in packages:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def refuse_loading(where: str, options: Options) -> None:
    """Refuse options that would load a file, a kernel, another's weights or another's code.

    Args:
        where: the setting that holds them.
        options: by name, nested or not.

    Raises:
        UsageError: with the first one.
    """
    refuse_code(options, where)
    for name, value in options.items():
        path = f"{where}.{name}"
        named = str(name)
        is_told_to = named.startswith("_") or (named != DRAWING and any(word in named for word in LOADING))
        names_a_file = False
        for word in values_in(value):
            if isinstance(word, Mapping):
                refuse_loading(path, word)
            elif isinstance(word, str) and ("/" in word or ":" in word):
                names_a_file = True
        if is_told_to or names_a_file:
            why = "would load a file or code, and a model starts at random"
            raise UsageError(f"{path}={show(value)} {why}: leave it out")


def values_in(value: Any) -> Iterator[Any]:
    """Give a value, or those in a list, in lists of lists too."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from values_in(item)
    else:
        yield value


@contextmanager
def say_nothing(name: str) -> Iterator[None]:
    """Let a library log nothing inside but errors that end it."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above `most`; 1 where `most` is below 1."""
    largest = 1
    for divisor in range(2, most + 1):
        if number % divisor == 0:
            largest = divisor
    return largest
