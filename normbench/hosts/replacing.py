"""Put other norms in the places of a given model's, under the same paths, with the weights that both have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normbench.errors import UsageError, explain, is_out_of_memory
from normbench.hosts.acting import acting_class
from normbench.hosts.finding import Findings, Found
from normbench.hosts.steps import check_step, try_step
from normbench.hosts.tape import evaluating
from normbench.norms import NoNorm, Own
from normbench.norms.common import RunningNorm
from normbench.settings import either
from normbench.types import NormFactory

Keep = Literal["weights", "nothing"]

GAIN, SHIFT, STATISTICS = "γ", "β", "statistics"


@dataclass(frozen=True)
class Row:
    """A norm of a given model, and what becomes of it.

    Attributes:
        path: in the model.
        norm: the name of its class.
        site: where it stands; empty of one that is left.
        features: how many it has; None of one that is left.
        becomes: the name of the class that stands there after a swap; empty without one.
        eps: of what stands there.
        kept: what the new norm has of the old one's: γ, β, statistics.
        lost: what the old norm had, and the new one has not or starts anew.
        left: why it stays as it is; empty where it does not.
    """

    path: str
    norm: str
    site: str = ""
    features: int | None = None
    becomes: str = ""
    eps: float | None = None
    kept: str = ""
    lost: str = ""
    left: str = ""


def replace(
    model: nn.Module, findings: Findings, norm: NormFactory, keep: Keep = "weights", given: Collection[str] = ()
) -> dict[str, nn.Module]:
    """Replace the norms that were found in a model, and return the new ones by the name of their site.

    The model is changed in place, once all new norms are made; paths, and so the names of parameters, stay. A new norm
    has the old one's ε and, where both are of one kind, its groups and momentum, unless these are given. To replace
    some alone, give findings with fewer of `found`.

    Args:
        model: in which `find` has found them.
        findings: what it has found.
        norm: makes the new norm of each place; `Own` where the old one stays.
        keep: `weights`, γ, β and running statistics where both have them; `nothing`: all start as they do.
        given: the settings of the new norms that a person has chosen, such as `eps`.

    Raises:
        UsageError: a norm does not fit its place, such as groups that do not divide the features.
    """
    new_of_old: dict[nn.Module, nn.Module] = {}
    by_site: dict[str, nn.Module] = {}
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for found in findings.found:
        new: Any = norm(found.features, channel_dim=found.adapter.axis, site=found.site)
        if isinstance(new, Own):
            continue
        take_over_settings(new, found, given)
        place_like(new, found.module, model)
        if keep == "weights":
            keep_weights(new, found)
        share_weights(new, found, shared)
        if found.adapter.acts:
            let_act(new, found.module)
        new.stands_at = found.site
        new.train(found.module.training)
        new_of_old[found.module] = new
        by_site[found.site.name] = new
    put_in(model, new_of_old)
    leave_fast_path(model, new_of_old.values())
    return by_site


def restore(model: nn.Module, findings: Findings, made: Mapping[str, nn.Module]) -> None:
    """Put the norms back that `replace` has replaced, as they were; a fast path that was left stays left."""
    old = {found.site.name: found.module for found in findings.found}
    put_in(model, {new: old[name] for name, new in made.items()})


def check_runs(
    model: nn.Module, call: Callable[[nn.Module], object], findings: Findings, made: Mapping[str, nn.Module]
) -> None:
    """Refuse new norms with which the model does not run, or no longer trains, and put the old ones back.

    Args:
        model: with the new norms.
        call: runs one pass of it, as for `find`.
        findings: with which they were made.
        made: what `replace` has returned.

    Raises:
        UsageError: a pass in evaluation fails, or a forward and a backward pass in training.
    """
    try:
        with evaluating(model), torch.no_grad():
            call(model)
    except Exception as error:  # another library's code, which may raise anything
        restore(model, findings, made)
        names = either(sorted({type(norm).__name__ for norm in made.values()}))
        what = f"{type(model).__name__} does not run with {names} in the places of its norms ({explain(error)})"
        raise UsageError(f"{what}: choose another norm or other places; the model is as it was") from error
    try:
        check_trains(model, call, findings, made)
    except UsageError as error:
        restore(model, findings, made)
        raise type(error)(f"{error}; the model is as it was") from error


def check_trains(
    model: nn.Module, call: Callable[[nn.Module], object], findings: Findings, made: Mapping[str, nn.Module]
) -> None:
    """Refuse new norms with which the model does not train, where it did before.

    Errors about values, as of a statistic over one, are left to the batches of a training.

    Args:
        model, call, findings, made: as for `check_runs`.

    Raises:
        UsageError: a forward and a backward pass in training fail.
    """
    failure = check_step(type(model).__name__, model, call, made.values())
    if failure is None or isinstance(failure, ValueError) or is_out_of_memory(failure):
        return
    restore(model, findings, made)
    old = {found.site.name: found.module for found in findings.found if found.site.name in made}
    before = try_step(model, call, old.values())
    put_in(model, {old[name]: new for name, new in made.items()})
    if before.error is None:
        names = either(sorted({type(norm).__name__ for norm in made.values()}))
        what = f"{type(model).__name__} does not train with {names} in the places of its norms ({explain(failure)})"
        raise UsageError(f"{what}: choose another norm or other places") from failure


def put_in(model: nn.Module, made: Mapping[nn.Module, nn.Module]) -> None:
    """Put modules in the places of others, at all paths that lead to these."""
    named = list(model.named_modules(remove_duplicate=False))  # as it is before any is replaced
    for path, module in named:
        if module in made:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, made[module])


def take_over_settings(new: Any, found: Found, given: Collection[str]) -> None:
    """Give a new norm the settings of the old one that nobody has chosen otherwise."""
    eps = found.adapter.read_eps(found.module)
    if "eps" not in given and eps is not None and getattr(new, "eps", None) is not None:
        new.eps = eps
    if name_of(new) == found.adapter.formula:
        for name, theirs in found.adapter.settings.items():
            if name not in given and hasattr(new, name):
                setattr(new, name, getattr(found.module, theirs))


def name_of(norm: nn.Module) -> str:
    """Return what a norm of ours is called, such as `layernorm`."""
    return type(norm).__name__.lower()


def place_like(new: nn.Module, old: nn.Module, model: nn.Module) -> None:
    """Move a new norm to where the old one is, in the same precision; give it a weight to be looked at if it has none.

    Some models ask the weight of a norm for its device or dtype, as timm's Swin and Mamba 2 do. What stands for no norm
    gives a tensor of its own, as a norm does: many models let their activations work on that in place.
    """
    if isinstance(new, NoNorm):
        new.copies = True
    like = first_floating([*old.parameters(), *old.buffers(), *model.parameters()])
    if like is not None:
        new.to(device=like.device, dtype=like.dtype)
    weight = getattr(old, "weight", None)
    if isinstance(weight, Tensor) and not hasattr(new, "weight"):
        new.register_buffer("weight", torch.ones_like(weight, requires_grad=False), persistent=False)


def first_floating(tensors: Iterable[Tensor]) -> Tensor | None:
    """Return the first of some tensors that is of floating point; None where there is none."""
    for tensor in tensors:
        if tensor.is_floating_point():
            return tensor
    return None


def keepable(new: nn.Module, found: Found) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Return what a new norm can have of the old one's: pairs of its own tensor and its content, by what they are."""
    adapter = found.adapter
    old = found.module
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    of_old = ((GAIN, "weight", adapter.read_gain(old)), (SHIFT, "bias", adapter.read_shift(old)))
    for what, name, theirs in of_old:
        ours = getattr(new, name, None)
        if theirs is not None and isinstance(ours, nn.Parameter) and ours.shape == theirs.shape:
            pairs[what] = [(ours, theirs)]
    statistics = pair_statistics(new, old)
    over_batches = isinstance(new, RunningNorm) and new.facts.crosses_samples
    are_alike = over_batches == (adapter.formula != "instancenorm")
    have_same_shapes = all(ours.shape == theirs.shape for ours, theirs in statistics)
    if adapter.running and are_alike and len(statistics) >= 2 and have_same_shapes:
        pairs[STATISTICS] = statistics
    return pairs


