"""What a norm costs: alone, beside the least that memory allows, and within a training step.

Implementations are timed in turn, so that a machine that slows down does so for all alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from normbench.config.groups import section_of
from normbench.config.rules import RULES, group_of, rule_sections
from normbench.errors import UsageError, explain
from normbench.evidence.labels import label_of
from normbench.results.rows import Column, arms_of, is_arm, keys_of
from normbench.settings import Setting, Tree
from normbench.show.figures.figure import Figure
from normbench.show.study_tables import rows_table
from normbench.show.tables import Table
from normbench.studies.candidates import (
    Candidate,
    are_alike,
    chosen_norm,
    code_of,
    make_candidates,
    name_operators,
    peak_memory,
)
from normbench.studies.drift import EXPORTED, INPUTS, export_norm, inputs_for, measure_drift
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject, check_memory, device_name
from normbench.studies.steps import check_steps, steps
from normbench.studies.timing import Call, do_nothing, median_interval, time_in_turn
from normbench.training.launches import count_operators
from normbench.training.precision import DTYPES, make_precision
from normbench.wording import significant, whole

FORMATS = ("float32", "bfloat16", "float16")
IMPLEMENTATIONS = ("torch", "native", "liger", "eager", "compile")

# What is timed: the column `passes`.
FORWARD = "forward"
FORWARD_BACKWARD = "forward and backward"
STEP = "training step"
DRIFT = "drift from float64"

# The least that must move through memory, in tensors as large as the input: x and y; then x, ∂y and ∂x as well.
MOVED = {FORWARD: 2, FORWARD_BACKWARD: 5}

PRECISIONS = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}
MOST_HELD = 13  # the most tensors as large as the input, in float32, that are held at once
WARM_UP_STEPS = 3  # steps before a measured one
COUNTED_STEPS = 1  # steps whose operators are counted
CACHES_BEYOND = 2  # last level caches that the input beyond the cache would fill: no call finds what another has left

# Heads of tables.
OTHER = " of the other"
HEADS = {"operators": "runs as", f"operators{OTHER}": "the other as", "like": "like with like", "code": "what runs"}
COSTS = ("time_us", "ratio", "floor_us", "over_floor", "memory")
OF_STEPS = ("time_us", "without_us", "share", "launches", "launches_without")

Size = tuple[int, int]  # rows and features of an input


class Bench(Study):
    """Measure the time and memory of each norm, in each implementation that is there, and of a training step with it.

    All are timed in turn, round by round, on the same numbers: forward, and forward and backward. Beside each stand
    torch.nn.LayerNorm in the same round, and the floor: the bytes that must move, at the speed at which torch copies a
    tensor of that size. For a cold cache the last level cache is filled with other data before each measurement. An
    input twice as large as that cache is never in it: its times are those of the memory.

    Two norms compare like with like if both run in one manner: as one operator of torch's or one function with its own
    backward pass, as one compiled function, or as several operators. It is read off autograd's graph. One operator
    against several compares kernels, not norms.

    The share of the norms in a training step is 1 − the time of a step without norms / that with them, step by step in
    turn. Beside it stand the operators that a step gives to the device, but for views. A GPU takes some microseconds to
    start each. Where a step takes about as long as starting them all, as in small models, it compares these counts and
    not what the norms compute, and other kernels or CUDA graphs would give another answer. Times are medians over
    rounds, with a 95 % interval of order statistics.

    What is fast need not be right. So each implementation, and what torch.export makes of the norm, is also held
    against the same norm in float64, by output and gradient, on ordinary inputs and on some that tell them apart.
    """

    together = True

    def __init__(
        self,
        *,
        rows: Annotated[Sequence[int], Setting("rows (positions) of the input", low=1)] = (64, 512, 4096),
        features: Annotated[Sequence[int], Setting("features of a row", low=2)] = (512,),
        dtypes: Annotated[Sequence[str], Setting("formats of the input", choices=FORMATS)] = ("float32", "bfloat16"),
        implementations: Annotated[Sequence[str], Setting("of each", choices=IMPLEMENTATIONS)] = IMPLEMENTATIONS,
        rounds: Annotated[int, Setting("measurements of each", "rounds", low=1)] = 9,
        steps: Annotated[int, Setting("measured training steps of each model; 0: none", "steps", low=0)] = 30,
        beyond: Annotated[
            bool | None, Setting("also an input twice as large as the last level cache; null: on a GPU")
        ] = None,
        drift: Annotated[bool, Setting("also how far each is from float64, exported as well")] = True,
    ) -> None:
        self.sizes = list(product(rows, features))
        self.widths = set(features)
        self.dtypes = dtypes
        self.implementations = implementations
        self.rounds = rounds
        self.steps = steps
        self.beyond = beyond
        self.drift = drift

    # ---- what is measured

    def sizes_on(self, device: torch.device, dtype: str) -> list[Size]:
        """Return the size of each input, the one beyond the cache included where it is wanted."""
        goes_beyond = device.type == "cuda" if self.beyond is None else self.beyond
        if not goes_beyond:
            return self.sizes
        features = max(self.widths)
        row_bytes = features * getattr(torch, dtype).itemsize
        rows = math.ceil(CACHES_BEYOND * last_level_cache(device) / row_bytes)
        return list(dict.fromkeys([*self.sizes, (rows, features)]))

    def check(self, subject: Subject) -> None:
        """Refuse sizes that do not fit into memory, a norm that does nothing, and one without any implementation."""
        sizes = set[Size]()
        for dtype in self.dtypes:
            sizes.update(self.sizes_on(subject.device, dtype))
        rows, features = max(sizes, key=math.prod)
        needed = 4 * MOST_HELD * rows * features + last_level_cache(subject.device)
        what = f"study.rows={rows} with study.features={features}"
        if (rows, features) not in self.sizes:
            what = "study.beyond=true"
        check_memory(needed, what, subject.device)
        check_steps(subject, self.count_steps())
        for width in self.widths:
            self.check_norm(subject, width)

    def count_steps(self) -> int:
        """Return how many training steps each model takes."""
        return self.steps + WARM_UP_STEPS + COUNTED_STEPS if self.steps else 0

    def check_norm(self, subject: Subject, features: int) -> None:
        """Refuse a norm that does nothing, and one without any implementation."""
        name = subject.settings["norm"]
        candidate = next(make_candidates(subject, features, self.implementations), None)
        if candidate is None:
            words = ",".join(self.implementations)
            raise UsageError(f"study.implementations={words}: norm={name} has none of these here, add eager")
        x = torch.zeros(1, 2, features, device=subject.device)
        if candidate.norm(x) is x:
            raise UsageError(f"norm={name} leaves its input as it is, which costs nothing: leave it out")

    def measure(self, subject: Subject) -> Iterator[Row]:
        """Yield the rows of one subject."""
        for _, row in self.measure_together([subject]):
            yield row

    def measure_together(self, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Row]]:
        """Yield a row for each round of each candidate and model, and one with the reason for what cannot be run."""
        first = subjects[0]
        for dtype in self.dtypes:
            try:
                make_precision(PRECISIONS[dtype], first.device)
            except UsageError as error:
                yield first, {"device": device_name(first.device), "dtype": dtype, "code": str(error)}
                continue
            for size in self.sizes_on(first.device, dtype):
                torch.compiler.reset()  # so that each size is compiled for itself
                yield from self.time_norms(subjects, size, dtype)
        if self.steps:
            yield from self.time_steps(subjects)

    def time_norms(self, subjects: Sequence[Subject], size: Size, dtype: str) -> Iterator[tuple[Subject, Row]]:
        """Yield what is measured at one size and dtype."""
        rows, features = size
        device = subjects[0].device
        generator = torch.Generator().manual_seed(0)
        tensors = torch.randn(3, 1, rows, features, generator=generator)
        x, dy, source = tensors.to(device, getattr(torch, dtype))
        place: Row = {
            "rows": rows,
            "features": features,
            "dtype": dtype,
            "device": device_name(device),
            "caches": x.nbytes / last_level_cache(device),
        }
        timed = list[TimedNorm]()
        for subject in subjects:
            for candidate in make_candidates(subject, features, self.implementations):
                row = {**place, "implementation": candidate.implementation, "code": candidate.code}
                try:
                    row["operators"] = name_operators(candidate.norm(x.requires_grad_()))
                except Exception as error:  # a compiler may raise anything
                    yield subject, {**row, "code": explain(error.__cause__ or error)}
                    continue
                timed.append(TimedNorm(subject, candidate, row))
        norms = [timed_norm.candidate for timed_norm in timed]
        for passes, moved in MOVED.items():
            gradient = dy if passes == FORWARD_BACKWARD else None
            with torch.set_grad_enabled(passes == FORWARD_BACKWARD):
                measured = list(self.time_passes(norms, x, gradient, source, moved))
            for rows_of_round in measured:
                for timed_norm, row_of_norm in zip(timed, rows_of_round, strict=True):
                    yield timed_norm.subject, {**timed_norm.row, "passes": passes, **row_of_norm}
        if self.drift and device.type != "mps":  # which has no float64
            for timed_norm in timed:
                yield from drift_rows(timed_norm, rows, dtype)
            for subject in subjects:
                yield from drift_rows_of_export(subject, place, dtype)

    def time_passes(
        self, norms: Sequence[Candidate], x: Tensor, dy: Tensor | None, source: Tensor, moved: int
    ) -> Iterator[list[Row]]:
        """Yield what one round measures of each norm, with a warm and a cold cache.

        Args:
            norms: what is timed.
            x: the input.
            dy: a gradient of the output, for the backward pass too.
            source: as large as the input, to be copied.
            moved: tensors of that size that must move through memory.
        """
        target = torch.empty_like(x)
        layernorm = nn.LayerNorm(x.shape[-1], device=x.device, dtype=x.dtype)
        baseline = Candidate("torch", code_of(layernorm), layernorm)
        calls = [norm.call(x, dy) for norm in norms]
        peaks = [peak_memory(call, x.device) for call in calls]
        all_calls: list[Call] = [lambda: target.copy_(source), baseline.call(x, dy), *calls]
        flush = torch.zeros(last_level_cache(x.device) // 4, device=x.device).sum
        for cache, prepare in {"warm": None, "cold": flush}.items():
            for number, seconds in enumerate(time_in_turn(all_calls, self.rounds, prepare)):
                copy_time, baseline_time, *times = [1e6 * duration for duration in seconds]
                floor = copy_time * moved / 2  # a copy reads a tensor, and writes one
                of_round: Row = {
                    "moved_bytes": moved * x.nbytes,
                    "cache": cache,
                    "round": number,
                    "copy_us": copy_time,
                    "floor_us": floor,
                    "baseline_us": baseline_time,
                }
                rows_of_norms = []
                for time, peak in zip(times, peaks, strict=True):
                    row = {
                        **of_round,
                        "ratio": time / baseline_time,
                        "over_floor": time / floor,
                        "memory": peak / x.nbytes,
                        "time_us": time,
                    }
                    rows_of_norms.append(row)
                yield rows_of_norms

    def time_steps(self, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Row]]:
        """Yield what is measured of training steps, with norms and without."""
        count = self.count_steps()
        timed = [warm_up_steps(subject, count) for subject in subjects]
        calls = list[Call]()
        for timed_steps in timed:
            calls += [timed_steps.with_norms, timed_steps.without_norms]
        for number, seconds in enumerate(time_in_turn(calls, self.steps, prepare=do_nothing)):
            microseconds = [1e6 * duration for duration in seconds]
            for timed_steps, time, without in zip(timed, microseconds[::2], microseconds[1::2], strict=True):
                times = {"share": 100 * (1 - without / time), "time_us": time, "without_us": without}
                yield timed_steps.subject, {"passes": STEP, **timed_steps.row, "round": number, **times}

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[str]:
        """Say how long each norm takes beside torch's LayerNorm, at the largest size, and its share of a step."""
        sentences = list[str]()
        for device, rows_of_device in split_by_device(rows).items():
            sentences += findings_on(device, rows_of_device, self.sizes)
        return sentences

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Say what each costs at each size, which pairs compare like with like, and the norms' share of a step."""
        tables = list[Table]()
        for device, rows_of_device in split_by_device(rows).items():
            tables += tables_on(device, rows_of_device, self.sizes)
        return tables

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        """Draw at which speed bytes move, beside a copy."""
        drawings = list[Figure]()
        for device, rows_of_device in split_by_device(rows).items():
            drawings += figures_on(device, rows_of_device)
        return drawings


