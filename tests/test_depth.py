"""Deep stacks: what is computed again has the same bits, and what is kept grows as √depth."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import IMAGES, TEXT, TEXTS, build, random_batch, refused
from torch import nn

from normbench.build import rehearse
from normbench.cli import main
from normbench.models.stacks import segment_length, through
from normbench.probes import Probes
from normbench.studies.candidates import peak_memory
from normbench.training.guard import first_nonfinite
from normbench.types import Model, Task

WANTED = {"activations", "gradients", "parameters", "attention"}
KINDS = {
    "dropout": ("nano", TEXT, {"depth": 36, "dropout": 0.3, "bias": True}, "layernorm"),
    "padding": ("nano", TEXTS, {"depth": 36, "position": "rotary"}, "rmsnorm"),
    "batchnorm": ("nano", TEXT, {"depth": 36}, "batchnorm"),
    "cnn": ("cnn", IMAGES, {"depth": 36, "stages": [1, 1, 1]}, "batchnorm"),
    "mlp": ("mlp", IMAGES, {"depth": 36}, "batchnorm"),
}


def step(model: Model, norms: dict[str, nn.Module], task: Task) -> list[tuple[str, Any]]:
    """Two steps' forward and backward passes; everything that can be seen of the second."""
    torch.manual_seed(0)
    for probes in (Probes(model, set()), Probes(model, WANTED)):
        batch = random_batch(task)
        with probes.watch() as reading:
            loss = task.loss(model.train()(*batch.arguments), batch.targets)
            loss.backward()
    seen = [*reading.scalars.items(), *reading.numbers().items()]
    gradients = [(name, parameter.grad) for name, parameter in model.named_parameters()]
    return [("loss", loss), ("random", torch.rand(3)), *gradients, *model.state_dict().items(), *seen]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_computed_again_has_the_same_bits(kind: str) -> None:
    name, task, settings, norm = KINDS[kind]
    found = []
    for recompute in (False, True):
        model, norms = build(norm, model=name, task=task, **settings)
        model.recompute = recompute
        found.append(step(model, norms, task))
    for (tag, kept), (again, computed) in zip(*found, strict=True):
        assert tag == again
        assert torch.equal(kept, computed) if isinstance(kept, torch.Tensor) else kept == computed, tag


