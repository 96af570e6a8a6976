"""Norms of queries, keys and values in a given model that has none there: behind the maps that make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.hosts.finding import Findings, HostBlock
from normbench.hosts.heads import LETTERS, Heads, find_heads
from normbench.hosts.replacing import place_like, put_in
from normbench.types import NormFactory, Site, asks_for, optional_norm

SLOTS = (*LETTERS, *(f"{letter}_all" for letter in LETTERS))
NAMES = {"q": "queries", "k": "keys", "v": "values"}
ATTENTION = ("attention", "cross")  # roles

Runs = tuple[tuple[int, int], ...]  # of features, each from the first to the one after the last


@dataclass(frozen=True)
class Behind:
    """Which features of the result of a linear map a norm normalizes.

    Attributes:
        path: of the map.
        runs: the features, head by head.
        heads: into how many heads the features are split, each of which is normalized by itself; 1 where all are
            normalized together.
    """

    path: str
    runs: Runs
    heads: int


@dataclass(frozen=True)
class Seat:
    """A place for a norm where a model has none.

    Attributes:
        path: that the norm has in the model.
        features: how many it has.
        site: its place.
        behind: after which map; None where the library itself has something at this path, which a norm replaces.
        reason: why no norm can stand there, to follow what it would normalize; empty where one can.
    """

    path: str
    features: int
    site: Site
    behind: Behind | None = None
    reason: str = ""


@dataclass(frozen=True)
class Seats:
    """Places that are asked to have a norm.

    Attributes:
        made: each place with its norm, in the order in which these run.
        warnings: a sentence on blocks that get none, as it is not known what their attention reads.
    """

    made: Sequence[tuple[Seat, nn.Module]] = ()
    warnings: tuple[str, ...] = ()


class Passing:
    """A hook of a map by which a norm of its module's parent stands behind some of the map's features."""

    def __init__(self, parent: nn.Module, name: str, behind: Behind) -> None:
        self.parent = parent
        self.name = name
        self.heads = behind.heads
        self.runs = behind.runs
        self.lengths = [stop - start for start, stop in behind.runs]
        self.ascending = sorted(range(len(self.runs)), key=self.runs.__getitem__)

    def __call__(self, module: nn.Module, given: tuple[Any, ...], y: Tensor) -> Tensor:
        norm = getattr(self.parent, self.name)  # the one that stands there now
        x = torch.cat([y[..., start:stop] for start, stop in self.runs], dim=-1)
        normed = self.normalize(norm, x).split(self.lengths, dim=-1)
        pieces: list[Tensor] = []
        before = 0
        for number in self.ascending:
            start, stop = self.runs[number]
            pieces += (y[..., before:start], normed[number])
            before = stop
        return torch.cat([*pieces, y[..., before:]], dim=-1)

    def normalize(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Return features normalized, in each head or all together."""
        if self.heads == 1:
            together: Tensor = norm(x)
            return together
        by_head: Tensor = norm(x.unflatten(-1, (self.heads, -1)))
        return by_head.flatten(-2)


def find_seats(
    model: nn.Module,
    call: Callable[[nn.Module], object],
    findings: Findings,
    norm: NormFactory,
    length: int | None = None,
) -> Seats:
    """Return places of queries, keys and values that have no norm and are asked to have one, each with its norm.

    Where a model normalizes its queries or keys in some attention already, there is none to be added to others, and so
    for values.

    Args:
        model: as `find` has looked through it.
        call: runs one pass of it.
        findings: what `find` has found.
        norm: makes the norm of a place, where it is asked for.
        length: of the sequences that the model reads; None where it reads none.

    Raises:
        UsageError: a norm is asked for, and cannot stand there, or nowhere in this model.
    """
    if not asks_for(norm, SLOTS):
        return Seats()
    has_norm = {(each.site.role, kind) for each in findings.found for kind in kinds_of(each.site)}
    seats: list[tuple[Seat, nn.Module]] = []
    counts = Counter[str]()
    names = set[str]()
    known = set[int | None]()  # blocks
    why_not = "no attention with linear maps for these was seen"
    for heads in find_heads(model, call):
        site = site_of(model, heads, findings)
        if site is None:
            why_not = "these are made by no linear map inside of its attention"
            continue
        known.add(site.layer)
        if not has_norm.isdisjoint((site.role, kind) for kind in kinds_of(site)):
            continue
        for seat in seats_of(model, heads, site):
            numbered = replace(seat.site, number=counts[seat.site.name], length=length)
            made = optional_norm(norm, seat.features, site=numbered)
            if made is None:
                continue
            if seat.reason:
                where = f"{NAMES[heads.letter]} of {numbered.at(numbered.role).name}"
                raise UsageError(f"{where} {seat.reason}, so that no norm can be added there: name other places")
            if seat.path in names:
                raise UsageError(f"{seat.site.name} can have one norm, of each head or of all: give one rule for it")
            names.add(seat.path)
            counts[seat.site.name] += 1
            seats.append((replace(seat, site=numbered), made))
    if not known and not has_norm:
        what = f"{type(model).__name__} has no norm of queries, keys or values, and none can be added"
        raise UsageError(f"{what}, as {why_not}: name other places")
    others = [f"block {block.layer}" for block in findings.blocks if has_attention(block) and block.layer not in known]
    warnings: tuple[str, ...] = ()
    if seats and others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        warnings = (f"what attention reads in {others[0]}{more} is not known, and no norm is added there",)
    return Seats(seats, warnings)


