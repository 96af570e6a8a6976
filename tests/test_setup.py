"""The set-up behind scripts/normbench and scripts/test, with stand-ins for Python and pip; what a built wheel holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support import REPOSITORY

# Everything that the scripts may call; a Python is not among them.
COMMANDS = ["awk", "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "flock", "grep", "mkdir", "mv"]
COMMANDS += ["readlink", "rm", "sed", "sleep", "tail"]

# Stands in for Python, its venv module and its pip; every pip install is a line in $CALLS.
FAKE_PYTHON = r"""#!/usr/bin/env bash
case "$*" in
    *sys.version_info*) echo "{version}" ;;
    *"import ensurepip"*) {venv} ;;
    *"-m venv "*)
        venv="${{!#}}"
        mkdir -p "$venv/bin" && cp "$0" "$venv/bin/python"
        echo "#!$venv/bin/python" >"$venv/bin/pip" ;;
    *"-m pip --version"*) ;;
    *"-m pip install"*)
        echo "$*" >>"$CALLS"
        {pip}
        for tool in normbench ruff mypy; do
            printf '#!/usr/bin/env bash\necho "%s in $PWD: $*"\n' "$tool" >"${{0%/*}}/$tool"
            chmod +x "${{0%/*}}/$tool"
        done ;;
    *"-m pytest"*) echo "pytest in $PWD: $*" ;;
