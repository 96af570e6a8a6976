"""What `normbench report` writes and prints, and what it refuses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import make_once
from made_runs import make_report, make_run, make_study

from normbench.cli import main
from normbench.show.latex import cited_in, table_for
from normbench.show.report import fill_pages, save
from normbench.show.tables import Table
from normbench.show.templating import tex
from normbench.stopping import THREAD

EVIL = "<script>alert(1)<&'\"|"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report, which all workers read."""
    return make_once(tmp_path_factory, "report of a study", write_report) / "report"


def write_report(folder: Path) -> None:
    """Report two norms, three seeds; one run failed under a name and with a text that are code."""
    make_study(folder, {"layernorm": [2.0, 2.1, 2.05], "rmsnorm": [2.0, 2.11, 2.04]}, probed=20)
    make_run(folder, norm=EVIL, seed=3, status="failed", summary={"message": f"OSError: {EVIL}"}, name=EVIL)
    torn = make_run(folder, norm="layernorm", seed=3, name="torn", status="interrupted")
    with open(torn / "metrics.jsonl", "a") as file:
        file.write('{"step": 60, "lo')
    bad = make_run(folder, norm="rmsnorm", seed=3, name="bad")
    content = (bad / "metrics.jsonl").read_text()
    (bad / "metrics.jsonl").write_text(content.replace('"loss/train"', "", 1))
    save(make_report([folder], margin=0.1), folder / "report")


