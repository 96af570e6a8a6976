"""Which combinations are refused, and why: the whole list.

Everything else works; a refusal that is not on this list is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normbench.errors import CombinationRefused

if TYPE_CHECKING:  # `normbench list` shows the refusals without the second that torch takes
    from normbench.types import Data, Model, NormFacts, Placement, Task


@dataclass(frozen=True)
class Combination:
    """What was chosen: names as on the command line, and what they declare about themselves."""

    names: dict[str, str]  # norm, placement, model, data
    norm: NormFacts
    placement: type[Placement]
    model: type[Model]
    data: type[Data]

    @property
    def task(self) -> type[Task]:
        from normbench.types import Task

        return Task.by_kind[self.data.kind]


@dataclass(frozen=True)
class Refusal:
    """One reason to refuse. `sections` are those whose choices clash."""

    sections: tuple[str, ...]
    what: str
    reason: str
    instead: str
    applies: Callable[[Combination], bool]

    def sentence(self, combination: Combination) -> str:
        """What was given, why it is refused and how to go on."""
        given = " with ".join(f"{section}={combination.names[section]}" for section in self.sections)
        return f"{given} is refused: {self.reason}; {self.instead}"


REFUSALS = (
    Refusal(
        ("model", "data"),
        "a CNN or MLP on text (pydocs, tinyshakespeare)",
        "the model is not made for this kind of data",
        "for text use model=nano, small or gpt2, for a CNN or MLP data=digits, mnist, fashion_mnist or cifar10",
        lambda c: c.data.kind not in c.model.kinds,
    ),
    Refusal(
        ("norm", "data"),
        "in a language model: instancenorm without running statistics, batchnorm without them, groupnorm with "
        "norm.across_time=true",
        "its statistics run over time, in evaluation too, so it would show the model the tokens that it is to predict",
        "use layernorm, rmsnorm, groupnorm at each position, or batchnorm with running statistics",
        lambda c: c.task.shown_by(c.norm) == "always",
    ),
    Refusal(
        ("norm", "model"),
        "instancenorm in an MLP",
        "its statistics run over time or space, and the features of this model have neither",
        "use layernorm, groupnorm or batchnorm, or a model with positions",
        lambda c: c.norm.needs_positions and not c.model.has_positions,
    ),
    Refusal(
        ("placement", "model"),
        "parallel where a block has one branch (CNNs, MLPs)",
        "parallel joins the branches of a block, and with one branch it would be pre",
        "use placement=pre",
        lambda c: c.model.residual and len(c.model.roles) < c.placement.min_branches,
    ),
    Refusal(
        ("placement", "model"),
        "a residual placement in a model without residuals (cnn_plain, vgg, mlp_plain)",
        "the model has no residual to place a norm around",
        "leave placement out, or use model=cnn or mlp",
        lambda c: c.placement.residual and not c.model.residual,
    ),
    Refusal(
        ("placement", "model"),
        "plain in a model with residuals",
        "plain has no residual, and this model is made of residual blocks",
        "use model=cnn_plain or mlp_plain, or another placement",
        lambda c: c.model.residual and not c.placement.residual,
    ),
)


def refusal(combination: Combination) -> Refusal | None:
    """The first reason to refuse this combination, or None."""
    return next((rule for rule in REFUSALS if rule.applies(combination)), None)


def check(combination: Combination) -> None:
    """Let a combination pass.

    Raises:
        CombinationRefused: with the reason.
    """
    if (rule := refusal(combination)) is not None:
        raise CombinationRefused(rule.sentence(combination))
