"""LayerNorms of given models made RMSNorms: the outputs are the same in float64, and what cannot be says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import SMALL, TEXT, build, random_batch
from torch import nn

from normbench.errors import UsageError
from normbench.hosts.exact import Exact, to_rms
from normbench.norms import RMSNorm

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 16},
    "gpt_neox": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                 "vocab_size": 40},
    "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
             "vocab_size": 40},
    "vit": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
            "image_size": 8, "patch_size": 4, "num_labels": 5},
}  # fmt: skip
TOKENS = torch.arange(24).view(2, 12) % 40


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    pytest.importorskip("transformers")


def stir(model: nn.Module) -> nn.Module:
    """Biases and the weights of norms as training might leave them, and an evaluation mode."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim == 1:
                tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator))
    return model.double().eval()


def causal(kind: str, **more: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES[kind], **more)
    return stir(AutoModelForCausalLM.from_config(config))


def call_with_tokens(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=TOKENS, use_cache=False).logits
    return logits


def converted(model: nn.Module, call: Any) -> Exact:
    """The same model with RMSNorms, whose outputs are the same."""
    with torch.no_grad():
        expected = call(model)
        found = to_rms(model, call)
        assert torch.equal(call(model), expected)  # it stays as it is
        torch.testing.assert_close(call(found.model), expected, rtol=0, atol=1e-10)
    return found


def kinds_of(model: nn.Module) -> set[type]:
    return {type(module) for module in model.modules() if "Norm" in type(module).__name__}


@pytest.mark.parametrize("tied", [False, True])
def test_gpt2_is_a_model_of_rmsnorms(tied: bool) -> None:
    model = causal("gpt2", tie_word_embeddings=tied)
    found = converted(model, call_with_tokens)
    assert kinds_of(found.model) == {RMSNorm} and len(found.norms) == 5 and not found.refused
    assert found.biases == ["lm_head"]  # for the β of the last norm
    assert found.untied == (["lm_head.weight"] if tied else [])
    for name in ("wte.weight", "wpe.weight", "h.1.mlp.c_proj.weight", "h.1.attn.c_proj.bias"):
        assert found.model.get_parameter(f"transformer.{name}").mean(-1).abs().max() < 1e-15
    norm = found.norms["transformer.h.0.ln_1"]
    assert torch.equal(norm.weight, model.get_parameter("transformer.h.0.ln_1.weight"))


def test_other_lengths_and_batches_agree_too() -> None:
    model = causal("gpt2").float()
    found = to_rms(model, call_with_tokens)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    with torch.no_grad():
        torch.testing.assert_close(found.model(tokens).logits, model(tokens).logits, rtol=0, atol=1e-5)
    assert {tensor.dtype for tensor in found.model.parameters()} == {torch.float32}


def test_branches_side_by_side_are_converted() -> None:
    found = converted(causal("gpt_neox"), call_with_tokens)
    assert len(found.norms) == 5 and not found.refused


def test_a_vision_transformer_is_converted() -> None:
    from transformers import AutoConfig, AutoModelForImageClassification

    torch.manual_seed(0)
    config = AutoConfig.for_model("vit", **SIZES["vit"])
    model = stir(AutoModelForImageClassification.from_config(config))
    pixels = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    found = converted(model, lambda model: model(pixels).logits)
    assert len(found.norms) == 5 and not found.refused and not found.biases


def test_norms_after_the_sum_are_refused() -> None:
    model = causal("bert", is_decoder=True)
    found = converted(model, call_with_tokens)
    assert not found.norms and len(found.refused) == 6
    assert sum("a norm, writes to the stream" in said for said in found.refused.values()) == 4


