"""What a run's configuration may hold: types, units, bounds and one line for each key, and checks across sections.

The YAMLs in `conf/` hold the values; this module says which are allowed. The closed sections are frozen dataclasses;
the open ones (norm, placement, model, data, ...) go to whatever `_target_` names, and only their well-known keys are
checked here. Nothing heavy is imported: a mistake that the config alone shows is found at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import SequenceMatcher
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from normbench.errors import UsageError
from normbench.keys import Key, either, show

Tree = Mapping[str, Any]


def key(doc: str, unit: str = "", **bounds: Any) -> Any:
    """A dataclass field that carries its Key (its types come from the annotation)."""
    return field(metadata={"key": Key(doc, unit=unit, **bounds)})


@dataclass(frozen=True)
class TrainerConfig:
    """The training loop."""

    steps: int | None = key("length of the run; null: from trainer.epochs", "optimizer steps", low=1, high=10**9)
    epochs: float | None = key(
        "length of the run, where trainer.steps is null", "passes over the data", above=0, high=10**6
    )
    grad_clip: float = key("largest gradient norm; larger gradients are scaled down; 0: off", low=0, high=1e6)
    log_every: int = key("steps between logged training losses", "steps", low=1, high=10**9)
    eval_every: int = key("steps between evaluations", "steps", low=1, high=10**9)
    eval_batches: int | None = key(
        "batches of an evaluation; null: all; the last one takes all", "batches", low=1, high=10**9
    )
    eval_train: bool = key("evaluate on as many batches of the training data too")
    checkpoint_every: int = key("steps between checkpoints", "steps", low=1, high=10**9)
    keep_checkpoint: str = key(
        "checkpoint that stays of a finished run; best: also that of the lowest validation loss",
        choices=("last", "best", "none"),
    )
    compile: bool = key("run the training step through torch.compile")
    precision: str = key("of matrix products and convolutions; fp16 scales the loss", choices=("fp32", "bf16", "fp16"))
    tf32: bool = key("let a GPU round float32 matrix products to TensorFloat-32")
    accumulate: int = key("batches whose gradients add up to one step", "batches", low=1, high=10**6)
    ema: float | None = key(
        "decay of an average of the weights, judged beside them; null: none", "per step", above=0, below=1
    )
    decay_norms: bool = key("weight decay on γ, β and α too")
    divergence_factor: float = key("a loss above this × the first one runs away", "× first loss", above=1, high=1e9)
    divergence_patience: int = key(
        "so long may a loss run away before the run ends as diverged", "steps", low=1, high=10**9
    )


@dataclass(frozen=True)
class ProbesConfig:
    """What is measured inside the network, and how often."""

    every: int = key("steps between probed steps; 0: never", "steps", low=0, high=10**9)
    activations: bool = key("what enters and leaves each norm; residual stream by depth")
    gradients: bool = key("gradient norm by block")
    parameters: bool = key("γ, β, α of each norm; BatchNorm's batch-against-running gap")
    tails: bool = key("quantiles and outlier channels before and after each norm")
    geometry: bool = key("effective rank and token similarity of the residual stream by depth")
    attention: bool = key("entropy and largest logit of attention")
    updates: bool = key("how far a step moves the weights, as a share of their norm")
    histograms_every: int = key(
        "steps between histograms before and after each norm; 0: never", "steps", low=0, high=10**9
    )


@dataclass(frozen=True)
class TrainConfig:
    """One run: the closed part of the configuration."""

    trainer: TrainerConfig
    probes: ProbesConfig
    name: str = key("folder of runs under outputs")
    outputs: str = key("folder of all results, relative to the current one")
    seed: int = key("seeds weights, order of batches and dropout", low=0, high=2**63 - 1)
    device: str = key("auto, cpu, cuda, cuda:N or mps")
    threads: int | None = key("CPU threads; null: torch's own choice", low=1, high=1024)
    quiet: bool = key("print nothing but the run directory and errors")
    rerun: bool = key("make a finished run anew and keep the old one beside it")
    extend: str | None = key("directory of a finished run to continue with more trainer.steps")


# Keys of the open sections that mean the same wherever they occur.
OPEN_KEYS: dict[str, Key] = {
    "norm.eps": Key("added to the variance or mean square, inside the root", (float,), low=0, high=1),
    "norm.groups": Key(
        "groupnorm's groups of channels; auto: 32 if C ≥ 128, else C / 4",
        (int, str),
        low=1,
        high=10**6,
        choices=("auto",),
    ),
    "norm.momentum": Key(
        "batchnorm's share of the batch in running statistics; null: cumulative", (float, NoneType), above=0, high=1
    ),
    "norm.alpha0": Key(
        "start of dyt's α; llama: the paper's table", (float, str), above=0, high=1e3, choices=("llama",)
    ),
    "norm.fraction": Key("share of the features that pRMSNorm's statistic sees", (float,), above=0, high=1),
    "norm.affine": Key("learned γ (and β)", (bool,)),
    "norm.bias": Key("learned β, where there is a γ", (bool,)),
    "norm.across_time": Key("statistics over time too, not at each position", (bool,)),
    "norm.track_running_stats": Key("evaluate with running statistics of the training batches", (bool,)),
    "norm.impl": Key(
        "which code runs: torch's operator, the formula, or the faster", (str,), choices=("auto", "torch", "eager")
    ),
    "model.depth": Key("number of blocks", (int,), low=1, high=1_000),
    "model.width": Key("features of the stream (CNN: of the first stage)", (int,), low=1, high=10**5),
    "model.heads": Key("attention heads; they divide the width", (int,), low=1, high=10**5),
    "model.context": Key("longest sequence", (int,), "tokens", low=1, high=10**7),
    "model.dropout": Key("share of values dropped in training", (float,), low=0, below=1),
    "model.position": Key("position embedding", (str,), choices=("learned", "rotary")),
    "model.mlp": Key("activation of the MLP", (str,), choices=("gelu", "relu", "silu", "sigmoid", "tanh", "swiglu")),
    "model.tied": Key("the output layer uses the token embedding", (bool,)),
    "model.bias": Key("biases in the linear maps of the blocks", (bool,)),
    "model.embedding_scale": Key("one learned scalar, from √width, on the embedding (DyT's LLaMA form)", (bool,)),
    "model.patch": Key("side of an image patch", (int,), "pixels", low=1, high=10**4),
    "model.pool": Key("what the class is read from", (str,), choices=("mean", "class_token")),
    "model.stages": Key("channels of each stage, in multiples of the width", (list,), items=(int,), low=1, high=10**4),
    "model.blocks": Key("blocks of each stage", (list,), items=(int,), low=1, high=1_000),
    "model.strides": Key("by how much each stage shrinks height and width", (list,), items=(int,), low=1, high=100),
    "model.norm_order": Key("the norm inside a branch, against its activation", (str,), choices=("before", "after")),
    "model.activation": Key("activation", (str,), choices=("relu", "gelu", "silu", "sigmoid", "tanh")),
    "data.name": Key("what the records call the data set", (str,)),
    "data.hub_id": Key("owner/name on the Hugging Face hub", (str,)),
    "data.revision": Key("branch, tag or commit on the hub", (str,)),
    "data.root": Key("folder of local copies in the hub's layout; null: from the hub", (str, NoneType)),
    "data.config": Key("which of the repository's configurations", (str, NoneType)),
    "data.path": Key("your own file or folder", (str, NoneType)),
    "data.size": Key(
        "side that images are brought to; null: they have one size", (int, NoneType), "pixels", low=1, high=10**4
    ),
    "data.text_column": Key("column of the text", (str,)),
    "data.level": Key("what a token is", (str,), choices=("character", "byte", "word", "lowercase_word", "bpe")),
    "data.vocabulary_size": Key(
        "most symbols of words or byte pairs; null: all words, 8,192 pairs",
        (int, NoneType),
        "symbols",
        low=2,
        high=10**7,
    ),
    "data.lines": Key("each row is a line of its own", (bool,)),
    "data.val_splits": Key("splits that validate", (list,), items=(str,)),
    "data.test_splits": Key("splits that judge once, at the end; null: none", (list, NoneType), items=(str,)),
    "data.val_split": Key("split that validates", (str,)),
    "data.image_column": Key("column of the images", (str,)),
    "data.label_column": Key("column of the classes", (str,)),
    "data.split_column": Key(
        "column that says train, val or test; null: a tenth of each class is val", (str, NoneType)
    ),
    "data.context": Key("length of a window; set model.context, it follows", (int,), "tokens", low=1, high=10**7),
    "data.batch_size": Key("windows, texts or images a batch", (int,), low=1, high=10**6),
    "data.eval_batch_size": Key("windows, texts or images an evaluation batch", (int,), low=1, high=10**6),
    "data.holdout": Key(
        "share (< 1) or number (≥ 1) of the last training examples to judge by", (float,), low=0, high=1e12
    ),
    "data.crop": Key(
        "training images are cut at random from a frame so many pixels wider; 0: off",
        (int,),
        "pixels",
        low=0,
        high=10**4,
    ),
    "data.flip": Key("mirror training images at random, left to right", (bool,)),
    "data.cutout": Key(
        "side of a random square of zeros in training images; 0: off", (int,), "pixels", low=0, high=10**4
    ),
    "data.scaling": Key("of pixels", (str,), choices=("none", "unit", "standard")),
    "optim.lr": Key("learning rate at its peak", (float,), above=0, high=1e3),
    "optim.weight_decay": Key("decay of matrices; norms and biases have none", (float,), low=0, high=10),
    "optim.momentum": Key("SGD's momentum", (float,), low=0, below=1),
    "optim.nesterov": Key("Nesterov's form of momentum", (bool,)),
    "optim.betas": Key("Adam's averaging factors", (list,), items=(float,), length=2, low=0, below=1),
    "optim.eps": Key("added to Adam's denominator", (float,), low=0, high=1),
    "schedule.warmup": Key("share (< 1) or number (≥ 1) of steps", (float,), low=0, high=1e9),
    "schedule.start": Key("factor on the learning rate at the first step", (float,), low=0, high=1),
    "schedule.final": Key("factor on the learning rate at the last step", (float,), low=0, high=1),
    "init.weight_std": Key("standard deviation of weight matrices", (float,), low=0, high=1e3),
    "init.embedding_std": Key("standard deviation of embeddings", (float,), low=0, high=1e3),
    "init.residual_scale": Key("GPT-2's 1/√branches on weights that write to the stream", (bool,)),
}

# What people set most, in the order of `normbench train --help`.
COMMON_KEYS = (
    "trainer.steps", "trainer.epochs", "optim.lr", "optim.weight_decay", "data.batch_size", "data.root",
    "model.depth", "model.width", "model.heads", "model.dropout", "norm.eps", "norm.impl", "trainer.grad_clip",
    "trainer.eval_every", "probes.every", "device", "threads", "seed", "name", "quiet",
)  # fmt: skip

# Sections that hold `_target_` and its arguments.
OPEN_SECTIONS = ("norm", "placement", "model", "data", "optim", "schedule", "init")

# Keys that change what is kept or shown, never a number; they stay out of the run's hash.
UNHASHED_KEYS = (
    "name", "outputs", "quiet", "rerun", "extend", "device", "threads", "data.root", "data.path",
    "trainer.checkpoint_every", "trainer.keep_checkpoint",
)  # fmt: skip


def closed_keys(section: Any = TrainConfig, prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Every key of the closed sections with its types, by dotted path."""
    hints = get_type_hints(section)
    for item in fields(section):
        hint = hints[item.name]
        if is_dataclass(hint):
            yield from closed_keys(hint, f"{prefix}{item.name}.")
        else:
            types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            meta: Key = item.metadata["key"]
            yield f"{prefix}{item.name}", Key(**{**vars(meta), "types": types})


