"""Caps of logits and of attention's logits, and the gate of attention, against formulas and transformers' code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import IMAGES, TEXT, TEXTS, TRANSLATIONS, build, random_batch
from torch import Tensor

from normbench.build import make_model
from normbench.config.compose import read
from normbench.models.seq2seq import CrossAttention
from normbench.models.transformer import Attention, soft_cap
from normbench.norms import NoNorm
from normbench.types import Site, Task

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
WIDTH, HEADS = 16, 4
PLACE: Any = {"norm": NoNorm, "site": Site("block"), "bias": False, "dropout": 0.0}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hold(found: Tensor, expected: Tensor, inputs: list[Any], others: list[Any] | None = None) -> None:
    """Hold what a part gives, and the gradients of a weighted sum of it, to a formula.

    Args:
        found: what the part gives.
        expected: what the formula gives.
        inputs: of both.
        others: those of the formula, where they are other tensors.
    """
    torch.testing.assert_close(found, expected, **EXACT)
    weights = numbers(*found.shape, seed=9)
    gradients = torch.autograd.grad((found * weights).sum(), inputs)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs if others is None else others)
    for gradient, other in zip(gradients, wanted, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(gradient, other, **EXACT)


def drawn(branch: Any) -> Any:
    """Return a branch in float64, whose weights are large enough for caps and gates to show."""
    branch.double()
    for seed, parameter in enumerate(branch.parameters()):
        parameter.data.copy_(numbers(*parameter.shape, seed=seed))
    return branch


# ---- caps


def test_soft_caps_by_hand() -> None:
    x = torch.tensor([0.0, 30.0, -60.0, 1e6], dtype=torch.float64)
    e = math.e
    expected = torch.tensor([0.0, 30 * (e**2 - 1) / (e**2 + 1), -30 * (e**4 - 1) / (e**4 + 1), 30.0])
    torch.testing.assert_close(soft_cap(x, 30.0), expected.double(), rtol=1e-7, atol=0)
    x = torch.tensor([-5.0, 2.5, 1e6, -1e6], dtype=torch.float64)
    expected = torch.tensor([11.5, 23 * e / (e + 1), 23.0, 0.0])
    torch.testing.assert_close(soft_cap(x, "sigmoid"), expected.double(), rtol=1e-7, atol=0)
    assert soft_cap(x.half(), 30.0).dtype == torch.float32, "16 bits would tell few large logits apart"


@pytest.mark.parametrize("cap", [3.0, "sigmoid"])
@pytest.mark.parametrize(
    ("model", "task"),
    [("nano", TEXT), ("nano", TEXTS), ("nano", IMAGES), ("seq2seq", TRANSLATIONS), ("rnn_lm", TEXT)],
)
def test_the_logits_of_each_model_are_capped(model: str, task: Task, cap: Any) -> None:
    placement = "plain" if model == "rnn_lm" else "pre"
    usual = build(placement=placement, model=model, task=task)[0].double().eval()
    capped = build(placement=placement, model=model, task=task, softcap=cap)[0].double().eval()
    for parameter in usual.parameters():
        parameter.data.mul_(4)
    capped.load_state_dict(usual.state_dict())
    batch = random_batch(task)
    if batch.inputs.is_floating_point():
        batch = batch._replace(inputs=batch.inputs.double())
    logits = usual(*batch.arguments)
    assert logits.abs().max() > 1
    if cap == "sigmoid":
        expected = 23 / (1 + torch.exp(-(logits + 5) / 7.5))
    else:
        expected = 3 * (1 - 2 / (torch.exp(2 * logits / 3) + 1))
    torch.testing.assert_close(capped(*batch.arguments), expected, **EXACT)


def find(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, cap: float | None = None) -> Tensor:
    """Return (batch, time, width) of what queries find, all (batch, time, width): attention and the cap, written anew.

    Args:
        q, k, v: of all heads.
        hidden: where a key is hidden from a query, in a shape that goes with (batch, heads, queries, keys).
        cap: c of c·tanh(x/c).
    """
    q, k, v = (each.unflatten(-1, (HEADS, -1)) for each in (q, k, v))
    logits = torch.einsum("bqhs,bkhs->bhqk", q, k) / math.sqrt(WIDTH / HEADS)
    if cap is not None:
        logits = cap * (1 - 2 / (torch.exp(2 * logits / cap) + 1))
    if hidden is not None:
        logits = logits.masked_fill(hidden, -math.inf)
    return torch.einsum("bhqk,bkhs->bqhs", logits.softmax(-1), v).flatten(2)


@pytest.mark.parametrize("kind", ["causal", "of all", "padded"])
def test_attention_with_a_cap_is_its_formula(kind: str) -> None:
    branch = drawn(Attention(WIDTH, HEADS, causal=kind == "causal", cap=2.0, **PLACE))
    x = numbers(2, 7, WIDTH, seed=5).requires_grad_()
    mask = None
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if kind == "causal" else None
    if kind == "padded":
        mask = torch.arange(7) < torch.tensor([[7], [4]])
        hidden = ~mask[:, None, None]
    expected = branch.out(find(*branch.qkv(x).chunk(3, dim=-1), hidden, cap=2.0))
    hold(branch(x, mask=mask), expected, [x, branch.qkv.weight, branch.out.weight])


def test_what_looks_at_attention_sees_capped_logits() -> None:
    branch = drawn(Attention(WIDTH, HEADS, causal=True, cap=2.0, **PLACE))
    q, k = numbers(1, HEADS, 5, 4), 9 * numbers(1, HEADS, 5, 4, seed=1)
    seen = branch.inner.logits(q, k, None)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert seen[:, :, future].eq(-math.inf).all() and 1.9 < seen[:, :, ~future].abs().max() < 2


def test_a_large_cap_is_none() -> None:
    x = numbers(2, 7, WIDTH)
    usual, capped = (drawn(Attention(WIDTH, HEADS, causal=True, cap=cap, **PLACE)) for cap in (None, 1e6))
    torch.testing.assert_close(capped(x), usual(x), rtol=1e-8, atol=1e-8)


def test_weights_that_are_capped_are_dropped_as_others() -> None:
    place = PLACE | {"dropout": 0.5}
    branch = drawn(Attention(WIDTH, HEADS, causal=False, cap=2.0, **place))
    q = k = numbers(1, HEADS, 40, 4)
    v = torch.ones(1, HEADS, 40, 4, dtype=torch.float64)
    torch.manual_seed(0)
    found = branch.inner(q, k, v, None)
    assert found.std() > 0.1 and found.mean().item() == pytest.approx(1, abs=0.1)
    assert torch.allclose(branch.eval().inner(q, k, v, None), v, rtol=0, atol=1e-12)


# ---- gates


@pytest.mark.parametrize("gate", ["feature", "head"])
def test_attention_with_a_gate_is_its_formula(gate: str) -> None:
    branch = drawn(Attention(WIDTH, HEADS, causal=True, gate=gate, **PLACE))
    x = numbers(2, 7, WIDTH, seed=5).requires_grad_()
    y = find(*branch.qkv(x).chunk(3, dim=-1), torch.ones(7, 7, dtype=torch.bool).triu(1))
    gates = 1 / (1 + torch.exp(-x @ branch.gate.weight.T))
    if gate == "head":
        assert branch.gate.weight.shape == (HEADS, WIDTH)
        gates = gates.repeat_interleave(WIDTH // HEADS, dim=-1)
    hold(branch(x), branch.out(gates * y), [x, *branch.parameters()])


def test_a_gate_of_attention_to_a_source_reads_what_asks() -> None:
    branch = drawn(CrossAttention(WIDTH, HEADS, gate="feature", **PLACE))
    x, memory = numbers(2, 7, WIDTH, seed=5).requires_grad_(), numbers(2, 9, WIDTH, seed=6).requires_grad_()
    y = find(branch.q(x), *branch.kv(memory).chunk(2, dim=-1), None)
    gates = 1 / (1 + torch.exp(-x @ branch.gate.weight.T))
    hold(branch(x, memory=memory), branch.out(gates * y), [x, memory, *branch.parameters()])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_gate_for_each_feature_is_that_of_qwen3_next() -> None:
    """With its queries and keys, normalized in each head with γ − 1 stored, and without positions."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    words = ["norm=rmsnorm", "norm@qk=rmsnorm", "norm@qk.eps=1e-6", "model.attention_gate=feature"]
    sizes = [f"model.width={WIDTH}", f"model.heads={HEADS}", "model.depth=1", "trainer.steps=3", "device=cpu"]
    model: Any = make_model(read([*words, *sizes]).recipe, TEXT, 0)[0]
    ours = drawn(model.blocks[0].branches["attention"])
    sizes_there = {"hidden_size": WIDTH, "head_dim": WIDTH // HEADS, "rms_norm_eps": 1e-6}
    heads_there = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "attn_implementation": "eager"}
    theirs: Any = Qwen3NextAttention(transformers.Qwen3NextConfig(**sizes_there, **heads_there), 0).double()
    q, k, v = ours.qkv.weight.detach().chunk(3)
    both = torch.cat((q.unflatten(0, (HEADS, -1)), ours.gate.weight.detach().unflatten(0, (HEADS, -1))), dim=1)
    pairs = {theirs.q_proj: both.flatten(0, 1), theirs.k_proj: k, theirs.v_proj: v, theirs.o_proj: ours.out.weight}
    for module, weight in pairs.items():
        module.weight.data.copy_(weight)
    for name in ("q", "k"):
        theirs.get_submodule(f"{name}_norm").weight.data.copy_(ours.norms[name].weight.detach() - 1)
    x, x_there = (numbers(2, 7, WIDTH, seed=5).requires_grad_() for _ in range(2))
    size = WIDTH // HEADS
    unturned = torch.ones(2, 7, size, dtype=torch.float64), torch.zeros(2, 7, size, dtype=torch.float64)
    hidden = torch.full((7, 7), -math.inf, dtype=torch.float64).triu(1)[None, None]
    expected, _ = theirs(x_there, position_embeddings=unturned, attention_mask=hidden)
    # in float32 their norms are computed, whatever their input is
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-5)
    weights = numbers(*x.shape, seed=9)
    (ours(x) * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, x_there.grad, rtol=1e-4, atol=1e-4)
    gate = theirs.q_proj.weight.grad.unflatten(0, (HEADS, 2, size))[:, 1].flatten(0, 1)
    torch.testing.assert_close(ours.gate.weight.grad, gate, rtol=1e-4, atol=1e-4)


def test_other_weights_start_as_without_a_gate() -> None:
    usual = dict(build()[0].named_parameters())
    gated = dict(build(attention_gate="head", softcap=30.0, attention_softcap=50.0)[0].named_parameters())
    added = gated.keys() - usual.keys()
    assert added == {f"blocks.{layer}.branches.attention.gate.weight" for layer in range(2)}
    assert all(torch.equal(gated[name], parameter) for name, parameter in usual.items())
    assert gated["blocks.0.branches.attention.gate.weight"].std() > 0
