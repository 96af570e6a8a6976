"""What a norm costs: what is counted is checked against torch by hand, what is timed against its own benchmark."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from studied import subject
from support import WHOLE
from torch import nn
from torch.nn import functional as F
from torch.utils import benchmark

from normbench.build import factory
from normbench.cli import main
from normbench.config.recipe import Recipe
from normbench.errors import UsageError
from normbench.norms import RMSNorm
from normbench.studies import bench, timing
from normbench.studies.bench import FORWARD, FORWARD_BACKWARD, Bench
from normbench.studies.candidates import Candidate, are_alike, make_candidates, name_operators, peak_memory
from normbench.studies.steps import steps
from normbench.studies.timing import BLOCK, do_nothing, median_interval, seconds_of, time_in_turn
from normbench.training.launches import count_operators

CPU = torch.device("cpu")
MADE = Bench(rows=[16, 64], features=[32])  # which the rows of `made` are of


def test_operators_are_read_off_the_graph() -> None:
    """One kernel is named, several are counted; views, leaves and casts do not count as operators."""
    x = torch.randn(3, 8, requires_grad=True)
    assert name_operators(nn.LayerNorm(8)(x)) == "NativeLayerNorm"
    assert name_operators(F.layer_norm(x.movedim(-1, 0).movedim(0, -1), (8,))) == "NativeLayerNorm"
    assert name_operators(torch.tanh(2 * x).add(1)) == "3 operators"
    assert name_operators(nn.LayerNorm(8)(x.bfloat16().float()).bfloat16()) == "NativeLayerNorm, 3 casts"
    assert name_operators(RMSNorm(512)(torch.randn(100, 512, requires_grad=True))) == "RMSNormFunction"
    assert "operators" in name_operators(F.rms_norm(x, (8,))), "torch has fused it: say so in the page of this study"


def test_a_kernel_is_compared_with_a_kernel() -> None:
    for one, other in (("NativeLayerNorm", "FusedRmsNorm"), ("9 operators", "4 operators"), ["CompiledFunction"] * 2):
        assert are_alike(one, other)
    for other in ("6 operators", "CompiledFunction", "NativeLayerNorm, 2 casts"):
        assert not are_alike("NativeLayerNorm", other)


@pytest.mark.parametrize("compiled", [False, True])
def test_operators_of_a_step_are_counted_where_no_norm_hides_them(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = nn.LayerNorm(4)
    norm.compiled = compiled  # type: ignore[assignment]
    calls = []
    monkeypatch.setattr(bench, "training_step", lambda *_: (lambda: calls.append(torch.ones(2) + 1), [norm]))
    row = bench.warm_up_steps(subject("model.depth=1"), 4).row
    assert ("launches" in row, "launches_without" in row) == (not compiled, not compiled)
    assert len(calls) == 2 * bench.WARM_UP_STEPS + (0 if compiled else 2)


def test_a_step_without_norms_has_none_by_rules_either() -> None:
    one = subject("model.depth=2", "norm@qk=rmsnorm", "weights@mlp=spectral")
    _, norms = bench.training_step(one, bench.leave_out_norms(one.tree), 2)
    assert norms and all(norm(x := torch.ones(1)) is x for norm in norms)
    _, norms = bench.training_step(one, one.tree, 2)
    assert bench.count_codes(norms) == "4 × native and 5 × torch.nn.functional.layer_norm"


def test_steps_that_are_not_finite_are_timed_too() -> None:
    one = subject("model.depth=8", "norm=none", "init=normal", "init.weight_std=1000", "trainer.steps=3")
    model, norms = one.build()
    assert not list(steps(one, model, norms))
    take_next, _ = bench.training_step(one, one.tree, 3)
    assert not math.isfinite([take_next() for _ in range(3)][-1].loss)


def test_peak_memory_is_that_of_all_tensors_held_at_once() -> None:
    """A product of two new tensors is a third; one that is freed in between no longer counts."""
    x = torch.randn(1000)
    assert peak_memory(lambda: x.neg() * x.exp(), CPU) == 3 * x.nbytes
    assert peak_memory(lambda: (x.neg()[:1].clone(), x.neg()), CPU) == x.nbytes + 4
    norm, wanted = nn.LayerNorm(50, elementwise_affine=False), torch.randn(200, 50, requires_grad=True)
    peak = peak_memory(Candidate("", "", norm).call(wanted, torch.ones(200, 50)), CPU)
    assert peak == 2 * wanted.nbytes + 2 * 200 * 4  # y, ∂x, and the mean and 1/σ of each row


def test_operators_of_a_step_are_counted_without_views() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    assert count_operators(lambda: (x.detach().view(8, 4).T, torch.empty_like(x)), CPU) == 0
    # of the norm, the sum, its gradient's start, and the norm's
    assert count_operators(lambda: F.layer_norm(x, (8,)).sum().backward(), CPU) == 4


def test_the_backward_pass_gives_the_gradients_and_adds_them_to_none() -> None:
    norm, x, dy = nn.LayerNorm(8), torch.randn(5, 8, requires_grad=True), torch.randn(5, 8)
    found: Any = Candidate("", "", norm).call(x, dy)()
    assert x.grad is None and norm.weight.grad is None
    norm(x).backward(dy)
    assert all(torch.equal(one, leaf.grad) for one, leaf in zip(found, (x, norm.weight, norm.bias), strict=True))


def test_the_interval_of_a_median_has_its_order_statistics() -> None:
    """Of nine values the second and the eighth: 95 % and more by the binomial distribution, (1 − 2·10/512)."""
    assert median_interval(pd.Series(range(9))) == (1, 7)
    assert all(end != end for end in median_interval(pd.Series(range(5))))


def test_each_round_begins_with_another_and_keeps_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[float] = []
    monkeypatch.setattr(timing, "seconds_of", lambda call, times, prepare: order.append(call()) or call())
    calls = [lambda place=place: place for place in range(3)]
    assert list(time_in_turn(calls, 2, prepare=do_nothing)) == [[0, 1, 2]] * 2
    assert order == [0, 1, 2, 1, 2, 0]


def test_a_cold_call_is_timed_alone_right_after_the_flush() -> None:
    done: list[str] = []
    ((seconds,),) = time_in_turn([lambda: done.append("call")], 1, prepare=lambda: done.append("flush"))
    assert seconds > 0 and done == ["flush", "call"]


def test_a_warm_call_is_the_mean_of_a_block_after_one_that_warms_up() -> None:
    done: list[str] = []

    def call() -> None:
        done.append("call")
        time.sleep(BLOCK / 4)

    ((seconds,),) = time_in_turn([call], 1)
    assert seconds >= BLOCK / 4
    assert 3 + 1 <= len(done) <= 3 + 4  # two tell how long one is, one warms up


def test_implementations_are_those_that_are_there() -> None:
    words = ("torch", "native", "eager", "compile")
    found = {name: [(one.implementation, one.code) for one in make_candidates(subject(f"norm={name}"), 32, words)]
             for name in ("layernorm", "dyt")}  # fmt: skip
    compiled = ("compile", "torch.compile")
    assert found["layernorm"] == [("torch", "torch.nn.functional.layer_norm"), ("eager", "eager"), compiled]
    assert found["dyt"] == [("native", "native"), ("eager", "eager"), compiled]
    own, other = make_candidates(subject("norm._target_=torch.nn.RMSNorm", "~norm.impl"), 32, words)
    assert own.code.endswith("RMSNorm") and other.code == f"torch.compile of {own.code}"


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        (["norm=none"], {}, "norm=none leaves its input as it is"),
        (["norm=dyt"], {"implementations": ["torch"]}, "norm=dyt has none of these here, add eager"),
        (["norm=layernorm"], {"rows": [10**9], "features": [10**6]}, "GiB"),
        (["norm=groupnorm", "norm.groups=32"], {"features": [33]}, "33"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(words: list[str], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Bench(**settings).check(subject(*words))


def test_a_number_format_that_ends_the_process_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, device: torch.device) -> None:
        raise UsageError("it died of signal 4")

    monkeypatch.setattr(bench, "make_precision", refused)
    (row,) = Bench(dtypes=["bfloat16"], steps=0).measure(subject("norm=layernorm"))
    assert row == {"device": "cpu", "dtype": "bfloat16", "code": "it died of signal 4"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    """The rows of a small bench, made by the command, beside its figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("bench"))
        patch.setattr(bench, "last_level_cache", lambda device: 2**20)
        small = "study.rows=16,64 study.features=32 study.dtypes=float32 study.rounds=6 study.steps=2"
        words = f"norm=layernorm,rmsnorm study.implementations=torch,eager {small} threads=1 quiet=true"
        assert main(["bench", *words.split(), "model.depth=1", "model.width=32"]) == 0
        folder = Path("outputs/bench/studies/bench").resolve()
        assert {path.name for path in (folder / "figures").glob("*.svg")} == {
            f"roofline_float32_{cache}_cache.svg" for cache in ("warm", "cold")
        }
        yield pd.read_csv(folder / "rows.csv")


