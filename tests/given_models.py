"""Tiny models of other libraries with random weights, whose norms are found and replaced; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

CLASSES = 5
VOCABULARY = 50


@dataclass(frozen=True)
class Given:
    """A model of another library.

    Attributes:
        library: which is imported for it.
        make: makes it.
        example: makes what it is called with, by keyword.
    """

    library: str
    make: Callable[[], nn.Module]
    example: Callable[[], dict[str, Any]]

    def build(self, seed: int = 0) -> nn.Module:
        """The model in evaluation mode, whose weights are drawn anew and all differ from each other."""
        pytest.importorskip(self.library)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.make().eval()
            for parameter in model.parameters():
                if parameter.ndim == 1:  # γ and β too, so that one in place of another shows
                    parameter.data += 0.1 * torch.randn_like(parameter)
            for name, buffer in model.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    buffer += 0.1 * torch.rand_like(buffer)
        return model

    def call(self, model: nn.Module) -> object:
        """One forward pass."""
        return model(**self.example())


def images(side: int = 32, name: str = "x") -> Callable[[], dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(2, 3, side, side, generator=generator)
    return lambda: {name: batch}


def tokens() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(VOCABULARY, (2, 8), generator=generator)}


def timm_model(name: str, side: int = 32, **sizes: Any) -> Given:
    def make() -> nn.Module:
        made: nn.Module = import_module("timm").create_model(name, num_classes=CLASSES, **sizes)
        return made

    return Given("timm", make, images(side))


def mixer() -> nn.Module:
    made: nn.Module = import_module("timm.models.mlp_mixer").MlpMixer(
        img_size=32, patch_size=8, embed_dim=32, num_blocks=2, num_classes=CLASSES
    )
    return made


def torchvision_resnet() -> nn.Module:
    resnet = import_module("torchvision.models.resnet")
    made: nn.Module = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, width_per_group=4)
    return made


def transformers_model(kind: str, head: str = "CausalLM", **sizes: Any) -> Given:
    def make() -> nn.Module:
        library = import_module("transformers")
        ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
        config = library.AutoConfig.for_model(kind, vocab_size=VOCABULARY, **ends, **sizes)
        made: nn.Module = getattr(library, f"AutoModelFor{head}").from_config(config)
        return made

    return Given("transformers", make, tokens)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SMALL_LM = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 32}
WINDOWS = {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
STATES = {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}

HOSTS = {
    "vit": timm_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=32, num_heads=2),
    "convnext": timm_model("convnext_atto", depths=(1, 2, 1, 1), dims=(8, 16, 24, 32)),
    "resnet": timm_model("resnet18", layers=(1, 1, 1, 1), channels=(8, 16, 24, 32)),
    "swin": timm_model("swin_tiny_patch4_window7_224", **WINDOWS),
    "mobilenet": timm_model("mobilenetv3_small_050"),
    "mixer": Given("timm", mixer, images()),
    "torchvision resnet": Given("torchvision", torchvision_resnet, images()),
    "gpt2": transformers_model("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=32),
    "llama": transformers_model("llama", **SMALL_LM),
    "olmo2": transformers_model("olmo2", **SMALL_LM),
    "gemma3": transformers_model("gemma3_text", head_dim=8, **SMALL_LM),
    "qwen3": transformers_model("qwen3", head_dim=8, **SMALL_LM),
    "bert": transformers_model("bert", head="MaskedLM", max_position_embeddings=32, **SMALL),
}

# Models with something that is not found, or not replaced.
OTHERS = {
    "swin2": timm_model("swinv2_tiny_window8_256", **WINDOWS),
    "nanochat": transformers_model("nanochat", **SMALL_LM),
    "mamba2": transformers_model("mamba2", chunk_size=8, **STATES),
    "qwen3_next": transformers_model("qwen3_next", head_dim=8, **DELTA, **SMALL_LM),
}

LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 4,
    "first_k_dense_replace": 2,
}
LEVIT = {"img_size": 64, "embed_dim": (16, 24), "key_dim": 4, "depth": (1, 1), "num_heads": (2, 3)}
STAGES = {"depths": (1, 1), "embed_dims": (8, 16), "mlp_ratios": (2, 2)}
FASTVIT = {"layers": (2, 2), "embed_dims": (8, 32), "mlp_ratios": (2, 2), "downsamples": (False, True)}


def poolformer() -> nn.Module:
    metaformer = import_module("timm.models.metaformer")
    made: nn.Module = metaformer.MetaFormer(
        depths=(1, 1), dims=(8, 16), norm_layers=metaformer.GroupNorm1, num_classes=CLASSES
    )
    return made


# Models whose blocks are called otherwise than they compute, or have norms inside of attention.
COMPUTED = {
    "stablelm": transformers_model("stablelm", qk_layernorm=True, **SMALL_LM),
    "deepseek_v3": transformers_model("deepseek_v3", **LATENT, **SMALL_LM),
    "cohere2": transformers_model("cohere2", head_dim=8, **SMALL_LM),
    "gptj": transformers_model("gptj", n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4),
    "phi": transformers_model("phi", qk_layernorm=True, **SMALL_LM),
    "jamba": transformers_model("jamba", attn_layer_period=2, attn_layer_offset=1, **SMALL_LM),
    "lfm2": transformers_model("lfm2", layer_types=["conv", "full_attention"], **SMALL_LM),
    "fastvit": timm_model("fastvit_t8", token_mixers=("repmixer", "attention"), pos_embs=(None, None), **FASTVIT),
    "efficientvit": timm_model("efficientvit_b0", widths=(8, 8, 16, 16), depths=(1, 1, 1, 1), head_dim=8),
    "levit": timm_model("levit_128s", side=64, **LEVIT),
    "pvt": timm_model("pvt_v2_b0", num_heads=(1, 2), sr_ratios=(2, 1), **STAGES),
    "poolformer": Given("timm", poolformer, images()),
}
