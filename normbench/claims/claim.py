"""What a claim is: its YAML, checked key by key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import yaml
from msgspec import Meta, Struct, ValidationError, convert, structs, to_builtins

from normbench.claims.registration import FOLDER, SCHEME, digest_configurations, digest_of, scheme_of
from normbench.config.groups import Loader, config_directory
from normbench.errors import UsageError
from normbench.results.effects import NAMES, Effect, EffectError, parse_effect
from normbench.results.rules import ClaimKind, ClaimRule
from normbench.settings import either, key_of, nearest, show
from normbench.wording import one_line

# Words that a claim does not have, since the command itself gives them, and what to write instead.
FORBIDDEN = {
    "seed": "seeds: says how many there are",
    "name": "the folder has the claim's name",
    "outputs": "outputs= is a word of the command",
    "quiet": "quiet= is a word of the command",
    "device": "device= is a word of the command",
    "threads": "threads= is a word of the command",
    "sweep.report": "the report is always written",
    "sweep.extend": "runs are added as the claim says",
}

# Names that the folder of results, or the command, has for something else.
OLDER = "older"  # the folder of what was made for earlier registrations
FIGURES = "figures"  # the folder of the page's figures
TAKEN = ("all", OLDER, FIGURES)

DAY = r"\d{4}-\d\d-\d\d"
ON_GPU_SUFFIX = "-on-gpu"  # of the name of a claim on a GPU, after that of the one whose sentence it tests there
FIRST_TRIAL_SEED = 100  # seeds below it are for claims alone

Conditions = Mapping[str, tuple[str, ...]]  # the values that a setting or a column may have


Text = Annotated[str, Meta(description="a text")]
Number = Annotated[int | float, Meta(description="a number")]
Words = Annotated[list[str], Meta(description="a list of words such as [model=nano, probes=off]")]
Texts = Annotated[str | list[str], Meta(description="a list of texts")]
Seed = Annotated[int, Meta(ge=0, lt=FIRST_TRIAL_SEED)]


class Pilot(Struct, frozen=True, forbid_unknown_fields=True):
    """What runs with seeds of their own have shown before a claim was registered.

    sd: of the effect, from seed to seed.
    """

    sd: Annotated[float, Meta(ge=0, description="a number from 0: the effect's, over seeds of its own")]
    seeds: Annotated[int | None, Meta(description="a number of seeds")] = None
    date: Text = ""
    machine: Text = ""
    commit: Annotated[str | float, Meta(description="a commit")] = ""  # which YAML may take for a number


class AtScale(Struct, frozen=True, forbid_unknown_fields=True):
    """The words with which a claim is tested at a larger scale, and what that takes."""

    words: Words
    hours: Annotated[int | float | None, Meta(description="a number")] = None
    machine: Text = ""


class OnGpu(Struct, frozen=True, forbid_unknown_fields=True):
    """How a claim is tested on a GPU, where it is a claim of its own; see `on_gpu`.

    Attributes:
        words: in place of the claim's own for the same keys.
        seeds: how many there are.
        minutes: that its runs take on one GPU.
        scope: the scale at which it is tested there.
        kind: what it says of the effect; None for what the claim itself says.
        confounds: what else may be behind the effect there.
    """

    scope: Text
    words: Words = []
    seeds: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="a number of seeds")] = None
    minutes: Annotated[int | float | None, Meta(description="a number")] = None
    kind: Annotated[ClaimKind | None, Meta(description=either(ClaimKind))] = None
    confounds: Texts = []


class Found(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the runs of a claim have shown to be behind its effect, which nobody knew when it was registered.

    Attributes:
        date: on which it was found.
        what: a sentence.
        opposite: where the opposite of the verdict was seen, as in `at a rate of 0.001`; the claim is then not settled.
            Empty where that was not seen.
    """

    date: Annotated[str, Meta(pattern=rf"\A{DAY}\Z", description="a date such as 2026-11-28")]
    what: Text
    opposite: Text = ""


