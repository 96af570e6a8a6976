"""Models of other libraries in training: every norm in their places, the same start, stops, probes, and refusals."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from studied import measured, subject
from support import WHOLE, random_batch, refused
from torch import Tensor, nn
from torch.nn import functional as F

from normbench import build
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.recipe import Recipe
from normbench.contract.trials import tiny_data
from normbench.hosts.libraries import LIBRARIES
from normbench.probes import Probes
from normbench.runs.plan import prepare
from normbench.runs.summary import comparison_command
from normbench.studies.folding import fold
from normbench.studies.frame import make_study, study_class
from normbench.training.devices import seed_draws
from normbench.training.precision import make_precision
from normbench.training.step import Stepper
from normbench.types import ImageClassification, LanguageModeling, Model, Task, TextClassification

pytest_plugins = ["refusals"]

IMAGES = ImageClassification(num_classes=5, image_shape=(1, 8, 8))
TEXT = LanguageModeling(vocabulary_size=17, context=16)
TEXTS = TextClassification(num_classes=5, vocabulary_size=17, context=16)

SIZES = ("model.config.hidden_size=32", "model.config.num_hidden_layers=2", "model.config.num_attention_heads=2")
SIZES = ("model.context=16", *SIZES)
VIT = ("model.name=vit_tiny_patch16_224", "model.kwargs.depth=2", "model.kwargs.embed_dim=24")
CONVNEXT = ("model.name=convnext_atto", "model.kwargs.depths=[1,1,2,1]", "model.kwargs.dims=[8,8,16,16]")
SWIN = ("model.name=swin_tiny_patch4_window7_224", "model.kwargs.embed_dim=8")
SWIN = (*SWIN, "model.kwargs.depths=[1,2,1]", "model.kwargs.num_heads=[1,2,2]")
RESNET = ("model.name=resnet18", "model.kwargs.layers=[1,1,1,1]", "model.kwargs.channels=[8,8,16,16]")
DECODERS = ("gpt2", "llama", "olmo2", "gemma3", "qwen3")
HOSTS: dict[str, tuple[tuple[str, ...], Task]] = {
    "vit": (("model=timm", *VIT), IMAGES),
    "convnext": (("model=timm", *CONVNEXT), IMAGES),
    "resnet": (("model=timm", *RESNET), IMAGES),
    "swin": (("model=timm", *SWIN), IMAGES),
    "efficientnet": (("model=timm", "model.name=test_efficientnet"), IMAGES),
    "mixer": (("model=timm", "model.name=mixer_s32_224"), IMAGES),
    "torchvision mobilenet": (("model=torchvision", "model.name=mobilenet_v3_small"), IMAGES),
    **{name: (("model=hf", f"model.name={name}", *SIZES), TEXT) for name in DECODERS},
    "bert": (("model=hf", "model.name=bert", "data=banking77", *SIZES), TEXTS),
}
NORMS = ("own", "layernorm", "rmsnorm", "groupnorm", "batchnorm", "dyt", "none")
CASES = list(itertools.product(HOSTS, NORMS))
SAMPLE = [(host, NORMS[number % len(NORMS)]) for number, host in enumerate(HOSTS) if host != "mixer"]
STEPS = 3
CPU = torch.device("cpu")


def tree_of(host: str, *words: str) -> tuple[dict[str, Any], Task]:
    """The configuration of a host, and what it is to learn."""
    own, task = HOSTS[host]
    library = LIBRARIES[own[0].partition("=")[2]]
    pytest.importorskip(library.packages[0])
    return read([*own, "schedule=constant", *words]).tree, task


def trained(host: str, steps: int, *words: str, state: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """A model after each of some steps on a batch that is always the same: as it starts, or as it was."""
    tree, task = tree_of(host, *words)
    data = tiny_data(task)
    made = build.start_model(Recipe(tree), task, seed=0)
    build.rehearse(made.model, made.norms, data, CPU)
    stepper = build.make_stepper(Recipe(tree), made.model, made.norms, data, make_precision("fp32", CPU), STEPS)
    begin = 0
    if state is not None:
        made.model.load_state_dict(state["model"])
        stepper.optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    made.model.train()
    losses = []
    stops = []
    for number in range(begin, steps):
        losses.append(take_step(stepper, number))
        kept = {"model": made.model.state_dict(), "optimizer": stepper.optimizer.state_dict()}
        stops.append({"step": number + 1, "losses": [*losses], **copy.deepcopy(kept)})
    return stops


def take_step(stepper: Stepper, number: int) -> float:
    """The loss of a step, after which the weights have moved."""
    stepper.set_learning_rates(number)
    loss = stepper.gradients(stepper.local_batches(number))
    assert stepper.admits(number, loss)
    stepper.update()
    return float(loss)


@pytest.mark.parametrize(("host", "norm"), CASES if WHOLE else SAMPLE)
def test_a_host_with_a_norm_trains_and_goes_on_with_the_same_bits(host: str, norm: str) -> None:
    stopped, *_, whole = trained(host, STEPS, f"norm={norm}")
    assert len({*whole["losses"]}) == STEPS
    *_, after = trained(host, STEPS, f"norm={norm}", state=stopped)
    assert [*stopped["losses"], *after["losses"]] == whole["losses"]
    for name, tensor in whole["model"].items():
        assert torch.equal(after["model"][name], tensor), name


def logits_of(host: Any, inputs: Tensor, mask: Tensor | None) -> Tensor:
    """What the library's own model gives."""
    if inputs.is_floating_point():
        scaled = F.interpolate(inputs, (32, 32), mode="bilinear")
        logits: Tensor = host(scaled)
        return logits
    if mask is None:
        found: Tensor = host(input_ids=inputs).logits
        return found
    given: Tensor = host(input_ids=(inputs + 1) * mask, attention_mask=mask.long()).logits
    return given


