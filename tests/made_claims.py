"""Claims with made-up results, in a folder as runs of claims leave it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from normbench.claims.files import write_result
from normbench.results.claimed import ClaimResult, Status
from normbench.results.rules import ClaimKind

NOW, BEFORE = "a" * 64, "b" * 64
MACHINE = {"processor": "Xeon", "cores": 2, "torch": "2.13.0", "normbench": "1.0", "commit": "fa7f780aa0011"}
SHAPE = np.array([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]) / 3.5  # ten seeds with a standard deviation of 1


def content(claim: str, kind: ClaimKind, margin: float, **more: Any) -> dict[str, Any]:
    """The YAML of a claim."""
    common = {
        "claim": claim,
        "source": "Ba, Kiros & Hinton 2016",
        "published": "31.2 to 31.6 BLEU",
        "registered": "2026-11-28",
        "words": ["model=nano"],
        "seeds": [10],
        "arms": {"one": {"norm": ["rmsnorm"]}, "two": {"norm": ["layernorm"]}},
        "measure": "loss/val",
        "effect": "two - one",
        "target": 0.0,
        "unit": "nats",
        "minutes": 13.0,
        "at_scale": {"words": ["model=gpt2"], "hours": 60, "machine": "one H100"},
        "scope": "0.8 million parameters, 500 steps",
        "confounds": ["The rate was chosen with one seed."],
    }
    return common | {"kind": str(kind), "margin": margin} | more


def complete(
    name: str, claim: Mapping[str, Any], mean: float, sd: float = 0.01, digest: str = NOW, **more: Any
) -> ClaimResult:
    """The result of a claim whose ten seeds have this mean and standard deviation."""
    values = {seed: float(mean + sd * one) for seed, one in enumerate(SHAPE)}
    arms = {"one": dict.fromkeys(values, 2.0), "two": {seed: 2.0 + value for seed, value in values.items()}}
    common = {
        "claim": claim,
        "values": values,
        "arms": arms,
        "minutes": 12.5,
        "machine": MACHINE,
        "date": "2026-11-28",
        "report": "report/report.html",
        "words": ("norm=rmsnorm,layernorm", "sweep.stack=10", "outputs=/data"),
    }
    return ClaimResult(name, digest, "2026-11-28", Status.COMPLETE, **(common | more))


# By name: the claim and its result, None where it is not run.
MADE: dict[str, tuple[dict[str, Any], float | None]] = {
    "larger": (
        content(
            "Larger <b>&</b> better",
            ClaimKind.LARGER,
            0.02,
            published_effect=0.05,
            found=[{"date": "2026-12-24", "what": "The wind helped."}],
        ),
        0.03,
    ),
    "smaller": (content("Real, but small", ClaimKind.LARGER, 0.05), 0.02),
    "worse": (content("Worse than published", ClaimKind.LARGER, 0.02), -0.5),
    "same": (content("As good as the other", ClaimKind.PARITY, 0.03), 0.004),
    "open": (content("Perhaps as good", ClaimKind.PARITY, 0.01), 0.006),
    "harmless": (content("At least as good", ClaimKind.AT_LEAST, 0.03), 0.0),
    "slope": (content("Falls as 1/√L", ClaimKind.SLOPE, 0.1, target=-0.5, unit=""), -0.47),
    "exact": (content("Exactly equal", ClaimKind.EXACT, 1e-9, unit=""), 0.0),
    "later": (content("Nobody has tried it", ClaimKind.LARGER, 0.02), None),
}


def claims_and_digests() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """All claims that are registered, and their digests."""
    claims = {name: claim for name, (claim, _) in MADE.items()}
    claims["data"] = content("Needs data", ClaimKind.LARGER, 0.02)
    claims["tried"] = content("Tried with other words", ClaimKind.LARGER, 0.02)
    claims["moved"] = content("Registered again", ClaimKind.LARGER, 0.02)
    return claims, dict.fromkeys(claims, NOW)


def write_all(folder: Path) -> None:
    """Write the results of all claims; one is registered again after its runs, and one has older ones beside."""
    claims, _ = claims_and_digests()
    results = []
    for name, (claim, mean) in MADE.items():
        if mean is not None:
            sd = 0.0 if name == "exact" else 0.01
            lost = {"two": 2} if name == "larger" else {}
            unreached = {"one": 3} if name == "larger" else {}
            results.append(complete(name, claim, mean, sd, lost=lost, unreached=unreached))
    why = "data=wikitext2 is not there"
    results.append(ClaimResult("data", NOW, "2026-11-28", Status.NOT_RUN, why, claims["data"]))
    results.append(ClaimResult("tried", NOW, "", Status.TRIAL, "", claims["tried"], {100: 0.1, 101: 0.3}))
    results.append(complete("moved", claims["moved"] | {"margin": 0.01}, 0.07, digest=BEFORE))
    for result in results:
        (folder / result.name).mkdir(parents=True)
        write_result(result, folder / result.name / "claim.json")
    older = folder / "older" / f"same-{BEFORE[:8]}"
    older.mkdir(parents=True)
    write_result(complete("same", claims["same"], 0.2, digest=BEFORE), older / "claim.json")
