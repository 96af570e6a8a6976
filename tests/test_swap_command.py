"""Swaps of given models, on weights of a short training that were saved in their library's format and read again."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from msgspec import convert, to_builtins
from msgspec.structs import replace
from support import WHOLE, Swap, losses_in
from torch import nn
from torch.nn import functional as F

import normbench
from normbench.build import make_data
from normbench.config import compose
from normbench.errors import RunFailure, UsageError
from normbench.hosts.libraries import build_host
from normbench.hosts.saving import NormNote, SwapNote, describe_norm, put_in_norm, write_folder
from normbench.hosts.weights import find_saved
from normbench.norms import DyT, GroupNorm, RMSNorm
from normbench.studies.given import model_words
from normbench.types import ImageClassification, LanguageModeling, Site

pytest_plugins = ["swap_fixtures"]

SMALL = ("model.context=16", "trainer.eval_batches=2", "data.eval_batch_size=8", "data.batch_size=8")
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 256, "n_positions": 16,
        "bos_token_id": None, "eos_token_id": None}  # fmt: skip
MIXTRAL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
           "intermediate_size": 24, "num_local_experts": 3, "vocab_size": 256, "max_position_embeddings": 16,
           "bos_token_id": None, "eos_token_id": None}  # fmt: skip
IMAGES = ImageClassification(10, (1, 8, 8))
TEXT = LanguageModeling(vocabulary_size=256, context=16)
TIMM = ["mobilenetv3_small_050"]
if WHOLE:
    TIMM.append("vit_tiny_patch16_224")


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("timm")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model after some steps on our data, as transformers saves it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **GPT2))
    data = make_data(compose.read(SMALL).recipe, 0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(30):
        batch = data.train_batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs).logits.flatten(0, 1), batch.targets.flatten()).backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("given") / "gpt2"
    model.save_pretrained(folder)
    return folder


def read_gpt2(folder: Path) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    return model


@torch.no_grad()
def loss_of(model: nn.Module) -> float:
    """The loss over what a swap is judged on, as transformers' own code gives it."""
    data = make_data(compose.read(SMALL).recipe, 0)
    total, count = 0.0, 0
    for batch in data.eval_batches("val", 2):
        logits = model(input_ids=batch.inputs).logits
        total += F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum").item()
        count += batch.targets.numel()
    return total / count


def test_layernorms_become_rmsnorms_exactly(gpt2: Path, tmp_path: Path, swap: Swap) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "rms"
    told = swap(str(gpt2), "norm=rmsnorm", "keep=exact", "--out", str(out), *SMALL)
    original = AutoModelForCausalLM.from_pretrained(gpt2).eval()
    losses = losses_in(told)
    assert losses["as they are"] == pytest.approx(loss_of(original), rel=1e-4)
    assert losses["exact"] == losses["as they are"] != losses["γ and β kept"]
    model = read_gpt2(out)
    normbench.load_swapped(model, out)
    norms = [module for module in model.modules() if "Norm" in type(module).__name__]
    assert {type(norm) for norm in norms} == {RMSNorm} and len(norms) == 5
    tokens = torch.arange(16).view(1, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, original(tokens).logits, rtol=0, atol=1e-5)
    assert "block01.mlp" in told and "LayerNorm → RMSNorm" in told and "lm_head has a bias now" in told


def test_what_is_kept_fresh_and_fitted_is_what_a_hand_swap_gives(gpt2: Path, tmp_path: Path, swap: Swap) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "dyt"
    told = swap(str(gpt2), "norm=dyt", "norm.alpha0=0.7", "keep=fit", "--out", str(out), *SMALL)
    losses = losses_in(told)
    expected = {}
    for row in ("γ and β kept", "fresh"):
        model = AutoModelForCausalLM.from_pretrained(gpt2).eval()
        for path, old in [*model.named_modules()]:
            if isinstance(old, nn.LayerNorm):
                new = DyT(16, alpha0=0.7)
                if row != "fresh":
                    new.load_state_dict(old.state_dict(), strict=False)
                model.set_submodule(path, new)
        expected[row] = loss_of(model)
        assert losses[row] == pytest.approx(expected[row], rel=1e-4)
    assert losses["fitted"] < min(expected.values())
    fitted = read_gpt2(out)
    normbench.load_swapped(fitted, out)
    assert loss_of(fitted) == pytest.approx(losses["fitted"], rel=1e-4)
    assert "no exact swap" in told


