"""What is said of each kind of figure: its title, its caption, and what it shows for those who cannot see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normbench.evidence.measures import Metric
from normbench.wording import join_first, percent

MOST_TOLD = 12  # rows of a figure in its alternative text


@dataclass(frozen=True)
class FigureWords:
    """The words of a figure. sentences: of its caption. alt: its alternative text."""

    title: str
    sentences: tuple[str, ...]
    alt: str


def words(title: str, caption: Sequence[str], alt: str) -> FigureWords:
    """Return words that begin in upper case. caption: its sentences, which may be empty."""
    sentences = tuple(capitalized(sentence) for sentence in caption if sentence.strip())
    return FigureWords(capitalized(title), sentences, capitalized(alt))


def capitalized(text: str) -> str:
    """Return a text with single spaces and its first letter in upper case; other letters stay."""
    text = " ".join(text.split())
    return text[0].upper() + text[1:]


def at_most(texts: Sequence[str]) -> str:
    """Join the texts of the first rows, as many as an alternative text tells."""
    return "; ".join(texts[:MOST_TOLD])


def lines(
    *,
    word: str,
    by: str,
    x: str,
    about: str,
    ends: Sequence[str],
    seeds: tuple[int, int],
    records: int,
    steps: Sequence[int],
    crosses: bool,
    cut: bool,
    far: Sequence[str],
    batches: str,
) -> FigureWords:
    """Return the words of a figure of lines.

    Args:
        word: what is drawn.
        by: what the title calls the axis.
        x: words of the axis, in full.
        about: a sentence that explains what is drawn; empty for none.
        ends: the name of each arm and the value at which its line ends.
        seeds: the fewest and the most of a line.
        records: of how many records a point is the mean at most.
        steps: those of which each panel shows one; empty where lines are over steps, epochs or time.
        crosses: whether runs diverged.
        cut: whether the first steps are above the axis.
        far: the arms that end above the axis.
        batches: on how much runs were evaluated during training; empty where that was all data.
    """
    least, most = seeds
    caption = [about]
    if most == 1:
        caption.append("One seed.")
    else:
        number = str(most) if least == most else f"{least} to {most}"
        caption.append(f"Line: mean of {number} seeds; band: from the lowest to the highest.")
    if records > 1 and not steps:
        caption.append(f"Each point is the mean of up to {records} records.")
    if crosses:
        caption.append("×: the last finite loss of a run that diverged, which is in no mean unless all of its arm did.")
    if cut:
        caption.append("The first steps, above the axis, are in the data.")
    if far:
        caption.append(f"Above the axis, with an arrow: {', '.join(far)}.")
    if by == "training time" and most > 1:
        caption.append("Means at equal times, up to where the first seed of an arm has ended.")
    if batches:
        caption.append(f"Evaluated on {batches} on the way, and on all validation data at the last point.")
    at_steps = ""
    if steps:
        shown_steps = ", ".join(map(str, steps))
        at_steps = f", at steps {shown_steps}"
    return words(f"{word} by {by}", caption, f"{word} against {x}{at_steps}; at the right end: {at_most(ends)}.")


def differences(
    metric: Metric, *, baselines: Sequence[str], rows: Sequence[str], torn: bool, panes: int
) -> FigureWords:
    """Return the words of a forest plot. rows: the name and the numbers of each difference."""
    baseline = baselines[0] if len(baselines) == 1 else "the arm named after it"
    caption = [
        f"Each arm against {baseline}: mean of the differences with its 95 % t interval; dots: the seeds; filled: a "
        "difference after Holm's correction (p < 0.05); right: mean and number of seeds."
    ]
    if torn:
        caption.append("Arms whose runs end in two groups have no mean: their seeds alone are drawn.")
    if panes > 1:
        caption.append("Left: what is near zero, with arrows to what is beyond; right: all.")
    return words(
        f"differences of the {metric.final_words}, paired by seed",
        caption,
        f"forest plot of the differences in {metric.unit} with {len(rows)} rows: {at_most(rows)}.",
    )


def sizes(metric: Metric, *, baselines: Sequence[str], lines: Sequence[str]) -> FigureWords:
    """Return the words of a figure of differences over sizes. lines: the name of each arm and the ends of its line."""
    baseline = baselines[0] if len(baselines) == 1 else "its baseline"
    side = "below" if metric.lower_is_better else "above"
    caption = [
        f"Each arm less {baseline}, paired by seed: {side} zero, the arm is better.",
        "Points: mean of the seeds at a size with its 95 % t interval; filled: the difference changes with the size, "
        "after Holm's correction (p < 0.05). Lines: mean of the lines of the seeds by least squares, with the 95 % t "
        "interval of their heights.",
        "Dashed, right of the dotted line: extrapolated by a decade; no model of those sizes was trained.",
    ]
    return words(
        f"differences of the {metric.final_words} by the number of parameters",
        caption,
        f"differences in {metric.unit} over the parameters of the model, on a logarithmic axis: {at_most(lines)}.",
    )


def interaction(metric: Metric, *, subject: str, factor: str, others: bool, ranges: Sequence[str]) -> FigureWords:
    """Return the words of a figure of two crossed factors.

    others: whether other settings vary too. ranges: the name of each arm, its lowest and its highest value.
    """
    over = ", over all else that varies" if others else ""
    caption = [
        f"Mean over the seeds with its 95 % t interval{over}.",
        f"Where lines run in parallel, {factor} does the same to each {subject}.",
        "Runs that diverged count as a constant predictor.",
    ]
    return words(
        f"{metric.final_words} by {subject} and {factor}",
        caption,
        f"lines of the {metric.final_words} over {factor}, one for each {subject}: {at_most(ranges)}.",
    )


def survival(*, subject: str, factor: str, rows: Sequence[Mapping[str, Any]]) -> FigureWords:
    """Return the words of a figure of runs that train. rows: with the arm, the level, and how many `runs` `train`."""
    numbers = sorted({row["runs"] for row in rows})
    counts = " or ".join(map(str, numbers))
    caption = (
        "Share of the runs that neither diverged nor ended close to a constant predictor, of "
        f"{counts} at each point, with its 95 % interval (Wilson 1927)."
    )
    phrases = []
    for row in rows:
        train, runs = row["train"], row["runs"]
        phrases.append(f"{row['arm']} at {row[factor]} {train} of {runs}")
    return words(
        f"share of runs that train by {subject} and {factor}",
        [caption],
        f"share of runs that train over {factor}: {at_most(phrases)}.",
    )


def map_of(metric: Metric, *, x: str, y: str, best: Sequence[str]) -> FigureWords:
    """Return the words of maps over two settings. best: the name of each arm, its best mean, and where that is."""
    caption = [
        f"The best cell: {at_most(best)}.",
        "Mean over the seeds at each pair of values; all panels share the colours.",
        "×: a run diverged; –: none did, and most ended close to a constant predictor.",
        "What diverged counts as a constant predictor in the mean.",
    ]
    return words(
        f"{metric.final_words} over {y} and {x}",
        caption,
        f"maps of the {metric.final_words} over {y} and {x}, a panel for each arm; the best cell: {at_most(best)}.",
    )


def learning_rates(metric: Metric, *, crosses: bool, ranges: Sequence[str]) -> FigureWords:
    """Return the words of a figure of how arms end over the learning rate.

    crosses: whether runs diverged. ranges: the name of each arm, its lowest and its highest value.
    """
    caption = [
        "Mean of the seeds that finished; bars: from the lowest to the highest seed; filled: the best rate of the arm, "
        "with the fewest runs lost and then the lowest mean validation loss.",
        "Triangle at the lower edge: the largest rate at which the arm trains, as geometric mean over the seeds; none "
        "where it trains at none.",
    ]
    if crosses:
        caption.append("× at the upper edge, in a row for each arm: rates at which some of its runs diverged.")
    return words(
        f"{metric.final_words} against learning rate",
        caption,
        f"{metric.final_words} against the learning rate, on a logarithmic axis: {at_most(ranges)}.",
    )


def search(*, seeds: int, crosses: bool, ranges: Sequence[str], length: float = 1.0) -> FigureWords:
    """Return the words of a figure of the search for a learning rate.

    Args:
        seeds: how many have chosen, at most.
        crosses: whether runs were lost.
        ranges: the name of each arm, its lowest and its highest value.
        length: of the runs that chose, as a share of those that are reported.
    """
    if seeds == 1:
        mean = "of one seed that is not reported"
    else:
        mean = f"mean of {seeds} seeds that are not reported, bars: from the lowest to the highest"
    caption = [
        "What chose the learning rate of each arm: the final validation loss on a tenth held out of the training data, "
        f"{mean}; filled: the chosen rate."
    ]
    if length < 1:
        caption.append(f"These runs have {percent(length)} of the steps of those that are reported.")
    if crosses:
        caption.append("× at the upper edge, in a row for each arm: rates at which a run was lost.")
    return words(
        "held-out loss against learning rate, where it was chosen",
        caption,
        f"held-out loss against the learning rate, on a logarithmic axis: {at_most(ranges)}.",
    )


def step_time(metric: Metric, *, front: Sequence[str], ranges: Sequence[str]) -> FigureWords:
    """Return the words of the Pareto plot.

    front: the names of the arms that no other is faster and better than. ranges: the name of each arm and its value.
    """
    caption = [
        f"Mean {metric.words} of the seeds that finished, and median over the runs of their median step times, with "
        "lines from the lowest to the highest.",
        "Filled, and joined by the dotted line: no other arm is both faster and better.",
    ]
    return words(
        f"step time against {metric.final_words}",
        caption,
        f"step time in milliseconds against the {metric.final_words}: {at_most(ranges)}; on the front: "
        f"{join_first(front, MOST_TOLD)}.",
    )
