"""Rules by place: another norm or placement for some places of a model, from the word to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import IMAGES, REPOSITORY, TEXT, TRANSLATIONS, random_batch
from test_runs import TINY, losses, summary_of, train
from torch import nn

from normbench import load_runs
from normbench.build import lay_out, make_model
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.recipe import Recipe
from normbench.config.rules import WORDS, Rule, best_rule
from normbench.config.trust import foreign_class, needs_trust
from normbench.errors import CombinationRefused, UsageError
from normbench.record.files import read_json
from normbench.runs.plan import prepare
from normbench.sweep.plan import read_grid
from normbench.types import Site, Task

NANO = ["model=nano", "model.depth=8", "model.width=16", "model.heads=2", "model.context=16", "threads=1", "device=cpu"]
LENGTH = ["trainer.steps=3"]


def layers(word: str, depth: int = 8, **site: Any) -> list[int]:
    """Return the blocks that a word of a place fits."""
    rule = Rule("norm", word)
    return [layer for layer in range(depth) if rule.fits(Site("mlp", layer, depth, **site))]


def sections(task: Task, *words: str) -> dict[str, str | None]:
    """Return which section holds at each site with a norm, by its name."""
    tree = read([*NANO, *LENGTH, *words]).tree
    made = lay_out(Recipe(tree), task)
    return {site.name: part.section for site, part in made.norm_parts.items() if part}


# ---- which places a rule is for


def test_words_of_depth_choose_blocks() -> None:
    assert layers("first3") == [0, 1, 2]
    assert layers("last3") == [5, 6, 7]
    assert layers("blocks2-5") == [2, 3, 4, 5]
    assert layers("block3") == [3]
    assert layers("first25pct") == [0, 1]
    assert layers("first25pct", depth=6) == [0, 1]  # of 1.5
    assert layers("last25pct", depth=12) == [9, 10, 11]
    assert not Rule("norm", "first3").fits(Site("final", depth=8))


def test_depth_is_counted_on_each_side_of_an_encoder_decoder() -> None:
    encoder = [Site("mlp", layer, 5, side="encoder", sides=(2, 3)) for layer in range(2)]
    decoder = [Site("mlp", layer, 5, side="decoder", sides=(2, 3)) for layer in range(2, 5)]
    fits = Rule("norm", "first1").fits
    assert [fits(site) for site in (*encoder, *decoder)] == [True, False, True, False, False]
    fits = Rule("norm", "decoder.last1").fits
    assert [fits(site) for site in (*encoder, *decoder)] == [False, False, False, False, True]


def test_the_rule_with_the_most_words_holds_then_the_last() -> None:
    rules = [Rule("norm", place) for place in ("mlp", "first2.mlp", "first3", "last8")]
    best = [best_rule(rules, Site("mlp", layer, 8)) for layer in range(4)]
    assert [rule.place for rule in best if rule] == ["first2.mlp", "first2.mlp", "last8", "last8"]
    assert best_rule(rules[:2], Site("attention", 0, 8)) is None


def test_norms_stand_where_the_rules_say() -> None:
    found = sections(TEXT, "norm@qk=rmsnorm", "norm@first3=layernorm", "norm@mlp.hidden=rmsnorm", "norm@final=none")
    for layer in range(8):
        usual = "norm@first3" if layer < 3 else "norm"
        block = f"block{layer:02d}"
        assert found[f"{block}.attention"] == found[f"{block}.mlp"] == usual
        assert found[f"{block}.attention.q"] == found[f"{block}.attention.k"] == "norm@qk"
        assert found[f"{block}.mlp.hidden"] == "norm@mlp.hidden"
    assert found["final"] == "norm@final"
    assert len(found) == 8 * 5 + 1, "no norm at a place with none of its own, unless a rule names it"


@pytest.mark.parametrize(
    ("model", "task", "rule", "site"),
    [
        ("resnet18", IMAGES, "norm@stem=batchnorm", "stem"),
        ("resnet18", IMAGES, "norm@shortcut=batchnorm", "block02.conv.shortcut"),
        ("cnn_plain", IMAGES, "norm@first1=batchnorm", "block00.conv"),
        ("mlp", IMAGES, "norm@linear.inner=batchnorm", "block00.linear.inner"),
        ("seq2seq", TRANSLATIONS, "norm@decoder.cross=rmsnorm", "block06.cross"),
        ("rnnsearch", TRANSLATIONS, "norm@cell=rmsnorm", "block00.cell.forward_input_r"),
        ("rnn_lm", TEXT, "norm@memory=none", "block01.cell.memory"),
        ("rnn_lm model.cell=gru", TEXT, "norm@cell.input=rmsnorm", "block00.cell.input_candidate"),
    ],
)
def test_every_kind_of_model_has_places(model: str, task: Task, rule: str, site: str) -> None:
    tree = read([*f"model={model}".split(), rule, *LENGTH]).tree
    made = lay_out(Recipe(tree), task)
    found = {each.name: part and part.section for each, part in made.norm_parts.items()}
    key = rule.partition("=")[0]
    assert key in found.values()
    assert found.get(site, key) == key


def test_a_rule_of_placements_makes_mix_ln() -> None:
    """Post in the first quarter, pre after it, with the final norm that pre needs (Li et al. 2025)."""
    tree = read([*NANO, *LENGTH, "placement=pre", "placement@first25pct=post"]).tree
    model, norms = make_model(Recipe(tree), TEXT, 0)
    kinds = [type(block).__name__ for block in model.blocks]  # type: ignore[union-attr]  # a ModuleList
    assert kinds == ["Post"] * 2 + ["Pre"] * 6
    assert "final" in norms


def test_a_norm_by_a_rule_moves_no_other_start() -> None:
    plain, _ = make_model(read([*NANO, *LENGTH]).recipe, TEXT, 0)
    ruled, norms = make_model(read([*NANO, *LENGTH, "norm@qk=rmsnorm", "norm@qk.eps=1e-3"]).recipe, TEXT, 0)
    start = ruled.state_dict()
    assert all(torch.equal(start[key], value) for key, value in plain.state_dict().items())
    assert norms["block00.attention.q"].eps == 1e-3 and norms["block00.mlp"].eps == 1e-5


def test_a_rule_may_refine_another_that_is_given_before_it() -> None:
    found = sections(TEXT, "norm@first3=rmsnorm", "norm@first3.qk=dyt", "norm@first3.qk.alpha0=0.3")
    assert found["block00.attention.q"] == "norm@first3.qk" and found["block00.mlp"] == "norm@first3"
    assert "block03.attention.q" not in found


def test_a_norm_of_another_library_goes_with_rules() -> None:
    """Which is fitted to the features, and cannot be made without memory."""
    for words in (["norm._target_=torch.nn.RMSNorm", "norm@v=rmsnorm"], ["norm@v._target_=torch.nn.RMSNorm"]):
        assert prepare(read([*NANO, *LENGTH, *words])).directory.path


def test_a_sweep_keeps_the_order_of_rules() -> None:
    fixed_first, _ = read_grid(["norm@qk=rmsnorm", "norm@q=dyt,layernorm", "seed=0"])
    assert [word for word in fixed_first[0].words if "@" in word] == ["norm@qk=rmsnorm", "norm@q=dyt"]
    varied_first, _ = read_grid(["norm@q=dyt,layernorm", "norm@qk=rmsnorm", "seed=0"])
    assert [word for word in varied_first[0].words if "@" in word] == ["norm@q=dyt", "norm@qk=rmsnorm"]


def test_own_classes_and_settings_of_a_rule() -> None:
    tree = read([*NANO, *LENGTH, "norm@final._target_=torch.nn.RMSNorm", "norm@final.eps=1e-2"]).tree
    _, norms = make_model(Recipe(tree), TEXT, 0)
    assert isinstance(norms["final"], nn.RMSNorm) and norms["final"].eps == 1e-2


# ---- places that have no norm unless a rule names them


@pytest.mark.parametrize("model", ["nano", "seq2seq", "rnnsearch", "rnn_lm"])
def test_heads_and_logits_are_features_of_their_own(model: str) -> None:
    """A gain for each head multiplies columns of the output map, and one for each class a row of the head."""
    task = TEXT if model in ("nano", "rnn_lm") else TRANSLATIONS
    words = ["norm@logits=scale", "norm@logits.gain0=0.5"]
    if "rnn" not in model:
        words += ["norm@heads=scale", "norm@heads.gain0=3"]
    sizes = [f"model={model}", "model.tied=false", "model.width=16", "model.context=8"]
    sizes += [] if "rnn" in model else ["model.heads=2", "model.depth=2"]
    plain, _ = make_model(read([*sizes, *LENGTH]).recipe, task, 0)
    scaled, norms = make_model(read([*sizes, *LENGTH, *words]).recipe, task, 0)
    batch = random_batch(task)
    gains: dict[str, Any] = {name: norm.weight for name, norm in norms.items() if name.endswith(("heads", "logits"))}
    parts: Any = plain
    with torch.no_grad():
        for name, gain in gains.items():
            gain.add_(torch.randn(gain.shape))
            if name == "logits":
                parts.head.linear.weight.mul_(gain[:, None])
                continue
            block, role, _ = name.split(".")
            out = parts.blocks[int(block.removeprefix("block"))].branches[role].out
            out.weight.mul_(gain.repeat_interleave(8))
    expected = plain.eval()(*batch.arguments)
    torch.testing.assert_close(scaled.eval()(*batch.arguments), expected, rtol=1e-4, atol=1e-5)
    assert len(gains) == {"nano": 3, "seq2seq": 11}.get(model, 1)


# ---- a gain by itself

AFTER_A_BRANCH = ["placement=post_inside", "norm=none", "norm@out=scale", "norm@out.shape=scalar"]


@pytest.mark.parametrize(
    ("placement", "composed"),
    [
        (
            ["placement=layerscale", "placement.start=1e-5"],
            ["placement=sandwich", "norm@out=scale", "norm@out.gain0=1e-5"],
        ),
        (["placement=skipinit", "norm=none", "placement.start=0.3"], [*AFTER_A_BRANCH, "norm@out.gain0=0.3"]),
        (
            ["placement=rezero", "norm=none", "placement.start=0.3"],
            [*AFTER_A_BRANCH, "norm@out.gain0=0.3", "norm@out.shared=true"],
        ),
    ],
)
def test_a_scale_after_each_branch_is_a_placement_that_there_is(placement: list[str], composed: list[str]) -> None:
    """The same output to the bit, and gradients of what is learned in both; the final norm is the same."""
    words = [*NANO, *LENGTH, "model.depth=3"]
    one, _ = make_model(read([*words, *placement]).recipe, TEXT, 0)
    other, _ = make_model(read([*words, *composed]).recipe, TEXT, 0)
    batch = random_batch(TEXT)
    gradients: list[list[torch.Tensor]] = []
    for model in (one, other):
        TEXT.loss(model(*batch.arguments), batch.targets).backward()
        found = dict(model.named_parameters())
        gains = [
            found[name].grad for name in found if "scales" in name or (".out.weight" in name and "branches" not in name)
        ]
        gradients.append([gradient for gradient in gains if gradient is not None])
    assert torch.equal(one(*batch.arguments), other(*batch.arguments))
    assert len(gradients[0]) == (3 if "placement=rezero" in placement else 6)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_a_gain_at_its_default_changes_no_run() -> None:
    words = [*NANO, *LENGTH, "norm@qk=rmsnorm"]
    paths = [prepare(read([*words, *more])).directory.path for more in ([], ["norm.gain0=1"], ["norm@qk.gain0=1"])]
    assert len(set(paths)) == 1
    assert prepare(read([*words, "norm@qk.gain0=1.2"])).directory.path != paths[0]


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_a_gain_is_a_factor_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["norm.gain0=0.5,1", "seed=0,1", *TINY, "trainer.steps=2", "launcher=local"]
    assert main(["sweep", *words]) == 0
    answer = read_json(tmp_path / "outputs/sweep/report/answer.json")
    assert answer is not None
    assert [factor["values"] for factor in answer["question"]["varied"]] == [[0.5, 1.0]]


def test_shared_gains_of_other_widths_are_refused() -> None:
    tree = read(["model=cnn", *LENGTH, "norm=scale", "norm.shared=true"]).tree
    with pytest.raises(UsageError, match=r"norm.shared=true finds norms of .* features in block0\d: set norm.shape"):
        make_model(Recipe(tree), IMAGES, 0)


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["norm@qkk=rmsnorm"], r"norm@qkk fits no place of this model: did you mean \w+\? "),
        (["norm@cross=rmsnorm"], r"norm@cross fits no place of this model: .*attention, .*mlp"),
        (["norm@qk=rmsnrm"], r"norm@qk=rmsnrm is unknown: did you mean rmsnorm\?"),
        (["norm@qk.eps=1e-6"], r"norm@qk.eps is a setting of norm@qk, which is not given: add norm@qk=NORM"),
        (["norm@qk=rmsnorm", "norm@qk.epsilon=1"], r"norm@qk.epsilon is not a setting of .*did you mean eps\?"),
        (["norm@qk=rmsnorm", "norm@qk.eps=-1"], r"norm@qk.eps=-1 is not allowed"),
        (["norm@=rmsnorm"], r"norm@ is not a rule for places"),
        (["model@qk=nano"], r"model@qk is not a rule for places"),
        (["norm@mlp=dyt", "placement=parallel"], r"norm@mlp fits no place of this model"),
        (["norm@atention.q=rmsnorm"], r"norm@atention.q fits no place of this model: did you mean attention\?"),
        (
            ["weights@qk=unit"],
            r"weights@qk fits no place of this model: a place is words joined by dots, here embedding",
        ),
        (["norm@qk=rmsnorm,none"], r"norm@qk=rmsnorm,none gives several values"),
        (["~norm@qk"], r"~norm@qk takes a rule back"),
        (["norm@first1=dyt", "norm@first4=rmsnorm"], r"norm@first1 holds nowhere, since norm@first4 wins"),
        (
            ["norm@qk=rmsnorm", "norm@qkv=dyt"],
            r"norm@qk holds nowhere, since norm@qkv wins at its places: leave it out",
        ),
        (["placement@first2=post", "placement@first25pct=pre"], r"placement@first2 holds nowhere"),
        (["weights@mlp=unit", "weights@first8=spectral"], r"weights@mlp holds nowhere, since weights@first8 wins"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        prepare(read([*NANO, *LENGTH, *words]))


def test_what_is_refused_everywhere_is_refused_at_a_place() -> None:
    with pytest.raises(CombinationRefused, match="norm=layernorm norm@qk=instancenorm with data=pydocs is refused"):
        prepare(read([*NANO, *LENGTH, "norm@qk=instancenorm"]))
    with pytest.raises(CombinationRefused, match="placement@first1=parallel with model=cnn is refused"):
        prepare(read(["model=cnn", *LENGTH, "placement@first1=parallel"]))


def test_a_class_of_somebody_else_needs_trust_at_a_place_too() -> None:
    tree = read([*NANO, *LENGTH, "norm@qk=rmsnorm"]).tree
    assert foreign_class(tree) == ""
    tree["at"]["norm@qk"]["_target_"] = "os.system"
    assert foreign_class(tree) == "norm@qk._target_=os.system"
    assert not needs_trust("norm@qk=rmsnorm") and not needs_trust("norm@mlp.hidden.eps=1e-3")
    for name in ("norm", "model", "foo", "foo@qk"):  # which would hide the class of a section
        hidden = {**tree, "norm": {"_target_": "mine.Norm"}, "at": {name: {"_target_": "normbench.norms.RMSNorm"}}}
        with pytest.raises(UsageError, match="is not a rule for places"):
            foreign_class(hidden)
    assert needs_trust("norm@qk._target_=mine.Norm") and needs_trust("norm@qk=../mine")
    assert not needs_trust("sweep.tie=null") and needs_trust("sweep.tie=norm._target_=mine.A,mine.B;seed=0,1")


# ---- runs


@pytest.mark.slow
def test_a_run_is_named_by_its_rules_and_goes_on_with_them(tmp_path: Path) -> None:
    rules = ["norm@qk=rmsnorm", "placement@first1=post"]
    run = train(tmp_path, *TINY, "trainer.steps=4", *rules)
    assert run.name.startswith("layernorm-pre-rmsnorm@qk-post@first1-s0-")
    plain = train(tmp_path, *TINY, "trainer.steps=4", "norm.noise=0.1")
    assert plain.name.startswith("layernorm-pre-s0-") and "\nat:" not in (plain / "config.yaml").read_text()
    longer = train(tmp_path, f"extend={run}", "trainer.steps=6")
    assert longer.name.startswith("layernorm-pre-rmsnorm@qk-post@first1-s0-")
    assert losses(longer)[: len(losses(run))] == losses(run)
    assert summary_of(run)["choices"]["norm@qk"] == "rmsnorm"
    table = load_runs(tmp_path).set_index("run")
    assert [*table["norm@qk"].dropna()] == ["rmsnorm"] * 2
    assert sorted(table["norm.noise"]) == [0, 0, 0.1], "the default where a run does not mention it"


def test_the_order_of_rules_is_part_of_a_run() -> None:
    words = ["norm@first2=none", "norm@mlp=rmsnorm"]
    one, other = (prepare(read([*NANO, *LENGTH, *order])) for order in (words, words[::-1]))
    assert one.directory.path != other.directory.path


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_rules_are_factors_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["norm@qk=none,rmsnorm", "norm@v=none,rmsnorm", "seed=0,1", *TINY, "trainer.steps=4", "launcher=local"]
    assert main(["sweep", *words]) == 0
    answer = read_json(tmp_path / "outputs/sweep/report/answer.json")
    assert answer is not None
    varied = {factor["key"]: factor["values"] for factor in answer["question"]["varied"]}
    assert varied == {"norm@qk": ["none", "rmsnorm"], "norm@v": ["none", "rmsnorm"]}
    assert len(answer["arms"]) == 4


# ---- pages


def test_sites_are_shown_with_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--sites", *NANO, "norm@qk=rmsnorm", "placement@first25pct=post"]) == 0
    page = capsys.readouterr().out
    lines = [line.split() for line in page.splitlines()]
    assert ["block00", "to", "block01:"] in lines and ["block02", "to", "block07:"] in lines
    assert ["attention.q", "rmsnorm,", "by", "norm@qk"] in lines
    assert ["placement", "post,", "by", "placement@first25pct"] in lines
    assert "x ─┬─ attention (q, k: rmsnorm) ─⊕─ layernorm ─┬─ mlp ─⊕─ layernorm ─→ x" in page
    assert "x ─┬─ layernorm ─ attention (q, k: rmsnorm) ─⊕─┬─ layernorm ─ mlp ─⊕─→ x" in page
    assert main(["show", *NANO, "norm@qk=rmsnorm"]) == 0
    assert "norm@qk.eps=1e-05" in capsys.readouterr().out


def test_every_word_of_a_place_is_listed_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "places"]) == 0
    listed = capsys.readouterr().out
    page = (REPOSITORY / "docs/places.md").read_text("utf-8")
    for word in WORDS:
        assert f"\n  {word} " in listed
        assert f"`{word}`" in page
