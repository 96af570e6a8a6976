"""The page on all claims, claims.html, and the same as JSON, CSV and LaTeX."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from normbench.claims.claim import FIGURES
from normbench.claims.figures import draw_forest, draw_rates, draw_seeds
from normbench.claims.files import PAGE_FILE
from normbench.claims.suite import put_beside, read_suites, settling_words, trial_words
from normbench.config.trust import needs_trust
from normbench.record.files import make_folder, write_bytes, write_json
from normbench.results.claimed import ClaimResult, RegisteredClaim, Suite
from normbench.results.worth import Worth
from normbench.show.figures.figure import Figure
from normbench.show.latex import table_for
from normbench.show.pages import page_of, show_figure
from normbench.show.safe import to_csv
from normbench.show.shown import ShownFigure, say_once
from normbench.show.tables import Table, search_table
from normbench.show.templating import tex
from normbench.tell.claim_sentences import (
    list_found,
    list_limits_of_worth,
    list_notes,
    tell_one_rate,
    tell_p,
    tell_rates,
    tell_tuning,
    write_corrected,
    write_corrected_p,
    write_effect,
    write_interval,
    write_machine,
    write_mean,
    write_on_gpu,
    write_power,
    write_question,
    write_registered,
    write_settling,
    write_suite,
    write_worth_of_claim,
)
from normbench.tell.claim_sizes import write_tested
from normbench.wording import NONE, count, short, with_unit, write_minutes

PAGE = "claims.html"
TITLE = "Published claims, tested again"
OWN_TITLE = "Claims of your own"
OURS, OWN = "claims", "own-claims"  # the two families, in names of figures, tables and places of the page
WAYS = frozenset(
    {"--at-scale", "--trial", "--device"}
)  # in which claims are run elsewhere, of which the page is then one
LATEX_HEAD = "% Made by normbench claims; it needs \\usepackage{booktabs}."


@dataclass(frozen=True)
class FamilyVerdicts:
    """What a page shows of a family of claims.

    Attributes:
        title: above it.
        sentences: about all of them.
        table: of their verdicts.
        links: to the claims one by one, row by row.
        figures: of all effects.
    """

    title: str
    sentences: Sequence[str]
    table: Table
    links: Sequence[str]
    figures: Sequence[ShownFigure]


@dataclass(frozen=True)
class Section:
    """A claim with all that is to be said of it. facts, details: term and words, in order."""

    name: str
    claim: str
    verdict: str
    question: str
    facts: Mapping[str, str]
    details: Mapping[str, str]
    notes: Sequence[str]
    confounds: Sequence[str]
    older: Sequence[str]
    figures: Sequence[ShownFigure]
    tuning: Table | None
    figures_of_tuning: Sequence[ShownFigure]
    report: str
    command: str
    settling: str
    settling_command: str
    at_scale: str
    at_scale_command: str


def write_page(
    folder: Path,
    claims: Mapping[str, Mapping[str, Any]],
    digests: Mapping[str, str],
    own: Container[str] = (),
    words: Sequence[str] = (),
    changes: Mapping[str, str] = {},
    on_gpu: Suite | None = None,
) -> list[Path]:
    """Write claims.html, claims.json, claims.csv, claims.tex and the figures into the folder of the claims' results.

    Args:
        folder: with NAME/claim.json.
        claims: key and value of the YAML of each registered claim, by name.
        digests: sha256 of each as it is registered.
        own: names of a person's own claims, which are corrected by themselves.
        words: that each command on the page needs: the way in which they are run, where claims and results lie.
        changes: in which settings the words of claims ask for other runs now than when they were registered, by name.
        on_gpu: claims that test the same sentences on a GPU, which stand beside them; None for none.

    Returns:
        the files that a person opens.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left_out = list[str]()
    ours, theirs = read_suites(folder, claims, digests, left_out, own, changes)
    if on_gpu is not None:
        ours, theirs = put_beside(ours, on_gpu), put_beside(theirs, on_gpu)
    for sentence in left_out:
        logging.getLogger("normbench").warning("warning: %s; it is left out", sentence)
    families = {}
    if ours.entries or not theirs.entries:
        families[OURS] = ours
    if theirs.entries:
        families[OWN] = theirs
    first = next(iter(families.values()))
    figures = make_folder(folder, FIGURES)
    shown, sections, values, latex = [], [], [], []
    for key, family in families.items():
        drawings = draw_forest(family.entries, key)
        for figure in drawings:
            for name, content in figure.files().items():
                write_bytes(figures / name, content)
        shown.append(show_family(key, family, drawings, left_out if family is first else ()))
        sections += [describe(entry, draw_seeds(entry), draw_rates(entry), words) for entry in family.entries]
        values.append(values_of(key, family.entries))
        latex.append(write_latex(key, family))
    page = page_of("claims.html", TITLE, families=shown, sections=sections)
    contents = {
        PAGE: page.encode(),
        "claims.csv": to_csv(pd.concat(values), lineterminator="\n"),
        "claims.tex": "\n".join([LATEX_HEAD, *latex]).encode(),
    }
    for name, content in contents.items():
        write_bytes(folder / name, content)
    write_json(folder / PAGE_FILE, {**as_json(ours), "own": as_json(theirs), "left_out": left_out})
    return [folder / name for name in (PAGE, PAGE_FILE, "claims.csv", "claims.tex")]


