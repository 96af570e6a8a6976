"""The command line: the words that each command takes, its help page, and what a shell completes.

Nothing heavy is imported before it is needed: a command imports what it runs when it is called.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import click

from normbench import __version__
from normbench.commands import (
    CONFIG_DIR,
    FOLDER,
    HELP,
    MULTIRUN,
    SETTINGS,
    TRUST,
    Commands,
    Outlet,
    Word,
    check_words,
    flag,
    later,
    steady,
)
from normbench.commands.study import bench, fold, study
from normbench.config.sections import GROUPS, SWEEP_GROUPS
from normbench.errors import ArgumentError, RunFailure, UsageError, explain, is_disk_full, shorten_words
from normbench.settings import printable
from normbench.stopping import hear_stops, heed_stop, stop_asked

INFO = ("all", "config", "defaults", "defaults-tree", "searchpath")  # what Hydra can tell about a configuration
COMPLETE = "_NORMBENCH_COMPLETE"  # the variable with which a shell's completion script asks


def main(argv: list[str] | None = None) -> int:
    """Return the exit status: 0 done, 1 the machine ended it, 2 the user's mistake, 128 + a signal (130: Ctrl-C)."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # nobody has redirected it in this process
            setattr(sys, name, steady(stream, number))
    Outlet.lost.clear()
    words = sys.argv[1:] if argv is None else argv
    with hear_stops():
        status = run_or_explain(words)
    if Outlet.lost:
        return complain(Outlet.lost[0], status or 1)
    return status


def run_or_explain(words: list[str]) -> int:
    """Run the command that the words name, and say in a sentence why it ends early; return its exit status."""
    try:
        status = run(words)
        sys.stdout.flush()
        return status
    except click.UsageError as error:
        return complain(explain_usage(error), 2, words)
    except ArgumentError as error:
        return complain(error.of_flag, 2, words)
    except UsageError as error:
        return complain(str(error), 2, words)
    except RunFailure as error:
        return complain(str(error), 1, words)
    except KeyboardInterrupt:
        heed_stop()
        return complain("stopped", 128 + (stop_asked() or signal.SIGINT))
    except SystemExit as error:  # of a class of the user's own
        cure = "let it raise an exception instead"
        return complain(f"code that normbench has called ended the process ({explain(error)}): {cure}", 1)
    except OSError as error:
        if error.filename is None:
            raise
        if is_disk_full(error):
            what = f"the disk is full: {error.filename!s:.200} cannot be written ({error.strerror})"
            return complain(f"{what}: make room, then give the same command again", 1, words)
        return complain(f"{error.filename!s:.200} cannot be used ({error.strerror}): give another path", 2, words)


def explain_usage(error: click.UsageError) -> str:
    """Return what click says of a mistake, and where the help page is."""
    message = error.format_message()
    if not error.ctx:
        return f"{message} (see: normbench --help)"
    path = error.ctx.command_path
    if isinstance(error, click.MissingParameter):
        usage = " ".join(error.ctx.command.collect_usage_pieces(error.ctx))
        message = f"{message.rstrip('.')}: give {path} {usage}"
    return f"{message} (see: {path} --help)"


def complain(text: str, status: int, words: Sequence[str] = ()) -> int:
    """Print one line on stderr, with no more than a line of any of the person's words; return the exit status."""
    sys.stdout.flush()
    line = " ".join(text.split())
    print(f"normbench: {printable(shorten_words(line, words))}", file=sys.stderr)
    return status


def run(words: list[str]) -> int:
    """Run the command that the words name; return its exit status."""
    if COMPLETE in os.environ:
        from normbench.commands.completion import SHELLS

        with suppress(Exception):  # nobody who presses Tab wants to read a complaint
            shell = SHELLS[os.environ[COMPLETE].removesuffix("_complete")]
            with redirect_stdout(io.StringIO()):  # a class of the user's own, which is imported, may print
                completions = shell(cli, {}, "normbench", COMPLETE).complete()
            print(completions)
        return 0
    try:
        os.getcwd()
    except FileNotFoundError as error:  # without the name of the folder
        raise UsageError("the current folder is no longer there: go to another one, such as by cd ~") from error
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    try:
        with cli.make_context("normbench", words or ["--help"], terminal_width=width) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as page:
        print(page.format_message())
        return 0


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    subcommand_metavar="COMMAND [GROUP=OPTION]... [KEY=VALUE]... [FLAGS]",
    options_metavar="",
)
@click.version_option(__version__, message="normbench %(version)s")
def cli() -> None:
    """Compare normalization in neural networks.

    \b
    First steps:
      normbench train norm=rmsnorm placement=pre
      normbench sweep experiment=smoke
      normbench tensorboard
      normbench list
      normbench train --help
    """


