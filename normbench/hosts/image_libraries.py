"""Libraries of classifiers of images, timm and torchvision, and the sizes that a task's images decide."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normbench.hosts.building import Host, Library, Options, largest_divisor
from normbench.hosts.callers import ImageCaller, Size
from normbench.hosts.weights import PRETRAINED, find_saved, put_in_weights, read_tensors, take_weights
from normbench.types import ImageClassification, Task

SMALLEST_SIDE = 32  # pixels: networks for images halve them up to five times
COLOURS = 3  # channels that models of torchvision read
FEWEST_PATCHES = 4  # along a side


class ImageLibrary(Library):
    """A library of classifiers of images, which are made for a task first, and then take weights by name."""

    options = "kwargs"
    kinds = frozenset({"image_classification"})
    cure_of_forward = "set model.image_size=64 or larger, or see model.kwargs"

    def make_trained(self, name: str, options: Options, task: Task, image_size: int | str | None, weights: str) -> Host:
        assert isinstance(task, ImageClassification)
        host = self.make(name, options, task, image_size)
        if weights == PRETRAINED:
            where = f"what {self.packages[0]} has as {name}"
            tensors = self.pretrained(name)
        else:
            where = f"model.weights={weights}"
            saved = find_saved(weights)
            self.check_saved(name, saved, where)
            tensors = take_weights(read_tensors(saved.files), host.module.state_dict(), where, saved.part)
        other = self.outline(name, {**host.decided, **options, "num_classes": task.num_classes + 1})
        heads = find_heads(host, other, tensors)
        return replace(host, anew=put_in_weights(host.module, tensors, where, heads))

    @abstractmethod
    def outline(self, name: str, options: Options) -> nn.Module | None:
        """Return a model without memory for its weights; None where it cannot be made so."""

    @abstractmethod
    def pretrained(self, name: str) -> Mapping[str, Tensor]:
        """Return the weights of a model that its library has by name, from the network or what is kept of it here."""


class Timm(ImageLibrary):
    """timm (Wightman 2019): its classifiers of images."""

    word = "timm"
    packages = ("timm", "torchvision")
    where_names_are = "python -c 'import timm; print(*timm.list_models())' lists them"

    def names(self, kind: str) -> list[str]:
        names: list[str] = self.load().list_models()
        return names

    def has(self, name: str, kind: str) -> bool:
        is_known: bool = self.load().is_model(name)  # also with the tag of pretrained weights, which are not loaded
        return is_known and ":" not in name

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
        call = ImageCaller(None if size == tuple(pixels) else size, shrinks=size[0] < pixels[0])
        return Host(module, call, self.versions(), of_task)

    def outline(self, name: str, options: Options) -> nn.Module | None:
        return outline_of(self.load().create_model, name, pretrained=False, **options)

    def pretrained(self, name: str) -> Mapping[str, Tensor]:
        model: nn.Module = self.load().create_model(name, pretrained=True)
        return model.state_dict()

    def finer_patches(self, name: str, options: Options, size: Size) -> dict[str, int]:
        """Return the size of patches of which an image has enough, where a model takes it and has larger ones."""
        if "patch_size" in options:
            return {}
        outline = self.outline(name, options)
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
        names: list[str] = models.list_models(module=models)
        return names

    def make(self, name: str, options: Options, task: Task, image_size: int | str | None) -> Host:
        assert isinstance(task, ImageClassification)
        models: Any = self.load("models")
        channels, *pixels = task.image_shape
        size = scaled_size(pixels, image_size)
        of_task: dict[str, Any] = {"num_classes": task.num_classes}
        outline = self.outline(name, options)
        taken = () if outline is None else parameters_of(type(outline))
        if "image_size" in taken:
            of_task["image_size"] = size[0]
        elif "input_size" in taken:
            of_task["input_size"] = size
        module = models.get_model(name, weights=None, **{**of_task, **options})
        call = ImageCaller(
            size=None if size == tuple(pixels) else size,
            shrinks=size[0] < pixels[0],
            channels=COLOURS if channels == 1 else None,
        )
        return Host(module, call, self.versions(), of_task)

    def outline(self, name: str, options: Options) -> nn.Module | None:
        return outline_of(self.load("models").get_model, name, weights=None, **options)

    def explain_silence(self) -> str:
        """Return nothing: its weights are elsewhere, and its client tries once by itself."""
        return ""

    def pretrained(self, name: str) -> Mapping[str, Tensor]:
        weights: Mapping[str, Tensor] = self.load("models").get_model(name, weights="DEFAULT").state_dict()
        return weights


def scaled_size(pixels: Iterable[int], image_size: int | str | None) -> Size:
    """Return the height and width to which images are scaled, whose shorter side has `image_size` pixels then.

    Args:
        pixels: height and width.
        image_size: None: they stay as they are; "auto": they do, unless the shorter side is below SMALLEST_SIDE, to
            which it is brought.
    """
    height, width = pixels
    shorter = min(height, width)
    wanted_size = max(shorter, SMALLEST_SIDE) if image_size == "auto" else (image_size or shorter)
    scale = int(wanted_size) / shorter
    return round(height * scale), round(width * scale)


def find_heads(host: Host, other: nn.Module | None, tensors: Collection[str]) -> list[nn.Module]:
    """Return the output layers of a classifier of images, also those beside the one that judges.

    Such others are the heads of a distilled model and, as in GoogLeNet, outputs on the way that train alone. They are
    the modules with another shape in a model for other classes. Where weights lack the branch that leads to such an
    output, as where they were trained without it, it is the whole branch.

    Args:
        host: the model.
        other: the same for another number of classes; None where there is none to compare with.
        tensors: the names of those that are put into it.
    """
    module = host.module
    head = host.head
    others = {} if other is None else other.state_dict()
    heads = [] if head is None else [head]
    inside = set[nn.Module]() if head is None else set(head.modules())
    for name, tensor in module.state_dict().items():
        if name not in others or others[name].shape == tensor.shape:
            continue
        path = name.rpartition(".")[0]
        if not path:  # a parameter of the whole model
            continue
        branch = path.rpartition(".")[0]
        if branch and not any(given.startswith(f"{branch}.") for given in tensors):
            path = branch
        output = module.get_submodule(path)
        if output not in inside:
            heads.append(output)
            inside |= set(output.modules())
    return heads


def outline_of(make: Callable[..., nn.Module], *arguments: Any, **options: Any) -> nn.Module | None:
    """Return a model without memory for its weights, to see what its class is; None where that cannot be made."""
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.device("meta"):
        return make(*arguments, **options)
    return None


def parameters_of(kind: type) -> list[str]:
    """Return the names of what a class is made with."""
    return list(inspect.signature(kind).parameters)