@pytest.mark.slow
def test_every_candidate_is_measured_in_every_round(made: pd.DataFrame) -> None:
    alone = made[made["passes"].isin([FORWARD, FORWARD_BACKWARD])]
    sizes = alone.groupby(["norm", "implementation", "rows", "passes", "cache"]).size()
    assert len(sizes) == 2 * 2 * 2 * 2 * 2 and set(sizes) == {6}
    assert (alone[["time_us", "baseline_us", "copy_us"]] > 0).all(axis=None)
    forward, both = (alone[alone["passes"] == passes] for passes in (FORWARD, FORWARD_BACKWARD))
    assert (forward["moved_bytes"] == 2 * forward["rows"] * 32 * 4).all()
    assert (both["moved_bytes"] == 5 * both["rows"] * 32 * 4).all()
    assert alone["ratio"].to_numpy() == pytest.approx((alone["time_us"] / alone["baseline_us"]).to_numpy())
    copies = alone["moved_bytes"] / (2 * alone["rows"] * 32 * 4)
    assert alone["over_floor"].to_numpy() == pytest.approx((alone["time_us"] / alone["copy_us"] / copies).to_numpy())
    steps = made[made["passes"] == bench.STEP]
    assert len(steps) == 2 * 2 and (steps["without_us"] > 0).all()
    assert steps.groupby("norm")["launches"].nunique().eq(1).all() and steps["launches_without"].nunique() == 1
    layernorm = steps[steps["norm"] == "layernorm"].iloc[0]
    assert layernorm["launches"] - layernorm["launches_without"] >= 2 * 3  # of three norms, forward and backward
    assert set(steps["code"]) == {"3 × torch.nn.functional.layer_norm", "3 × native"}


