"""The contract of a model: how it is made, its blocks, its starting weights, what its logits depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench import assembly
from normbench.catalog import options
from normbench.checking.matrix import CPU, over_placements, refusal, sections
from normbench.checking.outcomes import Check, Outcome, failed, judged, passed
from normbench.checking.samples import Tiny
from normbench.config import Tree
from normbench.errors import UsageError
from normbench.rehearsal import rehearse
from normbench.types import Data, Model, Task

SIDE = 32  # pixels, at least: what most networks for small images can halve as often as they do
MOST_PIXELS = 256  # of a patch's side
TOLERANCE = 1e-4  # of the largest logit, in float32


@dataclass(frozen=True)
class ModelPart:
    """A model and its settings, in the configuration of a run."""

    tree: Tree

    @property
    def kinds(self) -> list[str]:
        """The tasks that it says it can do."""
        return sorted(assembly.made_class(self.tree, "model").kinds)  # type: ignore[attr-defined]  # a Model

    @property
    def side(self) -> int:
        """Pixels of the images that it is tried on, on a side: patches tile them."""
        patch = self.tree["model"].get("patch")
        if not isinstance(patch, int) or not 0 < patch <= MOST_PIXELS:
            return SIDE
        return patch * math.ceil(SIDE / patch)

    def tree_with(self, norm: str, data: Data) -> dict[str, Any]:
        """With a norm and the first placement that goes with both.

        Raises:
            UsageError: none does.
        """
        for placement in ("pre", *sections("placement")):
            tree = {**self.tree, "norm": sections("norm")[norm], "placement": sections("placement")[placement]}
            if refusal(tree, data) is None:
                return tree
        raise UsageError(f"no placement goes with this model and {norm}: check its kinds, roles and residual")

    def make(self, kind: str, norm: str = "layernorm") -> tuple[Model, dict[str, nn.Module], Data]:
        """The model with its starting weights, its norms, and what it could learn."""
        data = Tiny(kind, self.side)
        model, norms = assembly.make_model(self.tree_with(norm, data), data, seed=0)
        return model, norms, data


def contract(part: ModelPart) -> Iterator[Check]:
    """The checks of what every model must do, for each kind of task that it names."""
    for kind in part.kinds:
        task = Task.by_kind[kind]
        word = task.examples
        yield Check(f"{word}: constructor", partial(construct, part, kind), decisive=True)
        yield Check(f"{word}: logits of the task's shape", partial(logits_fit, part, kind))
        yield Check(f"{word}: blocks have the branches of roles", partial(roles_are_true, part, kind))
        yield Check(f"{word}: the seed decides the start", partial(start_is_seeded, part, kind))
        yield Check(f"{word}: evaluation is repeatable", partial(evaluation_repeats, part, kind))
        if task.causal:
            yield Check(f"{word}: sees no later token", partial(is_causal, part, kind))
        if task.may_pad:
            yield Check(f"{word}: padding changes nothing", partial(ignores_padding, part, kind))
        for norm in options("norm"):
            yield Check(f"{word}: {norm} trains", partial(trains_with, part, kind, norm))


def construct(part: ModelPart, kind: str) -> Outcome:
    """Made for a tiny task."""
    model, norms, _ = part.make(kind)
    count = sum(parameter.numel() for parameter in model.parameters())
    return passed(f"{kind}; {len(model.blocks)} blocks, {len(norms)} norms, {count:,} parameters")


def logits_fit(part: ModelPart, kind: str) -> Outcome:
    """The forward pass that a run begins with."""
    model, norms, data = part.make(kind)
    rehearse(model, norms, data, CPU)
    return passed(f"{list(model(*data.train_batch(0).arguments).shape)}")


def roles_are_true(part: ModelPart, kind: str) -> Outcome:
    """Placements are refused by what `roles` says."""
    model, _, _ = part.make(kind)
    found = {tuple(block.branches) for block in model.blocks}  # type: ignore[arg-type]  # a ModuleDict
    right = found == {tuple(model.roles)}
    cure = "" if right else f", and its blocks {', '.join(map(str, sorted(found)))}"
    return judged(right, f"roles={tuple(model.roles)}{cure}")


def start_is_seeded(part: ModelPart, kind: str) -> Outcome:
    """Made twice with other global random numbers; norms are compared by the same weights outside them."""
    starts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        starts.append(dict(part.make(kind)[0].named_parameters()))
    different = [name for name, weight in starts[0].items() if not torch.equal(weight, starts[1][name])]
    if different:
        return failed(
            f"{', '.join(different[:3])} differ with the same seed: start them from a constant, or from torch's random "
            "numbers, which are seeded where a model is made"
        )
    return passed(f"{len(starts[0])} parameters")


def evaluation_repeats(part: ModelPart, kind: str) -> Outcome:
    """Nothing random is left in evaluation."""
    model, _, data = part.make(kind)
    arguments = data.train_batch(0).arguments
    logits = [evaluated(model, *arguments) for _ in range(2)]
    same = torch.equal(*logits)
    return judged(same, "to the bit" if same else f"difference {difference(*logits):.1e}")


@torch.no_grad()
def evaluated(model: Model, *arguments: Tensor) -> Tensor:
    """Logits in evaluation mode."""
    logits: Tensor = model.eval()(*arguments)
    return logits


def difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def is_causal(part: ModelPart, kind: str) -> Outcome:
    """Change the later half of the tokens, and look at the logits before it."""
    model, _, data = part.make(kind)
    tokens = data.train_batch(0).inputs
    changed, half = tokens.clone(), tokens.shape[1] // 2
    changed[:, half:] = (changed[:, half:] + 1) % data.task.num_classes
    moved = difference(*(evaluated(model, each)[:, :half] for each in (changed, tokens)))
    return judged(moved < TOLERANCE, f"deviation {moved:.1e}")


def ignores_padding(part: ModelPart, kind: str) -> Outcome:
    """The same texts with more padding behind them, whatever its tokens."""
    model, _, data = part.make(kind)
    tokens, _, mask = data.train_batch(0)
    assert mask is not None
    shorter = tokens[1:, :-2], mask[1:, :-2]  # the first text is as long as the context
    filled = torch.where(shorter[1], shorter[0], 1)
    moved = difference(evaluated(model, F.pad(filled, (0, 2)), F.pad(shorter[1], (0, 2))), evaluated(model, *shorter))
    return judged(moved < TOLERANCE, f"deviation {moved:.1e}")


def trains_with(part: ModelPart, kind: str, norm: str) -> Outcome:
    """Builds, takes two steps, and has a gradient in every parameter, in each placement that goes with it."""
    return over_placements(
        {**part.tree, "norm": sections("norm")[norm]}, Tiny(kind, part.side), steps=2, must_learn=False
    )