def plain_host(host: str) -> nn.Module:
    """The library's own model, by its own functions."""
    if host == "resnet":
        import timm

        made: nn.Module = timm.create_model(
            "resnet18", num_classes=5, in_chans=1, layers=[1, 1, 1, 1], channels=[8, 8, 16, 16]
        )
        return made
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 17}
    sizes |= {"max_position_embeddings": 16, "intermediate_size": 88, "num_key_value_heads": 2, "head_dim": 16}
    if host == "bert":
        quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "intermediate_size": 128}
        padded = {"max_position_embeddings": 17, "vocab_size": 18, "num_labels": 5}  # token 0 is padding
        config = transformers.BertConfig(**sizes | quiet | padded)
        return transformers.BertForSequenceClassification(config)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


@pytest.mark.parametrize("host", ["resnet", "llama", "bert"])
def test_norm_own_is_the_librarys_own_training_loop_step_for_step(host: str) -> None:
    words = ["norm=own", "trainer.grad_clip=0"]
    if host == "bert":
        words += ["model.config.hidden_dropout_prob=0", "model.config.attention_probs_dropout_prob=0"]
    tree, task = tree_of(host, *words)
    *_, ours = trained(host, STEPS, *words)
    with seed_draws(0, "model"):
        model = plain_host(host).train()
    own = [name for name in ours["model"] if "num_batches" not in name]
    assert {name.removeprefix("host.") for name in own} == {n for n in model.state_dict() if "num_batches" not in n}
    decayed = [each for each in model.parameters() if each.ndim >= 2]
    others = [each for each in model.parameters() if each.ndim < 2]
    optim = tree["optim"]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    settings = {key: optim[key] for key in ("lr", "betas", "weight_decay") if key in optim}
    optimizer = torch.optim.AdamW(groups, fused=True, **settings)
    batch = tiny_data(task).train_batch(0)
    losses = []
    for _ in range(STEPS):
        logits = logits_of(model, batch.inputs, batch.mask)
        loss = F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == ours["losses"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, ours["model"][f"host.{name}"]), name


