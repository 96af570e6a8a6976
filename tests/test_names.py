"""Names that people use: other names of options, runs named by a folder or the beginning of a name, lists of names."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_run
from support import refused
from test_completion import answers

from normbench.cli import cli, main
from normbench.commands.study import study
from normbench.config.compose import read
from normbench.config.groups import find_meant, options, other_names, spell
from normbench.config.sections import GROUPS, SWEEP_GROUPS
from normbench.errors import UsageError
from normbench.runs.finding import find_parent, find_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- options


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("norm=ln", "layernorm"),
        ("norm=layer_norm", "layernorm"),
        ("norm=LayerNorm", "layernorm"),
        ("norm=rms", "rmsnorm"),
        ("norm=rmsn", "rmsnorm"),
        ("norm=rms-norm", "rmsnorm"),
        ("norm=bn", "batchnorm"),
        ("norm=batch_norm", "batchnorm"),
        ("norm=gn", "groupnorm"),
        ("norm=in", "instancenorm"),
        ("norm=identity", "none"),
        ("norm@qk=rms", "rmsnorm"),
        ("placement=prenorm", "pre"),
        ("placement=pre-ln", "pre"),
        ("placement=PreNorm", "pre"),
        ("placement=postnorm", "post (N(x + f(x))), or post_inside (x + N(f(x)), one final N)"),
        ("placement=peri", "sandwich"),
        ("placement=peri_ln", "sandwich"),
        ("placement=deepnorm", "deep"),
        ("optim=AdamW", "adamw"),
        ("schedule=cos", "cosine"),
        ("model=vit", "vit_tiny"),
        ("model=gpt", "gpt2 (Transformer, 12 blocks"),
        ("data=imagenet", "imagenet1k"),
        ("init=he", "kaiming"),
        ("scheme=llama3", "llama"),
        ("logger=tb", "tensorboard"),
    ],
)
def test_another_name_of_an_option_is_understood(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"did you mean {meant}" in refused(["train", word], capsys)
    with pytest.raises(UsageError) as error:  # from Python too
        read([word])
    assert f"did you mean {meant}" in str(error.value)


@pytest.mark.parametrize("group", [*GROUPS, *SWEEP_GROUPS, "study"])
def test_other_names_lead_somewhere_and_hide_no_option(group: str) -> None:
    spelled = {spell(option) for option in options(group)}
    for option, listed in other_names(group).items():
        for name in listed.split(", "):
            assert spell(name) not in spelled, "an option has this name already"
            assert option in find_meant(group, name)
    for option in options(group):
        assert find_meant(group, option) == [option]


def test_an_option_of_ones_own_may_have_other_names(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/norm").mkdir(parents=True)
    (here / "mine/norm/mine.yaml").write_text("# By the mean of |x|\n# also: l1\n_target_: torch.nn.RMSNorm\n")
    assert "did you mean mine?" in refused(["train", "--config-dir", "mine", "norm=L1"], capsys)


@pytest.mark.parametrize(("words", "name"), [("norms ln", "layernorm"), ("placements peri", "sandwich")])
def test_a_page_is_found_by_another_name(words: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--markdown"]) == 0
    by_other_name = capsys.readouterr().out
    assert main([words.split()[0], name, "--markdown"]) == 0
    assert by_other_name == capsys.readouterr().out


def test_other_names_are_completed_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(answers("placements", "peri")) == ["peri", "peri_ln", "peri_norm"]
    assert main(["list", "placement"]) == 0
    assert "peri, peri_ln, peri_norm" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "there"),
    [
        ("nosuch", [*cli.commands]),
        ("help nosuch", [*cli.commands]),
        ("study nosuch", [*study.commands]),
        ("norms nosuch", [*options("norm")]),
        ("placements nosuch", [*options("placement")]),
        ("schemes nosuch", [*options("scheme")]),
        ("list nosuch", [*GROUPS]),
        ("completion nosuch", ["bash", "zsh", "fish"]),
        ("check norm=nosuch", [*options("norm")]),
        ("train experiment=nosuch", [*options("experiment")]),
        ("sweep launcher=nosuch norm=dyt,rmsnorm", [*options("launcher")]),
    ],
)
def test_a_command_that_takes_a_name_says_what_there_is(
    words: str, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(words.split(), capsys)
    assert all(name in said for name in there)


# ---- runs


def test_a_run_is_named_by_its_folder_or_by_the_beginning_of_its_name(here: Path) -> None:
    one = make_run(here / "outputs/tour", name="layernorm-pre-s0-00000001")
    assert find_run(one) == find_run(here / "outputs/tour") == find_run(here / "outputs") == one
    other = make_run(here / "outputs/tour", name="layernorm-post-s0-00000002")
    make_run(here / "outputs/tour", name="layernorm-pre-s0-00000001.old1")  # set aside
    assert find_run("outputs/tour/layernorm-pre") == Path("outputs/tour") / one.name
    assert find_run("outputs/tour/layernorm-po") == Path("outputs/tour") / other.name
    assert find_run("outputs/nowhere") == Path("outputs/nowhere")
    for several in ("outputs", "outputs/tour", "outputs/tour/layernorm"):
        with pytest.raises(UsageError) as error:
            find_run(several)
        assert one.name in str(error.value) and other.name in str(error.value) and "old1" not in str(error.value)


def test_an_extension_beside_its_parent_does_not_take_its_place(here: Path) -> None:
    """The same command goes on with the extension, whose directory begins as its parent's does."""
    folder = here / "outputs/longer"
    parent = make_run(folder, name="layernorm-pre-s0-00000001")
    extended = [{"steps": 100, "eval_batches": None}]
    make_run(folder, name="layernorm-pre-s0-00000002", steps=200, session={"extended": extended}, status="interrupted")
    assert find_parent(folder) == find_parent(folder / "layernorm") == find_parent(parent) == parent
    make_run(folder, name="layernorm-pre-s1-00000003")
    with pytest.raises(UsageError, match="stands for 2 runs"):
        find_parent(folder)


@pytest.mark.parametrize("words", ["sample {}", "fold {}", "swap {} norm=rmsnorm", "train extend={}"])
def test_each_command_that_takes_one_run_lists_them_where_there_are_several(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["layernorm-pre-s0-00000001", "layernorm-pre-s1-00000002"]
    for name in names:
        make_run(here / "outputs/tour", name=name)
    for given in ("outputs/tour", "outputs/tour/layernorm"):
        said = refused(words.format(given).split(), capsys)
        assert all(f"outputs/tour/{name}" in said for name in names)
