"""A run at work: holds its directory, trains, and ends with a status, a summary and an exit status."""

from __future__ import annotations

import math
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from types import FrameType
from typing import Any

import torch
import yaml
from torch import nn

from normbench.errors import RunFailure, is_disk_full, is_out_of_memory
from normbench.probes import Probes, Wanted
from normbench.recording import (
    ConsoleSink,
    JsonLinesSink,
    Sink,
    TensorBoardSink,
    truncate_events,
    truncate_metrics,
)
from normbench.run.plan import Run
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
from normbench.settings import flat
from normbench.training.checkpoint import Checkpoints, State
from normbench.training.clock import forget_peak, peak_memory
from normbench.training.guard import Diverged
from normbench.training.ledger import make_ledger, parameter_counts
from normbench.training.loop import Interrupted, Loop, Parts
from normbench.training.optimizer import WeightAverage
from normbench.training.precision import Precision
from normbench.types import Model

HEARTBEAT_SECONDS = 5.0
RESULTS = ("loss", "accuracy", "perplexity")

# What the closing table shows where there is something to show.
NOTEWORTHY = {
    "compile_seconds": "compile time, s",
    "skipped_steps": "steps left out (fp16)",
    "leak": "leak",
    "padding": "padding",
}


class Session:
    """From a held directory to a result; `train` does it all."""

    def __init__(
        self,
        run: Run,
        model: Model,
        norms: Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer,
        precision: Precision,
    ) -> None:
        self.run, self.model, self.norms, self.optimizer, self.precision = run, model, norms, optimizer, precision
        self.directory, self.settings = run.directory, run.config.closed
        self.checkpoints = Checkpoints(self.directory.checkpoint, self.directory.previous, self.directory.best)
        self.last_beat = 0.0
        self.console = Sink()
        self.recorder = Sink()
        self.loop: Loop | None = None

    def train(self) -> int:
        """Train to an end of any kind; return the exit status."""
        with self.ending(), stop_signals() as stop:
            loop = self.prepare()
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
            self.write_status("interrupted", "stopped at once by a second Ctrl-C")
            raise
        except Exception as error:  # noted, and raised again; where a disk was full, the same command goes on
            full = is_disk_full(error)
            self.write_status(
                "out_of_memory" if is_out_of_memory(error) else "interrupted" if full else "failed", str(error)
            )
            raise
        finally:
            with suppress(OSError):
                self.recorder.close()

    # ---- where it starts

    def prepare(self) -> Loop:
        """Bring the record and the loop to the step where the run goes on."""
        forget_peak(self.run.device)
        state = self.find_state()
        start_step = state["step"] if state else 0
        self.beat(start_step)
        config = yaml.safe_dump(self.run.config.tree, sort_keys=False, allow_unicode=True)
        write_bytes(self.directory.config, config.encode())
        self.write_environment()
        truncate_metrics(self.directory.metrics, start_step)
        truncate_events(self.directory.path, start_step)
        if not self.settings.quiet:
            self.console = ConsoleSink(self.run.steps, self.run.data.task.unit, start_step=start_step)
        self.recorder = Sink(JsonLinesSink(self.directory.metrics), TensorBoardSink(self.directory.path), self.console)
        self.announce(start_step)
        loop = self.loop = self.make_loop()
        if state is not None:
            self.restore(loop, state)
        self.recorder.text("config", f"```yaml\n{config}```")
        self.recorder.hparams(self.hyperparameters(), {})
        return loop

    def make_loop(self) -> Loop:
        """Wire the training loop together."""
        trainer, probes = self.settings.trainer, self.settings.probes
        wanted = Wanted(**{item.name: getattr(probes, item.name) for item in fields(Wanted)})
        # compiled with eager mode's random numbers: its own would give other dropout masks
        fallback = {"fallback_random": True}
        parts = Parts(
            model=self.model,
            data=self.run.data,
            optimizer=self.optimizer,
            schedule=self.run.schedule,
            probes=Probes(self.model, self.norms, wanted),
            recorder=self.recorder,
            checkpoints=self.checkpoints,
            device=self.run.device,
            precision=self.precision,
            average=None if trainer.ema is None else WeightAverage(self.model, trainer.ema),
            compiled=torch.compile(self.model, options=fallback) if trainer.compile else None,  # type: ignore[arg-type]
        )
        return Loop(parts, trainer, probes, self.run.steps, self.settings.seed)

    def find_state(self) -> State | None:
        """Return the checkpoint to go on from: the run's own, else its parent's."""
        state = self.checkpoints.load(self.say)
        if state is None and self.run.parent is not None:
            copy_record(self.run.parent, self.directory)
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

    def write_environment(self) -> None:
        """Append this process to those that have worked on the run; say so if it differs from the first."""
        now = describe_here(self.run)
        if elsewhere := begun_elsewhere(self.directory, now):
            self.say(elsewhere)
        write_json(self.directory.environment, {"sessions": [*sessions(self.directory), now]})

    def announce(self, start_step: int) -> None:
        """Say what runs, where, and what a reader of its numbers must know."""
        names, steps = self.run.config.choices.groups, self.run.steps
        parameters = parameter_counts(self.model, self.norms.values())["total"]
        self.say(
            f"{names['norm']} · {names['placement']} · {names['model']} ({parameters:,} parameters) · "
            f"{names['data']} · {steps:,} steps on {self.run.device}"
        )
        self.say(f"run directory: {self.directory.path}")
        if start_step:
            self.say(f"going on from step {start_step:,}")
        for caveat in filter(None, (leak(self.run), padding(self.run))):
            self.say(f"warning: {caveat}")
        if (warmup := self.run.schedule.warmup_steps(steps)) >= steps:
            self.say(f"note: the run ends within its warm-up of {warmup:,} steps (schedule.warmup)")

    def hyperparameters(self) -> dict[str, Any]:
        """Return what TensorBoard's table shows: the choices that made the run first."""
        groups = {group: self.run.config.choices.groups[group] for group in ("norm", "placement", "model", "data")}
        return {**groups, "seed": self.settings.seed, **flat(self.run.config.tree)}

    # ---- how it ends

    def finish(self, loop: Loop, status: Status, step: int, message: str) -> int:
        """Write the summary; a result, whether finished or diverged."""
        summary = self.summarize(loop) | {"status": status, "step": step, "message": message}
        self.recorder.hparams(self.hyperparameters(), summary["metrics"])
        self.recorder.flush()
        write_json(self.directory.summary, summary)
        settle(self.run, summary)
        show_summary(self.directory, summary, self.console)
        if self.settings.quiet:
            print(self.directory.path)
        return 0

    def summarize(self, loop: Loop) -> dict[str, Any]:
        """Return what analysis reads of the whole run, less how it ended (status, step, message)."""
        run = self.run
        return {
            "steps": run.steps,
            "choices": dict(run.config.choices.groups),
            "seed": self.settings.seed,
            "metrics": {
                tag: value if math.isfinite(value) else None  # JSON has no other word for it
                for tag, value in loop.latest.items()
                if tag.split("/")[0] in RESULTS
            },
            "step_time": loop.clock.summary(),
            "peak_memory_bytes": peak_memory(run.device),  # since this process took the run up
            "compile_seconds": loop.compile_seconds or None,
            "skipped_steps": int(self.precision.skipped),
            "data": run.data.describe(),
            "norm_facts": vars(run.facts),
            "leak": leak(run),
            "padding": padding(run),
            "extends": run.parent.path.name if run.parent else None,
            "ledger": make_ledger(self.model, self.norms, run.config.tree, run.device),
        }

    def interrupted(self, step: int, number: int) -> int:
        """End a run that a signal has stopped behind a checkpoint."""
        self.console.close()
        self.write_status("interrupted", signal.Signals(number).name)
        command = "the same command without rerun=true" if self.settings.rerun else "the same command"
        self.say(f"stopped at step {step:,} of {self.run.steps:,}; {command} goes on from here")
        return 128 + number

    def write_status(self, status: Status, message: str = "", step: int | None = None) -> None:
        """Say how the run stands, by default at the step where its loop is."""
        done = step if step is not None else self.loop.step if self.loop else 0
        with suppress(OSError):  # the status must not hide what it reports, a full disk above all
            self.directory.write_status(status, done, self.run.steps, message)

    def beat(self, step: int) -> None:
        """Say that the run is alive, at most every few seconds."""
        if time.monotonic() - self.last_beat > HEARTBEAT_SECONDS:
            self.last_beat = time.monotonic()
            self.write_status("running", step=step)

    def say(self, line: str) -> None:
        """Tell the person a line, unless they asked for quiet."""
        if isinstance(self.console, ConsoleSink):
            self.console.message(line)
        elif not self.settings.quiet:
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