def show_family(key: str, suite: Suite, drawings: Sequence[Figure], left_out: Sequence[str] = ()) -> FamilyVerdicts:
    """Return what the page shows of claims that are corrected together.

    Args:
        key: of the suite.
        drawings: of all its effects.
        left_out: sentences on results that do not count, of any family.
    """
    return FamilyVerdicts(
        title="Verdicts at this scale" if key == OURS else OWN_TITLE,
        sentences=[*write_suite(suite), *(f"Left out: {sentence}." for sentence in left_out)],
        table=replace(verdict_table(key, suite.entries), title="Claim by claim"),
        links=[f"#claim--{entry.name}" for entry in suite.entries],
        figures=say_once(show_figure(figure, figure.svg) for figure in drawings),
    )


# ---- for the page


def list_older(entry: RegisteredClaim) -> list[str]:
    """Write the verdicts of earlier registrations."""
    verdicts = []
    for result in entry.older:
        assert result.judgement is not None
        size = write_effect(result.judgement, str(result.claim.get("unit") or ""))
        verdicts.append(f"{result.judgement.verdict}, {size} (registered {result.registered})")
    return verdicts


def write_command(entry: RegisteredClaim, words: Sequence[str]) -> str:
    """Write the command that runs a claim with some words, as a shell takes it."""
    return shlex.join(["normbench", "claims", entry.name, *words])


def describe(
    entry: RegisteredClaim, figure: Figure | None, of_rates: Sequence[Figure] = (), words: Sequence[str] = ()
) -> Section:
    """Return all that the page says of a claim.

    Args:
        entry: the claim.
        figure: of its seeds.
        of_rates: figures of how its learning rates were chosen.
        words: of its commands.
    """
    result = entry.result
    found = [tuning.search for tuning in (result.tuning if result else None) or ()]
    at_scale = entry.claim.get("at_scale") or {}
    is_here = WAYS.isdisjoint(words)
    settling = settling_words(entry) if is_here else []
    link = f"{entry.name}/{result.report}" if result and result.report else ""
    return Section(
        name=entry.name,
        claim=str(entry.claim["claim"]),
        verdict=entry.standing,
        question=write_question(entry.claim),
        facts=list_facts(entry),
        details=list_details(entry),
        notes=[*list_notes(entry), *warn_of_words(trial_words(entry))],
        confounds=[str(confound) for confound in entry.claim.get("confounds") or ()],
        older=list_older(entry),
        figures=[show_figure(figure, figure.svg, has_files=False)] if figure else [],
        tuning=search_table(found) if found else None,
        figures_of_tuning=[show_figure(drawn, drawn.svg, has_files=False) for drawn in of_rates],
        report=link,
        command=write_command(entry, [*trial_words(entry), *words]),
        settling=write_settling(entry),
        settling_command=write_command(entry, [*settling, *words]) if settling else "",
        at_scale=tell_at_scale(at_scale),
        at_scale_command=write_command(entry, ["--at-scale", *words]) if is_here and at_scale.get("words") else "",
    )


