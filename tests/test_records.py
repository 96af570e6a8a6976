"""Run directories read as a study: arms by what varies, runs by seed, and what is damaged named."""

from __future__ import annotations

import json
import os
import signal
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_studies import CONSTANT
from made_runs import make_report, make_run, make_study, read_study

import normbench
from normbench.evidence.run import read_metrics, read_run
from normbench.evidence.study import read_studies, study_of
from normbench.processes import run_beside
from normbench.record.directory import RunDirectory
from normbench.results.examine import Request
from normbench.show.report import report_on, save_all


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


def test_two_classes_of_one_name_are_two_arms(tmp_path: Path) -> None:
    for target in ("a.LayerNorm", "b.LayerNorm", "normbench.norms.LayerNorm"):
        for seed in (0, 1):
            make_run(tmp_path, seed=seed, settings={"norm._target_": target}, name=f"{target}-{seed}")
    study = read_study([tmp_path])
    assert study.varied == ("norm",)
    assert {arm.name: len(arm.runs) for arm in study.arms} == {"a.LayerNorm": 2, "b.LayerNorm": 2, "layernorm": 2}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([{"lr": 1e-3}, {"lr": 3e-3}], ["lr=0.001", "lr=0.003"]),
        ([{"norm": "dyt"}, {"norm": "rmsnorm", "lr": 3e-3}], ["dyt", "rmsnorm"]),  # the rate follows from the norm
        ([{"settings": {"data.batch_size": n}, "lr": n / 1e3} for n in (2, 32)], ["batch_size=2", "batch_size=32"]),
        ([{"settings": {"norm.eps": eps}} for eps in (None, 1e-5)], ["eps=–", "eps=1e-05"]),
        ([{}, {"seed": 1, "settings": {"threads": 2, "name": "other", "probes.every": 7}}], ["all runs"]),
        ([{}, {"seed": 1, "settings": {"logger.csv._target_": "normbench.loggers.Csv"}}], ["all runs"]),
        ([{"name": "run"}, {"name": "run.old1"}], ["all runs"]),
    ],
)
def test_arms_are_named_by_what_tells_them_apart(
    tmp_path: Path, settings: list[dict[str, Any]], names: list[str]
) -> None:
    for own in settings:
        make_run(tmp_path, **own)
    arms = read_study([tmp_path]).arms
    assert [arm.name for arm in arms] == names
    assert ".old" not in "".join(run.name for arm in arms for run in arm.runs)  # which was set aside


# ---- curves


def test_a_study_sees_settings_beside_those_of_other_runs_and_leaves_runs_as_they_were_read(tmp_path: Path) -> None:
    """It sees what is usual and unwritten where others have it, and the paths of classes that share a name."""
    for target in ("a.LayerNorm", "b.LayerNorm", "normbench.norms.LayerNorm"):
        make_run(tmp_path, settings={"norm._target_": target}, name=target)
    make_run(tmp_path, seed=1, settings={"norm.gain0": 0.5})
    read = []
    for path in sorted(tmp_path.iterdir()):
        read.append(read_run(RunDirectory(path), path.name))
    before = [deepcopy(run.config) for run in read]
    study = study_of(read)
    assert [run.config for run in read] == before
    assert all(any(run is own for own in read) for run in study.runs)
    seen = [study.settings_of(run) for run in study.runs]
    assert {settings["norm"] for settings in seen} == {"layernorm", "a.LayerNorm", "b.LayerNorm"}
    assert {settings.get("norm.gain0") for settings in seen if settings["norm"] == "layernorm"} == {1.0, 0.5}


def test_a_report_changes_no_run_that_was_read(tmp_path: Path) -> None:
    for norm in ("layernorm", "rmsnorm", "dyt"):
        for seed in range(3):
            make_run(tmp_path, norm=norm, seed=seed, probed=20, data=CONSTANT)
    study = read_study([tmp_path])
    before = deepcopy([vars(run) for run in study.runs])
    report = report_on(study, {"norm": "layernorm"}, Request())
    save_all([report], [tmp_path], tmp_path / "report")
    for run, as_read in zip(study.runs, before, strict=True):
        for name, value in as_read.items():
            np.testing.assert_equal(vars(run)[name], value)


