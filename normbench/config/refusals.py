"""Which combinations are refused, and why: the whole list.

Everything else works; a refusal that is not on this list is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `normbench list` shows the refusals without the second that torch takes
    from normbench.types import Data, Model, NormFacts, Placement, When


@dataclass(frozen=True)
class Refusal:
    """One reason to refuse. `sections` are those whose choices clash; `applies` goes by what the parts declare."""

    sections: tuple[str, ...]
    what: str
    reason: str
    instead: str
    applies: Callable[[NormFacts, type[Placement], type[Model], type[Data]], bool]


def shown_by(norm: NormFacts, data: type[Data]) -> When:
    """Return when a norm shows a model what these data ask it to predict."""
    from normbench.types import Task

    return Task.by_kind[data.kind].shown_by(norm)


REFUSALS = (
    Refusal(
        ("model", "data"),
        "a CNN or MLP on text (pydocs, tinyshakespeare)",
        "the model is not made for this kind of data",
        "for text use model=nano, small or gpt2, for a CNN or MLP data=digits, mnist, fashion_mnist or cifar10",
        lambda norm, placement, model, data: data.kind not in model.kinds,
    ),
    Refusal(
        ("norm", "data"),
        "in a language model: instancenorm without running statistics, batchnorm without them, groupnorm with "
        "norm.across_time=true",
        "its statistics run over time, in evaluation too, so it would show the model the tokens that it is to predict",
        "use layernorm, rmsnorm, groupnorm at each position, or batchnorm with running statistics",
        lambda norm, placement, model, data: shown_by(norm, data) == "always",
    ),
    Refusal(
        ("norm", "model"),
        "instancenorm in an MLP",
        "its statistics run over time or space, and the features of this model have neither",
        "use layernorm, groupnorm or batchnorm, or a model with positions",
        lambda norm, placement, model, data: norm.needs_positions and not model.has_positions,
    ),
    Refusal(
        ("placement", "model"),
        "parallel where a block has one branch (CNNs, MLPs)",
        "parallel joins the branches of a block, and with one branch it would be pre",
        "use placement=pre",
        lambda norm, placement, model, data: model.residual and len(model.roles) < placement.min_branches,
    ),
    Refusal(
        ("placement", "model"),
        "a residual placement in a model without residuals (cnn_plain, vgg, mlp_plain)",
        "the model has no residual to place a norm around",
        "leave placement out, or use model=cnn or mlp",
        lambda norm, placement, model, data: placement.residual and not model.residual,
    ),
    Refusal(
        ("placement", "model"),
        "plain in a model with residuals",
        "plain has no residual, and this model is made of residual blocks",
        "use model=cnn_plain or mlp_plain, or another placement",
        lambda norm, placement, model, data: model.residual and not placement.residual,
    ),
)


def refusal(norm: NormFacts, placement: type[Placement], model: type[Model], data: type[Data]) -> Refusal | None:
    """Return the first reason to refuse this combination, or None."""
    return next((rule for rule in REFUSALS if rule.applies(norm, placement, model, data)), None)
