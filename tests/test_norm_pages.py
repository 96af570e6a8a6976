"""The pages of norms and placements: their pictures, facts and counts are right, and docs/ has them as they are."""

from __future__ import annotations

import copy
import re
from itertools import product
from typing import Any

import pytest
import torch
from support import NORMS, PLACEMENTS, REPOSITORY, documented, refused
from test_completion import answers

from normbench import build
from normbench.cli import main
from normbench.commands import norm_pages
from normbench.commands.norm_pages import Timing, norm_page, pages, placement_page, trace
from normbench.config.groups import options, section_of
from normbench.config.recipe import Recipe, resolve
from normbench.config.refusals import refusal
from normbench.contract.norms import NormPart
from normbench.runs.flow import Flow, Step
from normbench.studies.block_invariance import bound_of
from normbench.studies.invariance import PUBLISHED, SIX_CHANGES, measure_responses
from normbench.types import NormFacts

SAMPLE, FEATURE, POSITION = norm_pages.SHOWN

# Which values share a statistic with the one that is shown, in training: samples, features, positions. By hand.
ALL, GROUP = slice(None), slice(8, 12)
SHARED: dict[str, Any] = {
    "batchnorm": (ALL, FEATURE, ALL),
    "layernorm": (SAMPLE, ALL, POSITION),
    "rmsnorm": (SAMPLE, ALL, POSITION),
    "prmsnorm": (SAMPLE, [*range(8), FEATURE], POSITION),
    "dyt": norm_pages.SHOWN,
    "none": norm_pages.SHOWN,
    "groupnorm": (SAMPLE, GROUP, POSITION),
    "instancenorm": (SAMPLE, FEATURE, ALL),
}

# Operations and bytes (float32) of the formula as it is written, forward: x − mean takes 2 operations and reads 2, ...
FORWARD = {"layernorm": (7, 48), "rmsnorm": (4, 28), "dyt": (4, 32), "none": (0, 0)}

FLOWS = {
    "pre": "x ─┬─ N ─ f ─⊕─→ x\n   └─────────┘",
    "post": "x ─┬─ f ─⊕─ N ─→ x\n   └─────┘",
    "deep": "x ─┬─ f ──⊕─ N ─→ x\n   └─ ·α ─┘",
    "post_inside": "x ─┬─ f ─ N ─⊕─→ x\n   └─────────┘",
    "sandwich": "x ─┬─ N ─ f ─ N ─⊕─→ x\n   └─────────────┘",
    "parallel": "x ─┬─ N ─ attention ─⊕─→ x\n   ├─ N ─ mlp ───────┤\n   └─────────────────┘",
    "plain": "x ─ f ─→ x",
    "lns": "x ─┬─ N ─ ·α ─ f ─⊕─→ x\n   └──────────────┘",
    "keel": "x ─┬─ N ─ f ─⊕─ N ─→ x\n   └─ ·α ────┘",
    "b2t": (
        "x ─┬─┬─ attention ─⊕─ N ─┬─ mlp ─⊕─⊕─ N ─→ x\n"
        "   │ └─────────────┘     └───────┘ │\n"
        "   └───────────────────────────────┘"
    ),
    "gpas": "x ─┬─ N ─ f ─⊕─┬─ stopgrad ─ ·α ─ ·(−1) ─⊕─→ x\n   └─────────┘ └─────────────────────────┘",
    "admin": "x ─┬─ f ──⊕─ N ─→ x\n   └─ ·α ─┘",
    "resi_dual": "x ─ f ─→ z\nx ─⊕─ N ─→ x\nz ─┘\nr ─⊕─→ r\nz ─┘",
    "siamese": "x ─ N ─⊕─ N ─ f ─→ z\ny ─ N ─┘\nx ─ N ──⊕─→ x\nz ─ ·α ─┘\ny ─⊕─→ y\nz ─┘",
    "hyper_connections": "x ─┬─ read ─ N ─ f ─ write ─⊕─→ x\n   └─ mix ──────────────────┘",
    "mhc": "x ─┬─ read ─ N ─ f ─ write ─⊕─→ x\n   └─ mix ──────────────────┘",
    "attnres": "x ─┬─ select ─ N ─ f ─⊕─→ x\n   └──────────────────┘",
    "x0": "x ─┬─ N ─ f ─⊕─→ x\n   └─────────┘",
    "fixup": "x ─┬─ +b ─ N ─ f ─ ·α ─ +b ─⊕─→ x\n   └────────────────────────┘",
    "nf": "x ─┬─ ·α ─ N ─ f ─ ·α ─⊕─→ x\n   └───────────────────┘",
    "layerscale": "x ─┬─ N ─ f ─ ·α ─⊕─→ x\n   └──────────────┘",
    "orthogonal": "x ─┬─ N ─ f ─ ⊥x ─⊕─→ x\n   └──────────────┘",
    "ngpt": "x ─┬─ f ─ N ─ ·α ─⊕─ N ─→ x\n   └─ ·α ─────────┘",
}


