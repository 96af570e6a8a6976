"""What a reader of a number must know stands at its column: unfair times, and values of fewer data than others."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_report, make_run

from normbench.commands.report import print_table
from normbench.show.latex import in_appendix
from normbench.show.report import fill_pages
from normbench.show.tables import Table, name_seeds

TIMES = ("time to", "loss at", "step time", "90th percentile", "training time", "ratio of step times")
UNSTEADY = {0: 10.0, 1: 55.0, 2: 10.0}  # ms by seed: another program was at work
EVALUATED = {"trainer.eval_batches": 2, "data.eval_batch_size": 16}


def write_runs(folder: Path, step_ms: dict[int, float], **more: object) -> None:
    for norm in ("layernorm", "rmsnorm"):
        for seed, milliseconds in step_ms.items():
            make_run(folder, norm=norm, seed=seed, final=2.0 + seed / 50, step_ms=milliseconds, **more)  # type: ignore[arg-type]


def headings(table: Table) -> list[str]:
    return [str(name) for name in table.frame]


def test_a_caveat_of_step_times_stands_at_each_column_of_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(tmp_path, UNSTEADY)
    report = make_report([tmp_path])
    found = set()
    for table in report.tables:
        for name in headings(table):
            is_of_times = name.startswith(TIMES)
            assert name.endswith("†") == is_of_times, name
            found |= {start for start in TIMES if name.startswith(start)}
        has_times = any(name.startswith(TIMES) for name in headings(table))
        assert any(warning.startswith("† Step times differ up to 5.5-fold") for warning in table.warnings) == has_times
    assert found == {*TIMES}
    pages = fill_pages(report, figures=[], studies=[])
    marked = sum(name.endswith("†") for table in report.tables for name in headings(table))
    assert pages["report.html"].count(" †</th>") == marked + 1, "the table of all runs has one too"
    assert pages["report.md"].count("† Step times differ") == sum("†" in "".join(one.warnings) for one in report.tables)
    appendix = in_appendix(report.tables)
    for part in appendix.split(r"\begin{table}")[1:]:
        head = part.partition(r"\end{tabular}" + "\n")[0]
        assert (r"\dag{}" in head) == (r"\dag{} Step times differ" in part)
    (costs,) = [table for table in report.tables if table.key == "costs"]
    print_table(costs)
    assert "† Step times differ" in capsys.readouterr().out


def test_steady_times_have_no_sign(tmp_path: Path) -> None:
    write_runs(tmp_path, dict.fromkeys(UNSTEADY, 10.0))
    report = make_report([tmp_path])
    assert "†" not in "".join(fill_pages(report, figures=[], studies=[]).values())


@pytest.mark.parametrize(("of_part", "sign"), [(True, True), (False, False)])
def test_a_best_value_that_is_worse_than_the_final_one_says_on_what_it_was_evaluated(
    of_part: bool, sign: bool, tmp_path: Path
) -> None:
    settings = EVALUATED if of_part else {"trainer.eval_batches": None}
    write_runs(tmp_path, dict.fromkeys(UNSTEADY, 10.0), settings=settings)
    (results,) = [table for table in make_report([tmp_path]).tables if table.key == "arms"]
    (best,) = [name for name in headings(results) if name.startswith("best ")]
    assert best.endswith("‡") == sign
    assert any("On 2 batches" in warning for warning in results.warnings) == sign


def test_seeds_are_named_and_many_are_cut_short() -> None:
    assert [name_seeds([3]), name_seeds([0, 2])] == ["seed 3", "seeds 0, 2"]
    assert name_seeds(range(9)) == "seeds 0, 1, 2, 3, 4, …"
