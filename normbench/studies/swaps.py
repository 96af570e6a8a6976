"""What a swap of norms does to a given model at once: its loss with γ and β kept, fresh, fitted, or all of it exact."""

from __future__ import annotations

import copy
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import UNSET
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from normbench import build
from normbench.config.recipe import Recipe
from normbench.config.schema import SWAP_KEYS
from normbench.errors import UsageError
from normbench.hosts.exact import Exact, to_rms
from normbench.hosts.hosted import Hosted, Place
from normbench.hosts.saving import NormNote, SwapNote, check_out, describe_norm, write_folder
from normbench.norms import RMSNorm
from normbench.norms.fitting import fit_norm
from normbench.record.console import Stages, readable
from normbench.settings import key_of
from normbench.studies.given import Given, caller_of, read_given, root_of
from normbench.training.evaluation import evaluate
from normbench.training.recalibration import average
from normbench.types import Batch, Model, Norm
from normbench.wording import compact, fixed, short

WAYS: dict[str, str] = {
    "weights": "γ and β kept",
    "nothing": "fresh",
    "fit": "fitted",
    "exact": "exact",
}
WIDEST = 1000  # letters of a table that is measured
LONGEST = 26  # letters of a path in a narrow table
MOST = 3  # layers that a sentence names


@dataclass
class Swapped:
    """A given model with other norms.

    Attributes:
        model: with them.
        metrics: over the validation data.
        left: the share of the variance of each old norm's output that the new one leaves, by site, where it is fitted.
        exact: how it was made, where that changes nothing.
    """

    model: Model
    metrics: dict[str, float]
    left: Mapping[str, float] | None = None
    exact: Exact | None = None


def swap(words: Sequence[str], out: Path | None, trust: bool = False) -> int:
    """Print what a swap does at once, write the swapped model if that is asked for, and return the exit status.

    Args:
        words: the model or run, `keep=`, and those of `normbench train`.
        out: the folder of the swapped model.
        trust: whether a run may have classes that are neither normbench's nor torch's.

    Raises:
        UsageError: any mistake of the user's.
    """
    if out is not None:
        check_out(out)
    keep, other_words = take_keep(words)
    with Stages() as stages:
        stages.begin("reading the model and the data")
        given = read_given(other_words, trust)
        if out is not None and not isinstance(given.own, Hosted):
            why = "--out writes models of other libraries, and this run has one of normbench's"
            raise UsageError(f"{why}: leave out --out")
        trial = Trial(given, stages)
        ways = trial.ways()
    if keep not in ways:
        raise UsageError(f"keep={keep} is not for this swap ({trial.why_not_exact}): use keep=weights, nothing or fit")
    print_trial(trial, ways)
    if out is not None:
        trial.write(out, ways[keep], shlex.join(["normbench", "swap", *words]))
        print(out)
    return 0


