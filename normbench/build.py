"""From a checked configuration to the parts of a run: device, data, model and norms."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normbench.config.recipe import Part, Recipe, check_made, help_command, missing_attributes, signature_of
from normbench.config.refusals import OF_MAKING, Combination, refuse
from normbench.config.rules import Rule, best_rule, say_places
from normbench.config.sections import BY_NAME
from normbench.errors import ContractError, RunFailure, UsageError, explain, refuse_single
from normbench.models import Initialization, initialize
from normbench.models.stacks import segment_length
from normbench.norms.foreign import Fitted, accept_mask, make_fitted, measure_facts, takes_place
from normbench.record.digests import digest_of
from normbench.record.loggers import Logger
from normbench.settings import drop_keys, either, flat, printable
from normbench.training.devices import keep_generators
from normbench.training.evaluation import reads_batch, to_device
from normbench.training.memory import Kept, count_kept
from normbench.training.muon import MuonAdamW, matrices_in_blocks, separate_matrices
from normbench.training.optimizer import make_optimizer, may_fuse, parameter_groups
from normbench.training.parallel import Group
from normbench.training.precision import Precision, check_step
from normbench.training.step import Stepper
from normbench.types import (
    Batch,
    Block,
    Branch,
    Data,
    Model,
    NormFactory,
    NormFacts,
    Placement,
    Site,
    Task,
    keep_buffers,
    optional_norm,
    stable_seed,
    with_parts,
    worst_of,
)
from normbench.weights import Weights

REHEARSED_EXAMPLES = 2  # enough for every statistic that a larger batch can give


def resolve_device(name: str) -> torch.device:
    """Return the device of this name; `auto` takes a GPU where there is one.

    Raises:
        UsageError: this machine has no such device.
    """
    if name == "auto":
        name = best_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device={name} is unknown: use auto, cpu, cuda, cuda:N or mps") from error
    there = device_count(device.type)
    if (device.index or 0) >= there:
        raise UsageError(f"device={name} is not there: this machine has {there} {device.type} devices; use cpu")
    return device


def best_device() -> str:
    """Return the name of a GPU where there is one, else of the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def device_count(kind: str) -> int:
    """Return how many devices of a kind this machine has; of one that torch cannot count, one."""
    if kind == "cuda":
        return torch.cuda.device_count()
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return 1


def is_here(device: str) -> bool:
    """Tell whether this machine has a device."""
    try:
        resolve_device(device)
    except UsageError:
        return False
    return True


# ---- what makes a part


def factory(part: Part) -> Callable[..., Any]:
    """Return a part's class with its settings, to be called with the rest.

    Raises:
        UsageError: when called, it does not take what it is given, or makes something else.
    """
    make = partial(part.maker, **part.settings)
    if part.group == "optim":
        return make  # what an optimizer refuses, make_optimizer says
    if part.group == "norm" and not takes_place(part.maker):
        make = partial(make_fitted, make)
    kind = part.kind

    @wraps(part.maker, assigned=(), updated=())  # with the signature, and none of the attributes of a class
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            signature_of(make.func).bind(*make.args, *args, **{**make.keywords, **kwargs})
        except (TypeError, ValueError) as error:
            takes = f"{BY_NAME[part.group].given} and {part.section}'s settings"
            raise ContractError(f"{part.where} must take {takes} ({error}): change it") from error
        made = make(*args, **kwargs)
        if kind not in type(made).__mro__:
            what = f"{part.where} gives something of type {type(made).__name__}"
            raise ContractError(f"{what}: return something of a class derived from {kind.__qualname__}")
        check_made(part.where, kind, missing_attributes(made, kind))
        return made

    return call


@cache
def source_digest(made: Any) -> str:
    """Return a digest of a class's source file as it is when first asked: one that is edited later changes no class.

    Raises:
        UsageError: it has none, such as a class that is made by `type`.
    """
    try:
        return hashlib.sha256(Path(inspect.getfile(made)).read_bytes()).hexdigest()
    except (AttributeError, OSError, TypeError) as error:
        raise ContractError(f"{made} has no source file, by which its runs are told apart: define it in one") from error


def own_code(recipe: Recipe) -> dict[str, str]:
    """Return a digest of the source file of each class that is neither ours nor torch's, by section."""
    digests = dict[str, str]()
    for part in recipe.all_parts():
        if not str(part.maker.__module__).startswith(("normbench.", "torch.")):
            digests[part.section] = source_digest(part.maker)
    return digests


