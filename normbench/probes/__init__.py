"""Statistics that ride on the training forward and backward pass."""
# ruff: noqa: F401 (imported for those who measure)

from normbench.probes.probes import Probes, Reading
