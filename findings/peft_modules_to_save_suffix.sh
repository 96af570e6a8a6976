#!/usr/bin/env bash
# peft's modules_to_save=["norm"] trains each module whose name ends in "norm", and target_modules=["norm"] does not.
#
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0.
# A good guess: a name in modules_to_save means what the same name means in target_modules: the module of that name.
# What happens: target_modules compares whole parts of the path, modules_to_save any ending. In a Llama "norm" is the
# last norm, and also the end of input_layernorm and post_attention_layernorm: all are copied, trained and saved.
# Who is hurt: whoever trains the last norm beside LoRA, or a "head" of a model that has an lm_head: an ablation of
# what is trained is of another set, adapters are larger, and nothing says so but the list of parameters.
# Output seen, norms that are trained in a Llama of four layers:
#   modules_to_save=["norm"] 9
#   target_modules=["norm"]  1
# Source: peft's documentation, LoraConfig; peft/utils/other.py, _set_trainable;
# https://github.com/huggingface/peft/issues/1917.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import peft
import torch
import transformers
from transformers import LlamaConfig, LlamaModel

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100}


def trained_norms(config: peft.PeftConfig) -> int:
    model = peft.get_peft_model(LlamaModel(LlamaConfig(**SIZES)), config)
    return sum(weight.requires_grad for name, weight in model.named_parameters() if "norm" in name)


print("peft", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
saved = trained_norms(peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["norm"]))
targeted = trained_norms(peft.LNTuningConfig(target_modules=["norm"]))
print('modules_to_save=["norm"]', saved)
print('target_modules=["norm"] ', targeted)
sys.exit(not (saved == 9 and targeted == 1))
END
