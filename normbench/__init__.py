"""normbench: compare normalization in neural networks, and believe the result."""

__version__ = "0.1.0"
