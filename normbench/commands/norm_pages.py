"""The pages of norms and placements: what their classes declare, and what is measured of them as they are made."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from rich.markdown import Markdown
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer

from normbench import build
from normbench.analysis.wording import environment
from normbench.commands.report import console
from normbench.config.groups import options, section_of
from normbench.config.refusals import REFUSALS, Combination, Refusal
from normbench.contract.checks import Fact
from normbench.contract.norms import INVARIANCES, NormPart, between_modes, invariant, large
from normbench.record.machine import cpu_name
from normbench.types import Branch, Site, Task

Cells = Bool[Tensor, "samples features positions"]

PICTURE = (3, 12, 4)  # samples, features, positions
SHOWN = (0, 9, 1)  # the sample, feature and position of the output that a picture is of
LAYOUTS = {"sequence": "sequences", "image": "images"}
CLOCKED = (16, 512, 512)  # samples, positions, features
LAYERS = 12  # of a Transformer, for which a placement's gains are told
SYMBOLS = {"weight": "γ", "bias": "β", "alpha": "α"}


def tell(group: str, name: str | None, markdown: bool) -> None:
    """Print the page of an option, or of all, in Markdown; for a terminal formatted, and then a norm's time here."""
    torch.set_num_threads(1)  # the tensors are small
    told = pages(group, name)
    if markdown:
        print(told, end="")
        return
    console().print(Markdown(told))
    if group == "norm" and name:
        print()  # the page stands there while the time is measured
        part = NormPart({"norm": section_of("norm", name)})
        words: Any = environment().get_template("norm_pages.jinja").module
        console().print(Markdown(words.time(clocked_here(part))))


def pages(group: str, name: str | None = None) -> str:
    """Return the page of an option, or the pages of all, in Markdown."""
    words: Any = environment().get_template("norm_pages.jinja").module
    told = "" if name else words.head(group)
    for option in [name] if name else options(group):
        tree = {group: section_of(group, option)}
        made = build.target(tree, group)[1]
        about = norm_facts(NormPart(tree)) if group == "norm" else placement_facts(tree, made)
        told += words.begin(option, options(group)[option], inspect.getdoc(made)) + getattr(words, group)(about)
        told += words.refusals(refused(group, about.get("facts", made)))
    return told


def refused(group: str, mine: Any) -> Iterator[tuple[Refusal, str, list[str]]]:
    """Yield why a norm, by its facts, or a placement is refused with which options of another group."""
    for rule in REFUSALS:
        if group not in rule.between:
            continue
        (other,) = {*rule.between} - {group}
        hit = []
        for option in options(other):
            part = build.target({other: section_of(other, option)}, other)[1]
            parts: dict[str, Any] = dict.fromkeys(("norm", "placement", "model", "data"))  # of which two are asked
            parts |= {group: mine, other: part, "task": Task.by_kind.get(getattr(part, "kind", ""))}
            if rule.applies(Combination(**parts)):
                hit.append(option)
        if hit:
            yield rule, other, hit


# ---- norms


def norm_facts(part: NormPart) -> dict[str, Any]:
    """Return what is told of a norm behind its docstring."""
    norm, facts = part.factory()(PICTURE[1]), build.norm_facts(part.tree)
    cells = {place: reached(part, *place) for place in product(LAYOUTS, (True, False))}
    pictures: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (layout, training), own in cells.items():
        pictures[drawn(own)].append((LAYOUTS[layout], "training" if training else "evaluation"))
    seen = [cells["sequence", training] for training in (True, False)]
    return {
        "norm": norm,
        "facts": facts,
        "pictures": pictures,
        "learned": numbers_of(norm.named_parameters()),
        "kept": numbers_of(norm.named_buffers()),
        "others": when(*(own[1:] for own in seen)),
        "later": when(*(own[0, :, SHOWN[2] + 1 :] for own in seen)),
        "alone": seen[0].sum() == 1,
        "differs": holds(large(part, between_modes)),
        "stays": {name: holds(invariant(part, change)) for name, change in INVARIANCES.items()},
        **counted(part),
    }


def holds(found: str | Fact) -> bool:
    """Return the answer of a check that has no declared fact to agree with."""
    return isinstance(found, Fact) and found.holds


def when(training: Tensor, evaluation: Tensor) -> str:
    """Say when any of some truths holds."""
    return "always" if evaluation.any() else "in training" if training.any() else "never"


