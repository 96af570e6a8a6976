#!/usr/bin/env bash
# PyTorchModelHubMixin loads a checkpoint whose names do not fit, and says nothing.
#
# Versions: huggingface-hub 2.4.0, safetensors 0.8.0, torch 2.13.0.
# A good guess: from_pretrained raises or warns where a parameter is missing, as load_state_dict and transformers do.
# What happens: strict is False unless one asks, and what was missing or left over is thrown away unseen. After a norm
# was renamed from norm to norm1, its trained gain of 3 is 1 again, the model is in evaluation mode and ready to be
# scored.
# Who is hurt: whoever renames or swaps a norm between training and evaluation: the numbers are of a half-loaded model,
# close enough to be believed. from_pretrained(..., strict=True) is the cure.
# Output seen:
#   saved as norm.weight [3.0, 3.0], loaded into norm1.weight [1.0, 1.0], warnings 0, log records 0
# Source: huggingface_hub's documentation, page "Mixins & serialization methods"; huggingface_hub/hub_mixin.py,
# PyTorchModelHubMixin._load_as_safetensor.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 huggingface-hub==2.4.0 safetensors==0.8.0
venv/bin/python - <<'END'
import logging
import sys
import tempfile
import warnings

import huggingface_hub
import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn


class Old(nn.Module, PyTorchModelHubMixin):
    def __init__(self, features: int = 2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)


class New(nn.Module, PyTorchModelHubMixin):
    def __init__(self, features: int = 2) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(features)


class Counter(logging.Handler):
    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


print("huggingface-hub", huggingface_hub.__version__, "torch", torch.__version__)
counter = Counter(level=logging.WARNING)
logging.getLogger("huggingface_hub").addHandler(counter)
old = Old()
nn.init.constant_(old.norm.weight, 3)
with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    old.save_pretrained(folder)
    new = New.from_pretrained(folder)
print(
    f"saved as norm.weight {old.norm.weight.tolist()}, loaded into norm1.weight {new.norm1.weight.tolist()}, "
    f"warnings {len(caught)}, log records {counter.count}"
)
sys.exit(not ((new.norm1.weight == 1).all() and not caught and counter.count == 0))
END
