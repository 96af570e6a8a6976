"""Models of other libraries as `normbench train` takes them: their norms replaced, and all else as it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from normbench.errors import UsageError, explain, refuse_single
from normbench.hosts.adding import Behind, Seats, add, find_seats
from normbench.hosts.building import Library, Options
from normbench.hosts.callers import ImageCaller
from normbench.hosts.classes import read_classes, read_norm
from normbench.hosts.finding import Findings, Found, find
from normbench.hosts.libraries import LIBRARIES
from normbench.hosts.replacing import replace as replace_norms
from normbench.hosts.steps import check_step, try_step
from normbench.hosts.weights import PRETRAINED, RANDOM, find_saved
from normbench.norms import NoNorm, Own
from normbench.settings import LIKE_HOST, Setting
from normbench.types import (
    Anatomy,
    Batch,
    Block,
    ImageClassification,
    LanguageModeling,
    Model,
    NormFactory,
    PlacementFactory,
    Site,
    Task,
    TextClassification,
    norms_in,
)

NormSettings = Annotated[
    Literal["own", "norm"],
    Setting("ε, momentum and groups that no norm.KEY gives: those of the model's norms, or of norm="),
]
ImageSize = Annotated[
    int | Literal["auto"] | None,
    Setting("pixels of the shorter side to which images are scaled; auto: 32 if less; null: never", low=1, high=4096),
]
Kwargs = Annotated[Mapping[str, Any], Setting("arguments of the model, as model.kwargs.drop_rate=0.1")]
Config = Annotated[Mapping[str, Any], Setting("its configuration, as model.config.hidden_size=128; other sizes follow")]
Trained = Annotated[str, Setting("random, pretrained, or the folder or file of trained weights")]
Context = Annotated[int, Setting("tokens of a text", low=1, high=10**6)]
ImageName = Annotated[str, Setting("a model of the library, such as resnet18; of timm also vit_tiny_patch16_224")]
HfName = Annotated[str, Setting("a model type of transformers, such as llama, gpt2, olmo2, gemma3, qwen3 or bert")]

EXAMPLES = 2  # of the batch on which norms are found
TOLERANCE = 1e-4  # of the largest logit: what later tokens may change


@dataclass(frozen=True)
class Place:
    """What stands at a place of a model of another library.

    Attributes:
        path: in that model.
        site: its place.
        kind: the class of the norm that it had there.
        features: that the norm normalizes.
        eps: of that norm; None: it has none.
        stays: whether that norm is still there.
        added: whether nothing stood there, so that the norm is one more.
        behind: after which map it was added; None where the model itself has something there.
    """

    path: str
    site: Site
    kind: str
    features: int
    eps: float | None
    stays: bool
    added: bool = False
    behind: Behind | None = None


@dataclass(frozen=True)
class BlockPaths:
    """Where a block of a model of another library is in it, by paths, so that a copy of the model has blocks too.

    A branch that has no module of its own is of several.
    """

    path: str
    layer: int
    side: str
    branches: dict[str, tuple[str, ...]]
    channel_dim: int


class Hosted(Model):
    """A model of another library, whose norms a norm factory replaces one by one, each where it stands.

    What the library draws does not depend on what comes in the place of its norms, whose γ and β start as those of the
    norm did, where both have them.

    Attributes:
        library: whose model it is.
        host: the model.
        places: its norms, in the order in which they are called.
        left: what looks like a norm and stays as it is, by path, with the reason.
        warnings: what a reader of its numbers must know.
    """

    hosted = True
    roles: tuple[str, ...] = ()  # type: ignore[misc]  # of a model that is built, whose blocks are found
    library: ClassVar[Library]

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any], kind: str) -> None:
        if settings.get("weights", RANDOM) == PRETRAINED:
            cls.library.reach(settings["name"])
        else:  # the hub has models under other names too
            cls.library.check(settings["name"], settings[cls.library.options], kind)

    @classmethod
    def files_read(cls, settings: Mapping[str, Any]) -> tuple[Path, ...]:
        weights = settings.get("weights", RANDOM)
        return () if weights in (RANDOM, PRETRAINED) else find_saved(weights).files

    @classmethod
    def classes_noted(cls, settings: Mapping[str, Any]) -> list[str] | None:
        weights = settings.get("weights", RANDOM)
        return None if weights in (RANDOM, PRETRAINED) else read_classes(weights)

    def __init__(
        self,
        task: Task,
        norm: NormFactory,
        *,
        name: str,
        options: Options,
        norm_settings: NormSettings,
        weights: str,
        image_size: int | str | None = None,
    ) -> None:
        super().__init__()
        if torch.empty(0).device.type == "meta":
            raise NotImplementedError("norms of another library are known by what they compute, which takes numbers")
        built = self.library.build(name, options, task, image_size, weights)
        self.name = name
        self.call = built.call
        self.host = built.module
        self.mask: Tensor | None = None
        batch = task.random_batch(EXAMPLES, torch.Generator().manual_seed(0))
        self.check_forward(name, task, batch)
        findings = find(self.host, lambda host: self.call(host, *batch.arguments), task.causal)
        self.left: dict[str, str] = {}
        for left in findings.left:
            self.left[left.path] = f"{left.kind} {left.reason}"
        self.warnings = findings.warnings
        self.block_paths = paths_of(findings, self.host)
        self.roles = roles_of(findings)
        length = getattr(task, "context", None)
        seats = find_seats(self.host, lambda host: self.call(host, *batch.arguments), findings, norm, length)
        self.places = self.replace_norms(findings, task, norm, norm_settings)
        self.add_norms(seats, task)
        self.warnings += seats.warnings
        self.packages = built.packages
        self.decided = built.decided
        self.trained = weights != RANDOM
        if self.trained and any(place.stays and not place.added for place in self.places):
            self.warnings = (*self.warnings, *compare_norms(weights))
        self.anew = built.anew
        self.train()

    def replace_norms(
        self, findings: Findings, task: Task, norm: NormFactory, norm_settings: NormSettings
    ) -> list[Place]:
        """Put what the factory makes in the place of each norm; return what stands where."""
        places: list[Place] = []
        replaced: dict[frozenset[str], list[Found]] = defaultdict(list)  # by the settings that are given
        made: dict[str, nn.Module] = {}
        given_at = getattr(norm, "given_at", None) if norm_settings == "own" else None
        for found in findings.found:
            site = replace(found.site, length=getattr(task, "context", None))
            new = norm(found.features, channel_dim=found.adapter.axis, site=site)
            stays = isinstance(new, Own)
            if stays:
                own_norm: Any = found.module
                own_norm.stands_at = site
                own_norm.channel_dim = found.adapter.axis
            else:
                made[site.name] = new
                given = set(LIKE_HOST) if given_at is None else given_at(site).intersection(LIKE_HOST)
                replaced[frozenset(given)].append(found)
            kind = type(found.module).__name__
            places.append(Place(found.path, site, kind, found.features, found.adapter.read_eps(found.module), stays))

        def take_made(features: int, *, site: Site, **_: Any) -> nn.Module:
            return made[site.name]

        for given, alike in replaced.items():
            part = replace(findings, found=tuple(alike))
            replace_norms(self.host, part, take_made, keep="weights", given=given)
        for new in made.values():
            start_as_asked(new)
            if task.may_pad:
                new.register_forward_pre_hook(self.hand_mask, with_kwargs=True)
        return places

    def add_norms(self, seats: Seats, task: Task) -> None:
        """Put norms where the model has none, each among the places where it runs."""
        for seat, norm in seats.made:
            add(self.host, seat.path, norm, seat.behind)
            if task.may_pad:
                hand_mask = self.hand_mask if seat.behind is None else self.hand_mask_by_head
                norm.register_forward_pre_hook(hand_mask, with_kwargs=True)
            stays = isinstance(norm, NoNorm)  # which a swap asks for, to see what passes there
            kind = NoNorm.__name__
            place = Place(seat.path, seat.site, kind, seat.features, None, stays, added=True, behind=seat.behind)
            self.places.insert(index_of_added(self.places, seat.site), place)

    def check_forward(self, name: str, task: Task, batch: Batch) -> None:
        """Refuse a model that cannot be called with the data, or that sees what it is to predict.

        Raises:
            UsageError: with what its forward says.
        """
        what = f"model={self.library.word} model.name={name}"
        self.host.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                logits = self.call(self.host, *batch.arguments)
                change = self.change_by_future(batch.inputs, logits, task.num_classes) if task.causal else 0.0
        except UsageError:
            raise
        except Exception as error:  # of another library, which may raise anything
            shape = " × ".join(map(str, batch.inputs.shape[1:]))
            given = f"{task.examples} of {shape}"
            cure = self.library.cure_of_forward
            raise UsageError(f"{what} cannot be called with {given} ({explain(error)}): {cure}") from error
        expected = (*batch.targets.shape, task.num_classes)
        if logits.shape != expected:
            cure = "choose another model.name"
            raise UsageError(f"{what} gives logits of {tuple(logits.shape)}, and the data need {expected}: {cure}")
        if change > TOLERANCE * float(logits.abs().max()):
            cure = "choose a causal language model, such as model.name=llama or gpt2"
            raise UsageError(f"{what} sees the tokens that it is to predict: {cure}")

    def try_step(self, batch: Batch, task: Task) -> None:
        norms = self.anatomy().norms
        new = [norms[place.site.name] for place in self.places if not place.stays]
        what = f"model={self.library.word} model.name={self.name}"
        failure = check_step(what, self, lambda model: model(*batch.arguments), new)
        if failure is None:
            return
        if isinstance(failure, UsageError):
            raise failure
        if len(batch.targets) == 1:
            twice = batch.twice()
            if try_step(self, lambda model: model(*twice.arguments), new).error is None:
                raise refuse_single(what, task.examples, failure) from failure
        if isinstance(failure, ValueError):
            cure = self.library.cure_of_forward
            raise UsageError(
                f"{what} does not train on these {task.examples} ({explain(failure)}): {cure}"
            ) from failure
        raise failure

    def change_by_future(self, tokens: Tensor, logits: Tensor, num_classes: int) -> float:
        """Return by how much a logit of the first half of the positions changes if the tokens of the second half do.

        logits: those of the tokens as they are.
        """
        half = tokens.shape[1] // 2
        if half == 0:  # a single position has no future
            return 0.0
        later = (tokens[:, half:] + 1) % num_classes
        changed = torch.cat([tokens[:, :half], later], dim=1)
        difference = self.call(self.host, changed)[:, :half] - logits[:, :half]
        return float(difference.abs().max())

    def hand_mask(
        self, norm: nn.Module, given: tuple[Any, ...], more: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Hand a norm the mask of the batch, which the library's code does not, where its input has one."""
        mask = self.mask_for(given[0])
        return None if mask is None else (given, {**more, "mask": mask})

    def hand_mask_by_head(
        self, norm: nn.Module, given: tuple[Any, ...], more: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Hand the mask of the batch to a norm behind a map, which has positions first, and heads behind them."""
        mask = self.mask_for(given[0], by_head=True)
        return None if mask is None else (given, {**more, "mask": mask})

    def mask_for(self, x: Tensor, by_head: bool = False) -> Tensor | None:
        """Return the mask of the batch, while that is computed, if x has its positions; else None.

        by_head: whether axes between the positions and the features are heads, all of a position alike.
        """
        mask = self.mask
        if mask is None:
            return None
        if by_head and x.ndim > mask.ndim and x.shape[: mask.ndim] == mask.shape:
            axes = (1,) * (x.ndim - 1 - mask.ndim)
            return mask.reshape(*mask.shape, *axes).expand(x.shape[:-1])
        return mask if x.shape[:-1] == mask.shape else None

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return self.call(self.host, inputs)
        self.mask = mask
        try:
            return self.call(self.host, inputs, mask)
        finally:
            self.mask = None

    @property
    def head(self) -> nn.Module | None:
        """Return the output layer; None where it has no weights of its own, or where that is not known."""
        return self.call.head(self.host)

    def anatomy(self) -> Anatomy:
        """Return the blocks that were found, and the norms in the order in which they are called."""
        here = norms_in(self.host)
        norms: dict[str, nn.Module] = {}
        for place in self.places:
            if place.site.name in here:
                norms[place.site.name] = here[place.site.name]
        blocks: list[Block] = []
        for paths in self.block_paths:
            branches: dict[str, nn.Module] = {}
            for role, own_paths in paths.branches.items():
                modules = [self.host.get_submodule(path) for path in own_paths]
                branches[role] = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
            norms_of_block: dict[str, nn.Module] = {}
            for place in self.places:
                if place.site.layer == paths.layer:
                    norms_of_block[place.site.name] = norms[place.site.name]
            module = self.host.get_submodule(paths.path)
            blocks.append(Block(module, paths.layer, paths.side, branches, norms_of_block, paths.channel_dim))
        return Anatomy(self.call.stem(self.host), tuple(blocks), norms, self.head)

    # ---- what is told of it

    def ledger(self) -> dict[str, Any]:
        versions = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        of_host = [place for place in self.places if not place.added]
        epsilons = list(dict.fromkeys(place.eps for place in of_host))
        entries: dict[str, Any] = {
            "host": f"{type(self.host).__name__} of {versions}",
            "host_norms": count_kinds(place.kind for place in of_host),
            "host_eps": epsilons[0] if len(epsilons) == 1 else epsilons,
            "host_norms_kept": sum(place.stays for place in of_host),
        }
        if isinstance(self.call, ImageCaller) and self.call.size is not None:
            entries["images_scaled_to"] = list(self.call.size)
        added = [place for place in self.places if place.added and not place.stays]
        if added:
            entries["host_norms_added"] = len(added)
        if self.trained:
            entries["host_weights"] = "trained"
        for name, value in self.decided.items():
            entries[f"host_{name}"] = list(value) if isinstance(value, tuple) else value
        return entries

    def norms_of_host(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = []
        norms = self.anatomy().norms
        for place in self.places:
            if place.added and place.stays:
                continue
            norm = norms[place.site.name]
            becomes = "as it is" if place.stays else type(norm).__name__
            own_eps = "" if place.eps is None else f"{place.eps:g}"
            new_eps = getattr(norm, "eps", None)
            if not place.stays and isinstance(new_eps, float) and new_eps != place.eps:
                own_eps += f", now {new_eps:g}"
            rows.append(
                {
                    "norm": place.path,
                    "class": place.kind,
                    "place": tell_place(place.site),
                    "features": f"{place.features:,}",
                    "ε": own_eps,
                    "is now": becomes,
                }
            )
        return rows

    def notes(self) -> list[str]:
        left = [f"{path}, a {what}, is left as it is" for path, what in self.left.items()]
        anew = [
            f"{name} starts at random, as the weights have none for this task and its classes" for name in self.anew
        ]
        return [*left, *self.warnings, *anew]


def index_of_added(places: Sequence[Place], site: Site) -> int:
    """Return where a norm inside of attention belongs among places, which are in the order in which they run.

    Behind the last norm of its block that is before this attention, or was added to it; where there is none, before the
    first norm of this attention, else of the block.

    Args:
        places: those that there are, some in its block.
        site: of the norm.
    """
    of_block = [number for number, place in enumerate(places) if place.site.layer == site.layer]
    of_role = [number for number in of_block if site.role in places[number].site.roles]
    before = [number for number in of_role if places[number].site.slot == "in" or places[number].added]
    if before:
        return before[-1] + 1
    return of_role[0] if of_role else of_block[0]


def compare_norms(weights: str) -> list[str]:
    """Say that a model's own norms are not those with which given weights were trained, where a run tells."""
    noted = None if weights == PRETRAINED else read_norm(weights)
    if noted in (None, "own"):
        return []
    what = f"model.weights={weights} is of a run with norm={noted}"
    return [f"{what}, and the model's own norms compute something else with it"]


def tell_place(site: Site) -> str:
    """Return the name of a place, with what else its norm serves."""
    also = " and ".join(site.also)
    return f"{site.name}, of {also} too" if also else site.name


def count_kinds(kinds: Iterable[str]) -> str:
    """Return how many there are of each kind: `25 LayerNorm, 1 BatchNorm2d`."""
    return ", ".join(f"{number} {kind}" for kind, number in Counter(kinds).items())


def paths_of(findings: Findings, host: nn.Module) -> list[BlockPaths]:
    """Return where the blocks that were found are in a model."""
    paths = {module: path for path, module in host.named_modules()}
    blocks: list[BlockPaths] = []
    for block in findings.blocks:
        branches: dict[str, tuple[str, ...]] = {}
        for role, branch in block.branches.items():
            modules = [branch] if branch in paths else list(branch.children())
            branches[role] = tuple(paths[module] for module in modules)
        blocks.append(BlockPaths(block.path, block.layer, block.side, branches, block.channel_dim))
    return blocks


def roles_of(findings: Findings) -> tuple[str, ...]:
    """Return the roles that branches have in the blocks that were found."""
    roles: dict[str, None] = {}
    for block in findings.blocks:
        roles.update(dict.fromkeys(block.branches))
    return tuple(roles)


@torch.no_grad()
def start_as_asked(norm: nn.Module) -> None:
    """Give a norm the start of γ that `norm.gain0` asks for, in place of that of the norm before it."""
    gain0 = getattr(norm, "gain0", 1.0)
    if gain0 != 1 and isinstance(getattr(norm, "weight", None), nn.Parameter):
        norm.get_parameter("weight").fill_(gain0)


class HostedClassifier(Hosted):
    """A classifier of images of another library, with the norms of `norm=`."""

    sizes = "model.image_size, or a smaller model by model.name or the sizes in model.kwargs"

    def __init__(
        self,
        task: ImageClassification,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        name: ImageName,
        kwargs: Kwargs,
        image_size: ImageSize = "auto",
        norm_settings: NormSettings = "own",
        weights: Trained = "random",
    ) -> None:
        super().__init__(
            task, norm, name=name, options=kwargs, norm_settings=norm_settings, weights=weights, image_size=image_size
        )


class TimmModel(HostedClassifier):
    """A classifier of images of timm (Wightman 2019), with the norms of `norm=`."""

    library = LIBRARIES["timm"]
    kinds = library.kinds


class TorchvisionModel(HostedClassifier):
    """A classifier of images of torchvision, with the norms of `norm=`."""

    library = LIBRARIES["torchvision"]
    kinds = library.kinds


class TransformersModel(Hosted):
    """A causal language model or classifier of texts of transformers (Wolf et al. 2020), with the norms of `norm=`."""

    library = LIBRARIES["hf"]
    kinds = library.kinds
    sizes = "model.context, or smaller sizes in model.config, such as model.config.num_hidden_layers"

    def __init__(
        self,
        task: LanguageModeling | TextClassification,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        name: HfName,
        config: Config,
        context: Context = 64,
        norm_settings: NormSettings = "own",
        weights: Trained = "random",
    ) -> None:
        super().__init__(task, norm, name=name, options=config, norm_settings=norm_settings, weights=weights)
