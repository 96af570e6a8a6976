"""ResNet-18 and -50, VGG and ViT-Ti: their published sizes, and each new branch against its formula."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from support import IMAGES, build, random_batch, section
from torch import nn
from torch.nn import functional as F

from normbench import build as builder
from normbench.errors import UsageError
from normbench.models.cnn import BasicBranch, BottleneckBranch, PooledConvBranch
from normbench.models.stacks import NormActivation
from normbench.norms import NoNorm
from normbench.types import ImageClassification, Model, Site


def full(name: str, norm: str, placement: str, side: int, classes: int, **settings: Any) -> Model:
    """A model of its full size."""
    chosen = {"norm": norm, "placement": placement, "model": name}
    tree = {group: section(group, option) for group, option in chosen.items()}
    tree["model"] |= settings
    with torch.device("meta"):  # sizes alone: nothing is drawn
        return builder.build_model(tree, ImageClassification(classes, image_shape=(3, side, side)), seed=0)[0]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# ---- sizes

# Parameters with 1,000 classes as torchvision has them, and channels of their BatchNorms, each with γ and β: 64 behind
# the stem, those in the blocks, and those behind the learned shortcuts.
RESNETS = {"resnet18": (11_689_512, 64 + 3_840 + 896), "resnet50": (25_557_032, 64 + 22_656 + 3_840)}


@pytest.mark.parametrize("name", RESNETS)
def test_resnets_have_the_published_weights_but_in_the_norms(name: str) -> None:
    """Pre-activation leaves every convolution and the head as they are, and moves the norms."""
    published, channels = RESNETS[name]
    assert count(full(name, "none", "pre", 224, 1000)) == published - 2 * channels
    assert count(full(name, "batchnorm", "pre", 224, 1000)) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize(("name", "layers", "parameters"), [("resnet20", 20, 0.27e6), ("resnet56", 56, 0.85e6)])
def test_small_resnets_have_the_published_sizes(name: str, layers: int, parameters: float) -> None:
    """He et al. 2016a, table 6: 20 layers have 0.27 M parameters, 56 have 0.85 M."""
    model = full(name, "batchnorm", "pre", 32, 10)
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == layers
    assert count(model) == pytest.approx(parameters, rel=0.02)


def test_vgg_is_configuration_a_with_one_linear_layer() -> None:
    """Eight convolutions: 9.2 M parameters on CIFAR-10, and nothing else but BatchNorm's γ and β and the head."""
    widths = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    convolutions = sum(9 * before * after for before, after in pairwise(widths))
    assert count(full("vgg", "none", "plain", 32, 10)) == convolutions + 512 * 10 + 10
    model = full("vgg", "batchnorm", "plain", 32, 10)
    assert count(model) == 9_228_362 == convolutions + 2 * sum(widths[1:]) + 512 * 10 + 10
    assert [module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)] == widths[1:]


def test_vit_tiny_is_deit_s() -> None:
    """DeiT-Ti at 224 pixels in patches of 16 (Touvron et al. 2021, table 1: 5 M): the same 5,717,416 parameters."""
    assert count(full("vit_tiny", "layernorm", "pre", 224, 1000, patch=16)) == 5_717_416
    small = full("vit_tiny", "layernorm", "pre", 32, 10)
    assert small.positions.weight.shape == (65, 192)  # 8 × 8 patches of 4 pixels, and the class token
    assert any(isinstance(module, nn.Dropout) for module in small.modules())


# ---- shapes


@pytest.mark.parametrize(("side", "streams"), [(64, [64, 32, 16, 8]), (65, [17, 9, 5, 3]), (224, [56, 28, 14, 7])])
@pytest.mark.parametrize(("name", "widths"), [("resnet18", [4, 8, 16, 32]), ("resnet50", [16, 32, 64, 128])])
def test_resnets_shrink_large_images_at_the_stem(name: str, widths: list[int], side: int, streams: list[int]) -> None:
    """He et al. 2016a, table 1: a 224-pixel image is 56, 28, 14 and 7 pixels in the stages; small images keep all."""
    model, _ = build("batchnorm", model=name, task=ImageClassification(5, image_shape=(3, side, side)))
    seen: list[tuple[int, ...]] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[1:])))
    assert model(torch.randn(2, 3, side, side)).shape == (2, 5)
    assert seen == [(width, size, size) for width, size in zip(widths, streams, strict=True)]


