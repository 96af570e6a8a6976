"""Translation: pairs of sentences and their batches, the search for translations, and how these are judged."""

from __future__ import annotations

import sys
from itertools import chain, pairwise, product, takewhile
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import datasets
import pytest
import torch
from data_helpers import write_parquet
from made_runs import make_report, make_run
from sketches import chosen, sketched
from torch import Tensor, nn

from normbench.contract.data import DataPart
from normbench.data import hub_translation
from normbench.data.translation import POOL, Translations
from normbench.data.vocabulary import BytePairs
from normbench.errors import UsageError
from normbench.evidence.facts import facts
from normbench.results.rules import Verdict
from normbench.tell.setups import options_of
from normbench.translation import Translation, translate
from normbench.types import PADDING, Batch

WORDS = ["ein", "Hund", "läuft", "über", "die", "Wiese", "und", "bellt", "laut", "heute"]
TURNED = dict(
    zip(WORDS, ["a", "dog", "runs", "across", "the", "meadow", "and", "barks", "loudly", "today"], strict=True)
)


def sentences(seed: int, count: int) -> dict[str, list[str]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (count,), generator=generator).tolist()
    german = [[WORDS[int(torch.randint(10, (), generator=generator))] for _ in range(length)] for length in lengths]
    return {"de": [" ".join(row) for row in german], "en": [" ".join(map(TURNED.__getitem__, row)) for row in german]}


def write(root: Path, both: bool = False, **rows: Any) -> Path:
    """Write a hub-layout copy `me/pairs` with a column for each language, or one for both."""
    texts: dict[str, Any] = {"train": sentences(0, 60), "validation": sentences(1, 9), "test": sentences(2, 7), **rows}
    features: dict[str, Any] = dict.fromkeys(("de", "en"), datasets.Value("string"))
    for split, columns in texts.items():
        if both:
            pairs = [{"de": de, "en": en} for de, en in zip(columns["de"], columns["en"], strict=True)]
            write_parquet(root / "me/pairs", {"translation": pairs}, {"translation": features}, split)
        else:
            write_parquet(root / "me/pairs", columns, features, split)
    return root


def made(root: Path, **options: Any) -> Translations:
    usual = {"vocabulary_size": 300, "context": 64, "batch_size": 5, "eval_batch_size": 4, "seed": 0}
    return hub_translation(name="pairs", hub_id="me/pairs", root=str(root), **usual | options)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pairs"))


def shown(data: Translations, batch: Batch) -> list[tuple[str, str]]:
    assert batch.mask is not None
    inputs = batch.inputs.masked_fill(~batch.mask, data.task.end)
    return [*zip(map(data.decode, inputs), map(data.decode, batch.targets), strict=True)]


# ---- data


@pytest.mark.parametrize("options", [{}, {"holdout": 0.4}, {"holdout": 0.4, "train_share": 0.5}, {"context": 8}])
def test_translations_that_train_and_judge_are_counted(options: dict[str, Any], tmp_path: Path) -> None:
    """Those that are left out, since they are too long or not in the share, do not train."""
    train = sentences(0, 30)
    both = {language: [*rows, *rows[10:]] for language, rows in train.items()}
    judging = {language: [*rows[:4], "kurz" if language == "de" else "short"] for language, rows in train.items()}
    if "context" in options:
        lengths = [len(text) for text in train["de"]]
        few = [place for place, length in enumerate(lengths) if length < 9][:3]
        judging = {language: [rows[place] for place in few] for language, rows in train.items()}
    data = made(write(tmp_path, train=both, validation=judging, test=judging), batch_size=2, **options)
    pairs = {
        split: [(data.sentence("source", row).tolist(), data.sentence("target", row).tolist()) for row in rows.tolist()]
        for split, rows in data.examples.items()
    }
    told = data.describe()
    for split in ("val", "test"):
        count = sum(pair in pairs["train"] for pair in pairs[split])
        assert told.get(f"{split}_sentences_seen_in_training", 0) == count
    assert "holdout" not in options or told["val_sentences_seen_in_training"] > 0