def part_of(norm: str) -> NormPart:
    return NormPart({"norm": section_of("norm", norm)})


def sections_of(markdown: str) -> list[str]:
    """Return what stands before the first option's page, and each of these."""
    return [section.strip() for section in re.split("^## ", markdown, flags=re.MULTILINE)]


@pytest.mark.parametrize("group", ["norm", "placement"])
def test_docs_have_the_pages_as_they_are(group: str) -> None:
    start, *written = sections_of((REPOSITORY / f"docs/{group}s.md").read_text("utf-8"))
    now = sections_of(pages(group))
    for section in (start, *written):
        assert section in now, f"write them again: normbench {group}s --markdown > docs/{group}s.md"
    assert [section.partition("\n")[0] for section in written] == documented(group)


# ---- norms


def test_invariances_are_measured_in_later_batches_too() -> None:
    renorm = norm_pages.norm_page(part_of("batchrenorm"))
    assert renorm.tell_invariance("W × c") == "yes in the first batches, no in later ones"
    assert renorm.tell_invariance("one sample × c") == "no"
    assert not any("steps shrink" in use for use in renorm.good_for)
    power = norm_pages.norm_page(part_of("powernorm"))
    assert power.tell_invariance("W × c") == "yes" and power.later == power.invariances


@pytest.mark.parametrize("norm", SHARED)
def test_a_picture_has_what_shares_a_statistic(norm: str) -> None:
    expected = torch.zeros(norm_pages.PICTURE, dtype=torch.bool)
    expected[SHARED[norm]] = True
    assert torch.equal(trace(part_of(norm), "sequence", training=True), expected)
    in_image = expected.clone()
    in_image[SAMPLE, GROUP] |= norm == "groupnorm"
    assert torch.equal(trace(part_of(norm), "image", training=True), in_image)
    in_evaluation = trace(part_of(norm), "sequence", training=False)
    assert in_evaluation.sum() == 1 if norm == "batchnorm" else torch.equal(in_evaluation, expected)


