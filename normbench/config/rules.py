"""Rules by place: `norm@qk=rmsnorm`, `placement@first3=post` choose an option for some places of a model.

So does `weights@mlp=spectral`, for the linear maps and convolutions of branches, whose sites have the slot `out` where
they write to the stream, and no slot else. Outside the blocks `embedding`, `stem` and `head` are roles of weights.

A place is words joined by dots, each of which must fit a site:

    role     what the site serves: attention, cross, mlp, conv, linear, cell, stem, closing, downsample, final, logits,
             block
    slot     which of its norms: in, out, sum, inner, q, k, v, q_all, k_all, v_all, q_latent, k_latent, v_latent,
             heads, context, activation, hidden, shortcut, post, pre, streams, and of a cell input, state, memory; qk,
             qkv, qk_all, latent and the like stand for several, and input and state for all parts of a GRU's
    depth    first3, last3, blocks2-5, block3 (numbered from 0, as in tags), first25pct, last25pct
    side     encoder, decoder

A norm that serves several, such as one that two branches side by side read, or one of keys and values together
(`kv_all`), belongs to each of them. Of several rules that fit a site, the one with the most words wins, then the one
given last. Some places, such as `qk`, have no norm unless a rule names them (`normbench.types.optional_norm`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normbench.config.sections import BY_NAME, CLASS_SECTIONS, PLACED
from normbench.errors import UsageError
from normbench.settings import Tree, either, nearest

if TYPE_CHECKING:
    from normbench.types import Site

RULES = "at"  # the section of a configuration that holds a section for each rule; absent where there is none

# The words of places, for lists and Tab; a model of a person's own may have others.
WORDS = {
    "attention": "self-attention's norms",
    "cross": "those of attention to another sequence",
    "mlp": "the MLP's",
    "conv": "those of a convolutional branch",
    "linear": "those of a branch of linear maps",
    "cell": "those inside a recurrent cell",
    "input": "what a recurrent cell makes of its input, of its gates and its candidate",
    "state": "what it makes of its state, likewise",
    "memory": "an LSTM's memory cell, before its last tanh",
    "closing": "the norms that read several streams after the last block",
    "final": "the norm before the head",
    "in": "what a branch reads",
    "out": "what a branch gives, or its sum with the stream",
    "sum": "ngpt's norm of the sum, where out is what the branch gives",
    "inner": "between the maps of a branch",
    "post": "what siamese reads of its post-norm stream; pre: of its pre-norm stream",
    "streams": "what tells hyper_connections, mhc and attnres how streams are read, mixed and written",
    "qk": "queries and keys, in each head (also q, k, v and qkv)",
    "qk_all": "queries and keys, over all heads together (also q_all, k_all, v_all, qkv_all)",
    "latent": "what queries, or keys and values, are made of inside of attention (also q_latent, kv_latent)",
    "heads": "what attention has read, by heads, which are the features",
    "context": "what attention has read, before its output map",
    "activation": "what the MLP's activation reads; of one with a gate, the gate",
    "hidden": "the MLP's hidden features, before its last map",
    "stem": "the stream as it starts; of weights, the map that makes it",
    "shortcut": "after a learned shortcut",
    "downsample": "between two blocks where the stream shrinks, in given models",
    "embedding": "of weights: embeddings of tokens, positions and the class token",
    "head": "of weights: the output layer",
    "logits": "what the head gives, of Transformers and recurrent models",
    "first3": "the first three blocks, also as first25pct",
    "last3": "the last three blocks, also as last25pct",
    "blocks2-5": "the blocks 2 to 5, numbered from 0",
    "encoder": "one side of an encoder–decoder",
    "decoder": "the other side",
}

# The words for any rule, the only ones for placements, which are of whole blocks; those beside them for weights; and
# those for weights alone.
OF_BLOCKS = ("first3", "last3", "blocks2-5", "encoder", "decoder")
OF_WEIGHTS = ("attention", "cross", "mlp", "conv", "linear", "cell", "out", "stem")
OF_WEIGHTS_ALONE = ("embedding", "head")

# Words for several slots at once.
SLOTS = {
    "input": ("input", "input_gates", "input_candidate"),
    "state": ("state", "state_gates", "state_candidate"),
}

SEVERAL = ("qk", "qkv", "qk_all", "latent")

# Those of queries, keys and values: in each head, over all heads together, or of what they are made of.
OF_HEADS = re.compile(r"(?P<letters>q?k?v?)(?P<kind>|_all|_latent)")

KEY = re.compile(rf"(?P<group>{'|'.join(PLACED)})@(?P<place>\w[\w-]*(\.\w[\w-]*)*)")
FIRST_OR_LAST = re.compile(r"(?P<end>first|last)(?P<number>\d+)(?P<percent>pct)?")
RANGE = re.compile(r"blocks?(?P<start>\d+)(-(?P<stop>\d+))?")


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        group: what it chooses: `norm`, `placement` or `weights`.
        place: for which places, such as `first3.attention`.
    """

    group: str
    place: str

    @property
    def key(self) -> str:
        """Return what stands before the `=` on the command line: `norm@qk`."""
        return f"{self.group}@{self.place}"

    @property
    def words(self) -> list[str]:
        """Return the words of its place."""
        return self.place.split(".")

    def fits(self, site: Site) -> bool:
        """Tell whether all of its words fit a site."""
        return all(fits(word, site) for word in self.words)

    def names(self, site: Site) -> bool:
        """Tell whether it fits a site and names it by its slot, or by its role where the site has no slot."""
        if not self.fits(site):
            return False
        if site.slot:
            return any(fits_slot(word, site) for word in self.words)
        return any(role in self.words for role in site.roles)


