"""What `normbench report` writes and prints, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from made_runs import make_run, make_study

from normbench.analysis.keeping import write_files
from normbench.analysis.report import make_report, write_report
from normbench.cli import main

EVIL = "<script>alert(1)<&'\"|"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report: two norms, three seeds; one run failed under a name and with a text that are code."""
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, {"layernorm": [2.0, 2.1, 2.05], "rmsnorm": [2.0, 2.11, 2.04]}, probed=20)
    make_run(folder, norm=EVIL, seed=3, status="failed", message=f"OSError: {EVIL}", name=EVIL)
    torn = make_run(folder, norm="layernorm", seed=3, name="torn", status="interrupted")
    with open(torn / "metrics.jsonl", "a") as file:
        file.write('{"step": 60, "lo')
    bad = make_run(folder, norm="rmsnorm", seed=3, name="bad")
    content = (bad / "metrics.jsonl").read_text()
    (bad / "metrics.jsonl").write_text(content.replace('"loss/train"', "", 1))
    return write_report([folder], margin=0.1).parent


class Tags(HTMLParser):
    """The tags of a page, their attributes, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page(folder: Path) -> Tags:
    return Tags((folder / "report.html").read_text("utf-8"))


def test_the_page_is_whole_in_itself(written: Path) -> None:
    tags = page(written).tags
    assert not [tag for tag, _ in tags if tag in ("script", "iframe", "object", "embed")]
    assert all((attrs["href"] or "").startswith("data:") for tag, attrs in tags if tag == "link")
    addresses = [attrs[name] or "" for _, attrs in tags for name in ("src", "srcset") if name in attrs]
    assert all(address.startswith("data:") for address in addresses)
    css = (written / "report.html").read_text("utf-8")
    assert not re.search(r"url\((?!['\"]?(#|data:))|@import", css)


def test_links_of_the_page_lead_somewhere(written: Path) -> None:
    tags = page(written).tags
    anchors = {attrs["id"] for _, attrs in tags if "id" in attrs}
    links = [attrs["href"] or "" for tag, attrs in tags if tag == "a"]
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert all((written / link).is_file() for link in links if not link.startswith("#"))


def test_words_of_runs_stay_words(written: Path) -> None:
    found = page(written)
    assert "script" not in [tag for tag, _ in found.tags]
    assert EVIL in "".join(found.words)
    text = (written / "report.md").read_text("utf-8")
    assert "<script" not in text and "&lt;script&gt;alert\\(1" not in text
    assert "\\|" in text


def test_damaged_runs_are_named_and_torn_ones_read_up_to_the_tear(written: Path) -> None:
    text = "".join(page(written).words)
    assert re.search(r"bad is left out: metrics\.jsonl is damaged at line 1 of \d+", text)
    assert re.search(r"torn is read up to it: the last line of metrics\.jsonl, \d+, is torn", text)
    assert "bad" not in list(pd.read_csv(written / "runs.csv")["run"])


def test_runs_are_in_the_tables_for_programs(written: Path) -> None:
    csv, parquet = pd.read_csv(written / "runs.csv"), pd.read_parquet(written / "runs.parquet")
    assert list(csv["run"]) == list(parquet["run"]) and len(csv) == 8
    row = parquet[(parquet["norm"] == "rmsnorm") & (parquet["seed"] == 1)].iloc[0]
    assert (row["loss/val"], row["status"], row["steps"]) == (2.11, "finished", 100)


def test_every_figure_is_in_the_page_and_beside_it_with_its_data(written: Path) -> None:
    figures = [path for path in (written / "figures").glob("*.svg")]
    assert figures
    tags = page(written).tags
    assert sum(tag == "svg" or (tag == "img" and attrs.get("class") == "image") for tag, attrs in tags) == len(figures)
    for path in figures:
        assert path.with_suffix(".png").is_file() and path.with_suffix(".csv").is_file()
    assert not list(written.glob(".figures-*"))


def test_the_markdown_has_whole_tables(written: Path) -> None:
    lines = (written / "report.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert rows and all(line.endswith("|") for line in rows)
    start = next(n for n, line in enumerate(lines) if line.startswith("| arm | n |"))
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines[start : start + 4]]
    assert len(set(cells)) == 1 and set(lines[start + 1]) <= set("|-: ")


# ---- written again


def test_what_a_person_has_edited_is_kept(tmp_path: Path) -> None:
    assert write_files(tmp_path, {"a.md": b"one", "figures/b.svg": b"one"}) == []
    assert write_files(tmp_path, {"a.md": b"two", "figures/b.svg": b"two"}) == []
    (tmp_path / "a.md").write_bytes(b"mine")
    (note,) = write_files(tmp_path, {"a.md": b"three"})
    assert note == f"{tmp_path / 'a.md'} has been edited and is kept as a.md.edited"
    (tmp_path / "a.md").write_bytes(b"mine again")
    write_files(tmp_path, {"a.md": b"four"})
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith("a.md")}
    assert found == {"a.md": b"four", "a.md.edited": b"mine", "a.md.edited2": b"mine again"}


def test_a_file_that_was_there_before_any_report_is_kept(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_bytes(b"mine")
    assert write_files(tmp_path, {"runs.csv": b"ours"})
    assert (tmp_path / "runs.csv.edited").read_bytes() == b"mine"


def test_what_is_not_written_any_more_goes_unless_it_was_edited(tmp_path: Path) -> None:
    write_files(tmp_path, {"old": b"1", "edited": b"1", "new": b"1"})
    (tmp_path / "edited").write_bytes(b"mine")
    write_files(tmp_path, {"new": b"1"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited", "manifest.json", "new"]


def test_a_kill_between_files_leaves_none_that_is_taken_for_a_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"a": b"1", "b": b"1"})
    from normbench.analysis import keeping

    whole = keeping.write_bytes

    def killed(path: Path, content: bytes) -> None:
        assert path.name != "b", "killed"
        whole(path, content)

    monkeypatch.setattr(keeping, "write_bytes", killed)
    with pytest.raises(AssertionError, match="killed"):
        write_files(tmp_path, {"a": b"2", "b": b"2"})
    monkeypatch.undo()
    assert write_files(tmp_path, {"a": b"3", "b": b"3"}) == []
    assert json.loads((tmp_path / "manifest.json").read_text())["files"].keys() == {"a", "b"}


# ---- the command


def test_the_command_prints_the_verdict_what_is_unfair_and_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs", norm="layernorm")
    make_run(tmp_path / "runs", norm="rmsnorm", steps=200)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "there")]) == 0
    printed = capsys.readouterr().out
    assert "With one seed for each arm nothing can be said" in " ".join(printed.split())
    assert "unequal steps" in printed
    assert printed.splitlines()[-1] == str(tmp_path / "there" / "report.html")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The complaint."""
    assert main(["report", *words]) == 2
    found = capsys.readouterr()
    assert not found.out and found.err.count("\n") == 1
    complaint = found.err.removeprefix("normbench: ").strip()
    assert ": " in complaint and not complaint.endswith(".")
    return complaint


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(tmp_path / "runs")
    make_run(tmp_path / "runs")
    assert "the following arguments are required: FOLDER" in refused([], capsys)
    assert "none is not a folder" in refused([runs, str(tmp_path / "none")], capsys)
    assert "all runs are of one arm, so leave it out" in refused([runs, "--baseline", "lr=3"], capsys)
    assert "--margin" in refused([runs, "--margin", "-1"], capsys)
    assert "--target" in refused([runs, "--target", "low"], capsys)
    assert "unrecognized arguments: --bassline" in refused([runs, "--bassline", "x"], capsys)
    (tmp_path / "file").write_text("")
    assert "give another folder with --out" in refused([runs, "--out", str(tmp_path / "file")], capsys)
    make_run(tmp_path / "going", status="running")
    assert "holds no run that has ended" in refused([str(tmp_path / "going")], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "going", "runs"]
    assert not (tmp_path / "runs" / "report").exists()


