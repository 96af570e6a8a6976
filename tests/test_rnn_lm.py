"""The recurrent language model: its cells against torch's and the papers' equations, its norms, and what sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import CAUSAL, TEXT, build, random_batch, refused
from torch import Tensor, nn
from torch.func import functional_call, vmap

from normbench.models.cells import GRU, LSTM, Cell, TimeStep, time_steps
from normbench.norms import BatchNorm, LayerNorm, NoNorm
from normbench.norms.foreign import accept_mask
from normbench.probes import Probes
from normbench.types import Site

pytest_plugins = ["refusals"]

SITE = Site("block", 0, length=7)
TORCH_S: Any = {LSTM: nn.LSTM, GRU: nn.GRU}


def without_norms(kind: Any) -> Cell:
    """A cell of 5 features and 6 in a state, in float64."""
    torch.manual_seed(0)
    cell: Cell = kind(5, 6, lambda size, **place: accept_mask(NoNorm(size, **place)), SITE).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    return cell


def torch_s(cell: Any) -> Any:
    """torch's own with the same weights."""
    theirs = TORCH_S[type(cell)](5, 6, batch_first=True).double()
    bias = cell.bias if isinstance(cell, LSTM) else cell.input.bias
    own = {"weight_ih": cell.input.weight, "weight_hh": cell.state.weight, "bias_ih": bias, "bias_hh": 0 * bias}
    theirs.load_state_dict({f"{name}_l0": value for name, value in own.items()})
    return theirs


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_a_cell_without_norms_is_torch_s(kind: Any, fuses: bool) -> None:
    cell = without_norms(kind)
    cell.fuses = fuses
    theirs = torch_s(cell)
    x = torch.randn(3, 7, 5).double()
    states = cell.run(x, None, time_steps(None, 7))
    expected = theirs(x)[0]
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-12)
    states.sin().sum().backward()
    expected.sin().sum().backward()
    torch.testing.assert_close(cell.input.weight.grad, theirs.weight_ih_l0.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(cell.state.weight.grad, theirs.weight_hh_l0.grad, rtol=0, atol=1e-12)
    bias: Any = cell.bias if isinstance(cell, LSTM) else cell.input.bias
    torch.testing.assert_close(bias.grad, theirs.bias_ih_l0.grad, rtol=0, atol=1e-12)


def test_an_lstm_of_padded_texts_is_torch_s_of_each_alone() -> None:
    cell = without_norms(LSTM)
    lengths = [7, 4, 1]
    x = torch.randn(3, 7, 5).double()
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    states = cell.run(x, mask, time_steps(mask, 7))
    for row, length in enumerate(lengths):
        expected = torch_s(cell)(x[row : row + 1, :length])[0][0]
        torch.testing.assert_close(states[row, :length], expected)
        assert torch.equal(states[row, length:], states[row, length - 1].expand(7 - length, 6))


def layer_norm(x: Tensor, own: Any) -> Tensor:
    """Ba et al. 2016, equations 3 and 4."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return own.weight * (x - mean) / torch.sqrt(variance + own.eps) + own.bias


def test_an_lstm_normalizes_input_state_and_memory_as_published() -> None:
    """Three steps by Ba et al. 2016, equations 20 to 22."""
    torch.manual_seed(0)
    cell = LSTM(5, 6, LayerNorm, SITE).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    norms: Any = cell.norms
    x = torch.randn(4, 3, 5).double()
    h = c = torch.zeros(4, 6).double()
    for step in range(3):
        from_state = layer_norm(h @ cell.state.weight.T, norms["state"])
        from_input = layer_norm(x[:, step] @ cell.input.weight.T, norms["input"])
        i, f, g, o = (from_state + from_input + cell.bias).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * layer_norm(c, norms["memory"]).tanh()
        torch.testing.assert_close(cell.run(x, None, time_steps(None, 3))[:, step], h, rtol=0, atol=1e-12)


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, own: Any) -> Tensor:
    """Cooijmans et al. 2017, equation 5."""
    return own.bias + own.weight * (x - mean) / torch.sqrt(variance + own.eps)


def test_batchnorm_of_each_position_has_statistics_of_each_time_step() -> None:
    """Cooijmans et al. 2017, equations 6 to 8: of the batch in training, of the time step's own past in evaluation."""
    torch.manual_seed(0)

    def make(size: int, **place: Any) -> nn.Module:
        return BatchNorm(size, per_position=True, momentum=None, **place)

    cell = LSTM(5, 6, make, SITE).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    norms: Any = cell.norms
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in norms}

    def normalized(name: str, x: Tensor, step: int, trains: bool) -> Tensor:
        if trains:
            seen[name].append((x.mean(0), x.var(0)))
            return batch_norm(x, x.mean(0), x.var(0, correction=0), norms[name])
        return batch_norm(x, *seen[name][min(step, 2)], norms[name])

    for trains, length in ((True, 3), (False, 5)):  # evaluation past what training has seen takes the last one's
        cell.train(trains)
        x = torch.randn(8, length, 5).double()
        h = c = torch.zeros(8, 6).double()
        states = cell.run(x, None, time_steps(None, length))
        for step in range(length):
            from_state = normalized("state", h @ cell.state.weight.T, step, trains)
            from_input = normalized("input", x[:, step] @ cell.input.weight.T, step, trains)
            i, f, g, o = (from_state + from_input + cell.bias).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * normalized("memory", c, step, trains).tanh()
            torch.testing.assert_close(states[:, step], h, rtol=0, atol=1e-10)
    assert norms["state"].num_batches_tracked.tolist() == [1, 1, 1, 0, 0, 0, 0]


