"""What whole blocks make of a stream that is scaled or shifted before it enters them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normbench.config.rules import RULES, group_of, rule_sections
from normbench.evidence.labels import label_of
from normbench.hosts import Adapter
from normbench.hosts.exact import first_tensor
from normbench.results.rows import arms_of, is_arm, keys_of
from normbench.settings import Tree
from normbench.studies.frame import Row, Subject
from normbench.types import Block

C = 3.0  # by which the stream is multiplied, or which is added to each of its features
SCALES = np.logspace(-2, 2, 9).tolist()
# What a block makes of a change T of its input x, the first that holds: B(Tx) = B(x), B(Tx) − Tx = B(x) − x,
# B(Tx) = T B(x).
REMOVES, ADDS_THE_SAME, PASSES_ON = "removes it", "adds the same to it", "passes it on"
CHANGES_WHAT_IT_ADDS = "changes what it adds"  # where none of them holds
RELATIONS = (REMOVES, ADDS_THE_SAME, PASSES_ON)


def multiply(x: Tensor) -> Tensor:
    """Multiply a stream by c."""
    return C * x


def shift(x: Tensor) -> Tensor:
    """Add c to each feature of a stream."""
    return C + x


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {"stream × c": multiply, "stream + c": shift}


class Call(NamedTuple):
    """With what a block is called: the stream, and the rest by position and by keyword."""

    x: Tensor
    more: Sequence[Any]
    context: Mapping[str, Any]


def without_eps(tree: Tree) -> Tree:
    """Return a configuration in which no norm adds anything to its variance."""
    rules: dict[str, Any] = {}
    for key, section in rule_sections(tree).items():
        rules[key] = zero_eps(section) if group_of(key) == "norm" else section
    new_tree = {**tree, "norm": zero_eps(tree["norm"])}
    return {**new_tree, RULES: rules} if rules else new_tree


def zero_eps(section: Tree) -> Tree:
    """Return the settings of a norm with an eps of 0, where it has one."""
    return {**section, "eps": 0.0} if "eps" in section else section


def measure_blocks(subject: Subject) -> Iterator[Row]:
    """Yield what the first and the last block make of each change of the stream that enters them, in float64.

    Norms are in training and have no eps. The exponent is that of the scale of the stream with which the root mean
    square of what the block gives grows, between half of the stream and twice the stream.
    """
    exact_subject = replace(subject, tree=without_eps(subject.tree))
    model, norms = exact_subject.build()
    model.double()
    for norm in norms.values():
        norm.train()  # running statistics are those of no batch yet
        if model.hosted:  # whose norms have an ε that is not in the configuration
            Adapter(-1).leave_out_eps(norm)
    bound = bound_of(torch.float32 if model.hosted else torch.float64)
    blocks = model.anatomy().blocks
    measured_blocks = {"first": blocks[0], "last": blocks[-1]}
    calls: dict[str, Call] = {}
    handles = []
    for name, block in measured_blocks.items():
        handles.append(block.module.register_forward_pre_hook(partial(keep, calls, name), with_kwargs=True))
    batch = exact_subject.data.train_batch(0)
    arguments = [as_double(argument.to(exact_subject.device)) for argument in batch.arguments]
    with torch.no_grad():
        model(*arguments)
        for handle in handles:
            handle.remove()
        for name, block in measured_blocks.items():
            for row in measure_block(block, calls[name], bound):
                yield {"block": name, **row}


def keep(seen: dict[str, Call], name: str, module: nn.Module, inputs: tuple[Tensor, ...], context: Any) -> None:
    """Keep with what a block is called."""
    x, *more = inputs
    seen[name] = Call(x, more, dict(context))


def as_double(x: Tensor) -> Tensor:
    """Return numbers in float64, and others, such as tokens, as they are."""
    return x.double() if x.is_floating_point() else x


def bound_of(dtype: torch.dtype) -> float:
    """Return the relative deviation below which two results in a precision are the same.

    Norms of other libraries may compute in float32 whatever they are given.
    """
    return float(torch.finfo(dtype).eps ** 0.5)


def measure_block(block: Block, call: Call, bound: float) -> Iterator[Row]:
    """Yield how far a block is from each relation, for each change, and the root mean square that it gives by scale.

    A relation holds where the relative deviation is below the bound.
    """
    x = call.x

    def through(stream: Tensor) -> Tensor:
        return first_tensor(block.module(stream, *call.more, **call.context))

    before = through(x)
    exponent = exponent_of(rms(through(x / 2)), rms(through(2 * x)))
    for change, apply in CHANGES.items():
        changed = apply(x)
        after = through(changed)
        off = {REMOVES: distance(after, before), PASSES_ON: distance(after, apply(before))}
        if after.shape == x.shape:
            off[ADDS_THE_SAME] = distance(after - changed, before - x)
        relations = [relation for relation in RELATIONS if off.get(relation, 1.0) < bound]
        row: Row = {
            "stream_change": change,
            "makes": relations[0] if relations else CHANGES_WHAT_IT_ADDS,
            "update": off.get(ADDS_THE_SAME),
        }
        if change == "stream × c":
            row["exponent"] = exponent
        yield row
    for scale in SCALES:
        yield {"stream_scale": scale, "stream_rms": rms(through(scale * x))}


def exponent_of(half: float, twice: float) -> float:
    """Return the exponent with which something grows from half of a scale to twice the scale; NaN where it is 0."""
    return math.log(twice / half, 4) if half and twice else math.nan


def rms(x: Tensor) -> float:
    """Return the root mean square."""
    return float(x.square().mean().sqrt())


def distance(x: Tensor, reference: Tensor) -> float:
    """Return |x − reference| / |reference|; 0 where both are 0."""
    off = float((x - reference).norm())
    return off / float(reference.norm()) if off else 0.0


# ---- what was found


def blocks_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each block makes of each change, and its exponent."""
    measured = rows.dropna(subset=["makes"])
    keys = [*keys_of(rows), "block"]
    words = (
        measured.groupby([*keys, "stream_change"], dropna=False, sort=False)["makes"].agg(agreed).unstack(sort=False)
    )
    exponents = measured.groupby(keys, dropna=False, sort=False)["exponent"].mean()
    return words[list(CHANGES)].assign(exponent=exponents).reset_index()


def agreed(words: pd.Series) -> str:
    """Return the words on which all seeds agree, or that they do not."""
    return str(words.iloc[0]) if words.nunique() == 1 else "differs by seed"


def tell_blocks(rows: pd.DataFrame) -> list[str]:
    """Say of each change what the last block makes of it, by arm."""
    last = rows[rows["block"] == "last"].dropna(subset=["makes"])
    sentences: list[str] = []
    for change, rows_of_change in last.groupby("stream_change", sort=False):
        arms: dict[str, list[str]] = {}
        for arm in arms_of(rows_of_change):
            effect = agreed(rows_of_change[is_arm(rows_of_change, arm.settings)]["makes"])
            arms.setdefault(effect, []).append(label_of(arm))
        phrases = []
        for effect, names in arms.items():
            phrases.append(f"{effect}: {', '.join(names)}")
        sentences.append(f"Given the {change}, the last block {'; '.join(phrases)}.")
    return sentences
