#!/usr/bin/env bash
# A PyTorch Geometric network with layer_norm predicts a graph by the other graphs of its batch, in evaluation too.
#
# Versions: torch-geometric 2.8.1, torch 2.13.0.
# A good guess: layer_norm takes its statistics over the features of one node, as the paper and torch do; graphs that
# are joined into a batch do not know of each other.
# What happens: the layer's mode is "graph": statistics over all nodes and features of a graph, and without batch= over
# all that was passed. GCN(norm="layer_norm") and its kin pass batch on only if they are given it, and their forward
# takes x and edge_index alone without a word.
# Who is hurt: whoever evaluates with another batch size than they trained with, or shuffles a test set: predictions
# change with the company a graph is in, and a test set leaks into itself. norm_kwargs={"mode": "node"} is the cure.
# Output seen, first three outputs of one graph:
#   alone                        [-0.234, 0.506, -1.237]
#   beside a graph ten times larger [-0.003, -0.002, -0.027]
#   the same, with batch=        [-0.234, 0.506, -1.237]
# Source: PyTorch Geometric's documentation, torch_geometric.nn.norm.LayerNorm and nn.models.GCN;
# torch_geometric/nn/models/basic_gnn.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 torch-geometric==2.8.1 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
import torch_geometric
from torch_geometric.nn import GCN

print("torch-geometric", torch_geometric.__version__, "torch", torch.__version__)
torch.manual_seed(0)
model = GCN(4, 8, 2, norm="layer_norm").eval()
edges = torch.tensor([[0, 1], [1, 0]])
graph, other = torch.randn(2, 4), 10 * torch.randn(2, 4)
nodes, both = torch.cat([graph, other]), torch.cat([edges, edges + 2], dim=1)
with torch.no_grad():
    alone = model(graph, edges).flatten()
    beside = model(nodes, both)[:2].flatten()
    apart = model(nodes, both, batch=torch.tensor([0, 0, 1, 1]))[:2].flatten()
for label, outputs in {"alone": alone, "beside": beside, "with batch=": apart}.items():
    print(f"{label:<12}", [round(number, 3) for number in outputs[:3].tolist()])
sys.exit(not ((alone - beside).abs().max() > 0.1 and (alone - apart).abs().max() < 1e-5))
END
