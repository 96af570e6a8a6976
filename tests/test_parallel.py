"""Processes that train a run together: they equal one process, one writes, and none stays when another has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import datasets
import pytest
import torch
from data_helpers import write_parquet
from killing import Child, Server, Trap, poll
from made_runs import make_report, make_run
from run_records import read_json, read_metrics
from test_translation import write as write_pairs
from tiny_runs import run_directory, slow

from normbench.config.compose import read
from normbench.errors import is_out_of_memory
from normbench.results.caveat import CaveatKind
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.training.parallel import is_lost

pytest_plugins = ["run_fixtures"]

LENGTHS = "trainer.eval_every=10 trainer.eval_batches=4 trainer.checkpoint_every=8 threads=1 device=cpu"
TRANSFORMER = "train model=nano model.depth=1 model.width=16 model.heads=2 model.context=16 data=pydocs optim=sgd "
TRANSFORMER += f"trainer.log_every=5 data.batch_size=8 data.eval_batch_size=512 {LENGTHS}"
CNN = "train model=cnn model.width=4 data=digits data.batch_size=16 optim=sgd "
CNN += f"trainer.log_every=5 {LENGTHS} trainer.steps=20"
PAIRS = "train model=seq2seq model.depth=1 model.decoder_depth=1 model.width=16 model.heads=2 model.hidden=32 "
PAIRS += "model.dropout=0 data.hub_id=me/pairs data.root=hub data.vocabulary_size=300 data.batch_size=6 data.beam=2 "
PAIRS += f"trainer.accumulate=2 optim=sgd optim.lr=0.1 {LENGTHS} trainer.steps=20 trainer.log_every=1"
RECURRENT = PAIRS.replace("seq2seq model.depth=1 model.decoder_depth=1", "rnnsearch").replace("model.heads=2 ", "")
RECURRENT = RECURRENT.replace("model.hidden", "model.embedding")
# What libraries of a GPU say, as torch hands it on, and whether memory ran out or another process is gone.
SAID = {
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": (True, False),
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED": (True, False),
    "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error: Cuda failure 2 'out of memory'": (True, False),
    "NCCL communicator was aborted on rank 0.": (False, True),
    "CUDA error: an illegal memory access was encountered": (False, False),
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED": (False, False),
}
GONE = "normbench: another of the run's 2 processes has ended: the same command goes on from the last checkpoint"


@pytest.mark.parametrize("said", SAID)
def test_what_a_gpu_says_is_told_apart(said: str) -> None:
    error = RuntimeError(said)
    assert (is_out_of_memory(error), is_lost(error)) == SAID[said]


def start_all(
    server: Server, words: str, cwd: Path, size: int = 2, traps: dict[int, Trap] | None = None, **more: str
) -> list[Child]:
    """Start the processes of one run as torchrun does, but from the server, which takes no time.

    traps: by rank. more: of their environment.
    """
    cwd.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), **more}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} | group for rank in range(size)]
    return [server.start(words.split(), cwd, (traps or {}).get(int(each["RANK"])), each) for each in ranks]


def end(*children: Child) -> list[int]:
    """Return the exit statuses of processes, once they have ended."""
    return [child.wait() for child in children]


def run_alone(server: Server, words: str, cwd: Path) -> Child:
    """Make a run in one process."""
    cwd.mkdir(exist_ok=True)
    child = server.start(words.split(), cwd)
    assert child.wait() == 0, child.output
    return child


def weights(folder: Path) -> torch.Tensor:
    """All weights of a run in its last checkpoint."""
    state = torch.load(run_directory(folder) / "checkpoint.pt", weights_only=True)
    return torch.cat([each.flatten().double() for each in state["model"].values()])


def logged(folder: Path, tag: str) -> torch.Tensor:
    lines = read_metrics(run_directory(folder))
    return torch.tensor([line[tag] for line in lines if tag in line], dtype=torch.float64)


def deviation(several: Path, one: Path) -> float:
    """Return the largest deviation of a weight, relative where it is large, of two runs that are equal to rounding."""
    assert run_directory(several).name == run_directory(one).name
    for tag in ("loss/train", "loss/val", "grad/norm", "weight/norm"):
        found, expected = logged(several, tag), logged(one, tag)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert len(expected) > 1
    torch.testing.assert_close(logged(several, "accuracy/val"), logged(one, "accuracy/val"), rtol=0, atol=1e-3)
    return ((weights(several) - weights(one)).abs() / weights(one).abs().clamp_min(1)).max().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        f"{TRANSFORMER} trainer.steps=12 trainer.eval_every=6 probes=full data.batch_size=16",
        # the last batches have fewer sentences than there are processes
        f"{RECURRENT} trainer.shard=true trainer.steps=6 trainer.eval_every=3 data.eval_batch_size=1",
    ],
    ids=["text", "parts of a recurrent translator"],
)
def test_two_processes_equal_one(words: str, server: Server, tmp_path: Path, tell: Callable[[str], None]) -> None:
    """Also where parts of a batch and batches of a step have not equally many predictions, as in translation."""
    for folder in (tmp_path / "one", tmp_path / "two"):
        write_pairs(folder / "hub")
    run_alone(server, words, tmp_path / "one")
    first, second = start_all(server, words, tmp_path / "two")
    assert end(first, second) == [0, 0], first.output + second.output
    tell(f"2 processes against 1: weights deviate by {deviation(tmp_path / 'two', tmp_path / 'one'):.1e}")
    assert deviation(tmp_path / "two", tmp_path / "one") < 1e-5
    directory = run_directory(tmp_path / "two")
    assert read_json(directory / "status.json")["pid"] == first.pid
    assert second.output == ""  # it says nothing, and writes nothing
    assert not [line for line in second.places if "write to" in line]
    assert [each["processes"] for each in read_json(directory / "environment.json")["sessions"]] == [2]


def write_texts(root: Path) -> None:
    """A copy of banking77 in the hub's layout, whose texts are of very different lengths."""
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["card", "cash"])}
    for split, count in (("train", 80), ("test", 20)):
        labels = [row % 2 for row in range(count)]
        numbers = [[place * (row + 5) ** 2 % 9973 for place in range(1, 2 + 5 * row % 13)] for row in range(count)]
        texts = [f"{labels[row]} {' '.join(map(str, numbers[row]))}" for row in range(count)]
        write_parquet(root / "legacy-datasets/banking77", {"text": texts, "label": labels}, features, split)


