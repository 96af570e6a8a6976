"""A run at work: it is built, goes on from its last checkpoint, trains, and ends with a status and an exit status."""

from __future__ import annotations

import gc
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import torch
import yaml
from torch import nn

from normbench import build
from normbench.config.rules import RULES, rule_sections
from normbench.errors import RunFailure, is_disk_full, is_out_of_memory
from normbench.probes import Probes
from normbench.record.console import Display
from normbench.record.directory import BLOCKS, Status
from normbench.record.files import find_unused, inside, write_bytes, write_json
from normbench.record.forms import EXTENDED
from normbench.record.loggers import Logger, quiet_loggers
from normbench.record.machine import describe_machine
from normbench.record.metrics import truncate_metrics
from normbench.record.recorder import Recorder, Silent
from normbench.record.tensorboard import RESULTS, in_fixed_width, truncate_events
from normbench.runs.extension import copy_record, runs_before
from normbench.runs.layout import draw_model
from normbench.runs.notices import announcement
from normbench.runs.plan import Run, without
from normbench.runs.summary import make_summary, settle, show_summary
from normbench.settings import flat
from normbench.stopping import allow_stops, hold_stops, stop_asked
from normbench.training.checkpoint import Checkpoints
from normbench.training.clock import forget_peak
from normbench.training.devices import allow_tf32, make_current
from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.training.memory import keep_freed_memory, limit_weights, memory_line, state_share
from normbench.training.optimizer import make_optimizer
from normbench.training.parallel import Group, ProcessLost, is_lost
from normbench.training.precision import make_precision
from normbench.types import Model
from normbench.wording import whole

HEARTBEAT_SECONDS = 5.0
NOT_ALWAYS = ("scheme", "weights")  # groups of which a run need not have an option


