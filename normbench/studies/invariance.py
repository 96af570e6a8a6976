"""Which changes of weights and data leave a norm's output as it is, beside the published tables."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from normbench.build import facts_of, lay_out
from normbench.contract.norms import INVARIANCES, C, Change, NormPart
from normbench.errors import UsageError
from normbench.evidence.labels import PROPER_NAMES
from normbench.hosts import Adapter
from normbench.hosts.adapters import read_adapter
from normbench.results.rows import Column, keys_of
from normbench.show.figures.figure import Figure
from normbench.show.study_tables import rows_table
from normbench.show.tables import Table
from normbench.studies.block_invariance import blocks_frame, bound_of, measure_blocks, tell_blocks
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.training.devices import seed_draws
from normbench.training.evaluation import to_device
from normbench.wording import count

Inputs = Float[Tensor, "sample ... features"]
Layer = Callable[[Tensor, Tensor], Tensor]  # (weights, inputs) to norm(Wx)

RANDOM = "random"
AS_IT_IS = "as it is"
SIX_CHANGES = list(INVARIANCES)  # their names, in the order of the published tables


def unchanged(x: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Leave data and weights as they are."""
    return x, w


CHANGES: dict[str, Change] = {AS_IT_IS: unchanged, **INVARIANCES}

# In the order of the six changes; of DyT and none it follows from the formula.
PUBLISHED = {
    "layernorm": "yes yes no yes no yes",
    "rmsnorm": "yes no no yes no yes",
    "prmsnorm": "yes no no yes no yes",
    "batchnorm": "yes no yes yes yes no",
    "weightnorm": "yes no yes no no no",
    "dyt": "no no no no no no",
    "none": "no no no no no no",
}

# Notes below the tables.
VERDICTS_NOTE = (
    "Yes: for all data, both precisions, output and gradient. Exponent: of c in |d/d(cW)|. Statistics over: "
)
DEVIATIONS_NOTE = (
    "The largest of all data and seeds. Gradient: of a loss of the output, by the weights before the change."
)
BLOCKS_NOTE = (
    "In float64, eps = 0. Removes it: the block gives the same; adds the same to it: what it adds to the stream is the "
    "same; passes it on: what it gives changes as the stream does; else it changes what it adds. The exponent is that "
    "of the stream's scale with which what the block gives grows: 0 where it is removed, 1 where it is passed on."
)
MOMENTS_NOTE = (
    "Random data in float64: mean and standard deviation of Wx and of norm(Wx), and the first element of norm(Wx)."
)