def digest_weights(model: Part) -> list[str]:
    """Return a digest of each file of weights with which the model starts.

    Raises:
        UsageError: one is not there.
    """
    found: list[str] = []
    for path in model.made.files_read(model.settings):
        status = path.stat()
        found.append(digest_file(path, status.st_size, status.st_mtime_ns))
    return found


def compare_classes(model: Part, data: Data) -> str:
    """Say where the outputs of given weights stand for other classes than the data's; empty where that is not so."""
    classes = list(getattr(data, "classes", ()))
    noted = model.made.classes_noted(model.settings) if classes else None
    if noted is None or noted == classes or len(noted) != len(classes):  # of others the output layer starts anew
        return ""
    place = next(number for number, name in enumerate(classes) if name != noted[number])
    weights = f"model.weights={model.settings['weights']}"
    how = "the classes of the data in another order" if sorted(noted) == sorted(classes) else "other classes"
    what = f"{weights} was trained on {how}: its output {place} stood for {printable(noted[place]):.80}"
    return f"{what}, and here it stands for {printable(classes[place]):.80}, so it is wrong until it is trained again"


@cache
def digest_file(path: Path, size: int, changed: int) -> str:
    """Return the sha256 of a file, read once as long as its size and the time of its last change stay."""
    return digest_of(path)


def norm_facts(recipe: Recipe) -> NormFacts:
    """Return what holds of the norms of a run, at whatever site they stand: the worst case of all of them."""
    width = recipe.tree.get("model", {}).get("width")
    return worst_of([facts_of(part, width) for part in recipe.parts_of("norm")])


def facts_of(norm: Part, width: Any = None) -> NormFacts:
    """Return what a norm declares about itself under its settings; what is measured, of another library's.

    Args:
        norm: the part.
        width: of the model; that of one which has no single width is not known.
    """
    if hasattr(norm.made, "facts_for") and hasattr(norm.made, "facts"):
        facts: NormFacts = norm.made.facts_for(**norm.settings)
        takes_mask = "mask" in inspect.signature(norm.made.forward).parameters
        if takes_mask or facts.sees_future == "never":
            return facts
        return replace(facts, counts_padding=True)
    if not takes_place(norm.maker) and isinstance(width, int):
        with seed_draws("facts"), suppress(Exception):  # what makes it fail is said when the model is built
            return measure_facts(factory(norm)(width), width)
    return NormFacts(statistics_over="unknown", centers=False)


def combine(recipe: Recipe, making: Mapping[str, Any] | None = None, given: Collection[str] = ()) -> Combination:
    """Return what decides whether a run is refused.

    Args:
        recipe: of the run.
        making: how the run is made, as far as that is known, by `refusals.OF_MAKING`.
        given: the keys that words set.

    Raises:
        UsageError: a part cannot be imported, or is not for its section.
    """
    recipe.all_parts()
    optim = recipe["optim"]
    data = recipe["data"].made
    return Combination(
        norm=norm_facts(recipe),
        placement=recipe["placement"].made,
        model=recipe["model"].made,
        data=data,
        task=Task.by_kind.get(data.kind),
        init=recipe["init"].made,
        scales_rates=scales_rates(recipe["init"]),
        not_adam=not issubclass(optim.made, torch.optim.Adam),
        needs_matrices=orthogonalizes(optim),
        not_fused=not (optim.settings.get("fused") or may_fuse(factory(optim))),
        ramps=getattr(recipe["schedule"].made, "ramps", False),
        settings={**drop_keys(flat(recipe.tree), *OF_MAKING), **(making or {})},
        given=given,
        recipe=recipe,
    )


def check_parts(recipe: Recipe, making: Mapping[str, Any] | None = None) -> NormFacts:
    """Refuse parts that cannot be used, and what does not go together; return the norm's facts.

    Args:
        recipe, making: as for `combine`.

    Raises:
        UsageError: a part cannot be imported, or is not for its section.
        CombinationRefused: they do not go together.
    """
    run = combine(recipe, making)
    recipe.loggers()
    for placement in recipe.parts_of("placement"):
        refuse(replace(run, placement=placement.made))
    run.model.check_settings(recipe["model"].settings, run.data.kind)
    return run.norm


def scales_rates(init: Part) -> bool:
    """Tell whether the start of weights comes with learning rates of their own."""
    return getattr(init.made, "lr_factors", Initialization.lr_factors) is not Initialization.lr_factors


