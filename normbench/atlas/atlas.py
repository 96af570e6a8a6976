"""All families of models measured, each in a process of its own, and what is published of them."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from normbench.atlas.anatomy import measure_model, measure_norms
from normbench.atlas.families import LENGTH, Built, Family, list_families, norm_settings
from normbench.atlas.passes import first_output
from normbench.errors import UsageError, explain
from normbench.hosts.finding import find
from normbench.hosts.libraries import LIBRARIES
from normbench.processes import begin_trial
from normbench.training.precision import reason_against

PATIENCE = 100  # seconds of CPU time for a family, so that a busy machine measures the same
OTHER_EPS = 3e-4  # that no model has by itself
FEW_SETTINGS = 12  # of a configuration that are tried
LINE = re.compile(r", line \d+")  # of a library's file, which moves with each of its versions

Row = dict[str, Any]


def versions() -> dict[str, str]:
    """Return the versions of what is measured, of each library that is installed, and of torch."""
    found = {"torch": torch.__version__.partition("+")[0]}
    for library in LIBRARIES.values():
        for name, version in library.versions().items():
            found[name] = version.partition("+")[0]
    return found


# ---- measuring


def measure_families(families: Sequence[Family], known: Mapping[str, Row] | None = None) -> Iterator[tuple[str, Row]]:
    """Give the row of each family, or `reason`, why it cannot be measured; each is measured in a process of its own.

    Args:
        families: of them.
        known: rows by their names, of which those with timm and torchvision say which model was measured.
    """
    has_low = not reason_against(torch.device("cpu"), torch.bfloat16)
    warm_up({family.library for family in families})
    for family in families:
        config = (known or {}).get(family.key, {}).get("config", {})
        yield family.key, measure_apart(family, str(config.get("model", "")), has_low)


def warm_up(libraries: Iterable[str]) -> None:
    """Import what all families of a library import, which processes that are forked then have."""
    torch.set_num_threads(1)  # the models are tiny, and a forked process has no other threads
    for library in libraries:
        if library == "hf":
            for name, kind in (("gpt2", "language_model"), ("bert", "text_classification")):
                measure_family(Family("hf", name, kind))
        else:
            LIBRARIES[library].load()


def measure_apart(family: Family, model: str, has_low: bool) -> Row:
    """Return the row of a family, measured in a process that may die of it."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if "fork" in methods else None)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=send_row, args=(there, os.getpid(), family, model, has_low), daemon=True)
    process.start()
    there.close()
    try:
        row: Row = here.recv()
        process.join()
    except EOFError:
        process.join()
        row = {"reason": f"its process died of {name_signal(process.exitcode)}"}
        if process.exitcode == -signal.SIGXCPU:
            row = {"reason": f"it takes more than {PATIENCE} seconds"}
    here.close()
    return row


def name_signal(status: int | None) -> str:
    """Return what a process died of, by its exit status."""
    if status is None or status >= 0:
        return f"status {status}"
    return signal.Signals(-status).name


def send_row(there: Any, parent: int, family: Family, model: str, has_low: bool) -> None:
    """Measure a family and send its row to the process that waits."""
    begin_trial(parent)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)  # torch.export prints the whole of a graph that it cannot follow
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE + 5))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        there.send(measure_family(family, model, has_low))
    except Exception as error:  # of any kind: what is printed goes nowhere, so that the row alone can say what it was
        there.send({"reason": f"it cannot be measured ({explain(error)})"[:300]})


def measure_family(family: Family, model: str = "", has_low: bool = True) -> Row:
    """Return the row of a family, or `reason`, why it cannot be built tiny."""
    torch.manual_seed(0)
    try:
        built = family.build(model=model)
    except Exception as error:  # of a library that is given what it does not take
        return {"reason": explain(error)[:300]}
    alike = None if built.alike is None else built.run_alike
    try:
        row = measure_model(
            built.module, built.run, causal=built.causal, call_alike=alike, length=LENGTH, has_low=has_low
        )
    except UsageError as error:  # the model cannot be called so
        return {"reason": str(error)[:300]}
    except Exception as error:  # of the model's code, which may raise anything
        return {"reason": f"it cannot be measured ({explain(error)})"[:300]}
    row["class"] = type(built.module).__name__
    if family.library == "hf":
        row["settings"] = try_settings(family, built, row)
    else:
        row["config"] = dict(built.config)
    return {name: value for name, value in row.items() if name == "norms" or value not in ("", [], {})}


def try_settings(family: Family, built: Built, row: Row) -> Row:
    """Return what each setting that speaks of norms does: for ε which norms follow it, for a switch what it changes."""
    settings: Row = {}
    all_norms = sum(norm["count"] for norm in row["norms"])
    usual = outline(row["norms"], row["functions"])
    for number, (name, value) in enumerate(norm_settings(built)):
        if number == FEW_SETTINGS:
            break
        changed = (not value) if isinstance(value, bool) else OTHER_EPS
        try:
            torch.manual_seed(0)
            other = family.build({name: changed})
            findings = find(other.module, other.run, other.causal)
            norms = measure_norms(other.module, other.run, findings, has_low=False)
        except Exception as error:  # of a configuration that cannot be so
            settings[name] = {"value": value, "refused": explain(error)[:120]}
            continue
        if isinstance(value, bool):
            is_other = outline(norms, findings.warnings) != usual
            settings[name] = {"value": value, "changes": is_other or gives_other(built, other)}
        else:
            follow = [norm for norm in norms if "eps" in norm and abs(norm["eps"] / OTHER_EPS - 1) < 0.1]
            settings[name] = {
                "value": value,
                "follow": sum(norm["count"] for norm in follow),
                "of": all_norms,
                "others": sorted(describe_norm(norm) for norm in norms if norm not in follow),
            }
    return settings


