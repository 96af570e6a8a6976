"""How hidden vectors depend on their position: mean and deviation, outlier channels, attention sinks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.studies.figures import draw_curves
from normbench.studies.findings import Column, Findings, Told, arms_of, compare, is_arm, label_of
from normbench.studies.frame import Row, Study, Subject
from normbench.studies.writing import rows_table
from normbench.training.evaluation import to_device
from normbench.types import InnerAttention, Model

Place = tuple[str, str, str]  # what was seen, what is counted (positions or channels), and where
Found = dict[Place, list[dict[str, Tensor]]]  # of each call, or batch, by column

Batches = Annotated[int, Setting("validation batches", low=1, high=10**6)]
Outlier = Annotated[float, Setting("RMS of an outlier channel, × the median one's", low=1, high=1e6)]
Sites = Annotated[str, Setting("what the names of the norms' sites must have in them, such as state_gates")]
Sink = Annotated[float, Setting("attention that a sink gets, × the uniform share", low=1, high=1e6)]

MOST = 6  # channels or positions are named
EXAMPLES = 8  # of a batch, whose attention is looked at


class Position(Study):
    """Measure mean and standard deviation of hidden vectors at each position of a trained language model or translator.

    They are taken over windows and features, of what each norm gives (with `norm=none` of what stands there) and of the
    stream after each block, padding left out; each call of a norm in a recurrent cell is one position. Named beside
    them: outlier channels of the stream, by their root mean square over the median channel's, and, where texts have no
    padding, attention sinks: positions that get several times the uniform share, 1/t, of the attention of queries that
    stand a quarter of the context or more behind them.
    """

    trains = True

    def __init__(self, *, batches: Batches = 4, outlier: Outlier = 6.0, sink: Sink = 3.0, sites: Sites = "") -> None:
        self.batches = batches
        self.sites = sites
        self.named = {  # what is counted, its number, and above which it is named
            "outlier channels": ("channel", "channel_rms", outlier),
            "attention sinks": ("position", "attention", sink),
        }

    def check(self, subject: Subject) -> None:
        if not subject.task.causal:
            raise UsageError(f"study position is for language models, not for {subject.task.unit}: use data=pydocs")

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        found: Found = defaultdict(list)
        self.watch(subject, model, norms, found)
        batches: Found = defaultdict(list)
        with torch.no_grad():
            for batch in subject.data.eval_batches("val", self.batches):
                model(*to_device(batch, subject.device).arguments)
                for place, calls in found.items():
                    joined = {name: torch.cat([call[name] for call in calls]) for name in calls[0]}
                    batches[place].append(joined)
                found.clear()
        for (what, counted, site), parts in batches.items():
            block = {"block": block_of(site, last=len(model.anatomy().blocks)), "site": site, "what": what}
            columns = {name: mean_of([part[name] for part in parts]) for name in parts[0]}
            for number, values in enumerate(zip(*columns.values(), strict=True)):
                yield {**block, counted: number, **dict(zip(columns, values, strict=True))}

    def watch(self, subject: Subject, model: Model, norms: dict[str, nn.Module], found: Found) -> None:
        """Let a model note what passes through its norms, its stream and its attention."""
        sites = [site for site in norms if self.sites in site]
        if not sites:
            raise UsageError(f"study.sites={self.sites} is in the name of no norm's site: use some of {[*norms][-1]}")
        for site in sites:
            norms[site].register_forward_hook(partial(see_vectors, found, "norm", site), with_kwargs=True)
        for block in model.anatomy().blocks:
            see_stream = partial(see_vectors, found, "stream", block.name)
            block.module.register_forward_hook(see_stream, with_kwargs=True)
            if not subject.data.pads:
                for inner in block.attention().values():
                    inner.register_forward_hook(partial(see_attention, found, block.name))

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[Told]:
        norms = rows[(rows["what"] == "norm") & rows["std"].notna()]
        return self.compare_or_tell(norms, "std", "Standard deviation of what norms give, mean over positions")

    def tables(self, rows: pd.DataFrame) -> list[Table | Findings]:
        first = rows[rows["position"] == 0].assign(positions="the first")
        both = pd.concat([rows.assign(positions="all"), first]).dropna(subset="mean")
        vectors = compare(
            both,
            values=["mean", "std"],
            by=["what", "positions"],
            columns=self.columns,
            baseline=self.baseline,
            key="vectors",
            title="Mean and standard deviation of hidden vectors, over layers",
        )
        named = []
        for words, (counted, value, above) in self.named.items():
            if value not in rows:
                continue
            for arm in arms_of(rows):
                own = rows[is_arm(rows, arm.settings)]
                named.append({"arm": label_of(arm), "what": words, **name_largest(own, counted, value, above)})
        return [vectors, rows_table("named", "Outlier channels and attention sinks", named, 2)]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        rows = rows[rows["position"].notna()]
        rows = rows.assign(at=rows["what"] + " " + rows["site"])
        parts = {}
        for what, own in rows.groupby("what"):
            parts[what] = own[own["site"].isin(three_of(own["site"]))]
        vectors = pd.concat([parts["norm"], parts["stream"]])
        drawn = {"std": vectors, "mean": vectors}
        if "attention" in parts:
            drawn["attention"] = parts["attention"]
        columns = {**self.columns, "at": Column("")}
        found = list[Figure]()
        for name, part in drawn.items():
            found += draw_curves(name, part, x="position", y=name, panel="at", columns=columns, **self.captions[name])
        return found


def block_of(site: str, last: int) -> int:
    """Return the number of the block in which a site is; `last` for one that is in none."""
    numbered = re.match(r"block(\d+)", site)
    return int(numbered[1]) if numbered else last


def three_of(sites: pd.Series) -> list[str]:
    """Return the first, the middle and the last."""
    found = list(dict.fromkeys(sites))
    return [found[0], found[len(found) // 2], found[-1]]


def name_largest(rows: pd.DataFrame, counted: str, value: str, above: float) -> dict[str, Any]:
    """Name the channels or positions with values above a bound, the largest first, and tell the largest value."""
    large = rows[rows[value] > above].sort_values(value, ascending=False)
    words = []
    for which, own in large.groupby(counted, sort=False):
        block = own["block"].iloc[0]
        most = own[value].iloc[0]
        seeds = own["seed"].nunique()
        words.append(f"{which:.0f} (block {block}: {most:.1f}; in {seeds} seeds)")
    return {"number": len(words), "largest": rows[value].max(), "named": ", ".join(words[:MOST]) or "none"}


def mean_of(values: list[Tensor]) -> list[float]:
    """Return the mean of batches at each place that one of them has."""
    padded = nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=math.nan)
    return padded.nanmean(dim=0).tolist()


def see_vectors(found: Found, what: str, site: str, _: nn.Module, __: Any, context: dict[str, Any], x: Tensor) -> None:
    """Keep means and deviations by position, and of the stream also how far each channel sticks out."""
    x = x.cpu().double()
    mask = context.get("mask")
    real = torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask.cpu()
    if x.ndim == 2:  # one position a call
        x = x[:, None]
        real = real[:, None]
    means, deviations = [], []
    for place in range(x.shape[1]):
        vectors = x[real[:, place], place]
        means.append(vectors.mean())
        deviations.append(vectors.std(correction=0))
    found[what, "position", site].append({"mean": torch.stack(means), "std": torch.stack(deviations)})
    if what == "stream":
        rms = x[real].square().mean(dim=0).sqrt()
        found["channels", "channel", site].append({"channel_rms": rms / rms.median()})


def see_attention(found: Found, site: str, inner: InnerAttention, inputs: Any, _: Any) -> None:
    """Keep what attention each position gets from queries far behind it, over what it would get were all alike."""
    q, k, _, mask = inputs
    logits = inner.logits(q[:EXAMPLES], k[:EXAMPLES], mask)
    weights = logits.cpu().double().softmax(dim=-1)
    places = torch.arange(weights.shape[-1])
    queries = places[:, None]
    is_far = queries - places >= len(places) // 4
    uniform = (is_far / (queries + 1)).sum(dim=0)
    got = (weights * is_far).sum(dim=-2).mean(dim=(0, 1))
    found["attention", "position", site].append({"attention": (got / uniform)[uniform > 0]})