# ---- the parts


def make_data(recipe: Recipe, seed: int) -> Data:
    """Return the data, read or decoded.

    Raises:
        UsageError: they are not there, or a setting does not fit.
    """
    data: Data = factory(recipe["data"])(seed=seed)
    return data


@contextmanager
def seed_draws(*words: object) -> Iterator[None]:
    """Let what is drawn inside from torch's random numbers on the CPU follow from the words; outside they stay."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stable_seed(*words))
        yield


class NormsBySite:
    """A norm factory that keeps what it made by the name of its site, which with the seed decides its draws."""

    def __init__(self, factory: NormFactory, seed: int) -> None:
        self.factory = factory
        self.seed = seed
        self.made: dict[str, nn.Module] = {}

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        with seed_draws(self.seed, "norm", site.name if site else len(self.made)):
            norm = self.factory(num_features, channel_dim=channel_dim, site=site)
        return self.keep(norm, channel_dim, site)

    def optional(self, num_features: int, *, channel_dim: int = -1, site: Site) -> nn.Module | None:
        """Return the norm for a place of `optional_norm`; None where the factory asks for none there."""
        with seed_draws(self.seed, "norm", site.name):
            norm = optional_norm(self.factory, num_features, channel_dim=channel_dim, site=site)
        return None if norm is None else self.keep(norm, channel_dim, site)

    def given_at(self, site: Site) -> set[str]:
        """Return the settings that the configuration gives the norm of a site; nothing where that is not known."""
        given_at = getattr(self.factory, "given_at", None)
        return set[str]() if given_at is None else given_at(site)

    def keep(self, norm: nn.Module, channel_dim: int, site: Site | None) -> nn.Module:
        """Keep a norm, which takes a mask and knows its features and its place from now on."""
        stands_at = site or Site(f"norm{len(self.made)}")
        if stands_at.name in self.made:
            where = f"two norms stand at {stands_at.name}"
            raise ContractError(f"{where}: give each norm its slot, as in site.at('mlp', 'out')")
        kept: Any = accept_mask(norm)
        kept.stands_at = stands_at
        if not hasattr(kept, "channel_dim"):  # a user's own need not keep it, and probes take statistics by channel
            kept.channel_dim = channel_dim
        self.made[stands_at.name] = norm
        return norm


class ByPlace:
    """What makes the norms or the placements of a model: at each site by the rule that holds there, else as usual.

    Attributes:
        sections: the section that holds at each site that was asked about, such as `norm` or `norm@qk`; None at one
            that has a norm only if a rule names it, and none does.
        optional_sites: those that have a norm only if a rule names them.
    """

    def __init__(self, recipe: Recipe, group: str) -> None:
        self.group = group
        self.rules = recipe.rules(group)
        self.factories = {part.section: factory(part) for part in recipe.parts_of(group)}
        self.sections: dict[Site, str | None] = {}
        self.optional_sites = set[Site]()

    def make_at(self, site: Site) -> Callable[..., Any]:
        """Return what makes the norm or the placement of a site."""
        rule = best_rule(self.rules, site)
        section = rule.key if rule else self.group
        self.sections[site] = section
        return self.factories[section]

    def applies(self, rule: Rule, site: Site) -> bool:
        """Tell whether a rule may hold at a site."""
        return rule.names(site) if site in self.optional_sites else rule.fits(site)

    def check_used(self) -> None:
        """Refuse a rule that fits none of the sites.

        Raises:
            UsageError: with the words of places that there are.
        """
        if self.rules and not self.sections:
            what = f"{self.rules[0].key} fits no place of this model"
            raise UsageError(f"{what}, which makes no {self.group} of its own: leave the rule out")
        for rule in self.rules:
            if not any(self.applies(rule, site) for site in self.sections):
                raise UsageError(f"{rule.key} fits no place of this model: {say_places(rule, self.sections)}")


class NormsByPlace(ByPlace):
    """A norm factory that makes the norm of each site by the rules."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, "norm")
        self.first_in_block: dict[tuple[str, int], nn.Module] = {}
        self.given = {part.section: set(part.settings) for part in recipe.parts_of("norm")}

    def __call__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> nn.Module:
        if site is None:
            made: nn.Module = self.factories[self.group](num_features, channel_dim=channel_dim, site=None)
            return made
        self.make_at(site)
        return self.make_norm(num_features, channel_dim, site)

    def given_at(self, site: Site) -> set[str]:
        """Return the settings that the section of a site's norm gives."""
        return self.given[self.sections[site] or self.group]

    def optional(self, num_features: int, *, channel_dim: int = -1, site: Site) -> nn.Module | None:
        """Return the norm of a place of `optional_norm`, where a rule names it."""
        rule = best_rule(self.rules, site, asked_for=True)
        self.sections[site] = rule.key if rule else None
        self.optional_sites.add(site)
        if rule is None:
            return None
        return self.make_norm(num_features, channel_dim, site)

    def make_norm(self, num_features: int, channel_dim: int, site: Site) -> nn.Module:
        """Return the norm of a site from the section that holds there; see `Norm.shared`.

        Raises:
            UsageError: it is to share parameters with a norm of other sizes.
        """
        section = self.sections[site]
        assert section is not None
        norm: nn.Module = self.factories[section](num_features, channel_dim=channel_dim, site=site)
        if not getattr(norm, "shared", False) or site.layer is None:
            return norm
        first = self.first_in_block.setdefault((section, site.layer), norm)
        for name, parameter in first.named_parameters(recurse=False):
            own_shape = norm.get_parameter(name).shape
            if own_shape != parameter.shape:
                what = f"{section}.shared=true finds norms of {parameter.numel()} and of {own_shape.numel()} features"
                cure = f"set {section}.shape=scalar, or name places of one width"
                raise UsageError(f"{what} in {site.at('block').name}: {cure}")
            setattr(norm, name, parameter)
        return norm


MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # whose weights can be treated: (out, in, *kernel)


@dataclass(frozen=True)
class TreatedModule:
    """A linear map, a convolution or an embedding, and how its weight will be treated.

    Attributes:
        name: in the model.
        site: its place: the role of its branch, and its block; or its role outside the blocks.
        treatment: is applied once the weights have their start.
    """

    name: str
    module: nn.Module
    site: Site
    treatment: Weights


class TreatedAs(NamedTuple):
    """What is noted on each module with a treated weight: the treatment, and its place."""

    treatment: Weights
    site: Site


def places_of_weights(model: Model, norms: Iterable[nn.Module]) -> dict[nn.Module, Site]:
    """Return the linear maps, convolutions and, outside the blocks, embeddings, less those of norms, with their places.

    In a block that is the role of the branch; the slot is `out` where the branch names what writes to the stream.
    """
    inside_norms = with_parts(norms)
    anatomy = model.anatomy()
    sides = Counter(block.side for block in anatomy.blocks)
    found: dict[nn.Module, Site] = {}
    inside_blocks = set[nn.Module]()
    for block in anatomy.blocks:
        inside_blocks.update(block.module.modules())
        side: Any = block.side
        place = Site("block", block.layer, len(anatomy.blocks), side=side, sides=(sides["encoder"], sides["decoder"]))
        for role, branch in block.branches.items():
            output = branch.output if isinstance(branch, Branch) else ()
            writers = [branch.get_submodule(name) for name in output]
            for module in branch.modules():
                if isinstance(module, MAPS) and module not in inside_norms:
                    found[module] = place.at(role, "out" if module in writers else "")
    in_stem = set(anatomy.stem.modules()) if anatomy.stem else set[nn.Module]()
    for module in model.modules():
        if module in inside_blocks or module in inside_norms:
            continue
        if isinstance(module, nn.Embedding):
            found[module] = Site("embedding")
        elif isinstance(module, MAPS):
            found[module] = Site("stem" if module in in_stem else "head")
    return found


