"""What a folder of somebody else may bring into reports and lists: drawings, words, and commands of ours."""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from made_runs import make_run, make_study

from normbench.cli import main
from normbench.errors import UsageError
from normbench.record.digests import write_with_digests
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import blank
from normbench.show.figures.style import use_our_style
from normbench.show.safe import is_formula, to_csv
from normbench.show.studied import read_study, save_study, studies_below
from normbench.show.tables import Table
from normbench.sweep.folder import Entry, SweepFolder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a study, as we write it."""
    folder = tmp_path_factory.mktemp("foreign") / "runs"
    make_study(folder, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.11]})
    return make_foreign_study(folder / "studies/mine")


def make_foreign_study(place: Path) -> Path:
    """Make a study with a table and a figure in a folder, as we write it; return the folder."""
    with use_our_style():
        canvas = blank(2.0)
        pane = canvas.subplots()
        pane.plot([0, 1], [0, 1], label="x")
        pane.imshow(np.eye(3))
        pane.set_title("<b>words & more</b>")
        canvas.legend()
    figure = Figure("lines", "Lines", ["A caption."], "Lines.", canvas, pd.DataFrame({"x": [1]}))
    about = {
        "study": "mine", "title": "Mine", "question": "Why?", "source": "a paper", "command": "normbench study mine",
        "machine": {"cpu": "a", "threads": 1, "torch": "2"},
    }  # fmt: skip
    place.mkdir(parents=True)
    save_study(place, about, [Table("found", "Found", pd.DataFrame({"arm": ["=1+1"]}))], [figure])
    return place


def test_a_drawing_of_another_study_is_an_image_whose_file_is_not_opened(study: Path) -> None:
    file, drawing = study / "study.json", study / "figures/lines.svg"
    known, ours = file.read_text(), drawing.read_bytes()
    drawing.write_bytes(ours.replace(b"</svg>", b"<script>evil()</script></svg>"))
    figure = {**json.loads(known)["figures"][0], "alt": '"><script>evil()</script>'}
    write_with_digests(file, {**json.loads(known), "figures": [figure]}, [file.name])
    (shown,) = read_study(study, study).figures
    image = ElementTree.fromstring(str(shown.drawing).removesuffix(">") + "/>")
    assert image.tag == "img" and image.attrib.keys() == {"alt", "src"} and image.attrib["alt"] == figure["alt"]
    start, _, content = image.attrib["src"].partition(",")
    assert start == "data:image/svg+xml;base64" and base64.b64decode(content) == drawing.read_bytes()
    assert sorted(Path(path).suffix for path in shown.files.values()) == [".csv", ".pdf"]
    drawing.write_bytes(ours)
    file.write_text(known)
    del figure["alt"]  # as older studies are
    write_with_digests(file, {**json.loads(known), "figures": [figure]}, [file.name])
    assert 'alt="Lines"' in read_study(study, study).figures[0].drawing
    file.write_text(known)


def test_a_damaged_or_foreign_study_is_not_read(study: Path) -> None:
    file = study / "study.json"
    known = file.read_text()
    figure = json.loads(known)["figures"][0]
    for change in (
        {"command": "normbench study mine; evil"},
        {"command": "evil --now"},
        {"study": 'x"><form>evil</form>'},
        {"figures": [{**figure, "name": "../../../../secret"}]},
        {"figures": [{**figure, "name": 5}]},
        {"question": ["evil"]},
    ):
        write_with_digests(file, {**json.loads(known), **change}, [file.name])
        with pytest.raises(UsageError, match="is damaged"):
            read_study(study, study)
    file.write_text(known)
    with pytest.raises(UsageError, match="is damaged"):  # its name stands in ids
        read_study(study.rename(study.with_name('"><form>')), study)
    study.with_name('"><form>').rename(study)


@pytest.mark.usefixtures("pages_alone")
def test_words_of_a_foreign_study_stay_words_in_a_report(study: Path) -> None:
    runs, file = study.parent.parent, study / "study.json"
    known = file.read_text()
    words = dict.fromkeys(("title", "question", "source"), "<form>evil</form>")
    write_with_digests(file, {**json.loads(known), **words}, [file.name])
    assert main(["report", str(runs)]) == 0
    file.write_text(known)
    page = (runs / "report/report.html").read_text()
    assert "<form" not in page and "&lt;form" in page and "A caption." in page
    assert "\\=1+1" in (runs / "report/report.md").read_text()


def test_a_figure_from_elsewhere_is_in_no_report(study: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs, drawing, elsewhere = study.parent.parent, study / "figures/lines.svg", study.parents[2] / "elsewhere.svg"
    (found,) = studies_below([runs], runs)
    assert found.about.title == "Mine"
    drawing.rename(elsewhere)
    drawing.symlink_to(elsewhere)
    assert studies_below([runs], runs) == [] and "leads out of" in caplog.text
    drawing.unlink()
    elsewhere.replace(drawing)


def test_a_study_elsewhere_is_not_this_folders(study: Path, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/mine").symlink_to(study)
    assert studies_below([tmp_path], tmp_path) == []
    (tmp_path / "link").symlink_to(study.parent.parent)  # the folder itself: its owner's
    assert len(studies_below([tmp_path / "link"], tmp_path)) == 1


def test_a_study_made_again_removes_what_it_has_noted_and_nothing_else(study: Path, tmp_path: Path) -> None:
    again, victim = Path(shutil.copytree(study, tmp_path / "again")), tmp_path / "victim.svg"
    for path in (again / "figures/own.svg", victim):
        path.write_text("")
    known = json.loads((again / "study.json").read_text())
    noted = [*known["figures"], {"name": "../../victim"}, {"name": str(victim.with_suffix(""))}]
    (again / "study.json").write_text(json.dumps({**known, "figures": noted}))
    about = {key: value for key, value in known.items() if key not in ("tables", "figures")}
    save_study(again, about, [], [])
    assert [path.name for path in (again / "figures").iterdir()] == ["own.svg"] and victim.exists()
    (again / "figures").rename(tmp_path / "elsewhere")
    (again / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="leads out of"):
        save_study(again, about, [], [])
    assert (tmp_path / "elsewhere/own.svg").exists()


# ---- commands


def test_only_commands_of_ours_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = {
        "evil": "evil --now",
        "behind": "normbench train; evil",
        "beside": "normbench train seed=$(evil)",
        "line": "normbench train seed=1\nevil",
        "quoted": "normbench train 'name=a\nevil'",
        "good": "normbench train 'data.path=my text; evil' seed=1",
        "own": "normbench train norm._target_=own.Norm",
    }
    for name, command in commands.items():
        make_run(tmp_path / "train", name=name, status="interrupted", session={"command": command})
    folder = SweepFolder(tmp_path / "sweep\n  evil")
    folder.write_plan([Entry("r", {}, 0, 4, [])], ["logger=wandb"])
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count(" goes on by") == 2
    assert f"train/good goes on by\n  {commands['good']}\n" in out
    assert "(if you trust whoever made it: norm._target_=own.Norm may run code of theirs, or reach" in out
    assert f"another machine)\n  {commands['own']}" in out
    assert "--now" not in out and "$(" not in out and not any(line.strip() == "evil" for line in out.splitlines())


# ---- cells


def test_cells_that_a_spreadsheet_would_compute_are_quoted() -> None:
    words = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "rmsnorm", "-0.5", "+1e-3", "+0.1 to +0.2", "–"]
    frame = pd.DataFrame({"=arm": words, "x": np.linspace(-1, 1, len(words)), "mixed": [None, 1, *words[2:]]})
    head, *rows = csv.reader(io.StringIO(to_csv(frame).decode()))
    assert head == ["'=arm", "x", "mixed"]
    assert [row[0] for row in rows] == [f"'{word}" for word in words[:5]] + words[5:]
    assert not any(is_formula(cell) for row in rows for cell in row)
    assert [row[2] for row in rows[:2]] == ["", "1"]
    plain = frame[["x"]].assign(arm="rmsnorm", n=[None, *range(1, len(words))])
    assert to_csv(plain) == plain.to_csv(index=False).encode()
