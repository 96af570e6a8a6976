"""Schemes: published recipes as words; the same functions as their authors' models, with the same weights."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import IMAGES, REPOSITORY, TEXT, TRANSLATIONS, documented
from tensorboard.plugins.hparams import metadata as hparams_metadata
from test_recording import plugin, texts
from test_runs import TINY, train
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.build import make_model, start_model
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.groups import chosen_options, options, section_of
from normbench.config.recipe import Recipe
from normbench.errors import UsageError
from normbench.placements import Pre
from normbench.record.files import read_json
from normbench.runs.layout import draw_model
from normbench.runs.plan import prepare
from normbench.show.tensorboard import write_arms
from normbench.training.optimizer import parameter_groups
from normbench.types import ImageClassification, Model

SIZES = ["model.depth=3", "model.width=32", "model.heads=4", "model.context=16", "device=cpu", "threads=1"]
WORDS = [*SIZES, "trainer.steps=3"]


class Undrawn(Pre):
    """A placement that looks at numbers, which a drawing has not."""

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        return super().forward(x / x.abs().max(), **context)


def made(scheme: str, *words: str) -> Model:
    """Return a small model of a scheme, whose norms' parameters are drawn too."""
    model, norms = make_model(read([f"scheme={scheme}", *WORDS, *words]).recipe, TEXT, 0)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in norms.values():
            for parameter in norm.parameters():  # γ around 1, also where γ − 1 is stored
                parameter.copy_(1 - norm.offset + 0.3 * torch.randn(parameter.shape, generator=random))
    return model.eval()


