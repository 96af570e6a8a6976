#!/usr/bin/env bash
# Initialising a weight-normalised weight does nothing, and Wav2Vec2's positional convolution does just that.
#
# Versions: transformers 5.24.0, torch 2.13.0.
# A good guess: nn.init of conv.weight sets what the convolution uses, or raises.
# What happens: with torch.nn.utils.parametrizations.weight_norm, conv.weight is computed at each reading from a
# direction and a length. nn.init fills the computed tensor, which is thrown away. Wav2Vec2's _init_weights draws its
# positional convolution from a normal distribution that way; the weights keep torch's default for a convolution
# instead, uniform and of a little over half the standard deviation that the source states. HuBERT, WavLM, Data2Vec
# audio and others share the code.
# Who is hurt: whoever pretrains from random weights and trusts the stated start, and everybody who initialises after
# weight_norm or spectral_norm: an ablation of initialisations compares one start with itself.
# Output seen:
#   nn.init.constant_(conv.weight, 0.5) leaves weights between -0.28 and 0.26
#   Wav2Vec2's positional convolution: stated std 0.0625, torch's default 0.0361, found 0.0361
# Source: transformers/models/wav2vec2/modeling_wav2vec2.py, Wav2Vec2PositionalConvEmbedding and _init_weights; torch's
# documentation, torch.nn.utils.parametrizations.weight_norm.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import math
import sys

import torch
import transformers
from torch import nn
from transformers import Wav2Vec2Config, Wav2Vec2Model

print("transformers", transformers.__version__, "torch", torch.__version__)
torch.manual_seed(0)
convolution = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3))
nn.init.constant_(convolution.weight, 0.5)
low, high = convolution.weight.min().item(), convolution.weight.max().item()
print(f"nn.init.constant_(conv.weight, 0.5) leaves weights between {low:.2f} and {high:.2f}")
config = Wav2Vec2Config(
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    conv_dim=(32, 32),
    conv_kernel=(3, 3),
    conv_stride=(2, 2),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
)
conv = Wav2Vec2Model(config).encoder.pos_conv_embed.conv
stated = 2 * math.sqrt(1 / (conv.kernel_size[0] * conv.in_channels))
default = 1 / math.sqrt(3 * conv.kernel_size[0] * conv.in_channels / conv.groups)
found = conv.weight.std().item()
print(f"Wav2Vec2's positional convolution: stated std {stated:.4f}, torch's default {default:.4f}, found {found:.4f}")
sys.exit(not (high < 0.5 and abs(found - default) < 0.05 * default and found < 0.8 * stated))
END
