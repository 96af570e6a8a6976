"""Libraries of models: what they have, how a model of theirs is built for a task, and how it is called with a batch.

None of them is imported before a model of it is asked for. Models start at random unless weights are asked for: else
nothing is downloaded, no file is read, and no code ever runs beside that of the installed packages.
"""

from __future__ import annotations

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from textwrap import shorten
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError, explain
from normbench.hosts.libraries import import_library, refuse_other_torchvision
from normbench.hosts.weights import (
    MARK,
    OF_TORCH,
    PRETRAINED,
    RANDOM,
    Saved,
    check_fit,
    find_saved,
    put_in_weights,
    read_tensors,
    refuse_code,
    refuse_swapped,
    take_weights,
)
from normbench.hub import explain_silence, is_empty, look_here_alone, models_kept
from normbench.settings import either, nearest, show
from normbench.types import ImageClassification, LanguageModeling, Task, TextClassification

Options = Mapping[str, Any]
Size = tuple[int, int]  # of an image: height and width

SMALLEST_SIDE = 32  # pixels: networks for images halve them up to five times
COLOURS = 3  # channels that models of torchvision read
FEWEST_PATCHES = 4  # along a side
HEAD_SIZE = 32  # features of a head of attention, where nothing else is said
USUAL_SIZES = {"hidden_size": 128, "num_hidden_layers": 4}  # of conf/model/hf.yaml
MULTIPLE = 8  # of which widths inside a block are

# What configurations of transformers call the widths that go with that of the stream.
INNER_WIDTHS = ("intermediate_size", "ffn_dim", "hidden_dim", "embedding_size", "word_embed_proj_dim")

# What options may not hold, since it would load something: see `refuse_loading`.
LOADING = ("pretrained", "checkpoint", "weights", "cache_dir", "hub", "trust_remote_code", "auto_map", "code_revision")


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
    call: Call
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


