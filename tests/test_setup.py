"""The set-up behind scripts/normbench and scripts/test, with stand-ins for Python and pip; what a built wheel holds."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from support import REPOSITORY

# Everything that the scripts may call; a Python is not among them.
COMMANDS = ["awk", "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "flock", "grep", "mkdir", "mv", "readlink",
            "rm", "sed", "sleep", "tail"]  # fmt: skip
NEEDED_LATER = ["bash", "dirname", "env", "readlink"]  # by a call that finds all set up, which so takes no time

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
    *"-m pytest"*) echo "pytest in $PWD: $*${{ONEDNN_MAX_CPU_ISA:+ as on $ONEDNN_MAX_CPU_ISA}}" ;;
    *"/scripts/lib/benchmark "*) echo "benchmark in $PWD: ${{*:2}}" ;;
    *"/scripts/lib/gpu_check "*) echo "gpu_check in $PWD: ${{*:2}}" ;;
esac
"""


class Machine:
    """A checkout in a folder with spaces in its name, and a PATH with only the Pythons that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.elsewhere, self.bin = folder / "a check out", folder / "else where", folder / "bin"
        self.calls = folder / "calls"
        for directory in (self.checkout, self.elsewhere, self.bin):
            directory.mkdir()
        shutil.copytree(REPOSITORY / "scripts", self.checkout / "scripts")
        for name in ("constraints.txt", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.checkout / name)
        for name in filter(shutil.which, COMMANDS):
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.add("df", "#!/usr/bin/env bash\necho header; echo disk 0 0 ${FREE:-90000000} 0% /\n")
        self.calls.touch()
        self.add_python()

    def add(self, name: str, text: str) -> None:
        """Put a program on the machine's PATH."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def add_python(self, name: str = "python3", version: str = "3.11.4", venv: str = "exit 0", pip: str = ":") -> None:
        self.add(name, FAKE_PYTHON.format(version=version, venv=venv, pip=pip))

    def run(self, script: str | Path = "normbench", *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Call a script; a signal to all of the set-up's processes spares the test."""
        environment = {"PATH": str(self.bin), "CALLS": str(self.calls), "TMPDIR": str(self.elsewhere), **variables}
        line = [str(self.checkout / "scripts" / script), *words]
        places: Any = {"cwd": self.elsewhere, "env": environment, "start_new_session": True}
        return subprocess.run(line, capture_output=True, text=True, timeout=60, **places)

    def installs(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_first_call_sets_up_and_every_call_runs_in_the_callers_directory(machine: Machine) -> None:
    outcome = machine.run("normbench", "train", "norm=rmsnorm", "name=two words")
    assert outcome.stdout == f"normbench in {machine.elsewhere}: train norm=rmsnorm name=two words\n"
    assert "GB" in outcome.stderr and "constraints.txt" in outcome.stderr
    link = machine.elsewhere / "nb"
    link.symlink_to(machine.checkout / "scripts" / "normbench")
    for program in machine.bin.iterdir():
        if program.name not in NEEDED_LATER:
            program.unlink()
    for _ in range(2):
        outcome = machine.run(link, "list")
        assert (outcome.stdout, outcome.stderr) == (f"normbench in {machine.elsewhere}: list\n", "")
    [call] = machine.installs()
    assert f"--constraint {machine.checkout}/constraints.txt --editable {machine.checkout}" in call


def test_the_check_command_has_the_test_extra_which_serves_both(machine: Machine) -> None:
    machine.run("normbench")
    told = machine.run("test", "-k", "two words").stdout.replace(f" in {machine.checkout}", "")
    assert told.replace("\n", "|") == (
        "ruff: check .|ruff: format --check .|mypy: |pytest: -m pytest -n auto --dist worksteal -k two words|"
    )
    machine.run("normbench")
    machine.run("test")
    assert [call.endswith(",test]") for call in machine.installs()] == [False, True]


def test_packages_that_few_tests_need_are_installed_where_they_are_asked_for(machine: Machine) -> None:
    """They serve every later call; no other loads what takes half a gigabyte."""
    told = machine.run("test", "--ci", "-k", "two words").stdout
    assert told.endswith(f"pytest in {machine.checkout}: -m pytest -n auto --dist worksteal -k two words\n")
    for script in ("test", "normbench"):
        machine.run(script)
    assert [call.endswith("[translation,test,ci]") for call in machine.installs()] == [True]


def test_ci_has_the_packages_of_all_tests_but_that_of_trackio() -> None:
    """And the plain check command has none of those that few tests need."""
    assert '"$root/scripts/test" --ci' in (REPOSITORY / ".ci/run").read_text().splitlines()
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    heavy = {"mlflow", "ray", "selenium", "trackio", "wandb"}
    of_each = {}
    for extra in ("test", "ci"):
        requirements = [Requirement(line) for line in extras[extra]]
        names = {requirement.name for requirement in requirements}.union(*(one.extras for one in requirements))
        of_each[extra] = names & heavy
    assert of_each == {"test": set(), "ci": heavy - {"trackio"}}


def test_the_tests_run_as_on_another_cpu(machine: Machine) -> None:
    for name, instructions in (("avx2", "AVX2"), ("sse", "SSE41")):
        told = machine.run("test", "--as", name, "-k", "two words").stdout.replace(f" in {machine.checkout}", "")
        assert told == f"pytest: -m pytest -n auto --dist worksteal -k two words as on {instructions}\n"
    for words in (["--as", "avx2", "--ci"], ["--ci", "--as", "avx2"]):
        told = machine.run("test", *words, "-x").stdout.replace(f" in {machine.checkout}", "")
        assert told == "pytest: -m pytest -n auto --dist worksteal -x as on AVX2\n"
    assert machine.installs()[-1].endswith("[translation,test,ci]")
    outcome = machine.run("test", "--as", "arm")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr == "normbench: scripts/test --as takes avx2 or sse, not 'arm'.\n"


def test_ci_has_every_file_of_tests_with_tensors_on_a_cpu_without_avx_512() -> None:
    """By no list of them, to which a new one would have to be added: conftest looks for torch in each."""
    lines = (REPOSITORY / ".ci/run").read_text().splitlines()
    commands = [shlex.split(line) for line in lines if "--as" in line]
    assert commands == [["$root/scripts/test", "--as", "avx2", "-m", "tensors and not slow"]]


def test_the_checks_of_a_gpu_share_the_tests_set_up_and_choose_no_build_of_torch(machine: Machine) -> None:
    told = machine.run("gpu_check", "waits", "--out", "two words")
    assert told.stdout == f"gpu_check in {machine.elsewhere}: waits --out two words\n", told.stderr
    machine.run("test")
    (call,) = machine.installs()
    assert call.endswith(",test]") and "index" not in call


def test_the_benchmark_needs_no_test_tools(machine: Machine) -> None:
    told = machine.run("benchmark", "start", "--out", "two words")
    assert told.stdout == f"benchmark in {machine.elsewhere}: start --out two words\n", told.stderr
    assert [call.endswith("[translation]") for call in machine.installs()] == [True]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("echo '# changed' >>constraints.txt", True),
        ("rm .venv/bin/normbench", True),
        ("rm -r .venv && mkdir .venv", False),
        ("mkdir moved && mv .venv scripts *.t* moved", False),
    ],
)
def test_a_changed_damaged_or_moved_environment_is_repaired(machine: Machine, change: str, kept: bool) -> None:
    machine.run()
    (machine.checkout / ".venv/kept").touch()
    subprocess.run(change, shell=True, check=True, cwd=machine.checkout)
    if change.startswith("mkdir"):
        machine.checkout /= "moved"
    outcome = machine.run()
    assert outcome.stdout.startswith("normbench in "), outcome.stderr
    assert len(machine.installs()) == 2
    assert (machine.checkout / ".venv/kept").exists() == kept


