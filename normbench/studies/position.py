"""How hidden vectors depend on their position: mean and deviation, outlier channels, attention sinks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.studies.findings import (
    against_baseline,
    arms_of,
    compared,
    curves,
    differences_told,
    is_arm,
    labelled,
    plain_table,
    values_told,
)
from normbench.studies.frame import Column, Difference, Row, Study, Subject
from normbench.training.evaluation import to_device

Found = dict[tuple[str, str, str], list[dict[str, Tensor]]]  # by what, what counts, and where: of each batch, by column

Batches = Annotated[int, Setting("validation batches", low=1, high=10**6)]
Outlier = Annotated[float, Setting("RMS of an outlier channel, × the median one's", low=1, high=1e6)]
Sites = Annotated[str, Setting("what the names of the norms' sites must have in them, such as state_gates")]
Sink = Annotated[float, Setting("attention that a sink gets, × the uniform share", low=1, high=1e6)]

MOST = 6  # channels or positions are named
EXAMPLES = 8  # of a batch, whose attention is looked at


class Position(Study):
    """Measure mean and standard deviation of hidden vectors at each position of a trained language model or translator.

    They are taken over windows and features, of what each norm gives (with `norm=none` of what stands there) and of the
    stream behind each block, padding left out; each call of a norm in a recurrent cell is one position. Named beside
    them: outlier channels of the stream, by their root mean square over the median channel's, and, where texts have no
    padding, attention sinks: positions that get several times the uniform share, 1/t, of the attention of queries that
    stand a quarter of the context or more behind them.
    """

    trains = True

    def __init__(self, *, batches: Batches = 4, outlier: Outlier = 6.0, sink: Sink = 3.0, sites: Sites = "") -> None:
        self.batches, self.sites = batches, sites
        self.named = {"outlier channels": ("channel", "channel_rms", outlier)}
        self.named |= {"attention sinks": ("position", "attention", sink)}

    def check(self, subject: Subject) -> None:
        if not subject.task.causal:
            raise UsageError(f"study position is for language models, not for {subject.task.unit}: use data=pydocs")

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        found: Found = defaultdict(list)
        hooked = [site for site in norms if self.sites in site]
        if not hooked:
            raise UsageError(f"study.sites={self.sites} is in the name of no norm's site: use some of {[*norms][-1]}")
        for site in hooked:
            norms[site].register_forward_hook(partial(see_vectors, found, "norm", site), with_kwargs=True)
        for layer, block in enumerate(model.blocks):
            block.register_forward_hook(partial(see_vectors, found, "stream", f"block{layer:02d}"), with_kwargs=True)
            for branch in block.branches.values():  # type: ignore[operator]  # a placement has them
                if hasattr(branch, "attention_logits") and not subject.data.pads:
                    branch.register_forward_hook(partial(see_attention, found, f"block{layer:02d}"), with_kwargs=True)
        batches: Found = defaultdict(list)
        with torch.no_grad():
            for batch in subject.data.eval_batches("val", self.batches):
                model(*to_device(batch, subject.device).arguments)
                for key, calls in found.items():
                    batches[key].append({name: torch.cat([call[name] for call in calls]) for name in calls[0]})
                found.clear()
        for (what, counted, site), parts in batches.items():
            numbered = re.match(r"block(\d+)", site)
            layer = int(numbered[1]) if numbered else len(model.blocks)
            values = {name: mean_of([part[name] for part in parts]) for name in parts[0]}
            for number, row in enumerate(zip(*values.values(), strict=True)):
                place = {"block": layer, "site": site, "what": what, counted: number}
                yield place | dict(zip(values, row, strict=True))

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        norms = rows[(rows["what"] == "norm") & rows["std"].notna()]
        what = "Standard deviation of what norms give, mean over positions"
        found = against_baseline(norms, "std", self.baseline, what)
        column = self.columns["std"]
        return differences_told(found, column.unit) or values_told(norms, "std", column, what)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        first = rows[rows["position"] == 0].assign(positions="the first")
        both = pd.concat([rows.assign(positions="all"), first]).dropna(subset="mean")
        title = "Mean and standard deviation of hidden vectors, over layers"
        about: Any = {"columns": self.columns, "baseline": self.baseline, "key": "vectors", "title": title}
        named = [{"arm": labelled(arm), "what": words} | named_in(rows[is_arm(rows, arm.settings)], *how)
                 for words, how in self.named.items() if how[1] in rows for arm in arms_of(rows)]  # fmt: skip
        vectors = compared(both, values=["mean", "std"], by=["what", "positions"], **about)
        return [vectors, plain_table("named", "Outlier channels and attention sinks", named, 2)]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        rows = rows[rows["position"].notna()].assign(at=rows["what"] + " " + rows["site"])
        parts = {what: own[own["site"].isin(some_of(own["site"]))] for what, own in rows.groupby("what")}
        vectors = pd.concat([parts["norm"], parts["stream"]])
        about: Any = {"x": "position", "columns": {**self.columns, "at": Column("")}, "panel": "at"}
        drawn = [("std", vectors), ("mean", vectors), ("attention", parts.get("attention"))]
        found = list[Figure]()
        for name, part in drawn:
            if part is not None:
                found += curves(name, part, y=name, **self.captions[name], **about)
        return found


def some_of(sites: pd.Series) -> list[str]:
    """Return the first, the middle and the last."""
    found = [*dict.fromkeys(sites)]
    return [found[0], found[len(found) // 2], found[-1]]


def named_in(rows: pd.DataFrame, number: str, value: str, above: float) -> dict[str, Any]:
    """Name the channels or positions with values above a bound, the largest first, and tell the largest value."""
    found = rows[rows[value] > above].sort_values(value, ascending=False).groupby(number, sort=False)
    words = [f"{which:.0f} (block {own['block'].iloc[0]}: {own[value].iloc[0]:.1f}; in {len({*own['seed']})} seeds)"
             for which, own in found]  # fmt: skip
    return {"number": len(words), "largest": rows[value].max(), "named": ", ".join(words[:MOST]) or "none"}


def mean_of(values: list[Tensor]) -> list[float]:
    """Return the mean of batches at each place that one of them has."""
    return nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=math.nan).nanmean(dim=0).tolist()


def see_vectors(found: Found, what: str, site: str, _: nn.Module, __: Any, context: dict[str, Any], x: Tensor) -> None:
    """Keep means and deviations by position, and of the stream also how far each channel sticks out."""
    x, mask = x.cpu().double(), context.get("mask")
    real = torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask.cpu()
    if x.ndim == 2:  # one position a call
        x, real = x[:, None], real[:, None]
    at = [x[real[:, place], place] for place in range(x.shape[1])]
    moments = {"mean": [each.mean() for each in at], "std": [each.std(correction=0) for each in at]}
    found[what, "position", site].append({name: torch.stack(each) for name, each in moments.items()})
    if what == "stream":
        rms = x[real].square().mean(dim=0).sqrt()
        found["channels", "channel", site].append({"channel_rms": rms / rms.median()})


def see_attention(found: Found, site: str, branch: Any, inputs: Any, context: dict[str, Any], _: Any) -> None:
    """Keep what attention each position gets from queries far behind it, over what it would get were all alike."""
    weights = branch.attention_logits(inputs[0][:EXAMPLES], **context).cpu().double().softmax(dim=-1)
    places = torch.arange(weights.shape[-1])
    far = places[:, None] - places >= len(places) // 4
    alike = (far / (places[:, None] + 1)).sum(dim=0)
    got = (weights * far).sum(dim=-2).mean(dim=(0, 1))
    found["attention", "position", site].append({"attention": (got / alike)[alike > 0]})
