"""Weights of given models: what was saved is read again to the bit, and what does not fit is refused in a sentence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from support import IMAGES, TEXT, TEXTS, random_batch
from torch import nn

from normbench.config import compose
from normbench.config.groups import section_of
from normbench.errors import UsageError
from normbench.hosts.libraries import build_host
from normbench.hosts.text_library import USUAL_SIZES
from normbench.hub import explain_silence
from normbench.runs.plan import prepare
from normbench.types import ImageClassification, Task

GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": TEXT.vocabulary_size, "n_positions": 16}
BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
        "vocab_size": TEXTS.vocabulary_size, "max_position_embeddings": 32}  # fmt: skip
VIT = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 2}


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("timm")


def train(module: nn.Module, call: Any, task: Task) -> nn.Module:
    """Some steps, so that no weight is as it starts."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for seed in range(3):
        batch = random_batch(task, seed=seed)
        optimizer.zero_grad()
        task.loss(call(module, *batch.arguments), batch.targets).backward()
        optimizer.step()
    return module.eval()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A language model that transformers has made and saved after some steps, and its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **GPT2))
    train(model, lambda model, tokens: model(tokens).logits, TEXT)
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    return folder, model


def check_logits(host: Any, expected: Callable[..., torch.Tensor], task: Task) -> None:
    batch = random_batch(task, seed=9)
    with torch.no_grad():
        assert torch.equal(host.call(host.module.eval(), *batch.arguments), expected(*batch.arguments))


def test_a_folder_of_transformers_is_read(gpt2: tuple[Path, nn.Module]) -> None:
    folder, model = gpt2
    assert section_of("model", "hf")["config"] == USUAL_SIZES
    host = build_host("hf", "gpt2", {**USUAL_SIZES, "resid_pdrop": 0.3, "n_head": 2}, TEXT, weights=str(folder))
    check_logits(host, lambda tokens: model(tokens).logits, TEXT)
    assert not host.anew and host.module.config.n_embd == 16 and host.module.config.resid_pdrop == 0.3


def test_an_output_layer_for_other_classes_starts_anew(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("bert", **BERT, num_labels=7))
    model.save_pretrained(tmp_path)
    host = build_host("hf", "bert", {}, TEXTS, weights=str(tmp_path))
    assert sorted(host.anew) == ["classifier.bias", "classifier.weight"]
    assert host.module.classifier.out_features == TEXTS.num_classes != 7
    assert torch.equal(host.module.bert.pooler.dense.weight, model.bert.pooler.dense.weight)


FOR_OTHER_TASKS = {
    "masked words": ("bert", "BertForMaskedLM"),
    "masked words and next sentences": ("bert", "BertForPreTraining"),
    "answers in texts": ("bert", "BertForQuestionAnswering"),
    "nothing": ("bert", "BertModel"),
    "masked words, roberta": ("roberta", "RobertaForMaskedLM"),
    "masked words, distilbert": ("distilbert", "DistilBertForMaskedLM"),
    "replaced words": ("electra", "ElectraForPreTraining"),
}


@pytest.mark.parametrize("trained_on", FOR_OTHER_TASKS)
@pytest.mark.parametrize("older", [False, True], ids=["folder", "older folder"])
def test_weights_for_another_task_train_a_classifier(trained_on: str, older: bool, tmp_path: Path) -> None:
    """What the classes of both tasks have is read, as transformers reads it; all else starts anew, or is left out."""
    import transformers

    name, kind = FOR_OTHER_TASKS[trained_on]
    config = transformers.AutoConfig.for_model(name, **BERT)
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config)
    model.save_pretrained(tmp_path)
    state = model.state_dict()
    if older:
        (tmp_path / "model.safetensors").unlink()
        torch.save(state, tmp_path / "pytorch_model.bin")
    host = build_host("hf", name, {}, TEXTS, weights=str(tmp_path))
    before = f"{model.base_model_prefix}." if kind.endswith("Model") else ""
    given = {f"{before}{key}": tensor for key, tensor in state.items()}
    own = dict(host.module.named_parameters())
    assert sorted(host.anew) == sorted(own.keys() - given.keys())
    assert {"classifier.weight", "classifier.out_proj.weight"} & {*host.anew}
    shared = own.keys() & given.keys()
    assert shared
    for key in shared:
        assert torch.equal(own[key], given[key]), key