@pytest.mark.slow
def test_findings_follow_from_the_rows(made: pd.DataFrame) -> None:
    """With times that are made up: twice the baseline's, four times the floor, half of a step."""
    rows = made.assign(ratio=2.0, over_floor=4.0, share=50.0, floor_us=2.0, time_us=8.0)
    tables = {table.key: table.frame for table in MADE.tables(rows)}
    costs = tables["costs-float32-64-32"]
    assert set(costs["× torch.nn.LayerNorm"]) == {"2.00"} and set(costs["× floor"]) == {"4.00"}
    assert len(costs) == 2 * 2 * 2 * 2
    pairs = tables["pairs-float32"].set_index("implementation")
    assert pairs.loc["torch", "like with like"] == "no" and pairs.loc["eager", "like with like"] == "yes"
    assert set(tables["steps"]["share of the norms (%)"]) == {"50.0"}
    figure = MADE.figures(rows)[0].data.set_index("norm")
    assert figure.loc["copy", "mean"].to_numpy() == pytest.approx(4 * figure.loc["rmsnorm", "mean"].to_numpy())


def test_an_input_beyond_the_cache_is_measured_on_a_gpu_or_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "last_level_cache", lambda device: 50 * 2**20)
    gpu, sizes = torch.device("cuda", 0), {"rows": [64], "features": [256, 512]}
    assert Bench(**sizes).sizes_on(CPU, "float32") == Bench(**sizes, beyond=False).sizes_on(gpu, "float32")
    for device, settings in ((gpu, sizes), (CPU, {**sizes, "beyond": True})):
        for dtype, size in (("float32", 4), ("bfloat16", 2)):
            *given, (rows, features) = Bench(**settings).sizes_on(device, dtype)
            assert given == [(64, 256), (64, 512)]
            assert rows * features * size == 2 * 50 * 2**20
    monkeypatch.setattr(bench, "last_level_cache", lambda device: 2**50)
    with pytest.raises(UsageError, match="beyond=true needs about"):
        Bench(beyond=True).check(subject("norm=layernorm"))


@pytest.mark.slow
def test_inputs_beyond_the_cache_say_so_in_their_table(made: pd.DataFrame) -> None:
    assert set(made.loc[made["rows"] == 64, "caches"]) == {64 * 32 * 4 / 2**20}
    rows = made.assign(caches=2.0)
    titles = [table.title for table in MADE.tables(rows) if table.key.startswith("costs-")]
    assert all("2.00 times the last level cache" in title for title in titles)


