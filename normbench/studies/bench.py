"""What a norm costs: alone, beside the least that memory allows, and within a training step.

Implementations are timed in turn, so that a machine that slows down does so for all alike.
"""

from __future__ import annotations

import math
import os
import re
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, product, starmap
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
from scipy.stats import quantile_test
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import benchmark

from normbench import build
from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.analysis.wording import significant
from normbench.config.groups import section_of
from normbench.errors import UsageError, explain
from normbench.settings import Setting
from normbench.studies.findings import arms_of, curves, is_arm, keys_of, labelled, plain_table
from normbench.studies.frame import Column, Row, Study, Subject, check_memory, device_name
from normbench.studies.steps import check_steps, steps
from normbench.training.launches import operators_of
from normbench.training.precision import DTYPES, make_precision

FORMATS = ("float32", "bfloat16", "float16")
IMPLEMENTATIONS = ("torch", "native", "liger", "eager", "compile")
FORWARD, BOTH, STEP = "forward", "forward and backward", "training step"

# The least that must move through memory, in tensors as large as the input: x and y; then x, ∂y and ∂x as well.
MOVED = {FORWARD: 2, BOTH: 5}

PRECISIONS = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items()}
NEEDED = 13  # tensors as large as the input, in float32, that are held at once at most
BLOCK = 5e-3  # seconds that one measurement with a warm cache lasts at least
WARM_UP = 3  # calls by torch's Timer before a single one counts, and that one
COUNTED = 1  # call whose operators are counted
BEYOND = 2  # last level caches that an input beyond the cache is as large as: no call finds there what another left

# Heads of tables.
OTHER = " of the other"
HEADS = {"operators": "runs as", f"operators{OTHER}": "the other as", "like": "like with like", "code": "what runs"}
COSTS = ("time_us", "ratio", "floor_us", "over_floor", "memory")
OF_STEP = ("time_us", "without_us", "share", "launches", "launches_without")

Call = Callable[[], object]


class Candidate(NamedTuple):
    """A norm as it is timed. code: what runs."""

    implementation: str
    code: str
    norm: nn.Module

    def call(self, x: Tensor, dy: Tensor | None) -> Call:
        """Return a function that runs it forward, or with a gradient dy of its output backward as well.

        The gradients are returned and not added to others, as within a network.
        """
        norm, wanted = self.norm, (x, *self.norm.parameters())
        return (lambda: norm(x)) if dy is None else (lambda: torch.autograd.grad(norm(x), wanted, dy))


def candidates(subject: Subject, features: int, implementations: Sequence[str]) -> Iterator[Candidate]:
    """Yield a subject's norm in each implementation that is there."""

    def make(impl: str) -> Any:
        section = subject.tree["norm"]
        chosen = {**section, "impl": impl} if "impl" in section else section
        return build.factory({"norm": chosen}, "norm")(features, channel_dim=-1, site=None).to(subject.device)

    ours = "impl" in subject.tree["norm"]
    make("eager")  # which is always there, unless other settings are wrong
    for word in implementations if ours else [word for word in implementations if word in ("eager", "compile")]:
        try:
            norm = make(word)
        except UsageError:  # it has none of this kind, or not on this machine
            continue
        code = code_of(norm)
        if word == "compile" and not ours:
            norm.compile(fullgraph=True)
            code = f"torch.compile of {code}"
        yield Candidate(word, code, norm)


def code_of(norm: nn.Module) -> str:
    """Say what runs a norm: what it has chosen itself, or its class."""
    return str(getattr(norm, "implementation", type(norm).__qualname__))


def operators(y: Tensor) -> str:
    """Name what autograd runs for y, which a norm has made of leaves: `NativeLayerNorm`, or `8 operators`; and casts.

    Views move nothing, and do not count.
    """
    found, todo = set[Any](), [y.grad_fn]
    while todo:
        if (node := todo.pop()) is not None and node not in found:
            found.add(node)
            todo += [before for before, _ in node.next_functions]
    names = [re.sub(r"Backward\d*$", "", node.name()) for node in found]
    names = [name for name in names if not name.endswith("AccumulateGrad") and not is_view(name)]
    others = [name for name in names if name != "ToCopy"]
    casts = len(names) - len(others)
    return (others[0] if len(others) == 1 else f"{len(others)} operators") + f", {casts} casts" * (casts > 0)


