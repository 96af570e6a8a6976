#!/usr/bin/env bash
# Keras evaluates a spectrally normalised layer with weights that are not normalised.
#
# Versions: keras 3.15.1 with the torch backend, torch 2.13.0.
# A good guess: SpectralNormalization divides a weight by its largest singular value wherever the weight is used, as in
# the paper and in torch; what is trained stays as it is.
# What happens: a call in training overwrites the kernel with the normalised one, the optimizer then steps away from
# that, and a call in evaluation takes what it finds: after each step, and in what is saved, the kernel of before the
# next normalisation. A layer that was never trained is not normalised at all.
# Who is hurt: whoever relies on the bound in evaluation, for a critic of 1-Lipschitz, a certificate of robustness or a
# distance-aware uncertainty; whoever compares with torch: a loss in evaluation is of another network than the one that
# was trained.
# Output seen, the largest singular value of the kernel that evaluation uses:
#   before training      1.80
#   after a call         1.00
#   after a step of SGD  1.15
# Source: Keras's API documentation, SpectralNormalization; keras/src/layers/normalization/spectral_normalization.py,
# call; Miyato et al., 2018, Algorithm 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 keras==3.15.1 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch

keras.utils.set_random_seed(0)
inputs = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
targets = inputs @ np.random.default_rng(1).normal(size=(16, 16)).astype("float32")


def bound(layer: keras.layers.Layer) -> float:
    """The largest singular value of the map that the layer is in evaluation, which has no bias."""
    outputs = keras.ops.convert_to_numpy(layer(np.eye(16, dtype="float32"), training=False))
    return float(np.linalg.svd(outputs, compute_uv=False)[0])


def normalized() -> keras.layers.Layer:
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(16, use_bias=False), power_iterations=100)
    layer.build((None, 16))
    return layer


print("keras", keras.__version__, "torch", torch.__version__)
layer = normalized()
seen = {"before training": bound(layer)}
layer(inputs, training=True)
seen["after a call"] = bound(layer)
model = keras.Sequential([keras.Input((16,)), normalized()])
model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
model.fit(inputs, targets, batch_size=64, verbose=0)
seen["after a step of SGD"] = bound(model.layers[0])
for label, value in seen.items():
    print(f"{label:<20} {value:.2f}")
before, called, stepped = seen.values()
sys.exit(not (before > 1.2 and abs(called - 1) < 0.01 and stepped > 1.05))
END
