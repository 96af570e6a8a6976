"""Whole models of schemes against formulas written anew, from their authors' code: logits and gradients in float64.

Each formula takes the weights of a model of ours and names what it was written from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import IMAGES, TEXT, TRANSLATIONS, random_batch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.build import make_model
from normbench.config.compose import read
from normbench.types import ImageClassification, Task

TEXTS = ["model.depth=4", "model.width=32", "model.heads=4", "model.context=16"]
PATCHES = ["model=vit_tiny", "model.depth=2", "model.width=64", "model.heads=2", "model.patch=4", "model.pool=mean"]
PAIRS = ["model=seq2seq", "model.depth=2", "model.decoder_depth=2", "model.width=16", "model.heads=4"]
RESNET = ["model.width=4", "model.blocks=[1,2,1,1]"]
LARGE = ImageClassification(5, image_shape=(3, 72, 72))  # for the stem with a max-pool
EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-12}
RELU = 1.7139588594  # NF-ResNets' constant


def drawn(scheme: str, *words: str, task: Task = TEXT, sizes: list[str] | None = None) -> Any:
    """Return a small model of a scheme in float64, all of whose parameters have moved from their start."""
    sizes = TEXTS if sizes is None else sizes
    config = read([f"scheme={scheme}", *sizes, *words, "trainer.steps=3", "device=cpu", "threads=1"])
    model, _ = make_model(config.recipe, task, 0)
    model.double().eval()
    if getattr(model, "rotation", None) is not None:
        model.rotation = model.rotation / model.rotation.square().sum(0).sqrt()  # cosines and sines of float32
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            size = 0.2 if parameter.ndim < 2 else 0.05
            parameter.add_(size * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    return model


def hold(model: Any, logits: Tensor, expected: Tensor, without: Sequence[Tensor] = ()) -> None:
    """Hold the logits of a model, and the gradients of its parameters, to those of a formula.

    Args:
        model: of ours.
        logits: of it.
        expected: what the formula gives.
        without: parameters that the formula does not have.
    """
    assert expected.std() > 0.1, "of weights that do something"
    torch.testing.assert_close(logits, expected, **EXACT)
    left_out = {id(parameter) for parameter in without}
    parameters = [parameter for parameter in model.parameters() if id(parameter) not in left_out]
    found = torch.autograd.grad(logits.sin().sum(), parameters)
    wanted = torch.autograd.grad(expected.sin().sum(), parameters)
    largest = max(gradient.abs().max().item() for gradient in wanted)
    for gradient, other in zip(found, wanted, strict=True):
        scale = max(other.abs().max().item(), 1e-6 * largest)  # that of a bias of keys is 0 but for rounding
        torch.testing.assert_close(gradient / scale, other / scale, rtol=0, atol=1e-10)


# ---- parts


def rms(x: Tensor, norm: Any) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * (norm.weight + norm.offset)


def ln(x: Tensor, norm: Any) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    y = centered / (centered.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    return y if norm.bias is None else y + norm.bias


def of_length(x: Tensor, norm: Any) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt() * norm.weight


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def relu(x: Tensor) -> Tensor:
    return x * (x > 0)


def gated(mlp: Any, x: Tensor) -> Tensor:
    """Return SwiGLU of x."""
    gate, up = mlp.fc1(x).chunk(2, dim=-1)
    return mlp.fc2(gate * torch.sigmoid(gate) * up)


def turned(x: Tensor, rotation: Tensor) -> Tensor:
    """Features i and i + half of each head as complex numbers, times e to the angle."""
    pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(*rotation)[: x.shape[-2]]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def split(x: Tensor, parts: int, heads: int) -> list[Tensor]:
    """Return (batch, heads, time, size) of each part of a fused map's output."""
    return [*x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4)]


def read_values(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, cap: float | None = None) -> Tensor:
    """Return (batch, time, heads, size): the values that queries find, where keys are not hidden from them."""
    logits = torch.einsum("bhqs,bhks->bhqk", q, k) / q.shape[-1] ** 0.5
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    return torch.einsum("bhqk,bhks->bqhs", logits.softmax(-1), v)