def test_some_norms_alone_are_swapped(gpt2: Path, swap: Swap) -> None:
    told = swap(str(gpt2), "norm@first1=rmsnorm", *SMALL)
    assert "2 LayerNorm → RMSNorm, 3 LayerNorm as it is" in told
    assert losses_in(told)["exact"] == losses_in(told)["as they are"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_models_of_timm_are_swapped_and_read_again(name: str, tmp_path: Path, swap: Swap) -> None:
    import timm

    options = {"embed_dim": 16, "depth": 1, "num_heads": 2} if name.startswith("vit") else {}
    torch.manual_seed(0)
    host = build_host("timm", name, options, IMAGES)
    given, out = tmp_path / "given", tmp_path / "swapped"
    about = {"num_classes": 10}
    model_args = {**host.decided, **options}
    timm.models.save_for_hf(host.module, given, about, model_args=model_args, safe_serialization=True)
    told = swap(str(given), "norm=groupnorm", "norm.groups=4", "--out", str(out), "trainer.eval_batches=1")
    made = json.loads((out / "config.json").read_text())
    model = timm.create_model(made["architecture"], **made["model_args"])
    normbench.load_swapped(model, out)
    norms = [module for module in model.modules() if isinstance(module, GroupNorm)]
    assert norms and "GroupNorm" in told
    if name.startswith("mobilenet"):
        assert {type(norm.act).__name__ for norm in norms} >= {"Hardswish", "Identity"}
    data = make_data(compose.read(["model=timm"]).recipe, 0)
    (batch,) = data.eval_batches("val", 1)
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(host.call(model, batch.inputs), batch.targets)
    assert losses_in(told)["γ and β kept"] == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["norm=dyt"], "is given no model"),
        (["GIVEN"], "is given no norm"),
        (["nix", "norm=dyt"], "nix is not a model"),
        (["GIVEN", "norm=own"], "changes nothing"),
        (["GIVEN", "norm=dyt", "keep=nix"], "keep=nix is not allowed: use weights, nothing, fit or exact"),
        (["GIVEN", "norm=dyt", "keep=exact"], "keep=exact is not for this swap"),
        (["GIVEN", "norm=dyt", "model=nano"], "model=nano"),
        (["GIVEN", "norm=dyt", "model.context=64"], "set model.context=16"),
        (["GIVEN", "norm=dyt", "--out", "GIVEN"], "holds something already"),
    ],
)
def test_mistakes_are_said_in_a_sentence(words: list[str], said: str, gpt2: Path, swap: Swap) -> None:
    given = [word.replace("GIVEN", str(gpt2)) for word in words]
    small = [] if "model=nano" in words else [word for word in SMALL if word.partition("=")[0] not in str(words)]
    message = swap(*given, *small, status=2)
    assert said in message and message.count("\n") == 1


def test_groups_of_the_norm_before_are_in_the_note() -> None:
    """No word has given them, so that the class's default would come back."""
    host = nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8))
    model, _ = normbench.swap(host, "groupnorm", example=torch.randn(3, 8))
    norm: Any = model[1]
    assert norm.groups == 2
    entry = describe_norm("1", norm, 8, {"affine": True})
    again: Any = put_in_norm(nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8)), read_again(entry))
    assert again.groups == 2


def read_again(note: NormNote) -> NormNote:
    """A note of a norm, as a file keeps it."""
    return convert(json.loads(json.dumps(to_builtins(note))), NormNote)