class Call(ABC):
    """How a model is called, and where it begins and ends."""

    @abstractmethod
    def __call__(self, host: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logits."""

    @abstractmethod
    def head(self, host: nn.Module) -> nn.Module | None:
        """Return the output layer of a model."""

    def stem(self, host: nn.Module) -> nn.Module | None:
        """Return what makes the stream of a text."""
        return None


@dataclass(frozen=True)
class CallWithImages(Call):
    """Calls a classifier with images, which are scaled and, where they are grey, have their channel several times.

    Nothing depends on the images that it is given, so that torch.fx can follow.

    Attributes:
        size: to which they are scaled; None: they stay as they are.
        shrinks: whether they are larger than that.
        channels: how many times a grey image has its channel; None: images stay as they are.
    """

    size: Size | None
    shrinks: bool = False
    channels: int | None = None

    def __call__(self, host: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        x = inputs
        if self.size is not None:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=self.shrinks)
        if self.channels is not None:
            x = x.expand(-1, self.channels, -1, -1)
        return logits_of(host, host(x))

    def head(self, host: nn.Module) -> nn.Module | None:
        get_classifier = getattr(host, "get_classifier", None)  # as all of timm's have it
        last: nn.Module | None = get_classifier() if get_classifier else None
        if last is not None:
            return last
        for module in host.modules():
            if isinstance(module, nn.Linear):
                last = module
        return last


@dataclass(frozen=True)
class CallWithTokens(Call):
    """Calls a model of texts with tokens and, where texts are padded, their mask.

    Attributes:
        more: what it is given besides.
        offset: added to tokens, so that the model's own token of padding stands for nothing else.
        padding: that token.
    """

    more: Mapping[str, Any]
    offset: int = 0
    padding: int = 0

    def __call__(self, host: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        tokens = inputs + self.offset if self.offset else inputs
        if mask is None:
            return logits_of(host, host(input_ids=tokens, **self.more))
        padded = tokens.masked_fill(~mask, self.padding)
        return logits_of(host, host(input_ids=padded, attention_mask=mask.long(), **self.more))

    def head(self, host: Any) -> nn.Module | None:
        output: nn.Module | None = host.get_output_embeddings()
        if output is None:
            return getattr(host, "score", None) or getattr(host, "classifier", None)
        embedding = host.get_input_embeddings()
        is_tied = getattr(output, "weight", None) is getattr(embedding, "weight", None)
        return None if is_tied else output

    def stem(self, host: Any) -> nn.Module | None:
        embedding: nn.Module | None = host.get_input_embeddings()
        return embedding


def logits_of(host: nn.Module, output: Any) -> Tensor:
    """Return the logits of what a model gives.

    Raises:
        UsageError: it gives something else, such as the logits of several heads.
    """
    logits = output  # a tensor, or what torch.fx has in its place
    if isinstance(output, tuple | Mapping):
        logits = getattr(output, "logits", None)
    if logits is None or isinstance(logits, tuple | Mapping):
        what = f"{type(host).__name__} gives a {type(output).__name__}"
        raise UsageError(f"{what}, and not logits: choose another model.name, or an option without further outputs")
    found: Tensor = logits
    return found


# ---- libraries


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


class ImageLibrary(Library):
    """A library of classifiers of images, which are made for a task first, and then take weights by name."""

    options = "kwargs"
    kinds = frozenset({"image_classification"})
    cure_of_forward = "set model.image_size=64 or larger, or see model.kwargs"

    def make_trained(self, name: str, options: Options, task: Task, image_size: int | str | None, weights: str) -> Host:
        host = self.make(name, options, task, image_size)
        if weights == PRETRAINED:
            where = f"what {self.packages[0]} has as {name}"
            tensors = self.pretrained(name)
        else:
            where = f"model.weights={weights}"
            saved = find_saved(weights)
            self.check_saved(name, saved, where)
            tensors = take_weights(read_tensors(saved.files), host.module.state_dict(), where, saved.part)
        return replace(host, anew=put_in_weights(host.module, tensors, where, host.head))

    @abstractmethod
    def pretrained(self, name: str) -> Mapping[str, Tensor]:
        """Return the weights of a model that its library has by name, from the network or what is kept of it here."""


class Timm(ImageLibrary):
    """timm (Wightman 2019): its classifiers of images."""

    word = "timm"
    packages = ("timm", "torchvision")
    where_names_are = "python -c 'import timm; print(*timm.list_models())' lists them"

    def names(self, kind: str) -> list[str]:
        found: list[str] = self.load().list_models()
        return found

    def has(self, name: str, kind: str) -> bool:
        found: bool = self.load().is_model(name)  # also with the tag of pretrained weights, which are not loaded
        return found and ":" not in name

    def make(self, name: str, options: Options, task: Task, image_size: int | str | None) -> Host:
        assert isinstance(task, ImageClassification)
        timm = self.load()
        channels, *pixels = task.image_shape
        size = scaled_size(pixels, image_size)
        of_task: dict[str, Any] = {"num_classes": task.num_classes, "in_chans": channels}
        known = timm.get_pretrained_cfg(name)
        if getattr(known, "fixed_input_size", False):  # by which timm itself tells that a model is given the size
            of_task["img_size"] = size
            of_task |= self.finer_patches(name, options, size)
        module = timm.create_model(name, pretrained=False, **{**of_task, **options})
        call = CallWithImages(None if size == tuple(pixels) else size, shrinks=size[0] < pixels[0])
        return Host(module, call, self.versions(), of_task)

    def pretrained(self, name: str) -> Mapping[str, Tensor]:
        model: nn.Module = self.load().create_model(name, pretrained=True)
        return model.state_dict()

    def finer_patches(self, name: str, options: Options, size: Size) -> dict[str, int]:
        """Return the size of patches of which an image has enough, where a model takes it and has larger ones."""
        if "patch_size" in options:
            return {}
        outline = outline_of(self.load().create_model, name, pretrained=False, **options)
        embedding = getattr(outline, "patch_embed", None)
        patch = getattr(embedding, "patch_size", None)
        if outline is None or "patch_size" not in parameters_of(type(outline)) or patch is None:
            return {}
        side = min(size)
        largest = max(patch) if isinstance(patch, tuple | list) else int(patch)
        if side // largest >= FEWEST_PATCHES:
            return {}
        common = math.gcd(*size)  # patches must fill height and width
        return {"patch_size": largest_divisor(common, side // FEWEST_PATCHES)}


class Torchvision(ImageLibrary):
    """torchvision: its classifiers of images."""

    word = "torchvision"
    packages = ("torchvision",)
    where_names_are = (
        "python -c 'import torchvision.models as m; print(*m.list_models(module=m))' lists those of images"
    )

    def names(self, kind: str) -> list[str]:
        models: Any = self.load("models")
        found: list[str] = models.list_models(module=models)
        return found

    def make(self, name: str, options: Options, task: Task, image_size: int | str | None) -> Host:
        assert isinstance(task, ImageClassification)
        models: Any = self.load("models")
        channels, *pixels = task.image_shape
        size = scaled_size(pixels, image_size)
        of_task: dict[str, Any] = {"num_classes": task.num_classes}
        outline = outline_of(models.get_model, name, weights=None, **options)
        taken = () if outline is None else parameters_of(type(outline))
        if "image_size" in taken:
            of_task["image_size"] = size[0]
        elif "input_size" in taken:
            of_task["input_size"] = size
        module = models.get_model(name, weights=None, **{**of_task, **options})
        call = CallWithImages(
            size=None if size == tuple(pixels) else size,
            shrinks=size[0] < pixels[0],
            channels=COLOURS if channels == 1 else None,
        )
        return Host(module, call, self.versions(), of_task)

    def explain_silence(self) -> str:
        """Return nothing: its weights are elsewhere, and its client tries once by itself."""
        return ""

    def pretrained(self, name: str) -> Mapping[str, Tensor]:
        found: Mapping[str, Tensor] = self.load("models").get_model(name, weights="DEFAULT").state_dict()
        return found


class Transformers(Library):
    """transformers (Wolf et al. 2020): its causal language models, and its classifiers of texts."""

    word = "hf"
    packages = ("transformers",)
    options = "config"
    kinds = frozenset({"language_model", "text_classification"})
    where_names_are = "give a model type, such as llama, gpt2, olmo2, gemma3, qwen3 or bert"
    cure_of_forward = "see model.config, or choose another model.name"
    name_in_folder = "model_type"

    def names(self, kind: str) -> list[str]:
        auto: Any = self.load("models.auto.modeling_auto")
        mapping = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if kind == TextClassification.kind:
            mapping = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        return sorted(mapping)

    def make(self, name: str, options: Options, task: Task, image_size: int | str | None) -> Host:
        assert isinstance(task, LanguageModeling | TextClassification)
        transformers: Any = self.load()
        with quietly(transformers):
            default = transformers.AutoConfig.for_model(name).get_text_config()  # of a model of images and texts a part
            check_known(default, options)
            options = take_one_name_each(default, options)
            decided = self.decide(default, options, task)
            config = type(default)(**decided, **options)
            auto, call = self.kind_for(task)
            if isinstance(task, TextClassification):
                call = replace(call, offset=1)
            module = auto.from_config(config, trust_remote_code=False)
        sizes = {name: value for name, value in decided.items() if type(value) is int}
        return Host(module, call, self.versions(), sizes)

    def kind_for(self, task: Task) -> tuple[Any, CallWithTokens]:
        """Return the class of transformers that makes a model for a task, and how that is called."""
        transformers: Any = self.load()
        if isinstance(task, TextClassification):
            return transformers.AutoModelForSequenceClassification, CallWithTokens({})
        return transformers.AutoModelForCausalLM, CallWithTokens({"use_cache": False})

    def make_trained(self, name: str, options: Options, task: Task, image_size: int | str | None, weights: str) -> Host:
        """Return a model with the configuration that its weights have; of the options what is no size counts."""
        assert isinstance(task, LanguageModeling | TextClassification)
        transformers: Any = self.load()
        place = name
        where = f"what the hub has as {name}"
        saved = None
        if weights != PRETRAINED:
            saved = find_saved(weights)
            where = f"model.weights={weights}"
            if saved.folder is None or not saved.about:
                raise UsageError(f"{where} has no config.json: give a folder, as save_pretrained writes it")
            self.check_saved(name, saved, where)
            place = str(saved.folder)
        from_here: dict[str, Any] = {"local_files_only": weights != PRETRAINED, "trust_remote_code": False}
        with quietly(transformers):
            about, _ = transformers.PreTrainedConfig.get_config_dict(place, **from_here)  # as it is written
            refuse_code(about, where)
            refuse_swapped(MARK in about, where)
            config = transformers.AutoConfig.from_pretrained(place, **from_here)
            config = config.get_text_config()
            check_known(config, options)
            options = take_one_name_each(config, options)
            refuse_other_sizes(config, options, where)
            for key, value in options.items():
                if type(value) is not int:
                    setattr(config, f"_{key}" if key in OF_TORCH else key, value)
            self.check_sizes(config, task, where)
            config.use_cache = False
            auto, call = self.kind_for(task)
            if isinstance(task, TextClassification):
                config.num_labels = task.num_classes
                if isinstance(config.pad_token_id, int):
                    call = replace(call, padding=config.pad_token_id)
            how: dict[str, Any] = {
                "config": config,
                "dtype": torch.float32,
                "ignore_mismatched_sizes": True,
                "output_loading_info": True,
            }
            module, loaded = auto.from_pretrained(place, use_safetensors=True, **how, **from_here)
            has_other_names = loaded["missing_keys"] and loaded["unexpected_keys"]
            if saved and (saved.part or has_other_names):
                tensors = take_weights(read_tensors(saved.files), module.state_dict(), where, saved.part)
                module, loaded = type(module).from_pretrained(None, state_dict=tensors, **how)
        anew = self.check_loaded(module, call, loaded, where)
        return Host(module, call, self.versions(), {}, anew)

    def check_sizes(self, config: Any, task: LanguageModeling | TextClassification, where: str) -> None:
        """Refuse weights for other tokens, or for shorter texts, than the data have.

        Raises:
            UsageError: with both numbers.
        """
        if config.vocab_size != task.vocabulary_size:
            what = f"{where} has {config.vocab_size:,} tokens, and the data have {task.vocabulary_size:,}"
            cure = "set data.level=hf data.tokenizer=PATH, of its tokenizer.json"
            if config.vocab_size > task.vocabulary_size:
                cure += f", with data.vocabulary_size={config.vocab_size} where that file has fewer"
            raise UsageError(f"{what}: {cure}")
        longest = getattr(config, "max_position_embeddings", None)
        if isinstance(longest, int) and longest < task.context:
            what = f"{where} takes {longest:,} tokens at once, and the data have {task.context:,}"
            raise UsageError(f"{what}: set model.context={longest}")

    def check_loaded(self, module: nn.Module, call: Call, loaded: Mapping[str, Any], where: str) -> list[str]:
        """Refuse weights that do not fit; return the names of what starts anew, which only an output layer may.

        Args:
            module: the model.
            call: how it is called.
            loaded: what transformers says of loading it.
            where: the weights come from.

        Raises:
            UsageError: with the first names.
        """
        head = call.head(module)
        head_paths = [path for path, each in module.named_modules() if each is head]
        mismatched = [str(key[0]) for key in loaded["mismatched_keys"]]
        other_in_head, other = split_names(mismatched, head_paths)
        missing_in_head, missing = split_names(sorted(loaded["missing_keys"]), head_paths)
        check_fit(where, missing=missing, unknown=sorted(loaded["unexpected_keys"]), other=other)
        return [*other_in_head, *missing_in_head]

    def decide(self, default: Any, options: Options, task: LanguageModeling | TextClassification) -> dict[str, Any]:
        """Return what the task and the given sizes decide of a configuration, less what the options say themselves."""
        decided: dict[str, Any] = {"vocab_size": task.vocabulary_size, "use_cache": False}
        for token in ("bos_token_id", "eos_token_id"):
            decided[token] = None
        if isinstance(task, TextClassification):
            decided["num_labels"] = task.num_classes
            decided["vocab_size"] += 1
            decided["pad_token_id"] = 0  # which none of the data's tokens is: see CallWithTokens
            decided["max_position_embeddings"] = task.context + 1  # some count positions from 1, and 0 is padding
        else:
            decided["pad_token_id"] = None  # an embedding of padding is not trained
            decided["max_position_embeddings"] = task.context
            decided["is_decoder"] = True
        decided |= decide_sizes(default, options)
        names = {own_name(default, key) for key in options}
        found: dict[str, Any] = {}
        for key, value in decided.items():
            is_there = key == "num_labels" or has_field(default, key)
            if is_there and own_name(default, key) not in names:
                found[own_name(default, key)] = value
        return found


def split_names(names: Iterable[str], paths: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the names of tensors of the modules at some paths, and the other names."""
    inside = []
    outside = []
    for name in names:
        path = name.rpartition(".")[0]
        if path in paths:
            inside.append(name)
        else:
            outside.append(name)
    return inside, outside


LIBRARIES: dict[str, Library] = {library.word: library for library in (Timm(), Torchvision(), Transformers())}


def build_host(
    library: str,
    name: str,
    options: Options,
    task: Task,
    image_size: int | str | None = "auto",
    weights: str = RANDOM,
) -> Host:
    """Return a model of another library for a task: `Library.build` of the library with this word.

    It draws from torch's random numbers, so that whoever wants the same start again seeds these before.

    Raises:
        UsageError: there is no such library or model, or it cannot be built.
    """
    if library not in LIBRARIES:
        cure = f"{nearest(library, LIBRARIES)}use {either(LIBRARIES)}"
        raise UsageError(f"{library} is not a library of models: {cure}")
    return LIBRARIES[library].build(name, options, task, image_size, weights)


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
        is_told_to = named.startswith("_") or any(word in named for word in LOADING)
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
        for each in value:
            yield from values_in(each)
    else:
        yield value


def check_known(default: Any, options: Options) -> None:
    """Refuse options that a configuration of transformers does not have, which it would take and leave unused.

    Raises:
        UsageError: with the nearest names.
    """
    known = [*vars(default), *default.attribute_map]
    for name in options:
        if not (has_field(default, name) or name == "num_labels" or name in OF_TORCH):
            cure = f"{nearest(name, known)}see the documentation of {type(default).__name__}"
            raise UsageError(f"model.config.{name} is not in the configuration of {default.model_type}: {cure}")


def take_one_name_each(default: Any, options: Options) -> dict[str, Any]:
    """Return options in which no size that nobody gives hides one that is given by another name, as GPT-2's `n_layer`.

    Raises:
        UsageError: a setting is given by two names, with two values.
    """
    names_of = defaultdict[str, list[str]](list)
    for name in options:
        names_of[own_name(default, name)].append(name)
    found = dict(options)
    for names in names_of.values():
        if len(names) == 1:
            continue
        for name in names:
            if options[name] == USUAL_SIZES.get(name):
                del found[name]
        left = [name for name in names if name in found]
        values = {options[name] for name in left}
        if len(values) > 1:
            given = [f"model.config.{name}={show(options[name])}" for name in left]
            raise UsageError(f"{' and '.join(given)} are the same setting of {default.model_type}: give one of them")
    return found


def refuse_other_sizes(config: Any, options: Options, where: str) -> None:
    """Refuse sizes that trained weights do not have, but for those that a model has where nobody gives any.

    Raises:
        UsageError: with the first one.
    """
    for name, value in options.items():
        own = getattr(config, name, None)
        if type(value) is int and value not in (own, USUAL_SIZES.get(name)):
            what = f"{where} has {own_name(config, name)}={own}, and model.config.{name}={value} is given"
            raise UsageError(f"{what}: leave that out, since trained weights say their sizes")


# ---- sizes


def scaled_size(pixels: Iterable[int], image_size: int | str | None) -> Size:
    """Return the height and width to which images are scaled, whose shorter side has `image_size` pixels then.

    Args:
        pixels: height and width.
        image_size: None: they stay as they are; "auto": they do, unless the shorter side is below SMALLEST_SIDE, to
            which it is brought.
    """
    height, width = pixels
    shorter = min(height, width)
    wanted = max(shorter, SMALLEST_SIDE) if image_size == "auto" else (image_size or shorter)
    scale = int(wanted) / shorter
    return round(height * scale), round(width * scale)


def decide_sizes(default: Any, options: Options) -> dict[str, Any]:
    """Return the sizes of a text model that follow from its width, where a person gives the width.

    Heads have HEAD_SIZE features, there are as many heads for each head of keys as there are by default, and what is
    inside a block is as much wider or narrower than the stream as it is by default.

    Args:
        default: the configuration of the model's type.
        options: what was given.
    """
    given = {own_name(default, name): value for name, value in options.items()}
    width = given.get(own_name(default, "hidden_size"))
    usual_width = getattr(default, "hidden_size", None)
    if not isinstance(width, int) or not isinstance(usual_width, int) or width == usual_width:
        return {}
    found = decide_heads(default, given, width)
    for name in INNER_WIDTHS:
        usual = getattr(default, name, None)
        if isinstance(usual, int) and has_field(default, name):
            inner_width = width * usual / usual_width
            found[name] = max(MULTIPLE, MULTIPLE * round(inner_width / MULTIPLE))
    return found


def decide_heads(default: Any, given: Options, width: int) -> dict[str, Any]:
    """Return how many heads a text model of some width has, and of how many features.

    Args:
        default: the configuration of the model's type.
        given: what was given, by the names that the configuration has.
        width: features of the stream.
    """
    usual_heads = getattr(default, "num_attention_heads", None)
    if not isinstance(usual_heads, int):
        return {}
    most = max(1, width // HEAD_SIZE)
    heads = given.get(own_name(default, "num_attention_heads"), largest_divisor(width, most))
    found: dict[str, Any] = {"num_attention_heads": heads}
    usual_shared = getattr(default, "num_key_value_heads", None)
    if isinstance(usual_shared, int):
        found["num_key_value_heads"] = max(1, heads * usual_shared // usual_heads)
    usual_size = getattr(default, "head_dim", None)
    if isinstance(usual_size, int) and has_field(default, "head_dim"):
        size = given.get(own_name(default, "head_dim"), width // heads)
        found["head_dim"] = size
        if getattr(default, "query_pre_attn_scalar", None) == usual_size:
            found["query_pre_attn_scalar"] = size
    return found


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above `most`; 1 where `most` is below 1."""
    found = 1
    for divisor in range(2, most + 1):
        if number % divisor == 0:
            found = divisor
    return found


def own_name(config: Any, name: str) -> str:
    """Return the name that a configuration of transformers itself has for a size, such as `n_embd`."""
    return str(config.attribute_map.get(name, name))


def has_field(config: Any, name: str) -> bool:
    """Tell whether a configuration of transformers holds a value of this name, and does not compute it of others."""
    return own_name(config, name) in vars(config)


# ---- looking at a model before it is built


def outline_of(make: Callable[..., nn.Module], *arguments: Any, **options: Any) -> nn.Module | None:
    """Return a model without memory for its weights, to see what its class is; None where that cannot be made."""
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.device("meta"):
        return make(*arguments, **options)
    return None


def parameters_of(kind: type) -> list[str]:
    """Return the names of what a class is made with."""
    return list(inspect.signature(kind).parameters)


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


@contextmanager
def quietly(transformers: Any) -> Iterator[None]:
    """Let transformers say nothing inside but errors, and draw no bars."""
    messages = transformers.utils.logging
    before = messages.get_verbosity()
    has_bars = messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(before)
        if has_bars:
            messages.enable_progress_bar()
