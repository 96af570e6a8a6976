"""Stacks of blocks that take a norm and a placement as factories."""

from normbench.models.cnn import VGG, BottleneckResNet, ConvNet, PlainConvNet, ResNet
from normbench.models.initialization import Initialization, Kaiming, Normal, Xavier, initialize
from normbench.models.mlp import PlainMLP, ResidualMLP
from normbench.models.transformer import Transformer

__all__ = [
    "VGG",
    "BottleneckResNet",
    "ConvNet",
    "Initialization",
    "Kaiming",
    "Normal",
    "PlainConvNet",
    "PlainMLP",
    "ResNet",
    "ResidualMLP",
    "Transformer",
    "Xavier",
    "initialize",
]
