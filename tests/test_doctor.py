"""`normbench doctor`: what it finds where things are missing, broken, full or slow, and what it does not tell."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from normbench.cli import main
from normbench.doctor import examination, packages, places, trials
from normbench.doctor.findings import Problem, Section
from normbench.doctor.packages import Package, examine_packages, try_imports
from normbench.doctor.private import Private, private_here
from normbench.doctor.trials import Outcome, Trial
from normbench.errors import RunFailure

WORKS = {"reason": "", "is_torchvision": False}
PATIENCE = 60.0  # seconds for a process that takes a fraction of one

Imports = Callable[[Sequence[str]], Outcome]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, in which caches are too."""
    monkeypatch.chdir(tmp_path)
    for name in examination.VARIABLES:
        if name not in ("PYTHONPATH", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR"):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def imports_but(reasons: dict[str, str], late: str = "", tried: list[str] | None = None) -> Imports:
    """Return what imports modules, but those with a reason against it; the process dies of one whose reason is empty.

    Args:
        late: the module in whose import the time runs out.
        tried: to which each import is added.
    """

    def imports(modules: Sequence[str]) -> Outcome:
        found: list[dict[str, Any]] = []
        for module in modules:
            if tried is not None:
                tried.append(module)
            if module == late:
                return Outcome(found, "it did not end within 20 s", is_late=True)
            if module in reasons:
                if not reasons[module]:
                    return Outcome(found, "its process died of SIGSEGV")
                found.append({"reason": reasons[module], "is_torchvision": "torchvision" in reasons[module]})
                return Outcome(found)
            found.append(WORKS)
        return Outcome(found)

    return imports


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, list[str]]]:
    """Packages with their versions and what they need, which are all that is installed."""
    there: dict[str, tuple[str, list[str]]] = {
        "torch": ("2.13.0+cpu", ["sympy"]),
        "sympy": ("1.14", []),
        "numpy": ("2.4.6", []),
        "torchvision": ("0.28.0", ["torch==2.13.0", "numpy", 'scipy; extra == "scipy"']),
        "timm": ("1.0.31", ["torch", "torchvision"]),
        "transformers": ("5.24.0", ["numpy>=1.17"]),
    }
    monkeypatch.setattr(packages, "installed_version", lambda name: there[name][0] if name in there else "")
    monkeypatch.setattr(packages, "requires", lambda name: there[name][1])
    return there


USED = [
    Package("torch", ">=2.6"),
    Package("numpy", ">=2"),
    Package("torchvision", ">=0.21", "torchvision"),
    Package("timm", ">=1.0", "timm"),
    Package("transformers", ">=5", "hf"),
    Package("wandb", ">=0.19", "wandb"),
]


# ---- packages


def test_what_works_has_no_problem(installed: dict[str, Any]) -> None:
    found = examine_packages(USED, imports_but({}))
    assert found.problems == []
    assert found.facts["torch"] == "2.13.0+cpu"
    assert found.facts["wandb"] == "not installed (pip install 'normbench[wandb]')"


def test_a_package_that_cannot_be_imported_does_not_hide_those_after_it(installed: dict[str, Any]) -> None:
    """transformers is imported in the process after the one that died, and works."""
    tried: list[str] = []
    against = {"torchvision": "RuntimeError: operator torchvision::nms does not exist", "timm": ""}
    found = examine_packages(USED, imports_but(against, tried=tried))
    assert [name for name, fact in found.facts.items() if "cannot be imported" in fact] == ["torchvision", "timm"]
    assert tried == ["torch", "numpy", "torchvision", "timm", "transformers"]
    of_torchvision, of_timm = found.problems
    assert "torchvision::nms" in of_torchvision.what and "one index" in of_torchvision.cure
    assert "SIGSEGV" in of_timm.what and "pip install" in of_timm.cure
    assert not of_torchvision.stops and not of_timm.stops


def test_without_torch_what_needs_it_is_not_imported(installed: dict[str, Any]) -> None:
    tried: list[str] = []
    found = examine_packages(USED, imports_but({"torch": "ImportError: libtorch.so"}, tried=tried))
    assert tried == ["torch", "numpy"]
    (problem,) = found.problems
    assert problem.stops and problem.what.startswith("torch 2.13.0+cpu cannot be imported (ImportError: libtorch.so)")
    del installed["torch"]
    found = examine_packages(USED, imports_but({}))
    assert found.problems[0].what == "torch is not installed" and found.problems[0].stops


def test_time_that_runs_out_is_no_fault_of_a_package(installed: dict[str, Any]) -> None:
    there = [package for package in USED if package.name != "wandb"]
    failures, untried = try_imports(there, imports_but({}, late="torchvision"))
    assert failures == {}
    assert list(untried) == ["torchvision", "timm", "transformers"]


