"""Settings: types, bounds and documentation, read from annotations; every configuration in conf/ keeps them."""

from __future__ import annotations

import copy
import math
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from omegaconf import OmegaConf

from normbench.config.compose import (
    compose,
    in_hydra_grammar,
    leave_out_defaults,
    read,
    read_each,
    resolve,
    value_of,
)
from normbench.config.groups import NOTES, chosen_options, config_directory, options, read_yaml, section_of
from normbench.config.schema import KEYS, UNHASHED_KEYS, check_config, list_unwritten, section_settings
from normbench.config.sections import CLASS_SECTIONS, GROUPS, LOGGER, SWEEP_GROUPS
from normbench.config.signatures import import_target, settings_in_source, settings_of_class
from normbench.errors import UsageError
from normbench.settings import Setting, either, flat, key_of, nearest, setting_from, show

OPTIONS = [(group, option) for group in (*GROUPS, *SWEEP_GROUPS) for option in options(group)]

# Every option in some row: an option of each group at a time, and the experiments by themselves.
CHOSEN = {group: list(options(group)) for group in GROUPS if group != "experiment"}
ROWS = [
    tuple(f"{group}={names[row % len(names)]}" for group, names in CHOSEN.items())
    for row in range(max(map(len, CHOSEN.values())))
] + [(f"experiment={name}",) for name in options("experiment")]


@cache
def composed(words: tuple[str, ...]) -> dict[str, Any]:
    """The resolved tree, unchecked: its parts may be refused together."""
    return resolve(compose(words)[0])


@cache
def all_settings() -> dict[str, Setting]:
    """Every key that an option of conf/ sets, with what it may hold."""
    found = dict(KEYS)
    for words in ROWS:
        for section in CLASS_SECTIONS:
            values = composed(words)[section]
            known = section_settings(section, values) or {}
            found |= {f"{section}.{name}": known[name] for name in values if not name.startswith("_")}
    return found


@pytest.fixture
def tree() -> dict[str, Any]:
    """The default configuration, free to be changed."""
    return copy.deepcopy(composed(()))


# ---- one setting

WHOLE, NUMBER, TEXT, FLAG = (setting_from(kind) for kind in (int, float, str, bool))
TWO = setting_from(Annotated[list[float], Setting(length=2, low=0, below=1)])
COUNTS = setting_from(Annotated[list[int], Setting(low=1)])
AUTO = setting_from(Annotated[int | Literal["auto"], Setting(low=1, high=8)])


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        (WHOLE, 1e3, 1000),  # 1e3 is how people write a thousand
        (NUMBER, 3, 3.0),
        (TEXT, 7, "7"),  # a folder may be named 7
        (FLAG, True, True),
        (AUTO, "auto", "auto"),
        (TWO, [0, 0.5], [0.0, 0.5]),
    ],
)
def test_a_value_takes_the_type_of_its_setting(setting: Setting, value: Any, expected: Any) -> None:
    result = setting.check("x", value)
    assert (result, repr(result)) == (expected, repr(expected))


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        (WHOLE, [True, 1.5, "1", None, [1], {"a": 1}]),  # Python takes True for 1
        (NUMBER, [False, 10**400, math.nan, math.inf]),  # no float holds the second
        (FLAG, [1, "yes"]),
        (setting_from(Literal["a", "b"]), ["c"]),
        (COUNTS, [[], [1, 0], [1, "a"], 1]),
        (TWO, [[0.5], [0.5, 1]]),
        (AUTO, [0, 9, "other"]),
        (setting_from(Annotated[float, Setting(above=1, below=3)]), [1, 3]),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(setting: Setting, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=r"^a\.b=.* is not allowed: use [^\n]+$"):
            setting.check("a.b", value)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Annotated[int, Setting("", "steps", low=1, high=1000)], "an integer from 1 to 1,000 (steps)"),
        (Annotated[float, Setting(low=0, below=1)], "a number from 0 to below 1"),
        (Annotated[float, Setting(above=0, high=1e3)], "a number above 0 up to 1,000"),
        (Literal["a", "b", "c"], "a, b or c"),
        (Annotated[int | Literal["auto"], Setting(low=1, high=8)], "auto or an integer from 1 to 8"),
        (Annotated[list[float], Setting(length=2, low=0, below=1)], "a list of 2 numbers from 0 to below 1"),
        (str | None, "text or null"),
        (Path, ""),
    ],
)
def test_what_is_allowed_is_said_in_words(annotation: Any, words: str) -> None:
    assert setting_from(annotation).allowed == words


