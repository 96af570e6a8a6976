"""Where the norms of a given model stand: its blocks in running order, their branches, and a site for each norm.

All of it follows from one recorded pass. A block is one of the many equal modules that add something to what they are
given. Within a block a norm stands before or after the branch that is called next to it, or inside of it. What is
attention, and what a norm inside of it normalizes, is read off from the operators that ran.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from normbench.hosts.adapters import Adapter
from normbench.hosts.flow import LETTERS, Flow, count_residual_sums, has_operator, in_order, multiplies_data
from normbench.hosts.tape import Call, Key, Operand, Operator, Tape
from normbench.types import Side, Site

# Modules that hold others and are no blocks themselves.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

NUMBERED = re.compile(r"(^|\.)[^.\d]*\d+$")  # the path of one of a list: layers.3, layer3, encoder_layer_3
NUMBER = re.compile(r"\d+")

# What parts of a block are called, in paths.
CROSS = re.compile(r"cross|encdec|encoder_attn|multihead_attn", re.IGNORECASE)
ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
MIXER = re.compile(r"attn|attention|mixer", re.IGNORECASE)
MLP = re.compile(
    r"mlp|ffn|feed_?forward|intermediate|experts?\b|moe|\bdense\b|densereludense|\bfc_?\d|\bff\b|linear\d",
    re.IGNORECASE,
)
SHORTCUT = re.compile(r"downsample|shortcut|skip", re.IGNORECASE)
QUERY_KEY_VALUE = re.compile(
    r"(?:^|_)(q|k|v|query|key|value)_?(?:layer_?)?(?:ln|norm)$|(?:ln|norm)_?(q|k|v)$", re.IGNORECASE
)

# The slot of a norm inside a branch.
INSIDE = {"attention": "context", "cross": "context", "mlp": "hidden"}


@dataclass(frozen=True)
class HostBlock:
    """A block of a given model.

    Attributes:
        path: of the module in the model.
        module: what is called with the residual stream, and returns it.
        layer: its place in the running order, from 0.
        branches: by role, of several with one role `mlp` and `mlp.2`; one that has no module of its own is a list of
            modules.
        channel_dim: the axis of features of the stream.
        side: of an encoder–decoder, `encoder` or `decoder`.
        shortcut: the modules of a learned shortcut.
    """

    path: str
    module: nn.Module
    layer: int
    branches: Mapping[str, nn.Module]
    channel_dim: int
    side: str = ""
    shortcut: tuple[nn.Module, ...] = ()


@dataclass(eq=False)
class Branch:
    """One branch of a block.

    Attributes:
        role: what it serves.
        maps: the calls of its linear maps and convolutions, or of the modules that hold them, in order.
        number: which of the branches of its role, from 0.
    """

    role: str
    maps: list[Call]
    number: int = 0

    @property
    def key(self) -> str:
        """Return its name in the block."""
        return f"{self.role}.{self.number + 1}" if self.number else self.role


@dataclass(frozen=True)
class Place:
    """Where a norm stands in a block.

    Attributes:
        role, slot: of its site.
        branch: the one that it stands before or after; None inside of one.
        also: the roles of other branches that read it too.
    """

    role: str
    slot: str
    branch: Branch | None = None
    also: tuple[str, ...] = ()


# ---- blocks


def find_blocks(tape: Tape, norms: Collection[nn.Module]) -> list[Call]:
    """Return the calls of a model's blocks in running order, each once; none where there are no equal modules.

    They are the members of lists, of the class of which most add something to their own input; of several classes the
    outermost. Other members of the same lists, or of further lists beside them, are blocks too if they do likewise or
    have several maps.
    """
    first: dict[nn.Module, Call] = {}
    for call in tape.calls():
        first.setdefault(call.module, call)
    skips = Counter[type]()
    by_class: dict[type, list[Call]] = defaultdict(list)
    for module, call in first.items():
        if may_be_block(call, norms) and not is_numbered_part(call, norms):
            by_class[type(module)].append(call)
            skips[type(module)] += call.has_skip
    if not by_class:
        return []

    def rank(kind: type) -> tuple[int, int, int]:
        calls = by_class[kind]
        deepest = max(call.path.count(".") for call in calls)
        return skips[kind], -deepest, len(calls)

    kinds = sorted(by_class, key=rank, reverse=True)
    candidates: list[Call] = []
    for calls in by_class.values():
        candidates += calls
    blocks = [narrow(call, candidates, norms) for call in by_class[kinds[0]]]
    lists = {NUMBER.sub("*", block.path) for block in blocks}
    for kind in kinds[1:]:
        for call in by_class[kind]:
            is_like_them = NUMBER.sub("*", call.path) in lists and len(maps_in(call)) > 1
            if (skips[kind] or is_like_them) and not overlaps(call, blocks):
                blocks.append(call)
    order = {call: number for number, call in enumerate(tape.calls())}
    return sorted(blocks, key=order.__getitem__)


def may_be_block(call: Call, norms: Collection[nn.Module]) -> bool:
    """Tell whether a call is of one of a list of modules, and has norms inside."""
    is_container = type(call.module) in CONTAINERS or call.module in norms
    return not is_container and NUMBERED.search(call.path) is not None and bool(norms_inside(call, norms))


def is_numbered_part(call: Call, norms: Collection[nn.Module]) -> bool:
    """Tell whether a call is of an attribute, such as `ffn0`, of what is a block itself, as one of a list."""
    block = call.parent
    if block is None or call.path.rpartition(".")[0] != block.path:
        return False
    is_of_list = block.path.rpartition(".")[2].isdigit()
    return is_of_list and block.has_skip and may_be_block(block, norms)


def overlaps(call: Call, blocks: Iterable[Call]) -> bool:
    """Tell whether a module is inside of a block, or a block inside of it."""
    return any(is_within(call.path, block.path) or is_within(block.path, call.path) for block in blocks)


def norms_inside(call: Call, norms: Collection[nn.Module]) -> set[nn.Module]:
    """Return the norms that were called inside of a call."""
    norms_called = set[nn.Module]()
    for inner_call in call.inside():
        if inner_call is not call and inner_call.module in norms:
            norms_called.add(inner_call.module)
    return norms_called


def narrow(block: Call, candidates: Iterable[Call], norms: Collection[nn.Module]) -> Call:
    """Return the innermost candidate inside of a block that has all of its norms, as the one layer of a group has."""
    norms_of_block = norms_inside(block, norms)
    inside = set(block.inside())
    for call in candidates:
        if call in inside and call is not block and norms_inside(call, norms) == norms_of_block:
            return narrow(call, candidates, norms)
    return block


def is_within(path: str, other: str) -> bool:
    """Tell whether a path is another one, or leads to something inside of it."""
    return path == other or path.startswith(f"{other}.")


def has_map(module: nn.Module) -> bool:
    """Tell whether a module has a matrix or a kernel, as linear maps and convolutions do."""
    return any(parameter.ndim > 1 for parameter in module.parameters())


def maps_in(call: Call) -> list[Call]:
    """Return the innermost calls inside of a call that have a matrix or a kernel."""
    maps = []
    for inner_call in call.inside():
        inner = [child for child in inner_call.children if has_map(child.module)]
        if has_map(inner_call.module) and not inner:
            maps.append(inner_call)
    return maps


def operators_in(call: Call) -> set[Operator]:
    """Return the operators that ran in a call and inside of it."""
    return {operator for inner_call in call.inside() for operator in inner_call.operators}


def sources_of(operand: Operand) -> list[Operator]:
    """Return the operator that made an operand, if one did."""
    return [] if operand.source is None else [operand.source]


def is_convolution(call: Call) -> bool:
    """Tell whether a module is a convolution or has one inside."""
    return any(isinstance(module, _ConvNd) for module in call.module.modules())


# ---- the places of norms in a block


class BlockParts:
    """What a block calls, in order, and what flows between these parts.

    Parts are norms, modules with maps and no norms inside, and what passes its input on, such as a dropout or an
    activation.

    Attributes:
        parts: in order, without those of a learned shortcut.
        shortcut: those of the shortcut.
        branches: in order.
    """

    def __init__(self, block: Call, norms: Collection[nn.Module], adapters: Mapping[nn.Module, Adapter]) -> None:
        self.block = block
        self.norms = norms
        self.adapters = adapters
        self.parts: list[Call] = []
        self.shortcut: list[Call] = []
        self.child_of: dict[Call, Call] = {}
        for child in self.children_of(block):
            for part in self.take_apart(child):
                self.child_of[part] = child
                if SHORTCUT.search(self.path_of(part)):
                    self.shortcut.append(part)
                else:
                    self.parts.append(part)
        all_parts = [*self.parts, *self.shortcut]
        maps = [part for part in all_parts if self.is_map(part)]
        self.flow = Flow(block, maps, [part for part in all_parts if self.is_norm(part)])
        self.feeders = self.find_feeders()
        projections = [part for part in self.parts if self.is_projection(part)]
        if projections:
            self.shortcut += projections
            self.parts = [part for part in self.parts if part not in projections]
            self.feeders = self.find_feeders()
        self.branch_of: dict[Call, Branch] = {}
        self.branches = self.find_branches()

    def children_of(self, call: Call) -> Iterator[Call]:
        """Give what is called inside of a block; of what holds several residual branches itself what is inside of it.

        Of a model without blocks that has attention give its parts one by one.
        """
        for child in call.children:
            if self.holds_branches(child):
                yield from self.children_of(child)
            elif not self.block.path and multiplies_data(child):
                yield from self.take_apart(child)
            else:
                yield child

    def holds_branches(self, call: Call) -> bool:
        """Tell whether a part of a block adds several branches to the stream, or is a list of parts that do so."""
        if not norms_inside(call, self.norms):
            return False
        if type(call.module) not in CONTAINERS:
            return count_residual_sums(call) > 1
        whole = [each for each in call.children if norms_inside(each, self.norms) and maps_in(each)]
        return len(whole) > 1 and any(count_residual_sums(each) for each in whole)

    def take_apart(self, call: Call) -> Iterator[Call]:
        """Give a call, or, if a norm was called inside of it, its parts."""
        if call.module not in self.norms and norms_inside(call, self.norms):
            for child in call.children:
                yield from self.take_apart(child)
        else:
            yield call

    def path_of(self, call: Call) -> str:
        """Return the path of a part in the block."""
        if not self.block.path:
            return call.path
        return call.path.removeprefix(f"{self.block.path}.")

    def is_norm(self, call: Call) -> bool:
        """Tell whether a part is a norm."""
        return call.module in self.norms

    def is_map(self, call: Call) -> bool:
        """Tell whether a part is a map: it has a matrix or a kernel and is no norm, or mixes tokens without weights."""
        if call.module in self.norms:
            return False
        return has_map(call.module) or self.mixes(call)

    def mixes(self, call: Call) -> bool:
        """Tell whether a part without weights mixes positions: by a Fourier transform, or as a mixer of the block."""
        if has_operator(call, "fft"):
            return True
        is_plain = type(call.module).__module__.startswith("torch.nn.")
        name = call.path.rpartition(".")[2]
        return self.child_of.get(call) is call and not is_plain and MIXER.search(name) is not None

    def find_feeders(self) -> dict[Call, set[Call]]:
        """Return for each part the norms and maps whose output it reads as it is, or as other parts have passed it.

        What a map with a skip of its own gives is the stream.
        """
        source: dict[Key, set[Call]] = {}
        feeders: dict[Call, set[Call]] = {}
        for part in self.parts:
            feeders_of_part = set[Call]()
            for seen in part.inputs:
                if seen.key is not None:
                    feeders_of_part |= source.get(seen.key, set())
            feeders[part] = feeders_of_part
            gives = feeders_of_part
            if self.is_norm(part) or self.is_map(part):
                gives = set() if part.has_skip else {part}
            for seen in part.outputs:
                if seen.key is not None:
                    source[seen.key] = gives
        return feeders

    def is_projection(self, part: Call) -> bool:
        """Tell whether a part is a learned shortcut by what it does: it alone carries the stream to another width.

        It is one map of the block's own, reads the stream or a norm of it, and no norm or map reads what it gives
        before it is added to what another map gives.
        """
        if self.child_of[part] is not part or part in self.flow.feeding or not self.changes_width(part):
            return False
        reads_a_map = any(self.is_map(feeder) for feeder in self.feeders[part])
        readers = [reader for reader, feeders in self.feeders.items() if part in feeders]
        is_read = any(self.is_norm(reader) or self.is_map(reader) for reader in readers)
        return not reads_a_map and not is_read and self.is_added(part)

    def changes_width(self, part: Call) -> bool:
        """Tell whether a part is a linear map or a convolution from the width of the stream to that of the output."""
        module = part.module
        if isinstance(module, nn.Linear):
            axis, before, after = -1, module.in_features, module.out_features
        elif isinstance(module, _ConvNd):
            axis, before, after = -1 - len(module.kernel_size), module.in_channels, module.out_channels
        else:
            return False
        shapes = [seen.shape for seen in (*self.block.inputs[:1], *self.block.outputs[:1])]
        if before == after or len(shapes) != 2 or min(len(shape) for shape in shapes) < -axis:
            return False
        return [shape[axis] for shape in shapes] == [before, after]

    def is_added(self, part: Call) -> bool:
        """Tell whether what a part gives comes into a sum that the block gives, beside what other maps give.

        On its way into the sum, and on that of the sum out of the block, there is no map.
        """
        own = operators_in(part)
        of_maps = {operator for each in self.parts if self.is_map(each) for operator in operators_in(each)}
        for operator in self.behind(self.block.made_by, of_maps):
            if operator.name != "add" or operator in of_maps:
                continue
            for one, other in permutations(operator.operands, 2):
                comes_from_it = not own.isdisjoint(self.behind(sources_of(one), of_maps))
                others = self.behind(sources_of(other), set())
                if comes_from_it and own.isdisjoint(others) and not of_maps.isdisjoint(others):
                    return True
        return False

    def behind(self, operators: Iterable[Operator], last: Collection[Operator]) -> set[Operator]:
        """Return the operators of the block that some follow from, and these; of the last ones' none further back."""
        inside = operators_in(self.block)
        found = set[Operator]()
        waiting = list(operators)
        while waiting:
            operator = waiting.pop()
            if operator in found or operator not in inside:
                continue
            found.add(operator)
            if operator not in last:
                waiting += [source for operand in operator.operands for source in sources_of(operand)]
        return found

    def find_branches(self) -> list[Branch]:
        """Return the branches, of one map or several.

        Maps belong together that one child of the block has, that read of each other, or that serve the same with no
        norm between them.
        """
        branches: list[Branch] = []
        follows_norm = True
        for part in self.parts:
            if not self.is_map(part):
                follows_norm = follows_norm or self.is_norm(part)
                continue
            role = self.role_of(part)
            joined = self.branch_before(part, branches)
            if joined is None and not follows_norm and branches[-1].role == role:
                joined = branches[-1]
            if joined is None:
                joined = Branch(role, [])
                branches.append(joined)
            joined.maps.append(part)
            self.branch_of[part] = joined
            follows_norm = False
        for branch in branches:
            attending = [self.role_of(part) for part in branch.maps if self.attends(part)]
            if attending and branch.role not in ("attention", "cross"):
                branch.role = attending[0]
        has_attention = any(branch.role in ("attention", "cross") for branch in branches)
        counts = Counter[str]()
        for branch in branches:
            if branch.role == "linear" and has_attention:
                branch.role = "mlp"
            branch.number = counts[branch.role]
            counts[branch.role] += 1
        return branches

    def branch_before(self, part: Call, branches: Sequence[Branch]) -> Branch | None:
        """Return the branch before a map that it belongs to."""
        if not branches:
            return None
        last = branches[-1]
        if self.child_of[part] is self.child_of[last.maps[-1]]:
            return last
        if self.is_of_same_attention(part, last.maps[-1]):
            return last
        for feeder in self.feeders[part]:
            sources = self.feeders[feeder] if self.is_norm(feeder) else {feeder}
            if not sources.isdisjoint(last.maps):
                return last
        return None

    def is_of_same_attention(self, part: Call, before: Call) -> bool:
        """Tell whether a map is of the attention that the map before it is of, as it is unless that read its result."""
        of_attention = self.flow.feeding | self.flow.reading
        begins_another = part in self.flow.feeding and before in self.flow.reading
        return part in of_attention and before in of_attention and not begins_another

    def role_of(self, part: Call) -> str:
        """Return what a map serves: attention by what is computed; other roles by its path, its class or its layers.

        What is called attention and computes neither that nor a convolution, such as a recurrence, is believed.
        """
        path = self.path_of(part)
        kind = type(part.module).__name__
        is_called_attention = ATTENTION.search(path) is not None or CROSS.search(path) is not None
        is_called_mlp = MLP.search(path) is not None
        is_told = bool(self.flow.attention or self.flow.feeding)  # so that what is in attn_block.mlp is not attention
        is_believed = is_called_attention and not self.convolves(part) and not (is_told and is_called_mlp)
        if self.attends(part) or is_believed:
            return "cross" if CROSS.search(path) else "attention"
        if is_called_mlp or MLP.search(kind):
            return "mlp"
        if ATTENTION.search(kind) and not self.convolves(part):
            return "attention"
        return "conv" if is_convolution(part) or self.convolves(part) else "linear"

    def attends(self, part: Call) -> bool:
        """Tell whether a map has attention inside of it, makes what that reads, or reads what that gives."""
        return part in self.flow.attention or part in self.flow.feeding or part in self.flow.reading

    def convolves(self, part: Call) -> bool:
        """Tell whether a map reads of neighbours of each position, by a kernel or a pool, or serves what does so."""
        child = self.child_of[part]
        for inner_call in child.inside():
            if isinstance(inner_call.module, _ConvNd) and math.prod(inner_call.module.kernel_size) > 1:
                return True
        return has_operator(child, "pool")

    def places(self) -> dict[Call, Place]:
        """Return where each norm stands."""
        places: dict[Call, Place] = {}
        of_note = [part for part in self.parts if self.is_norm(part) or self.is_map(part)]
        ends_in_norms = bool(of_note) and self.is_map(of_note[0]) and self.is_norm(of_note[-1])
        for number, part in enumerate(self.parts):
            if self.is_norm(part):
                places[part] = self.place_of(number, ends_in_norms)
        role = self.branches[0].role if self.branches else "block"
        for part in self.shortcut:
            if self.is_norm(part):
                places[part] = Place(role, "shortcut")
        return places

    def place_of(self, number: int, ends_in_norms: bool) -> Place:
        """Return where a norm stands.

        Args:
            number: of the part.
            ends_in_norms: whether the block begins with a map and ends in a norm, as those of post-norm do.
        """
        part = self.parts[number]
        before = self.neighbour(reversed(self.parts[:number]))
        after = self.neighbour(self.parts[number + 1 :])
        if before is None and after is None:
            return Place("block", "")
        inner = before or after
        assert inner is not None
        letters = self.letters_of(part)
        if letters and inner.role in ("attention", "cross"):
            return Place(inner.role, self.slot_of_heads(part, letters))
        if before is after:
            return Place(inner.role, self.slot_inside(part, inner))
        if before is None:
            assert after is not None
            return Place(after.role, "in", after, self.others_reading(part, after))
        if after is None:
            return Place(before.role, "out", before)
        follows_norm = self.is_norm_next(reversed(self.parts[:number]))
        precedes_norm = self.is_norm_next(self.parts[number + 1 :])
        is_fed = not self.feeders[part].isdisjoint(before.maps)
        is_alone = not follows_norm and not precedes_norm
        is_last_of_branch = precedes_norm and not follows_norm
        if is_last_of_branch or (is_alone and (is_fed or ends_in_norms)):
            return Place(before.role, "out", before)
        return Place(after.role, "in", after, self.others_reading(part, after))

    def others_reading(self, norm: Call, branch: Branch) -> tuple[str, ...]:
        """Return the roles of branches that read a norm beside the one that it stands before, as side by side."""
        roles: dict[str, None] = {}
        for part, other in self.branch_of.items():
            if norm in self.feeders[part] and other.role != branch.role:
                roles[other.role] = None
        return tuple(roles)

    def letters_of(self, norm: Call) -> str:
        """Return of which of queries, keys and values a norm is; where the operators do not tell, by its name."""
        letters = in_order(self.flow.letters.get(norm, ()))
        named = QUERY_KEY_VALUE.search(norm.path.rpartition(".")[2])
        if not letters and named:
            return (named[1] or named[2])[0].lower()
        return letters

    def slot_inside(self, norm: Call, branch: Branch) -> str:
        """Return the slot of a norm between the maps of a branch."""
        is_told = any(self.attends(part) for part in branch.maps)
        if not is_told or norm in self.flow.reading:
            return INSIDE.get(branch.role, "inner")
        letters = in_order(self.flow.letters_beyond(norm))
        is_of_some = letters not in ("", LETTERS)
        return f"{letters}_latent" if is_of_some else "inner"

    def neighbour(self, parts: Iterable[Call]) -> Branch | None:
        """Return the branch of the first map among parts."""
        for part in parts:
            if self.is_map(part):
                return self.branch_of[part]
        return None

    def is_norm_next(self, parts: Iterable[Call]) -> bool:
        """Tell whether the first norm or map among parts is a norm."""
        for part in parts:
            if self.is_norm(part) or self.is_map(part):
                return self.is_norm(part)
        return False

    def slot_of_heads(self, part: Call, letters: str) -> str:
        """Return the slot of a norm of queries, keys or values: of each head, or of all heads together."""
        features = part.inputs[0].shape[self.adapters[part.module].axis]
        of_a_head = sum(self.flow.sizes.get(letter, 0) for letter in letters)
        is_more = features > of_a_head > 0
        has_no_heads = len(part.inputs[0].shape) < 4 and letters != "v"
        return f"{letters}_all" if is_more or has_no_heads else letters

    def modules_by_branch(self) -> dict[str, nn.Module]:
        """Return the module of each branch: a child of the block, or a list of those that it is made of."""
        module_of_branch: dict[str, nn.Module] = {}
        for branch in self.branches:
            children: dict[nn.Module, None] = {}
            for part in branch.maps:
                child = self.child_of[part]
                part_or_child = part if self.is_shared(child, branch) else child
                children[part_or_child.module] = None
            modules = list(children)
            module_of_branch[branch.key] = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        return module_of_branch

    def is_shared(self, child: Call, branch: Branch) -> bool:
        """Tell whether a child of the block has maps of another branch too."""
        return any(other is not branch and self.child_of[part] is child for part, other in self.branch_of.items())

    def channel_dim(self) -> int:
        """Return the axis of features of the stream, by the first part that reads it."""
        if not self.block.inputs:
            return -1
        stream = self.block.inputs[0]
        for part in (*self.parts, *self.shortcut):
            reads_stream = any(seen.key == stream.key for seen in part.inputs)
            if reads_stream and self.is_map(part):
                return 1 if is_convolution(part) else -1
            if self.is_norm(part) and (reads_stream or part.inputs[0].shape == stream.shape):
                return self.adapters[part.module].axis
        return 1 if len(stream.shape) == 4 else -1


