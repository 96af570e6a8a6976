"""Placements with several streams: each stack against its formula in float64, and what goes by the stream beside it."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
import torch
from studied import subject
from support import IMAGES, SMALL, TEXT, TRANSLATIONS, build, random_batch, refused, section
from test_newer_placements import DEPTH, WIDTH, X, f, g, make, moved, n, numbers
from torch import Tensor, nn

from normbench.build import build_model, lay_out
from normbench.config.compose import read
from normbench.config.recipe import Recipe
from normbench.config.refusals import refusal
from normbench.placements.mhc import Reading
from normbench.placements.siamese import Siamese
from normbench.probes import Probes
from normbench.studies.depth import streams_of
from normbench.studies.position import see_stream
from normbench.studies.propagation import Passing, what_passed
from normbench.studies.robustness import apply_change, drop
from normbench.training.optimizer import parameter_groups
from normbench.types import Model, NormFacts

SEVERAL = ("resi_dual", "siamese", "x0")


def resi_dual(x: Tensor, own: list[list[Tensor]]) -> Tensor:
    r = x
    for _ in range(DEPTH):
        for branch in (f, g):
            z = branch(x)
            x, r = n(x + z), r + z
    return x + n(r)


def siamese(x: Tensor, own: list[list[Tensor]]) -> Tensor:
    y = x
    for block in range(DEPTH):
        for branch in (f, g):
            x = n(x)
            z = branch(n(x + n(y)))
            x, y = x + z / math.sqrt(2 * (block + 1)), y + z
    return n(x) + n(y)


def x0(x: Tensor, own: list[list[Tensor]]) -> Tensor:
    start = x
    for r, share in own:
        x = r * x + share * start
        for branch in (f, g):
            x = x + branch(n(x))
    return x


REFERENCES = {"resi_dual": resi_dual, "siamese": siamese, "x0": x0}


@pytest.mark.parametrize("name", SEVERAL)
def test_formula_of_a_stack(name: str) -> None:
    blocks: Any = [make(name, layer, f, g) for layer in range(DEPTH)]
    own = [moved(block) for block in blocks]
    x = blocks[0].enter(X)
    for block in blocks:
        x = block(x, mark=7)
    assert x.shape == (2, *X.shape)
    assert (blocks[-1].leave(x) - REFERENCES[name](X, own)).abs().max() < 1e-12


STREAMS = 3


class Bare(nn.Module):
    """A norm that changes nothing, wherever the features are."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def hyper_connections(x: Tensor, own: list[list[Tensor]], dynamic: bool) -> Tensor:
    """Appendix J of Zhu et al. 2024, stream by stream; own: what each branch has learned."""
    streams = [x] * STREAMS
    for place, (mix, write, *of_streams) in enumerate(own):
        read, carry = mix[:, 0], mix[:, 1:]
        weights = []
        for i, stream in enumerate(streams):
            added = torch.zeros(*stream.shape[:-1], STREAMS + 2, dtype=torch.float64)
            if dynamic:
                mix_map, mix_scale, write_map, write_scale = of_streams
                added[..., :-1] = mix_scale * torch.tanh(n(stream) @ mix_map)
                added[..., -1:] = write_scale * torch.tanh(n(stream) @ write_map)
            weights.append(added + torch.cat((read[i : i + 1], carry[i], write[i : i + 1])))
        branch = (f, g)[place % 2]
        z = branch(n(sum(weights[i][..., :1] * streams[i] for i in range(STREAMS))))
        mixed = []
        for j in range(STREAMS):
            carried = sum(weights[i][..., j + 1, None] * streams[i] for i in range(STREAMS))
            mixed.append(carried + weights[j][..., -1:] * z)
        streams = mixed
    return torch.stack(streams).sum(0)