def warn_of_words(words: Sequence[str]) -> list[str]:
    """Return a warning for words of a command that a folder gives, where they may be of somebody who is not trusted."""
    foreign = [word for word in words if needs_trust(word)]
    if not foreign:
        return []
    what = "may run code of whoever made its runs, or reach another machine"
    return [f"The command below has {', '.join(foreign)}, which {what}: give it only if you trust them."]


def tell_at_scale(at_scale: Mapping[str, Any]) -> str:
    """Write what it takes to test a claim at the scale that it was made for."""
    parts = []
    if at_scale.get("hours") is not None:
        parts.append(f"about {write_minutes(60 * float(at_scale['hours']))}")
    if at_scale.get("machine"):
        parts.append(f"on {at_scale['machine']}")
    return " ".join(parts)


def list_facts(entry: RegisteredClaim) -> dict[str, str]:
    """Return what a reader wants to know of a claim first: terms and words."""
    claim, result, judgement = entry.claim, entry.result, entry.judgement
    facts = {
        "Tested": write_tested(claim),
        "Published": f"{claim['published']} ({claim['source']})",
        "At this scale": str(claim["scope"]),
    }
    if entry.reason:
        facts["No verdict"] = entry.reason
    if judgement:
        interval = write_interval(judgement)
        size = write_effect(judgement, entry.unit)
        seeds = count(judgement.n, "seed")
        facts["Effect"] = f"{size} ({seeds})" if interval == NONE else f"{size} ({interval}; {seeds})"
        after = [write_corrected(entry), write_corrected_p(entry)]
        facts["After Holm's correction"] = ", ".join(filter(None, after))
        facts |= list_worth(result)
    elif result and result.values:
        facts["Mean effect"] = write_mean(result, entry.unit)
        facts |= list_worth(result)
    if entry.on_gpu is not None and entry.on_gpu.judgement is not None:
        facts["On a GPU"] = f"{write_on_gpu(entry)}; {entry.on_gpu.claim['scope']}"
    return facts


def list_worth(result: ClaimResult | None) -> dict[str, str]:
    """Return what a difference in loss is worth in steps and time, and what limits that; nothing of other effects."""
    words = [write_worth_of_claim(result), *list_limits_of_worth(result)]
    said = ". ".join(filter(None, words))
    return {"Worth in compute": said} if said else {}


def list_details(entry: RegisteredClaim) -> dict[str, str]:
    """Return what else is known of a claim: terms and words."""
    result, judgement = entry.result, entry.judgement
    facts = {"Registered": write_registered(entry), "Margin": with_unit(short(entry.margin), entry.unit)}
    if entry.opposed and entry.by_runs_alone:
        facts["By its runs alone"] = str(entry.by_runs_alone.verdict)
    if judgement:
        facts["p by itself"] = tell_p(entry)
        facts["Power"] = write_power(judgement)
    if result and result.date:
        facts["Ran"] = f"{result.date}, {write_machine(result)}"
    if result and result.minutes:
        facts["Took"] = write_minutes(result.minutes)
    facts["Learning rates"] = tell_tuning(entry) or NONE
    facts["With one rate for all arms"] = tell_one_rate(entry) or NONE
    return {term: words for term, words in facts.items() if words != NONE}


# ---- as data, and for LaTeX


