"""Norms that are added to given models which have none of queries and keys: which features they normalize."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from given_models import COMPUTED, HOSTS, OTHERS, Given, transformers_model
from support import Swap, losses_in
from torch import Tensor, nn
from torch.nn import functional as F

import normbench
from normbench import build, hosts
from normbench.config import compose
from normbench.config.rules import fits_slot
from normbench.errors import UsageError
from normbench.hosts.adding import Behind, add, find_seats, runs_in
from normbench.hosts.heads import find_heads
from normbench.hosts.hosted import Hosted, Place, index_of_added
from normbench.hosts.libraries import build_host
from normbench.norms import LayerNorm, RMSNorm
from normbench.types import LanguageModeling, Site

pytest_plugins = ["swap_fixtures"]

TEXT = LanguageModeling(vocabulary_size=256, context=16)
LLAMA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48, "head_dim": 8, "vocab_size": 256, "max_position_embeddings": 16,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # fmt: skip
SMALL = ("model.context=16", "trainer.eval_batches=2", "data.eval_batch_size=8", "data.batch_size=8")


class Asking:
    """A factory that gives norms for some of the places that have none by themselves."""

    def __init__(self, make: Any, *slots: str) -> None:
        self.make = make
        self.slots = slots

    def names_any_of(self, slots: Collection[str]) -> bool:
        return any(fits_slot(own, Site("attention", slot=slot)) for own in self.slots for slot in slots)

    def optional(self, num_features: int, *, channel_dim: int = -1, site: Site) -> nn.Module | None:
        norm: Any = self.make(num_features) if any(fits_slot(slot, site) for slot in self.slots) else None
        if norm is not None:
            norm.stands_at = site
        return norm


def logits(model: nn.Module, given: Given) -> Tensor:
    output: Any = given.call(model)
    found: Tensor = getattr(output, "logits", output)
    return found


def add_norms(model: nn.Module, given: Given, make: Any, *slots: str) -> list[str]:
    """Add norms of some slots to a model, and return their paths."""
    findings = hosts.find(model, given.call)
    asking: Any = Asking(make, *slots)  # which makes optional norms alone
    seats = find_seats(model, given.call, findings, asking)
    for seat, norm in seats.made:
        add(model, seat.path, norm, seat.behind)
    return [seat.path for seat, _ in seats.made]


def eager(given: Given) -> Given:
    """The same model, whose attention is a softmax between two products."""

    def make() -> nn.Module:
        model: Any = given.make()
        model.set_attn_implementation("eager")
        made: nn.Module = model
        return made

    return Given(given.library, make, given.example)


NEOX = transformers_model("gpt_neox", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
BLOOM = transformers_model("bloom", hidden_size=32, n_layer=2, n_head=4)
WITHOUT_ROTATION = {
    "gpt2": HOSTS["gpt2"],
    "gpt2 eager": eager(HOSTS["gpt2"]),
    "bert": HOSTS["bert"],
    "vit": HOSTS["vit"],
}


@pytest.mark.parametrize("name", WITHOUT_ROTATION)
@torch.no_grad()
def test_what_is_added_normalizes_what_attention_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of which map makes what: the same norms inside of torch's attention, where nothing is in between."""
    given = WITHOUT_ROTATION[name]
    model: Any = given.build()
    made = given.build()
    paths = add_norms(made, given, partial(LayerNorm, eps=1e-5), "qk", "v")
    blocks = len(hosts.find(model, given.call).blocks)
    assert len(paths) == 3 * blocks == len({*paths})
    attend = F.scaled_dot_product_attention
    normalized = []

    def attend_to_normalized(q: Tensor, k: Tensor, v: Tensor, *more: Any, **settings: Any) -> Tensor:
        normalized.append(q)
        q, k, v = (F.layer_norm(x, x.shape[-1:]) for x in (q, k, v))
        return attend(q, k, v, *more, **settings)

    if name == "gpt2 eager":
        model.set_attn_implementation("sdpa")
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend_to_normalized)
    expected = logits(model, given)
    monkeypatch.undo()
    assert len(normalized) == blocks
    torch.testing.assert_close(logits(made, given), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_llama_with_norms_of_queries_and_keys_is_qwen3() -> None:
    """Qwen3 is LLaMA with them, in each head before the rotation; here keys have half as many heads."""
    pytest.importorskip("transformers")
    sizes = {**LLAMA, "rms_norm_eps": 1e-6}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        qwen = build_host("hf", "qwen3", sizes, TEXT).module.eval()
        for parameter in qwen.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        tokens = torch.randint(256, (2, 16))
    words = ["model=hf", "model.name=llama", "norm=own", "norm@qk=rmsnorm", "norm@qk.eps=1e-6", "model.context=16"]
    words += [f"model.config.{key}={'null' if value is None else value}" for key, value in sizes.items()]
    model = build.start_model(compose.read(words).recipe, TEXT, 0).model
    assert isinstance(model, Hosted)
    model.host.load_state_dict(qwen.state_dict())  # also of the same names
    assert torch.equal(model.eval()(tokens), qwen(input_ids=tokens).logits)
    names = [place.site.name for place in model.places]
    assert names[:4] == ["block00.attention", "block00.attention.q", "block00.attention.k", "block00.mlp"]
    assert names == [*model.anatomy().norms]
    assert model.ledger()["host_norms"] == "5 LlamaRMSNorm" and model.ledger()["host_norms_added"] == 4


@torch.no_grad()
def test_norms_over_all_heads_are_those_of_olmo2() -> None:
    given = HOSTS["olmo2"]
    olmo = given.build()
    made: Any = given.build()
    for block in made.model.layers:
        block.self_attn.q_norm = block.self_attn.k_norm = nn.Identity()
    assert not torch.allclose(logits(made, given), logits(olmo, given), atol=1e-3)
    paths = add_norms(made, given, partial(RMSNorm, eps=1e-5), "qk_all")
    assert len(paths) == 4
    for path in paths:
        made.get_submodule(path).load_state_dict(olmo.get_submodule(path.replace("added_", "")).state_dict())
    torch.testing.assert_close(logits(made, given), logits(olmo, given), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_timms_own_slots_are_used() -> None:
    timm = pytest.importorskip("timm")
    given = HOSTS["vit"]
    made = given.build()
    add_norms(made, given, partial(LayerNorm, eps=1e-6), "qk")
    sizes = {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 5}
    own = timm.create_model("vit_tiny_patch16_224", qk_norm=True, **sizes).eval()
    own.load_state_dict(made.state_dict())  # also of the same names
    torch.testing.assert_close(logits(made, given), logits(own, given), rtol=1e-5, atol=1e-6)


class Attention(nn.Module):
    """One attention of two heads, which is computed in one of several ways."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (2, 4)).transpose(1, 2).flatten(0, 1) for linear in (self.q, self.k, self.v))
        y: Tensor = self.out(self.attend(q, k, v).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2))
        return y


def attend_at_once(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(value=v, key=k, query=q)


def attend_by_matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(dim=-1, input=torch.matmul(other=k.transpose(1, 2), input=q))
    return torch.matmul(other=v, input=weights)


def attend_by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    start = q.new_zeros(len(q), q.shape[1], k.shape[1])
    scores = torch.baddbmm(batch2=k.transpose(1, 2), batch1=q, input=start)
    return torch.bmm(mat2=v, input=F.softmax(scores, dim=-1))


def attend_behind_gate(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    gate = (k[0] @ q[0, 0]).softmax(0)  # of a matrix and a vector, as a router has
    return F.scaled_dot_product_attention(q, k, v) * gate[:, None]


@pytest.mark.parametrize("attend", [attend_at_once, attend_by_matmul, attend_by_bmm, attend_behind_gate])
def test_queries_keys_and_values_are_told_by_the_names_of_arguments(attend: Any) -> None:
    found = find_heads(Attention(attend), lambda model: model(torch.ones(2, 3, 8)))
    assert [(heads.letter, heads.path) for heads in found] == [("q", "q"), ("k", "k"), ("v", "v")]
    assert all(heads.columns == ((0, 1, 2, 3), (4, 5, 6, 7)) for heads in found)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
def test_a_program_of_torchscript_in_a_model_is_passed_by() -> None:
    model = Attention(attend_at_once)
    script: Any = torch.jit.script
    model.out = script(model.out)
    assert [heads.path for heads in find_heads(model, lambda model: model(torch.ones(2, 3, 8)))] == ["q", "k", "v"]


def test_a_pass_that_fails_is_told() -> None:
    with pytest.raises(UsageError, match="the forward pass of Attention fails on the example"):
        find_heads(Attention(attend_at_once), lambda model: model(torch.ones(2, 3, 5)))


@pytest.mark.parametrize("heads", [1, 3])
@torch.no_grad()
def test_a_norm_changes_the_features_of_its_runs_alone(heads: int) -> None:
    columns = [4, 5, 8, 9, 0, 1, 11, 6, 2]
    linear = nn.Linear(5, 13)
    model = nn.ModuleDict({"map": linear})
    norm: Any = LayerNorm(9 // heads, eps=1e-5)
    norm.weight.copy_(torch.arange(9 // heads) + 1)
    runs = ((4, 6), (8, 10), (0, 2), (11, 12), (6, 7), (2, 3))
    x = torch.linspace(-1, 1, 30).view(2, 3, 5) ** 3
    expected = linear(x)
    features = expected[..., columns].unflatten(-1, (heads, -1))
    expected[..., columns] = F.layer_norm(features, features.shape[-1:], norm.weight, norm.bias, 1e-5).flatten(-2)
    add(model, "norm", norm, Behind("map", runs, heads))
    torch.testing.assert_close(linear(x), expected)


@pytest.mark.parametrize(
    ("given", "heads"), [(NEOX, 4), (BLOOM, 4), (HOSTS["llama"], 4)], ids=["neox", "bloom", "llama"]
)
@torch.no_grad()
def test_features_lie_in_a_map_as_the_model_splits_them(given: Given, heads: int) -> None:
    """As the libraries split them: of each head the first third of a map of all, or the whole of one of its own."""
    model: Any = given.build()
    asking: Any = Asking(RMSNorm, "q")
    seats = find_seats(model, given.call, hosts.find(model, given.call), asking)
    (first, _), *_ = seats.made
    assert first.behind is not None and first.behind.heads == heads and first.features == 8
    expected = {"gpt_neox": tuple((24 * head, 24 * head + 8) for head in range(4)), "llama": ((0, 32),)}
    expected["bloom"] = expected["gpt_neox"]
    assert first.behind.runs == expected[model.config.model_type]


def test_runs_are_of_neighbours() -> None:
    assert [*runs_in([0, 1, 2, 5, 6, 3])] == [(0, 3), (5, 7), (3, 4)]
    assert [*runs_in([4])] == [(4, 5)] and [*runs_in([])] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (HOSTS["convnext"], "no attention with linear maps for these was seen"),
        (OTHERS["swin2"], "these are made by no linear map inside of its attention"),
        (COMPUTED["deepseek_v3"], "keys of block00.attention are made by "),
    ],
    ids=["convnext", "swin2", "deepseek_v3"],
)
def test_what_cannot_have_a_norm_is_refused_in_a_sentence(given: Given, said: str) -> None:
    model = given.build()
    with pytest.raises(UsageError) as refused:
        add_norms(model, given, RMSNorm, "k")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_norms_that_a_model_has_are_not_added_again() -> None:
    for name in ("qwen3", "olmo2", "gemma3"):
        given = HOSTS[name]
        assert {"q", "k"} <= {heads.letter for heads in find_heads(given.build(), given.call)}
        assert add_norms(given.build(), given, RMSNorm, "qk", "qk_all") == []


def made_of(kind: str, *words: str) -> Hosted:
    """A model of transformers that reads 16 tokens, with the norms that words ask for."""
    pytest.importorskip("transformers")
    words = ("model=hf", f"model.name={kind}", "norm=own", "model.context=16", *words)
    model = build.start_model(compose.read(words).recipe, TEXT, 0).model
    assert isinstance(model, Hosted)
    return model


TINY_GPT2 = ("model.config.n_embd=32", "model.config.n_layer=2", "model.config.n_head=4")


def test_a_rule_for_attention_that_a_model_has_not_fits_no_place() -> None:
    with pytest.raises(UsageError, match=r"norm@cross\.qk fits no place of this model"):
        made_of("gpt2", *TINY_GPT2, "norm@cross.qk=rmsnorm")


def test_none_is_no_norm_that_is_added() -> None:
    model = made_of("gpt2", *TINY_GPT2, "norm@q=none", "norm@k=rmsnorm")
    assert model.ledger()["host_norms_added"] == 2
    assert [row["place"] for row in model.norms_of_host()][:3] == [
        "block00.attention",
        "block00.attention.k",
        "block00.mlp",
    ]
    assert "host_norms_added" not in made_of("gpt2", *TINY_GPT2, "norm@qk=none").ledger()


def test_statistics_for_each_position_are_taken_over_all_heads() -> None:
    model = made_of("gpt2", *TINY_GPT2, "norm@q_all=batchnorm", "norm@q_all.per_position=true")
    norm: Any = model.anatomy().norms["block00.attention.q_all"]
    assert norm.running_mean.shape == (16, 32)
    with pytest.raises(UsageError, match="needs input with time"):
        made_of("gpt2", *TINY_GPT2, "norm@q=batchnorm", "norm@q.per_position=true").train()(torch.zeros(2, 16).long())


def place_at(role: str, slot: str, added: bool = False) -> Place:
    return Place("", Site(role, layer=0, depth=1, slot=slot), "", 8, 1e-5, True, added)


@pytest.mark.parametrize(
    ("places", "index"),
    [
        ([place_at("attention", "in"), place_at("mlp", "in")], 1),
        ([place_at("attention", "out"), place_at("mlp", "out")], 0),
        ([place_at("attention", "in"), place_at("attention", "q", True), place_at("attention", "out")], 2),
        ([place_at("mlp", "in"), place_at("mlp", "out"), place_at("attention", "in")], 3),
        ([place_at("mlp", "in"), place_at("mlp", "out"), place_at("attention", "out")], 2),
        ([place_at("cross", "in"), place_at("attention", "in"), place_at("mlp", "in")], 2),
        ([place_at("mlp", "in"), place_at("mlp", "out")], 0),
    ],
)
def test_what_is_added_stands_among_norms_where_it_runs(places: list[Place], index: int) -> None:
    final = Place("", Site("final"), "", 8, 1e-5, True)
    key = Site("attention", layer=0, depth=1, slot="k")
    assert index_of_added([final, *places, final], key) == 1 + index


# ---- swap


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 without its norms of queries and keys, which is a LLaMA, as transformers saves it."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model: Any = build_host("hf", "llama", {**LLAMA, "initializer_range": 0.3}, TEXT).module
    folder = tmp_path_factory.mktemp("given") / "llama"
    model.save_pretrained(folder)
    return folder


def test_a_swap_adds_norms_and_writes_them(llama: Path, tmp_path: Path, swap: Swap) -> None:
    """A gain of 1 changes nothing, and a swap that was written is read again with the loss that was printed."""
    from transformers import AutoConfig, AutoModelForCausalLM

    told = swap(str(llama), "norm@qk=scale", *SMALL)
    assert "4 NoNorm → Scale" in told and "5 LlamaRMSNorm as it is" in told and len({*losses_in(told).values()}) == 1
    out = tmp_path / "normed"
    told = swap(str(llama), "norm@qk=rmsnorm", "keep=fit", "--out", str(out), *SMALL)
    losses = losses_in(told)
    assert losses["as they are"] != losses["fitted"] != losses["fresh"] == losses["γ and β kept"]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out)).eval()
    normbench.load_swapped(model, out)
    norm = model.model.layers[0].self_attn.k_norm
    assert type(norm) is RMSNorm and not norm.get_parameter("weight").eq(1).any()
    data = build.make_data(compose.read(SMALL).recipe, 0)
    total = []
    with torch.no_grad():
        for batch in data.eval_batches("val", 2):
            total.append(F.cross_entropy(model(batch.inputs).logits.flatten(0, 1), batch.targets.flatten()).item())
    assert sum(total) / 2 == pytest.approx(losses["fitted"], rel=1e-4)
    _, table = normbench.swap(model, "layernorm", where="qk")  # a model with added norms is one with norms
    assert [*table[table.becomes == "LayerNorm"].site][:2] == ["block00.attention.q", "block00.attention.k"]
    assert type(model.model.layers[0].self_attn.k_norm) is LayerNorm
    with torch.no_grad():
        model(batch.inputs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["norm@qk=none"], "changes nothing"),
        (["norm@attention=rmsnorm", "norm@qk=rmsnorm", "norm@q_all=rmsnorm"], "can have one norm"),
    ],
)
def test_what_adds_nothing_is_said(words: list[str], said: str, llama: Path, swap: Swap) -> None:
    message = swap(str(llama), *words, *SMALL, status=2)
    assert said in message and message.count("\n") == 1
