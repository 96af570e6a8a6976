"""The models that translate: step by step as at once, against torch's own layers, and DeepNorm's constants."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from support import CAUSAL, PLACEMENTS, TRANSLATIONS, build, random_batch
from torch import Tensor, distributed, nn

from normbench.errors import UsageError
from normbench.models import cells
from normbench.models.cells import GRU, TimeStep, share_statistics, time_steps
from normbench.models.recurrent import ConditionalGRU
from normbench.models.seq2seq import CrossAttention
from normbench.norms import BatchNorm, LayerNorm, NoNorm
from normbench.norms.foreign import accept_mask
from normbench.probes import Probes
from normbench.studies.position import Position
from normbench.types import PADDING, Site

RESIDUAL = [name for name in PLACEMENTS if name != "plain"]


@torch.no_grad()
def assert_steps_agree(model: nn.Module) -> None:
    """Logits are those of teacher forcing where the tokens of a translation come one by one."""
    batch = random_batch(TRANSLATIONS)
    assert batch.previous is not None
    logits = model.eval()(*batch.arguments)
    state = model.begin(batch.inputs, batch.mask)  # type: ignore[operator]  # a translator has it
    for place in range(batch.previous.shape[1]):
        found, state = model.advance(state, batch.previous[:, place])  # type: ignore[operator]  # likewise
        assert all(len(each) == len(batch.inputs) for each in state)
        real = batch.targets[:, place] != PADDING
        torch.testing.assert_close(found[real], logits[real, place], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("position", ["learned", "rotary"])
@pytest.mark.parametrize("placement", RESIDUAL)
def test_a_transformer_translates_step_by_step_as_at_once(placement: str, position: str) -> None:
    assert_steps_agree(build("layernorm", placement, "seq2seq", TRANSLATIONS, position=position)[0])


def test_sites_count_the_blocks_of_both_sides() -> None:
    model, norms = build("layernorm", "pre", "seq2seq", TRANSLATIONS, depth=2, decoder_depth=3)
    sites = [block.site for block in model.blocks]
    assert [(site.layer, site.depth, site.branches, site.side, site.causal) for site in sites] == [
        *((layer, 5, 13, "encoder", False) for layer in (0, 1)),
        *((layer, 5, 13, "decoder", True) for layer in (2, 3, 4)),
    ]
    assert {(site.sides, site.length) for site in sites} == {((2, 3), 8)}
    assert [*norms][-2:] == ["final.encoder", "final.decoder"] and "block02.cross" in norms


def test_deepnorm_has_the_constants_of_an_encoder_decoder() -> None:
    """α and β of Wang et al. 2022, figure 2; β on v and out of cross-attention too, and gain 1 on its q and k."""
    n, m = 2, 3
    deep, pre = (build("layernorm", p, "seq2seq", TRANSLATIONS, depth=n, decoder_depth=m)[0] for p in ("deep", "pre"))
    for block, alpha in ((deep.blocks[0], 0.81 * (n**4 * m) ** (1 / 16)), (deep.blocks[-1], (3 * m) ** 0.25)):
        assert block.residual_gain == pytest.approx(alpha)
    scaled, plain = (dict(model.named_parameters()) for model in (deep, pre))
    cross = "blocks.2.branches.cross"
    beta = (12 * m) ** -0.25
    k, v = plain[f"{cross}.kv.weight"].chunk(2)
    torch.testing.assert_close(scaled[f"{cross}.kv.weight"], torch.cat((k, v * beta)))
    torch.testing.assert_close(scaled[f"{cross}.out.weight"], plain[f"{cross}.out.weight"] * beta)
    assert torch.equal(scaled[f"{cross}.q.weight"], plain[f"{cross}.q.weight"])
    fc1 = "blocks.0.branches.mlp.fc1.weight"
    torch.testing.assert_close(scaled[fc1], plain[fc1] * 0.87 * (n**4 * m) ** (-1 / 16))


def test_cross_attention_against_torch() -> None:
    """The same weights in torch's MultiheadAttention give the same output, and probes the logits that it attends by."""
    torch.manual_seed(0)
    ours = CrossAttention(16, 4, bias=True, dropout=0.0, norm=NoNorm, site=Site("cross")).double()
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    theirs.in_proj_weight.data = torch.cat((ours.q.weight, ours.kv.weight)).detach()
    theirs.in_proj_bias.data = torch.cat((ours.q.bias, ours.kv.bias)).detach()
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, memory = torch.randn(2, 5, 16).double(), torch.randn(2, 7, 16).double()
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    y, weights = theirs(x, memory, memory, key_padding_mask=~mask, average_attn_weights=False)
    seen: list[torch.Tensor] = []
    ours.inner.register_forward_hook(lambda inner, given, _: seen.append(inner.logits(given[0], given[1], given[3])))
    torch.testing.assert_close(ours(x, memory=memory, memory_mask=mask), y)
    torch.testing.assert_close(seen[0].softmax(-1), weights)


