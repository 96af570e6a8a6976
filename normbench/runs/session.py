"""A run at work: holds its directory, trains, and ends with a status, a summary and an exit status."""

from __future__ import annotations

import gc
import os
import platform
import shlex
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from types import FrameType
from typing import Any

import torch
import yaml
from torch import nn

from normbench import build
from normbench.config.groups import content, options
from normbench.config.trust import foreign_class
from normbench.errors import RunFailure, is_disk_full, is_out_of_memory
from normbench.models import unsafe_convolutions
from normbench.probes import Probes
from normbench.record.console import Display, show_table
from normbench.record.directory import RunDirectory, Status, extended_runs
from normbench.record.files import read_json, write_bytes, write_json
from normbench.record.loggers import Scalar, finite, quiet_loggers
from normbench.record.machine import commit, cpu_name
from normbench.record.metrics import truncate_metrics
from normbench.record.recorder import Recorder, Silent
from normbench.record.shapes import EXTENDED
from normbench.record.tensorboard import RESULTS, event_files, truncate_events
from normbench.runs.plan import Run
from normbench.settings import Tree, flat
from normbench.training.checkpoint import Checkpoints
from normbench.training.clock import forget_peak, peak_memory
from normbench.training.devices import allow_tf32, make_current
from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.training.memory import keep_freed_memory, memory_line, state_share, weights_that_fit
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.training.parallel import Group, ProcessLost, is_lost
from normbench.training.precision import make_precision
from normbench.types import Model, Norm, Placement

HEARTBEAT_SECONDS = 5.0
PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "datasets", "tensorboard")

GAINS = ("branch_gain", "residual_gain")
NOTEWORTHY = ("compile_seconds", "skipped_steps", "leak", "padding")  # in the closing table, where there is any


