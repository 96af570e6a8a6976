"""ResNet-18 and -50, VGG and ViT-Ti: their published sizes, and each new branch against its formula."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from support import IMAGES, build, random_batch, section
from torch import nn
from torch.nn import functional as F

from normbench import build as builder
from normbench.config.recipe import Recipe
from normbench.models.cnn import LAYOUTS, BottleneckBranch, PooledConvBranch, unsafe_convolutions
from normbench.models.stacks import NormActivation
from normbench.types import ImageClassification, Site

# ---- sizes

# torchvision's have a γ and a β for each channel of a BatchNorm: 64 behind the stem, those in the blocks, and those
# behind the learned shortcuts. Pre-activation leaves every convolution and the head as they are, and moves the norms.
PUBLISHED: list[tuple[str, str, str, int, int, dict[str, Any], Any]] = [
    ("resnet18", "none", "pre", 224, 1000, {}, 11_689_512 - 2 * (64 + 3_840 + 896)),
    ("resnet50", "none", "pre", 224, 1000, {}, 25_557_032 - 2 * (64 + 22_656 + 3_840)),
    ("resnet20", "batchnorm", "pre", 32, 10, {}, pytest.approx(0.27e6, rel=0.02)),  # He et al. 2016a, table 6
    ("resnet56", "batchnorm", "pre", 32, 10, {}, pytest.approx(0.85e6, rel=0.02)),
    ("vgg", "batchnorm", "plain", 32, 10, {}, 9_228_362),  # configuration A with one linear layer
    ("vit_tiny", "layernorm", "pre", 224, 1000, {"patch": 16}, 5_717_416),  # DeiT-Ti
]


@pytest.mark.parametrize(("name", "norm", "placement", "side", "classes", "settings", "parameters"), PUBLISHED)
def test_full_models_have_the_published_sizes(
    name: str, norm: str, placement: str, side: int, classes: int, settings: dict[str, Any], parameters: Any
) -> None:
    chosen = {"norm": norm, "placement": placement, "model": name}
    tree = {group: section(group, option) for group, option in chosen.items()}
    tree["model"] |= settings
    with torch.device("meta"):  # sizes alone: nothing is drawn
        model, _ = builder.build_model(Recipe(tree), ImageClassification(classes, image_shape=(3, side, side)), seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


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
    outputs: list[torch.Tensor] = []
    for module in model.modules():
        module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    model(random_batch(IMAGES).inputs)
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in outputs if y.ndim == 4)


@pytest.mark.parametrize("name", ["cnn", "vgg"])
def test_how_images_lie_is_chosen_by_device_and_can_be_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the model goes to a device that wants another layout; what is computed is the same."""
    placement, inputs = "plain" if name == "vgg" else "pre", random_batch(IMAGES).inputs
    one, other = (build("batchnorm", placement, name, IMAGES, layout=layout)[0]
                  for layout in ("channels_last", "contiguous"))  # fmt: skip
    torch.testing.assert_close(one(inputs), other(inputs), rtol=1e-4, atol=1e-5)
    assert [lies(weight) for weight in kernels(one)] == ["channels_last"] * len(kernels(one))
    assert [lies(weight) for weight in kernels(other)] == ["contiguous"] * len(kernels(other))
    auto, _ = build("batchnorm", placement, name, IMAGES)
    assert [lies(weight) for weight in kernels(auto)] == ["channels_last"] * len(kernels(auto))
    monkeypatch.setitem(LAYOUTS, "meta", "contiguous")
    assert {lies(weight) for weight in kernels(auto.to("meta"))} == {"contiguous"}


def test_kernels_of_one_channel_lie_as_torch_lays_them_out() -> None:
    """Such a kernel counts as channels last wherever it lies, but torch takes other sums for other strides."""
    model, _ = build("batchnorm", "pre", "cnn", ImageClassification(10, (1, 8, 8)))
    weights = [weight for weight in model.parameters() if weight.ndim == 4]
    assert any(weight.shape[1] == 1 for weight in weights)
    for weight in weights:
        assert weight.stride() == torch.empty_like(weight, memory_format=torch.channels_last).stride()


def kernels(model: nn.Module) -> list[torch.Tensor]:
    """The weights of the 3 × 3 convolutions with more than one channel, of which only one layout is true."""
    return [weight for weight in model.parameters() if weight.ndim == 4 and weight.shape[1] > 1 and weight.shape[2] > 1]


def lies(weight: torch.Tensor) -> str:
    return "channels_last" if weight.is_contiguous(memory_format=torch.channels_last) else "contiguous"


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


@pytest.mark.slow
def test_a_shortcut_has_the_gradients_of_float64_on_any_cpu() -> None:
    """oneDNN spoils those of 1 × 1 convolutions with a stride, and with them the process, which is one of its own.

    It reads which instructions it may use as it first computes: a fork for the fewest does so apart.
    """
    code = """
        import itertools, os, torch
        from torch import nn
        from normbench.models.cnn import BasicBranch
        from normbench.models.stacks import NormActivation
        from normbench.types import Site

        def without_norm(num_features, **place):
            return nn.Identity()

        def gradients(branch, x, like):
            x, like = (each.to(branch.projection.weight).contiguous(memory_format=torch.channels_last)
                       for each in (x, like))
            x.requires_grad_()
            return torch.autograd.grad(branch.shortcut(x), (x, branch.projection.weight), like)

        fork = os.fork()
        if fork:
            assert os.waitpid(fork, 0)[1] == 0, "with AVX2"
        os.environ["ONEDNN_MAX_CPU_ISA"] = "DEFAULT" if fork else "AVX2"
        torch.manual_seed(0)
        inside = NormActivation(without_norm, 1, Site("conv", 0), nn.ReLU, "before")
        small = itertools.product((1, 3, 8, 16), (4, 32), (8,))
        for channels, out, side in (*small, (3, 32, 64), (16, 4, 64)):
            branch = BasicBranch((channels, out), 2, inside).to(memory_format=torch.channels_last)
            x, like = torch.randn(32, channels, side, side), torch.randn(32, out, side // 2, side // 2)
            expected = gradients(branch.double(), x, like)
            branch.float()
            for threads in (1, 2):
                torch.set_num_threads(threads)
                first, second = gradients(branch, x, like), gradients(branch, x, like)
                for one, other, right in zip(first, second, expected, strict=True):
                    assert torch.equal(one, other), (channels, out, side, threads)
                    assert (one.double() - right).norm() <= 2e-6 * right.norm(), (channels, out, side, threads)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_no_shortcut_of_ours_is_a_convolution_with_a_stride(name: str) -> None:
    model, _ = build("batchnorm", model=name, task=IMAGES, width=4)
    assert not unsafe_convolutions(model)


def test_vgg_pools_behind_norm_and_activation() -> None:
    torch.manual_seed(0)
    branch = PooledConvBranch((3, 5), 2, inside(Double))
    x = torch.randn(2, 3, 7, 7)
    expected = F.max_pool2d(F.relu(2 * F.conv2d(x, branch.conv1.weight, padding=1) + 1), 2, ceil_mode=True)
    assert torch.equal(branch(x), expected)
    assert branch(x).shape == (2, 5, 4, 4)