def test_an_mlp_of_the_translator_is_as_wide_as_asked_for() -> None:
    for mlp in ("relu", "swiglu"):
        model, _ = build("layernorm", "pre", "seq2seq", TRANSLATIONS, mlp=mlp, hidden=20)
        assert model.get_submodule("blocks.0.branches.mlp.fc2").in_features == 20


# ---- the recurrent one


def pair(inputs: int, width: int) -> tuple[GRU, nn.GRU]:
    """Our unit without norms, and torch's with the same weights."""
    torch.manual_seed(0)
    ours = GRU(inputs, width, lambda size, **place: accept_mask(NoNorm(size, **place)), Site("cell"), "")
    theirs = nn.GRU(inputs, width, batch_first=True)
    with torch.no_grad():
        ours.input.bias.normal_()
        theirs.weight_ih_l0.copy_(ours.input.weight)
        theirs.weight_hh_l0.copy_(ours.state.weight)
        theirs.bias_ih_l0.copy_(ours.input.bias)
        theirs.bias_hh_l0.zero_()
    return ours, theirs


def test_with_synchronised_statistics_texts_of_all_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they have two or more that go on, as in a single process with all texts; else all that have ended too."""
    lengths = torch.tensor([[5, 2], [4, 3]])  # of two processes
    masks = torch.arange(5) < lengths.unsqueeze(2)

    def add_others(own: Tensor) -> None:
        own.copy_(masks.sum(dim=(0, 1)))

    monkeypatch.setattr(cells, "has_others", lambda: True)
    monkeypatch.setattr(distributed, "all_reduce", add_others)
    found = [time_steps(mask, 5, together=True) for mask in masks]
    for step, whole in enumerate(time_steps(masks.flatten(0, 1), 5)):
        of_both = torch.cat([own[step].counted for own in found])
        assert torch.equal(of_both, whole.counted)
    synced, alone = BatchNorm(3, sync=True), BatchNorm(3)
    assert share_statistics(nn.Sequential(synced, LayerNorm(3)))
    assert not share_statistics(nn.Sequential(synced, alone)) and not share_statistics(LayerNorm(3))


@pytest.mark.parametrize("padded", [False, True])
def test_a_unit_without_norms_is_torch_s(padded: bool) -> None:
    """States and gradients are those of nn.GRU; with padding, those of each text alone."""
    ours, theirs = (each.double() for each in pair(5, 6))
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    lengths = [7, 4, 1] if padded else [7, 7, 7]
    mask = torch.arange(7) < torch.tensor(lengths)[:, None] if padded else None
    steps = time_steps(mask, 7)
    states = ours.run(x, mask, steps)
    backwards = ours.run(x, mask, steps, backwards=True)
    loss = other = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(lengths):
        text = x[row : row + 1, :length]
        expected = theirs(text)[0][0]
        reverse = theirs(text.flip(1))[0][0].flip(0)
        torch.testing.assert_close(states[row, :length], expected)
        torch.testing.assert_close(backwards[row, :length], reverse)
        assert torch.equal(states[row, length:], states[row, length - 1].expand(7 - length, 6))
        loss = loss + (states[row, :length].sin() + backwards[row, :length].cos()).sum()
        other = other + (expected.sin() + reverse.cos()).sum()
    loss.backward()
    other.backward()
    for name in ("weight_ih", "weight_hh", "bias_ih"):
        kind = ours.state if name == "weight_hh" else ours.input
        torch.testing.assert_close(kind.get_parameter(name[:-3]).grad, theirs.get_parameter(f"{name}_l0").grad)


def test_norms_stand_before_the_gates_as_published() -> None:
    """One step by hand: N(Wx + b) and N(Uh) apart, the two gates as one vector, the reset gate outside of N."""
    torch.manual_seed(0)
    unit = GRU(4, 6, LayerNorm, Site("cell"), "").double()
    for parameter in unit.parameters():
        nn.init.normal_(parameter)
    x, h = torch.randn(3, 1, 4).double(), torch.randn(3, 6).double()
    projected = [each[:, 0] for each in unit.project("input", x, None)]

    def normed(name: str, values: torch.Tensor) -> torch.Tensor:
        own: Any = unit.norms[name]
        y = (values - values.mean(-1, keepdim=True)) / (values.var(-1, keepdim=True, correction=0) + own.eps).sqrt()
        return y * own.weight + own.bias

    from_x, from_h = x[:, 0] @ unit.input.weight.T + unit.input.bias, h @ unit.state.weight.T
    gates = normed("input_gates", from_x[:, :12]) + normed("state_gates", from_h[:, :12])
    r, z = gates.sigmoid().chunk(2, dim=-1)
    candidate = (normed("input_candidate", from_x[:, 12:]) + r * normed("state_candidate", from_h[:, 12:])).tanh()
    torch.testing.assert_close(unit(projected, h, TimeStep()), (1 - z) * candidate + z * h)


def test_attention_is_additive_and_sees_no_padding() -> None:
    """One step of the decoder by hand, from Bahdanau et al. 2015, appendix A.1.2, with torch's own cell."""
    torch.manual_seed(0)
    branch = ConditionalGRU(3, 4, lambda size, **place: accept_mask(NoNorm(size, **place)), Site("block"), 0.0).double()
    memory, y = torch.randn(2, 5, 8).double(), torch.randn(2, 1, 3).double()
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    for row, length in enumerate([5, 2]):
        own = memory[row, :length]
        state = branch.initial.linear(own.mean(0)).tanh()
        cells = []
        for unit in (branch.first, branch.second):
            cells.append(nn.GRUCell(unit.input.in_features, 4).double())
            cells[-1].load_state_dict({"weight_ih": unit.input.weight, "weight_hh": unit.state.weight,
                                       "bias_ih": unit.input.bias, "bias_hh": torch.zeros(12)})  # fmt: skip
        between = cells[0](y[row, 0], state)
        energies = (branch.keys.linear(own) + branch.query.linear(between)).tanh() @ branch.score.weight[0]
        context = energies.softmax(0) @ own
        last = cells[1](context, between)
        read = {"state": last, "embedding": y[row, 0], "context": context}
        output = sum(branch.outputs[name].linear(each) for name, each in read.items()).tanh()  # type: ignore[union-attr, operator]  # Normed
        torch.testing.assert_close(branch(y, memory=memory, memory_mask=mask)[row, 0], output)


