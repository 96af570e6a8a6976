"""Stacks of blocks that take a norm and a placement as factories."""

from normbench.models.cnn import ConvNet, PlainConvNet
from normbench.models.initialization import Initialization, Kaiming, Normal, Xavier, initialize
from normbench.models.mlp import PlainMLP, ResidualMLP
from normbench.models.transformer import Transformer

__all__ = [
    "ConvNet",
    "Initialization",
    "Kaiming",
    "Normal",
    "PlainConvNet",
    "PlainMLP",
    "ResidualMLP",
    "Transformer",
    "Xavier",
    "initialize",
]
