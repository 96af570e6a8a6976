"""Stacks of blocks that take a norm and a placement as factories."""
# ruff: noqa: F401 (imported for those who name them, conf/model and conf/init above all)

from normbench.models.cnn import VGG, BottleneckResNet, ConvNet, PlainConvNet, ResNet, unsafe_convolutions
from normbench.models.initialization import (
    Fixup,
    Initialization,
    Kaiming,
    Magneto,
    MaximalUpdate,
    Normal,
    Orthogonal,
    Own,
    Scaled,
    TFixup,
    Xavier,
    initialize,
)
from normbench.models.recurrent import RNNSearch
from normbench.models.rnn_lm import RecurrentLM
from normbench.models.seq2seq import Seq2Seq
from normbench.models.stacks import PlainMLP, ResidualMLP
from normbench.models.transformer import Transformer
