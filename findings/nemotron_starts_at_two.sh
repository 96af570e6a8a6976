#!/usr/bin/env bash
# A new Nemotron multiplies by 2 in each of its norms.
#
# Versions: transformers 5.24.0, torch 2.13.0.
# A good guess: a new model's norms have a gain of 1, as in the paper, in torch and in transformers' other models,
# whether they store the gain or, as Gemma does, its distance from 1.
# What happens: NemotronLayerNorm1P multiplies by 1 + weight, and the model's initialisation sets the weight to 1 and
# not to 0. Gemma's and Qwen3-Next's are set to 0.
# Who is hurt: whoever trains a Nemotron from its configuration, or compares architectures from a random start: each
# branch's input and the logits are twice those of the same model elsewhere, and weight decay pulls gains towards 1
# from above. Checkpoints are not touched.
# Output seen, the standard deviation of each final norm's output for a normal input:
#   nemotron   2.00
#   gemma      1.00
#   qwen3_next 1.00
#   llama      1.00
# Source: transformers/models/nemotron/modeling_nemotron.py, NemotronLayerNorm1P and _init_weights; NVIDIA's
# TransformerEngine, LayerNorm, zero_centered_gamma, which starts at 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModel

SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 100}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
print("transformers", transformers.__version__, "torch", torch.__version__)
inputs = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
seen = {}
for family in ("nemotron", "gemma", "qwen3_next", "llama"):
    config = AutoConfig.for_model(family, **SIZES, **HEADS)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        seen[family] = model.norm(inputs).pow(2).mean().sqrt().item()
    print(f"{family:<10} {seen[family]:.2f}")
nemotron = seen.pop("nemotron")
sys.exit(not (abs(nemotron - 2) < 0.01 and all(abs(gain - 1) < 0.01 for gain in seen.values())))
END