def test_batches_hold_the_lower_cased_pairs_of_the_right_direction(root: Path) -> None:
    data = made(root)
    rows = sentences(1, 9)
    expected = zip(map(str.lower, rows["de"]), rows["en"], strict=True)
    assert sorted(chain(*(shown(data, batch) for batch in data.eval_batches("val")))) == sorted(expected)
    other = made(root, source_column="en", target_column="de", lowercase=False)
    rows = sentences(2, 7)
    expected = zip(rows["en"], rows["de"], strict=True)
    assert sorted(chain(*(shown(other, batch) for batch in other.eval_batches("test")))) == sorted(expected)
    assert data.task.vocabulary_size == 300 == data.describe()["vocabulary_size"]
    assert data.describe()["direction"] == "de to en" and "case:lc" in data.describe()["bleu"]
    assert "case:mixed" in other.describe()["bleu"]


def test_begin_and_end_stand_around_a_translation(root: Path) -> None:
    data = made(root)
    batch = data.train_batch(0)
    assert batch.mask is not None and batch.previous is not None
    real = batch.targets != PADDING
    for row in range(5):
        targets = batch.targets[row][real[row]]
        previous = batch.previous[row][real[row]]
        assert previous[0] == data.task.begin == 298 and targets[-1] == data.task.end == 299
        assert torch.equal(previous[1:], targets[:-1]) and targets[:-1].max() < 298
        assert batch.inputs[row][batch.mask[row]][-1] == data.task.end
    assert (batch.previous[~real] == 0).all() and (batch.inputs[~batch.mask] == 0).all()


def test_an_epoch_takes_each_pair_once_in_batches_of_like_lengths(root: Path) -> None:
    data = made(root)
    for epoch in range(2):
        rows = torch.cat([data.indices(step) for step in range(epoch * 12, epoch * 12 + 12)])
        assert sorted(rows.tolist()) == list(range(60))
    one_pool = [data.lengths[data.examples["train"][data.indices(step)]][:, 0] for step in range(12)]
    spans = sorted((int(lengths.min()), int(lengths.max())) for lengths in one_pool)
    assert POOL > 12 and all(before[1] <= after[0] for before, after in pairwise(spans))
    assert [span[0] for span in spans] != [int(lengths.min()) for lengths in one_pool], "batches are shuffled"
    assert not torch.equal(data.indices(0), data.indices(12)) and not torch.equal(
        data.indices(0), made(root, seed=1).indices(0)
    )
    later = made(root)
    assert torch.equal(later.indices(17), data.indices(17)), "seed and step alone decide"


def test_both_languages_of_one_column_are_the_same_data(root: Path, tmp_path: Path) -> None:
    both = made(write(tmp_path, both=True), pair_column="translation")
    assert both.fingerprint == made(root).fingerprint


def test_the_vocabulary_is_learned_of_what_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = Mock(side_effect=BytePairs.learn)
    monkeypatch.setattr(BytePairs, "learn", learn)
    data = made(write(tmp_path), holdout=0.3, test_splits=None, vocabulary_size=301)
    ((texts, _), _) = learn.call_args
    train = shown(data, data.batch("train", torch.arange(42)))
    assert sorted(texts[0].split("\n")) == sorted(chain(*train))
    held_out = list(chain(*(shown(data, batch) for batch in data.eval_batches("val"))))
    assert len(held_out) == 18
    both = sentences(0, 60)
    assert sorted(train + held_out) == sorted(zip(map(str.lower, both["de"]), both["en"], strict=True))


def test_a_pair_longer_than_the_context_trains_not_and_cannot_judge(root: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model.context=9 is too short for the longest \w+ sentence of pairs, (\d+) tok"
    ):
        made(root, context=9)
    long = {name: [*texts, "über " * 70] for name, texts in sentences(0, 60).items()}
    data = made(write(tmp_path, train=long))
    assert (data.describe()["too_long"], data.describe()["train_sentences"]) == (1, 60)


