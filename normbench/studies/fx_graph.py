"""How a model computes, as a graph of torch.fx: what stands before and after a norm, and what writes to its stream.

torch.fx traces it, or torch.export where torch.fx cannot follow. Nothing goes by names of norms, placements or models.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from normbench.hosts.adapters import qualified_name
from normbench.types import Batch, Model

LAYERS = nn.Linear | nn.Conv2d
TRANSPOSED = "transformers.pytorch_utils.Conv1D"  # a linear layer whose weight has its inputs first
NO_LAYERS = nn.Identity | nn.Dropout
# What a scale and shift of each channel may be moved past, and likewise the removal of a mean. Features stay where they
# are, or the logits would tell.
PASS_SCALES = {"mean", "getitem", "select", "slice"}
PASS_MEANS = {
    "add", "mul", "cat", "flatten", "transpose", "permute", "expand", "getitem", "select", "slice", "view", "reshape",
}  # fmt: skip
NO_CHANGE = {"to", "contiguous", "clone", "alias", "detach", "dropout"}  # operators, in evaluation


class NotFoldable(Exception):
    """A norm cannot be folded, for this reason."""


class ModelTracer(fx.Tracer):
    """Traces a model with each norm, linear layer and convolution as one node."""

    proxy_buffer_attributes = True

    def __init__(self, norms: Container[nn.Module]) -> None:
        super().__init__()
        self.norms = norms

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        is_whole = module in self.norms or isinstance(module, LAYERS)
        return is_whole or super().is_leaf_module(module, name)


def is_layer(module: nn.Module) -> bool:
    """Tell whether a module is a linear layer or a convolution."""
    return isinstance(module, LAYERS) or qualified_name(module) == TRANSPOSED


def weight_of(layer: Any) -> Tensor:
    """Return the weight of a layer with its outputs first, as a view."""
    weight: Tensor = layer.weight
    return weight.T if qualified_name(layer) == TRANSPOSED else weight


def export_graph(model: Model, batch: Batch, norms: Container[nn.Module]) -> fx.Graph:
    """Return how a model computes on a batch as torch.export sees it, with each norm and each layer as one node."""
    program = torch.export.export(model, batch.arguments, strict=False)
    graph = program.graph_module.graph
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in list(graph.nodes):
        if node.name in names:
            with graph.inserting_before(node):
                attribute = graph.create_node("get_attr", names[node.name])
            attribute.meta = node.meta
            node.replace_all_uses_with(attribute)
            graph.erase_node(node)
        elif node.op == "call_function" and node.name.startswith("_assert"):
            graph.erase_node(node)
        elif changes_nothing(node):  # inside of a norm too, behind which the model may read its input by this name
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    paths = set[str]()
    for path, module in model.named_modules():
        if module in norms or is_layer(module) or isinstance(module, nn.Embedding | NO_LAYERS):
            paths.add(path)
    for call, nodes in calls_of(graph, paths).items():
        join(graph, re.sub(r"@\d+$", "", call), nodes)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    return graph


def changes_nothing(node: fx.Node) -> bool:
    """Tell whether an operator gives what it is given, in evaluation."""
    if node.op != "call_function" or operator_name(node) not in NO_CHANGE:
        return False
    source: Any = node.args[0]
    is_same: bool = source.meta["val"].dtype == node.meta["val"].dtype
    return is_same


def calls_of(graph: fx.Graph, whole: Container[str]) -> dict[str, list[fx.Node]]:
    """Return the nodes of each call of the modules with these paths; a second call of a module has `@1` behind it."""
    calls = defaultdict[str, list[fx.Node]](list)
    for node in graph.nodes:
        for path, _ in node.meta.get("nn_module_stack", {}).values():
            if re.sub(r"@\d+$", "", path) in whole:
                calls[path].append(node)
                break
    return calls


def join(graph: fx.Graph, path: str, nodes: Sequence[fx.Node]) -> None:
    """Put one node in the place of those of a call of the module at a path, if it takes one tensor and gives one."""
    inside = set(nodes)
    entering = dict[fx.Node, None]()
    for node in nodes:
        for operand in node.all_input_nodes:
            if operand not in inside and operand.op != "get_attr":
                entering[operand] = None
    leaving = [node for node in nodes if not inside.issuperset(node.users)]
    if len(entering) != 1 or len(leaving) != 1:
        return
    (last,) = leaving
    with graph.inserting_after(last):
        joined = graph.create_node("call_module", path, tuple(entering))
        joined.meta = last.meta
    last.replace_all_uses_with(joined)
    for node in reversed(nodes):
        graph.erase_node(node)


def operator_name(node: fx.Node) -> str:
    """Return the name of a node's function or operator, without that of its overload."""
    name: str = getattr(node.target, "__name__", str(node.target))
    return name.partition(".")[0]


