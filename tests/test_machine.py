"""The commit that records name: of the code that decides about numbers, and of nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from normbench.record import machine


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose files are all committed."""
    for name in ("normbench/norms.py", "conf/norm.yaml", "docs/page.md", ".gitignore"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("*.pyc\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    return tmp_path


def test_a_commit_is_marked_where_code_or_conf_differs_from_it(checkout: Path) -> None:
    clean = machine.commit()
    assert clean is not None and len(clean) == 40 and not machine.is_changed(clean)
    for name in ("docs/page.md", "notes.txt", "normbench/norms.pyc"):
        (checkout / name).write_text("other\n")
        assert machine.commit() == clean, name
    for name in ("normbench/norms.py", "conf/norm.yaml", "conf/mine.yaml", "normbench/new/part.py"):
        path = checkout / name
        before = path.read_text() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_text("other\n")
        assert machine.commit() == f"{clean}+changes", name
        assert machine.is_changed(machine.commit())
        path.write_text(before) if before is not None else path.unlink()
    assert machine.commit() == clean


def test_an_installed_package_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    assert machine.commit() is None and not machine.is_changed(None)