def test_an_empty_text_is_left_out_of_training_and_cannot_judge(tmp_path: Path) -> None:
    rows = {"de": ["ein Hund", " "], "en": ["a dog", "nothing"]}
    more = {name: texts + rows[name] for name, texts in sentences(0, 60).items()}
    data = made(write(tmp_path / "train", train=more))
    assert (data.describe()["empty"], data.describe()["train_sentences"]) == (1, 61)
    with pytest.raises(UsageError, match="test of me/pairs has an empty text"):
        made(write(tmp_path / "test", test=rows))
    with pytest.raises(UsageError, match="row 1 of validation of me/pairs does not have the two texts de and en"):
        made(write(tmp_path / "none", validation={"de": ["a", None], "en": ["b", "c"]}))


def test_the_constant_predictor_knows_the_frequencies_of_the_targets(root: Path) -> None:
    data = made(root)
    targets = torch.cat([batch.targets[batch.targets != PADDING] for batch in data.eval_batches("val")])
    shares = torch.bincount(targets) / len(targets)
    entropy = float(-(shares[shares > 0] * shares[shares > 0].log()).sum())
    assert data.constant["loss/val"] == pytest.approx(entropy, rel=1e-5)


def test_a_missing_sacrebleu_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UsageError, match=r"sacrebleu, which is missing: pip install 'normbench\[translation\]'"):
        made(root)


@pytest.mark.slow
@pytest.mark.data
def test_multi30k_has_its_published_sizes() -> None:
    from normbench import build
    from normbench.config.compose import read

    data = build.factory(read(["data=multi30k"]).recipe["data"])(seed=0)
    found = data.describe()
    assert [found[f"{split}_sentences"] for split in ("train", "val", "test")] == [29000, 1014, 1000]
    assert found["too_long"] == found["empty"] == 0 and found["vocabulary_size"] == 4000
    last = [*data.eval_batches("test")][-1]
    assert all(text == text.lower() and 50 < len(text) < 300 for text in shown(data, last)[-1])


# ---- the search


