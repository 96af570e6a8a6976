"""Small trainings of every norm, placement and model together, but for the combinations that are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from normbench import assembly, compatibility
from normbench.catalog import options
from normbench.checking.gradients import without_gradient
from normbench.checking.outcomes import Outcome, failed, not_applicable, passed
from normbench.checking.samples import WIDTH, Tiny
from normbench.compose import compose, option
from normbench.config import Tree
from normbench.errors import UsageError, explain
from normbench.rehearsal import rehearse
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.types import Data

CPU = torch.device("cpu")
LEARNING_RATE, STEPS = 3e-3, 8

# Small models, by the words that make them.
TRANSFORMER = f"model=nano model.depth=2 model.width={WIDTH} model.heads=2"
CNN, CNN_PLAIN = f"model=cnn model.width={WIDTH}", f"model=cnn_plain model.width={WIDTH}"
MLP, MLP_PLAIN = f"model=mlp model.width={WIDTH}", f"model=mlp_plain model.width={WIDTH}"


@dataclass(frozen=True)
class Ground:
    """Where parts are tried: a model, and what it learns."""

    name: str
    words: str
    kind: str

    @property
    def tree(self) -> dict[str, Any]:
        """The configuration of a run of this model."""
        return composed(self.words)

    @property
    def data(self) -> Data:
        return Tiny(self.kind)


GROUNDS = (
    Ground("Transformer, text", TRANSFORMER, "language_model"),
    Ground("Transformer, images", TRANSFORMER, "image_classification"),
    Ground("CNN", CNN, "image_classification"),
    Ground("MLP", MLP, "image_classification"),
    Ground("plain CNN", CNN_PLAIN, "image_classification"),
    Ground("plain MLP", MLP_PLAIN, "image_classification"),
)


@cache
def composed(words: str) -> dict[str, Any]:
    """The configuration of `normbench train` with these words."""
    composition = compose("train", [*words.split(), f"optim.lr={LEARNING_RATE}"])
    assert composition is not None
    return composition.tree


@cache
def sections(group: str) -> dict[str, dict[str, Any]]:
    """The section of each option of a group."""
    return {name: option(group, name) for name in options(group)}


@dataclass
class Trials:
    """What came of several trainings.

    fell: by how much the loss fell, as a share of the first, by name. broken: what went wrong. refused: why not.
    """

    fell: dict[str, float] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def attempt(self, name: str, tree: Tree, data: Data, steps: int) -> None:
        """Train, or note why not."""
        if (reason := refusal(tree, data)) is not None:
            self.refused[name] = reason
            return
        try:
            losses = train(tree, data, steps)
        except Exception as error:  # a person's code may raise anything: that is a combination that broke
            self.broken[name] = explain(error)
        else:
            self.fell[name] = 1 - losses[-1] / losses[0]

    def outcome(self, must_learn: bool) -> Outcome:
        """All of it in one row. must_learn: the loss of one batch has to fall."""
        if self.broken:
            name, complaint = next(iter(self.broken.items()))
            more = f" (and {len(self.broken) - 1} more)" if len(self.broken) > 1 else ""
            return failed(f"{name}{more}: {complaint}")
        if not self.fell:
            return not_applicable(next(iter(self.refused.values())))
        if must_learn and (rising := [name for name, share in self.fell.items() if share <= 0]):
            return failed(f"the loss of one batch does not fall with {', '.join(rising)}")
        low, high = min(self.fell.values()), max(self.fell.values())
        shares = f"{low:.1%}" if len(self.fell) == 1 else f"{low:.1%} to {high:.1%}"
        falls = f"; the loss falls by {shares}" if must_learn else ""
        return passed(f"{', '.join(self.fell)}{falls}")


def refusal(tree: Tree, data: Data) -> str | None:
    """Why `normbench train` would refuse this combination, if it would."""
    combination = compatibility.Combination(
        names={},
        norm=assembly.norm_facts(tree),
        placement=assembly.made_class(tree, "placement"),
        model=assembly.made_class(tree, "model"),
        data=data,  # type: ignore[arg-type]  # its kind alone is read, which an instance has too
    )
    rule = compatibility.refusal(combination)
    return None if rule is None else rule.reason


def train(tree: Tree, data: Data, steps: int) -> list[float]:
    """The losses of some steps on one batch, as a run would take them.

    Raises:
        UsageError: a loss is not finite, or a parameter has no finite gradient at the last step.
    """
    model, norms = assembly.make_model(tree, data, seed=0)
    rehearse(model, norms, data, CPU)
    groups = parameter_groups(model, norms.values(), tree["optim"].get("weight_decay", 0.0), decay_norms=False)
    optimizer = make_optimizer(assembly.factory(tree, "optim"), groups, CPU)
    batch, losses = data.train_batch(0), []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = data.task.loss(model.train()(*batch.arguments), batch.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not torch.tensor(losses).isfinite().all():
        raise UsageError(f"the loss is not finite: {', '.join(f'{loss:.3g}' for loss in losses)}")
    if without := without_gradient(model):
        raise UsageError(f"no finite gradient in {', '.join(without[:3])}: let the loss depend on every parameter")
    return losses


def over_placements(tree: Tree, data: Data, steps: int, must_learn: bool = True) -> Outcome:
    """Train the norm and model of a configuration in every placement."""
    trials = Trials()
    for name, section in sections("placement").items():
        trials.attempt(name, {**tree, "placement": section}, data, steps)
    return trials.outcome(must_learn)


def over_norms(tree: Tree, data: Data, steps: int) -> Outcome:
    """Train every norm in the placement and model of a configuration."""
    trials = Trials()
    for name, section in sections("norm").items():
        trials.attempt(name, {**tree, "norm": section}, data, steps)
    return trials.outcome(must_learn=True)