@pytest.mark.slow
def test_the_finding_is_of_the_size_asked_for_and_names_it(made: pd.DataFrame) -> None:
    beyond = made[made["rows"] == 64].assign(rows=2**14, caches=2.0, moved_bytes=2**30, ratio=100.0)
    rows = pd.concat([made.assign(ratio=3.0), beyond], ignore_index=True)
    times = [sentence for sentence in MADE.finding(rows) if FORWARD_BACKWARD in sentence]
    assert len(times) == 4 and all(", float32, 64 × 32, warm cache: " in sentence for sentence in times)
    assert all("backward in 3.00 (" in sentence for sentence in times)
    titles = {table.key: table.title for table in MADE.tables(rows) if table.key.startswith("pairs-")}
    assert titles["pairs-float32"].endswith("64 × 32, warm cache")
    assert titles["pairs-float32-beyond"].endswith("16,384 × 32, 2.00 times the last level cache")
    assert not [table.key for table in MADE.tables(made) if "beyond" in table.key]


@pytest.mark.slow
def test_rows_of_two_gpus_are_in_no_table_or_figure_together(made: pd.DataFrame) -> None:
    assert set(made["device"]) == {"cpu"}
    both = pd.concat([made.assign(device=name, time_us=made["time_us"] * by, ratio=made["ratio"] * by)
                      for name, by in (("NVIDIA H100", 1.0), ("NVIDIA H200", 100.0))])  # fmt: skip
    alone = {table.key: table.frame for table in MADE.tables(made)}
    tables = {table.key: table.frame for table in MADE.tables(both)}
    assert [*tables] == [f"{key}-{name}" for name in ("nvidia-h100", "nvidia-h200") for key in alone]
    for key, frame in alone.items():
        pd.testing.assert_frame_equal(tables[f"{key}-nvidia-h100"], frame)
    assert len({figure.name for figure in MADE.figures(both)}) == 2 * len(MADE.figures(made))
    assert {sentence.partition(",")[0] for sentence in MADE.finding(both)} == {"NVIDIA H100", "NVIDIA H200"}


def test_what_was_measured_on_another_gpu_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set[str]()
    study = Bench()
    study.settings = {}
    for name in ("NVIDIA H100", "NVIDIA H200"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        one = subject("norm=layernorm")
        one.device = torch.device("cuda", 0)
        keys.add(one.key(study))
    assert len(keys) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_a_compiled_norm_is_one_function_and_agrees_with_its_formula() -> None:
    one = subject("norm=dyt")
    with torch.random.fork_rng():
        rows = [*Bench(rows=[8], features=[16], dtypes=["float32"], rounds=1, steps=0).measure(one)]
    assert {row["operators"] for row in rows if row["implementation"] == "compile"} == {"CompiledFunction"}
    eager, compiled = make_candidates(one, 16, ["eager", "compile"])
    x = torch.randn(1, 8, 16)
    torch.testing.assert_close(compiled.norm(x), eager.norm(x))


HAND_TIMED = product(["layernorm", "rmsnorm"], [16, 128]) if WHOLE else [("layernorm", 128), ("rmsnorm", 16)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), HAND_TIMED)
def test_times_agree_with_a_script_written_by_hand(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tenth, by the median of 81 ratios of neighbours, in CPU time: the machine has other work too."""
    monkeypatch.setattr(benchmark, "timer", time.process_time)
    one, features = subject(f"norm={name}", "norm.impl=torch"), 512
    norm, x, dy = factory(Recipe(one.tree)["norm"])(features), *torch.randn(2, 1, rows, features)
    names = {"norm": norm, "x": x.requires_grad_(), "wanted": [x, *norm.parameters()], "dy": dy}
    by_hand = benchmark.Timer("torch.autograd.grad(norm(x), wanted, dy)", globals=names, timer=time.process_time)
    (candidate,) = make_candidates(one, features, ["torch"])
    ours = candidate.call(torch.randn(1, rows, features).requires_grad_(), dy)
    ratios = [seconds_of(ours, 40, prepare=ours) / by_hand.timeit(40).median for _ in range(81)]
    assert statistics.median(ratios) == pytest.approx(1, abs=0.1)