def test_each_prediction_of_a_step_counts_alike(tmp_path: Path) -> None:
    write_pairs(tmp_path / "hub")
    words = PAIRS.replace("data.root=hub", f"data.root={tmp_path}/hub").split()[1:]
    loop = Session(prepare(read([*words, f"outputs={tmp_path}"]))).loop
    loop.model.train()
    batches = [loop.data.train_batch(number) for number in range(2)]
    counts = torch.tensor([batch.predictions for batch in batches])
    losses = [loop.data.task.loss(loop.model(*batch.arguments), batch.targets) for batch in batches]
    expected = (torch.stack(losses) * counts).sum() / counts.sum()
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in loop.model.named_parameters()}
    loop.model.zero_grad()
    assert counts[0] != counts[1]
    found = loop.stepper.gradients(loop.stepper.local_batches(0))
    assert found.item() == pytest.approx(expected.item())
    for name, parameter in loop.model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-7)


TEXTS = "train model=nano model.depth=2 model.width=16 model.heads=2 model.context=64 data=banking77 data.root=hub "
TEXTS += f"data.batch_size=6 optim=sgd probes=off {LENGTHS} trainer.steps=12 trainer.eval_every=6 trainer.log_every=4"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [TEXTS, f"{CNN} trainer.ema=0.9 trainer.keep_checkpoint=best"],
    ids=["texts", "images"],
)
def test_synchronised_statistics_make_two_processes_one(
    words: str, server: Server, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Over real tokens, of which the two have not equally many; running statistics are among the weights."""
    words += " norm=batchnorm norm.sync=true"
    for folder in (tmp_path / "one", tmp_path / "two"):
        write_texts(folder / "hub")
    run_alone(server, words, tmp_path / "one")
    first, second = start_all(server, words, tmp_path / "two")
    assert end(first, second) == [0, 0], first.output + second.output
    largest = deviation(tmp_path / "two", tmp_path / "one")
    tell(f"norm.sync=true, 2 processes against 1: weights and statistics deviate by {largest:.1e}")
    assert largest < 1e-5


def workers(launcher: subprocess.Popen[str]) -> dict[str, int]:
    """The processes that torchrun has started, by rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(launcher.pid):
                variables = path.with_name("environ").read_text().split("\0")
                found |= {word[5:]: int(path.parent.name) for word in variables if word.startswith("RANK=")}
    return found


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_goes_on(
    server: Server, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """The very command of the documentation; one process goes on, and equals one that has done it all."""
    words = f"{TRANSFORMER} trainer.steps=160 trainer.eval_every=80 probes=off"
    folder = tmp_path / "two"
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "normbench"]
    pipe = subprocess.PIPE
    launcher = subprocess.Popen(
        [*command, *words.split()], cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )
    assert poll(lambda: bool([*folder.glob("outputs/train/*/checkpoint.pt")]) or launcher.poll() is not None)
    os.kill(workers(launcher)["1"], signal.SIGKILL)
    killed = time.monotonic()
    status = run_directory(folder) / "status.json"
    assert poll(lambda: read_json(status)["status"] != "running")
    seconds = time.monotonic() - killed
    output, _ = launcher.communicate(timeout=60)
    assert GONE in output.splitlines() and launcher.returncode == 1
    assert read_json(status)["status"] == "interrupted" and read_json(status)["step"] < 160
    tell(f"after SIGKILL of one of 2 processes the other ends the run in {seconds:.1f} s")
    child = run_alone(server, words, folder)
    assert "going on from step" in child.output and "2 processes worked on this run before, now 1" in child.output
    run_alone(server, words, tmp_path / "one")
    assert deviation(folder, tmp_path / "one") < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("place", "nth", "step"), [("training > gradients", 13, 13), ("evaluation > batch", 2, 10)])
