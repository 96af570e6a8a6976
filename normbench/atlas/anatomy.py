"""What stands where in a whole model of another library, measured by what changes when a norm or a branch is held.

A pass is made with two samples that differ. What gives both of them the first one's output is held: what depends on the
sample behind it shows what went around it.
"""

from __future__ import annotations

import copy
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from normbench.atlas.behaviour import Behaviour, Probe, measure
from normbench.atlas.folding import count_folds, place_of
from normbench.atlas.passes import CallModel, hooked
from normbench.errors import UsageError
from normbench.hosts.adapters import may_be_norm, qualified_name
from normbench.hosts.exact import to_rms
from normbench.hosts.finding import Findings, Found, find
from normbench.hosts.sites import SHORTCUT, HostBlock, has_map
from normbench.hosts.tape import tensors_in

SAME = 1e-5  # relative, of two outputs in float32 that are alike
SKIPPED = 6  # positions at the start that short convolutions see otherwise than those behind
HEADS = ("q", "k", "qk", "kq", "qv", "kv", "qkv", "v")  # what a slot inside of attention begins with
MOST_LAYER_NORMS = 40  # of a model whose mean is taken out, which is slow


# ---- one pass, with something held


def hold(value: Any, vary_first: bool = False) -> Any:
    """Return tensors in which both samples have what the first one has.

    With `vary_first` the first tensor alone differs between them: its second sample has noise beside it as large as
    what it varies by, since deep in a network at its start two samples may hardly differ.
    """
    is_to_vary = vary_first

    def hold_one(item: Any) -> Any:
        nonlocal is_to_vary
        if not isinstance(item, Tensor) or not item.is_floating_point() or item.ndim == 0 or item.shape[0] % 2:
            return item
        first = item[: item.shape[0] // 2]
        second = first
        if is_to_vary:
            is_to_vary = False
            noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(5))
            second = first + (noise * (float(first.float().std(correction=0)) or 1.0)).to(first.dtype)
        return torch.cat([first, second])

    return tree_map(hold_one, value)


def depends_around(model: nn.Module, call: CallModel, held: Iterable[nn.Module], block: nn.Module) -> bool | None:
    """Tell whether a block's output depends on the sample by a way around some modules; None where it has no tensor."""
    seen: list[Tensor] = []

    def hold_output(module: nn.Module, given: Any, output: Any) -> Any:
        return hold(output)

    def hold_context(module: nn.Module, given: Any, named: Any) -> Any:
        return hold((given, named), vary_first=True)

    def see(module: nn.Module, given: Any, output: Any) -> None:
        seen.extend(list(tensors_in(output))[:1])

    with hooked(model) as stack:
        for module in held:
            stack.callback(module.register_forward_hook(hold_output).remove)
        stack.callback(block.register_forward_pre_hook(hold_context, with_kwargs=True).remove)
        stack.callback(block.register_forward_hook(see).remove)
        call(model)
    if not seen or seen[0].shape[0] % 2:
        return None
    first, second = seen[0].float().chunk(2)
    return not torch.allclose(first, second, rtol=SAME, atol=SAME * float(first.abs().max()))


def input_of(model: nn.Module, call: CallModel, watched: nn.Module, emptied: Iterable[nn.Module]) -> Tensor | None:
    """Return the first tensor of floating point that a module is given, where others give zeros."""
    seen: list[Tensor] = []

    def zero(item: Any) -> Any:
        return torch.zeros_like(item) if isinstance(item, Tensor) and item.is_floating_point() else item

    def empty_output(module: nn.Module, given: Any, output: Any) -> Any:
        return tree_map(zero, output)

    def see(module: nn.Module, given: Any, named: Any) -> None:
        for tensor in tensors_in((given, named)):
            if tensor.is_floating_point():
                seen.append(tensor.clone())
                return

    with hooked(model) as stack:
        for module in emptied:
            stack.callback(module.register_forward_hook(empty_output).remove)
        stack.callback(watched.register_forward_pre_hook(see, with_kwargs=True).remove)
        call(model)
    return seen[0] if seen else None


# ---- placement


def modules_of(branch: nn.Module) -> list[nn.Module]:
    """Return the module of a branch, or those that it is a list of."""
    return list(branch) if isinstance(branch, nn.ModuleList) else [branch]


