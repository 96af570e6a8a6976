"""The families of models that transformers, timm and torchvision build from a configuration, each as a tiny one.

A family of transformers is a model type, one of the two others a module of their models, of which the smallest model is
taken. None is downloaded: all start at random.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normbench.hosts.callers import Caller
from normbench.hosts.libraries import LIBRARIES
from normbench.hosts.text_library import quietly
from normbench.types import ImageClassification, LanguageModeling, TextClassification

VOCABULARY = 99
LENGTH = 13  # positions of a text; no other size of a tiny model
SIDES = (64, 128, 224, 256)  # pixels of images, of which the first that a model takes is taken
SMALL_WORDS = (
    "test", "femto", "atto", "pico", "nano", "zepto", "xxxs", "xxs", "n0",
    "s0", "t0", "a0", "xxtiny", "xtiny", "xmicro", "xxt", "xt", "micro", "xs",
    "b0", "mini", "tiny", "t", "lite", "small", "s",
)  # fmt: skip
PIXELS = 0.5  # standard deviation of images
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FIRST_TOKEN = 3  # that is a word

# Sizes of configurations of transformers by their names; a size that is smaller already stays.
SIZES: tuple[tuple[str, int], ...] = (
    (r"hidden_size|d_model|n_embd|dim|emb_dim|embedding_size|word_embed_proj_dim|model_dim|embed_dim", 64),
    (
        r"(num_|n_)?(hidden_|encoder_|decoder_)?(layers?|blocks)|num_(hidden|encoder|decoder)_layers|num_decoder_layers",
        4,
    ),
    (
        r"\w*(intermediate|inner|ffn|ff|mlp|expert|feed_?forward)_?(size|dim|hidden_size|width)|n_inner|d_ff|hidden_dim",
        64,
    ),
    (r"n_heads?|num_heads|num_attention_heads|(encoder|decoder)_attention_heads|attention_heads", 4),
    (r"(num|n)_(\w+_)?experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|\w*moe_top_?k|moe_k|top_k_experts", 2),
    (r"head_dim|d_kv|kv_channels|global_head_dim", 16),
    (r"q_lora_rank|o_lora_rank", 32),
    (r"kv_lora_rank", 16),
    (r"qk_rope_head_dim|qk_nope_head_dim|rotary_dim|index_head_dim|index_n_heads|index_topk", 8),
    (r"v_head_dim", 16),
    (r"mamba_chunk_size|chunk_size|linear_num_value_heads|mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_state|state_size|ssm_state_size|mamba_d_head|mamba_head_dim|linear_((key|value)_)?head_dim", 16),
    (r"mamba_d_ssm", 128),
    (r"linear_num_key_heads|linear_num_heads", 4),
    (r"n_group|topk_group|num_kv_shared_layers|n_groups|mamba_n_groups", 1),
    (r"\w*vocab_size(_per_layer_input)?", VOCABULARY),
    (r"max_position_embeddings|n_positions|n_ctx|max_sequence_length|max_seq_len|seq_length", 64),
)

# What the rule above does not get right, by model type.
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "reformer": {"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (8, 8), "is_decoder": True},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "kimi_linear": {"num_experts_per_token": 2},
}


@dataclass(frozen=True)
class Built:
    """A tiny model of a family, and what calls it.

    Attributes:
        module: the model.
        call: gives its logits for inputs.
        inputs: two samples that differ.
        alike: two texts of one token each; None of images.
        causal: whether it predicts each position from those before it.
        config: how it differs from the default, or which model of the module it is.
    """

    module: nn.Module
    call: Caller
    inputs: Tensor
    alike: Tensor | None = None
    causal: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    def run(self, model: nn.Module) -> object:
        """Call a model, or a copy of it, with the two samples."""
        inputs = self.inputs
        if inputs.is_floating_point():
            inputs = inputs.to(next(model.parameters()).dtype)
        return self.call(model, inputs)

    def run_alike(self, model: nn.Module) -> object:
        """Call a model with one token at all positions."""
        assert self.alike is not None
        return self.call(model, self.alike)


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        library: the word of its library, as in `model=`.
        name: of it there.
        kind: of the task that a model of it is made for.
    """

    library: str
    name: str
    kind: str

    @property
    def key(self) -> str:
        """Return its name among those of all libraries."""
        return f"{self.library}/{self.name}"

    def build(self, changes: Mapping[str, Any] | None = None, model: str = "") -> Built:
        """Return a tiny model of it, which torch's random numbers draw.

        Args:
            changes: settings of a configuration of transformers, other than they would be.
            model: which of the family, with timm and torchvision; empty: the smallest.

        Raises:
            Exception: whatever the library raises.
        """
        if self.library == "hf":
            return build_text(self, changes or {})
        return build_image(self, model or smallest(self))


# ---- which there are


def list_families(library: str) -> list[Family]:
    """Return the families of a library that normbench has a task for.

    Raises:
        UsageError: it is not installed, or what it needs does not fit.
    """
    if library == "hf":
        names: dict[str, str] = {}
        for kind in (LanguageModeling.kind, TextClassification.kind):
            for name in LIBRARIES["hf"].names(kind):
                names.setdefault(name, kind)
        return [Family("hf", name, kind) for name, kind in names.items()]
    return [Family(library, name, ImageClassification.kind) for name in sorted(models_by_module(library))]