def test_a_python_in_range_is_found_and_the_variable_python_changes_it(machine: Machine) -> None:
    for name, version in (("python3", "3.9.2"), ("python3.12", "3.12.1"), ("other", "3.13.0")):
        machine.add_python(name, version)
    state = machine.checkout / ".venv/set-up.state"
    for variables, version in (({}, "3.12.1"), ({"PYTHON": "other"}, "3.13.0"), ({"PYTHON": "other"}, "3.13.0")):
        assert machine.run(**variables).returncode == 0
        assert version in state.read_text()
    assert len(machine.installs()) == 2


@pytest.mark.parametrize(("signal", "status"), [("KILL", -9), ("INT", 130)])
def test_a_set_up_that_was_stopped_is_made_anew(machine: Machine, signal: str, status: int) -> None:
    half = machine.checkout / ".venv/bin/half"
    machine.add_python(pip=f"mkdir '{half}'; trap 'exit 1' INT; kill -{signal} 0; sleep 1")
    outcome = machine.run()
    assert (outcome.returncode, half.exists()) == (status, True)
    assert status == -9 or outcome.stderr.splitlines()[-1].startswith("normbench: interrupted")
    machine.add_python()
    assert (machine.run().returncode, half.exists()) == (0, False)


@pytest.mark.skipif(shutil.which("flock") is None, reason="this machine has no flock")
def test_two_set_ups_at_once_are_one_after_the_other(machine: Machine) -> None:
    machine.add_python(pip="sleep 0.5")
    first = threading.Thread(target=machine.run)
    first.start()
    while not machine.installs():
        time.sleep(0.01)
    outcome = machine.run()
    first.join()
    assert "waiting" in outcome.stderr
    assert (outcome.returncode, len(machine.installs())) == (0, 1)