# ---- the whole model


def lay_out(
    tape: Tape, adapters: Mapping[nn.Module, Adapter], causal: bool
) -> tuple[dict[nn.Module, Site], tuple[HostBlock, ...]]:
    """Return the site of each norm, and the blocks.

    Args:
        tape: a recorded pass.
        adapters: the norms.
        causal: whether the model predicts each position from those before it.
    """
    norms = adapters.keys()
    calls = find_blocks(tape, norms)
    parts = [BlockParts(call, norms, adapters) for call in calls]
    sides = sides_of(calls)
    depth = max(len(calls), 1)
    branches = sum(len(block_parts.branches) for block_parts in parts) or depth
    about: dict[str, Any] = {"depth": depth, "branches": branches, "causal": causal, "sides": count_sides(sides)}
    blocks: list[HostBlock] = []
    places: dict[nn.Module, Site] = {}
    for layer, (call, block_parts) in enumerate(zip(calls, parts, strict=True)):
        channel_dim = block_parts.channel_dim()
        modules = block_parts.modules_by_branch()
        shortcut = tuple(part.module for part in block_parts.shortcut)
        blocks.append(HostBlock(call.path, call.module, layer, modules, channel_dim, sides[layer], shortcut))
        width = call.inputs[0].shape[channel_dim] if call.inputs else None
        site = Site("block", layer, side=sides[layer], width=width, **about)
        for part, place in block_parts.places().items():
            alone = place.branch is not None and count_around(block_parts, place.branch) == 1
            own_site = replace(site.at(place.role, place.slot, sole=alone), also=place.also)
            places.setdefault(part.module, own_site)
    for call, site in place_outside(tape, calls, norms, adapters, sides).items():
        places[call.module] = replace(site, **about)
    in_order: dict[nn.Module, Site] = {}
    for call in tape.calls():
        if call.module in norms:
            in_order[call.module] = places[call.module]
    return number_alike(in_order), tuple(blocks)


