"""A run at work: holds its directory, trains, and ends with a status, a summary and an exit status."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import torch
import yaml

from normbench import build, recording
from normbench.errors import RunFailure, is_disk_full, is_out_of_memory
from normbench.probes import Probes
from normbench.recording import ConsoleSink, JsonLinesSink, Sink, TensorBoardSink
from normbench.run.plan import Run
from normbench.rundir import RunDirectory, Status, describe_environment, read_json, write_bytes, write_json
from normbench.settings import flat
from normbench.training.checkpoint import Checkpoints
from normbench.training.clock import forget_peak, peak_memory
from normbench.training.guard import Diverged
from normbench.training.ledger import make_ledger, parameter_counts
from normbench.training.loop import Interrupted, Loop, Parts
from normbench.training.optimizer import WeightAverage, make_optimizer, parameter_groups
from normbench.training.precision import make_precision

HEARTBEAT_SECONDS = 5.0
RESULTS = ("loss", "accuracy", "perplexity")

NOTEWORTHY = ("compile_seconds", "skipped_steps", "leak", "padding")  # in the closing table, where there is any


class Session:
    """From a held directory to a result; `train` does it all."""

    def __init__(self, run: Run) -> None:
        """Build the model and its optimizer; nothing is written."""
        prepare_torch(run)
        tree, trainer = run.config.tree, run.config.closed.trainer
        self.run, self.precision = run, make_precision(trainer.precision, run.device)
        self.model, self.norms = build.make_model(tree, run.data.task, run.config.closed.seed)
        self.model.to(run.device)
        with self.precision.autocast():
            build.rehearse(self.model, self.norms, run.data, run.device)
        decay = tree["optim"].get("weight_decay", 0.0)
        groups = parameter_groups(self.model, self.norms.values(), decay, trainer.decay_norms)
        self.optimizer = make_optimizer(build.factory(tree, "optim"), groups, run.device)
        self.directory, self.settings = run.directory, run.config.closed
        self.checkpoints = Checkpoints(self.directory.checkpoint, self.directory.previous, self.directory.best)
        self.last_beat = 0.0
        self.console = self.recorder = Sink()
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
            status: Status = "interrupted" if is_disk_full(error) else "failed"
            self.write_status("out_of_memory" if is_out_of_memory(error) else status, str(error))
            raise
        finally:
            with suppress(OSError):
                self.recorder.close()

    # ---- where it starts

    def prepare(self) -> Loop:
        """Bring the record and the loop to the step where the run goes on."""
        forget_peak(self.run.device)
        state = self.checkpoints.load(self.say)
        if state is None and self.run.parent is not None:
            copy_record(self.run.parent, self.directory)
            state = self.checkpoints.load(self.say)
        start_step = state["step"] if state else 0
        self.beat(start_step)
        config = yaml.safe_dump(self.run.config.tree, sort_keys=False, allow_unicode=True)
        write_bytes(self.directory.config, config.encode())
        here = describe_here(self.run)
        if elsewhere := self.directory.begun_elsewhere(here):
            self.say(elsewhere)
        write_json(self.directory.environment, {"sessions": [*self.directory.sessions(), here]})
        recording.truncate_metrics(self.directory.metrics, start_step)
        recording.truncate_events(self.directory.path, start_step)
        if not self.settings.quiet:
            self.console = ConsoleSink(self.run.steps, self.run.data.task.unit, start_step=start_step)
        self.recorder = Sink(JsonLinesSink(self.directory.metrics), TensorBoardSink(self.directory.path), self.console)
        self.announce(start_step)
        loop = self.loop = self.make_loop()
        try:
            if state is not None:
                loop.restore(state)
        except (KeyError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise RunFailure(
                f"the checkpoint in {self.directory.path} is of another version of normbench: rerun=true makes it anew"
            ) from error
        self.recorder.text("config", f"```yaml\n{config}```")
        groups = {group: self.run.config.choices.groups[group] for group in ("norm", "placement", "model", "data")}
        self.recorder.hparams({**groups, "seed": self.settings.seed, **flat(self.run.config.tree)}, {})
        return loop

    def make_loop(self) -> Loop:
        """Wire the training loop together."""
        trainer, probes = self.settings.trainer, self.settings.probes
        wanted = {name for name, value in vars(probes).items() if value is True}
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
        for words in filter(None, caveats(self.run).values()):
            self.say(f"warning: {words}")
        if (warmup := self.run.schedule.warmup_steps(steps)) >= steps:
            self.say(f"note: the run ends within its warm-up of {warmup:,} steps (schedule.warmup)")

    # ---- how it ends

    def finish(self, loop: Loop, status: Status, step: int, message: str) -> int:
        """Write the summary; a result, whether finished or diverged."""
        summary = self.summarize(loop) | {"status": status, "step": step, "message": message}
        self.recorder.hparams({}, summary["metrics"])
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
        results = {tag: value for tag, value in loop.latest.items() if tag.split("/")[0] in RESULTS}
        return {
            "steps": run.steps,
            "choices": dict(run.config.choices.groups),
            "seed": self.settings.seed,
            "metrics": recording.finite(results),
            "step_time": loop.clock.summary(),
            "peak_memory_bytes": peak_memory(run.device),  # since this process took the run up
            "compile_seconds": loop.compile_seconds or None,
            "skipped_steps": int(self.precision.skipped),
            "data": run.data.describe(),
            "norm_facts": vars(run.facts),
            **caveats(run),
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
        if not self.settings.quiet:
            print(line)


def prepare_torch(run: Run) -> None:
    """Set threads, full float32 in matrix products and convolutions or TF32, and on the CPU the same bits each time."""
    trainer = run.config.closed.trainer
    torch.set_num_threads(run.threads)
    torch.set_float32_matmul_precision("high" if trainer.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = trainer.tf32
    torch.use_deterministic_algorithms(run.device.type == "cpu", warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time for nothing


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
    device = {"device": str(run.device), "accelerator": accelerator, "threads": torch.get_num_threads()}
    model = {"choices": dict(run.config.choices.groups), "task": run.data.task.record()}
    return {**describe_environment(run.config.words), **device, "data": run.data.describe(), **model}


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
            write_bytes(child.path / source.name, source.read_bytes())


def caveats(run: Run) -> dict[str, str | None]:
    """Return what a reader must know of a norm that takes statistics over time: what leaks, what padding does."""
    leaks, pads = run.data.task.shown_by(run.facts) == "training", run.data.pads and run.facts.sees_future != "never"
    begin = f"{run.config.choices.groups['norm']} takes statistics over time,"
    leak = f"{begin} so in training each position is shown its future; the training loss is not comparable"
    padding = f"{begin} and counts the padding of shorter texts in them"
    return {"leak": leak if leaks else None, "padding": padding if pads else None}


def show_summary(directory: RunDirectory, summary: Mapping[str, Any], console: Sink) -> None:
    """Show the closing tables, and how to see more."""
    status = summary["status"] + (f" at step {summary['step']}: {summary['message']}" if summary["message"] else "")
    rows = [("status", status), *sorted(summary["metrics"].items())]
    rows += [(f"step time, {key}", value) for key, value in summary["step_time"].items()]
    rows += [(name.replace("_", " "), summary[name]) for name in NOTEWORTHY if summary[name]]
    console.summary(directory.path.name, rows)
    console.summary("ledger", flat(summary["ledger"]).items())
    console.message(f"look at the curves: normbench tensorboard {directory.path.parent}")
