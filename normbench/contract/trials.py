"""What parts are tried on: random inputs, tiny tasks of every kind, and small trainings.

And what norms and placements are held to alike, each a module whose output is like its input.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbench import build
from normbench.config.compose import read
from normbench.config.groups import options, section_of
from normbench.config.recipe import Recipe
from normbench.config.refusals import refusal
from normbench.contract.checks import Check, NotApplicable, Part, difference, expect, expect_small, gradients_arrive
from normbench.errors import ContractError, explain
from normbench.settings import Tree
from normbench.training.precision import make_precision
from normbench.translation import Translation
from normbench.types import Data, ImageClassification, LanguageModeling, Task, TextClassification

WIDTH = 24  # small, with many divisors for groups
LAYOUTS = {
    "flat": (6, WIDTH),
    "sequence": (4, 7, WIDTH),
    "image": (4, WIDTH, 3, 5),
}
AXES = {
    "flat": "(batch, features)",
    "sequence": "(batch, time, features)",
    "image": "(batch, channels, height, width)",
}


def channel_dim(layout: str) -> int:
    """Return where the features of a layout are."""
    return 1 if layout == "image" else -1


def random_input(layout: str, seed: int = 0, width: int = WIDTH) -> Tensor:
    """Return normal numbers in float64, whose mean is not 0 and whose standard deviation is not 1."""
    generator = torch.Generator().manual_seed(seed)
    shape = list(LAYOUTS[layout])
    shape[channel_dim(layout)] = width
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5 + 0.5


def tiny_data(task: Task) -> Any:
    """Return one random batch of a task, always the same, as a stand-in for data."""
    batch = task.random_batch(4, torch.Generator().manual_seed(0))
    return SimpleNamespace(task=task, kind=task.kind, train_batch=lambda step: batch)


TEXT = LanguageModeling(vocabulary_size=17, context=16)
TEXTS = TextClassification(num_classes=5, vocabulary_size=17, context=16)
IMAGES = ImageClassification(num_classes=5, image_shape=(3, 16, 16))
TRANSLATIONS = Translation(vocabulary_size=17, context=8)

# Where norms and placements are tried: the words for a small model, and what it learns.
SEQ2SEQ = f"model=seq2seq model.depth=1 model.decoder_depth=2 model.width={WIDTH} model.hidden={WIDTH} model.heads=2"
TRANSFORMER = f"model=nano model.depth=2 model.width={WIDTH} model.heads=2"
MLP = f"model=mlp model.width={WIDTH}"
GROUNDS: dict[str, tuple[str, Task]] = {
    "Transformer, text": (TRANSFORMER, TEXT),
    "Transformer, images": (TRANSFORMER, IMAGES),
    "Transformer, translation": (SEQ2SEQ, TRANSLATIONS),
    "CNN": (f"model=cnn model.width={WIDTH}", IMAGES),
    "MLP": (MLP, IMAGES),
    "plain CNN": (f"model=cnn_plain model.width={WIDTH}", IMAGES),
    "plain MLP": (f"model=mlp_plain model.width={WIDTH}", IMAGES),
    "recurrent, translation": (f"model=rnnsearch model.width={WIDTH} model.embedding={WIDTH}", TRANSLATIONS),
}
LEARNING_RATE = 3e-3
STEPS = 8
CPU = torch.device("cpu")


@cache
def read_words(words: str) -> dict[str, Any]:
    """Return the configuration of `normbench train` with these words."""
    return read([*words.split(), f"optim.lr={LEARNING_RATE}"]).tree


@cache
def sections(group: str) -> dict[str, dict[str, Any]]:
    """Return the section of each option of a group."""
    return {name: section_of(group, name) for name in options(group)}


def train(tree: Tree, data: Data, steps: int) -> list[float]:
    """Return the losses of the first steps on some data, as a run would take them.

    Raises:
        ContractError: a loss or gradient is not finite, or a parameter has no gradient at the last step.
    """
    # with a constant learning rate, since a warm-up would be all of so few steps
    recipe = Recipe({**tree, "schedule": section_of("schedule", "constant")})
    model, norms = build.make_model(recipe, data.task, seed=0)
    build.rehearse(model, norms, data, CPU)
    precision = make_precision(tree["trainer"]["precision"], CPU)
    stepper = build.make_stepper(recipe, model, norms, data, precision, steps)
    model.train()
    losses = list[float]()
    for number in range(steps):
        stepper.set_learning_rates(number)
        loss = stepper.gradients(stepper.local_batches(number))
        losses.append(loss.item())
        so_far = ", ".join(f"{value:.3g}" for value in losses)
        is_finite = stepper.admits(number, loss)
        expect(is_finite, f"the loss or its gradient is not finite: {so_far}")
        if number == steps - 1:
            gradients_arrive(model)
        stepper.update()
    return losses


def train_with_each(group: str, tree: Tree, task: Task, steps: int = STEPS) -> str:
    """Train with every option of a group that goes with the rest; return which, and by how much the loss fell.

    Raises:
        ContractError: a training breaks off, or in all steps the loss of its one batch does not fall.
        NotApplicable: no option goes with the rest.
    """
    data = tiny_data(task)
    fell = dict[str, float]()
    refused = ""
    for name, section in sections(group).items():
        combined = {**tree, group: section}
        recipe = Recipe(combined)
        placement = recipe["placement"].made
        model = recipe["model"].made
        if placement.of_host != model.hosted:
            continue
        rule = refusal(build.norm_facts(recipe), placement, model, data)
        if rule:
            refused = rule.reason
            continue
        try:
            losses = train(combined, data, steps)
        except Exception as error:  # a person's code may raise anything: that is a combination that broke
            raise ContractError(f"{name}: {explain(error)}") from error
        fell[name] = 1 - losses[-1] / losses[0]
        expect(steps < STEPS or fell[name] > 0, f"the loss of one batch does not fall with {name}")
    if not fell:
        raise NotApplicable(refused)
    return f"{', '.join(fell)}; the loss falls by {min(fell.values()):.1%} to {max(fell.values()):.1%}"


# ---- norms and placements


class ModulePart(Part):
    """A norm or a placement. partners: the group of which it is trained with every option that goes with it."""

    partners: ClassVar[str]

    @property
    def width(self) -> int:
        """Features that it is tried on: an even number, four or more in each of its groups."""
        groups = self.tree[self.section].get("groups")
        if not isinstance(groups, int):
            return WIDTH
        pairs = max(2, math.ceil(WIDTH / (2 * groups)))  # of features in a group
        return 2 * groups * pairs

    @property
    def layouts(self) -> list[str]:
        """The layouts that it is made for."""
        return list(LAYOUTS)

    def module(self, layout: str) -> nn.Module:
        """Return the part as a model would make it, with parameters if it can have any."""
        raise NotImplementedError  # each kind of part makes its own

    def input(self, layout: str, seed: int = 0) -> Tensor:
        """Return a random input of its width, in float64."""
        if layout not in self.layouts:
            raise NotApplicable("it needs positions")
        return random_input(layout, seed, width=self.width)

    def trained(self, layout: str) -> nn.Module:
        """Return the module in float64 after a few batches, its parameters unlike their start, so that each shows."""
        module = self.module(layout).double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
        for seed in range(3):
            run(module, self.input(layout, seed=10 + seed))
        return module

    def cases(self) -> Iterator[tuple[nn.Module, Tensor]]:
        """Yield the module after a few batches, and another input, for each layout that it is made for."""
        for layout in self.layouts:
            yield self.trained(layout), self.input(layout)


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Return the output; a module that draws random numbers draws the same each time."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes a hundred times as long
    y: Tensor = module(x)
    return y


def run_both(module: nn.Module, x: Tensor) -> Tensor:
    """Return the output in evaluation, and that in training."""
    return torch.stack((run(module.eval(), x), run(module.train(), x)))


def keeps_shape(part: ModulePart, layout: str) -> str:
    """Its output has its input's shape and dtype."""
    for dtype in (torch.float32, torch.float64):
        x = part.input(layout).to(dtype)
        module = part.module(layout).to(dtype)
        y, _ = run_both(module, x)
        figure = f"{list(x.shape)} of {x.dtype} to {list(y.shape)} of {y.dtype}"
        is_kept = y.shape == x.shape and y.dtype == x.dtype
        expect(is_kept, f"{figure}: keep the shape, and end forward with .to(x.dtype)")
    return f"{list(x.shape)}"


