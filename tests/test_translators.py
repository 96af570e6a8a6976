"""The models that translate: step by step as at once, against torch's own layers, and DeepNorm's constants."""

from __future__ import annotations

import pytest
import torch
from support import PLACEMENTS, TRANSLATIONS, build, random_batch
from torch import nn

from normbench.models.seq2seq import CrossAttention
from normbench.types import PADDING

RESIDUAL = [name for name in PLACEMENTS if name != "plain"]


@torch.no_grad()
def assert_steps_agree(model: nn.Module) -> None:
    """Logits are those of teacher forcing where the tokens of a translation come one by one."""
    batch = random_batch(TRANSLATIONS)
    assert batch.previous is not None
    logits = model.eval()(*batch.arguments)
    state = model.begin(batch.inputs, batch.mask)  # type: ignore[operator]  # a translator has it
    for time in range(batch.previous.shape[1]):
        found, state = model.advance(state, batch.previous[:, time])  # type: ignore[operator]  # likewise
        assert all(len(each) == len(batch.inputs) for each in state)
        real = batch.targets[:, time] != PADDING
        torch.testing.assert_close(found[real], logits[real, time], rtol=1e-4, atol=1e-5)


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
    assert {(site.sides, site.length) for site in sites} == {((2, 3), 16)}
    assert [*norms][-2:] == ["final.encoder", "final.decoder"] and "block02.cross" in norms


def test_deepnorm_has_the_constants_of_an_encoder_decoder() -> None:
    """α and β of Wang et al. 2022, figure 2; β on v and out of cross-attention too, and gain 1 on its q and k."""
    n, m = 2, 3
    deep, pre = (build("layernorm", p, "seq2seq", TRANSLATIONS, depth=n, decoder_depth=m)[0] for p in ("deep", "pre"))
    for block, alpha in ((deep.blocks[0], 0.81 * (n**4 * m) ** (1 / 16)), (deep.blocks[-1], (3 * m) ** 0.25)):
        assert block.residual_gain == pytest.approx(alpha)
    scaled, plain = (dict(model.named_parameters()) for model in (deep, pre))
    cross, beta = "blocks.2.branches.cross", (12 * m) ** -0.25
    k, v = plain[f"{cross}.kv.weight"].chunk(2)
    torch.testing.assert_close(scaled[f"{cross}.kv.weight"], torch.cat((k, v * beta)))
    torch.testing.assert_close(scaled[f"{cross}.out.weight"], plain[f"{cross}.out.weight"] * beta)
    assert torch.equal(scaled[f"{cross}.q.weight"], plain[f"{cross}.q.weight"])
    fc1 = "blocks.0.branches.mlp.fc1.weight"
    torch.testing.assert_close(scaled[fc1], plain[fc1] * 0.87 * (n**4 * m) ** (-1 / 16))


def test_cross_attention_against_torch() -> None:
    """The same weights in torch's MultiheadAttention give the same output, and probes the logits that it attends by."""
    torch.manual_seed(0)
    ours = CrossAttention(16, 4, bias=True, dropout=0.0).double()
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    theirs.in_proj_weight.data = torch.cat((ours.q.weight, ours.kv.weight)).detach()
    theirs.in_proj_bias.data = torch.cat((ours.q.bias, ours.kv.bias)).detach()
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, memory = torch.randn(2, 5, 16).double(), torch.randn(2, 7, 16).double()
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    y, weights = theirs(x, memory, memory, key_padding_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(ours(x, memory=memory, memory_mask=mask), y)
    torch.testing.assert_close(ours.attention_logits(x, memory=memory, memory_mask=mask).softmax(-1), weights)


def test_an_mlp_of_the_translator_is_as_wide_as_asked_for() -> None:
    for mlp in ("relu", "swiglu"):
        model, _ = build("layernorm", "pre", "seq2seq", TRANSLATIONS, mlp=mlp, hidden=20)
        assert model.get_submodule("blocks.0.branches.mlp.fc2").in_features == 20
