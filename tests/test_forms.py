"""The files of a run as JSON: read where each value is of its type, and none of them where one is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

from normbench.record.files import read_json
from normbench.sweep.folder import Entry, SweepFolder

# What no file of a run holds at a place, dotted.
WRONG = [
    ("status.json", "step", "7"),
    ("status.json", "step", 7.0),
    ("status.json", "step", True),
    ("status.json", "status", None),
    ("status.json", "message", ["a", "b"]),
    ("summary.json", "seed", None),
    ("summary.json", "metrics", ["loss/val"]),
    ("summary.json", "metrics.loss/val", "2.0"),
    ("summary.json", "metrics.loss/val", True),
    ("summary.json", "metrics.loss/val", 10**400),
    ("summary.json", "choices.norm", 3),
    ("summary.json", "data", []),
    ("summary.json", "step_time.median_ms", {}),
    ("summary.json", "ledger", None),
    ("summary.json", "ledger.parameters", {"total": 3.5}),
    ("summary.json", "ledger.parameters", {}),
    ("summary.json", "ledger.operators_a_step", "many"),
    ("summary.json", "ramp", {"last_step": 3}),
    ("summary.json", "digests", "none"),
    ("environment.json", "sessions", {}),
    ("environment.json", "sessions.0", []),
    ("environment.json", "sessions.0.task", "text"),
    ("environment.json", "sessions.0.choices.norm", None),
    ("environment.json", "sessions.0.command", "normbench train; rm -r ."),
    ("environment.json", "sessions.0.command", "normbench train norm=é"),
    ("environment.json", "sessions.0.command", "normbench train\n"),
    ("environment.json", "sessions.0.extended", [{"steps": "3"}]),
]


def change(content: Any, place: str, value: Any) -> None:
    """Let content have another value at a dotted place."""
    *above, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    for key in above:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize(("file", "place", "value"), WRONG, ids=lambda value: str(value)[:30])
def test_a_value_of_another_type_is_damage(tmp_path: Path, file: str, place: str, value: Any) -> None:
    path = make_run(tmp_path) / file
    whole = read_json(path)
    assert whole == json.loads(path.read_text())
    change(whole, place, value)
    path.write_text(json.dumps(whole))
    assert read_json(path) is None


@pytest.mark.parametrize("file", ["status.json", "summary.json", "environment.json"])
def test_what_another_version_has_written_too_is_kept(tmp_path: Path, file: str) -> None:
    path = make_run(tmp_path) / file
    content = {**json.loads(path.read_text()), "later": [1, None, {"a": "b"}]}
    path.write_text(json.dumps(content))
    assert read_json(path) == content


@pytest.mark.parametrize("place", ["runs.0.seed", "runs.0.arm.norm", "runs.0.words", "words", "asked"])
@pytest.mark.parametrize("value", [None, [3], "a"])
def test_a_plan_of_a_sweep_is_as_it_was_written_or_damaged(tmp_path: Path, place: str, value: Any) -> None:
    folder = SweepFolder(tmp_path)
    entry = Entry("run", {"norm": "layernorm"}, 0, 3, ["seed=0"])
    folder.write_plan([entry], ["norm=layernorm"])
    (note,) = folder.read_notes()
    assert (note.words, note.asked, note.runs) == (["norm=layernorm"], ["run"], [entry])
    (path,) = folder.plans.iterdir()
    content = json.loads(path.read_text())
    change(content, place, value)
    path.write_text(json.dumps(content))
    is_text = (place, value) == ("runs.0.arm.norm", "a")
    assert folder.damaged_notes() == ([] if is_text else [path])
