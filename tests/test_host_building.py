"""Models of other libraries are built for our tasks, and called with our batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import random_batch

from normbench.errors import UsageError
from normbench.hosts import Host, build_host
from normbench.hosts.image_libraries import scaled_size
from normbench.hosts.libraries import LIBRARIES
from normbench.hosts.text_library import USUAL_SIZES
from normbench.types import ImageClassification, LanguageModeling, Task, TextClassification

GREY = ImageClassification(num_classes=5, image_shape=(1, 8, 8))
COLOURED = ImageClassification(num_classes=5, image_shape=(3, 40, 64))
TEXT = LanguageModeling(vocabulary_size=17, context=16)
TEXTS = TextClassification(num_classes=5, vocabulary_size=17, context=16)
NARROW = {"hidden_size": 64, "num_hidden_layers": 1}


def made(library: str, name: str, options: dict[str, Any], task: Task, image_size: Any = "auto") -> Host:
    """A model, of the same start each time."""
    if library in LIBRARIES:
        pytest.importorskip(LIBRARIES[library].packages[0])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_host(library, name, options, task, image_size)


@pytest.mark.parametrize("task", [GREY, COLOURED], ids=["grey", "coloured"])
@pytest.mark.parametrize(
    ("library", "name", "options"),
    [("timm", "test_vit", {}), ("timm", "test_resnet", {}), ("torchvision", "squeezenet1_1", {})],
)
def test_a_classifier_of_images_has_the_classes_channels_and_size_of_the_data(
    library: str, name: str, options: dict[str, Any], task: ImageClassification
) -> None:
    host = made(library, name, options, task)
    batch = random_batch(task)
    host.module.eval()
    assert host.call(host.module, *batch.arguments).shape == (len(batch.targets), task.num_classes)
    if name == "test_vit":  # of the images that are scaled to 32 pixels, or of 40 × 64
        assert host.decided["img_size"] == ((32, 32) if task is GREY else (40, 64))
        assert host.decided["patch_size"] == 8
        assert isinstance(host.head, torch.nn.Linear) and host.head.out_features == task.num_classes


def test_images_are_scaled_to_what_networks_take() -> None:
    assert scaled_size((8, 8), "auto") == (32, 32)
    assert scaled_size((8, 12), "auto") == (32, 48)
    assert scaled_size((224, 224), "auto") == (224, 224)
    assert scaled_size((40, 64), 20) == (20, 32)
    assert scaled_size((8, 8), None) == (8, 8)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama", {"num_attention_heads": 2, "intermediate_size": 176, "max_position_embeddings": 16}),
        ("gpt2", {"n_head": 2, "n_positions": 16, "vocab_size": 17}),
        ("gemma3", {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32}),
    ],
)
def test_sizes_of_a_language_model_follow_from_its_width_and_the_text(name: str, sizes: dict[str, int]) -> None:
    host = made("hf", name, NARROW, TEXT)
    assert sizes.items() <= host.decided.items()
    assert {key: getattr(host.module.config, key) for key in sizes} == sizes
    batch = random_batch(TEXT)
    assert host.call(host.module, *batch.arguments).shape == (*batch.targets.shape, 17)


def test_sizes_that_are_given_stay() -> None:
    given = {"n_embd": 48, "n_head": 3, "num_hidden_layers": 1}
    config: Any = made("hf", "gpt2", given, TEXT).module.config
    assert (config.n_embd, config.n_head, config.n_layer) == (48, 3, 1)
    by_own_names: Any = made("hf", "gpt2", {**USUAL_SIZES, "n_embd": 64, "n_layer": 1}, TEXT)
    assert (by_own_names.module.config.n_embd, len(by_own_names.module.transformer.h)) == (64, 1)
    assert by_own_names.decided["n_head"] == 2
    by_both: Any = made("hf", "gpt2", {**NARROW, "n_layer": 1}, TEXT).module.config
    assert (by_both.n_embd, by_both.n_layer) == (64, 1)
    own = made("hf", "llama", NARROW | {"num_attention_heads": 4, "intermediate_size": 24}, TEXT)
    assert "num_attention_heads" not in own.decided and "intermediate_size" not in own.decided


@pytest.mark.parametrize("name", ["bert", "roberta", "llama"])
def test_padding_changes_nothing_for_a_classifier_of_texts(name: str) -> None:
    host = made("hf", name, NARROW, TEXTS)
    host.module.eval()
    batch = random_batch(TEXTS)
    assert batch.mask is not None
    text, real = torch.where(batch.mask, batch.inputs, 3), batch.mask  # token 0 is one of the text's
    assert int(real[-1].sum()) < 16
    alone = text[-1:, : int(real[-1].sum())]
    with torch.no_grad():
        padded = host.call(host.module, text, real)[-1:]
        unpadded = host.call(host.module, alone, torch.ones_like(alone, dtype=torch.bool))
    torch.testing.assert_close(padded, unpadded, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("library", "name", "options", "told"),
    [
        ("timm", "resnet81", {}, "did you mean resnet18"),
        ("timm", "hf-hub:timm/resnet18", {}, "is not a model of timm"),
        ("timm", "test_resnet", {"pretrained": True}, "model.kwargs.pretrained=true would load"),
        ("timm", "test_resnet", {"act_layer": "a/b"}, "would load"),
        (
            "timm",
            "test_resnet",
            {"block_args": [["x", {"_target_": "mine.Block"}]]},
            "block_args._target_=mine.Block would",
        ),
        ("timm", "test_resnet", {"depht": 3}, "unexpected keyword argument 'depht'"),
        ("torchvision", "resnet19", {}, "did you mean resnet18"),
        ("hf", "lama", {}, "did you mean llama"),
        ("hf", "llama", {"hiden_size": 64}, "did you mean hidden_size"),
        (
            "hf",
            "gpt2",
            {"num_hidden_layers": 2, "n_layer": 1},
            "num_hidden_layers=2 and model.config.n_layer=1 are the same setting of gpt2: give one of them",
        ),
        ("hf", "llama", {"auto_map": {"AutoModel": "a.B"}}, "auto_map, which needs code beside that of the library"),
        ("hf", "llama", {"hidden_size": 64, "num_attention_heads": 3}, "not a multiple of the number of attention"),
        ("keras", "resnet18", {}, "use timm, torchvision or hf"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(
    library: str, name: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        made(library, name, options, TEXT if library == "hf" else GREY)
    assert told in str(refused.value) and "\n" not in str(refused.value)