@pytest.mark.parametrize("dynamic", [True, False])
def test_formula_of_hyper_connections(dynamic: bool) -> None:
    blocks: Any = [make("hyper_connections", k, f, g, streams=STREAMS, dynamic=dynamic) for k in range(DEPTH)]
    starts = []
    own = []
    for block in blocks:
        for connection in block.connections.values():
            starts.append(int(connection.mix[:, 0].argmax()))
            own.append(moved(connection))
    assert starts == [0, 1, 2, 0, 1, 2]  # the stream that each branch reads
    x = blocks[0].enter(X)
    for block in blocks:
        x = block(x, mark=7)
    expected = hyper_connections(X, own, dynamic)
    assert (blocks[-1].leave(x) - expected).abs().max() < 1e-12 * expected.abs().max()


def test_what_hyper_connections_start_with_does_not_decay() -> None:
    model, norms = build(placement="hyper_connections")
    decayed, others = parameter_groups(model, norms.values(), weight_decay=0.1, decay_norms=False)
    connection: Any = model.blocks[0].connections["mlp"]
    assert {id(connection.mix), id(connection.write)} <= {id(each) for each in others["params"]}
    assert {id(connection.mix_map), id(connection.write_map)} <= {id(each) for each in decayed["params"]}


def test_hyper_connections_start_as_pre_norm() -> None:
    """Each stream does, and the output is their sum, whose factor of 4 the final norm takes out."""
    made, usual = make("hyper_connections", 1, f, g), make("pre", 1, f, g)
    x = made(made.enter(X), mark=7)
    torch.testing.assert_close(x, usual(X, mark=7).expand(4, -1, -1, -1), rtol=0, atol=1e-12)
    assert made.slots_of("mlp") == ("streams", "in")  # type: ignore[operator]  # a Residual's
    logits = []
    for placement in ("hyper_connections", "pre"):
        model, _ = build(placement=placement, norm_settings={"eps": 0.0})
        logits.append(model(random_batch(TEXT).inputs))
    torch.testing.assert_close(*logits)


def test_hyper_connections_of_images_write_by_the_pixels_that_are_kept() -> None:
    """Of an odd number too."""
    x = numbers(2, 5, 7, 7)
    block: Any = make("hyper_connections", 1, lambda x: x[..., ::2, ::2], channel_dim=1, streams=2)
    block.branches["attention"].shortcut = lambda x: x[..., ::2, ::2]
    block.branches["attention"].stride = 2
    (connection,) = block.connections.values()
    mix, write, mix_map, mix_scale, write_map, write_scale = moved(connection)
    found = block(torch.stack((x, 2 * x)), mark=7)
    last = torch.stack((x, 2 * x)).movedim(2, -1)
    weights = mix.view(2, 1, 1, 1, 3) + mix_scale * torch.tanh(n(last.movedim(-1, 2)).movedim(2, -1) @ mix_map)
    mixed = torch.einsum("sbhwt,sbhwd->tbhwd", weights, last)
    z = n(mixed[0].movedim(-1, 1))[..., ::2, ::2]
    written = write.view(2, 1, 1, 1, 1) + write_scale * torch.tanh(n(last.movedim(-1, 2)).movedim(2, -1) @ write_map)
    kept = mixed[1:].movedim(-1, 2)[..., ::2, ::2]
    torch.testing.assert_close(found, kept + written.movedim(-1, 2)[..., ::2, ::2] * z, rtol=0, atol=1e-12)