def started(host: str, *words: str, seed: int = 0) -> tuple[Model, dict[str, nn.Module]]:
    """A host with its starting weights, and its norms."""
    tree, task = tree_of(host, *words)
    return build.make_model(Recipe(tree), task, seed)


@pytest.mark.parametrize("host", ["resnet", "gemma3"])
def test_all_other_weights_start_alike_whatever_the_norm(host: str) -> None:
    starts = []
    for norm in ("own", "dyt", "none"):
        model, norms = started(host, f"norm={norm}")
        inside = {parameter for each in norms.values() for parameter in each.parameters()}
        starts.append({name: each for name, each in model.named_parameters() if each not in inside})
    other_seed, _ = started(host, "norm=none", seed=1)
    first, *others = starts
    for other in others:
        assert list(other) == list(first)
        assert all(torch.equal(other[name], tensor) for name, tensor in first.items())
    different = dict(other_seed.named_parameters())
    assert not all(torch.equal(different[name], tensor) for name, tensor in first.items())


def test_a_norm_has_the_settings_and_the_start_of_the_one_in_whose_place_it_comes() -> None:
    """timm's ResNet starts the last γ of a branch at 0; LLaMA's ε is 1e-6, and our default 1e-5."""
    _, norms = started("resnet", "norm=layernorm")
    last: Any = norms["block00.conv"]
    assert not last.weight.any() and norms["block00.conv.inner"].weight.min() == 1  # type: ignore[operator]  # a tensor
    assert {norm.eps for norm in started("llama", "norm=rmsnorm")[1].values()} == {1e-6}
    assert {norm.eps for norm in started("llama", "norm=rmsnorm", "norm.eps=1e-4")[1].values()} == {1e-4}
    _, ours = started("llama", "norm=rmsnorm", "model.norm_settings=norm")
    assert {norm.eps for norm in ours.values()} == {1e-5}
    _, by_rule = started("llama", "norm=rmsnorm", "norm@final=layernorm", "norm@final.eps=1e-3", "norm.gain0=0.5")
    assert by_rule["final"].eps == 1e-3 and by_rule["block00.mlp"].eps == 1e-6
    assert by_rule["block00.mlp"].weight.max() == 0.5  # type: ignore[operator]  # a tensor


def test_a_model_of_one_position_is_built() -> None:
    """It has no later tokens that it could see."""
    tree, _ = tree_of("llama", "norm=rmsnorm", "model.context=1")
    task = LanguageModeling(vocabulary_size=17, context=1)
    model, _ = build.make_model(Recipe(tree), task, seed=0)
    assert model(*random_batch(task).arguments).shape[1:] == (1, 17)


def test_rules_choose_norms_by_their_place_and_own_leaves_those_of_the_model() -> None:
    _, norms = started("qwen3", "norm=own", "norm@qk=dyt", "norm@final=none", "norm@first1.mlp=layernorm")
    kinds = {name: type(norm).__name__ for name, norm in norms.items()}
    assert kinds == {
        "block00.attention": "Qwen3RMSNorm", "block00.attention.q": "DyT", "block00.attention.k": "DyT",
        "block00.mlp": "LayerNorm", "block01.attention": "Qwen3RMSNorm", "block01.attention.q": "DyT",
        "block01.attention.k": "DyT", "block01.mlp": "Qwen3RMSNorm", "final": "NoNorm",
    }  # fmt: skip


