"""From a resolved configuration to the parts of a run: device, data, model and norms."""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

import torch
from hydra.utils import instantiate
from torch import nn

from normbench import compatibility, targets
from normbench.config import OPEN_SECTIONS, Tree, nearest
from normbench.errors import UsageError
from normbench.models import initialize
from normbench.types import (
    Branch,
    Data,
    Model,
    NormFactory,
    NormFacts,
    Placement,
    PlacementFactory,
    Site,
    Task,
    stable_seed,
)

# A setting that a class takes over, where it takes it, from the one that it replaces: model and data agree on it.
SHARED = {"model": ("context",), "data": ("context",)}


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


# Digests of source files as they were when this process first asked: a file that is edited later changes no class here.
DIGESTS: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def own_code(tree: Tree) -> dict[str, str]:
    """A digest of the source file of each class that is neither ours nor torch's, by section."""
    found = {}
    for section in OPEN_SECTIONS:
        module = sys.modules.get(getattr(target(tree, section), "__module__", ""))
        file = getattr(module, "__file__", None)
        if module is not None and file and module.__name__.partition(".")[0] not in ("normbench", "torch"):
            if module not in DIGESTS:
                DIGESTS[module] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            found[section] = DIGESTS[module]
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

    What the command line itself sets stays, and is refused later if the target does not take it. Of the rest only what
    the target takes and has no default for, and what is not the replaced class's alone: the peak of the schedule, and
    the length of a window, on which model and data agree.
    """
    adopted = dict(tree)
    for section in OPEN_SECTIONS:
        if overridden(f"{section}._target_"):
            found, names = named(tree, section), accepted(tree, section)
            shared = [name for name in SHARED.get(section, ()) if names is None or name in names]
            kept = {*required(found), *shared, *(["lr"] if section == "optim" else [])}
            adopted[section] = {
                key: value
                for key, value in tree[section].items()
                if key.startswith("_") or key in kept or overridden(f"{section}.{key}")
            }
    return adopted


def required(found: Callable[..., Any]) -> set[str]:
    """Names of the settings without a default, also of the base classes to which a constructor may hand on `**`."""
    bases = found.__mro__ if isinstance(found, type) else ()
    makers: list[Any] = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)] or [found]
    names: set[str] = set()
    for maker in makers:
        try:
            parameters = inspect.signature(maker).parameters.values()
        except ValueError:  # not written in Python
            break
        names |= {parameter.name for parameter in parameters if parameter.default is parameter.empty}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names


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


@contextmanager
def seeded(*words: object) -> Iterator[None]:
    """What is drawn inside from torch's random numbers on the CPU follows from the words; outside they stay."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stable_seed(*words))
        yield


class NormsOnRecord:
    """A norm factory that remembers what it made, by the name of its site, which with the seed decides its draws."""

    def __init__(self, factory: NormFactory, seed: int = 0) -> None:
        self.factory, self.seed = factory, seed
        self.made: dict[str, nn.Module] = {}

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        with seeded(self.seed, "norm", site.name if site else len(self.made)):
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


def placed(factory: PlacementFactory, seed: int) -> PlacementFactory:
    """The placement factory with draws of its own, if any, that the seed and the site decide."""

    def place(branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> Placement:
        with seeded(seed, "placement", site.name):
            return factory(branches, norm, site)

    return place


def build_model(tree: Tree, task: Task, seed: int) -> tuple[Model, dict[str, nn.Module]]:
    """The model as its classes make it, and its norms by site.

    What the model itself draws does not depend on what norms and placements draw in between, so that it starts alike
    with any of them.

    Raises:
        UsageError: a setting that does not fit.
    """
    norms = NormsOnRecord(factory(tree, "norm"), seed)
    with seeded(seed, "model"):
        model: Model = factory(tree, "model")(task, norms, placed(factory(tree, "placement"), seed))
    return model, norms.made


def make_model(tree: Tree, data: Data, seed: int) -> tuple[Model, dict[str, nn.Module]]:
    """The model with its starting weights, and its norms by site.

    Raises:
        UsageError: a setting that does not fit.
    """
    model, norms = build_model(tree, data.task, seed)
    initialize(model, factory(tree, "init")(), seed, norms.values())
    return model, norms


def number_of_steps(tree: Tree, data: Data) -> int:
    """Length of the run in optimizer steps."""
    trainer = tree["trainer"]
    if trainer["steps"] is not None:
        return int(trainer["steps"])
    return max(1, math.ceil(trainer["epochs"] * data.steps_per_epoch / trainer["accumulate"]))