def mhc(x: Tensor, own: list[list[Tensor]], end: list[Tensor]) -> Tensor:
    """Xie et al. 2025, equations 7 to 9, with DeepSeek-V4's ε, stream by stream.

    Args:
        x: the start of the stream.
        own: what each branch has learned: φ, b and the three factors.
        end: the same of what is read after the last block.
    """
    streams = [x] * STREAMS
    for place, (mapping, base, scale) in enumerate(own):
        flat = n(torch.cat(streams, dim=-1))
        numbers_of = [(flat * row).sum(-1) for row in mapping]
        rows = range(STREAMS)
        read = [1 / (1 + torch.exp(-(scale[0] * numbers_of[i] + base[i]))) + 1e-6 for i in rows]
        write = [2 / (1 + torch.exp(-(scale[1] * numbers_of[STREAMS + i] + base[STREAMS + i]))) for i in rows]
        raw = [[2 * STREAMS + STREAMS * i + j for j in rows] for i in rows]
        exponentials = [[torch.exp(scale[2] * numbers_of[at] + base[at]) for at in line] for line in raw]
        matrix = [[each / sum(line) + 1e-6 for each in line] for line in exponentials]
        for iteration in range(7):
            if iteration:
                matrix = [[each / (sum(line) + 1e-6) for each in line] for line in matrix]
            sums = [sum(matrix[i][j] for i in rows) + 1e-6 for j in rows]
            matrix = [[matrix[i][j] / sums[j] for j in rows] for i in rows]
        z = (f, g)[place % 2](n(sum(read[i].unsqueeze(-1) * streams[i] for i in rows)))
        streams = [
            sum(matrix[i][j].unsqueeze(-1) * streams[i] for i in rows) + write[j].unsqueeze(-1) * z for j in rows
        ]
    mapping, base, scale = end
    flat = n(torch.cat(streams, dim=-1))
    shares = [1 / (1 + torch.exp(-(scale * (flat @ mapping[i]) + base[i]))) + 1e-6 for i in range(STREAMS)]
    total: Tensor = sum(shares[i].unsqueeze(-1) * streams[i] for i in range(STREAMS))  # type: ignore[assignment]
    return total


def test_formula_and_gradients_of_mhc() -> None:
    blocks: Any = [make("mhc", k, f, g, streams=STREAMS, iterations=7) for k in range(DEPTH)]
    readings = [connection for block in blocks for connection in block.connections.values()]
    readings.append(blocks[-1].read_out)
    for reading in readings:
        moved(reading)
    *own, end = [[reading.map, reading.base, reading.scale] for reading in readings]
    x = X.clone().requires_grad_()
    streams = blocks[0].enter(x)
    for block in blocks:
        streams = block(streams, mark=7)
    found = blocks[-1].leave(streams, mark=7)
    expected = mhc(x, own, end)
    assert (found - expected).abs().max() < 1e-12 * expected.abs().max()
    learned = [x, *(parameter for parameters in (*own, end) for parameter in parameters)]
    weights = numbers(*X.shape)
    ours = torch.autograd.grad((found * weights).sum(), learned)
    theirs = torch.autograd.grad((expected * weights).sum(), learned)
    for gradient, other in zip(ours, theirs, strict=True):
        assert (gradient - other).abs().max() < 1e-11 * other.abs().max()


def test_mhc_mixes_doubly_stochastically() -> None:
    """Whatever the streams are, columns sum to 1 but for ε, and so do rows of what has been mixed often enough."""
    block: Any = make("mhc", 1, f, g, streams=5, iterations=200)
    for connection in block.connections.values():
        moved(connection)
    x = numbers(5, 2, 3, WIDTH)
    mix, write = block.weights(x, "mlp", {})
    mixing = mix[..., 1:]
    assert mix.min() > 0 and 0 < write.min() < write.max() < 2
    for axis in (0, -1):
        torch.testing.assert_close(mixing.sum(axis), torch.ones_like(mixing.sum(axis)), rtol=0, atol=1e-5)


def test_mhc_starts_as_pre_norm() -> None:
    """In each stream, but for ε and the small map; each stays by itself where `diagonal` is large."""
    logits = []
    for placement in ("mhc", "pre"):
        model, _ = build(placement=placement, norm_settings={"eps": 0.0})
        logits.append(model(random_batch(TEXT).inputs))
    torch.testing.assert_close(*logits, rtol=0.02, atol=0.02)
    for diagonal, share in ((0.0, 0.25), (8.0, 1.0)):
        block: Any = make("mhc", 1, f, g, diagonal=diagonal)
        mix, _ = block.weights(block.enter(X), "mlp", {})
        for stream in range(4):
            own_share = mix[stream, ..., 1 + stream]
            torch.testing.assert_close(own_share, torch.full_like(own_share, share), rtol=0, atol=2e-3)


