#!/usr/bin/env bash
# transformers' Trainer decays the norm gains of some of transformers' own models and not of others.
#
# Versions: transformers 5.24.0, torch 2.13.0, accelerate 1.15.0.
# A good guess: weight decay leaves out biases and norms, as the Trainer says; it knows the models of its own library.
# What happens: it leaves out nn.LayerNorm by class and all else by name, by layernorm, rmsnorm, norm and _norm.
# LLaMA's RMSNorms are named so. Those of Qwen 2.5 VL's vision tower (norm1, norm2, ln_q), Mamba's last (norm_f) and
# the BatchNorms of ResNet, RegNet and MobileNet (normalization) are not, so their gains are pulled to 0.
# Who is hurt: whoever fine-tunes with weight_decay and compares models or norms: one is regularised where the other is
# not, and after a swap from LayerNorm to RMSNorm under the same name (norm1) it is no longer the same recipe.
# Output seen:
#   LlamaModel: 0 of 5 gains decayed
#   MambaModel: 1 of 3
#   ResNetModel: 4 of 4
#   Qwen2_5_VisionTransformerPretrainedModel: 5 of 5
# Source: transformers/trainer.py, Trainer.get_decay_parameter_names; transformers' documentation,
# TrainingArguments.weight_decay.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaModel, MambaConfig, MambaModel, ResNetConfig, ResNetModel, Trainer
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

print("transformers", transformers.__version__, "torch", torch.__version__)
small = {"hidden_size": 32, "intermediate_size": 32}
with torch.device("meta"):
    models = [
        LlamaModel(LlamaConfig(num_hidden_layers=2, num_attention_heads=2, vocab_size=64, **small)),
        MambaModel(MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64, state_size=4)),
        ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])),
        Qwen2_5_VisionTransformerPretrainedModel(
            Qwen2_5_VLVisionConfig(depth=2, num_heads=2, out_hidden_size=32, **small)
        ),
    ]
counts = []
for model in models:
    gains = [f"{name}.weight" for name, module in model.named_modules() if "Norm" in type(module).__name__]
    decayed = set(Trainer.get_decay_parameter_names(None, model)) & set(gains)
    counts.append((len(decayed), len(gains)))
    print(f"{type(model).__name__}: {len(decayed)} of {len(gains)} gains decayed", sorted(decayed)[:2])
sys.exit(counts != [(0, 5), (1, 3), (4, 4), (5, 5)])
END
