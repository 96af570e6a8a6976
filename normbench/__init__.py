"""normbench: compare normalization in neural networks, and believe the result.

From Python: `load` gives a run's trained model, `load_runs` a table of runs, `answer` what a report says of them, and
`swap` puts other norms into a model of one's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

if TYPE_CHECKING:  # `import normbench` takes neither the second of torch nor the half of pandas
    import pandas as pd
    import torch
    from torch import nn

    from normbench.results.answer import Answer
    from normbench.types import Model

    Given = TypeVar("Given", bound=nn.Module)

__version__ = "0.1.0"

Folder = str | os.PathLike[str]

__all__ = ["__version__", "answer", "load", "load_runs", "load_swapped", "swap"]


def load(
    run_directory: Folder,
    *,
    which: Literal["last", "best"] = "last",
    ema: bool = False,
    device: str | torch.device = "cpu",
    trust: bool = False,
) -> Model:
    """The model of a run with its trained weights, in evaluation mode.

    It is built from the run's own config.yaml; the data are not needed. A class of your own must be importable, as it
    was when the run was made, and is used with `trust=True` alone: whoever made the run directory has named the class,
    and its code runs.

        model = normbench.load("outputs/train/rmsnorm-pre-s0-3f2a9c1b")
        logits = model(torch.zeros(1, 64, dtype=torch.int64))  # (batch, time) -> (batch, time, vocabulary)

    Args:
        run_directory: as `normbench train` names it at its end.
        which: `last`, the weights of the last checkpoint, or `best`, those of the lowest validation loss
            (of a run with trainer.keep_checkpoint=best).
        ema: the average of the weights instead (of a run with trainer.ema or trainer.swa).
        device: `cpu`, `cuda`, `cuda:N`, `mps`, or `auto`: a GPU where there is one.
        trust: whether the run may have classes that are neither normbench's nor torch's.

    Raises:
        UsageError: a ValueError: no run, no such weights, or they do not fit this version.
    """
    from normbench.runs.load import TrainedRun, load_model

    return load_model(TrainedRun(run_directory, trust), which=which, ema=ema, device=device)


def load_swapped(model: nn.Module, folder: Folder) -> None:
    """Put the norms of a swapped model in their places in a model of its library, and load its weights.

    `normbench swap MODEL norm=… --out FOLDER` writes such a folder, and a README.md in it that shows how the model is
    made. Its norms may be those of normbench alone.

        config = AutoConfig.from_pretrained("my_gpt2_rms")
        model = AutoModelForCausalLM.from_config(config)
        normbench.load_swapped(model, "my_gpt2_rms")

    Args:
        model: of transformers, timm or torchvision, made as the folder says; its norms are replaced in place.
        folder: that `--out` has named.

    Raises:
        UsageError: a ValueError: the folder holds no swapped model, or one of another model.
    """
    from pathlib import Path

    from normbench.hosts.saving import load_swapped

    load_swapped(model, Path(folder).expanduser())


@overload
def load_runs(folder: Folder = "outputs", *, metrics: Literal[False] = False) -> pd.DataFrame: ...
@overload
def load_runs(folder: Folder = "outputs", *, metrics: Literal[True]) -> tuple[pd.DataFrame, pd.DataFrame]: ...
def load_runs(folder: Folder = "outputs", *, metrics: bool = False) -> pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]:
    """All runs below a folder, a row each, also those that are running, were interrupted or failed.

    Left out are runs that `rerun=true` has set aside (`RUN.old1`), unless the folder is such a one itself.

    Columns: `run` (the path from the folder on), `path`, `status`, `step`, `steps`, `heartbeat` (when it last said that
    it is alive: a run that was killed stays `running`); the choices `norm`, `placement`, `model`, `data`, ...; the
    configuration by its keys (`seed`, `trainer.steps`, `optim.lr`, `norm.eps`); the results by their tags (`loss/val`,
    `accuracy/val`); `step_time.median_ms`, `ledger.parameters.total`, `ledger.implementation` and the rest of the
    ledger. What a run does not have is missing (NaN, None), such as the results of one that has not ended.

        runs = normbench.load_runs("outputs/tour")
        runs.groupby("norm")["loss/val"].agg(["mean", "std", "count"])

        runs, logged = normbench.load_runs("outputs/tour", metrics=True)
        logged[logged.tag == "loss/val"].pivot(index="step", columns="run", values="value")

    Args:
        folder: of runs, at any depth, or one run.
        metrics: return a second table too, of all numbers that the runs have logged, in long form: `run`, `step`,
            `tag`, `value` (NaN where it was not finite).

    Raises:
        UsageError: a ValueError: no folder, or no runs in it.
    """
    from normbench.evidence import frame

    runs = frame.load_runs(folder)
    return (runs, frame.load_metrics(folder)) if metrics else runs


def answer(
    folder: Folder = "outputs",
    *,
    baseline: str | None = None,
    metric: str | None = None,
    margin: float | None = None,
    target: float | None = None,
    task: str | None = None,
) -> Answer:
    """What a report says of the runs below a folder, as values: what `normbench report` writes as `answer.json`.

    It has the question, the arms (whether they trained, and their results), differences with interval, p and verdict,
    effects of crossed factors, lost runs, causes, caveats, and next steps with their commands. Nothing is written.

        found = normbench.answer("outputs/tour", margin=0.01)
        for one in found.differences:
            print(one.arm, one.baseline, one.mean, one.interval, one.corrected, one.verdict)

        Path("answer.json").write_text(found.to_json())

    Args:
        folder: of runs, at any depth.
        baseline: the arm that others are compared with, such as `norm=layernorm placement=pre`; by default LayerNorm
            and `pre`, or what is there of it.
        metric: the tag by which arms are judged first, or `best`; by default that of the report.
        margin: a difference in the metric's unit that does not matter.
        target: a validation loss (nats), whose time a report asks.
        task: which runs, where those below the folder have several kinds of task.

    Raises:
        UsageError: a ValueError: no folder, no run in it that has ended, several tasks, no such arm or metric, or
            a margin below 0.
    """
    from pathlib import Path

    from normbench.errors import ArgumentError, UsageError
    from normbench.results.examine import Request, examine_all
    from normbench.sweep.folder import missing_below

    if margin is not None and not margin >= 0:  # which NaN is not either
        raise ArgumentError("margin", margin, "is not the size of a difference: give 0 or more")
    folders = [Path(folder)]
    request = Request(baseline=baseline, metric=metric, margin=margin, target=target)
    examined = examine_all(folders, request, missing_below(folders))
    found = {one.study.task: one.answer for one in examined}
    if task is None and len(found) == 1:
        return next(iter(found.values()))
    if task is None:
        raise UsageError(f"the runs below {folder} are of several tasks: give one of {', '.join(found)} as task=")
    if task not in found:
        raise ArgumentError("task", task, f"is not a task of the runs below {folder}: give one of {', '.join(found)}")
    return found[task]


def swap(
    model: Given,
    norm: str | Callable[..., nn.Module],
    *,
    keep: Literal["weights", "nothing"] = "weights",
    where: str | Sequence[str] | None = None,
    example: Any = None,
    causal: bool | None = None,
    **settings: Any,
) -> tuple[Given, pd.DataFrame]:
    """Put another norm in the places of a model's norms, in place, and return the model and a table of what was done.

    The model may be of torch, timm, torchvision, transformers, or of your own. Its norms are found by one pass on an
    example, in evaluation mode. New norms stand under the old paths, have the old ε unless `eps` is given, and keep
    γ, β and running statistics where both have them. Make the optimizer after it: parameters are new.

        model = timm.create_model("vit_tiny_patch16_224", num_classes=10)
        model, table = normbench.swap(model, "dyt", alpha0=0.8)
        model, table = normbench.swap(model, "rmsnorm", where=["first3", "final"])
        print(table.to_string())

    Columns of the table, a row for each norm: `path` in the model, `norm` (the class that stood there), `site` (as
    `block03.mlp`), `features`, `becomes` (the class that stands there now), its `eps`, what is `kept` and what is
    `lost` of γ, β and statistics, and why a norm is `left` as it is.

    Args:
        model: any nn.Module.
        norm: the name of one of ours, such as `rmsnorm`; `package.module.Class`; or a class or a function
            `(num_features, *, channel_dim, site)`.
        keep: `weights`, or `nothing`, with which new norms start as they do.
        where: places as in rules, such as `first3`, `qk`, `final`, `mlp`, `attention.in`; of several, any. None: all.
        example: a small batch that the model takes: a tensor, a tuple, a mapping of arguments, or a function that calls
            the model. None: made here, for models of transformers, timm and torchvision.
        causal: whether each position is predicted from those before it; None: as the class is named (`...ForCausalLM`).
        settings: of the norm, as `eps=1e-6`.

    Raises:
        UsageError: a ValueError: an unknown norm, setting or place, no norm that can be replaced, or a model that does
            not run on the example or with the new norms, in which case it is left as it was.
    """
    from normbench.swapping import swap_norms

    table = swap_norms(model, norm, keep=keep, where=where, example=example, causal=causal, settings=settings)
    return model, table