NO_INDEX = f'"{sys.executable}" -I -m pip --retries 0 install --index-url http://127.0.0.1:9/simple no-such-thing'


@pytest.mark.parametrize(
    ("pythons", "variables", "sentence"),
    [
        ({}, {}, "3.11, 3.12 or 3.13 and found no python3"),
        ({"python3": {"version": "3.9.2"}, "python": {"version": "3.14.0"}}, {}, "python3 is 3.9.2, python is 3.14.0"),
        ({"python3": {"venv": "exit 1"}}, {}, "apt install python3.11-venv"),
        ({"python3": {}}, {"FREE": "700000"}, "needs 2000 MB on the disk"),
        ({"python3": {"pip": "echo 'E: [Errno 28] No space left on device' >&2; exit 1"}}, {}, "the disk is full"),
        ({"python3": {"pip": f"{NO_INDEX}; exit 1"}}, {}, "check the network"),  # pip's real words
    ],
)
def test_what_stops_it_is_said_and_the_next_call_repairs(
    machine: Machine, pythons: dict[str, dict[str, str]], variables: dict[str, str], sentence: str
) -> None:
    (machine.bin / "python3").unlink()
    for name, settings in pythons.items():
        machine.add_python(name, **settings)
    outcome = machine.run(**variables)
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert re.search(rf"^normbench: .*{re.escape(sentence)}", outcome.stderr.splitlines()[-1])
    assert (machine.checkout / ".venv").exists() == ("pip" in pythons.get("python3", {}))
    machine.add_python()
    assert machine.run().returncode == 0


# ---- the wheel


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_configuration_and_runs_from_any_directory(tmp_path: Path) -> None:
    """It is built from a copy, so that no build leaves files here."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    for name in ("normbench", "conf", "docs/claims"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "docs/atlas.json"):
        shutil.copy(REPOSITORY / name, source / name)
    build = f"'{sys.executable}' -m pip wheel --no-deps --no-build-isolation -w . ./source"
    subprocess.run(build, shell=True, check=True, capture_output=True, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        held = {name for name in file.namelist() if ".dist-info" not in name}
        file.extractall(installed)
    code = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "normbench").rglob("*.py")}
    yamls = {f"normbench/{path.relative_to(REPOSITORY)}" for path in (REPOSITORY / "conf").rglob("*.yaml")}
    published = {f"normbench/published/{path.name}" for path in (REPOSITORY / "docs" / "claims").glob("*.json")}
    registered = {f"normbench/{path.relative_to(REPOSITORY)}" for path in (REPOSITORY / "conf").rglob("*.json")}
    assert all((code, yamls, published, registered)) and held >= code | yamls | published | registered
    assert "normbench/atlas/atlas.json" in held
    assert all(name.startswith("normbench/") for name in held)
    line, environment = [sys.executable, "-m", "normbench", "list"], {**os.environ, "PYTHONPATH": str(installed)}
    outcome = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "rmsnorm" in outcome.stdout