def test_statistics_of_each_time_step_freeze_after_as_many_batches() -> None:
    cell = LSTM(5, 6, lambda size, **place: BatchNorm(size, per_position=True, freeze_after=2, **place), SITE)
    for _ in range(4):
        cell.run(torch.randn(8, 7, 5), None, time_steps(None, 7))
    for norm in cell.norms.values():
        assert dict(norm.named_buffers())["num_batches_tracked"].tolist() == [2] * 7


# ---- the model


@pytest.mark.parametrize("norm", CAUSAL)
def test_no_logit_depends_on_later_tokens(norm: str) -> None:
    """In evaluation; of BatchNorm with statistics of each time step in training too."""
    per_position: dict[str, Any] = {"norm_settings": {"per_position": True}} if norm == "batchnorm" else {}
    model, _ = build(norm, "plain", "rnn_lm", TEXT, dropout=0.0, **per_position)
    tokens = random_batch(TEXT).inputs
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % TEXT.vocabulary_size
    for trains in (False, True) if per_position else (False,):
        model.train(trains)
        before, after = model(tokens), model(changed)
        torch.testing.assert_close(before[:, :9], after[:, :9])
        assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_whoever_looks_at_norms_sees_each_called(cell: str) -> None:
    """Without norms torch's operator runs, which calls none and gives the same; probes change no bit."""
    model, norms = build("none", "plain", "rnn_lm", TEXT, cell=cell, dropout=0.0)
    batch = random_batch(TEXT)
    fused = model(batch.inputs)
    with Probes(model, ("activations", "gradients")).watch() as reading:
        assert torch.equal(model(batch.inputs), fused)
    assert "act/stream01/rms" in reading.numbers()
    calls: list[str] = []
    for name, norm in norms.items():
        norm.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(batch.inputs)
    assert calls == []
    model.call_every_norm()
    torch.testing.assert_close(model(batch.inputs), fused)
    assert {*calls} == {*norms} and calls.count(f"block01.cell.{'state' if cell == 'lstm' else 'state_gates'}") == 16


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_vmap_and_the_compiler_take_the_loop(cell: str) -> None:
    short = replace(TEXT, context=3)
    model, _ = build("none", "plain", "rnn_lm", short, cell=cell, depth=1)
    model.eval()
    tokens = random_batch(short).inputs
    expected = model(tokens)
    weights = {name: torch.stack([each, each]) for name, each in model.state_dict().items()}
    both = vmap(lambda own: functional_call(model, own, (tokens,)))(weights)
    torch.testing.assert_close(both[1], expected)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), expected)