def take_keep(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return what `keep=` says, and the other words."""
    keep = "weights"
    other_words = []
    for word in words:
        if key_of(word) == "keep":
            keep = SWAP_KEYS["keep"].check("keep", word.partition("=")[2])
        else:
            other_words.append(word)
    return keep, other_words


class Trial:
    """A model as it is, and with other norms.

    Attributes:
        given: both of them.
        stages: says which of the models is being judged.
        why_not_exact: why no swap is exact, where none is.
    """

    def __init__(self, given: Given, stages: Stages) -> None:
        self.given = given
        self.stages = stages
        self.own = given.own
        self.batch = given.batch
        self.before = self.judge(given.own, "as it is")
        self.why_not_exact = ""

    def judge(self, model: Model, way: str) -> dict[str, float]:
        """Return the metrics of a model, whose norms are so, over the validation data."""
        self.stages.begin(f"judging the model: {way}")
        given = self.given
        batches = given.data.eval_batches("val", given.tree["trainer"]["eval_batches"])
        return evaluate(model, batches, given.data.task, given.device)

    def ways(self) -> dict[str, Swapped]:
        """Return the model with other norms, by each way in which they may start."""
        kept = self.given.kept
        places = [place for place in self.given.places if not place.stays]
        sites = [place.site.name for place in places]
        if not sites:
            raise UsageError("swap changes nothing, as all norms stay as they are: choose another norm")
        fresh = copy.deepcopy(kept)
        start_anew(fresh, places, self.given.recipe)
        own_norms = self.own.anatomy().norms
        without_statistics = [site for site in sites if not has_statistics(own_norms[site])]
        self.calibrate(kept, without_statistics)
        self.calibrate(fresh, sites)
        fitted = copy.deepcopy(kept)
        left = fit_all(self.own, fitted, sites, self.batch)
        swapped = {
            "weights": Swapped(kept, self.judge(kept, WAYS["weights"])),
            "nothing": Swapped(fresh, self.judge(fresh, WAYS["nothing"])),
            "fit": Swapped(fitted, self.judge(fitted, WAYS["fit"]), left),
        }
        exact = self.exactly(kept, places)
        if exact is not None:
            model = put_in_place(kept, exact.model)
            swapped["exact"] = Swapped(model, self.judge(model, WAYS["exact"]), exact=exact)
        return swapped

    def calibrate(self, model: Model, sites: Sequence[str]) -> None:
        """Set running statistics of norms to those of the batch."""
        norms = model.anatomy().norms
        having = [norms[site] for site in sites if has_statistics(norms[site])]
        if having:
            average(model, having, [self.batch])

    def exactly(self, kept: Model, swapped: Sequence[Place]) -> Exact | None:
        """Return the model with RMSNorms in place of LayerNorms where that changes nothing; None where it does."""
        norms = kept.anatomy().norms
        kinds = {type(norms[place.site.name]) for place in swapped}
        if kinds != {RMSNorm}:
            self.why_not_exact = "only norm=rmsnorm is, in place of LayerNorms"
            return None
        if self.own.recurrent:
            self.why_not_exact = "the norms of a recurrent cell read no stream to which layers add"
            return None
        root = copy.deepcopy(root_of(self.own)).cpu()
        untied = root.untie() if isinstance(root, Model) else []
        paths = {place.path for place in swapped}
        try:
            exact = to_rms(root, caller_of(self.own, self.batch.map(Tensor.cpu)), paths)
        except UsageError as error:
            self.why_not_exact = str(error)
            return None
        missing = [place.path for place in swapped if place.path not in exact.norms]
        if missing:
            path = missing[0]
            reason = exact.refused.get(path, "it is no LayerNorm")
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            self.why_not_exact = f"{path}{more}: {reason}"
            return None
        for place in swapped:
            norm: Any = exact.norms[place.path]
            norm.stands_at = place.site
        exact.untied += untied
        exact.model.to(self.given.device)
        return exact

    def write(self, out: Path, swapped: Swapped, command: str) -> None:
        """Write a swapped model of another library, with a note of its norms.

        Raises:
            UsageError: a norm is not one of normbench's.
        """
        model = swapped.model
        assert isinstance(model, Hosted)
        norms = model.anatomy().norms
        tree = self.given.tree
        options = {**model.decided, **tree["model"][model.library.options]}
        if hasattr(model.host, "save_pretrained"):  # whose own config.json says its sizes
            options = {}
        places = [place for place in model.places if not place.stays]  # of a run those too that the swap leaves
        note = SwapNote(
            library=model.library.word,
            name=tree["model"]["name"],
            options=options,
            command=command,
            norms=[self.describe(place, norms[place.site.name]) for place in places],
            biases=swapped.exact.biases if swapped.exact else [],
            untied=swapped.exact.untied if swapped.exact else [],
            classes=list(self.given.classes) if self.given.classes else UNSET,
        )
        tokenizer = tree["data"].get("tokenizer")
        write_folder(out, model.host, note, Path(os.path.expanduser(tokenizer)) if tokenizer else None)

    def describe(self, place: Place, norm: nn.Module) -> NormNote:
        """Return what a note says of a norm."""
        part = self.given.made.norm_parts[place.site]
        assert part is not None
        return describe_norm(place.path, norm, place.features, part.settings, place.behind)


def put_in_place(model: Model, root: nn.Module) -> Model:
    """Return a copy of a model with another root (see `root_of`); a model of ours is its own root."""
    if not isinstance(model, Hosted):
        assert isinstance(root, Model)
        return root
    copied = copy.deepcopy(model)
    copied.host = root
    return copied


def has_statistics(norm: nn.Module) -> bool:
    """Tell whether a norm has running statistics."""
    return isinstance(getattr(norm, "running_mean", None), Tensor)


@torch.no_grad()
def start_anew(model: Model, places: Sequence[Place], recipe: Recipe) -> None:
    """Let the norms at some places start as they do where nothing stood before them."""
    make = build.NormsBySite(build.NormsByPlace(recipe), recipe.tree["seed"])
    norms = model.anatomy().norms
    for place in places:
        norm: Any = norms[place.site.name]
        new = make(place.features, channel_dim=norm.channel_dim, site=place.site)
        norm.load_state_dict(new.state_dict(), strict=False)


def fit_all(own: Model, fitted: Model, sites: Sequence[str], batch: Batch) -> dict[str, float]:
    """Fit norms to what the norms before them make of a batch, and return the share of variance that is left, by site.

    Each is fitted to what entered the old one in the model as it was, at positions that are real: in its first call, or
    in all calls of a recurrent model, which has one for each time step.
    """
    old = own.anatomy().norms
    entered: dict[str, list[Batch]] = defaultdict(list)
    by_head = set[str]()  # those that stand behind a map
    if isinstance(own, Hosted):
        by_head = {place.site.name for place in own.places if place.behind is not None}

    def see(site: str, norm: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, Any]) -> None:
        if own.recurrent or not entered[site]:
            x = given[0]
            mask = given[1] if len(given) > 1 else named.get("mask")
            if isinstance(own, Hosted):  # whose own norms take no mask
                mask = own.mask_for(x, site in by_head)
            entered[site].append(Batch(x, x, mask))

    hooks = [old[site].register_forward_pre_hook(partial(see, site), with_kwargs=True) for site in sites]
    with torch.no_grad():
        own(*batch.arguments)
    for hook in hooks:
        hook.remove()
    new = fitted.anatomy().norms
    part([new[site] for site in sites])
    return {site: fit_one(old[site], new[site], entered.pop(site)) for site in sites}


def part(norms: Iterable[nn.Module]) -> None:
    """Give each norm parameters of its own: one γ for several cannot fit what each of them was."""
    seen = set[nn.Parameter]()
    for norm in norms:
        for name, parameter in list(norm.named_parameters(recurse=False)):
            if parameter in seen:
                own = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                setattr(norm, name, own)
            seen.add(parameter)


@torch.no_grad()
def fit_one(old: nn.Module, new: nn.Module, entered: Sequence[Batch]) -> float:
    """Fit a norm to what another makes of what entered it; return the share of variance that is left."""
    x = torch.cat([call.inputs for call in entered])
    mask = None
    if entered[0].mask is not None:
        masks = [call.mask for call in entered if call.mask is not None]
        mask = torch.cat(masks)
    call = Batch(x, x, mask)
    if has_statistics(new):
        average(new, [new], [call])
    with without_activation(old), without_activation(new):
        y = old(*call.arguments) if isinstance(old, Norm) else old(x)
        return fit_norm(new, x, y, mask)


@contextmanager
def without_activation(norm: Any) -> Iterator[None]:
    """Let a norm that ends in an activation, as timm's BatchNormAct2d does, leave it out inside."""
    left_out = dict[str, nn.Module]()
    for name in ("drop", "act"):
        module = getattr(norm, name, None)
        if isinstance(module, nn.Module):
            left_out[name] = module
            setattr(norm, name, nn.Identity())
    try:
        yield
    finally:
        for name, module in left_out.items():
            setattr(norm, name, module)


# ---- what is printed


def print_trial(trial: Trial, ways: Mapping[str, Swapped]) -> None:
    """Print which norm stands where, and what the swap does to the loss."""
    screen = Console(highlight=False)
    rows = list(rows_of_norms(trial, ways))
    table = table_of_norms(rows, ("place", "path", "becomes", "ε", "fit leaves"))
    without_limit = screen.options.update(max_width=WIDEST)
    if screen.measure(table, options=without_limit).maximum > screen.width:  # a sentence says the classes
        table = table_of_norms(rows, ("place", "norm", "is now", "ε", "fit leaves"))
    screen.print(table)
    screen.print(table_of_metrics(trial, ways))
    classes = Counter(row["becomes"] for row in rows)
    changes = ", ".join(f"{number} {becomes}" for becomes, number in classes.items())
    for sentence in (changes, *ways["weights"].model.notes(), *about_exactness(trial, ways)):
        screen.print(Text(f"• {sentence}"), soft_wrap=True)


def rows_of_norms(trial: Trial, ways: Mapping[str, Swapped]) -> Iterator[dict[str, str]]:
    """Yield what stands at each place, what it is now, and what a fit to the old one leaves, by column."""
    left = ways["fit"].left or {}
    norms = ways["weights"].model.anatomy().norms
    for place in trial.given.places:
        site = place.site.name
        norm: Any = norms[site]
        now = "as it is" if place.stays else type(norm).__name__
        eps = getattr(norm, "eps", None)
        yield {
            "place": site,
            "path": place.path,
            "norm": shorten_path(place.path),
            "becomes": f"{place.kind} as it is" if place.stays else f"{place.kind} → {now}",
            "is now": now,
            "ε": "" if eps is None else short(eps),
            "fit leaves": f"{fixed(100 * left[site], 2)} %" if site in left else "",
        }


def shorten_path(path: str) -> str:
    """Return a path without its first parts, if it is long: the block, which they name, is a part of the place."""
    if len(path) <= LONGEST:
        return path
    parts = path.split(".")
    while len(".".join(parts)) >= LONGEST and parts[1:]:
        parts = parts[1:]
    return f"…{'.'.join(parts)}"


def table_of_norms(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> Table:
    """Return a table with some columns of rows."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(Text(name), overflow="fold", justify="right" if name == "fit leaves" else "left")
    for row in rows:
        cells = [Text(row[name]) for name in columns]
        table.add_row(*cells)
    return table


def table_of_metrics(trial: Trial, ways: Mapping[str, Swapped]) -> Table:
    """Return a table of the metrics before the swap and after it, by each way in which norms may start."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(f"over {trial.given.data_name}"))
    for name in trial.before:
        table.add_column(Text(f"{name}/val"), justify="right")
    table.add_column(Text("change of loss"), justify="right")
    table.add_row("as they are", *map(readable, trial.before.values()), "")
    for way, swapped in ways.items():
        change = swapped.metrics["loss"] - trial.before["loss"]
        numbers = [readable(swapped.metrics[name]) for name in trial.before]
        table.add_row(WAYS[way], *numbers, compact(change, 2, sign=True))
    return table


def about_exactness(trial: Trial, ways: Mapping[str, Swapped]) -> Iterator[str]:
    """Yield what is to be said of an exact swap, or of why there is none."""
    if "exact" not in ways:
        yield f"no exact swap: {trial.why_not_exact}"
        return
    exact = ways["exact"].exact
    assert exact is not None
    yield f"exact: in float64 no output changes by more than {exact.change:.0e} of the largest"
    if exact.untied:
        yield f"exact: {', '.join(exact.untied)} is no longer the same as what it shared its weight with"
    if exact.biases:
        names = ", ".join(exact.biases[:MOST])
        if exact.biases[MOST:]:
            names += f" and {len(exact.biases) - MOST} more"
        what = "have biases now, for the β of the norms before them"
        if len(exact.biases) == 1:
            what = "has a bias now, for the β of the norm before it"
        yield f"exact: {names} {what}"