def maps_of(block: HostBlock) -> Iterator[nn.Module]:
    """Give the innermost modules of a block that have a matrix or a kernel, but for those of a learned shortcut."""
    for path, module in block.module.named_modules():
        is_innermost = not any(has_map(child) for child in module.children())
        of_shortcut = module in block.shortcut or SHORTCUT.search(path)
        if is_innermost and has_map(module) and not of_shortcut:
            yield module


def has_skip(model: nn.Module, call: CallModel, block: HostBlock) -> bool | None:
    """Tell whether a block's input reaches its output by a way around all of its maps; None where samples are mixed."""
    return depends_around(model, call, list(maps_of(block)), block.module)


def place_block(
    model: nn.Module, call: CallModel, block: HostBlock, norms: Collection[Found], is_residual: bool | None
) -> dict[str, str]:
    """Return the word for the placement of each branch of a block, and `together` where they stand side by side.

    Args:
        model: the model.
        call: runs one pass.
        block: of it.
        norms: those that stand in the block.
        is_residual: whether its input goes around all of its maps, as `has_skip` tells.
    """
    around = [found for found in norms if found.site.slot in ("in", "out")]
    before = defaultdict[str, int](int)
    after = defaultdict[str, int](int)
    carrying = defaultdict[str, int](int)
    of_shortcut = set[str]()
    for found in around:
        roles = (found.site.role, *found.site.also)
        if depends_around(model, call, [found.module], block.module) is False:
            if found.site.slot == "in" and any(has_map(module) for module in block.shortcut):
                of_shortcut.add(found.site.role)
                before[found.site.role] += 1
            else:
                carrying[found.site.role] += 1
        elif found.site.slot == "in":
            for role in roles:
                before[role] += 1
        else:
            after[found.site.role] += 1
    words: dict[str, str] = {}
    for name in block.branches:
        role = name.partition(".")[0]
        word = word_for(before[role], after[role], carrying[role], is_residual)
        has_inside = any(found.site.role == role for found in norms)
        if word == "pre" and role in of_shortcut:
            word = "pre, of the learned shortcut too"
        words[name] = "inside" if word == "none" and has_inside else word
    if stand_side_by_side(model, call, block):
        words["together"] = "parallel"
    return words


def word_for(before: int, after: int, carrying: int, is_residual: bool | None) -> str:
    """Return the word for a placement, by how many norms stand before and behind a branch and carry the stream."""
    if is_residual is None:
        return "not told"
    if not is_residual:
        return "no residual" if before + after + carrying else "none"
    if carrying:
        return "post" if not before else "pre and post"
    if before and after:
        return "sandwich"
    if before:
        return "pre"
    return "post_inside" if after else "none"


def stand_side_by_side(model: nn.Module, call: CallModel, block: HostBlock) -> bool:
    """Tell whether attention and the MLP of a block read the same stream: neither sees what the other gives."""
    names = [name for name in ("attention", "mlp") if name in block.branches]
    if len(names) < 2:
        return False
    attention, mlp = (modules_of(block.branches[name]) for name in names)
    for one, other in ((attention, mlp), (mlp, attention)):
        with_it = input_of(model, call, other[0], [])
        without_it = input_of(model, call, other[0], one)
        if with_it is None or without_it is None or not torch.allclose(with_it, without_it, rtol=SAME, atol=SAME):
            return False
    return True


def place_model(model: nn.Module, call: CallModel, findings: Findings) -> dict[str, int]:
    """Return how many branches have each placement, by word; of blocks with the same norms and skip one is tried."""
    by_path = {found.path: found for found in findings.found}
    alike: dict[tuple[Any, ...], list[tuple[HostBlock, list[Found], bool | None]]] = defaultdict(list)
    for block in findings.blocks:
        norms = [found for path, found in by_path.items() if path.startswith(f"{block.path}.")]
        form = [(found.site.role, found.site.slot, qualified_name(found.module)) for found in norms]
        has_projection = any(has_map(module) for module in block.shortcut)
        is_residual = has_skip(model, call, block)  # blocks that change the size may have none
        skip = (has_projection, is_residual)
        alike[type(block.module), block.side, tuple(block.branches), skip, *form].append((block, norms, is_residual))
    counts = Counter[str]()
    for blocks in alike.values():
        words = place_block(model, call, *blocks[-1])
        together = words.pop("together", "")
        for name, word in words.items():
            role = name.partition(".")[0]
            phrase = f"{role}: {word}"
            if together and role in ("attention", "mlp"):
                phrase += ", parallel"
            counts[phrase] += len(blocks)
    return dict(counts)