class Withdrawn(Struct, frozen=True, forbid_unknown_fields=True):
    """That the test of a claim was found not to be a fair one of its sentence, after its runs, and counts no longer.

    Attributes:
        date: of that.
        why: what was wrong with the test.
        by: the claims that stand for it, where there are any.
    """

    date: Annotated[str, Meta(pattern=rf"\A{DAY}\Z", description="a date such as 2026-11-28")]
    why: Text
    by: Annotated[list[str], Meta(description="a list of names of claims")] = []


class ClaimForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the YAML of a claim holds, and what is said where a value is something else; see `Claim`."""

    claim: Text
    source: Text
    published: Text
    published_effect: Annotated[int | float | None, Meta(description="a number in the unit of the effect")] = None
    registered: Annotated[str, Meta(pattern=rf"\A({DAY})?\Z", description="a date such as 2026-11-28")] = ""
    words: Words = []
    study: Text = ""
    seeds: Annotated[int | list[int], Meta(description="a number of seeds, or two: the first look and all")] = []
    arms: Annotated[dict[Any, Any], Meta(description="arms such as {rms: norm=rmsnorm, ln: norm=layernorm}")]
    measure: Text
    where: Any = None
    effect: Text
    kind: Annotated[ClaimKind, Meta(description=either(ClaimKind))]
    margin: Annotated[float, Meta(ge=0, description="a number from 0")]
    target: Annotated[float | None, Meta(description="a number")] = None
    unit: Text = ""
    runs_of: Text = ""
    needs: Texts = []
    pilot: Annotated[Pilot | None, Meta(description="what a pilot has shown, as {sd: 0.016, seeds: 5}")] = None
    minutes: Annotated[float | None, Meta(description="a number")] = None
    at_scale: Annotated[AtScale | None, Meta(description="words, hours and machine")] = None
    scope: Text
    confounds: Texts = []
    found: Annotated[list[Found], Meta(description="a list such as [{date: 2026-11-28, what: a sentence}]")] = []
    first_seed: Annotated[Seed | None, Meta(description="a seed, from 0 to 99")] = None
    withdrawn: Annotated[Withdrawn | None, Meta(description="date, why and, where others stand for it, by")] = None
    on_gpu: Annotated[OnGpu | None, Meta(description="words, seeds, minutes and scope")] = None


KEYS = ClaimForm.__struct_fields__
LATER_KEYS = (
    "first_seed",
    "withdrawn",
    "on_gpu",
)  # which the content of a claim has where they are given: it had none before


@dataclass(frozen=True)
class Claim:
    """A published sentence, and how it is tested again.

    Attributes:
        name: of its YAML.
        path: of its YAML.
        claim: the sentence.
        source: where it is published.
        published: the number that is published.
        published_effect: the same as an effect, where the same is measured; None where it is not.
        registered: the date of its registration, as 2026-11-28; empty before that.
        words: of the sweep or the study that makes its runs.
        study: the study whose rows are measured; empty for a sweep.
        seeds: how many there are, or after how many it is looked at first, and in the end.
        arms: the conditions on the runs, or rows, of each arm.
        measure: the tag of a run's final value, or a column of the study's rows.
        where: further conditions on the rows of a study.
        effect: over the arms, for each seed.
        kind: what the claim says of the effect.
        margin: the smallest effect that matters.
        target: the value that theory gives to a slope.
        unit: of the effect.
        runs_of: another claim, whose runs these are; empty where it has its own.
        needs: what must be there: `hub`, `gpu`, or one of the extras or packages.
        minutes: that its runs take on two idle cores.
        scope: the scale at which it is tested.
        confounds: what else may be behind the effect, as far as it was known when the claim was registered.
        found: what was found after the runs to be behind it.
        first_seed: the first of its seeds; None for 0.
        withdrawn: why its test counts no longer; None where it does.
        on_gpu: how it is tested on a GPU; None where that is not said.
        content: the YAML, with what it leaves out.
        owner: the same of the claim whose runs these are; empty where it has its own.
        base: of a claim on a GPU the name of the one whose sentence it tests there; empty for all others.
        scheme: of its digest, one of those of `registration`.
        digest: sha256 of what is registered of it.
        lines: of the YAML, by key.
    """

    name: str
    path: Path
    claim: str
    source: str
    published: str
    published_effect: float | None
    registered: str
    words: tuple[str, ...]
    study: str
    seeds: tuple[int, ...]
    arms: Mapping[str, Conditions]
    measure: str
    where: Conditions
    effect: Effect
    kind: ClaimKind
    margin: float
    target: float
    unit: str
    runs_of: str
    needs: tuple[str, ...]
    pilot: Pilot | None
    minutes: float
    at_scale: AtScale | None
    scope: str
    confounds: tuple[str, ...]
    found: tuple[Found, ...]
    first_seed: int | None
    withdrawn: Withdrawn | None
    on_gpu: OnGpu | None
    content: Mapping[str, Any] = field(repr=False)
    owner: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: str = ""
    scheme: int = SCHEME
    digest: str = ""
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)

    def digest_in(self, scheme: int) -> str:
        """Return the sha256 of what is registered of it in a scheme of `registration`, with configurations as noted."""
        runs_of = digest_of(self.owner, scheme) if self.owner else ""
        return digest_of(self.content, scheme, digest_configurations(self.path.parent, self.name), runs_of)

    @property
    def is_own(self) -> bool:
        """Tell whether it is a person's own, and none of those that come with normbench."""
        return self.path.parent != config_directory() / FOLDER

    @property
    def rule(self) -> ClaimRule:
        """Return the rule by which its effect is judged."""
        return ClaimRule(self.kind, self.margin, self.target, len(self.seeds))

    @property
    def looks(self) -> list[list[int]]:
        """Return the seeds at each look at it."""
        return [list_seeds(self.content, count) for count in self.seeds]

    @property
    def runs(self) -> str:
        """Return the name of the claim whose runs are measured: its own, or another."""
        return self.runs_of or self.name

    def blame(self, key: str, why: str) -> UsageError:
        """Return an error that names the line of a key in the claim's YAML."""
        return UsageError(f"{self.path}, line {self.lines.get(key, 1)}: {why}")

    def with_words(self, words: Sequence[str]) -> Claim:
        """Return the claim with some words in place of its own for the same keys."""
        given_keys = {key_of(word) for word in words}
        remaining = [word for word in self.words if key_of(word) not in given_keys]
        return replace(self, words=(*remaining, *words))


