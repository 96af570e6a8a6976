"""Stacks of blocks that take a norm and a placement as factories."""

from normbench.models.cnn import ConvNet, PlainConvNet
from normbench.models.initialization import Initialization, Kaiming, Normal, Xavier, initialize
from normbench.models.mlp import PlainMLP, ResidualMLP
from normbench.models.resnet import BottleneckResNet, ResNet
from normbench.models.transformer import Transformer
from normbench.models.vgg import VGG

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
