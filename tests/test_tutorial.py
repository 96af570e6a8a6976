"""The tutorial notebook: its cells run one after the other, here with few steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import REPOSITORY


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    notebook = json.loads((REPOSITORY / "docs/tutorial.ipynb").read_text("utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            smaller = "".join(cell["source"]).replace("STEPS = 150", "STEPS = 3").replace("width=64", "width=8")
            exec(smaller, names)
    said = capsys.readouterr().out
    assert "loss/val, constant guess" in said and "What differs" in said
    assert len(list((tmp_path / "outputs/tutorial_sweep").glob("*/summary.json"))) == 6
