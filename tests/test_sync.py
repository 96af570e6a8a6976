"""Statistics over two processes are those of one process at the whole batch: outputs, gradients, running statistics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import Server
from test_masked_norms import FEATURES, masked_batch, random_norm, texts, weights
from torch import Tensor, distributed
from torch.multiprocessing.spawn import start_processes

from normbench.norms.common import AllReduce

pytest_plugins = ["run_fixtures"]

# by case: settings of the norm, lengths of texts (0: none of it is real), and how many texts the first process has
CASES: dict[str, tuple[dict[str, Any], list[int], int]] = {
    "nothing padded": ({}, [4, 4, 4, 4], 2),
    "unequal shares": ({}, [4, 4, 4, 4, 4], 1),
    "unequal counts": ({}, [6, 1, 2, 3], 2),
    "nothing real in one": ({"momentum": None}, [0, 0, 3, 2], 2),
    "one token in each": ({}, [1, 1], 1),
    "eager, no affine": ({"impl": "eager", "affine": False}, [6, 1, 2, 3, 3], 2),
    "without running statistics": ({"track_running_stats": False}, [5, 2, 6, 3], 2),
    "each position": ({"per_position": True}, [6, 5, 2, 3], 2),
    "frozen after a batch": ({"freeze_after": 1}, [6, 1, 2, 3], 2),
    "images": ({"channel_dim": 1}, [4, 4, 4, 4], 1),
}
BATCHES = 2


def outcome(settings: dict[str, Any], lengths: list[int], rows: slice, sync: bool) -> dict[str, Any]:
    """What some texts of two batches give: outputs and input gradients at real tokens, and what the norm has then.

    Texts are padded to the longest of these, with what must not count.
    """
    norm, real = random_norm("batchnorm", **settings, sync=sync).double(), list[tuple[Tensor, Tensor]]()
    image = "channel_dim" in settings
    for seed in range(BATCHES):
        whole = texts([max(length, 1) for length in lengths], seed)
        by_text = weights(torch.cat(whole)).split([len(text) for text in whole])[rows]
        x, mask = masked_batch(whole[rows], math.nan)
        mask &= torch.tensor(lengths[rows])[:, None] > 0
        x.requires_grad_()
        y = norm(x.movedim(-1, 1), mask=mask) if image else norm(x, mask=None if mask.all() else mask)
        y = y.movedim(1, -1) if image else y
        sum((own * one[: len(own)]).sum() for own, one in zip(by_text, y, strict=True)).backward()
        assert x.grad is not None
        real.append((y[mask].detach(), x.grad[mask]))
    return {"real": real, "parameters": [each.grad for each in norm.parameters()], "running": norm.state_dict()}


def work(rank: int, folder: Path) -> None:
    """What one of the processes does."""
    rendezvous = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, (settings, lengths, first) in CASES.items():
        rows = slice(first) if rank == 0 else slice(first, None)
        found[name] = outcome(settings, lengths, rows, sync=True)
    settings, lengths, first = CASES["unequal shares"]
    found["local"] = outcome(settings, lengths, slice(2), sync=False)
    x = torch.tensor([1.0 + rank, 2.0], dtype=torch.float64, requires_grad=True)
    found["gradcheck"] = torch.autograd.grad((AllReduce.apply(x) ** 2).sum(), x)[0]
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def processes(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes have found, which are forked from the tests' own server."""
    folder = tmp_path_factory.mktemp("processes")
    start_processes(work, (folder,), nprocs=2, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one_at_the_whole_batch(processes: list[dict[str, Any]], name: str) -> None:
    settings, lengths, _ = CASES[name]
    expected = outcome(settings, lengths, slice(None), sync=False)
    ours = [found[name] for found in processes]
    for batch in range(BATCHES):
        for place in range(2):  # outputs, then gradients
            together = torch.cat([one["real"][batch][place] for one in ours])
            torch.testing.assert_close(together, expected["real"][batch][place], rtol=1e-9, atol=1e-11)
    for number, gradient in enumerate(expected["parameters"]):
        total = sum(one["parameters"][number] for one in ours)
        torch.testing.assert_close(total, gradient, rtol=1e-9, atol=1e-11)
    for one in ours:
        torch.testing.assert_close(one["running"], expected["running"], rtol=1e-9, atol=1e-11)
    assert len(expected["running"]) > 2 or name in ("eager, no affine", "without running statistics")


@pytest.mark.slow
def test_without_sync_each_process_is_alone(processes: list[dict[str, Any]]) -> None:
    settings, lengths, _ = CASES["unequal shares"]
    expected: Any = outcome(settings, lengths, slice(2), sync=False)
    for found in processes:
        torch.testing.assert_close(found["local"]["running"], expected["running"])


@pytest.mark.slow
def test_the_gradient_of_a_sum_is_the_sum_of_gradients(processes: list[dict[str, Any]]) -> None:
    total: Tensor = torch.tensor([3.0, 4.0], dtype=torch.float64)
    for found in processes:
        torch.testing.assert_close(found["gradcheck"], 2 * 2 * total)


def test_a_lone_process_needs_no_group() -> None:
    x = torch.randn(4, 3, FEATURES)
    torch.testing.assert_close(random_norm("batchnorm", sync=True)(x), random_norm("batchnorm")(x), rtol=0, atol=0)
