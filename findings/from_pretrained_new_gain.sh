#!/usr/bin/env bash
# from_pretrained gives a norm that was added to a model whatever was in memory, and calls it "newly initialized".
#
# Versions: transformers 5.24.0, torch 2.13.0.
# A good guess: parameters that a checkpoint lacks keep what their constructor gave them: a gain of ones stays ones.
# What happens: the model is built without memory, and what the checkpoint lacks is then laid out as it comes, unless
# the model's _init_weights knows the module. It knows torch's norms, and classes with LayerNorm or RMSNorm in their
# name; a gain, a DyT or a LayerScale of one's own is left as it comes, and so are its buffers that are not saved. The
# load report says that such parameters "were newly initialized".
# Who is hurt: whoever adds a norm or a gate to a pretrained model and fine-tunes: the start is noise, often zeros, NaN
# or 1e33, other in each process, while the same class built from its config starts at ones.
# Output seen, other in each process:
#   from config      gain [1.0, 1.0, 1.0] LayerNorm [1.0, 1.0, 1.0]
#   from_pretrained  gain [3.0e-35, 4.6e-41, 3.0e-35] LayerNorm [1.0, 1.0, 1.0]
# Source: transformers' documentation, PreTrainedModel.from_pretrained and its migration guide for version 5;
# transformers/modeling_utils.py, _init_weights and _move_missing_keys_from_meta_to_device.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys
import tempfile

import torch
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

FEATURES = 8192


class Gain(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))


class WithGain(LlamaForCausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.added = Gain(FEATURES)
        self.layer_norm = nn.LayerNorm(FEATURES)
        self.post_init()


print("transformers", transformers.__version__, "torch", torch.__version__)
transformers.logging.set_verbosity_error()
config = LlamaConfig(
    hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(folder)
    loaded = WithGain.from_pretrained(folder)
built = WithGain(config)
print("from config      gain", built.added.gain[:3].tolist(), "LayerNorm", built.layer_norm.weight[:3].tolist())
print("from_pretrained  gain", loaded.added.gain[:3].tolist(), "LayerNorm", loaded.layer_norm.weight[:3].tolist())
started = bool((built.added.gain == 1).all() and (loaded.layer_norm.weight == 1).all())
sys.exit(not (started and not (loaded.added.gain == 1).all()))
END