esac
"""


class Machine:
    """A checkout in a folder with spaces in its name, and a PATH with only the Pythons that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.elsewhere = folder / "a check out", folder / "else where"
        self.bin, self.calls = folder / "bin", folder / "calls"
        for directory in (self.checkout, self.elsewhere, self.bin):
            directory.mkdir()
        shutil.copytree(REPOSITORY / "scripts", self.checkout / "scripts")
        for name in ("constraints.txt", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.checkout / name)
        for name in filter(shutil.which, COMMANDS):
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.add("df", "echo header; echo disk 0 0 90000000 0% /")
        self.add_python()
        self.calls.touch()

    @property
    def venv(self) -> Path:
        return self.checkout / ".venv"

    def add(self, name: str, text: str) -> None:
        """Put a program on the machine's PATH."""
        (self.bin / name).write_text(text if text.startswith("#!") else f"#!/usr/bin/env bash\n{text}\n")
        (self.bin / name).chmod(0o755)

    def add_python(self, name: str = "python3", version: str = "3.11.4", venv: str = "exit 0", pip: str = ":") -> None:
        self.add(name, FAKE_PYTHON.format(version=version, venv=venv, pip=pip))

    def run(self, script: str | Path = "normbench", *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "CALLS": str(self.calls), "TMPDIR": str(self.elsewhere), **variables}
        line = [str(self.checkout / "scripts" / script), *words]
        # in a session of its own, so that a signal to all of the set-up's processes spares the test
        return subprocess.run(
            line, cwd=self.elsewhere, env=environment, capture_output=True, text=True, timeout=60,
            start_new_session=True,
        )  # fmt: skip

    def installs(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def assert_fails(outcome: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check for exit status 1, nothing on stdout, and a last line on stderr that has the words."""
    assert (outcome.returncode, outcome.stdout) == (1, ""), outcome
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith("normbench: ")
    assert all(word in last for word in words), outcome.stderr


def test_the_first_call_sets_up_and_every_call_runs_in_the_callers_directory(machine: Machine) -> None:
    outcome = machine.run("normbench", "train", "norm=rmsnorm", "name=two words")
    assert outcome.stdout == f"normbench in {machine.elsewhere}: train norm=rmsnorm name=two words\n"
    assert "GB" in outcome.stderr and "constraints.txt" in outcome.stderr
    link = machine.elsewhere / "nb"
    link.symlink_to(machine.checkout / "scripts" / "normbench")
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        outcome = machine.run(link, "list")
        seconds.append(time.perf_counter() - start)
        assert (outcome.stdout, outcome.stderr) == (f"normbench in {machine.elsewhere}: list\n", "")
    assert min(seconds) < 0.2
    [call] = machine.installs()
    assert f"--constraint {machine.checkout}/constraints.txt --editable {machine.checkout}" in call


def test_the_check_command_has_the_test_extra_which_serves_both(machine: Machine) -> None:
    machine.run("normbench")
    outcome, place = machine.run("test", "-k", "two words"), machine.checkout
    assert outcome.stdout.splitlines() == [
        f"ruff in {place}: check .",
        f"ruff in {place}: format --check .",
        f"mypy in {place}: ",
        f"pytest in {place}: -m pytest -n auto --dist worksteal -k two words",
    ]
    machine.run("normbench")
    machine.run("test")
    assert [call.endswith("[test]") for call in machine.installs()] == [False, True]


# ---- what makes it set up again


def append(name: str) -> Callable[[Machine], None]:
    return lambda machine: (machine.checkout / name).write_text((machine.checkout / name).read_text() + "# changed\n")


def empty(machine: Machine) -> None:
    shutil.rmtree(machine.venv)
    machine.venv.mkdir()


def move(machine: Machine) -> None:
    machine.checkout = machine.checkout.rename(machine.elsewhere / "moved")


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (append("constraints.txt"), True),
        (append("pyproject.toml"), True),
        (lambda machine: (machine.venv / "bin/normbench").unlink(), True),
        (lambda machine: (machine.venv / "bin/python").unlink(), False),
        (empty, False),
        (move, False),
    ],
)
def test_a_changed_or_damaged_environment_is_repaired(
    machine: Machine, change: Callable[[Machine], None], kept: bool
) -> None:
    machine.run()
    (machine.venv / "kept").touch()
    change(machine)
    outcome = machine.run()
    assert outcome.stdout.startswith("normbench in "), outcome.stderr
    assert len(machine.installs()) == 2
    assert (machine.venv / "kept").exists() == kept


def test_the_variable_python_chooses_and_changes_the_python(machine: Machine) -> None:
    machine.add_python("other", version="3.13.0")
    machine.run()
    machine.run(PYTHON="other")
    machine.run(PYTHON="other")
    assert len(machine.installs()) == 2
    assert "3.13.0" in (machine.venv / "set-up.state").read_text()


def test_a_python_in_range_is_found_behind_others(machine: Machine) -> None:
    machine.add_python("python3", "3.9.2")
    machine.add("python3.11", "exit 127")
    machine.add_python("python3.12", "3.12.1")
    assert machine.run().returncode == 0


@pytest.mark.parametrize(("signal", "status"), [("KILL", -9), ("INT", 130)])
def test_a_set_up_that_was_stopped_is_made_anew(machine: Machine, signal: str, status: int) -> None:
    machine.add_python(pip=f"mkdir \"${{0%/*}}/half\"; trap 'exit 1' INT; kill -{signal} 0; sleep 1")
    outcome = machine.run()
    assert outcome.returncode == status
    assert status == -9 or outcome.stderr.splitlines()[-1].startswith("normbench: interrupted")
    assert (machine.venv / "bin/half").exists()
    machine.add_python()
    assert machine.run().returncode == 0
    assert not (machine.venv / "bin/half").exists()


@pytest.mark.skipif(shutil.which("flock") is None, reason="this machine has no flock")
def test_two_set_ups_at_once_are_one_after_the_other(machine: Machine) -> None:
    machine.add_python(pip="sleep 0.5")
    first = threading.Thread(target=machine.run)
    first.start()
    while not machine.installs():
        time.sleep(0.01)
    outcome = machine.run()
    first.join()
    assert outcome.stdout.startswith("normbench in "), outcome.stderr
    assert "waiting" in outcome.stderr
    assert len(machine.installs()) == 1


# ---- what stops it


@pytest.mark.parametrize(
    ("pythons", "variables", "words"),
    [
        ({}, {}, ["3.11, 3.12 or 3.13", "found no python3"]),
        ({}, {"PYTHON": "missing"}, ["no missing"]),
        ({"python3": "3.9.2", "python": "2.7.18"}, {}, ["python3 is 3.9.2, python is 2.7.18", "PYTHON="]),
        ({"python3": "3.14.0"}, {}, ["python3 is 3.14.0"]),
    ],
)
def test_no_suitable_python(
    machine: Machine, pythons: dict[str, str], variables: dict[str, str], words: list[str]
) -> None:
    (machine.bin / "python3").unlink()
    for name, version in pythons.items():
        machine.add_python(name, version)
    outcome = machine.run(**variables)
    assert_fails(outcome, *words)
    assert len(outcome.stderr.splitlines()) == 1
    assert not machine.venv.exists()


def test_no_venv_module_and_no_space_are_seen_before_anything_is_made(machine: Machine) -> None:
    machine.add_python(venv="exit 1")
    assert_fails(machine.run(), "apt install python3.11-venv")
    machine.add_python()
    machine.add("df", "echo header; echo disk 0 0 700000 0% /")
    assert_fails(machine.run(), "needs 2000 MB", "700 MB free")
    assert not machine.venv.exists()


NO_INDEX = f'"{sys.executable}" -I -m pip --retries 0 install --index-url http://127.0.0.1:9/simple no-such-thing'


@pytest.mark.parametrize(
    ("pip", "sentence"),
    [
        ("echo 'ERROR: an OSError: [Errno 28] No space left on device' >&2", "the disk is full"),
        (NO_INDEX, "check the network"),  # pip's real words: the port answers nobody
        ("echo 'ERROR: No matching distribution found for x' >&2", "normbench: No matching distribution found"),
        ("echo Killed >&2", "pip could not install normbench: it gave no reason"),
    ],
)
def test_what_stops_pip_is_said_and_the_next_call_repairs(machine: Machine, pip: str, sentence: str) -> None:
    machine.add_python(pip=f"echo Collecting torch; {pip}; exit 1")
    outcome = machine.run()
    assert_fails(outcome, sentence)
    assert "Collecting torch" in outcome.stderr
    machine.add_python()
    assert machine.run().returncode == 0
    assert len(machine.installs()) == 2


# ---- the wheel


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_configuration_and_runs_from_any_directory(tmp_path: Path) -> None:
    """It is built from a copy, so that no build leaves files here."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    for name in ("normbench", "conf"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    held = {str(path.relative_to(installed)) for path in installed.rglob("*.*") if ".dist-info" not in str(path)}
    code = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "normbench").rglob("*.py")}
    yamls = {f"normbench/{path.relative_to(REPOSITORY)}" for path in (REPOSITORY / "conf").rglob("*.yaml")}
    assert code and yamls and held >= code | yamls
    assert all(name.startswith("normbench/") for name in held)
    line, environment = [sys.executable, "-m", "normbench", "list"], {**os.environ, "PYTHONPATH": str(installed)}
    outcome = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "rmsnorm" in outcome.stdout
