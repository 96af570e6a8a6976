"""LayerNorms of any model made RMSNorms, exactly: the mean goes out of all that writes to the stream they read.

How a model computes is read from `torch.export`. Nothing goes by names: whether an operator passes a mean or a shift on
is found by trying it on random numbers.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from normbench.errors import UsageError, explain
from normbench.norms import RMSNorm

Use = tuple[fx.Node, fx.Node]  # of a tensor, in a node
Axes = dict[fx.Node, int]  # of the features in what nodes give, counted from the end

EXACT = 1e-9  # of the largest output: what may change in float64
ROUNDING = torch.finfo(torch.float64).eps  # of the largest number: a mean that is none
TOLERANCE = 1e-6  # where operators are tried
LAYER_NORM = torch.ops.aten.layer_norm.default

# Operators that read features with a weight: where their input and their bias stand among the arguments.
READERS: dict[Any, tuple[int, int]] = {
    torch.ops.aten.linear.default: (0, 2),
    torch.ops.aten.addmm.default: (1, 0),
    torch.ops.aten.conv1d.default: (0, 2),
    torch.ops.aten.conv2d.default: (0, 2),
}


class Part(NamedTuple):
    """How a node has the features of a stream.

    Attributes:
        axis: of these, counted from the end.
        gain: a tensor of the model that multiplies them before they come to the stream.
    """

    axis: int
    gain: fx.Node | None = None


class NotExact(Exception):
    """A LayerNorm cannot become an RMSNorm without a change, for this reason."""


@dataclass
class Exact:
    """A model whose LayerNorms are RMSNorms, as far as that changes nothing.

    Attributes:
        model: a copy, in evaluation mode, in the precision that the model had.
        norms: the RMSNorms by path.
        refused: why a LayerNorm is kept, by path.
        biases: the paths of layers that had no bias, and have one.
        untied: the names of parameters that were the same as others, and are their own now.
        change: the largest change of an output in float64, over the largest output.
    """

    model: nn.Module
    norms: dict[str, nn.Module] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    biases: list[str] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)
    change: float = 0.0


@torch.no_grad()
def to_rms(model: nn.Module, call: Callable[[nn.Module], object], paths: Collection[str] | None = None) -> Exact:
    """Return a copy of a model with an RMSNorm in place of each LayerNorm for which that changes nothing.

    LayerNorm is RMSNorm of an input without a mean, and its input has none if nothing has that is added to its stream:
    embeddings, position tables, and the layers at the end of branches, whose weights and biases lose their mean over
    the stream's features here (SliceGPT, Ashkboos et al. 2024, section 3.1). That is possible where norms alone read
    the stream, as in `pre` and `parallel`. It is not where a norm writes to it (`post`, `sandwich`, or CLIP's norm
    before the first block), as γ⊙n+β has a mean again, another one at each position, and nothing linear stands behind
    that could lose it; but for a norm whose γ are all equal and whose β has no mean, as norms start and those without
    parameters stay. γ stays in the norm, and β goes into the biases of the layers that read it. A gain of each feature
    at the end of a branch, such as LayerScale (Touvron et al. 2021), goes into the layer before it, and is 1 then.

    Args:
        model: stays as it is.
        call: calls the model that it is given, on a small input, and returns what that returns.
        paths: of the LayerNorms that are exchanged, if they can be; None: of all.

    Raises:
        UsageError: torch.export cannot follow the model, or it computes in a way that is not seen through.
    """
    dtypes = {name: tensor.dtype for name, tensor in tensors_of(model).items()}
    changed = copy.deepcopy(model).double().eval()
    instead = "keep=weights and keep=fit exchange its norms all the same"
    try:
        before = first_tensor(call(changed))
    except Exception as error:  # of others' code, some of which takes float32 alone
        why = f"{type(model).__name__} cannot compute in float64, in which that is checked ({explain(error)})"
        raise UsageError(f"{why}: {instead}") from error
    try:
        graph = ExportedGraph(changed, call)
    except Exception as error:  # a model may do what torch.export cannot follow
        why = f"torch.export cannot follow {type(model).__name__} ({explain(error)})"
        raise UsageError(f"{why}: {instead}") from error
    exact = Exact(changed)
    plans = []
    for path, nodes in graph.layer_norms.items():
        if paths is not None and path not in paths:
            continue
        try:
            plans.append(graph.plan(path, nodes))
        except NotExact as reason:
            exact.refused[path] = str(reason)
    carry_out(plans, exact)
    after = first_tensor(call(changed))
    change = (after - before).abs().max()
    exact.change = float(change / before.abs().max())
    if not exact.change <= EXACT:  # "not <=" is true of NaN as well
        raise UsageError(f"{type(model).__name__} computes in a way that is not seen through: {instead}")
    restore_precision(changed, dtypes)
    return exact


def restore_precision(model: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Bring the tensors of a model to the dtypes that they had, by name; a new bias to that of its layer's weight."""
    for name, tensor in tensors_of(model).items():
        if tensor.is_floating_point():
            weight = f"{name.rpartition('.')[0]}.weight"
            dtype = dtypes[name] if name in dtypes else dtypes[weight]
            tensor.data = tensor.data.to(dtype)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by all the names that they have."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    return dict(itertools.chain(parameters, buffers))


