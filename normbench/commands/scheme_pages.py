"""The pages of schemes: the words that each stands for, and its blocks as they are drawn."""

from __future__ import annotations

from rich.markdown import Markdown

from normbench.build import lay_out
from normbench.commands.report import console
from normbench.config.compose import read
from normbench.config.groups import options, scheme_words
from normbench.errors import UsageError
from normbench.runs.layout import draw_model
from normbench.runs.plan import prepare
from normbench.settings import show


def tell(group: str, name: str | None, markdown: bool) -> None:
    """Print the page of a scheme, or of all, in Markdown; for a terminal formatted."""
    names = [name] if name else list(options(group))
    text = "\n".join(map(page_of, names))
    if markdown:
        print(text, end="")
    else:
        console().print(Markdown(text))


def page_of(name: str) -> str:
    """Return the page of a scheme in Markdown: what it is, its words, and the blocks of a model with it."""
    words = " ".join(f"{key}={show(value)}" for key, value in scheme_words(name).items())
    meaning = options("scheme")[name]
    model, drawing = draw_first_model(name)
    drawn = f"Drawn with `{model}`:\n\n" if model else ""
    return f"### {name}\n\n{meaning}\n\n`{words}`\n\n{drawn}```text\n{drawing}\n```\n"


def draw_first_model(scheme: str) -> tuple[str, str]:
    """Return the first model that a scheme goes with as words, none for the default one, and its blocks as drawn.

    Raises:
        UsageError: it goes with no model.
    """
    refused: UsageError | None = None
    choices: list[list[str]] = [[]]
    for model in options("model"):
        choices.append([f"model={model}"])
    for words in choices:
        try:
            run = prepare(read([f"scheme={scheme}", *words]))
            made = lay_out(run.config.recipe, run.data.task)
        except UsageError as error:
            refused = refused or error
            continue
        drawing = draw_model(made)
        return " ".join(words), drawing
    assert refused is not None
    raise refused
