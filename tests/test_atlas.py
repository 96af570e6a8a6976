"""The atlas: what it measures of norms and blocks whose formulas are known, and whether it is still as published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.atlas.anatomy import measure_model, order_of_rotary, place_model, say_placement
from normbench.atlas.atlas import compare_rows, differences, measure_apart, measure_family, versions
from normbench.atlas.behaviour import Behaviour, measure
from normbench.atlas.families import Family
from normbench.atlas.folding import count_folds
from normbench.atlas.page import questions, read_published
from normbench.cli import main
from normbench.commands.atlas import as_json, write_markdown
from normbench.errors import UsageError
from normbench.hosts.adapters import Unreadable, read_adapter
from normbench.hosts.finding import find
from normbench.hosts.libraries import LIBRARIES
from normbench.training.precision import reason_against

REPOSITORY = Path(__file__).parent.parent
WIDTH = 16
OF_16_BITS = ("statistics", "order", "mixed", "large")  # which not every CPU can compute

# Families that are measured again, with the kind of their task.
AGAIN = {
    "hf/llama": "language_model",
    "hf/gpt2": "language_model",
    "hf/gemma2": "language_model",
    "hf/qwen3": "language_model",
    "hf/olmo2": "language_model",
    "hf/cohere": "language_model",
    "hf/bert": "language_model",
    "hf/nanochat": "language_model",
    "timm/vision_transformer": "image_classification",
    "timm/resnet": "image_classification",
}


@pytest.fixture(scope="module")
def has_low() -> bool:
    return not reason_against(torch.device("cpu"), torch.bfloat16)


# ---- norms whose formulas are known


class Root(nn.Module):
    """An RMSNorm, in one of several ways.

    Args:
        eps: ε.
        place: of ε.
        offset: added to what is stored of γ.
        casts: before γ is multiplied.
        wide: takes statistics in float32.
    """

    def __init__(
        self, eps: float, place: str = "inside", offset: float = 0.0, casts: bool = False, wide: bool = True
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH) - offset)
        self.eps, self.place, self.offset, self.casts, self.wide = eps, place, offset, casts, wide

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if self.wide else x
        square = wide.pow(2).mean(-1, keepdim=True)
        if self.place == "inside":
            normalized = wide * torch.rsqrt(square + self.eps)
        elif self.place == "added":
            normalized = wide / (square.sqrt() + self.eps)
        else:
            normalized = wide / square.sqrt().clamp_min(self.eps)
        if self.casts or not self.wide:
            return (self.weight + self.offset) * normalized.to(x.dtype)
        return (normalized * (self.weight.float() + self.offset)).to(x.dtype)


class Unit(nn.Module):
    """A norm by F.normalize."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1, eps=1e-4)


def measured(norm: nn.Module, has_low: bool, shape: tuple[int, ...] = (2, 5, WIDTH), axis: int = -1) -> Behaviour:
    return measure(norm, shape, axis, int(getattr(norm, "num_groups", 0)), False, has_low)


@pytest.mark.parametrize(
    ("place", "words"), [("inside", "inside the root"), ("added", "added to the root"), ("least", "least divisor")]
)
@pytest.mark.parametrize("eps", [1e-5, 3e-3])
def test_eps_and_its_place_are_measured(place: str, words: str, eps: float) -> None:
    found = measured(Root(eps, place), False)
    assert (found.kind, found.eps_place) == ("rmsnorm", words)
    assert found.eps == pytest.approx(eps, rel=0.02)


@pytest.mark.parametrize(
    ("norm", "statistics", "order", "mixed"),
    [
        (Root(1e-6), "float32", "γ in float32, cast last", "bfloat16"),
        (Root(1e-6, casts=True), "float32", "cast, then γ in bfloat16", "float32"),
        (Root(1e-6, wide=False), "bfloat16", "all in bfloat16", "float32"),
        (nn.LayerNorm(WIDTH), "float32", "γ in float32, cast last", "bfloat16"),
    ],
)
def test_casts_are_told_apart(has_low: bool, norm: nn.Module, statistics: str, order: str, mixed: str) -> None:
    if not has_low:
        pytest.skip("this CPU does not compute in bfloat16")
    found = measured(norm, True)
    assert (found.statistics, found.order, found.mixed) == (statistics, order, mixed)


def test_a_stored_gain_less_one_is_told_from_the_gain() -> None:
    assert measured(Root(1e-6), False).gain == "γ"
    assert measured(Root(1e-6, offset=1.0), False).gain == "1 + γ"
    assert measured(nn.LayerNorm(WIDTH, elementwise_affine=False), False).gain == "none"