class Counting(nn.Module):
    """A block whose output depends on a running statistic, which is replaced at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return (self.weight * self.calls * x).sin()


def test_running_statistics_are_updated_once_and_read_as_they_were() -> None:
    blocks, x = nn.ModuleList(Counting() for _ in range(40)), torch.full((2,), 0.3)
    gradients = []
    for recompute in (False, True):
        for block in blocks:
            block.calls = torch.tensor(2.0)
        out = through(blocks, x, recompute).sum()
        gradients.append(torch.autograd.grad(out, [*blocks.parameters()], retain_graph=True))
        assert gradients[-1] == torch.autograd.grad(out, [*blocks.parameters()])  # and a third time
        assert {float(block.calls) for block in blocks} == {3.0}
    assert gradients[0] == gradients[1]


def activation_bytes(depth: int, recompute: bool) -> int:
    """The most bytes that a forward and backward pass holds, of a stack of one block that stands at every place."""
    model, _ = build("layernorm", "deep", depth=1, width=16)
    blocks = nn.ModuleList([model.blocks[0]] * depth)
    x = torch.randn(16, 16, 16, requires_grad=True)
    return peak_memory(lambda: through(blocks, x, recompute).sum().backward(), torch.device("cpu"))


@pytest.mark.slow
def test_what_is_kept_grows_as_the_square_root_of_depth() -> None:
    depths = 16, 36, 81
    exponents = [
        np.polyfit(np.log(depths), np.log([activation_bytes(depth, recompute) for depth in depths]), 1)[0]
        for recompute in (False, True)
    ]
    assert exponents == pytest.approx([1.0, 0.5], abs=0.05)
    assert [segment_length(depth) for depth in (1, 12, 64, 1000, 10_000)] == [1, 1, 2, 8, 25]


def test_the_place_of_a_bad_gradient_is_the_same() -> None:
    """The backward pass that computes segments again, the first one last, is not taken for the order of the forward."""
    places = []
    for recompute in (False, True):
        model, _ = build("layernorm", "pre", depth=40)
        model.recompute = recompute
        model.blocks[30].register_full_backward_hook(lambda *_: (torch.full((4, 16, 16), torch.nan),))
        places.append(first_nonfinite(model, random_batch(TEXT), TEXT))
    assert places[0] == places[1]
    assert places[0].startswith("gradient of blocks.29.")


def test_what_cannot_compute_again_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("normbench.models.stacks.BlockStack.recompute", None)
    words = ["train", "trainer.recompute=true", "device=cpu"]
    said = refused([*words, "model=mlp"], capsys)
    assert said.startswith("trainer.recompute=true with model=mlp is refused: ")
    said = refused([*words, "trainer.compile=true"], capsys)
    assert said.startswith("trainer.recompute=true with trainer.compile=true is refused: ")


# ---- memory, stated before a run starts


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mlp"])  # whose batch statistics outweigh it
def test_what_a_step_keeps_is_counted_on_two_examples(kind: str) -> None:
    name, task, settings, norm = KINDS[kind]
    model, norms = build(norm, model=name, task=task, **settings)
    kept = dict[int, torch.UntypedStorage]()
    batch = random_batch(task, size=8)
    there = {
        each.data_ptr() for each in (*model.parameters(), *model.buffers(), *(one for one in batch if one is not None))
    }

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(model(*batch.arguments), batch.targets)
    expected = sum(kept[pointer].nbytes() for pointer in kept.keys() - there)
    data: Any = SimpleNamespace(task=task, train_batch=lambda step: batch)
    assert rehearse(model, norms, data, torch.device("cpu")) == pytest.approx(expected, rel=0.03)


def test_half_precision_counts_what_it_makes_of_the_weights_once() -> None:
    model, norms = build(depth=2, width=64)
    data: Any = SimpleNamespace(task=TEXT, train_batch=lambda step: random_batch(TEXT, size=64))
    needs = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            needs.append(rehearse(model, norms, data, torch.device("cpu")))
    assert 0.4 < needs[1] / needs[0] < 0.9


@pytest.mark.slow
def test_the_count_with_blocks_computed_again_is_that_of_the_allocator() -> None:
    model, norms = build("layernorm", "deep", depth=64, width=16)
    batch, cpu = random_batch(TEXT, size=64), torch.device("cpu")
    data: Any = SimpleNamespace(task=TEXT, train_batch=lambda step: batch)
    for recompute in (False, True):
        counted = rehearse(model, norms, data, cpu, recompute)
        model.recompute = recompute
        for _ in range(2):  # gradients are there the second time
            peak = peak_memory(lambda: TEXT.loss(model(batch.inputs), batch.targets).backward(), cpu)
        assert 0.8 < counted / peak < 1.1


@pytest.mark.slow
def test_memory_is_stated_warned_of_and_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    words = ["train", "model.width=64", "model.heads=2", "data.batch_size=8", "trainer.steps=1", "device=cpu"]
    words += ["data=text", f"data.path={tmp_path}/text.txt", "trainer.ema=0.9"]
    (tmp_path / "text.txt").write_text("normbench " * 200)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("normbench.training.memory.LARGE", 0)
    assert main([*words, "--dry-run"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("the tensors"))
    size = r"(\d+\.\d [kM]B)"
    pattern = rf"the tensors of a step need about {size} of memory \(weights {size}, gradients {size}, optimizer {size}"
    found = re.match(pattern, line)
    assert found, line
    _, weights, gradients, optimizer = (float(one[:-3]) * {"k": 1, "M": 1e3}[one[-2]] for one in found.groups())
    assert gradients == weights
    assert optimizer == pytest.approx(3 * weights, rel=0.05)  # Adam's two averages, and that of the weights
    monkeypatch.setattr("normbench.training.memory.memory_of", lambda device: (1e6, 1e12))
    assert main([*words, "--dry-run"]) == 0
    warning = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: the tensors"))
    cure = "use trainer.recompute=true or a smaller data.batch_size, model.depth or model.width"
    assert warning.endswith(f" MB are free: {cure}")
    monkeypatch.setattr("normbench.training.memory.memory_of", lambda device: (1e6, 2e5))
    assert "weights and gradients of the model need more than the 200.0 kB" in refused(words, capsys)
    monkeypatch.setattr("normbench.training.memory.memory_of", lambda device: (1e6, 2e6))
    assert ", and cpu has 2.0 MB: use trainer.recompute=true or" in refused(words, capsys)


@pytest.mark.slow
def test_hundreds_of_layers_take_steps(tmp_path: Path) -> None:
    words = ["train", "experiment=thousand_layers", "placement=deep", "model.depth=200", "model.width=16"]
    words += ["trainer.steps=2", "schedule.warmup=0", "trainer.log_every=1", "quiet=true"]
    words += ["data=text", f"data.path={tmp_path}/text.txt"]
    (tmp_path / "text.txt").write_text("normbench trains a thousand layers. " * 60)
    assert main([*words, f"outputs={tmp_path}", "trainer.keep_checkpoint=none", "data.batch_size=2", "device=cpu"]) == 0
    (path,) = tmp_path.glob("*/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    losses = [row["loss/train"] for row in rows if "loss/train" in row]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 2
    gradients = {tag: value for row in rows for tag, value in row.items() if tag.startswith("grad/block")}
    assert len(gradients) == 600
    assert min(gradients.values()) > 0
    assert max(gradients.values()) < math.inf
