"""Commands of README.md and docs/, page by page as one types them: those of what a newcomer reads, and of pages with
parts of one's own and with runs that go on, are run on small models, a few steps; those of the others are planned.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import REPOSITORY, documented, write_few_pairs

from normbench.cli import main
from normbench.config.compose import read
from normbench.contract import trials
from normbench.runs.plan import prepare
from normbench.sweep.sweep import plan_sweep
from normbench.training import loop
from normbench.training.evaluation import evaluate
from normbench.types import Batch, Model

PAGES = {path: path.read_text("utf-8") for path in (REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/*.md")))}
TEXT = "\n".join(PAGES.values())
TRANSLATORS = {"model=rnnsearch", "model=seq2seq", "experiment=rnnsearch_norms"}
# whose last evaluation alone takes long
LONG = {"data=wikitext2", "data=cifar10_jpeg", *TRANSLATORS}
SHORT = ["trainer.steps=4", "trainer.eval_every=2", "trainer.eval_batches=1", "threads=1"]
SWEEPS = {"experiment=smoke", "name=first", "name=given", "name=four", "name=paper", "name=candidates"}  # made short
STARTS = [path for path in PAGES if path.name.startswith("start_")]  # what a newcomer reads, beside README.md
RUN = [
    REPOSITORY / "README.md",
    *STARTS,
    *(REPOSITORY / f"docs/{name}.md" for name in ("own_parts", "sweeps", "report")),
]
ENGLISH, CHINESE = (REPOSITORY / f"docs/start_four_norms{ending}" for ending in (".md", ".zh.md"))  # one page
RUN.remove(CHINESE)
PLANNED = [path for path in PAGES if path not in (*RUN, CHINESE) and "```bash" in PAGES[path]]
MADE = list[Path]()  # the folder of experiment=smoke, once a page has made it
OF_OTHERS = {"model=timm", "model=torchvision", "model=hf"}  # which have no model.width


def blocks(text: str, language: str) -> list[str]:
    """Return a text's code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages_alone: None) -> Path:
    """A current directory with the pages' own norm and its YAML, where they say that these are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "mynorms.py").write_text(blocks(TEXT, "python")[0])
    (tmp_path / "myplacements.py").write_text(blocks(PAGES[REPOSITORY / "docs/own_parts.md"], "python")[0])
    # test_contract has parts train everywhere, and measures bfloat16, for which a process starts
    monkeypatch.setattr(trials, "GROUNDS", {"MLP": trials.GROUNDS["MLP"]})
    monkeypatch.setattr("normbench.contract.norms.bfloat16_is_close", lambda part: "")
    monkeypatch.setattr("normbench.sweep.sweep.time_run", lambda run: 1.0)  # what fails in it fails no plan
    monkeypatch.setattr(loop, "evaluate", evaluate_two_batches)
    five_seconds_a_look = SimpleNamespace(perf_counter=itertools.count(step=5.0).__next__)
    monkeypatch.setattr("normbench.training.estimate.time", five_seconds_a_look)  # so that two steps are measured
    (tmp_path / "myconf/norm").mkdir(parents=True)
    (tmp_path / "myconf/norm/l1.yaml").write_text(blocks(TEXT, "yaml")[0])
    return tmp_path


def evaluate_two_batches(model: Model, batches: Iterable[Batch], *others: Any) -> dict[str, float]:
    """Evaluate a model as a run does, but not on all data at its end, which takes a tenth of the time of all pages."""
    return evaluate(model, itertools.islice(batches, 2), *others)


def narrow(words: list[str]) -> list[str]:
    """Return the word that makes the model of a command narrow or shallow, where there is one."""
    if "model=hf" in words:
        return ["model.config.num_hidden_layers=1", "model.config.hidden_size=32"]
    if "model=seq2seq" in words:
        return ["model.width=8", "model.depth=1", "model.decoder_depth=1"]
    return ["data.batch_size=4"] if OF_OTHERS & {*words} else ["model.width=8"]


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of a page that begin with a command of normbench, and its words."""
    for line in "".join(blocks(PAGES[page], "bash")).replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        words = words[words.index("normbench") + 1 if words[:1] == ["torchrun"] else 1 :]  # here in one process
        if words:
            yield line, [word for word in words if word != "data.root=PATH"]  # it is where NORMBENCH_DATA says