class Page(HTMLParser):
    """The tags of a page, their attributes, and its words."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed((folder / "report.html").read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.slow
def test_the_page_is_whole_in_itself_and_its_links_lead_somewhere(written: Path) -> None:
    tags = Page(written).tags
    assert not [tag for tag, _ in tags if tag in ("iframe", "object", "embed")]
    (script,) = re.findall(r"<script>(.*?)</script>", (written / "report.html").read_text("utf-8"), re.DOTALL)
    (allowed,) = [attrs["content"] or "" for _, attrs in tags if attrs.get("http-equiv")]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{hashed}'" in allowed  # and no other
    assert all((attrs["href"] or "").startswith("data:") for tag, attrs in tags if tag == "link")
    addresses = [attrs[name] or "" for _, attrs in tags for name in ("src", "srcset") if name in attrs]
    assert all(address.startswith("data:") for address in addresses)
    css = (written / "report.html").read_text("utf-8")
    assert not re.search(r"url\((?!['\"]?(#|data:))|@import", css)
    anchors = {attrs["id"] for _, attrs in tags if "id" in attrs}
    links = [attrs["href"] or "" for tag, attrs in tags if tag == "a"]
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert all((written / link).is_file() for link in links if not link.startswith("#"))


def test_of_many_runs_the_page_shows_some_and_says_where_all_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.2, 2.3]})
    monkeypatch.setattr("normbench.show.tables.MOST_RUNS", 3)
    page = fill_pages(make_report([tmp_path]), [], [])["report.html"]
    fold = page[page.index("All runs") : page.index("Methods, for a paper")]
    assert "4 runs" in fold and fold.count('<th scope="row">') == 3 and "1 more run in runs.csv." in fold


def test_words_of_runs_stay_words(written: Path) -> None:
    assert EVIL in Page(written).words
    text = (written / "report.md").read_text("utf-8")
    assert "<script" not in text and "&lt;script&gt;alert\\(1" not in text and "\\|" in text


def test_damaged_runs_are_named_and_torn_ones_read_up_to_the_tear(written: Path) -> None:
    words = Page(written).words
    assert re.search(r"bad is left out: metrics\.jsonl is damaged at line 1 of \d+", words)
    assert "the last line of a run's metrics.jsonl is torn, and the run is read up to it" in words


def test_runs_and_activations_are_in_tables_for_programs(written: Path) -> None:
    csv, parquet = pd.read_csv(written / "runs.csv"), pd.read_parquet(written / "runs.parquet")
    assert list(csv["run"]) == list(parquet["run"]) and len(csv) == 8 and "bad" not in set(csv["run"])
    row = parquet[(parquet["norm"] == "rmsnorm") & (parquet["seed"] == 1)].iloc[0]
    assert (row["loss/val"], row["status"], row["steps"]) == (2.11, "finished", 100)
    blocks = pd.read_csv(written / "activations.csv")
    assert blocks["block"].tolist() == [*range(4)] * 2 and blocks["stream RMS"].tolist() == [1, 2, 3, 4] * 2


def test_every_figure_is_in_the_page_and_beside_it_with_its_data(written: Path) -> None:
    figures = list((written / "figures").glob("*.svg"))
    tags = Page(written).tags
    drawn = sum(tag == "svg" for tag, _ in tags)
    assert drawn == len(figures) > 0
    assert all(path.with_suffix(suffix).is_file() for path in figures for suffix in (".csv", ".pdf"))


def test_a_sentence_stands_once_below_the_figures_of_a_page(written: Path) -> None:
    band = "; band: from the lowest to the highest."
    in_paper = "".join((written / name).read_text("utf-8") for name in ("report.tex", "appendix.tex"))
    assert in_paper.count(band) > 1  # where each figure has all that is to be said of it
    assert Page(written).words.count(band) == 1


def test_the_markdown_has_whole_tables(written: Path) -> None:
    lines = (written / "report.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert rows and all(line.endswith("|") for line in rows)
    start = next(n for n, line in enumerate(lines) if line.startswith("| arm | n |"))
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines[start : start + 4]]
    assert len(set(cells)) == 1 and set(lines[start + 1]) <= set("|-: ")


def test_a_page_opens_with_question_answer_caveats_and_methods(written: Path) -> None:
    page = Page(written)
    ids = [attrs["id"] for tag, attrs in page.tags if tag in ("h1", "section") and "id" in attrs]
    assert ids[:4] == ["question", "verdict", "fairness", "summary"]  # the rest is in folds
    words = " ".join(page.words.split())
    assert "layernorm, rmsnorm) do to the final validation loss of the model nano on pydocs?" in words
    assert (
        "Held equal: 100 steps; batches of 16 sequences of 64 tokens; a learning rate of 0.001; 802,304 parameters;"
        in words
    )
    assert "with depth 4 and width 128 (the preset nano); it has 802,304 parameters" in words
    assert "The data are pydocs: 100,000 training tokens, " in words
    assert "by AdamW (Loshchilov & Hutter 2019) with lr 0.001 and betas (0.9, 0.99), under the schedule Cosine" in words
    assert "was trained with up to 4 seeds (0, 1, 2, 3); 6 of 8 runs finished." in words
    assert not re.search(r"\b(None|True|False|nan)\b", words.partition("All runs")[0])


def test_tables_and_methods_for_latex_are_escaped(written: Path) -> None:
    text = (written / "report.tex").read_text("utf-8")
    assert text.count(r"\begin{table}") == 2 and "figures/differences.pdf" in text
    everything = (written / "appendix.tex").read_text("utf-8")
    for part in (text, everything):
        assert part.count(r"\toprule") == part.count(r"\bottomrule") == part.count(r"\end{table}") > 1
        assert "$<$script$>$" in part and r"95 \% interval" in part.replace(r"\\", " ") and "−" not in part
        rows = [line for line in part.splitlines() if line.endswith(r" \\")]
        assert rows and not [row for row in rows if re.search(r"(?<!\\)[%#_]", row)]
    drawn = {path.stem for path in (written / "figures").glob("*.pdf")}
    assert {*re.findall(r"figures/([\w-]+)\.pdf", text + everything)} == drawn


def test_the_bibliography_has_what_is_cited_and_no_more(written: Path) -> None:
    cited = cited_in("".join((written / name).read_text("utf-8") for name in ("report.tex", "appendix.tex")))
    assert {"ba2016", "zhang2019rms", "xiong2020", "glorot2010", "loshchilov2019", "student1908"} <= cited
    assert {*re.findall(r"^@\w+\{(.+),$", (written / "report.bib").read_text("utf-8"), re.MULTILINE)} == cited


def test_tables_for_latex_have_every_cell_once_and_a_heading_for_each(written: Path) -> None:
    text = (written / "appendix.tex").read_text("utf-8")
    tables = text.split(r"\begin{table}")[1:]
    for table in tables:
        (sides,) = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}\n", table)
        rows = [line for line in table.splitlines() if line.endswith(r" \\")]
        assert all(len(re.findall(r"(?<!\\)&", row)) == len(sides) - 1 for row in rows)
        assert len(rows) <= 31


def test_a_wide_and_a_long_table_are_written_in_parts() -> None:
    columns = {"arm": [f"arm {row}" for row in range(40)]}
    columns |= {f"measure {place} of many, nats": [f"{row}.{place:06}" for row in range(40)] for place in range(12)}
    parts = table_for(Table("wide", "Wide", pd.DataFrame(columns))).split(r"\begin{table}")[1:]
    cells = [cell for part in parts for cell in re.findall(r"\b\d+\.\d{6}\b", part)]
    assert sorted(cells) == sorted(f"{row}.{place:06}" for row in range(40) for place in range(12))
    assert len(parts) > 3 and len({*re.findall(r"\\label\{(.*?)\}", "".join(parts))}) == len(parts)


@pytest.mark.usefixtures("pages_alone")
def test_the_methods_count_runs_that_are_missing_and_that_did_not_train(tmp_path: Path) -> None:
    told = {"constant": {"loss/val": 3.1}}
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 3.09]}, data=told)
    report = make_report([tmp_path], missing={"rmsnorm-pre-s2": "it is lost"})
    save(report, tmp_path / "report")
    text = " ".join((tmp_path / "report/report.tex").read_text("utf-8").split())
    assert "4 of 5 runs that were planned finished, 1 of which did not train." in text


def test_letters_that_latex_lacks_are_named() -> None:
    assert tex("α₀_λ é ≥ 中 µs") == r"$\alpha$$_0$\_$\lambda$ é $\geq$ U+4E2D $\mu$s"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_what_is_for_a_paper_fits_its_page(written: Path, tmp_path: Path) -> None:
    pages = [r"\documentclass{article}", r"\usepackage{booktabs,graphicx}", rf"\graphicspath{{{{{written}/}}}}"]
    pages += [r"\begin{document}", rf"\input{{{written}/report}}", r"\appendix", rf"\input{{{written}/appendix}}"]
    pages += [r"\bibliographystyle{plain}", r"\bibliography{report}"]
    (tmp_path / "paper.tex").write_text("\n".join([*pages, r"\end{document}"]))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace").stdout
    assert "Output written on paper.pdf" in printed, printed[-1000:]
    shutil.copy(written / "report.bib", tmp_path)
    cited = subprocess.run(["bibtex", "paper"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert "entry" not in cited and "Warning" not in cited, cited
    too_wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", printed)]
    assert max(too_wide, default=0.0) < 5
    assert "multiply defined" not in printed and "Float too large" not in printed


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_a_report_removes_what_it_once_drew_and_nothing_else(tmp_path: Path) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.11]})
    figures = tmp_path / "report/figures"
    figures.mkdir(parents=True)
    old, killed = figures / "alpha-steps.svg", [figures / ".differences.svg.7.tmp", tmp_path / "report/.runs.csv.7.tmp"]
    mine, other, hidden = figures / "loss-mine.pdf", tmp_path / "report/notes.txt", tmp_path / "report/.mine.tmp"
    victim = tmp_path / "victim.txt"
    for path in (old, mine, other, hidden, victim, *killed):
        path.write_text("")
    save(make_report([tmp_path]), tmp_path / "report")
    assert old.exists()  # no report has noted it: it is another's
    assert not [path for path in killed if path.exists()]
    written = tmp_path / "report/.written.json"
    noted = json.loads(written.read_text())["files"]
    assert "runs.csv" in noted and "figures/differences.svg" in noted
    written.write_text(
        json.dumps({"files": [*noted, "figures/alpha-steps.svg", "../victim.txt", str(victim), "figures"]})
    )
    save(make_report([tmp_path]), tmp_path / "report")
    assert mine.exists() and other.exists() and hidden.exists() and victim.exists()
    assert not old.exists()
    assert json.loads(written.read_text())["files"] == noted


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_nothing_is_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, victim = tmp_path / "runs", tmp_path / "victim"
    make_study(runs, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.11]})
    victim.mkdir()
    (victim / "loss-kept.svg").write_text("mine")
    report = runs / "report"
    report.symlink_to(victim)
    assert main(["report", str(runs)]) == 2
    report.unlink()
    report.mkdir()
    (report / "figures").symlink_to(victim)
    assert main(["report", str(runs)]) == 2
    assert (
        capsys.readouterr().err.count("and nothing is written there: move what it leads to into the place of the link")
        == 2
    )
    assert [path.name for path in victim.iterdir()] == ["loss-kept.svg"]
    (report / "figures").unlink()
    (report / "runs.csv").symlink_to(victim / "loss-kept.svg")  # a file's link is replaced, and not followed
    assert main(["report", str(runs)]) == 0
    assert (victim / "loss-kept.svg").read_text() == "mine" and not (report / "runs.csv").is_symlink()


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_a_link_to_the_folder_itself_is_its_owners(tmp_path: Path) -> None:
    make_study(tmp_path / "disk", {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.11]})
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    assert main(["report", str(tmp_path / "outputs")]) == 0
    assert (tmp_path / "disk/report/report.html").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_tasks_have_a_report_each_below_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for norm in ("layernorm", "rmsnorm"):
        for seed in range(2):
            make_run(tmp_path, norm=norm, seed=seed, final=2 + 0.1 * seed)
            make_run(tmp_path, norm=norm, seed=seed, accuracy=0.9 + 0.01 * seed)
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "image classification" in printed and "language model" in printed
    page = Page(tmp_path / "report")
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == ["image_classification/report.html", "language_model/report.html"]
    for link in links:
        assert (tmp_path / "report" / str(link)).is_file() and "same validation" in page.words
    assert main(["compare", "rmsnorm", "layernorm", "--in", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "same validation accuracy" in printed and "same validation loss" in printed
    assert main(["compare", "rmsnorm", "layernorm", "--in", str(tmp_path), "--json"]) == 4
    assert {one["task"] for one in json.loads(capsys.readouterr().out)["comparisons"]} == {
        "image_classification", "language_model"
    }  # fmt: skip


# ---- the command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "more", "status", "verdict"),
    [
        ((1.8, 1.82, 1.79, 1.81), [], 0, "better"),
        ((2.2, 2.21, 2.18, 2.23), [], 3, "worse"),
        ((2.001, 1.999, 2.002, 2.001), ["--margin", "0.01"], 4, "same"),
        ((2.010, 2.012, 2.011, 2.014), ["--margin", "0.05"], 4, "same"),  # though not equal
        ((2.001, 1.999, 2.002, 2.001), [], 5, "not shown"),
        ((1.8, 2.2, 1.7, 2.4), [], 5, "not shown"),
        ((1.8,), [], 5, "not shown"),  # of one seed
    ],
)
def test_a_script_reads_the_verdict_and_its_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ends: tuple[float, ...], more: list[str], status: int,
    verdict: str,
) -> None:  # fmt: skip
    for seed, end in enumerate(ends):
        make_run(tmp_path, norm="rmsnorm", seed=seed, final=end)
        make_run(tmp_path, norm="layernorm", seed=seed, final=2 + 0.001 * seed)
    words = ["compare", "rmsnorm", "layernorm", "--in", str(tmp_path), "--json", *more]
    assert main(words) == status
    found = json.loads(capsys.readouterr().out)
    (one,) = found["comparisons"]
    assert found["verdict"] == one["verdict"] == verdict
    assert one["difference"]["values"] == pytest.approx([end - 2 - 0.001 * seed for seed, end in enumerate(ends)])
    assert one["task"] == "language_model" and one["words"]
    assert main([*words, "--plan"]) == 2
    assert "--json is of what was found, and --plan finds nothing" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_the_verdict_what_is_unfair_and_the_page_without_torch(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", norm="layernorm")
    make_run(tmp_path / "runs", norm="rmsnorm", steps=200)
    code = (
        "import sys; from normbench.cli import main; main(sys.argv[1:]); print({'torch', 'hydra'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, "report", "runs", "--out", "there"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "With one seed for each arm nothing can be said" in " ".join(printed.split())
    assert "unequal steps" in printed
    assert printed.splitlines()[-2:] == ["there/report.html", "set()"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "Missing argument"),
        ("runs none", "none is not a folder"),
        ("runs --baseline layernom", "--baseline layernom is not an arm: did you mean layernorm?"),
        ("runs --out file", "give another folder with --out"),
        ("runs --width wide", "--width wide is not a width: give column (3.5 inches), page (7), or 3 to 20 inches"),
        ("empty", "holds no runs: "),
        ("damaged", "holds no run that has ended: run is damaged, metrics.jsonl cannot be read"),
        ("failed", "holds no run that has ended: run failed with: failed: mend the cause, and run them again"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_study(tmp_path / "runs", {"layernorm": [2.0], "rmsnorm": [2.0]})
    (tmp_path / "empty").mkdir()
    (make_run(tmp_path / "damaged", name="run") / "metrics.jsonl").unlink()
    make_run(tmp_path / "failed", name="run", status="failed")
    (tmp_path / "file").write_text("")
    assert main(["report", *words.split()]) == 2
    found = capsys.readouterr()
    assert not found.out and found.err.count("\n") == 1 and complaint in found.err
    assert not (tmp_path / "runs/report").exists()


# ---- processes


def count_others() -> int:
    """How many threads there are, without the one that looks for signals and is not in a fork's way."""
    return sum(thread.name != THREAD for thread in threading.enumerate())


@pytest.mark.usefixtures("pages_alone")
def test_no_thread_keeps_the_command_from_its_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path, {"layernorm": [2.0, 2.1], "rmsnorm": [2.0, 2.2]})
    before, threads = count_others(), list[int]()

    def noted(work: Callable[[], Any]) -> Callable[[], Any]:
        threads.append(count_others())
        return work

    for part in ("evidence.study", "processes"):
        monkeypatch.setattr(f"normbench.{part}.run_beside", noted)
    assert main(["report", str(tmp_path)]) == 0
    assert threads == [before, before]
