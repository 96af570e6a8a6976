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

    The search keeps the `beam` likeliest beginnings. One that ends among them is a translation, and its score is
    log P / length ** length_penalty, where the end counts. A sentence leaves the batch when `beam` translations of it
    have ended, and none is longer than twice its source and ten tokens, or the context. beam=1 takes the likeliest
    token each time. Source: Wu et al. 2016, §7 (the second of its three forms of a length penalty).

    Args:
        model: in evaluation mode. `begin(source, mask)` returns its state, tensors (batch, ...). `advance(state,
            tokens)` returns the logits (batch, vocabulary) behind one more token (batch,) of each, and the new state;
            a tensor in it that it returns as it was given is of the source, the same for all translations of it.
        source: each text with its end.
        mask: False where it is padded.
        task: vocabulary and search.
    """
    beam, device = task.beam, source.device
    limits = (2 * mask.sum(dim=1) + 10).clamp(max=task.context - 1)
    found = torch.full((len(source), int(limits.max())), task.end, device=device)
    best, ended = torch.full(limits.shape, -torch.inf, device=device), torch.zeros_like(limits)
    places = torch.arange(len(source), device=device)  # of the sentences that are searched, in `found`
    state = tuple(each.repeat_interleave(beam, dim=0) for each in model.begin(source, mask))
    scores = torch.tensor([0.0] + [-torch.inf] * (beam - 1), device=device).repeat(len(source), 1)
    texts = torch.empty(len(source) * beam, 0, dtype=torch.int64, device=device)
    last = torch.full((len(texts),), task.begin, device=device)
    for length in range(1, task.context + 1):
        logits, following = model.advance(state, last)
        top, tokens, parents = candidates(logits.float(), scores, task.end, closing := length > limits)
        ends, first = tokens == task.end, torch.arange(len(places), device=device) * beam
        finished = ends[:, :beam] & top[:, :beam].isfinite()
        value, which = (top[:, :beam] / length**task.length_penalty).masked_fill(~finished, -torch.inf).max(dim=1)
        better = value > best
        row = first + parents.gather(1, which[:, None])[:, 0]
        found[places[better], : length - 1] = texts[row[better]]
        ended += finished.sum(dim=1)
        stays = ~closing & (ended < beam)
        if not stays.any():
            break
        scores, chosen = top.masked_fill(ends, -torch.inf).topk(beam)
        rows = (first[:, None] + parents.gather(1, chosen))[stays].flatten()
        kept = zip(following, state, strict=True)
        state = tuple(new if new is old and stays.all() else new[rows] for new, old in kept)
        last = tokens.gather(1, chosen)[stays].flatten()
        texts = torch.cat((texts[rows], last[:, None]), dim=1)
        best = torch.maximum(best, value)
        scores, places, limits, best, ended = (each[stays] for each in (scores, places, limits, best, ended))
    return found


def candidates(
    logits: Float[Tensor, "rows vocabulary"],
    scores: Float[Tensor, "batch beam"],
    end: int,
    closing: Bool[Tensor, " batch"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations, twice as many as go on: log P, token, and which of the beam it continues.

    closing: sentences that must end now.
    """
    total, beam = logits.logsumexp(dim=-1, keepdim=True), scores.shape[1]
    if closing.any():
        others = torch.arange(logits.shape[1], device=logits.device) != end
        logits = logits.masked_fill(closing.repeat_interleave(beam)[:, None] & others, -torch.inf)
    likely, tokens = logits.topk(min(2 * beam, logits.shape[1]))
    sums = scores[:, :, None] + (likely - total).view(*scores.shape, -1)
    top, place = sums.flatten(1).topk(min(2 * beam, sums[0].numel()))
    return top, tokens.view(len(scores), -1).gather(1, place), place // sums.shape[2]