def first_tensor(output: Any) -> Tensor:
    """Return the first tensor of what a model returns."""
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    return output


# ---- what is to be done


class Writer(NamedTuple):
    """A tensor that writes to a stream, by all its names there.

    Attributes:
        names: of it.
        axis: that of the features, counted from the end.
        gain: the name of what multiplies each feature on the way, as LayerScale does; empty where nothing does.
    """

    names: tuple[str, ...]
    axis: int
    gain: str = ""


class Reader(NamedTuple):
    """A layer that reads what a norm shifts, by its path, and by how much that shifts its output."""

    path: str
    shift: Float[Tensor, " features"]


@dataclass(frozen=True)
class Plan:
    """What makes a LayerNorm an RMSNorm.

    Attributes:
        path: of the LayerNorm.
        rms: what takes its place.
        writers: what loses its mean.
        untied: names of writers that others share; these others are to have a tensor of their own.
        readers: what takes over β.
    """

    path: str
    rms: RMSNorm
    writers: list[Writer]
    untied: list[str]
    readers: list[Reader]


def carry_out(plans: Sequence[Plan], found: Exact) -> None:
    """Do what was planned with the model in `found`, and note it there."""
    model = found.model
    done = set[Writer]()
    for plan in plans:
        for reader in plan.readers:  # no two norms have the same
            take_over_shift(reader, found)
        for name in plan.untied:
            if name not in found.untied:
                untie(name, found)
        for writer in plan.writers:
            if writer not in done:
                subtract_mean(writer, model)
                done.add(writer)
        model.set_submodule(plan.path, plan.rms)
        found.norms[plan.path] = plan.rms
    for writer in done:
        if writer.gain:
            tensors_of(model)[writer.gain].fill_(1)  # it is in what it multiplied


def take_over_shift(reader: Reader, found: Exact) -> None:
    """Add the shift that a norm causes in the output of a layer to the layer's bias; give it one where it has none."""
    layer: Any = found.model.get_submodule(reader.path)
    if layer.bias is None:
        layer.bias = nn.Parameter(reader.shift)
        found.biases.append(reader.path)
    else:
        layer.bias.add_(reader.shift)


def untie(name: str, found: Exact) -> None:
    """Give a parameter of this name a tensor of its own."""
    path, _, own_name = name.rpartition(".")
    module = found.model.get_submodule(path)
    setattr(module, own_name, nn.Parameter(module.get_parameter(own_name).clone()))
    found.untied.append(name)


def subtract_mean(writer: Writer, model: nn.Module) -> None:
    """Subtract its mean from a tensor that writes to a stream, once it is multiplied by the gain, if there is one."""
    tensors = tensors_of(model)
    tensor = tensors[writer.names[0]]
    gain = tensors[writer.gain].flatten() if writer.gain else None
    tensor.copy_(centre(tensor, writer.axis, gain))


# ---- how a model computes