@pytest.mark.parametrize("norm", CAUSAL)
def test_a_recurrent_model_translates_step_by_step_as_at_once(norm: str) -> None:
    model, _ = build(norm, "plain", "rnnsearch", TRANSLATIONS)
    batch = random_batch(TRANSLATIONS, seed=1)
    model(*batch.arguments)  # running statistics are no longer what they were
    assert_steps_agree(model)


def test_where_one_text_goes_on_alone_the_states_of_the_others_count() -> None:
    """BatchNorm in a cell has no statistics of one value; a text that has ended stays as it was."""
    torch.manual_seed(0)
    unit = GRU(4, 6, BatchNorm, Site("cell"), "")
    mask = torch.arange(5) < torch.tensor([[5], [3], [3]])
    states = unit.run(torch.randn(3, 5, 4), mask, time_steps(mask, 5))
    assert states.isfinite().all()
    assert torch.equal(states[1:, 3:], states[1:, 2:3].expand(2, 2, 6))


@pytest.mark.slow
def test_the_loop_is_as_fast_as_torch_s_own() -> None:
    """Forward and backward take at most twice the time of nn.GRU, the median of alternated ratios; it is about 1.0."""
    ours, theirs = pair(256, 256)
    x = torch.randn(64, 20, 256)

    def seconds(run: Any) -> float:
        begun = time.perf_counter()
        run().sum().backward()
        return time.perf_counter() - begun

    runs = partial(ours.run, x, None, time_steps(None, 20)), lambda: theirs(x)[0]
    times = [[seconds(run) for run in runs] for _ in range(12)][2:]
    assert statistics.median(mine / other for mine, other in times) < 2


