"""Trains a model step by step, for studies that look at each step while its gradients are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from normbench import build
from normbench.config.refusals import OF_SETTINGS, STUDY, refuse
from normbench.studies.frame import Subject
from normbench.training.precision import Precision, make_precision
from normbench.types import Model


@dataclass(frozen=True)
class TrainingStep:
    """A training step whose gradients are in the parameters and whose update is still to come.

    Attributes:
        number: counted from 0.
        rate: the learning rate.
        repeat: returns the step's loss again, as a function of the weights as they are then: of the same batches, with
            the same dropout masks and precision.
    """

    number: int
    loss: float
    rate: float
    repeat: Callable[[], Tensor]


def check_steps(subject: Subject, count: int | None = None) -> None:
    """Refuse a way of training in which `steps` has nothing to show, and a model that does not take its batches.

    count: how many steps there are; None: those of the run.

    Raises:
        UsageError: with the setting, because the device cannot run the precision, or as a run is refused.
    """
    refuse(build.combine(subject.recipe, {STUDY: True}), OF_SETTINGS)
    check_precision(subject)
    trainer = subject.tree["trainer"]
    batches = trainer["accumulate"] * (trainer["steps"] if count is None else count)
    if batches:
        model, norms = subject.build()
        with Precision(trainer["precision"], subject.device).autocast():
            build.rehearse(model, norms, subject.data, subject.device, trainer["recompute"], batches=batches)


def check_precision(subject: Subject) -> None:
    """Refuse a precision in which the device cannot train the subject's model.

    Raises:
        UsageError: with the reason.
    """
    precision = make_precision(subject.tree["trainer"]["precision"], subject.device)
    if precision.varies:
        model, _ = subject.build()
        build.check_precision(model, subject.data, precision)


def steps(
    subject: Subject, model: Model, norms: Mapping[str, nn.Module], *, finite: bool = True
) -> Iterator[TrainingStep]:
    """Train as `normbench train` does, and yield each step before its update.

    Args:
        subject: whose model is trained.
        model: the model.
        norms: of the model, by site.
        finite: end before a step that is not finite.
    """
    trainer = subject.tree["trainer"]
    precision = Precision(trainer["precision"], subject.device)
    stepper = build.make_stepper(subject.recipe, model, norms, subject.data, precision, trainer["steps"])
    model.train()
    for number in range(stepper.steps):
        stepper.set_learning_rates(number)
        loss = stepper.gradients(stepper.local_batches(number))
        if not stepper.admits(number, loss) and finite:
            return
        yield TrainingStep(number, loss.item(), stepper.learning_rate, partial(stepper.mean_loss, number))
        stepper.update()
