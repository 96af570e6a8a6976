#!/usr/bin/env bash
# mlxtend's permutation test finds no difference, p = 1, between scores that are small numbers.
#
# Versions: mlxtend 0.25.0, scipy 1.17.1.
# A good guess: p does not change when both samples are multiplied by one number; only ranks among permutations count.
# What happens: a permutation counts as extreme where it is numpy.isclose to what was observed, and isclose takes all
# that differs by less than 1e-8 for equal. Where the means differ by less than that, each permutation counts: p is 1.
# Who is hurt: whoever compares small errors, such as squared errors of 1e-9, residuals of a differential equation or
# variances of gradients: a model that is ten times better in each of ten seeds is "not significantly different".
# Output seen, p of ten pairs of which one side is ten times the other:
#   scale 1e+00: mlxtend 0.002, scipy 0.002
#   scale 1e-04: mlxtend 0.002, scipy 0.002
#   scale 1e-09: mlxtend 1.000, scipy 0.002
# Source: mlxtend's user guide, permutation_test; mlxtend/evaluate/permutation.py; numpy's documentation, isclose, which
# warns of its atol for small numbers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile mlxtend==0.25.0 numpy==2.4.6 scipy==1.17.1 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import mlxtend
import numpy as np
import scipy
from mlxtend.evaluate import permutation_test

print("mlxtend", mlxtend.__version__, "scipy", scipy.__version__)
better = np.random.default_rng(0).uniform(0.5, 1.0, 10)
worse = 10 * better


def mean_difference(x: np.ndarray, y: np.ndarray) -> float:
    return np.mean(x) - np.mean(y)


seen = {}
for scale in (1.0, 1e-4, 1e-9):
    samples = (scale * better, scale * worse)
    ours = permutation_test(*samples, method="exact", paired=True)
    theirs = scipy.stats.permutation_test(samples, mean_difference, permutation_type="samples").pvalue
    seen[scale] = (ours, theirs)
    print(f"scale {scale:.0e}: mlxtend {ours:.3f}, scipy {theirs:.3f}")
exact = 2 / 2**10
print("two of 1,024 sign changes are as extreme:", round(exact, 3))
right = [seen[1.0], seen[1e-4], (seen[1e-9][1],) * 2]
sys.exit(not (np.allclose(right, exact) and seen[1e-9][0] == 1))
END