def parameters_learn(part: ModulePart) -> str:
    """A backward pass in training leaves a finite gradient in each parameter."""
    for module, x in part.cases():
        if not list(module.parameters()):
            raise NotApplicable("it has no parameters")
        # many norms give the same sum, and the same sum of squares, whatever x is: those would have no gradient
        run(module, x.requires_grad_()).pow(3).sum().backward()
        arrived = gradients_arrive(module)
    return arrived


def copies_agree(part: ModulePart) -> str:
    """A deepcopy, and a new module with the state_dict, give the same as the module after some training."""
    differences = []
    for layout in part.layouts:
        module = part.trained(layout)
        copied = copy.deepcopy(module)
        new = part.module(layout).double()
        new.load_state_dict(module.state_dict())
        x = part.input(layout)
        expected = run_both(module, x)
        for other in (copied, new):
            differences.append(difference(run_both(other, x), expected))
    return expect_small(max(differences))


def trains(part: ModulePart, ground: str) -> str:
    """It trains with each of its partners that goes with it."""
    words, task = GROUNDS[ground]
    tree = read_words(words)
    model = {**tree["model"], "width": part.width}
    tree_with_part = {**tree, part.section: part.tree[part.section], "model": model}
    return train_with_each(part.partners, tree_with_part, task)


def shape_checks() -> dict[str, Check]:
    """Return a check of each layout by name."""
    return {f"keeps {axes}": partial(keeps_shape, layout=layout) for layout, axes in AXES.items()}


def training_checks() -> dict[str, Check]:
    """Return a check of each ground by name."""
    return {f"trains: {ground}": partial(trains, ground=ground) for ground in GROUNDS}