def test_versions_that_do_not_fit(installed: dict[str, Any]) -> None:
    installed["torch"] = ("2.5.1", ["sympy", "triton"])
    found = examine_packages(USED, imports_but({}))
    sentences = [problem.what for problem in found.problems]
    assert sentences == [
        "normbench needs torch>=2.6, and 2.5.1 is installed",
        "torch 2.5.1 needs triton, which is not installed",
        "torchvision 0.28.0 needs torch==2.13.0, and 2.5.1 is installed",
    ]
    assert "one index" in found.problems[2].cure


def test_what_normbench_needs_is_read_from_its_own_record() -> None:
    found = {package.name: package for package in packages.packages_of_normbench()}
    assert next(iter(found)) == "torch" and found["torch"].needed
    assert found["hydra-core"].module == "hydra" and found["hydra-core"].range
    assert found["timm"].extra == "timm" and not found["timm"].needed
    assert "pytest" not in found and "normbench" not in found


# ---- processes that try


@pytest.fixture
def bad_modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that do what no module should."""
    folder = here / "bad"
    folder.mkdir()
    (folder / "chats.py").write_text("print('hello')")
    (folder / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    (folder / "exits.py").write_text("raise SystemExit(3)")
    (folder / "hangs.py").write_text("import time\nwhile True:\n    time.sleep(1)")
    (folder / "torchvision.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return folder


def test_a_process_may_print_die_exit_or_hang(bad_modules: Path) -> None:
    until = time.monotonic() + PATIENCE
    died = Trial("import_in_turn", [["chats", "json", "dies", "csv"]])
    ended = Trial("import_in_turn", [["exits"]])
    unfit = Trial("import_in_turn", [["torchvision"]])
    found = died.wait(until)
    assert (found.found, found.failure, found.is_late) == ([WORKS, WORKS], "its process died of SIGKILL", False)
    assert ended.wait(until).found[0]["reason"].startswith("SystemExit: 3")
    (of_torchvision,) = unfit.wait(until).found
    assert of_torchvision["is_torchvision"] and "built for another torch" in of_torchvision["reason"]

    hangs = Trial("import_in_turn", [["chats", "hangs"]])
    assert hangs.process.stdout is not None
    first = json.loads(hangs.process.stdout.readline())  # so that it hangs before it is given up
    assert first == {"found": WORKS}
    late = hangs.wait(time.monotonic())
    assert late.is_late and late.failure.startswith("it did not end within")
    assert hangs.process.poll() is not None


def test_what_has_ended_is_known_when_the_time_is_over() -> None:
    done = Trial("import_in_turn", [["json"]])
    done.process.wait(PATIENCE)
    assert done.wait(time.monotonic() - 1) == Outcome([WORKS])


def test_what_torch_can_do_is_what_its_trial_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason_against(device: torch.device, dtype: torch.dtype) -> str:
        return "no such unit" if dtype == torch.float16 else ""

    monkeypatch.setattr("normbench.training.precision.reason_against", reason_against)
    facts: dict[str, str] = {}
    for some in trials.describe_torch():
        facts |= some
    assert facts["vector instructions"] == torch.backends.cpu.get_cpu_capability()
    assert (facts["bf16 on the CPU"], facts["fp16 on the CPU"]) == ("yes", "no: no such unit")


def test_compiled_code_must_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.compiling.compiled", lambda function: function)
    (seconds,) = trials.compile_a_function()
    assert seconds >= 0
    monkeypatch.setattr("normbench.compiling.compiled", lambda function: lambda x: function(x) + 0.1)
    with pytest.raises(RuntimeError):
        list(trials.compile_a_function())


def test_a_tiny_training_works_or_says_what_does_not(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(trials.train_briefly(str(here / "outputs"))) == [""]
    (here / "file").touch()
    monkeypatch.setenv("NORMBENCH_CACHE", str(here / "file"))
    (refusal,) = trials.train_briefly(str(here / "others"))
    problem = examination.problem_of_training(Outcome([refusal]))
    assert problem and problem.stops
    assert "the data cache" in problem.what and problem.cure.startswith("set NORMBENCH_CACHE")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[BaseHTTPRequestHandler]]:
    """A hub on this machine, which answers with a status."""

    class Answer(BaseHTTPRequestHandler):
        status = 200

        def do_HEAD(self) -> None:
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://somebody:word@127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield Answer
        server.shutdown()
        thread.join()


def test_the_hub_answers_or_not(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(trials.ask_hub()) == [200]
    hub.status = 503
    assert list(trials.ask_hub()) == [503]
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    with pytest.raises(RunFailure) as silent:
        list(trials.ask_hub())
    assert "refused" in str(silent.value) and "Errno" not in str(silent.value)

    class Asked:
        def __init__(self, outcome: Outcome) -> None:
            self.outcome = outcome

        def wait(self, until: float) -> Outcome:
            return self.outcome

    for outcome, problems in ((Outcome([200]), 0), (Outcome([503]), 1), (Outcome([], "ConnectError: no route"), 1)):
        found = examination.examine_hub(Asked(outcome), 0.0)  # type: ignore[arg-type]
        assert len(found.problems) == problems
        assert not any(problem.stops for problem in found.problems)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert examination.is_offline()
    found = examination.examine_hub(None, 0.0)
    assert found.problems == [] and "not asked" in found.facts["hub"]


# ---- folders


def problems_of_places() -> dict[str, Problem]:
    """Return the problems of the folders here, by what they begin with."""
    found = {}
    for problem in places.examine_places().problems:
        before = problem.what.partition(" cannot be")[0].rstrip(",")
        found[before.rpartition(", ")[2]] = problem
    return found


def test_folders_that_can_be_used_are_left_as_they_are(here: Path) -> None:
    found = places.examine_places()
    assert found.problems == []
    assert found.facts["outputs"].startswith(f"{here}/outputs, not there yet, ")
    assert found.facts["decoded data"].startswith(f"{here}/cache/normbench, not there yet")
    assert list(here.iterdir()) == []


def test_folders_that_cannot_be_used(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").touch()
    monkeypatch.setenv("NORMBENCH_CACHE", str(here / "file/cache"))
    monkeypatch.setenv("HF_HOME", str(here / "file"))
    monkeypatch.setenv("NORMBENCH_DATA", str(here / "nowhere"))
    found = problems_of_places()
    assert found["the folder of decoded data"].stops
    assert found["the folder of decoded data"].cure.startswith("set NORMBENCH_CACHE")
    assert not found["the folder of hub's files"].stops
    of_data = found[f"NORMBENCH_DATA={here}/nowhere"]
    assert not of_data.stops and "NORMBENCH_DATA" in of_data.cure


def test_data_sets_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "data/ylecun/mnist").mkdir(parents=True)
    (here / "data/stanfordnlp").mkdir()
    monkeypatch.setenv("NORMBENCH_DATA", "data")
    assert places.examine_places().facts["data sets"] == "data (of NORMBENCH_DATA), with mnist"


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(places.os, "fsync", fail)
    found = problems_of_places()
    assert found["the folder of outputs"].stops
    assert found["the folder of outputs"].cure.startswith("make room, or ")


def test_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LITTLE", 1e30)
    found = places.examine_places().problems
    assert len(found) == 6 and not any(problem.stops for problem in found)


# ---- the GPU


@pytest.mark.parametrize(
    ("facts", "cure"),
    [
        ([{"torch is built for": "the CPU alone"}], "install torch for CUDA"),
        (
            [{"torch is built for": "CUDA 13.0"}, {"reason against GPU": "the driver is too old"}],
            "install a driver for",
        ),
        ([{"torch is built for": "CUDA 13.0"}, {"GPU 0": "a GPU"}], None),
    ],
)
def test_a_gpu_that_torch_does_not_use(
    facts: list[dict[str, str]], cure: str | None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "NVIDIA", here / "version")
    assert examination.examine_torch(Outcome(facts)).problems == []  # no driver, so no GPU to be used
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12"
    (here / "version").write_text(version)
    assert examination.nvidia_driver() == "580.95.05"
    found = examination.examine_torch(Outcome(facts)).problems
    assert [problem.cure.startswith(cure or "") for problem in found] == ([True] if cure else [])


# ---- what is told


def test_nothing_private_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    private = Private(["/home/jane", "/mnt/home/jane"][::-1], ["jane"], ["s3cret-word"])
    told = private.hide(
        "/home/jane/x /mnt/home/jane, /scratch/jane/y jane: http://u:p@h/z s3cret-word janet /home/janet"
    )
    assert told == "~/x ~, /scratch/~/y ~: http://***@h/z *** janet /home/janet"
    assert private.hide("key hf_abcdefghijklmnopqrstuvwxyz") == "key ***"
    monkeypatch.setenv("HOME", "/home/joe")
    monkeypatch.setenv("USER", "joe")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert private_here().hide("/home/joe: joe, 0123456789abcdef") == "~: ~, ***"


def test_a_broken_torch_is_told_in_a_sentence(
    bad_modules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command, with processes of its own."""
    (bad_modules / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    monkeypatch.setattr(examination, "packages_of_normbench", lambda: [Package("torch"), Package("click")])
    monkeypatch.setenv("HOME", str(bad_modules))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    assert main(["doctor", "--json"]) == 1
    said = capsys.readouterr().out
    assert str(bad_modules) not in said and "hf_0123456789" not in said
    told = json.loads(said)
    (problem,) = told["problems"]
    assert problem["stops_basic_job"] and "libtorch_cpu.so" in problem["problem"]
    assert told["can_run"] is False
    assert told["facts"]["packages"]["click"]
    assert "torch" not in told["facts"]


def test_the_page_tells_first_what_stops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sections = [Section("machine", {"CPU": "some"}, [Problem("b is off", "mend b")])]
    monkeypatch.setattr("normbench.commands.doctor.examine", lambda: sections)
    assert main(["doctor"]) == 0
    sections.append(Section("packages", {}, [Problem("a is off", "mend a", stops=True)]))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert said.index("1. a is off: mend a") < said.index("2. b is off: mend b")
