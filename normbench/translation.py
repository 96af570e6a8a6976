"""Translation: the task, and how a model's translations are found and judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.types import PADDING, Batch, LanguageModeling

SHOWN = 8  # translations on a page of examples


@dataclass(frozen=True)
class Translation(LanguageModeling):
    """Each next token of a translation, from its source and the tokens before it.

    vocabulary_size: of both languages; the last two tokens, `begin` and `end`, stand before and after a text.
    context: the longest source or target, in tokens. label_smoothing: share of a target's probability that training
    spreads over all tokens (Szegedy et al. 2016, §7); evaluation has none. lowercase: whether all text is in lower
    case. beam, length_penalty: of the search, see `translate`.
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
        pad = torch.nn.utils.rnn.pad_sequence
        inputs = [torch.cat((source, end)) for source in sources]
        mask = pad([torch.ones(len(each), dtype=torch.bool) for each in inputs], batch_first=True)
        targets = pad([torch.cat((each, end)) for each in translations], batch_first=True, padding_value=PADDING)
        previous = pad([torch.cat((begin, each)) for each in translations], batch_first=True)
        return Batch(pad(inputs, batch_first=True), targets, mask, previous)

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        lengths = [max(1, (self.context - 1) * (size - row) // size) for row in range(size)]
        sources = [torch.randint(self.begin, (length,), generator=generator) for length in lengths]
        targets = [torch.randint(self.begin, (length,), generator=generator) for length in lengths]
        return self.batch(sources, targets[::-1])

    def judge(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> tuple[dict[str, float], str]:
        """Return the BLEU of the translations that beam search finds, and a page with some of them."""
        rows = self.translations(model, batches, data, device)
        references = [reference for _, reference, _ in rows]
        translations = [translation for _, _, translation in rows]
        bleu = self.bleu
        score = bleu.corpus_score(translations, [references]).score
        title = f"BLEU {score:.1f} on {len(rows):,} {self.examples}, beam {self.beam} ({bleu.get_signature()})"
        every = math.ceil(len(rows) / SHOWN)
        return {"bleu": score}, write_page(title, rows[::every])

    def translations(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> list[tuple[str, str, str]]:
        """Return each source, its reference and the translation that beam search finds in evaluation mode."""
        training = model.training
        rows: list[tuple[str, str, str]] = []
        model.eval()
        for batch in batches:
            assert batch.mask is not None
            found = translate(model, batch.inputs.to(device), batch.mask.to(device), self).cpu()
            sources = batch.inputs.masked_fill(~batch.mask, self.end)
            for source, reference, translation in zip(sources, batch.targets, found, strict=True):
                rows.append((data.decode(source), data.decode(reference), data.decode(translation)))
        model.train(training)
        return rows


def write_page(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a title and a table of sources, references and translations in Markdown."""
    lines = [title, "", "| source | reference | translation |", "| --- | --- | --- |"]
    for row in rows:
        cells = [text.replace("|", "¦") for text in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    beam = task.beam
    size = len(source)
    device = source.device
    limits = (2 * mask.sum(dim=1) + 10).clamp(max=task.context - 1)
    found = torch.full((size, int(limits.max())), task.end, device=device)
    best = torch.full((size,), -torch.inf, device=device)  # the score of what is found
    places = torch.full((size, 1), beam, device=device)  # how many beginnings a sentence may still have
    # A row for each beginning: its sentence, its number among the beginnings of that, log P, and tokens.
    owner = torch.arange(size, device=device)
    slot = torch.zeros(size, dtype=torch.int64, device=device)
    scores = torch.zeros(size, device=device)
    texts = torch.full((size, 1), task.begin, device=device)
    state = model.begin(source, mask)
    for length in range(1, task.context + 1):
        logits, following = model.advance(state, texts[:, -1])
        likely, tokens = likeliest(logits.float(), beam, task.end, length > limits[owner])
        choices = likely.shape[1]

        # Each sentence's likeliest beginnings with one more token.
        sums = torch.full((size, beam, choices), -torch.inf, device=device)
        sums[owner, slot] = scores[:, None] + likely
        rows = torch.zeros(size, beam, dtype=torch.int64, device=device)
        rows[owner, slot] = torch.arange(len(owner), device=device)
        top, place = sums.flatten(1).topk(beam)
        parent = rows.gather(1, place // choices)
        token = tokens[parent, place % choices]
        kept = (torch.arange(beam, device=device) < places) & top.isfinite()
        ends = kept & (token == task.end)
        goes = kept & (token != task.end)

        # Those that end here are translations.
        scored = (top / length**task.length_penalty).masked_fill(~ends, -torch.inf)
        value, which = scored.max(dim=1)
        better = value > best
        found[better, : length - 1] = texts[parent[better, which[better]], 1:]
        best = torch.maximum(best, value)
        places = places - ends.sum(dim=1, keepdim=True)

        # The others go on.
        before = owner
        owner, slot = goes.nonzero(as_tuple=True)
        if not len(owner):
            break
        origin = parent[goes]
        moved = not torch.equal(owner, before)
        parts = []
        for new, old in zip(following, state, strict=True):
            of_source = new is old
            parts.append(new if of_source and not moved else new[origin])
        state = tuple(parts)
        scores = top[goes]
        texts = torch.cat((texts[origin], token[goes][:, None]), dim=1)
    return found


def likeliest(
    logits: Float[Tensor, "rows vocabulary"], count: int, end: int, closing: Bool[Tensor, " rows"]
) -> tuple[Float[Tensor, "rows count"], Int64[Tensor, "rows count"]]:
    """Return log P of the likeliest next tokens, and these tokens. closing: the rows that must end now."""
    total = logits.logsumexp(dim=1, keepdim=True)
    if closing.any():
        others = torch.arange(logits.shape[1], device=logits.device) != end
        logits = logits.masked_fill(closing[:, None] & others, -torch.inf)
    likely, tokens = logits.topk(min(count, logits.shape[1]))
    return likely - total, tokens
