"""Find the norms of a given model: which there are, how they are read, and where they stand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from normbench.hosts.adapters import Adapter, Unreadable, may_be_norm, read_adapter
from normbench.hosts.sites import HostBlock, lay_out
from normbench.hosts.tape import Call, Tape, record
from normbench.types import Site

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Found:
    """A norm that can be replaced.

    Attributes:
        path: in the model.
        module: the norm as it is.
        adapter: how it is read.
        features: how many it has.
        site: where it stands.
        calls: how often one pass calls it; it is one norm at one place all the same.
    """

    path: str
    module: nn.Module
    adapter: Adapter
    features: int
    site: Site
    calls: int = 1


@dataclass(frozen=True)
class Left:
    """A norm that is left as it is.

    Attributes:
        path: in the model.
        kind: the name of its class.
        reason: why, to follow its name.
    """

    path: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Findings:
    """What was found of a model's norms.

    Attributes:
        found: those that can be replaced, in the order in which they run.
        left: those that cannot.
        blocks: of the model, in the order in which they run.
        warnings: a sentence for each place that normalizes without a norm, which no swap changes.
    """

    found: tuple[Found, ...]
    left: tuple[Left, ...]
    blocks: tuple[HostBlock, ...]
    warnings: tuple[str, ...]


def find(model: nn.Module, call: Callable[[nn.Module], object], causal: bool = False) -> Findings:
    """Find the norms of a model by one forward pass, which leaves it as it is.

    A norm is a module whose class is in the table of adapters, or is named as one and computes LayerNorm or RMSNorm.
    One that takes a gate, that the pass does not call, or that computes something else is left, with the reason.

    Args:
        model: the model.
        call: runs one pass of it on an example, such as `lambda model: model(images)`; the example is best a small
            batch. The pass is made in evaluation mode and without gradients.
        causal: whether the model predicts each position from those before it, as a language model does.

    Raises:
        UsageError: the pass fails.
    """
    candidates: dict[nn.Module, str] = {}
    for path, module in model.named_modules():
        if module is not model and may_be_norm(module):
            candidates[module] = path
    tape = record(model, call, candidates)
    calls = calls_by_norm(tape, candidates)
    adapters: dict[nn.Module, Adapter] = {}
    left: list[Left] = []
    for norm, path in candidates.items():
        try:
            adapters[norm] = read_called(norm, calls[norm])
        except Unreadable as reason:
            left.append(Left(path, type(norm).__name__, str(reason)))
    sites, blocks = lay_out(tape, adapters, causal)
    sites = prefer_noted(sites)
    norms_found: list[Found] = []
    for norm, site in sites.items():
        adapter = adapters[norm]
        own_calls = calls[norm]
        features = own_calls[0].inputs[0].shape[adapter.axis]
        norms_found.append(Found(candidates[norm], norm, adapter, features, site, len(own_calls)))
    return Findings(tuple(norms_found), tuple(left), blocks, tuple(describe_functional(tape)))


def prefer_noted(sites: dict[nn.Module, Site]) -> dict[nn.Module, Site]:
    """Return sites, of norms of ours those that are noted on them, unless two would have the same name then."""
    noted: dict[nn.Module, Site] = {}
    for norm, site in sites.items():
        noted_site = getattr(norm, "stands_at", None)
        noted[norm] = noted_site if isinstance(noted_site, Site) else site
    names = {site.name for site in noted.values()}
    return noted if len(names) == len(noted) else sites


def calls_by_norm(tape: Tape, norms: Mapping[nn.Module, str]) -> dict[nn.Module, list[Call]]:
    """Return the calls of each norm."""
    calls_of_norm: dict[nn.Module, list[Call]] = {norm: [] for norm in norms}
    for call in tape.calls():
        if call.module in calls_of_norm:
            calls_of_norm[call.module].append(call)
    return calls_of_norm


def read_called(norm: nn.Module, calls: list[Call]) -> Adapter:
    """Return how a norm is read that was called so.

    Raises:
        Unreadable: it cannot be replaced.
    """
    if not calls:
        raise Unreadable("is not called")
    if not calls[0].inputs:
        raise Unreadable("is called without a tensor")
    x = torch.empty(calls[0].inputs[0].shape, device="meta")
    return read_adapter(norm, max(len(call.inputs) for call in calls), x)


def describe_functional(tape: Tape) -> list[str]:
    """Return a sentence for each place that calls a function that normalizes; the same in several blocks is one."""
    alike: dict[tuple[str, str], list[str]] = {}
    calls = Counter[tuple[str, str]]()
    for (path, function), count in tape.functional.items():
        kind = NUMBER.sub("*", path), function
        alike.setdefault(kind, []).append(path)
        calls[kind] += count
    sentences = []
    for (_, function), paths in alike.items():
        where = paths[0] or "the model"
        if len(paths) > 1:
            where += f" and {len(paths) - 1} more like it"
        sentences.append(f"{where} normalizes by a function, {function}, which stays as it is")
    return sentences
