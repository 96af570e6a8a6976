"""TensorBoard on a sweep: each arm is a run of its own, the mean of its seeds with a band, written where runs lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_runs import make_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.util.tensor_util import make_ndarray

from normbench.cli import main
from normbench.commands.report import report_of_sweep
from normbench.evidence import study as studies
from normbench.evidence.run import read_run
from normbench.runs.finding import run_directories
from normbench.show.tensorboard import write_arms


def series(folder: Path, tag: str) -> dict[int, float]:
    """What TensorBoard reads under a tag."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {event.step: event.value for event in read.Scalars(tag)}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two arms of three seeds."""
    for norm in ("layernorm", "rmsnorm"):
        for seed, final in enumerate((2.0, 2.3, 1.9)):
            make_run(tmp_path / "study", norm=norm, seed=seed, final=final)
    return tmp_path / "study"


def test_an_arm_is_the_mean_of_its_seeds_with_a_band(study: Path) -> None:
    assert write_arms(study)
    runs = [read_run(run, name) for name, run in run_directories(study).items() if name.startswith("rmsnorm")]
    assert len(runs) == 3
    losses = np.stack([run.curves["loss/val"].values for run in runs])
    mean, spread = losses.mean(axis=0), losses.std(axis=0, ddof=1)
    wanted: dict[str, Any] = {"loss/val": mean, "arm/loss/val/value": mean}
    wanted |= {"arm/loss/val/lower": mean - spread, "arm/loss/val/upper": mean + spread}
    for tag, values in wanted.items():
        found = series(study / "arms" / "rmsnorm", tag)
        assert list(found) == runs[0].curves["loss/val"].steps.tolist(), tag
        np.testing.assert_allclose(list(found.values()), values, rtol=1e-6)
    read = EventAccumulator(str(study / "arms" / "rmsnorm"), size_guidance={"tensors": 0}).Reload()
    (event,) = read.Tensors("custom_scalars__config__")
    (category,) = Layout.FromString(make_ndarray(event.tensor_proto).item()).category
    tags = {getattr(each, name) for chart in category.chart for each in chart.margin.series
            for name in ("value", "lower", "upper")}  # fmt: skip
    assert {"arm/loss/val/value", "arm/loss/val/lower"} <= tags <= {*read.Tags()["scalars"]}


def test_arms_are_of_the_runs_that_there_are_and_are_no_runs(study: Path) -> None:
    names = set(run_directories(study))
    assert write_arms(study.parent) and set(run_directories(study)) == names
    for norm, seed in (("dyt", 0), ("dyt", 1)):
        make_run(study, norm=norm, seed=seed)
    assert write_arms(study) and {path.parent.name for path in study.rglob("arms/*/events*")} == {
        "layernorm", "rmsnorm", "dyt",
    }  # fmt: skip
    assert len([*study.rglob("arms/*/events*")]) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_at_a_sweep_s_end_each_run_is_read_once(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(studies, "run_beside", lambda work: work)  # what another process reads is not seen here
    monkeypatch.setattr(studies, "read_run", lambda run, name: names.append(name) or read_run(run, name))
    report_of_sweep(study, quiet=True)
    assert sorted(names) == sorted(run_directories(study))
    assert {path.name for path in (study / "arms").iterdir()} == {".normbench", "layernorm", "rmsnorm"}
    assert (study / "report/report.html").exists()


def test_a_report_writes_arms_where_they_are_wanted(study: Path) -> None:
    words = ["report", str(study), "--out", str(study.parent / "page")]
    assert main(words) == 0
    assert not (study / "arms").exists()
    assert main([*words, "--arms"]) == 0
    written = {path.relative_to(study / "arms").parts[0] for path in study.glob("arms/*/events*")}
    assert written == {"layernorm", "rmsnorm"}
    assert main(words) == 0
    runs = pd.read_csv(study.parent / "page" / "runs.csv")
    assert len(runs) == 6, "which are those that were trained"


def test_a_folder_of_the_user_s_own_named_arms_stays_and_one_seed_needs_no_arms(tmp_path: Path) -> None:
    for norm in ("layernorm", "rmsnorm"):
        make_run(tmp_path / "one", norm=norm)
    assert not write_arms(tmp_path / "one") and not (tmp_path / "one" / "arms").exists()
    make_run(tmp_path / "one", norm="layernorm", seed=1)
    own = tmp_path / "one" / "arms" / "mine.txt"
    own.parent.mkdir()
    own.write_text("mine")
    assert not write_arms(tmp_path / "one")
    assert list(own.parent.iterdir()) == [own]
