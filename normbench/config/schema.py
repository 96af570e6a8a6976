"""The configuration of a run: its closed sections with types, units and bounds, and the checks of all sections.

The YAMLs in `conf/` hold the values; here stands which are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from normbench.config.groups import chosen_options
from normbench.config.rules import RULES, class_sections_in, group_of, read_rule, rule_sections
from normbench.config.sections import BY_NAME, CLASS_SECTIONS, LOGGER, SECTIONS
from normbench.config.signatures import settings_of
from normbench.errors import UsageError
from normbench.settings import LIKE_HOST, Setting, Tree, flat, nearest, setting_from, show


@dataclass(frozen=True)
class TrainerConfig:
    """The training loop."""

    steps: Annotated[int | None, Setting("length of the run; null: from trainer.epochs", "steps", low=1, high=10**9)]
    epochs: Annotated[float | None, Setting("length without trainer.steps", "passes over the data", above=0, high=1e6)]
    grad_clip: Annotated[float, Setting("larger gradients are scaled down to this norm; 0: off", low=0, high=1e6)]
    log_every: Annotated[int, Setting("steps between logged training losses", "steps", low=1, high=10**9)]
    eval_every: Annotated[int | None, Setting("steps between evaluations; null: 10 in all", "steps", low=1, high=10**9)]
    eval_batches: Annotated[int | None, Setting("batches of an evaluation but the last; null: all", low=1, high=10**9)]
    eval_train: Annotated[bool, Setting("evaluate on as many batches of the training data too")]
    checkpoint_every: Annotated[int, Setting("steps between checkpoints", "steps", low=1, high=10**9)]
    keep_checkpoint: Annotated[
        Literal["last", "best", "none"],
        Setting("checkpoint to keep; best also keeps the weights with the lowest validation loss"),
    ]
    compile: Annotated[
        bool | Literal["cudagraphs", "graph"],
        Setting("use torch.compile; cudagraphs: with CUDA graphs; graph: the whole step as one CUDA graph"),
    ]
    precision: Annotated[Literal["fp32", "bf16", "fp16"], Setting("of matrix products; fp16 scales the loss")]
    tf32: Annotated[bool, Setting("let a GPU round float32 matrix products to TensorFloat-32")]
    accumulate: Annotated[int, Setting("batches whose gradients add up to one step", "batches", low=1, high=10**6)]
    ema: Annotated[float | None, Setting("decay of the weights' average; null: none", "per step", above=0, below=1)]
    decay_norms: Annotated[bool, Setting("weight decay on γ, β and α too")]
    divergence_factor: Annotated[float, Setting("a loss above this × the first one is too high", above=1, high=1e9)]
    divergence_patience: Annotated[
        int, Setting("steps the loss may stay that high before the run counts as diverged", "steps", low=1, high=10**9)
    ]
    recompute: Annotated[bool, Setting("keep some blocks' inputs, compute the rest again: memory as √depth")] = False
    shard: Annotated[bool, Setting("each process keeps a part of the weights, for large models")] = False
    train: Annotated[
        Literal["all", "norms", "head", "norms+head"],
        Setting("what is trained: all, the norms' parameters, the output layer's, or both"),
    ] = "all"
    norm_dtype: Annotated[
        Literal["fp32", "bf16"], Setting("in which the norms' parameters are kept; bf16 loses small steps")
    ] = "fp32"
    swa: Annotated[
        float | None,
        Setting("share of the steps after which the weights' plain average begins; null: none", above=0, below=1),
    ] = None

    @property
    def torch_compiles(self) -> bool:
        """Tell whether torch.compile makes code of the model."""
        return self.compile in (True, "cudagraphs")


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
    updates: Annotated[bool, Setting("how far a step moves the weights, and the noise of its gradients")]
    histograms_every: Annotated[int, Setting("steps between norms' histograms; 0: never", "steps", low=0, high=10**9)]


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
    rerun: Annotated[bool, Setting("run again even if finished, and keep the earlier run beside the new one")]
    extend: Annotated[str | None, Setting("directory of a finished run to continue with more trainer.steps")]


def closed_settings(section: type) -> dict[str, Setting]:
    """Return the settings of a closed section; only those with a default, which older runs have not, may be missing."""
    settings: dict[str, Setting] = {}
    for name, annotation in get_type_hints(section, include_extras=True).items():
        settings[name] = replace(setting_from(annotation), required=name not in vars(section))
    return settings


def list_keys() -> dict[str, Setting]:
    """Return the settings of all keys that are there whatever is chosen."""
    setting_of_key: dict[str, Setting] = {}
    for section, settings in CLOSED.items():
        for name, setting in settings.items():
            setting_of_key[f"{section}.{name}"] = setting
    for name, setting in ROOT.items():
        if name not in CLOSED:
            setting_of_key[name] = setting
    for section in CLASS_SECTIONS:
        if not BY_NAME[section].absent:
            setting_of_key[f"{section}._target_"] = TARGET
    return setting_of_key


TARGET = Setting("what makes it: package.module.Class", types=(str,), required=True)

# The settings of the sections that are no class's, and all keys that are there whatever is chosen.
CLOSED = {"trainer": closed_settings(TrainerConfig), "probes": closed_settings(ProbesConfig)}
ROOT = closed_settings(TrainConfig)
KEYS = list_keys()

# Of torch's optimizers, whose signatures say neither bounds nor meaning.
OPTIMIZER = {
    "lr": Setting(
        "peak learning rate: one for all norms, chosen for none; sweep.lr=each gives each its own",
        above=0,
        high=1e3,
        types=(float,),
    ),
    "weight_decay": Setting("decay of matrices; norms and biases have none", low=0, high=10, types=(float,)),
    "momentum": Setting("SGD's momentum", low=0, below=1, types=(float,)),
    "nesterov": Setting("Nesterov's form of momentum", types=(bool,)),
    "betas": Setting("Adam's averaging factors", length=2, low=0, below=1, types=(list,), items=(float,)),
    "eps": Setting("added to Adam's denominator", low=0, high=1, types=(float,)),
}

# Keys that change what is kept or shown, never a number; they stay out of the run's hash.
UNHASHED_KEYS = (
    "name", "outputs", "quiet", "rerun", "extend", "device", "threads", "data.root", "data.path", "data.tokenizer",
    LOGGER, "trainer.checkpoint_every", "trainer.keep_checkpoint", "trainer.shard", "trainer.recompute",
)  # fmt: skip


def list_left_out() -> dict[str, Any]:
    """Return the keys that older runs do not have and that change numbers, with the values that change nothing.

    A configuration leaves a key out where it has that value, so that runs keep their names.
    """
    defaults: dict[str, Any] = {}
    for section, kind in (("trainer", TrainerConfig), ("probes", ProbesConfig)):
        for field in fields(kind):
            path = f"{section}.{field.name}"
            if field.default is not MISSING and path not in UNHASHED_KEYS:
                defaults[path] = field.default
    return defaults


LEFT_OUT = list_left_out()


def takes_from_host(config: Mapping[str, Any]) -> bool:
    """Tell whether norms have those settings of the norms of another library's model that no word gives.

    Args:
        config: by path.
    """
    return config.get("model.norm_settings") == "own"


def list_unwritten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration is without since it is as usual: options, keys and settings of our classes, by path.

    Args:
        config: by path.
    """
    usual = dict(LEFT_OUT)
    for section in SECTIONS:
        if section.absent:
            usual[section.name] = chosen_options([])[section.name]
            usual[f"{section.name}._target_"] = section.absent
    for path, target in config.items():
        section_name, _, name = path.rpartition(".")
        if name == "_target_" and str(target).startswith("normbench."):
            known = section_settings(section_name, {name: target}) or {}
            is_as_in_host = takes_from_host(config) and group_of(section_name.removeprefix(f"{RULES}.")) == "norm"
            for key, setting in known.items():
                if setting.default is not ... and not (is_as_in_host and key in LIKE_HOST):
                    usual[f"{section_name}.{key}"] = setting.default
    return {path: value for path, value in flat(usual).items() if path not in config}