class Table(nn.Module):
    """Logits that a random table gives for each source and beginning of a translation: no two beginnings are alike."""

    def __init__(self, vocabulary: int, seed: int = 0, scale: float = 2.0) -> None:
        super().__init__()
        self.rows = scale * torch.randn(997, vocabulary, generator=torch.Generator().manual_seed(seed))
        self.rows_seen: list[int] = []

    def begin(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return source, (source * mask).sum(dim=1)

    def advance(self, state: tuple[Tensor, ...], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        source, code = state
        self.rows_seen.append(len(tokens))
        code = (31 * code + tokens + 7 + 3 * source[:, 0]) % 997
        return self.rows[code], (source, code)


def begin_alone(model: Table, source: Tensor) -> tuple[Tensor, ...]:
    """Return the state of a model before the translation of one sentence."""
    return model.begin(source[None], torch.ones(1, len(source), dtype=torch.bool))


def longest(source: Tensor, task: Translation) -> int:
    """Return how many tokens a translation may have."""
    return min(2 * len(source) + 10, task.context - 1)


def score(model: Table, source: Tensor, tokens: tuple[int, ...], task: Translation) -> float:
    """Return the score of a translation with its end: its log P, token by token, over a power of its length."""
    total = 0.0
    state = begin_alone(model, source)
    for last, following in zip((task.begin, *tokens), (*tokens, task.end), strict=True):
        logits, state = model.advance(state, torch.tensor([last]))
        total += float(logits[0].double().log_softmax(dim=-1)[following])
    return total / (len(tokens) + 1) ** task.length_penalty


def best_of_all(model: Table, source: Tensor, task: Translation) -> tuple[int, ...]:
    """Return the translation with the best score among all there are."""
    every: list[tuple[int, ...]] = []
    for length in range(longest(source, task) + 1):
        every += product(range(task.end), repeat=length)
    return max(every, key=lambda tokens: score(model, source, tokens, task))


def without_end(found: Tensor, task: Translation) -> list[tuple[int, ...]]:
    """Return translations as they are before their first end."""
    return [tuple(takewhile(lambda token: token != task.end, row)) for row in found.tolist()]


def sources_of(batch: Batch) -> list[Tensor]:
    """Return the tokens of each source, without padding."""
    assert batch.mask is not None
    return [row[real] for row, real in zip(batch.inputs, batch.mask, strict=True)]


def random_sources(task: Translation, count: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(task.begin, (1 + number % 3,), generator=generator) for number in range(count)]
    return task.batch(rows, rows)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_beam_as_wide_as_all_translations_finds_the_best_one(penalty: float) -> None:
    task = Translation(4, 5, beam=200, length_penalty=penalty)
    lengths = set()
    for seed in range(3):
        model = Table(4, seed)
        batch = random_sources(task, 4, seed)
        found = without_end(translate(model, batch.inputs, batch.mask, task), task)
        for tokens, source in zip(found, sources_of(batch), strict=True):
            assert tokens == best_of_all(model, source, task)
            lengths.add(len(tokens))
    assert len(lengths) > 1


def greedy(model: Table, source: Tensor, task: Translation) -> tuple[int, ...]:
    """Return the likeliest tokens, one after the other."""
    tokens: list[int] = []
    state = begin_alone(model, source)
    last = task.begin
    while len(tokens) < longest(source, task):
        logits, state = model.advance(state, torch.tensor([last]))
        last = int(logits.argmax())
        if last == task.end:
            break
        tokens.append(last)
    return tuple(tokens)


def test_a_beam_of_one_takes_the_likeliest_token_each_time() -> None:
    task = Translation(7, 30, beam=1)
    model = Table(7)
    batch = random_sources(task, 40, 0)
    found = without_end(translate(model, batch.inputs, batch.mask, task), task)
    assert found == [greedy(model, source, task) for source in sources_of(batch)]
    assert len({len(row) for row in found}) > 4


class Beginning(NamedTuple):
    """The beginning of a translation: log P, its tokens with `begin`, and the model's state."""

    score: float
    tokens: tuple[int, ...]
    state: tuple[Tensor, ...]


def search_alone(model: Table, source: Tensor, task: Translation) -> tuple[int, ...]:
    """Return what the search finds for one sentence, with lists of beginnings and nothing shared between them."""
    limit = longest(source, task)
    alive = [Beginning(0.0, (task.begin,), begin_alone(model, source))]
    whole: list[Beginning] = []
    for length in range(limit + 1):
        allowed = [task.end] if length == limit else range(task.vocabulary_size)
        grown = []
        for one in alive:
            logits, state = model.advance(one.state, torch.tensor([one.tokens[-1]]))
            likely = logits[0].double().log_softmax(dim=-1).tolist()
            for token in allowed:
                grown.append(Beginning(one.score + likely[token], (*one.tokens, token), state))
        grown.sort(key=lambda one: -one.score)
        kept = grown[: task.beam - len(whole)]
        whole += [one for one in kept if one.tokens[-1] == task.end]
        alive = [one for one in kept if one.tokens[-1] != task.end]
    best = max(whole, key=lambda one: one.score / (len(one.tokens) - 1) ** task.length_penalty)
    return best.tokens[1:-1]


@pytest.mark.parametrize("beam", [2, 5])
def test_a_batch_is_searched_as_each_sentence_alone_and_sentences_leave_it(beam: int) -> None:
    task = Translation(9, 30, beam=beam)
    model, batch = Table(9, scale=1.5), random_sources(task, 30, 1)
    found = without_end(translate(model, batch.inputs, batch.mask, task), task)
    rows = model.rows_seen.copy()
    expected = [search_alone(model, source, task) for source in sources_of(batch)]
    assert found == expected
    assert len(set(found)) > 20
    assert rows[0] == 30 and 30 * beam / 2 < max(rows) <= 30 * beam and rows[-1] < 10 * beam


def test_a_translation_that_does_not_end_is_cut() -> None:
    task = Translation(6, 64, beam=3)
    model = Table(6)
    model.rows[:, task.end] = -50
    sources = [torch.zeros(length, dtype=torch.int64) for length in (2, 30)]
    batch = task.batch(sources, sources)
    found = without_end(translate(model, batch.inputs, batch.mask, task), task)
    assert [len(tokens) for tokens in found] == [16, 63]


# ---- judging


def test_translations_that_are_the_references_have_a_bleu_of_100(root: Path) -> None:
    class Knows(nn.Module):
        """Finds each source among the pairs, and says its translation."""

        def begin(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            rows = [torch.cat((pairs[data.decode(row[real])], end)) for row, real in zip(source, mask, strict=True)]
            known = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=data.task.end)
            return known, torch.zeros(len(source), dtype=torch.int64)

        def advance(self, state: tuple[Tensor, ...], tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            known, place = state
            following = known.gather(1, place.clamp(max=known.shape[1] - 1)[:, None])[:, 0]
            return 30.0 * nn.functional.one_hot(following, data.task.vocabulary_size), (known, place + 1)

    data = made(root)
    end = torch.tensor([data.task.end])
    pairs = {de: data.encode(en) for batch in data.eval_batches("val") for de, en in shown(data, batch)}
    model = Knows()
    metrics, page = data.task.judge(model, data.eval_batches("val"), data, torch.device("cpu"))
    assert metrics == {"bleu": pytest.approx(100)} and model.training
    assert page.startswith("BLEU 100.0 on 9 sentences, beam 5 (nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:")
    source, reference = shown(data, next(data.eval_batches("val")))[0]
    assert f"| {source} | {reference} | {reference} |" in page
    first = next(iter(pairs))
    pairs[first] = data.encode("nothing of it")
    worse, _ = data.task.judge(model.eval(), data.eval_batches("val"), data, torch.device("cpu"))
    assert 0 < worse["bleu"] < 99 and not model.training


# ---- the report


def test_translators_are_judged_by_bleu_which_is_drawn_by_epoch(tmp_path: Path) -> None:
    told = {"kind": "translation", "val_sentences": 1014, "steps_per_epoch": 25, "beam": 5, "bleu": "nrefs:1|case:lc"}
    settings = {"data.eval_batch_size": 64, "trainer.eval_batches": 4}
    for norm, seed in product(("layernorm", "rmsnorm"), range(3)):
        bleu = 38 + 0.1 * seed - (1.2 + 0.01 * seed) * (norm == "rmsnorm")
        make_run(tmp_path, norm=norm, seed=seed, bleu=bleu, data=told, settings=settings)
    report = make_report([tmp_path])
    (one,) = report.answer.differences
    assert (one.verdict, one.metric.tag) == (Verdict.DIFFERENT, "bleu/val") and one.mean == pytest.approx(-1.21)
    assert report.tables[0].rows[0][:4] == ("layernorm", "3", "38.1", "37.8 to 38.4")
    known = facts(report.study, options_of(report.study), report.yardstick.primary.words, "")
    assert known["judged by"] == "validation BLEU after the last step (beam 5, nrefs:1|case:lc)"
    figure = sketched(tmp_path)["bleu-val-epochs"]
    assert max(float(row["x"]) for row in chosen(figure)) == 4 and figure.title == "Validation BLEU by epoch"
    assert "Evaluated on 4 batches on the way" in figure.caption


# ---- the contract


def test_the_checks_of_data_hold(root: Path) -> None:
    part = DataPart({"data": {}})
    part.data, part.make = made(root), lambda seed=0: made(root, seed=seed)  # type: ignore[method-assign]
    for check in part.contract().values():
        check(part)