def models_by_module(library: str) -> dict[str, list[str]]:
    """Return the names of a library's models of images by the module that they are in."""
    by_module: dict[str, list[str]] = defaultdict(list)
    loaded: Any = LIBRARIES[library].load()
    if library == "timm":
        for module in loaded.list_modules():
            by_module[module] = loaded.list_models(module=module)
    else:
        models: Any = LIBRARIES[library].load("models")
        for name in LIBRARIES[library].names(ImageClassification.kind):
            by_module[models.get_model_builder(name).__module__.rpartition(".")[2]].append(name)
    return {module: names for module, names in by_module.items() if names}


SMALLEST = {
    "timm/eva": "eva02_tiny_patch14_224",
    "timm/vgg": "vgg11_bn",
    "torchvision/regnet": "regnet_x_400mf",
    "torchvision/vgg": "vgg11_bn",
    "torchvision/vision_transformer": "vit_b_32",
}


def smallest(family: Family) -> str:
    """Return the name of a small model of a family, by the words for sizes that names have.

    To build each of them, if only as an outline, takes minutes with those that have hundreds.
    """
    if family.key in SMALLEST:
        return SMALLEST[family.key]
    names = models_by_module(family.library)[family.name]

    def rank(name: str) -> tuple[int, int, str]:
        words = re.split(r"[_.]", name)
        first = [number for number, word in enumerate(SMALL_WORDS) if word in words]
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        return (first[0] if first else len(SMALL_WORDS), sum(numbers), name)

    return min(names, key=rank)


# ---- texts


def build_text(family: Family, changes: Mapping[str, Any]) -> Built:
    """Return a tiny model of a type of transformers."""
    library: Any = LIBRARIES["hf"]
    transformers: Any = library.load()
    task: LanguageModeling | TextClassification = LanguageModeling(VOCABULARY, LENGTH)
    if family.kind == TextClassification.kind:
        task = TextClassification(3, VOCABULARY, LENGTH)
    with quietly(transformers):
        default = transformers.AutoConfig.for_model(family.name).get_text_config()
        config = {**shrink(default), **SPECIAL.get(family.name, {}), **changes}
        auto, call = library.kind_for(task)
        module = auto.from_config(type(default)(**config), trust_remote_code=False)
    tokens = torch.randint(FIRST_TOKEN, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    if not task.causal:
        tokens[:, -1] = TOKENS["eos_token_id"]  # by which some find what they classify
    alike = torch.full((2, LENGTH), FIRST_TOKEN + 4)
    return Built(module.eval(), call, tokens, alike, task.causal, config)


def shrink(default: Any) -> dict[str, Any]:
    """Return the settings that make a configuration of transformers tiny."""
    values = {name: value for name, value in vars(default).items() if not name.startswith("_")}
    small: dict[str, Any] = {name: token for name, token in TOKENS.items() if name in values}
    if getattr(default, "is_encoder_decoder", False):
        small["decoder_start_token_id"] = TOKENS["bos_token_id"]
    for name, value in values.items():
        for pattern, size in SIZES:
            if re.fullmatch(pattern, name):
                if type(value) is int and value > 0:
                    small[name] = min(value, size)
                break
    usual_heads = default.attribute_map.get("num_attention_heads", "num_attention_heads")
    for name in ("num_key_value_heads", "num_kv_heads"):
        if name in values:
            is_alike = values[name] == values.get(usual_heads)
            small[name] = 4 if is_alike or not values[name] else min(2, values[name])
    if values.get("num_experts_per_tok", 0) is None:
        small["num_experts_per_tok"] = 2
    if "qk_rope_head_dim" in small and "head_dim" in small:
        small["head_dim"] = small["qk_rope_head_dim"]
    if "query_pre_attn_scalar" in values:
        small["query_pre_attn_scalar"] = 16
    return small


# ---- images


def build_image(family: Family, name: str) -> Built:
    """Return a model of a family by name, made for the smallest images that it takes."""
    library = LIBRARIES[family.library]
    failure: Exception | None = None
    for side in SIDES:
        try:
            host = library.make(name, {}, ImageClassification(3, (3, side, side)), None)
            generator = torch.Generator().manual_seed(0)
            images = PIXELS * torch.randn((2, 3, side, side), generator=generator)
            with torch.no_grad():
                host.call(host.module.eval(), images)
            return Built(host.module.eval(), host.call, images, config={"model": name, "side": side})
        except Exception as error:  # of a library that is given what it does not take
            failure = error
    assert failure is not None
    raise failure


# ---- settings that speak of norms


def norm_settings(built: Built) -> Iterator[tuple[str, Any]]:
    """Give the settings of a configuration of transformers that speak of ε, or switch something of norms."""
    config = getattr(built.module, "config", None)
    for name, value in vars(config).items() if config is not None else ():
        speaks_of_norms = re.search(r"eps|norm", name) and "topk" not in name
        is_eps = type(value) is float and value > 0
        if speaks_of_norms and not name.startswith("_") and (is_eps or type(value) is bool):
            yield name, value
