"""What a swap of norms does to a given model at once: its loss with γ and β kept, fresh, fitted, or all of it exact."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from normbench import build
from normbench.build import Assembled
from normbench.config import compose
from normbench.config.compose import in_hydra_grammar
from normbench.config.groups import section_of
from normbench.config.rules import RULES
from normbench.config.schema import SWAP_KEYS
from normbench.errors import UsageError
from normbench.hosts.building import LIBRARIES
from normbench.hosts.exact import Exact, to_rms
from normbench.hosts.hosted import Hosted, Place
from normbench.hosts.saving import check_out, describe_norm, write_folder
from normbench.hosts.weights import PRETRAINED, find_saved
from normbench.norms import RMSNorm
from normbench.norms.fitting import fit_norm
from normbench.record.console import readable
from normbench.runs.plan import Run, prepare
from normbench.settings import Tree, key_of
from normbench.training.evaluation import evaluate, to_device
from normbench.training.recalibration import average
from normbench.types import Batch

WAYS: dict[str, str] = {
    "weights": "γ and β kept",
    "nothing": "fresh",
    "fit": "fitted",
    "exact": "exact",
}
MODELS = "a folder, hf:NAME, timm:NAME or torchvision:NAME"
EXAMPLES = 2  # on which a model is seen through


@dataclass
class Swapped:
    """A given model with other norms.

    Attributes:
        model: with them.
        metrics: over the validation data.
        left: the share of the variance of each old norm's output that the new one leaves, by site, where it is fitted.
        exact: how it was made, where that changes nothing.
    """

    model: Hosted
    metrics: dict[str, float]
    left: Mapping[str, float] | None = None
    exact: Exact | None = None


def swap(words: Sequence[str], out: Path | None) -> int:
    """Print what a swap does at once, write the swapped model if that is asked for, and return the exit status.

    Args:
        words: the model, `keep=`, and those of `normbench train`.
        out: the folder of the swapped model.

    Raises:
        UsageError: any mistake of the user's.
    """
    if out is not None:
        check_out(out)
    keep, others = take_keep(words)
    trial = Trial(prepare(compose.read(model_words(others))))
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
    others = []
    for word in words:
        if key_of(word) == "keep":
            keep = SWAP_KEYS["keep"].check("keep", word.partition("=")[2])
        else:
            others.append(word)
    return keep, others


def model_words(words: Sequence[str]) -> list[str]:
    """Return words of `normbench train` for those of `normbench swap`, one of which names a model.

    Raises:
        UsageError: none does, or no norm is said.
    """
    named = [word for word in words if "=" not in word]
    if len(named) != 1:
        given = " and ".join(named) or "no model"
        raise UsageError(f"swap is given {given}, and takes one: {MODELS}")
    others = [word for word in words if "=" in word]
    given_keys = {key_of(word) for word in others}
    if not any(key.startswith(("norm@", "norm._target_")) or key == "norm" for key in given_keys):
        raise UsageError("swap is given no norm: say which takes the place of the model's own, such as norm=rmsnorm")
    own = words_of_model(named[0])
    if given_keys.isdisjoint(["norm", "norm._target_"]):
        own.append("norm=own")  # rules name some places alone
    return [*(word for word in own if key_of(word) not in given_keys), *others]


def words_of_model(word: str) -> list[str]:
    """Return words of `normbench train` for a model: a folder, or a library and a name.

    Raises:
        UsageError: there is no such folder, or it does not say what its model is.
    """
    library, colon, name = word.partition(":")
    if colon and library in LIBRARIES:
        return [f"model={library}", f"model.name={name}", f"model.weights={PRETRAINED}"]
    if not Path(os.path.expanduser(word)).is_dir():
        raise UsageError(f"{word} is not a model: give {MODELS}")
    saved = find_saved(word)
    about = saved.about
    if "model_type" in about:
        found = ["model=hf", f"model.name={about['model_type']}", f"model.weights={word}"]
        if Path(os.path.expanduser(word), "tokenizer.json").exists():
            found += ["data.level=hf", f"data.tokenizer={word}"]
            if "vocab_size" in about:  # which is often more than the tokenizer has
                found.append(f"data.vocabulary_size={about['vocab_size']}")
        return found
    library = about.get("library", "timm")
    if "architecture" in about and library in LIBRARIES:
        found = [f"model={library}", f"model.name={about['architecture']}", f"model.weights={word}"]
        given = about.get("model_args")
        options = given if isinstance(given, Mapping) else {}
        return [*found, *(f"model.kwargs.{key}={in_hydra_grammar(value)}" for key, value in options.items())]
    raise UsageError(f"{word} does not say what its model is: give timm:NAME with model.weights={word}")


class Trial:
    """A given model as it is, and with other norms.

    Attributes:
        run: what is asked for.
        why_not_exact: why no swap is exact, where none is.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tree = run.config.tree
        self.device = run.device
        self.task = run.data.task
        torch.set_num_threads(run.threads)
        self.batch = to_device(run.data.train_batch(0), self.device)
        self.own = self.start(self.make(own_tree(self.tree)))
        self.before = self.judge(self.own)
        self.made = self.make(self.tree)
        self.why_not_exact = ""

    def make(self, tree: Tree) -> Assembled:
        """Make the model that a configuration asks for, as a run starts with it."""
        return build.start_model(tree, self.task, self.run.config.closed.seed)

    def start(self, made: Assembled) -> Hosted:
        """Return a model on its device, in evaluation mode.

        Raises:
            UsageError: it is not one of another library.
        """
        if not isinstance(made.model, Hosted):
            raise UsageError(f"swap is for models of other libraries: give {MODELS}, and leave out model=")
        return made.model.to(self.device).eval()

    def judge(self, model: Hosted) -> dict[str, float]:
        """Return the metrics of a model over the validation data."""
        batches = self.run.data.eval_batches("val", self.tree["trainer"]["eval_batches"])
        return evaluate(model, batches, self.task, self.device)

    def ways(self) -> dict[str, Swapped]:
        """Return the model with other norms, by each way in which they may start."""
        kept = self.start(self.made)
        sites = [place.site.name for place in kept.places if not place.stays]
        if not sites:
            raise UsageError("swap changes nothing: norm=own leaves all norms as they are, choose another")
        fresh = copy.deepcopy(kept)
        start_anew(fresh, sites, self.tree, self.run.config.closed.seed)
        self.calibrate(kept, [site for site in sites if not has_statistics(self.own.anatomy().norms[site])])
        self.calibrate(fresh, sites)
        fitted = copy.deepcopy(kept)
        left = fit_all(self.own, fitted, sites, self.batch)
        found = {
            "weights": Swapped(kept, self.judge(kept)),
            "nothing": Swapped(fresh, self.judge(fresh)),
            "fit": Swapped(fitted, self.judge(fitted), left),
        }
        exact = self.exactly(kept)
        if exact is not None:
            model = copy.deepcopy(kept)
            model.host = exact.model
            found["exact"] = Swapped(model, self.judge(model), exact=exact)
        return found

    def calibrate(self, model: Hosted, sites: Sequence[str]) -> None:
        """Set running statistics of norms to those of the batch."""
        norms = model.anatomy().norms
        having = [norms[site] for site in sites if has_statistics(norms[site])]
        if having:
            average(model, having, [self.batch])

    def exactly(self, kept: Hosted) -> Exact | None:
        """Return the model with RMSNorms in place of LayerNorms where that changes nothing; None where it does."""
        norms = kept.anatomy().norms
        swapped = [place for place in kept.places if not place.stays]
        if not all(type(norms[place.site.name]) is RMSNorm for place in swapped):
            self.why_not_exact = "only norm=rmsnorm is, in place of LayerNorms"
            return None
        start = self.batch.map(lambda tensor: tensor[:EXAMPLES].cpu())
        host = copy.deepcopy(self.own.host).cpu()
        paths = {place.path for place in swapped}
        try:
            found = to_rms(host, lambda host: self.own.call(host, *start.arguments), paths)
        except UsageError as error:
            self.why_not_exact = str(error)
            return None
        missing = [place.path for place in swapped if place.path not in found.norms]
        if missing:
            path = missing[0]
            reason = found.refused.get(path, "it is no LayerNorm")
            self.why_not_exact = f"{path} and {len(missing) - 1} more: {reason}" if missing[1:] else f"{path}: {reason}"
            return None
        for place in swapped:
            norm: Any = found.norms[place.path]
            norm.stands_at = place.site
        found.model.to(self.device)
        return found

    def write(self, out: Path, swapped: Swapped, command: str) -> None:
        """Write a swapped model, with a note of its norms.

        Raises:
            UsageError: a norm is not one of normbench's.
        """
        model = swapped.model
        norms = model.anatomy().norms
        section = self.tree["model"]
        options = {**model.decided, **section[model.library.options]}
        if hasattr(model.host, "save_pretrained"):  # whose own config.json says its sizes
            options = {}
        note: dict[str, Any] = {
            "library": model.library.word,
            "name": section["name"],
            "options": options,
            "command": command,
            "norms": [self.describe(place, norms[place.site.name]) for place in model.places if not place.stays],
            "biases": swapped.exact.biases if swapped.exact else [],
            "untied": swapped.exact.untied if swapped.exact else [],
        }
        tokenizer = self.tree["data"].get("tokenizer")
        write_folder(out, model.host, note, Path(os.path.expanduser(tokenizer)) if tokenizer else None)

    def describe(self, place: Place, norm: nn.Module) -> dict[str, Any]:
        """Return what a note says of a norm."""
        section = self.made.norm_sections[place.site]
        assert section is not None
        return describe_norm(place.path, norm, place.features, build.arguments_in(self.tree, section))


