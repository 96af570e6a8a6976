"""A run at work: holds its directory, trains, and ends with a status, a summary and an exit status."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch
import yaml
from torch import nn

from normbench.errors import RunFailure, is_disk_full
from normbench.ledger import parameter_counts
from normbench.limits import is_out_of_memory
from normbench.memory import forget_peak
from normbench.plan import Plan
from normbench.probes import Probes, Wanted
from normbench.recording import (
    ConsoleSink,
    JsonLinesSink,
    Sink,
    TensorBoardSink,
    truncate_events,
    truncate_metrics,
)
from normbench.rundir import (
    RunDirectory,
    Status,
    describe_environment,
    environment_differences,
    read_json,
    write_atomically,
    write_bytes,
    write_json,
)
from normbench.summary import flat, leak, padding, show_summary, summarize
from normbench.training.averaging import WeightAverage
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.guard import Diverged
from normbench.training.loop import Interrupted, Loop, Parts
from normbench.training.precision import Precision
from normbench.types import Model

HEARTBEAT_SECONDS = 5.0


def compiled(model: nn.Module) -> Callable[..., torch.Tensor]:
    """The model through torch.compile, with eager mode's random numbers: its own would give other dropout masks."""
    made: Callable[..., torch.Tensor] = torch.compile(model, options={"fallback_random": True})
    return made