def test_a_signal_to_one_process_stops_all_at_the_same_step_and_two_go_on(
    place: str, nth: int, step: int, server: Server, tmp_path: Path
) -> None:
    words = f"{TRANSFORMER} trainer.steps=20 trainer.eval_every=10 probes=off model.dropout=0.1"
    folder = tmp_path / "two"
    stop = {1: Trap(place, nth, (signal.SIGTERM,))}
    first, second = start_all(server, words, folder, traps=stop)
    assert end(first, second) == [128 + signal.SIGTERM] * 2, first.output + second.output
    assert f"stopped at step {step} of 20" in first.output and f"saved {step}" in first.places
    first, second = start_all(server, words, folder)
    assert end(first, second) == [0, 0], first.output + second.output
    assert f"going on from step {step}" in first.output
    assert end(*start_all(server, words, tmp_path / "again")) == [0, 0]
    assert torch.equal(weights(folder), weights(tmp_path / "again"))  # without a stop, with the same dropout masks


@pytest.mark.parametrize(("before", "after"), [("sharded", "alone"), *slow(("alone", "sharded"))])
def test_shards_are_whole_in_checkpoints_and_go_on_anywhere(
    before: str, after: str, server: Server, tmp_path: Path
) -> None:
    """DyT has parameters with one element, fewer than there are processes."""
    words = f"{TRANSFORMER} norm=dyt trainer.steps=20 trainer.accumulate=2 optim=adamw probes.every=7 model.depth=2"
    stop = Trap("training > gradients", 13, (signal.SIGTERM,))

    def run(how: str, trap: Trap | None) -> list[int]:
        if how == "alone":
            return end(server.start(words.split(), tmp_path, trap))
        return end(*start_all(server, f"{words} trainer.shard=true", tmp_path, traps={0: trap} if trap else None))

    assert set(run(before, stop)) == {128 + signal.SIGTERM} and set(run(after, None)) == {0}
    run_alone(server, words, tmp_path / "one")
    assert deviation(tmp_path, tmp_path / "one") < 1e-5