# ---- what is timed


def last_level_cache(device: torch.device) -> int:
    """Return the bytes of the largest cache in front of the memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    files = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    kibibytes = []
    for file in files:
        size = file.read_text().strip()  # such as 1024K
        kibibytes.append(int(size.removesuffix("K")))
    if not kibibytes:
        return 2**26
    return 1024 * max(kibibytes)


class TimedNorm(NamedTuple):
    """A norm that is timed at one size. row: what tells it from others."""

    subject: Subject
    candidate: Candidate
    row: Row


def drift_rows(timed_norm: TimedNorm, rows: int, dtype: str, exported: bool = False) -> Iterator[tuple[Subject, Row]]:
    """Yield how far a norm is from float64 on each input.

    Args:
        timed_norm: the norm, with what stands in each row.
        rows: of the input.
        dtype: of the input.
        exported: whether it is in evaluation mode, as exported norms are.
    """
    subject = timed_norm.subject
    features = timed_norm.row["features"]
    eager = next(make_candidates(subject, features, ["eager"]))
    reference = eager.norm.double().train(not exported)
    generator = torch.Generator().manual_seed(1)
    dy = torch.randn(1, rows, features, generator=generator).to(subject.device, getattr(torch, dtype))
    for name, x in inputs_for(rows, features, getattr(torch, dtype)):
        output, gradient = measure_drift(timed_norm.candidate.norm, reference, x.to(subject.device), dy)
        found: Row = {"input": name, "torch": torch.__version__, "drift": output, "gradient_drift": gradient}
        yield subject, {**timed_norm.row, "passes": DRIFT, **found}


def drift_rows_of_export(subject: Subject, place: Row, dtype: str) -> Iterator[tuple[Subject, Row]]:
    """Yield how far a subject's norm is from float64 on each input after torch.export, or a row that says why not.

    Args:
        subject: whose norm it is, with the implementation that was chosen for it.
        place: what stands in each row.
        dtype: of the input.
    """
    rows, features = place["rows"], place["features"]
    example = torch.randn(1, rows, features).to(subject.device, getattr(torch, dtype))
    row = {**place, "implementation": EXPORTED}
    try:
        candidate = export_norm(chosen_norm(subject, features), example)
    except Exception as error:  # torch.export may raise anything
        yield subject, {**row, "code": f"not exported: {explain(error.__cause__ or error)}"}
        return
    exported = TimedNorm(subject, candidate, {**row, "code": candidate.code})
    yield from drift_rows(exported, rows, dtype, exported=True)


class TimedSteps(NamedTuple):
    """Functions that take the next training step of a subject's model with its norms, and without; row: about both."""

    subject: Subject
    with_norms: Call
    without_norms: Call
    row: Row


