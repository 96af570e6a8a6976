"""The scalars of Fixup around a branch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from normbench.placements import Pre, mask_of
from normbench.types import Branch, NormFactory, Site, Treatment

TENTH = Treatment(lr=0.1)


class Fixup(Pre):
    """A branch between three learned numbers: x ← x + g·f(N(x + a)) + b, and one N after the last block.

    a and b start at 0 and g at 1, for each branch; their learning rate is a tenth of the others'. A block that changes
    the shape has f.shortcut(x + a) in the place of x.

    With `norm=none init=fixup` as published (Zhang et al. 2019b; compared with the authors' `fixup_resnet_imagenet.py`,
    `fixup_resnet_cifar.py` and `cifar_train.py`@f3fa449). Their ResNets end a block in an activation, which is
    `model.activation_at=sum` here, and are then the same function where a is 0, as at the start. They add a after that
    activation, and it is added before it here. They also have such a number before each further activation and
    convolution of a branch, after the stem and before the output layer. All these numbers decay there, at a tenth of
    the rate (`cifar_train.py:117`: by 1e-6 of themselves in each of the first steps), and not here, where matrices
    alone do.
    """

    treated = MappingProxyType({"inner_biases": TENTH, "gains": TENTH, "outer_biases": TENTH})

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__(branches, norm, site)
        self.inner_biases = nn.ParameterDict()
        self.gains = nn.ParameterDict()
        self.outer_biases = nn.ParameterDict()
        for role in branches:
            self.inner_biases[role] = nn.Parameter(torch.zeros(1))
            self.gains[role] = nn.Parameter(torch.ones(1))
            self.outer_biases[role] = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role in self.branches:
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            read = x + self.inner_biases[role].to(x.dtype)
            skip = f.shortcut(read if f.changes_shape else x)
            y = f(norms["in"](read, **mask_of(context)), **context)
            x = skip + (self.gains[role].to(x.dtype) * y + self.outer_biases[role].to(x.dtype))
        return x