def norm_of_stream(model: nn.Module, call: CallModel, findings: Findings) -> Found | None:
    """Return the first norm if all that a model gives comes through it and no map stands before it, as of embeddings.

    Of a model without blocks this alone tells it from the norm before the first branch, around which the stream goes.
    """
    by_module = {found.module: found for found in findings.found}
    order: dict[nn.Module, None] = {}

    def note(module: nn.Module, given: Any) -> None:
        order[module] = None

    with hooked(model) as stack:
        for module in model.modules():
            is_innermost = has_map(module) and not any(has_map(child) for child in module.children())
            if module in by_module or (is_innermost and not isinstance(module, nn.Embedding)):
                stack.callback(module.register_forward_pre_hook(note).remove)
        call(model)
    first = by_module.get(next(iter(order), model))
    if first is None or depends_around(model, call, [first.module], model) is not False:
        return None
    return first


def say_placement(counts: Mapping[str, int]) -> str:
    """Return one word where all branches have the same placement, else a phrase for each."""
    words = dict.fromkeys(phrase.partition(": ")[2] for phrase in counts)
    if len(words) == 1:
        (word,) = words
        return "parallel" if word == "pre, parallel" else word
    shown = []
    for word in words:
        roles = dict.fromkeys(phrase.partition(": ")[0] for phrase in counts if phrase.endswith(f": {word}"))
        shown.append(f"{word} ({', '.join(roles)})")
    return "; ".join(shown)


# ---- queries and keys