def is_view(name: str) -> bool:
    """Tell whether an operator of torch, called as autograd calls it, looks at its input without moving it."""
    packet = getattr(torch.ops.aten, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
    return packet is not None and getattr(packet, packet.overloads()[0]).is_view


def alike(one: str, other: str) -> str:
    """Say whether two norms run in one manner, by their `operators`: as one operator, compiled, or as several."""
    first, second = (("operators" in words, "Compiled" in words, "casts" in words) for words in (one, other))
    return "yes" if first == second else "no"


class Timed:
    """A call, and how often it is made in one measurement with a warm cache. It has been warmed up."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.timer = benchmark.Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        self.number = max(1, int(BLOCK / self.timer.timeit(1).median))

    def seconds(self, prepare: Call | None) -> float:
        """Return the mean time of a block of calls; or the time of one, right after `prepare`.

        torch's `Timer` runs what it times to warm up: where the cache is to be cold, its clock alone serves.
        """
        if prepare:
            return timeit.Timer(self.call, prepare, benchmark.timer).timeit(1)
        return self.timer.timeit(self.number).median


def in_turn(calls: Sequence[Timed], number: int, prepare: Call | None = None) -> list[float]:
    """Return the time of each call in µs; each round, by its number, begins with another."""
    first = number % len(calls)
    times = {place: 1e6 * calls[place].seconds(prepare) for place in (*range(first, len(calls)), *range(first))}
    return [times[place] for place in range(len(calls))]


def peak_memory(call: Call, device: torch.device) -> int:
    """Return the most bytes that a call holds at once, with its results."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print when it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events: Any = profiled.profiler
    changes = (event for event in events.kineto_results.events() if event.name() == "[memory]")
    ordered = sorted(changes, key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in ordered), default=0)


