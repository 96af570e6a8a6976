#!/usr/bin/env bash
# The scale of Flax's nnx.WeightNorm does not train, and a call overwrites the layer that it wraps.
#
# Versions: flax 0.12.8, optax 0.2.8, jax 0.10.2 on a CPU.
# A good guess: WeightNorm(layer) with use_scale=True, its default, learns a direction and a scale for each column, as in
# the paper and in torch; around a layer that was trained it starts as that layer.
# What happens: the scales are plain arrays and no nnx.Param, so that no gradient, optimizer or count of parameters sees
# them: they stay at their start of 1 and each column stays at length 1. Wrapping does not take the lengths over, and the
# first call writes the normalised weights over those of the layer, so that their lengths are lost. No warning comes.
# Who is hurt: whoever compares weight normalisation with other norms in JAX, or moves a model there from torch: the
# layer cannot learn how large its outputs are, and the loss that it stops at is blamed on weight normalisation.
# Output seen, a target that is 10 times the first of four inputs, with mean square errors after 200 steps:
#   nnx.Linear      error    0.0, length of the weights 10.0
#   nnx.WeightNorm  error  109.8, length of the weights  1.0, scale [1.]
#   trained layer, wrapped and called: length 10.0, then 1.0; parameters that train: kernel
# Source: Flax's API documentation, nnx.WeightNorm, "use_scale"; flax/nnx/nn/normalization.py, WeightNorm; Salimans and
# Kingma, 2016, equation 2.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 optax==0.2.8 numpy==2.4.6 || exit 2
JAX_PLATFORMS=cpu venv/bin/python - <<'END'
import sys

import flax
import jax
import jax.numpy as jnp
import optax
from flax import nnx

print("flax", flax.__version__, "optax", optax.__version__, "jax", jax.__version__)
inputs = jax.random.normal(jax.random.key(1), (64, 4))
targets = 10 * inputs[:, :1]


def square_error(model: nnx.Module) -> jax.Array:
    return jnp.mean((model(inputs) - targets) ** 2)


@nnx.jit
def step(model: nnx.Module, optimizer: nnx.Optimizer) -> None:
    optimizer.update(model, nnx.grad(square_error)(model))


def train(model: nnx.Module) -> float:
    optimizer = nnx.Optimizer(model, optax.sgd(0.05), wrt=nnx.Param)
    for _ in range(200):
        step(model, optimizer)
    return float(square_error(model))


def length(layer: nnx.Linear) -> float:
    return float(jnp.linalg.norm(layer.kernel[...]))


linear = nnx.Linear(4, 1, use_bias=False, rngs=nnx.Rngs(0))
error = train(linear)
print(f"nnx.Linear      error {error:>6.1f}, length of the weights {length(linear):>4.1f}")
start = nnx.Linear(4, 1, use_bias=False, rngs=nnx.Rngs(0))
normalized = nnx.WeightNorm(start, rngs=nnx.Rngs(0))
(scale,) = normalized.scales.values()
normalized_error = train(normalized)
(trained_scale,) = normalized.scales.values()
kept = bool((scale == trained_scale).all())
row = f"error {normalized_error:>6.1f}, length of the weights {length(start):>4.1f}, scale {trained_scale}"
print("nnx.WeightNorm ", row)
before = length(linear)
wrapped = nnx.WeightNorm(linear, rngs=nnx.Rngs(0))
names = [path[-1] for path, _ in nnx.to_flat_state(nnx.state(wrapped, nnx.Param))]
wrapped(inputs)
after = length(linear)
print(f"trained layer, wrapped and called: length {before:.1f}, then {after:.1f}; parameters that train:", *names)
lost = before > 9 and abs(after - 1) < 1e-3 and names == ["kernel"]
sys.exit(not (error < 1 and normalized_error > 50 and kept and lost))
END
