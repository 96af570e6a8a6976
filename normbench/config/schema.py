"""The configuration of a run: its closed sections with types, units and bounds, and the checks of all sections.

The YAMLs in `conf/` hold the values; here stands which are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from normbench.errors import UsageError
from normbench.settings import Setting, Tree, either, nearest, setting_from, settings_of, show


def steps(doc: str) -> Setting:
    """Return the setting of a number of steps."""
    return Setting(doc, "steps", low=1, high=10**9)


@dataclass(frozen=True)
class TrainerConfig:
    """The training loop."""

    steps: Annotated[
        int | None, Setting("length of the run; null: from trainer.epochs", "optimizer steps", low=1, high=10**9)
    ]
    epochs: Annotated[
        float | None,
        Setting("length of the run, where trainer.steps is null", "passes over the data", above=0, high=10**6),
    ]
    grad_clip: Annotated[
        float, Setting("largest gradient norm; larger gradients are scaled down; 0: off", low=0, high=1e6)
    ]
    log_every: Annotated[int, steps("steps between logged training losses")]
    eval_every: Annotated[int, steps("steps between evaluations")]
    eval_batches: Annotated[
        int | None, Setting("batches of an evaluation; null: all; the last one takes all", "batches", low=1, high=10**9)
    ]
    eval_train: Annotated[bool, Setting("evaluate on as many batches of the training data too")]
    checkpoint_every: Annotated[int, steps("steps between checkpoints")]
    keep_checkpoint: Annotated[
        Literal["last", "best", "none"],
        Setting("checkpoint that stays of a finished run; best: also that of the lowest validation loss"),
    ]
    compile: Annotated[bool, Setting("run the training step through torch.compile")]
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"], Setting("of matrix products and convolutions; fp16 scales the loss")
    ]
    tf32: Annotated[bool, Setting("let a GPU round float32 matrix products to TensorFloat-32")]
    accumulate: Annotated[int, Setting("batches whose gradients add up to one step", "batches", low=1, high=10**6)]
    ema: Annotated[
        float | None,
        Setting("decay of an average of the weights, judged beside them; null: none", "per step", above=0, below=1),
    ]
    decay_norms: Annotated[bool, Setting("weight decay on γ, β and α too")]
    divergence_factor: Annotated[
        float, Setting("a loss above this × the first one runs away", "× first loss", above=1, high=1e9)
    ]
    divergence_patience: Annotated[int, steps("so long may a loss run away before the run ends as diverged")]


@dataclass(frozen=True)
class ProbesConfig:
    """What is measured inside the network, and how often."""

    every: Annotated[int, Setting("steps between probed steps; 0: never", "steps", low=0, high=10**9)]
    activations: Annotated[bool, Setting("what enters and leaves each norm; residual stream by depth")]
    gradients: Annotated[bool, Setting("gradient norm by block")]
    parameters: Annotated[bool, Setting("γ, β, α of each norm; BatchNorm's batch-against-running gap")]
    tails: Annotated[bool, Setting("quantiles and outlier channels before and after each norm")]
    geometry: Annotated[bool, Setting("effective rank and token similarity of the residual stream by depth")]
    attention: Annotated[bool, Setting("entropy and largest logit of attention")]
    updates: Annotated[bool, Setting("how far a step moves the weights, as a share of their norm")]
    histograms_every: Annotated[
        int, Setting("steps between histograms before and after each norm; 0: never", "steps", low=0, high=10**9)
    ]


@dataclass(frozen=True)
class TrainConfig:
    """One run: the closed part of the configuration."""

    trainer: TrainerConfig
    probes: ProbesConfig
    name: Annotated[str, Setting("folder of runs under outputs")]
    outputs: Annotated[str, Setting("folder of all results, relative to the current one")]
    seed: Annotated[int, Setting("seeds weights, order of batches and dropout", low=0, high=2**63 - 1)]
    device: Annotated[str, Setting("auto, cpu, cuda, cuda:N or mps")]
    threads: Annotated[int | None, Setting("CPU threads; null: torch's own choice", low=1, high=1024)]
    quiet: Annotated[bool, Setting("print nothing but the run directory and errors")]
    rerun: Annotated[bool, Setting("make a finished run anew and keep the old one beside it")]
    extend: Annotated[str | None, Setting("directory of a finished run to continue with more trainer.steps")]


@cache
def type_hints(section: type) -> dict[str, Any]:
    """Return the annotations of a section by field."""
    return get_type_hints(section, include_extras=True)


@cache
def closed_settings(section: type, prefix: str = "") -> dict[str, Setting]:
    """Return every key of a closed section by its dotted path."""
    found: dict[str, Setting] = {}
    for name, hint in type_hints(section).items():
        if is_dataclass(hint):
            found |= closed_settings(hint, f"{prefix}{name}.")  # type: ignore[arg-type]  # a class, not an instance
        else:
            found[f"{prefix}{name}"] = setting_from(hint)
    return found


KEYS = closed_settings(TrainConfig)

# Sections that hold `_target_` and its arguments.
OPEN_SECTIONS = ("norm", "placement", "model", "data", "optim", "schedule", "init")

# Of torch's optimizers, whose signatures say neither bounds nor meaning.
OPTIMIZER = {
    "lr": setting_from(Annotated[float, Setting("learning rate at its peak", above=0, high=1e3)]),
    "weight_decay": setting_from(
        Annotated[float, Setting("decay of matrices; norms and biases have none", low=0, high=10)]
    ),
    "momentum": setting_from(Annotated[float, Setting("SGD's momentum", low=0, below=1)]),
    "nesterov": setting_from(Annotated[bool, Setting("Nesterov's form of momentum")]),
    "betas": setting_from(Annotated[list[float], Setting("Adam's averaging factors", length=2, low=0, below=1)]),
    "eps": setting_from(Annotated[float, Setting("added to Adam's denominator", low=0, high=1)]),
}

# Keys that change what is kept or shown, never a number; they stay out of the run's hash.
UNHASHED_KEYS = (
    "name", "outputs", "quiet", "rerun", "extend", "device", "threads", "data.root", "data.path",
    "trainer.checkpoint_every", "trainer.keep_checkpoint",
)  # fmt: skip


# ---- the checks


def section_settings(section: str, values: Tree) -> dict[str, Setting] | None:
    """Return the settings of an open section, whose `_target_` says what takes them; None: whatever they are."""
    target = str(values.get("_target_"))
    known = settings_of(target)
    if known is None or not target.startswith("torch.optim."):
        return known
    return {name: replace(OPTIMIZER.get(name, setting), required=setting.required) for name, setting in known.items()}


def checked(tree: Tree) -> tuple[dict[str, Any], TrainConfig]:
    """Return the configuration with each value in its own type, and its closed part: the one pass of all checks.

    Raises:
        UsageError: an unknown or missing key, a wrong type, a value out of bounds, sizes that do not fit each other.
    """
    result = dict(tree)
    for section in OPEN_SECTIONS:
        if not isinstance(tree.get(section), Mapping) or not isinstance(tree[section].get("_target_"), str):
            raise UsageError(
                f"{section} has no _target_, the class that makes it: choose one of those that "
                f"`normbench list {section}` shows"
            )
        result[section] = checked_section(section, tree[section])
    closed, values = checked_closed(TrainConfig, tree)
    result |= values
    check_words(closed)
    check_sizes(*({} if is_foreign(result[name]) else result[name] for name in ("model", "norm", "data")))
    return result, closed


def checked_section(section: str, values: Tree) -> dict[str, Any]:
    """Return an open section with each value checked; the learning rate is the schedule's, whatever the optimizer."""
    known, target = section_settings(section, values), values["_target_"]
    settings = {**({"lr": OPTIMIZER["lr"]} if section == "optim" else {}), **(known or {})}
    found = {}
    for name, value in values.items():
        path = f"{section}.{name}"
        if known is not None and name not in known and not name.startswith("_"):
            raise UsageError(f"{path} is not a setting of {target}: {nearest(name, known)}remove it with '~{path}'")
        found[name] = settings[name].check(path, value) if name in settings else value
    for name in (name for name, setting in settings.items() if setting.required and name not in values):
        raise UsageError(f"{section}.{name} missing for {target}: set it with {section}.{name}=VALUE")
    return found


