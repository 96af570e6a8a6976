"""Run directories read as a study: arms by what varies, runs by seed, and what is damaged named."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_runs import make_run, make_study

from normbench.analysis.curves import read_recorded
from normbench.analysis.records import read_run, read_study
from normbench.errors import UsageError
from normbench.rundir import RunDirectory


def test_arms_differ_in_what_varies_and_have_a_run_for_each_seed(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.2]})
    make_run(tmp_path, norm="layernorm", placement="post", seed=0)
    study = read_study([tmp_path])
    assert study.varied == ("norm", "placement")
    assert [(arm.name, [run.seed for run in arm.runs]) for arm in study.arms] == [
        ("layernorm · post", [0]),
        ("layernorm · pre", [0, 1]),
        ("rmsnorm · pre", [0, 1]),
    ]


def test_a_setting_that_varies_within_an_option_names_arms(tmp_path: Path) -> None:
    for lr in (1e-3, 3e-3):
        make_run(tmp_path, lr=lr)
    assert [arm.name for arm in read_study([tmp_path]).arms] == ["lr=0.001", "lr=0.003"]


def test_what_follows_from_another_setting_names_no_arm(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm", lr=1e-3)
    make_run(tmp_path, norm="rmsnorm", lr=3e-3)
    assert read_study([tmp_path]).varied == ("norm",)


def test_seed_threads_place_and_probes_tell_no_arms_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "here", seed=0)
    make_run(tmp_path / "there", seed=1, settings={"threads": 2, "name": "other", "probes.every": 7})
    assert len(read_study([tmp_path / "here", tmp_path / "there"]).arms) == 1


def test_a_run_that_was_set_aside_is_none(tmp_path: Path) -> None:
    make_run(tmp_path, name="run")
    make_run(tmp_path, name="run.old1")
    assert [run.name for run in read_study([tmp_path]).runs] == ["run"]


# ---- curves


def lines(entries: list[dict[str, float | None]]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def test_curves_are_those_that_json_reads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    entries: list[dict[str, float | None]] = []
    for step in range(1, 200):
        entry: dict[str, float | None] = {
            "step": step,
            "loss/train": float(random.standard_normal()),
            "whole": step % 3,
        }
        if step % 3:
            entry["time/step_ms"] = float(random.random() * 10.0 ** random.integers(-30, 30))
        entries.append(entry)
        if step % 10 == 0:
            entries.append({"step": step, "loss/val": None if step == 50 else step / 7, "accuracy/val": 0.5})
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(entries))
    recorded = read_recorded(path)
    assert (recorded.torn, recorded.damage) == ("", "")
    for tag in ("loss/train", "time/step_ms", "loss/val", "accuracy/val", "whole"):
        wanted = [(entry["step"], entry[tag]) for entry in entries if tag in entry]
        curve = recorded.curves[tag]
        assert curve.steps.tolist() == [step for step, _ in wanted]
        values = np.array([np.nan if value is None else value for _, value in wanted], float)
        np.testing.assert_array_equal(curve.values, values)


def test_a_torn_last_line_ends_the_curves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines([{"step": 1, "loss/train": 3.0}, {"step": 2, "loss/train": 2.0}]) + '{"step": 3, "loss/tr')
    recorded = read_recorded(path)
    assert recorded.curves["loss/train"].values.tolist() == [3.0, 2.0]
    assert (recorded.torn, recorded.damage) == ("the last line of metrics.jsonl, 3, is torn", "")


@pytest.mark.parametrize(
    "broken",
    [
        '{"step": 2, "loss/tr',
        "{}",
        "[1, 2]",
        '{"step": 2, "loss/train": "low"}',
        '{"step": 2}{"step": 3}',
        "\x00\x00",
        '{"step": 1e999, "loss/train": 1.0}',
    ],
)
def test_a_broken_line_between_others_is_damage(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines([{"step": 1, "loss/train": 3.0}]) + broken + "\n" + lines([{"step": 4, "loss/train": 1.0}]))
    recorded = read_recorded(path)
    assert recorded.damage == "metrics.jsonl is damaged at line 2 of 3"
    assert recorded.curves["loss/train"].steps.tolist() == [1]


def test_empty_lines_are_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first, last = lines([{"step": 1, "loss/train": 3.0}]), lines([{"step": 2, "loss/train": 2.0}])
    for torn, content in ((False, f"{first}\n \n{last}\n\n"), (True, f"{first}\n{last}" + '{"step": 3, "lo')):
        path.write_text(content)
        recorded = read_recorded(path)
        assert recorded.curves["loss/train"].steps.tolist() == [1, 2]
        assert (bool(recorded.torn), recorded.damage) == (torn, "")


def test_metrics_that_are_missing_are_damage(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in read_recorded(tmp_path / "metrics.jsonl").damage


# ---- bad input


def test_a_damaged_summary_is_named_and_left_out(tmp_path: Path) -> None:
    make_run(tmp_path, seed=0)
    bad = make_run(tmp_path, seed=1, name="bad")
    (bad / "summary.json").write_text('{"status": "fini')
    study = read_study([tmp_path])
    assert study.damaged == (("bad", "summary.json is damaged"),)
    assert [run.seed for run in study.runs] == [0]


WRONG_SHAPES = [
    ("summary.json", "status", "done"),
    ("summary.json", "metrics", None),
    ("summary.json", "metrics", []),
    ("summary.json", "metrics", {"loss/val": "abc"}),
    ("summary.json", "step", [1]),
    ("summary.json", "step", "many"),
    ("summary.json", "steps", float("inf")),
    ("summary.json", "step_time", [1.0]),
    ("summary.json", "step_time", {"median_ms": "fast"}),
    ("summary.json", "peak_memory_bytes", "much"),
    ("summary.json", "ledger", []),
    ("summary.json", "ledger", {"parameters": 5}),
    ("summary.json", "norm_facts", []),
    ("summary.json", "data", []),
    ("summary.json", "choices", []),
    ("summary.json", "message", 5),
    ("environment.json", "sessions", {}),
    ("environment.json", "sessions", [1]),
    ("environment.json", "task", None),
    ("environment.json", "packages", []),
    ("environment.json", "choices", []),
    ("environment.json", "threads", "two"),
    ("config.yaml", "seed", None),
    ("config.yaml", "seed", "first"),
    ("config.yaml", "optim.lr", "high"),
    ("config.yaml", "optim.lr", date(2026, 1, 1)),
]


@pytest.mark.parametrize(("file", "key", "value"), WRONG_SHAPES)
def test_what_has_another_shape_is_damaged(tmp_path: Path, file: str, key: str, value: object) -> None:
    path = make_run(tmp_path, name="bad")
    if file == "config.yaml":
        changed(path / file, key, value)
    else:
        content = json.loads((path / file).read_text())
        (content["sessions"][0] if "sessions" in content and key != "sessions" else content)[key] = value
        (path / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(f"{file} is damaged ({key})")):
        read_run(RunDirectory(path), "bad")


def changed(path: Path, key: str, value: object) -> None:
    """Write another value into a configuration."""
    tree = yaml.safe_load(path.read_text())
    section, _, last = key.rpartition(".")
    (tree[section] if section else tree)[last] = value
    path.write_text(yaml.safe_dump(tree))


def test_an_unknown_status_is_damage(tmp_path: Path) -> None:
    path = make_run(tmp_path, status="running")
    (path / "status.json").write_text('{"status": "asleep"}')
    with pytest.raises(ValueError, match=r"status.json is damaged \(status\)"):
        read_run(RunDirectory(path), "bad")


def test_a_date_in_a_list_of_settings_is_damage(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    changed(path / "config.yaml", "optim.betas", [date(2026, 1, 1)])
    with pytest.raises(ValueError, match=r"config.yaml is damaged"):
        read_run(RunDirectory(path), "bad")


@pytest.mark.parametrize("metrics", [{"loss/val": None}, {}, {"loss/val": math.nan}])
def test_a_run_that_ends_without_a_finite_validation_loss_diverged(tmp_path: Path, metrics: dict[str, float]) -> None:
    run = read_run(RunDirectory(make_run(tmp_path, summary={"metrics": metrics})), "lost")
    assert (run.status, run.message, run.ended) == ("diverged", "its final validation loss is not finite", True)


def test_a_test_loss_that_is_not_finite_is_divergence_too(tmp_path: Path) -> None:
    run = read_run(RunDirectory(make_run(tmp_path, summary={"metrics": {"loss/val": 2.0, "loss/test": None}})), "lost")
    assert (run.status, run.message) == ("diverged", "its final test loss is not finite")


def test_no_folder_no_runs_and_no_results_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder: "):
        read_study([tmp_path / "none"])
    with pytest.raises(UsageError, match="holds no runs: "):
        read_study([tmp_path])
    make_run(tmp_path, status="running")
    with pytest.raises(UsageError, match="holds no run that has ended: "):
        read_study([tmp_path])


def test_mixed_tasks_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, kind="image_classification", accuracy=0.9)
    with pytest.raises(UsageError, match=r"different tasks \(image_classification, language_model\): "):
        read_study([tmp_path])