def warm_up_steps(subject: Subject, count: int) -> TimedSteps:
    """Take the first training steps of a subject's model with its norms, and without; return what takes the others.

    Args:
        subject: whose model is trained.
        count: how many steps there are, these included.
    """
    with_norms, norms = training_step(subject, subject.tree, count)
    without_norms, _ = training_step(subject, leave_out_norms(subject.tree), count)
    for take_next in (with_norms, without_norms):
        for _ in range(WARM_UP_STEPS):
            take_next()
    row: Row = {"device": device_name(subject.device), "code": count_codes(norms) or "none"}
    if not any(getattr(norm, "compiled", False) for norm in norms):  # operators cannot be seen in compiled code
        row["launches"] = count_operators(with_norms, subject.device)
        row["launches_without"] = count_operators(without_norms, subject.device)
    return TimedSteps(subject, with_norms, without_norms, row)


def leave_out_norms(tree: Tree) -> Tree:
    """Return a configuration without norms, those of rules included."""
    rules = {}
    for key, section in rule_sections(tree).items():
        if group_of(key) != "norm":
            rules[key] = section
    return {**tree, "norm": section_of("norm", "none"), RULES: rules}


def count_codes(norms: Sequence[nn.Module]) -> str:
    """Write how many norms run by each code: `9 × native and 8 × eager`."""
    counts = Counter(map(code_of, norms))
    phrases = [f"{number} × {code}" for code, number in counts.items()]
    return " and ".join(phrases)


