"""Without a network, what is on the hub alone is refused at once; what is kept here is read without asking the hub."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import datasets
import huggingface_hub.constants
import huggingface_hub.utils
import pytest

from normbench import hub
from normbench.cli import main
from normbench.config.groups import options, section_of
from normbench.data import hub_text
from normbench.errors import UsageError

NOBODY = "http://127.0.0.1:9"  # a port where nothing listens
ON_THE_HUB = [name for name in options("data") if "hub_id" in section_of("data", name)]
TEXT: dict[str, Any] = {"context": 8, "batch_size": 3, "eval_batch_size": 4, "seed": 0}


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a network and with empty caches; the folder where data sets would be kept."""
    for name in ("NORMBENCH_DATA", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", NOBODY)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hf/datasets"


def model_for(name: str) -> str:
    """Return a model that a data set goes with."""
    kind = section_of("data", name)["_target_"].rpartition(".")[2]
    return {"hub_images": "cnn", "hub_translation": "seq2seq"}.get(kind, "nano")


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_data_of_the_hub_are_refused_in_one_sentence_before_anything_else(
    name: str, offline: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Mock()
    monkeypatch.setattr(datasets, "load_dataset", library)
    monkeypatch.setattr(datasets, "load_dataset_builder", library)
    assert main(["train", f"data={name}", f"model={model_for(name)}", "norm=rmsnorm", "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert all(word in err for word in (NOBODY, "NORMBENCH_DATA", str(offline), section_of("data", name)["hub_id"]))
    assert "Errno" not in err
    assert not library.called, "it would try several times"


@pytest.mark.parametrize("library", ["hf", "timm"])
def test_weights_of_the_hub_are_refused_before_data_are_read(
    library: str, offline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip({"hf": "transformers"}.get(library, library))
    words = ["train", f"model={library}", "model.name=nobody/nothing", "model.weights=pretrained", "norm=own"]
    assert main([*words, "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert all(word in err for word in (NOBODY, str(offline.parent / "hub"), "model.weights=PATH"))


def test_what_is_kept_here_is_read_without_a_network(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (offline / "me___plays").mkdir(parents=True)
    asks: list[bool] = []
    rows = datasets.Dataset.from_dict({"text": ["To be, or not to be, that is the question." * 9]})

    def load(*given: Any, **more: Any) -> Any:
        asks.append(not huggingface_hub.constants.HF_HUB_OFFLINE)
        return datasets.DatasetDict({"train": rows, "validation": rows, "test": rows})

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert hub_text(name="plays", hub_id="me/plays", **TEXT).fingerprint
    assert asks and not any(asks), "its clients would try several times"
    assert not huggingface_hub.constants.HF_HUB_OFFLINE, "what comes later may ask"

    monkeypatch.setattr(datasets, "load_dataset_builder", Mock(side_effect=FileNotFoundError))
    with pytest.raises(UsageError, match="others is not here"):
        hub_text(name="others", hub_id="me/others", **TEXT)


class Refusing(BaseHTTPRequestHandler):
    """A hub that answers what it is asked with a refusal."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_hub_that_answers_is_there_whatever_it_says(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", refusing)
    assert hub.explain_silence() == ""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in hub.explain_silence()


def test_a_hub_that_is_connected_and_slow_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 0.1)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes a connection, and says nothing
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert hub.explain_silence() == ""
