#!/usr/bin/env bash
# In Keras, excluding norms from weight decay by the layer's name excludes nothing.
#
# Versions: keras 3.15.1 with the torch backend, torch 2.13.0.
# A good guess: exclude_from_weight_decay(var_names=["layer_normalization"]) reaches the variables of such layers.
# What happens: names are searched in the variable's own name, which is "gamma" or "beta" since Keras 3; the layer's
# name is in its path, which is not searched. Nothing matches, and nothing says so. "gamma" and "beta" work, of all
# layers.
# Who is hurt: recipes of Keras 2, where a variable's name held its layer's ("layer_normalization/gamma:0"), and the
# well-known lists of "LayerNorm", "layer_norm", "bias" from BERT: gains are decayed to 0 with the kernels.
# Output seen, variables that are decayed:
#   where layer_normalization is excluded {'gamma': True, 'beta': True}
#   where gamma and beta are excluded     {'gamma': False, 'beta': False}
# Source: Keras's API documentation, Optimizer.exclude_from_weight_decay; keras/src/optimizers/base_optimizer.py,
# _use_weight_decay.
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
import torch


def movement(names: list[str]) -> dict[str, bool]:
    """Whether a step with gradients of 0 moves each variable, which only weight decay can do."""
    layer = keras.layers.LayerNormalization(name="layer_normalization")
    model = keras.Sequential([keras.Input((8,)), layer, keras.layers.Dense(2, use_bias=False)])
    layer.beta.assign(torch.ones(8))
    optimizer = keras.optimizers.AdamW(learning_rate=0.1, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=names)
    optimizer.build(model.trainable_variables)
    optimizer.apply([torch.zeros(tuple(v.shape)) for v in model.trainable_variables], model.trainable_variables)
    return {v.name: bool((v.value.detach() != 1).any()) for v in (layer.gamma, layer.beta)}


print("keras", keras.__version__, "torch", torch.__version__)
by_layer, by_variable = movement(["layer_normalization"]), movement(["gamma", "beta"])
print("decayed where layer_normalization is excluded", by_layer)
print("decayed where gamma and beta are excluded    ", by_variable)
sys.exit(not (by_layer == {"gamma": True, "beta": True} and by_variable == {"gamma": False, "beta": False}))
END