# ---- reading


class Reader:
    """Reads the YAML of one claim, and says in which line a mistake is.

    Raises:
        UsageError: it is not a YAML, or a key is missing, unknown or has a value of another type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, int] = {}
        try:
            text = path.read_text("utf-8")
            loader = Loader(text)
            root = loader.get_single_node()
            content = None if root is None else to_builtins(loader.construct_document(root))  # with dates as texts
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            why = " ".join(str(error).split())
            raise UsageError(f"{path} is not valid YAML ({why}): fix it") from error
        if not isinstance(content, dict):
            raise UsageError(f"{path} is not a claim: write keys and values, as normbench claims --new does")
        for key_node, value_node in root.value:
            self.lines[str(key_node.value)] = key_node.start_mark.line + 1
            if isinstance(value_node, yaml.MappingNode):
                for inner, _ in value_node.value:
                    self.lines[f"{key_node.value}.{inner.value}"] = inner.start_mark.line + 1
        without_nulls = drop_nulls(content)
        for key in SECTIONS:
            if isinstance(without_nulls.get(key), dict):
                without_nulls[key] = drop_nulls(without_nulls[key])
        try:
            self.form = convert(without_nulls, ClaimForm)
        except ValidationError as error:
            raise self.explain(error, without_nulls) from error

    def blame(self, key: str, why: str) -> UsageError:
        """Return an error that names the line of a key."""
        line = self.lines.get(key) or self.lines.get(key.partition(".")[0], 1)
        return UsageError(f"{self.path}, line {line}: {why}")

    def explain(self, error: ValidationError, given: Mapping[str, Any]) -> UsageError:
        """Return what is wrong with a key, and what it must be."""
        said, _, place = str(error).partition(" - at ")
        keys = re.findall(r"\.(\w+)", place)  # of `$.pilot.sd`, or `$.found[0].date`
        field = re.fullmatch(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`", said)
        if field:
            keys.append(field["name"])
        path = ".".join(keys)
        section: Any = SECTIONS[keys[0]] if len(keys) > 1 else ClaimForm
        known = section.__struct_fields__
        if field and field["name"] not in known:
            return self.blame(path, f"{path} is unknown: {nearest(keys[-1], known)}keys are {', '.join(known)}")
        allowed = get_type_hints(section, include_extras=True)[keys[-1]].__metadata__[0].description
        if field:
            return self.blame(path, f"{path} is missing: give {allowed}")
        value: Any = given
        numbers = iter(re.findall(r"\[(\d+)\]", place))
        for key in keys:
            if isinstance(value, list):
                value = value[int(next(numbers))]
            value = value[key]
        return self.blame(path, f"{path}: {show(value):.80} is not {allowed}")

    def read_words(self, key: str, given: Sequence[str]) -> tuple[str, ...]:
        """Return a list of words KEY=VALUE."""
        for word in given:
            if "=" not in word:
                cure = "put quotes around a word with a comma, as in 'norm=rmsnorm,layernorm'"
                raise self.blame(key, f"{key}: {word} is not KEY=VALUE: {cure}")
            if key_of(word) in FORBIDDEN:
                raise self.blame(key, f"{key}: {word} does not belong here: {FORBIDDEN[key_of(word)]}")
        return tuple(given)

    def conditions(self, key: str, given: Any) -> Conditions:
        """Return conditions that are written as words, `norm=rmsnorm placement=pre`, or as a mapping."""
        if isinstance(given, str):
            given = given.split()
        conditions: dict[str, tuple[str, ...]] = {}
        if isinstance(given, list):
            for word in given:
                name, equals, value = str(word).partition("=")
                if not equals:
                    raise self.blame(key, f"{key}: {word} is not KEY=VALUE: write words such as norm=rmsnorm")
                conditions[name] = alternatives(value)
        elif isinstance(given, dict):
            for name, value in given.items():
                values = value if isinstance(value, list) else [value]
                conditions[str(name)] = tuple(show(alternative) for alternative in values)
        elif given is not None:
            raise self.blame(key, f"{key}: {show(given):.80} is not a condition: write words such as norm=rmsnorm")
        return conditions

    def seeds(self) -> tuple[int, ...]:
        """Return after how many seeds the claim is looked at."""
        given = self.form.seeds
        seeds = tuple(given) if isinstance(given, list) else (given,)
        if min(seeds, default=1) < 1 or len(seeds) > 2 or list(seeds) != sorted(set(seeds)):
            raise self.blame("seeds", f"seeds: {show(given)} is not a number, or two of which the second is larger")
        first = self.form.first_seed or 0
        if seeds and first + seeds[-1] > FIRST_TRIAL_SEED:
            last = first + seeds[-1] - 1
            cure = f"seeds from {FIRST_TRIAL_SEED} on are for trials: begin earlier, or take fewer"
            raise self.blame("first_seed", f"first_seed: {first} with {seeds[-1]} seeds ends at {last}, and {cure}")
        return seeds


SECTIONS = {"pilot": Pilot, "at_scale": AtScale, "found": Found, "on_gpu": OnGpu}


def list_seeds(content: Mapping[str, Any], count: int) -> list[int]:
    """Return the first seeds of a claim. content: key and value of its YAML."""
    first = int(content.get("first_seed") or 0)
    return list(range(first, first + count))


def drop_nulls(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return keys and values without those that are null, as if they were not given."""
    return {str(key): value for key, value in content.items() if value is not None}


