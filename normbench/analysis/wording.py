"""How a report writes numbers, and the sentences of its verdict, whose words are in templates/sentences.jinja."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from normbench.analysis.comparisons import ENOUGH, Comparison, Survival
from normbench.analysis.measures import rounded_up
from normbench.analysis.records import LEARNED, LEARNED_RIGHT, LEARNING_RATE, PLAIN, Run, Study, shortened
from normbench.analysis.safe import is_formula
from normbench.analysis.statistics import ALPHA, Interval, detectable_difference

NONE = "–"
LEAST_P = 0.001  # below it, how small is of no interest
LARGEST_EFFECT = 10
MOST = 8  # sentences of an answer; the tables have the others
FEW = 3  # comparisons in which nothing was found have a sentence each
UNITS = {"h": 3600.0, "min": 60.0}
TEMPLATES = Path(__file__).parent / "templates"

# What Markdown, or HTML in it, would take for its own.
MARKED = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]#|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})

# What LaTeX would take for its own, or does not know.
TEX = str.maketrans({mark: f"\\{mark}" for mark in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"})
TEX |= str.maketrans({"^": r"\textasciicircum{}", "−": "$-$", "→": r"$\to$", "·": r"$\cdot$", "×": r"$\times$"})
TEX |= str.maketrans({"<": "$<$", ">": "$>$", "≤": r"$\leq$", "≥": r"$\geq$", "²": "$^2$", "√": r"$\surd$"})
TEX |= str.maketrans({"←": r"$\leftarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "½": r"$\frac{1}{2}$"})
TEX |= str.maketrans({"µ": r"$\mu$", "Δ": r"$\Delta$", "∞": r"$\infty$", "≈": r"$\approx$"})
TEX |= {0x2080 + digit: f"$_{digit}$" for digit in range(10)}  # subscripts, as in α₀

# A command in a sentence of HTML, without the full stop behind it.
COMMAND = re.compile(r"normbench (sweep|train)( --resume \S*[^\s.])?( (&#39;)?[\w.@+-]+=\S*[^\s.])*")

# What can be said of comparisons, in this order: of a difference, of none, and nothing.
FOUND = ("different", "flattered", "possible", "constant", "torn", "untrained")
ALIKE = ("same", "within", "unknown", "alike")
UNKNOWN = ("one_seed", "no_seed")


def fixed(value: float | None, digits: int, sign: bool = False) -> str:
    """Write a number with so many decimals."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def decimals(value: float, digits: int) -> int:
    """Return the decimals with which a number has so many significant digits."""
    return max(digits - 1 - math.floor(math.log10(abs(value))), 0) if value else 0


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits, without an exponent."""
    return f"{value:,.{decimals(value, digits)}f}" if math.isfinite(value) else NONE


def plain(value: float) -> str:
    """Write a number as short as can be, without an exponent."""
    return f"{Decimal(f'{value:.12g}'):f}"


def bound(value: float | None) -> str:
    """Write a size that is not exceeded: two significant digits, rounded up."""
    return NONE if value is None else plain(rounded_up(value, 2))


def chance(p: float | None) -> str:
    """Write a p value; one below 5 % is not rounded up to it."""
    if p is None or p < LEAST_P:
        return NONE if p is None else f"< {LEAST_P:g}"
    return f"{p:.{4 if LEAST_P > ALPHA - p > 0 else 3}f}"


def precision(mean: float, interval: Interval | None) -> int:
    """Return the decimals of a difference and its interval.

    Two significant digits of the interval's half width, and no more than four of the mean; but so many that an interval
    which does not reach 0 does not seem to.
    """
    if interval is None:
        return decimals(mean, 2)
    places = decimals((interval.upper - interval.lower) / 2, 2)
    places = min(places, decimals(mean, 4)) if mean else places
    clear = interval.lower * interval.upper > 0
    return max(places, decimals(min(abs(interval.lower), abs(interval.upper)), 1)) if clear else places


def effect(size: float | None) -> str:
    """Write an effect size; how large one is beyond 10 tells of the spread, and of nothing else."""
    if size is None or abs(size) <= LARGEST_EFFECT:
        return fixed(size, 2, sign=True)
    return f"> {LARGEST_EFFECT}" if size > 0 else f"< −{LARGEST_EFFECT}"


def span(interval: Interval | None, digits: int, sign: bool = False) -> str:
    """Write an interval, its ends rounded away from its middle."""
    if interval is None:
        return NONE
    unit = 10.0**digits
    lower, upper = math.floor(round(interval.lower * unit, 6)) / unit, math.ceil(round(interval.upper * unit, 6)) / unit
    return f"{fixed(lower, digits, sign)} to {fixed(upper, digits, sign)}"


def duration(seconds: float) -> str:
    """Write a time in a unit that suits it."""
    unit, size = next(((unit, size) for unit, size in UNITS.items() if seconds >= 2 * size), ("s", 1.0))
    return f"{significant(seconds / size)} {unit}" if math.isfinite(seconds) else NONE


def in_words(value: Any) -> str:
    """Write a setting: numbers short, a dash for none."""
    if word := PLAIN.get(str(value)):
        return word
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def count(number: int, word: str) -> str:
    """Write a number of things, such as `5 seeds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def every(runs: Iterable[Run], read: Callable[[Run], str]) -> str:
    """Write all that is read of runs, once each."""
    found = dict.fromkeys(" ".join(read(run).split()) for run in runs)
    return shortened([text for text in found if text], 4)


def given(study: Study) -> list[str]:
    """Return the settings that a person has given and that all runs have, as words of a command."""
    aside = {"seed", "name", "outputs", "threads", "quiet", *[LEARNING_RATE] * study.fairly_chosen}
    first, *others = (shlex.split(str(run.session.get("command")))[2:] for run in study.runs)
    return [word for word in first if word.partition("=")[0] not in aside and all(word in own for own in others)]


def goes_with(study: Study, read: Callable[[Run], str]) -> str:
    """Name the settings that vary and tell what is read of runs, such as `data.batch_size`; none where all agree."""
    values = {key: {(str(run.config.get(key)), read(run).strip()) for run in study.runs} for key in study.varied}
    telling = [key for key, found in values.items() if len(found) == len({value for value, _ in found})]
    return "" if len({read(run).strip() for run in study.runs}) < 2 else ", ".join(telling or study.varied)


def tex(text: Any) -> str:
    """Write words for LaTeX, which has a command for each Greek letter, and for letters of other scripts nothing."""
    return "".join(map(tex_letter, str(text)))


def tex_letter(letter: str) -> str:
    """Write one letter for LaTeX: as U+ and its number where it has none."""
    if letter.isascii() or ord(letter) in TEX:
        return letter.translate(TEX)
    name = unicodedata.name(letter, "")
    if name.startswith("LATIN ") or letter in "–—…‘’“”°±":
        return letter
    if (greek := name.removeprefix("GREEK SMALL LETTER ")) != name and greek.isalpha() and greek != "OMICRON":
        return rf"$\{greek.lower().replace('lamda', 'lambda')}$"
    return f"U+{ord(letter):04X}"


def by_group(figures: Iterable[Mapping[str, Any]]) -> list[tuple[Any, list[Mapping[str, Any]]]]:
    """Return figures, each as its parts by name, by the group that several in a row belong to; None for single ones."""
    return [(group, [*own]) for group, own in groupby(figures, key=lambda figure: figure["group"])]


# ---- sentences


@cache
def environment() -> Environment:
    """Return the templates; in the page every word is escaped, in the text those behind the filter `md`."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    numbers = [bound, chance, count, detectable_difference, duration, fixed, in_words, plain, precision, span]
    found.globals |= {write.__name__: write for write in [*numbers, every, given, goes_with, shortened]}
    found.globals |= {"ENOUGH": ENOUGH, "LEARNED": LEARNED, "LEARNED_RIGHT": LEARNED_RIGHT}
    found.filters |= {"tex": tex, "by_group": by_group}
    found.filters["code"] = lambda text: Markup(COMMAND.sub(r"<code>\g<0></code>", str(escape(text))))
    found.filters["cell"] = lambda text: "\\" * is_formula(text) + found.filters["md"](text)
    found.filters["md"] = lambda text: " ".join(str(text).split()).translate(MARKED)
    return found


def paragraphs(template: str, macro: str, *about: Any) -> tuple[str, ...]:
    """Return what a macro of a template says, paragraph by paragraph."""
    text = getattr(environment().get_template(template).module, macro)(*about)
    return tuple(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


def verdict(
    study: Study,
    comparisons: Sequence[Comparison],
    margin: float | None,
    crossed: Sequence[Sequence[str]] = (),
    survivals: Sequence[Survival] = (),
) -> list[tuple[str, str]]:
    """Return what did not train, what differs, where no difference was found, and what did not finish.

    Each sentence comes with the key of the table behind it. crossed: of contrasts, kind by kind, the last where none
    was found. Of many the largest of each kind are told, and how many more there are.
    """
    fewer = [one for one in survivals if one.counted is not None and one.p < ALPHA]
    few = [one for one in comparisons if one.small and one.verdict(margin) in ("different", "possible")]
    ranked = [len(one.ranked) for one in few]
    arms = {arm.name: arm for one in comparisons for arm in (one.arm, one.baseline)}
    *found, nothing = compared_words(comparisons, margin)
    told = [
        ("arms", paragraphs("sentences.jinja", "stuck", [*arms.values()] or study.arms)),
        ("costs", paragraphs("sentences.jinja", "survival", fewer)),
        *(("designs", kind) for kind in crossed[:-1]),
        *(("differences", kind) for kind in found),
        ("differences", paragraphs("sentences.jinja", "assumed", ranked) if ranked else ()),
        *(("designs", kind) for kind in crossed[-1:]),
        ("differences", nothing),
        ("arms", () if comparisons else paragraphs("sentences.jinja", "not_compared", len(study.arms))),
        ("costs", paragraphs("sentences.jinja", "diverged", study)),
        ("lost", paragraphs("sentences.jinja", "lost", study)),
    ]
    by_rank = sorted((rank, place) for place, (_, kind) in enumerate(told) for rank in range(len(kind)))
    most = Counter(place for rank, place in by_rank if (rank, place) in by_rank[:MOST] or not rank)
    return [(text, table) for place, (table, kind) in enumerate(told) for text in at_most(kind, most[place])]


def compared_words(comparisons: Sequence[Comparison], margin: float | None) -> list[tuple[str, ...]]:
    """Say what the comparisons show, kind by kind, the largest difference first, and last where nothing was found.

    margin: in the metric's unit; differences within it do not matter.
    """
    ordered = sorted(comparisons, key=lambda one: -abs(one.mean) if one.n > 1 else 0.0)
    ones = {kind: [one for one in ordered if one.verdict(margin) == kind] for kind in (*FOUND, *ALIKE, *UNKNOWN)}
    if len(none := [one for kind in ALIKE for one in ones[kind]]) > FEW:
        ones = {kind: own for kind, own in ones.items() if kind not in ALIKE} | {"alike_all": none}
    said = {kind: paragraphs("sentences.jinja", kind, own, margin, comparisons) for kind, own in ones.items()}
    return [*(said.pop(kind) for kind in FOUND), sum(said.values(), ())]


def at_most(texts: Sequence[str], most: int) -> list[str]:
    """Return the first ones, the last of which says how many more there are."""
    more = f" {len(texts) - most} more of this kind {'is' if len(texts) - most == 1 else 'are'} in the tables."
    return [*texts[: most - 1], texts[most - 1] + more] if most < len(texts) else list(texts)