class Scores(TorchFunctionMode):
    """Keeps the queries that attention reads."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.queries: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            self.queries.append((args or tuple((kwargs or {}).values()))[0])
        elif name in ("matmul", "bmm", "einsum", "__matmul__", "baddbmm") and isinstance(result, Tensor):
            is_of_scores = result.ndim > 2 and result.shape[-2:] == (self.length, self.length)
            operands = [arg for arg in args if isinstance(arg, Tensor)]
            if is_of_scores and operands:
                self.queries.append(operands[0])
        return result


def differs_by_position(x: Tensor, length: int) -> bool | None:
    """Tell whether a tensor is another at each position; None where no axis is that of the positions."""
    axes = [axis for axis in range(1, x.ndim) if x.shape[axis] == length]
    if not axes:
        return None
    steps = x.float().movedim(axes[0], 0)[SKIPPED:]
    return not torch.allclose(steps, steps[:1].expand_as(steps), rtol=1e-3, atol=1e-4 * float(steps.abs().max()))


def order_of_rotary(model: nn.Module, call_alike: CallModel, length: int, norm: nn.Module, block: nn.Module) -> str:
    """Return whether a norm of queries stands before or after they are turned by position.

    All tokens are the same, so that nothing differs by position before something turns it.

    Args:
        model: the model.
        call_alike: calls it with one token at all positions.
        length: how many there are.
        norm: of queries, or of queries and keys.
        block: in which it stands.
    """
    given: list[Tensor] = []
    entered: list[Tensor] = []
    scores = Scores(length)

    def see(kept: list[Tensor]) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
            kept.extend(list(tensors_in((args, kwargs)))[:1])

        return keep

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        scores.queries.clear()

    def end(module: nn.Module, args: Any, output: Any) -> None:
        found.extend(scores.queries)

    found: list[Tensor] = []
    with hooked(model) as stack:
        stack.callback(norm.register_forward_pre_hook(see(given), with_kwargs=True).remove)
        stack.callback(block.register_forward_pre_hook(see(entered), with_kwargs=True).remove)
        stack.callback(block.register_forward_pre_hook(begin, with_kwargs=True).remove)
        stack.callback(block.register_forward_hook(end).remove)
        stack.enter_context(scores)
        call_alike(model)
    before_block = differs_by_position(entered[0], length) if entered else None
    before_norm = differs_by_position(given[0], length) if given else None
    if before_block is not False or before_norm is None:
        return "not told"
    if before_norm:
        return "after rotary"
    turned = [differs_by_position(query, length) for query in found]
    if not turned:
        return "not told"
    return "before rotary" if any(turned) else "no rotary"


def describe_heads(model: nn.Module, findings: Findings, call_alike: CallModel | None, length: int) -> tuple[str, str]:
    """Return what norms queries and keys have, and what norms values have; empty where they have none."""
    phrases: dict[str, None] = {}
    values: dict[str, None] = {}
    for found in findings.found:
        letters, _, rest = found.site.slot.partition("_")
        if found.site.role not in ("attention", "cross") or letters not in HEADS:
            continue
        extent = {"all": "all heads together", "latent": "latent"}.get(rest, "per head")
        if "v" in letters and rest != "latent":
            values[f"{letters}, {extent}"] = None
        if not set(letters) & {"q", "k"}:
            continue
        phrase = f"{letters} {extent}"
        block = next((block for block in findings.blocks if found.path.startswith(f"{block.path}.")), None)
        if call_alike is not None and block is not None and rest != "latent" and "q" in letters:
            order = order_of_rotary(model, call_alike, length, found.module, block.module)
            phrase += f", {order}" if order != "not told" else ""
        phrases[phrase] = None
    return "; ".join(phrases), "; ".join(values)


# ---- what becomes an RMSNorm


def count_exact(model: nn.Module, call: CallModel, findings: Findings) -> dict[str, Any]:
    """Return how many LayerNorms can become RMSNorms without a change, and why others cannot."""
    layer_norms = [found for found in findings.found if found.adapter.formula == "layernorm"]
    if not layer_norms:
        return {}
    if len(layer_norms) > MOST_LAYER_NORMS:
        return {"of": len(layer_norms), "why": {"too many to try": len(layer_norms)}}
    try:
        exact = to_rms(model, call)
    except UsageError as error:
        return {"of": len(layer_norms), "why": {shorten(str(error)): len(layer_norms)}}
    reasons = Counter(shorten(reason) for reason in exact.refused.values())
    written_out = len(layer_norms) - len(exact.norms) - len(exact.refused)
    if written_out > 0:
        reasons["torch.export does not show them as torch's operator"] = written_out
    return {"of": len(layer_norms), "become": len(exact.norms), "why": dict(reasons.most_common(3))}


def shorten(reason: str) -> str:
    """Return a reason without the names of what stands in one place of the model alone."""
    without_path = re.sub(r"^\S+\.\S+, a norm,", "a norm", reason)
    without_path = re.sub(r"^[bcp]_(?=\S+ writes to the stream)", "", without_path)  # of torch.export
    return re.split(r": | \(", without_path)[0]


# ---- all norms of a model


def look_at_calls(model: nn.Module, call: CallModel) -> dict[nn.Module, list[tuple[int, ...]]]:
    """Return the shape of the first tensor of each call of what may be a norm."""
    calls: dict[nn.Module, list[tuple[int, ...]]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        shapes = [tuple(tensor.shape) for tensor in tensors_in((args, kwargs))]
        if shapes:
            calls.setdefault(module, []).append(shapes[0])

    with hooked(model) as stack:
        for path, module in model.named_modules():
            if path and may_be_norm(module):
                stack.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        call(model)
    return calls


def settings_of(norm: nn.Module) -> tuple[Any, ...]:
    """Return what norms have in common that are measured once: class, plain attributes, shapes of tensors."""
    plain = []
    for name, value in sorted(vars(norm).items()):
        if isinstance(value, int | float | str | bool | None) and name != "training":
            plain.append((name, value))
    tensors = [(name, tuple(tensor.shape)) for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]]
    return (type(norm), *plain, *tensors)


def measure_norms(model: nn.Module, call: CallModel, findings: Findings, has_low: bool) -> list[dict[str, Any]]:
    """Return the norms of a model that are called, those together that do the same, with where they stand."""
    by_module = {found.module: found for found in findings.found}
    left = {one.path: one.reason for one in findings.left}
    paths = {module: path for path, module in model.named_modules()}
    known: dict[Any, Behaviour] = {}
    groups: dict[Any, dict[str, Any]] = {}
    for norm, shapes in look_at_calls(model, call).items():
        found = by_module.get(norm)
        axis = found.adapter.axis if found else guess_axis(norm, shapes[0])
        key = (*settings_of(norm), len(shapes[0]), shapes[0][axis])
        if key not in known:
            acts = found is not None and found.adapter.acts
            known[key] = measure_or_say(norm, shapes[0], axis, acts, has_low)
        behaviour = known[key]
        where = place_of(found) if found else paths[norm].rpartition(".")[2]
        name = type(norm).__name__
        group = groups.setdefault(
            (name, behaviour),
            {"class": name, "count": 0, "where": Counter(), "start": Counter(), **asdict(behaviour)},
        )
        group["count"] += 1
        group["where"][where] += 1
        group["start"][start_of(norm, shapes[0], axis, behaviour.gain)] += 1
        if len(shapes) > 1:
            group["calls"] = max(group.get("calls", 1), len(shapes))
        if found and found.site.also:
            group["serves"] = [found.site.role, *found.site.also]
        if not found:
            group["left"] = left.get(paths[norm], "")
    rows = []
    for group in groups.values():
        group |= {"where": dict(group["where"]), "start": dict(group["start"])}
        rows.append({name: value for name, value in group.items() if value not in (None, "", False)})
    return rows


def measure_or_say(norm: nn.Module, shape: tuple[int, ...], axis: int, acts: bool, has_low: bool) -> Behaviour:
    """Return what a norm does; where it cannot be fed with one tensor, that."""
    try:
        return measure(norm, shape, axis, int(getattr(norm, "num_groups", 0)), acts, has_low)
    except Exception as error:  # of another library's code, which may raise anything
        return Behaviour(f"not measured ({type(error).__name__})")


def guess_axis(norm: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the axis of the features of an input, by the size of the norm's vectors."""
    sizes = {tensor.numel() for tensor in norm.parameters()}
    if len(shape) > 2 and shape[1] in sizes and shape[-1] not in sizes:
        return 1
    return -1