def has_attention(block: HostBlock) -> bool:
    """Tell whether a block has attention."""
    return any(key.partition(".")[0] in ATTENTION for key in block.branches)


def kinds_of(site: Site) -> Iterator[str]:
    """Yield `qk` if a place is one of queries or keys, in each head or over all, and `v` if it is one of values.

    Queries and keys are one kind, since a model may have one norm for both.
    """
    letters = set(site.slot.removesuffix("_all"))
    if letters <= set(LETTERS):
        for kind in ("qk", "v"):
            if not letters.isdisjoint(kind):
                yield kind


def site_of(model: nn.Module, heads: Heads, findings: Findings) -> Site | None:
    """Return the place of a norm in the attention that has the map of some heads; None where none does."""
    path = heads.stand_in or heads.path
    if not path:
        return None
    linear = model.get_submodule(path)
    for block in findings.blocks:
        for key, branch in block.branches.items():
            role = key.partition(".")[0]
            if role not in ATTENTION or linear not in set(branch.modules()):
                continue
            for found in findings.found:
                if found.site.layer == block.layer:
                    return found.site.at(role, heads.letter)
    return None


def seats_of(model: nn.Module, heads: Heads, site: Site) -> Iterator[Seat]:
    """Yield the places for a norm of each head, and of all heads together.

    Args:
        model: that has them.
        heads: what they are.
        site: of a norm of each head.
    """
    parent, _, _ = heads.path.rpartition(".")
    path = f"{parent}.{free_name(model.get_submodule(parent), f'{heads.letter}_norm')}"
    runs = tuple(runs_in(chain.from_iterable(heads.columns)))
    number = max(len(heads.columns), 1)
    if heads.stand_in:
        yield Seat(heads.stand_in, heads.size, site)
    else:
        yield Seat(path, heads.size, site, Behind(heads.path, runs, number), heads.reason)
    of_all = site.at(slot=f"{heads.letter}_all")
    yield Seat(path, heads.size * number, of_all, Behind(heads.path, runs, 1), heads.reason)


def free_name(parent: nn.Module, name: str) -> str:
    """Return a name that a module has no attribute of, like another one."""
    while hasattr(parent, name):
        name = f"added_{name}"
    return name


def runs_in(features: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield numbers as runs, each from the first to the one after the last."""
    start = stop = 0
    for feature in features:
        if feature != stop:
            if stop > start:
                yield start, stop
            start = feature
        stop = feature + 1
    if stop > start:
        yield start, stop


def add(model: nn.Module, path: str, norm: nn.Module, behind: Behind | None) -> None:
    """Put a norm at a place where a model has none.

    Args:
        model: that gets it.
        path: that it has there; where `behind` is None, of what it replaces.
        norm: the norm.
        behind: after which map.

    Raises:
        AttributeError: the model has no such path.
    """
    if behind is None:
        old = model.get_submodule(path)
        place_like(norm, old, model)
        norm.train(old.training)
        put_in(model, {old: norm})
        return
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    linear = model.get_submodule(behind.path)
    place_like(norm, nn.Identity(), linear)  # the map's device and dtype, and nothing of its weight
    norm.train(linear.training)
    parent.add_module(name, norm)
    linear.register_forward_hook(Passing(parent, name, behind))
