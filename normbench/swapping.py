"""`normbench.swap`: put other norms into a model that a person has, in a script of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench import hosts
from normbench.build import factory, facts_of
from normbench.config.groups import check_option, section_of
from normbench.config.recipe import resolve
from normbench.config.refusals import LEAKS
from normbench.config.rules import Rule, say_places
from normbench.config.schema import check_section
from normbench.errors import ArgumentError, CombinationRefused, UsageError
from normbench.hosts import Findings
from normbench.hosts.replacing import Keep, first_floating
from normbench.norms.foreign import make_fitted, takes_place
from normbench.types import NormFactory, NormFacts

# How the classes of causal language models are named in transformers.
CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel")

TOKENS = 8  # of each text of an example that is made here


def swap_norms(
    model: nn.Module,
    norm: str | Callable[..., nn.Module],
    *,
    keep: Keep,
    where: str | Sequence[str] | None,
    example: Any,
    causal: bool | None,
    settings: Mapping[str, Any],
) -> pd.DataFrame:
    """Replace norms of a model, and return the table of what was done; see `normbench.swap`."""
    if keep not in ("weights", "nothing"):
        raise ArgumentError("keep", keep, "is unknown: use weights or nothing")
    make, facts, name = read_norm(norm, settings)
    call = read_example(model, example)
    if causal is None:
        causal = type(model).__name__.endswith(CAUSAL_ENDINGS)
    check_leaks(name, facts, causal)
    findings = hosts.find(model, call, causal)
    chosen = choose(findings, where)
    made = hosts.replace(model, chosen, make, keep, given=settings)
    hosts.check_runs(model, call, chosen, made)
    for warning in findings.warnings:
        warnings.warn(warning, stacklevel=3)  # in the script that called normbench.swap
    table = pd.DataFrame([asdict(row) for row in hosts.tabulate(findings, made, keep)])
    table["features"] = table["features"].astype("Int64")
    return table


# ---- what was asked for


def read_norm(norm: str | Callable[..., nn.Module], settings: Mapping[str, Any]) -> tuple[NormFactory, NormFacts, str]:
    """Return what makes a norm, what it declares, and its name.

    Raises:
        UsageError: there is no such norm, or a setting does not fit it.
    """
    if isinstance(norm, str):
        if "." in norm:
            section = {"_target_": norm, **settings}
        else:
            check_option("norm", norm)
            if norm == "own":
                raise ArgumentError("norm", norm, "is what the model has: choose another")
            section = {**section_of("norm", norm), **settings}
        part = resolve("norm", check_section("norm", section), norm)
        return factory(part), facts_of(part), norm
    make = partial(norm, **settings)
    name = getattr(norm, "__name__", str(norm))
    facts = NormFacts(statistics_over="unknown", centers=False)
    if hasattr(norm, "facts_for"):
        facts = norm.facts_for(**settings)
    return (make if takes_place(norm) else partial(make_fitted, make)), facts, name


def check_leaks(name: str, facts: NormFacts, causal: bool) -> None:
    """Refuse a norm that shows a causal model its future in evaluation too, and warn of one that does in training.

    Raises:
        CombinationRefused: it does.
    """
    if not causal or facts.sees_future == "never":
        return
    if facts.sees_future == "always":
        raise CombinationRefused(f"norm={name} with a causal model is refused: {LEAKS.reason}; {LEAKS.instead}")
    what = f"norm={name} takes statistics over time in training"
    warnings.warn(f"{what}, and shows a causal model its future there", stacklevel=4)


def choose(findings: Findings, where: str | Sequence[str] | None) -> Findings:
    """Return findings with those norms alone that stand at some places.

    Raises:
        UsageError: there are no norms at one of the places, or none at all.
    """
    if not findings.found:
        left = [f"{each.path} {each.reason}" for each in findings.left[:3]]
        why = f": {', '.join(left)}" if left else ""
        raise UsageError(f"the model has no norm that can be replaced{why}")
    if where is None:
        return findings
    places = [where] if isinstance(where, str) else list(where)
    if not places:
        raise ArgumentError("where", where, "names no place: leave it out to replace all norms")
    rules = [Rule("norm", place) for place in places]
    sites = [found.site for found in findings.found]
    for rule in rules:
        if not any(rule.fits(site) for site in sites):
            raise UsageError(f"where={rule.place} fits no norm of this model: {say_places(rule, sites)}")
    chosen = []
    for found in findings.found:
        if any(rule.fits(found.site) for rule in rules):
            chosen.append(found)
    return replace(findings, found=tuple(chosen))


# ---- an example to run the model on


def read_example(model: nn.Module, example: Any) -> Callable[[nn.Module], object]:
    """Return what runs a model on an example: a tensor, several, some by keyword, a function; None: one that is made.

    Raises:
        UsageError: none is given, and none can be made.
    """
    if example is None:
        example = make_example(model)
    if isinstance(example, Mapping):
        return lambda model: model(**example)
    if isinstance(example, Tensor):
        return lambda model: model(example)
    if isinstance(example, tuple | list):
        return lambda model: model(*example)
    if callable(example):
        return example
    allowed = "a batch that the model takes: a tensor, a tuple, a mapping of arguments, or a function of the model"
    raise ArgumentError("example", type(example).__name__, f"is none: give {allowed}")


def make_example(model: nn.Module) -> dict[str, Tensor] | Tensor:
    """Return a small batch for a model of transformers, or for a classifier of images, as those of timm.

    Raises:
        UsageError: it is neither.
    """
    like = first_floating(model.parameters())
    if like is None:
        like = torch.empty(0)
    config = getattr(model, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    if isinstance(vocabulary, int) and getattr(model, "main_input_name", "") == "input_ids":
        tokens = torch.arange(2 * TOKENS, device=like.device).remainder(vocabulary).view(2, TOKENS)
        batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if getattr(config, "is_encoder_decoder", False):
            batch["decoder_input_ids"] = tokens
        return batch
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            height, width = image_size(model)
            shape = (2, module.in_channels, height, width)
            return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like)
    cure = "give example=, a small batch that the model takes, as a tensor, a tuple or a mapping of arguments"
    raise UsageError(f"no input is known for {type(model).__name__}: {cure}")


def image_size(model: nn.Module) -> tuple[int, int]:
    """Return the height and width of images that a model is made for, or 224 where it does not say."""
    config = getattr(model, "config", None)
    known = [
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        getattr(model, "image_size", None),
        getattr(config, "image_size", None),
        getattr(model, "pretrained_cfg", {}).get("input_size", (None, None))[1:],
    ]
    for size in known:
        if isinstance(size, int):
            return size, size
        if isinstance(size, Sequence) and len(size) == 2 and all(isinstance(side, int) for side in size):
            return size[0], size[1]
    return 224, 224
