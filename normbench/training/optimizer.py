"""What turns gradients into weights: the optimizer, with decay on matrices only, and an average of the weights."""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from normbench.config.schema import TrainerConfig
from normbench.errors import ContractError, UsageError
from normbench.types import NOT_TREATED, Treatment

# Settings of torch.optim's classes that choose which code runs; of each two at most one may be true.
IMPLEMENTATIONS = {"fused", "foreach", "differentiable"}

LR_FACTOR = "lr_factor"  # in a group of parameters: on the learning rate, where it is not 1

# Methods of torch's optimizers whose decorators import torch.compile, which takes a second, to keep it away from them.
DECORATED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict", "step")


def parameter_groups(
    model: nn.Module,
    norms: Iterable[nn.Module],
    weight_decay: float,
    decay_norms: bool,
    lr_factors: Mapping[nn.Parameter, float] | None = None,
) -> list[dict[str, Any]]:
    """Return two groups: decayed (matrices, and norms' parameters where asked for) and not decayed (all others).

    What a norm, a placement or a treatment of weights says of a parameter of its own (`treated`) counts before that.
    Parameters with a factor on the learning rate are in further groups, which have it as `lr_factor`.

    Args:
        model: whose parameters are trained.
        norms: of the model.
        weight_decay: of those that decay.
        decay_norms: whether norms' parameters do.
        lr_factors: further factors on the learning rate, which leave the decay in a step as it is without them.

    Raises:
        ContractError: one speaks of what it does not have.
    """
    in_norms = set[nn.Parameter]()
    for norm in norms:
        in_norms.update(norm.parameters())
    treatments = find_treatments(model)
    by_kind = defaultdict[Kind, list[nn.Parameter]](list)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        decays, treated_factor = treatments.get(parameter, Treatment())
        if decays is None:
            decays = decay_norms if parameter in in_norms else parameter.ndim >= 2
        starting_factor = 1.0 if lr_factors is None else lr_factors.get(parameter, 1.0)
        by_kind[Kind(decays, treated_factor, starting_factor)].append(parameter)
    groups = list[dict[str, Any]]()
    for kind in sorted(by_kind, key=Kind.order):
        group = {"params": by_kind[kind], "weight_decay": weight_decay / kind.starting_factor if kind.decays else 0.0}
        if kind.lr_factor != 1:
            group[LR_FACTOR] = kind.lr_factor
        groups.append(group)
    return groups


class Kind(NamedTuple):
    """What the parameters of a group have in common.

    Attributes:
        decays: whether they do.
        treated_factor: on the learning rate, which parts of the model ask for; the decay in a step has it too.
        starting_factor: on the learning rate, which goes with how weights start; the decay in a step does without.
    """

    decays: bool
    treated_factor: float
    starting_factor: float

    @property
    def lr_factor(self) -> float:
        """Return the factor on the learning rate."""
        return self.treated_factor * self.starting_factor

    def order(self) -> tuple[bool, float, bool]:
        """Return by what groups are sorted: those without a factor first, and of each factor the decayed ones."""
        return (self.lr_factor != 1, self.lr_factor, not self.decays)


def find_treatments(model: nn.Module) -> dict[nn.Parameter, Treatment]:
    """Return how parameters are treated of which a part of the model says so.

    Raises:
        ContractError: one speaks of what it does not have.
    """
    treatments = dict[nn.Parameter, Treatment]()
    for module in model.modules():
        for name, treatment in getattr(module, "treated", NOT_TREATED).items():
            if not hasattr(module, name):
                kind = type(module).__name__
                raise ContractError(f"{kind}.treated speaks of {name}, which {kind} does not have: name an attribute")
            part = getattr(module, name)
            if isinstance(part, nn.Parameter):
                treatments[part] = treatment
            elif isinstance(part, nn.Module):
                treatments.update(dict.fromkeys(part.parameters(), treatment))
    return treatments


def make_optimizer(factory: Any, groups: list[dict[str, Any]], device: torch.device) -> torch.optim.Optimizer:
    """Make the optimizer, fused where torch has it and no setting chooses another of its implementations.

    Args:
        factory: a `functools.partial` of a torch.optim class with its settings, from `conf/optim`.
        groups: of parameters; see `parameter_groups`.
        device: where they are.

    Raises:
        UsageError: the class does not take one of the settings, or needs another loop than ours.
    """
    name = factory.func.__name__
    settings = dict(factory.keywords)
    if is_known(factory.func) and not settings.get("differentiable"):
        factory = partial(without_compiler(factory.func), **settings)
    parameters = chain.from_iterable(group["params"] for group in groups)
    sharded = any(hasattr(parameter, "full_tensor") for parameter in parameters)  # torch fuses not all then
    if may_fuse(factory) and not sharded and device.type in ("cpu", "cuda", "mps"):
        factory = partial(factory, fused=True)
    try:
        optimizer: torch.optim.Optimizer = factory(groups)
    except (TypeError, ValueError, RuntimeError) as error:  # the last one where two settings exclude each other
        cure = "change them, or remove one with '~optim.KEY'"
        raise UsageError(f"optim: {name} refuses its settings ({error}): {cure}") from error
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise UsageError(f"optim: {name} cannot train here, it wants closures or sparse gradients: use another")
    return optimizer