def test_values_lists_and_likenesses_in_words() -> None:
    values = {"null": None, "true": True, "1e-05": 1e-5, "2": 2.0, "[1,null]": [1, None]}
    assert {text: show(value) for text, value in values.items()} == {text: text for text in values}
    joined = [either(words) for words in ("a", "ab", "abc", ["one a", "b"])]
    assert joined == ["a", "a or b", "a, b or c", "one a, or b"]
    assert nearest("rmsnrm", ["prmsnorm", "rmsnorm", "dyt"]) == "did you mean rmsnorm? "
    assert nearest("xyz", ["rmsnorm"]) == ""


# ---- settings of a class, read from its source

SOURCE = """
from __future__ import annotations
import no_such_module
from dataclasses import dataclass
from typing import Annotated, Literal
from normbench.settings import Setting
from .shared import Share, Base

class Norm(Base):
    def __init__(self, num_features: int, *, channel_dim=-1, site=None, share: Share, kind: Literal["a"] = "a",
                 odd: no_such_module.Thing = None, **more):
        super().__init__(**more)

@dataclass
class Start:
    std: float
    gain: Share = 1.0

def make(*, seed: int, size: int = 3, **more) -> Norm: ...
def anything(**more): ...
"""
SHARED = """
from typing import Annotated
from normbench.settings import Setting
Share = Annotated[float, Setting("a share", low=0, high=1)]
class Base:
    def __init__(self, *, eps: float = 1e-5, share: int = 3): ...
"""


def test_settings_are_read_without_importing_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unread").mkdir()
    (tmp_path / "unread" / "__init__.py").write_text("from unread.parts import Norm\nraise ImportError")
    (tmp_path / "unread" / "parts.py").write_text(SOURCE)
    (tmp_path / "unread" / "shared.py").write_text(SHARED)
    monkeypatch.syspath_prepend(tmp_path)
    share = Setting("a share", low=0, high=1, types=(float,))
    norm = settings_in_source("unread.Norm")
    assert norm is not None and list(norm) == ["eps", "share", "kind", "odd"]
    assert norm["share"] == Setting("a share", low=0, high=1, types=(float,), required=True)
    assert (norm["kind"].choices, norm["kind"].default, norm["odd"]) == (("a",), "a", Setting(default=None))
    gain = replace(share, default=1.0)
    assert settings_in_source("unread.parts.Start") == {"std": Setting(types=(float,), required=True), "gain": gain}
    assert list(settings_in_source("unread.parts.make") or ()) == ["eps", "share", "kind", "odd", "size"]
    assert [settings_in_source(f"unread.parts.{name}") for name in ("anything", "missing")] == [None, None]
    assert settings_in_source("no_such.Thing") is settings_in_source("") is None
    assert "unread" not in sys.modules


def targets_of_conf() -> list[str]:
    """Return every class or function that a YAML of ours names."""
    texts = [path.read_text("utf-8") for path in config_directory().rglob("*.yaml")]
    return sorted({found for text in texts for found in re.findall(r"^ *_target_: ([\w.]+)$", text, re.MULTILINE)})


@pytest.mark.parametrize("target", [*targets_of_conf(), "torch.nn.GroupNorm", "torch.nn.RMSNorm", "torch.nn.Identity"])
def test_the_source_of_a_class_says_what_the_imported_class_does(target: str) -> None:
    in_source = settings_in_source(target)
    assert in_source == settings_of_class(import_target(target))
    assert in_source is None or not any(setting.unread for setting in in_source.values())


# ---- the table of keys


