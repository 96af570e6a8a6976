#!/usr/bin/env bash
# datasets gives float64 columns out as float32 when they are asked for as arrays.
#
# Versions: datasets 5.2.0, numpy 2.4.6.
# A good guess: a column whose feature is float64 comes out of with_format("numpy") as float64, as its int64 neighbour
# comes out as int64.
# What happens: every float column becomes float32, without a warning, also for "torch" and "jax"; ds.features goes on
# to say float64. with_format("numpy", dtype=...) changes it, for all columns at once; "pandas" and "arrow" keep
# float64.
# Who is hurt: whoever standardises features from it: times in seconds since 1970 that differ by an eighth of a second
# all become one number, their standard deviation 0, and (x - mean) / std NaN.
# Output seen:
#   feature float64; numpy gives float32, distinct values 1 of 8, standard deviation 0.0; pandas gives float64, 8 of 8
# Source: datasets' documentation, page "Use with NumPy"; datasets/formatting/np_formatter.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install --quiet --no-compile datasets==5.2.0 numpy==2.4.6
venv/bin/python - <<'END'
import sys

import datasets
import numpy as np

times = [1.7e9 + eighth / 8 for eighth in range(8)]
dataset = datasets.Dataset.from_dict({"time": times})
array = dataset.with_format("numpy")[:]["time"]
frame = dataset.with_format("pandas")[:]["time"]
print("datasets", datasets.__version__, "numpy", np.__version__)
print(
    f"feature {dataset.features['time'].dtype}; numpy gives {array.dtype}, distinct values {len(set(array))} of 8, "
    f"standard deviation {array.std()}; pandas gives {frame.dtype}, {frame.nunique()} of 8"
)
sys.exit(not (array.dtype == np.float32 and len(set(array)) == 1 and frame.nunique() == 8))
END