def authors_model(scheme: str) -> Any:
    """Return transformers' model of the sizes of ours, with random weights, without what a scheme leaves out."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": TEXT.vocabulary_size,
        "hidden_size": 32,
        "intermediate_size": 8 * -(-32 // 3),
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 16,
    }
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    if scheme == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=TEXT.vocabulary_size, n_embd=32, n_layer=3, n_head=4, n_positions=16, activation_function="gelu"
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if scheme == "muse_glimmer":
        return MuseGlimmer(sizes, rotary)
    kinds = {
        "gpt_oss": (
            transformers.GptOssConfig,
            transformers.GptOssForCausalLM,
            {
                "rms_norm_eps": 1e-5,
                "head_dim": 8,
                "layer_types": ["full_attention"] * 3,
                "num_local_experts": 1,
                "num_experts_per_tok": 1,
                "swiglu_alpha": 1.0,
                "swiglu_limit": 1e6,
                "experts_implementation": "eager",  # the others have no float64
            },
        ),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"rms_norm_eps": 1e-6}),
        "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM, {"rms_norm_eps": 1e-5}),
        "exaone4": (
            transformers.Exaone4Config,
            transformers.Exaone4ForCausalLM,
            {"rms_norm_eps": 1e-5, "sliding_window": None, "layer_types": ["full_attention"] * 3},
        ),
        "qwen3": (
            transformers.Qwen3Config,
            transformers.Qwen3ForCausalLM,
            {"rms_norm_eps": 1e-6, "head_dim": 8, "tie_word_embeddings": True},
        ),
        "gemma2": (
            transformers.Gemma2Config,
            transformers.Gemma2ForCausalLM,
            {
                "rms_norm_eps": 1e-6,
                "head_dim": 8,
                "query_pre_attn_scalar": 8,
                "hidden_activation": "gelu",
                "layer_types": ["full_attention"] * 3,
                "attn_implementation": "eager",  # the others have no cap
            },
        ),
        "gemma3": (
            transformers.Gemma3TextConfig,
            transformers.Gemma3ForCausalLM,
            {"rms_norm_eps": 1e-6, "head_dim": 8, "query_pre_attn_scalar": 8, "hidden_activation": "gelu"},
        ),
        "gemma4": (
            transformers.Gemma4TextConfig,
            transformers.Gemma4ForCausalLM,
            {
                "rms_norm_eps": 1e-6,
                "head_dim": 8,
                "global_head_dim": 8,
                "hidden_size_per_layer_input": 0,
                "hidden_activation": "gelu",
            },
        ),
    }
    if scheme in ("gemma3", "gemma4"):  # whose layers of local attention have angles of their own
        both = {
            kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in ("full_attention", "sliding_attention")
        }
        rotary = {"rope_parameters": both, "layer_types": ["full_attention"] * 3}
    config_class, model_class, own = kinds[scheme]
    return model_class(config_class(**sizes, **rotary, **own)).eval()


def copy_rotary(ours: Any, theirs: Any) -> None:
    """Give their model, of the family of LLaMA, the weights of ours."""
    theirs.model.embed_tokens.weight.copy_(ours.stem.embedding.weight)
    theirs.model.norm.weight.copy_(ours.norms_by_site["final"].weight)
    if ours.head.linear is not None:
        theirs.lm_head.weight.copy_(ours.head.linear.weight)
    for number, layer in enumerate(theirs.model.layers):
        branches = ours.blocks[number].branches
        q, k, v = branches["attention"].qkv.weight.chunk(3)
        pairs: list[tuple[Any, Tensor]] = [
            (layer.self_attn.q_proj, q),
            (layer.self_attn.k_proj, k),
            (layer.self_attn.v_proj, v),
            (layer.self_attn.o_proj, branches["attention"].out.weight),
        ]
        if branches["attention"].gate is not None:
            pairs.append((layer.self_attn.gate_proj, branches["attention"].gate.weight))
        if hasattr(layer.mlp, "experts"):
            copy_one_expert(branches, layer)
        else:
            gate, up = branches["mlp"].fc1.weight.chunk(2)
            pairs += [
                (layer.mlp.gate_proj, gate),
                (layer.mlp.up_proj, up),
                (layer.mlp.down_proj, branches["mlp"].fc2.weight),
            ]
        for module, weight in pairs:
            module.weight.copy_(weight)
        norms = {name: norm for name, norm in ours.norms_by_site.items() if name.startswith(f"block{number:02d}")}
        for name, norm in norms.items():
            _, _, place = name.partition(".")
            if norm.weight is None:  # of Gemma 4's values
                continue
            their_norm = layer.get_submodule(norm_names(layer)[place])
            their_norm.weight.copy_(norm.weight)
        if type(theirs).__name__.startswith("Gemma4"):  # whose logits are not divided by √8
            layer.self_attn.q_norm.weight.div_(8**0.5)


def copy_one_expert(branches: Any, layer: Any) -> None:
    """Give a layer of gpt-oss with one expert the weights of an MLP, and the biases of all maps; it has no sinks then.

    It multiplies by the other half plus 1, whose biases are therefore smaller by 1, and keeps both halves in turn.
    """
    attention, mlp = branches["attention"], branches["mlp"]
    for linear in (attention.qkv, attention.out, mlp.fc1, mlp.fc2):
        linear.bias.normal_(std=0.01, generator=torch.Generator().manual_seed(0))
    own = layer.self_attn
    for module, bias in zip((own.q_proj, own.k_proj, own.v_proj), attention.qkv.bias.chunk(3), strict=True):
        module.bias.copy_(bias)
    own.o_proj.bias.copy_(attention.out.bias)
    own.sinks.fill_(-torch.inf)
    experts = layer.mlp.experts
    gate, up = mlp.fc1.weight.chunk(2)
    gate_bias, up_bias = mlp.fc1.bias.chunk(2)
    experts.gate_up_proj.copy_(torch.stack((gate.T, up.T), dim=-1).flatten(1)[None])
    experts.gate_up_proj_bias.copy_(torch.stack((gate_bias, up_bias - 1), dim=-1).flatten()[None])
    experts.down_proj.copy_(mlp.fc2.weight.T[None])
    experts.down_proj_bias.copy_(mlp.fc2.bias[None])


class MuseGlimmer(nn.Module):
    """The language model of transformers' Muse Glimmer, with the output layer that its code has around images too.

    Logits are not made smaller before their cap, and all of its layers rotate and see all positions before.
    """

    def __init__(self, sizes: dict[str, Any], rotary: dict[str, Any]) -> None:
        super().__init__()
        library = pytest.importorskip("transformers.models.muse_glimmer.modeling_muse_glimmer")

        own = {
            "head_dim": 8,
            "layer_types": ["full_attention"] * 3,
            "layer_rope_theta": [10_000.0] * 3,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        self.model = library.MuseGlimmerTextModel(library.MuseGlimmerTextConfig(**sizes, **rotary, **own)).eval()
        self.lm_head = nn.Linear(32, TEXT.vocabulary_size, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        logits = self.lm_head(self.model(tokens).last_hidden_state)
        return SimpleNamespace(logits=20 * torch.tanh(logits / 20))


def norm_names(layer: Any) -> dict[str, str]:
    """Return what their layer calls the norm at each place of a block of ours."""
    names = {f"attention.{slot}": f"self_attn.{slot[0]}_norm" for slot in ("q", "k", "q_all", "k_all")}
    if hasattr(layer, "pre_feedforward_layernorm"):
        names |= {"attention.in": "input_layernorm", "attention.out": "post_attention_layernorm"}
        names |= {"mlp.in": "pre_feedforward_layernorm", "mlp.out": "post_feedforward_layernorm"}
    elif hasattr(layer, "post_feedforward_layernorm"):
        names |= {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}
    else:
        names |= {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}
    return names


def copy_gpt2(ours: Any, theirs: Any) -> None:
    """Give their GPT-2 the weights of ours; its linear maps are stored the other way round."""
    inside = theirs.transformer
    inside.wte.weight.copy_(ours.stem.embedding.weight)
    inside.wpe.weight.copy_(ours.positions.weight)
    copy_affine(inside.ln_f, ours.norms_by_site["final"])
    for number, layer in enumerate(inside.h):
        branches = ours.blocks[number].branches
        maps = {
            layer.attn.c_attn: branches["attention"].qkv,
            layer.attn.c_proj: branches["attention"].out,
            layer.mlp.c_fc: branches["mlp"].fc1,
            layer.mlp.c_proj: branches["mlp"].fc2,
        }
        for their_map, our_map in maps.items():
            our_map.bias.normal_(std=0.1)
            their_map.weight.copy_(our_map.weight.T)
            their_map.bias.copy_(our_map.bias)
        copy_affine(layer.ln_1, ours.norms_by_site[f"block{number:02d}.attention"])
        copy_affine(layer.ln_2, ours.norms_by_site[f"block{number:02d}.mlp"])


def copy_affine(theirs: nn.Module, ours: Any) -> None:
    """Give a norm of theirs the parameters of one of ours."""
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize(
    "scheme", ["gpt2", "llama", "olmo2", "exaone4", "qwen3", "gpt_oss", "gemma2", "gemma3", "gemma4", "muse_glimmer"]
)
def test_a_scheme_is_its_authors_function(scheme: str) -> None:
    """The same logits from the same stored numbers, γ − 1 where they store that, to 1e-5 in float32.

    In float64 too, to 1e-12 where nothing is rotated: both keep the angles' cosines and sines in float32.
    """
    ours: Any = made(scheme)
    ours.norms_by_site = ours.anatomy().norms
    theirs = authors_model(scheme)
    with torch.no_grad():
        (copy_gpt2 if scheme == "gpt2" else copy_rotary)(ours, theirs)
        tokens = torch.randint(TEXT.vocabulary_size, (3, 16), generator=torch.Generator().manual_seed(0))
        single = ours(tokens), theirs(tokens).logits
        double = ours.double()(tokens), theirs.double()(tokens).logits
    torch.testing.assert_close(*single, rtol=1e-5, atol=1e-5)
    assert double[0].std() > 0.1, "of weights that do something"
    tolerance = 1e-12 if scheme == "gpt2" else 1e-6
    torch.testing.assert_close(*double, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_deepseek_v4_is_its_authors_function_but_for_what_is_left_out() -> None:
    """Without positions, latent queries, sinks and routed experts, where keys and values are one map of one head.

    To 1e-5, since theirs computes the weights of streams in float32.
    """
    ours: Any = made("deepseek_v4")
    norms = ours.anatomy().norms
    theirs = deepseek_v4()
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)  # so that branches count beside the embedding
        ours.rotation[0].fill_(1.0)
        ours.rotation[1].fill_(0.0)
        for name in ("main", "compress"):
            theirs.model.rotary_emb.get_buffer(f"{name}_inv_freq").zero_()
        theirs.model.embed_tokens.weight.copy_(ours.stem.embedding.weight)
        theirs.lm_head.weight.copy_(ours.head.linear.weight)
        theirs.model.norm.weight.copy_(norms["final"].weight)
        copy_reading(ours.blocks[-1].read_out, theirs.model.hc_head, "read_out", "hc_")
        for number, layer in enumerate(theirs.model.layers):
            block = ours.blocks[number]
            for role, connection in (("attention", layer.attn_hc), ("mlp", layer.ffn_hc)):
                copy_reading(block.connections[role], connection, f"blocks.{number}.{role}")
            copy_latent_free(block, layer)
    tokens = torch.randint(TEXT.vocabulary_size, (3, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = ours(tokens), theirs(tokens).logits
    assert expected.std() > 0.1, "of weights that do something"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def deepseek_v4() -> Any:
    """Return transformers' DeepSeek-V4 of the sizes of ours, with plain attention to all positions before."""
    transformers = pytest.importorskip("transformers", minversion="5.24")
    config = transformers.DeepseekV4Config(
        vocab_size=TEXT.vocabulary_size,
        hidden_size=32,
        moe_intermediate_size=8 * -(-32 // 3),
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=8,
        q_lora_rank=32,
        o_groups=1,
        o_lora_rank=32,
        layer_types=["sliding_attention"] * 3,
        mlp_layer_types=["moe"] * 3,
        n_routed_experts=1,
        num_experts_per_tok=1,
        sliding_window=16,
        swiglu_limit=1e6,
        max_position_embeddings=16,
        experts_implementation="eager",
        use_cache=False,
    )
    return transformers.DeepseekV4ForCausalLM(config).eval()


def copy_reading(ours: Any, theirs: Any, path: str, prefix: str = "") -> None:
    """Draw what tells how streams are read at a path of our model, other numbers at each, and give it to theirs."""
    for name, parameter in (("fn", ours.map), ("base", ours.base), ("scale", ours.scale)):
        seed = zlib.crc32(f"{path}.{name}".encode())
        parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
        getattr(theirs, prefix + name).copy_(parameter)


def copy_latent_free(block: Any, layer: Any) -> None:
    """Give a layer of DeepSeek-V4 the weights of a block of ours, whose heads have the same keys, which are values."""
    attention, mlp = block.branches["attention"], block.branches["mlp"]
    q, k, v = attention.qkv.weight.chunk(3)
    one_head = k[:8].clone()
    k.copy_(one_head.repeat(4, 1))
    v.copy_(k)
    attention.norms["v"].weight.copy_(attention.norms["k"].weight)
    own = layer.self_attn
    own.q_a_norm = nn.Identity()
    own.q_a_proj.weight.copy_(torch.eye(32))
    own.q_b_proj.weight.copy_(q)
    own.kv_proj.weight.copy_(one_head)
    own.kv_norm.weight.copy_(attention.norms["k"].weight)
    own.o_a_proj.weight.copy_(attention.out.weight)
    own.o_b_proj.weight.copy_(torch.eye(32))
    own.sinks.fill_(-torch.inf)
    gate, up = mlp.fc1.weight.chunk(2)
    layer.mlp.shared_experts.gate_proj.weight.copy_(gate)
    layer.mlp.shared_experts.up_proj.weight.copy_(up)
    layer.mlp.shared_experts.down_proj.weight.copy_(mlp.fc2.weight)
    layer.mlp.experts.down_proj.zero_()
    layer.input_layernorm.weight.copy_(block.norms["attention"]["in"].weight)
    layer.post_attention_layernorm.weight.copy_(block.norms["mlp"]["in"].weight)


def test_swin2_starts_as_the_identity_and_with_its_temperature() -> None:
    words = ["model=vit_tiny", "data=digits", "model.depth=2", "model.width=64", "model.heads=2", "model.patch=4"]
    model, norms = make_model(read(["scheme=swin2", *words, "trainer.steps=3"]).recipe, IMAGES, 0)
    x = torch.randn(2, 3, 64)
    for block in model.anatomy().blocks:
        assert torch.equal(block.module(x), x)
    q, k = (norms[f"block00.attention.{name}"](torch.randn(32)) for name in "qk")
    cosine = torch.nn.functional.cosine_similarity(q, k, dim=0)
    torch.testing.assert_close(q @ k / 32**0.5, 10 * cosine, rtol=1e-4, atol=1e-5)
    assert norms["final"].weight.eq(1).all() and norms["stem"].weight.eq(1).all()


def test_pangu_starts_with_small_gains_after_its_branches() -> None:
    _, norms = make_model(read(["scheme=pangu", *WORDS]).recipe, TEXT, 0)
    for name, norm in norms.items():
        role = name.removesuffix(".out").rpartition(".")[2] if name.endswith(".out") else ""
        start = {"attention": 0.283, "mlp": 0.432}.get(role, 3**0.5) / 3**0.5
        torch.testing.assert_close(norm.weight, torch.full((32,), start))


def batch_norm(x: Tensor, norm: Any) -> Tensor:
    """Return Ioffe & Szegedy's y of a batch of images, with the γ and β of a norm of ours."""
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = (x - mean).square().mean((0, 2, 3), keepdim=True)
    y = (x - mean) / torch.sqrt(variance + norm.eps)
    return norm.weight.view(-1, 1, 1) * y + norm.bias.view(-1, 1, 1)


def resnet_v1(ours: Any, images: Tensor) -> Tensor:
    """Return the logits of He et al. 2016a, figure 2 and table 1, with the weights of a model of ours.

    The stride of three convolutions is the second one's (Goyal et al. 2017), as in torchvision.
    """
    norms = ours.anatomy().norms
    if images.shape[-1] > 64:
        x = batch_norm(F.conv2d(images, ours.stem[0].weight, stride=2, padding=3), norms["stem"])
        x = F.max_pool2d(F.relu(x), 3, stride=2, padding=1)
    else:
        x = F.relu(batch_norm(F.conv2d(images, ours.stem.weight, padding=1), norms["stem"]))
    for number, block in enumerate(ours.blocks):
        branch = block.branches["conv"]
        weights = [branch.get_parameter(f"{name}.weight") for name in branch.scaled]
        own = [norms[name] for name in block_norms(number, len(weights))]
        strided = 0 if len(weights) == 2 else 1
        y = x
        for place, (weight, norm) in enumerate(zip(weights, own, strict=True)):
            if place:
                y = F.relu(y)
            stride = branch.stride if place == strided else 1
            y = batch_norm(F.conv2d(y, weight, stride=stride, padding=weight.shape[-1] // 2), norm)
        if isinstance(branch.projection, nn.Conv2d):
            x = F.conv2d(x, branch.projection.weight, stride=branch.stride)
            x = batch_norm(x, norms[f"block{number:02d}.conv.shortcut"])
        x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), ours.head.weight, ours.head.bias)


def block_norms(number: int, convolutions: int) -> list[str]:
    """Return the names of the norms after the convolutions of a block."""
    inner = ["inner"] if convolutions == 2 else ["inner1", "inner2"]
    return [*(f"block{number:02d}.conv.{slot}" for slot in inner), f"block{number:02d}.conv"]


@pytest.mark.parametrize(
    "words", ["norm=none placement=fixup init=fixup", "norm=none placement=nf", "norm=frn placement=skipinit"]
)
def test_skips_pass_through_an_activation_after_the_sum(words: str) -> None:
    """Of blocks whose branches start at 0, also where a norm is the activation before the branch."""
    sizes = ["model=resnet18", "model.width=4", "model.blocks=[2,1,1,1]", "trainer.steps=3"]
    tree = read([*words.split(), *sizes, "data=digits", "model.activation_at=sum"]).tree
    model, _ = make_model(Recipe(tree), IMAGES, 0)
    first: Any = model.anatomy().blocks[0].module
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(first(x), x.relu())


@pytest.mark.parametrize(("model", "side"), [("resnet18", 72), ("resnet50", 16)])
def test_resnet_v1_is_the_published_network(model: str, side: int) -> None:
    """Logits and gradients in float64, with the statistics of a batch."""
    task = ImageClassification(5, image_shape=(3, side, side))
    words = ["scheme=resnet_v1", f"model={model}", "model.width=4", "model.blocks=[1,2,1,1]", "trainer.steps=3"]
    ours: Any
    ours, norms = make_model(read(words).recipe, task, 0)
    ours.double()
    with torch.no_grad():
        for norm in norms.values():
            for parameter in norm.parameters():
                parameter.normal_()
    images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0)).double()
    logits, expected = ours(images), resnet_v1(ours, images)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    parameters = [*ours.parameters()]
    found = torch.autograd.grad(logits.sin().sum(), parameters)
    wanted = torch.autograd.grad(expected.sin().sum(), parameters)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("scheme", options("scheme"))