@pytest.mark.usefixtures("here")
def test_widths_differ_unless_the_head_is_tied(capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = build("layernorm", "plain", "rnn_lm", TEXT, embedding=8, width=12)
    assert model.get_submodule("blocks.0.branches.cell.cell.input").in_features == 8
    model, _ = build("layernorm", "plain", "rnn_lm", TEXT, tied=True)
    assert not any(name.startswith("head") for name, _ in model.named_parameters())
    words = ["train", "model=rnn_lm", "model.tied=true", "model.embedding=8", "model.width=12"]
    line = refused(words, capsys)
    assert "model.embedding=12, or model.tied=false" in line


def test_the_start_is_the_same_with_any_norm() -> None:
    plain, _ = build("none", "plain", "rnn_lm", TEXT)
    normed, _ = build("layernorm", "plain", "rnn_lm", TEXT)
    start = normed.state_dict()
    assert all(torch.equal(start[name], value) for name, value in plain.state_dict().items())


def test_it_learns_in_16_bits_too() -> None:
    for norm in ("none", "layernorm"):
        model, _ = build(norm, "plain", "rnn_lm", TEXT, dropout=0.0)
        batch = random_batch(TEXT)
        with torch.autocast("cpu", torch.bfloat16):
            loss = TEXT.loss(model(batch.inputs), batch.targets)
        loss.backward()
        assert loss.item() == pytest.approx(TEXT.loss(model(batch.inputs), batch.targets).item(), rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_in_16_bits_a_cell_without_norms_computes_as_one_with_norms_does(kind: Any, dtype: torch.dtype) -> None:
    """To the bit, and in float32 between matrix products: torch's operator rounds more, and few CPUs have it."""
    cell = without_norms(kind).float()
    x = torch.randn(3, 7, 5)
    found = []
    for fuses in (True, False):
        cell.fuses = fuses
        cell.zero_grad()
        with torch.autocast("cpu", dtype):
            trained = cell.train().run(x, None, time_steps(None, 7))
            with torch.no_grad():
                evaluated = cell.eval().run(x, None, time_steps(None, 7))
        trained.sin().sum().backward()
        assert trained.dtype == evaluated.dtype == torch.float32
        gradients = [parameter.grad for parameter in cell.parameters()]
        found.append([trained, evaluated, *gradients])
    for either, other in zip(*found, strict=True):
        assert torch.equal(either, other)


def test_a_step_of_a_cell_is_of_one_position() -> None:
    assert [step.position for step in time_steps(None, 3)] == [0, 1, 2]
    mask = torch.tensor([[True, True], [True, False]])
    assert [step.position for step in time_steps(mask, 2)] == [0, 1]
    assert TimeStep().choose(mask, ~mask) is mask


def test_layers_that_are_computed_again_have_the_same_bits() -> None:
    """With BatchNorm's running statistics of each time step, and dropout."""
    found = []
    for recompute in (False, True):
        model, _ = build("batchnorm", "plain", "rnn_lm", TEXT, norm_settings={"per_position": True})
        model.recompute = recompute
        batch = random_batch(TEXT)
        torch.manual_seed(0)
        TEXT.loss(model(batch.inputs), batch.targets).backward()
        gradients = {name: each.grad for name, each in model.named_parameters()}
        found.append({**model.state_dict(), **{f"gradient of {name}": each for name, each in gradients.items()}})
    kept, computed = found
    assert kept.keys() == computed.keys()
    for name, each in kept.items():
        assert torch.equal(each, computed[name]), name