def own_tree(tree: Tree) -> dict[str, Any]:
    """Return a configuration with the norms that the model has by itself."""
    found = {key: value for key, value in tree.items() if key != "norm"}
    rules = {key: value for key, value in tree.get(RULES, {}).items() if not key.startswith("norm@")}
    found.pop(RULES, None)
    if rules:
        found[RULES] = rules
    found["norm"] = section_of("norm", "own")
    return found


def has_statistics(norm: nn.Module) -> bool:
    """Tell whether a norm has running statistics."""
    return isinstance(getattr(norm, "running_mean", None), Tensor)


@torch.no_grad()
def start_anew(model: Hosted, sites: Sequence[str], tree: Tree, seed: int) -> None:
    """Let norms start as they do where nothing stood before them."""
    make = build.NormsBySite(build.NormsByPlace(tree, "norm"), seed)
    norms = model.anatomy().norms
    for place in model.places:
        if place.site.name in sites:
            norm: Any = norms[place.site.name]
            new = make(place.features, channel_dim=norm.channel_dim, site=place.site)
            norm.load_state_dict(new.state_dict(), strict=False)


def fit_all(own: Hosted, fitted: Hosted, sites: Sequence[str], batch: Batch) -> dict[str, float]:
    """Fit norms to what the norms before them make of a batch, and return the share of variance that is left, by site.

    Each is fitted to what entered the old one in the model as it was, in its first call, at positions that are real.
    """
    left = dict[str, float]()
    old = own.anatomy().norms
    new = fitted.anatomy().norms

    def fit_at(site: str, norm: nn.Module, given: tuple[Tensor, ...], _: Any) -> None:
        if site in left:
            return
        x = given[0]
        mask = own.mask_for(x)
        if has_statistics(new[site]):
            average(new[site], [new[site]], [Batch(x, x, mask)])
        left[site] = float("nan")  # while the norm is called again
        with without_activation(norm), without_activation(new[site]):
            left[site] = fit_norm(new[site], x, norm(x), mask)

    hooks = [old[site].register_forward_hook(partial(fit_at, site)) for site in sites]
    with torch.no_grad():
        own(*batch.arguments)
    for hook in hooks:
        hook.remove()
    return left