def test_a_scheme_is_words_that_a_person_may_write(scheme: str) -> None:
    words = ["model=resnet18", "trainer.steps=3"] if scheme == "resnet_v1" else WORDS
    recipe = [f"{key}={value}" for key, value in section_of("scheme", scheme).items()]
    by_hand = read([*recipe, *words])
    config = read([f"scheme={scheme}", *words])
    assert config.tree == by_hand.tree
    assert config.choices.words[0] == scheme and config.choices.groups["scheme"] == scheme
    assert "scheme" not in by_hand.choices.groups
    assert config.words == (f"scheme={scheme}", *words)


def test_fixup_starts_without_its_branches_and_learns_their_numbers_at_a_tenth_of_the_rate() -> None:
    words = ["scheme=fixup", "model=resnet18", "model.width=4", "model.blocks=[2,1,1,1]", "trainer.steps=3"]
    model, norms = make_model(read([*words, "data=digits"]).recipe, IMAGES, 0)
    blocks: Any = model.blocks
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(blocks[0](x), x)
    assert torch.equal(blocks[2](x), blocks[2].branches["conv"].shortcut(x))
    assert not model(torch.randn(2, *IMAGES.image_shape)).any()
    *_, slow = parameter_groups(model, norms.values(), 0.1, decay_norms=False)
    assert slow["lr_factor"] == 0.1 and slow["weight_decay"] == 0.0
    assert [parameter.numel() for parameter in slow["params"]] == [1] * 3 * len(blocks)


