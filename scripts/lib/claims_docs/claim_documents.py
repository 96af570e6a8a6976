"""The documents on claims: made from what is published of them, and never typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from normbench.claims.claim import Claim, read_claims
from normbench.claims.figures import draw_forest
from normbench.claims.files import read_results, write_result
from normbench.claims.on_gpu import claims_on_gpu
from normbench.claims.page import has_any_on_gpu, list_older
from normbench.claims.registering import tell_changes
from normbench.claims.registration import find_registration
from normbench.claims.suite import put_beside, read_suite
from normbench.errors import UsageError
from normbench.record.files import write_bytes
from normbench.results.claimed import NOT_SETTLED, WITHDRAWN, ClaimedEffect, RegisteredClaim, Status, Suite
from normbench.results.rules import Verdict
from normbench.settings import key_of
from normbench.show.figures.figure import Figure
from normbench.show.pages import show_figure
from normbench.show.shown import say_once
from normbench.show.templating import cell
from normbench.tell.claim_sentences import (
    list_at_one_rate,
    list_costs,
    list_limits_of_worth,
    list_notes,
    name_kind,
    tell_withdrawal,
    write_chosen,
    write_corrected,
    write_corrected_p,
    write_effect,
    write_interval,
    write_machine,
    write_on_gpu,
    write_power,
    write_settling,
    write_suite,
    write_withdrawn,
    write_worth_of_claim,
)
from normbench.tell.claim_sizes import write_tested
from normbench.wording import NONE, count, short, write_minutes

PUBLISHED = "docs/claims"
PAGE = "docs/claims.md"
README = "README.md"
TEMPLATE = "claims.md.jinja"
PLACES = ("outputs", "data.root", "hydra.searchpath")  # words that say where something lies on a machine

# The claims that people ask about most, in the order of the README's table, which has the first ones whatever came out.
# The first ten were written on 2026-11-28, two hours before a verdict was published; in place of those that were
# withdrawn since stand their successors. That of RMSNorm as PyTorch ships it is no sentence of the paper, which a row
# without its note would put into its authors' mouths: norms that are composed alike stand before it.
MOST_WANTED = (
    "rmsnorm-parity-whole",
    "rmsnorm-faster-eager",
    "dyt-parity-lm-whole",
    "rmsnorm-faster-shipped",
    "derf-best-whole",
    "warmup-more",
    "peri-better-stem-near",
    "lns-more",
    "bn-degrades",
    "bn-not-ics-vgg-relative",
    "ngpt-authors-near",
    "ln-derivatives",
    "layerscale-deep",
)
ROWS = 3  # of the table

# The part of the README that is made: from this heading to the next one.
HEADING = "## What it has measured\n"
AFTER = "## Read on\n"
WIDTH = 120  # of lines of Markdown


def registered_claims() -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return key and value of the YAML of each registered claim of ours, and its digest, by name."""
    return list_registered(read_claims())


def registered_on_gpu() -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return the same of claims on a GPU."""
    return list_registered(claims_on_gpu(read_claims()))


def list_registered(known: Mapping[str, Claim]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return key and value of the YAML of claims, and their digests, by name, of those that are registered."""
    claims, digests = {}, {}
    for name, claim in known.items():
        if find_registration(claim) is not None:
            claims[name] = claim.content
            digests[name] = claim.digest
    return claims, digests


def tell_all_changes(root: Path) -> dict[str, str]:
    """Return in which settings the words of published claims ask for other runs than when they were registered."""
    changes = {}
    for name, claim in read_claims().items():
        if (root / PUBLISHED / f"{name}.json").exists():
            changes[name] = tell_changes(claim)
    return changes


def publish(folder: Path, root: Path) -> list[str]:
    """Copy the results of registered claims to docs/claims, without the places of a machine; return their names.

    Their values are judged again, so that all that is published follows from the rules of today.
    """
    digests = registered_claims()[1] | registered_on_gpu()[1]
    published = []
    left_out = list[str]()
    results = read_results(folder, left_out)
    refuse_left_out(left_out)
    for name, result in results.items():
        if digests.get(name) != result.digest or result.status is Status.TRIAL:
            continue
        words = tuple(word for word in result.words if key_of(word) not in PLACES)
        (root / PUBLISHED).mkdir(exist_ok=True)
        write_result(replace(result, words=words, report=""), root / PUBLISHED / f"{name}.json")
        published.append(name)
    return published