def test_all_runs_damaged_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_run(tmp_path, name="run")
    (path / "metrics.jsonl").unlink()
    assert "no run that has ended can be read (run: metrics.jsonl cannot be read" in refused([str(tmp_path)], capsys)


def test_a_finished_run_without_its_summary_is_named_and_left_out(tmp_path: Path) -> None:
    make_run(tmp_path)
    (make_run(tmp_path, seed=1, name="bare") / "summary.json").unlink()
    report = make_report([tmp_path])
    assert report.study.damaged == (("bare", "summary.json is missing"),)
    assert len(report.study.runs) == 1


def test_analysis_loads_neither_torch_nor_hydra(tmp_path: Path) -> None:
    make_run(tmp_path, norm="layernorm")
    make_run(tmp_path, norm="rmsnorm")
    code = (
        "import sys; from normbench.cli import main; main(sys.argv[1:]); print({'torch', 'hydra'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


# ---- many runs

MANY = """
import resource, sys, time
from pathlib import Path
from normbench.analysis.report import make_report, write_report
begun = time.perf_counter()
write_report([Path(sys.argv[1])])
used = resource.getrusage(resource.RUSAGE_SELF)
high = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.perf_counter() - begun, used.ru_utime + used.ru_stime, int(high.split()[1]) / 2**20)
"""


@pytest.mark.slow
def test_hundreds_of_runs_take_seconds(tmp_path: Path, tell: Callable[[str], None]) -> None:
    for norm in ("layernorm", "rmsnorm", "dyt", "groupnorm", "batchnorm"):
        for placement in ("pre", "post"):
            for lr in (3e-4, 1e-3, 3e-3):
                for seed in range(10):
                    make_run(
                        tmp_path, norm=norm, placement=placement, lr=lr, seed=seed, steps=10_000, eval_every=500,
                        probed=1000, final=2 + lr * seed,
                    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], capture_output=True, text=True, check=True)
    seconds, processor, memory = map(float, done.stdout.split()[-3:])
    tell(f"report of 300 runs of 1,000 logged steps: {seconds:.1f} s, {processor:.1f} s of a core, {memory:.2f} GiB")
    assert processor < 20  # what 1,000 may take where nothing else is at work: scripts/benchmark/report.py
    assert memory < 1.5