def test_norms_after_the_sum_are_converted_as_they_start() -> None:
    """All γ are 1 and no β has a mean, so that γ⊙n+β has none."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("bert", is_decoder=True, **SIZES["bert"]))
    found = converted(model.double().eval(), call_with_tokens)
    assert len(found.norms) == 5 and found.change < 1e-12
    assert {*found.refused} == {"cls.predictions.transform.LayerNorm"}  # which reads what GELU gives


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("as it starts", ""),
        ("β without a mean", ""),
        ("β", "norm_pre, a norm, writes to the stream, and γ⊙n+β has a mean, since its β has one"),
        ("γ", "norm_pre, a norm, writes to the stream, and γ⊙n+β has a mean, since its γ differ"),
    ],
)
def test_a_norm_before_the_first_block_is_in_the_way_if_it_has_a_mean(start: str, why: str) -> None:
    """As in CLIP; it is replaced itself where it has no β, which nothing behind it could take over."""
    timm = pytest.importorskip("timm")
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 8, "patch_size": 4, "num_classes": 5}
    torch.manual_seed(0)
    model: Any = timm.create_model("vit_base_patch32_clip_224", in_chans=1, **sizes).double().eval()
    ramp = torch.linspace(-1, 1, 16, dtype=torch.float64)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim == 1 and not name.startswith("norm_pre"):
                tensor.add_(0.3 * torch.randn_like(tensor))
        if start == "β without a mean":
            model.norm_pre.bias.copy_(ramp)
        elif start == "β":
            model.norm_pre.bias.copy_(ramp + 0.1)
        elif start == "γ":
            model.norm_pre.weight.add_(0.1 * ramp)
            embedded = torch.randn(7, 16, dtype=torch.float64)
            assert model.norm_pre(embedded).mean(-1).std() > 1e-3  # which no single β could take out
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    found = converted(model, lambda model: model(images))
    behind = {f"blocks.{block}.norm{number}" for block in (0, 1) for number in (1, 2)} | {"norm"}
    itself = set() if "β" in start else {"norm_pre"}
    assert {*found.norms} == (itself if why else behind | itself)
    assert {found.refused[path] for path in behind & {*found.refused}} == ({why} if why else set())
    assert found.change < 1e-12


@pytest.mark.parametrize("placement", ["pre", "parallel", "sandwich", "post"])
def test_models_of_ours_are_converted_where_they_can_be(placement: str) -> None:
    model, norms = build(model="nano", placement=placement, norm="layernorm", **SMALL["nano"], tied=False)
    tokens = random_batch(TEXT).inputs
    found = converted(stir(model), lambda model: model(tokens))
    expected = len(norms) if placement in ("pre", "parallel") else 0
    assert len(found.norms) == expected and len(found.refused) == len(norms) - expected


class Pieces(nn.Module):
    """A stream that is read or written in ways of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Linear(6, 8)
        self.gain = nn.Parameter(torch.linspace(0.5, 2, 8))
        self.norm = nn.LayerNorm(8)
        self.other = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3, bias=False)
        self.register_buffer("table", torch.randn(5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = before = self.embed(x)
        if self.how == "moved":  # which numbers, orders and sums of positions do not hinder
            x = 0.5 * torch.roll(x + self.table, 1, dims=1).transpose(0, 1).flip(0)
            return self.out(self.norm(x.mean(0)))
        if self.how in ("gain", "gain read", "gain and a norm"):
            x = x * self.gain + (x if self.how == "gain read" else 0)
        if self.how == "relu":
            x = x.relu()
        y = self.norm(x)
        if self.how == "read":
            return self.out(y) + self.out(x)
        if self.how == "dtype":
            return self.out(y) * (x.argmax(-1, keepdim=True) + 1).type_as(y)
        if self.how == "gain and a norm":
            return self.out(y) + self.out(self.other(before))
        return self.out(torch.tanh(y) if self.how == "tanh" else y)


def test_numbers_orders_and_sums_of_positions_are_seen_through() -> None:
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    found = converted(stir(Pieces("moved")), lambda model: model(x))
    assert {*found.norms} == {"norm"} and found.biases == ["out"]
    assert found.model.get_buffer("table").mean(-1).abs().max() < 1e-15


def test_what_takes_the_dtype_of_a_norm_alone_does_not_hinder() -> None:
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    found = converted(stir(Pieces("dtype")), lambda model: model(x))
    assert {*found.norms} == {"norm"} and found.biases == ["out"]


def test_a_gain_goes_into_what_it_multiplies() -> None:
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    model: Any = stir(Pieces("gain"))
    found: Any = converted(model, lambda model: model(x))
    assert {*found.norms} == {"norm"} and torch.equal(found.model.gain, torch.ones(8))
    scaled = model.gain[:, None] * model.embed.weight
    torch.testing.assert_close(found.model.embed.weight, scaled - scaled.mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("start", [1e-5, 0.3])
def test_vision_transformers_with_layer_scale_are_converted(start: float) -> None:
    """Gains that are all alike, as they start, and such as training may leave."""
    timm = pytest.importorskip("timm")
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 8, "patch_size": 4, "num_classes": 5}
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", init_values=start, in_chans=1, **sizes).double().eval()
    if start > 0.1:
        stir(model)
    found: Any = converted(model, lambda model: model(torch.ones(2, 1, 8, 8, dtype=torch.float64).cumsum(-1)))
    assert len(found.norms) == 5 and not found.refused
    assert torch.equal(found.model.blocks[1].ls2.gamma, torch.ones(16))


def test_the_norm_over_merged_patches_is_kept() -> None:
    """It takes out one mean of four positions, so that theirs are not to go one by one."""
    timm = pytest.importorskip("timm")
    sizes = {"embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2), "window_size": 2, "img_size": 16, "patch_size": 4}
    torch.manual_seed(0)
    swin = stir(timm.create_model("swin_tiny_patch4_window7_224", in_chans=1, num_classes=5, **sizes))
    images = torch.randn(2, 1, 16, 16, dtype=torch.float64)
    found = converted(swin, lambda model: model(images))
    assert {"layers.1.blocks.0.norm1", "layers.1.blocks.0.norm2", "norm"} == {*found.norms}
    assert "layers.1.downsample.norm" in found.refused


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("gain read", "in two sizes"),
        ("gain and a norm", "layer_norm reads the stream"),
        ("relu", "relu writes"),
        ("read", "linear reads the stream"),
        ("tanh", "tanh reads its β"),
    ],
)
def test_what_cannot_be_converted_says_why(how: str, reason: str) -> None:
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    found = converted(stir(Pieces(how)), lambda model: model(x))
    assert not found.norms and reason in found.refused["norm"]


def test_a_model_that_export_cannot_follow_is_refused() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x) if x.sum() > 0 else x

    with pytest.raises(UsageError, match="cannot follow Branching"):
        to_rms(Branching(), lambda model: model(torch.ones(2, 4, dtype=torch.float64)))


class Single(nn.Module):
    """Takes numbers of 32 bits alone, as models with a constant of that precision do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) @ torch.ones(4, 4)


def test_a_model_that_cannot_compute_in_float64_is_told() -> None:
    with pytest.raises(UsageError, match=r"^Single cannot compute in float64, .* keep=weights and keep=fit exchange"):
        to_rms(Single(), lambda model: model(torch.ones(2, 4, dtype=model.norm.weight.dtype)))