# What `normbench swap` takes beside the keys of a run.
SWAP_KEYS = {
    "keep": Setting(
        "how the norms of the model that --out writes start",
        types=(str,),
        choices=("weights", "nothing", "fit", "exact"),
    )
}

# ---- the checks


def section_settings(section: str, values: Tree, imports: bool = False) -> dict[str, Setting] | None:
    """Return the settings of a section; of an open one, whose `_target_` takes whatever it is given, None.

    Args:
        imports: whether a class of somebody else's is imported to be read; one that is not is taken to be open.
    """
    if section in CLOSED:
        return CLOSED[section]
    target = str(values.get("_target_"))
    known = settings_of(target, imports)
    if known is None or not target.startswith("torch.optim."):
        return known
    described: dict[str, Setting] = {}
    for name, setting in known.items():
        described[name] = replace(OPTIMIZER.get(name, setting), required=setting.required)
    return described


def check_config(tree: Tree) -> tuple[dict[str, Any], TrainConfig]:
    """Return the configuration with each value in its own type, and its closed part: the one pass of all checks.

    Raises:
        UsageError: an unknown or missing key, a wrong type, a value out of bounds, sizes that do not fit each other.
    """
    keys = {**ROOT, LOGGER: Setting(required=True), RULES: Setting()}
    for section in CLASS_SECTIONS:
        keys[section] = Setting(required=not BY_NAME[section].absent)
    result = check_values("", tree, keys, "normbench train")
    for section in (*CLOSED, *CLASS_SECTIONS):
        if section in tree:
            result[section] = check_section(section, tree[section])
    result[LOGGER] = {}
    for name, section_values in tree[LOGGER].items():
        result[LOGGER][name] = check_section(f"{LOGGER}.{name}", section_values)
    if RULES in tree:
        result[RULES] = check_rules(tree)
    values = {name: result[name] for name in ROOT}
    values["trainer"] = TrainerConfig(**result["trainer"])
    values["probes"] = ProbesConfig(**result["probes"])
    closed = TrainConfig(**values)
    check_words(closed)
    check_sizes(result)
    return result, closed