def test_a_persons_own_words_win() -> None:
    tree = read(["scheme=olmo2", "norm=dyt", "norm@qk_all.eps=1e-3", "model=small", *WORDS]).tree
    assert tree["norm"]["_target_"].endswith("DyT") and "eps" not in tree["norm"]
    assert tree["at"]["norm@qk_all"]["eps"] == 1e-3
    assert tree["placement"]["_target_"].endswith("PostInside") and tree["model"]["position"] == "rotary"
    assert read([*WORDS, "scheme=olmo2", "norm@qk_all=none"]).choices.groups["norm@qk_all"] == "none"


def test_own_classes_replace_a_schemes() -> None:
    tree = read(
        [*WORDS, "scheme=olmo2", "norm._target_=torch.nn.Identity", "norm@qk_all._target_=torch.nn.Identity"]
    ).tree
    assert tree["norm"] == {"_target_": "torch.nn.Identity", "_partial_": True}
    assert tree["at"]["norm@qk_all"] == {"_target_": "torch.nn.Identity"}


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"scheme=lama is unknown: did you mean llama\?"):
        read(["scheme=lama", *WORDS])
    with pytest.raises(UsageError, match="is for blocks with a skip, and this model has none"):
        make_model(read(["model=cnn_plain", "model.activation_at=sum", "trainer.steps=3"]).recipe, IMAGES, 0)
    message = (
        r"scheme=llama sets model.\w+, which is not a setting of model=cnn: choose model=.* or model=\w+, or give norm"
    )
    with pytest.raises(UsageError, match=message):
        read(["scheme=llama", "model=cnn", "data=digits", "trainer.steps=3"])
    own = [f"hydra.searchpath=[{tmp_path}]", *WORDS]
    write(tmp_path, "scheme/one.yaml", "scheme: other\n")
    write(tmp_path, "scheme/other.yaml", "scheme: one\n")
    with pytest.raises(UsageError, match=r"scheme=one builds on itself: take the line scheme out of other.yaml"):
        read(["scheme=one", *own])
    write(tmp_path, "experiment/ruled.yaml", "# @package _global_\nat:\n  norm@qk:\n    eps: 1.0\n")
    with pytest.raises(UsageError, match=r"experiment=ruled has a section at: give rules as words"):
        read(["experiment=ruled", *own])


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def test_a_scheme_gives_way_to_a_persons_rules() -> None:
    prepare(read(["scheme=qwen3", "norm@q=dyt", "norm@k=dyt", *WORDS]))  # leave norm@qk no place