NORM_NOTE = NormNote("transformer.ln_f", "normbench.norms.rmsnorm.RMSNorm", 8, -1, {}, 1e-5, False, Site("final"))
NOTE = to_builtins(SwapNote("hf", "gpt2", {}, "normbench swap", [NORM_NOTE], [], []))


@pytest.mark.parametrize(
    ("key", "value"), [("channel_dim", True), ("features", "8"), ("eps", "1e-5"), ("settings", []), ("site", None)]
)
def test_a_norm_of_a_note_is_refused_where_a_value_is_of_another_kind(tmp_path: Path, key: str, value: Any) -> None:
    note = {**NOTE, "norms": [{**NOTE["norms"][0], key: value}]}
    (tmp_path / "swap.json").write_text(json.dumps(note))
    with pytest.raises(UsageError, match=rf"has no swap.json that can be read .*norms\[0\]\.{key}`\): give a"):
        normbench.load_swapped(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "os.path.join",
        "normbench.norms.evil.Norm",
        "normbench.norms.foreign.make_fitted",
        "normbench.norms.foreign.Unmasked",
        "normbench.norms.dyt.Norm",
        "normbench.norms.dyt.torch.nn.Linear",
        "normbench.norms.dyt.__builtins__",
    ],
)
def test_a_note_runs_no_code_of_others(name: str, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    note = {**NOTE, "norms": [{**NOTE["norms"][0], "class": name}]}
    (tmp_path / "swap.json").write_text(json.dumps(note))
    with pytest.raises(UsageError, match=f"names {name}, which is not a norm of normbench"):
        normbench.load_swapped(read_gpt2(gpt2), tmp_path)


def test_a_folder_may_have_any_name(gpt2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it's my gpt2, (1)"
    folder.symlink_to(gpt2)
    assert compose.read(model_words(str(folder), ["norm=rmsnorm"])).tree["model"]["weights"] == str(folder)


def test_a_folder_without_a_note_has_no_swapped_model(gpt2: Path) -> None:
    with pytest.raises(UsageError, match=r"has no swap.json"):
        normbench.load_swapped(read_gpt2(gpt2), gpt2)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"architecture": "test_vit", "model_args": {"_target_": "evil.Model"}}, "model.kwargs holds a _target_"),
        ({"architecture": "test_vit", "model_args": {"a": [{"checkpoint": "evil.pth"}]}}, "would load a file or code"),
        ({"architecture": "test_vit", "library": "evil"}, "does not say what its model is"),
        ({"architecture": "hf-hub:evil/evil"}, "is not a model of timm"),
        ({"model_type": "gpt2", "auto_map": {"AutoConfig": "evil.Config"}}, "auto_map, which needs code"),
        ({"model_type": "gpt2", "text_config": {"auto_map": {"AutoModel": "evil.M"}}}, "auto_map, which needs code"),
        ({"model_type": "${oc.env:HOME}"}, "model.name=${oc.env:HOME} is not a model"),
        ({"architecture": "test_vit", "model_args": {"block_fn": "${oc.env:HOME}"}}, "${oc.env:HOME}"),
    ],
)
def test_a_folder_of_others_runs_no_code(
    about: dict[str, Any], said: str, tmp_path: Path, swap: Swap, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(about))
    safetensors.torch.save_file({"weight": torch.ones(1)}, tmp_path / "model.safetensors")
    assert said in swap(str(tmp_path), "norm=dyt", status=2)


# ---- what is written


@pytest.fixture(scope="module")
def swapped(gpt2: Path) -> tuple[nn.Module, SwapNote]:
    """A language model with GroupNorms, and the note on it."""
    model = read_gpt2(gpt2)
    _, table = normbench.swap(model, "groupnorm", groups=2)
    norms = [describe_norm(path, model.get_submodule(path), 16, {"groups": 2}) for path in table.path]
    return model, SwapNote("hf", "gpt2", {}, "normbench swap", norms, [], [])


@pytest.fixture
def out(swapped: tuple[nn.Module, SwapNote], tmp_path: Path) -> Path:
    """The folder of a swapped model."""
    write_folder(tmp_path / "a/out", *swapped, None)
    return tmp_path / "a/out"