def describe_here(run: Run) -> dict[str, Any]:
    """Return this process, its machine and its code, and what is needed to load the model: environment.json has it."""
    accelerator = torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else None
    here = describe_environment(str(run.device), accelerator, torch.get_num_threads(), run.data.describe())
    return here | {"choices": dict(run.config.choices.groups), "task": run.data.task.record()}


def sessions(directory: RunDirectory) -> list[dict[str, Any]]:
    """Return the processes that have worked on a run, the first one first."""
    known: list[dict[str, Any]] = (read_json(directory.environment) or {}).get("sessions", [])
    return known


def begun_elsewhere(directory: RunDirectory, now: dict[str, Any]) -> str | None:
    """Return what decides about bits and is not as it was when the run was begun, in one line."""
    changed = [words for first in sessions(directory)[:1] for words in environment_differences(first, now)]
    if not changed:
        return None
    return (
        f"this run was begun elsewhere, so its numbers may differ in the last bits ({'; '.join(changed)}): "
        "rerun=true makes it anew and keeps the old one beside it"
    )


def settle(run: Run, summary: Mapping[str, Any]) -> None:
    """Do what follows the summary; done again at the next command in case a kill came between."""
    directory = run.directory
    if (read_json(directory.status) or {}).get("status") != summary["status"]:
        with suppress(OSError):
            directory.write_status(summary["status"], summary["step"], summary["steps"], summary["message"])
    if run.config.closed.trainer.keep_checkpoint == "none":
        Checkpoints(directory.checkpoint, directory.previous, directory.best).remove()