def count_around(parts: BlockParts, branch: Branch) -> int:
    """Return how many norms stand before and after a branch."""
    return sum(place.branch is branch for place in parts.places().values())


def sides_of(blocks: Sequence[Call]) -> list[Side]:
    """Return for each block whether it is of an encoder or a decoder, where there are both; else empty words."""
    sides = [side_in(block.path) for block in blocks]
    if set(sides) == {"encoder", "decoder"}:
        return sides
    return ["" for _ in blocks]


def side_in(path: str) -> Side:
    """Return the side that a path names; empty where it names none."""
    words = path.lower()
    if "decoder" in words:
        return "decoder"
    return "encoder" if "encoder" in words else ""


def count_sides(sides: Sequence[Side]) -> tuple[int, int]:
    """Return how many blocks each side has."""
    return sides.count("encoder"), sides.count("decoder")


def place_outside(
    tape: Tape,
    blocks: Sequence[Call],
    norms: Collection[nn.Module],
    adapters: Mapping[nn.Module, Adapter],
    sides: Sequence[Side],
) -> dict[Call, Site]:
    """Return the sites of norms outside the blocks: before the first, after the last, or between two of them.

    A norm that is called several times stands where it is called last. Where there are no blocks, all of the model is
    read as one.
    """
    sites: dict[Call, Site] = {}
    if not blocks:
        root = Call("", nn.Identity(), None, (), children=tape.roots)
        whole = BlockParts(root, norms, adapters)
        for call, place in whole.places().items():
            sites[call] = Site(place.role, slot=place.slot)
        return sites
    inner_norms = set[nn.Module]()
    for block in blocks:
        for call in block.inside():
            inner_norms.add(call.module)
    layers = {block: layer for layer, block in enumerate(blocks)}
    last_call: dict[nn.Module, Call] = {}
    layer = 0  # of the next block
    for call in tape.calls():
        if call in layers:
            layer = layers[call] + 1
        is_outside = call.module in norms and call.module not in inner_norms
        if not is_outside:
            continue
        sites.pop(last_call.get(call.module, call), None)
        last_call[call.module] = call
        sites[call] = site_outside(call, layer, sides)
    return sites


def site_outside(call: Call, layer: int, sides: Sequence[Side]) -> Site:
    """Return the site of a norm outside the blocks.

    Args:
        call: of the norm.
        layer: of the block that comes next; the number of blocks after the last.
        sides: of the blocks.
    """
    if layer == 0:
        return Site("stem")
    if layer == len(sides):
        return Site("final", slot=sides[-1], side=sides[-1])
    if sides[layer - 1] != sides[layer]:
        if side_in(call.path) == "decoder":
            return Site("stem", slot="decoder", side="decoder")
        return Site("final", slot="encoder", side="encoder")
    return Site("downsample", layer, side=sides[layer])


def number_alike(places: Mapping[nn.Module, Site]) -> dict[nn.Module, Site]:
    """Return sites of which those with the same words are numbered, so that each has a name of its own."""
    counts = Counter[str]()
    numbered: dict[nn.Module, Site] = {}
    for norm, site in places.items():
        numbered[norm] = replace(site, number=counts[site.name])
        counts[site.name] += 1
    return numbered