class FirstTensor(nn.Module):
    """Calls a model, and returns the first tensor of what it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Any, **named: Any) -> Tensor:
        return first_tensor(self.model(*given, **named))


class ExportedGraph:
    """How a model computes, operator by operator, as torch.export sees it.

    Attributes:
        layer_norms: the nodes of each module that computes a LayerNorm, by its path.
        tensors: the parameters and persistent buffers that nodes stand for.
        names: all names of each of them, by its id.
    """

    def __init__(self, model: nn.Module, call: Callable[[nn.Module], object]) -> None:
        self.model = model
        self.entered = see_inputs(model, call)
        positional, named = self.entered.pop("")
        program = torch.export.export(FirstTensor(model), positional, named, strict=False)
        self.graph = program.graph_module.graph
        self.names = defaultdict[int, list[str]](list)
        by_name = tensors_of(model)
        for name, tensor in by_name.items():
            self.names[id(tensor)].append(name)
        signature = program.graph_signature
        placed = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.tensors = dict[fx.Node, Tensor]()
        self.layer_norms = defaultdict[str, list[fx.Node]](list)
        for node in self.graph.nodes:
            if node.name in placed:
                name = placed[node.name]
                if name not in signature.non_persistent_buffers:
                    self.tensors[node] = by_name[name.removeprefix("model.")]
            elif node.target is LAYER_NORM:
                self.layer_norms[self.path(node)].append(node)

    def path(self, node: fx.Node) -> str:
        """Return the path of the module in whose forward a node stands."""
        innermost = list(node.meta["nn_module_stack"].values())[-1][0]
        return re.sub(r"@\d+$", "", innermost).removeprefix("model").removeprefix(".")

    def name(self, node: fx.Node) -> str:
        """Return a node's operator, in words."""
        return node.name if node.op != "call_function" else str(node.target).split(".")[1]

    def tensor_at(self, node: fx.Node | None) -> Tensor | None:
        """Return the tensor that a node gives, which may be a cast of it; None where it is none of the model's."""
        while node is not None and node not in self.tensors:
            values = random_operands(node)
            source = next(iter(values), None)
            if source is None or not agree(compute(node, values), values[source]):
                return None
            node = source
        return None if node is None else self.tensors[node]

    def users(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes that read what a node gives, and give tensors themselves."""
        return [user for user in node.users if user.op == "output" or gives_tensor(user)]

    def users_of(self, tensor: int) -> set[fx.Node]:
        """Return the nodes that read a tensor of the model, which is given by its id."""
        users = set[fx.Node]()
        for node, node_tensor in self.tensors.items():
            if id(node_tensor) == tensor:
                users.update(self.users(node))
        return users

    def plan(self, path: str, nodes: Sequence[fx.Node]) -> Plan:
        """Return what makes the LayerNorm at a path an RMSNorm, which stands in some nodes.

        Raises:
            NotExact: nothing does.
        """
        writers = dict[Use, Part]()
        readers = list[Reader]()
        for node in nodes:
            stream: Any = node.args[0]
            shift = self.tensor_at(argument(node, 3))
            if len(argument(node, 1)) != 1:
                raise NotExact("it takes statistics over several axes")
            writers |= self.writers(stream)
            if shift is not None and shift.any():
                readers += self.readers(node, shift)
        named_writers, untied = self.name_writers(writers)
        return Plan(path, self.as_rms(path, nodes[0]), named_writers, untied, readers)

    def as_rms(self, path: str, node: fx.Node) -> RMSNorm:
        """Return the RMSNorm that does what the module at a path does, but for β, with an input without a mean.

        Raises:
            NotExact: the module does more than its LayerNorm.
        """
        module: Any = self.model.get_submodule(path)
        weight = self.tensor_at(argument(node, 2))
        shift = self.tensor_at(argument(node, 3))
        (features,) = argument(node, 1)
        eps = argument(node, 4)
        if eps is None:
            eps = 1e-5  # the operator's own
        positional, named = self.entered[path]
        entered = [value for value in (*positional, *named.values()) if value is not None]
        if len(entered) > 1:
            raise NotExact(f"{type(module).__name__} takes more than a tensor")
        (x,) = entered
        for axis in (-1, 1):
            if x.shape[axis] != features:
                continue
            rms = RMSNorm(features, eps=eps, affine=weight is not None, channel_dim=axis).double()
            if weight is not None and rms.weight is not None:
                rms.weight.copy_(weight)
            expected = module(x).movedim(axis, -1)
            if shift is not None:
                expected = expected - shift
            if torch.allclose(rms(centre(x, axis)).movedim(axis, -1), expected):
                return rms
        raise NotExact(f"{type(module).__name__} does more than a LayerNorm")

    # ---- what writes to a stream

    def writers(self, stream: fx.Node) -> dict[Use, Part]:
        """Return what writes to the stream of which a node is a part, as pairs of a tensor and where it is used.

        With each comes where it has the stream's features, which are last in the node itself.

        Raises:
            NotExact: something else writes to it, or its mean is read.
        """
        writers = dict[Use, Part]()
        parts = dict[fx.Node, Part]()
        waiting = [(stream, Part(-1))]
        while waiting:
            members = list[fx.Node]()
            while waiting:  # first all that writes, whose complaints say more
                node, part = waiting.pop()
                if self.has_no_mean(node, part):
                    continue  # so that nothing changes here, for any that read it
                if node in parts:
                    if parts[node] != part:
                        raise NotExact(f"{self.name(node)} has the stream's features along two axes or in two sizes")
                    continue
                parts[node] = part
                members.append(node)
                for source, source_part in self.sources(node, part).items():
                    if source in self.tensors:
                        writers[source, node] = source_part
                    else:
                        waiting.append((source, source_part))
            for node in members:
                waiting += self.followers(node, parts[node])
        return writers

    def sources(self, node: fx.Node, part: Part) -> dict[fx.Node, Part]:
        """Return the nodes which have no mean where what a node gives is to have none, each as a part of the stream.

        These are a layer's own tensors, or whatever an operator adds, moves, or multiplies by a number; or what a gain
        multiplies feature by feature, as LayerScale does: it has no mean once the gain is in what writes to it.

        Raises:
            NotExact: no such nodes are known.
        """
        operands = self.operands(node)
        own_tensors = [operand for operand in operands if operand in self.tensors]
        for among in (own_tensors, operands):
            for axes in self.choices(among, node, part.axis):
                if self.centres(node, part, axes):
                    return {operand: Part(axis, part.gain) for operand, axis in axes.items()}
        if part.gain is None:
            for gain in own_tensors:
                for operand in operands:
                    if self.multiplies(node, operand, gain, part.axis):
                        return {operand: Part(part.axis, gain)}
        if node.target is LAYER_NORM:
            why = "its β has one" if self.has_equal_gain(node) else "its γ differ"
            raise NotExact(f"{self.path(node)}, a norm, writes to the stream, and γ⊙n+β has a mean, since {why}")
        raise NotExact(f"{self.name(node)} writes to the stream, and is not a linear layer")

    def has_no_mean(self, node: fx.Node, part: Part) -> bool:
        """Tell whether a node gives γ⊙n+β of a LayerNorm that has no mean: its γ are all equal, and its β has none."""
        node = self.origin(node)
        if node.target is not LAYER_NORM or part != Part(-1) or len(argument(node, 1)) != 1:
            return False
        shift = self.tensor_at(argument(node, 3))
        has_shift = shift is not None and abs(float(shift.mean())) > ROUNDING * float(shift.abs().max())
        return self.has_equal_gain(node) and not has_shift

    def origin(self, node: fx.Node) -> fx.Node:
        """Return the node that first gives what a node gives, which others such as dropouts may have passed on."""
        while node.op == "call_function" and len(node.all_input_nodes) == 1:
            values = random_operands(node)
            (source,) = node.all_input_nodes
            if not agree(compute(node, values), values.get(source)):
                return node
            node = source
        return node

    def has_equal_gain(self, node: fx.Node) -> bool:
        """Tell whether a LayerNorm multiplies all features by the same number, so that they have no mean still."""
        weight = argument(node, 2)
        if weight is None:
            return True
        gain = self.tensor_at(weight)
        return gain is not None and bool((gain == gain.flatten()[0]).all())

    def multiplies(self, node: fx.Node, operand: fx.Node, gain: fx.Node, axis: int) -> bool:
        """Tell whether all that a gain does in the model is to multiply an operand of this node feature by feature."""
        tensor = self.tensors[gain]
        x = operand.meta["val"]
        is_used_once = self.users_of(id(tensor)) == {node}
        keeps_shape = x.shape == node.meta["val"].shape
        if not is_used_once or not keeps_shape or tensor.numel() != x.shape[axis]:
            return False
        values = random_operands(node)
        return agree(compute(node, values), multiply(values[operand], values[gain].flatten(), axis))

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes whose tensors of several numbers a node reads."""
        operands = []
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 1:
                operands.append(operand)
        return operands

    def choices(self, operands: Sequence[fx.Node], node: fx.Node, axis: int) -> Iterator[Axes]:
        """Yield the ways in which operands may have the features that a node has along an axis."""
        if not operands:
            return
        features = node.meta["val"].shape[axis]
        axes_of_operands = [axes_of(operand, features) for operand in operands]
        for axes in itertools.product(*axes_of_operands):
            yield dict(zip(operands, axes, strict=True))

    def followers(self, node: fx.Node, part: Part) -> list[tuple[fx.Node, Part]]:
        """Return the nodes through which a stream goes on, each as a part of it.

        Raises:
            NotExact: a node reads the stream with its mean.
        """
        followers = []
        for user in self.users(node):
            is_gain = part.gain is not None and part.gain in user.all_input_nodes  # from which we have come
            if is_gain or (user.op == "call_function" and self.is_blind(user, node, part)):
                continue
            followers.append((user, Part(self.axis_after(user, node, part), part.gain)))
        return followers

    def axis_after(self, user: fx.Node, node: fx.Node, part: Part) -> int:
        """Return the axis along which a user of a node has the features that the node has as a part of the stream.

        Raises:
            NotExact: the user does more with them than to add, to move, or to multiply by a number.
        """
        if user.op == "call_function" and isinstance(user.meta["val"], Tensor):
            features = node.meta["val"].shape[part.axis]
            for after in axes_of(user, features):
                for axes in self.choices(self.operands(user), user, after):
                    if axes.get(node) == part.axis and self.centres(user, Part(after, part.gain), axes):
                        return after
        raise NotExact(f"{self.name(user)} reads the stream with its mean")

    def centres(self, node: fx.Node, part: Part, axes: Axes) -> bool:
        """Tell whether what a node gives loses its mean as a part of the stream if its operands lose theirs.

        Where the part is multiplied by a gain further on, each of them has a gain before it loses its mean.
        """
        values = random_operands(node)
        gain = random_gain(node, part)
        without = dict(values)
        for operand, axis in axes.items():
            without[operand] = centre(values[operand], axis, gain)
        before = compute(node, values)
        after = compute(node, without)
        return agree(after, None if before is None else centre(before, part.axis, gain))

    def is_blind(self, user: fx.Node, node: fx.Node, part: Part) -> bool:
        """Tell whether a user of a node does not depend on the mean that the node loses as a part of the stream."""
        values = random_operands(user)
        if node not in values:
            return False
        without = {**values, node: centre(values[node], part.axis, random_gain(node, part))}
        return agree(compute(user, without), compute(user, values))

    def name_writers(self, writers: Mapping[Use, Part]) -> tuple[list[Writer], list[str]]:
        """Return writers by their names in the model, and the names of the same tensors where they are no writers.

        Raises:
            NotExact: a module has a tensor both as a writer and as something else.
        """
        used_at = defaultdict[tuple[int, Part], set[fx.Node]](set)
        for (source, user), part in writers.items():
            used_at[id(self.tensors[source]), part].add(user)
        named_writers = list[Writer]()
        untied = list[str]()
        for (tensor, part), users in used_at.items():
            others = self.users_of(tensor) - users
            here = {self.name_at(user, tensor) for user in users}
            elsewhere = {self.name_at(user, tensor) for user in others}
            if here & elsewhere:
                raise NotExact(f"{self.names[tensor][0]} writes to the stream, and is also used otherwise")
            gain = "" if part.gain is None else self.names[id(self.tensors[part.gain])][0]
            named_writers.append(Writer(tuple(sorted(here)), part.axis, gain))
            untied += sorted(elsewhere)
        return named_writers, untied

    def name_at(self, user: fx.Node, tensor: int) -> str:
        """Return the name of a tensor in the module in whose forward it is used; its first one where it has none."""
        path = self.path(user)
        for name in self.names[tensor]:
            if name.rpartition(".")[0] == path:
                return name
        return self.names[tensor][0]

    # ---- what reads a shift

    def readers(self, norm: fx.Node, shift: Tensor) -> list[Reader]:
        """Return the layers that read what a norm has shifted by β.

        Raises:
            NotExact: something else reads it.
        """
        readers = list[Reader]()
        axes: Axes = {norm: -1}
        waiting = [norm]
        while waiting:
            node = waiting.pop()
            for user in self.users(node):
                if user.target in READERS and argument(user, READERS[user.target][0]) is node:
                    readers.append(self.reader(user, node, axes[node], shift))
                elif user not in axes and not takes_no_numbers(user, node):
                    axes[user] = self.axis_shifted(user, node, axes[node])
                    waiting.append(user)
        return readers

    def axis_shifted(self, user: fx.Node, node: fx.Node, axis: int) -> int:
        """Return the axis along which a user of a node is shifted as the node is along another.

        Raises:
            NotExact: the user does more than to hand a shift on.
        """
        if user.op == "call_function" and isinstance(user.meta["val"], Tensor):
            features = node.meta["val"].shape[axis]
            shift = torch.randn(features, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            values = random_operands(user)
            before = compute(user, values)
            after = compute(user, {**values, node: add_along(values[node], shift, axis)})
            for candidate in axes_of(user, features):
                if agree(after, None if before is None else add_along(before, shift, candidate)):
                    return candidate
        raise NotExact(f"{self.name(user)} reads its β, and is not a linear layer")

    def reader(self, user: fx.Node, node: fx.Node, axis: int, shift: Tensor) -> Reader:
        """Return a layer as one that reads what is shifted along an axis.

        Raises:
            NotExact: the layer cannot take over the shift.
        """
        path = self.path(user)
        layer = self.model.get_submodule(path)
        place = READERS[user.target][1]
        bias = argument(user, place)
        own_bias = layer._parameters.get("bias", layer)  # None where it has none yet
        used = self.tensors.get(bias) if bias is not None else None
        if own_bias is not used or self.count_calls(user) > 1:
            raise NotExact(f"{path or self.name(user)} reads its β, and has no bias of its own to take it over")
        values = {operand: self.tensors[operand] for operand in user.all_input_nodes if operand in self.tensors}
        values[node] = add_along(torch.zeros(node.meta["val"].shape, dtype=torch.float64), shift, axis)
        if bias is not None:
            values[bias] = torch.zeros_like(values[bias])
        shifted = compute(user, values)
        if shifted is None:
            raise NotExact(f"{path} reads its β with a weight that is computed")
        features_axis = 1 if shifted.ndim > 2 and "conv" in self.name(user) else -1
        rows = shifted.movedim(features_axis, -1).flatten(0, -2)
        if not torch.allclose(rows, rows[:1].expand_as(rows)):
            raise NotExact(f"{path} reads its β, and pads with zeros, which a shift would change")
        return Reader(path, rows[0].clone())

    def count_calls(self, node: fx.Node) -> int:
        """Return how often the module of a node calls the node's operator."""
        count = 0
        for other in self.graph.nodes:
            if other.target is node.target and self.path(other) == self.path(node):
                count += 1
        return count


def see_inputs(
    model: nn.Module, call: Callable[[nn.Module], object]
) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return what each module is called with, by path; the model itself has the path ''."""
    entered = dict[str, tuple[tuple[Any, ...], dict[str, Any]]]()
    hooks = []
    for path, module in model.named_modules():

        def keep(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], path: str = path) -> None:
            entered.setdefault(path, (given, named))

        hooks.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    call(model)
    for hook in hooks:
        hook.remove()
    return entered


# ---- operators on random numbers


def argument(node: fx.Node, place: int) -> Any:
    """Return an argument of a node's operator; None where it is left out."""
    return node.args[place] if len(node.args) > place else None


def gives_tensor(node: fx.Node) -> bool:
    """Tell whether a node gives a tensor, or several."""
    return any(isinstance(value, Tensor) for value in tree_leaves(node.meta.get("val")))


def axes_of(node: fx.Node, features: int) -> list[int]:
    """Return the axes, counted from the end, along which what a node gives may have so many features."""
    shape = node.meta["val"].shape
    return [axis for axis in range(-1, -len(shape) - 1, -1) if shape[axis] == features]


def random_operands(node: fx.Node) -> dict[fx.Node, Tensor]:
    """Return random numbers in place of what a node reads; indices are 0, and what masks is true."""
    generator = torch.Generator().manual_seed(0)
    values = dict[fx.Node, Tensor]()
    for operand in node.all_input_nodes:
        value = operand.meta.get("val")
        if not isinstance(value, Tensor):
            continue
        if value.is_floating_point():
            values[operand] = torch.randn(value.shape, dtype=torch.float64, generator=generator)
        elif value.dtype == torch.bool:
            values[operand] = torch.ones(value.shape, dtype=torch.bool)
        else:
            values[operand] = torch.zeros(value.shape, dtype=value.dtype)
    return values


def compute(node: fx.Node, values: Mapping[fx.Node, Tensor]) -> Tensor | None:
    """Return what a node's operator gives for these operands; None where it gives no tensor for them."""

    def value_of(operand: fx.Node) -> Tensor:
        return values[operand].clone()  # some operators write to what they read

    operator: Any = node.target
    try:
        output = operator(*map_arg(node.args, value_of), **map_arg(node.kwargs, value_of))
    except Exception:  # what does not compute is not seen through
        return None
    return output if isinstance(output, Tensor) else None


def takes_no_numbers(user: fx.Node, node: fx.Node) -> bool:
    """Tell whether a user of a node takes no more of it than its shape or dtype, as `type_as` does of its second.

    Of what a mask chooses it is not tried, which may choose something else.
    """
    if user.op != "call_function":
        return False
    values = random_operands(user)
    if node not in values or any(value.dtype == torch.bool for value in values.values()):
        return False
    generator = torch.Generator().manual_seed(3)
    other = torch.randn(values[node].shape, dtype=torch.float64, generator=generator)
    return agree(compute(user, {**values, node: other}), compute(user, values))


def random_gain(node: fx.Node, part: Part) -> Float[Tensor, " features"] | None:
    """Return numbers in place of a part's gain, if it has one, since the model's own may be all the same, or tiny."""
    if part.gain is None:
        return None
    features = node.meta["val"].shape[part.axis]
    return torch.randn(features, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def centre(x: Tensor, axis: int, gain: Float[Tensor, " features"] | None = None) -> Tensor:
    """Return x, or what a gain makes of it, without its mean along an axis."""
    if gain is not None:
        x = multiply(x, gain, axis)
    return x - x.mean(axis, keepdim=True)


def multiply(x: Tensor, gain: Float[Tensor, " features"], axis: int) -> Tensor:
    """Return x times a gain of its features, which are along an axis."""
    return (x.movedim(axis, -1) * gain).movedim(-1, axis)


def add_along(x: Tensor, shift: Float[Tensor, " features"], axis: int) -> Tensor:
    """Return x with a shift added to its features, which are along an axis."""
    return (x.movedim(axis, -1) + shift).movedim(-1, axis)


def agree(a: Tensor | None, b: Tensor | None) -> bool:
    """Tell whether two results are there, and the same."""
    if a is None or b is None or a.shape != b.shape:
        return False
    return torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE)