KEYS: dict[str, Key] = {**dict(closed_keys()), **OPEN_KEYS}


def lookup(tree: Tree, path: str) -> Any:
    """The value at a dotted path.

    Raises:
        KeyError: nothing is there.
    """
    for part in path.split("."):
        if not isinstance(tree, Mapping):
            raise KeyError(path)
        tree = tree[part]
    return tree


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean X? ` where something known is like the word, else nothing; two, where they are about as like."""
    likeness = {other: SequenceMatcher(None, word, other).ratio() for other in known}
    enough = max(0.6, max(likeness.values(), default=0) - 0.15)
    close = sorted((other for other in likeness if likeness[other] >= enough), key=likeness.__getitem__, reverse=True)
    return f"did you mean {' or '.join(close[:2])}? " if close else ""


@cache
def described(section: type, prefix: str) -> tuple[dict[str, Any], dict[str, Key]]:
    """The types of a closed section by field, and its keys by path; a sweep asks for each of its runs."""
    return get_type_hints(section), dict(closed_keys(section, prefix))


def build(section: type, tree: Tree, prefix: str = "") -> Any:
    """The frozen dataclass of a closed section, every value checked.

    Raises:
        UsageError: an unknown or missing key, a wrong type, a value out of bounds.
    """
    if not isinstance(tree, Mapping):
        raise UsageError(
            f"{prefix[:-1]}={show(tree)} is not allowed: it is a section, set its keys, such as "
            f"{prefix}{fields(section)[0].name}"
        )
    hints, keys = described(section, prefix)
    values = {}
    for item in fields(section):
        path = f"{prefix}{item.name}"
        if item.name not in tree:
            raise UsageError(f"{path} is missing: leave out what deletes it, such as ~{path}")
        if is_dataclass(hints[item.name]):
            values[item.name] = build(hints[item.name], tree[item.name], f"{path}.")
        else:
            values[item.name] = keys[path].check(path, tree[item.name])
    known = [item.name for item in fields(section)]
    known += list(OPEN_SECTIONS) if section is TrainConfig else []
    for name in tree:
        if name not in known:
            raise UsageError(f"{prefix}{name} is unknown: {nearest(name, known)}allowed are {', '.join(known)}")
    return TrainConfig(**values) if section is TrainConfig else section(**values)


def typed(tree: Tree) -> dict[str, Any]:
    """The tree with each known value checked and in its own type: `trainer.steps=1e3` is the integer 1000.

    Of a class of the user's own only the learning rate is known: see `is_known`.

    Raises:
        UsageError: a wrong type, or a value out of bounds.
    """
    result = {name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    for path, known in KEYS.items():
        section, _, name = path.rpartition(".")
        values = result.get(section) if section else result
        if isinstance(values, dict) and name in values and is_known(path, values):
            values[name] = known.check(path, values[name])
    return result


def is_known(path: str, values: Tree) -> bool:
    """Whether what KEYS says of a path holds for the section that has it.

    A class of the user's own may mean something else by the same name; the learning rate is the schedule's.
    """
    return path == "optim.lr" or not is_foreign(values)


def is_foreign(section: Tree) -> bool:
    """Whether a section is for a class that is neither ours nor one of torch's optimizers."""
    return not str(section.get("_target_", "normbench.")).startswith(("normbench.", "torch.optim."))


def parse(tree: Tree) -> TrainConfig:
    """The closed part of a resolved config, after all checks that the config alone allows.

    Raises:
        UsageError: any mistake.
    """
    for section in OPEN_SECTIONS:
        if not isinstance(tree.get(section), Mapping) or not isinstance(tree[section].get("_target_"), str):
            raise UsageError(
                f"{section} has no _target_, the class that makes it: choose one of those that "
                f"`normbench list {section}` shows"
            )
    tree = typed(tree)
    config: TrainConfig = build(TrainConfig, tree)
    check_words(config)
    check_sizes(tree["model"], tree["norm"], tree["data"])
    return config


def check_words(config: TrainConfig) -> None:
    """The keys of which one must be set, and the words that are patterns."""
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
    """Sizes that must fit each other, where they are those of our own classes."""
    model, norm, data = ({} if is_foreign(section) else section for section in (model, norm, data))
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
    """The divisors of a number next to another one, as `2 or 4`."""
    known = [n for n in range(1, number + 1) if number % n == 0]
    below, above = [n for n in known if n < near][-1:], [n for n in known if n > near][:1]
    return either(str(n) for n in below + above)
