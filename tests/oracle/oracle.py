"""Keeps what this version says, and tells where another one says something else.

    python tests/oracle/oracle.py keep FILE            of this checkout, in two to four minutes of a core
    python tests/oracle/oracle.py compare BEFORE AFTER

Kept are answers and tables of the sweeps in sweeps.py, rows of small studies, verdicts on published claims from their
values by seed, names of runs of two hundred configurations, help pages and public signatures. Numbers may differ by
1e-12, as where the order of a sum has changed; names, verdicts, keys and signatures not at all. Sentences and help
pages are wordings: where they differ it is told, and exit status 1 is for everything else.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import inspect
import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]

CLOSE = 1e-12  # of two numbers, as a share of the larger one
WORDS = re.compile(r"\s.*\s")  # a value with two spaces is a sentence
PLACE = re.compile(r"(/\S*)?/oracle-\w+")  # of the temporary folder
WORDINGS = ("help",)
TIMES = ("time", "low", "high")  # columns of study folding, which are measured

TINY = "model.depth=2 model.width=32 model.heads=2 model.context=16 data.batch_size=4 probes=off threads=1 device=cpu"
NAMED_NORMS = ("batchnorm", "layernorm", "rmsnorm", "prmsnorm", "dyt", "derf", "groupnorm", "seednorm", "none")
NAMED_PLACEMENTS = ("pre", "post", "deep", "post_inside", "sandwich", "parallel", "lns", "keel", "resi_dual")
FURTHER_RUNS = (
    "model=cnn data=digits norm=groupnorm norm.groups=4",
    "model=resnet20 data=digits norm=batchnorm norm.momentum=null",
    "model=vit_tiny data=digits norm=dyt norm.alpha0=0.8",
    "model=mlp data=digits norm=rmsnorm placement=sandwich",
    "model=rnn_lm norm=layernorm placement=plain",
    "norm=layernorm norm@qk=rmsnorm norm@final=none",
    "norm=rmsnorm placement@first25pct=post",
    "weights=weight_norm init=orthogonal",
    "optim=muon norm=rmsnorm",
    "trainer.ema=0.9 trainer.accumulate=2 schedule=onecycle",
    "scheme=llama",
    "scheme=gpt2",
    "scheme=olmo2",
    "scheme=ngpt",
    "scheme=nanochat",
)
STUDIES = (
    ("propagation", "norm=layernorm,rmsnorm placement=pre,post seed=0,1"),
    ("invariance", "norm=layernorm,batchnorm,dyt"),
    ("folding", "norm=layernorm,rmsnorm"),
)


# ---- what this version says


def keep() -> dict[str, Any]:
    """Return all that is compared, by its section."""
    sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]
    import torch

    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "100"
    with tempfile.TemporaryDirectory(prefix="oracle-") as name, contextlib.chdir(name):
        answers, tables = keep_reports(Path("sweeps"))
        found = {
            "answers": answers,
            "tables": tables,
            "studies": keep_studies(),
            "claims": keep_claims(),
            "names": keep_names(),
            "help": keep_help(),
            "signatures": keep_signatures(),
        }
    return json.loads(json.dumps(found))  # tuples and keys as a file has them


def keep_reports(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answers to the sweeps, and their tables, by the name of the sweep and the file."""
    from sweeps import SWEEPS

    from normbench.show.report import make_reports, save_all

    answers, tables = dict[str, Any](), dict[str, Any]()
    for name, make in SWEEPS.items():
        make(folder / name)
        reports = make_reports([folder / name])
        save_all(reports, [folder / name], folder / name / "report")
        for file in sorted((folder / name / "report").rglob("answer.json")):
            answers[f"{name}/{file.parent.name}"] = json.loads(file.read_text())
        for file in sorted((folder / name / "report").rglob("*.csv")):
            tables[f"{name}/{file.parent.name}/{file.name}"] = read_csv(file)
        print(f"{name}: {len(reports)} report(s)", file=sys.stderr)
    return answers, tables