def test_what_is_written_is_read_again(swapped: tuple[nn.Module, SwapNote], out: Path, gpt2: Path) -> None:
    model = read_gpt2(gpt2)
    normbench.load_swapped(model, out)
    tokens = torch.arange(16).view(1, 16)
    torch.testing.assert_close(model(tokens).logits, swapped[0].eval()(tokens).logits, rtol=0, atol=0)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


class Sharing(nn.Module):
    """A model with one norm and one layer at two places each, a tied weight, and buffers in one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.second = self.first
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        scales = torch.rand(2, 4)
        self.register_buffer("low", scales[0])
        self.register_buffer("both", scales)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(self.embedding(tokens)))
        logits: torch.Tensor = self.head(x * self.low + self.both.sum(0))
        return logits


def test_what_a_model_shares_is_written_and_shared_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, table = normbench.swap(Sharing(), "rmsnorm", example=torch.arange(6))
    (path,) = table.path
    entry = describe_norm(path, model.get_submodule(path), 4, {})
    note = SwapNote("timm", "sharing", {}, "normbench swap", [entry], [], [])
    write_folder(tmp_path / "out", model, note, None)
    assert set(safetensors.torch.load_file(tmp_path / "out/model.safetensors")) == set(model.state_dict())
    again = Sharing()
    normbench.load_swapped(again, tmp_path / "out")
    assert isinstance(again.second[1], RMSNorm) and again.first is again.second
    assert again.head.weight is again.embedding.weight
    tokens = torch.arange(6)
    assert torch.equal(again.eval()(tokens), model.eval()(tokens))


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size inside, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [100, 2_000])  # of config.json, and of the weights, it is too little
@pytest.mark.parametrize("library", ["hf", "timm"])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(
    size: int, library: str, swapped: tuple[nn.Module, SwapNote], tmp_path: Path
) -> None:
    model, note = swapped
    if library == "timm":
        model = nn.Sequential(nn.Linear(16, 64))
        note = replace(note, library="timm")
    with small_files(size), pytest.raises(RunFailure, match=r"^--out .*/out cannot be written, since the disk is full"):
        write_folder(tmp_path / "a/b/out", model, note, None)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_an_error_at_the_end_leaves_nothing_either(
    number: int, swapped: tuple[nn.Module, SwapNote], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr("normbench.record.files.sync_directory", fail)
    with pytest.raises((RunFailure, UsageError), match=f"cannot be written.*{os.strerror(number)}"):
        write_folder(tmp_path / "out", *swapped, None)
    assert [*tmp_path.rglob("*")] == [tmp_path / "out"]


def test_the_current_folder_is_not_replaced(
    swapped: tuple[nn.Module, SwapNote], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is the current folder"):
        write_folder(Path(), *swapped, None)


def remove_note(out: Path) -> None:
    (out / "swap.json").unlink()


def leave_weights_alone(out: Path) -> None:
    """Without note and config.json, as somebody copies weights."""
    remove_note(out)
    about = json.loads((out / "config.json").read_text())
    del about["normbench_swap"]
    (out / "config.json").write_text(json.dumps(about))


def leave_config_alone(out: Path) -> None:
    """Without the note, and with weights that a training has saved since."""
    remove_note(out)
    weights = out / "model.safetensors"
    safetensors.torch.save_file(safetensors.torch.load_file(weights), weights, {"format": "pt"})


@pytest.mark.parametrize("change", [lambda out: None, remove_note, leave_weights_alone, leave_config_alone])
def test_a_swapped_model_is_never_taken_for_the_one_before(change: Callable[[Path], None], out: Path) -> None:
    change(out)
    given = [out]
    if change is not leave_config_alone:
        given.append(out / "model.safetensors")
    for path in given:
        with pytest.raises(UsageError, match="was swapped already"):
            find_saved(str(path))
    with pytest.raises(UsageError, match="was swapped already"):
        build_host("hf", "gpt2", {}, TEXT, weights=str(out))


def replace_weights(out: Path) -> None:
    weights = out / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    tensors["transformer.ln_f.weight"] += 1
    safetensors.torch.save_file(tensors, weights, {"format": "pt"})


def add_weights(out: Path) -> None:
    safetensors.torch.save_file({"transformer.ln_f.weight": torch.ones(16)}, out / "more.safetensors")


def remove_weights(out: Path) -> None:
    (out / "model.safetensors").unlink()


def change_note(out: Path) -> None:
    note = json.loads((out / "swap.json").read_text())
    note["norms"][0]["settings"]["groups"] = 4
    (out / "swap.json").write_text(json.dumps(note))


def strip_digests(out: Path) -> None:
    note = json.loads((out / "swap.json").read_text())
    del note["weights"]
    (out / "swap.json").write_text(json.dumps(note))


@pytest.mark.parametrize("change", [replace_weights, add_weights, remove_weights, change_note, strip_digests])
def test_a_folder_that_was_changed_is_refused_and_leaves_the_model_as_it_was(
    change: Callable[[Path], None], out: Path, gpt2: Path
) -> None:
    change(out)
    model = read_gpt2(gpt2)
    with pytest.raises(UsageError, match=r"(swap.json|its weights) changed after .*/out was written"):
        normbench.load_swapped(model, out)
    assert isinstance(model.get_submodule("transformer.ln_f"), nn.LayerNorm)


def test_a_folder_of_an_earlier_version_is_read(out: Path, gpt2: Path) -> None:
    """Which has no digests, and no marks in config.json and weights."""
    strip_digests(out)
    note = (out / "swap.json").read_text()
    leave_weights_alone(out)
    tensors = safetensors.torch.load_file(out / "model.safetensors")
    safetensors.torch.save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "swap.json").write_text(note)
    model = read_gpt2(gpt2)
    normbench.load_swapped(model, out)
    assert isinstance(model.get_submodule("transformer.ln_f"), GroupNorm)
    with pytest.raises(UsageError, match="was swapped already"):
        find_saved(str(out))


# ---- what loads code

# What has transformers load code of somebody's, or ask for a repository, wherever it stands in a configuration.
LOADING = {
    "attn_implementation": "org/kernel",
    "_attn_implementation": "org/kernel@main:forward",
    "_attn_implementation_internal": {"text_config": "org/kernel"},
    "experts_implementation": "org/kernel",
    "auto_map": {"AutoModel": "evil.Model"},
    "custom_pipelines": {"evil": {"impl": "evil.Pipeline"}},
    "quantization_config": {"quant_method": "gptq"},
    "trust_remote_code": True,
    "use_kernels": True,
    "kernel_config": {"RMSNorm": "org/kernel:RMSNorm"},
    "chunkwise_kernel": "org/kernel",
    "backbone": "org/model",
    "processor_class": "org/model--evil.Processor",
    "tokenizer_class": "org/model--evil.Tokenizer",
}
OF_PACKAGES = {"attn_implementation": "flash_attention_2", "experts_implementation": "sonicmoe"}
PLACES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "at the top": lambda bad: bad,
    "in a part": lambda bad: {"text_config": bad},
    "in a list": lambda bad: {"layers": [[{"of": bad}]]},
    "in a layer": lambda bad: {"per_layer_config": {"0": bad}},
}


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where transformers is about to read a configuration, or to ask the network for something."""
    import transformers

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("something is loaded")

    monkeypatch.setattr("socket.socket.connect", fail)
    for kind, method in (("AutoConfig", "from_pretrained"), ("AutoConfig", "for_model")):
        monkeypatch.setattr(getattr(transformers, kind), method, fail)


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("key", "value"), [*LOADING.items(), *OF_PACKAGES.items()])
def test_a_configuration_that_loads_code_is_refused_before_it_is_read(
    key: str, value: Any, place: str, gpt2: Path, tmp_path: Path
) -> None:
    about = json.loads((gpt2 / "config.json").read_text()) | PLACES[place]({key: value})
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "model.safetensors").symlink_to(gpt2 / "model.safetensors")
    with pytest.raises(UsageError, match=f"config.json has {key}"):
        build_host("hf", "gpt2", {}, TEXT, weights=str(tmp_path))
    with pytest.raises(UsageError, match=f"model.config has {key}"):
        build_host("hf", "gpt2", PLACES[place]({key: value}), TEXT)