class Invariance(Study):
    """Measure what six changes of weights or data do to norm(Wx), before γ and β, and to the weights' gradient.

    An invariance holds where the relative deviation is below the square root of the precision's machine epsilon, of
    float32 for norms in models of other libraries, which may compute in it whatever they are given. Data are random, or
    what enters the first and the last norm of a model at initialisation; a sample is one of the batch, with all its
    positions. eps is 0; what the norm's own eps does, a sweep of the input's scale shows. Where scaling W changes
    nothing, larger weights have smaller gradients: d/d(cW) = 1/c · d/dW. WeightNorm, which normalizes weights, is
    measured where the norm itself does nothing.

    Then whole blocks, the first and the last at initialisation: the stream that enters is multiplied by c, or c is
    added to each feature. A block may remove that, add to it what it added before, or pass it on. So rules and schemes,
    which change more than the norm, are compared too.
    """

    # ---- what is measured

    def measure(self, subject: Subject) -> Iterator[Row]:
        for name, norm_input in inputs_of(subject).items():
            with seed_draws(subject.seed, "invariance", name):
                features = norm_input.data.shape[-1]
                w = torch.randn(features, features)
                c = torch.randn(features)
                target = torch.randn(norm_input.data.shape)
            for dtype in (torch.float32, torch.float64):
                place = {"input": name, "precision": str(dtype).removeprefix("torch.")}
                tensors = [tensor.to(subject.device, dtype) for tensor in (norm_input.data, w, c, target)]
                for row in measure_changes(subject, norm_input, *tensors):
                    yield {**place, **row}
            data = norm_input.data.to(subject.device, torch.float64)
            for row in measure_eps(subject, norm_input, data, w.to(data)):
                yield {"input": name, **row}
        yield from measure_blocks(subject)

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[str]:
        measured = rows.dropna(subset=["deviation"])
        verdicts = by_change(measured, ["norm"], "holds", verdict).set_index("norm")[SIX_CHANGES]
        known = verdicts[verdicts.index.isin(list(PUBLISHED))]
        deviating = []
        for norm, responses in known.iterrows():
            if " ".join(responses) != PUBLISHED[str(norm)]:
                deviating.append(str(norm))
        agree = f"{len(known) - len(deviating)} of {len(known)} norms respond to all six changes as published"
        apart = f"; not {', '.join(deviating)}" if deviating else ""
        seeds = count(rows["seed"].nunique(), "seed")
        sentences = [f"{agree}, on all data, in both precisions, of {seeds}{apart}."]
        sentences += tell_blocks(rows)
        for norm, responses in verdicts.iterrows():
            name = PROPER_NAMES.get(str(norm), norm)
            changes = ", ".join(responses.index[responses == "yes"]) or "none of the six"
            sentences.append(f"{name} is invariant to: {changes}.")
        return sentences

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        settings = keys_of(rows)
        measured = rows.dropna(subset=["deviation"])
        layouts = []
        for norm, over in measured[["norm", "over"]].drop_duplicates().to_numpy():
            layouts.append(f"{norm}: {over}")
        verdicts = verdicts_table(measured)
        largest = by_change(measured, [*settings, "of", "precision"], "deviation", "max")
        words = {}
        for name, column in self.columns.items():
            if name.endswith(("_in", "_out")):
                words[name] = column.words
        moments = moments_of(measured, list(words)).rename(columns=words)
        return [
            table_of("invariances", verdicts, len(settings), VERDICTS_NOTE + "; ".join(layouts)),
            table_of("blocks", blocks_frame(rows), len(settings) + 1, BLOCKS_NOTE),
            table_of("deviations", largest, len(settings) + 2, DEVIATIONS_NOTE),
            table_of("moments", moments, len(settings) + 1, MOMENTS_NOTE),
        ]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        scaled = draw_curves(
            "blocks",
            rows.assign(which=rows["block"] + " block"),
            x="stream_scale",
            y="stream_rms",
            panel="which",
            columns={**self.columns, "which": Column("")},
            title="What blocks give by the scale of the stream",
            caption="A flat line: the block removes the scale; a line of slope 1: it passes it on.",
        )
        if "eps_deviation" not in rows:
            return scaled
        of_eps = draw_curves(
            "eps",
            rows,
            x="scale",
            y="eps_deviation",
            panel="input",
            columns=self.columns,
            title="What eps does",
            caption="Relative deviation of norm(Wx) from that with eps = 0.",
        )
        return [*scaled, *of_eps]


# ---- data


class NormInput(NamedTuple):
    """What enters a norm, features last, and the norm's own axis of features.

    Attributes:
        norm: the norm, if it stands in a model of another library: its settings are that library's.
    """

    data: Inputs
    channel_dim: int
    norm: nn.Module | None = None


def inputs_of(subject: Subject) -> dict[str, NormInput]:
    """Return random data like those that enter the first norm, and what enters the first and the last, by site.

    Norms of rules, which may be others, do not count.

    Raises:
        UsageError: all are of rules.
    """
    model, norms = subject.build()
    inputs = dict[str, NormInput]()

    def see(site: str, norm: Any, given: tuple[Tensor, ...]) -> None:
        standing = bare_of_host(norm, given[0]) if model.hosted else None
        inputs[site] = NormInput(given[0].movedim(norm.channel_dim, -1), norm.channel_dim, standing)

    parts = lay_out(subject.recipe, subject.task).norm_parts
    of_rules = [site.name for site, part in parts.items() if part is None or part.rule]
    sites = [site for site in norms if site not in of_rules]
    if not sites:
        what = "rules choose the norm at every place, so that none is left of those that the study measures"
        raise UsageError(f"{what}: leave a rule out, or choose that norm as norm=NAME")
    for site in (sites[0], sites[-1]):
        norms[site].register_forward_pre_hook(partial(see, site))
    batch = to_device(subject.data.train_batch(0), subject.device)
    with torch.no_grad(), seed_draws(subject.seed, RANDOM):
        model.train()(*batch.arguments)
        first = next(iter(inputs.values()))
        random = torch.randn(first.data.shape)
    return {RANDOM: first._replace(data=random), **inputs}