@pytest.mark.parametrize("other", [1, 2])
def test_a_report_tells_the_processes_beside_the_step_times(other: int, tmp_path: Path) -> None:
    for sync, processes in ((False, 2), (True, other)):
        for seed in range(3):
            time = 10.0 + 5 * sync
            make_run(tmp_path, step_ms=time, seed=seed, session={"processes": processes}, settings={"norm.sync": sync})
    report = make_report([tmp_path])
    tables = {table.key: table.frame for table in report.tables}
    assert [*tables["costs"]["processes"]] == ["2", str(other)]
    assert "1.5" in tables["step-times"].to_string()  # what synchronising costs
    kinds = [caveat.kind for caveat in report.answer.caveats]
    assert (CaveatKind.PROCESSES in kinds) == (other == 1)


@pytest.mark.slow
def test_a_killed_process_is_named_where_nobody_ends_the_others(server: Server, tmp_path: Path) -> None:
    words = f"{TRANSFORMER} trainer.steps=20 probes=off"
    first, second = start_all(server, words, tmp_path, traps={1: Trap("training > gradients", 10)})
    assert end(first, second) == [1, -signal.SIGKILL]
    assert first.output.splitlines()[-1] == GONE
    assert read_json(run_directory(tmp_path) / "status.json")["status"] == "interrupted"


@pytest.mark.slow
def test_divergence_in_one_process_ends_all(server: Server, tmp_path: Path) -> None:
    first, second = start_all(
        server, f"{TRANSFORMER} trainer.steps=20 norm=none optim.lr=1e3 trainer.grad_clip=0", tmp_path
    )
    assert end(first, second) == [0, 0], first.output + second.output
    assert read_json(run_directory(tmp_path) / "summary.json")["status"] == "diverged"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (f"{TRANSFORMER} data.batch_size=7", {}, "data.batch_size=7 cannot be shared by 2 processes"),
        (f"{TRANSFORMER} --dry-run", {}, "--dry-run measures one process"),
        (f"{TRANSFORMER} device=mps", {}, "device=mps"),
        (TRANSFORMER, {"NORMBENCH_RENDEZVOUS_SECONDS": "1"}, "process 0 of 2 has not met the others at 127.0.0.1:"),
        (TRANSFORMER, {"NORMBENCH_RENDEZVOUS_SECONDS": "1", "RANK": "1"}, "process 1 of 2 has not met the others at"),
        (TRANSFORMER, {"NORMBENCH_RENDEZVOUS_SECONDS": "inf"}, "NORMBENCH_RENDEZVOUS_SECONDS=inf is not allowed"),
        (TRANSFORMER, {"MASTER_PORT": "none"}, "does not say how processes meet"),
        (f"{TRANSFORMER} trainer.shard=true trainer.ema=0.9", {}, "trainer.shard=true with trainer.ema=0.9 is refused"),
        ("sweep norm=rmsnorm seed=0,1", {}, "leave out torchrun"),
    ],
)
def test_mistakes_are_one_sentence(
    words: str, environment: dict[str, str], said: str, server: Server, tmp_path: Path
) -> None:
    (child,) = start_all(server, words, tmp_path, **{"WORLD_SIZE": "2", **environment}, size=1)
    assert child.wait() == 2, child.output
    assert len(child.output.splitlines()) == 1 and said in child.output
    assert not [*tmp_path.glob("outputs")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train model=mlp data=digits norm=batchnorm data.batch_size=2 device=cpu", "has 1 value for a statistic"),
        (f"{TRANSFORMER} model.embedding_scale=learned trainer.shard=true", "a single number"),
    ],
)
def test_what_a_share_cannot_be_is_refused_before_a_run_begins(
    words: str, said: str, server: Server, tmp_path: Path
) -> None:
    children = start_all(server, words, tmp_path)
    assert end(*children) == [2, 2] and all(said in child.output for child in children)
    assert not [*tmp_path.glob("outputs")]
