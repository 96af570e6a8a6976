"""Translation: the task, and how a model's translations are found and judged."""

from __future__ import annotations

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

    vocabulary_size: of both languages; the last two tokens, `begin` and `end`, stand before and behind a text.
    context: the longest source or target, in tokens. label_smoothing: share of a target's probability that training
    spreads over all tokens (Szegedy et al. 2016, §7); evaluation has none. lowercase: whether all text is.
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
        """Return the token in front of each translation."""
        return self.vocabulary_size - 2

    @property
    def end(self) -> int:
        """Return the token behind each text."""
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
        return BLEU(lowercase=self.lowercase, force=True)  # without a word on translations that look tokenized

    @property
    def signature(self) -> str:
        """Return what sacrebleu calls its settings."""
        bleu = self.bleu
        bleu.corpus_score([""], [[""]])
        return str(bleu.get_signature())

    def loss(self, logits: Float[Tensor, "..."], targets: Tensor, reduction: str = "mean") -> Tensor:
        flat, smoothing = logits.flatten(0, -2).float(), self.label_smoothing if reduction == "mean" else 0.0
        return F.cross_entropy(flat, targets.flatten(), reduction=reduction, label_smoothing=smoothing)

    def shapes(self, batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert batch.mask is not None and batch.previous is not None
        return tuple(batch.mask.shape), tuple(batch.previous.shape)

    def batch(self, sources: list[Tensor], translations: list[Tensor]) -> Batch:
        """Return a padded batch of token ids (time,); what stands in the padding of inputs is 0."""
        end, begin = torch.tensor([self.end]), torch.tensor([self.begin])
        pad = torch.nn.utils.rnn.pad_sequence
        inputs = [torch.cat((source, end)) for source in sources]
        mask = pad([torch.ones(len(each), dtype=torch.bool) for each in inputs], batch_first=True)
        targets = pad([torch.cat((each, end)) for each in translations], batch_first=True, padding_value=PADDING)
        previous = pad([torch.cat((begin, each)) for each in translations], batch_first=True)
        return Batch(pad(inputs, batch_first=True), targets, mask, previous)

    def random_batch(self, size: int, generator: torch.Generator) -> Batch:
        lengths = [max(1, (self.context - 1) * (size - row) // size) for row in range(size)]
        sources, targets = ([torch.randint(self.begin, (each,), generator=generator) for each in lengths] for _ in "st")
        return self.batch(sources, targets[::-1])

    def judge(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> tuple[dict[str, float], str]:
        """Return the BLEU of the translations that beam search finds, and a page with some of them."""
        rows = self.translations(model, batches, data, device)
        bleu, (_, references, translations) = self.bleu, map(list, zip(*rows, strict=True))
        score = bleu.corpus_score(translations, [references]).score
        title = f"BLEU {score:.1f} on {len(rows):,} {self.examples}, beam {self.beam} ({bleu.get_signature()})"
        return {"bleu": score}, page(title, rows[:: -(-len(rows) // SHOWN)])

    def translations(
        self, model: nn.Module, batches: Iterable[Batch], data: Any, device: torch.device
    ) -> list[tuple[str, str, str]]:
        """Return each source, its reference and the translation that beam search finds in evaluation mode."""
        training, rows = model.training, list[Any]()
        model.eval()
        for batch in batches:
            assert batch.mask is not None
            found = translate(model, batch.inputs.to(device), batch.mask.to(device), self).cpu()
            columns = batch.inputs.masked_fill(~batch.mask, self.end), batch.targets, found
            rows += zip(*(map(data.decode, column) for column in columns), strict=True)
        model.train(training)
        return rows


def page(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a title and a table of sources, references and translations in Markdown."""
    lines = [("source", "reference", "translation"), ("---",) * 3, *rows]
    return "\n".join([title, "", *(f"| {' | '.join(each.replace('|', '¦') for each in line)} |" for line in lines)])


@torch.no_grad()
def translate(
    model: Any, source: Int64[Tensor, "batch time"], mask: Bool[Tensor, "batch time"], task: Translation
) -> Int64[Tensor, "batch longest"]:
    """Return the best translation of each source that beam search finds, with `end` behind it.

    The search goes on with the `beam` likeliest beginnings. One that ends among them is a translation, and its place is
    not filled again; a sentence is done when none is left. The best translation has the largest
    log P / length ** length_penalty, where the end counts. None is longer than twice its source and ten tokens, or the
    context. beam=1 takes the likeliest token each time. Source: Bahdanau et al. 2015, whose search loses a place to
    each translation; Wu et al. 2016, §7, for the division by a power of the length.

    Args:
        model: in evaluation mode. `begin(source, mask)` returns its state, tensors (batch, ...). `advance(state,
            tokens)` returns the logits (rows, vocabulary) behind one more token (rows,) of each beginning, and the new
            state; a tensor in it that it returns as it was given is of the source, the same for all its beginnings.
        source: each text with its end.
        mask: False where it is padded.
        task: vocabulary and search.
    """
    beam, size, device = task.beam, len(source), source.device
    limits = (2 * mask.sum(dim=1) + 10).clamp(max=task.context - 1)
    found = torch.full((size, int(limits.max())), task.end, device=device)
    best, places = torch.full((size,), -torch.inf, device=device), torch.full((size, 1), beam, device=device)
    # Of each row: its sentence, its number among the beginnings of that, log P, and tokens.
    owner, slot = torch.arange(size, device=device), torch.zeros(size, dtype=torch.int64, device=device)
    scores, texts = torch.zeros(size, device=device), torch.full((size, 1), task.begin, device=device)
    state = model.begin(source, mask)
    for length in range(1, task.context + 1):
        logits, following = model.advance(state, texts[:, -1])
        likely, tokens = likeliest(logits.float(), beam, task.end, length > limits[owner])
        sums = torch.full((size, beam, likely.shape[1]), -torch.inf, device=device)
        sums[owner, slot] = scores[:, None] + likely
        rows = torch.zeros(size, beam, dtype=torch.int64, device=device)
        rows[owner, slot] = torch.arange(len(owner), device=device)
        top, place = sums.flatten(1).topk(beam)
        parent = rows.gather(1, place // likely.shape[1])
        token = tokens[parent, place % likely.shape[1]]
        kept = (torch.arange(beam, device=device) < places) & top.isfinite()
        ends, goes = kept & (token == task.end), kept & (token != task.end)
        value, which = (top / length**task.length_penalty).masked_fill(~ends, -torch.inf).max(dim=1)
        better = value > best
        found[better, : length - 1] = texts[parent[better, which[better]], 1:]
        best, places = torch.maximum(best, value), places - ends.sum(dim=1, keepdim=True)
        before, (owner, slot) = owner, goes.nonzero(as_tuple=True)
        if not len(owner):
            break
        moved = not torch.equal(owner, before)
        state = tuple(
            new[parent[goes]] if moved or new is not old else new for new, old in zip(following, state, strict=True)
        )
        scores, texts = top[goes], torch.cat((texts[parent[goes]], token[goes][:, None]), dim=1)
    return found


def likeliest(
    logits: Float[Tensor, "rows vocabulary"], count: int, end: int, closing: Bool[Tensor, " rows"]
) -> tuple[Float[Tensor, "rows count"], Int64[Tensor, "rows count"]]:
    """Return log P of the likeliest next tokens, and these tokens. closing: rows that must end now."""
    total = logits.logsumexp(dim=1, keepdim=True)
    if closing.any():
        others = torch.arange(logits.shape[1], device=logits.device) != end
        logits = logits.masked_fill(closing[:, None] & others, -torch.inf)
    likely, tokens = logits.topk(min(count, logits.shape[1]))
    return likely - total, tokens