@pytest.mark.parametrize("before", ["transformer.", "", "model.module."], ids=["class", "base", "wrapped base"])
def test_what_attention_kept_in_older_versions_is_left_out(
    gpt2: tuple[Path, nn.Module], before: str, tmp_path: Path
) -> None:
    folder, model = gpt2
    shutil.copy(folder / "config.json", tmp_path)
    state = {}
    for name, tensor in model.state_dict().items():
        if name.startswith("transformer."):
            state[before + name.removeprefix("transformer.")] = tensor
    state[f"{before}h.0.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
    state[f"{before}h.0.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(state, tmp_path / "pytorch_model.bin")
    host = build_host("hf", "gpt2", {}, TEXT, weights=str(tmp_path))
    check_logits(host, lambda tokens: model(tokens).logits, TEXT)
    assert not host.anew


def test_a_base_that_was_saved_without_its_pooler_trains_a_classifier(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    base = transformers.BertModel(transformers.AutoConfig.for_model("bert", **BERT), add_pooling_layer=False)
    base.save_pretrained(tmp_path)
    host = build_host("hf", "bert", {}, TEXTS, weights=str(tmp_path))
    pooler = ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    assert sorted(host.anew) == [*pooler, "classifier.bias", "classifier.weight"]
    state = host.module.state_dict()
    assert all(torch.equal(state[f"bert.{name}"], tensor) for name, tensor in base.state_dict().items())
    half = {**base.state_dict(), "pooler.dense.weight": state["bert.pooler.dense.weight"]}
    safetensors.torch.save_file(half, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"bert\.pooler\.dense\.bias is missing"):
        build_host("hf", "bert", {}, TEXTS, weights=str(tmp_path))


def test_what_a_file_has_beyond_its_class_for_other_tasks_is_left_out(tmp_path: Path) -> None:
    """As of bert-base-uncased and roberta-base, whose files have more than the class that their config.json names."""
    import transformers

    for kind, name, more in (
        ("BertForMaskedLM", "bert", ["cls.seq_relationship.weight", "bert.pooler.dense.weight"]),
        ("RobertaForMaskedLM", "roberta", ["roberta.pooler.dense.weight"]),
    ):
        model = getattr(transformers, kind)(transformers.AutoConfig.for_model(name, **BERT))
        folder = tmp_path / name
        model.save_pretrained(folder)
        state = safetensors.torch.load_file(folder / "model.safetensors")
        for key in more:
            state |= {key: torch.ones(16, 16), key.replace("weight", "bias"): torch.ones(16)}
        state |= {key: tensor[:2].clone() for key, tensor in state.items() if "relationship" in key}
        safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
        host = build_host("hf", name, {}, TEXTS, weights=str(folder))
        assert "classifier.weight" in host.anew or "classifier.out_proj.weight" in host.anew
        state["more"] = torch.ones(1)
        del state[f"{name}.encoder.layer.0.output.dense.weight"]
        safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
        message = refusal("hf", name, {}, TEXTS, weights=str(folder))
        assert "layer.0.output.dense.weight is missing" in message and "more is not the model's" in message


def test_a_stem_without_an_output_layer_trains_a_classifier_of_images(tmp_path: Path) -> None:
    """As training without labels leaves it, bare or with an output layer of its own in that place."""
    model = build_host("timm", "vit_tiny_patch16_224", VIT, IMAGES).module
    bare = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("head.")}
    projected = {**bare, "head.0.weight": torch.ones(8, 16), "head.2.weight": torch.ones(4, 8)}
    for number, state in enumerate((bare, projected)):
        path = tmp_path / f"{number}.pth"
        torch.save({"model": {f"module.{key}": tensor for key, tensor in state.items()}}, path)
        host = build_host("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(path))
        assert sorted(host.anew) == ["head.bias", "head.weight"]
        for key, tensor in bare.items():
            assert torch.equal(host.module.state_dict()[key], tensor), key
    torch.save({**bare, "head.bias": model.head.bias.detach()}, tmp_path / "half.pth")
    message = refusal("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(tmp_path / "half.pth"))
    assert "(head.weight is missing)" in message
    torch.save({**bare, "head.weight_orig": torch.ones(3, 16), "head.weight_mask": torch.ones(3, 16)}, path)
    message = refusal("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(path))
    assert "head.weight_mask" in message, "a pruned output layer is one, in another form"


def test_a_convolution_that_tells_classes_starts_anew_for_others(tmp_path: Path) -> None:
    """SqueezeNet's last layer has no weights of a linear one."""
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = models.get_model("squeezenet1_1", weights=None, num_classes=IMAGES.num_classes + 2)
    torch.save(model.state_dict(), tmp_path / "squeezenet.pth")
    host = build_host("torchvision", "squeezenet1_1", {}, IMAGES, weights=str(tmp_path / "squeezenet.pth"))
    assert sorted(host.anew) == ["classifier.1.bias", "classifier.1.weight"]
    state = host.module.state_dict()
    kept = {name: tensor for name, tensor in model.state_dict().items() if name not in host.anew}
    assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())


DISTILLED = {"depth": 1, "embed_dim": 16, "num_heads": 2, "patch_size": 8}
SEVERAL_OUTPUTS = {  # the model, its options, its output layers, and what leads to outputs that train alone
    "googlenet": ("torchvision", {"init_weights": False}, ("fc", "aux1.fc2", "aux2.fc2"), ("aux1", "aux2")),
    "inception_v3": ("timm", {"aux_logits": True}, ("fc", "AuxLogits.fc"), ("AuxLogits",)),
    "deit_tiny_distilled_patch16_224": ("timm", DISTILLED, ("head", "head_dist"), ("head_dist",)),
    "levit_128s": ("timm", {}, ("head.linear", "head_dist.linear"), ("head_dist",)),
}


@pytest.mark.parametrize("name", SEVERAL_OUTPUTS)
def test_all_outputs_for_other_classes_start_anew(name: str, tmp_path: Path) -> None:
    """Those that a model has beside the one that judges, too, also where weights lack all that leads to them."""
    library, options, outputs, branches = SEVERAL_OUTPUTS[name]
    pytest.importorskip(library)
    pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    others = ImageClassification(num_classes=IMAGES.num_classes + 2, image_shape=IMAGES.image_shape)
    state = build_host(library, name, options, others).module.state_dict()
    of_outputs = {key for key in state if key.rpartition(".")[0] in outputs}
    without = {key: tensor for key, tensor in state.items() if not key.startswith(tuple(f"{at}." for at in branches))}
    lost = (state.keys() - without.keys()) | of_outputs
    for number, (given, anew) in enumerate(((state, of_outputs), (without, lost))):
        file = tmp_path / f"{number}.pth"
        torch.save(given, file)
        host = build_host(library, name, options, IMAGES, weights=str(file))
        assert {*host.anew} == anew
        loaded = host.module.state_dict()
        assert all(torch.equal(loaded[key], tensor) for key, tensor in given.items() if key not in anew)
    less = {key: tensor for key, tensor in state.items() if key != next(iter(state))}
    torch.save(less, file)
    assert f"{next(iter(state))} is missing" in refusal(library, name, options, IMAGES, weights=str(file))


def test_a_folder_of_older_versions_is_read(gpt2: tuple[Path, nn.Module], tmp_path: Path) -> None:
    """Its weights are in a pickle, of which tensors alone are read."""
    folder, model = gpt2
    shutil.copy(folder / "config.json", tmp_path)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for content in (state, {"state_dict": state, "epoch": 3, "lr": np.float64(0.1)}, model.state_dict()):
        torch.save(content, tmp_path / "pytorch_model.bin")
        host = build_host("hf", "gpt2", {}, TEXT, weights=str(tmp_path))
        check_logits(host, lambda tokens: model(tokens).logits, TEXT)
        assert not host.anew
    torch.save({name: tensor.numpy() for name, tensor in state.items()}, tmp_path / "pytorch_model.bin")
    message = refusal("hf", "gpt2", {}, TEXT, weights=str(tmp_path))
    assert "pytorch_model.bin holds arrays of numpy in place of tensors" in message


@pytest.mark.parametrize("ending", ["safetensors", "pth", "folder", "older_folder"])
def test_a_checkpoint_of_timm_is_read(ending: str, tmp_path: Path) -> None:
    built = build_host("timm", "vit_tiny_patch16_224", VIT, IMAGES)
    model = train(built.module, built.call, IMAGES)
    path = tmp_path / f"vit.{ending}"
    if ending == "pth":
        torch.save({"state_dict": model.state_dict()}, path)
    elif "folder" in ending:
        from timm.models import save_for_hf

        save_for_hf(model, path, model_config={"num_classes": 5}, safe_serialization=ending == "folder")
    else:
        safetensors.torch.save_file(model.state_dict(), path)
    host = build_host("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(path))
    check_logits(host, lambda images: built.call(model, images), IMAGES)
    other = build_host("timm", "vit_tiny_patch16_224", {**VIT, "num_classes": 3}, IMAGES, weights=str(path))
    assert sorted(other.anew) == ["head.bias", "head.weight"]
    assert torch.equal(other.module.norm.weight, model.norm.weight)


def refusal(*how: Any, **more: Any) -> str:
    with pytest.raises(UsageError) as refused:
        build_host(*how, **more)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_what_does_not_fit_is_refused(gpt2: tuple[Path, nn.Module], tmp_path: Path) -> None:
    from transformers import AutoConfig

    folder, model = gpt2
    where = re.escape(f"model.weights={folder}")
    assert re.match(f"{where} has weights of gpt2, not of llama: set model.name=gpt2", refusal(
        "hf", "llama", {}, TEXT, weights=str(folder)
    ))  # fmt: skip
    longer = TEXT.__class__(TEXT.vocabulary_size, 64)
    assert "set model.context=16" in refusal("hf", "gpt2", {}, longer, weights=str(folder))
    sizes = {"hidden_size": 64, "n_head": 2}
    assert "has n_embd=16, and model.config.hidden_size=64 is given: leave that out" in refusal(
        "hf", "gpt2", sizes, TEXT, weights=str(folder)
    )
    other = TEXT.__class__(300, 16)
    assert "has 17 tokens, and the data have 300: set data.level=hf" in refusal(
        "hf", "gpt2", {}, other, weights=str(folder)
    )
    state = dict(model.state_dict())
    del state["lm_head.weight"], state["transformer.h.0.ln_1.bias"]
    state["transformer.ln_f.weight"] = torch.ones(9)
    state["more"] = torch.ones(1)
    AutoConfig.from_pretrained(folder).save_pretrained(tmp_path)
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    message = refusal("hf", "gpt2", {}, TEXT, weights=str(tmp_path))
    assert "transformer.ln_f.weight is of another shape" in message and "ln_1.bias is missing" in message
    assert "more is not the model's" in message
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(about | {"auto_map": {"AutoConfig": "mine.Config"}}))
    assert "needs code" in refusal("hf", "gpt2", {}, TEXT, weights=str(tmp_path))


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (tmp_path.joinpath("ran").touch, ())

    pickled = tmp_path / "evil.pth"
    torch.save({"state_dict": Evil()}, pickled)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"nothing")
    note = tmp_path / "note.txt"
    note.write_text("weights")
    called = "other things than tensors by name (a call)"
    said = {pickled: called, damaged: "cannot be read", note: "is not a file of weights"}
    for path, what in said.items():
        assert what in refusal("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(path))
    assert not (tmp_path / "ran").exists()
    whole = tmp_path / "whole.pth"
    torch.save(torch.nn.Linear(2, 2), whole)
    message = refusal("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(whole))
    assert message.isprintable() and "(cls_token, " in message and "weight, bias are not the model's" in message
    arrays = tmp_path / "arrays.pth"
    torch.save({"head.weight": torch.zeros(1).numpy()}, arrays)
    message = refusal("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(arrays))
    assert message.isprintable() and "holds arrays of numpy in place of tensors: save torch.from_numpy" in message
    assert "is not there" in refusal("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(tmp_path / "nix"))
    (tmp_path / "empty").mkdir()
    assert "has no .safetensors" in refusal("hf", "gpt2", {}, TEXT, weights=str(tmp_path / "empty"))
    small = {**VIT, "embed_dim": 8}
    path = tmp_path / "vit.safetensors"
    safetensors.torch.save_file(build_host("timm", "vit_tiny_patch16_224", small, IMAGES).module.state_dict(), path)
    message = refusal("timm", "vit_tiny_patch16_224", VIT, IMAGES, weights=str(path))
    assert re.search(r"does not fit the model \(cls_token, pos_embed, \S+ and \d+ more are of another shape\)", message)


def test_other_weights_at_the_same_place_make_another_run(tmp_path: Path) -> None:
    words = ["model=timm", f"model.weights={tmp_path / 'given.safetensors'}", "norm=own"]
    names = set[str]()
    for number in (1, 2, 1):
        content = {"head.bias": torch.full((10,), float(number))}
        safetensors.torch.save_file(content, tmp_path / "given.safetensors")
        names.add(prepare(compose.read(words)).directory.path.name)
    assert len(names) == 2
    assert prepare(compose.read(["model=timm", "norm=own"])).directory.path.name not in names


def test_without_a_network_the_hub_says_so_in_a_sentence_after_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    asked: list[str] = []

    def ask() -> str:
        asked.append(explain_silence())
        return asked[-1]

    monkeypatch.setattr("normbench.hosts.building.explain_silence", ask)
    for library, name, task in (("hf", "nobody/nothing", TEXT), ("timm", "vit_tiny_patch16_224", IMAGES)):
        message = refusal(library, name, {}, task, weights="pretrained")
        assert "model.weights=PATH" in message and "cannot be reached" in message
    assert len(asked) == 2 and all(asked) and not huggingface_hub.constants.HF_HUB_OFFLINE