def values_of(key: str, entries: Sequence[RegisteredClaim]) -> pd.DataFrame:
    """Return a row for each claim of a family, in numbers where there are any. key: of the family."""
    rows = []
    for entry in entries:
        judgement, result = entry.judgement, entry.result
        row: dict[str, Any] = {
            "claim": entry.name,
            "family": key,
            "sentence": entry.claim["claim"],
            "tested": write_tested(entry.claim),
            "source": entry.claim["source"],
            "published": entry.claim["published"],
            "scope": entry.claim["scope"],
            "kind": str(entry.kind),
            "margin": entry.margin,
            "unit": entry.unit,
            "verdict": entry.standing,
            "verdict_after_holm": None,
            "registered": entry.claim["registered"],
            "registered_in_commit_of_runs": entry.witness or None,
            "reason": entry.reason,
            "found": " ".join(list_found(entry.claim)),
        }
        if judgement:
            interval = judgement.interval or (None, None)
            inner = judgement.inner or (None, None)
            row |= {
                "verdict_after_holm": str(entry.corrected.verdict),
                "effect": judgement.mean,
                "low": interval[0],
                "high": interval[1],
                "inner_low": inner[0],
                "inner_high": inner[1],
                "seeds": judgement.n,
                "sd": judgement.sd,
                "p": judgement.p,
                "p_after_holm": entry.corrected.p,
                "power": judgement.power,
                "seeds_to_settle": judgement.seeds_to_settle,
            }
        if entry.on_gpu is not None and entry.on_gpu.judgement is not None:
            row |= {"verdict_on_gpu": entry.on_gpu.standing, "effect_on_gpu": entry.on_gpu.judgement.mean}
        if result:
            unreached = None if result.unreached is None else sum(result.unreached.values())
            row |= {"lost_runs": entry.lost, "unreached": unreached, "minutes": result.minutes, "date": result.date}
            row |= values_of_worth(result.worth)
            row |= {"way_of_rates": entry.way_of_rates, "rates": tell_rates(result)}
            row |= {"at_one_rate": tell_one_rate(entry)}
        rows.append(row)
    return pd.DataFrame(rows)


def values_of_worth(worth: Worth | None) -> dict[str, Any]:
    """Return the columns of what a difference in loss is worth: ratios to the baseline, with their intervals."""
    columns = dict[str, Any]()
    for name, ratio in (("steps", worth and worth.of_steps), ("time", worth and worth.of_time)):
        interval = (ratio.interval if ratio else None) or (None, None)
        columns |= {f"{name}_ratio": ratio.mean if ratio else None}
        columns |= {f"{name}_low": interval[0], f"{name}_high": interval[1]}
    columns["worth_seeds"] = worth.n if worth else None
    columns["worth_unreached"] = len(worth.unreached) if worth and worth.n else None
    return columns


def as_json(suite: Suite) -> dict[str, Any]:
    """Return all that the page shows of a family, as values."""
    claims = {}
    for entry in suite.entries:
        claims[entry.name] = {
            "standing": entry.standing,
            "reason": entry.reason,
            "registered_in_commit_of_runs": entry.witness or None,
            "changed": entry.changed,
            "claim": dict(entry.claim),
            "corrected": asdict(entry.corrected),
            "result": None if entry.result is None else entry.result.as_record(),
            "older": [result.as_record() for result in entry.older],
            "on_gpu": None if entry.on_gpu is None else entry.on_gpu.standing,
        }
    return {
        "registered": len(suite.entries),
        "judged": len(suite.judgements),
        "by_chance": suite.by_chance,
        "chances": [asdict(chance) for chance in suite.chances],
        "sentences": write_suite(suite),
        "claims": claims,
    }


def has_any_on_gpu(entries: Sequence[RegisteredClaim]) -> bool:
    """Tell whether any sentence has a verdict on a GPU, which then stand in a column of their own."""
    return any(entry.on_gpu is not None and entry.on_gpu.judgement is not None for entry in entries)


def verdict_table(key: str, entries: Sequence[RegisteredClaim]) -> Table:
    """Return the table of a family's verdicts as words. key: of the family."""
    rows = []
    for entry in entries:
        judgement = entry.judgement
        row = {
            "claim": str(entry.claim["claim"]),
            "at this scale": entry.standing,
            "effect": write_effect(judgement, entry.unit) if judgement else NONE,
            "interval": write_interval(judgement) if judgement else NONE,
            "seeds": str(judgement.n) if judgement else NONE,
            "after Holm": ", ".join(filter(None, [write_corrected(entry), write_corrected_p(entry)])),
        }
        if has_any_on_gpu(entries):
            row["on a GPU"] = write_on_gpu(entry)
        rows.append(row)
    return Table(key, TITLE if key == OURS else OWN_TITLE, pd.DataFrame(rows), heads=2)


def write_latex(key: str, suite: Suite) -> str:
    """Write the sentences about a family of claims, and the table of its verdicts. key: of the family."""
    sentences = tex(" ".join(write_suite(suite)))
    table = table_for(verdict_table(key, suite.entries)) if suite.entries else ""
    return f"{sentences}\n\n{table}"
