"""Statistics that ride on the training forward and backward pass."""

from normbench.probes.probes import Probes
from normbench.probes.reading import Reading, Wanted

__all__ = ["Probes", "Reading", "Wanted"]