def test_curves_are_those_that_json_reads(tmp_path: Path) -> None:
    entries: list[dict[str, float | None]] = []
    for step in range(1, 200):
        time = {"time/step_ms": step / 7 * 10.0 ** (step % 60 - 30)} if step % 3 else {}
        entries.append({"step": step, "loss/train": 1 / step, **time})
        entries += [{"step": step, "loss/val": None if step == 50 else step / 7}] if step % 10 == 0 else []
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    recorded = read_metrics(path)
    curves = recorded.curves
    assert not recorded.is_torn and not recorded.damage
    for tag in ("loss/train", "time/step_ms", "loss/val"):
        wanted = [(entry["step"], entry[tag]) for entry in entries if tag in entry]
        curve = curves[tag]
        assert curve.steps.tolist() == [step for step, _ in wanted]
        np.testing.assert_array_equal(curve.values, np.array([value for _, value in wanted], float))


ONE, TWO, FOUR = (f'{{"step": {step}, "loss/train": 1.0}}\n' for step in (1, 2, 4))
TORN = '{"step": 3, "loss/tr'
BROKEN = (TORN, "{}", "[1, 2]", '{"step": 2, "loss/train": "low"}', '{"step": 2}{"step": 3}', '{"step": 1e999}')


@pytest.mark.parametrize(
    ("content", "steps", "torn", "damage"),
    [
        (f"{ONE}{TWO}{TORN}", [1, 2], True, ""),
        (f"{ONE}\n \n{TWO}\n\n", [1, 2], False, ""),
        (
            f"{ONE}{TWO}".rstrip(),
            [1, 2],
            False,
            "",
        ),  # the last line is whole, though it does not end  # empty lines are nothing
        *((f"{ONE}{broken}\n{FOUR}", [1], False, "metrics.jsonl is damaged at line 2 of 3") for broken in BROKEN),
    ],
)
def test_curves_end_at_a_line_that_cannot_be_read(
    tmp_path: Path, content: str, steps: list[int], torn: bool, damage: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    recorded = read_metrics(path)
    assert recorded.curves["loss/train"].steps.tolist() == steps
    assert (recorded.is_torn, recorded.damage) == (torn, damage)


# ---- bad input


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("summary.json", '{"status": "fini', "summary.json is missing or damaged"),
        ("config.yaml", "a: [", "config.yaml is missing or damaged"),
        ("metrics.jsonl", "nothing\n{}\n", "metrics.jsonl is damaged at line 1 of 2"),
    ],
)
def test_a_damaged_run_is_named_and_left_out(tmp_path: Path, file: str, content: str, why: str) -> None:
    make_run(tmp_path, seed=0)
    (make_run(tmp_path, seed=1, name="bad") / file).write_text(content)
    study = read_study([tmp_path])
    assert study.damaged == (("bad", why),) and [run.seed for run in study.runs] == [0]


def other_digit(content: bytes, place: int) -> bytes:
    """Change the first digit from a place on."""
    found = next(index for index in range(place, len(content)) if content[index : index + 1].isdigit())
    digit = b"%d" % ((int(content[found : found + 1]) + 3) % 10)
    return content[:found] + digit + content[found + 1 :]


