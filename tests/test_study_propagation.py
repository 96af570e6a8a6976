"""The study of propagation, against plain autograd, by hand, and against the published exponents."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from studied import measured, subject, subjects, tables_of, write
from support import REPOSITORY, TEXTS
from torch.nn import functional as F

from normbench.cli import main
from normbench.config import compose
from normbench.errors import UsageError
from normbench.studies.frame import Subject
from normbench.studies.propagation import DEPTH, POSITION_GRADIENT, Propagation, angle, exponents_table, slopes

SMALL = ("model.width=16", "model.heads=2", "model.context=8", "data.batch_size=2", "model.mlp=relu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_each_layer_is_read_as_plain_autograd_has_it(placement: str) -> None:
    one = subject(f"placement={placement}", "model.depth=3", *SMALL)
    rows = measured(Propagation(), one)
    model, _ = one.build()
    streams: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: streams.append(output.detach()))
    batch = one.data.train_batch(0)
    one.task.loss(model(*batch.arguments), batch.targets).backward()
    assert rows["layer"].tolist() == [1, 2, 3]
    assert rows["rms"].tolist() == pytest.approx([float(x.square().mean().sqrt()) for x in streams])
    weights = [block.branches["mlp"].fc2.weight for block in model.blocks]
    assert rows["gradient"].tolist() == pytest.approx([float(weight.grad.norm()) for weight in weights])
    cosines = F.cosine_similarity(streams[1].double(), streams[2].double(), dim=-1)
    assert rows["angle"].iloc[2] == pytest.approx(float(cosines.acos().rad2deg().mean()), rel=1e-4)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_position_gradient_is_that_of_the_loss_at_one_position(placement: str) -> None:
    one = subject(f"placement={placement}", "model.depth=2", *SMALL)
    found = measured(Propagation(), one)[POSITION_GRADIENT].iloc[-1]
    model, _ = one.build()
    batch = one.data.train_batch(0)
    losses = F.cross_entropy(model(*batch.arguments).flatten(0, 1), batch.targets.flatten(), reduction="none")
    weight = model.blocks[-1].branches["mlp"].fc2.weight
    norms = [torch.autograd.grad(loss, weight, retain_graph=True)[0].norm() for loss in losses]
    assert found == pytest.approx(float(torch.stack(norms).mean()), rel=1e-5)


def test_of_many_layers_some_are_shown_with_both_ends() -> None:
    rows = measured(Propagation(layers=3), subject("model.depth=9", *SMALL))
    assert rows["layer"].tolist() == [1, 5, 9]
    assert rows[POSITION_GRADIENT].notna().tolist() == [False, False, True]


def test_running_statistics_are_not_what_batchnorm_normalizes_with() -> None:
    rows = measured(Propagation(), subject("norm=batchnorm", "placement=post", "model.depth=2", *SMALL))
    assert rows["rms"].tolist() == pytest.approx([1, 1], abs=1e-3)


def test_a_network_for_images_is_measured_too() -> None:
    rows = measured(Propagation(), subject("model=cnn", "norm=batchnorm", "data.batch_size=8"))
    assert rows["rms"].gt(0).all()
    assert rows["gradient"].gt(0).all()
    assert rows["angle"].notna().tolist() == [True, False, True]  # the second stage is wider
    assert POSITION_GRADIENT not in rows


def test_a_classifier_has_no_gradient_of_one_position() -> None:
    rows = measured(Propagation(), subject("data=digits", "model.depth=2", *SMALL[:2], "data.batch_size=8"))
    assert rows["gradient"].gt(0).all()
    assert POSITION_GRADIENT not in rows


def test_texts_that_may_be_padded_are_refused() -> None:
    tree = compose.read([*SMALL]).tree
    texts = Subject({}, tree, torch.device("cpu"), lambda: SimpleNamespace(task=TEXTS))
    with pytest.raises(UsageError, match=r"texts may have padding: use a language model or images"):
        Propagation().check(texts)


def test_an_angle_is_exact_where_its_cosine_is_not() -> None:
    turned = torch.tensor([1e-5, 0.5, torch.pi / 2])
    x = torch.tensor([[1.0, 0.0]]).repeat(3, 1)
    y = 3 * torch.stack((turned.cos(), turned.sin()), dim=-1)
    for place, radians in enumerate(turned.tolist()):
        found = float(angle(x[place], y[place], -1))
        assert found == pytest.approx(float(np.rad2deg(radians)), rel=1e-4)


def law(norm: str, exponent: float, spread: float = 0.0) -> pd.DataFrame:
    """Rows of last layers whose gradients follow a power of depth, a little another one for each seed."""
    return pd.DataFrame(
        {"norm": norm, DEPTH: depth, "seed": seed, "layer": depth, "gradient": 1.0}
        | {POSITION_GRADIENT: 3.0 * depth ** (exponent + spread * (seed - 1))}
        for depth in (2, 4, 8)
        for seed in range(3)
    )


def test_exponents_are_slopes_with_students_interval_over_seeds() -> None:
    ((table,), _) = write([exponents_table(pd.concat([law("layernorm", -0.5, spread=0.01), law("rmsnorm", 0.25)]))], [])
    assert list(table.frame)[1:4] == [f"gradient of {words}" for words in
                                      ("one position", "one position: 95 % interval", "a batch")]  # fmt: skip
    # t of 2 degrees of freedom is 4.303, and the standard error 0.01 / √3
    assert table.rows[0][:4] == ("LayerNorm", "−0.5", "−0.525 to −0.475", "0")
    assert table.rows[1][:3] == ("RMSNorm", "0.25", "–")


@pytest.mark.parametrize("gradient", [float("inf"), 0.0])
def test_gradients_that_overflow_or_vanish_have_no_exponent(gradient: float) -> None:
    rows = pd.concat([law("none", 1.0), law("layernorm", -0.5)])
    rows.loc[(rows[DEPTH] == 8) & (rows["norm"] == "none"), POSITION_GRADIENT] = gradient
    ((table,), _) = write([exponents_table(rows)], [])
    assert [row[1:3] for row in table.rows] == [("0", "–"), ("3", "−0.5")]


def test_one_depth_has_no_exponent_and_a_figure_by_layer() -> None:
    study = Propagation()
    rows = measured(study, subject("model.depth=3", *SMALL))
    assert [table.key for table in tables_of(study, rows)] == ["ends"]
    assert [figure.name for figure in study.figures(rows)] == ["rms", "gradient", "similarity", "angle"]


def test_depths_have_a_figure_of_the_last_gradient() -> None:
    study = Propagation()
    rows = measured(study, *subjects(*SMALL, **{DEPTH: (2, 3)}))
    tables, figures = tables_of(study, rows), study.figures(rows)
    assert [table.key for table in tables] == ["exponents", "ends"]
    assert figures[-1].name == POSITION_GRADIENT
    assert figures[-1].data[DEPTH].tolist() == [2, 3]
    assert figures[0].data[DEPTH].tolist() == [3, 3, 3]  # of the deepest one alone
    scales = [(pane.get_xscale(), pane.get_yscale()) for pane in (figure.canvas.axes[0] for figure in figures)]
    assert scales == [("linear", scale) for scale in ("log", "log", "linear", "linear")] + [("log", "log")]


def test_a_stack_that_does_not_fit_is_refused_before_it_is_made() -> None:
    huge = subject("model.depth=4", "model.width=100000")
    with pytest.raises(UsageError, match="a stack with its gradients needs about"):
        Propagation().check(huge)


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "exponent", "within"), [("pre", -0.5, 0.05), ("post", 0.0, 0.08)])
def test_the_last_gradient_falls_with_depth_as_published(placement: str, exponent: float, within: float) -> None:
    """Xiong et al. 2020, theorem 1."""
    words = (f"placement={placement}", "model.width=128", "model.mlp=relu", "data.batch_size=1")
    stacks = subjects(*words, seeds=3, **{DEPTH: (2, 8, 32)})
    rows = measured(Propagation(), *stacks).dropna(subset=[POSITION_GRADIENT])
    numbers = rows[["seed", DEPTH, POSITION_GRADIENT, "gradient"]]
    found = [slopes(own)[POSITION_GRADIENT] for _, own in numbers.groupby("seed")]
    assert np.mean(found) == pytest.approx(exponent, abs=within)


@pytest.mark.slow
def test_deepnorm_keeps_a_thousand_layers_bounded_and_post_does_not() -> None:
    """With post the gradient is gone at 700 already."""
    deep, post = (
        measured(Propagation(), subject(f"placement={placement}", f"model.depth={depth}", *SMALL))
        for placement, depth in (("deep", 1000), ("post", 700))
    )
    assert len(deep) == 64
    assert np.isfinite(deep.drop(columns=[POSITION_GRADIENT, "norm"]).to_numpy(float)).all()
    assert deep["rms"].between(0.99, 1.01).all()
    assert deep["gradient"].max() < 3 * deep["gradient"].min()
    assert post["gradient"].iloc[0] < 1e-6 * post["gradient"].iloc[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_example_in_the_docs_is_what_the_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words to the letter; numbers by the Python of the docs, whose documentation is the text, to 0.05.

    With another Python's text each estimate lies in the other's interval.
    """
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs/studies.md").read_text("utf-8")
    (example,) = re.findall(r"```bash\nnormbench (study propagation [^\n]*)\n```\n\n[^\n]*:\n\n((?:>.*\n)+)", page)
    assert main([*example[0].split(), "threads=1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for quoted in example[1].split("\n>\n"):
        *words, last = re.split(r"(−?\d+\.\d+)", " ".join(quoted.replace("\n>", " ").lstrip("> ").split()))
        found = re.search(r"(−?\d+\.\d+)".join(map(re.escape, [*words[::2], last])), printed)
        assert found, quoted
        here, there = ([float(number.replace("−", "-")) for number in own] for own in (found.groups(), words[1::2]))
        assert here[1] < there[0] < here[2] and there[1] < here[0] < there[2]
        if sys.version_info[:2] == (3, 11):
            assert here == pytest.approx(there, abs=0.05)