def test_mhc_of_images_is_mhc_of_their_pixels() -> None:
    """And its map reads all channels of all streams."""
    x = numbers(2, WIDTH, 3, 4)
    image: Any = make("mhc", DEPTH - 1, f, channel_dim=1, streams=2)
    flat: Any = make("mhc", DEPTH - 1, f, streams=2)
    for block in (image, flat):
        inside = nn.ModuleDict({"streams": Bare(), "in": Bare()})
        block.norms = nn.ModuleDict({"attention": inside, "closing": nn.ModuleDict({"streams": Bare()})})
    for reading in (image.connections["attention"], image.read_out):
        moved(reading)
    flat.load_state_dict(image.state_dict())
    y = image.leave(image(image.enter(x), mark=7))
    pixels = x.movedim(1, -1)
    expected = flat.leave(flat(flat.enter(pixels), mark=7))
    torch.testing.assert_close(y, expected.movedim(-1, 1), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_mhc_is_that_of_deepseek_v4() -> None:
    """Its modules, which compute in float32; all streams differ."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs

    config = transformers.DeepseekV4Config(hidden_size=16, hc_mult=4, rms_norm_eps=0.1)
    block: Any = make("mhc", DEPTH - 1, f, g)
    connection = theirs.DeepseekV4HyperConnection(config).double()
    head = theirs.DeepseekV4HyperHead(config).double()
    ours = Reading(64, (4, 4, 16)).double()
    end = Reading(64, (4,)).double()
    moved(ours)
    moved(end)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), (connection.fn, connection.base, connection.scale), strict=True):
            other.copy_(mine)
        for mine, other in zip(end.parameters(), (head.hc_fn, head.hc_base, head.hc_scale), strict=True):
            other.copy_(mine)
    block.connections["mlp"] = ours
    block.read_out = end
    norm = build("rmsnorm")[1]["final"].__class__(64, eps=0.1, affine=False)
    block.norms = nn.ModuleDict({"mlp": nn.ModuleDict({"streams": norm}), "closing": nn.ModuleDict({"streams": norm})})
    x = numbers(4, 2, 3, 16)
    there = x.movedim(0, 2).contiguous()
    post, comb, collapsed = connection(there)
    mix, write = block.weights(x, "mlp", {})
    single = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(mix[..., 1:].movedim(0, 2), comb.double(), **single)
    torch.testing.assert_close(write[..., 0].movedim(0, 2), post.double(), **single)
    torch.testing.assert_close(torch.einsum("sbt,sbtd->btd", mix[..., 0], x), collapsed.double(), **single)
    torch.testing.assert_close(block.leave(x), head(there).double(), **single)


def attnres(x: Tensor, queries: list[Tensor], depth: int, size: int) -> Tensor:
    """huggingface/transformers `kimi_k3/modular_kimi_k3.py`@aa83b54: KimiK3DecoderLayer and KimiK3AttentionResidual."""
    left = list(queries)

    def read(candidates: list[Tensor]) -> Tensor:
        query = left.pop(0)
        exponentials = [torch.exp((n(value) * query).sum(-1, keepdim=True)) for value in candidates]
        total = torch.zeros_like(x)
        for exponential, value in zip(exponentials, candidates, strict=True):
            total = total + exponential / sum(exponentials) * value
        return total

    kept: list[Tensor] = []
    p = x
    for layer in range(depth):
        h = read([*kept, p]) if kept else p
        if layer % size == 0:
            kept.append(p)
            p = f(n(h))
        else:
            p = p + f(n(h))
        p = p + g(n(read([*kept, p])))
    return read([*kept, p])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_formula_and_gradients_of_attention_residuals(size: int) -> None:
    blocks: Any = [make("attnres", layer, f, g, size=size) for layer in range(DEPTH)]
    assert {block.streams for block in blocks} == {math.ceil(DEPTH / size) + 1}
    queries: list[Tensor] = []
    for block in blocks:
        moved(block)
        queries += block.queries.values()
    assert len(queries) == 2 * DEPTH  # one for each branch but the first, and one for the end
    x = X.clone().requires_grad_()
    streams = blocks[0].enter(x)
    for block in blocks:
        streams = block(streams, mark=7)
    found = blocks[-1].leave(streams, mark=7)
    expected = attnres(x, queries, DEPTH, size)
    assert (found - expected).abs().max() < 1e-12
    weights = numbers(*X.shape)
    ours = torch.autograd.grad((found * weights).sum(), [x, *queries])
    theirs = torch.autograd.grad((expected * weights).sum(), [x, *queries])
    for gradient, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0 and (gradient - other).abs().max() < 1e-11


def test_attention_residuals_start_with_the_mean_of_all() -> None:
    block: Any = make("attnres", 1, f, g, size=1)
    x = numbers(block.streams, 2, 3, WIDTH)
    torch.testing.assert_close(block.select("mlp", x, block.branches["mlp"], {}), x.mean(0))


@pytest.mark.parametrize(("depth", "size"), [(4, 1), (8, 2), (8, 4)])
def test_attention_residuals_keep_as_much_as_their_page_says(depth: int, size: int) -> None:
    """3·(depth²/size + 3·depth) tensors of the stream, beside those of `pre`, to a tenth."""
    batch = random_batch(TEXT)
    kept = []
    for placement in (section("placement", "pre"), section("placement", "attnres", size=size)):
        sections = {"norm": section("norm", "rmsnorm"), "placement": placement}
        shape = SMALL["nano"] | {"depth": depth, "width": 32}
        model, _ = build_model(Recipe({**sections, "model": section("model", "nano", **shape)}), TEXT, seed=0)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = dict[int, Any]()

        def keep(tensor: Tensor, weights: set[int] = weights, storages: dict[int, Any] = storages) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(*batch.arguments)
        assert output.requires_grad
        kept.append(sum(storage.nbytes() for storage in storages.values()))
    stream = batch.inputs.numel() * 32 * 4
    assert (kept[1] - kept[0]) / stream == pytest.approx(3 * (depth**2 / size + 3 * depth), rel=0.1)


def test_attention_residuals_of_images_are_those_of_their_pixels() -> None:
    x = numbers(3, 2, WIDTH, 3, 4)
    image: Any = make("attnres", 1, f, channel_dim=1)
    pixels: Any = make("attnres", 1, f)
    for block in (image, pixels):
        block.norms = nn.ModuleDict({"attention": nn.ModuleDict({"streams": Bare(), "in": Bare()})})
        moved(block)
    expected = pixels(x.movedim(2, -1), mark=7)
    torch.testing.assert_close(image(x, mark=7), expected.movedim(-1, 2), rtol=0, atol=1e-12)


def test_the_start_of_the_stream_is_mixed_in_less_and_less() -> None:
    """As in nanochat: from the first block to the last r is 1.15 to 1.05 and λ 0.20 to 0.05; one alone starts so."""
    blocks = [make("x0", layer, f, g) for layer in range(DEPTH)]
    alone, _ = build(placement="x0", depth=1)
    starts = [[each.item() for each in (block.gain, block.start_gain)] for block in (*blocks, *alone.blocks)]
    assert starts == [pytest.approx(each) for each in ([1.15, 0.20], [1.10, 0.125], [1.05, 0.05], [1.15, 0.20])]


def test_what_is_kept_of_the_stream_learns_slowly() -> None:
    """In nanochat r has 0.01 of λ's learning rate and a decay, and λ none."""
    model, norms = build(placement="x0")
    fast, slow = parameter_groups(model, norms.values(), weight_decay=0.1, decay_norms=False)[1:]
    assert slow["params"] == [block.gain for block in model.blocks]
    assert (slow["lr_factor"], slow["weight_decay"], fast["weight_decay"]) == (0.01, 0.1, 0.0)
    assert {id(block.start_gain) for block in model.blocks} <= {id(each) for each in fast["params"]}


@pytest.mark.parametrize("name", SEVERAL)
def test_each_stream_takes_the_branch_s_shortcut(name: str) -> None:
    """Where a CNN's block changes the shape."""
    x = numbers(2, 5, 4, 4)
    block: Any = make(name, 1, lambda x: x[..., ::2, ::2], channel_dim=1)
    block.branches["attention"].shortcut = lambda x: 5 * x[..., ::2, ::2]
    first, second = block(block.enter(x), mark=7)
    small = x[..., ::2, ::2]
    if name == "resi_dual":
        expected = (n(6 * small), 6 * small)
    elif name == "siamese":
        z = n(n(x) + n(x))[..., ::2, ::2]
        expected = (5 * n(x)[..., ::2, ::2] + z / 2, 5 * small + z)
    else:
        mixed = (1.10 + 0.125) * x
        expected = (5 * mixed[..., ::2, ::2] + n(mixed)[..., ::2, ::2], 5 * small)
    torch.testing.assert_close((first, second), expected, rtol=0, atol=1e-6)  # r and λ are numbers in float32


def test_closing_norms_stand_at_the_last_block_of_each_stack() -> None:
    _, norms = build(placement="resi_dual")
    assert [name for name in norms if "closing" in name] == ["block01.closing"] and "final" not in norms
    _, norms = build(placement="siamese", model="seq2seq", task=TRANSLATIONS, depth=2, decoder_depth=3)
    assert [name for name in norms if "closing" in name or "final" in name] == [
        *("block01.closing.post", "block01.closing.pre", "block04.closing.post", "block04.closing.pre"),
        *("final.encoder", "final.decoder"),
    ]


# ---- what is refused


@pytest.mark.parametrize("words", ["placement=resi_dual placement@first1=post", "placement@last1=siamese placement=x0"])
def test_a_stack_has_one_kind_of_streams(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["train", *words.split(), "trainer.steps=1", "device=cpu"], capsys)
    assert said.endswith("give all blocks of a stack the same placement, or choose among those with one stream")
    first, second = ("Post", "ResiDual") if "resi_dual" in words else ("StartMixedIn", "Siamese")
    assert said.startswith(f"{first} in block 0 (placement") and f" and {second} in block " in said


@pytest.mark.parametrize(("sizes", "streams"), [((2, 3), (3, 3)), ((1, 2), (5, 3))])
def test_blocks_of_a_stack_add_up_as_many_layers(
    sizes: tuple[int, int], streams: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where as many streams follow from other numbers of layers."""
    words = f"placement=attnres placement.size={sizes[0]} placement@last1=attnres placement@last1.size={sizes[1]}"
    said = refused(["train", *words.split(), "model.depth=4", "trainer.steps=1", "device=cpu"], capsys)
    first, last = (f"has {count} streams and size {size}" for count, size in zip(streams, sizes, strict=True))
    assert said.startswith(f"AttentionResiduals in block 0 (placement) {first}, and AttentionResiduals in block 3 ")
    assert f" {last} of its own: give all blocks of a stack the same placement" in said


def test_sides_of_a_translator_may_differ() -> None:
    words = "model=seq2seq model.depth=1 model.decoder_depth=1 model.width=16 model.hidden=16 model.heads=2"
    tree = read([*words.split(), "placement=pre", "placement@encoder=resi_dual"]).tree
    made = lay_out(Recipe(tree), TRANSLATIONS)
    assert [block.streams for block in made.model.anatomy().blocks] == [2, 1]
    outside = [name for name in made.norms if "closing" in name or "final" in name]
    assert outside == ["block00.closing", "final.decoder"]


def test_a_model_that_takes_one_stream_is_refused() -> None:
    class Own(Model):
        kinds = frozenset({"image_classification"})
        roles = ("layer",)

    data: Any = type("Images", (), {"kind": "image_classification"})
    facts = NormFacts("features of one position", centers=False)
    rule = refusal(facts, Siamese, Own, data)
    assert rule is not None and "several streams" in rule.reason
    Own.has_streams = True
    assert refusal(facts, Siamese, Own, data) is None


# ---- what looks at the stream


@pytest.mark.parametrize("name", [*SEVERAL, "hyper_connections", "mhc", "attnres"])
def test_blocks_are_computed_again_to_the_same_bits(name: str) -> None:
    batch = random_batch(TEXT)
    found = []
    for recompute in (False, True):
        model, _ = build("batchnorm", name, depth=20, width=8)
        model.recompute = recompute
        loss = TEXT.loss(model(*batch.arguments), batch.targets)
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in model.parameters()), *model.buffers()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_probes_take_all_streams_as_one() -> None:
    model, _ = build(placement="resi_dual")
    seen: list[Tensor] = []
    model.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    batch = random_batch(TEXT)
    with Probes(model, {"activations", "geometry"}).watch() as reading:
        TEXT.loss(model(*batch.arguments), batch.targets).backward()
    x, r = seen[0]
    found = reading.numbers()
    mean_square = (x.square().mean() + r.square().mean()) / 2
    assert found["act/stream00/rms"] == pytest.approx(float(mean_square.sqrt()))
    singular = torch.linalg.svdvals(torch.cat((x, r), dim=-1).flatten(0, 1).double())
    rank = torch.special.entr(singular / singular.sum()).sum().exp()
    assert found["act/stream00/effective_rank"] == pytest.approx(float(rank), rel=1e-3)


def test_studies_take_all_streams_as_one() -> None:
    words = ("model.depth=2", "model.width=16", "model.heads=2", "model.context=8", "init.embedding_std=1")
    one = subject("placement=siamese", *words)
    model, _ = one.build()
    blocks = model.anatomy().blocks
    batch = one.data.train_batch(0)
    passed: list[Tensor] = []
    for block in blocks:
        block.module.register_forward_pre_hook(lambda module, inputs: passed.append(inputs[0].detach()))
    blocks[-1].module.register_forward_hook(lambda module, inputs, output: passed.append(output.detach()))
    model(*batch.arguments).sum().backward()
    joined = [torch.cat((x, y), dim=-1) for x, y in passed]
    for stream, expected in zip(streams_of(one, batch), joined, strict=True):
        torch.testing.assert_close(stream, expected.flatten(0, 1).double())
    row = what_passed(blocks[0], Passing(passed[0], passed[1]))
    cosines = torch.cosine_similarity(joined[0].double(), joined[1].double(), dim=-1)
    assert row["angle"] == pytest.approx(float(torch.rad2deg(cosines.acos()).mean()), rel=1e-4)
    assert row["rms"] == pytest.approx(float(joined[1].square().mean().sqrt()))
    found: Any = defaultdict(list)
    see_stream(found, blocks[0], blocks[0].module, (), {}, passed[1])
    means, channels = found.values()
    assert means[0]["mean"].tolist() == pytest.approx(joined[1].double().mean(dim=(0, 2)).tolist())
    assert len(channels[0]["channel_rms"]) == 32


def test_a_change_of_the_stream_is_one_of_all_streams() -> None:
    """A position that is dropped is dropped in each, of images too."""
    model, _ = build(placement="siamese", model="cnn", task=IMAGES)
    blocks = model.anatomy().blocks
    entered: list[Tensor] = []
    middle = blocks[len(blocks) // 2].module
    with apply_change(model, "hidden", lambda x, axis: drop(0.5, x, axis)):
        middle.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
        model(random_batch(IMAGES).inputs)
    x, y = entered[0]
    is_dropped = (x == 0).all(dim=1)
    assert 0.2 < is_dropped.float().mean() < 0.8
    assert torch.equal(is_dropped, (y == 0).all(dim=1))