def test_a_scheme_builds_on_another(tmp_path: Path) -> None:
    write(tmp_path, "scheme/mine.yaml", "scheme: olmo2\nnorm: dyt\nmodel.mlp: gelu\n")
    write(tmp_path, "experiment/chosen.yaml", "# @package _global_\ndefaults:\n  - override /scheme: mine\n")
    own = [f"hydra.searchpath=[{tmp_path}]", *WORDS]
    config = read(["scheme=mine", *own])
    by_hand = read(["scheme=olmo2", "norm=dyt", "model.mlp=gelu", *own])
    assert config.tree == by_hand.tree
    assert config.choices.groups["scheme"] == "mine"
    assert read(["experiment=chosen", *own]).tree == config.tree
    on_help_pages = chosen_options(["experiment=chosen"], tmp_path)
    assert (on_help_pages["scheme"], on_help_pages["norm"], on_help_pages["placement"]) == (
        "mine",
        "dyt",
        "post_inside",
    )


def test_a_scheme_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "scheme").mkdir()
    (tmp_path / "scheme/mine.yaml").write_text("# Mine\nnorm: dyt\nnorm@qk: rmsnorm\nplacement: sandwich\n")
    run = train(tmp_path, *TINY, "trainer.steps=2", f"--config-dir={tmp_path}", "scheme=mine")
    assert run.name.startswith("mine-dyt-sandwich-rmsnorm@qk-s0-")
    ((step, drawn),) = texts(run, "blocks")
    assert step == 0 and "x ─┬─ dyt ─ attention (q, k: rmsnorm) ─ dyt ─⊕─" in drawn.decode()


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_schemes_are_arms_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "scheme=gemma3,gpt2", "seed=0,1", *TINY, "trainer.steps=4", "launcher=local"]) == 0
    answer = read_json(tmp_path / "outputs/sweep/report/answer.json")
    assert answer is not None
    assert [arm["name"] for arm in answer["arms"]] == ["gemma3", "gpt2"]
    assert answer["baseline"] == {"scheme": "gpt2"}
    assert "settings" not in [caveat["kind"] for caveat in answer["caveats"]]
    assert write_arms(tmp_path / "outputs/sweep")
    drawings = {"gpt2": "layernorm ─ attention ─⊕", "gemma3": "rmsnorm ─ attention (q, k: rmsnorm) ─ rmsnorm ─⊕"}
    for arm, drawing in drawings.items():
        ((_, drawn),) = texts(tmp_path / "outputs/sweep/arms" / arm, "blocks")
        assert drawing in drawn.decode()


