"""What holds on a GPU, on a pretended one: see tests/pretended_gpu/device.py. One process tries all cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_once

FOLDER = Path(__file__).parent / "pretended_gpu"
sys.path.append(str(FOLDER))

from building import compiler, environment  # noqa: E402 (which is there, not here)

from normbench.claims.claim import read_claims  # noqa: E402
from normbench.claims.on_gpu import claims_on_gpu  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # compiles the pretended GPU
    pytest.mark.skipif(compiler() is None, reason="there is no g++, which compiles the pretended GPU"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch was built for real GPUs"),
]

# The most operators of a training step of the small models: what they are, and a tenth more.
BUDGETS = {
    "nano layernorm": 110,
    "nano batchnorm": 116,
    "cnn batchnorm": 114,
    "transformer image batchnorm": 124,
    "texts layernorm": 126,
    "texts batchnorm": 242,
    "seq2seq batchnorm": 352,
    "rnnsearch layernorm": 766,
    "rnnsearch batchnorm": 1698,
}


# The most operators that a probed step has more than another one, without histograms: what they are, and a tenth more.
PROBING = {
    "nano layernorm, light": 120,
    "nano dyt, light": 151,
    "cnn batchnorm, light": 217,
    "texts batchnorm, light": 151,
    "rnnsearch batchnorm, light": 1191,
    "nano layernorm, full": 472,
    "cnn batchnorm, full": 655,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each case has found; of one that failed a traceback."""
    file = make_once(tmp_path_factory, "pretended", try_cases) / "found.json"
    cases: dict[str, Any] = json.loads(file.read_text())
    return cases


def try_cases(folder: Path) -> None:
    """Let a process with a pretended GPU try all cases, and write what it has found into a folder."""
    paths = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parents[1]), str(FOLDER.parents[1] / "scripts/lib/gpu_check")]
    own = {**environment(), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, FOLDER / "cases.py", folder / "found.json"]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tool_sees_what_it_is_for(found: dict[str, Any]) -> None:
    assert "found cpu, cuda:0" in found["mixed"]
    assert found["asked"] == {"operators": {"_to_copy": 2, "add": 1, "sum": 1}, "waits": 1, "blocking": 1}


def test_no_step_mixes_devices_or_waits(found: dict[str, Any]) -> None:
    """All norms, all families of models, 16 bits, averaged weights, accumulation; a mixture would have raised."""
    steps = {name: case for name, case in found.items() if not isinstance(case, dict) or "operators" in case}
    failed = {name: case for name, case in steps.items() if isinstance(case, str) and name != "mixed"}
    assert not failed, "\n".join(failed.values())
    counted = {name: case for name, case in steps.items() if isinstance(case, dict) and name != "asked"}
    assert len(counted) > 20
    assert all(case["waits"] == {} == case["blocking"] for case in counted.values()), counted


@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_keeps_its_budget_of_operators(found: dict[str, Any], name: str) -> None:
    assert found[name]["operators"] <= BUDGETS[name]


@pytest.mark.parametrize("name", PROBING)
def test_a_probed_step_keeps_its_budget_of_operators(found: dict[str, Any], name: str) -> None:
    assert found[name]["more"] <= PROBING[name]
    if name.endswith("light") and "texts" not in name and "rnnsearch" not in name:  # which ask how many tokens are real
        assert found[name]["waits"] == 2  # the guard's, and one for all numbers


@pytest.mark.parametrize(
    "name", ["waits", "agrees", "repeats", "stack", "second", "norms", "launches", "probes", "times", "layouts"]
)
def test_what_gpu_check_asks_can_be_asked(found: dict[str, Any], name: str) -> None:
    """Of all that `scripts/gpu_check` does with a GPU, what a pretended one can answer; its times say nothing."""
    assert isinstance(found["checks"], dict), found["checks"]
    own = found["checks"][name]
    assert own["verdict"] in ("holds", "does not hold") and own["figure"], own
    if name not in ("probes", "layouts"):  # which are times alone
        assert own["verdict"] == "holds", own


def test_batchnorm_is_two_operators_and_a_count(found: dict[str, Any]) -> None:
    """As LayerNorm is two, forward and backward; this model has five norms."""
    assert found["nano batchnorm"]["operators"] == found["nano layernorm"]["operators"] + 5


@pytest.mark.parametrize("model", ["", " of texts", " of a translator"])
def test_running_statistics_are_those_of_the_cpu(found: dict[str, Any], model: str) -> None:
    """Under masks too, which are counted in another way there; once a step is over nothing is kept of them."""
    case = found["running statistics" + model]
    assert case["size"] == 5 * 2 * 16 + 1 or model == " of a translator"
    assert case["difference"] < 1e-5
    assert case["masks"] == 0


def test_a_run_counts_the_operators_of_an_early_step(found: dict[str, Any]) -> None:
    """As this tool does; beside it one step is waited for, at its beginning and its end, and no other."""
    case = found["early steps"]
    assert case["operators_a_step"] == case["steps"][4]["operators"] == case["steps"][9]["operators"]
    assert [sum(step["waits"].values()) for step in case["steps"]] == [0, 0, 0, 0, 0, 0, 2, 0, 0, 0]
    assert 0 < case["host_share_of_step"] <= 1


def test_an_evaluation_copies_its_batches_without_a_wait(found: dict[str, Any]) -> None:
    assert found["evaluation"]["blocking"] == {}, found["evaluation"]
    assert found["evaluation"]["loss"] > 0