@pytest.mark.parametrize(
    ("norm", "shape", "axis", "kind", "eps"),
    [
        (nn.LayerNorm(WIDTH), (2, 5, WIDTH), -1, "layernorm", 1e-5),
        (nn.RMSNorm(WIDTH, eps=1e-4), (2, 5, WIDTH), -1, "rmsnorm", 1e-4),
        (nn.GroupNorm(4, WIDTH), (2, WIDTH, 5, 5), 1, "groupnorm", 1e-5),
        (nn.BatchNorm2d(WIDTH, eps=1e-3), (2, WIDTH, 5, 5), 1, "batchnorm", 1e-3),
        (nn.InstanceNorm2d(WIDTH), (2, WIDTH, 5, 5), 1, "instancenorm", 1e-5),
        (Unit(), (2, 5, WIDTH), -1, "l2norm", 1e-4),
    ],
)
def test_kinds_of_torch(norm: nn.Module, shape: tuple[int, ...], axis: int, kind: str, eps: float) -> None:
    found = measured(norm, False, shape, axis)
    assert found.kind == kind
    assert found.eps == pytest.approx(eps, rel=0.02)


def test_the_momentum_of_running_statistics_is_measured() -> None:
    assert measured(nn.BatchNorm2d(WIDTH, momentum=0.03), False, (2, WIDTH, 5, 5), 1).momentum == pytest.approx(0.03)


def test_what_a_row_of_zeros_becomes() -> None:
    found = measured(Root(1e-6), False)
    assert (found.zero, found.zero_half, found.slope) == ("zeros", "zeros", 1000.0)
    assert measured(Root(0.0), False).zero == "NaN"


# ---- blocks whose placement is known


class Block(nn.Module):
    """Two branches, placed as a formula says."""

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        super().__init__()
        self.formula = formula
        self.attn = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x, self.attn, self.mlp, *self.norms)


def post(x: Tensor, f: nn.Module, g: nn.Module, n: nn.Module, m: nn.Module, *rest: nn.Module) -> Tensor:
    x = n(x + f(x))
    return m(x + g(x))


def pre(x: Tensor, f: nn.Module, g: nn.Module, n: nn.Module, m: nn.Module, *rest: nn.Module) -> Tensor:
    x = x + f(n(x))
    return x + g(m(x))


def post_inside(x: Tensor, f: nn.Module, g: nn.Module, n: nn.Module, m: nn.Module, *rest: nn.Module) -> Tensor:
    x = x + n(f(x))
    return x + m(g(x))


def sandwich(x: Tensor, f: nn.Module, g: nn.Module, n: nn.Module, m: nn.Module, o: nn.Module, p: nn.Module) -> Tensor:
    x = x + o(f(n(x)))
    return x + p(g(m(x)))


def parallel(x: Tensor, f: nn.Module, g: nn.Module, n: nn.Module, m: nn.Module, *rest: nn.Module) -> Tensor:
    return x + f(n(x)) + g(m(x))


def plain(x: Tensor, f: nn.Module, g: nn.Module, n: nn.Module, m: nn.Module, *rest: nn.Module) -> Tensor:
    return m(g(n(f(x))))


class Stack(nn.Module):
    """Blocks, of which each is named as one of a list."""

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(formula) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("formula", [pre, post, post_inside, sandwich, parallel])
def test_placements_are_measured(formula: Callable[..., Tensor]) -> None:
    model = Stack(formula)
    x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))

    def call(model: nn.Module) -> object:
        return model(x)

    assert say_placement(place_model(model, call, find(model, call))) == formula.__name__


def test_blocks_without_a_residual_are_told() -> None:
    model = Stack(plain)
    x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))

    def call(model: nn.Module) -> object:
        return model(x)

    assert say_placement(place_model(model, call, find(model, call))) == "no residual"