def bare_of_host(norm: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy of a norm in a model of another library, with γ = 1 and β = 0, without its activation."""
    bare = copy.deepcopy(norm)
    bare._forward_pre_hooks.clear()
    adapter = read_adapter(bare, 1, x)
    for name, start in ((adapter.gain, 1 - adapter.offset), (adapter.shift, 0.0)):
        tensor = getattr(bare, name, None)
        if isinstance(tensor, Tensor):
            tensor.detach().fill_(start)
    if adapter.acts:
        bare.drop = bare.act = nn.Identity()
    return bare.train()


# ---- layers: a linear one, and what normalizes its output or its weights


def without_eps(subject: Subject) -> dict[str, float]:
    """Return the settings with which a subject's norm adds nothing to its variance."""
    return {"eps": 0.0} if "eps" in subject.tree["norm"] else {}


def with_norm(subject: Subject, given: NormInput, x: Inputs, *, eps: bool) -> Layer:
    """Return norm(Wx) with the norm in training, and with γ at 1 where it starts elsewhere. eps: leave it that."""
    channel_dim = given.channel_dim
    if given.norm is None:
        settings = {} if eps else without_eps(subject)
        if "gain0" in subject.tree["norm"]:
            settings["gain0"] = 1.0
        norm: nn.Module = NormPart(subject.tree).factory(**settings)(x.shape[-1], channel_dim=channel_dim)
    else:
        norm = copy.deepcopy(given.norm)
        if not eps:
            Adapter(channel_dim).leave_out_eps(norm)
    norm.to(x).requires_grad_(False)
    return lambda w, x: norm((x @ w.T).movedim(-1, channel_dim)).movedim(channel_dim, -1)


def weight_normed(w: Tensor) -> Layer:
    """Return a linear layer under WeightNorm: whatever the lengths of its weight vectors, it uses those in w."""
    g = w.norm(dim=1, keepdim=True)
    return lambda w, x: x @ (g * w / w.norm(dim=1, keepdim=True)).T


# ---- measurements


def measure_changes(
    subject: Subject, given: NormInput, x: Inputs, w: Tensor, c: Tensor, target: Inputs
) -> Iterator[Row]:
    """Yield what each change does with the norm, and where that does nothing with WeightNorm."""
    w = w / len(w) ** 0.5
    bound = bound_of(x.dtype if given.norm is None else torch.float32)
    layer = with_norm(subject, given, x, eps=False)
    norm = str(subject.settings["norm"])
    facts = facts_of(subject.recipe["norm"], subject.tree["model"].get("width"))
    for row in measure_responses(layer, w, x, c, target, bound):
        yield {**row, "over": facts.statistics_over, **beside_published(norm, row)}
    does_nothing = torch.equal(layer(w, x), x @ w.T)
    if does_nothing:
        for row in measure_responses(weight_normed(w), w, x, c, target, bound):
            yield {**row, "norm": "weightnorm", "over": "a weight vector", **beside_published("weightnorm", row)}


def beside_published(norm: str, row: Row) -> Row:
    """Return 1 where a norm responds to a change otherwise than published, else 0; nothing where nothing is."""
    if norm not in PUBLISHED or row["change"] not in SIX_CHANGES:
        return {}
    words = PUBLISHED[norm].split()
    expected = words[SIX_CHANGES.index(row["change"])] == "yes"
    return {"departs": int(row["holds"] != expected)}


def measure_eps(subject: Subject, given: NormInput, x: Inputs, w: Tensor) -> Iterator[Row]:
    """Yield how far the norm's own eps moves its output, by the scale of the input."""
    if given.norm is None:
        has_eps = bool(without_eps(subject))
    else:
        has_eps = bool(Adapter(given.channel_dim).read_eps(given.norm))
    if not has_eps:
        return
    w = w / len(w) ** 0.5
    with_eps = with_norm(subject, given, x, eps=True)
    exact = with_norm(subject, given, x, eps=False)
    rms = (x @ w.T).square().mean().sqrt()
    x = x / rms
    for scale in np.logspace(-4, 4, 17).tolist():
        yield {"scale": scale, "eps_deviation": deviation(with_eps(w, scale * x), exact(w, x))}


def measure_responses(layer: Layer, w: Tensor, x: Inputs, c: Tensor, target: Inputs, bound: float) -> Iterator[Row]:
    """Yield what each change does to the output, and to the gradient of a loss by the weights before the change.

    Where a change leaves the output y as it is, whatever the weights, it leaves that gradient too. The loss is the sum
    of y·target + y²/2, whose gradient by y depends on y.

    Args:
        layer: norm(Wx), as a function of W and x.
        w: the weights W before the change.
        x: the data before the change.
        c: the vector that a change adds.
        target: random numbers, one for each output.
        bound: the relative deviation below which something stays as it is.
    """
    w = w.detach().requires_grad_()
    before = dict[str, Tensor]()
    for change, apply in CHANGES.items():
        new_x, new_w = apply(x, w, c)
        norm_input = new_x @ new_w.T
        y = layer(new_w, new_x)
        loss = (y * target + y.square() / 2).sum()
        (gradient,) = torch.autograd.grad(loss, w)
        after = {"output": y.detach(), "gradient": gradient}
        if not before:
            before = after
        numbers = {
            "gradient": gradient.norm() / before["gradient"].norm(),
            "first_out": y.detach().flatten()[0],
            "mean_in": norm_input.mean(),
            "std_in": norm_input.std(),
            "mean_out": y.mean(),
            "std_out": y.std(),
        }
        row: Row = {"change": change}
        for name, value in numbers.items():
            row[name] = float(value.detach())
        for of, new in after.items():
            off = deviation(new, before[of])
            yield {**row, "of": of, "deviation": off, "holds": off < bound}


def deviation(x: Tensor, reference: Tensor) -> float:
    """Return |x − reference| / |reference|."""
    return float((x - reference).norm() / reference.norm())


# ---- tables


def table_of(key: str, frame: pd.DataFrame, heads: int, note: str) -> Table:
    """Return a frame as a table; heads: how many of its first columns are words."""
    return rows_table(key, key.capitalize(), frame.to_dict("records"), heads, note)


def by_change(rows: pd.DataFrame, by: list[str], value: str, how: Any) -> pd.DataFrame:
    """Return a value with a column for each of the six changes. how: as `agg` takes it, makes one value of several."""
    grouped = rows.groupby([*by, "change"], dropna=False, sort=False)[value]
    values = grouped.agg(how).unstack(sort=False)
    return values[SIX_CHANGES].reset_index()


def verdict(holds: pd.Series) -> str:
    """Return yes where all hold, no where none does."""
    if holds.all():
        return "yes"
    return "mixed" if holds.any() else "no"


def verdicts_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return to which changes each arm is invariant, how its gradient grows, and whether that is as published."""
    settings = keys_of(rows)
    table = by_change(rows, settings, "holds", verdict)
    growth = by_change(rows, settings, "gradient", "mean")["W × c"]  # of d/dW, which is c · d/d(cW)
    table["exponent"] = np.log(growth) / np.log(C) - 1
    marks = table[SIX_CHANGES].agg(" ".join, axis=1)
    published = table["norm"].map(PUBLISHED).fillna("–")
    table["published"] = published.where(published != marks, "the same")
    return table


def moments_of(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return the named moments of random data in float64, of the first seed, for changes of all weights or data."""
    is_first = rows["seed"] == rows["seed"].min()
    is_random = (rows["input"] == RANDOM) & (rows["precision"] == "float64")
    is_output = rows["of"] == "output"
    is_of_all = ~rows["change"].str.startswith("one")
    shown = rows[is_first & is_random & is_output & is_of_all]
    return shown[[*keys_of(rows), "change", *names]]
