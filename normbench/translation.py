"""Translation: the task, and how a model's translations are found and judged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from normbench.errors import UsageError
from normbench.types import PADDING, Batch, LanguageModeling

SHOWN = 8  # translations on a page of examples


class Translated(NamedTuple):
    """A sentence, the translation that people gave it, and the one that was found."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Translation(LanguageModeling):
    """Each next token of a translation, from its source and the tokens before it.

    Args:
        vocabulary_size: of both languages; the last two tokens, `begin` and `end`, stand before and after a text.
        context: the longest source or target, in tokens.
        label_smoothing: share of a target's probability that training spreads over all tokens (Szegedy et al. 2016,
            §7); evaluation has none.
        lowercase: whether all text is in lower case.
        beam, length_penalty: of the search, see `translate`.
    """

    kind = "translation"
    examples = "sentences"
    may_pad = True
    judges = True

    label_smoothing: float = 0.0
    lowercase: bool = False
    beam: int = 5
    length_penalty: float = 1.0

    @property
    def begin(self) -> int:
        """Return the token that stands before each translation."""
        return self.vocabulary_size - 2

    @property
    def end(self) -> int:
        """Return the token that stands after each text."""
        return self.vocabulary_size - 1

    @property
    def bleu(self) -> Any:
        """Return sacrebleu's BLEU (Papineni et al. 2002; Post 2018), which ignores case where all text is lower-cased.

        Raises:
            UsageError: it is not installed.
        """
        try:
            from sacrebleu.metrics import BLEU
        except ImportError as missing:
            cure = "pip install 'normbench[translation]'"
            raise UsageError(f"translations are judged by the package sacrebleu, which is missing: {cure}") from missing
        return BLEU(lowercase=self.lowercase, force=True)  # else it warns of translations that look tokenized

    @property
    def signature(self) -> str:
        """Return what sacrebleu calls its settings."""
        bleu = self.bleu
        bleu.corpus_score([""], [[""]])
        return str(bleu.get_signature())

    def loss(self, logits: Float[Tensor, "..."], targets: Tensor, reduction: str = "mean") -> Tensor:
        flat = logits.flatten(0, -2).float()
        smoothing = self.label_smoothing if reduction == "mean" else 0.0
        return F.cross_entropy(flat, targets.flatten(), reduction=reduction, label_smoothing=smoothing)

    def shapes(self, batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert batch.mask is not None and batch.previous is not None
        return tuple(batch.mask.shape), tuple(batch.previous.shape)

    def batch(self, sources: list[Tensor], translations: list[Tensor]) -> Batch:
        """Return a padded batch of token ids (time,); inputs are padded with 0."""
        end = torch.tensor([self.end])
        begin = torch.tensor([self.begin])
        inputs = [torch.cat((source, end)) for source in sources]
        real = [torch.ones(len(each), dtype=torch.bool) for each in inputs]
        targets = [torch.cat((each, end)) for each in translations]
        previous = [torch.cat((begin, each)) for each in translations]
        return Batch(
            inputs=pad_sequence(inputs, batch_first=True),
            targets=pad_sequence(targets, batch_first=True, padding_value=PADDING),
            mask=pad_sequence(real, batch_first=True),
            previous=pad_sequence(previous, batch_first=True),
        )

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        longest = self.context - 1
        lengths = [max(1, longest * (size - row) // size) for row in range(size)]
        sources = [torch.randint(self.begin, (length,), generator=generator) for length in lengths]
        targets = [torch.randint(self.begin, (length,), generator=generator) for length in lengths]
        return self.batch(sources, targets[::-1])

    def judge(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> tuple[dict[str, float], str]:
        """Return the BLEU of the translations that beam search finds, and a page with some of them."""
        rows = self.translations(model, batches, data, device)
        references = [row.reference for row in rows]
        translations = [row.translation for row in rows]
        bleu = self.bleu
        score = bleu.corpus_score(translations, [references]).score
        title = f"BLEU {score:.1f} on {len(rows):,} {self.examples}, beam {self.beam} ({bleu.get_signature()})"
        every = math.ceil(len(rows) / SHOWN)
        return {"bleu": score}, write_page(title, rows[::every])

    def translations(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> list[Translated]:
        """Return each sentence with the translation that beam search finds in evaluation mode."""
        training = model.training
        rows: list[Translated] = []
        model.eval()
        for batch in batches:
            assert batch.mask is not None
            found = translate(model, batch.inputs.to(device), batch.mask.to(device), self).cpu()
            sources = batch.inputs.masked_fill(~batch.mask, self.end)
            for source, reference, translation in zip(sources, batch.targets, found, strict=True):
                rows.append(Translated(data.decode(source), data.decode(reference), data.decode(translation)))
        model.train(training)
        return rows


def write_page(title: str, rows: Iterable[Translated]) -> str:
    """Return a title and a table of sources, references and translations in Markdown."""
    lines = [title, "", "| source | reference | translation |", "| --- | --- | --- |"]
    for row in rows:
        cells = [text.replace("|", "¦") for text in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass
class Beginnings:
    """The beginnings of translations with which a search goes on, a row for each.

    Attributes:
        sentence: which source it translates.
        slot: its number among the beginnings of that sentence.
        scores: log P.
        tokens: as far as it goes, with `begin`.
        state: what the model knows of it.
    """

    sentence: Int64[Tensor, " rows"]
    slot: Int64[Tensor, " rows"]
    scores: Float[Tensor, " rows"]
    tokens: Int64[Tensor, "rows length"]
    state: tuple[Tensor, ...]


@dataclass
class Longer:
    """Each sentence's likeliest beginnings with one more token, the likeliest first.

    Attributes:
        scores: log P; −∞ where a sentence has not so many.
        row: of the beginning to which the token is added.
        token: which one.
    """

    scores: Float[Tensor, "sentences beam"]
    row: Int64[Tensor, "sentences beam"]
    token: Int64[Tensor, "sentences beam"]


@dataclass
class BestSoFar:
    """The best translation of each sentence that a search has found.

    Attributes:
        tokens: each translation, followed by `end`.
        scores: log P / length ** length_penalty; −∞ where none has been found.
    """

    tokens: Int64[Tensor, "sentences longest"]
    scores: Float[Tensor, " sentences"]

    def take_better(
        self, beginnings: Beginnings, longer: Longer, ends: Bool[Tensor, "sentences beam"], length: int, penalty: float
    ) -> None:
        """Take those translations that are better than what was found before.

        Args:
            beginnings: to which a token was added.
            longer: what has become of them.
            ends: which of these are translations.
            length: of these, with the end.
            penalty: the power of the length.
        """
        scores = (longer.scores / length**penalty).masked_fill(~ends, -torch.inf)
        score, rank = scores.max(dim=1)
        better = score > self.scores
        rows = longer.row[better, rank[better]]
        self.tokens[better, : length - 1] = beginnings.tokens[rows, 1:]
        self.scores = torch.maximum(self.scores, score)


@torch.no_grad()
def translate(
    model: Any, source: Int64[Tensor, "batch time"], mask: Bool[Tensor, "batch time"], task: Translation
) -> Int64[Tensor, "batch longest"]:
    """Return the best translation of each source that beam search finds, followed by `end`.

    The search goes on with the `beam` likeliest beginnings. One that ends among them is a translation, and its place is
    not filled again; a sentence is done when no beginning is left. The best translation has the largest
    log P / length ** length_penalty, where the end counts. None is longer than twice its source and ten tokens, or the
    context. beam=1 takes the likeliest token each time. Source: Bahdanau et al. 2015, whose search loses a place to
    each translation; Wu et al. 2016, §7, for the division by a power of the length.

    Args:
        model: in evaluation mode. `begin(source, mask)` returns its state, tensors (batch, ...). `advance(state,
            tokens)` takes one more token (rows,) of each beginning and returns the logits (rows, vocabulary) of the
            next, and the new state. A tensor of the state that it returns as it was given belongs to the source: it is
            the same for all its beginnings.
        source: each text with its end.
        mask: False where it is padded.
        task: vocabulary and search.
    """
    size = len(source)
    device = source.device
    limits = (2 * mask.sum(dim=1) + 10).clamp(max=task.context - 1)
    found = BestSoFar(
        tokens=torch.full((size, int(limits.max())), task.end, device=device),
        scores=torch.full((size,), -torch.inf, device=device),
    )
    places = torch.full((size, 1), task.beam, device=device)  # how many beginnings a sentence may still have
    ranks = torch.arange(task.beam, device=device)
    beginnings = Beginnings(
        sentence=torch.arange(size, device=device),
        slot=torch.zeros(size, dtype=torch.int64, device=device),
        scores=torch.zeros(size, device=device),
        tokens=torch.full((size, 1), task.begin, device=device),
        state=model.begin(source, mask),
    )
    for length in range(1, task.context + 1):
        logits, state = model.advance(beginnings.state, beginnings.tokens[:, -1])
        must_end = length > limits[beginnings.sentence]
        likely, tokens = likeliest(logits.float(), task.beam, task.end, must_end)
        longer = lengthen(beginnings, likely, tokens, size, task.beam)
        kept = (ranks < places) & longer.scores.isfinite()
        is_end = longer.token == task.end
        ends = kept & is_end
        found.take_better(beginnings, longer, ends, length, task.length_penalty)
        places = places - ends.sum(dim=1, keepdim=True)
        goes_on = kept & ~is_end
        beginnings = go_on(beginnings, longer, goes_on, state)
        if not len(beginnings.sentence):
            break
    return found.tokens


def go_on(
    beginnings: Beginnings, longer: Longer, goes_on: Bool[Tensor, "sentences beam"], state: tuple[Tensor, ...]
) -> Beginnings:
    """Return the beginnings with which a search goes on.

    Args:
        beginnings: those before, to which a token was added.
        longer: what has become of them.
        goes_on: which of these are no translations and have a place.
        state: what the model knows of the beginnings before, and of their last tokens.
    """
    sentence, slot = goes_on.nonzero(as_tuple=True)
    rows = longer.row[goes_on]
    same_sentences = torch.equal(sentence, beginnings.sentence)
    return Beginnings(
        sentence=sentence,
        slot=slot,
        scores=longer.scores[goes_on],
        tokens=torch.cat((beginnings.tokens[rows], longer.token[goes_on][:, None]), dim=1),
        state=take_rows(state, beginnings.state, rows, same_sentences),
    )


def lengthen(
    beginnings: Beginnings,
    likely: Float[Tensor, "rows choices"],
    tokens: Int64[Tensor, "rows choices"],
    size: int,
    beam: int,
) -> Longer:
    """Return each sentence's likeliest beginnings with one more token.

    Args:
        beginnings: to which it is added.
        likely: log P of each choice after its beginning.
        tokens: the choices.
        size: how many sentences there are.
        beam: how many beginnings each may have.
    """
    rows, choices = likely.shape
    device = likely.device
    where = beginnings.sentence, beginnings.slot
    sums = torch.full((size, beam, choices), -torch.inf, device=device)
    sums[where] = beginnings.scores[:, None] + likely
    row_at = torch.zeros(size, beam, dtype=torch.int64, device=device)
    row_at[where] = torch.arange(rows, device=device)
    scores, place = sums.flatten(1).topk(beam)  # among all slots and choices of a sentence
    row = row_at.gather(1, place // choices)
    token = tokens[row, place % choices]
    return Longer(scores, row, token)


def take_rows(
    state: tuple[Tensor, ...], before: tuple[Tensor, ...], rows: Int64[Tensor, " rows"], same_sentences: bool
) -> tuple[Tensor, ...]:
    """Return a model's state of some beginnings; see `translate`.

    Args:
        state: of all.
        before: the state that the model was given for it.
        rows: of these beginnings.
        same_sentences: whether the sentence of each is that of the beginning which was there before.
    """
    parts = []
    for new, old in zip(state, before, strict=True):
        of_source = new is old
        stays = of_source and same_sentences
        parts.append(new if stays else new[rows])
    return tuple(parts)


def likeliest(
    logits: Float[Tensor, "rows vocabulary"], count: int, end: int, must_end: Bool[Tensor, " rows"]
) -> tuple[Float[Tensor, "rows count"], Int64[Tensor, "rows count"]]:
    """Return log P of the likeliest next tokens, and these tokens.

    Args:
        logits: of all tokens.
        count: how many of them; fewer where the vocabulary is smaller.
        end: the token that ends a text.
        must_end: the rows that get no other.
    """
    total = logits.logsumexp(dim=1, keepdim=True)
    if must_end.any():
        others = torch.arange(logits.shape[1], device=logits.device) != end
        logits = logits.masked_fill(must_end[:, None] & others, -torch.inf)
    likely, tokens = logits.topk(min(count, logits.shape[1]))
    return likely - total, tokens