def test_a_run_is_listed_with_its_scheme_and_its_rules(tmp_path: Path) -> None:
    run = train(tmp_path, *TINY, "trainer.steps=2", "scheme=olmo2")
    content = plugin(run, hparams_metadata.SESSION_START_INFO_TAG).content
    listed = hparams_metadata.parse_session_start_info_plugin_data(content).hparams
    assert listed["scheme"].string_value == "olmo2" and listed["norm@qk_all"].string_value == "rmsnorm"
    assert listed["norm@qk_all.eps"].number_value == 1e-5
    assert not [name for name in listed if name.startswith("at.")]


@pytest.mark.slow
def test_the_schemes_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert documented("scheme") == [*options("scheme")]
    assert main(["schemes", "--markdown"]) == 0
    page = (REPOSITORY / "docs/schemes.md").read_text("utf-8")
    _, *written = page[page.index("## Each scheme, drawn") :].split("\n### ")
    _, *now = f"\n{capsys.readouterr().out}".split("\n### ")
    assert [*map(str.strip, written)] == [*map(str.strip, now)], "write them again: normbench schemes --markdown"


@pytest.mark.parametrize(
    ("words", "drawing"),
    [
        (
            ["scheme=mixln"],
            """
block00: post, by placement@first25pct
x ─┬─ attention ─⊕─ rmsnorm ─┬─ mlp ─⊕─ rmsnorm ─→ x
   └─────────────┘           └───────┘

block01 to block03: pre
x ─┬─ rmsnorm ─ attention ─⊕─┬─ rmsnorm ─ mlp ─⊕─→ x
   └───────────────────────┘ └─────────────────┘

outside the blocks
final: rmsnorm""",
        ),
        (
            ["norm=none", "norm@qk=rmsnorm", "norm@first1.v=dyt", "norm@last1.v=dyt", "weights@mlp=spectral"],
            """
block00, block03: pre
x ─┬─ attention (q, k: rmsnorm; v: dyt) ─⊕─┬─ mlp (weights: spectral) ─⊕─→ x
   └─────────────────────────────────────┘ └───────────────────────────┘

block01 to block02: pre
x ─┬─ attention (q, k: rmsnorm) ─⊕─┬─ mlp (weights: spectral) ─⊕─→ x
   └─────────────────────────────┘ └───────────────────────────┘""",
        ),
        (
            ["model=mlp", "data=digits", "norm=batchnorm", "placement._target_=test_schemes.Undrawn"],
            """
block00 to block02: undrawn
linear.inner: batchnorm
linear (in): batchnorm

outside the blocks
final: batchnorm""",
        ),
        (
            ["model.depth=1", "norm@final=none", "weights=unit", "weights@mlp.out=plain"],
            """
block00: pre
x ─┬─ layernorm ─ attention (weights: unit) ─⊕─┬─ layernorm ─ mlp (weights, all but out: unit) ─⊕─→ x
   └─────────────────────────────────────────┘ └────────────────────────────────────────────────┘

outside the blocks
final: none, by norm@final
weights of embedding: unit""",
        ),
        (
            ["model=mlp_plain", "data=digits", "norm=batchnorm"],
            """
block00 to block02: plain
x ─ linear (batchnorm) ─→ x""",
        ),
    ],
)
def test_each_kind_of_block_is_drawn_once(words: list[str], drawing: str) -> None:
    run = prepare(read([*words, "device=cpu"]))
    made = start_model(run.config.recipe, run.data.task, 0)
    before = torch.get_rng_state()
    assert draw_model(made) == drawing.strip()
    assert torch.equal(before, torch.get_rng_state())


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def ngpt_logits(ours: Any, tokens: Tensor) -> Tensor:
    """nGPT's equations on the unit sphere, with what ours has learned.

    Scales of queries and keys are shared by heads and come before the rotation, as those of any norm there; authors'
    scale of the MLP's ungated half is ours of the hidden features, and √d·s_z theirs of the logits.
    """
    norms = ours.anatomy().norms
    width, heads, size = 32, 4, 8
    turn = torch.complex(*ours.rotation[:, : tokens.shape[1]])
    h = unit(ours.stem.embedding.weight[tokens])
    for number, block in enumerate(ours.blocks):
        attention, mlp = block.branches["attention"], block.branches["mlp"]
        q, k, v = (
            (h @ weight.T).unflatten(-1, (heads, size)).transpose(1, 2) for weight in attention.qkv.weight.chunk(3)
        )
        turned = []
        for name, x in (("q", q), ("k", k)):
            x = unit(x) * norms[f"block{number:02d}.attention.{name}"].weight
            pairs = torch.complex(*x.chunk(2, dim=-1)) * turn
            turned.append(torch.cat((pairs.real, pairs.imag), dim=-1))
        scores = math.sqrt(size) * turned[0] @ turned[1].transpose(-2, -1)
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        read = scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ v
        found = read.transpose(1, 2).flatten(2) @ attention.out.weight.T
        h = unit(h + (0.05 * math.sqrt(width) * block.rates["attention"]).abs() * (unit(found) - h))
        gate, up = (h @ weight.T for weight in mlp.fc1.weight.chunk(2))
        gate = gate * norms[f"block{number:02d}.mlp.activation"].weight * math.sqrt(width)
        hidden = gate * torch.sigmoid(gate) * up * norms[f"block{number:02d}.mlp.hidden"].weight
        found = hidden @ mlp.fc2.weight.T
        h = unit(h + (0.05 * math.sqrt(width) * block.rates["mlp"]).abs() * (unit(found) - h))
    return math.sqrt(width) * norms["logits"].weight * (h @ ours.head.linear.weight.T)