def check_section(section: str, values: Any) -> dict[str, Any]:
    """Return a section, each value checked and in its own type."""
    if not isinstance(values, Mapping):
        raise UsageError(f"{section}={show(values)} is not allowed: it is a section, set its keys")
    known = section_settings(section, values, imports=True)
    if known is None:  # anything
        known = {name: Setting() for name in values if not name.startswith("_")}
        if section == "optim":  # the learning rate is the schedule's, whatever the optimizer
            known["lr"] = OPTIMIZER["lr"]
    if section not in CLOSED:
        known = {"_target_": TARGET, "_partial_": Setting(), **known}
    return check_values(f"{section}.", values, known, values.get("_target_", section))


def check_rules(tree: Tree) -> dict[str, dict[str, Any]]:
    """Return the section of each rule, each value checked and in its own type."""
    sections: dict[str, dict[str, Any]] = {}
    for key, values in rule_sections(tree).items():
        read_rule(key)
        sections[key] = check_section(key, values)
    return sections


@contextmanager
def blame_file(path: Path) -> Iterator[None]:
    """Say of a value refused inside that it stands in a run's configuration, which another version may have written."""
    try:
        yield
    except UsageError as error:
        where = f"{path} is of another version of normbench, or was edited"
        raise UsageError(f"{where} ({error}): make that run again") from error


def class_sections(tree: Tree) -> dict[str, Tree]:
    """Return all sections that hold `_target_` and its arguments, by their paths, those of rules too."""
    sections = class_sections_in(tree)
    for name, values in tree[LOGGER].items():
        sections[f"{LOGGER}.{name}"] = values
    return sections


def check_values(prefix: str, values: Tree, known: Mapping[str, Setting], where: str) -> dict[str, Any]:
    """Return values, each checked and in its own type.

    Args:
        prefix: what stands before the keys, such as `norm.`.
        known: the settings that there are.
        where: whose settings they are.
    """
    for name, setting in known.items():
        if setting.required and name not in values:
            raise UsageError(f"{prefix}{name} is missing: {where} needs it, set {prefix}{name}=VALUE")
    for name, value in values.items():
        if name not in known:
            allowed = [key for key in known if not key.startswith("_")]
            cure = f"allowed are {', '.join(allowed)}" if allowed else "it has none"
            raise UsageError(f"{prefix}{name} is not a setting of {where}: {nearest(name, allowed)}{cure}")
        if prefix and names_class(value):
            cure = "settings are plain values, and a section alone has a class, as norm._target_=package.module.Class"
            raise UsageError(f"{prefix}{name} holds a _target_: {cure}")
    checked: dict[str, Any] = {}
    for name, value in values.items():
        checked[name] = known[name].check(prefix + name, value)
    return checked


def names_class(value: Any) -> bool:
    """Tell whether a list or tree has a `_target_` anywhere inside."""
    return isinstance(value, Mapping | list) and '"_target_": ' in json.dumps(value, default=str)


def describe_unchecked(tree: Tree) -> list[str]:
    """Return a sentence for each value of a class of somebody else's that is not checked, since nothing tells how."""
    sentences: list[str] = []
    for section, values in class_sections(tree).items():
        known = section_settings(section, values, imports=True) or {}
        for name, setting in known.items():
            if name in values and setting.unread:
                cause = f"its annotation in {values['_target_']} cannot be read ({setting.unread})"
                sentences.append(f"{section}.{name} may be anything, since {cause}")
    return sentences


def is_foreign(section: Tree) -> bool:
    """Tell whether a section is for a class of the user's own."""
    return not str(section["_target_"]).startswith("normbench.")


def check_words(config: TrainConfig) -> None:
    """Refuse a run without a length, and words that do not name a device or cannot name a folder."""
    if config.trainer.steps is None and config.trainer.epochs is None:
        raise UsageError("trainer.steps and trainer.epochs are both null: set one of them")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,2})?", config.device):
        raise UsageError(f"device={config.device} is unknown: use auto, cpu, cuda, cuda:N or mps")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", config.name):
        raise UsageError(f"name={config.name} cannot name a folder: use letters, digits, '.', '_', '+' and '-'")


def check_sizes(tree: Tree) -> None:
    """Refuse sizes of our own classes that do not fit each other."""
    ours: dict[str, Tree] = {}
    for section in ("model", "norm", "data"):
        ours[section] = {} if is_foreign(tree[section]) else tree[section]
    model = ours["model"]
    if "heads" in model:
        check_divides("model.heads", model["heads"], model["width"])
        check_divides("norm.groups", ours["norm"].get("groups"), model["width"])
    context = model.get("context")
    window = ours["data"].get("context")
    if context and window and context != window:
        raise UsageError(f"data.context={window} is not model.context={context}: set model.context alone, data follows")


def check_divides(key: str, number: Any, width: int) -> None:
    """Refuse a number of heads or groups that does not divide the width."""
    if isinstance(number, int) and width % number:
        fitting = [str(divisor) for divisor in range(1, width + 1) if width % divisor == 0]
        cure = f"set {key} to one of {', '.join(fitting)}"
        raise UsageError(f"{key}={number} does not divide model.width={width}: {cure}")
