"""A signal is heard at once, or at the next pause of what must not be left anywhere; what goes on has the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from run_records import Record, assert_same, read_json, read_record
from tiny_runs import run_directory, words
from tiny_sweeps import assert_as

from normbench import stopping
from normbench.cli import main
from normbench.runs import train
from normbench.runs.session import Session
from normbench.stopping import Stopped, Stops, allow_stops, check_stop, hear_stops, hold_stops, is_unheard
from normbench.training import evaluation, recalibration
from normbench.training.checkpoint import read
from normbench.training.loop import Loop

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


# ---- the three kinds of moments


@pytest.fixture(autouse=True)
def handlers_stay() -> Iterator[None]:
    """No test leaves another handler behind, nor one that the tests' own shell has ignored."""
    before = {number: signal.getsignal(number) for number in HEARD}
    for number in HEARD[1:]:
        signal.signal(number, signal.SIG_DFL)
    yield
    now = {number: signal.getsignal(number) for number in HEARD}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert now == {number: signal.SIG_DFL for number in HEARD} | {signal.SIGINT: before[signal.SIGINT]}


@pytest.mark.parametrize("number", HEARD)
def test_a_signal_raises_where_it_finds_a_command(number: int) -> None:
    with pytest.raises(Stopped) as stopped, hear_stops():
        send(number)
    assert (stopped.value.number, stopped.value.status) == (number, 128 + number)
    assert str(stopped.value) == signal.Signals(number).name


def test_it_waits_where_it_is_held_until_it_is_asked_for() -> None:
    passed = []
    with hear_stops(), hold_stops():
        send(signal.SIGTERM)
        passed.append("sent")
        with pytest.raises(Stopped):
            check_stop()
    assert passed == ["sent"]  # and the end of what holds it does not raise again


def test_it_waits_no_longer_than_what_holds_it() -> None:
    passed = []
    with pytest.raises(Stopped), hear_stops():
        with hold_stops():
            send(signal.SIGUSR2)
            passed.append("held")
        passed.append("not held")
    assert passed == ["held"]


def test_inside_what_holds_it_a_part_may_be_left() -> None:
    with pytest.raises(Stopped), hear_stops(), hold_stops():
        with allow_stops():
            pass
        send(signal.SIGTERM)
        with allow_stops():  # where it is heard that came before
            pytest.fail("it was not left")


def test_of_processes_that_decide_together_none_leaves_by_itself() -> None:
    passed = []
    with pytest.raises(Stopped), hear_stops(), hold_stops(together=True), allow_stops():
        send(signal.SIGTERM)
        passed.append("inside")
    assert passed == ["inside"]


def test_another_interrupt_never_waits_and_another_signal_disturbs_no_end() -> None:
    with hear_stops(), hold_stops():
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as again:
            send(signal.SIGINT)
        assert not isinstance(again.value, Stopped)
        stopping.heed_stop()


def test_what_follows_a_stopped_command_does_not_stop_for_its_signal() -> None:
    """As in a thread, or in a part that is used without the command: nobody listens there."""
    with pytest.raises(Stopped), hear_stops():
        send(signal.SIGTERM)
    check_stop()
    with hold_stops(), allow_stops():
        check_stop()


def test_a_signal_that_comes_when_a_command_has_ended_does_not_undo_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back = stopping.stop_hearing

    def give_back_late() -> None:
        signals = iter([signal.SIGTERM])
        set_handler = signal.signal

        def interrupted(number: int, handler: Any) -> Any:
            for late in signals:
                send(late)
            return set_handler(number, handler)

        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", interrupted)
            give_back()

    monkeypatch.setattr(stopping, "stop_hearing", give_back_late)
    with hear_stops():
        pass