class StreamWriter(NamedTuple):
    """A tensor that is itself added to a stream, or whose products are. axis: that of the stream's features."""

    tensor: Tensor
    axis: int


class ModelGraph:
    """How a model computes, with each norm and each layer as one node; what does nothing is left out.

    Args:
        model: the model.
        inputs: an input of each of its norms.
        batch: what it is called with.
    """

    def __init__(self, model: Model, inputs: Mapping[nn.Module, Tensor], batch: Batch) -> None:
        self.inputs = inputs
        self.paths = {module: path for path, module in model.named_modules()}
        self.modules = dict[fx.Node, nn.Module]()
        self.node_of = dict[nn.Module, fx.Node]()
        self.tensors = dict[fx.Node, list[Any]]()  # the parameters and buffers of a node
        self.uses = Counter[int]()  # of each of them
        try:
            graph = ModelTracer(inputs).trace(model, {"mask": None} if batch.mask is None else {})
        except Exception:  # a model may do what torch.fx cannot follow
            graph = export_graph(model, batch, inputs)
        for node in list(graph.nodes):
            if node.op == "call_module":
                module = model.get_submodule(node.target)
                self.modules[node] = module
                self.node_of[module] = node
                self.tensors[node] = list(module.parameters())
                if isinstance(module, NO_LAYERS):
                    node.replace_all_uses_with(node.args[0])
                    graph.erase_node(node)
            elif node.op == "get_attr":
                self.tensors[node] = [attrgetter(node.target)(model)]
        for tensors in self.tensors.values():
            self.uses.update(map(id, tensors))

    def name(self, node: fx.Node) -> str:
        """Return the name of a node's class or function."""
        return type(self.modules[node]).__name__ if node in self.modules else operator_name(node)

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes that read more than the shape of what a node has made."""
        return [user for user in node.users if user.target is not getattr]

    def layer(self, node: fx.Node) -> Any:
        """Return the layer that a node is, None for another node.

        Raises:
            NotFoldable: its weights have another use.
        """
        tensors = self.tensors.get(node, [])
        is_shared = any(self.uses[id(tensor)] > 1 for tensor in tensors)
        if node.target in (F.linear, torch.ops.aten.linear.default) or is_shared:
            raise NotFoldable("the weight beside it is also used elsewhere, as with model.tied=true")
        module = self.modules.get(node)
        return module if module is not None and is_layer(module) else None

    def whole_layer(self, node: fx.Node) -> Any:
        """Return the layer that a node is, each of whose outputs reads all inputs; None for another node.

        Raises:
            NotFoldable: its weights have another use, or it is a convolution in groups.
        """
        layer = self.layer(node)
        if getattr(layer, "groups", 1) > 1:
            raise NotFoldable(f"{self.paths[layer]} beside it is a convolution in groups")
        return layer

    def layer_before(self, node: fx.Node) -> Any:
        """Return the layer whose output a norm alone reads; None where there is none.

        Raises:
            NotFoldable: its weights have another use.
        """
        before: Any = node.args[0]
        if len(self.readers(before)) > 1:
            return None
        return self.layer(before)

    def layers_after(self, node: fx.Node) -> Iterator[Any]:
        """Yield the layers that read what a node has made.

        Raises:
            NotFoldable: something else reads it, or their weights have another use.
        """
        for user in self.readers(node):
            layer = self.whole_layer(user)
            if layer is not None:
                yield layer
            elif self.name(user) in PASS_SCALES or self.keeps_features(user):
                yield from self.layers_after(user)
            else:
                raise NotFoldable(f"{self.name(user)} reads it, which is not a linear layer")

    def keeps_features(self, node: fx.Node) -> bool:
        """Tell whether a node only gives other axes than the last one another shape; not known of what torch.fx traces.

        Where the features lie elsewhere, the logits tell that it does more.
        """
        if self.name(node) not in ("view", "reshape") or "val" not in node.meta:
            return False
        source: Any = node.args[0]
        is_same: bool = source.meta["val"].shape[-1] == node.meta["val"].shape[-1]
        return is_same

    def writers(self, node: fx.Node) -> list[StreamWriter]:
        """Return all that writes to the stream of which a node's output is a part.

        Raises:
            NotFoldable: the stream is not made of linear layers and embeddings alone, or its mean is read.
        """
        all_writers = list[StreamWriter]()
        visited = set[fx.Node]()
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node in visited:
                continue
            visited.add(node)
            writers = self.writers_at(node)
            if writers:
                all_writers += writers
            else:
                waiting += self.summands(node)
            waiting += self.stream_readers(node)
        return all_writers

    def writers_at(self, node: fx.Node) -> list[StreamWriter]:
        """Return the tensors with which a layer, an embedding or a parameter writes; nothing for another node.

        Raises:
            NotFoldable: the layer's weights have another use.
        """
        layer = self.whole_layer(node)
        if layer is not None:
            tensors = [weight_of(layer)] if layer.bias is None else [weight_of(layer), layer.bias]
            return [StreamWriter(tensor, 0) for tensor in tensors]
        if node.op == "get_attr" or self.name(node) == "Embedding":
            return [StreamWriter(tensor, -1) for tensor in self.tensors[node]]
        return []

    def summands(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes whose features a node adds, moves, or multiplies by a number.

        Raises:
            NotFoldable: it does something else with them.
        """
        parents = [parent for parent in node.all_input_nodes if not self.is_number(parent)]
        name = self.name(node)
        is_product = name == "mul" and len(parents) > 1
        if name not in PASS_MEANS or is_product:
            raise NotFoldable(f"{name} writes to the stream, which is not a linear layer")
        return parents

    def is_number(self, node: fx.Node) -> bool:
        """Tell whether a node gives a number or a size, not features."""
        sizes = [tensor.numel() for tensor in self.tensors.get(node, [])]
        reads_shape = any(parent.target is getattr for parent in node.all_input_nodes)
        return sizes == [1] or reads_shape

    def stream_readers(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes through which a stream goes on; all others that read it must be norms blind to its mean.

        Raises:
            NotFoldable: something else reads it.
        """
        passing = []
        for user in self.readers(node):
            if self.name(user) in PASS_MEANS:
                passing.append(user)
            elif not self.is_blind_norm(user):
                raise NotFoldable(f"{self.name(user)} reads the stream with its mean")
        return passing

    def is_blind_norm(self, node: fx.Node) -> bool:
        """Tell whether a node is a norm that does not depend on the mean of what it reads."""
        module = self.modules.get(node)
        if module is None or module not in self.inputs:
            return False
        return is_blind_to_mean(module, self.inputs[module])


def is_blind_to_mean(norm: nn.Module, x: Tensor) -> bool:
    """Tell whether a norm's output does not depend on the mean over its input's features."""
    return torch.allclose(norm(x + 1), norm(x))