def future(time: int) -> Tensor:
    return torch.ones(time, time, dtype=torch.bool).triu(1)


def attended(
    branch: Any, x: Tensor, normed: dict[str, Any], rotation: Tensor | None, hidden: Tensor | None, heads: int = 4
) -> Tensor:
    """Return self-attention; `normed` has the norm of each of q, k and v, all else is the branch's."""
    parts = dict(zip("qkv", split(branch.qkv(x), 3, heads), strict=True))
    for name in parts.keys() & normed.keys():
        parts[name] = normed[name](parts[name], branch.norms[name])
    q, k, v = parts.values()
    if rotation is not None:
        q, k = turned(q, rotation), turned(k, rotation)
    read = read_values(q, k, v, hidden)
    if "heads" in branch.norms:
        read = read * branch.norms["heads"].weight[:, None]
    read = read.flatten(2)
    if "context" in branch.norms:
        read = ln(read, branch.norms["context"])
    return branch.out(read)


# ---- stacks of attention and MLP


def hybridnorm(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """BryceZhuo/HybridNorm `dense_model/olmo/model.py:805`@f0dd605 with `1.2B-dense-HybriedNorm.yaml`."""
    for block in model.blocks:
        attention, mlp = block.branches.values()
        u = x + attended(attention, x, dict.fromkeys("qkv", rms), model.rotation, hidden)
        u = rms(u, block.norms["attention"]["out"])
        x = u + gated(mlp, u)
    return rms(x, block.norms["mlp"]["out"])


def keel(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """Chen & Wei 2026 (Keel)."""
    gain = 2 * len(model.blocks)
    for number, block in enumerate(model.blocks):
        for role, branch in block.branches.items():
            y = rms(x, block.norms[role]["in"])
            y = attended(branch, y, {}, model.rotation, hidden) if role == "attention" else gated(branch, y)
            x = (gain if number else 1) * x + y
            if number or role == "mlp":
                x = rms(x, block.norms[role]["out"])
    return x


def normformer(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """facebookresearch/fairseq `modules/transformer_layer.py:451`@3d262bb2, gains of heads as the paper has them."""
    for block in model.blocks:
        attention, mlp = block.branches.values()
        read = attended(attention, ln(x, block.norms["attention"]["in"]), {}, None, hidden)
        x = x + ln(read, block.norms["attention"]["out"])
        inside = gelu(mlp.fc1(ln(x, block.norms["mlp"]["in"])))
        x = x + mlp.fc2(ln(inside, mlp.norms["hidden"]))
    return ln(x, model.final_norm)


def magneto(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """microsoft/torchscale `architecture/decoder.py:133`, `component/feedforward_network.py:134`@4d1e0e8."""
    for block in model.blocks:
        attention, mlp = block.branches.values()
        x = x + attended(attention, ln(x, block.norms["attention"]["in"]), {}, None, hidden)
        inside = gelu(mlp.fc1(ln(x, block.norms["mlp"]["in"])))
        x = x + mlp.fc2(ln(inside, mlp.norms["hidden"]))
    return ln(x, model.final_norm)


def mixln(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """pixeli99/MixLN `peft_pretraining/modeling_llama.py:565`@ff45826, one post block of four."""
    for number, block in enumerate(model.blocks):
        for role, branch in block.branches.items():
            norms = block.norms[role]
            y = rms(x, norms["in"]) if number else x
            y = attended(branch, y, {}, model.rotation, hidden) if role == "attention" else gated(branch, y)
            x = x + y if number else rms(x + y, norms["out"])
    return rms(x, model.final_norm)


def rezero(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """majumderb/rezero `rezero/transformer/rztx.py:74`@e2c94a8: one factor for both branches of a block."""
    for block in model.blocks:
        attention, mlp = block.branches.values()
        (factor,) = block.scales.values()
        x = x + factor * attended(attention, x, {}, None, hidden)
        x = x + factor * mlp.fc2(relu(mlp.fc1(x)))
    return x


def vit22b(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """Dehghani et al. 2023, §2; timm 1.0.31 `vision_transformer.py`, ParallelScalingBlock."""
    heads = model.blocks[0].branches["attention"].heads
    for block in model.blocks:
        attention, mlp = block.branches.values()
        y = rms(x, block.norms["shared"]["in"])
        x = x + attended(attention, y, {"q": ln, "k": ln}, None, hidden, heads) + mlp.fc2(gelu(mlp.fc1(y)))
    return rms(x, model.final_norm)


def cait(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """facebookresearch/deit `cait_models.py:147`@7e160fe, with attention's heads apart."""
    for block in model.blocks:
        attention, mlp = block.branches.values()
        read = attended(attention, ln(x, block.norms["attention"]["in"]), {}, None, hidden, 2)
        x = x + block.scales["attention"] * read
        x = x + block.scales["mlp"] * mlp.fc2(gelu(mlp.fc1(ln(x, block.norms["mlp"]["in"]))))
    return ln(x, model.final_norm)


def swin2(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """microsoft/Swin-Transformer `models/swin_transformer_v2.py:154,301`@f82860b, one window, its stem norm apart."""
    x = ln(x, model.stem_norm)
    for block in model.blocks:
        attention, mlp = block.branches.values()
        read = attended(attention, x, {"q": of_length, "k": of_length}, None, hidden, 2)
        x = x + ln(read, block.norms["attention"]["out"])
        x = x + ln(mlp.fc2(gelu(mlp.fc1(x))), block.norms["mlp"]["out"])
    return ln(x, model.final_norm)


def bare_rms(x: Tensor, norm: Any = None) -> Tensor:
    """RMSNorm without a gain; with one fixed at 1.2, in float32, where a norm of queries or keys is given."""
    y = x / (x.square().mean(-1, keepdim=True) + 1.1920929e-07).sqrt()
    return y if norm is None else torch.tensor(1.2).item() * y


def gemma2(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """huggingface/transformers 5.24 `gemma2/modeling_gemma2.py:177,361`, with GELU without tanh."""
    for block in model.blocks:
        attention, mlp = block.branches.values()
        q, k, v = split(attention.qkv(rms(x, block.norms["attention"]["in"])), 3, 4)
        read = read_values(turned(q, model.rotation), turned(k, model.rotation), v, hidden, cap=50.0)
        x = x + rms(attention.out(read.flatten(2)), block.norms["attention"]["out"])
        gate, up = mlp.fc1(rms(x, block.norms["mlp"]["in"])).chunk(2, dim=-1)
        x = x + rms(mlp.fc2(gelu(gate) * up), block.norms["mlp"]["out"])
    return rms(x, model.final_norm)


def nanochat(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """karpathy/nanochat `nanochat/gpt.py:57,101`@92d63d4, which turns by −θ, and normalizes after that."""
    x = start = bare_rms(x)
    back = torch.stack((model.rotation[0], -model.rotation[1]))
    signs = torch.tensor([1.0] * 4 + [-1.0] * 4)  # of a head's features: its second half is negated
    for block in model.blocks:
        attention, mlp = block.branches.values()
        x = block.gain * x + block.start_gain * start
        q, k, v = split(attention.qkv(bare_rms(x)), 3, 4)
        q, k = (bare_rms(turned(each * signs, back), 1) for each in (q, k))
        x = x + attention.out(read_values(q, k, v, hidden).flatten(2))
        x = x + mlp.fc2(relu(mlp.fc1(bare_rms(x))))
    return bare_rms(x)


def modded_nanogpt(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """KellerJordan/modded-nanogpt `train_gpt_medium.py:955,1118`@f411b3d3, which turns by −θ.

    Gates read all features, logits of attention are 0.1·q·k in heads of 128, and there is one x₀.
    """
    x = start = bare_rms(x)
    back = torch.stack((model.rotation[0], -model.rotation[1]))
    signs = torch.tensor([1.0] * 4 + [-1.0] * 4)  # of a head's features: its second half is negated
    for block in model.blocks:
        attention, mlp = block.branches.values()
        x = block.gain * x + block.start_gain * start
        y = bare_rms(x)
        q, k, v = split(attention.qkv(y), 3, 4)
        q, k = (turned(bare_rms(each * signs), back) for each in (q, k))
        found = read_values(torch.tensor(0.1 * 128**0.5).item() * q, k, v, hidden) * torch.sigmoid(
            attention.gate(y)
        ).unsqueeze(-1)
        x = x + attention.out(found.flatten(2))
        x = x + mlp.fc2(relu(mlp.fc1(bare_rms(x))))
    return bare_rms(x)


def weigh_streams(streams: Tensor, reading: Any, norm: Any, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Return the logits of weights of streams (batch, time, streams, width), each with a scale of its own."""
    together = streams.flatten(2)
    normed = together / (together.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    parts = (normed @ reading.map.T).split(sizes, -1)
    return tuple(s * part + base for s, part, base in zip(reading.scale, parts, reading.base.split(sizes), strict=True))


def deepseek_v4(x: Tensor, model: Any, hidden: Any) -> Tensor:
    """huggingface/transformers 5.24 `deepseek_v4/modeling_deepseek_v4.py:765,885,999,1149`, heads of one group each.

    Keys and values are maps of their own, and what rotates are queries and keys alone.
    """
    streams = torch.stack([x] * 4, dim=2)
    normed = {"q": bare_rms_of_6, "k": rms, "v": rms}
    for block in model.blocks:
        for role, branch in block.branches.items():
            read, write, mix = weigh_streams(streams, block.connections[role], block.norms[role]["streams"], (4, 4, 16))
            mix = mix.unflatten(-1, (4, 4)).softmax(-1) + 1e-6
            for axis in [-2, *[-1, -2] * 19]:
                mix = mix / (mix.sum(axis, keepdim=True) + 1e-6)
            y = torch.einsum("bts,btsd->btd", torch.sigmoid(read) + 1e-6, streams)
            y = rms(y, block.norms[role]["in"])
            y = attended(branch, y, normed, model.rotation, hidden) if role == "attention" else gated(branch, y)
            written = torch.einsum("bts,btd->btsd", 2 * torch.sigmoid(write), y)
            streams = torch.einsum("btsr,btsd->btrd", mix, streams) + written
    last = model.blocks[-1]
    (read,) = weigh_streams(streams, last.read_out, last.norms["closing"]["streams"], (4,))
    return rms(torch.einsum("bts,btsd->btd", torch.sigmoid(read) + 1e-6, streams), model.final_norm)


def bare_rms_of_6(x: Tensor, norm: Any) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


Formula = Callable[[Tensor, Any, Any], Tensor]
OF_TEXTS: dict[str, tuple[Formula, list[str]]] = {
    "nanochat": (nanochat, []),
    "modded_nanogpt": (modded_nanogpt, []),
    "deepseek_v4": (deepseek_v4, []),
    "gemma2": (gemma2, []),
    "hybridnorm": (hybridnorm, []),
    "keel": (keel, []),
    "normformer": (normformer, []),
    "magneto": (magneto, []),
    "mixln": (mixln, []),
    "rezero": (rezero, ["model.mlp=relu", "model.bias=true"]),
    "vit22b": (vit22b, []),
}


@pytest.mark.parametrize("scheme", OF_TEXTS)
def test_a_language_model_is_its_authors_function(scheme: str) -> None:
    formula, words = OF_TEXTS[scheme]
    model = drawn(scheme, *words)
    tokens = torch.randint(TEXT.vocabulary_size, (3, 16), generator=torch.Generator().manual_seed(0))
    x = model.stem.embedding.weight[tokens]
    if model.positions is not None:
        x = x + model.positions.weight[:16]
    y = formula(x * model.scale, model, future(16))
    output = model.stem.embedding.weight if model.head.linear is None else model.head.linear.weight
    logits = y @ output.T
    cap = {"nanochat": 15.0, "gemma2": 30.0}.get(scheme)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if scheme == "modded_nanogpt":
        logits = 23 * torch.sigmoid((logits + 5) / 7.5)
    hold(model, model(tokens), logits)


@pytest.mark.parametrize("formula", [vit22b, cait, swin2])
def test_a_classifier_of_patches_is_its_authors_function(formula: Any) -> None:
    model = drawn(formula.__name__, task=IMAGES, sizes=PATCHES)
    images = random_batch(IMAGES).inputs.double()
    projection = model.stem.projection
    patches = F.unfold(images, 4, stride=4).transpose(1, 2)
    x = patches @ projection.weight.flatten(1).T + projection.bias + model.positions.weight
    y = formula(x * model.scale, model, None)
    hold(model, model(images), model.head.linear(y.mean(1)))


class TFixup:
    """layer6ai-labs/T-Fixup `fairseq/modules/transformer_layer.py:91,233`@b17e166, with `--dont-use-layernorm`."""

    def read(self, x: Tensor, block: Any, role: str) -> Tensor:
        """Return what a branch reads of the stream."""
        return x

    def mlp(self, x: Tensor, mlp: Any) -> Tensor:
        y: Tensor = mlp.fc2(relu(mlp.fc1(x)))
        return y

    def end(self, x: Tensor, model: Any, side: str) -> Tensor:
        """Return what is read of a stack."""
        return x


class Magneto(TFixup):
    """microsoft/torchscale `architecture/encoder.py:116`, `architecture/decoder.py:133`@4d1e0e8."""

    def read(self, x: Tensor, block: Any, role: str) -> Tensor:
        return ln(x, block.norms[role]["in"])

    def mlp(self, x: Tensor, mlp: Any) -> Tensor:
        y: Tensor = mlp.fc2(ln(gelu(mlp.fc1(x)), mlp.norms["hidden"]))
        return y

    def end(self, x: Tensor, model: Any, side: str) -> Tensor:
        return ln(x, model.final_norms[side])


def run_side(of: TFixup, model: Any, side: str, tokens: Tensor, hidden: Tensor, memory: Any = None) -> Tensor:
    """Return what an encoder, or with a memory and the places that are hidden of it a decoder, makes of tokens."""
    x = (model.stem.embedding.weight[tokens] + model.positions.weight[: tokens.shape[1]]) * model.scale
    for block in model.blocks[:2] if side == "encoder" else model.blocks[2:]:
        branches = block.branches
        x = x + attended(branches["attention"], of.read(x, block, "attention"), {}, None, hidden)
        if memory is not None:
            cross = branches["cross"]
            (q,) = split(cross.q(of.read(x, block, "cross")), 1, 4)
            k, v = split(cross.kv(memory[0]), 2, 4)
            x = x + cross.out(read_values(q, k, v, memory[1]).flatten(2))
        x = x + of.mlp(of.read(x, block, "mlp"), branches["mlp"])
    return of.end(x, model, side)


@pytest.mark.parametrize("of", [TFixup, Magneto])
def test_a_translator_is_its_authors_function(of: type[TFixup]) -> None:
    scheme = of.__name__.lower()
    words = ["model.hidden=24", "model.context=8", "model.tied=true"]
    model = drawn(scheme, *words, task=TRANSLATIONS, sizes=PAIRS)
    batch = random_batch(TRANSLATIONS)
    source, mask, previous, is_real = batch.arguments
    padded = ~mask[:, None, None]
    memory = run_side(of(), model, "encoder", source, padded)
    y = run_side(of(), model, "decoder", previous, future(previous.shape[1]), (memory, padded))
    expected = y @ model.stem.embedding.weight.T
    hold(model, model(*batch.arguments)[is_real], expected[is_real])


# ---- ResNets


def standardized(convolution: Any) -> Tensor:
    """Return the weight of an NF-ResNet, without the constant of the ReLU that it reads."""
    v = convolution.parametrizations.weight.original
    gain = convolution.parametrizations.weight[0].gain
    flat = v.flatten(1)
    centered = flat - flat.mean(1, keepdim=True)
    weight = centered / centered.square().sum(1, keepdim=True).clamp_min(1e-4).sqrt()
    return (gain[:, None] * weight).view_as(v)


def as_it_is(convolution: Any) -> Tensor:
    weight: Tensor = convolution.weight
    return weight


def convolve(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Return a convolution padded by half of its side; of a single pixel with its stride taken by hand."""
    if weight.shape[-1] == 1:
        return F.conv2d(x[:, :, ::stride, ::stride], weight)
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def stem(model: Any, images: Tensor, weight_of: Any) -> Tensor:
    if isinstance(model.stem, nn.Sequential):
        return F.max_pool2d(convolve(images, weight_of(model.stem[0]), 2), 3, stride=2, padding=1)
    return convolve(images, weight_of(model.stem))


def without_norms(model: Any, images: Tensor, weight_of: Any, constant: float) -> Tensor:
    """Return logits of a ResNet of three convolutions a block that begins with an activation, times a constant.

    deepmind/deepmind-research `nfnets/nf_resnet.py:62,180`, `nfnets/skipinit_resnet.py:163`@d8df415, with symmetric
    padding; a learned shortcut of SkipInit reads the stream here.
    """
    x = stem(model, images, weight_of)
    deviation = 1.0
    for block in model.blocks:
        branch = block.branches["conv"]
        has_beta = weight_of is standardized
        read = constant * relu(x) / (deviation if has_beta else 1.0)
        gain = 0.2 * block.gains["conv"] if has_beta else block.scales["conv"]
        changes = isinstance(branch.projection, nn.Conv2d)
        skip = x
        if changes:
            skip = convolve(read if has_beta else x, weight_of(branch.projection), branch.stride)
        y = convolve(read, weight_of(branch.conv1))
        y = convolve(constant * relu(y), weight_of(branch.conv2), branch.stride)
        y = convolve(constant * relu(y), weight_of(branch.conv3))
        x = skip + gain * y
        deviation = ((1.0 if changes else deviation) ** 2 + 0.2**2) ** 0.5
    return model.head(relu(x).mean((2, 3)))


def test_nf_resnet_is_its_authors_function() -> None:
    words = ["model=resnet50", "weights@stem=scaled_standardized"]
    model = drawn("nf_resnet", *words, task=LARGE, sizes=RESNET)
    images = random_batch(LARGE).inputs.double()
    hold(model, model(images), without_norms(model, images, standardized, RELU))


def test_skipinit_is_its_authors_function_but_for_what_learned_shortcuts_read() -> None:
    model = drawn("skipinit", "model=resnet50", task=LARGE, sizes=RESNET)
    images = random_batch(LARGE).inputs.double()
    hold(model, model(images), without_norms(model, images, as_it_is, 1.0))


@pytest.mark.parametrize("kind", ["resnet18", "resnet50", "resnet20"])
def test_fixup_is_its_authors_function_but_for_biases_that_are_0_at_the_start(kind: str) -> None:
    """hongyi-zhang/Fixup `fixup_resnet_imagenet.py:38,76`, `fixup_resnet_cifar.py:32`@f3fa449."""
    task = IMAGES if kind == "resnet20" else LARGE
    sizes = ["model.width=4", "model.depth=6"] if kind == "resnet20" else RESNET
    model = drawn("fixup", f"model={kind}", "model.activation_at=sum", task=task, sizes=sizes)
    images = random_batch(task).inputs.double()
    x = relu(stem(model, images, as_it_is))
    for block in model.blocks:
        branch = block.branches["conv"]
        with torch.no_grad():
            block.inner_biases["conv"].zero_()
        skip = x
        if branch.changes_shape and kind == "resnet20":
            skip = torch.cat((x[:, :, ::2, ::2], torch.zeros_like(x[:, :, ::2, ::2])), dim=1)
        elif branch.changes_shape:
            skip = convolve(x, branch.projection.weight, branch.stride)
        weights = [branch.get_parameter(f"{name}.weight") for name in branch.scaled]
        strided = len(weights) - 2  # the first of two convolutions, the second of three
        y = x
        for place, weight in enumerate(weights):
            y = convolve(y if place == 0 else relu(y), weight, branch.stride if place == strided else 1)
        x = relu(skip + block.gains["conv"] * y + block.outer_biases["conv"])
    biases = [block.inner_biases["conv"] for block in model.blocks]
    hold(model, model(images), model.head(x.mean((2, 3))), without=biases)
