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

ROOT = Path(__file__).resolve().parent.parent

# Everything that the scripts may call; a Python is not among them.
COMMANDS = ["awk", "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "flock", "grep", "mkdir", "mv"]
COMMANDS += ["readlink", "rm", "sed", "sleep", "tail"]

FAKE_PYTHON = r"""#!/usr/bin/env bash
# Stands in for Python, its venv module and its pip; every pip install is a line in $CALLS.
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
        self.checkout = folder / "a check out"
        self.elsewhere = folder / "else where"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        for directory in (self.checkout, self.elsewhere, self.bin):
            directory.mkdir()
        shutil.copytree(ROOT / "scripts", self.checkout / "scripts")
        for name in ("constraints.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, self.checkout / name)
        for name in COMMANDS:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        self.set_free_space(90_000)
        self.calls.touch()

    def add(self, name: str, text: str) -> None:
        """Put a program on the machine's PATH."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def set_free_space(self, megabytes: int) -> None:
        self.add("df", f"#!/usr/bin/env bash\necho header\necho disk 0 0 {megabytes}000 0% /\n")

    def add_python(self, name: str = "python3", version: str = "3.11.4", venv: str = "exit 0", pip: str = ":") -> None:
        self.add(name, FAKE_PYTHON.format(version=version, venv=venv, pip=pip))

    def run(
        self, script: str | Path = "normbench", *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.checkout / "scripts" / script), *arguments]
        environment = {"PATH": str(self.bin), "CALLS": str(self.calls), "TMPDIR": str(self.elsewhere), **variables}
        return subprocess.run(
            command,
            cwd=self.elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,  # so that a signal to all of the set-up's processes spares the test
        )

    def installs(self) -> list[str]:
        return self.calls.read_text().splitlines()

    @property
    def state(self) -> Path:
        return self.checkout / ".venv" / "set-up.state"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def assert_fails(outcome: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit status 1, nothing on stdout, and a last line on stderr that has the words."""
    assert (outcome.returncode, outcome.stdout) == (1, ""), outcome
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith("normbench: "), outcome.stderr
    for word in words:
        assert word in last, (word, outcome.stderr)


def test_the_first_call_sets_up_and_runs_in_the_callers_directory(machine: Machine) -> None:
    machine.add_python()
    outcome = machine.run("normbench", "train", "norm=rmsnorm", "name=two words")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == f"normbench in {machine.elsewhere}: train norm=rmsnorm name=two words\n"
    [call] = machine.installs()
    assert f"--constraint {machine.checkout}/constraints.txt --editable {machine.checkout}" in call
    assert "GB" in outcome.stderr and "constraints.txt" in outcome.stderr


def test_the_second_call_skips_the_set_up(machine: Machine) -> None:
    machine.add_python()
    machine.run()
    outcome = machine.run("normbench", "list")
    assert outcome.stdout == f"normbench in {machine.elsewhere}: list\n"
    assert outcome.stderr == ""
    assert len(machine.installs()) == 1


def test_the_second_call_costs_less_than_a_fifth_of_a_second(machine: Machine) -> None:
    machine.add_python()
    machine.run()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        machine.run()
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2


def test_a_symlink_to_the_script_works(machine: Machine) -> None:
    machine.add_python()
    link = machine.elsewhere / "nb"
    link.symlink_to(machine.checkout / "scripts" / "normbench")
    assert machine.run(link).stdout.startswith("normbench in ")
    assert (machine.checkout / ".venv").is_dir()


def test_the_check_command_has_the_test_extra_and_passes_arguments_to_pytest(machine: Machine) -> None:
    machine.add_python()
    outcome = machine.run("test", "-k", "two words")
    assert outcome.returncode == 0, outcome.stderr
    place = machine.checkout
    assert outcome.stdout.splitlines() == [
        f"ruff in {place}: check .",
        f"ruff in {place}: format --check .",
        f"mypy in {place}: ",
        f"pytest in {place}: -m pytest -n auto --dist worksteal -k two words",
    ]
    assert machine.installs()[0].endswith("[test]")


def test_the_test_extra_serves_both_commands_but_not_the_other_way_round(machine: Machine) -> None:
    machine.add_python()
    machine.run("normbench")
    machine.run("test")
    machine.run("normbench")
    machine.run("test")
    assert [call.endswith("[test]") for call in machine.installs()] == [False, True]


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_other_versions_are_installed_into_the_same_environment(machine: Machine, name: str) -> None:
    machine.add_python()
    machine.run()
    kept = machine.checkout / ".venv" / "kept"
    kept.touch()
    with (machine.checkout / name).open("a") as file:
        file.write("# changed\n")
    machine.run()
    assert len(machine.installs()) == 2
    assert kept.exists()


@pytest.mark.parametrize(
    ("pythons", "words"),
    [
        ({}, ("3.11, 3.12 or 3.13", "found no python3")),
        ({"python3": "3.9.2", "python": "2.7.18"}, ("python3 is 3.9.2, python is 2.7.18", "PYTHON=")),
        ({"python3": "3.14.0"}, ("python3 is 3.14.0",)),
    ],
)
def test_no_suitable_python(machine: Machine, pythons: dict[str, str], words: tuple[str, ...]) -> None:
    for name, version in pythons.items():
        machine.add_python(name, version)
    outcome = machine.run()
    assert_fails(outcome, *words)
    assert len(outcome.stderr.splitlines()) == 1
    assert not (machine.checkout / ".venv").exists()


def test_a_python_in_range_is_found_behind_others(machine: Machine) -> None:
    machine.add_python("python3", "3.9.2")
    machine.add("python3.11", "#!/usr/bin/env bash\necho 'command not found' >&2\nexit 127\n")
    machine.add_python("python3.12", "3.12.1")
    assert machine.run().returncode == 0


def test_the_variable_python_chooses_and_changes_the_python(machine: Machine) -> None:
    machine.add_python("python3", "3.11.4")
    machine.add_python("other", "3.13.0")
    assert_fails(machine.run(PYTHON="missing"), "no missing")
    machine.run()
    machine.run(PYTHON="other")
    machine.run(PYTHON="other")
    assert len(machine.installs()) == 2
    assert "3.13.0" in machine.state.read_text()


def test_no_venv_module(machine: Machine) -> None:
    machine.add_python(venv="exit 1")
    outcome = machine.run()
    assert_fails(outcome, "apt install python3.11-venv")
    assert len(outcome.stderr.splitlines()) == 1


def test_too_little_space_is_seen_before_anything_is_made(machine: Machine) -> None:
    machine.add_python()
    machine.set_free_space(700)
    outcome = machine.run()
    assert_fails(outcome, "needs 2000 MB", "700 MB free")
    assert not (machine.checkout / ".venv").exists()


def test_the_space_that_a_broken_environment_takes_counts_as_free(machine: Machine) -> None:
    machine.add_python()
    (machine.checkout / ".venv").mkdir()
    machine.add(
        "df", f'#!/usr/bin/env bash\n[[ -e "{machine.checkout}/.venv" ]] || echo "$(echo; echo - - - 3000000)"\n'
    )
    assert machine.run().returncode == 0


PIP_FAILURES = {
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": "the disk is full",
    "WARNING: Retrying after connection broken by 'NewConnectionError('[Errno -3]')'": "check the network",
    "ERROR: No matching distribution found for x": "pip could not install normbench: No matching distribution found",
    "Killed": "pip could not install normbench: it gave no reason",
}


@pytest.mark.parametrize("message", PIP_FAILURES)
def test_what_stops_pip_is_said_and_the_next_call_repairs(machine: Machine, message: str) -> None:
    machine.add_python(pip=f'echo Collecting torch\ncat >&2 <<"END"\n{message}\nEND\nexit 1')
    outcome = machine.run()
    assert_fails(outcome, PIP_FAILURES[message])
    assert "Collecting torch" in outcome.stderr
    machine.add_python()
    assert machine.run().returncode == 0
    assert len(machine.installs()) == 2


def delete_python(venv: Path) -> None:
    (venv / "bin" / "python").unlink()


def delete_command(venv: Path) -> None:
    (venv / "bin" / "normbench").unlink()


def empty(venv: Path) -> None:
    shutil.rmtree(venv)
    venv.mkdir()


@pytest.mark.parametrize("damage", [delete_python, delete_command, empty])
def test_a_damaged_environment_is_repaired(machine: Machine, damage: Callable[[Path], None]) -> None:
    machine.add_python()
    machine.run()
    damage(machine.checkout / ".venv")
    outcome = machine.run()
    assert outcome.stdout.startswith("normbench in "), outcome.stderr
    assert len(machine.installs()) == 2


def test_a_set_up_that_was_killed_is_made_anew(machine: Machine) -> None:
    machine.add_python(pip='mkdir "${0%/*}/half"; kill -KILL 0')
    assert machine.run().returncode == -9
    half = machine.checkout / ".venv" / "bin" / "half"
    assert half.exists()
    machine.add_python()
    assert machine.run().returncode == 0
    assert not half.exists()


def test_ctrl_c_ends_the_set_up_with_a_sentence(machine: Machine) -> None:
    machine.add_python(pip="trap 'exit 1' INT; kill -INT 0; sleep 1")
    outcome = machine.run()
    assert outcome.returncode == 130
    assert outcome.stderr.splitlines()[-1].startswith("normbench: interrupted")


def test_a_moved_checkout_is_set_up_anew(machine: Machine) -> None:
    machine.add_python()
    machine.run()
    machine.checkout = machine.checkout.rename(machine.elsewhere / "moved")
    (machine.checkout / ".venv" / "old").touch()
    assert machine.run().returncode == 0
    assert not (machine.checkout / ".venv" / "old").exists()


@pytest.mark.skipif(shutil.which("flock") is None, reason="this machine has no flock")
def test_two_set_ups_at_once_are_one_after_the_other(machine: Machine) -> None:
    machine.add_python(pip="sleep 1")
    first = threading.Thread(target=machine.run)
    first.start()
    while not machine.installs():
        time.sleep(0.01)
    outcome = machine.run()
    first.join()
    assert outcome.stdout.startswith("normbench in "), outcome.stderr
    assert "waiting" in outcome.stderr
    assert len(machine.installs()) == 1


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built from a copy so that no build leaves files here."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("normbench", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    [built] = folder.glob("*.whl")
    return built


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_configuration_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "normbench").rglob("*.py")}
    configuration = {f"normbench/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert code and configuration
    assert held >= code | configuration
    assert all(name.startswith("normbench/") for name in held)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--version",), ("list",)])
def test_the_installed_wheel_runs_from_any_directory(wheel: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    target = tmp_path / "installed"
    pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    outcome = subprocess.run(
        [sys.executable, "-m", "normbench", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert ("rmsnorm" if arguments == ("list",) else "normbench ") in outcome.stdout


@pytest.mark.slow
def test_the_real_pip_without_a_network_fails_with_a_sentence(machine: Machine) -> None:
    """Pip's real words for an index that is not there are recognised; the port answers nobody."""
    outcome = machine.run(
        PYTHON=sys.executable,
        PIP_CONFIG_FILE=os.devnull,
        PIP_RETRIES="0",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        HOME=str(machine.elsewhere),
    )
    assert_fails(outcome, "check the network", str(machine.checkout / ".venv" / "set-up.log"))
    assert "Traceback" not in outcome.stderr
