"""A pytest plugin for the tests that disturb runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from conftest import composed_folder, make_once
from killing import Server
from run_records import Record, assert_steps_increase, read_record
from tiny_runs import MODELS, run_directory, start


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Starts runs that can be told to end themselves."""
    return Server(tmp_path_factory.mktemp("server"), composed_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each model's run without any disturbance."""

    def make(model: str, folder: Path) -> None:
        child = start(server, model, folder)
        assert child.wait() == 0, child.output

    return {model: make_once(tmp_path_factory, model, partial(make, model)) for model in MODELS}


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