class Widening(nn.Module):
    """A block whose skip is a map to another width, of the stream or of its norm, as SAM 2's Hiera has it."""

    def __init__(self, width: int, out: int, of_norm: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(out)
        self.proj = nn.Identity() if width == out else nn.Linear(width, out)
        self.pool = nn.MaxPool1d(1)
        self.attn, self.mlp = nn.Sequential(nn.Linear(width, 8), nn.Linear(8, out)), nn.Linear(out, out)
        self.of_norm = of_norm

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        changes = not isinstance(self.proj, nn.Identity)
        skip = self.proj(normed if self.of_norm else x) if changes else x
        x = self.pool(skip) + self.attn(normed)
        return x + self.mlp(self.norm2(x))


class Listed(nn.Module):
    """A transformer whose attention, MLPs and norms are in lists of their own, so that it has no blocks."""

    def __init__(self, normalizes_embedding: bool, is_pre: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, WIDTH)
        self.embedding_norm = nn.LayerNorm(WIDTH) if normalizes_embedding else nn.Identity()
        self.maps = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(4)])
        self.is_pre = is_pre

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding_norm(self.embedding(tokens))
        for linear, norm in zip(self.maps, self.norms, strict=True):
            x = x + linear(norm(x)) if self.is_pre else norm(x + linear(x))
        return x


@pytest.mark.parametrize("is_pre", [True, False])
@pytest.mark.parametrize("normalizes_embedding", [True, False])
def test_the_norm_of_the_embedding_is_told_without_blocks(normalizes_embedding: bool, is_pre: bool) -> None:
    torch.manual_seed(0)
    tokens = torch.arange(10).view(2, 5) % 9
    row = measure_model(Listed(normalizes_embedding, is_pre), lambda model: model(tokens), has_low=False)
    assert row["blocks"] == 0
    assert row["embedding"] == ("LayerNorm" if normalizes_embedding else "")


@pytest.mark.parametrize(("of_norm", "third"), [(True, "pre, of the learned shortcut too"), (False, "pre")])
def test_a_map_to_another_width_is_a_shortcut_and_no_branch(of_norm: bool, third: str) -> None:
    widths = [(16, 16), (16, 16), (16, 24), (24, 24)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), *[Widening(width, out, of_norm) for width, out in widths])
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))

    def call(model: nn.Module) -> object:
        return model(x)

    found = find(model, call)
    assert [list(block.branches) for block in found.blocks] == [["attention", "mlp"]] * 4
    assert [len(block.shortcut) for block in found.blocks] == [0, 0, 1, 0]
    counts = place_model(model, call, found)
    assert sum(counts.values()) == 8
    assert counts[f"attention: {third}"] == (1 if of_norm else 4)


class Bare(nn.Module):
    """A block of one branch with F.relu between its maps, whose skip is left out where it changes the width."""

    def __init__(self, width: int, out: int, convolves: bool) -> None:
        super().__init__()
        self.norm: nn.Module = nn.BatchNorm2d(width) if convolves else nn.LayerNorm(width)
        maps = [nn.Conv2d(one, out, 3, padding=1) if convolves else nn.Linear(one, out) for one in (width, out)]
        self.first, self.second = maps
        self.has_skip = width == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.relu(self.first(self.norm(x))))
        return x + y if self.has_skip else y


@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize("widths", [[(16, 24)] * 1, [(16, 16), (16, 24), (24, 24), (24, 24)]])
def test_a_map_to_another_width_without_a_sum_is_no_shortcut(convolves: bool, widths: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 16, 1) if convolves else nn.Linear(3, 16)
    model = nn.Sequential(stem, *[Bare(width, out, convolves) for width, out in widths])
    shape = (2, 3, 6, 6) if convolves else (2, 5, 3)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def call(model: nn.Module) -> object:
        return model(x)

    found = find(model.eval(), call)
    assert not any(block.shortcut for block in found.blocks)
    if len(widths) > 1:
        counts = place_model(model, call, found)
        assert {phrase.partition(": ")[2]: count for phrase, count in counts.items()} == {"no residual": 1, "pre": 3}


class Skipping(nn.Module):
    """A block with a norm at the end of its branch, whose skip is left out where it changes the size."""

    def __init__(self, has_skip: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.has_skip = has_skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return x + y if self.has_skip else y


def test_blocks_without_a_skip_are_counted_apart_from_their_like() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *[Skipping(number % 3 != 0) for number in range(6)])
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))

    def call(model: nn.Module) -> object:
        return model(x)

    assert place_model(model.eval(), call, find(model, call)) == {"conv: no residual": 2, "conv: post_inside": 4}