def test_ngpt_is_its_equations_on_the_unit_sphere() -> None:
    ours: Any = made("ngpt", "norm.eps=0", "norm@qk.eps=0").double()
    tokens = torch.randint(TEXT.vocabulary_size, (3, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for block in ours.blocks:
            for rate in block.rates.values():
                rate.normal_(std=0.5)
        ours.stem.embedding.weight.copy_(unit(ours.stem.embedding.weight))  # which were so in float32
        ours.scale.fill_(32**0.5)
        logits = ours(tokens)
        expected = ngpt_logits(ours, tokens)
    assert logits.std() > 0.1, "of weights that do something"
    torch.testing.assert_close(logits, expected, rtol=1e-11, atol=1e-11)
    _, in_translator = make_model(read(["scheme=ngpt", *WORDS, "model=seq2seq"]).recipe, TRANSLATIONS, 0)
    assert in_translator["logits"].weight[0].item() == pytest.approx(32**-0.5)
    start, norms = make_model(read(["scheme=ngpt", *WORDS]).recipe, TEXT, 0)
    assert norms["logits"].weight.tolist() == [pytest.approx(32**-0.5)] * TEXT.vocabulary_size
    assert start(tokens).abs().max() <= 1 + 1e-6, "cosines"


def test_ngpt_s_embedding_has_a_gradient_along_its_length_that_its_authors_has_not() -> None:
    """The skip of their first block reads N(x) (`model.py:148`@ed19eb2), which is x for embeddings of length 1."""
    ours: Any = made("ngpt", "norm.eps=0", "norm@qk.eps=0").double()
    tokens = torch.randint(TEXT.vocabulary_size, (3, 16), generator=torch.Generator().manual_seed(0))
    embedding = ours.stem.embedding.weight
    with torch.no_grad():
        embedding.copy_(unit(embedding))
        ours.scale.fill_(32**0.5)
    (as_here,) = torch.autograd.grad(ours(tokens).sin().sum(), embedding)
    first = ours.blocks[0]
    norm = first.norms["attention"]["sum"]
    rate = first.factors["attention"] * first.rates["attention"]
    forward = first.forward

    def of_authors(x: Tensor, **context: Any) -> Tensor:
        """Return the block's output, with what the first skip lacks put in: (1 − α)(N(x) − x), which is 0."""
        lacking = (1 - rate) * (norm(x) - x)
        hook = norm.register_forward_pre_hook(lambda _, given: (given[0] + lacking, *given[1:]))
        try:
            y: Tensor = forward(x, **context)
        finally:
            hook.remove()
        return y

    first.forward = of_authors
    (as_there,) = torch.autograd.grad(ours(tokens).sin().sum(), embedding)
    difference = as_here - as_there
    along = (difference * embedding).sum(1, keepdim=True) * embedding
    assert 0.002 < difference.norm() / as_there.norm() < 0.2
    torch.testing.assert_close(difference, along, rtol=0, atol=1e-11)
