"""A pytest plugin for the tests that disturb runs."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import shared_folder
from killing import Server
from run_records import Record, assert_steps_increase, read_record
from tiny_runs import MODELS, run_directory, start


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Starts runs that can be told to end themselves."""
    return Server(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each model's run without any disturbance."""
    folders = {model: shared_folder(tmp_path_factory) / model for model in MODELS}
    for model, folder in folders.items():
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers the first one makes it
            if not folder.exists():
                folder.mkdir()
                child = start(server, model, folder)
                assert child.wait() == 0, child.output
    return folders


@pytest.fixture(scope="session")
def undisturbed(finished: dict[str, Path]) -> dict[str, Record]:
    """The records of those runs."""
    records = {model: read_record(run_directory(folder)) for model, folder in finished.items()}
    for record in records.values():
        assert_steps_increase(record)
        assert record.metrics[-1]["step"] == 40
    return records


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
