"""The pages of norms and placements: what their classes declare, and what is measured on them."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from rich.markdown import Markdown
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from normbench import build
from normbench.commands.report import console
from normbench.config.groups import options, section_of
from normbench.config.recipe import Part, Recipe, resolve
from normbench.config.refusals import OF_PARTS, Combination, Refusal
from normbench.contract.checks import Fact
from normbench.contract.norms import INVARIANCES, NormPart, between_modes, invariant, large
from normbench.errors import UsageError
from normbench.record.machine import cpu_name
from normbench.runs.flow import Flow, Step, draw_branch, draw_end, draw_start
from normbench.show.templating import environment
from normbench.studies.timing import forward_and_backward, time_in_turn
from normbench.types import Norm, NormFacts, Placement, Site, Task
from normbench.wording import fixed, significant

Cells = Bool[Tensor, "samples features positions"]

PICTURE = (3, 12, 4)  # samples, features, positions
SHOWN = (0, 9, 1)  # the sample, feature and position of the output that a picture is of
LAYOUTS = {"sequence": "sequences", "image": "images"}
CLOCKED = (16, 512, 512)  # samples, positions, features
ROUNDS = 7  # of timing a norm and layernorm in turn
COUNTED = (8, 64, 512)  # samples, positions, features
LAYERS = 12  # of a Transformer, for which a placement's gains are told
SYMBOLS = {
    "weight": "γ",
    "bias": "β",
    "alpha": "α",
    "beta": "β",
    "lam": "λ",
    "shift": "s",
    "tau": "τ",
    "down": "W↓",
    "up": "W↑",
}


def tell(group: str, name: str | None, markdown: bool) -> None:
    """Print the page of an option, or of all, in Markdown; for a terminal formatted, and then a norm's time here."""
    torch.set_num_threads(1)  # the tensors are small
    text = pages(group, name)
    if markdown:
        print(text, end="")
        return
    console().print(Markdown(text))
    if group == "norm" and name:
        print()  # the page stands there while the time is measured
        part = NormPart({"norm": section_of("norm", name)})
        timing = measure_time(part)
        console().print(Markdown(write_time(timing)))


@dataclass(frozen=True)
class Refused:
    """With which options of another group an option is refused, and the rule that says why."""

    rule: Refusal
    group: str
    options: list[str]


@dataclass(frozen=True)
class Page:
    """The page of an option.

    Attributes:
        line: what says in the list of options what it is.
        text: the docstring of its class.
    """

    name: str
    line: str
    text: str
    about: NormPage | PlacementPage
    refusals: list[Refused]


def pages(group: str, name: str | None = None) -> str:
    """Return the page of an option, or the pages of all, in Markdown.

    Raises:
        UsageError: the option has no page.
    """
    if name and is_of_host(group, name):
        what = f"{group}={name} has no page, since it is whatever a model of another library has"
        raise UsageError(f"{what}: normbench show --sites model=timm shows that, and docs/given_models.md tells more")
    names = [name] if name else [option for option in options(group) if not is_of_host(group, option)]
    option_pages = [page_of(group, option) for option in names]
    template = environment().get_template("norm_pages.jinja")
    return template.render(group=group, has_heading=not name, pages=option_pages)


def is_of_host(group: str, name: str) -> bool:
    """Tell whether a norm or a placement stands for what a model of another library has by itself."""
    part = resolve(group, section_of(group, name))
    facts = getattr(part.made, "facts", part.made)
    return getattr(facts, "of_host", False)


def page_of(group: str, name: str) -> Page:
    """Return the page of an option."""
    section = section_of(group, name)
    part = resolve(group, section, name)
    text = inspect.getdoc(part.made) or ""
    line = options(group)[name]
    if group == "norm":
        norm = norm_page(NormPart({"norm": section}))
        return Page(name, line, text, norm, list(find_refusals(group, norm.facts)))
    return Page(name, line, text, placement_page(part), list(find_refusals(group, part.made)))