def listed(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Return texts; one by itself needs no list."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def alternatives(text: str) -> tuple[str, ...]:
    """Return the values that a text gives, with commas between them; a list in brackets is one value."""
    return (text,) if text.startswith("[") else tuple(text.split(","))


def check_name(name: str) -> None:
    """Refuse a name that cannot be a claim's, whose results have a folder, and its registration a line, by that name.

    Raises:
        UsageError: it is none.
    """
    if not re.fullmatch(r"\w[\w-]*", name):
        raise UsageError(f"{name} cannot name a claim: use letters, digits, - and _")
    if name in TAKEN or name.endswith("-lr"):  # NAME-lr has the runs that choose learning rates
        raise UsageError(f"{name} cannot name a claim, as it names something else beside them: give another name")


def read_claim(path: Path) -> Claim:
    """Return the claim of a YAML; one with the runs of another claim has no words or seeds yet.

    Raises:
        UsageError: a mistake in it, with its line, or in its name.
    """
    check_name(path.stem)
    reader = Reader(path)
    form = reader.form
    of_runs = {"words": form.words, "study": form.study, "seeds": form.seeds, "minutes": form.minutes}
    for key, given in of_runs.items():
        is_missing = given in (None, [])
        if form.runs_of and given and key in ("words", "study"):
            what = f"{key} is for a claim with runs of its own, and these are those of {form.runs_of}"
            raise reader.blame(key, f"{what}: leave it out")
        if is_missing and not form.runs_of:
            raise reader.blame(key, f"{key} is missing: a claim with runs of its own needs it")
    if form.margin == 0 and form.kind is not ClaimKind.EXACT:
        raise reader.blame("margin", "margin: 0 is not above 0, which all kinds but exact need")
    if form.target is not None and form.kind is not ClaimKind.SLOPE:
        raise reader.blame("target", f"target is for kind: slope alone, and this is {form.kind}: leave it out")
    if form.at_scale:
        reader.read_words("at_scale", form.at_scale.words)
        if not form.at_scale.words:
            raise reader.blame("at_scale", "at_scale: words is missing: give those in place of the claim's own")
    if form.on_gpu:
        check_on_gpu(reader, form.on_gpu)
    arms = read_arms(reader)
    claim = Claim(
        name=path.stem,
        path=path,
        claim=one_line(form.claim),
        source=one_line(form.source),
        published=one_line(form.published),
        published_effect=form.published_effect,
        registered=form.registered,
        words=reader.read_words("words", form.words),
        study=one_line(form.study),
        seeds=reader.seeds(),
        arms=arms,
        measure=one_line(form.measure),
        where=reader.conditions("where", form.where),
        effect=read_effect(reader, list(arms)),
        kind=form.kind,
        margin=form.margin,
        target=form.target or 0.0,
        unit=one_line(form.unit),
        runs_of=one_line(form.runs_of),
        needs=listed(form.needs),
        pilot=form.pilot,
        minutes=form.minutes or 0.0,
        at_scale=form.at_scale,
        scope=one_line(form.scope),
        confounds=listed(form.confounds),
        found=tuple(form.found),
        first_seed=form.first_seed,
        withdrawn=form.withdrawn,
        on_gpu=form.on_gpu,
        content={},
        lines=reader.lines,
    )
    content = {key: as_json(getattr(claim, key)) for key in KEYS}
    for key in LATER_KEYS:
        if content[key] is None:
            del content[key]
    claim = replace(claim, content=content, scheme=scheme_of(path.parent, path.stem))
    return replace(claim, digest=claim.digest_in(claim.scheme))


def check_on_gpu(reader: Reader, section: OnGpu) -> None:
    """Refuse a section on a GPU that lacks something, or has what the claim whose runs these are says.

    Raises:
        UsageError: with the line.
    """
    reader.read_words("on_gpu", section.words)
    of_runs = {"words": section.words, "seeds": section.seeds, "minutes": section.minutes}
    for key, given in of_runs.items():
        if reader.form.runs_of and given:
            what = f"on_gpu.{key} is for a claim with runs of its own, and these are those of {reader.form.runs_of}"
            raise reader.blame(f"on_gpu.{key}", f"{what}: leave it out")
        if not reader.form.runs_of and not given:
            raise reader.blame("on_gpu", f"on_gpu.{key} is missing: a claim with runs of its own needs it")


def read_arms(reader: Reader) -> dict[str, Conditions]:
    """Return what the runs of each arm of a claim have in common.

    Raises:
        UsageError: there are none, or a name or condition cannot be read.
    """
    arms = {}
    for name, conditions in reader.form.arms.items():
        if not str(name).isidentifier() or name in NAMES:
            raise reader.blame(f"arms.{name}", f"arms: {name} cannot name an arm: use letters, digits and _")
        arms[str(name)] = reader.conditions(f"arms.{name}", conditions)
    return arms


def read_effect(reader: Reader, arms: Sequence[str]) -> Effect:
    """Return the effect of a claim, which names each of its arms.

    Raises:
        UsageError: it does not, or cannot be read.
    """
    try:
        effect = parse_effect(one_line(reader.form.effect), arms)
    except EffectError as error:
        raise reader.blame("effect", f"effect: {error}") from error
    for arm in arms:
        if arm not in effect.arms:
            raise reader.blame(f"arms.{arm}", f"arms: {arm} is not in the effect {effect.text}: use it or leave it out")
    return effect


def as_json(value: Any) -> Any:
    """Return a value of a claim as JSON has it."""
    if isinstance(value, Effect):
        return value.text
    if isinstance(value, Found):
        return to_builtins(value)  # without what is not given
    if isinstance(value, Pilot | AtScale | Withdrawn | OnGpu):
        return {name: as_json(item) for name, item in structs.asdict(value).items()}
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    return value


def claim_files(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the YAML of each claim by its name: ours, and those in further folders of options."""
    files: dict[str, Path] = {}
    for folder in (config_directory(), *folders):
        for path in sorted((folder / FOLDER).glob("*.yaml")):
            files.setdefault(path.stem, path)
    return files


def read_claims(folders: Sequence[Path] = ()) -> dict[str, Claim]:
    """Return all claims by name; those with the runs of another have its words, its study and, if they say none, seeds.

    Raises:
        UsageError: a mistake in a YAML, with its line.
    """
    claims = {name: read_claim(path) for name, path in sorted(claim_files(folders).items())}
    return {name: share_runs(claim, claims) for name, claim in claims.items()}


def share_runs(claim: Claim, claims: Mapping[str, Claim]) -> Claim:
    """Return a claim with the words, study and seeds of the one whose runs it has.

    Raises:
        UsageError: there is no such claim, it has no runs of its own, or has other seeds.
    """
    if not claim.runs_of:
        return claim
    owner = claims.get(claim.runs_of)
    if owner is None or owner.runs_of:
        names_with_runs = [name for name, other in claims.items() if not other.runs_of]
        near = nearest(claim.runs_of, names_with_runs)
        raise claim.blame("runs_of", f"runs_of: {claim.runs_of} is no claim with runs of its own: {near}check the name")
    if claim.seeds and claim.seeds != owner.seeds:
        theirs = show(list(owner.seeds))
        raise claim.blame(
            "seeds", f"seeds: {show(list(claim.seeds))} are not those of {owner.name}, which are {theirs}"
        )
    shared = {"words": list(owner.words), "study": owner.study, "seeds": list(owner.seeds)}
    content = {**claim.content, **shared}
    if owner.first_seed is not None:
        content["first_seed"] = owner.first_seed
    needs = tuple(dict.fromkeys([*owner.needs, *claim.needs]))
    claim = replace(claim, words=owner.words, study=owner.study, seeds=owner.seeds, needs=needs)
    claim = replace(claim, first_seed=owner.first_seed)
    claim = replace(claim, content=content, owner=owner.content)
    return replace(claim, digest=claim.digest_in(claim.scheme))