def refuse_left_out(left_out: Sequence[str]) -> None:
    """Refuse to make anything of results of which some cannot be used.

    Raises:
        UsageError: with the first of them.
    """
    if left_out:
        raise UsageError(f"{left_out[0]}: restore it, or publish it again")


def write_documents(root: Path) -> list[Path]:
    """Write the page on claims, its figures and the README's table; return the files that were written.

    Raises:
        UsageError: a published result is damaged.
    """
    claims, digests = registered_claims()
    left_out = list[str]()
    suite = read_suite(root / PUBLISHED, claims, digests, left_out, tell_all_changes(root))
    suite = put_beside(suite, read_suite(root / PUBLISHED, *registered_on_gpu(), left_out))
    refuse_left_out(left_out)
    figures = draw_forest(suite.entries)
    written = []
    for figure in figures:
        path = root / PUBLISHED / f"{figure.name}.svg"
        write_bytes(path, figure.svg.encode())
        written.append(path)
    page = root / PAGE
    write_bytes(page, make_page(suite, figures).encode())
    written.append(page)
    readme = root / README
    text = readme.read_text("utf-8")
    changed = with_results(text, suite)
    if changed != text:
        write_bytes(readme, changed.encode())
        written.append(readme)
    return written


def make_page(suite: Suite, figures: Sequence[Figure]) -> str:
    """Return docs/claims.md."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    judged = [entry for entry in suite.entries if entry.judgement is not None]
    unsettled = [entry for entry in suite.entries if entry.standing == NOT_SETTLED]
    others = [
        entry for entry in suite.entries if entry.standing not in (NOT_SETTLED, WITHDRAWN) and not entry.judgement
    ]
    template = environment.get_template(TEMPLATE)
    return template.render(
        on_gpu=has_any_on_gpu(suite.entries),
        sentences=write_suite(suite),
        verdicts=verdict_rows(judged, on_gpu=has_any_on_gpu(suite.entries)),
        figures=say_once(show_figure(figure, figure.svg) for figure in figures),
        inconclusive=inconclusive_rows(judged),
        notes=noted_rows([*judged, *unsettled]),
        confounds=confound_rows([*judged, *unsettled]),
        unsettled=unsettled_rows(unsettled),
        others=other_rows(others),
        worth=worth_rows(judged),
        rates=rates_rows(judged),
        one_rate=one_rate_rows(judged),
        machines=machines_of(judged),
        withdrawn=withdrawn_rows(suite.withdrawn),
        witnessed=witnessed_rows(judged),
    )


def unsettled_rows(unsettled: Sequence[RegisteredClaim]) -> list[str]:
    """Return the rows of the table of claims that lost their verdict, with what their runs alone have come to."""
    rows = []
    for entry in unsettled:
        judgement = entry.by_runs_alone
        assert judgement is not None
        said = (
            f"{cell(write_tested(entry.claim))}, `{entry.name}`",
            f"{cell(entry.claim['published'])} ({cell(entry.claim['source'])})",
            f"<s>{judgement.verdict}</s>",
            tell_effect(judgement, entry.unit),
            cell(entry.opposed),
            cell(entry.claim["scope"]),
        )
        rows.append(f"| {' | '.join(said)} |")
    return rows


def other_rows(others: Sequence[RegisteredClaim]) -> list[str]:
    """Return the rows of the table of claims without a verdict, with that on a GPU where there is one."""
    rows = []
    for entry in others:
        there = write_on_gpu(entry)
        reason = entry.reason if there == NONE else f"{entry.reason}; on a GPU: {there}"
        rows.append(f"| {cell(entry.claim['claim'])} | `{entry.name}` | {cell(reason)} |")
    return rows


def verdict_rows(judged: Sequence[RegisteredClaim], *, on_gpu: bool = False) -> list[str]:
    """Return the rows of the table of verdicts. on_gpu: with a column for those on a GPU."""
    rows = []
    for entry in judged:
        judgement = entry.judgement
        assert judgement is not None
        said = (
            f"{cell(write_tested(entry.claim))}, `{entry.name}`",
            f"{cell(entry.claim['published'])} ({cell(entry.claim['source'])})",
            f"**{entry.standing}**",
            tell_effect(judgement, entry.unit),
            ", ".join(filter(None, [write_corrected(entry), write_corrected_p(entry)])),
            cell(entry.claim["scope"]),
        )
        there = (cell(write_on_gpu(entry)),) if on_gpu else ()
        rows.append(f"| {' | '.join([*said, *there])} |")
    return rows


def tell_effect(judgement: ClaimedEffect, unit: str) -> str:
    """Write the effect of a claim with its interval and seeds."""
    interval = write_interval(judgement)
    seeds = count(judgement.n, "seed")
    told = seeds if interval == NONE else f"{interval}; {seeds}"
    return f"{write_effect(judgement, unit)} ({told})"


def inconclusive_rows(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return the rows of the table of claims that the seeds do not settle."""
    rows = []
    for entry in judged:
        judgement = entry.judgement
        if judgement is not None and judgement.verdict is Verdict.INCONCLUSIVE:
            said = (
                f"`{entry.name}`",
                tell_effect(judgement, entry.unit),
                short(entry.margin),
                write_power(judgement),
                write_settling(entry),
            )
            rows.append(f"| {' | '.join(said)} |")
    return rows