@pytest.mark.slow
def test_every_key_of_conf_says_in_one_line_what_it_is_and_every_number_has_bounds() -> None:
    for path, setting in all_settings().items():
        assert re.fullmatch(r"\S.{3,90}\S", setting.doc), path
        assert setting.types, path
        if {int, float} & {*setting.types, *setting.items}:
            assert max(setting.low, setting.above) > -math.inf, path
            assert min(setting.high, setting.below) < math.inf or setting.items, path
    not_in_conf = {"data.tokenizer"}  # a path, which only the command line gives
    assert not_in_conf <= {f"data.{name}" for name in section_settings("data", composed(())["data"]) or {}}
    assert set(UNHASHED_KEYS) - {LOGGER} <= set(all_settings()) | not_in_conf
    assert set(CLASS_SECTIONS) | set(NOTES) <= set(GROUPS)


# ---- a whole configuration


def test_values_are_the_same_however_they_are_written(tree: dict[str, Any]) -> None:
    tree["trainer"]["steps"], tree["optim"]["lr"] = 1e3, 1
    before = copy.deepcopy(tree)
    result, closed = check_config(tree)
    assert (repr(result["trainer"]["steps"]), repr(result["optim"]["lr"])) == ("1000", "1.0")
    assert tree == before
    assert check_config(result) == (result, closed)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"trainer.steps": None, "trainer.epochs": None}, "trainer.steps and trainer.epochs are both null: set one"),
        ({"model.heads": 3}, "model.heads=3 does not divide model.width=128: set model.heads to one of 1, 2, 4, 8"),
        ({"norm.groups": 3}, "norm.groups=3 does not divide model.width=128"),
        ({"data.context": 32}, "data.context=32 is not model.context=64: set model.context alone"),
        ({"device": "tpu"}, "device=tpu is unknown: use auto, cpu, cuda, cuda:N or mps"),
        ({"name": "x" * 101}, "cannot name a folder"),
        ({"norm": None}, "norm=null is not allowed: it is a section"),
        ({"trainer": 3}, "trainer=3 is not allowed: it is a section, set its keys"),
        ({"trainer.stepz": 3}, "trainer.stepz is not a setting of trainer: did you mean steps?"),
        ({"norm.epz": 3}, "norm.epz is not a setting of normbench.norms.LayerNorm: did you mean eps?"),
        ({"foo": 3}, "foo is not a setting of normbench train: allowed are trainer, probes, name"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_together_is_refused(
    changes: dict[str, Any], complaint: str, tree: dict[str, Any]
) -> None:
    for path, value in changes.items():
        section, _, name = path.rpartition(".")
        (tree[section] if section else tree)[name] = value
    if "norm.groups" in changes:
        tree["norm"]["_target_"] = "normbench.norms.GroupNorm"
        del tree["norm"]["bias"]
    with pytest.raises(UsageError, match=re.escape(complaint)):
        check_config(tree)


def test_settings_of_a_users_class_are_its_own(tree: dict[str, Any]) -> None:
    """All but the learning rate, which the schedule multiplies."""
    tree["model"] = {"_target_": "own.Model", "blocks": 3, "width": [5, 7], "heads": 3, "context": "all"}
    tree["norm"] |= {"_target_": "own.Norm", "eps": -1, "groups": 0.5}
    tree["optim"] = {"_target_": "own.Optimizer", "betas": 3, "lr": 1}
    found, _ = check_config(tree)
    assert (found["model"], found["norm"]) == (tree["model"], tree["norm"])
    assert repr(found["optim"]["lr"]) == "1.0"
    tree["optim"]["lr"] = 0
    with pytest.raises(UsageError, match=r"^optim\.lr=0 is not allowed"):
        check_config(tree)


def test_a_replaced_class_keeps_what_it_shares_with_the_one_before() -> None:
    """It may be named behind its settings."""
    config = read(["optim.alpha=0.9", "optim._target_=torch.optim.RMSprop", "model.context=32"])
    assert config.tree["optim"] == {"_target_": "torch.optim.RMSprop", "_partial_": True, "lr": 1e-3, "alpha": 0.9}
    assert config.tree["data"]["context"] == 32
    assert config.overridden("optim.alpha") and not config.overridden("optim.lr")


@pytest.mark.parametrize("group", CLASS_SECTIONS)
def test_what_the_yaml_of_an_option_leaves_out_is_left_out_at_its_default(group: str, tree: dict[str, Any]) -> None:
    """So that a run has the same name and hash whether it is written out or not, whatever the option."""
    for option in options(group):
        section = section_of(group, option)
        settings = section_settings(group, section) or {}
        defaults = {name: setting.default for name, setting in settings.items() if name not in section}
        if section["_target_"].startswith("normbench."):
            assert ... not in defaults.values(), f"a default of {group}={option} cannot be read"
            tree[group] = {**section, **defaults}
            leave_out_defaults(tree, {group: option}, [])
            assert tree[group] == section


@pytest.mark.parametrize(
    ("words", "default"),
    [
        ("model=resnet18", "model.activation_at=branch"),
        ("model=resnet18", "model.layout=auto"),
        ("model=nano", "model.base_head=null"),
        ("weights=scaled_standardized", "weights.scale=1"),
        ("norm@qk=rmsnorm", "norm@qk.noise=0"),
        ("data=wikitext2", "data.streaming=false"),
    ],
)
def test_a_default_that_is_written_out_makes_no_other_run(words: str, default: str) -> None:
    without, written = read_each([words.split(), [*words.split(), default]])
    assert (written.tree, written.choices) == (without.tree, without.choices)


def test_a_norm_in_another_library_s_model_is_not_said_to_have_the_default_of_what_it_takes_from_there() -> None:
    words = ["model=hf", "norm=layernorm", "norm@first1=rmsnorm"]
    for how, expected in (("own", set[str]()), ("norm", {"norm.eps", "at.norm@first1.eps"})):
        config = flat(read([*words, f"model.norm_settings={how}"]).tree)
        unwritten = list_unwritten(config)
        assert {"norm.noise", "at.norm@first1.noise"} <= unwritten.keys()
        assert {path for path in {**config, **unwritten} if path.endswith(".eps") and "norm" in path} == expected


@pytest.mark.slow
def test_each_of_many_configurations_is_as_if_it_were_the_only_one() -> None:
    points = [["norm=dyt", f"seed={seed}", f"optim.lr={lr}"] for seed in (1, 2) for lr in (1e-3, 1e-2)]
    points += [["norm=dyt", "seed=1"], ["norm=dyt", "~norm.impl"], ["norm=dyt", "seed=1", "+norm.impl=eager"]]
    points += [["trainer={eval_every:7}"], ["trainer={log_every:3}"]]
    assert read_each(points) == [read(words) for words in points]


@pytest.mark.parametrize(
    ("whole", "dotted"),
    [
        ("norm={eps: 1e-3}", "norm.eps=1e-3"),
        ("optim={lr: 0.1234567890123456, betas: [0.9, 0.95]}", "optim.lr=0.1234567890123456 optim.betas=[0.9,0.95]"),
        ("probes={every: 5, tails: true}", "probes.every=5 probes.tails=true"),
        ("schedule={warmup: 0}", "schedule.warmup=0"),
        (
            "logger={mine: {_target_: own.Logger, text: 'it\\'s'}}",
            'logger.mine._target_=own.Logger logger.mine.text="it\'s"',
        ),
        ("model={depth: 2, width: 32}", "model.depth=2 model.width=32"),
        ("norm@qk=rmsnorm norm@qk={eps: 1e-3}", "norm@qk=rmsnorm norm@qk.eps=1e-3"),
        ("norm={_target_: torch.nn.LayerNorm, bias: false}", "norm._target_=torch.nn.LayerNorm norm.bias=false"),
        ("model=hf model.config={num_attention_heads: 2}", "model=hf model.config.num_attention_heads=2"),
        ("model=hf model={config: {rope: {a: [1, '2']}}}", "model=hf model.config.rope.a=[1,'2']"),
        ("model=timm model.kwargs={drop_rate: ${optim.lr}}", "model=timm model.kwargs.drop_rate=${optim.lr}"),
        ("data={_target_: own.Data, more: {path: a}}", "data._target_=own.Data data.more.path=a"),
    ],
)
def test_a_mapping_that_is_given_whole_is_its_dotted_words(whole: str, dotted: str) -> None:
    """Of every open section: the same configuration and the same words, so that the run has the same name."""
    given = re.split(r" (?=[\w.@]+=)", whole)
    one, other = read_each([given, re.split(r" (?=[\w.@]+=)", dotted)])
    assert (one.tree, one.choices) == (other.tree, other.choices)
    assert [key_of(word) for word in one.words] == [key_of(word) for word in other.words]


@pytest.mark.parametrize(
    "text", ["it's", "a\\", "a\\'b", "${seed}", "", "null", "1", "[a", "{a: 1}", "a,b", "é 中", "two\nlines"]
)
def test_text_in_hydras_grammar_is_read_as_it_is(text: str) -> None:
    assert value_of(in_hydra_grammar(text)) == text
    assert value_of(in_hydra_grammar({"a": [text]})) == {"a": [text]}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model.config={a: 1}", "model.config.a is unknown"),
        ("trainer.steps={a: 1}", "trainer.steps.a is unknown"),
        ("norm={eps: sort(3,1)}", "several values stand inside of a mapping"),
        ("norm@qk={eps: 1}", "norm@qk.eps is a setting of norm@qk, which is not given"),
        ("model={base_head: {a: 1}}", 'model.base_head={"a": 1} is not allowed'),
        ("data={nested: {deep: [{_target_: os.getcwd}]}, _target_: own.Data}", "data.nested holds a _target_"),
    ],
)
def test_a_mapping_of_what_there_is_not_is_refused_in_a_sentence(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        read([word])


def test_an_option_of_one_s_own_is_read_again_once_it_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "norm"
    folder.mkdir()
    (folder / ".#mine.yaml").symlink_to("nowhere")  # as Emacs locks a file
    words = [f"hydra.searchpath=[{tmp_path}]", "norm=mine"]
    for eps in (1e-3, 1e-4):
        (folder / "mine.yaml").write_text(f"# Mine\n_target_: normbench.norms.RMSNorm\neps: {eps}\n", "utf-8")
        assert read(words).tree["norm"]["eps"] == eps


# ---- conf/


@pytest.mark.parametrize(
    ("line", "data"),
    [
        ("model=cnn", "digits"),
        ("model=vit_tiny norm=rmsnorm", "digits"),
        ("model=small", "pydocs"),
        ("data=mnist model=cnn", "mnist"),
        ("experiment=smoke", "pydocs"),
        ("experiment=smoke model=cnn", "digits"),
        ("experiment=norms_lm model=cnn", "pydocs"),
        ("experiment=norms_cnn model=resnet20 data=cifar10", "cifar10"),
    ],
)
def test_a_model_has_data_of_its_kind_unless_others_are_chosen(line: str, data: str) -> None:
    """In a run, and on help pages and for the Tab key, which do not ask Hydra."""
    words = line.split()
    noted = read(words).choices.groups
    assert noted | {"scheme": "None", "weights": "plain"} == chosen_options(
        words
    )  # where none is chosen, none is noted
    assert chosen_options(words)["data"] == data


@pytest.mark.parametrize("words", ROWS, ids=" ".join)
def test_every_option_composes_within_the_bounds(words: tuple[str, ...]) -> None:
    check_config(composed(words))


def test_the_groups_are_the_folders_of_conf_and_every_option_has_its_line() -> None:
    no_groups = {"study", "claim"}  # they are commands of their own
    assert {path.name for path in config_directory().iterdir() if path.is_dir()} == {*GROUPS, *SWEEP_GROUPS, *no_groups}
    assert all(re.fullmatch(r"\S.{5,150}\S", options(group)[option]) for group, option in OPTIONS)


@pytest.mark.parametrize("written", ["1e-5", "1.0e-5", "1E-5", "+1e-05", "10e-6", "1.e-5"])
def test_a_yaml_is_read_as_hydra_reads_it(tmp_path: Path, written: str) -> None:
    file = tmp_path / "norm.yaml"
    file.write_text(f"eps: {written}\nname: 1e5x\n")
    theirs = OmegaConf.to_object(OmegaConf.load(file))
    assert read_yaml(file)["eps"] == theirs["eps"] == 1e-5
    assert read_yaml(file)["name"] == theirs["name"] == "1e5x"
