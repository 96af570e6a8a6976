"""The contract of a model: how it is made, its blocks, its starting weights, what its logits depend on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench import build
from normbench.config.recipe import Recipe
from normbench.contract import trials
from normbench.contract.checks import Check, Part, difference, drawn_by, expect, expect_small
from normbench.models import unsafe_convolutions
from normbench.types import ImageClassification, Model, Task

TASKS: dict[str, Task] = {task.kind: task for task in (trials.TEXT, trials.TEXTS, trials.IMAGES, trials.TRANSLATIONS)}
TOLERANCE = 1e-4  # of the largest logit, in float32
SIDE = 32  # of an image, in pixels; patches must tile it
LARGEST_PATCH = 256
MORE = 2  # tokens of padding than before


class ModelPart(Part):
    """A model, and what it could learn."""

    section = "model"

    def task(self, kind: str) -> Task:
        """Return a tiny task; patches tile its images, and most networks can halve them as often as they do."""
        task = TASKS[kind]
        if not isinstance(task, ImageClassification):
            return task
        side = SIDE
        patch = self.tree["model"].get("patch")
        if isinstance(patch, int) and 0 < patch <= LARGEST_PATCH:
            patches = math.ceil(SIDE / patch)
            side = patches * patch
        return replace(task, image_shape=(3, side, side))

    def make(self, kind: str) -> tuple[Model, dict[str, nn.Module], Any]:
        """Return the model with its starting weights, its norms, and data to learn."""
        data = trials.tiny_data(self.task(kind))
        norm = trials.sections("norm")["layernorm"]
        placement = trials.sections("placement")[self.usual_placement()]
        recipe = Recipe({**self.tree, "norm": norm, "placement": placement})
        model, norms = build.make_model(recipe, data.task, seed=0)
        return model, norms, data

    def usual_placement(self) -> str:
        """Return a placement that the model takes."""
        if self.made_class.hosted:
            return "own"
        return "pre" if self.made_class.residual else "plain"

    def norms(self) -> list[str]:
        """Return the norms with which it is trained; `own` is for models of other libraries alone."""
        return [name for name in trials.sections("norm") if name != "own" or self.made_class.hosted]

    def contract(self) -> dict[str, Check]:
        """Return the checks of a model by name, for each kind of task that it names."""
        checks: dict[str, Check] = {}
        for kind in sorted(self.made_class.kinds):
            task = TASKS[kind]
            for name, check in checks_of(task).items():
                checks[f"{task.examples}: {name}"] = partial(check, kind=kind)
            for norm in self.norms():
                checks[f"{task.examples}: {norm} trains"] = partial(trains, kind=kind, norm=norm)
        return checks


def checks_of(task: Task) -> dict[str, Callable[..., str | None]]:
    """Return the checks of a model that learns a task, by name."""
    checks: dict[str, Callable[..., str | None]] = {
        "constructor": is_made,
        "the seed decides the start": start_is_seeded,
        "evaluation is repeatable": evaluation_repeats,
    }
    if task.kind == trials.IMAGES.kind:
        checks["gradients are safe on the CPU"] = convolutions_are_safe
    if task.causal:
        checks["sees no later token"] = is_causal
    if task.may_pad:
        checks["padding changes nothing"] = ignores_padding
    return checks


def is_made(part: ModelPart, kind: str) -> str:
    """It can be made for a tiny task, has logits of its shape, and blocks of the branches in `roles`."""
    model, norms, data = part.make(kind)
    build.rehearse(model, norms, data, torch.device("cpu"))
    blocks = model.anatomy().blocks
    roles = set[str]()
    for block in blocks:
        roles.update(block.branches)
    expect(roles == set(model.roles), f"roles={tuple(model.roles)}, and its blocks have {sorted(roles)}")
    parameters = list(model.parameters())
    return f"{kind}; {len(blocks)} blocks, {len(norms)} norms, {len(parameters)} parameters"


def start_is_seeded(part: ModelPart, kind: str) -> None:
    """The same seed gives the same weights, by torch's random numbers, which are seeded where a model is made."""
    starts = list[dict[str, Tensor]]()

    def make_twice() -> None:
        for _ in range(2):
            model, _, _ = part.make(kind)
            starts.append(dict(model.named_parameters()))

    drawn = drawn_by(make_twice)
    first, second = starts
    different = [name for name in first if not torch.equal(first[name], second[name])]
    cure = "draw from torch, whose random numbers are seeded where a model is made"
    expect(not (drawn or different), f"draws from {drawn or 'elsewhere'}: {cure}")


def convolutions_are_safe(part: ModelPart, kind: str) -> None:
    """No 1 × 1 convolution has a stride and few channels, whose gradients oneDNN computes wrongly on many CPUs."""
    model, _, _ = part.make(kind)
    complaint = unsafe_convolutions(model)
    expect(not complaint, complaint)


@torch.no_grad()
def evaluate(model: Model, *arguments: Tensor) -> Any:
    """Return the logits in evaluation."""
    return model.eval()(*arguments)


def evaluation_repeats(part: ModelPart, kind: str) -> str:
    """Nothing random is left in evaluation."""
    model, _, data = part.make(kind)
    arguments = data.train_batch(0).arguments
    first = evaluate(model, *arguments)
    second = evaluate(model, *arguments)
    return expect_small(difference(first, second))


def is_causal(part: ModelPart, kind: str) -> str:
    """Change the later half of the tokens, and look at the logits before it."""
    model, _, data = part.make(kind)
    batch = data.train_batch(0)
    name = "inputs" if batch.previous is None else "previous"
    tokens = getattr(batch, name).clone()
    half = tokens.shape[1] // 2
    tokens[:, half:] = (tokens[:, half:] + 1) % data.task.num_classes
    changed = batch._replace(**{name: tokens})
    logits = evaluate(model, *batch.arguments)
    new_logits = evaluate(model, *changed.arguments)
    moved = difference(logits[:, :half], new_logits[:, :half])
    return expect_small(moved, TOLERANCE)


def ignores_padding(part: ModelPart, kind: str) -> str:
    """The same texts with more padding after them, whatever its tokens, have the same logits."""
    model, _, data = part.make(kind)
    batch = data.train_batch(0).map(lambda tensor: tensor[1:-1])  # the first or last text is as long as the context
    arguments = batch.map(lambda tensor: tensor[:, :-MORE] if tensor.ndim > 1 else tensor).arguments
    padded = list[Tensor]()
    for tokens, is_real in zip(arguments[::2], arguments[1::2], strict=True):  # each text comes with its mask
        others = torch.where(is_real, tokens, 1)
        padded.append(F.pad(others, (0, MORE)))
        padded.append(F.pad(is_real, (0, MORE)))
    logits = evaluate(model, *arguments)
    again = evaluate(model, *padded)
    if batch.previous is not None:
        is_real = arguments[-1]
        logits = logits[is_real]
        again = again[:, :-MORE][is_real]
    return expect_small(difference(again, logits), TOLERANCE)


def trains(part: ModelPart, kind: str, norm: str) -> str:
    """It builds, takes two steps, and has a gradient in every parameter, in each placement that goes with it."""
    tree = {**part.tree, "norm": trials.sections("norm")[norm]}
    return trials.train_with_each("placement", tree, part.task(kind), steps=2)
