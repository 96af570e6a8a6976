"""How a model computes, as a graph of torch.fx: what stands before and after a norm, and what writes to its stream.

Nothing goes by names of norms, placements or models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from normbench.types import Model

LAYERS = nn.Linear | nn.Conv2d
PASS_SCALES = {"mean", "getitem"}  # what a scale and shift of each channel may be moved past
PASS_MEANS = {"add", "mul", "cat", "flatten", "transpose", "expand", "getitem"}  # likewise the removal of a mean


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


class StreamWriter(NamedTuple):
    """A tensor that is itself added to a stream, or whose products are. axis: that of the stream's features."""

    tensor: Tensor
    axis: int


class ModelGraph:
    """How a model computes, with each norm and each layer as one node; what does nothing is left out.

    Args:
        model: the model.
        inputs: an input of each of its norms.
        masked: whether it is called with a mask.
    """

    def __init__(self, model: Model, inputs: Mapping[nn.Module, Tensor], masked: bool) -> None:
        self.inputs = inputs
        self.paths = {module: path for path, module in model.named_modules()}
        self.modules = dict[fx.Node, nn.Module]()
        self.node_of = dict[nn.Module, fx.Node]()
        self.tensors = dict[fx.Node, list[Any]]()  # the parameters and buffers of a node
        self.uses = Counter[int]()  # of each of them
        graph = ModelTracer(inputs).trace(model, {} if masked else {"mask": None})
        for node in list(graph.nodes):
            if node.op == "call_module":
                module = model.get_submodule(node.target)
                self.modules[node] = module
                self.node_of[module] = node
                self.tensors[node] = list(module.parameters())
                if isinstance(module, nn.Identity | nn.Dropout):
                    node.replace_all_uses_with(node.args[0])
                    graph.erase_node(node)
            elif node.op == "get_attr":
                self.tensors[node] = [attrgetter(node.target)(model)]
        for tensors in self.tensors.values():
            self.uses.update(map(id, tensors))

    def name(self, node: fx.Node) -> str:
        """Return the name of a node's class or function."""
        found = type(self.modules[node]) if node in self.modules else node.target
        return getattr(found, "__name__", str(found))

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
        if node.target is F.linear or is_shared:
            raise NotFoldable("the weight beside it is also used elsewhere, as with model.tied=true")
        module = self.modules.get(node)
        return module if isinstance(module, LAYERS) else None

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
            layer = self.layer(user)
            if layer is not None:
                yield layer
            elif self.name(user) in PASS_SCALES:
                yield from self.layers_after(user)
            else:
                raise NotFoldable(f"{self.name(user)} reads it, which is not a linear layer")

    def writers(self, node: fx.Node) -> list[StreamWriter]:
        """Return all that writes to the stream of which a node's output is a part.

        Raises:
            NotFoldable: the stream is not made of linear layers and embeddings alone, or its mean is read.
        """
        found = list[StreamWriter]()
        visited = set[fx.Node]()
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node in visited:
                continue
            visited.add(node)
            writers = self.writers_at(node)
            if writers:
                found += writers
            else:
                waiting += self.summands(node)
            waiting += self.stream_readers(node)
        return found

    def writers_at(self, node: fx.Node) -> list[StreamWriter]:
        """Return the tensors with which a layer, an embedding or a parameter writes; nothing for another node.

        Raises:
            NotFoldable: the layer's weights have another use.
        """
        if self.layer(node) is not None:
            axis = 0
        elif node.op == "get_attr" or self.name(node) == "Embedding":
            axis = -1
        else:
            return []
        return [StreamWriter(tensor, axis) for tensor in self.tensors[node]]

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
        found = []
        for user in self.readers(node):
            if self.name(user) in PASS_MEANS:
                found.append(user)
            elif not self.is_blind_norm(user):
                raise NotFoldable(f"{self.name(user)} reads the stream with its mean")
        return found

    def is_blind_norm(self, node: fx.Node) -> bool:
        """Tell whether a node is a norm that does not depend on the mean of what it reads."""
        module = self.modules.get(node)
        if module is None or module not in self.inputs:
            return False
        return is_blind_to_mean(module, self.inputs[module])


def is_blind_to_mean(norm: nn.Module, x: Tensor) -> bool:
    """Tell whether a norm's output does not depend on the mean over its input's features."""
    return torch.allclose(norm(x + 1), norm(x))