@contextmanager
def without_activation(norm: Any) -> Iterator[None]:
    """Let a norm that ends in an activation, as timm's BatchNormAct2d does, leave it out inside."""
    kept = {name: getattr(norm, name) for name in ("drop", "act") if isinstance(getattr(norm, name, None), nn.Module)}
    for name in kept:
        setattr(norm, name, nn.Identity())
    try:
        yield
    finally:
        for name, module in kept.items():
            setattr(norm, name, module)


# ---- what is printed


def print_trial(trial: Trial, ways: Mapping[str, Swapped]) -> None:
    """Print which norm stands where, and what the swap does to the loss."""
    screen = Console(highlight=False)
    screen.print(table_of_norms(ways))
    metrics = Table(box=SIMPLE_HEAD, pad_edge=False)
    metrics.add_column(Text(f"norms, over {trial.run.config.choices.groups['data']}"))
    names = list(trial.before)
    for name in names:
        metrics.add_column(Text(f"{name}/val"), justify="right")
    metrics.add_column(Text("loss changes by"), justify="right")
    metrics.add_row("as they are", *(readable(trial.before[name]) for name in names), "")
    for way, swapped in ways.items():
        change = swapped.metrics["loss"] - trial.before["loss"]
        numbers = [readable(swapped.metrics[name]) for name in names]
        metrics.add_row(WAYS[way], *numbers, f"{change:+.2g}")
    screen.print(metrics)
    for sentence in (*ways["weights"].model.notes(), *about_exactness(trial, ways)):
        screen.print(Text(f"• {sentence}"), soft_wrap=True)


def table_of_norms(ways: Mapping[str, Swapped]) -> Table:
    """Return a table of which norm stands where, what it is now, and what a fit to the old one leaves."""
    left = ways["fit"].left or {}
    model = ways["weights"].model
    norms = model.anatomy().norms
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("place", "norm", "becomes", "ε", "fit leaves"):
        table.add_column(Text(name), overflow="fold", no_wrap=name not in ("norm", "becomes"))
    for place in model.places:
        site = place.site.name
        norm: Any = norms[site]
        becomes = f"{place.kind} as it is" if place.stays else f"{place.kind} → {type(norm).__name__}"
        eps = getattr(norm, "eps", None)
        share = f"{left[site]:.2%}" if site in left else ""
        row = (site, place.path, becomes, "" if eps is None else f"{eps:g}", share)
        table.add_row(*map(Text, row))
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
        yield f"exact: {', '.join(exact.biases)} has a bias now, for the β of the norm before it"
