"""Statistics that ride on the training forward and backward pass."""

from normbench.probes.probes import Probes, Reading

__all__ = ["Probes", "Reading"]