def read_csv(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, with numbers as such."""
    with file.open(newline="") as lines:
        return [{key: as_number(value) for key, value in row.items()} for row in csv.DictReader(lines)]


def as_number(text: str) -> float | str:
    """Return the number that a text is, or the text."""
    try:
        return float(text)
    except ValueError:
        return text


def keep_studies() -> dict[str, Any]:
    """Return the rows of studies of models as they start."""
    from normbench.studies.study import run_study

    found = {}
    for name, words in STUDIES:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            folder = run_study(name, [*words.split(), *TINY.replace("probes=off ", "").split(), f"name={name}"])
        assert folder is not None
        rows = read_csv(folder / "rows.csv")
        found[name] = [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
    return found


def keep_claims() -> dict[str, Any]:
    """Return the verdict on each published claim from its values by seed, and what correction leaves of them all."""
    from dataclasses import asdict

    from normbench.results.claimed import judge, rule_of
    from normbench.results.family import correct_verdicts

    found, judgements = dict[str, Any](), {}
    for file in sorted((CHECKOUT / "docs/claims").glob("*.json")):
        content = json.loads(file.read_text())
        values = {int(seed): value for seed, value in content["values"].items()}
        judgements[file.stem] = judge(values, rule_of(content["claim"]))
        found[file.stem] = judgements[file.stem].derive()
    found["corrected"] = {name: asdict(one) for name, one in correct_verdicts(judgements).items()}
    return found


def keep_names() -> dict[str, str]:
    """Return the name of the directory of each of many runs, by its words."""
    from composing import hasten

    from normbench.config import compose
    from normbench.errors import UsageError
    from normbench.runs.plan import prepare

    hasten()
    every = [f"norm={norm} placement={place}" for norm, place in product(NAMED_NORMS, NAMED_PLACEMENTS)]
    every += [f"norm={norm} model=cnn data=digits seed={seed}" for norm, seed in product(NAMED_NORMS, range(10))]
    every += FURTHER_RUNS
    found = dict[str, str]()
    for words in every:
        small = "" if "data=digits" in words or "scheme=" in words else TINY
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                config = compose.read([*words.split(), *small.split(), "trainer.steps=10", "device=cpu", "threads=1"])
                found[words] = prepare(config).directory.path.name
            except UsageError:
                found[words] = "is refused"
    return found


def keep_help() -> dict[str, str]:
    """Return the help page of each command."""
    from normbench.cli import cli, main

    found = {}
    for command in sorted(cli.commands):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([command, "--help"])
        found[command] = printed.getvalue()
    return found


def keep_signatures() -> dict[str, str]:
    """Return the signature of each public name."""
    import normbench

    found = {}
    for name in normbench.__all__:
        one = getattr(normbench, name)
        found[name] = str(inspect.signature(one)) if callable(one) else type(one).__name__
    return found


# ---- how two versions differ


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield where two values differ: the path to the place, and what each has there."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key, "nothing"), after.get(key, "nothing"), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{path}/{place}")
    elif not is_same(before, after):
        yield path, str(before), str(after)


def is_same(before: Any, after: Any) -> bool:
    """Tell whether two values are equal, numbers to rounding and texts but for the temporary folder."""
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after))
    if are_numbers:
        both_missing = math.isnan(before) and math.isnan(after)
        return both_missing or math.isclose(before, after, rel_tol=CLOSE, abs_tol=CLOSE)
    if isinstance(before, str) and isinstance(after, str):
        return PLACE.sub("", before) == PLACE.sub("", after)
    return bool(before == after)


def is_wording(path: str, before: str, after: str) -> bool:
    """Tell whether a difference is one of words that people read."""
    section = path.split("/")[1]
    return section in WORDINGS or bool(WORDS.search(before) and WORDS.search(after))


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """Print where two versions differ; return 1 where it is more than wordings."""
    found = list(differences(before, after))
    wordings = [one for one in found if is_wording(*one)]
    others = [one for one in found if not is_wording(*one)]
    for title, some in (("Wordings", wordings), ("Numbers, names and signatures", others)):
        print(f"{title}: {len(some)} differ.")
        for path, old, new in some:
            print(f"  {path}\n    - {old[:300]}\n    + {new[:300]}")
    return 1 if others else 0


def main(words: Sequence[str] | None = None) -> int:
    """Keep or compare; return the exit status."""
    parser = argparse.ArgumentParser(description="Keeps what a version says, and compares two.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("keep").add_argument("file", type=Path)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args(words)
    if given.command == "keep":
        file = given.file.absolute()
        file.write_text(json.dumps(keep(), indent=1, sort_keys=True) + "\n")
        return 0
    return compare(json.loads(given.before.read_text()), json.loads(given.after.read_text()))


if __name__ == "__main__":
    sys.exit(main())