def noted_rows(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return a line for each claim of which a reader must know more than the verdict."""
    rows = []
    for entry in judged:
        notes = list_notes(entry)
        if notes:
            rows.append(f"- `{entry.name}`: {' '.join(notes)}")
    return rows


def confound_rows(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return a line for each claim that names what else may be behind its effect, as it was registered."""
    rows = []
    for entry in judged:
        confounds = [str(confound).strip() for confound in entry.claim.get("confounds") or ()]
        if confounds:
            rows.append(f"- `{entry.name}`: {' '.join(confounds)}")
    return rows


def withdrawn_rows(withdrawn: Sequence[RegisteredClaim]) -> list[str]:
    """Return the rows of the table of claims that are withdrawn, with their verdicts struck out."""
    rows = []
    for entry in withdrawn:
        verdicts = [f"<s>{verdict}</s>" for verdict in list_older(entry)]
        said = (
            f"{cell(entry.claim['claim'])}, `{entry.name}`",
            "; ".join(verdicts) or "its runs have not been made",
            cell(tell_withdrawal(entry)),
        )
        rows.append(f"| {' | '.join(said)} |")
    return rows


def worth_rows(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return the rows of the table of what differences in loss are worth."""
    rows = []
    for entry in judged:
        words = write_worth_of_claim(entry.result)
        if words:
            rows.append(f"| `{entry.name}` | {words} | {' '.join(list_limits_of_worth(entry.result)) or NONE} |")
    return rows


def rates_rows(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return a row for each arm whose learning rates were chosen by losses that were kept."""
    rows = []
    for entry in judged:
        all_of_claim = (entry.result.tuning if entry.result else None) or ()
        for place, tuning in enumerate(all_of_claim):
            name = "" if place else f"`{entry.name}`"
            costs = "<br>".join(list_costs(tuning, entry)) or NONE
            rows.append(f"| {name} | {name_kind(tuning, all_of_claim)} | {write_chosen(tuning)} | {costs} |")
    return rows


def one_rate_rows(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return a row for each claim of whose arms the runs that chose rates tell the effect at one rate for all."""
    rows = []
    for entry in judged:
        at_one_rate = list_at_one_rate(entry)
        if at_one_rate and entry.judgement is not None:
            effect = tell_effect(entry.judgement, entry.unit)
            rows.append(f"| `{entry.name}` | {effect} | {'<br>'.join(at_one_rate)} |")
    return rows


def machines_of(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return the machines and versions of the runs, each once, with how long they took there.

    Runs that several claims share count once, with the claim whose runs they are.
    """
    minutes = dict[str, float]()
    for entry in judged:
        result = entry.result
        if result is not None:
            took = result.minutes or 0.0
            is_shared = bool(result.claim.get("runs_of"))
            everywhere = {key: value for key, value in result.machine.items() if key != "commit"}
            machine = write_machine(replace(result, machine=everywhere))
            minutes[machine] = minutes.get(machine, 0.0) + (0.0 if is_shared else took)
    return [f"{machine}: {write_minutes(took)}" for machine, took in minutes.items()]


def witnessed_rows(judged: Sequence[RegisteredClaim]) -> list[str]:
    """Return a line for each commit of runs that holds the registrations of their claims, and one for all others."""
    names = dict[str, list[str]]()
    for entry in judged:
        names.setdefault(entry.witness, []).append(f"`{entry.name}`")
    rows = []
    for witness in sorted(names, key=lambda witness: (not witness, witness)):
        beginning = f"commit `{witness[:9]}`" if witness else "by our own word alone"
        rows.append(f"- {beginning}: {', '.join(sorted(names[witness]))}")
    return rows


def with_results(readme: str, suite: Suite) -> str:
    """Return the README with the table of results; as it is where no claim of the table is registered."""
    chosen = choose_rows(suite)
    if not chosen:
        return readme
    beginning = "`normbench claims` tests published claims again, each registered before its runs."
    how = "Three that people ask about:"
    taken_back = [write_withdrawn(suite.withdrawn)] if suite.withdrawn else []
    whole = " ".join([write_suite(suite)[-1], *taken_back])
    ending = f"{whole} [All claims](docs/claims.md); [other results](docs/results.md)."
    lines = [
        HEADING,
        *wrap(f"{beginning} {how}", WIDTH, break_on_hyphens=False),
        "",
        "| claim | after Holm | effect, positive as published | margin | scale |",
        "|---|---|---|---|---|",
        *(row_of_readme(entry) for entry in chosen),
        "",
        *wrap(" ".join([*explain_parity(chosen), ending]), WIDTH, break_on_hyphens=False),
        "",
        "",
    ]
    start = readme.index(HEADING)
    end = readme.index(AFTER)
    return readme[:start] + "\n".join(lines) + readme[end:]


def choose_rows(suite: Suite) -> list[RegisteredClaim]:
    """Return the first claims that people ask about, whatever came out; for one that is withdrawn that in its place."""
    by_name = {entry.name: entry for entry in suite.entries}
    chosen = []
    for name in MOST_WANTED:
        entry = by_name.get(name)
        if entry is not None and entry.withdrawn and entry.withdrawn["by"]:
            entry = by_name.get(entry.withdrawn["by"][0])
        if entry is not None:
            chosen.append(entry)
    return chosen[:ROWS]


def row_of_readme(entry: RegisteredClaim) -> str:
    """Return the row of a claim in the README's table."""
    work = str(entry.claim["source"]).partition(",")[0]
    said = (
        f"{cell(entry.claim['claim'])} ({cell(work)})",
        tell_headline(entry),
        NONE if entry.judgement is None else tell_effect(entry.judgement, entry.unit),
        f"{short(entry.margin)} {entry.unit}",
        cell(entry.claim["scope"]),
    )
    return f"| {' | '.join(said)} |"


def tell_headline(entry: RegisteredClaim) -> str:
    """Write the verdict that Holm's correction leaves, and that of the claim by itself where it is another."""
    verdict = entry.corrected.verdict
    if verdict is None:
        return f"{entry.standing}: {cell(entry.reason)}" if entry.opposed else cell(entry.standing)
    alone = "" if verdict == entry.standing else f" ({entry.standing} by itself)"
    return f"{verdict}{alone}" if verdict is Verdict.INCONCLUSIVE else f"**{verdict}**{alone}"


def explain_parity(chosen: Sequence[RegisteredClaim]) -> list[str]:
    """Return a sentence on intervals without 0 beside parity, which looks like a contradiction; nothing without one."""
    for entry in chosen:
        is_parity = entry.judgement is not None and entry.judgement.verdict is Verdict.PARITY
        if is_parity and entry.deciding is not None and not entry.deciding.lower <= 0 <= entry.deciding.upper:
            return ["*Parity* beside a 90 % interval without 0: a difference too small to matter."]
    return []