def test_an_ignored_signal_stays_ignored() -> None:
    """As nohup wants it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with hear_stops():
        send(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# ---- what does not hear


def test_a_signal_is_unheard_where_nobody_catches_what_a_signal_raises() -> None:
    before = {signal.SIGTERM: signal.SIG_DFL}
    assert is_unheard(Stops(before=before))  # within an operator, where no handler runs
    assert is_unheard(Stops(before=before, noted=[15], raised=True, waits=True, held=True))
    assert not is_unheard(Stops(before=before, noted=[15], raised=True, heard=True))
    assert not is_unheard(Stops(before=before, noted=[15], waits=True, held=True))
    assert not is_unheard(Stops(before=before, held=True))  # as within an operator of an evaluation
    assert not is_unheard(Stops())  # the command has ended meanwhile


UNHEARD = """
import hashlib, os, signal, threading
from normbench import stopping
stopping.PATIENCE = 0.1
with stopping.hear_stops():
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGTERM]).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)  # minutes in C
"""


def test_what_is_unheard_is_ended_with_the_exit_status_of_the_signal() -> None:
    ended = subprocess.run([sys.executable, "-c", UNHEARD], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "normbench: stopped\n")


def test_a_forked_process_is_ended_by_signals_as_any_other() -> None:
    with hear_stops():
        child = os.fork()
        if child == 0:
            send(signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM


# ---- runs


class Counter:
    """Counts calls of a function, and sends this process a signal in one of them."""

    def __init__(self, nth: int, number: int) -> None:
        self.nth, self.number, self.calls = nth, number, 0

    def call(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            send(self.number)


@contextmanager
def signalled(owner: Any, name: str, nth: int = 1, number: int = signal.SIGTERM) -> Iterator[Counter]:
    """Send this process a signal at the nth call of a function."""
    counter, function = Counter(nth, number), getattr(owner, name)

    def call(*given: Any, **options: Any) -> Any:
        counter.call()
        return function(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield counter


class Killed(BaseException):
    """Stands for SIGKILL."""


@contextmanager
def killed_after(owner: Any, name: str) -> Iterator[None]:
    """End a command as a kill does: after a function nothing reaches the disk."""
    function = getattr(owner, name)

    def dead(*given: Any, **options: Any) -> Any:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:

        def call(*given: Any, **options: Any) -> Any:
            function(*given, **options)
            for operation in ("replace", "unlink", "fsync"):
                patch.setattr(os, operation, dead)
            raise Killed

        patch.setattr(owner, name, call)
        with pytest.raises(Killed):
            yield


CNN = words("cnn", "norm.recalibrate=3", "trainer.eval_train=true", "data.eval_batch_size=64", "quiet=true")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of a run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    with chdir(folder):
        assert main(CNN) == 0
    return read_record(run_directory(folder))


# Where it is stopped, one after the other: a function, and at which of its calls; and how many steps are done then.
PLACES: dict[str, tuple[Any, str, int, int]] = {
    "in an evaluation on its way": (evaluation, "to_device", 3, 10),
    "while running statistics are taken anew": (recalibration, "to_device", 3 * 3 + 2, 20),
    "in the last one": (evaluation, "to_device", 40, 40),
    "in that of the averaged weights": (Loop, "evaluate_one", 2, 40),
    "at the end, on the batches that choose the best": (Loop, "comparable_loss", 1, 40),
}


def test_a_run_that_is_stopped_in_evaluations_makes_them_again(
    whole: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated = []
    evaluate = Loop.evaluate

    def note(loop: Loop) -> None:
        evaluated.append(loop.step)
        evaluate(loop)

    monkeypatch.setattr(Loop, "evaluate", note)
    for place, (owner, name, nth, step) in PLACES.items():
        evaluated.clear()
        with signalled(owner, name, nth) as counter:
            assert main(CNN) == 128 + signal.SIGTERM, place
        assert (counter.calls, evaluated[-1]) == (nth, step), place  # it is left within the batch
        state = read(run_directory(tmp_path) / "checkpoint.pt")
        assert state["evaluation_is_due"] and state["step"] == step
        stands = read_json(run_directory(tmp_path) / "status.json")
        assert (stands["status"], stands["message"], stands["step"]) == ("interrupted", "SIGTERM", step)
    with killed_after(Loop, "record"):  # what is recorded of the evaluation that is made again is not twice there
        main(CNN)
    assert main(CNN) == 0
    assert_same(read_record(run_directory(tmp_path)), whole)
    assert "Traceback" not in capsys.readouterr().err


def test_the_first_step_of_a_process_is_left_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may compile for minutes, and leaves nothing."""
    monkeypatch.chdir(tmp_path)
    with signalled(Loop, "begin_step"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "end_step", lambda *_: pytest.fail("the step went on"))
        assert main(CNN) == 128 + signal.SIGTERM
    assert not (run_directory(tmp_path) / "checkpoint.pt").exists()
    assert read_json(run_directory(tmp_path) / "status.json")["status"] == "interrupted"