def test_a_norm_that_runs_on_gpus_alone_is_tried_there(found: dict[str, Any]) -> None:
    assert isinstance(found["norm for GPUs alone"], dict), found["norm for GPUs alone"]
    facts = found["norm for GPUs alone"]["facts"]
    assert facts["centers"] and not facts["crosses_samples"] and facts["sees_future"] == "never"


def test_time_and_random_numbers_are_those_of_the_gpu_that_trains(found: dict[str, Any]) -> None:
    assert found["second GPU"] == {"durations": 1, "waited for": [1], "untouched": True, "seeded": True}


def test_seeds_with_attention_train_as_one_model(found: dict[str, Any]) -> None:
    assert isinstance(found["stack"], list), found["stack"]
    assert len({*found["stack"]}) == 2


# ---- claims

ON_GPU = {name: claim for name, claim in claims_on_gpu(read_claims()).items() if not (claim.study or claim.runs_of)}


@pytest.mark.parametrize("name", ON_GPU)
def test_the_runs_of_a_claim_on_a_gpu_can_be_made_there(found: dict[str, Any], name: str) -> None:
    """The first and the last take a few steps, with another width, and as a graph where its words say so."""
    case = found[f"claim {name}"]
    assert isinstance(case, dict), case
    assert case["as asked"] and case["runs"] >= 2
    assert 8e6 < case["parameters"] < 13e6, "the scale of these claims is ten million parameters"


def test_a_claim_on_a_gpu_is_run_by_its_command(found: dict[str, Any]) -> None:
    case = found["claim by its command"]
    assert isinstance(case, dict), case
    assert case == {
        "statuses": [0, 0], "seeds": 3, "device": ["device=cuda"], "on its page": ["tiny-on-gpu"],
    }  # fmt: skip


# ---- the whole step as one graph


GRAPHS = ("nano batchnorm", "nano rmsnorm", "cnn groupnorm", "resnet batchnorm", "mlp dyt")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_recorded_step_computes_what_an_ordinary_one_does(found: dict[str, Any], name: str) -> None:
    """To the bit: losses, weights, optimizer, running statistics, averaged weights, and what probes see beside it."""
    case = found[f"graph {name}"]
    assert isinstance(case, dict), case
    assert case["recorded"]
    assert case["replayed"] == case["losses"]
    assert len({*case["losses"]}) == len(case["losses"])
    assert case["alike"] and case["seen apart"] == {}
    assert case["seen"] > 50 or name != "nano batchnorm"


def test_a_replayed_step_fills_its_inputs_is_started_once_and_waits_for_nothing(found: dict[str, Any]) -> None:
    """Inputs, targets, two learning rates and the step's number; then the sum of the losses."""
    case = found["graph counted"]
    assert case == {"operators": {"copy_": 2, "fill_": 3, "graph": 1, "add_": 1}, "waits": {}, "blocking": {}}


def test_batches_come_one_after_the_other_to_one_place_whichever_is_asked_for(found: dict[str, Any]) -> None:
    """The first one is asked for twice, since its shape is what memory is reserved for."""
    case = found["graph feed"]
    assert all(case["right"]) and case["places"] == 1
    assert case["first"] == [0, 0, 1, 2] and case["last"] == 7


def test_at_a_stop_batches_that_are_not_begun_are_forgotten(found: dict[str, Any]) -> None:
    """And asked for again if it goes on; nobody waits for the thread at the end of a process."""
    case = found["graph feed stops"]
    assert case == {"stopped": [0, 0, 1], "right": [True] * 8, "asked": case["asked"], "daemon": True, "ended": True}
    assert max(case["asked"]) == 7


def test_nothing_else_asks_for_data_while_the_thread_does(found: dict[str, Any]) -> None:
    case = found["graph judged apart"]
    assert isinstance(case, dict), case
    assert case["evaluation"] and case["estimate"]
    assert not any(case["evaluation"] + case["estimate"])


def test_the_peak_of_memory_has_what_a_graph_keeps(found: dict[str, Any]) -> None:
    assert found["graph memory"] == [10**9, 2 * 10**9]


def test_recorded_steps_go_on_from_a_checkpoint_with_the_same_bits(found: dict[str, Any]) -> None:
    assert found["graph goes on"] is True, found["graph goes on"]


def test_a_recorded_step_that_is_not_finite_ends_the_run_as_an_ordinary_one(found: dict[str, Any]) -> None:
    case = found["graph refused"]
    assert case["poisoned"] == case["poisoned, plain"]
    assert case["poisoned"].startswith("Diverged: not finite: output of") and case["poisoned"].endswith("at 6")


def test_what_cannot_be_replayed_is_said(found: dict[str, Any]) -> None:
    case = found["graph refused"]
    assert case["growing"].startswith("UsageError: trainer.compile=graph replays steps of one shape, and the batch of")
    assert "step 6 has tensors of (5, " in case["growing"]
    assert case["rebinding"].startswith("UsageError: trainer.compile=graph replays a step on the same memory, and ")
    assert case["counting"].startswith("UsageError: trainer.compile=graph runs no Python after this step, and blocks.0")
    assert "steps changes in it, from 4 to 5: count" in case["counting"]  # a rehearsal, and three steps before it
    assert case["asking"].startswith("UsageError: trainer.compile=graph cannot record a step of this model (")
    assert case["stream"] == "as before"
