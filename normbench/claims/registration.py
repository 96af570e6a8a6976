"""Registrations, which fix claims before their runs: the digests of claims, and the lines of REGISTERED.

A line is NAME DATE DIGEST REASON. The digest is of one of two schemes:

    1   a bare sha256, as claims were registered until 2026-11-29: of the words and the rule of a claim alone.
    2   `2:` and a sha256: of all that the YAML says but for what is not known before (OUTSIDE), and of the
        configuration of each run that its words ask for, as it was composed then: that of configurations/NAME.json.

A claim is held to the scheme of its last registration, so that those of scheme 1 stay valid as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from normbench.errors import UsageError
from normbench.record.files import read_json
from normbench.record.machine import CHANGES, ask_git
from normbench.settings import drop_keys
from normbench.wording import count

if TYPE_CHECKING:
    from normbench.claims.claim import Claim

FOLDER = "claim"  # of YAMLs, in conf/ and in folders of a person's own
REGISTERED = "REGISTERED"  # beside the YAMLs
CONFIGURATIONS = "configurations"  # the folder, beside the YAMLs, of the runs' configurations at registration

WORDS_ALONE = 1
SCHEME = 2  # of new registrations

# What of a claim is in no digest, by scheme: it may be mended, or added to, without a new registration.
OUTSIDE = {
    WORDS_ALONE: (
        "registered", "source", "published", "published_effect", "needs", "pilot", "minutes", "confounds", "found",
        "withdrawn", "on_gpu",
    ),
    SCHEME: ("registered", "needs", "minutes", "found", "withdrawn", "on_gpu"),
}  # fmt: skip

DIGEST = re.compile(r"(?:(?P<scheme>2):)?(?P<sha256>[0-9a-f]{64})")


@dataclass(frozen=True)
class Registration:
    """A line of REGISTERED.

    Attributes:
        name: of the claim.
        date: as 2026-11-28.
        scheme: of the digest.
        digest: sha256 of what is registered.
        reason: why the claim was registered, or registered again.
    """

    name: str
    date: str
    scheme: int
    digest: str
    reason: str

    @property
    def line(self) -> str:
        """Return the line."""
        mark = "" if self.scheme == WORDS_ALONE else f"{self.scheme}:"
        return f"{self.name} {self.date} {mark}{self.digest} {self.reason}"


def read_registrations(folder: Path) -> Mapping[str, tuple[Registration, ...]]:
    """Return the registrations that a folder of claims notes, by the claim's name, the last one last.

    Raises:
        UsageError: a line is damaged.
    """
    path = folder / REGISTERED
    return parse_registrations(path, path.read_text("utf-8")) if path.exists() else {}


@lru_cache(maxsize=4)
def parse_registrations(path: Path, text: str) -> Mapping[str, tuple[Registration, ...]]:
    """Return what `read_registrations` does, parsed once for all claims of a folder, each of which asks for its own.

    All of them get the same mapping, which so cannot be changed.

    Args:
        path: of the file, for errors.
        text: what it holds.
    """
    registrations = dict[str, tuple[Registration, ...]]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        registration = parse_line(line)
        if registration is None:
            raise UsageError(f"{path}, line {number} is not NAME DATE SHA256 REASON: restore it")
        earlier = registrations.get(registration.name, ())
        registrations[registration.name] = (*earlier, registration)
    return MappingProxyType(registrations)


def parse_line(line: str) -> Registration | None:
    """Return what a line of REGISTERED says; None where it is damaged."""
    parts = line.split(maxsplit=3)
    digest = DIGEST.fullmatch(parts[2]) if len(parts) == 4 else None
    if digest is None:
        return None
    name, date, _, reason = parts
    return Registration(name, date, int(digest["scheme"] or WORDS_ALONE), digest["sha256"], reason)


def registrations_of(claim: Claim) -> tuple[Registration, ...]:
    """Return the registrations of a claim, the last one last."""
    return read_registrations(claim.path.parent).get(claim.name, ())


def scheme_of(folder: Path, name: str) -> int:
    """Return the scheme to which a claim of a folder is held: that of its last registration, or of new ones."""
    noted = read_registrations(folder).get(name)
    return noted[-1].scheme if noted else SCHEME


def find_registration(claim: Claim) -> Registration | None:
    """Return the registration of a claim as it stands now; None where it is not registered, or was changed since."""
    noted = registrations_of(claim)
    if noted and noted[-1].digest == claim.digest and noted[-1].date == claim.registered:
        return noted[-1]
    return None


def why_unregistered(claim: Claim) -> str:
    """Return why a claim cannot be judged as it stands; empty where it is registered."""
    if find_registration(claim):
        return ""
    command = f"normbench claims {claim.name}"
    if claim.base:
        command += " --device cuda"
    if claim.is_own:
        command += f" --config-dir {shlex.quote(str(claim.path.parent.parent))}"
    cure = f"{command} --register --reason '…' does so, and --trial runs it without a verdict"
    noted = registrations_of(claim)
    if noted:
        return f"{claim.name} is not as it was registered on {noted[-1].date}: {cure}"
    return f"{claim.name} is not registered: {cure}"


# ---- what others can check


def tell_digest(folder: Path) -> str:
    """Say what the sha256 of all lines of REGISTERED is, and how it is used. folder: of claims."""
    path = folder / REGISTERED
    lines = path.read_bytes().splitlines(keepends=True)
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    why = "in a signed tag or with a timestamp service, it proves that they are older than that"
    check = f"head -n {len(lines)} {shlex.quote(str(path))} | sha256sum"
    return f"the sha256 of {path} ({count(len(lines), 'line')}) is {digest}: published, {why}; {check} gives it again"


def find_witness(name: str, digest: str, commits: Sequence[str | None]) -> str:
    """Return a commit of the runs of a claim of ours where all hold the registration, which is older than they.

    Empty where one does not, or is not in this checkout: that the registration is older is then our own word.

    Args:
        name: of the claim.
        digest: of the registration for which the runs were made.
        commits: with which they were made, as their records name them.
    """
    known = [str(commit or "").removesuffix(CHANGES) for commit in commits]
    for commit in known:
        if not re.fullmatch(r"[0-9a-f]{40}", commit) or (name, digest) not in registered_in(commit):
            return ""
    return known[0] if known else ""


@cache
def registered_in(commit: str) -> frozenset[tuple[str, str]]:
    """Return the names and digests of the registrations that a commit of this checkout holds."""
    try:
        text = ask_git("show", f"{commit}:conf/{FOLDER}/{REGISTERED}")
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    noted = [parse_line(line) for line in text.splitlines()]
    return frozenset((one.name, one.digest) for one in noted if one is not None)


# ---- digests


def digest_of(content: Mapping[str, Any], scheme: int, configurations: str = "", runs_of: str = "") -> str:
    """Return the sha256 that fixes a claim.

    Args:
        content: key and value of its YAML.
        scheme: of the digest.
        configurations: `digest_of_json` of those of its runs, which scheme 2 covers.
        runs_of: digest of the claim whose runs these are, in the same scheme; empty where it has runs of its own.
    """
    covered = covered_by(content, scheme)
    if scheme == WORDS_ALONE:
        digest = digest_of_json(covered)
        return hashlib.sha256(f"{digest} {runs_of}".encode()).hexdigest() if runs_of else digest
    given = {}
    for key, value in covered.items():
        if value not in (None, "", [], {}):  # so that a key which claims get later changes no digest
            given[key] = value
    return digest_of_json({"claim": given, "configurations": configurations, "runs_of": runs_of})


def covered_by(content: Mapping[str, Any], scheme: int) -> dict[str, Any]:
    """Return what of a claim a digest covers. content: key and value of its YAML."""
    covered = drop_keys(content, *OUTSIDE[scheme])
    if content.get("at_scale"):
        covered["at_scale"] = content["at_scale"]["words"]  # hours and machine are guesses
    return covered


def digest_of_json(content: Any) -> str:
    """Return the sha256 of what a JSON holds, whatever the order of its keys and its blanks."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def configurations_file(folder: Path, name: str) -> Path:
    """Return the file with the configurations of a claim's runs, as they were when it was registered."""
    return folder / CONFIGURATIONS / f"{name}.json"


def digest_configurations(folder: Path, name: str) -> str:
    """Return the digest of the configurations of a claim's runs; empty where there are none."""
    content = read_json(configurations_file(folder, name))
    return "" if content is None else digest_of_json(content)