def find_refusals(group: str, mine: NormFacts | type[Placement]) -> Iterator[Refused]:
    """Yield why a norm, by its facts, or a placement is refused with which options of another group."""
    for rule in OF_PARTS:
        if group not in rule.between:
            continue
        (other,) = set(rule.between) - {group}
        refused: list[str] = []
        for option in options(other):
            part = resolve(other, section_of(other, option), option).made
            if getattr(part, "hosted", False):  # whose page tells what they take
                continue
            parts: dict[str, Any] = dict.fromkeys(("norm", "placement", "model", "data"))  # of which two are asked
            parts[group] = mine
            parts[other] = part
            task = Task.by_kind.get(getattr(part, "kind", ""))
            if rule.applies(Combination(**parts, task=task)):
                refused.append(option)
        if refused:
            yield Refused(rule, other, refused)


# ---- norms


@dataclass(frozen=True)
class Picture:
    """What one value is computed from.

    Attributes:
        layouts, modes: in which it is the same, such as `sequences` and `training`.
    """

    drawing: str
    layouts: str
    modes: str


@dataclass(frozen=True)
class Cost:
    """What a pass computes for each value: operations, and the bytes that it reads and writes."""

    operations: float
    traffic: float


@dataclass(frozen=True)
class NormPage:
    """What is told of a norm below its docstring.

    Attributes:
        learned, kept: its parameters and buffers, in words.
        crosses_samples, sees_future: when a value depends on other samples and on later positions: `never`,
            `in training` or `always`.
        pointwise: whether each value comes from one.
        invariances: whether norm(Wx) stays the same, by the change of W or x.
        later: the same in later batches of training, where the norm treats these otherwise; else empty.
    """

    norm: Norm
    facts: NormFacts
    pictures: list[Picture]
    learned: str
    kept: str
    crosses_samples: str
    sees_future: str
    pointwise: bool
    differs_in_evaluation: bool
    invariances: dict[str, bool]
    later: dict[str, bool]
    forward: Cost
    backward: Cost

    def is_invariant(self, change: str) -> bool:
        """Tell whether norm(Wx) stays the same throughout training."""
        return self.invariances[change] and self.later.get(change, True)

    def tell_invariance(self, change: str) -> str:
        """Say when norm(Wx) stays the same."""
        first = "yes" if self.invariances[change] else "no"
        if self.later.get(change, self.invariances[change]) == self.invariances[change]:
            return first
        later = "yes" if self.later[change] else "no"
        return f"{first} in the first batches, {later} in later ones"

    @property
    def epsilon(self) -> str:
        """Name ε and where it stands."""
        if self.norm.eps is None:
            return "none"
        return f"{self.norm.eps:g}, {self.norm.eps_place}"

    @property
    def computes(self) -> bool:
        """Tell whether it computes anything."""
        return self.forward.operations > 0

    @property
    def good_for(self) -> list[str]:
        """Say what it is for, from what was measured."""
        uses = []
        if self.crosses_samples == "never":
            uses.append("batches of any size: no sample depends on another")
        if self.is_invariant("W × c"):
            uses.append(
                "weights before it that grow: their steps shrink by themselves, as the gradient falls with 1 / c"
            )
        if self.is_invariant("one sample × c"):
            uses.append("samples of unlike scale, which it brings to the same scale")
        if self.pointwise and self.computes:
            uses.append("fused operators: each output value depends on one input value alone")
        return uses

    @property
    def bad_for(self) -> list[str]:
        """Say what it is not for, from what was measured."""
        uses = []
        if self.crosses_samples != "never":
            noisy = "small batches, whose statistics are noisy, unless it corrects for that"
            uses.append(f"samples that must not influence each other, nor for {noisy}")
        if self.differs_in_evaluation:
            uses.append("evaluation on data unlike the training data, whose statistics it keeps")
        if self.sees_future == "in training":
            uses.append(
                "language models, though it runs there: in training its statistics show them what they predict, and a "
                "run warns of that"
            )
        if not self.is_invariant("data × c"):
            uses.append("inputs of unknown scale, which it does not remove: the starting values have to fit")
        return uses