def test_probes_look_into_a_host_by_block_and_copies_have_an_anatomy_of_their_own() -> None:
    for words in (["norm=own"], ["norm=rmsnorm"]):
        model, norms = started("llama", *words)
        copied = copy.deepcopy(model)
        assert [*copied.anatomy().norms] == [*norms] and copied.anatomy().norms["final"] is not norms["final"]
        with Probes(copied, {"activations", "gradients", "parameters", "geometry"}).watch() as reading:
            logits = copied(*random_batch(TEXT).arguments)
            logits.square().sum().backward()
        numbers = reading.numbers()
        wanted = {
            "act/block00.attention/rms_in",
            "act/stream01/rms",
            "grad/block01.mlp/norm",
            "grad/block00.norms/norm",
        }
        assert wanted <= {*numbers} and "norm/final/gamma_mean" in numbers
        assert copied.head is copied.host.lm_head  # type: ignore[union-attr]  # of a LlamaForCausalLM


def test_probes_look_into_blocks_that_give_more_than_the_stream() -> None:
    pytest.importorskip("transformers")
    tree = read(["model=hf", "model.name=falcon", "norm=own", *SIZES]).tree
    model = build.start_model(Recipe(tree), TEXT, seed=0).model
    with Probes(model, {"activations", "geometry"}).watch() as reading:
        model(*random_batch(TEXT).arguments)
    assert {"act/stream00/rms", "act/stream00/effective_rank"} <= {*reading.numbers()}


def test_statistics_of_texts_leave_out_padding() -> None:
    """BatchNorm in BERT: what stands in the padding changes neither its output nor its statistics."""
    model, norms = started("bert", "norm=batchnorm", "model.config.hidden_dropout_prob=0")
    seen: list[Tensor] = []
    norms["stem"].register_forward_hook(lambda norm, given, output: seen.append(output))
    batch = random_batch(TEXTS)
    assert batch.mask is not None
    noise = torch.randint_like(batch.inputs, 17)
    for inputs in (batch.inputs, torch.where(batch.mask, batch.inputs, noise)):
        model.eval()
        model.train()(inputs, batch.mask)
    first, second = seen
    torch.testing.assert_close(first[batch.mask], second[batch.mask])
    other: Any = copy.deepcopy(model)
    assert other(batch.inputs, batch.mask).isfinite().all() and other.mask is None


