"""From a resolved configuration to the parts of a run: device, data, model and norms."""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import torch
from hydra.utils import instantiate
from torch import nn

from normbench import compatibility, targets
from normbench.config import OPEN_SECTIONS, Tree, nearest
from normbench.errors import UsageError
from normbench.models import initialize
from normbench.types import Data, Model, NormFactory, NormFacts, Site, Task


def resolve_device(name: str) -> torch.device:
    """The device of this name; `auto` takes a GPU where there is one.

    Raises:
        UsageError: this machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device={name} is unknown: use auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device={name} is not there: this machine has {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("device=mps is not there: torch finds no Apple GPU on this machine; use cpu")
    return device


def target(tree: Tree, section: str) -> Callable[..., Any]:
    """What `<section>._target_` names: a class, or a function that makes an instance.

    Raises:
        UsageError: it cannot be imported, or makes something else than the section is for.
    """
    return targets.check_kind(section, tree[section]["_target_"], named(tree, section))


def named(tree: Tree, section: str) -> Callable[..., Any]:
    """What `<section>._target_` names, whatever it makes.

    Raises:
        UsageError: it cannot be imported.
    """
    path = tree[section].get("_target_")
    return targets.imported(path, f"{section}._target_={path}")


def made_class(tree: Tree, section: str) -> type:
    """The class of what `<section>._target_` makes; a function says it in its return annotation."""
    found = target(tree, section)
    made: type = found if isinstance(found, type) else get_type_hints(found)["return"]
    return made


def own_code(tree: Tree) -> dict[str, str]:
    """A digest of the source file of each class that is neither ours nor torch's, by section."""
    found = {}
    for section in OPEN_SECTIONS:
        module = sys.modules.get(getattr(target(tree, section), "__module__", ""))
        file = getattr(module, "__file__", None)
        if module is not None and file and module.__name__.partition(".")[0] not in ("normbench", "torch"):
            found[section] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return found


def accepted(tree: Tree, section: str) -> list[str] | None:
    """Names of the settings that a section's target takes; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(named(tree, section)).parameters
    except ValueError:  # a class that is not written in Python
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return list(parameters)


def adopt_targets(tree: Tree, overridden: Callable[[str], bool]) -> dict[str, Any]:
    """Where the command line named a `_target_` of its own, leave out what the YAML sets for the class it replaces.

    What the command line itself sets stays, and is refused later if the target does not take it. Of an optimizer only
    the learning rate is taken over: AdamW's decay and ε mean something else to another.
    """
    adopted = dict(tree)
    for section in OPEN_SECTIONS:
        if overridden(f"{section}._target_") and (names := accepted(tree, section)) is not None:
            shared = ["lr"] if section == "optim" else names
            adopted[section] = {
                key: value
                for key, value in tree[section].items()
                if key.startswith("_") or key in shared or overridden(f"{section}.{key}")
            }
    return adopted


def factory(tree: Tree, section: str) -> Callable[..., Any]:
    """What `<section>._target_` names with the section's settings, to be called with the rest.

    Raises:
        UsageError: what `target` raises, or a setting that the target does not take.
    """
    target(tree, section)
    names = accepted(tree, section)
    for key in tree[section]:
        if names is not None and key not in names and not key.startswith("_"):
            raise UsageError(
                f"{section}.{key} is not a setting of {tree[section]['_target_']}: "
                f"{nearest(key, names)}remove it with '~{section}.{key}'"
            )
    return targets.checked(tree, section, instantiate({**tree[section], "_partial_": True, "_convert_": "all"}))


class NormsOnRecord:
    """A norm factory that remembers what it made, by the name of its site."""

    def __init__(self, factory: NormFactory) -> None:
        self.factory = factory
        self.made: dict[str, nn.Module] = {}

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        norm: Any = self.factory(num_features, channel_dim=channel_dim, site=site)
        if not hasattr(norm, "channel_dim"):  # a user's own need not keep it, and probes take statistics by channel
            norm.channel_dim = channel_dim
        name = site.name if site else f"norm{len(self.made)}"
        if name in self.made:
            raise UsageError(
                f"two norms stand at {name}: give each norm of a branch a slot of its own, as in site.at('mlp', 'out')"
            )
        self.made[name] = norm
        made: nn.Module = norm
        return made


def norm_facts(tree: Tree) -> NormFacts:
    """What the chosen norm declares about itself under the chosen options."""
    norm_class = made_class(tree, "norm")
    facts_for = getattr(norm_class, "facts_for", None)
    if facts_for is None or not hasattr(norm_class, "facts"):
        return NormFacts(statistics_over="unknown", centers=False)
    facts: NormFacts = facts_for(**{k: v for k, v in tree["norm"].items() if not k.startswith("_")})
    return facts


def check_combination(tree: Tree, names: Mapping[str, str]) -> NormFacts:
    """Refuse what does not go together; returns the norm's facts.

    Raises:
        UsageError: the combination is refused.
    """
    facts = norm_facts(tree)
    combination = compatibility.Combination(
        names=dict(names),
        norm=facts,
        placement=made_class(tree, "placement"),
        model=made_class(tree, "model"),
        data=made_class(tree, "data"),
    )
    compatibility.check(combination)
    return facts


def build_model(tree: Tree, task: Task) -> tuple[Model, dict[str, nn.Module]]:
    """The model as its classes make it, and its norms by site.

    Raises:
        UsageError: a setting that does not fit.
    """
    norms = NormsOnRecord(factory(tree, "norm"))
    model: Model = factory(tree, "model")(task, norms, factory(tree, "placement"))
    return model, norms.made


def make_model(tree: Tree, data: Data, seed: int) -> tuple[Model, dict[str, nn.Module]]:
    """The model with its starting weights, and its norms by site.

    Raises:
        UsageError: a setting that does not fit.
    """
    model, norms = build_model(tree, data.task)
    initialize(model, factory(tree, "init")(), seed, norms.values())
    return model, norms


def number_of_steps(tree: Tree, data: Data) -> int:
    """Length of the run in optimizer steps."""
    trainer = tree["trainer"]
    if trainer["steps"] is not None:
        return int(trainer["steps"])
    return max(1, math.ceil(trainer["epochs"] * data.steps_per_epoch / trainer["accumulate"]))