def test_a_configuration_in_a_file_that_the_first_one_names_is_looked_through_too(gpt2: Path, tmp_path: Path) -> None:
    about = json.loads((gpt2 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, "configuration_files": ["config.4.0.0.json"]}))
    (tmp_path / "config.4.0.0.json").write_text(json.dumps({**about, "attn_implementation": "org/kernel"}))
    (tmp_path / "model.safetensors").symlink_to(gpt2 / "model.safetensors")
    with pytest.raises(UsageError, match="has attn_implementation=org/kernel"):
        build_host("hf", "gpt2", {}, TEXT, weights=str(tmp_path))


def test_a_configuration_that_is_nested_too_deep_is_refused(gpt2: Path, tmp_path: Path) -> None:
    """Where an interpreter's JSON goes deeper than a Python function can follow, it would end in a traceback."""
    about = json.loads((gpt2 / "config.json").read_text())
    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    (tmp_path / "config.json").write_text(json.dumps({**about, "deep": deep}))
    (tmp_path / "model.safetensors").symlink_to(gpt2 / "model.safetensors")
    with pytest.raises(UsageError, match=r"config.json cannot be read .*nested deeper than"):
        build_host("hf", "gpt2", {}, TEXT, weights=str(tmp_path))


def test_an_adapter_beside_weights_is_refused(gpt2: Path, tmp_path: Path) -> None:
    given = Path(shutil.copytree(gpt2, tmp_path / "given"))
    (given / "adapter_config.json").write_text('{"base_model_name_or_path": "org/model"}')
    with pytest.raises(UsageError, match="has an adapter"):
        build_host("hf", "gpt2", {}, TEXT, weights=str(given))