def norm_page(part: NormPart) -> NormPage:
    """Measure what is told of a norm."""
    norm = part.factory()(PICTURE[1])
    cells = {}
    for layout, training in product(LAYOUTS, (True, False)):
        cells[layout, training] = trace(part, layout, training)
    trained = cells["sequence", True]
    evaluated = cells["sequence", False]
    later = slice(SHOWN[2] + 1, None)
    forward, backward = count_costs(part)
    has_later_state = bool(getattr(norm, "later", {}))
    invariances: dict[str, bool] = {}
    invariances_later: dict[str, bool] = {}
    for name, change in INVARIANCES.items():
        invariances[name] = holds(invariant(part, change))
        if has_later_state:
            invariances_later[name] = holds(invariant(part, change, later=True))
    return NormPage(
        norm=norm,
        facts=build.norm_facts(Recipe(part.tree)),
        pictures=pictures_of(cells),
        learned=numbers_of(norm.named_parameters()),
        kept=numbers_of(norm.named_buffers()),
        crosses_samples=when(trained[1:], evaluated[1:]),
        sees_future=when(trained[0, :, later], evaluated[0, :, later]),
        pointwise=int(trained.sum()) == 1,
        differs_in_evaluation=holds(large(part, between_modes)),
        invariances=invariances,
        later=invariances_later,
        forward=forward,
        backward=backward,
    )


def holds(answer: str | Fact) -> bool:
    """Return the answer of a check that has no declared fact to agree with."""
    return isinstance(answer, Fact) and answer.holds


def when(training: Tensor, evaluation: Tensor) -> str:
    """Say when any of some truths holds."""
    if evaluation.any():
        return "always"
    return "in training" if training.any() else "never"


def numbers_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Name tensors with how many numbers they have; C: as many as features."""
    sizes = []
    for name, tensor in tensors:
        shape = ["C" if length == PICTURE[1] else str(length) for length in tensor.shape]
        size = " × ".join(shape) or "1"
        sizes.append(f"{SYMBOLS.get(name, name)} ({size})")
    return ", ".join(sizes)


def trace(part: NormPart, layout: str, training: bool) -> Cells:
    """Tell on which values of the input one value of the output depends: where its gradient is not 0.

    A norm that contains an activation may depend on others where this value is negative, so that both are tried.
    """
    sequence = layout == "sequence"
    norm = part.factory()(PICTURE[1], channel_dim=-1 if sequence else 1).double()
    drawn = torch.randn(PICTURE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    depends_on = torch.zeros(PICTURE, dtype=torch.bool)
    for sign in (1, -1):
        x = (sign * drawn).requires_grad_()
        given = x.mT if sequence else x[..., None]
        norm.train()(given)  # whose statistics are kept
        y = norm.train(training)(given)
        shown = (y.mT if sequence else y[..., 0])[SHOWN]
        (gradient,) = torch.autograd.grad(shown, x)
        depends_on |= gradient != 0
    return depends_on


def pictures_of(cells: dict[tuple[str, bool], Cells]) -> list[Picture]:
    """Return a picture for all layouts and modes in which it is the same.

    Args:
        cells: by layout, and whether in training.
    """
    places: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for place, cells_of_place in cells.items():
        places[draw(cells_of_place)].append(place)
    pictures = []
    for drawing, places_of_drawing in places.items():
        layouts: dict[str, None] = {}  # in their order
        modes: dict[str, None] = {}
        for layout, training in places_of_drawing:
            layouts[LAYOUTS[layout]] = None
            modes["training" if training else "evaluation"] = None
        pictures.append(Picture(drawing, " and ".join(layouts), " and ".join(modes)))
    return pictures


def draw(cells: Cells) -> str:
    """Draw samples side by side, a line a position and a column a feature, as a cut through Wu & He 2018, figure 2."""
    samples, features, positions = PICTURE
    signs = np.where(cells, "■", "·")
    signs[SHOWN] = "●"
    margin = " " * 12
    names = [f"sample {sample + 1}".ljust(features) for sample in range(samples)]
    head = margin + "  ".join(names)
    lines = [head.rstrip()]
    for position in range(positions):
        row = "  ".join(map("".join, signs[..., position]))
        lines.append(f"position {position + 1}  {row}")
    lines.append(f"{margin}features →")
    return "\n".join(lines)


class Count(TorchDispatchMode):
    """Counts what torch's operators compute, and the bytes that they read and write.

    An operation for each value, and of a product of matrices one for each product of numbers and each sum of two.
    """

    operations = 0
    traffic = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, output)) if isinstance(leaf, Tensor)]
        is_view = func.is_view or func.overloadpacket is torch.ops.aten._unsafe_view  # which is none by its signature
        if tensors and not is_view:
            count_products = flop_registry.get(func.overloadpacket)
            if count_products is None:
                self.operations += max(tensor.numel() for tensor in tensors)
            else:
                self.operations += count_products(*args, **(kwargs or {}), out_val=output)
            for tensor in tensors:
                stored = tensor.untyped_storage().nbytes()
                self.traffic += min(tensor.nbytes, stored)
        return output


def count_costs(part: NormPart) -> tuple[Cost, Cost]:
    """Count what the formula in plain torch costs in float32, forward and backward."""
    choice = {"impl": "eager"} if "impl" in part.tree["norm"] else {}
    norm = part.factory(**choice)(COUNTED[-1])
    x = torch.randn(COUNTED, requires_grad=True)
    gradient = torch.randn_like(x)
    with Count() as forward:
        y = norm(x)
    with Count() as backward:
        torch.autograd.grad(y, [x, *norm.parameters()], gradient)
    values = x.numel()
    return (
        Cost(forward.operations / values, forward.traffic / values),
        Cost(backward.operations / values, backward.traffic / values),
    )


@dataclass(frozen=True)
class Timing:
    """How long forward and backward pass of a norm take here, and their ratio to layernorm's."""

    ms: float
    ratio: float
    implementation: str