def last_level_cache(device: torch.device) -> int:
    """Return the bytes of the largest cache in front of the memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((1024 * int(size.read_text().strip().removesuffix("K")) for size in sizes), default=2**26)


def training_step(subject: Subject, norm: Any, count: int) -> tuple[Call, list[nn.Module]]:
    """Return a function that takes the next of some training steps of the subject's model, and the norms in it.

    norm: the section of the configuration for them. The learning rate is too small for any loss to become infinite.
    """
    trainer, optim = {**subject.tree["trainer"], "steps": count}, {**subject.tree["optim"], "lr": 1e-12}
    own = replace(subject, tree={**subject.tree, "norm": norm, "trainer": trainer, "optim": optim})
    model, norms = own.build()
    going = steps(own, model, norms)
    return lambda: next(going), [*norms.values()]


class Bench(Study):
    """Measure the time and memory of each norm, in each implementation that is there, and of a training step with it.

    All are timed in turn, round by round, on the same numbers: forward, and forward and backward. Beside each stand
    torch.nn.LayerNorm in the same round, and the floor: the bytes that must move, at the speed at which torch copies a
    tensor of that size. For a cold cache the last level cache is filled with other data before each measurement. An
    input twice as large as that cache is never in it: its times are those of the memory.
    Two norms compare like with like if each runs as one operator of torch's or one function with its own backward, or
    as one compiled function, or as several operators, which is read off autograd's graph: one operator against several
    compares kernels, not norms.

    The share of the norms in a training step is 1 − the time of a step without norms / that with them, step by step in
    turn. Beside it stand the operators that a step gives to the device, but for views. A GPU takes some microseconds to
    start each: where a step lasts about as long as that, as of small models, it compares these numbers and not what the
    norms compute, and other kernels or CUDA graphs would give another answer. Times are medians over rounds, with a
    95 % interval of order statistics.
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
    ) -> None:
        self.sizes, self.beyond = [*product(rows, features)], beyond
        self.dtypes, self.implementations, self.rounds, self.steps = dtypes, implementations, rounds, steps

    # ---- what is measured

    def sizes_on(self, device: torch.device, dtype: str) -> list[tuple[int, int]]:
        """Return rows and features of each input, the one beyond the cache included where it is wanted."""
        wanted = device.type == "cuda" if self.beyond is None else self.beyond
        if not wanted:
            return self.sizes
        features = max(width for _, width in self.sizes)
        row_bytes = features * getattr(torch, dtype).itemsize
        rows = math.ceil(BEYOND * last_level_cache(device) / row_bytes)
        return [*dict.fromkeys([*self.sizes, (rows, features)])]

    def check(self, subject: Subject) -> None:
        """Refuse sizes that do not fit into memory, a norm that does nothing, and one without any implementation."""
        sizes = [size for dtype in self.dtypes for size in self.sizes_on(subject.device, dtype)]
        rows, features = max(sizes, key=math.prod)
        needed = 4 * NEEDED * rows * features + last_level_cache(subject.device)
        what = f"study.rows={rows} with study.features={features}"
        if (rows, features) not in self.sizes:
            what = "study.beyond=true"
        check_memory(needed, what, subject.device)
        check_steps(subject)
        name, words = subject.settings["norm"], ",".join(self.implementations)
        for features in {size[1] for size in self.sizes}:
            one = next(candidates(subject, features, self.implementations), None)
            if one is None:
                raise UsageError(f"study.implementations={words}: norm={name} has none of these here, add eager")
            if one.norm(x := torch.zeros(1, 2, features, device=subject.device)) is x:
                raise UsageError(f"norm={name} leaves its input as it is, which costs nothing: leave it out")

    def measure(self, subject: Subject) -> Iterator[Row]:
        """Yield the rows of one subject."""
        return (row for _, row in self.measure_together([subject]))

    def measure_together(self, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Row]]:
        """Yield a row for each round of each candidate and model, and one with the reason for what cannot be run."""
        for dtype in self.dtypes:
            try:
                make_precision(PRECISIONS[dtype], subjects[0].device)
            except UsageError as error:
                yield subjects[0], {"device": device_name(subjects[0].device), "dtype": dtype, "code": str(error)}
                continue
            for rows, features in self.sizes_on(subjects[0].device, dtype):
                torch.compiler.reset()  # so that each size is compiled for itself
                yield from self.timed(subjects, rows, features, dtype)
        if self.steps:
            yield from self.timed_steps(subjects)

    def timed(self, subjects: Sequence[Subject], rows: int, features: int, dtype: str) -> Iterator[tuple[Subject, Row]]:
        """Yield what is measured at one size and dtype."""
        device, generator = subjects[0].device, torch.Generator().manual_seed(0)
        x, dy, source = torch.randn(3, 1, rows, features, generator=generator).to(device, getattr(torch, dtype))
        target, layernorm = torch.empty_like(x), nn.LayerNorm(features, device=device, dtype=x.dtype)
        words, about = self.implementations, list[tuple[Subject, Row]]()
        known = [Candidate("torch", code_of(layernorm), layernorm)]
        where: Row = {"device": device_name(device), "caches": x.nbytes / last_level_cache(device)}
        size: Row = {"rows": rows, "features": features, "dtype": dtype, **where}
        for subject, one in [(each, one) for each in subjects for one in candidates(each, features, words)]:
            fact = {**size, "implementation": one.implementation, "code": one.code}
            try:
                fact["operators"] = operators(one.norm(x.requires_grad_()))
            except Exception as error:  # a compiler may raise anything
                yield subject, {**fact, "code": explain(error.__cause__ or error)}
                continue
            known.append(one)
            about.append((subject, fact))
        flush = torch.zeros(last_level_cache(device) // 4, device=device).sum
        conditions = [*product({"warm": None, "cold": flush}.items(), range(self.rounds))]
        for passes, moved in MOVED.items():
            with torch.set_grad_enabled(passes != FORWARD):
                timed = [Timed(one.call(x, dy if passes == BOTH else None)) for one in known]
                peaks = [peak_memory(one.call, device) for one in timed[1:]]
                timed = [Timed(lambda: target.copy_(source)), *timed]
                measured = [in_turn(timed, number, prepare) for (_, prepare), number in conditions]
            for ((cache, _), number), (copied, first, *times) in zip(conditions, measured, strict=True):
                row = {"passes": passes, "moved_bytes": moved * x.nbytes, "cache": cache, "round": number}
                row |= {"copy_us": copied, "floor_us": (floor := copied * moved / 2), "baseline_us": first}
                for (subject, fact), peak, time in zip(about, peaks, times, strict=True):
                    ratios = {"ratio": time / first, "over_floor": time / floor, "memory": peak / x.nbytes}
                    yield subject, {**fact, **row, **ratios, "time_us": time}

    def timed_steps(self, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Row]]:
        """Yield what is measured of training steps, with norms and without."""
        none, timed, about = section_of("norm", "none"), list[Timed](), list[Row]()
        count = self.steps + WARM_UP + COUNTED
        for subject in subjects:
            step, norms = training_step(subject, subject.tree["norm"], count)
            bare, _ = training_step(subject, none, count)
            timed += [Timed(step), Timed(bare)]
            code = f"{len(norms)} × {code_of(norms[0])}" if norms else "none"
            counts = (operators_of(each, subject.device) for each in (step, bare))
            about.append(
                {
                    "device": device_name(subject.device),
                    "code": code,
                    **dict(zip(("launches", "launches_without"), counts, strict=True)),
                }
            )
        for number in range(self.steps):
            times = in_turn(timed, number, prepare=lambda: None)
            for subject, fact, time, without in zip(subjects, about, times[::2], times[1::2], strict=True):
                row: Row = {"passes": STEP, **fact, "round": number, "share": 100 * (1 - without / time)}
                yield subject, {**row, "time_us": time, "without_us": without}

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[str]:
        """Say how long each norm takes beside torch's LayerNorm, at the largest size, and its share of a step."""
        return [sentence for where, own in by_device(rows) for sentence in findings_on(where, own, self.sizes)]

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        """Say what each costs at each size, which pairs compare like with like, and the norms' share of a step."""
        return [table for where, own in by_device(rows) for table in tables_on(where, own, self.sizes)]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        """Draw at which speed bytes move, beside a copy."""
        return [figure for where, own in by_device(rows) for figure in figures_on(where, own)]