def fits(word: str, site: Site) -> bool:
    """Tell whether a word of a place fits a site."""
    if word in (*site.roles, site.side):
        return True
    return fits_slot(word, site) or fits_depth(word, site)


def fits_slot(word: str, site: Site) -> bool:
    """Tell whether a word names the slot of a site, or one of several that it is of, as `k_all` of `kv_all`."""
    if not site.slot:
        return False
    asked = OF_HEADS.fullmatch("qkv_latent" if word == "latent" else word)
    of_site = OF_HEADS.fullmatch(site.slot)
    if asked and of_site and asked["kind"] == of_site["kind"]:
        return not set(asked["letters"]).isdisjoint(of_site["letters"])
    return site.slot in SLOTS.get(word, (word,))


def fits_depth(word: str, site: Site) -> bool:
    """Tell whether a word such as `first3` fits the block of a site, of an encoder–decoder within its side."""
    if site.layer is None:
        return False
    layer = site.layer
    depth = site.depth
    encoder, decoder = site.sides
    if site.side == "encoder":
        depth = encoder
    elif site.side == "decoder":
        layer -= encoder
        depth = decoder
    match = RANGE.fullmatch(word)
    if match:
        start = int(match["start"])
        stop = int(match["stop"] or start)
        return start <= layer <= stop
    match = FIRST_OR_LAST.fullmatch(word)
    if match is None:
        return False
    number = float(match["number"])
    count = depth * number / 100 if match["percent"] else number
    from_end = layer if match["end"] == "first" else depth - 1 - layer
    return from_end < count


def best_rule(rules: Iterable[Rule], site: Site, asked_for: bool = False) -> Rule | None:
    """Return the rule that holds at a site; None where none does.

    Args:
        rules: in the order in which they were given.
        site: the place.
        asked_for: whether the place has nothing unless a rule names it.
    """
    best: Rule | None = None
    for rule in rules:
        holds = rule.names(site) if asked_for else rule.fits(site)
        if holds and (best is None or len(rule.words) >= len(best.words)):
            best = rule
    return best


