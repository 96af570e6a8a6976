"""Treatments of weights: their formulas, what they leave alone, and runs with them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from support import IMAGES, TEXT, TRANSLATIONS, WHOLE, documented, random_batch
from test_runs import TINY, losses, summary_of, train
from test_stack import CASES, PAIR, SHORT, assert_close, run, sessions_of, stack_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import is_parametrized

from normbench import load_runs
from normbench.build import make_model
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.groups import options
from normbench.errors import CombinationRefused, UsageError
from normbench.models.transformer import FusedLinear
from normbench.record.files import read_json
from normbench.record.recorder import Silent
from normbench.runs.load import TrainedRun, load_model
from normbench.runs.notices import weight_notes
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.studies.folding import fold, logits_of
from normbench.training import loop as training_loop
from normbench.training.optimizer import parameter_groups
from normbench.types import Model, Site, Task
from normbench.weights import FixNorm, ScaledStandardized, Spectral, Standardized, WeightNorm, Weights

TREATMENTS = [option for option in options("weights") if option != "plain"]
COMPUTED = [option for option in TREATMENTS if option != "unit"]  # whose weights are computed from what is trained
NANO = ["model=nano", "model.depth=4", "model.width=16", "model.heads=2", "model.context=16", "threads=1", "device=cpu"]
LENGTH = ["trainer.steps=3"]
SITE = Site("conv", 0)
DOUBLE = {"rtol": 1e-12, "atol": 1e-12}


def treated(treatment: Weights, module: nn.Module) -> Any:
    """A module in float64 with drawn weights, treated."""
    generator = torch.Generator().manual_seed(0)
    module.double()
    with torch.no_grad():
        module.get_parameter("weight").normal_(generator=generator)
    treatment.apply(module, SITE)
    return module


def drawn(module: Any) -> Tensor:
    """What is trained in place of the weight."""
    found: Tensor = module.parametrizations.weight.original.detach().clone()
    return found


def model_of(*words: str, task: Task = TEXT) -> tuple[Model, dict[str, nn.Module]]:
    return make_model(read([*NANO, *LENGTH, *words]).recipe, task, 0)


def names_of_treated(model: Model) -> list[str]:
    return [name for name, module in model.named_modules() if hasattr(module, "treated_as")]


def names_of_computed(model: Model) -> list[str]:
    return [name for name, module in model.named_modules() if is_parametrized(module)]


# ---- formulas


def convolution() -> nn.Module:
    return nn.Conv2d(3, 4, 3)


def test_weight_norm_is_torch_s() -> None:
    ours = treated(WeightNorm(), convolution())
    theirs = nn.Conv2d(3, 4, 3).double()
    theirs.weight.data.copy_(drawn(ours))
    parametrizations.weight_norm(theirs, dim=0)
    list_of_gains: Any = theirs.parametrizations
    gain = torch.tensor([0.5, 1.0, 2.0, -3.0], dtype=torch.float64)
    ours.parametrizations.weight[0].gain.data.copy_(gain)
    list_of_gains.weight.original0.data.copy_(gain.view(-1, 1, 1, 1))
    torch.testing.assert_close(ours.weight, theirs.weight, **DOUBLE)


def test_standardized_weights_have_mean_0_and_variance_1() -> None:
    module = treated(Standardized(), convolution())
    v = drawn(module).flatten(1)
    mean = v.sum(1, keepdim=True) / 27
    variance = (v - mean).pow(2).sum(1, keepdim=True) / 27
    expected = (v - mean) / (variance + 1e-6).sqrt()
    torch.testing.assert_close(module.weight.flatten(1), expected, **DOUBLE)
    normed = nn.functional.batch_norm(v[None], None, None, training=True, eps=1e-6)  # each filter as a channel
    torch.testing.assert_close(module.weight.flatten(1), normed[0], **DOUBLE)


def test_scaled_standardized_weights_keep_the_variance_of_what_they_multiply() -> None:
    module = treated(ScaledStandardized(scale=1.7), convolution())
    gain = torch.tensor([0.5, 1.0, 2.0, -3.0], dtype=torch.float64)
    module.parametrizations.weight[0].gain.data.copy_(gain)
    v = drawn(module).flatten(1)
    mean = v.mean(1, keepdim=True)
    product = 27 * ((v - mean) ** 2).mean(1, keepdim=True)
    expected = 1.7 * gain[:, None] * (v - mean) / product.sqrt()
    torch.testing.assert_close(module.weight.flatten(1), expected, **DOUBLE)
    torch.testing.assert_close(module.weight.flatten(1).square().sum(1), (1.7 * gain).square(), **DOUBLE)
    with torch.no_grad():
        module.parametrizations.weight.original.mul_(1e-4)  # n·σ² is under its least value 1e-4 now
    expected = 1.7 * gain[:, None] * 1e-4 * (v - mean) / 1e-2
    torch.testing.assert_close(module.weight.flatten(1), expected, **DOUBLE)


def test_spectral_weights_are_torch_s_and_come_to_have_a_largest_singular_value_of_1() -> None:
    ours = treated(Spectral(), nn.Linear(6, 5))
    theirs = nn.Linear(6, 5).double()
    theirs.weight.data.copy_(drawn(ours))
    parametrizations.spectral_norm(theirs)
    of_theirs: Any = theirs.parametrizations
    of_theirs.weight[0]._v.copy_(ours.parametrizations.weight[0].v[0])
    for _ in range(3):
        torch.testing.assert_close(ours.weight, theirs.weight, **DOUBLE)
    for _ in range(200):
        _ = ours.weight
    expected = drawn(ours) / torch.linalg.matrix_norm(drawn(ours), 2)
    torch.testing.assert_close(ours.weight, expected, **DOUBLE)
    ours.eval()
    before = ours.parametrizations.weight[0].v.clone()
    torch.testing.assert_close(ours.weight, expected, **DOUBLE)
    assert torch.equal(ours.parametrizations.weight[0].v, before), "evaluation moves nothing"


def test_each_part_of_a_fused_map_has_a_largest_singular_value_of_its_own() -> None:
    module = treated(Spectral(iterations=100), FusedLinear(6, 5, parts=3, bias=False))
    for part in module.weight.chunk(3):
        assert torch.linalg.matrix_norm(part, 2).item() == pytest.approx(1, abs=1e-9)


def test_fixnorm_has_rows_of_length_1() -> None:
    module = treated(FixNorm(), convolution())
    v = drawn(module).flatten(1)
    expected = v / v.square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(module.weight.flatten(1), expected, **DOUBLE)


@pytest.mark.parametrize("treatment", [WeightNorm(), Standardized(), ScaledStandardized(), Spectral(), FixNorm()])
def test_gradients_are_the_formula_s(treatment: Weights) -> None:
    module = treated(treatment, nn.Linear(4, 3)).eval()
    parametrization = module.parametrizations.weight
    if isinstance(treatment, Spectral):  # whose gradient takes the singular vectors for constants, as at the exact ones
        for _ in range(300):
            parametrization.train()
            _ = module.weight
        parametrization.eval()
    values = parametrization.original.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(parametrization[0], values)


# ---- models


MODELS: dict[str, tuple[str, Task]] = {
    "nano": ("model.width=16", TEXT),
    "resnet20": ("model.width=8", IMAGES),
    "mlp_plain": ("model.width=16", IMAGES),
    "seq2seq": ("model.width=16 model.hidden=24", TRANSLATIONS),
    "rnnsearch": ("model.width=12 model.embedding=16", TRANSLATIONS),
    "rnn_lm": ("model.width=12", TEXT),
}
PAIRS = [*itertools.product(MODELS, COMPUTED)]


def is_in_sample(model: str, weights: str) -> bool:
    """Tell whether a pair is tried by default: each model is, and each treatment with two models or more."""
    return (list(MODELS).index(model) + COMPUTED.index(weights)) % 3 == 0


SAMPLE = [pair for pair in PAIRS if is_in_sample(*pair)]


@pytest.mark.parametrize(("model", "weights"), PAIRS if WHOLE else SAMPLE)
def test_weights_of_branches_are_treated_and_start_from_the_same_draws(model: str, weights: str) -> None:
    sizes, task = MODELS[model]
    words = [f"model={model}", *sizes.split(), "trainer.steps=3"]
    plain, _ = make_model(read(words).recipe, task, 0)
    made, _ = make_model(read([*words, f"weights={weights}"]).recipe, task, 0)
    state = {
        key.replace("parametrizations.weight.original", "weight"): value for key, value in made.state_dict().items()
    }
    assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())
    names = names_of_computed(made)
    assert names == names_of_treated(made) and all("branches" in name for name in names)
    batch = random_batch(task)
    loss = task.loss(made.train()(*batch.arguments), batch.targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@pytest.mark.parametrize("model", ["nano", "resnet20"])
def test_weight_norm_starts_as_plain(model: str) -> None:
    task = TEXT if model == "nano" else IMAGES
    words = [f"model={model}", "placement=deep", "trainer.steps=3"]
    batch = random_batch(task)
    plain, _ = make_model(read(words).recipe, task, 0)
    made, _ = make_model(read([*words, "weights=weight_norm"]).recipe, task, 0)
    torch.testing.assert_close(made.eval()(*batch.arguments), plain.eval()(*batch.arguments), rtol=1e-4, atol=1e-5)


def test_spectral_starts_as_plain_where_weights_are_orthogonal() -> None:
    batch = random_batch(TEXT)
    plain, _ = model_of("init=orthogonal")
    made, _ = model_of("init=orthogonal", "weights=spectral")
    torch.testing.assert_close(made.eval()(*batch.arguments), plain.eval()(*batch.arguments), rtol=1e-4, atol=1e-5)


def test_gains_do_not_decay() -> None:
    model, norms = model_of("weights=scaled_standardized", "weights@mlp=weight_norm")
    decayed, others = (group["params"] for group in parameter_groups(model, norms.values(), 0.1, decay_norms=True))
    kinds = {"gain": others, "original": decayed}
    for name, parameter in model.named_parameters():
        if "parametrizations" in name:
            assert any(parameter is each for each in kinds[name.rpartition(".")[2]])


# ---- weights that are changed after each step


UNIT_AXES = {  # 1: the weights of each output have length 1; 0: those of each input
    "nano": {"qkv": 1, "out": 0, "fc1": 1, "fc2": 0, "embedding": 1, "positions": 1, "head.linear": 1},
    "cnn": {"stem": 0, "conv1": 1, "conv2": 0, "head": 1},
}  # fmt: skip


def check_lengths(model: Model, axis_of: dict[str, int]) -> None:
    """Hold each matrix and kernel to vectors of length 1."""
    seen = set[str]()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            (end,) = [end for end in axis_of if name.endswith(f"{end}.weight")]
            axes = [*range(1, parameter.ndim)] if axis_of[end] else [0]
            lengths = parameter.detach().double().square().sum(axes).sqrt()
            torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=1e-6, atol=0)
            seen.add(end)
    assert seen == axis_of.keys()


@pytest.mark.parametrize(("model", "task"), [("nano", TEXT), ("cnn", IMAGES)])
def test_unit_weights_have_length_1_along_the_features_of_the_stream(model: str, task: Task) -> None:
    words = [f"model={model}", "trainer.steps=3"]
    if model == "nano":
        words += [*NANO, "model.tied=false"]
    plain, _ = make_model(read(words).recipe, task, 0)
    unit, _ = make_model(read([*words, "weights=unit"]).recipe, task, 0)
    check_lengths(unit, UNIT_AXES[model])
    for name, parameter in unit.named_parameters():  # with the directions of the same draws
        start = plain.get_parameter(name)
        if parameter.ndim < 2:
            assert torch.equal(parameter, start)
        elif name.endswith(("fc1.weight", "conv1.weight")):
            torch.testing.assert_close(
                parameter, start / start.flatten(1).norm(dim=1).view(-1, *[1] * (start.ndim - 1))
            )


def test_a_step_with_unit_weights_is_a_plain_step_and_a_division() -> None:
    axes = UNIT_AXES["nano"]
    words = [*NANO, *LENGTH, "model.tied=false", "optim=muon", "schedule=constant"]
    plain = Session(prepare(read(words))).loop
    unit = Session(prepare(read([*words, "weights=unit"]))).loop
    plain.model.load_state_dict(unit.model.state_dict())
    for loop in (plain, unit):
        loop.recorder = Silent()
        loop.model.train()
        loop.train_step()
    check_lengths(unit.model, axes)
    for name, parameter in unit.model.named_parameters():
        moved = plain.model.get_parameter(name)
        if moved.ndim > 1:
            (axis,) = [axis for end, axis in axes.items() if name.endswith(f"{end}.weight")]
            moved = moved / moved.norm(dim=axis, keepdim=True)
        torch.testing.assert_close(parameter, moved)
    before = plain.model.get_parameter("blocks.0.branches.mlp.fc2.weight")
    assert not torch.allclose(before.norm(dim=0), torch.ones(64), rtol=1e-6, atol=0), "the step changes lengths"


def test_steps_do_no_more_where_no_treatment_asks_for_it() -> None:
    for words, count in ((["weights=spectral"], 0), ([], 0), (["weights=unit"], 1), (["weights@mlp=unit"], 1)):
        stepper = Session(prepare(read([*NANO, *LENGTH, *words]))).loop.stepper
        assert len(stepper.treatments) == count


# ---- places and words


def test_places_outside_the_blocks_are_treated_where_a_rule_names_them() -> None:
    model, _ = model_of("weights@embedding=fixnorm", "weights@mlp.out=weight_norm")
    embeddings, others = names_of_computed(model)[:2], names_of_computed(model)[2:]
    assert embeddings == ["stem.embedding", "positions"]
    assert len(others) == 4 and all(name.endswith("mlp.fc2") for name in others)
    tokens = torch.arange(4)[None]
    stem: Any = model.get_submodule("stem")
    with torch.no_grad():
        table = stem.embedding.parametrizations.weight.original
        expected = table / table.norm(dim=1, keepdim=True)
        torch.testing.assert_close(stem(tokens), expected[tokens])
    made, _ = model_of("weights=unit", "weights@embedding=plain", "weights@first3=plain", "model.tied=false")
    linear: Any = made.get_submodule("head.linear")
    assert linear.treated_as.site.role == "head"
    lengths = linear.weight.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_rules_choose_treatments_for_some_places() -> None:
    model, _ = model_of("weights@attention=spectral", "weights@last1.mlp=weight_norm")
    kinds = {
        name: type(model.get_submodule(f"{name}.parametrizations.weight.0")).__name__
        for name in names_of_computed(model)
    }
    assert len(kinds) == 4 * 2 + 2
    assert {kind for name, kind in kinds.items() if "attention" in name} == {"SpectralDivision"}
    assert {name.split(".")[1] for name, kind in kinds.items() if kind == "LengthAndDirection"} == {"3"}
    model, _ = model_of("weights=standardized", "weights@first3=plain")
    assert {name.split(".")[1] for name in names_of_computed(model)} == {"3"}
    with pytest.raises(UsageError, match="weights@conv fits no place of this model"):
        prepare(read([*NANO, *LENGTH, "weights@conv=standardized"]))


def test_plain_is_as_if_there_were_no_such_section() -> None:
    usual = prepare(read([*NANO, *LENGTH]))
    plain = prepare(read([*NANO, *LENGTH, "weights=plain"]))
    assert usual.directory.path == plain.directory.path
    assert "weights" not in plain.config.tree and "weights" not in plain.config.choices.groups
    without = prepare(read([*NANO, *LENGTH, "~weights"]))
    assert usual.directory.path == without.directory.path
    other = prepare(read([*NANO, *LENGTH, "weights=standardized"]))
    assert other.directory.path.name.startswith("layernorm-pre-standardized-s0-")


def test_cut_weights_are_refused() -> None:
    for words in (["weights=spectral"], ["weights@mlp=spectral"]):
        with pytest.raises(CombinationRefused, match=f"trainer.shard=true with {words[0]} is refused: "):
            prepare(read([*NANO, *LENGTH, *words, "trainer.shard=true"]))


def test_own_treatments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halving.py").write_text(
        "from normbench.weights import Weights\n"
        "class Halved(Weights):\n"
        "    def __init__(self, by: float = 2.0) -> None:\n"
        "        self.by = by\n"
        "    def apply(self, module, site):\n"
        "        module.weight.data.div_(self.by)\n"
    )
    monkeypatch.chdir(tmp_path)
    plain, _ = model_of()
    made, _ = model_of("weights._target_=halving.Halved", "weights.by=4")
    weight = "blocks.0.branches.mlp.fc1.weight"
    assert torch.equal(made.get_parameter(weight), plain.get_parameter(weight) / 4)
    run_of_it = prepare(read([*NANO, *LENGTH, "weights._target_=halving.Halved"]))
    assert run_of_it.directory.path.name.startswith("layernorm-pre-halved-s0-")


def test_a_run_notes_what_no_treatment_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mixed.py").write_text(
        "from torch import nn\n"
        "from normbench.models.stacks import LinearBranch, ResidualMLP\n"
        "class Mixed(LinearBranch):\n"
        "    def __init__(self, features, inside):\n"
        "        super().__init__(features, inside)\n"
        "        self.conv = nn.Conv1d(1, 1, 3, padding=1)\n"
        "        self.lstm = nn.LSTM(features[1], features[1], batch_first=True)\n"
        "    def forward(self, x, **_):\n"
        "        return self.lstm(self.conv(super().forward(x).unsqueeze(1)))[0].squeeze(1)\n"
        "class MixedMLP(ResidualMLP):\n"
        "    branch = Mixed\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["model=mlp", "model._target_=mixed.MixedMLP", "data=digits", "device=cpu", *LENGTH]
    run_of_it = prepare(read([*words, "weights=spectral"]))
    model, norms = make_model(run_of_it.config.recipe, IMAGES, 0)
    computed = names_of_computed(model)
    assert [name.rpartition(".")[2] for name in computed[:3]] == ["fc1", "fc2", "conv"]
    (note,) = weight_notes(run_of_it, model, norms)
    assert "weights=spectral leaves blocks.0.branches.linear.lstm.weight_ih_l0 and" in note
    assert not weight_notes(prepare(read(words)), model, norms)


def test_they_are_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "weights"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {option} " in listed for option in options("weights"))
    assert documented("weights") == [*options("weights")]


# ---- runs


@pytest.mark.slow
@pytest.mark.parametrize("weights", TREATMENTS)
def test_a_run_goes_on_to_the_bit_and_is_loaded(tmp_path: Path, weights: str) -> None:
    words = [*TINY, f"weights={weights}", "trainer.steps=4", "trainer.ema=0.9", "probes=full", "schedule=constant"]
    whole = Session(prepare(read(words)))
    parts = [Session(prepare(read(words))) for _ in range(2)]
    for session in (whole, *parts):
        session.loop.recorder = Silent()
        session.loop.model.train()
    for _ in range(4):
        whole.loop.train_step()
    for _ in range(2):
        parts[0].loop.train_step()
    parts[1].loop.restore(parts[0].loop.state())
    for _ in range(2):
        parts[1].loop.train_step()
    found = parts[1].loop.state()
    expected = whole.loop.state()
    for part in ("model", "average"):
        torch.testing.assert_close(found[part], expected[part], rtol=0, atol=0)
    directory = train(tmp_path, *words)
    assert directory.name.startswith(f"layernorm-pre-{weights}-s0-") and len(losses(directory)) > 0
    assert summary_of(directory)["choices"]["weights"] == weights
    model = load_model(TrainedRun(directory))
    assert names_of_treated(model)
    assert [*load_runs(tmp_path)["weights"]] == [weights]


@pytest.mark.parametrize("weights", TREATMENTS)
def test_recomputing_changes_no_bit(weights: str) -> None:
    words = [*SHORT, *NANO, f"weights={weights}"]
    states = []
    for more in ([], ["trainer.recompute=true"]):
        session = Session(prepare(read([*words, *more])))
        session.loop.recorder = Silent()
        session.loop.model.train()
        for _ in range(2):
            session.loop.train_step()
        states.append(session.loop.model.state_dict())
    assert all(torch.equal(states[1][key], value) for key, value in states[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("weights", TREATMENTS)
@pytest.mark.parametrize("case", ["transformer, layernorm", "mlp"] if WHOLE else ["transformer, layernorm"])
def test_a_stack_is_as_many_single_runs(case: str, weights: str) -> None:
    words = [*CASES[case], f"weights={weights}"]
    alone = sessions_of(*words, seeds=PAIR)
    together = sessions_of(*words, seeds=PAIR)
    assert not run(stack_of(together, PAIR), 3)
    for single, ours in zip(alone, together, strict=True):
        for _ in range(3):
            single.loop.train_step()
        assert_close(ours.loop, single.loop)


@pytest.mark.parametrize("weights", TREATMENTS)
def test_treated_models_are_folded(weights: str) -> None:
    model, norms = model_of(f"weights={weights}", "norm=rmsnorm", "model.tied=false")
    model.double().eval()
    found = fold(model, norms, random_batch(TEXT))
    assert len(found.done) == len(norms) and not names_of_computed(found.model)
    batch = random_batch(TEXT, 8, seed=3)
    torch.testing.assert_close(logits_of(found.model, batch), logits_of(model, batch), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_treatments_are_a_factor_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["weights=plain,standardized", "seed=0,1", *TINY, "trainer.steps=4", "launcher=local"]
    assert main(["sweep", *words]) == 0
    answer = read_json(tmp_path / "outputs/sweep/report/answer.json")
    assert answer is not None
    varied = {factor["key"]: factor["values"] for factor in answer["question"]["varied"]}
    assert varied == {"weights": ["plain", "standardized"]}
    assert len(answer["arms"]) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("weights", ["standardized", "spectral"] if WHOLE else ["spectral"])
def test_compiled_models_train_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    """With a treatment that is a formula and keeps something from step to step; with the whole matrix, one that is
    a formula alone.

    By the compiler's graphs, forward and backward; code is made of them with the whole matrix alone.
    """
    backend = "inductor" if WHOLE else "aot_eager"
    monkeypatch.setattr(training_loop, "compiled", lambda function, options: torch.compile(function, backend=backend))
    words = [*TINY, "model.depth=1", "trainer.steps=3", "trainer.log_every=1", "optim=sgd", f"weights={weights}"]
    eager, compiled = (losses(train(tmp_path, *words, f"trainer.compile={how}")) for how in ("false", "true"))
    assert [loss for _, loss in compiled] == pytest.approx([loss for _, loss in eager], rel=1e-4)