class WeightsByPlace(ByPlace):
    """Chooses the treatment of each weight by the rules; one treatment for all places of a section."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, "weights")
        self.treatments: dict[str, Weights] = {section: make() for section, make in self.factories.items()}

    def treatment_at(self, site: Site) -> Weights | None:
        """Return the treatment of a weight; None of one outside the blocks where nothing asks for it."""
        is_outside = site.layer is None
        if is_outside:
            self.optional_sites.add(site)
        rule = best_rule(self.rules, site, asked_for=is_outside)
        section = rule.key if rule else self.group
        treatment = self.treatments[section]
        if is_outside and rule is None and not treatment.everywhere:
            self.sections[site] = None
            return None
        self.sections[site] = section
        return treatment


def choose_treatments(
    recipe: Recipe, model: Model, norms: Iterable[nn.Module]
) -> tuple[list[TreatedModule], Mapping[Site, str | None]]:
    """Return how the weights of a model will be treated, by the rules, and the section that holds at each place.

    Raises:
        UsageError: a setting or a rule that does not fit.
    """
    if not recipe.treats_weights:
        return [], {}
    by_place = WeightsByPlace(recipe)
    sites = places_of_weights(model, norms)
    found: list[TreatedModule] = []
    for name, module in model.named_modules():
        if module in sites:
            treatment = by_place.treatment_at(sites[module])
            if treatment is not None:
                found.append(TreatedModule(name, module, sites[module], treatment))
    by_place.check_used()
    return found, by_place.sections


def untreated_weights(model: Model, norms: Iterable[nn.Module]) -> list[str]:
    """Return the names of matrices and kernels in branches that no treatment knows, such as those of an nn.LSTM."""
    known = set[nn.Parameter]()
    for norm in norms:
        known.update(norm.parameters())
    for module in model.modules():
        if isinstance(getattr(module, "treated_as", None), TreatedAs):
            known.update(module.parameters())
    in_branches = set[nn.Parameter]()
    for block in model.anatomy().blocks:
        for branch in block.branches.values():
            in_branches.update(branch.parameters())
    found: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and parameter in in_branches and parameter not in known:
            found.append(name)
    return found


def treatments_after_step(model: Model) -> list[Callable[[], None]]:
    """Return what the treatments of a model's weights do after each step of the optimizer; most do nothing."""
    treatments: dict[int, Weights] = {}
    modules_of: dict[int, dict[nn.Module, Site]] = {}
    for module in model.modules():
        noted = getattr(module, "treated_as", None)
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        if isinstance(noted, TreatedAs) and is_trained:
            key = id(noted.treatment)
            treatments[key] = noted.treatment
            modules_of.setdefault(key, {})[module] = noted.site
    found: list[Callable[[], None]] = []
    for key, treatment in treatments.items():
        if type(treatment).after_step is not Weights.after_step:
            found.append(partial(treatment.after_step, modules_of[key]))
    return found


@dataclass(frozen=True)
class Assembled:
    """A model as its classes make it.

    Attributes:
        model: with what they draw of their own.
        norms: by the name of their site.
        norm_sections: the section of the norm at each site, None where there is no norm.
        placement_sections: the section of the placement of each block.
        weight_sections: the section of the treatment of the weights at each place, None where there is none.
        treated: what has a weight that will be treated.
    """

    model: Model
    norms: dict[str, nn.Module]
    norm_sections: Mapping[Site, str | None]
    placement_sections: Mapping[Site, str | None]
    weight_sections: Mapping[Site, str | None]
    treated: list[TreatedModule]

    def treat_weights(self, seed: int) -> None:
        """Treat the weights, which have their start."""
        for each in self.treated:
            module: Any = each.module
            with seed_draws(seed, "weights", each.name):
                each.treatment.apply(module, each.site)
            module.treated_as = TreatedAs(each.treatment, each.site)


