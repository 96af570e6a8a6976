"""Statistics that ride on the training forward and backward pass; `probes.py` tells how."""
# ruff: noqa: F401 (imported for those who measure)

from normbench.probes.probes import Probes
from normbench.probes.reading import Reading