def small(words: list[str]) -> list[str]:
    """Return a command, made short."""
    if words[0] == "doctor":
        return [*words, "--help"]  # test_doctor examines a part of a machine
    if words[0] == "swap":
        return [*words, "--help"]  # test_swap_command has models
    is_of_trained_weights = any(word.startswith("model.weights=") for word in words)  # in files of the reader's own
    if (LONG & {*words} or is_of_trained_weights) and "--dry-run" not in words:
        return [*words, "--cfg", "job"]
    if TRANSLATORS & {*words}:  # a plan reads the data, and times its steps
        if not Path("pairs").exists():
            write_few_pairs(Path("pairs"))
        words += ["data.root=pairs", "data.batch_size=4"]
    if words[0] in ("study", "bench") and "outputs/" not in " ".join(words):
        return [*words, "--help"]  # test_studies asks whether their words are understood
    if words[0] == "claims" and len(words) > 1:
        return [*words, "--help"]  # test_claims runs some
    if any(word.startswith("extend=") for word in words):
        return [*words, "trainer.steps=6"]
    if words[0] == "train":
        smaller = [] if "model=" in " ".join(words) else ["model.depth=1"]
        return [*words, *SHORT, *narrow(words), *smaller]
    if "--dry-run" not in words and SWEEPS & {*words}:
        chooses = any(word.startswith("sweep.lr=") for word in words)
        few = ["seed=0", "sweep.lr_grid=[1e-3]"] if chooses else ["seed=0,1"]
        report = [] if "experiment=smoke" in words else ["sweep.report=false"]  # the same function makes it
        return [*words, *SHORT, *narrow(words), "launcher=local", *few, *report]
    if words[0] == "sweep" and "experiment=" in " ".join(words) and "--dry-run" not in words:
        return [*words, "--dry-run"]
    return words


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("page", RUN, ids=lambda path: path.name)
def test_the_commands_of_a_page(page: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line, words in commands(page):
        if words[0] == "tensorboard":
            assert Path(words[1]).is_dir()
            if page.name == "README.md":  # it serves any folder alike
                serves(words)
        else:
            capsys.readouterr()
            words = small(words)
            if "experiment=smoke" in words and MADE:  # three pages begin with it: its runs are found done
                shutil.copytree(MADE[0], "outputs/smoke")
            status = main(words)
            printed = capsys.readouterr()
            if "--plan" in words and status:  # the runs of this page are too short here to train
                assert status == 2 and "needs a pilot whose runs all train" in printed.err, line
                continue
            assert status == 0, (line, printed.err)
            assert len(printed.out) > 60, line
            if "experiment=smoke" in words:
                MADE[:] = [here / "outputs/smoke"]
    for block in blocks(PAGES[page], "python"):
        if page in STARTS:
            exec(block, {})
        if "load_runs" in block and (here / "outputs/tour").exists():
            names: dict[str, object] = {}
            exec(block, names)
            assert type(names["model"]).__name__ == "Transformer"


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("page", PLANNED, ids=lambda path: path.name)
def test_the_commands_of_another_page_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the checks of a run before its model is built; tests of what they are about build and train."""
    for line, words in commands(page):
        plans = {"train", "sweep"} & {words[0]} and not LONG & {*words} and "model.weights=" not in line
        if plans and words[0] == "train":
            prepare(read([word for word in words[1:] if word != "--dry-run"]))
        elif plans:  # with one seed: each more is composed as this one is
            asked = [word for word in words[1:] if word != "--dry-run" and not word.startswith("seed=")]
            assert plan_sweep([*asked, "seed=0"]).plan.runs, line
        else:
            asks = ["--help"] if "outputs/" in line else []  # of runs that are not made here
            assert main(small([*words, *asks])) == 0, (line, capsys.readouterr().err)


def serves(words: list[str]) -> None:
    """Start the real TensorBoard on a free port, and wait for its address."""
    line = [sys.executable, "-m", "normbench", *words, "--port=0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert any("http://localhost:" in text for text in server.stdout or ())
        server.terminate()


def test_what_a_newcomer_reads_is_short() -> None:
    readme = PAGES[REPOSITORY / "README.md"]
    assert len(readme.split()) <= 1000
    assert len(STARTS) == 4
    for path in STARTS:
        assert f"](docs/{path.name})" in readme
        assert len(PAGES[path].split()) <= 300, path.name
        assert len(re.findall("[一-鿿]", PAGES[path])) <= 450, path.name  # in Chinese


@pytest.mark.parametrize("page", [REPOSITORY / "README.md", *STARTS], ids=lambda path: path.name)
def test_what_a_newcomer_pastes_has_no_placeholder(page: Path) -> None:
    for block in blocks(PAGES[page], "bash"):
        assert not re.search(r"\b[A-Z]{2,}\b|<|\.\.\.", block), block


def test_what_a_newcomer_pastes_is_the_same_in_chinese() -> None:
    assert blocks(PAGES[CHINESE], "bash") == blocks(PAGES[ENGLISH], "bash") != []
    assert blocks(PAGES[CHINESE], "python") == blocks(PAGES[ENGLISH], "python")


@pytest.mark.parametrize("group", ["norm", "placement", "weights", "scheme", "model", "data", "experiment", "logger"])
def test_the_tables_name_options_that_there_are(group: str) -> None:
    assert documented(group)


def test_the_pictures_exist() -> None:
    pictures = [page.parent / path for page, text in PAGES.items() for path in re.findall(r"!\[.*?\]\((.*?)\)", text)]
    assert pictures and all(path.stat().st_size > 10_000 for path in pictures)