def test_what_is_built_before_is_left_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with signalled(recalibration.torch, "set_num_threads"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("normbench.build.start_model", lambda *_: pytest.fail("it was built"))
        assert main(CNN) == 128 + signal.SIGTERM
    assert not any(tmp_path.rglob("checkpoint.pt"))


def test_processes_ask_together_before_each_batch() -> None:
    """A signal to one of them is heard by all before the same batch."""
    loop = Loop.__new__(Loop)
    asked = iter([0, 0, signal.SIGTERM])
    loop.group = type("Group", (), {"stop_asked": staticmethod(lambda: next(asked))})()  # type: ignore[assignment]
    batches = []
    with pytest.raises(Stopped):
        batches.extend(iter_noting(loop.until_stopped(["first", "second", "third"]), batches))  # type: ignore[list-item]
    assert batches == ["first", "second"]


def iter_noting(found: Iterator[Any], noted: list[Any]) -> Iterator[Any]:
    for each in found:
        noted.append(each)
    yield from ()


# ---- what a step asks of a device


def test_operators_of_a_step_are_those_of_the_same_step_however_often_a_run_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are clipped in some steps alone, and each process begins with a step of its own."""
    command = words("transformer", "trainer.steps=8", "trainer.grad_clip=0.9", "quiet=true")
    counted = {}
    for stops in ((), (4,), (2, 4), (6, 2)):
        folder = tmp_path / f"stopped at {stops}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        for nth in stops:
            with signalled(Loop, "train_step", nth):
                assert main(command) == 128 + signal.SIGTERM
        assert main(command) == 0
        counted[stops] = read_json(run_directory(folder) / "summary.json")["ledger"]["operators_a_step"]
    assert len({*counted.values()}) == 1, counted


# ---- the end of a run


@contextmanager
def dead_from(nth: int) -> Iterator[list[str]]:
    """End a command as a kill does at the nth file operation of the end of a run; yield those that came so far."""
    done: list[str] = []
    at_end = False

    def watch(owner: Any, name: str, is_end: Callable[..., bool] = lambda *_: True) -> None:
        function = getattr(owner, name)

        def call(*given: Any) -> Any:
            nonlocal at_end
            at_end = at_end or is_end(*given)
            return function(*given)

        patch.setattr(owner, name, call)

    def count(name: str) -> None:
        function = getattr(os, name)

        def call(*given: Any, **options: Any) -> Any:
            if at_end:
                done.append(name)
                if len(done) >= nth:
                    raise Killed
            return function(*given, **options)

        patch.setattr(os, name, call)

    with pytest.MonkeyPatch.context() as patch:
        watch(Loop, "save", lambda loop: loop.step == loop.steps)
        watch(Session, "finish")
        watch(train, "settle_ended")
        for name in ("replace", "unlink", "fsync"):
            count(name)
        yield done


SHORT = ["train", "model=cnn", "model.width=4", "norm=batchnorm", "data=digits", "data.batch_size=16", "threads=1",
         "data.eval_batch_size=512", "device=cpu", "trainer.steps=4", "trainer.checkpoint_every=2",
         "quiet=true"]  # fmt: skip


@pytest.mark.parametrize("keep", ["last", "none"])
def test_a_run_that_is_killed_at_each_file_operation_of_its_end_leaves_the_same_files(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process is killed one operation later than the one before it, until one ends."""
    command = [*SHORT, f"trainer.keep_checkpoint={keep}"]
    left = {}
    for case in ("whole", "killed"):
        (tmp_path / case).mkdir()
        monkeypatch.chdir(tmp_path / case)
        kills = range(1, 100) if case == "killed" else ()
        for nth in kills:
            with dead_from(nth) as done, suppress(Killed):
                assert main(command) == 0
            if len(done) < nth:
                break
        else:
            assert case == "whole"
        assert main(command) == 0
        directory = run_directory(tmp_path / case)
        left[case] = sorted(path.name.partition(".tfevents")[0] for path in directory.iterdir())
        assert read_json(directory / "status.json")["status"] == "finished"
        assert ("checkpoint.pt" in left[case]) == (keep == "last")
    assert left["whole"] == left["killed"]
    assert "checkpoint.prev.pt" not in left["whole"]


def test_a_sweep_does_what_a_kill_has_left_undone_at_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["sweep", *SHORT[1:], "seed=0", "norm=rmsnorm", "launcher=local", "sweep.report=false"]
    assert main(command) == 0
    (directory,) = (path.parent for path in tmp_path.glob("outputs/sweep/*/config.yaml"))
    whole = {path.name for path in directory.iterdir()}
    (directory / "checkpoint.prev.pt").touch()
    (directory / ".status.json.1.tmp").touch()
    status = read_json(directory / "status.json")
    (directory / "status.json").write_text(json.dumps(status | {"status": "running"}))
    assert main(command) == 0
    assert {path.name for path in directory.iterdir()} == whole
    assert read_json(directory / "status.json")["status"] == "finished"


# ---- sweeps


def test_a_signal_to_a_run_in_this_process_stops_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes in the last evaluation of the first run, which goes on there."""
    monkeypatch.chdir(tmp_path)
    command = ["sweep", *SHORT[1:], "seed=0,1", "launcher=local", "sweep.report=false", "quiet=false"]
    with signalled(Loop, "evaluate_one", 4):
        assert main(command) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; to go on, each run from its checkpoint" in capsys.readouterr().out
    (directory,) = (path.parent for path in tmp_path.glob("outputs/sweep/*/config.yaml"))
    assert read(directory / "checkpoint.pt")["evaluation_is_due"]
    assert main(command) == 0
    assert len([*tmp_path.glob("outputs/sweep/*/summary.json")]) == 2


def test_seeds_of_a_stack_that_are_stopped_in_an_evaluation_make_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed has been evaluated at this step, and the second one has not."""
    command = ["sweep", *SHORT[1:], "seed=0,1", "launcher=local", "sweep.report=false", "sweep.stack=2"]
    for case, stops in {"whole": (), "stopped": (8, 1)}.items():
        (tmp_path / case).mkdir()
        monkeypatch.chdir(tmp_path / case)
        for nth in stops:
            with signalled(Loop, "evaluate_one", nth):
                assert main(command) == 128 + signal.SIGTERM
        if stops:
            due = [
                read(path).get("evaluation_is_due", False)
                for path in sorted(tmp_path.rglob("stopped/**/checkpoint.pt"))
            ]
            assert due == [False, True]
        assert main(command) == 0
    assert_as(tmp_path / "whole", tmp_path / "stopped")
