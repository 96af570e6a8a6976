"""Swaps of runs: their models with trained weights, as they are and with other norms."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Swap, losses_in
from torch import nn

import normbench
from normbench import build
from normbench.cli import main
from normbench.config.compose import read
from normbench.contract import trials
from normbench.hosts.exact import EXACT, to_rms
from normbench.runs.load import TrainedRun
from normbench.studies.given import caller_of, root_of
from normbench.training.evaluation import evaluate

pytest_plugins = ["swap_fixtures", "trained_runs"]

GPT2 = [
    "model=hf",
    "model.name=gpt2",
    "model.config.hidden_size=16",
    "model.config.num_hidden_layers=1",
    "model.context=16",
]
SMALL = ["model.depth=1", "model.width=16", "model.heads=2", "model.context=16"]
LENGTH = ["trainer.steps=20", "optim.lr=0.02", "data.eval_batch_size=512", "trainer.eval_batches=2"]
CPU = torch.device("cpu")


def train(*words: str) -> str:
    """The directory of a short run."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["train", *words, *LENGTH, "threads=1", "device=cpu", "quiet=true"]) == 0
    return out.getvalue().strip().splitlines()[-1]


@pytest.fixture(scope="module")
def layernorm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a Transformer with LayerNorms, and with other norms of queries and keys."""
    folder = tmp_path_factory.mktemp("layernorm")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder / train(*SMALL, "norm=layernorm", "norm@qk=rmsnorm")


def loss_of(run: TrainedRun, model: nn.Module, batches: int | None = 2) -> float:
    """The loss of a model on so many batches of what its run was judged on; None: on all of them, as at its end."""
    data = run.data()
    return evaluate(model, data.eval_batches("val", batches), data.task, CPU)["loss"]


def test_the_model_of_a_run_is_swapped_as_by_hand(layernorm: Path, swap: Swap) -> None:
    told = swap(str(layernorm), "norm=own", "norm@first1.in=rmsnorm", "norm@final=rmsnorm")
    losses = losses_in(told)
    summary = json.loads((layernorm / "summary.json").read_text())
    run = TrainedRun(layernorm)
    own = normbench.load(layernorm)
    assert loss_of(run, own, batches=None) == pytest.approx(summary["metrics"]["loss/val"], rel=1e-4)
    changed = copy.deepcopy(own)
    paths = [path for path, module in own.named_modules() if type(module).__name__ == "LayerNorm"]
    for path in paths:
        old: Any = own.get_submodule(path)
        new = Unmasked(old.weight.shape, eps=old.eps)
        new.weight = old.weight
        changed.set_submodule(path, new)
    assert len(paths) == 3 and losses["γ and β kept"] == pytest.approx(loss_of(run, changed), rel=1e-4)
    assert losses["exact"] == losses["as they are"]  # though the output layer has the embedding's weight
    assert losses["fresh"] != losses["γ and β kept"] != losses["fitted"]
    assert "3 LayerNorm → RMSNorm" in told and "2 RMSNorm as it is" in told
    assert "head.linear.weight is no longer the same" in told
    assert loss_of(run, own) == pytest.approx(losses["as they are"], rel=1e-4)


class Unmasked(nn.RMSNorm):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x)


def test_norms_that_rules_have_made_are_swapped_too(layernorm: Path, swap: Swap) -> None:
    told = swap(str(layernorm), "norm=dyt", "norm@qk.alpha0=0.3", "norm@qk=dyt", "norm@final=layernorm")
    assert "2 RMSNorm → DyT, 2 LayerNorm → DyT, 1 LayerNorm as it is" in told
    losses = losses_in(told)
    assert losses["fitted"] < losses["fresh"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_has_a_line_for_each_norm(
    width: int,
    layernorm: Path,
    swap: Swap,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = swap(str(layernorm), "norm=dyt", "trainer.eval_batches=1").splitlines()
    assert max(map(len, lines[:20])) <= width
    rows = [line.split() for line in lines if line.strip().startswith(("block00", "final"))]
    assert len(rows) == 5 and {row[0] for row in rows} >= {"block00.attention.q", "block00.mlp", "final"}


def test_images_and_padded_texts_are_swapped(runs: dict[str, Path], swap: Swap) -> None:
    losses = losses_in(swap(str(runs["images"]), "norm=groupnorm", "norm.groups=2"))
    assert losses["as they are"] < losses["fitted"] < losses["γ and β kept"]
    losses = losses_in(swap(str(runs["texts"]), "norm=batchnorm"))
    assert losses["as they are"] != losses["fitted"]


@pytest.mark.parametrize(
    "words",
    ["model=nano model.depth=1 model.width=16 model.heads=2 placement=pre norm=layernorm", "model=timm norm=own"],
)
def test_models_of_images_are_looked_through_in_float64(words: str) -> None:
    if "timm" in words:
        pytest.importorskip("timm")
    model, norms = build.make_model(read(words.split()).recipe, trials.IMAGES, seed=0)
    batch = trials.tiny_data(trials.IMAGES).train_batch(0)
    found = to_rms(root_of(model), caller_of(model, batch))
    assert len(found.norms) == len(norms) and found.change <= EXACT


@pytest.mark.parametrize(
    ("own", "words", "said"),
    [
        (
            ["norm=layernorm", "norm@final=own"],
            ["norm=dyt", "norm@final=rmsnorm"],
            "2 LayerNorm → DyT, 1 LayerNorm → RMSNorm",
        ),
        (["norm=own", "norm@qk=rmsnorm"], ["norm@final=dyt"], "1 LayerNorm → DyT"),
        (["norm=own"], ["norm@v=dyt"], "1 NoNorm → DyT"),
    ],
    ids=["replaced", "left", "added"],
)
def test_a_run_of_a_given_model_is_swapped_and_written(
    own: list[str], words: list[str], said: str, tmp_path: Path, swap: Swap, monkeypatch: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    run = train(*GPT2, *own)
    told = swap(run, *words, "keep=fit", "--out", "out")
    assert said in told
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained("out")).eval()
    normbench.load_swapped(model, "out")
    hosted: Any = normbench.load(run)
    hosted.host = model
    assert loss_of(TrainedRun(run), hosted) == pytest.approx(losses_in(told)["fitted"], rel=1e-4)


def test_a_norm_is_added_where_there_was_none(layernorm: Path, swap: Swap) -> None:
    """A gain of 1 changes nothing, a fitted tanh works near 0, and a length can be fitted in part alone."""
    told = swap(str(layernorm), "norm@hidden=scale")
    losses = losses_in(told)
    assert "1 NoNorm → Scale, 3 LayerNorm as it is" in told
    assert len(losses) == 4 and len({*losses.values()}) == 1
    losses = losses_in(swap(str(layernorm), "norm@v=dyt"))
    assert losses["fitted"] == pytest.approx(losses["as they are"], rel=1e-4) != losses["fresh"]
    losses = losses_in(swap(str(layernorm), "norm@logits=rmsnorm"))
    assert losses["as they are"] != losses["fitted"] < losses["fresh"] == losses["γ and β kept"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["norm=layernorm", "norm@qk=rmsnorm"], "changes nothing"),
        (["norm@hidden=none"], "changes nothing"),
        (["norm@qkv=scale"], "norm@qkv adds norms, and the run has one at block00.attention.q already"),
        (["norm=rmsnorm", "data.batch_size=3"], "data.batch_size=3 would change more of the run"),
        (["norm.eps=1e-3", "norm@final=rmsnorm"], "norm.eps=1e-3 is a setting of norm="),
        (["norm=rmsnorm", "--out", "out"], "--out writes models of other libraries"),
        (["norm=frn"], "run over time"),
    ],
)
def test_what_a_run_does_not_take_is_said(words: list[str], said: str, layernorm: Path, swap: Swap) -> None:
    message = swap(str(layernorm), *words, status=2)
    assert said in message and message.count("\n") == 1
