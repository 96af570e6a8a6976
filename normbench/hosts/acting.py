"""Norms that end in an activation, as many of timm do."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Acting:
    """What a norm gets beside its class where it stands for one of timm that ends in a dropout and an activation.

    Its own parameters and buffers keep their names, and the two stay under theirs, `drop` and `act`.
    """

    drop: nn.Module
    act: nn.Module

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask_by_name = {} if mask is None else {"mask": mask}
        y: Tensor = super().forward(x, **mask_by_name)  # type: ignore[misc]  # the norm's
        acted: Tensor = self.act(self.drop(y))
        return acted

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Let it be pickled, though its class is made where it is needed."""
        kind = type(self).__mro__[2]
        return make_empty, (kind,), vars(self)


def make_empty(kind: type) -> Any:
    """Return an acting norm of a class without its attributes."""
    acting: Any = acting_class(kind)
    return acting.__new__(acting)


ACTING_CLASSES: dict[type, type] = {}


def acting_class(kind: type) -> type:
    """Return the class of norms of a kind that end in an activation: one for each."""
    if kind not in ACTING_CLASSES:
        ACTING_CLASSES[kind] = type(kind.__name__, (Acting, kind), {"__module__": kind.__module__})
    return ACTING_CLASSES[kind]