def start_of(norm: nn.Module, shape: tuple[int, ...], axis: int, gain: str) -> str:
    """Return with which gain a norm starts: a number, or that they are drawn."""
    probe = Probe(norm, shape, axis)
    if gain not in ("γ", "1 + γ"):
        return "none" if gain == "none" else "other"
    values = dict([*norm.named_parameters(), *norm.named_buffers()])[probe.gain_name].detach().float()
    if gain == "1 + γ":
        values = values + 1.0
    low, high = float(values.min()), float(values.max())
    return f"{low:.4g}" if high - low < 1e-6 else "drawn"


def measure_model(
    model: nn.Module,
    call: CallModel,
    *,
    causal: bool = False,
    call_alike: CallModel | None = None,
    length: int = 0,
    has_low: bool = True,
) -> dict[str, Any]:
    """Return what norms a model has, as JSON has it.

    Args:
        model: it stays as it is.
        call: runs one pass with two samples that differ.
        causal: whether it predicts each position from those before it.
        call_alike: runs one with a single token at all positions; None of images.
        length: how many positions these are.
        has_low: whether this CPU computes in bfloat16.
    """
    norms = measure_norms(model, call, find(model, call, causal), has_low)
    model = stir(model)
    findings = find(model, call, causal)
    placement = place_model(model, call, findings)
    heads, values = describe_heads(model, findings, call_alike, length)
    outside: dict[str, list[str]] = {"stem": [], "final": []}
    for found in findings.found:
        if found.site.role in outside:
            outside[found.site.role].append(type(found.module).__name__)
    of_stream = None if findings.blocks else norm_of_stream(model, call, findings)
    if of_stream is not None:
        outside["stem"].append(type(of_stream.module).__name__)
    return {
        "norms": norms,
        "blocks": len(findings.blocks),
        "placement": say_placement(placement) or "no blocks",
        "placements": placement,
        "queries_keys": heads,
        "values": values,
        "final": join_names(outside["final"]),
        "embedding": join_names(outside["stem"]),
        "functions": list(findings.warnings),
        "gain_folds": count_folds(model, call, findings),
        "exact_rms": count_exact(model, call, findings),
    }


@torch.no_grad()
def stir(model: nn.Module) -> nn.Module:
    """Return a copy whose vectors and statistics are not at their start, where a gain of 0 hides a branch."""
    stirred = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(4)
    for parameter in stirred.parameters():
        if parameter.ndim == 1 and parameter.is_floating_point():
            parameter.add_(0.2 * torch.rand(parameter.shape, generator=generator) + 0.1)
    for name, buffer in stirred.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.add_(0.2 * torch.rand(buffer.shape, generator=generator))
    return stirred


def join_names(names: Iterable[str]) -> str:
    """Return names, each once, with how often it is there."""
    counts = Counter(names)
    return ", ".join(name if number == 1 else f"{name} × {number}" for name, number in counts.items())