# ---- the commands


@cli.command(page=later("pages", "train_page"))
@SETTINGS
@flag("dry-run", "Print what would run, with its memory, time and disk, measured on a few steps; leave nothing behind.")
@flag("cfg", "Print the whole configuration and do nothing else.", type=click.Choice(["job"]))
@flag("resolve", "With --cfg: fill in what refers to other keys.")
@flag("info", "Print which files the configuration comes from, and do nothing else.", type=click.Choice(INFO))
@TRUST
@CONFIG_DIR
@MULTIRUN
@HELP
def train(words: tuple[str, ...], dry_run: bool, cfg: str, resolve: bool, info: str, trust: bool) -> int:
    """Train one model and record it, or go on with a stopped run.

    The run is recorded in outputs/NAME/RUN, which normbench tensorboard shows. The same command goes on with a run
    that was stopped.

    \b
    Examples:
      normbench train norm=rmsnorm placement=pre
      normbench train model=cnn data=digits norm=groupnorm norm.groups=8 seed=1
      normbench train norm=layernorm norm@qk=rmsnorm placement@first25pct=post
      normbench train experiment=nanogpt_cpu data.root=PATH trainer.steps=500
    """
    from normbench.config.compose import ask_hydra, read

    if info:
        ask_hydra(words, f"--info={info}")
        return 0
    if resolve:
        ask_hydra(words, "--cfg=job", "--resolve")
        return 0
    if cfg:
        ask_hydra(words, "--cfg=job")
        return 0
    config = read(words)
    from normbench.runs.train import start  # imports torch: after every mistake that the configuration alone shows

    return start(config, dry_run, trust)


