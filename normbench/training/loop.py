"""The training loop: take a step; log, evaluate and save if due; and again."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from normbench.compiling import compiled
from normbench.config.schema import TrainConfig
from normbench.probes import Probes, Reading
from normbench.record.forms import Number, has_form
from normbench.record.recorder import Recorder
from normbench.stopping import Stopped, allow_stops, heed_stop, hold_stops, stop
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.clock import Clock
from normbench.training.devices import keep_generators
from normbench.training.evaluation import evaluate
from normbench.training.feed import Feed
from normbench.training.graph import StepGraph
from normbench.training.guard import GRADIENT_NORM, Diverged, first_nonfinite
from normbench.training.launches import EarlySteps
from normbench.training.optimizer import check_shapes, make_average, parameters_of
from normbench.training.parallel import shard_like, unshard
from normbench.training.recalibration import recalibrate
from normbench.training.step import LocalBatch, Stepper
from normbench.types import Batch, keep_buffers

MICRO_BATCHES = 4  # into which a batch is cut for the variance of its gradients
FEWEST = 2  # examples in one of them: statistics over a batch need two


class Saved(TypedDict):
    """What a checkpoint holds of the loop as it is."""

    step: int
    loss_count: int
    best_loss: Number
    latest: dict[str, Number]
    compile_seconds: Number
    first_loss: Number
    runaway_since: int | None


class SavedIfAny(Saved):
    """What it holds only where there is any, and what older versions have not written."""

    evaluation_is_due: NotRequired[bool | None]
    operators: NotRequired[int | None]


SAVED = tuple(Saved.__annotations__)


class Evaluation(NamedTuple):
    """A model and the batches that it is evaluated on. name: what follows the metric in a tag, as in loss/val_ema."""

    name: str
    model: nn.Module
    batches: Iterable[Batch]


@dataclass
class Loop:
    """Trains for as many steps as its `stepper` has, which knows how a step moves the weights.

    Attributes:
        probes: look into some of the steps.
        settings: the run's configuration.
        recorder: takes in what is logged; it must be set before the loop begins.
        step: how many steps are done.
        latest: the newest value of each tag.
        best_loss: the lowest validation loss.
        loss_count: steps since the last log.
        first_loss: the first training loss that was logged.
        runaway_since: the step from which on the logged loss is too large.
        evaluation_is_due: whether the evaluation of the last step is still to be made.
        first_step: how many steps were done when this process took the run up.
        compile_seconds: what the first step took where torch.compile works in it.
        average: of the weights, if `trainer.ema` or `trainer.swa` wants one.
        graph: a CUDA graph of the step, if `trainer.compile=graph` wants one.
    """

    stepper: Stepper
    probes: Probes
    checkpoints: Checkpoints
    settings: TrainConfig
    recorder: Recorder = field(init=False)
    step: int = 0
    latest: dict[str, float] = field(default_factory=dict)
    best_loss: float = math.inf
    loss_count: int = 0
    first_loss: float | None = None
    runaway_since: int | None = None
    evaluation_is_due: bool = False
    first_step: int = 0
    compile_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.model = self.stepper.model
        self.data = self.stepper.data
        self.optimizer = self.stepper.optimizer
        self.precision = self.stepper.precision
        self.device = self.stepper.device
        self.steps = self.stepper.steps
        self.group = self.stepper.group
        self.trainer = self.settings.trainer
        self.probing = self.settings.probes
        self.eval_every = self.trainer.eval_every or math.ceil(self.steps / 10)
        self.clock = Clock(self.device)
        self.early = EarlySteps(self.device)
        self.loss_sum = torch.zeros((), device=self.device)
        self.average = make_average(self.model, self.trainer, self.steps)
        self.graph: StepGraph | None = None
        if self.trainer.compile == "graph":
            self.graph = StepGraph(self.model, self.optimizer, self.device)
            self.stepper.feed = Feed(self.data.train_batch, self.device, self.steps)
        elif self.trainer.torch_compiles:
            # compiled with eager mode's random numbers: its own would give other dropout masks
            options: Any = {"fallback_random": True, "triton.cudagraphs": self.trainer.compile == "cudagraphs"}
            self.stepper.forward = compiled(self.stepper.forward, options=options)

    # ---- the run

    def run(self, beat: Callable[[], None]) -> int:
        """Train to the end; return the number of the signal that has stopped it before, or 0.

        A checkpoint is written when a signal stops it. None is needed while this process takes its first step, which
        may compile for minutes: a signal raises there, as it does wherever nothing waits for it.

        Args:
            beat: called whenever something was logged.

        Raises:
            Diverged: the run has ended as a result.
            Stopped: by a signal, where the checkpoint from which the loop has begun is the last one still.
        """
        self.model.train()
        number = 0
        if self.evaluation_is_due:
            number = self.hold(self.evaluate_and_save)
        if self.step < self.steps and not number:
            with allow_stops(nothing_to_lose=True), self.look_at_early_step():
                self.train_step()
            number = self.hold(partial(self.go_on, beat))
        return number

    def go_on(self, beat: Callable[[], None]) -> None:
        """Train to the end after the first step of this process; see `run`.

        Raises:
            Stopped: by a signal, between two steps or in an evaluation.
        """
        self.after_step(beat)
        while self.step < self.steps:
            self.check_stop()
            with self.look_at_early_step():
                self.train_step()
            self.after_step(beat)

    def hold(self, work: Callable[[], None]) -> int:
        """Let signals wait for the pauses of a work; return the one that has stopped it, after a checkpoint, or 0."""
        with hold_stops(together=self.group.size > 1):
            try:
                work()
            except Stopped as stopped:
                heed_stop()
                self.save()
                return stopped.number
        return 0

    def check_stop(self) -> None:
        """Leave what is at work if a signal has come to one of the processes: all of them ask at the same place.

        Raises:
            Stopped: one has.
        """
        number = self.group.stop_asked()
        if number:
            stop(number)

    def until_stopped(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, and look before each of them whether a signal has come.

        Raises:
            Stopped: one has.
        """
        for batch in batches:
            self.check_stop()
            yield batch

    def train_step(self) -> None:
        """Take one optimizer step, and probe on its way where that is due."""
        self.begin_step()
        if self.graph is not None:
            loss, reading = self.step_by_graph(self.graph)
        elif self.trainer.torch_compiles:
            loss, reading = self.step_by_compiled_code()
        else:
            loss, reading = self.step_by_operators()
        self.end_step(loss, reading)

    def after_step(self, beat: Callable[[], None]) -> None:
        """Log, evaluate and save if due."""
        self.log_step(beat)
        self.evaluate_and_save()

    def log_step(self, beat: Callable[[], None]) -> None:
        """Log if due, and note whether an evaluation is."""
        last = self.step == self.steps
        if last or due(self.step, self.trainer.log_every):
            self.log()
            beat()
        self.evaluation_is_due = last or self.step % self.eval_every == 0

    def evaluate_and_save(self) -> None:
        """Evaluate and save if due.

        Raises:
            Stopped: by a signal, in the evaluation, which stays due.
        """
        if self.evaluation_is_due:
            self.evaluate()
            self.evaluation_is_due = False
        if self.step == self.steps or self.step % self.trainer.checkpoint_every == 0:
            self.save()

    # ---- a step

    def begin_step(self) -> None:
        """Start the clock, and set the learning rates."""
        self.clock.start()
        self.stepper.set_learning_rates(self.step)

    def step_by_operators(self) -> tuple[Tensor, Reading | None]:
        """Move the weights; return the loss, and what probes saw if they were due."""
        with self.probe() as reading:
            loss = self.stepper.gradients(self.stepper.local_batches(self.step))
        self.update(loss, reading)
        return loss, reading

    def step_by_compiled_code(self) -> tuple[Tensor, Reading | None]:
        """Move the weights by code that torch.compile made; return the loss, and what probes saw beside it if due."""
        reading = self.probe_beside()  # hooks cannot look into compiled code, and must not change it
        begun = time.perf_counter()
        loss = self.stepper.gradients(self.stepper.local_batches(self.step))
        if not self.compile_seconds:
            loss.item()  # waits for the device
            self.compile_seconds = time.perf_counter() - begun
        self.update(loss, reading)
        return loss, reading

    def update(self, loss: Tensor, reading: Reading | None) -> None:
        """Move the weights by the gradients in the parameters, and let probes see how far, if they are due.

        Raises:
            Diverged: the loss or a gradient is not finite.
        """
        if not self.stepper.admits(self.step, loss):
            self.diverge(self.step)
        self.read_noise(reading)
        with self.probes.watch_update(reading, self.optimizer):
            self.stepper.update()

    def step_by_graph(self, graph: StepGraph) -> tuple[Tensor, Reading | None]:
        """Move the weights by a graph of the step; return the loss, and what probes saw beside it if due."""
        reading = self.probe_beside()
        self.read_noise(reading)
        local = self.stepper.local_batch(self.step)
        self.stepper.predictions = local.predictions
        step = partial(self.record_step, local, graph.number)
        with self.probes.watch_update(reading, self.optimizer):
            loss, self.stepper.grad_norm = graph.take(self.step, step)
        if not self.compile_seconds:
            self.compile_seconds = graph.seconds
        return loss, reading

    def record_step(self, local: LocalBatch, number: Tensor) -> tuple[Tensor, Tensor]:
        """Move the weights by a batch on the device; return the loss and the gradient's norm.

        This is what a graph records, so nothing here may wait for the device or set a generator.

        Args:
            local: the batch, in tensors that later batches will be copied into.
            number: of the step, on the device; the guard notes it if the loss or the gradients are not finite.
        """
        loss = self.stepper.gradients([local])
        self.stepper.admits(number, loss)
        self.stepper.update()
        return loss, self.stepper.grad_norm

    def end_step(self, loss: Tensor, reading: Reading | None, seeds: int = 1) -> None:
        """Take in what a step has given, once the weights have moved.

        Args:
            loss: of the step.
            reading: what probes saw of it, if they were due.
            seeds: how many seeds the step has trained together.
        """
        if self.average is not None:
            self.average.update()
        self.loss_sum += loss
        self.loss_count += 1
        self.step += 1
        self.clock.stop(reading is None, seeds)
        if reading is not None:
            self.record(reading.numbers())
            if reading.histograms:
                self.recorder.histograms(self.step, reading.host_histograms())

    # ---- after a step

    def log(self) -> None:
        """Record the training loss since the last log, gradient and weight norms, learning rate and speed."""
        loss = self.loss_sum.item() / self.loss_count
        weight_norm = unshard(nn.utils.get_total_norm(self.stepper.parameters))
        values = {
            "loss/train": loss,
            "optim/lr": self.stepper.learning_rate,
            "grad/norm": self.stepper.grad_norm.item(),
            "weight/norm": weight_norm.item(),
        }
        step_ms = self.clock.recent()
        if step_ms is not None:
            unit = self.data.task.unit
            values["time/step_ms"] = step_ms
            values[f"time/{unit}_per_second"] = 1e3 * self.stepper.predictions / step_ms
        self.loss_sum.zero_()
        self.loss_count = 0
        self.record(values)
        self.check_runaway(loss)

    def evaluate(self) -> None:
        """Record the validation loss; on the whole validation set at the last step.

        Raises:
            Stopped: by a signal; nothing was recorded.
        """
        values = dict[str, float]()
        pages = dict[str, str]()
        is_last = self.step == self.steps
        for evaluation in self.evaluations(is_last):
            metrics, page = self.evaluate_one(evaluation)
            values.update(metrics)
            if page:
                pages[f"{self.data.task.examples}/{evaluation.name}"] = page
        keeps_best = self.trainer.keep_checkpoint == "best"
        comparable_loss = self.comparable_loss(values["loss/val"]) if keeps_best else math.inf
        self.record(values)
        self.recorder.texts(self.step, pages)
        if keeps_best:
            self.keep_best(comparable_loss)

    def save(self) -> None:
        """Write a checkpoint; what was recorded up to here is on disk before it."""
        self.check_guard()
        self.recorder.flush()
        self.checkpoints.save(self.state())

    def record(self, values: dict[str, float]) -> None:
        """Record numbers of this step, unless the guard finds that a bad step was let pass before."""
        self.check_guard()
        self.latest.update(values)
        self.recorder.scalars(self.step, values)

    # ---- how a run diverges

    def check_guard(self) -> None:
        """End the run if a bad step was let pass; called before anything is recorded or saved.

        Raises:
            Diverged: one was.
        """
        bad_step = self.stepper.first_bad_step()
        if bad_step is not None:
            self.diverge(bad_step)
        if self.precision.lost():
            self.diverge(self.step - 1)

    def diverge(self, step: int) -> None:
        """End the run at a step (counted from 0) whose loss or gradient is not finite.

        Raises:
            Diverged: always.
        """
        self.optimizer.zero_grad(set_to_none=True)
        where = GRADIENT_NORM
        for local in self.stepper.local_batches(step):
            with self.precision.autocast():
                where = first_nonfinite(self.model, local.batch, self.data.task, self.group)
            if where != GRADIENT_NORM:
                break
        raise Diverged(step + 1, f"not finite: {where}")

    def check_runaway(self, loss: float) -> None:
        """End the run if its logged loss has stayed above `divergence_factor` × the first for `divergence_patience`.

        Raises:
            Diverged: it has.
        """
        factor = self.trainer.divergence_factor
        patience = self.trainer.divergence_patience
        if self.first_loss is None:
            self.first_loss = loss
        if loss <= factor * self.first_loss:
            self.runaway_since = None
        elif self.runaway_since is None:
            self.runaway_since = self.step
        elif self.step - self.runaway_since >= patience:
            first = f"{factor:g} × its first value ({self.first_loss:.4g})"
            raise Diverged(self.runaway_since, f"the loss stayed above {first} for {patience} steps")

    # ---- what looks at a step

    def look_at_early_step(self) -> AbstractContextManager[None]:
        """Let `early` look at the next step inside the `with`, if it is one of the first and can be looked at.

        It can if it does nothing but train, and by operators that can be seen.
        """
        if not self.clock.to_skip:  # it is not one of the first, as nearly all steps are not
            return nullcontext()
        waits = self.precision.scales or self.group.size > 1
        if self.trainer.compile or waits or self.probes_due:
            return nullcontext()
        for module in self.model.modules():
            if getattr(module, "compiled", False):
                return nullcontext()
        if self.step == self.first_step and self.early.is_to_count(self.step):
            self.rehearse_step()
        return self.early.look(self.step, self.clock.to_skip)

    def rehearse_step(self) -> None:
        """Let the model make what it keeps from its first step on, which leaves no other trace."""
        with keep_generators(self.device):
            self.pass_beside()
        self.model.zero_grad(set_to_none=True)

    @property
    def probes_due(self) -> bool:
        """Tell whether probes look at the next step."""
        next_step = self.step + 1
        return due(next_step, self.probing.every) or due(next_step, self.probing.histograms_every)

    def probe(self) -> AbstractContextManager[Reading | None]:
        """Let probes look at the forward and backward pass inside the `with`, if they are due."""
        if not self.probes_due:
            return nullcontext()
        return self.probes.watch(histograms=due(self.step + 1, self.probing.histograms_every))

    def probe_beside(self) -> Reading | None:
        """Return what probes see, if they are due, where other code than the model's own takes the step.

        The model runs the same batches before the step, and leaves no trace: its running statistics are put back.
        """
        with self.probe() as reading:
            if reading is None:
                return None
            self.pass_beside()
        self.model.zero_grad(set_to_none=True)
        return reading

    def pass_beside(self) -> None:
        """Run the next step's batches forward and backward, and leave no trace but the gradients."""
        with keep_buffers(self.model):
            precision = copy.deepcopy(self.precision)  # whose scale of the loss this pass must not change
            local_batches = self.stepper.local_batches(self.step)
            self.stepper.forward_backward(self.stepper.wrapped, precision, local_batches)

    def read_noise(self, reading: Reading | None) -> None:
        """Let probes see the gradients of equal parts of the step's last batch, beside the step, if that is due.

        The parts leave no trace. They run in training mode, with dropout masks of their own, and BatchNorm takes the
        statistics of each part.
        """
        if reading is None or not self.probing.updates:
            return
        with keep_generators(self.device), keep_buffers(self.model):
            last = (self.step + 1) * self.trainer.accumulate - 1
            batch = self.stepper.local_batch(last).batch
            examples = len(batch.targets)
            size = max(examples // MICRO_BATCHES, FEWEST)
            if examples >= 2 * size:
                self.probes.read_noise(reading, self.part_gradients(batch, size), size)

    def part_gradients(self, batch: Batch, size: int) -> Iterator[Sequence[Tensor]]:
        """Yield the gradients of each part of a batch; those in the parameters stay. size: examples in a part."""
        scale = self.precision.scaler.scale(torch.ones((), device=self.device))
        last_start = len(batch.targets) - size
        for start in range(0, last_start + 1, size):
            rows = slice(start, start + size)
            part = batch.map(itemgetter(rows))
            with self.precision.autocast():
                loss = self.stepper.loss(self.model, part)
            scaled_gradients = torch.autograd.grad(scale * loss, self.probes.trained, materialize_grads=True)
            yield torch._foreach_div(scaled_gradients, scale)

    # ---- what is evaluated

    def evaluations(self, last: bool) -> Iterator[Evaluation]:
        """Yield the evaluations that are due now. last: whether this is the end of the run."""
        self.settle()
        data = self.data
        limit = self.trainer.eval_batches
        val_limit = None if last else limit
        yield Evaluation("val", self.model, data.eval_batches("val", val_limit))
        if self.average is not None and self.average.begun:
            yield Evaluation(self.average.name, self.average.model, data.eval_batches("val", val_limit))
        if self.trainer.eval_train:
            train_limit = limit or 20
            yield Evaluation("train_eval", self.model, data.eval_batches("train", train_limit))
        if last and data.has_test:
            yield Evaluation("test", self.model, data.eval_batches("test"))

    def evaluate_one(self, evaluation: Evaluation) -> tuple[dict[str, float], str]:
        """Return the numbers of an evaluation, by tag, and a page of examples, empty where the task has none."""
        task = self.data.task
        model = evaluation.model
        batches = evaluation.batches
        page = ""
        with allow_stops():
            if task.judges:
                batches = list(batches)  # they are needed twice; all batches of other tasks may be too large to keep
        with self.prepare_to_evaluate(model), allow_stops():
            results = evaluate(model, self.until_stopped(batches), task, self.device, self.group)
            if task.judges:
                further, page = task.judge(model, self.until_stopped(batches), self.data, self.device)
                results.update(further)
        values = {f"{metric}/{evaluation.name}": value for metric, value in results.items()}
        return values, page

    @contextmanager
    def prepare_to_evaluate(self, model: nn.Module) -> Iterator[None]:
        """Let a model have the precision and the running statistics that evaluation uses, inside the `with`."""
        self.group.spread(model.buffers())  # of a norm that is not synchronised
        done = self.step * self.trainer.accumulate
        with self.precision.autocast(), recalibrate(model, self.data, done, self.device, self.until_stopped):
            yield

    def comparable_loss(self, loss: float) -> float:
        """Return the validation loss on the batches of all evaluations but the last one, which is on more.

        Args:
            loss: that of the evaluation.
        """
        if self.step < self.steps or self.trainer.eval_batches is None:
            return loss
        batches = self.data.eval_batches("val", self.trainer.eval_batches)
        with self.prepare_to_evaluate(self.model), allow_stops():
            metrics = evaluate(self.model, self.until_stopped(batches), self.data.task, self.device, self.group)
        return metrics["loss"]

    def keep_best(self, loss: float) -> None:
        """Keep the weights if their validation loss is the lowest so far.

        Args:
            loss: on batches that are always the same.
        """
        if loss < self.best_loss:
            self.best_loss = loss
            state = {"step": self.step, "model": self.model.state_dict(), **self.name_classes()}
            self.checkpoints.save_best(self.group.gather(state))

    def settle(self) -> None:
        """Let no thread be at work on the data, so that this one may ask them for batches, or for their state."""
        if self.stepper.feed is not None:
            self.stepper.feed.settle()

    # ---- how a run goes on

    def stateful(self) -> dict[str, Any]:
        """Return the parts that keep a state of their own, by their names in a checkpoint."""
        parts: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "durations": self.clock,
            "precision": self.precision,
        }
        if self.average is not None:
            parts["average"] = self.average
        if hasattr(self.data, "state_dict"):
            parts["data"] = self.data
        return parts

    def state(self) -> State:
        """Return everything that an exact continuation needs."""
        self.settle()
        state: State = {name: getattr(self, name) for name in SAVED}
        if self.evaluation_is_due:
            state["evaluation_is_due"] = True
        if self.early.operators is not None:
            state["operators"] = self.early.operators
        state["loss_sum"] = self.loss_sum
        for name, part in self.stateful().items():
            state[name] = part.state_dict()
        state |= self.name_classes()
        gathered: State = self.group.gather(state)
        return gathered

    def name_classes(self) -> dict[str, list[str]]:
        """Return what outputs stand for, for whoever takes the weights elsewhere; nothing where that has no names."""
        names = getattr(self.data, "classes", ())
        return {"classes": list(map(str, names))} if names else {}

    def restore(self, state: State) -> None:
        """Go back to where `state` was taken.

        Raises:
            LookupError, ValueError, RuntimeError, TypeError, AttributeError: it is not of such a loop.
        """
        if not has_form(state, SavedIfAny) or state["loss_sum"].ndim:
            raise ValueError("the checkpoint holds something else")
        check_shapes(self.optimizer, state["optimizer"]["state"])
        for name in SAVED:
            setattr(self, name, state[name])
        self.evaluation_is_due = state.get("evaluation_is_due", False)
        self.early.operators = state.get("operators")
        self.first_step = self.step
        self.loss_sum = state["loss_sum"].to(self.device)
        parameters = dict(enumerate(parameters_of(self.optimizer)))
        state["model"] = shard_like(state["model"], self.model.state_dict())
        state["optimizer"]["state"] = shard_like(state["optimizer"]["state"], parameters)
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])


def due(step: int, every: int) -> bool:
    """Tell whether what is done at step 1 and then every so many steps is due at this one; every=0: never."""
    return every > 0 and (step == 1 or step % every == 0)