def numbers_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Name tensors with how many numbers they have; C: as many as features."""
    sizes = {SYMBOLS.get(name, name): tensor.numel() for name, tensor in tensors}
    return ", ".join(f"{name} ({'C' if size == PICTURE[1] else size})" for name, size in sizes.items())


def reached(part: NormPart, layout: str, training: bool) -> Cells:
    """Tell on which values of the input one value of the output depends: where its gradient is not 0."""
    sequence = layout == "sequence"
    norm = part.factory()(PICTURE[1], channel_dim=-1 if sequence else 1).double()
    x = torch.randn(PICTURE, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    given = x.mT if sequence else x[..., None]
    norm.train()(given)  # whose statistics are kept
    y = norm.train(training)(given)
    (gradient,) = torch.autograd.grad((y.mT if sequence else y[..., 0])[SHOWN], x)
    return gradient != 0


def drawn(cells: Cells) -> str:
    """Draw samples side by side, a line a position and a column a feature, as a cut through Wu & He 2018, figure 2."""
    samples, features, positions = PICTURE
    signs = np.where(cells, "■", "·")
    signs[SHOWN] = "●"
    head = "  ".join(f"sample {sample + 1}".ljust(features) for sample in range(samples))
    rows = ["  ".join("".join(row) for row in signs[..., position]) for position in range(positions)]
    lines = [f"position {number}  {row}" for number, row in enumerate(rows, 1)]
    return "\n".join([f"{'':12}{head}".rstrip(), *lines, f"{'':12}features →"])


class Count(TorchDispatchMode):
    """Counts what torch's operators compute, an operation for each value, and the bytes that they read and write."""

    operations = traffic = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)]
        if tensors and not func.is_view:
            self.operations += max(tensor.numel() for tensor in tensors)
            self.traffic += sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors)
        return found


def counted(part: NormPart) -> dict[str, list[float]]:
    """Count operations and bytes for a value, forward and backward, of the formula in plain torch, in float32."""
    norm, x = part.factory(impl="eager")(512), torch.randn(8, 64, 512, requires_grad=True)
    gradient = torch.randn_like(x)
    with Count() as forward:
        y = norm(x)
    with Count() as backward:
        torch.autograd.grad(y, [x, *norm.parameters()], gradient)
    sides = (forward, backward)
    return {what: [getattr(side, what) / x.numel() for side in sides] for what in ("operations", "traffic")}


def clocked_here(part: NormPart) -> dict[str, Any]:
    """Measure the time of forward and backward pass, and its ratio to layernorm's, in alternation."""
    x, y, threads = torch.randn(CLOCKED, requires_grad=True), torch.randn(CLOCKED), torch.get_num_threads()
    norms = [each.factory()(CLOCKED[-1]) for each in (part, NormPart({"norm": section_of("norm", "layernorm")}))]
    code = "torch.autograd.grad(norm(x), [x, *norm.parameters()], y)"
    names = [{"torch": torch, "norm": norm, "x": x, "y": y} for norm in norms]
    timers = [Timer(code, globals=each, num_threads=threads) for each in names]
    times = [[timer.blocked_autorange(min_run_time=0.05).median for timer in timers] for _ in range(7)]
    ratio, own = median(mine / other for mine, other in times), median(mine for mine, _ in times)
    told = {"ratio": ratio, "ms": 1e3 * own, "of": CLOCKED, "cpu": cpu_name(), "threads": threads}
    return {**told, "implementation": norms[0].implementation}


# ---- placements


@dataclass(frozen=True)
class Flow:
    """What a placement does to x, drawn while it does it. sides: the ways that it adds up. after: what comes behind."""

    sides: tuple[str, ...] = ("",)
    after: str = ""

    def through(self, step: str) -> Flow:
        """Return it with a step more."""
        more = f"─ {step} "
        return Flow(self.sides, self.after + more) if len(self.sides) > 1 else Flow((self.sides[0] + more,))

    def __add__(self, other: Flow) -> Flow:
        return Flow(self.sides + other.sides)

    def __rmul__(self, gain: float) -> Flow:
        return self.through("·α")

    def __str__(self) -> str:
        """Draw it, a line for each side: the branches with the most steps first, the skip last."""
        ordered = sorted(self.sides, key=lambda side: (side in ("", "─ ·α "), -side.count("─")))
        first, *others = (f"{side:─<{max(map(len, ordered))}}─" for side in ordered)
        if not others:
            return f"x ─{first}─→ x"
        between = [f"   ├{side}┤" for side in others[:-1]]
        return "\n".join([f"x ─┬{first}⊕{self.after}─→ x", *between, f"   └{others[-1]}┘"])


class Step(Branch):
    """Stands for a branch or a norm, and notes that x has passed."""

    in_features = out_features = 1

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Flow, **context: Any) -> Flow:
        return x.through(self.name)


def placement_facts(tree: Any, made: Any) -> dict[str, Any]:
    """Return what is told of a placement behind its docstring."""
    names = ("attention", "mlp") if made.min_branches > 1 else ("f",)
    site = Site("block", 0, LAYERS, branches=2 * LAYERS)
    block = build.factory(tree, "placement")({name: Step(name) for name in names}, lambda *_, **__: Step("N"), site)
    steps = [module for module in block.norms.modules() if isinstance(module, Step)]
    return {"block": block, "flow": block(Flow()), "norms": len(steps)}
