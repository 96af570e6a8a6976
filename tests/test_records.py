"""Run directories read as a study: arms by what varies, runs by seed, and what is damaged named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, make_study

from normbench.analysis.curves import read_recorded
from normbench.analysis.records import read_study
from normbench.errors import UsageError


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
        "",
    ],
)
def test_a_broken_line_between_others_is_damage(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines([{"step": 1, "loss/train": 3.0}]) + broken + "\n" + lines([{"step": 4, "loss/train": 1.0}]))
    recorded = read_recorded(path)
    assert recorded.damage == "metrics.jsonl is damaged at line 2 of 3"
    assert recorded.curves["loss/train"].steps.tolist() == [1]


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