@pytest.mark.parametrize(("shape", "last"), [((3, 32, 32), 2), ((1, 28, 28), 2), ((1, 8, 8), 1), ((3, 1, 1), 1)])
def test_vgg_takes_images_of_any_size(shape: tuple[int, int, int], last: int) -> None:
    task = ImageClassification(10, image_shape=shape)
    model, _ = build("layernorm", "plain", "vgg", task, stages=[1, 2, 4, 8, 8], blocks=[1, 1, 2, 2, 2], strides=[2] * 5)
    inputs: list[torch.Tensor] = []
    model.blocks[-1].register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    assert model(torch.randn(2, *shape)).shape == (2, 10)
    assert inputs[0].shape[2:] == (last, last)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg"])
def test_what_passes_through_a_cnn_has_its_channels_last(name: str) -> None:
    model, _ = build("batchnorm", "plain" if name == "vgg" else "pre", name, IMAGES)
    strange = []

    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if output.ndim == 4 and not output.is_contiguous(memory_format=torch.channels_last):
            strange.append(type(module).__name__)

    for module in model.modules():
        module.register_forward_hook(hook)
    model(random_batch(IMAGES).inputs)
    assert strange == []


@pytest.mark.parametrize(("name", "key"), [("resnet18", "blocks"), ("cnn", "strides"), ("vgg", "blocks")])
def test_lists_that_do_not_belong_to_the_stages_are_refused(name: str, key: str) -> None:
    with pytest.raises(UsageError, match=rf"^model.{key} has 2 numbers for [34] stages: give as many$"):
        build("none", "plain" if name == "vgg" else "pre", name, IMAGES, **{key: [1, 2]})


# ---- branches against their formulas


def inside(norm: Any, order: str = "before") -> NormActivation:
    return NormActivation(norm, 1, Site("conv", 0), nn.ReLU, order)


class Double(nn.Module):
    """A stand-in for a norm that shows where it is: x → 2x + 1."""

    def __init__(self, num_features: int, **_: Any) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x + 1


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("stride", [1, 2])
def test_bottleneck_against_its_formula(order: str, stride: int) -> None:
    torch.manual_seed(0)
    branch = BottleneckBranch((8, 16), stride, inside(Double, order)).double()
    x = torch.randn(2, 8, 7, 7, dtype=torch.float64)

    def between(y: torch.Tensor) -> torch.Tensor:
        return F.relu(2 * y + 1) if order == "before" else 2 * F.relu(y) + 1

    hidden = between(F.conv2d(F.relu(x), branch.conv1.weight))
    hidden = between(F.conv2d(hidden, branch.conv2.weight, stride=stride, padding=1))
    assert torch.allclose(branch(x), F.conv2d(hidden, branch.conv3.weight), atol=1e-12)
    assert branch.conv1.weight.shape == (4, 8, 1, 1)
    assert torch.equal(branch.shortcut(x), F.conv2d(x, branch.projection.weight, stride=stride))
    assert [id(w) for w in branch.output_weights()] == [id(branch.conv3.weight)]
    assert len(list(branch.scaled_weights())) == 3


@pytest.mark.parametrize("branch_class", [BasicBranch, BottleneckBranch])
def test_shortcuts_learn_only_where_the_shape_changes(branch_class: type[BasicBranch | BottleneckBranch]) -> None:
    x = torch.randn(2, 8, 6, 6)
    assert branch_class((8, 8), 1, inside(NoNorm)).shortcut(x) is x
    for channels, stride, shape in (((8, 16), 1, (2, 16, 6, 6)), ((8, 8), 2, (2, 8, 3, 3))):
        branch = branch_class(channels, stride, inside(NoNorm))
        assert branch.shortcut(x).shape == branch(x).shape == shape
        assert branch.projection.weight.shape == (channels[1], 8, 1, 1)


def test_vgg_pools_behind_norm_and_activation() -> None:
    torch.manual_seed(0)
    branch = PooledConvBranch((3, 5), 2, inside(Double))
    x = torch.randn(2, 3, 7, 7)
    expected = F.max_pool2d(F.relu(2 * F.conv2d(x, branch.conv1.weight, padding=1) + 1), 2, ceil_mode=True)
    assert torch.equal(branch(x), expected)
    assert branch(x).shape == (2, 5, 4, 4)
