"""The recurrent language model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.models.cells import GRU, LSTM, compute_weights_once, share_statistics, time_steps
from normbench.models.stacks import Depth, Width, through
from normbench.models.transformer import (
    Cap,
    Context,
    Dropout,
    Embedded,
    EmbeddingScale,
    Head,
    Mask,
    Stream,
    Tied,
    TokenStem,
)
from normbench.settings import Setting
from normbench.types import Branch, LanguageModeling, NormFactory, PlacementFactory, Site

CELLS = {"lstm": LSTM, "gru": GRU}


class RecurrentLayer(Branch):
    """The states of a cell that reads forwards from a state of 0, with dropout."""

    def __init__(self, inputs: int, width: int, cell: str, norm: NormFactory, site: Site, dropout: float) -> None:
        super().__init__()
        self.in_features = inputs
        self.out_features = width
        self.cell = CELLS[cell](inputs, width, norm, site)
        self.cell.fuses = True
        self.dropout = nn.Dropout(dropout)
        self.counts_together = share_statistics(self)

    def forward(self, x: Stream, mask: Mask | None = None, **_: Any) -> Stream:
        with compute_weights_once():
            steps = time_steps(mask, x.shape[1], self.counts_together and self.training)
            states = self.cell.run(x, mask, steps)
        return self.dropout(states)


class RecurrentLM(Embedded):
    """A recurrent language model: layers of LSTM or GRU cells with norms inside; takes `placement=plain` only.

    data flow: tokens ─ embedding ─ × scale ─ dropout ─ layers, each with dropout after it ─ head. Every window starts
    from a state of 0. The form is that of PyTorch's word-level language model (pytorch/examples,
    `word_language_model`), which carries its states from batch to batch and has a bias in its head.

    Args:
        depth: layers.
        width: features of a state.
        embedding: features of a token's embedding; None: as many as a state has.
        cell: `lstm` or `gru`.
        tied: the output layer uses the token embedding, which is as wide as a state then.

    Raises:
        UsageError: it is tied, and the embedding has another width.
    """

    kinds = frozenset({"language_model"})
    roles = ("cell",)
    residual = False
    has_positions = False
    recurrent = True

    def __init__(
        self,
        task: LanguageModeling,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        depth: Depth,
        width: Width,
        embedding: Annotated[
            int | None, Setting("features of a token's embedding; null: as a state has", low=1, high=10**5)
        ],
        cell: Annotated[Literal["lstm", "gru"], Setting("recurrent cell")],
        context: Context,
        dropout: Dropout,
        tied: Tied,
        embedding_scale: EmbeddingScale,
        softcap: Cap = None,
    ) -> None:
        super().__init__()
        inputs = embedding or width
        if tied and inputs != width:
            cure = f"set model.embedding={width}, or model.tied=false"
            raise UsageError(f"model.tied=true needs an embedding as wide as a state, not of {inputs}: {cure}")
        self.stem = TokenStem(task, inputs)
        outside = Site("outside", depth=depth, causal=True, length=task.context)
        is_unit = embedding_scale == "unit"
        self.start_stream(inputs, 1, "none", embedding_scale, is_unit, dropout, norm, outside)
        self.blocks = nn.ModuleList()
        for layer in range(depth):
            site = Site("block", layer, depth, branches=depth, causal=True, length=task.context)
            branch = RecurrentLayer(inputs, width, cell, norm, site, dropout)
            self.blocks.append(placement({"cell": branch}, norm, site))
            inputs = width
        self.head = Head(width, task.num_classes, "positions", tied, norm, outside, softcap)

    def call_every_norm(self) -> None:
        for module in self.modules():
            if isinstance(module, RecurrentLayer):
                module.cell.fuses = False

    def forward(self, inputs: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocabulary"]:
        x, _ = self.stream(self.stem(inputs))
        x = through(self.blocks, x, self.recompute)
        return self.head(x, None, self.stem)