@torch.no_grad()
def gives_other(built: Built, other: Built) -> bool:
    """Tell whether two models that were drawn from the same seed give something else in evaluation."""
    outputs = [first_output(one.run(one.module)) for one in (built, other)]
    return outputs[0].shape != outputs[1].shape or not torch.equal(*outputs)


def outline(norms: Iterable[Row], functions: Iterable[str]) -> list[str]:
    """Return what norms there are, to be compared."""
    shown = [f"{norm['kind']} {norm.get('eps')} {norm['gain']} {norm.get('shift')} {norm['where']}" for norm in norms]
    return [*shown, *functions]


def describe_norm(norm: Row) -> str:
    """Return where norms stand that do the same, with their class and ε."""
    eps = "no ε" if "eps" not in norm else f"ε {norm['eps']:g}"
    return f"{', '.join(norm['where'])}: {norm['class']}, {eps}"


# ---- comparing


def compare_rows(published: Row, measured: Row) -> list[str]:
    """Return what differs between two rows of a family, a phrase each.

    Norms are compared by where they stand, whichever others do the same as they. The line of a library's file at which
    a model cannot be built does not count.
    """
    if "reason" in published or "reason" in measured:
        return compare_reasons(published, measured)
    found = compare_norms(published["norms"], measured["norms"])
    before, after = ({name: value for name, value in row.items() if name != "norms"} for row in (published, measured))
    return found + differences(before, after)


def compare_reasons(published: Row, measured: Row) -> list[str]:
    """Return what differs where a family could not be measured, once or both times."""
    before, after = (LINE.sub("", str(row.get("reason", ""))) for row in (published, measured))
    if before == after:
        return []
    if not after:
        norms = distinct_norms(measured["norms"])
        return [f"it is measured, with {norms}: it was not ({published['reason']})"]
    if not before:
        return [f"it is not measured any more: {measured['reason']}"]
    return [f"why it is not measured: {published['reason']} → {measured['reason']}"]


def distinct_norms(norms: Iterable[Row]) -> str:
    """Return the classes and kinds of norms, each once."""
    names = dict.fromkeys(f"{norm['class']} ({norm['kind']})" for norm in norms)
    return ", ".join(names) or "no norms"


def compare_norms(published: Iterable[Row], measured: Iterable[Row]) -> list[str]:
    """Return what differs between norms by where they stand; where the same does at several places, once."""
    before, after = norms_by_place(published), norms_by_place(measured)
    phrases: dict[str, list[str]] = {}
    for place in dict.fromkeys([*before, *after]):
        old, new = before.get(place, []), after.get(place, [])
        if not new:
            found = [f"no norm any more: {describe_at(old)}"]
        elif not old:
            found = [f"a norm that was not there: {describe_at(new)}"]
        elif len(old) == len(new):
            found = [phrase for one, other in zip(old, new, strict=True) for phrase in differences(one, other)]
        else:
            found = [f"{describe_at(old)} → {describe_at(new)}"]
        for phrase in found:
            phrases.setdefault(phrase, []).append(place)
    return [f"{', '.join(places)}: {phrase}" for phrase, places in phrases.items()]


def norms_by_place(norms: Iterable[Row]) -> dict[str, list[Row]]:
    """Return what was measured of the norms at each place, and how many there are."""
    places: dict[str, list[Row]] = {}
    for norm in norms:
        facts = {name: value for name, value in norm.items() if name not in ("where", "count", "start")}
        facts["start"] = ", ".join(norm["start"])
        for place, number in norm["where"].items():
            places.setdefault(place, []).append({"count": number, **facts})
    return places


def describe_at(norms: Iterable[Row]) -> str:
    """Return the norms at a place: how many of which class, and the facts by which a person knows them."""
    shown = []
    for norm in norms:
        eps = f", ε {norm['eps']:g}" if "eps" in norm else ""
        shown.append(f"{norm['count']} {norm['class']} ({norm['kind']}{eps})")
    return " and ".join(shown)


def differences(published: Row, measured: Row, path: str = "") -> list[str]:
    """Return what differs between two mappings, nested or not, a phrase each."""
    found = []
    for key in dict.fromkeys([*published, *measured]):
        before, after = published.get(key), measured.get(key)
        where = f"{path}{key}"
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(dict(before), dict(after), f"{where}.")
        elif before != after:
            found.append(f"{where}: {before} → {after}")
    return found


@cache
def families_here() -> tuple[list[Family], dict[str, str]]:
    """Return the families of all libraries that can be used here, and why the others cannot, by their words."""
    families: list[Family] = []
    unusable: dict[str, str] = {}
    for library in LIBRARIES:
        try:
            families += list_families(library)
        except UsageError as reason:
            unusable[library] = str(reason)
    return families, unusable