def say_places(rule: Rule, sites: Iterable[Site]) -> str:
    """Say which words of places some sites have, after the one that is most like a word that none of them has."""
    there = list(sites)
    words: dict[str, None] = {}
    for site in there:
        for word in (*site.roles, site.slot, site.side):
            if word:
                words[word] = None
    for word in (*SEVERAL, *SLOTS):
        if any(fits_slot(word, site) for site in there):
            words[word] = None
    near = ""
    for word in rule.words:
        fits_somewhere = any(fits(word, site) for site in there)
        if not fits_somewhere:
            near = nearest(word, words)
            break
    depth = "first3, last3, blocks2-5 and first25pct say which blocks"
    return f"{near}a place is words joined by dots, here {', '.join(words)}; {depth}"


def words_for(group: str) -> dict[str, str]:
    """Return the words that places of a group may have, with their meanings."""
    if group == "placement":
        words = [*OF_BLOCKS]
    elif group == "weights":
        words = [*OF_WEIGHTS, *OF_WEIGHTS_ALONE, *OF_BLOCKS]
    else:
        words = [word for word in WORDS if word not in OF_WEIGHTS_ALONE]
    return {word: WORDS[word] for word in words}


# ---- keys and sections


def is_rule(key: str) -> bool:
    """Tell whether a key, such as `norm@qk`, or `norm@qk.eps`, has a place."""
    return "@" in key


def short_name(key: str) -> str:
    """Return the last word of a dotted key, as tables have it; a rule's key whole."""
    return key if is_rule(key) else key.rpartition(".")[2]


def belongs_to(key: str, section: str) -> bool:
    """Tell whether a key is a setting of a section or a rule: `norm.eps` of `norm`, `norm@qk.eps` of `norm@qk`."""
    before, _, _ = key.rpartition(".")
    return before == section


def group_of(section: str) -> str:
    """Return the group of a section or a rule: `norm` of `norm@qk`."""
    return section.partition("@")[0]


def read_rule(key: str) -> Rule:
    """Return the rule of a key.

    Raises:
        UsageError: it is not GROUP@PLACE.
    """
    match = KEY.fullmatch(key)
    if match is None:
        forms = either(f"{group}@PLACE" for group in PLACED)
        example = "norm@qk=rmsnorm or placement@first3=post"
        raise UsageError(f"{key} is not a rule for places: write {forms}, as in {example}")
    return Rule(match["group"], match["place"])


def rule_sections(tree: Tree) -> dict[str, Tree]:
    """Return the section of each rule of a configuration, by its key.

    Raises:
        UsageError: the configuration holds something else there.
    """
    sections = tree.get(RULES, {})
    are_sections = isinstance(sections, Mapping) and all(isinstance(section, Mapping) for section in sections.values())
    if not are_sections:
        raise UsageError(f"{RULES} holds something other than rules: give rules as norm@qk=rmsnorm")
    for key in sections:
        read_rule(key)  # so that none has the name of a section, whose class it would hide
    return dict(sections)


def section_at(tree: Tree, section: str) -> dict[str, Any]:
    """Return a section of a configuration: of a rule where it is named like one; of one that is absent its class."""
    if is_rule(section):
        values: dict[str, Any] = tree[RULES][section]
    elif section in tree or not BY_NAME[section].absent:
        values = tree[section]
    else:
        values = {"_target_": BY_NAME[section].absent}
    return values


def class_sections_in(tree: Tree) -> dict[str, Tree]:
    """Return the sections of a configuration that hold `_target_` and its arguments, those of rules too."""
    sections = {section: section_at(tree, section) for section in CLASS_SECTIONS}
    return {**sections, **rule_sections(tree)}


def trusted_in(section: str) -> tuple[str, ...]:
    """Return where the classes of a section or a rule are whose code may run though somebody else made the run."""
    return BY_NAME[group_of(section)].trusted
