"""`normbench study NAME` and `normbench bench`: their help pages, and what they print of their findings."""

from __future__ import annotations

import inspect
from pathlib import Path

import click

from normbench.commands import CONFIG_DIR, HELP, SETTINGS, TRUST, Commands, flag
from normbench.config.groups import suggest
from normbench.stopping import Stopped
from normbench.studies import STUDIES

LONG = 24  # rows that a screen has room for; a longer table is on the page alone


class Studies(Commands):
    """The studies, which people may call by other names too."""

    def suggest(self, ctx: click.Context, word: str) -> str:
        return suggest("study", word)


@click.group(
    cls=Studies, subcommand_metavar="NAME [RUN|FOLDER]... [GROUP=OPTION]... [KEY=VALUE]...", options_metavar=""
)
def study() -> None:
    """Make a study: an experiment with runs, or on runs, that shows why norms differ.

    Findings are written to outputs/NAME/studies/NAME: a page, figures, tables and the rows behind them. The same
    command goes on where it was stopped. normbench report shows studies beside the runs of a folder.

    \b
    Examples:
      normbench study invariance
      normbench study propagation norm=rmsnorm placement=pre,post,deep model.depth=2,8,32
      normbench study mapping outputs/train
    """


def study_command(name: str, line: str) -> click.Command:
    """Return the command of one study.

    Args:
        line: what it does.
    """

    def page(formatter: click.HelpFormatter, words: tuple[str, ...], folders: list[Path]) -> None:
        write_page(formatter, name)

    @study.command(name, page=page, help=f"{line}.", short_help=line)
    @SETTINGS
    @flag("device", "Where given runs are measured: auto, cpu, cuda, cuda:N or mps.", default="auto")
    @TRUST
    @CONFIG_DIR
    @HELP
    def command(words: tuple[str, ...], device: str, trust: bool) -> int:
        return make(name, words, device, trust)

    return command


def make(name: str, words: tuple[str, ...], device: str, trust: bool) -> int:
    """Make a study and print its tables; return the exit status."""
    from normbench.commands.report import console, print_details, print_table
    from normbench.show.studied import read_study
    from normbench.studies.study import run_study

    try:
        folder = run_study(name, words, device, trust)
    except Stopped as stopped:
        print("stopped; the same command goes on after what has been measured")
        return stopped.status
    if "quiet=true" not in words:
        result = read_study(folder, folder)
        screen = console()
        for sentence in result.about.finding:
            screen.print(f"• {sentence}", markup=False, highlight=False)
        long_tables: list[str] = []
        for table in result.tables:
            number = len(table.rows)
            if number <= LONG:
                print_table(table)
            else:
                long_tables.append(f"{table.title} ({number} rows)")
        print_details(result.about.details)
        if long_tables:
            screen.print(f"on the page: {'; '.join(long_tables)}", markup=False, highlight=False)
        screen.print(f"figures: {folder / 'figures'}, page:")
    print(folder / "report.html")
    return 0


def write_page(formatter: click.HelpFormatter, name: str) -> None:
    """Write what a study asks, what it takes, and what it measures."""
    from normbench.commands.pages import write_keys
    from normbench.settings import show
    from normbench.studies.frame import known_settings, study_class

    kind = study_class(name)
    formatter.write_paragraph()
    for part in (inspect.getdoc(kind) or "").split("\n\n"):
        formatter.write_text(" ".join(part.split()))
        formatter.write_paragraph()
    formatter.write_text(f"Source: {kind.source}.")
    what = "Runs that it trains first, as normbench sweep does" if kind.trains else "Models that it measures"
    ties = [word for word in kind.words if ";" in word]  # settings that vary together
    with formatter.section(f"{what} (your own words replace these, key by key)"):
        others = [word for word in kind.words if word not in ties]
        formatter.write_text(" ".join(others))
        for word in ties:  # one setting a line
            in_lines = word.replace(";", ";\n    ")
            formatter.write(f"  {in_lines}\n")
    known = {f"study.{key}": setting for key, setting in known_settings(kind).items()}
    if known:
        values = {}
        for key, parameter in inspect.signature(kind).parameters.items():
            values[f"study.{key}"] = show(parameter.default)
        with formatter.section("Settings"):
            write_keys(formatter, known, known, values)
    columns = [(key, column.label) for key, column in kind.columns.items()]
    with formatter.section("Measured (columns of rows.csv)"):
        formatter.write_dl(columns)


@click.command()
@click.argument("run", type=click.Path(file_okay=False))
@flag("out", "Where the weights go; by default folded.safetensors in RUN.", type=click.Path(path_type=Path))
@flag("device", "auto, cpu, cuda, cuda:N or mps.", default="auto")
@TRUST
def fold(run: str, out: Path | None, device: str, trust: bool) -> int:
    """Fold a run's norms into their neighbours, for inference.

    Writes the weights as safetensors, and says what was folded, what was kept and why, what that changes in each
    precision, and what it saves. RUN is the directory of a run, a folder that holds only one, or the beginning of the
    name of only one, such as outputs/train/rmsnorm.
    """
    from normbench.studies.folding import fold_run

    return fold_run(run, out, device, trust)


commands = {name: study_command(name, line) for name, line in STUDIES.items()}
bench = commands["bench"]
