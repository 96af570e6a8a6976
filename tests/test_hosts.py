"""Norms of other libraries' models: where they stand, what replaces them, what stays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import yaml
from given_models import HOSTS, OTHERS, Given
from support import REPOSITORY
from torch import Tensor, nn

from normbench import hosts
from normbench.hosts import Findings
from normbench.norms import BatchNorm, LayerNorm, RMSNorm

SITES = yaml.safe_load((REPOSITORY / "tests/given_sites.yaml").read_text("utf-8"))

# Ours with the formula of each host's norms.
SAME = dict.fromkeys(HOSTS, RMSNorm) | dict.fromkeys(("resnet", "mobilenet", "torchvision resnet"), BatchNorm)
SAME |= dict.fromkeys(("vit", "convnext", "swin", "mixer", "gpt2", "bert"), LayerNorm)


def logits(model: nn.Module, given: Given) -> Tensor:
    """What a model gives."""
    with torch.no_grad():
        output: Any = given.call(model)
    found: Tensor = getattr(output, "logits", output)
    return found


@pytest.mark.parametrize("name", HOSTS)
def test_norms_stand_where_the_source_has_them(name: str) -> None:
    given = HOSTS[name]
    model = given.build()
    findings = hosts.find(model, given.call)
    norms = {}
    for found in findings.found:
        norms[found.path] = [found.site.name, found.site.slot or None, found.features, found.adapter.axis]
        assert model.get_submodule(found.path) is found.module
    blocks = {block.path: list(block.branches) for block in findings.blocks}
    assert {"norms": norms, "blocks": blocks} == SITES[name]
    assert not findings.left and not findings.warnings
    names = [found.site.name for found in findings.found]
    assert len(set(names)) == len(names)
    assert [block.layer for block in findings.blocks] == list(range(len(findings.blocks)))
    assert {found.site.depth for found in findings.found} == {len(findings.blocks)}
    assert {found.site.branches for found in findings.found} == {sum(map(len, blocks.values()))}


@pytest.mark.parametrize("name", HOSTS)
def test_norms_of_the_same_kind_with_the_same_weights_change_nothing(name: str) -> None:
    given = HOSTS[name]
    model = given.build()
    before = logits(model, given)
    weights = copy.deepcopy(model.state_dict())
    findings = hosts.find(model, given.call)
    made = hosts.replace(model, findings, SAME[name], keep="weights")
    assert set(made) == {found.site.name for found in findings.found}
    assert all(type(norm).__name__ == SAME[name].__name__ for norm in made.values())
    torch.testing.assert_close(logits(model, given), before, rtol=0, atol=1e-5 * float(before.abs().max()))
    assert list(model.state_dict()) == list(weights)
    hosts.restore(model, findings, made)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[key])


def test_what_is_no_plain_norm_is_left_with_the_reason() -> None:
    """Mamba 2 and Qwen3-Next have norms with a gate, NanoChat one that is called twice."""
    found = {name: hosts.find(given.build(), given.call) for name, given in OTHERS.items()}
    assert reasons(found["mamba2"]) == {"MambaRMSNormGated": "takes gate beside its input"}
    assert reasons(found["qwen3_next"]) == {"Qwen3NextRMSNormGated": "takes gate beside its input"}
    twice = [each for each in found["nanochat"].found if each.calls == 2]
    assert [(each.path, each.site.name) for each in twice] == [("model.norm", "final")]
    (warning,) = found["swin2"].warnings
    assert warning.startswith("layers.0.blocks.0.attn and 3 more like it normalizes by a function, normalize")


def reasons(findings: Findings) -> dict[str, str]:
    return {left.kind: left.reason for left in findings.left}