def copy_record(parent: RunDirectory, child: RunDirectory) -> None:
    """Begin a run with another's record; the checkpoint comes last, so that a torn copy is begun again."""
    events = parent.path.glob("events.out.tfevents.*")
    for source in (parent.metrics, *events, parent.best, parent.checkpoint):
        if source.exists():
            with open(source, "rb") as original:
                write_atomically(child.path / source.name, partial(shutil.copyfileobj, original))


def leak(run: Run) -> str | None:
    """Return what the norm shows the model of its targets in training, if anything."""
    if run.data.task.shown_by(run.facts) != "training":
        return None
    return (
        f"{run.config.choices.groups['norm']} takes statistics over time, so in training each position is "
        "shown its future; the training loss is not comparable, and the summary is marked"
    )


def padding(run: Run) -> str | None:
    """Return what padded texts do to the norm's statistics, if anything."""
    if not run.data.pads or run.facts.sees_future == "never":
        return None
    return (
        f"{run.config.choices.groups['norm']} takes statistics over time, and counts the padding of shorter "
        "texts in them; the summary is marked"
    )


def show_summary(directory: RunDirectory, summary: Mapping[str, Any], console: Sink) -> None:
    """Show the closing tables, and how to see more."""
    status = summary["status"] + (f" at step {summary['step']}: {summary['message']}" if summary["message"] else "")
    rows = [("status", status), *sorted(summary["metrics"].items())]
    rows += [(f"step time, {key}", value) for key, value in summary["step_time"].items()]
    rows += [(words, summary[key]) for key, words in NOTEWORTHY.items() if summary[key]]
    console.summary(directory.path.name, rows)
    console.summary("ledger", flat(summary["ledger"]).items())
    console.message(f"look at the curves: normbench tensorboard {directory.path.parent}")
