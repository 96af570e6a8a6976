"""The forward pass before anything is written: it finds what does not fit, and leaves everything as it was."""

from __future__ import annotations

import pytest
import torch
from support import IMAGES, TEXT, build, random_batch

from normbench.build import rehearse
from normbench.contract.trials import tiny_data
from normbench.errors import UsageError
from normbench.types import ImageClassification, Task

CPU = torch.device("cpu")


@pytest.mark.parametrize(("model", "task"), [("nano", TEXT), ("cnn", IMAGES)])
def test_a_rehearsal_changes_nothing(model: str, task: Task) -> None:
    made, norms = build("batchnorm", "pre", model, task, **({"dropout": 0.5} if model == "nano" else {}))
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    data, generator = tiny_data(task), torch.get_rng_state()
    hooks = [len(norm._forward_hooks) for norm in norms.values()]
    rehearse(made, norms, data, CPU)
    after = made.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [len(norm._forward_hooks) for norm in norms.values()] == hooks
    assert all(parameter.grad is None for parameter in made.parameters())


def test_a_statistic_over_one_value_is_found() -> None:
    (made, norms), data = build("batchnorm", "pre", "mlp", IMAGES), tiny_data(IMAGES)
    data.train_batch = lambda step: random_batch(IMAGES, 1)
    with pytest.raises(UsageError, match="batchnorm here would take its statistics over 1 value"):
        rehearse(made, norms, data, CPU)
    data.train_batch = lambda step: random_batch(IMAGES, 2)
    rehearse(made, norms, data, CPU)


def test_a_norm_that_changes_the_shape_is_named() -> None:
    made, norms = build("layernorm", "pre", "mlp", IMAGES)
    next(iter(norms.values())).register_forward_hook(lambda norm, x, y: y[..., :1])
    with pytest.raises(UsageError, match=r"returns the shape \(2, 1\) for"):
        rehearse(made, norms, tiny_data(IMAGES), CPU)


def test_logits_of_a_wrong_shape_are_refused() -> None:
    made, norms = build("layernorm", "pre", "mlp", IMAGES)
    other = ImageClassification(7, image_shape=IMAGES.image_shape)
    with pytest.raises(UsageError, match=r"logits have the shape \(2, 5\), and the data need \(2, 7\)"):
        rehearse(made, norms, tiny_data(other), CPU)