class Session:
    """From a held directory to a result; `train` does it all."""

    def __init__(self, run: Run, group: Group | None = None, seeds: Sequence[int] = ()) -> None:
        """Build the model and its loop; nothing is written. group: of processes that train it; seeds: of one model."""
        prepare_torch(run)
        self.group = group or Group()
        run.directory.writes = self.group.writes
        tree, closed = run.config.tree, run.config.closed
        self.run, self.directory, self.settings, self.last_beat = run, run.directory, closed, 0.0
        self.seeds = [*seeds] or [closed.seed]
        precision = make_precision(closed.trainer.precision, run.device)
        with weights_that_fit(run.device):
            model, self.norms = build.make_model(tree, run.data.task, closed.seed)
        if closed.trainer.shard:
            self.group.shard(model, run.device)
        model.to(run.device)
        with precision.autocast():
            activations = build.rehearse(model, self.norms, run.data, run.device, closed.trainer.recompute, self.group)
        model.recompute = closed.trainer.recompute
        decay = tree["optim"].get("weight_decay", 0.0)
        groups = parameter_groups(model, self.norms.values(), decay, closed.trainer.decay_norms)
        wanted = {name for name, value in vars(closed.probes).items() if value is True}
        self.loop = Loop(
            model=model,
            data=run.data,
            optimizer=make_optimizer(build.factory(tree, "optim"), groups, run.device),
            schedule=build.factory(tree, "schedule")(),
            probes=Probes(model, self.norms, wanted),
            checkpoints=Checkpoints(self.directory),
            device=run.device,
            precision=precision,
            settings=closed,
            steps=run.steps,
            group=self.group,
        )
        self.memory = "" if self.group.shards else self.needs(activations)

    def needs(self, activations: float) -> str:
        """Return a line on the memory of a step, where that is large.

        Raises:
            UsageError: it is more than there is.
        """
        run, trainer, model = self.run, self.settings.trainer, self.loop.model
        trial = nn.Parameter(torch.zeros(64, 64, device=run.device))
        optimizer = make_optimizer(build.factory(run.config.tree, "optim"), [{"params": [trial]}], run.device)
        weights = sum(each.nbytes for each in model.parameters())
        trained = sum(each.nbytes for each in model.parameters() if each.requires_grad)
        state = trained * state_share(optimizer, trial) + (0 if trainer.ema is None else weights)
        needs = {"weights": weights, "gradients": trained, "optimizer": state, "activations": activations}
        needs = {name: len(self.seeds) * size for name, size in needs.items()}
        again = "trainer.recompute=true or " if model.recompute is False else ""
        return memory_line(needs, run.device, f"use {again}a smaller data.batch_size, model.depth or model.width")

    def train(self, stop: Sequence[int]) -> int:
        """Train to an end of any kind; return the exit status. A failure is noted, and raised again.

        stop: signals that have come, as `stop_signals` notes them.
        """
        with self.noted(stop), self.group.watched(), closing(self.prepare()):
            try:
                number = self.loop.run(stop, self.beat)
            except Diverged as result:
                return self.finish("diverged", result.step, result.reason)
            return self.interrupted(number) if number else self.finish("finished", self.loop.step, "")

    @contextmanager
    def noted(self, stop: Sequence[int]) -> Iterator[None]:
        """Note how the run stands if something inside fails, which is raised again."""
        try:
            yield
        except BaseException as error:
            status: Status = "out_of_memory" if is_out_of_memory(error) else "failed"
            stopped = isinstance(error, ProcessLost) or (stop and isinstance(error, KeyboardInterrupt))
            if is_disk_full(error) or stopped:  # the same command goes on
                status = "interrupted"
            if not self.directory.ended():
                self.directory.write_status(status, self.loop.step, self.run.steps, str(error))
            raise

    # ---- where it starts

    def prepare(self) -> Recorder:
        """Bring the loop and its record to the step where the run goes on; return what is to be closed."""
        run, directory, loop = self.run, self.directory, self.loop
        forget_peak(run.device)
        self.restore()
        if not self.group.writes:
            loop.recorder = Silent()
            return loop.recorder
        self.beat()
        config = yaml.safe_dump(run.config.tree, sort_keys=False, allow_unicode=True)
        write_bytes(directory.config, config.encode())
        here = describe_here(run, self.group.size) | {"stack": run.stack, "seeds": self.seeds, "step": loop.step}
        here[EXTENDED] = runs_before(run.parent)
        if elsewhere := directory.begun_elsewhere(here):
            self.say(elsewhere)
        for before in directory.sessions()[-1:]:
            if (known := before.get("processes", 1)) != self.group.size:
                what = f"{known} processes worked on this run before, now {self.group.size}"
                self.say(f"note: {what}; dropout masks and unsynchronised batch statistics differ from here on")
        write_json(directory.environment, {"sessions": [*directory.sessions(), here]})
        damaged = truncate_events(directory.path, loop.step)
        for said in filter(None, (damaged, truncate_metrics(directory.metrics, loop.step))):
            self.say(f"warning: {said}")
        shown = [] if self.settings.quiet else [Display(run.steps, run.data.task.unit, loop.step)]
        if self.settings.quiet:
            quiet_loggers()
        loggers = build.make_loggers(run.config.tree, directory.path, loop.step)
        loop.recorder = Recorder(directory.path, [*shown, *loggers])
        self.announce(loop.step)
        chosen = {group: run.config.choices.groups[group] for group in ("norm", "placement", "model", "data")}
        choices = {**chosen, "seed": self.settings.seed, **flat(run.config.tree)}
        task = run.data.task
        loop.recorder.expect(RESULTS if task.judges else [*task.metrics(loss=1.0, accuracy=0.5)])
        loop.recorder.begin(choices, run.config.varied or (*chosen, "seed"), f"```yaml\n{config}```")
        return loop.recorder

    def restore(self) -> None:
        """Bring the loop to the last checkpoint, if there is one; a run that extends another begins with its record.

        Raises:
            RunFailure: the checkpoint does not fit.
        """
        if self.run.parent is not None and self.group.writes and self.loop.checkpoints.load(self.say) is None:
            copy_record(self.run.parent, self.directory)
        self.group.first(None)  # what the others read is there now
        state = self.loop.checkpoints.load(self.say)
        if self.group.first((state or {}).get("step")) != (state or {}).get("step"):
            raise RunFailure(f"the processes do not all read {self.directory.path}: give outputs= that all share")
        try:
            if state is not None:
                self.loop.restore(state)
        except (LookupError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            if is_out_of_memory(error) or is_lost(error):
                raise
            what = f"the checkpoint in {self.directory.path} is of another model, or another version of normbench"
            raise RunFailure(f"{what}: rerun=true makes it anew") from error

    def announce(self, start_step: int) -> None:
        """Say what runs, where, and what a reader of its numbers must know."""
        loop, names, steps = self.loop, self.run.config.choices.groups, self.run.steps
        parameters = parameter_counts(loop.model, self.norms.values())["total"]
        model = f"{names['model']} ({parameters:,} parameters)"
        parts = names["norm"], names["placement"], model, names["data"], f"{steps:,} steps on {self.run.device}"
        self.say(" · ".join(parts))
        self.say(f"run directory: {self.directory.path}")
        if "hydra" in (content("experiment", study) if (study := names["experiment"]) in options("experiment") else {}):
            self.say(f"note: this is one run; normbench sweep experiment={study} makes all runs of the study")
        if start_step:
            self.say(f"going on from step {start_step:,}")
        for words in filter(None, caveats(self.run).values()):
            self.say(f"warning: {words}")
        if self.run.device.type == "cpu" and (unsafe := unsafe_convolutions(loop.model)):
            self.say(f"warning: {unsafe}")
        if cut := self.run.data.describe().get("cut"):
            self.say(f"note: {cut:,} texts are longer than model.context, and are cut")
        if self.memory:
            self.say(self.memory)
        if loop.average is not None and loop.average.rise >= steps:
            rise, decay = loop.average.rise, loop.average.decay
            within = f"within {steps:,} steps the average never reaches trainer.ema={decay:g}, which takes {rise:,}"
            self.say(f"warning: {within}; until then it is over the last tenth of the steps or so")
        if (warmup := loop.schedule.warmup_steps(steps)) >= steps:
            self.say(f"note: the run ends within its warm-up of {warmup:,} steps (schedule.warmup)")

    # ---- how it ends

    def finish(self, status: Status, step: int, message: str) -> int:
        """Write the summary, which analysis reads; a result, whether finished or diverged."""
        run, loop = self.run, self.loop
        if not self.group.writes:
            return 0
        results = {tag: value for tag, value in loop.latest.items() if tag.split("/")[0] in RESULTS}
        summary = {
            "steps": run.steps,
            "choices": dict(run.config.choices.groups),
            "seed": self.settings.seed,
            "stack": run.stack,
            "metrics": finite(results),
            "step_time": loop.clock.summary(),
            # since this process took the run up
            "peak_memory_bytes": peak_memory(run.device, self.loop.graph is not None),
            "compile_seconds": loop.compile_seconds or None,
            "skipped_steps": int(loop.precision.skipped),
            "data": run.data.describe(),
            "norm_facts": vars(run.facts),
            **caveats(run),
            "extends": run.parent.path.name if run.parent else None,
            "ledger": make_ledger(loop.model, self.norms, run.config.tree, run.device) | loop.early.found(),
            "status": status,
            "step": step,
            "message": message,
        }
        loop.recorder.close(status)
        self.directory.write_summary(summary)
        settle(run, summary)
        show_summary(run, summary)
        return 0

    def interrupted(self, number: int) -> int:
        """End a run that a signal has stopped behind a checkpoint."""
        self.loop.recorder.close()
        self.directory.write_status("interrupted", self.loop.step, self.run.steps, signal.Signals(number).name)
        command = f"the same command{' without rerun=true' if self.settings.rerun else ''}"
        self.say(f"stopped at step {self.loop.step:,} of {self.run.steps:,}; {command} goes on from here")
        return 128 + number

    def beat(self) -> None:
        """Say that the run is alive, at most every few seconds."""
        if time.monotonic() - self.last_beat > HEARTBEAT_SECONDS:
            self.last_beat = time.monotonic()
            self.directory.write_status("running", self.loop.step, self.run.steps)

    def say(self, line: str) -> None:
        """Tell the person a line, unless they asked for quiet."""
        if not self.settings.quiet:
            print(line)


def prepare_torch(run: Run) -> None:
    """Set threads, the current GPU, full float32 in matrix products or TF32, and on the CPU the same bits each time.

    There subnormal numbers are 0: with them 1,000 layers of `post`, whose gradients vanish, took 8 times the time.
    """
    trainer, on_cpu = run.config.closed.trainer, run.device.type == "cpu"
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


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """While this lasts, the first SIGINT, SIGTERM or SIGHUP is only noted; a second SIGINT stops at once."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with ExitStack() as stack:
        hangup = [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)  # which nohup lets pass
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            stack.callback(signal.signal, number, signal.signal(number, note))
        yield noted


def describe_here(run: Run, processes: int = 1) -> dict[str, Any]:
    """Return this process, its machine and its code, and what is needed to load the model: environment.json has it."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["normbench", *run.command]),
        "commit": commit(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "device": str(run.device),
        "accelerator": torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "data": run.data.describe(),
        "choices": dict(run.config.choices.groups),
        "task": run.data.task.record(),
    }


def settle(run: Run, summary: Mapping[str, Any]) -> None:
    """Do what follows the summary; done again at the next command in case a kill came between."""
    directory = run.directory
    if (read_json(directory.status) or {}).get("status") != summary["status"]:
        directory.write_status(summary["status"], summary["step"], summary["steps"], summary["message"])
    if run.config.closed.trainer.keep_checkpoint == "none":
        for path in (directory.checkpoint, directory.previous, directory.best):
            path.unlink(missing_ok=True)


def copy_record(parent: RunDirectory, child: RunDirectory) -> None:
    """Begin a run with another's record; the checkpoint comes last, so that a torn copy is begun again."""
    for source in (parent.metrics, *event_files(parent.path), parent.best, parent.checkpoint):
        if source.exists():
            write_bytes(child.path / source.name, source.read_bytes())


def runs_before(parent: RunDirectory | None) -> list[dict[str, Any]]:
    """Return of a run that is extended, and of those that it has extended itself, what `extended_runs` does."""
    if parent is None:
        return []
    eval_batches = parent.configuration()["trainer"].get("eval_batches")
    own = {"steps": (parent.ended() or {})["steps"], "eval_batches": eval_batches}
    return [*extended_runs(parent.sessions(), eval_batches), own]


def caveats(run: Run) -> dict[str, str | None]:
    """Return what a reader must know of a norm that takes statistics over time: what leaks, what padding does."""
    leaks, pads = run.data.task.leaks(run.facts) == "training", run.data.pads and run.facts.counts_padding
    norm = run.config.choices.groups["norm"]
    over_time = f"{norm} takes statistics over time, so in training each position is shown its future"
    shown = f"{over_time}; the training loss is not comparable"
    padded = f"{norm} counts the padding of shorter texts in its statistics"
    return {"leak": shown if leaks else None, "padding": padded if pads else None}


def show_summary(run: Run, summary: Mapping[str, Any], *before: str | None) -> None:
    """Show the closing tables behind other lines, and how to see more; of a quiet run its directory."""
    directory = run.directory.path
    if run.config.closed.quiet:
        print(directory)
        return
    print(*(f"{line}\n" for line in before if line), sep="", end="")
    status = summary["status"] + (f" at step {summary['step']}: {summary['message']}" if summary["message"] else "")
    data = summary["data"]
    rows = {
        "status": status,
        **dict(sorted(summary["metrics"].items())),
        **constant_guess(summary),
        **({"bleu": f"beam {data['beam']}, {data['bleu']}"} if "bleu" in data else {}),
        **{f"step time, {key}": value for key, value in summary["step_time"].items() if value is not None},
        **{name.replace("_", " "): summary[name] for name in NOTEWORTHY if summary[name]},
    }
    show_table(directory.name, rows)
    show_table("ledger", flat(summary["ledger"]))
    if any(event_files(directory)):
        print(f"look at the curves: {shlex.join(['normbench', 'tensorboard', str(directory.parent)])}")
    if summary["status"] == "finished" and run.config.closed.trainer.keep_checkpoint != "none":
        trust = ["--trust"] if foreign_class(run.config.tree) else []
        print(f"see what it has learned: {shlex.join(['normbench', 'sample', str(directory), *trust])}")
    if run.parent is None:
        print(f"compare it over seeds: {shlex.join(comparison(run))}")


def constant_guess(summary: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return what always giving the same answer reaches, for each metric: what tells how good a result is."""
    known = summary["data"].get("constant") or {}
    return {f"{tag}, constant guess": value for tag, value in known.items() if tag in summary["metrics"]}


def comparison(run: Run) -> list[str]:
    """Return the command that makes a run with several seeds, and with another norm where it names only a norm."""
    words = [word for word in run.config.words if key_of(word) not in ("seed", "name", "quiet", "rerun", "norm")]
    norm = run.config.choices.groups["norm"]
    varied = ["seed=0,1,2"]
    if any(key_of(word).startswith("norm.") for word in words):
        words = [*words, *(word for word in run.config.words if key_of(word) == "norm")]
    else:
        varied = [f"norm={norm},{'rmsnorm' if norm == 'layernorm' else 'layernorm'}", *varied]
    return ["normbench", "sweep", *words, *varied]


def key_of(word: str) -> str:
    """Return the key that a word of the command line sets."""
    return word.lstrip("+~").partition("=")[0]


# ---- the ledger: what silently differs between published comparisons


def parameter_counts(model: nn.Module, norms: Iterable[nn.Module]) -> dict[str, int]:
    """Count the trained parameters in the norms and outside them."""
    inside = {id(parameter): parameter.numel() for norm in norms for parameter in norm.parameters()}
    total = sum(parameter.numel() for parameter in model.parameters())
    return {"in_norms": sum(inside.values()), "outside_norms": total - sum(inside.values()), "total": total}


def distinct(values: Iterable[Any]) -> Any:
    """Return the one value, or all that occur."""
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else found or None


def make_ledger(model: Model, norms: Mapping[str, nn.Module], tree: Tree, device: torch.device) -> dict[str, Any]:
    """Return the ledger of a run, from what was really built."""
    placements = [module for module in model.modules() if isinstance(module, Placement)]
    init, ours = tree["init"], [norm for norm in norms.values() if isinstance(norm, Norm)]
    decided = [norm.settings() for norm in ours]  # at construction
    return {
        "norms": len(norms),
        "eps": distinct(eps for norm in norms.values() if isinstance(eps := getattr(norm, "eps", None), float | None)),
        "eps_place": distinct(norm.eps_place for norm in ours if norm.eps is not None),
        "cast_order": distinct(norm.cast_order for norm in ours),
        "implementation": distinct(norm.implementation for norm in ours),
        "affine_parameters": distinct("+".join(dict(norm.named_parameters())) or "none" for norm in norms.values()),
        **{key: distinct(each[key] for each in decided if key in each) for made in decided for key in made},
        "norm_parameters_decayed": tree["trainer"]["decay_norms"],
        "parameters": parameter_counts(model, norms.values()),
        "init": str(init["_target_"]).rpartition(".")[2].lower(),
        **{gain: distinct(round(getattr(each, gain), 6) for each in placements) for gain in GAINS},
        "residual_scale": init.get("residual_scale"),
        "precision": tree["trainer"]["precision"],
        "float32_matrix_products": torch.get_float32_matmul_precision(),
        "batches_a_step": tree["trainer"]["accumulate"],
        "compiled": tree["trainer"]["compile"],
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