def test_what_configurations_have_and_loads_nothing_is_taken(gpt2: Path, tmp_path: Path) -> None:
    """Among it what earlier versions of transformers wrote, and how torch itself computes attention."""
    given = Path(shutil.copytree(gpt2, tmp_path / "given"))
    about = json.loads((gpt2 / "config.json").read_text())
    harmless = {
        "_name_or_path": "org/model", "_attn_implementation_autoset": True, "tokenizer_class": "GPT2Tokenizer",
        "cache_implementation": "hybrid", "quantization_config": None, "attn_implementation": "eager",
        "id2label": {"0": "a/b", "1": "backbone"}, "label2id": {"a/b": 0, "backbone": 1},
    }  # fmt: skip
    (given / "config.json").write_text(json.dumps(about | harmless))
    host: Any = build_host("hf", "gpt2", {}, TEXT, weights=str(given)).module
    assert host.config._attn_implementation == "eager"
    for weights in (str(gpt2), "random"):
        options = {"attn_implementation": "eager", "n_embd": 16, "n_layer": 2}
        host = build_host("hf", "gpt2", options, TEXT, weights=weights).module
        assert host.config._attn_implementation == "eager"


def test_a_model_of_experts_is_read_again(tmp_path: Path, swap: Swap) -> None:
    """transformers keeps the weights of all experts as one tensor, and writes them one by one by default."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **MIXTRAL))
    model.save_pretrained(tmp_path / "given")
    out = tmp_path / "out"
    told = swap(str(tmp_path / "given"), "norm=dyt", "keep=fit", "--out", str(out), *SMALL)
    again = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out)).eval()
    normbench.load_swapped(again, out)
    assert {type(module) for module in again.modules() if "Norm" in type(module).__name__} == set()
    assert loss_of(again) == pytest.approx(losses_in(told)["fitted"], rel=1e-4)
    assert "was swapped already" in swap(str(out), "norm=rmsnorm", *SMALL, status=2)
