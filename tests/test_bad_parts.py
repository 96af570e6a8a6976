"""Parts of a user's own that break their contracts: one sentence, exit status 2, and nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import REPOSITORY, refused

pytest_plugins = ["refusals"]

NORMS = {
    "Silent": "norm._target_=bad_parts.Silent has no forward",
    "Unfinished": "norm._target_=bad_parts.Unfinished has no forward",
    "Half": "Half returns torch.float16 for an input of torch.float32 at block00",
    "NoEps": "has no eps: set self.eps",
    "BadFacts": "has facts that are no NormFacts",
    "no_module": "gives something of type int: return a Module",
    "Stripes": "makes no Module",
}
PLACEMENTS = {
    "Same": "makes no Placement",
    "NoSlots": "has no slots: set it in the class, a tuple of the norms around each branch",
    "OneWord": "has slots='in': make it a tuple",
    "NoNorms": "keeps no norms: put them in self.norms, a torch.nn.ModuleDict",
    "TwiceThere": "two norms stand at block00.linear: give each norm",
}
MODELS = {
    "Same": "makes no Model",
    "NoKinds": "has no kinds: set it in the class, a frozenset of tasks",
    "NoRoles": "has roles=(): make it a tuple of the names",
    "UnknownKind": "has kinds=frozenset({'images'}): make it a frozenset of tasks",
    "NoBlocks": "has no blocks: keep them in self.blocks, a torch.nn.ModuleList",
    "NoPlacement": "has a Linear as blocks[0]: make each block with the placement",
    "NoBranch": "has no Branch in blocks[1]: derive it from",
}
DATA = {
    "Same": "makes no Data",
    "NoKind": "has no kind: set it in the class, one of",
    "NoDescribe": "has no describe and no eval_batches and no train_batch: write",
    "NoTask": "has no task: set self.task",
    "OtherKind": "has kind=image_classification and task.kind=language_model: make",
    "OneClass": "has task.num_classes=1: give at least 2",
    "NoShape": "has task.image_shape=(0, 8, 8): give whole numbers",
    "NoFingerprint": "has no fingerprint: set self.fingerprint",
    "NoSteps": "has no steps_per_epoch: set it",
    "NoRecord": "describes itself by what JSON cannot hold: return a dict",
    "Impure": "gives another train_batch(0) when it is asked again: draw from",
    "Growing": "gives another train_batch(0) when it is asked again: draw from",
    "Tuples": "gives a batch of type tuple: return a normbench.types.Batch",
    "FromOne": "train_batch(0) has targets from 1 to 2: the task has 2, so they go from 0 to 1",
    "JudgedFromOne": "eval_batches('val', 1) has targets from -1 to 0: the task has 2",
    "OneHot": "train_batch(0) has targets of [8, 2] of int64: the task needs [8] of int64",
    "Doubles": "train_batch(0) has inputs of [8, 1, 8, 8] of float64: the task needs [8, 1, 8, 8] of float32",
    "Infinite": "train_batch(0) has inputs that are not finite: mend",
    "NothingToJudge": "gives no batch in eval_batches('val', 1): the validation loss needs one",
}
TEXTS = {
    "NoContext": "has task.context=0: give whole numbers",
    "NoMask": "train_batch(0) has no mask, and pads=True: make them agree",
    "AllPadding": "train_batch(0) has a row that is all padding: leave out empty texts",
    "UnknownToken": "train_batch(0) has tokens from 1 to 5: the task has 5, so they go from 0 to 4",
    "PaddedText": "has kind=language_model and pads=True: padding would count in the loss, so cut",
    "TooLong": "train_batch(0) has 4 tokens a row, and task.context=3: cut them",
}
CASES = [
    *(("norm", name, complaint) for name, complaint in NORMS.items()),
    *(("placement", name, complaint) for name, complaint in PLACEMENTS.items()),
    *(("model", name, complaint) for name, complaint in MODELS.items()),
    *(("data", name, complaint) for name, complaint in {**DATA, **TEXTS}.items()),
]
CLASSIFIER = ["model=mlp", "model.depth=1", "model.width=8", "data=digits"]
READER = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=4"]


@pytest.fixture(autouse=True)
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package and the bad parts, as if they were installed."""
    monkeypatch.syspath_prepend(REPOSITORY / "tests" / "example_package")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.parametrize(("section", "name", "complaint"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_train_refuses_a_part_that_breaks_its_contract(
    section: str, name: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = READER if name in TEXTS else [word for word in CLASSIFIER if not word.startswith(f"{section}")]
    sentence = refused(["train", *words, f"{section}._target_=bad_parts.{name}"], capsys)
    assert complaint in sentence
