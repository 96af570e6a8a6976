"""Which combinations are refused, and why: the whole list. Everything else works; a refusal beyond it is a bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `normbench list` shows the refusals without the second that torch takes
    from normbench.types import Data, Model, NormFacts, Placement, Task


@dataclass(frozen=True)
class Combination:
    """What the parts of a run declare; a refusal looks only at the two that it is between.

    Attributes:
        task: of the data; None: their kind is not known.
        init: how weights start; None: it is not asked about.
    """

    norm: NormFacts
    placement: type[Placement]
    model: type[Model]
    data: type[Data]
    task: type[Task] | None
    init: type | None = None


@dataclass(frozen=True)
class Refusal:
    """One reason to refuse.

    Attributes:
        between: the sections whose choices clash.
        what: options that clash.
        applies: whether a combination is refused.
    """

    between: tuple[str, str]
    what: str
    reason: str
    instead: str
    applies: Callable[[Combination], bool]


def is_other_kind(run: Combination) -> bool:
    """Tell whether the model is not made for this kind of data."""
    return run.data.kind not in run.model.kinds


def shows_targets(run: Combination) -> bool:
    """Tell whether the norm's statistics show what is to be predicted, in evaluation too."""
    return run.task is not None and run.task.leaks(run.norm) == "always"


def lacks_positions(run: Combination) -> bool:
    """Tell whether the norm's statistics run over positions that the model's features do not have."""
    return run.norm.needs_positions and not run.model.has_positions


def moves_at_each_step(run: Combination) -> bool:
    """Tell whether the norm's state moves once a pass, and the model calls it at each time step."""
    return run.norm.once_a_pass and run.model.recurrent


def lacks_branches(run: Combination) -> bool:
    """Tell whether the placement joins more branches than a residual block of the model has."""
    return run.model.residual and len(run.model.roles) < run.placement.min_branches


def lacks_residual(run: Combination) -> bool:
    """Tell whether the placement is around a residual that the model does not have."""
    return run.placement.residual and not run.model.residual


def lacks_placement(run: Combination) -> bool:
    """Tell whether the model has residuals, and the placement is for models without them."""
    return run.model.residual and not run.placement.residual


def lacks_streams(run: Combination) -> bool:
    """Tell whether the placement has several streams, and the model one."""
    return run.placement.streams > 1 and run.model.residual and not run.model.has_streams


def lacks_host(run: Combination) -> bool:
    """Tell whether the norm is that of a model of another library, and the model is ours."""
    return run.norm.of_host and not run.model.hosted


def moves_norms_of_host(run: Combination) -> bool:
    """Tell whether the placement would say where the norms of another library's model stand."""
    return run.model.hosted and not run.placement.of_host


def lacks_blocks_of_host(run: Combination) -> bool:
    """Tell whether the placement is that of a model of another library, and the model is ours."""
    return run.placement.of_host and not run.model.hosted


def starts_as_host(init: type) -> bool:
    """Tell whether a way to start leaves weights as a model of another library has drawn them."""
    return getattr(init, "of_host", False)


def draws_for_host(run: Combination) -> bool:
    """Tell whether weights would be drawn for a model of another library, which draws its own."""
    return run.model.hosted and run.init is not None and not starts_as_host(run.init)


def lacks_start_of_host(run: Combination) -> bool:
    """Tell whether the start is to be that of a model of another library, and the model is ours."""
    return not run.model.hosted and run.init is not None and starts_as_host(run.init)