def test_statistics_of_added_norms_leave_out_padding() -> None:
    """BatchNorm of queries in each head and of all keys: as if the padding were not there."""
    words = ("norm=own", "norm@q=batchnorm", "norm@k_all=batchnorm", "model.config.hidden_dropout_prob=0")
    model, norms = started("bert", *words)
    batch = random_batch(TEXTS)
    assert batch.mask is not None and not batch.mask.all()
    entered: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}
    for name in ("block00.attention.q", "block00.attention.k_all"):

        def see(norm: nn.Module, given: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            entered[name], seen[name] = given[0], output

        norms[name].register_forward_hook(see)
    model.train()(batch.inputs, batch.mask)
    for name, x in entered.items():
        real = x[batch.mask].flatten(0, -2)
        expected = (real - real.mean(0)) / (real.var(0, correction=0) + norms[name].eps).sqrt()
        torch.testing.assert_close(seen[name][batch.mask].flatten(0, -2), expected)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("model=timm placement=post", "written in the forward of that library's model"),
        ("model=timm init=xavier", "draws its own start"),
        ("norm=own", "leaves the norms of another library's model"),
        ("placement=own", "where they stand, and the blocks of this one are made by a placement"),
        ("init=own", "this model is ours"),
        ("model=hf data=digits", "not made for this kind of data"),
        ("model=timm model.name=resnet81", "did you mean resnet18?"),
        ("model=timm model.kwargs=3", "model.kwargs=3 is not allowed: use keys with values"),
        ("model=timm model.name=convnext_atto model.image_size=null", "cannot be called with images of 1 × 8 × 8"),
        (
            "model=timm model.name=resnet18 norm@qk=dyt",
            "ResNet has no norm of queries, keys or values, and none can be added, as no attention",
        ),
        ("model=timm placement@first3=own", "which makes no placement of its own"),
        ("model=timm trainer.recompute=true", "trainer.recompute=true with model=timm is refused"),
        ("model=timm norm=instancenorm model.kwargs.global_pool=x", "cannot be built"),
        ("model=hf model.name=bert model.config.is_decoder=false", "sees the tokens that it is to predict"),
        ("model=hf norm=frn", "statistics run over time"),
        ("model=hf model.config.hidden_size=100 model.config.num_attention_heads=3", "cannot be built"),
    ],
)
def test_what_does_not_go_is_refused_in_a_sentence(
    words: str, told: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    assert told in refused(["train", *words.split()], capsys)


@pytest.mark.parametrize(
    ("name", "host", "measured_there"),
    [
        ("depth", "swin", {"left out", "block", "model", "pair"}),
        ("mapping", "resnet", {"fit", "point"}),
        ("propagation", "gpt2", {1, 2}),
        ("position", "gemma3", {"norm", "stream", "channels"}),
    ],
)
def test_studies_measure_hosts(name: str, host: str, measured_there: set[object]) -> None:
    """Swin has what is no block between its blocks, and Gemma 3 has heads before positions."""
    words, _ = HOSTS[host]
    tree_of(host)
    study = make_study(study_class(name), [])
    one = subject(*words, "norm=own", "data.batch_size=8", "data.eval_batch_size=8")
    study.check(one)
    rows = measured(study, one)
    column = {"depth": "what", "mapping": "kind", "propagation": "layer", "position": "what"}[name]
    assert set(rows[column]) == measured_there
    if name == "position":
        assert rows["position"].max() == 15


@pytest.mark.parametrize(("host", "norm", "number"), [("vit", "own", 5), ("resnet", "batchnorm", 13)])
def test_norms_of_hosts_fold_into_their_neighbours(host: str, norm: str, number: int) -> None:
    model, norms = started(host, f"norm={norm}")
    assert len(fold(model, norms, random_batch(IMAGES)).done) == number


def test_seeds_of_a_host_are_not_trained_as_one_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm")
    told = refused(["sweep", "model=timm", "seed=0,1", "sweep.stack=2", "trainer.steps=2"], capsys)
    assert told.startswith("model=timm with sweep.stack=2 is refused: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [("model=hf", "or smaller sizes in model.config, such as"), ("model=timm", "or the sizes in model.kwargs")],
)
def test_a_model_that_is_too_large_is_refused_with_the_settings_that_it_has(
    words: str, told: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    monkeypatch.setattr("normbench.training.memory.memory_of", lambda device: (1e6, 2e5))
    said = refused(["train", words, "norm=own"], capsys)
    assert "need more than the 200.0 kB" in said and told in said and "model.width" not in said


def test_what_stands_where_is_shown(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    assert main(["show", "--sites", *HOSTS["llama"][0], "norm=dyt", "norm@final=own"]) == 0
    shown = capsys.readouterr().out
    assert "placement       own" in shown and "final  own, by norm@final" in shown
    row = r"model.layers.0.input_layernorm           LlamaRMSNorm  block00.attention  32        1e-06  DyT"
    assert row in shown and "model.norm" in shown


def test_a_rule_for_either_branch_finds_the_norm_that_both_read(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    words = [word.replace("=llama", "=phi") for word in HOSTS["llama"][0]]
    for role in ("attention", "mlp"):
        assert main(["show", "--sites", *words, "norm=own", f"norm@{role}=dyt"]) == 0
        shown = capsys.readouterr().out
        assert f"attention (in)  dyt, by norm@{role}" in shown and "block00.attention, of mlp too" in shown


def test_the_next_comparison_is_with_the_norms_of_the_model(here: Path) -> None:
    pytest.importorskip("transformers")
    suggested = {}
    for norm in ("dyt", "own"):
        words = [*HOSTS["llama"][0], f"norm={norm}"]
        run = prepare(read(words))
        suggested[norm] = comparison_command(run)[-2]
    assert suggested == {"dyt": "norm=dyt,own", "own": "norm=own,layernorm"}