class Session:
    """One process's work on a run: build, `make_directory`, then `train`, which prepares, restores and ends it.

    Attributes:
        loop: the model with all that trains it.
        norms: of the model, by site.
        memory: a line on that of a step, where it is large.
        drawing: each kind of block of the model, with its norms.
        seeds: of all runs that are trained as one model.
    """

    def __init__(self, run: Run, group: Group | None = None, seeds: Sequence[int] = ()) -> None:
        """Build the model and its loop; nothing is written.

        Args:
            group: of processes that train it.
            seeds: of all runs that are trained as one model.
        """
        prepare_torch(run)
        self.run = run
        self.settings = run.config.closed
        self.group = group or Group()
        self.directory = run.directory
        self.directory.writes = self.group.writes
        self.seeds = list(seeds) or [self.settings.seed]
        self.last_beat = 0.0
        self.memory = ""
        self.drawing = ""
        self.precision = make_precision(self.settings.trainer.precision, run.device)
        model, self.norms = self.build_model()
        recipe = run.config.recipe
        stepper = build.make_stepper(recipe, model, self.norms, run.data, self.precision, run.steps, self.group)
        probed = set[str]()
        for name, value in vars(self.settings.probes).items():
            if value is True:
                probed.add(name)
        self.loop = Loop(stepper, Probes(model, probed), Checkpoints(self.directory), self.settings)

    # ---- building it

    def build_model(self) -> tuple[Model, dict[str, nn.Module]]:
        """Return the model on its device, after one pass of a batch, and its norms by site.

        Raises:
            UsageError: the parts do not fit each other, or the model or a step of it does not fit into memory.
        """
        run = self.run
        recompute = self.settings.trainer.recompute
        with limit_weights(run.device, run.sizes):
            made = build.start_model(run.config.recipe, run.data.task, self.settings.seed)
        model, norms = made.model, made.norms
        self.drawing = draw_model(made)
        build.check_precision(model, run.data, self.precision, self.group)
        if self.settings.trainer.shard:
            self.group.shard(model, run.device)
        model.to(run.device)
        with self.precision.autocast():
            batches = run.steps * self.settings.trainer.accumulate
            activations = build.rehearse(model, norms, run.data, run.device, recompute, self.group, batches)
        model.recompute = recompute
        if not self.group.shards:
            self.memory = self.memory_of_step(model, activations)
        return model, norms

    def memory_of_step(self, model: Model, activations: float) -> str:
        """Return a line on the memory of a step, where that is large.

        Args:
            activations: the bytes that a batch keeps for the backward pass.

        Raises:
            UsageError: it is more than there is.
        """
        run = self.run
        trial = nn.Parameter(torch.zeros(64, 64, device=run.device))
        factory = build.factory(run.config.recipe["optim"])
        optimizer = make_optimizer(factory, [{"params": [trial]}], run.device)
        weights = trained = 0
        for parameter in model.parameters():
            weights += parameter.nbytes
            if parameter.requires_grad:
                trained += parameter.nbytes
        trainer = self.settings.trainer
        average = 0 if trainer.ema is None and trainer.swa is None else weights
        number = len(self.seeds)
        needs = {
            "weights": number * weights,
            "gradients": number * trained,
            "optimizer": number * (trained * state_share(optimizer, trial) + average),
            "activations": number * activations,
        }
        cure = f"a smaller data.batch_size, {run.sizes}"
        if model.recompute is False:
            cure = f"trainer.recompute=true or {cure}"
        return memory_line(needs, run.device, f"use {cure}")

    def make_directory(self) -> None:
        """Make the run's directory; with rerun=true the run that is there is set aside."""
        if not self.group.writes:
            return
        path = self.directory.path
        inside(path.parent, path.name)
        if self.settings.rerun and self.directory.config.exists():
            with self.directory.hold():
                aside = path.rename(find_unused(path.with_name(f"{path.name}.old")))
            self.say(f"rerun: the run before is kept as {aside}")
        path.mkdir(parents=True, exist_ok=True)

    # ---- training it

    def train(self) -> int:
        """Train to an end of any kind; return the exit status. A failure is noted, and raised again.

        Signals wait wherever nothing says otherwise: one that follows a failure, as torchrun sends it to the processes
        that are left, does not hide it.
        """
        with hold_stops(), self.note_failures(), self.group.watch(), ExitStack() as contexts:
            with allow_stops(nothing_to_lose=True):
                recorder = self.prepare()
            contexts.enter_context(closing(recorder))
            try:
                number = self.loop.run(self.beat)
            except Diverged as result:
                return self.finish("diverged", result.step, result.reason)
            if number:
                return self.interrupt(number)
            return self.finish("finished", self.loop.step, "")

    def prepare(self) -> Recorder:
        """Bring the loop and its record to the step where the run goes on; return what is to be closed."""
        forget_peak(self.run.device)
        self.restore()
        if not self.group.writes:
            self.loop.recorder = Silent()
            return self.loop.recorder
        self.beat()
        page = self.write_record()
        return self.start_logging(page)

    def restore(self) -> None:
        """Bring the loop to the last checkpoint, if there is one; a run that extends another begins with its record.

        Raises:
            RunFailure: the checkpoint does not fit.
        """
        checkpoints = self.loop.checkpoints
        parent = self.run.parent
        if parent is not None and self.group.writes and checkpoints.load(self.say) is None:
            copy_record(parent, self.directory)
        self.group.first(None)  # what the others read is there now
        state = checkpoints.load(self.say)
        step = None if state is None else state.get("step")
        if self.group.first(step) != step:
            raise RunFailure(f"the processes do not all read {self.directory.path}: give outputs= that all share")
        if state is None:
            return
        try:
            self.loop.restore(state)
        except (LookupError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            if is_out_of_memory(error) or is_lost(error):
                raise
            what = f"the checkpoint in {self.directory.path} is of another model, or another version of normbench"
            raise RunFailure(f"{what}: rerun=true makes it again") from error

    def write_record(self) -> str:
        """Write config.yaml, and this process into environment.json; return the configuration as YAML."""
        page = yaml.safe_dump(self.run.config.tree, sort_keys=False, allow_unicode=True)
        write_bytes(self.directory.config, page.encode())
        here = describe_session(self.run, self.group.size)
        here["packages"] = {**here["packages"], **self.loop.model.packages}
        here["stack"] = self.run.stack
        here["seeds"] = self.seeds
        here["step"] = self.loop.step
        here[BLOCKS] = self.drawing
        here[EXTENDED] = runs_before(self.run.parent)
        elsewhere = self.directory.describe_differences(here)
        if elsewhere:
            self.say(elsewhere)
        before = self.directory.sessions()
        if before:
            processes = before[-1].get("processes", 1)
            if processes != self.group.size:
                what = f"{processes} processes worked on this run before, now {self.group.size}"
                self.say(f"note: {what}; dropout masks and unsynchronised batch statistics differ from here on")
        write_json(self.directory.environment, {"sessions": [*before, here]})
        return page

    def cut_logs(self) -> None:
        """Drop what was logged after the step where the run goes on; say what of it was damaged."""
        step = self.loop.step
        evaluated = not self.loop.evaluation_is_due  # else a kill may have come after it was made again
        damaged_events = truncate_events(self.directory.path, step, evaluated)
        damaged_metrics = truncate_metrics(self.directory.metrics, step, evaluated)
        for damaged in (damaged_events, damaged_metrics):
            if damaged:
                self.say(f"warning: {damaged}")

    def open_loggers(self) -> Recorder:
        """Return the recorder of the loggers that were chosen, and of the display that a person sees."""
        run = self.run
        path = self.directory.path
        step = self.loop.step
        loggers: list[Logger] = []
        if self.settings.quiet:
            quiet_loggers()
        else:
            loggers.append(Display(run.steps, run.data.task.unit, start_step=step))
        loggers += build.make_loggers(run.config.recipe, path, step)
        return Recorder(path, loggers)

    def start_logging(self, page: str) -> Recorder:
        """Open the loggers where the run goes on, say what runs, and tell them which choices made it.

        Args:
            page: the configuration, as YAML.
        """
        self.cut_logs()
        self.loop.recorder = self.open_loggers()
        self.announce(self.loop.step)
        self.begin_logs(page)
        return self.loop.recorder

    def begin_logs(self, page: str) -> None:
        """Tell the loggers what the run will log, which choices made it, and how its blocks are drawn.

        Args:
            page: its configuration, as YAML.
        """
        config = self.run.config
        task = self.run.data.task
        metrics = RESULTS if task.judges else list(task.metrics(loss=1.0, accuracy=0.5))
        groups = ("norm", "placement", "model", "data")
        options = config.choices.groups
        named = [key for key in (*NOT_ALWAYS, *groups) if key in options]
        rules = [rule.key for rule in config.recipe.all_rules]
        choices: dict[str, Any] = {key: options[key] for key in (*named, *rules)}
        choices["seed"] = self.settings.seed
        choices |= flat(without(config.tree, (RULES,)))
        choices |= flat(rule_sections(config.tree))
        varied = config.varied or (*groups, "seed")
        self.loop.recorder.expect(metrics)
        self.loop.recorder.begin(choices, varied, f"```yaml\n{page}```")
        self.loop.recorder.texts(0, {BLOCKS: in_fixed_width(self.drawing)})

    def announce(self, start_step: int) -> None:
        """Say what runs, where, and what a reader of its numbers must know."""
        for line in announcement(self.run, self.loop, self.norms, self.memory, start_step):
            self.say(line)

    def beat(self) -> None:
        """Say that the run is alive, at most every few seconds."""
        if time.monotonic() - self.last_beat > HEARTBEAT_SECONDS:
            self.last_beat = time.monotonic()
            self.directory.write_status("running", self.loop.step, self.run.steps)

    def say(self, line: str) -> None:
        """Tell the person a line, unless they asked for quiet."""
        if not self.settings.quiet:
            print(line)

    # ---- ending it

    def finish(self, status: Status, step: int, message: str) -> int:
        """End the run with a result, finished or diverged: write and show its summary; return the exit status."""
        if self.group.writes:
            with allow_stops(nothing_to_lose=True):
                summary = make_summary(self.run, self.loop, self.norms, status, step, message)
                self.loop.recorder.close(status)
            self.directory.write_summary(summary)
            settle(self.run, summary)
            show_summary(self.run, summary)
        return 0

    def interrupt(self, number: int) -> int:
        """End a run that a signal has stopped after a checkpoint; return the exit status."""
        step = self.loop.step
        steps = self.run.steps
        self.loop.recorder.close()
        self.directory.write_status("interrupted", step, steps, message=signal.Signals(number).name)
        command = "the same command without rerun=true" if self.settings.rerun else "the same command"
        self.say(f"stopped at step {whole(step)} of {whole(steps)}; {command} goes on from here")
        return 128 + number

    @contextmanager
    def note_failures(self) -> Iterator[None]:
        """Note how the run stands if something inside fails, which is raised again."""
        try:
            yield
        except BaseException as error:
            status: Status = "failed"
            if is_out_of_memory(error):
                status = "out_of_memory"
            by_signal = stop_asked() and isinstance(error, KeyboardInterrupt)
            if by_signal or is_disk_full(error) or isinstance(error, ProcessLost):  # the same command goes on
                status = "interrupted"
            if not self.directory.read_result():
                self.directory.write_status(status, self.loop.step, self.run.steps, str(error))
            raise


def describe_session(run: Run, processes: int = 1) -> dict[str, Any]:
    """Return this process, its machine and its code, and what is needed to load the model: environment.json has it."""
    accelerator = None
    if run.device.type == "cuda":
        accelerator = torch.cuda.get_device_name(run.device)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["normbench", *run.command]),
        **describe_machine(),
        "device": str(run.device),
        "accelerator": accelerator,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "data": run.data.describe(),
        "choices": dict(run.config.choices.groups),
        "task": run.data.task.record(),
    }


def prepare_torch(run: Run) -> None:
    """Set threads, the current GPU, full float32 in matrix products or TF32, and on the CPU the same bits each time.

    There subnormal numbers are 0: with them 1,000 layers of `post`, whose gradients vanish, took 8 times the time.
    """
    trainer = run.config.closed.trainer
    on_cpu = run.device.type == "cpu"
    gc.set_threshold(min(gc.get_threshold()[0], 10_000))  # a command has raised it further while it started
    torch.set_num_threads(run.threads)
    make_current(run.device)
    allow_tf32(trainer.tf32)
    torch.set_flush_denormal(on_cpu)
    torch.set_deterministic_debug_mode("warn" if on_cpu else "default")
    if trainer.torch_compiles or run.config.tree["norm"].get("impl") == "compile":
        torch.use_deterministic_algorithms(on_cpu, warn_only=True)  # the same for the compiler, which it imports
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time for nothing
    keep_freed_memory()