def assemble(recipe: Recipe, task: Task, seed: int) -> Assembled:
    """Make a model, its norms and its placements.

    What the model itself draws does not depend on what norms and placements draw in between, so that it starts alike
    with any of them.

    Raises:
        UsageError: a setting that does not fit.
    """
    norms_by_place = NormsByPlace(recipe)
    placements_by_place = ByPlace(recipe, "placement")
    norms = NormsBySite(norms_by_place, seed)

    def place(branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> Placement:
        make_placement = placements_by_place.make_at(site)
        with seed_draws(seed, "placement", site.name):
            return make_placement(branches, norm, site)

    with seed_draws(seed, "model"):
        model: Model = factory(recipe["model"])(task, norms, place)
    if type(model).anatomy is Model.anatomy and not hasattr(model, "blocks"):
        what = f"{recipe['model'].where} has no blocks"
        raise ContractError(f"{what}, and no anatomy of its own: {help_command(Model)} says what it is for")
    norms_by_place.check_used()
    placements_by_place.check_used()
    check_streams(model, placements_by_place.sections)
    made = dict(model.anatomy().norms) if model.hosted else norms.made  # norm=own is none of those that were made
    treated, weight_sections = choose_treatments(recipe, model, made.values())
    return Assembled(
        model=model,
        norms=made,
        norm_sections=norms_by_place.sections,
        placement_sections=placements_by_place.sections,
        weight_sections=weight_sections,
        treated=treated,
    )


def check_streams(model: Model, sections: Mapping[Site, str | None]) -> None:
    """Refuse a stack of blocks whose placements do not have the same streams.

    Args:
        model: the model.
        sections: the section of the placement of each block.

    Raises:
        UsageError: with the first two placements that do not go together.
    """
    section_at_layer = {site.layer: section for site, section in sections.items()}
    first_of_side: dict[str, Block] = {}
    for block in model.anatomy().blocks:
        first = first_of_side.setdefault(block.side, block)
        if max(first.streams, block.streams) == 1:
            continue
        has_same_streams = type(first.module) is type(block.module) and first.streams == block.streams
        if not has_same_streams:
            both = []
            for each in (first, block):
                what = "1 stream" if each.streams == 1 else f"{each.streams} streams"
                where = f"block {each.layer} ({section_at_layer.get(each.layer)})"
                both.append(f"{type(each.module).__name__} in {where} has {what}")
            cure = "give all blocks of a stack the same placement, or choose among those with one stream"
            raise UsageError(f"{both[0]}, and {both[1]} of its own: {cure}")


def build_model(recipe: Recipe, task: Task, seed: int) -> tuple[Model, dict[str, nn.Module]]:
    """Return the model as its classes make it, to be given other weights, and its norms by site.

    Raises:
        UsageError: a setting that does not fit.
    """
    made = assemble(recipe, task, seed)
    made.treat_weights(seed)
    return made.model, made.norms


def lay_out(recipe: Recipe, task: Task) -> Assembled:
    """Make a model without memory for its weights, to see what stands where.

    Raises:
        UsageError: a setting that does not fit, or a rule that fits no place.
    """
    with suppress(Exception), torch.device("meta"):
        return assemble(recipe, task, seed=0)
    return assemble(recipe, task, seed=0)  # some classes need numbers; what is wrong shows here too


def make_model(recipe: Recipe, task: Task, seed: int) -> tuple[Model, dict[str, nn.Module]]:
    """Return the model with its starting weights, and its norms by site.

    Raises:
        UsageError: a setting that does not fit.
    """
    made = start_model(recipe, task, seed)
    return made.model, made.norms


def start_model(recipe: Recipe, task: Task, seed: int) -> Assembled:
    """Make a model with its starting weights.

    Raises:
        UsageError: a setting that does not fit.
    """
    made = assemble(recipe, task, seed)
    initialize(made.model, factory(recipe["init"])(), seed, made.norms.values())
    made.treat_weights(seed)
    freeze_others(made.model, made.norms.values(), recipe.tree.get("trainer", {}).get("train", "all"))
    return made


def freeze_others(model: Model, norms: Iterable[nn.Module], trained: str) -> None:
    """Let only some parameters be trained, as `trainer.train` says; all others stay as they start.

    Raises:
        UsageError: there are none of a kind that is to be trained.
    """
    if trained == "all":
        return
    kept = set[nn.Parameter]()
    if "norms" in trained:
        for norm in norms:
            kept.update(norm.parameters())
        if not kept:
            why = "the norms of this model have no parameters"
            raise UsageError(f"trainer.train={trained}: {why}, choose a norm that has, with norm.affine=true")
    if "head" in trained:
        head = getattr(model, "head", None)
        own = [] if head is None else list(head.parameters())
        if not own:
            why = "this model has no output layer of its own"
            raise UsageError(f"trainer.train={trained}: {why}, set model.tied=false or choose another model")
        kept.update(own)
    for parameter in model.parameters():
        if parameter not in kept:
            parameter.requires_grad_(False)


def orthogonalizes(optim: Part) -> bool:
    """Tell whether the optimizer treats a matrix as one, and so needs it whole and by itself."""
    return issubclass(optim.made, MuonAdamW)


def make_stepper(
    recipe: Recipe,
    model: Model,
    norms: Mapping[str, nn.Module],
    data: Data,
    precision: Precision,
    steps: int,
    group: Group | None = None,
) -> Stepper:
    """Return what trains a model for so many steps as the configuration says.

    Args:
        norms: of the model, by site.
        group: of processes that do it together.

    Raises:
        UsageError: a setting that does not fit.
    """
    trainer = recipe.tree["trainer"]
    optim = recipe["optim"]
    weight_decay = optim.settings.get("weight_decay", 0.0)
    lr_factors = factory(recipe["init"])().lr_factors(model.anatomy())
    groups = parameter_groups(model, norms.values(), weight_decay, trainer["decay_norms"], lr_factors)
    if orthogonalizes(optim):
        groups = separate_matrices(groups, matrices_in_blocks(model, norms.values()))
    return Stepper(
        model=model,
        data=data,
        optimizer=make_optimizer(factory(optim), groups, precision.device),
        schedule=factory(recipe["schedule"])(),
        precision=precision,
        device=precision.device,
        seed=recipe.tree["seed"],
        steps=steps,
        accumulate=trainer["accumulate"],
        grad_clip=trainer["grad_clip"],
        group=group or Group(),
        treatments=treatments_after_step(model),
    )


def make_loggers(recipe: Recipe, directory: Path, step: int) -> list[Logger]:
    """Return the loggers of the run in a directory, which goes on after a step.

    Raises:
        UsageError: one is not a logger, or needs a package that is not installed.
        RunFailure: one of another library's cannot start.
    """
    try:
        return [factory(part)(directory, step) for part in recipe.loggers()]
    except (OSError, UsageError):
        raise
    except Exception as error:  # another library's client may raise anything
        raise RunFailure(f"a logger cannot start ({explain(error)}): see its settings, or leave it out") from error


# ---- one pass before anything is written, so that what does not fit leaves no run directory


def rehearse(
    model: Model,
    norms: Mapping[str, nn.Module],
    data: Data,
    device: torch.device,
    recompute: bool = False,
    group: Group | None = None,
    batches: int = 1,
) -> float:
    """Run the start of the first batch through the model, as in training; buffers and generators stay as they are.

    Return the bytes that a batch will keep for the backward pass, 0 of a model that is cut between processes (FSDP).

    Args:
        norms: of the model, by site.
        recompute: as `trainer.recompute`.
        group: of processes that share the batch.
        batches: how many a run takes: the last of an epoch may have fewer examples, and is then tried, too.

    Raises:
        UsageError: the batch or the logits are not as the task says, a norm changes its input's shape or dtype, or
            takes a statistic over one value, or a model of another library does not train with it.
    """
    group = group or Group()
    own, batch = first_examples(data, device, group)
    with explain_failure(model, data.task, batch, group):
        kept = pass_forward(model, norms, data.task, batch, device, group)
    if not group.shards:
        model.try_step(batch, data.task)
        check_last_batch(model, data, device, group, batches)
        check_evaluation(model, data, batch, device)
    segment = segment_length(len(model.anatomy().blocks)) if recompute else None
    return kept.of_step(segment) * len(own.targets) / len(batch.targets)


@contextmanager
def explain_failure(model: Model, task: Task, batch: Batch, group: Group) -> Iterator[None]:
    """Say why a batch fails in a model, where that is known: of a model of another library, or with norms of others."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # which others' code may raise of any kind; it goes on its way where no more is known
        if not group.shards:
            model.try_step(batch, task)
            if len(batch.targets) == 1 and goes_through(model, batch.twice()):
                raise refuse_single("the model", task.examples, error) from error
        others = sorted({norm.implementation for norm in model.modules() if isinstance(norm, Fitted)})
        if others and isinstance(error, ValueError):
            what = f"{either(others)} refuses what the model gives it ({explain(error)})"
            raise UsageError(f"{what}: choose another norm") from error
        raise


def goes_through(model: Model, batch: Batch) -> bool:
    """Tell whether a model in training takes a batch; it stays as it is."""
    try:
        with keep_buffers(model), keep_generators(batch.inputs.device), torch.no_grad():
            model.train()(*batch.arguments)
    except Exception:  # of others' code, which may raise anything
        return False
    return True


def check_last_batch(model: Model, data: Data, device: torch.device, group: Group, batches: int) -> None:
    """Refuse a last batch of an epoch that is so short that the model cannot be trained on it.

    Args:
        model, data, device, group, batches: as for `rehearse`.

    Raises:
        UsageError: it is.
    """
    last = min(batches, getattr(data, "steps_per_epoch", 0)) - 1  # a stream has no epochs
    if last < 1:
        return
    whole = data.train_batch(last)
    short = to_device(group.rows(whole), device)
    # all processes must agree, as norms may wait for each other
    if len(whole.targets) >= REHEARSED_EXAMPLES * group.size or not len(short.targets):
        return
    explaining = explain_failure(model, data.task, short, group)
    with explaining, keep_buffers(model), keep_generators(device), torch.no_grad():
        model.train()(*short.arguments)
    model.try_step(short, data.task)


def check_evaluation(model: Model, data: Data, batch: Batch, device: torch.device) -> None:
    """Refuse evaluation batches of one example where norms that take their statistics of each batch cannot use it.

    Args:
        model, data, device: as for `rehearse`.
        batch: on the device.

    Raises:
        UsageError: there is such a batch.
    """
    readers = [module for module in model.modules() if reads_batch(module)]
    if not readers:
        return
    single = batch.map(itemgetter(slice(1)))
    try:
        with keep_buffers(model), keep_generators(device), torch.no_grad():
            model.eval()(*single.arguments)
    except ValueError as error:
        for split in ("val", "test") if data.has_test else ("val",):
            if any(len(one.targets) == 1 for one in data.eval_batches(split)):
                what = f"{split} has a batch of 1 of the {data.task.examples}"
                name = type(readers[0]).__name__
                why = f"of which {name} cannot take statistics, as it does in evaluation too ({explain(error)})"
                cure = "use another data.eval_batch_size, or norms with track_running_stats=true"
                raise UsageError(f"{what}, {why}: {cure}") from error
    finally:
        model.train()


def pass_forward(
    model: Model, norms: Mapping[str, nn.Module], task: Task, batch: Batch, device: torch.device, group: Group
) -> Kept:
    """Run a batch through the model, as in training; return what it would keep for the backward pass.

    Args:
        model, norms, device, group: as for `rehearse`.
        task: of the batch.
        batch: on the device.

    Raises:
        UsageError: the logits are not as the task says, or a norm is not as it must be.
    """
    shape = (*batch.targets.shape, task.num_classes)
    with ExitStack() as stack, keep_buffers(model), keep_generators(device):
        for site, norm in norms.items():
            stack.enter_context(norm.register_forward_hook(partial(check_output, site)))
        stack.enter_context(torch.no_grad())
        tensors = [tensor for tensor in batch if tensor is not None]
        counting = nullcontext(Kept()) if group.shards else count_kept(model, tensors)
        kept = stack.enter_context(counting)
        logits = model.train()(*batch.arguments)
        if logits.shape == shape:
            task.loss(logits, batch.targets)
    if logits.shape != shape:
        found = tuple(logits.shape)
        raise ContractError(f"the model's logits have the shape {found}, and the data need {shape}: change its forward")
    return kept


def first_examples(data: Data, device: torch.device, group: Group) -> tuple[Batch, Batch]:
    """Return this process's rows of the first batch, and the start of them on a device.

    Raises:
        UsageError: the batch is not as the task says.
    """
    batch = data.train_batch(0)
    if not isinstance(batch, Batch):
        raise ContractError(f"train_batch(0) gives a {type(batch).__name__}: return a normbench.types.Batch")
    expected = data.task.shapes(batch)
    if (batch.inputs.shape, batch.targets.shape) != expected:
        given = f"inputs of {tuple(batch.inputs.shape)} and targets of {tuple(batch.targets.shape)}"
        raise ContractError(f"train_batch(0) has {given}: the task needs {expected[0]} and {expected[1]}")
    own = group.rows(batch)
    start = own.map(itemgetter(slice(REHEARSED_EXAMPLES)))
    return own, to_device(start, device)


def check_precision(model: Model, data: Data, precision: Precision, group: Group | None = None) -> None:
    """Refuse a precision in which this CPU lacks an operator of the model.

    Args:
        model: whole, on the device.
        group: of processes that share the batch.

    Raises:
        UsageError: with what the operator says.
    """
    if not precision.varies:
        return
    _, batch = first_examples(data, precision.device, group or Group())
    check_step(model, data.task, batch, precision)


def check_output(site: str, norm: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
    """Refuse an output of a norm that has not the input's shape and, where autocast does not choose it, its dtype."""
    x = inputs[0]
    name = type(norm).__name__
    if getattr(output, "shape", None) != x.shape:
        what = f"the shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ContractError(f"{name} returns {what} for an input of {tuple(x.shape)} at {site}: a norm keeps the shape")
    if output.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        cure = "a norm keeps the dtype, end its forward with .to(x.dtype)"
        raise ContractError(f"{name} returns {output.dtype} for an input of {x.dtype} at {site}: {cure}")