def may_fuse(factory: Any) -> bool:
    """Tell whether an optimizer can be fused, and no setting chooses another of its implementations."""
    chosen = IMPLEMENTATIONS & factory.keywords.keys()
    return takes_fused(factory.func) and not chosen


@cache
def takes_fused(kind: Callable[..., Any]) -> bool:
    """Tell whether an optimizer can be fused, which takes long to find for each run of a sweep."""
    return "fused" in inspect.signature(kind).parameters


def is_known(kind: type) -> bool:
    """Tell whether an optimizer is one of torch.optim's own, or ours."""
    return kind.__module__.startswith(("torch.optim", "normbench."))


@cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return an optimizer of torch whose methods are not decorated for torch.compile, and do the same without it."""
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in DECORATED}
    methods["step"] = torch.no_grad()(methods["step"])
    methods["__module__"] = kind.__module__
    return type(kind.__name__, (kind,), methods)


def check_shapes(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Refuse a state that torch's own optimizer takes as it is, and whose step then reads memory of others.

    Raises:
        ValueError: a tensor has neither its parameter's shape nor one value. Adafactor's have other shapes as well.
        LookupError: it is of another parameter.
    """
    factored = isinstance(optimizer, torch.optim.Adafactor)
    if factored or not is_known(type(optimizer)):
        return
    parameters = parameters_of(optimizer)
    for index, kept in state.items():
        expected = parameters[index].shape
        for name, value in kept.items():
            if not isinstance(value, torch.Tensor):
                continue
            if value.ndim and value.shape != expected:
                shapes = f"{tuple(value.shape)} and not {tuple(expected)}"
                raise ValueError(f"{name} of parameter {index} has the shape {shapes}")


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return all that an optimizer trains, in its own order."""
    parameters = list[nn.Parameter]()
    for group in optimizer.param_groups:
        parameters += group["params"]
    return parameters


class WeightAverage(ABC):
    """A copy of the model whose weights follow the trained ones: average ← (1−s)·average + s·weights.

    Running statistics are averaged like weights, as torch.optim.swa_utils.AveragedModel does with `use_buffers=True`:
    those of the newest batches belong to the newest weights, and would not fit the average. The study `statistics`
    measures what else they could be.

    Attributes:
        name: what follows the metric in the tag of its evaluation.
        updates: how many weights it has taken in.
        model: the copy.
    """

    name: ClassVar[str]

    def __init__(self, model: nn.Module) -> None:
        self.updates = 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.averages = list[torch.Tensor]()
        self.sources = list[torch.Tensor]()
        self.others = list[tuple[torch.Tensor, torch.Tensor]]()  # integers, which are copied
        averages = [*self.model.parameters(), *self.model.buffers()]  # tied weights once
        sources = [*model.parameters(), *model.buffers()]
        for average, source in zip(averages, sources, strict=True):
            if average.is_floating_point():
                self.averages.append(average)
                self.sources.append(source)
            else:
                self.others.append((average, source))

    @property
    @abstractmethod
    def share(self) -> float:
        """Return the share s of the weights that are taken in next."""

    @property
    def begun(self) -> bool:
        """Tell whether there is an average to be evaluated."""
        return True

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        torch._foreach_lerp_(self.averages, self.sources, self.share)
        for average, source in self.others:
            average.copy_(source)
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"updates": self.updates, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state` was taken."""
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])


class MovingAverage(WeightAverage):
    """An exponential average: s = 1−d with d = `decay`, or (1+n)/(10+n) where that is less, after n updates.

    So the first weights are soon forgotten (TensorFlow's ExponentialMovingAverage).
    """

    name = "val_ema"

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.decay = decay

    @property
    def share(self) -> float:
        return 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))

    @property
    def rise(self) -> int:
        """Return how many updates it takes until d is `decay`: from n = (10·decay − 1) / (1 − decay) on."""
        updates = (10 * self.decay - 1) / (1 - self.decay)
        return max(0, math.ceil(updates - 1e-6))  # a product is rounded


class PlainAverage(WeightAverage):
    """The mean of the weights after each step later than the first `skipped` ones: s = 1/k for the k-th of them.

    Until then it is the weights themselves. Source: Izmailov et al. 2018, algorithm 1 (stochastic weight averaging),
    with every step in place of the end of every cycle. In a run that extends another it begins again where the other's
    had begun too early for the longer run, since what it has taken in does not come out of a mean.
    """

    name = "val_swa"

    def __init__(self, model: nn.Module, skipped: int) -> None:
        super().__init__(model)
        self.skipped = skipped

    @property
    def share(self) -> float:
        return 1 / max(1, self.updates + 1 - self.skipped)

    @property
    def begun(self) -> bool:
        return self.updates > self.skipped

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        skipped = state.get("skipped", self.skipped)  # the first runs with trainer.swa did not note it
        if skipped >= self.skipped:
            self.skipped = skipped
        else:
            self.skipped = max(self.skipped, self.updates)


def make_average(model: nn.Module, trainer: TrainerConfig, steps: int) -> WeightAverage | None:
    """Return the average that a run of so many steps keeps of a model's weights, if it wants one."""
    if trainer.ema is not None:
        return MovingAverage(model, trainer.ema)
    if trainer.swa is not None:
        return PlainAverage(model, math.floor(trainer.swa * steps + 1e-6))  # a product is rounded
    return None