@pytest.mark.parametrize(("name", "placement"), [("rnnsearch", "plain"), ("seq2seq", "pre")])
def test_translators_learn_in_16_bits_too(name: str, placement: str) -> None:
    model, _ = build("layernorm", placement, name, TRANSLATIONS)
    batch = random_batch(TRANSLATIONS)
    with torch.autocast("cpu", torch.bfloat16):
        loss = TRANSLATIONS.loss(model(*batch.arguments), batch.targets)
    loss.backward()
    assert loss.item() == pytest.approx(TRANSLATIONS.loss(model(*batch.arguments), batch.targets).item(), rel=0.02)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


# ---- what is seen of them


@pytest.mark.parametrize(
    ("name", "placement", "site", "calls"),
    [("rnnsearch", "plain", "block01.cell.second_state_gates", 8), ("seq2seq", "sandwich", "block01.cross.out", 1)],
)
def test_probes_keep_the_mean_over_the_calls_of_a_norm(name: str, placement: str, site: str, calls: int) -> None:
    """In a recurrent cell a norm is called at each time step; the steps of another forward pass do not count."""
    model, norms = build("batchnorm", placement, name, TRANSLATIONS)
    outputs: list[torch.Tensor] = []
    norms[site].register_forward_hook(
        lambda _, inputs, context, output: outputs.append(output[context["mask"]]), with_kwargs=True
    )
    batch = random_batch(TRANSLATIONS)
    wanted = ("activations", "parameters", "attention", "tails", "geometry")
    with Probes(model, wanted).watch(histograms=True) as reading:
        for _ in range(2):
            outputs.clear()
            model(*batch.arguments).sum().backward()
    found = reading.numbers()
    assert len(outputs) == calls
    for word, read in {"mean": torch.mean, "rms": lambda x: x.square().mean().sqrt()}.items():
        expected = statistics.mean(float(read(x.detach())) for x in outputs)
        assert found[f"act/{site}/{word}_out"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert {tag: value for tag, value in found.items() if not math.isfinite(value)} == {}
    assert {f"norm/{site}/mean_gap", f"norm/{site}/gamma_mean"} <= found.keys()
    counts, _ = reading.host_histograms()[f"act/{site}/out"]
    assert sum(counts) == outputs[0].numel()


def test_each_call_of_a_cell_is_one_position_and_padding_does_not_count() -> None:
    """The study of positions, by hand on one norm of the decoder and on the stream."""
    model, norms = build("rmsnorm", "plain", "rnnsearch", TRANSLATIONS, dropout=0.0)
    batches = [random_batch(TRANSLATIONS, size=3), random_batch(replace(TRANSLATIONS, context=5), size=3)]
    data = SimpleNamespace(task=TRANSLATIONS, pads=True, eval_batches=lambda split, limit: batches)
    one: Any = SimpleNamespace(build=lambda: (model, norms), data=data, device=torch.device("cpu"), task=TRANSLATIONS)
    rows = pd.DataFrame(Position(sites="second_state_gates").measure(one))
    site = "block01.cell.second_state_gates"
    assert set(rows["site"]) == {site, "block00", "block01"}
    found = rows[rows["site"] == site]
    assert found["position"].tolist() == [*range(8)]
    outputs: list[torch.Tensor] = []
    norms[site].register_forward_hook(lambda _, inputs, output: outputs.append(output.detach().double()))
    ends = []
    for batch in batches:
        model(*batch.arguments)
        ends.append(len(outputs))
    longest, both = outputs[ends[0] - 1], (outputs[0], outputs[ends[0]])
    assert (batches[0].targets[:, -1] != PADDING).sum() == 1  # where one goes on, those that ended count too
    assert found["std"].iloc[-1] == pytest.approx(float(longest.std(correction=0)))
    assert found["mean"].iloc[0] == pytest.approx(float(sum(x.mean() for x in both)) / 2)
    later = zip((outputs[1], outputs[ends[0] + 1]), batches, strict=True)
    second = [x[batch.targets[:, 1] != PADDING] for x, batch in later]
    assert found["mean"].iloc[1] == pytest.approx(float(sum(x.mean() for x in second)) / 2)


def test_a_site_that_is_not_there_is_refused() -> None:
    one: Any = SimpleNamespace(build=lambda: build("rmsnorm", "plain", "rnnsearch", TRANSLATIONS))
    with pytest.raises(UsageError, match=r"study.sites=gate9 is in the name of no norm's site: use some of block01"):
        next(Position(sites="gate9").measure(one))
