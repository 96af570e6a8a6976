#!/usr/bin/env bash
# deepsig's Bonferroni correction gets weaker with each comparison, and with two models nothing can pass it.
#
# Versions: deepsig 1.2.8, numpy 2.4.6.
# A good guess: with k comparisons each is held at the confidence 1 - (1 - c) / k, which grows with k.
# What happens: it is held at c + (1 - c) / k. From 0.95 that is 0.975 for two comparisons, which is right, and falls
# towards 0.95 from there, where it should rise to 1. multi_aso applies it to one comparison too: at a confidence of 1
# the bound of any two samples is 1, in both directions.
# Who is hurt: whoever compares many models: at 45 comparisons each is tested at 0.951 where 0.9989 was meant, and more
# models make more of them "significantly better". Whoever gives multi_aso two models is told that neither is better.
# Output seen, eps_min of the same two samples, of which less is more significant:
#   aso, comparisons 1    0.084
#   aso, comparisons 2    0.099
#   aso, comparisons 45   0.085
#   multi_aso             [1.0, 1.0]
# Source: deepsig's README, aso and multi_aso, "num_comparisons" and "use_bonferroni"; deepsig/aso.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile deepsig==1.2.8 numpy==2.4.6 scipy==1.17.1 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import importlib.metadata
import sys

import numpy as np
from deepsig import aso, multi_aso

draws = np.random.default_rng(0)
better, worse = draws.normal(1.0, 1.0, 20), draws.normal(0.0, 1.0, 20)
settings = {"num_bootstrap_iterations": 500, "seed": 1, "show_progress": False}
print("deepsig", importlib.metadata.version("deepsig"), "numpy", np.__version__)
bounds = {}
for comparisons in (1, 2, 45):
    bounds[comparisons] = float(aso(better, worse, num_comparisons=comparisons, **settings))
    print(f"aso, comparisons {comparisons:<4} {bounds[comparisons]:.3f}")
both = multi_aso([better.tolist(), worse.tolist()], **settings)
pair = [float(both[0, 1]), float(both[1, 0])]
print("multi_aso            ", pair)
sys.exit(not (0 < bounds[1] < bounds[45] < bounds[2] < 0.5 and pair == [1.0, 1.0]))
END
