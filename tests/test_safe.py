"""What a folder of somebody else may bring into reports and lists: drawings, words, and commands of ours."""

from __future__ import annotations

import csv
import io
import json
import re
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
from normbench.show.figures.style import use_our_style
from normbench.show.plots import blank
from normbench.show.safe import LINK, SVG, check_drawing, for_page, is_formula, to_csv
from normbench.show.studied import read_study, save_study, studies_below
from normbench.show.tables import Table
from normbench.sweep.folder import Entry, SweepFolder

FORM = '<form xmlns="http://www.w3.org/1999/xhtml" action="https://evil.example"/>'

# What is put into a drawing of ours, in front of its end.
HOSTILE = {
    "script": "<script>evil()</script>",
    "form": FORM,
    "page inside": f"<foreignObject>{FORM}</foreignObject>",
    "redirection": '<meta xmlns="http://www.w3.org/1999/xhtml" http-equiv="refresh" content="0;url=//evil.example"/>',
    "link": '<a href="https://evil.example"><path d="M0 0"/></a>',
    "image": '<image href="https://evil.example/a.png"/>',
    "image that is a page": '<image href="data:text/html,evil"/>',
    "drawing elsewhere": '<use href="https://evil.example/a.svg#a"/>',
    "clip elsewhere": '<g clip-path="url(https://evil.example/a.svg#a)"/>',
    "handler": '<g onload="evil()"/>',
    "animation": '<animate attributeName="href" to="//evil.example"/>',
    "rules for the page": "<style>body{display:none}</style>",
    "rules from elsewhere": '<style>@import "//evil.example";</style>',
    "rules of ours with more": "<style>.nb-figure *{fill: red; background: url(//evil.example)}</style>",
    "over the page": '<g style="position: fixed; inset: 0"/>',
    "look from elsewhere": '<g style="fill: url(//evil.example)"/>',
    "class of the page": '<g class="verdict"/>',
    "comment": "<!-- evil -->",
    "entity": "&evil;",
    "reference in quotes": """<g style="clip-path: url('#verdict')"/>""",
    "reference in capitals": '<g style="fill: URL(#verdict)"/>',
    "reference in an attribute": '<g fill="URL(#verdict)"/>',
    "reference with an escape": r'<g fill="u\72l(//evil.example)"/>',
    "title that is more than words": "<title><path/></title>",
}


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


def test_our_drawings_only_draw(study: Path) -> None:
    drawing = (study / "figures/lines.svg").read_text()
    check_drawing(drawing)
    shown = ElementTree.fromstring(read_study(study, study).figures[0].svg)
    whole = [part.tag for part in ElementTree.fromstring(drawing).iter()]
    assert [part.tag for part in shown.iter()] == [tag for tag in whole if tag != f"{SVG}style"]
    ids = {part.get("id") for part in shown.iter()}
    used = {part.get(LINK, "").removeprefix("#") for part in shown.iter(f"{SVG}use")}
    clips = set(re.findall(r"url\(#(.*?)\)", " ".join(part.get("clip-path", "") for part in shown.iter())))
    assert used and clips and used | clips <= ids


def test_a_drawing_in_a_page_restyles_nothing_and_refers_to_itself_alone(study: Path) -> None:
    parts = (
        "<style>.nb-figure path{opacity: 0}</style>", "<style>.nb-figure [data-arm]{opacity: 0}</style>",
        '<s:style xmlns:s="http://www.w3.org/2000/svg">.nb-figure *{opacity: 0}</s:style>', "<g id='verdict'/>",
        '<use href="#verdict"/>', "<use xlink:href='#verdict'/>", '<g aria-labelledby="verdict verdict"/>',
        '<g clip-path="url(#verdict)"/>', "<g style='fill:url(#verdict)'/>", '<g aria-label="url(#words)"/>',
    )  # fmt: skip
    drawing = (study / "figures/lines.svg").read_text().replace("</svg>", "".join(parts) + "</svg>")
    check_drawing(drawing)
    shown = for_page(drawing, "ours")
    assert "style>" not in shown and "opacity: 0" not in shown
    assert shown.count("verdict") == shown.count("ours-verdict") == 7 and "url(#words)" in shown


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_drawing_that_does_more_is_refused(study: Path, kind: str) -> None:
    drawing = (study / "figures/lines.svg").read_text()
    with pytest.raises(ValueError, match=r"a figure (is more than a drawing|cannot be read)"):
        check_drawing(drawing.replace("</svg>", HOSTILE[kind] + "</svg>"))


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
    assert found.about["title"] == "Mine"
    drawing.rename(elsewhere)
    drawing.symlink_to(elsewhere)
    assert studies_below([runs], runs) == [] and "leads out of" in caplog.text
    drawing.unlink()
    drawing.write_text(elsewhere.read_text().replace("</svg>", FORM + "</svg>"))
    assert studies_below([runs], runs) == [] and "is more than a drawing" in caplog.text
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