@cli.command(page=later("pages", "sweep_page"))
@SETTINGS
@flag("dry-run", "Print the plan: arms, seeds, how many runs are to do, done and failed, and the time they take.")
@flag("watch", "Show how far the sweep of FOLDER is, which another process runs.", metavar="FOLDER", type=FOLDER)
@flag("resume", "Go on with the sweeps of FOLDER; words given here replace theirs.", metavar="FOLDER", type=FOLDER)
@TRUST
@CONFIG_DIR
@MULTIRUN
@HELP
def sweep(words: tuple[str, ...], dry_run: bool, watch: Path | None, resume: Path | None, trust: bool) -> int:
    """Make many runs: resumable, side by side, here or on a cluster.

    Makes a run for each combination of several values, each as normbench train would with these words, in outputs/NAME
    (by default outputs/sweep). The same command again, or --resume, makes only what is missing; runs that were stopped
    go on. Two such commands at once share the work. A run that fails stops no other; the exit status is then 1.

    \b
    Several values, in Hydra's grammar:
      KEY=A,B          each of the values
      KEY=range(0,5)   numbers from 0 to below 5
      GROUP=glob(*)    all options of a group; glob(*,exclude=none) leaves some out
      experiment=NAME  a study: what its YAML has under hydra.sweeper.params

    \b
    Examples:
      normbench sweep norm=layernorm,rmsnorm,dyt placement=pre,post seed=0,1,2
      normbench sweep 'norm=glob(*)' 'seed=range(0,5)' sweep.exclude='norm=batchnorm,placement=parallel' --dry-run
      normbench sweep experiment=smoke
      normbench sweep norm=layernorm,dyt seed=0,1,2 sweep.lr=each
      normbench sweep norm@qk=none,rmsnorm norm@v=none,rmsnorm seed=0,1,2
      normbench sweep norm=batchnorm,groupnorm model=cnn sweep.tie='data.batch_size=2,8,32;optim.lr=0.01,0.04,0.16'
      normbench sweep --watch outputs/sweep
      normbench sweep --resume outputs/sweep 'seed=range(0,8)' sweep.extend=true
    """
    if watch:
        from normbench.sweep.sweep import watch as look_on

        return look_on(watch)
    if {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        raise UsageError("sweep starts processes of its own, one for each run: leave out torchrun, it is train's")
    if not words and not resume:
        raise UsageError("sweep has nothing to vary: give several values, such as norm=layernorm,rmsnorm seed=0,1,2")
    for word in words:
        if word.startswith(("rerun=", "extend=")) and not word.endswith(("=false", "=null")):
            raise UsageError(f"{word} is train's alone: give normbench train the words of the one run")
    if not dry_run and not any("launcher=" in word for word in words):
        from normbench.sweep.launchers import start_server

        start_server()  # loads torch while this process does
    from normbench.commands.report import report_of_sweep
    from normbench.sweep.sweep import resume as go_on
    from normbench.sweep.sweep import sweep as make_runs

    if resume:
        return go_on(resume, words, dry_run, report_of_sweep, trust)
    return make_runs(words, dry_run, report_of_sweep)


@cli.command()
@click.argument("folder", type=FOLDER, default="outputs")
@flag("ledger", "Print the ledger of the one run in FOLDER instead: what silently differs between comparisons.")
def runs(folder: Path, ledger: bool) -> int:
    """List sweeps and runs, how far they are, and the commands that go on with them.

    Lists what is below FOLDER, by default outputs, the newest last: a line for each sweep, and for each run that is
    not part of one. If FOLDER is that of a sweep, it lists the sweep's runs. Then come the commands that go on with
    what has not ended.

    With --ledger, FOLDER is a run, a folder that holds only one, or the beginning of the name of only one; its ledger
    has eps and its place, the order of casts, which implementation ran, what is decayed, threads and more.
    """
    from normbench.commands.runs import show_ledger, show_runs

    return show_ledger(folder) if ledger else show_runs(folder)


@cli.command()
@SETTINGS
@flag("sites", "Show what stands where in the model instead: its blocks drawn, with their placements and norms.")
@CONFIG_DIR
def show(words: tuple[str, ...], sites: bool) -> None:
    """Show the configuration that train would take, key by key.

    \b
    Examples:
      normbench show model=nano norm=rmsnorm
      normbench show --sites model=nano norm@qk=rmsnorm placement@first25pct=post
    """
    page = later("sites", "sites_page") if sites else later("pages", "show_page")
    print_page(page, words)


@cli.command("list")
@click.argument("groups", nargs=-1, metavar="[GROUP]...", type=Word([*GROUPS, *SWEEP_GROUPS, "places", "refusals"]))
def list_options(groups: tuple[str, ...]) -> None:
    """List what there is to choose, and what is refused and why."""
    from normbench.commands.pages import list_page

    print_page(list_page, groups)


NAME = click.argument("name", required=False, shell_complete=later("completion", "complete_names"))
AS_MARKDOWN = "Print Markdown, without the time of this machine, as in docs/{}.md."


@cli.command()
@NAME
@flag("markdown", AS_MARKDOWN.format("norms"))
def norms(name: str | None, markdown: bool) -> None:
    """Describe a norm: formula, what shares a statistic, invariances, cost, use, paper.

    Without NAME it lists them all.
    """
    show_option("norm", name, markdown)


@cli.command()
@NAME
@flag("markdown", AS_MARKDOWN.format("placements"))
def placements(name: str | None, markdown: bool) -> None:
    """Describe a placement: formula, its flow, its gains, use, paper.

    Without NAME it lists them all.
    """
    show_option("placement", name, markdown)


@cli.command()
@NAME
@flag("markdown", "Print Markdown, as in docs/schemes.md.")
def schemes(name: str | None, markdown: bool) -> None:
    """Describe a scheme: its words, and its blocks drawn with their norms.

    Without NAME it lists them all.
    """
    show_option("scheme", name, markdown)


def show_option(group: str, name: str | None, markdown: bool) -> None:
    """Print the page of an option, or list those of its group; in Markdown, the page of one or of all."""
    from normbench.config.groups import check_option, find_meant

    if name:
        meant = find_meant(group, name)
        if len(meant) == 1:
            name = meant[0]
        check_option(group, name)
    if name or markdown:
        module = "scheme_pages" if group == "scheme" else "norm_pages"
        later(module, "tell")(group, name, markdown)
    else:
        print_page(later("pages", "list_page"), [group])


def print_page(write: Callable[..., None], words: Sequence[str]) -> None:
    """Print a page in the width of the terminal, as help pages are."""
    formatter = click.get_current_context().make_formatter()
    write(formatter, words)
    print(formatter.getvalue(), end="")


@cli.command()
@SETTINGS
@CONFIG_DIR
def check(words: tuple[str, ...]) -> int:
    """Check whether a part, your own or ours, does what it must.

    Checks a norm, placement, model or data set: the contract of its kind, and that it trains with everything it can
    meet, on tiny tasks. Give an option, such as norm=mynorm, with settings as normbench train takes them; or a class,
    package.module.Class, of a package that is installed or in the current directory, with KEY=VALUE for settings of its
    own.

    A check passes or fails; where the result is "yes" or "no" it only measures, and neither is wrong. Exit status: 0 if
    nothing failed, 1 if something did.

    \b
    Examples:
      normbench check mypkg.MyNorm eps=1e-6
      normbench check norm=groupnorm norm.groups=2
      normbench check --config-dir myconf norm=mynorm
    """
    from normbench.commands.check import run

    return run(words)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[FOLDER] [FLAGS]", type=click.Path(file_okay=False))
def tensorboard(words: tuple[str, ...]) -> int:
    """Show the runs under outputs, or FOLDER, in TensorBoard.

    Starts the real TensorBoard, which runs until Ctrl-C and takes its own flags, such as --port N. Where arms have
    several seeds, the arms are shown, each as a run of its own, the mean over its seeds; empty the filter of runs to
    see the runs themselves.
    """
    from normbench.commands.tensorboard import serve

    if words and not words[0].startswith("-"):
        return serve(Path(words[0]), words[1:])
    return serve(Path("outputs"), words)


@cli.command()
@click.argument("run", type=click.Path(file_okay=False))
@flag("prompt", "Text to continue or to translate; by default the start of a line.", default="")
@flag("tokens", "How many tokens to write.", type=click.IntRange(1, 10**6), default=200)
@flag("temperature", "Larger is more random; 0: the likeliest token.", type=click.FloatRange(0, 100), default=0.8)
@flag("top-k", "Draw from this many of the likeliest tokens only.", type=click.IntRange(1, 10**7))
@flag("seed", "Seeds the draws.", type=click.IntRange(0, 2**63 - 1), default=0)
@flag("count", "How many examples; by default 60 images, 20 texts or sentences.", type=click.IntRange(1, 10**4))
@flag("out", "Where the page of images goes; by default samples.png in RUN.", type=click.Path())
@flag("which", "Which checkpoint.", type=click.Choice(["last", "best"]), default="last")
@flag("device", "auto, cpu, cuda, cuda:N or mps.", default="auto")
@flag("ema", "Use the average of the weights (of a run with trainer.ema or trainer.swa).")
@TRUST
def sample(run: str, trust: bool, **flags: Any) -> int:
    """Show what a run's model has learned.

    A language model writes text; a translator translates a text or validation sentences; a classifier classifies the
    validation data, its mistakes first (images: on a page, RUN/samples.png). RUN is the directory of a run, a folder
    that holds only one, or the beginning of the name of only one, such as outputs/train/rmsnorm.
    """
    from normbench.config.groups import find_own_classes
    from normbench.studies.sample import sample as show_samples

    if trust:
        find_own_classes()
    return show_samples(run, trust=trust, **flags)


@cli.command()
@SETTINGS
@flag("out", "Write the swapped model to FOLDER, in the format of its library.", metavar="FOLDER", type=FOLDER)
@CONFIG_DIR
@TRUST
def swap(words: tuple[str, ...], out: Path | None, trust: bool) -> int:
    """Swap the norms of a trained model, without training, and say what that does at once.

    MODEL is the directory of a run, or a folder that holds only one; a folder with config.json and weights (as
    save_pretrained or timm write it); or hf:NAME, timm:NAME or torchvision:NAME for weights of the hub. The other
    words are those of normbench train; of a run they choose norms, and all else is as it was trained. It prints
    which norm stands where, and the loss on validation data with the model's own norms, and with those of norm=
    whose γ and β are kept, fresh, or fitted by least squares on a batch to what the old norms made of it; and
    exactly, where LayerNorms become RMSNorms and their mean goes out of the weights that write to the stream.

    \b
    keep=weights|nothing|fit|exact says with which of these --out writes the model; by default weights.

    \b
    Examples:
      normbench swap outputs/train norm=rmsnorm
      normbench swap my_gpt2 norm=rmsnorm keep=exact --out my_gpt2_rms
      normbench swap hf:gpt2 norm=dyt data=wikitext2 data.level=hf data.tokenizer=tokenizer.json
      normbench swap timm:resnet18 norm=own norm@first3=groupnorm data=cifar10
    """
    from normbench.studies.swaps import swap as swap_norms

    return swap_norms(words, out, trust)


MARGIN = "A difference that does not matter, in nats or percentage points: are arms the same within it?"


@cli.command()
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@flag("out", "Where the report goes; by default report in the first FOLDER.", type=FOLDER)
@flag("baseline", "The arm that others are compared with; by default layernorm and pre, or the first.", metavar="ARM")
@flag("target", "Loss, in nats, for comparing the times to reach it; by default where the baseline ends.", type=float)
@flag("margin", MARGIN, type=click.FloatRange(0))
@flag("width", "Width of the figures: column (3.5 inches), page (7), or a number of inches.", default="column")
@flag("metric", "Judge by this logged tag first, such as loss/val_ema or act/stream03/rms; or by best.", metavar="TAG")
@flag("arms", "For TensorBoard: write the mean of each arm's seeds, and a band, to arms beside its runs.")
def report(folders: tuple[Path, ...], **flags: Any) -> int:
    """Say which differences between runs are real, in one page.

    Says what the runs below FOLDER show: which differences between arms are real, how large the others may still be,
    and what makes the comparison unfair. It reads run directories only, whether all have finished or not. Runs that
    differ in nothing but the seed are an arm; arms are compared seed by seed. Where --baseline names only some of what
    varies, such as norm=layernorm, each arm is compared with the one that is like it in all else.

    It writes report.html (one file, which opens offline), report.md, report.tex and appendix.tex (for a paper),
    answer.json (what the page says, as values), runs.csv, runs.parquet, and figures/ with SVG, PDF and data of
    each figure. Runs of several tasks get a report each, and a page that links them.

    \b
    Examples:
      normbench report outputs/train
      normbench report outputs/norms_lm --baseline norm=layernorm --margin 0.01
      normbench report outputs/first outputs/second --baseline "rmsnorm post" --target 2.0 --out both
    """
    from normbench.commands.report import report as write_report

    return write_report(folders, **flags)


@cli.command()
@click.argument("a", type=click.Path(file_okay=False))
@click.argument("b", type=click.Path(file_okay=False))
@flag("in", "Where to look for the arms.", metavar="FOLDER", type=FOLDER, default="outputs")
@flag("margin", MARGIN, type=click.FloatRange(0))
@flag("plan", "Say how many seeds it takes to find a difference, from the spread of the runs that are there.")
@flag("difference", "With --plan: the difference to be found.", type=click.FloatRange(0, min_open=True))
@click.option("--json", "as_json", help="Print what was found as JSON, for a script.", is_flag=True)
def compare(a: str, b: str, **flags: Any) -> int:
    """Compare two arms side by side.

    Says in what two arms differ, whether the difference between them is real, and how large it may be, seed by seed. A
    and B are folders of runs, or arms of the runs below a folder, named by what tells them apart.

    With --json the exit status is the verdict: 0 if A is better, 3 if it is worse, 4 if the two are the same (within
    the margin), 5 if nothing was shown, as where one did not train or lost runs. 1 and 2 are errors, as everywhere.

    \b
    Examples:
      normbench compare "rmsnorm pre" "layernorm pre" --in outputs/norms_lm
      normbench compare outputs/first outputs/second
      normbench compare --plan rmsnorm layernorm --in outputs/pilot --difference 0.01
      normbench compare rmsnorm layernorm --in outputs/norms_lm --margin 0.02 --json
    """
    from normbench.commands.report import compare as compare_arms

    return compare_arms(a, b, flags.pop("in"), **flags)


for command in (study, bench, fold):
    cli.add_command(command)


CLAIM_WORDS = click.argument(
    "words", nargs=-1, metavar="[NAME|all]... [KEY=VALUE]...", is_eager=True, callback=check_words,
    shell_complete=later("completion", "complete_claims"),
)  # fmt: skip


@cli.command()
@CLAIM_WORDS
@flag("dry-run", "Print what would be run, how long it takes, and what it could show.")
@flag("minutes", "Run what fits into so many minutes, the shortest first.", type=click.FloatRange(0, min_open=True))
@flag("at-scale", "Run with the words that claims have for a larger scale, in outputs/claims-at-scale.")
@flag("device", "Run the claims that are made for a GPU, in outputs/claims-on-gpu: cuda, or cuda:N.", default="")
@flag("trial", "Run with any words, on seeds from 100 on, without a verdict, in outputs/claims-trial.")
@flag("report", "Write the page on all claims, claims.html, and run nothing.")
@flag(
    "verify",
    "Check what FOLDER says of claims against the runs in it, or published results by their values (docs/claims).",
    metavar="FOLDER",
    type=FOLDER,
)
@flag("register", "Fix claims as they stand: note date and sha256 in REGISTERED, beside their YAMLs.")
@flag("reason", "With --register: why, in words.", default="", show_default=False)
@flag("new", "Write the YAML of a claim NAME, to be filled in, from the sweep in a FOLDER that follows it.")
@flag("trust", "With --new: take words that may run code of whoever made the sweep, or reach another machine.")
@CONFIG_DIR
@HELP
@click.pass_context
def claims(context: click.Context, words: tuple[str, ...], **flags: Any) -> int:
    """Test published claims about normalization again.

    Without NAME it lists all claims: the verdict so far, or why there is none, and minutes. With names, or all, it
    runs what is missing of each in outputs/claims/NAME, measures the effect for each seed, and says whether the claim
    is reproduced at this scale. outputs/claims/claims.html has all of them, with figures; claims.json, claims.csv and
    claims.tex say the same. The same command goes on where it was stopped. A claim is a YAML, in conf/claim or in
    DIR/claim of --config-dir; it is registered before its runs, so that nothing that decides can be changed after them.

    Words say how runs are made: device=, threads=, outputs=, quiet=, data.root=, launcher=, sweep.jobs=, sweep.stack=,
    sweep.timeout=, sweep.retry_failed=. Others change claims, and are for --trial alone. Exit status: 0, 1 if something
    is missing or wrong, 2 for a mistake.

    \b
    Examples:
      normbench claims
      normbench claims rmsnorm-parity-whole --dry-run
      normbench claims all --minutes 30
      normbench claims all --device cuda --minutes 25
      normbench claims rmsnorm-parity-whole --trial trainer.steps=100 seed=100,101,102
      normbench claims --report
      normbench claims --verify outputs/claims
      normbench claims --verify docs/claims
      normbench claims --new my-claim outputs/sweep
    """
    from normbench.commands.claims import ClaimsRequest
    from normbench.commands.claims import claims as answer

    names = tuple(word for word in words if "=" not in word)
    settings = tuple(word for word in words if "=" in word)
    folders = tuple(context.meta.get("folders", []))
    return answer(ClaimsRequest(names, settings, folders, **flags))


@cli.command()
@click.argument("name", required=False, metavar="[FAMILY]", shell_complete=later("completion", "complete_families"))
@flag("check", "Measure again here, and tell what the installed versions changed; exit status 1 if they did.")
@flag("markdown", "Print Markdown, as in docs/atlas.md.")
@flag(
    "out",
    "Measure all families that are installed, and write them to FILE, as docs/atlas.json.",
    type=click.Path(),
    metavar="FILE",
)
def atlas(name: str | None, check: bool, markdown: bool, out: str | None) -> int:
    """Tell what norms the models of other libraries really have.

    Shows what was measured of families of models of transformers, timm and torchvision: which norms there are, their
    eps and its place, in which order they cast, how gamma enters and starts, where they stand, whether queries and keys
    have some, which settings they follow, and what folds. docs/atlas.md has it by question. FAMILY is one of them, such
    as hf/llama or llama; without it all are listed, a line each.

    \b
    Examples:
      normbench atlas
      normbench atlas hf/gemma2
      normbench atlas hf/gemma2 --check
    """
    from normbench.commands.atlas import atlas as show_atlas

    return show_atlas(name, check, markdown, None if out is None else Path(out))


@cli.command()
@flag("json", "Print the same as JSON.")
def doctor(json: bool) -> int:
    """Say what is wrong with this installation and machine, and how to fix it.

    It shows versions, what cannot be imported, where data and caches lie, whether the hub answers, what this CPU or GPU
    can do, and whether a tiny training works, within a minute. The page is meant for bug reports: it has ~ for the home
    folder and the user, and no tokens. Exit status: 0 if normbench train norm=rmsnorm placement=pre can run, 1
    otherwise.
    """
    from normbench.commands.doctor import tell

    return tell(json)


@cli.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which a shell completes commands, options, keys and values.

    \b
    source <(normbench completion bash)
    source <(normbench completion zsh)
    normbench completion fish | source
    """
    from normbench.commands.completion import SHELLS

    print(SHELLS[shell](cli, {}, "normbench", COMPLETE).source(), end="")


@cli.command("help", context_settings={"ignore_unknown_options": True})
@click.argument(
    "words", nargs=-1, metavar="[COMMAND]", type=click.UNPROCESSED,
    shell_complete=lambda ctx, param, word: cli.shell_complete(ctx.parent, word),
)  # fmt: skip
def show_help(words: tuple[str, ...]) -> int:
    """Show this page, or a command's."""
    return run([*words, "--help"])