class Session:
    """From a held directory to a result; `run` does it all."""

    def __init__(
        self,
        plan: Plan,
        model: Model,
        norms: Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer,
        precision: Precision,
    ) -> None:
        self.plan, self.model, self.norms, self.optimizer, self.precision = plan, model, norms, optimizer, precision
        self.directory = plan.directory
        self.checkpoints = Checkpoints(self.directory.checkpoint, self.directory.previous, self.directory.best)
        self.last_beat = 0.0
        self.console = Sink()
        self.recorder = Sink()
        self.loop: Loop | None = None

    # ---- the run

    def run(self) -> int:
        """Train to an end of any kind; returns the exit status."""
        with self.ending(), stop_signals() as stop:
            return self.train(self.prepare(), stop)

    def prepare(self) -> Loop:
        """Bring the record and the loop to the step where the run goes on."""
        forget_peak(self.plan.device)
        state = self.find_state()
        start_step = state["step"] if state else 0
        self.beat(start_step)
        self.write_config()
        self.write_environment()
        truncate_metrics(self.directory.metrics, start_step)
        truncate_events(self.directory.path, start_step)
        if not self.plan.config.quiet:
            self.console = ConsoleSink(self.plan.steps, self.plan.data.task.unit, start_step=start_step)
        self.recorder = Sink(JsonLinesSink(self.directory.metrics), TensorBoardSink(self.directory.path), self.console)
        self.announce(start_step)
        loop = self.loop = self.make_loop()
        if state is not None:
            self.restore(loop, state)
        self.recorder.text("config", f"```yaml\n{self.config_text()}```")
        self.recorder.hparams(self.hyperparameters(), {})
        return loop

    def train(self, loop: Loop, stop: list[int]) -> int:
        """Run the loop and turn its end into a status; a signal in `stop` ends it early."""
        try:
            loop.run(stop=lambda: bool(stop), beat=self.beat)
        except Diverged as result:
            return self.finish(loop, "diverged", result.step, result.reason)
        except Interrupted:
            return self.interrupted(loop.step, stop[0])
        return self.finish(loop, "finished", loop.step, "")

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Name a failure in status.json, and close the record whatever happens."""
        try:
            yield
        except KeyboardInterrupt:
            self.write_status("interrupted", self.step, "stopped at once by a second Ctrl-C")
            raise
        except Exception as error:  # noted, and raised again
            self.write_status(how_it_ended(error), self.step, str(error))
            raise
        finally:
            with suppress(OSError):
                self.recorder.close()

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self.loop.step if self.loop else 0

    def make_loop(self) -> Loop:
        plan, probes = self.plan, self.plan.config.probes
        wanted = Wanted(**{item.name: getattr(probes, item.name) for item in fields(Wanted)})
        return Loop(
            Parts(
                model=self.model,
                data=plan.data,
                optimizer=self.optimizer,
                schedule=plan.schedule,
                probes=Probes(self.model, self.norms, wanted),
                recorder=self.recorder,
                checkpoints=self.checkpoints,
                device=plan.device,
                precision=self.precision,
                average=None if plan.config.trainer.ema is None else WeightAverage(self.model, plan.config.trainer.ema),
                compiled=compiled(self.model) if plan.config.trainer.compile else None,
            ),
            plan.config.trainer,
            probes,
            plan.steps,
            plan.config.seed,
        )

    # ---- where it starts

    def find_state(self) -> State | None:
        """The checkpoint to go on from: the run's own, else its parent's."""
        if self.directory.status.exists() and read_json(self.directory.status) is None:
            self.say(
                f"{self.directory.status.name} is damaged: written anew; the checkpoint decides where the run goes on"
            )
        state = self.checkpoints.load(self.say)
        if state is None and self.plan.parent is not None:
            copy_record(self.plan.parent, self.directory)
            state = self.checkpoints.load(self.say)
        return state

    def restore(self, loop: Loop, state: State) -> None:
        """Take the loop to where the checkpoint was written.

        Raises:
            RunFailure: another version of the code wrote it.
        """
        try:
            loop.restore(state)
        except (KeyError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise RunFailure(
                f"the checkpoint in {self.directory.path} does not fit this version of normbench "
                f"({type(error).__name__}): use the version that made it, or rerun=true to make the run anew"
            ) from error

    def write_config(self) -> None:
        write_bytes(self.directory.config, self.config_text().encode())

    def config_text(self) -> str:
        """The resolved configuration as YAML."""
        return yaml.safe_dump(self.plan.tree, sort_keys=False, allow_unicode=True)

    def write_environment(self) -> None:
        """Append this process to those that have worked on the run; say so if it differs from the first."""
        now = describe_here(self.plan)
        if elsewhere := begun_elsewhere(self.directory, now):
            self.say(elsewhere)
        write_json(self.directory.environment, {"sessions": [*sessions(self.directory), now]})

    def announce(self, start_step: int) -> None:
        """Say what runs, where, and what a reader of its numbers must know."""
        names, counts = self.plan.choices.groups, parameter_counts(self.model, self.norms.values())
        self.say(
            f"{names['norm']} · {names['placement']} · {names['model']} ({counts['total']:,} parameters) · "
            f"{names['data']} · {self.plan.steps:,} steps on {self.plan.device}"
        )
        self.say(f"run directory: {self.directory.path}")
        if start_step:
            self.say(f"going on from step {start_step:,}")
        for caveat in filter(None, (leak(self.plan), padding(self.plan))):
            self.say(f"warning: {caveat}")
        if (warmup := self.plan.schedule.warmup_steps(self.plan.steps)) >= self.plan.steps:
            self.say(f"note: the run ends within its warm-up of {warmup:,} steps (schedule.warmup)")

    def hyperparameters(self) -> dict[str, Any]:
        """What TensorBoard's table shows: the choices that made the run first."""
        groups = {group: self.plan.choices.groups[group] for group in ("norm", "placement", "model", "data")}
        return {**groups, "seed": self.plan.config.seed, **flat(self.plan.tree)}

    # ---- how it ends

    def finish(self, loop: Loop, status: Status, step: int, message: str) -> int:
        """Write the summary; a result, whether finished or diverged."""
        parts = self.model, self.norms, self.precision
        summary = summarize(self.plan, loop, *parts) | {"status": status, "step": step, "message": message}
        self.recorder.hparams(self.hyperparameters(), summary["metrics"])
        self.recorder.flush()
        write_json(self.directory.summary, summary)
        settle(self.plan, summary)
        show_summary(self.directory, summary, self.console)
        if self.plan.config.quiet:
            print(self.directory.path)
        return 0

    def interrupted(self, step: int, number: int) -> int:
        """A signal ended the run behind a checkpoint."""
        self.console.close()
        self.write_status("interrupted", step, signal.Signals(number).name)
        command = "the same command without rerun=true" if self.plan.config.rerun else "the same command"
        self.say(f"stopped at step {step:,} of {self.plan.steps:,}; {command} goes on from here")
        return 128 + number

    def write_status(self, status: Status, step: int, message: str = "") -> None:
        with suppress(OSError):  # the status must not hide what it reports, a full disk above all
            self.directory.write_status(status, step, self.plan.steps, message)

    def beat(self, step: int) -> None:
        """Say that the run is alive, at most every few seconds."""
        if time.monotonic() - self.last_beat > HEARTBEAT_SECONDS:
            self.last_beat = time.monotonic()
            self.write_status("running", step)

    def say(self, line: str) -> None:
        """A line for the person, unless they asked for quiet."""
        if isinstance(self.console, ConsoleSink):
            self.console.message(line)
        elif not self.plan.config.quiet:
            print(line)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """While this lasts, the first SIGINT or SIGTERM is only noted in the list; a second SIGINT stops at once."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe_here(plan: Plan) -> dict[str, Any]:
    """This process, its machine and its code, as `environment.json` has them, and what is needed to load the model."""
    accelerator = torch.cuda.get_device_name(plan.device) if plan.device.type == "cuda" else None
    here = describe_environment(str(plan.device), accelerator, torch.get_num_threads(), plan.data.describe())
    return here | {"choices": dict(plan.choices.groups), "task": plan.data.task.record()}


def sessions(directory: RunDirectory) -> list[dict[str, Any]]:
    """The processes that have worked on a run, the first one first."""
    known: list[dict[str, Any]] = (read_json(directory.environment) or {}).get("sessions", [])
    return known


def how_it_ended(error: BaseException) -> Status:
    """The status of a run that an error has ended; where a disk was full, the same command goes on."""
    return "out_of_memory" if is_out_of_memory(error) else "interrupted" if is_disk_full(error) else "failed"


def begun_elsewhere(directory: RunDirectory, now: dict[str, Any]) -> str | None:
    """What decides about bits and is not as it was when the run was begun, in one line."""
    changed = [words for first in sessions(directory)[:1] for words in environment_differences(first, now)]
    if not changed:
        return None
    return (
        f"this run was begun elsewhere, so its numbers may differ in the last bits ({'; '.join(changed)}): "
        "rerun=true makes it anew and keeps the old one beside it"
    )


def settle(plan: Plan, summary: Mapping[str, Any]) -> None:
    """What follows the summary; done again at the next command in case a kill came between."""
    directory = plan.directory
    if (read_json(directory.status) or {}).get("status") != summary["status"]:
        with suppress(OSError):
            directory.write_status(summary["status"], summary["step"], summary["steps"], summary["message"])
    if plan.config.trainer.keep_checkpoint == "none":
        Checkpoints(directory.checkpoint, directory.previous, directory.best).remove()


def copy_record(parent: RunDirectory, child: RunDirectory) -> None:
    """Begin a run with another's record; the checkpoint comes last, so that a torn copy is begun again."""
    events = parent.path.glob("events.out.tfevents.*")
    for source in (parent.metrics, *events, parent.best, parent.checkpoint):
        if source.exists():
            write_atomically(child.path / source.name, partial(copy_into, source))


def copy_into(source: Path, file: IO[bytes]) -> None:
    with open(source, "rb") as original:
        shutil.copyfileobj(original, file)