def is_foreign(section: Tree) -> bool:
    """Tell whether a section is for a class of the user's own."""
    return not str(section["_target_"]).startswith("normbench.")


def checked_closed(section: type, tree: Tree, prefix: str = "") -> tuple[Any, dict[str, Any]]:
    """Return a closed section as its frozen dataclass and as a tree, every value checked."""
    if not isinstance(tree, Mapping):
        example = f"{prefix}{fields(section)[0].name}"
        raise UsageError(f"{prefix[:-1]}={show(tree)} is not allowed: it is a section, set its keys, such as {example}")
    hints, known = type_hints(section), closed_settings(section, prefix)
    parts: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        path = f"{prefix}{name}"
        if name not in tree:
            raise UsageError(f"{path} is missing: leave out what deletes it, such as ~{path}")
        if is_dataclass(hint):
            parts[name], values[name] = checked_closed(hint, tree[name], f"{path}.")  # type: ignore[arg-type]
        else:
            parts[name] = values[name] = known[path].check(path, tree[name])
    allowed = [*hints, *(OPEN_SECTIONS if section is TrainConfig else ())]
    for name in tree:
        if name not in allowed:
            raise UsageError(f"{prefix}{name} is unknown: {nearest(name, allowed)}allowed are {', '.join(allowed)}")
    return section(**parts), values


def check_words(config: TrainConfig) -> None:
    """Refuse a run without a length, and words that are no device or cannot name a folder."""
    if config.trainer.steps is None and config.trainer.epochs is None:
        raise UsageError("trainer.steps and trainer.epochs are both null: set one of them")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,2})?", config.device):
        raise UsageError(f"device={config.device} is unknown: use auto, cpu, cuda, cuda:N or mps")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", config.name):
        raise UsageError(
            f"name={config.name} cannot name a folder: use up to 100 of A-Z, a-z, 0-9, '.', '_', '+' and '-', the "
            "first one a letter or digit"
        )
    if not config.outputs:
        raise UsageError("outputs is empty: give a folder")


def check_sizes(model: Tree, norm: Tree, data: Tree) -> None:
    """Refuse sizes of our own classes that do not fit each other."""
    width, heads, groups = model.get("width"), model.get("heads"), norm.get("groups")
    if width and heads and width % heads:
        raise UsageError(
            f"model.width={width} is not divisible by model.heads={heads}: set model.heads to {divisors(width, heads)}"
        )
    if width and heads and isinstance(groups, int) and width % groups:
        raise UsageError(
            f"norm.groups={groups} does not divide model.width={width}: set norm.groups to {divisors(width, groups)}"
        )
    context, window = model.get("context"), data.get("context")
    if context and window and context != window:
        raise UsageError(f"data.context={window} is not model.context={context}: set model.context alone, data follows")


def divisors(number: int, near: int) -> str:
    """Return the divisors of a number next to another one, as `2 or 4`."""
    known = [n for n in range(1, number + 1) if number % n == 0]
    below, above = [n for n in known if n < near][-1:], [n for n in known if n > near][:1]
    return either(str(n) for n in below + above)