REFUSALS = (
    Refusal(
        ("model", "data"),
        what="a CNN or MLP on text (pydocs, tinyshakespeare), a model of translations on other data, another model on "
        "translations",
        reason="the model is not made for this kind of data",
        instead="for text use model=nano, small, gpt2 or rnn_lm, for a CNN or MLP data=digits, mnist, fashion_mnist or "
        "cifar10, for translations model=seq2seq or rnnsearch with data=multi30k",
        applies=is_other_kind,
    ),
    Refusal(
        ("norm", "model"),
        what="own in our own models",
        reason="it leaves the norms of another library's model as they are, and this model has none but those of norm=",
        instead="use norm=layernorm or another one, or model=timm, torchvision or hf",
        applies=lacks_host,
    ),
    Refusal(
        ("placement", "model"),
        what="any but own in models of other libraries (timm, torchvision, hf)",
        reason="whether the norm or the branch comes first is written in the forward of that library's model",
        instead="leave placement out, or choose a model that has it: with model=hf llama has pre, bert post, olmo2 "
        "post_inside and gemma3 sandwich; with model=timm vit_* has pre and swinv2_* post_inside",
        applies=moves_norms_of_host,
    ),
    Refusal(
        ("placement", "model"),
        what="own in our own models",
        reason="it leaves the norms of another library's model where they stand, and the blocks of this one are made "
        "by a placement",
        instead="use placement=pre or another one, or model=timm, torchvision or hf",
        applies=lacks_blocks_of_host,
    ),
    Refusal(
        ("init", "model"),
        what="any but own in models of other libraries (timm, torchvision, hf)",
        reason="that library's model draws its own start, from the run's seed, whatever its norms are",
        instead="leave init out",
        applies=draws_for_host,
    ),
    Refusal(
        ("init", "model"),
        what="own in our own models",
        reason="it leaves weights as another library's model draws them, and this model is ours",
        instead="leave init out, use init=xavier or another one, or model=timm, torchvision or hf",
        applies=lacks_start_of_host,
    ),
    Refusal(
        ("norm", "data"),
        what="in a language model or translator: frn, evonorm_b0, switchable, instancenorm without running statistics, "
        "batchnorm without them, groupnorm with norm.across_time=true",
        reason="its statistics run over time, in evaluation too, so it would show the model the tokens that it is to "
        "predict",
        instead="use layernorm, rmsnorm, groupnorm at each position, or batchnorm with running statistics",
        applies=shows_targets,
    ),
    Refusal(
        ("norm", "model"),
        what="instancenorm, frn, evonorm_b0 or switchable in an MLP or a recurrent model",
        reason="its statistics run over time or space, and the features of this model have neither",
        instead="use layernorm, groupnorm or batchnorm, or a model with positions",
        applies=lacks_positions,
    ),
    Refusal(
        ("norm", "model"),
        what="powernorm in a recurrent model",
        reason="its state moves in the backward pass too, and this model calls it at each time step",
        instead="use layernorm, groupnorm or batchnorm, or a model without recurrence",
        applies=moves_at_each_step,
    ),
    Refusal(
        ("placement", "model"),
        what="parallel or b2t where a block has one branch (CNNs, MLPs)",
        reason="it joins the branches of a block, and a block of this model has one",
        instead="use placement=pre, which parallel would be, or post",
        applies=lacks_branches,
    ),
    Refusal(
        ("placement", "model"),
        what="a residual placement in a model without residuals (cnn_plain, vgg, mlp_plain, rnnsearch, rnn_lm)",
        reason="the model has no residual to place a norm around",
        instead="leave placement out, or use model=cnn, mlp or seq2seq",
        applies=lacks_residual,
    ),
    Refusal(
        ("placement", "model"),
        what="plain in a model with residuals",
        reason="plain has no residual, and this model is made of residual blocks",
        instead="use model=cnn_plain, mlp_plain, rnnsearch or rnn_lm, or another placement",
        applies=lacks_placement,
    ),
    Refusal(
        ("placement", "model"),
        what="resi_dual, siamese, x0 or hyper_connections in a model of your own that takes one stream",
        reason="the placement has several streams, and the model does not call enter and leave around its blocks",
        instead="call them and say has_streams = True in the model's class, or use placement=pre",
        applies=lacks_streams,
    ),
)


def refusal(
    norm: NormFacts,
    placement: type[Placement],
    model: type[Model],
    data: type[Data],
    init: type | None = None,
) -> Refusal | None:
    """Return the first reason to refuse this combination, or None."""
    from normbench.types import Task

    run = Combination(norm, placement, model, data, Task.by_kind.get(data.kind), init)
    for rule in REFUSALS:
        if rule.applies(run):
            return rule
    return None
