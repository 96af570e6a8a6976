"""On how much of the validation data runs were judged on the way, and at their end."""

from __future__ import annotations

from collections.abc import Iterable

from normbench.analysis.records import Run


def sampled_batches(run: Run) -> int | None:
    """The batches of an evaluation on the way, where the last one takes more: all data; None where both take all."""
    limit = run.config.get("trainer.eval_batches")
    data = run.summary.get("data") or run.session.get("data") or {}
    total, size = data.get("val_images", data.get("val_texts")), run.config.get("data.eval_batch_size")
    if limit is None or (total is not None and size is not None and limit * size >= total):
        return None
    return int(limit)


def evaluations_in_words(runs: Iterable[Run]) -> str:
    """Such as `20 batches`; empty where the runs were judged on all data on the way too."""
    counts = sorted({batches for run in runs if (batches := sampled_batches(run)) is not None})
    if not counts:
        return ""
    few = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{few} batch{'es' if counts[-1] > 1 else ''}"
