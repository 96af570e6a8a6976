#!/usr/bin/env bash
# Loading an optimizer's state rounds what it kept in float32 to the dtype of the parameters.
#
# Versions: transformers 5.24.0, torch 2.13.0.
# A good guess: optimizer.load_state_dict(optimizer.state_dict()) changes nothing; a resumed run is the run.
# What happens: torch's Optimizer.load_state_dict casts each float state (but "step") to its parameter's dtype.
# transformers' Adafactor keeps its second moments in float32 for bfloat16 parameters; after loading they are bfloat16.
# The run that was resumed at step 20 differs from the one that was not; in float32 they are equal to the bit.
# Who is hurt: whoever trains in bfloat16 with an optimizer that keeps better states than its weights, and resumes: the
# checkpoint on disk is right, what is loaded is not.
# Output seen, 40 steps, resumed after 20 or not:
#   float32   state torch.float32 after loading, largest difference of weights 0
#   bfloat16  state torch.bfloat16 after loading, largest difference of weights 0.0039
# Source: torch/optim/optimizer.py, _process_value_according_to_param_policy; transformers/optimization.py, Adafactor.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import copy
import sys

import torch
import transformers
from torch import nn
from transformers import Adafactor


def train(dtype: torch.dtype, resume: bool) -> tuple[torch.Tensor, torch.dtype]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 16).to(dtype))

    def make() -> Adafactor:
        return Adafactor([weight], lr=1e-2, relative_step=False, scale_parameter=False)

    optimizer = make()
    state_dtype = torch.float32
    for step in range(40):
        if step == 20:
            if resume:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = make()
                optimizer.load_state_dict(saved)
            state_dtype = optimizer.state[weight]["exp_avg_sq_row"].dtype
        weight.grad = torch.randn(16, 16).to(dtype)
        optimizer.step()
    return weight.detach(), state_dtype


print("transformers", transformers.__version__, "torch", torch.__version__)
seen = {}
for dtype in (torch.float32, torch.bfloat16):
    whole, kept = train(dtype, resume=False)
    resumed, loaded = train(dtype, resume=True)
    difference = (whole - resumed).abs().max().item()
    seen[dtype] = (kept, loaded, difference)
    print(f"{str(dtype)[6:]:<9} state {loaded} after loading, largest difference of weights {difference:.2g}")
exact = seen[torch.float32][2] == 0
kept, loaded, difference = seen[torch.bfloat16]
sys.exit(not (exact and kept == torch.float32 and loaded == torch.bfloat16 and difference > 0))
END
