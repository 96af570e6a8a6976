"""What `scripts/gpu_check` says, writes and stops; what its checks measure is tried in test_pretended_gpu.py."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from killing import PATIENCE
from outcomes import CUT, FAILS, HOLDS, LEFT, NotTried, Outcome
from support import REPOSITORY

FOLDER = REPOSITORY / "scripts/lib/gpu_check"

# What stands in for a check: it is given --one FILE.
WRITES = "import json, sys; json.dump({'verdict': 'holds', 'figure': '3 ms'}, open(sys.argv[2], 'w'))"
HANGS_FOR = 600  # seconds
HANGS = f"import subprocess, time; subprocess.Popen(['sleep', '{HANGS_FOR}']); time.sleep({HANGS_FOR})"
ENDS = "import sys; sys.exit('first\\nthe reason')"


@pytest.fixture
def command() -> ModuleType:
    """The module behind the command."""
    spec = importlib.util.spec_from_file_location("gpu_check_command", FOLDER / "__main__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(FOLDER)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER), run_name="__main__")  # as Python does with the folder
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("normbench: ") and "GPU" in err


def test_a_check_is_a_process_that_ends_in_time(command: ModuleType) -> None:
    assert command.try_check([sys.executable, "-c", WRITES], PATIENCE).verdict == HOLDS
    failed = command.try_check([sys.executable, "-c", ENDS], PATIENCE)
    assert failed.verdict == FAILS and failed.figure == "it ended with status 1: first / the reason"
    cut = command.try_check([sys.executable, "-c", HANGS], 1.1)
    assert cut.verdict == CUT and cut.seconds < HANGS_FOR
    assert command.try_check([sys.executable, "-c", WRITES], 0.5).figure == "no time was left"


@pytest.mark.parametrize(("verdict", "status"), [(HOLDS, 0), (LEFT, 0), (FAILS, 1), (CUT, 1)])
def test_what_was_found_is_printed_and_written(
    verdict: str,
    status: int,
    command: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {
        "waits": Outcome(HOLDS, "all", {"n": 3}, [{"run": "a|b", "ms": "2"}], 1.0),
        "repeats": Outcome(verdict, "two", {"n": 4}),
    }

    def try_check(words: Any, seconds: float) -> Outcome:
        assert 0 < seconds <= 180
        return given[words[-1]]

    monkeypatch.setattr(command, "why_not", lambda: "")
    monkeypatch.setattr(command, "about", lambda: {"GPU": "a large one"})
    monkeypatch.setattr(command, "try_check", try_check)
    assert command.main(["waits", "repeats", "--out", str(tmp_path)]) == status
    said = capsys.readouterr().out
    assert f"repeats      {verdict}" in said and "GPU: a large one" in said
    known = json.loads((tmp_path / "gpu_check.json").read_text())
    assert known["checks"]["repeats"]["verdict"] == verdict and known["checks"]["waits"]["numbers"] == {"n": 3}
    page = (tmp_path / "gpu_check.md").read_text().splitlines()
    assert page[0] == "## On a GPU" and "- GPU: a large one" in page
    assert any(line.startswith("| repeats | ") and line.endswith(f" | {verdict} | two |") for line in page)
    assert page[-3:] == ["| run | ms |", "|---|---|", "| a\\|b | 2 |"]


def test_checks_of_times_have_nothing_beside_them(command: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    both = threading.Barrier(2)

    def try_one(name: str) -> tuple[str, Outcome]:
        if name not in ("times", "bench"):
            both.wait(20)  # for the other one
        begun.append(name)
        return name, Outcome(HOLDS, "")

    monkeypatch.setattr(command, "CORES", 1 / 2)
    names = ["times", "waits", "bench", "repeats"]
    found = command.try_side_by_side(try_one, names, {"times", "bench"})
    assert [name for name, _ in found][2:] == begun[2:] == ["times", "bench"]


def test_no_check_takes_most_of_the_ten_minutes(command: ModuleType) -> None:
    """Not even one that hangs."""
    from checks import CHECKS

    assert command.WHOLE < 600 and max(check.seconds for check in CHECKS.values()) < command.WHOLE / 2


def test_a_profiler_that_sees_nothing_fails_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own may be for root alone."""
    monkeypatch.syspath_prepend(REPOSITORY / "tests/pretended_gpu")
    from checks import kernels_of

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("checks.profile", lambda activities: nullcontext(SimpleNamespace(key_averages=list)))
    with pytest.raises(NotTried, match="sees no kernels"):
        kernels_of(lambda: torch.ones(3) + 1)


def test_the_page_tells_all_checks() -> None:
    from checks import CHECKS

    page = (REPOSITORY / "docs/benchmarks.md").read_text().partition("## On a GPU")[2].partition("\n## ")[0]
    told = [line for line in page.splitlines() if line.startswith("| `")]
    assert told == [f"| `{name}` | {check.claim} |" for name, check in CHECKS.items()]
