#!/usr/bin/env bash
# nn.TransformerEncoderLayer evaluates with another norm than it trained with, unless somebody watches.
#
# Versions: torch 2.13.0.
# A good guess: a norm that was put into norm1 (a subclass of LayerNorm with a gain of 1 + weight) is called, in
# training and in evaluation.
# What happens: in evaluation without gradients the layer takes a fused path that reads norm1's weight, bias and eps
# and computes plain LayerNorm from them; the subclass's forward is never called. With a weight that starts at 0 the
# whole branch is off. A forward hook on the norm switches the fused path off, so the fault hides from whoever looks.
# Who is hurt: whoever swaps norms in models of PyTorch's own layers and compares by evaluation loss: the comparison is
# of LayerNorm with wrong weights. torch.backends.mha.set_fastpath_enabled(False) is the cure.
# Output seen, largest difference to the output in training mode (dropout 0):
#   evaluation              4.5e+00
#   evaluation with a hook  2.4e-07
# Source: torch's documentation, torch.nn.TransformerEncoderLayer, "Fast path"; torch/nn/modules/transformer.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
import torch.nn.functional as F
from torch import nn


class LayerNormOfOnePlus(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


print("torch", torch.__version__)
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
layer.norm1 = LayerNormOfOnePlus(16)
nn.init.zeros_(layer.norm1.weight)
inputs = torch.randn(2, 5, 16)
with torch.no_grad():
    trained = layer.train()(inputs)
    evaluated = (layer.eval()(inputs) - trained).abs().max().item()
    layer.norm1.register_forward_hook(lambda *arguments: None)
    watched = (layer.eval()(inputs) - trained).abs().max().item()
print(f"evaluation              {evaluated:.1e}")
print(f"evaluation with a hook  {watched:.1e}")
sys.exit(not (evaluated > 0.1 and watched < 1e-5))
END
