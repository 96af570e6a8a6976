#!/usr/bin/env bash
# With layers that are stacked for a scan, Optax's Muon treats the norms' gains and Adam the matrices.
#
# Versions: optax 0.2.8, flax 0.12.8, jax 0.10.2 on a CPU.
# A good guess: to stack a model's equal layers, as one does to scan over them and compile in less time, changes how fast
# a model compiles and not how it trains; Muon takes matrices and leaves the gains of norms to Adam.
# What happens: optax.contrib.muon goes by the number of axes. In a stack the gains are of (layers, features) and are
# orthogonalised as one matrix, each layer's step depending on all the others'; the matrices are of (layers, in, out)
# and go to Adam, with the learning rate that was meant for Muon. No warning comes.
# Who is hurt: whoever compares Muon with Adam on a scanned model: both runs train the
# matrices with Adam. Whoever turns scan on gets another optimizer; muon_weight_dimension_numbers, which tells the axes,
# is None unless given.
# Output seen, singular values of the first step (Muon brings those of a matrix close together), and the spread of the
# sizes of its entries (Adam's first step has one size):
#              layer's matrix, largest / smallest     gains' entries, largest / smallest
#   one by one                             1.6                                      1
#   stacked                                 20                                    8.4
# Source: Optax's API documentation, contrib.muon, "muon is applied to all 2D parameters"; optax/contrib/_muon.py; Flax's
# guide to nnx.scan, which stacks parameters along a first axis.
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
import numpy as np
import optax
from flax import nnx

print("optax", optax.__version__, "flax", flax.__version__, "jax", jax.__version__)


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.RMSNorm(8, rngs=rngs)
        self.linear = nnx.Linear(8, 8, use_bias=False, rngs=rngs)


@nnx.split_rngs(splits=4)
@nnx.vmap
def stack(rngs: nnx.Rngs) -> Block:
    return Block(rngs)


def first_step(parameters: dict, gradients: dict) -> dict:
    muon = optax.contrib.muon(0.1)
    steps, _ = muon.update(gradients, muon.init(parameters), parameters)
    return steps


def layer(tree: dict, index: int) -> dict:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def spreads(steps: dict) -> tuple[float, float]:
    """Largest by smallest singular value of the matrix, and largest by smallest entry of the gain's step."""
    values = np.linalg.svd(steps["linear"]["kernel"], compute_uv=False)
    sizes = np.abs(steps["norm"]["scale"])
    return float(values[0] / values[-1]), float(sizes.max() / sizes.min())


blocks = stack(nnx.Rngs(0))
parameters = nnx.to_pure_dict(nnx.state(blocks, nnx.Param))
leaves, structure = jax.tree.flatten(parameters)
keys = jax.random.split(jax.random.key(0), len(leaves))
gradients = structure.unflatten([jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves)])
alone = spreads(first_step(layer(parameters, 0), layer(gradients, 0)))
stacked = spreads(layer(first_step(parameters, gradients), 0))
print("          layer's matrix, largest / smallest     gains' entries, largest / smallest")
for label, (of_matrix, of_gains) in {"one by one": alone, "stacked": stacked}.items():
    print(f"{label:<10} {of_matrix:>34.2g} {of_gains:>38.2g}")
sys.exit(not (alone[0] < 4 and alone[1] < 1.001 and stacked[0] > 8 and stacked[1] > 2))
END