def pair_statistics(new: nn.Module, old: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return the running statistics that two norms both have."""
    pairs = []
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        ours = getattr(new, name, None)
        theirs = getattr(old, name, None)
        if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
            pairs.append((ours, theirs))
    return pairs


@torch.no_grad()
def keep_weights(new: nn.Module, found: Found) -> None:
    """Copy what a new norm can have of the old one's."""
    for pairs in keepable(new, found).values():
        for ours, theirs in pairs:
            ours.copy_(theirs)
    for own_name, name in (("weight", found.adapter.gain), ("bias", found.adapter.shift)):
        parameter = getattr(new, own_name, None)
        old = getattr(found.module, name, None)
        if isinstance(parameter, nn.Parameter) and isinstance(old, nn.Parameter):
            parameter.requires_grad_(old.requires_grad)


def share_weights(new: nn.Module, found: Found, shared: dict[nn.Parameter, nn.Parameter]) -> None:
    """Let a new norm have γ and β together with those new ones whose old ones had them together.

    Args:
        new: the norm.
        found: what it replaces.
        shared: the parameters of the norms that were replaced before, and those that stand for them; is added to.
    """
    for own_name, name in (("weight", found.adapter.gain), ("bias", found.adapter.shift)):
        parameter = getattr(new, own_name, None)
        old = getattr(found.module, name, None)
        if isinstance(parameter, nn.Parameter) and isinstance(old, nn.Parameter):
            first = shared.setdefault(old, parameter)
            if first.shape == parameter.shape:
                setattr(new, own_name, first)


def let_act(new: Any, old: Any) -> None:
    """Let a new norm end in the dropout and the activation of the old one, unless it has an activation of its own."""
    new.__class__ = acting_class(type(new))
    new.drop = getattr(old, "drop", nn.Identity())
    new.act = nn.Identity() if getattr(new, "acts", False) else getattr(old, "act", nn.Identity())


def leave_fast_path(model: nn.Module, made: Iterable[nn.Module]) -> None:
    """Let torch's encoder layers call their norms in evaluation where these are new.

    Their fast path is one operator, which reads the norms' weights and computes LayerNorm whatever they are. What each
    layer notes of its activation, which only that path reads, bars it from there; and nested tensors are for it alone.
    """
    new = set(made)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and not new.isdisjoint(module.modules()):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and not new.isdisjoint(module.modules()):
            module.use_nested_tensor = False


def tabulate(findings: Findings, made: Mapping[str, nn.Module] | None = None, keep: Keep = "weights") -> list[Row]:
    """Return a row for each norm: those that can be replaced, in the order in which they run, and then the others.

    Args:
        findings: what `find` has found.
        made: what `replace` has returned; without it the rows say how the norms are.
        keep: as `replace` was given it.
    """
    made = made or {}
    rows: list[Row] = []
    for found in findings.found:
        old = found.module
        about: dict[str, Any] = {"site": found.site.name, "features": found.features}
        new = made.get(found.site.name)
        if new is None:
            about["eps"] = found.adapter.read_eps(old)
        else:
            kept = keepable(new, found) if keep == "weights" else {}
            has = what_it_has(found)
            about["becomes"] = type(new).__name__
            about["eps"] = getattr(new, "eps", None)
            about["kept"] = ", ".join(what for what in has if what in kept)
            about["lost"] = ", ".join(what for what in has if what not in kept)
        rows.append(Row(found.path, type(old).__name__, **about))
    for left in findings.left:
        rows.append(Row(left.path, left.kind, left=left.reason))
    return rows


def what_it_has(found: Found) -> list[str]:
    """Return what a norm has that another may keep."""
    has = []
    if found.adapter.read_gain(found.module) is not None:
        has.append(GAIN)
    if found.adapter.read_shift(found.module) is not None:
        has.append(SHIFT)
    if found.adapter.running and getattr(found.module, "running_mean", None) is not None:
        has.append(STATISTICS)
    return has