def training_step(subject: Subject, tree: Tree, count: int) -> tuple[Call, list[nn.Module]]:
    """Return a function that takes the next of some training steps of the subject's model, and the norms in it.

    The learning rate is too small to change the loss, and gradients are clipped whatever their norm, where they are
    clipped at all: with and without norms alike. A step that is not finite, as without norms a treatment of weights may
    make it, takes as long as another and does not end the steps.

    Args:
        subject: whose model is trained.
        tree: its configuration, with its norms or without.
        count: how many steps there are.
    """
    trainer = {**tree["trainer"], "steps": count}
    if trainer["grad_clip"]:
        trainer["grad_clip"] = 1e-12
    optim = {**tree["optim"], "lr": 1e-12}
    timed_subject = replace(subject, tree={**tree, "trainer": trainer, "optim": optim})
    model, norms = timed_subject.build()
    remaining = steps(timed_subject, model, norms, finite=False)

    def take_next() -> object:
        return next(remaining)

    return take_next, list(norms.values())


# ---- what was found on one device: `device` is its name, empty where there is no other, `sizes` what was asked for


def split_by_device(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each device, by its name: times of two GPUs are in no table together."""
    if "device" not in rows or rows["device"].nunique() < 2:
        return {"": rows}
    rows_by_device = {}
    for name, rows_of_device in rows.groupby("device", sort=False):
        rows_by_device[str(name)] = rows_of_device
    return rows_by_device


def findings_on(device: str, rows: pd.DataFrame, sizes: Sequence[Size]) -> Iterator[str]:
    """Yield the shares of a training step, and the times at the largest size that was asked for."""
    at = f"{device}, " if device else ""
    arms = arms_of(rows)
    training = rows[rows["passes"] == STEP]
    for arm in arms:
        rows_of_arm = training[is_arm(training, arm.settings)]
        if len(rows_of_arm):
            yield f"{at}{label_of(arm)}: {tell_rounds(rows_of_arm['share'])} % of a training step."
    is_shown = (rows["passes"] == FORWARD_BACKWARD) & (rows["cache"] == "warm") & is_asked_for(rows, sizes)
    norms = rows[is_shown]
    for arm in arms:
        rows_of_arm = of_largest_input(norms[is_arm(norms, arm.settings)])
        for (dtype, implementation), ratios in rows_of_arm.groupby(["dtype", "implementation"], sort=False)["ratio"]:
            what = f"{at}{label_of(arm)}, {implementation}, {dtype}, {tell_size(rows_of_arm)}: {FORWARD_BACKWARD} in"
            yield f"{what} {tell_rounds(ratios)} times that of torch.nn.LayerNorm."


def tables_on(device: str, rows: pd.DataFrame, sizes: Sequence[Size]) -> list[Table]:
    """Return all tables of one device, but for those without rows."""
    at = f", {device}" if device else ""
    suffix = f"-{key_word(device)}" if device else ""
    norms = rows[rows["passes"].isin(list(MOVED))]
    has_asked_size = is_asked_for(norms, sizes)
    tables = [
        *costs_tables(norms, varied_settings(rows), at, suffix),
        *pair_tables(norms[has_asked_size], at, suffix),
        *pair_tables(norms[~has_asked_size], at, f"-beyond{suffix}"),
    ]
    training = rows[rows["passes"] == STEP]
    if len(training):
        numbers = [name for name in OF_STEPS if name in training]  # an earlier study has counted no operators
        by = [*varied_settings(rows), "code"]
        tables.append(medians_table(f"steps{suffix}", f"Norms in a training step{at}", training, by, numbers))
    if "drift" in rows:
        tables += drift_tables(rows[rows["passes"] == DRIFT], varied_settings(rows), at, suffix)
    failed = rows[rows["time_us"].isna() & (rows["passes"] != DRIFT)]
    if len(failed):
        cells = failed[["dtype", "code"]].to_dict("records")
        tables.append(rows_table(f"left-out{suffix}", f"Not measured{at}", cells, 2))
    return [table for table in tables if table.rows]


def costs_tables(norms: pd.DataFrame, arms: Sequence[str], at: str, suffix: str) -> Iterator[Table]:
    """Yield what norms cost, a table for each size and format of the input. arms: the settings that tell them apart."""
    by = [*arms, "implementation", "code", "passes", "cache"]
    for (dtype, count, width), rows_of_size in norms.groupby(["dtype", "rows", "features"], sort=False):
        key = f"costs-{dtype}-{count:.0f}-{width:.0f}{suffix}"
        caches = tell_caches(rows_of_size)
        title = f"{whole(count)} rows × {whole(width)} features, {dtype}{caches}{at}"
        yield medians_table(key, title, rows_of_size, by, COSTS)


def drift_tables(rows: pd.DataFrame, arms: Sequence[str], at: str, suffix: str) -> Iterator[Table]:
    """Yield how far norms are from float64, a table for each size, format and version of torch.

    Args:
        rows: of the drift.
        arms: the settings that tell norms apart.
    """
    by = [*arms, "implementation", "code"]
    for (dtype, count, width, version), rows_of_size in rows.groupby(
        ["dtype", "rows", "features", "torch"], sort=False
    ):
        cells = []
        for values, rows_of_norm in rows_of_size.groupby(by, sort=False, dropna=False):
            inputs = rows_of_norm.set_index("input")
            for result, column in (("output", "drift"), ("gradient", "gradient_drift")):
                row: Row = {name: str(value) for name, value in zip(by, values, strict=True)}
                row["of the"] = result
                for name in INPUTS:
                    if name in inputs.index:
                        row[name] = tell_drift(inputs.loc[name, column])
                cells.append(row)
        key = f"drift-{dtype}-{count:.0f}-{width:.0f}{suffix}"
        title = f"Drift from float64: {whole(count)} rows × {whole(width)} features, {dtype}, torch {version}{at}"
        rounding = torch.finfo(getattr(torch, str(dtype))).eps / 2
        note = (
            "The largest difference, as a share of the largest value (of an output, at least of 1). What is rounded "
            f"once is off by at most {rounding:.1e} of its own size."
        )
        yield rows_table(key, title, cells, len(by) + 1, note)


def tell_drift(drift: float) -> str:
    """Write a drift with two digits."""
    if math.isinf(drift):
        return "not finite"
    return f"{drift:.1e}" if drift else "0"


def pair_tables(norms: pd.DataFrame, at: str, suffix: str) -> Iterator[Table]:
    """Yield how pairs of norms compare, a table for each format of the input."""
    for dtype, rows_of_dtype in norms.groupby("dtype", sort=False):
        yield pair_table(str(dtype), rows_of_dtype, at, suffix)


def figures_on(device: str, rows: pd.DataFrame) -> Iterator[Figure]:
    """Yield a figure for each format and state of the cache."""
    at = f", {device}" if device else ""
    norms = rows[rows["passes"].isin(list(MOVED))]
    for (dtype, cache), rows_of_figure in norms.groupby(["dtype", "cache"], sort=False):
        yield from roofline(f"{dtype}, {cache} cache{at}", rows_of_figure)


def is_asked_for(rows: pd.DataFrame, sizes: Sequence[Size]) -> pd.Series:
    """Tell of each row whether its size was asked for, and is not that of the input beyond the cache."""
    sizes_of_rows = zip(rows["rows"], rows["features"], strict=True)
    return pd.Series([size in sizes for size in sizes_of_rows], rows.index, bool)


def of_largest_input(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the largest input."""
    return rows[rows["moved_bytes"] == rows["moved_bytes"].max()]


def tell_size(rows: pd.DataFrame) -> str:
    """Name the one size of rows whose calls follow each other, and where their input is."""
    first = rows.iloc[0]
    where = tell_caches(rows) or ", warm cache"
    return f"{whole(first['rows'])} × {whole(first['features'])}{where}"


def tell_caches(rows: pd.DataFrame) -> str:
    """Say how large an input is beside the last level cache, where it does not fit."""
    if "caches" not in rows:
        return ""
    share = rows["caches"].iloc[0]
    return f", {significant(share)} times the last level cache" if share > 1 else ""


def key_word(name: str) -> str:
    """Return a name of a device as a part of a key."""
    return re.sub(r"\W+", "-", name).strip("-").lower()


def varied_settings(rows: pd.DataFrame) -> list[str]:
    """Return the settings that tell arms apart, the norm always."""
    varied = []
    for key in keys_of(rows):
        varies = rows[key].nunique(dropna=False) > 1
        if key == "norm" or varies:
            varied.append(key)
    return varied


def tell_rounds(values: pd.Series) -> str:
    """Write the median over rounds with its interval."""
    low, high = median_interval(values)
    rounds = f"{len(values)} rounds"
    if low < high:
        rounds = f"{significant(low)} to {significant(high)}; {rounds}"
    return f"{significant(values.median())} ({rounds})"


def medians_table(key: str, title: str, rows: pd.DataFrame, by: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return medians over rounds, with their intervals. by: columns that tell rows of the table apart."""
    cells = []
    for values, rounds in rows.groupby(list(by), sort=False, dropna=False):
        row: Row = {}
        for name, value in zip(by, values, strict=True):
            row[HEADS.get(name, name)] = str(value)
        for name in numbers:
            cell = significant(rounds[name].median())
            low, high = median_interval(rounds[name])
            if low < high:
                cell += f" [{significant(low)}, {significant(high)}]"
            row[Bench.columns[name].label] = cell
        cells.append(row)
    note = f"Medians of {rows['round'].nunique()} rounds, from six on with 95 % intervals; ratios are of one round."
    return rows_table(key, title, cells, len(by), note)


def pair_table(dtype: str, rows: pd.DataFrame, at: str = "", suffix: str = "") -> Table:
    """Return a table of which pairs of norms compare like with like in an implementation, at the largest size."""
    largest = of_largest_input(rows)
    warm = largest[largest["cache"] == "warm"]
    title = f"Pairs of norms, {FORWARD_BACKWARD}, {dtype}: {tell_size(warm)}{at}"
    arms = varied_settings(warm)
    numbered = warm.assign(arm=warm.groupby(arms, sort=False, dropna=False).ngroup())
    pairs = numbered.merge(numbered, on=["implementation", "round"], suffixes=("", OTHER))
    pairs = pairs[pairs["arm"] < pairs[f"arm{OTHER}"]]
    like = []
    for operators, other_operators in zip(pairs["operators"], pairs[f"operators{OTHER}"], strict=True):
        like.append("yes" if are_alike(operators, other_operators) else "no")
    quotient = pairs["time_us"] / pairs[f"time_us{OTHER}"]
    pairs = pairs.assign(quotient=quotient, like=like)
    others = [f"{key}{OTHER}" for key in arms]
    by = ["implementation", *arms, *others, "operators", f"operators{OTHER}", "like"]
    return medians_table(f"pairs-{dtype}{suffix}", title, pairs, by, ["quotient"])


def roofline(what: str, rows: pd.DataFrame) -> list[Figure]:
    """Draw the speed at which the bytes move that must, against how many they are, beside that of a copy."""
    copies = rows.assign(norm="copy", time_us=rows["floor_us"])
    with_copies = pd.concat([rows, copies])
    megabytes = with_copies["moved_bytes"] / 1e6
    with_copies = with_copies.assign(
        panel=with_copies["implementation"] + ", " + with_copies["passes"],
        megabytes=megabytes,
        speed=megabytes / with_copies["time_us"] * 1e3,
    )
    rounds = with_copies.groupby([*keys_of(rows), "seed", "panel", "megabytes"], sort=False, dropna=False)["speed"]
    points = rounds.median().reset_index()
    points[["low", "high"]] = [median_interval(speeds) for _, speeds in rounds]
    columns = {
        "megabytes": Column("what must move", "MB"),
        "speed": Column("speed at which it moves", "GB/s"),
        "panel": Column(""),
    }
    title_and_caption = Bench.captions["roofline"]
    return draw_curves(
        "roofline_" + re.sub(r"\W+", "_", what),
        points,
        x="megabytes",
        y="speed",
        columns=columns,
        title=f"{title_and_caption['title']}, {what}",
        caption=title_and_caption["caption"],
        panel="panel",
        log="xy",
        band=("low", "high"),
    )