@pytest.mark.parametrize("norm", NORMS)
def test_a_picture_has_what_the_value_that_is_shown_changes_with(norm: str) -> None:
    """Of each norm, in training: one value of the input after the other is another one."""
    module = part_of(norm).factory()(norm_pages.PICTURE[1]).double()
    changes = torch.zeros(norm_pages.PICTURE, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(norm_pages.PICTURE, dtype=torch.float64, generator=generator)
    for x in (drawn, -drawn):
        module(x.mT)

        def shown(given: torch.Tensor) -> float:
            y: torch.Tensor = copy.deepcopy(module)(given.mT)
            return y.mT[norm_pages.SHOWN].item()

        before = shown(x)
        for cell in product(*map(range, norm_pages.PICTURE)):
            other = x.clone()
            other[cell] += 0.01
            changes[cell] |= abs(shown(other) - before) > 1e-12
    assert torch.equal(trace(part_of(norm), "sequence", training=True), changes)


def test_a_picture_by_hand() -> None:
    cells = torch.zeros(norm_pages.PICTURE, dtype=torch.bool)
    cells[SHARED["groupnorm"]] = cells[2, 0, 3] = True
    assert norm_pages.draw(cells).splitlines() == [
        "            sample 1      sample 2      sample 3",
        "position 1  ············  ············  ············",
        "position 2  ········■●■■  ············  ············",
        "position 3  ············  ············  ············",
        "position 4  ············  ············  ■···········",
        "            features →",
    ]


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_measured_is_what_the_class_declares(norm: str) -> None:
    page = norm_page(part_of(norm))
    facts = page.facts
    assert (page.crosses_samples != "never") == facts.crosses_samples
    assert page.sees_future.removeprefix("in ") == facts.sees_future
    assert page.pointwise == (facts.statistics_over == "none")
    assert page.invariances["data + c"] <= facts.centers
    keeps = bool(page.kept) and norm != "tapernorm"  # whose averages go with the batches, in evaluation as in training
    assert page.differs_in_evaluation == keeps
    assert page.norm.used_in
    lengths = [length for parameter in page.norm.parameters() for length in parameter.shape]
    assert page.learned.count("C") == lengths.count(norm_pages.PICTURE[1])


@pytest.mark.parametrize("norm", NORMS)
def test_a_page_and_the_study_agree_on_invariances(norm: str) -> None:
    """Each measures in its own way; and both agree with the published table (groupnorm, instancenorm: on sequences)."""
    stays = norm_page(part_of(norm)).invariances
    generator = torch.Generator().manual_seed(0)
    w, shift, x, target = (torch.randn(shape, generator=generator, dtype=torch.float64)
                           for shape in ((24, 5), (5,), (6, 7, 5), (6, 7, 24)))  # fmt: skip
    exact = {"eps": 0.0} if "eps" in section_of("norm", norm) else {}
    made = part_of(norm).factory(**exact)(24).double()
    rows = measure_responses(lambda w, x: made(x @ w.T), w, x, shift, target, bound_of(x.dtype))
    found = {row["change"]: row["holds"] for row in rows if row["of"] == "output" and row["change"] in SIX_CHANGES}
    assert found == stays
    marks = " ".join("yes" if holds else "no" for holds in stays.values())
    assert marks == PUBLISHED.get(norm, marks)


@pytest.mark.parametrize("norm", FORWARD)
def test_operations_and_bytes_by_hand(norm: str) -> None:
    forward, _ = norm_pages.count_costs(part_of(norm))
    assert (round(forward.operations), round(forward.traffic)) == FORWARD[norm]


def test_a_product_of_matrices_has_all_its_operations() -> None:
    """Of 16 numbers between the maps: 2·16 down and 2·16 up for each value, beside 4 of RMSNorm, σ and the product."""
    forward, backward = norm_pages.count_costs(part_of("gatedrmsnorm"))
    assert round(forward.operations) == 64 + FORWARD["rmsnorm"][0] + 2
    assert backward.operations > 2 * 64


def test_the_time_here_is_a_ratio_to_layernorm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["norms", "none"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "time here: 0.0" in out and "× layernorm's" in out and "threads=" in out
    assert main(["norms", "none", "--markdown"]) == 0
    assert "time here" not in capsys.readouterr().out


def test_the_page_stands_there_before_the_time_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []

    def measure(part: object) -> Timing:
        shown.append(capsys.readouterr().out)
        return Timing(ms=1.0, ratio=1.0, implementation="fused")

    monkeypatch.setattr("normbench.commands.norm_pages.measure_time", measure)
    assert main(["norms", "none"]) == 0
    assert "What it is good for" in shown[0] and "time here" in capsys.readouterr().out


# ---- placements


@pytest.mark.parametrize("placement", FLOWS)
def test_a_flow_is_what_the_placement_computes(placement: str) -> None:
    page = placement_page(resolve("placement", section_of("placement", placement)))
    assert page.flow == FLOWS[placement]
    # whose norms are drawn in more lines, or twice
    several = {"siamese": 3, "resi_dual": 1, "hyper_connections": 2, "mhc": 2, "attnres": 2}
    assert page.norms == several.get(placement, FLOWS[placement].splitlines()[0].count("N"))


def test_what_several_streams_begin_and_end_with() -> None:
    drawn = {}
    for name in ("resi_dual", "siamese", "x0"):
        page = placement_page(resolve("placement", section_of("placement", name)))
        drawn[name] = page.start, page.end, page.closing_norms
    assert drawn == {
        "resi_dual": ("", "x ─────⊕─→ output\nr ─ N ─┘", 1),
        "siamese": ("", "x ─ N ─⊕─→ output\ny ─ N ─┘", 2),
        "x0": ("x  ─ ·α ─⊕─→ x\nx₀ ─ ·α ─┘", "x ─→ output", 0),
    }


def test_a_flow_of_several_sides() -> None:
    x = Flow()
    assert str(Step("N")(Step("f")(x) + Step("g")(Step("h")(x)) + 2 * x)) == (
        "x ─┬─ g ─ h ─⊕─ N ─→ x\n   ├─ f ─────┤\n   └─ ·α ────┘".replace("g ─ h", "h ─ g")
    )


# ---- what does not go together


@pytest.mark.parametrize("group", ["norm", "placement"])
def test_a_page_names_what_is_refused_and_nothing_else(group: str) -> None:
    """Against `refusal`, over all options, with what does not matter for the rule left as it fits."""
    classes = {each: {name: resolve(each, section_of(each, name)).made for name in options(each)}
               for each in ("placement", "model", "data")}  # fmt: skip
    classes["model"] = {name: made for name, made in classes["model"].items() if not made.hosted}
    free = NormFacts("none", centers=False)
    for name in NORMS if group == "norm" else PLACEMENTS:
        mine = build.norm_facts(Recipe({"norm": section_of("norm", name)})) if group == "norm" else classes[group][name]
        told = {(one.group, option) for one in norm_pages.find_refusals(group, mine) for option in one.options}
        found, goes = set(), set()
        for (model, of_model), (data, of_data) in product(classes["model"].items(), classes["data"].items()):
            fitting = classes["placement"]["pre" if of_model.residual else "plain"]
            own = (mine, fitting) if group == "norm" else (free, mine)
            rule = refusal(*own, of_model, of_data)
            if rule and group in rule.between:
                found |= {("model", model) if "model" in rule.between else ("data", data)}
            elif not rule:
                goes |= {("model", model)}
        assert found <= told and not told & goes - found, name  # a model may be refused for its only data first


@pytest.mark.parametrize(("command", "near"), [("norms layernrm", "layernorm"), ("placements before", "pre")])
def test_an_unknown_name_is_refused(command: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert near in refused(command.split(), capsys)


def test_names_are_completed() -> None:
    assert list(answers("norms", "")) == list(options("norm")) and list(answers("placements", "p")) == [
        name for name in PLACEMENTS if name.startswith("p")
    ]
