#!/usr/bin/env bash
# Asking for a fresh optimizer's state makes its first real step smaller.
#
# Versions: torch 2.13.0.
# A good guess: torch.distributed.checkpoint.state_dict.get_optimizer_state_dict and get_state_dict read; a checkpoint
# before the first step leaves the run as it was.
# What happens: where the optimizer has no state yet, they make a step of zero gradients and a learning rate of 0, so
# that there is one. The weights stay, the step count does not: it is 1 when training begins. AdamW's bias corrections
# are then those of step 2 and its first update is 0.74 of what it is without the checkpoint; all later ones differ
# too.
# Who is hurt: whoever saves "step 0", to compare runs, to resume early or to broadcast a start: the run that was saved
# is another run than the one that was not, and warm-up and seeds do not explain it.
# Output seen:
#   first update without a checkpoint  -0.1000, step count before it 0
#   first update after one             -0.0744, step count before it 1
# Source: torch's documentation, torch.distributed.checkpoint.state_dict; torch/distributed/checkpoint/state_dict.py,
# _init_optim_state.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict


def first_update(save: bool) -> tuple[float, int]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0)
    if save:
        get_state_dict(model, optimizer)
    steps = int(optimizer.state[model.weight].get("step", 0))
    before = model.weight[0, 0].item()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model.weight[0, 0].item() - before, steps


print("torch", torch.__version__)
plain, plain_steps = first_update(save=False)
saved, saved_steps = first_update(save=True)
print(f"first update without a checkpoint  {plain:.4f}, step count before it {plain_steps}")
print(f"first update after one             {saved:.4f}, step count before it {saved_steps}")
sys.exit(not (plain_steps == 0 and saved_steps == 1 and 0.7 < saved / plain < 0.8))
END