def measure_time(part: NormPart) -> Timing:
    """Measure the time of forward and backward pass, and its ratio to layernorm's, in alternation."""
    x = torch.randn(CLOCKED, requires_grad=True)
    dy = torch.randn(CLOCKED)
    norm = part.factory()(CLOCKED[-1])
    other_part = NormPart({"norm": section_of("norm", "layernorm")})
    layernorm = other_part.factory()(CLOCKED[-1])
    calls = [forward_and_backward(module, x, dy) for module in (norm, layernorm)]
    times: list[float] = []
    ratios: list[float] = []
    for norm_seconds, layernorm_seconds in time_in_turn(calls, ROUNDS):
        times.append(norm_seconds)
        ratios.append(norm_seconds / layernorm_seconds)
    return Timing(1e3 * median(times), median(ratios), norm.implementation)


def write_time(time: Timing) -> str:
    """Write a norm's time as a line of its page."""
    size = " × ".join(map(str, CLOCKED))
    return (
        f"- time here: {fixed(time.ratio, 2)} × layernorm's: {significant(time.ms)} ms, forward and backward, for "
        f"{size} in float32 ({time.implementation} on {cpu_name()}, threads={torch.get_num_threads()})\n"
    )


# ---- placements


@dataclass(frozen=True)
class PlacementPage:
    """What is told of a placement below its docstring.

    Attributes:
        block: one in the middle of a stack.
        flow: the stream's way, drawn; of several streams, through a branch.
        norms: how many a block has, or a branch.
        closing_norms: how many read several streams after the last block.
        start, end: the ways of several streams before the first branch of a block and after the last block, drawn.
    """

    block: Placement
    flow: str
    norms: int
    closing_norms: int = 0
    start: str = ""
    end: str = ""

    @property
    def streams(self) -> str:
        """Name the streams, if there are several."""
        names = getattr(self.block, "names", ())
        return " and ".join(names)

    @property
    def unit(self) -> str:
        """Name what the flow is of."""
        return "a block" if self.block.min_branches > 1 else "a branch"

    @property
    def has_gains(self) -> bool:
        """Tell whether the skip or a branch's starting weights are scaled."""
        return self.block.residual_gain != 1 or self.block.branch_gain != 1


def placement_page(placement: Part) -> PlacementPage:
    """Draw what a placement does to the stream."""
    names = ("attention", "mlp") if placement.made.min_branches > 1 else ("f",)
    branches = {name: Step(name) for name in names}
    make_placement = build.factory(placement)
    site = Site("block", 1, LAYERS, branches=2 * LAYERS)  # the first block may be an exception
    block = make_placement(branches, make_norm, site)
    norms = count_steps(block.norms)
    if not hasattr(block, "names"):
        return PlacementPage(block, str(block.sketch(Flow())), norms)
    last = make_placement(branches, make_norm, replace(site, layer=LAYERS - 1))
    return PlacementPage(
        block,
        flow=draw_branch(block, names[0]),
        norms=norms,
        closing_norms=count_steps(last.norms) - norms,
        start=draw_start(block),
        end=draw_end(last),
    )


def make_norm(num_features: int, *, channel_dim: int = -1, site: Site) -> Step:
    """Stand for a norm, as N."""
    return Step("N")


def count_steps(norms: nn.Module) -> int:
    """Return how many norms there are."""
    return sum(isinstance(module, Step) for module in norms.modules())
