"""Which combinations are refused, and why: the whole list. Everything else works; a refusal beyond it is a bug.

A refusal is between two choices, each of which is right by itself. A value out of its bounds is no such thing, though
another one may set them, as model.width does those of model.heads; nor is what a class wants of its own settings. What
only the data, the machine or the built model can show is said where it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from normbench.config.sections import BY_NAME
from normbench.errors import CombinationRefused, UsageError
from normbench.settings import show

if TYPE_CHECKING:  # `normbench list` shows the refusals without the second that torch takes
    from normbench.config.recipe import Recipe
    from normbench.types import Data, Model, NormFacts, Placement, Task

# What is not a setting of a run, but of how runs are made. What does not go with it ends a sweep as a whole.
DEVICE = "device"  # the kind that was found, such as cuda
PROCESSES = "processes"  # how many share a run
EXTEND = "extend"
STACK = "sweep.stack"
LAUNCHER = "launcher"
CHOOSES_RATE = "sweep.lr"
RATE_SEEDS = "sweep.lr_seeds"
STUDY = "study"  # one that trains by itself
OF_MAKING = (DEVICE, PROCESSES, EXTEND, STACK, LAUNCHER, CHOOSES_RATE, RATE_SEEDS, STUDY)

RATE = "optim.lr"
HOLDOUT = "data.holdout"


@dataclass(frozen=True)
class Combination:
    """What the parts of a run declare, and its settings; a refusal looks only at the two that it is between.

    Attributes:
        task: of the data; None: their kind is not known.
        init: how weights start; None: it is not asked about.
        scales_rates: whether that comes with learning rates of its own.
        not_adam: whether the optimizer is none of Adam's kind.
        needs_matrices: whether the optimizer treats a matrix as one.
        keeps_norms: whether the optimizer keeps the norm of each matrix of blocks.
        not_fused: whether the optimizer cannot run as one operator of a GPU, and keeps numbers outside of it.
        ramps: whether the learning rate grows until the run no longer learns.
        settings: of the run by dotted path, and what OF_MAKING names, where that is known.
        given: the keys that words set.
        recipe: its parts; None where their classes alone are asked about.
    """

    norm: NormFacts
    placement: type[Placement]
    model: type[Model]
    data: type[Data]
    task: type[Task] | None
    init: type | None = None
    scales_rates: bool = False
    not_adam: bool = False
    needs_matrices: bool = False
    keeps_norms: bool = False
    not_fused: bool = False
    ramps: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    given: Collection[str] = ()
    recipe: Recipe | None = None

    def in_words(self, key: str) -> str:
        """Return what was chosen there: `norm=layernorm norm@qk=rmsnorm`, `trainer.ema=0.9` or `2 processes`."""
        if self.recipe is not None and key in BY_NAME:
            return self.recipe.in_words(key)
        if key == PROCESSES:
            return f"{self.settings[key]} processes"
        if key == STUDY:
            return "a study that trains by itself"
        return f"{key}={show(self.settings[key])}"


@dataclass(frozen=True)
class Refusal:
    """One reason to refuse.

    Attributes:
        between: the sections or keys whose choices clash.
        what: options that clash.
        applies: whether a combination is refused.
    """

    between: tuple[str, str]
    what: str
    reason: str
    instead: str
    applies: Callable[[Combination], bool]

    @property
    def ends_sweep(self) -> bool:
        """Tell whether it is about how all runs of a sweep are made; else a sweep leaves such runs out."""
        return any(key in OF_MAKING for key in self.between)

    def say(self, run: Combination) -> str:
        """Return the sentence for a combination."""
        given = " with ".join(run.in_words(key) for key in self.between)
        return f"{given} is refused: {self.reason}; {self.instead}"


# ---- between parts


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


LEAKS = Refusal(
    ("norm", "data"),
    what="in a language model or translator: frn, evonorm_b0, switchable, instancenorm without running statistics, "
    "batchnorm without them, groupnorm with norm.across_time=true",
    reason="its statistics run over time, in evaluation too, so it would show the model the tokens that it is to "
    "predict",
    instead="use layernorm, rmsnorm, groupnorm at each position, or batchnorm with running statistics",
    applies=shows_targets,
)

OF_PARTS = (
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
    LEAKS,
    Refusal(
        ("norm", "model"),
        what="instancenorm, frn, evonorm_b0 or switchable in an MLP or a recurrent model",
        reason="its statistics run over time or space, and the features of this model have neither",
        instead="use layernorm, groupnorm or batchnorm, or a model with positions",
        applies=lacks_positions,
    ),
    Refusal(
        ("norm", "model"),
        what="powernorm or tapernorm in a recurrent model",
        reason="its state moves once a batch, and this model calls it at each time step",
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
        what="resi_dual, siamese, x0, hyper_connections, mhc or attnres in a model of your own that takes one stream",
        reason="the placement has several streams, and the model does not call enter and leave around its blocks",
        instead="call them and say has_streams = True in the model's class, or use placement=pre",
        applies=lacks_streams,
    ),
)

# ---- between settings


@dataclass(frozen=True)
class Side:
    """One of two choices that do not go together.

    Attributes:
        key: its section or setting.
        what: the choice, in words.
        test: tells whether a run has it; None: where the setting is on, or other than null and 0.
    """

    key: str
    what: str
    test: Callable[[Combination], bool] | None = None

    def is_chosen(self, run: Combination) -> bool:
        """Tell whether a run has it."""
        if self.test is None:
            return bool(run.settings.get(self.key))
        return self.test(run)


def are_chosen(first: Side, second: Side, run: Combination) -> bool:
    """Tell whether a run has both."""
    return first.is_chosen(run) and second.is_chosen(run)


def clash(first: Side, second: Side, reason: str, instead: str) -> Refusal:
    """Return the refusal of two choices."""
    what = f"{first.what} with {second.what}"
    return Refusal((first.key, second.key), what, reason, instead, partial(are_chosen, first, second))


def has_value(key: str, values: Collection[str], run: Combination) -> bool:
    """Tell whether a setting has one of some values."""
    return run.settings.get(key) in values


def exceeds_one(key: str, run: Combination) -> bool:
    """Tell whether a number is above 1."""
    return bool(run.settings.get(key, 1) > 1)


def has_no_cuda(run: Combination) -> bool:
    """Tell whether the run is on something other than a CUDA GPU."""
    return run.settings.get(DEVICE, "cuda") != "cuda"


def has_opaque_norm(run: Combination) -> bool:
    """Tell whether a norm is code that torch.func cannot look into."""
    assert run.recipe is not None
    return any(norm.settings.get("impl") in ("compile", "liger") for norm in run.recipe.parts_of("norm"))


def stores_offset(run: Combination) -> bool:
    """Tell whether a norm stores γ less an offset."""
    assert run.recipe is not None
    return any(norm.settings.get("offset") for norm in run.recipe.parts_of("norm"))


def sets_length(run: Combination) -> bool:
    """Tell whether a treatment of weights divides what is trained by its length after each step."""
    assert run.recipe is not None
    return any(part.made.sets_length for part in run.recipe.parts_of("weights"))


def keeps_all(run: Combination) -> bool:
    """Tell whether the model cannot compute its blocks again."""
    return run.model.recompute is None


def gives_rate(run: Combination) -> bool:
    """Tell whether a word gives the learning rate."""
    return RATE in run.given


def cannot_hold_out(run: Combination) -> bool:
    """Tell whether the data have no setting for what is held out."""
    return run.settings.get(HOLDOUT) is None


def judges_by_seed(run: Combination) -> bool:
    """Tell whether the seed is one of those that choose learning rates."""
    return run.settings["seed"] in run.settings.get(RATE_SEEDS, ())


def chooses_twice(run: Combination) -> bool:
    """Tell whether a seed chooses learning rates for several of the reported ones."""
    seeds = run.settings.get(RATE_SEEDS, ())
    return len(set(seeds)) < len(seeds)


SHARDED = Side("trainer.shard", "trainer.shard=true")
AVERAGED = Side("trainer.ema", "trainer.ema")
PLAINLY_AVERAGED = Side("trainer.swa", "trainer.swa")
UPDATES = Side("probes.updates", "probes.updates=true")
COMPILED = Side("trainer.compile", "trainer.compile")
REPLAYED = Side(
    "trainer.compile",
    "trainer.compile=cudagraphs or graph",
    partial(has_value, "trainer.compile", ("cudagraphs", "graph")),
)
RECORDED = Side("trainer.compile", "trainer.compile=graph", partial(has_value, "trainer.compile", ("graph",)))
RECOMPUTED = Side("trainer.recompute", "trainer.recompute=true")
FP16 = Side("trainer.precision", "trainer.precision=fp16", partial(has_value, "trainer.precision", ("fp16",)))
NORMS_IN_16_BITS = Side(
    "trainer.norm_dtype", "trainer.norm_dtype=bf16", partial(has_value, "trainer.norm_dtype", ("bf16",))
)
ACCUMULATED = Side("trainer.accumulate", "trainer.accumulate above 1", partial(exceeds_one, "trainer.accumulate"))
TREATED = Side("weights", "a treatment of weights", attrgetter("recipe.treats_weights"))
OF_LENGTH_1 = Side("weights", "weights=unit", sets_length)
WITH_RATES = Side("init", "init=mup", attrgetter("scales_rates"))
NOT_ADAM = Side("optim", "an optimizer other than Adam", attrgetter("not_adam"))
OF_MATRICES = Side("optim", "optim=muon, adamh or muonh", attrgetter("needs_matrices"))
ON_SPHERES = Side("optim", "optim=adamh or muonh", attrgetter("keeps_norms"))
NOT_FUSED = Side("optim", "an optimizer that is not fused", attrgetter("not_fused"))
OFFSET_GAIN = Side("norm", "norm.offset", stores_offset)
OPAQUE_NORM = Side("norm", "norm.impl=compile or liger", has_opaque_norm)
HOSTED = Side("model", "a model of another library", attrgetter("model.hosted"))
KEEPS_ALL = Side("model", "a model of another library, or without a stack of blocks", keeps_all)
MANY_LENGTHS = Side("data", "data whose batches have lengths of their own", attrgetter("data.pads"))
NO_CUDA = Side(DEVICE, "a device other than CUDA", has_no_cuda)
SHARED = Side(PROCESSES, "several processes", partial(exceeds_one, PROCESSES))
IN_PLACE = Side(LAUNCHER, "launcher=local", partial(has_value, LAUNCHER, ("local",)))
STACKED = Side(STACK, "sweep.stack", partial(exceeds_one, STACK))
EXTENDING = Side(EXTEND, "extend")
OF_STUDY = Side(STUDY, "a study that trains by itself")
CHOSEN_RATE = Side(CHOOSES_RATE, "sweep.lr=auto or each")

CUTS = "the one cuts weights between processes, and the other needs them whole"
REPLAYS = "a graph is replayed as it was recorded"
AS_ONE_MODEL = "seeds become one model, of which each step is the same computation for all"
ONE_OF_BOTH = "leave one of them out"
STANDS_STILL = (
    "the average would be in 16 bits too, where it stands still: its steps are smaller than those of the weights"
)
LOOKS_AT_STEPS = "the study looks at the weights of each step, and not at their average"
NO_STACK = "leave sweep.stack out"
NO_GRAPH = "use trainer.compile=true or false"

OF_SETTINGS = (
    clash(RECOMPUTED, COMPILED, "compiled code decides by itself what it keeps", ONE_OF_BOTH),
    clash(RECOMPUTED, KEEPS_ALL, "the model cannot compute its blocks again", "leave trainer.recompute out"),
    clash(WITH_RATES, NOT_ADAM, "the start has learning rates for Adam", "use optim=adamw"),
    clash(WITH_RATES, TREATED, "the start scales weights as they are", "leave the treatment out"),
    clash(
        ON_SPHERES,
        OF_LENGTH_1,
        "both say how long weights are after a step, the one for a matrix and the other for each of its vectors",
        "use optim=adamw or muon, or leave the treatment out",
    ),
    clash(SHARDED, TREATED, CUTS, ONE_OF_BOTH),
    clash(SHARDED, OF_MATRICES, CUTS, ONE_OF_BOTH),
    clash(SHARDED, AVERAGED, CUTS, ONE_OF_BOTH),
    clash(SHARDED, PLAINLY_AVERAGED, CUTS, ONE_OF_BOTH),
    clash(AVERAGED, PLAINLY_AVERAGED, "a run keeps one average of the weights", ONE_OF_BOTH),
    clash(SHARDED, COMPILED, CUTS, ONE_OF_BOTH),
    clash(SHARDED, UPDATES, CUTS, ONE_OF_BOTH),
    clash(SHARDED, FP16, CUTS, ONE_OF_BOTH),
    clash(SHARDED, NORMS_IN_16_BITS, "a sharded block keeps its weights in one number format", ONE_OF_BOTH),
    clash(NORMS_IN_16_BITS, AVERAGED, STANDS_STILL, ONE_OF_BOTH),
    clash(NORMS_IN_16_BITS, PLAINLY_AVERAGED, STANDS_STILL, ONE_OF_BOTH),
    clash(
        RECORDED,
        IN_PLACE,
        "a recording that fails spoils torch for the runs after it in the same process",
        "leave launcher out",
    ),
    clash(REPLAYED, NO_CUDA, "a CUDA GPU alone has CUDA graphs", NO_GRAPH),
    clash(REPLAYED, MANY_LENGTHS, "a graph would be captured for each length", NO_GRAPH),
    clash(REPLAYED, ACCUMULATED, "each replay would overwrite the gradients of the one before", NO_GRAPH),
    clash(RECORDED, SHARED, f"{REPLAYS}, and what processes tell each other is not", NO_GRAPH),
    clash(RECORDED, FP16, f"{REPLAYS}, and the scale of the loss is decided anew at each step", NO_GRAPH),
    clash(RECORDED, NOT_FUSED, f"{REPLAYS}, and this optimizer keeps numbers outside of it", NO_GRAPH),
    clash(
        OPAQUE_NORM,
        STACKED,
        f"{AS_ONE_MODEL}, and torch cannot look into the norm's code",
        "set norm.impl=auto, and norm@PLACE.impl=auto where a rule has another",
    ),
    clash(
        OFFSET_GAIN,
        HOSTED,
        "norms there start with the γ of those before them, as it is",
        "leave norm.offset out",
    ),
    clash(HOSTED, STACKED, f"{AS_ONE_MODEL}, and torch cannot look into the model's code", NO_STACK),
    clash(OF_MATRICES, STACKED, "the optimizer needs the matrices of each seed by themselves", NO_STACK),
    clash(MANY_LENGTHS, STACKED, AS_ONE_MODEL, NO_STACK),
    clash(COMPILED, STACKED, AS_ONE_MODEL, ONE_OF_BOTH),
    clash(RECOMPUTED, STACKED, AS_ONE_MODEL, ONE_OF_BOTH),
    clash(SHARDED, STACKED, AS_ONE_MODEL, ONE_OF_BOTH),
    clash(FP16, STACKED, f"{AS_ONE_MODEL}, and each seed scales its loss by itself", ONE_OF_BOTH),
    clash(NORMS_IN_16_BITS, STACKED, f"{AS_ONE_MODEL}, which keeps weights in one number format", ONE_OF_BOTH),
    clash(EXTENDING, STACKED, AS_ONE_MODEL, ONE_OF_BOTH),
    clash(
        Side(RATE, "optim.lr", gives_rate),
        CHOSEN_RATE,
        "the one sets what the other chooses",
        ONE_OF_BOTH,
    ),
    clash(
        Side("schedule", "schedule=ramp", attrgetter("ramps")),
        CHOSEN_RATE,
        "the final loss, by which sweep.lr chooses, says nothing of a run whose rate grows until it no longer learns",
        "leave sweep.lr out, or choose another schedule",
    ),
    clash(
        Side(HOLDOUT, "data.holdout"),
        CHOSEN_RATE,
        "sweep.lr holds out a tenth itself, since what chooses must not judge",
        "leave data.holdout out",
    ),
    clash(
        Side("data", "data without data.holdout", cannot_hold_out),
        CHOSEN_RATE,
        "sweep.lr holds out a tenth with data.holdout, since what chooses must not judge",
        "choose data that have it",
    ),
    clash(
        Side("seed", "a seed", judges_by_seed),
        Side(RATE_SEEDS, "the same one of sweep.lr_seeds"),
        "what chooses must not judge",
        "give other seeds",
    ),
    clash(
        CHOSEN_RATE,
        Side(RATE_SEEDS, "sweep.lr_seeds that serve several reported seeds", chooses_twice),
        "seeds that share a run that chooses share its luck, which no interval then sees",
        "give sweep.lr_seeds further apart than the reported seeds, such as 1000,2000",
    ),
    clash(AVERAGED, OF_STUDY, LOOKS_AT_STEPS, "leave trainer.ema out"),
    clash(PLAINLY_AVERAGED, OF_STUDY, LOOKS_AT_STEPS, "leave trainer.swa out"),
    clash(
        FP16,
        OF_STUDY,
        "fp16 scales the loss and leaves out steps that overflow, which the study would measure",
        "use bf16 or fp32",
    ),
)

REFUSALS = (*OF_PARTS, *OF_SETTINGS)


def refusal(
    norm: NormFacts,
    placement: type[Placement],
    model: type[Model],
    data: type[Data],
    init: type | None = None,
) -> Refusal | None:
    """Return the first reason to refuse a combination of parts, whatever their settings; None where there is none."""
    from normbench.types import Task

    run = Combination(norm, placement, model, data, Task.by_kind.get(data.kind), init)
    return find_refusal(run, OF_PARTS)


def find_refusal(run: Combination, rules: Iterable[Refusal] = REFUSALS) -> Refusal | None:
    """Return the first reason to refuse a combination, or None."""
    for rule in rules:
        if rule.applies(run):
            return rule
    return None


def refuse(run: Combination, rules: Iterable[Refusal] = REFUSALS) -> None:
    """Refuse a combination for the first of some reasons that there is.

    Raises:
        CombinationRefused: what was chosen for this run does not go together.
        UsageError: a choice does not go with how runs are made, so that it would fail in others as well.
    """
    rule = find_refusal(run, rules)
    if rule is None:
        return
    if rule.ends_sweep:
        raise UsageError(rule.say(run))
    raise CombinationRefused(rule.say(run))
