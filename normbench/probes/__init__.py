"""Statistics that ride on the training forward and backward pass."""

from normbench.probes.probes import Probes, Wanted
from normbench.probes.reading import Reading

__all__ = ["Probes", "Reading", "Wanted"]