def test_a_digit_that_has_changed_since_the_end_is_told(tmp_path: Path) -> None:
    """In the digests too; a run that has noted none is read as before."""
    make_run(tmp_path, seed=0)
    path = make_run(tmp_path, seed=1, name="bad")
    directory = RunDirectory(path)
    directory.write_summary(json.loads(directory.summary.read_text()))
    assert read_study([tmp_path]).damaged == () and directory.find_altered() == []
    for file in (directory.config, directory.environment, directory.metrics, directory.summary):
        before = file.read_bytes()
        for place in range(0, len(before) // 2, len(before) // 8):
            file.write_bytes(other_digit(before, place))
            study = read_study([tmp_path])
            assert [name for name, _ in study.damaged] == ["bad"] and [run.seed for run in study.runs] == [0]
        file.write_bytes(before)
    assert read_study([tmp_path]).damaged == ()


def test_tables_of_runs_tell_of_digits_that_have_changed_in_what_they_read(tmp_path: Path) -> None:
    make_run(tmp_path, seed=0)
    directory = RunDirectory(make_run(tmp_path, seed=1, name="bad"))
    directory.write_summary(json.loads(directory.summary.read_text()))
    normbench.load_runs(tmp_path, metrics=True)  # without a warning
    for file in (directory.summary, directory.metrics):
        before = file.read_bytes()
        file.write_bytes(other_digit(before, len(before) // 2))
        with pytest.warns(UserWarning, match=rf"^bad/{file.name}: changed after the run had ended"):
            runs, _ = normbench.load_runs(tmp_path, metrics=True)
        assert len(runs) == 2
        file.write_bytes(before)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("eval_batches:", "eval_batchez:", "it has no trainer.eval_batches"),
        ("seed:", "seeed:", "config.yaml is missing or damaged"),
        ("log_every: ", "log_every: x", "trainer.log_every=x"),
        ("trainer:", "trainer: 3\nx:", "trainer"),
        ("optim:", "optim: 3\nx:", "optim is not a section"),
    ],
)
def test_a_damaged_key_leaves_its_run_out_and_not_the_report(tmp_path: Path, before: str, after: str, why: str) -> None:
    for seed in (0, 1):
        make_run(tmp_path, seed=seed)
    config = make_run(tmp_path, seed=2, name="bad") / "config.yaml"
    text = config.read_text()
    assert before in text
    config.write_text(text.replace(before, after, 1))
    report = make_report([tmp_path])
    ((name, said),) = report.study.damaged
    assert name == "bad" and why in said and [run.seed for run in report.study.runs] == [0, 1]


def test_a_run_with_a_summary_needs_no_status(tmp_path: Path) -> None:
    for seed, status in enumerate(("", '{"status": "fini')):
        path = make_run(tmp_path, seed=seed) / "status.json"
        path.write_text(status) if status else path.unlink()
    assert [run.status for run in read_study([tmp_path]).runs] == ["finished", "finished"]


@pytest.mark.parametrize(
    ("metrics", "lost"),
    [({"loss/val": None}, "loss/val"), ({"loss/val": 2.0, "loss/test": None}, "loss/test")],
)
def test_a_run_that_ends_without_a_finite_loss_diverged(tmp_path: Path, metrics: dict[str, Any], lost: str) -> None:
    run = read_run(RunDirectory(make_run(tmp_path, summary={"metrics": metrics})), "lost")
    assert (run.status, run.message, run.ended) == ("diverged", f"its final {lost} is not finite", True)


def test_runs_of_several_tasks_are_several_studies(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, accuracy=0.9)
    assert [study.task for study in read_studies([tmp_path])] == ["image_classification", "language_model"]


# ---- a second process


@pytest.mark.parametrize("cores", [{0}, {0, 1}])
def test_work_beside_has_the_same_result_whoever_does_it(monkeypatch: pytest.MonkeyPatch, cores: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # the tests' own are not used
    here, large = os.getpid(), np.arange(100_000)
    process, found = run_beside(lambda: (os.getpid(), large))()
    assert (process == here) == (len(cores) == 1) and np.array_equal(found, large)


@pytest.mark.parametrize("threads", [1, 2])
def test_work_beside_is_done_here_where_the_other_process_dies_or_may_not_be(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr("threading.active_count", lambda: threads)
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    assert run_beside(work)() == here


def test_a_setting_of_a_person_s_own_class_may_have_another_type_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path / "runs", seed=0) / "config.yaml"
    text = config.read_text()
    target = text[text.index("norm:") :].split("_target_: ")[1].split("\n")[0]
    config.write_text(text.replace(f"_target_: {target}", "_target_: changed_norm.Own\n  k: 0.5", 1))
    (tmp_path / "changed_norm.py").write_text(
        "from torch import nn\nclass Own(nn.Module):\n"
        "    def __init__(self, num_features: int, *, channel_dim: int = -1, site=None, k: int = 1) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert read_study([tmp_path / "runs"]).damaged == ()