class Turning(nn.Module):
    """A block whose queries are turned by position before or after their norm."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.q_norm = nn.RMSNorm(WIDTH)
        self.first = first

    def turn(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2]).view(-1, 1) * 0.1
        one, other = x.chunk(2, -1)
        return torch.cat([one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()], -1)

    def forward(self, x: Tensor) -> Tensor:
        query = x.unsqueeze(1)
        query = self.q_norm(self.turn(query)) if self.first else self.turn(self.q_norm(query))
        return F.scaled_dot_product_attention(query, query, query).squeeze(1)


@pytest.mark.parametrize(("first", "words"), [(True, "after rotary"), (False, "before rotary")])
def test_whether_rotary_comes_before_a_norm_is_measured(first: bool, words: str) -> None:
    model = nn.Sequential(Turning(first))
    one = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0)).expand(2, 13, WIDTH)
    assert order_of_rotary(model, lambda model: model(one), 13, model[0].q_norm, model[0]) == words


# ---- folding


def count(model: nn.Module, x: Tensor) -> dict[str, Any]:
    def call(model: nn.Module) -> object:
        return model(x)

    return count_folds(model.eval(), call, find(model, call))


def texts() -> Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def test_a_gain_folds_into_what_reads_it_and_not_past_a_sum() -> None:
    for formula, folding in ((pre, True), (post, False)):
        found = count(Stack(formula), texts())
        assert bool(found["folds"]) is folding
        assert bool(found["kept"]) is not folding


class Headed(nn.Module):
    """A stack whose last norm is read by a linear map alone."""

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        super().__init__()
        self.stack = Stack(formula)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stack(x)[:, 0])


def test_each_norm_of_a_place_is_tried() -> None:
    found = count(Headed(post), texts())
    assert sum(found["folds"].values()) == 1
    assert sum(found["kept"].values()) > 1


class Readers(nn.Module):
    """A norm, and one that reads it: a weight outside of any module that computes with it, experts, or something else.

    Args:
        formula: what is made of the norm's output and of the weights.
    """

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.RMSNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.Parameter(torch.randn(2, 3, WIDTH))
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(self.norm(x), self.linear, self.experts)


def by_experts(x: Tensor, linear: nn.Linear, experts: Tensor) -> Tensor:
    """Give each position to one of two experts."""
    flat = x.view(-1, WIDTH)
    result = torch.zeros(len(flat), 3).type_as(x)
    for number in range(2):
        chosen = torch.where(torch.arange(len(flat)) % 2 == number)[0]
        result.index_add_(0, chosen, F.linear(flat[chosen], experts[number]))
    return result


@pytest.mark.parametrize(
    ("formula", "folds"),
    [
        (lambda x, linear, experts: linear(x), True),
        (lambda x, linear, experts: linear.weight @ x.transpose(1, 2), True),
        (by_experts, True),
        (lambda x, linear, experts: torch.einsum("btd,ekd->btek", x, experts), True),
        (lambda x, linear, experts: linear(x / 4.0), True),
        (lambda x, linear, experts: linear(x.mean(1)), True),
        (lambda x, linear, experts: linear(x.unflatten(-1, (4, -1)).flatten(-2).float()), True),
        (lambda x, linear, experts: linear(F.relu(x)), False),
        (lambda x, linear, experts: linear(x) + x, False),
        (lambda x, linear, experts: linear(x).mul_(x), False),
        (lambda x, linear, experts: linear(x.amax(1)), False),
        (lambda x, linear, experts: F.linear(x, F.normalize(linear.weight)), False),
        (lambda x, linear, experts: linear(F.layer_norm(x, (WIDTH,))), False),
        (lambda x, linear, experts: x @ x.transpose(1, 2), False),
    ],
)
def test_what_a_gain_can_go_into_is_told_by_what_is_computed(formula: Callable[..., Tensor], folds: bool) -> None:
    found = count(Readers(formula), texts())
    assert (bool(found["folds"]), bool(found["kept"])) == (folds, not folds)


@pytest.mark.parametrize("size", [0.0, 1e-5])
def test_a_gain_folds_into_a_head_that_starts_near_zero(size: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3))
    with torch.no_grad():
        model[1].weight.mul_(size)
    assert count(model, texts())["kept"] == {}


def test_statistics_fold_into_the_convolution_before_them() -> None:
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    after = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    apart = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8))
    for model, folds in ((after, True), (apart, False)):
        found = count(model, x)
        assert (bool(found["folds"]), bool(found["kept"])) == (folds, not folds)


# ---- what is published


def family(key: str) -> Family:
    library, _, name = key.partition("/")
    return Family(library, name, AGAIN[key])


def skip_other_versions(published: dict[str, Any], library: str) -> None:
    """Skip where a library is not here, or another than the published rows were measured with."""
    try:
        LIBRARIES[library].load()
    except UsageError as reason:
        pytest.skip(str(reason))
    names = ("torch", LIBRARIES[library].packages[0])
    for name in names:
        here, there = versions()[name], published["versions"][name]
        if here != there:
            pytest.skip(f"{name} {here} is installed, and the atlas was measured with {there}")


def comparable(row: dict[str, Any], has_low: bool) -> dict[str, Any]:
    """Return a row without what this CPU cannot compute."""
    if has_low:
        return row
    norms = [{name: value for name, value in norm.items() if name not in OF_16_BITS} for norm in row["norms"]]
    return {**row, "norms": norms}


@pytest.mark.parametrize("key", AGAIN)
def test_families_are_still_as_they_are_published(key: str, has_low: bool) -> None:
    published = read_published()
    skip_other_versions(published, family(key).library)
    before = published["families"][key]
    row = measure_family(family(key), before.get("config", {}).get("model", ""), has_low)
    assert compare_rows(comparable(before, has_low), comparable(row, has_low)) == []


def test_a_family_that_cannot_be_built_has_a_reason() -> None:
    row = measure_apart(Family("hf", "no_such_type", "language_model"), "", False)
    assert set(row) == {"reason"}


def test_the_published_page_is_made_of_the_published_values() -> None:
    published = read_published()
    written = (REPOSITORY / "docs" / "atlas.md").read_text("utf-8")
    assert written == write_markdown(published), "write it again: normbench atlas --markdown > docs/atlas.md"
    assert all(published["not_built"].values())


def test_known_facts_are_in_the_tables() -> None:
    tables = {table.title: table for table in questions(read_published())}
    cast_early = str(tables["Who multiplies γ in bfloat16?"].rows)
    assert "hf/llama" in cast_early and "hf/gemma2" not in cast_early
    assert "hf/gemma2" in str(tables["Who stores γ − 1?"].rows)
    assert "hf/qwen3" in str(tables["Who has QK-norm?"].rows)


def test_what_is_written_is_read_again() -> None:
    published = read_published()
    rows = {**published["families"], **{key: {"reason": why} for key, why in published["not_built"].items()}}
    path = REPOSITORY / "docs" / "atlas.json"
    assert path.read_text("utf-8") == as_json(rows, published["versions"])


def test_the_command_shows_a_family_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atlas", "hf/llama"]) == 0
    assert "LlamaRMSNorm" in capsys.readouterr().out
    assert main(["atlas", "hf/lama"]) == 2
    assert "hf/llama" in capsys.readouterr().err
    assert main(["atlas"]) == 0
    assert "hf/llama" in capsys.readouterr().out


def test_differences_name_what_changed() -> None:
    before = {"settings": {"eps": {"value": 1e-6}}, "placement": "pre"}
    after = {"settings": {"eps": {"value": 1e-5}}, "placement": "pre"}
    assert differences(before, after) == ["settings.eps.value: 1e-06 → 1e-05"]
    assert differences(before, before) == []


def norm_at(where: dict[str, int], **facts: Any) -> dict[str, Any]:
    """Return a group of norms as a row has it."""
    return {"class": "N", "count": sum(where.values()), "where": where, "start": {"1": 1}, "kind": "rmsnorm", **facts}


def test_norms_are_compared_by_where_they_stand() -> None:
    """A group that splits, or comes before another, is told of the places that changed alone."""
    before = {"norms": [norm_at({"attention in": 2, "mlp in": 2, "final": 1}, eps=1e-6)]}
    split = {"norms": [norm_at({"final": 1}, eps=1e-5), norm_at({"attention in": 2, "mlp in": 2}, eps=1e-6)]}
    other = {"norms": [norm_at({"attention in": 2, "mlp in": 2, "final": 1}, eps=1e-5)]}
    more = {"norms": [norm_at({"stem": 1}, eps=1e-3), *before["norms"]]}
    assert compare_rows(before, before) == []
    assert compare_rows(before, split) == ["final: eps: 1e-06 → 1e-05"]
    assert compare_rows(before, other) == ["attention in, mlp in, final: eps: 1e-06 → 1e-05"]
    (added,), (gone,) = compare_rows(before, more), compare_rows(more, before)
    assert added.startswith("stem: ") and gone.startswith("stem: ") and added != gone


def test_two_kinds_of_norms_at_a_place_are_compared_together() -> None:
    before = {"norms": [norm_at({"attention q": 3}, eps=1e-6), norm_at({"attention q": 1}, eps=1e-5)]}
    after = {"norms": [norm_at({"attention q": 4}, eps=1e-6)]}
    assert compare_rows(before, before) == []
    (phrase,) = compare_rows(before, after)
    assert phrase.startswith("attention q: 3 N") and phrase.endswith("4 N (rmsnorm, ε 1e-06)")


def test_why_a_family_is_not_measured_is_compared_without_lines_of_files() -> None:
    built = {"norms": [norm_at({"final": 1})], "placement": "pre"}
    there, moved = {"reason": "TypeError: a (m.py, line 3)"}, {"reason": "TypeError: a (m.py, line 300)"}
    assert compare_rows(there, moved) == []
    assert len(compare_rows(there, {"reason": "TypeError: b (m.py, line 3)"})) == 1
    (now,), (lost,) = compare_rows(there, built), compare_rows(built, there)
    assert "N (rmsnorm)" in now and "TypeError" in now and "TypeError" in lost


class Fixed(nn.Module):
    """An RMSNorm with a buffer of one number, as a class has it that is used with and without γ."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(gain))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class RunningScale(Fixed):
    """An RMSNorm with a buffer of one number, by which it multiplies and which training moves."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.weight = 0.9 * self.weight + 0.1 * x.detach().abs().mean()
        return super().forward(x)


def test_a_buffer_of_one_number_that_training_updates_is_refused() -> None:
    norm = RunningScale(1.0)
    with pytest.raises(Unreadable, match="has weight beside what a norm has, which training updates"):
        read_adapter(norm, 1, torch.randn(2, 5, WIDTH))
    assert norm.weight == 1 and norm.training


def test_a_gain_that_is_a_buffer_of_one_number_is_none() -> None:
    assert measured(Fixed(1.0), False).gain == "none"
    x = torch.randn(2, 5, WIDTH)
    assert read_adapter(Fixed(1.0), 1, x).formula == "rmsnorm"
    for other in (2.0, 0.0):
        with pytest.raises(Unreadable):
            read_adapter(Fixed(other), 1, x)


@pytest.mark.parametrize("words", [["--check"], ["hf/llama", "--check"]])
def test_a_check_tells_what_differs_and_what_cannot_be_measured(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"norms": [norm_at({"final": 1}, eps=1e-6)], "placement": "pre"}
    other = {"norms": [norm_at({"final": 1}, eps=1e-5)], "placement": "pre"}
    families = {"hf/llama": row, "hf/gone": row, "timm/resnet": row}
    published = {"versions": versions(), "families": families, "not_built": {}}
    here = [Family("hf", "llama", "language_model"), Family("hf", "new", "language_model")]

    def measure_them(wanted: list[Family], known: dict[str, Any]) -> Any:
        for each in wanted:
            yield each.key, other

    monkeypatch.setattr("normbench.commands.atlas.read_published", lambda: published)
    unusable = {"timm": "timm does not fit torch"}
    monkeypatch.setattr("normbench.atlas.atlas.families_here", lambda: (here, unusable))
    monkeypatch.setattr("normbench.atlas.atlas.measure_families", measure_them)
    assert main(["atlas", *words]) == 1
    output = capsys.readouterr().out
    assert "hf/llama final: eps: 1e-06 → 1e-05" in output
    is_whole = len(words) == 1
    for said in ("1 family of timm, since timm does not fit torch", "hf/gone", "hf/new"):
        assert (said in output) is is_whole
    assert main(["atlas", "timm/resnet", "--check"]) == 2
    assert "timm does not fit torch" in capsys.readouterr().err
    here.clear()
    assert main(["atlas", "--check"]) == 2
    error = capsys.readouterr().err
    assert "timm does not fit torch" in error and "pip install" not in error


def break_down(*given: object) -> Any:
    raise LookupError("nothing is there")


def give_what_cannot_be_sent(*given: object) -> Any:
    return {"norms": lambda: None}


@pytest.mark.parametrize("fails", [break_down, give_what_cannot_be_sent])
def test_whatever_fails_in_a_process_of_the_atlas_is_the_reason(
    fails: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normbench.atlas.atlas.measure_family", fails)
    reason = measure_apart(Family("hf", "llama", "language_model"), "", False)["reason"]
    assert reason.startswith("it cannot be measured (")


@pytest.mark.parametrize("words", [["hf/llama", "--markdown"], ["--check", "--out", "a.json"]])
def test_what_does_not_go_together_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atlas", *words]) == 2
    assert "do not go together" in capsys.readouterr().err
