"""Claims on a GPU: sentences that have a claim already, tested with larger models where one lease of a GPU bears it.

Each is a claim of its own, with the words, the seeds and the scope of the section `on_gpu` in the YAML: registered by
itself under NAME-on-gpu, so that the verdict at the claim's own scale stays as it is, and corrected for those on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from normbench.claims.checks import GPU
from normbench.claims.claim import ON_GPU_SUFFIX, Claim, as_json, listed
from normbench.claims.registration import read_registrations, scheme_of
from normbench.wording import one_line


def claims_on_gpu(claims: Mapping[str, Claim]) -> dict[str, Claim]:
    """Return the claims on a GPU by name, of all that say how they are tested there and are not withdrawn.

    claims: all of them, by name.

    Raises:
        UsageError: one has the runs of a claim that does not say how it is tested there.
    """
    derived = {}
    for claim in claims.values():
        if claim.on_gpu is not None and not claim.withdrawn:
            one = derive(claim, claims[claim.runs])
            derived[one.name] = one
    return derived


def derive(claim: Claim, owner: Claim) -> Claim:
    """Return a claim as it is tested on a GPU. owner: the claim whose runs are measured, the same or another."""
    section, runs = claim.on_gpu, owner.on_gpu
    assert section is not None
    if runs is None:
        raise claim.blame("on_gpu", f"on_gpu: {owner.name}, whose runs these are, has no on_gpu: give it one")
    name = f"{claim.name}{ON_GPU_SUFFIX}"
    noted = read_registrations(claim.path.parent).get(name)
    is_owner = claim.name == owner.name
    derived = replace(
        claim,
        name=name,
        base=claim.name,
        registered=noted[-1].date if noted else "",
        words=owner.with_words(runs.words).words,
        seeds=(runs.seeds,) if runs.seeds else owner.seeds,
        kind=section.kind or claim.kind,
        runs_of="" if is_owner else f"{owner.name}{ON_GPU_SUFFIX}",
        needs=tuple(dict.fromkeys([*claim.needs, GPU])),
        pilot=None,
        minutes=(runs.minutes or 0.0) if is_owner else 0.0,
        at_scale=None,
        scope=one_line(section.scope),
        confounds=listed(section.confounds),
        found=(),
        first_seed=None,
        on_gpu=None,
        owner={},  # its words are the derived claim's own
    )
    content = {key: as_json(getattr(derived, key)) for key in claim.content if key not in ("first_seed", "on_gpu")}
    derived = replace(derived, content=content, scheme=scheme_of(claim.path.parent, name))
    return replace(derived, digest=derived.digest_in(derived.scheme))