# ---- what was found on one device; where: in words, empty where there is no other; sizes: those that were asked for


def by_device(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each device, by its name: times of two GPUs are in no table together."""
    if "device" not in rows or rows["device"].nunique() < 2:
        return [("", rows)]
    return [(str(name), own) for name, own in rows.groupby("device", sort=False)]


def findings_on(where: str, rows: pd.DataFrame, sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the shares of a training step, and the times at the largest size that was asked for."""
    at, shares = f"{where}, " if where else "", rows[rows["passes"] == STEP]
    for arm in arms_of(rows):
        if is_arm(shares, arm.settings).any():
            told = rounds_told(shares[is_arm(shares, arm.settings)]["share"])
            yield f"{at}{labelled(arm)}: {told} % of a training step."
    norms = rows[(rows["passes"] == BOTH) & (rows["cache"] == "warm") & asked_for(rows, sizes)]
    for arm in arms_of(rows):
        own = norms[is_arm(norms, arm.settings)]
        own = own[own["moved_bytes"] == own["moved_bytes"].max()]
        for (dtype, implementation), times in own.groupby(["dtype", "implementation"], sort=False)["ratio"]:
            what = f"{at}{labelled(arm)}, {implementation}, {dtype}, {size_told(own)}: {BOTH} in"
            yield f"{what} {rounds_told(times)} times that of torch.nn.LayerNorm."


def tables_on(where: str, rows: pd.DataFrame, sizes: Sequence[tuple[int, int]]) -> Iterator[Table]:
    """Yield the tables that have rows."""
    norms, found = rows[rows["passes"].isin([*MOVED])], list[Table]()
    at, behind = f", {where}" if where else "", f"-{key_word(where)}" if where else ""
    for (dtype, count, width), own in norms.groupby(["dtype", "rows", "features"], sort=False):
        title = f"{count:,.0f} rows × {width:,.0f} features, {dtype}{in_caches(own)}{at}"
        by = [*varied(rows), "implementation", "code", "passes", "cache"]
        found.append(summed(f"costs-{dtype}-{count:.0f}-{width:.0f}{behind}", title, own, by, COSTS))
    asked = asked_for(norms, sizes)
    for part, end in ((norms[asked], behind), (norms[~asked], f"-beyond{behind}")):
        found += [pair_table(str(dtype), own, at, end) for dtype, own in part.groupby("dtype", sort=False)]
    if len(steps := rows[rows["passes"] == STEP]):
        known = [name for name in OF_STEP if name in steps]  # an earlier study has counted no operators
        found.append(summed(f"steps{behind}", f"Norms in a training step{at}", steps, [*varied(rows), "code"], known))
    if len(failed := rows[rows["time_us"].isna()]):
        cells = failed[["dtype", "code"]].to_dict("records")
        found.append(plain_table(f"left-out{behind}", f"Not measured{at}", cells, 2))
    return (table for table in found if table.rows)


def figures_on(where: str, rows: pd.DataFrame) -> Iterator[Figure]:
    """Yield a figure for each format and state of the cache."""
    at = f", {where}" if where else ""
    for (dtype, cache), own in rows[rows["passes"].isin([*MOVED])].groupby(["dtype", "cache"], sort=False):
        yield from roofline(f"{dtype}, {cache} cache{at}", own)


def asked_for(rows: pd.DataFrame, sizes: Sequence[tuple[int, int]]) -> pd.Series:
    """Say which rows are of a size that was asked for, and not of the input beyond the cache."""
    return pd.Series([size in sizes for size in zip(rows["rows"], rows["features"], strict=True)], rows.index, bool)


def size_told(rows: pd.DataFrame) -> str:
    """Name the one size of rows whose calls follow each other, and where their input is."""
    return f"{rows['rows'].iloc[0]:,.0f} × {rows['features'].iloc[0]:,.0f}{in_caches(rows) or ', warm cache'}"


def in_caches(rows: pd.DataFrame) -> str:
    """Say how large an input is beside the last level cache, where it does not fit."""
    share = rows["caches"].iloc[0] if "caches" in rows else 0
    return f", {significant(share)} times the last level cache" if share > 1 else ""


def key_word(name: str) -> str:
    """Return a name of a device as a part of a key."""
    return re.sub(r"\W+", "-", name).strip("-").lower()


def varied(rows: pd.DataFrame) -> list[str]:
    """Return the settings that tell arms apart, the norm always."""
    return [key for key in keys_of(rows) if key == "norm" or rows[key].nunique(dropna=False) > 1]


def ends(values: pd.Series) -> tuple[float, float]:
    """Return the 95 % interval of a median, whose ends are order statistics; NaN for fewer than six values."""
    low, high = quantile_test(values, q=0, p=0.5).confidence_interval(0.95)
    return float(low), float(high)


def rounds_told(values: pd.Series) -> str:
    """Write the median over rounds with its interval."""
    low, high = ends(values)
    known = (
        f" ({significant(low)} to {significant(high)}; {len(values)} rounds)"
        if low < high
        else f" ({len(values)} rounds)"
    )
    return significant(values.median()) + known


def summed(key: str, title: str, rows: pd.DataFrame, by: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return medians over rounds, with their intervals. by: columns that tell rows of the table apart."""
    cells = []
    for values, own in rows.groupby([*by], sort=False, dropna=False):
        row: Row = {HEADS.get(name, name): str(value) for name, value in zip(by, values, strict=True)}
        for name in numbers:
            low, high = ends(own[name])
            interval = f" [{significant(low)}, {significant(high)}]" if low < high else ""
            row[Bench.columns[name].label] = significant(own[name].median()) + interval
        cells.append(row)
    said = f"Medians of {rows['round'].nunique()} rounds, from six on with 95 % intervals; ratios are of one round."
    return plain_table(key, title, cells, len(by), said)


def pair_table(dtype: str, rows: pd.DataFrame, at: str = "", behind: str = "") -> Table:
    """Say which pairs of norms compare like with like in an implementation, at the largest size among rows."""
    rows = rows[(rows["moved_bytes"] == rows["moved_bytes"].max()) & (rows["cache"] == "warm")]
    arms, title = varied(rows), f"Pairs of norms, {BOTH}, {dtype}: {size_told(rows)}{at}"
    rows = rows.assign(arm=rows.groupby(arms, sort=False, dropna=False).ngroup())
    pairs = rows.merge(rows, on=["implementation", "round"], suffixes=("", OTHER))
    pairs = pairs[pairs["arm"] < pairs["arm" + OTHER]]
    both = pairs[["operators", "operators" + OTHER]].itertuples(index=False)
    pairs = pairs.assign(quotient=pairs["time_us"] / pairs["time_us" + OTHER], like=[*starmap(alike, both)])
    by = ["implementation", *arms, *(key + OTHER for key in arms), "operators", "operators" + OTHER, "like"]
    return summed(f"pairs-{dtype}{behind}", title, pairs, by, ["quotient"])


def roofline(what: str, rows: pd.DataFrame) -> list[Figure]:
    """Draw the speed at which the bytes move that must, against how many they are, beside that of a copy."""
    found = pd.concat([rows, rows.assign(norm="copy", time_us=rows["floor_us"])])
    found = found.assign(panel=found["implementation"] + ", " + found["passes"], megabytes=found["moved_bytes"] / 1e6)
    found["speed"] = found["megabytes"] / found["time_us"] * 1e3
    speeds = found.groupby([*keys_of(rows), "seed", "panel", "megabytes"], sort=False, dropna=False)["speed"]
    points = speeds.median().reset_index()
    points[["low", "high"]] = [ends(own) for _, own in speeds]
    columns = {"megabytes": Column("what must move", "MB"), "speed": Column("speed at which it moves", "GB/s")}
    title, caption = f"{Bench.captions['roofline']['title']}, {what}", Bench.captions["roofline"]["caption"]
    return curves("roofline_" + re.sub(r"\W+", "_", what), points, x="megabytes", y="speed",
                  columns={**columns, "panel": Column("")}, title=title, caption=caption,
                  panel="panel", log="xy", band=("low", "high"))  # fmt: skip
