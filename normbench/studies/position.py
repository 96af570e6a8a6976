"""How hidden vectors depend on their position: mean and deviation, outlier channels, attention sinks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.evidence.labels import label_of
from normbench.results.rows import Column, ResultTable, Stated, arms_of, compare, is_arm
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.show.study_tables import rows_table
from normbench.show.tables import Table
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.training.evaluation import to_device
from normbench.types import Block, InnerAttention, Model
from normbench.wording import fixed, whole

Batches = Annotated[int, Setting("validation batches", low=1, high=10**6)]
Outlier = Annotated[float, Setting("RMS of an outlier channel, × the median one's", low=1, high=1e6)]
Sites = Annotated[str, Setting("what the names of the norms' sites must have in them, such as state_gates")]
Sink = Annotated[float, Setting("attention that a sink gets, × the uniform share", low=1, high=1e6)]

MOST = 6  # channels or positions that are named at most
EXAMPLES = 8  # of a batch whose attention is looked at


class Place(NamedTuple):
    """Where numbers are from.

    Attributes:
        what: norm, stream, channels or attention.
        counted: what there is a number for, each position or each channel.
    """

    what: str
    counted: str
    site: str


Columns = dict[str, Tensor]  # by name, a number for each position or channel
Found = dict[Place, list[Columns]]  # of each call, or batch


class Peak(NamedTuple):
    """What is named in a table: the positions or channels (`counted`) whose `value` is above a bound."""

    counted: str
    value: str
    above: float


class Position(Study):
    """Measure mean and standard deviation of hidden vectors at each position of a trained language model or translator.

    They are taken over windows and features, of what each norm gives (with `norm=none` of what stands there) and of the
    stream after each block (of several streams: over the features of all), padding left out; each call of a norm in a
    recurrent cell is one position. Named beside them: outlier channels of the stream, by their root mean square over
    the median channel's, and, where texts have no padding, attention sinks: positions that get several times the
    uniform share, 1/t, of the attention of queries that come at least a quarter of the context later.
    """

    trains = True

    def __init__(self, *, batches: Batches = 4, outlier: Outlier = 6.0, sink: Sink = 3.0, sites: Sites = "") -> None:
        self.batches = batches
        self.sites = sites
        self.peaks = {
            "outlier channels": Peak("channel", "channel_rms", outlier),
            "attention sinks": Peak("position", "attention", sink),
        }

    def check(self, subject: Subject) -> None:
        if not subject.task.causal:
            raise UsageError(f"study position is for language models, not for {subject.task.unit}: use data=pydocs")

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, norms = subject.build()
        calls: Found = defaultdict(list)  # for one batch
        batches: Found = defaultdict(list)
        self.watch(subject, model, norms, calls)
        with torch.no_grad():
            for batch in subject.data.eval_batches("val", self.batches):
                model(*to_device(batch, subject.device).arguments)
                for place, parts in calls.items():
                    batches[place].append(join(parts))
                calls.clear()
        last = len(model.anatomy().blocks)
        for place, parts in batches.items():
            where = {"block": block_of(place.site, last), "site": place.site, "what": place.what}
            for number, values in enumerate(mean_rows(parts)):
                yield {**where, place.counted: number, **values}

    def watch(self, subject: Subject, model: Model, norms: dict[str, nn.Module], found: Found) -> None:
        """Let a model note what passes through its norms, its stream and its attention."""
        sites = [site for site in norms if self.sites in site]
        if not sites:
            *_, last = norms
            raise UsageError(f"study.sites={self.sites} is in the name of no norm's site: use some of {last}")
        for site in sites:
            see = partial(see_norm, found, site, getattr(subject.task, "context", None))
            norms[site].register_forward_hook(see, with_kwargs=True)
        for block in model.anatomy().blocks:
            block.module.register_forward_hook(partial(see_stream, found, block), with_kwargs=True)
            if not subject.data.pads:
                for inner in block.attention().values():
                    inner.register_forward_hook(partial(see_attention, found, block.name))

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[Stated]:
        norms = rows[(rows["what"] == "norm") & rows["std"].notna()]
        return self.compare_or_tell(norms, "std", "mean standard deviation of what norms give")

    def tables(self, rows: pd.DataFrame) -> list[Table | ResultTable]:
        at_first = rows[rows["position"] == 0].assign(positions="the first")
        at_all_and_first = pd.concat([rows.assign(positions="all"), at_first]).dropna(subset="mean")
        vectors = compare(
            at_all_and_first,
            values=["mean", "std"],
            by=["what", "positions"],
            columns=self.columns,
            baseline=self.baseline,
            key="vectors",
            title="Mean and standard deviation of hidden vectors, over layers",
        )
        named = []
        for words, peak in self.peaks.items():
            if peak.value not in rows:
                continue
            for arm in arms_of(rows):
                rows_of_arm = rows[is_arm(rows, arm.settings)]
                largest = name_largest(rows_of_arm, peak.counted, peak.value, peak.above)
                named.append({"arm": label_of(arm), "what": words, **largest})
        return [vectors, rows_table("named", "Outlier channels and attention sinks", named, 2)]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        of_positions = rows[rows["position"].notna()]
        named = of_positions.assign(at=of_positions["what"] + " " + of_positions["site"])
        rows_by_what = {}
        for what, rows_of_what in named.groupby("what"):
            rows_by_what[what] = rows_of_what[rows_of_what["site"].isin(three_of(rows_of_what["site"]))]
        vectors = pd.concat([rows_by_what["norm"], rows_by_what["stream"]])
        rows_by_figure = {"std": vectors, "mean": vectors}
        if "attention" in rows_by_what:
            rows_by_figure["attention"] = rows_by_what["attention"]
        columns = {**self.columns, "at": Column("")}
        drawings = list[Figure]()
        for name, rows_of_figure in rows_by_figure.items():
            drawings += draw_curves(
                name, rows_of_figure, x="position", y=name, panel="at", columns=columns, **self.captions[name]
            )
        return drawings


# ---- what is seen of a call


def see_norm(
    found: Found, site: str, time: int | None, norm: nn.Module, given: Any, context: dict[str, Any], x: Tensor
) -> None:
    """Keep what `see_vectors` keeps of what a norm gives; heads may come before positions in another library's model.

    Args:
        found: what was kept so far.
        site: of the norm.
        time: positions of a text.
        norm, given, context, x: of the call, as torch gives them to a hook.
    """
    has_heads_first = x.ndim == 4 and x.shape[1] != time and x.shape[2] == time
    see_vectors(found, "norm", site, norm, given, context, x.transpose(1, 2) if has_heads_first else x)


def see_vectors(found: Found, what: str, site: str, _: nn.Module, __: Any, context: dict[str, Any], x: Tensor) -> None:
    """Keep means and deviations by position, and of the stream also how far each channel sticks out.

    A channel sticks out by its root mean square over examples and positions, divided by that of the median channel.
    """
    x = x.cpu().double()
    mask = context.get("mask")
    real = torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask.cpu()
    if x.ndim == 2:  # one position a call
        x = x[:, None]
        real = real[:, None]
    means, deviations = [], []
    for position in range(x.shape[1]):
        vectors = x[:, position][real[:, position]]  # those of all heads, where there are several
        means.append(vectors.mean())
        deviations.append(vectors.std(correction=0))
    columns = {"mean": torch.stack(means), "std": torch.stack(deviations)}
    found[Place(what, "position", site)].append(columns)
    if what == "stream":
        rms = x[real].square().mean(dim=0).sqrt()
        found[Place("channels", "channel", site)].append({"channel_rms": rms / rms.median()})


def see_stream(found: Found, block: Block, module: nn.Module, given: Any, context: dict[str, Any], x: Tensor) -> None:
    """Keep the same of the stream that leaves a block, of several streams as one."""
    see_vectors(found, "stream", block.name, module, given, context, block.join_streams(x))


def see_attention(found: Found, site: str, inner: InnerAttention, inputs: Any, _: Any) -> None:
    """Keep what attention each position gets from queries far behind it, over what it would get were all alike.

    Far is a quarter of the context or more. A causal query at position t, from 0, has 1/(t + 1) for each that it sees.
    """
    q, k, _, mask = inputs
    logits = inner.logits(q[:EXAMPLES], k[:EXAMPLES], mask)
    weights = logits.cpu().double().softmax(dim=-1)  # batch, heads, queries, keys
    keys = torch.arange(weights.shape[-1])
    queries = keys[:, None]
    is_far = queries - keys >= len(keys) // 4
    uniform = (is_far / (queries + 1)).sum(dim=0)
    attention = (weights * is_far).sum(dim=-2).mean(dim=(0, 1))
    is_seen_from_afar = uniform > 0
    columns = {"attention": (attention / uniform)[is_seen_from_afar]}
    found[Place("attention", "position", site)].append(columns)


# ---- from calls to batches, and from batches to rows


def join(calls: list[Columns]) -> Columns:
    """Return the numbers of several calls one after the other: a recurrent cell is called for each position."""
    joined = {}
    for name in calls[0]:
        joined[name] = torch.cat([call[name] for call in calls])
    return joined


def mean_rows(batches: list[Columns]) -> Iterator[Row]:
    """Yield the means over batches, by name, of each position or channel."""
    means = {}
    for name in batches[0]:
        means[name] = mean_of([batch[name] for batch in batches])
    for values in zip(*means.values(), strict=True):
        yield dict(zip(means, values, strict=True))


def mean_of(values: list[Tensor]) -> list[float]:
    """Return the mean at each position or channel, over the batches that reach it."""
    padded = nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=math.nan)
    return padded.nanmean(dim=0).tolist()


def block_of(site: str, last: int) -> int:
    """Return the number of the block in which a site is; `last` for one that is in none."""
    numbered = re.match(r"block(\d+)", site)
    return int(numbered[1]) if numbered else last


# ---- what is shown


def three_of(sites: pd.Series) -> list[str]:
    """Return the first, the middle and the last site."""
    distinct = list(dict.fromkeys(sites))
    return [distinct[0], distinct[len(distinct) // 2], distinct[-1]]


def name_largest(rows: pd.DataFrame, counted: str, value: str, above: float) -> dict[str, Any]:
    """Name the channels or positions with values above a bound, the largest first, and tell the largest value."""
    large = rows[rows[value] > above].sort_values(value, ascending=False)
    words = []
    for index, peak_rows in large.groupby(counted, sort=False):
        block = peak_rows["block"].iloc[0]
        most = peak_rows[value].iloc[0]
        seeds = peak_rows["seed"].nunique()
        words.append(f"{whole(index)} (block {block}: {fixed(most, 1)}; in {seeds} seeds)")
    named = ", ".join(words[:MOST]) or "none"
    return {"number": len(words), "largest": rows[value].max(), "named": named}
