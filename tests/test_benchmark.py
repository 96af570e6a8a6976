"""The benchmark's own arithmetic, what it makes for its peers, and how it refuses; its times are no test's business."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import commands
import kernels
import numpy as np
import peers
import pyarrow
import pyarrow.parquet
import pytest
import results
import sources
import torch
from support import REPOSITORY, TEXT
from torch.nn import functional as F

from normbench.build import make_model
from normbench.config.compose import read

FOLDER = REPOSITORY / "scripts/lib/benchmark"


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """A small form of the benchmark that writes to a folder of the test's own."""
    return commands.Bench(tmp_path, 3, True, 1, tmp_path / "peer", tmp_path / "examples", lambda text: None)


def benchmark(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the command says to some words."""
    own = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    return subprocess.run([sys.executable, str(FOLDER), *words], env=own, capture_output=True, text=True)


# ---- results


def test_a_ratio_is_the_median_of_pairs() -> None:
    row = results.compare("step", "a step", [(1.0, 2.0), (3.0, 4.0), (9.0, 10.0)], 0.7, unit="ms", peer="other")
    assert row.values == (0.5, 0.75, 0.9)  # the ratio of medians is the same only here
    assert row.cells[1:] == ("3 ms", "4 ms other", "0.75 [0.5–0.9], n = 3", "≤ 0.7", "missed by 0.05")
    assert results.compare("step", "a step", [(3.0, 1.0), (1.0, 2.0), (2.0, 5.0)], 0.5).median == 0.5


@pytest.mark.parametrize(
    ("values", "more", "verdict"),
    [
        ((1.0,), {}, "met"),
        ((1.01,), {}, "missed by 0.01"),
        ((1.0,), {"higher": True}, "met"),
        ((0.9,), {"higher": True, "unit": " s"}, "missed by 0.1 s"),
        ((0.5,), {"short": "1 of 3 seeds"}, "missed: 1 of 3 seeds"),
    ],
)
def test_a_target_is_met_on_its_own_side(values: tuple[float, ...], more: dict[str, Any], verdict: str) -> None:
    assert results.Row("part", "what", "", "", values, 1.0, **more).verdict == verdict


def test_shares_add_up_to_the_whole() -> None:
    assert results.shares({"norm": 1.0, "data": 0.01, "attention": 3.0}, 8.0) == "the rest 50%, attention 38%, norm 12%"
    assert "rest" not in results.shares({"norm": 9.0}, 8.0)


def test_the_page_has_every_row_note_and_reason() -> None:
    row = results.compare("start", "the start", [(1.0, 2.0)], 1.4, notes=["imports"])
    page = results.markdown([row], {"machine": "a computer"}, {"mnist": "left out: no data"})
    assert "| start: the start | 1 s | 2 s | 0.5, n = 1 | ≤ 1.4 | met |" in page.splitlines()
    for words in ("- machine: a computer", "- start, the start: imports", "- mnist: left out: no data"):
        assert words in page.splitlines()
    assert results.line(row).splitlines()[1].strip() == "imports"


# ---- sources of newer parts


@pytest.mark.parametrize("name", sources.WORDS)
def test_a_source_computes_what_ours_does(name: str) -> None:
    """The same logits from the same weights, with three candidates of attention residuals."""
    if name == "mHC":
        pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    sizes = ["model=nano", "model.depth=4", "model.width=16", "model.heads=2", "model.context=8"]
    model, _ = make_model(read([*sources.WORDS[name], *sizes]).recipe, TEXT, 0)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(TEXT.vocabulary_size, (3, 8), generator=random)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
        expected = sources.SOURCES[name](model)(tokens)
        torch.testing.assert_close(model(tokens), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1, "of weights that do something"


# ---- processes


MEASURE = """
import sys, pathlib, commands
code = "import os, time; block = bytearray(300 << 20); time.sleep(0.2); print(os.environ['OMP_NUM_THREADS'])"
here = pathlib.Path(sys.argv[1])
done = commands.Bench(here, 1, True, 1, None, None, print).run([sys.executable, "-c", code], here, threads=7)
print(done.output.strip(), done.seconds, done.peak)
"""


def test_a_process_is_measured_from_outside(tmp_path: Path) -> None:
    """By a small one: the peak of a process is at least that of the one that has started it."""
    begun = time.perf_counter()
    told = subprocess.run([sys.executable, "-c", MEASURE, tmp_path], cwd=FOLDER, capture_output=True, text=True)
    threads, seconds, peak = map(float, told.stdout.split())
    assert threads == 7 and 0.2 < seconds < time.perf_counter() - begun
    assert 300 << 20 < peak < 500 << 20


def test_a_failed_process_is_said_with_its_last_line(bench: Any) -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit('first\\nthe reason\\n\\n')"]
    with pytest.raises(commands.Failed, match=r"ended with status 1: the reason$"):
        bench.run(fails)
    assert bench.run(fails, expected=1).complaints
    with pytest.raises(commands.Failed, match=r"the reason$"):
        bench.seen(fails, "*")
    with pytest.raises(commands.Failed, match=r"ended before it was there: the reason$"):
        bench.until([*fails[:2], "print('the reason')"], bench.new(), lambda line: False)


def test_files_and_lines_are_seen_when_they_come(bench: Any) -> None:
    code = "import time\nfor name in 'abc':\n  open(name, 'w').write(name); print(name, flush=True); time.sleep(0.3)"
    seen = bench.seen([sys.executable, "-c", code], "a", "c")
    assert [path.name for _, path in seen] == ["a", "c"] and 0.5 < seen[1][0] - seen[0][0] < 5
    assert bench.until([sys.executable, "-c", code], bench.new(), lambda line: line == "b\n") > 0.3


def test_pairs_take_turns(bench: Any) -> None:
    calls: list[str] = []
    pairs = [*bench.alternate(lambda: calls.append("ours") or 1, lambda: calls.append("theirs") or 2)]
    assert calls == ["ours", "theirs", "theirs", "ours", "ours", "theirs"] and pairs == [(1, 2)] * 3


def test_imports_are_summed_by_package() -> None:
    lines = ["import time: self [us] | cumulative | imported package", "import time:   2000000 |  2500000 | torch.nn",
             "import time:    500000 |   500000 |   torch", "import time:    250000 |   250000 | yaml"]  # fmt: skip
    assert commands.imports("\n".join(lines)).endswith("2.75 s, of which torch 2.50 s, yaml 0.25 s")


# ---- operators


def test_operators_are_recorded_by_class_and_replayed() -> None:
    weight, gain = torch.randn(32, 16, requires_grad=True), torch.ones(32, requires_grad=True)
    x, query = torch.randn(8, 16), torch.randn(1, 2, 8, 16, requires_grad=True)

    def step() -> None:
        hidden = F.gelu(F.layer_norm(F.linear(x, weight), (32,), gain))
        (hidden.sum() + F.scaled_dot_product_attention(query, query, query).sum()).backward()

    found = kernels.record(step)
    kinds = {kind for kind, _ in found.calls}
    assert {"matrix products", "attention", "norm", "activation"} <= kinds and "views" not in kinds
    assert found.bytes > 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert found.replay(3).keys() == kinds and min(found.replay(3).values()) > 0
    products = 2 * (2 * 8 * 16 * 32)  # of x and the weight, and of the weight's gradient
    attention = 2 * (2 * 2 * 8 * 8 * 16)  # of query and key, and of the result and value
    assert kernels.operations(step) == products + attention + 5 * attention // 2  # whose backward pass has five


# ---- peers


def test_nanogpt_is_given_its_own_data_in_a_copy(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, data = "to be, or not to be\n" * 10, tmp_path / "data/karpathy/tiny_shakespeare/data"
    data.mkdir(parents=True)
    for split, part in {"train": text[:150], "validation": text[150:180], "test": text[180:]}.items():
        pyarrow.parquet.write_table(pyarrow.table({"text": [part]}), data / f"{split}-00000-of-00001.parquet")
    (bench.nanogpt / "data/shakespeare_char").mkdir(parents=True)
    (bench.nanogpt / "data/shakespeare_char/train.bin").write_bytes(b"theirs")
    monkeypatch.setenv("NORMBENCH_DATA", str(tmp_path / "data"))
    made = peers.nanogpt_copy(bench) / "data/shakespeare_char"
    tokens = [np.fromfile(made / f"{split}.bin", dtype=np.uint16) for split in ("train", "val")]
    meta = pickle.loads((made / "meta.pkl").read_bytes())
    assert [len(each) for each in tokens] == [180, 20] and meta["vocab_size"] == len(set(text))
    assert "".join(meta["itos"][token] for token in np.concatenate(tokens).tolist()) == text
    assert (bench.nanogpt / "data/shakespeare_char/train.bin").read_bytes() == b"theirs"


def test_images_are_written_in_mnists_format(tmp_path: Path) -> None:
    peers.write_idx(tmp_path / "images", np.arange(12, dtype=np.uint8).reshape(2, 3, 2))
    lengths = bytes([0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2])
    assert (tmp_path / "images").read_bytes() == bytes([0, 0, 8, 3]) + lengths + bytes(range(12))


# ---- the command


def test_help_names_every_part() -> None:
    done = benchmark("--help")
    assert done.returncode == 0 and os.access(REPOSITORY / "scripts/benchmark", os.X_OK)
    for word in ("nanogpt", "sweep36", "learning", "--pairs N", "MNIST to 99 %"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nonsense"], "no part is named nonsense: choose from nanogpt, step"),
        (["--pairs", "0"], "0 is not a number of pairs: give 1 or more"),
        (["--nanogpt", "/nowhere"], "/nowhere is not a folder: give that of a checkout"),
    ],
)
def test_mistakes_are_refused(words: list[str], reason: str) -> None:
    done = benchmark(*words)
    assert done.returncode == 2 and reason in done.stderr


@pytest.mark.slow
def test_a_part_without_its_peer_is_left_out_and_one_that_works_is_measured(tmp_path: Path) -> None:
    done = benchmark("step", "mistake", "--quick", "--out", str(tmp_path / "page.md"), NORMBENCH_DATA="")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("step: left out: it needs NORMBENCH_DATA") and "a checkout of karpathy/nanoGPT" in first
    assert second.startswith("mistake: a mistake to the exit: ")
    page = (tmp_path / "page.md").read_text()
    assert "| mistake: a mistake to the exit |" in page
    assert "- command: scripts/benchmark step mistake --quick --out PATH\n" in page  # which names no folder of mine
