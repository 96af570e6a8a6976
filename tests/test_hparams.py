"""The HParams tab, by TensorBoard's own code: it has every setting that runs have, whichever run is read first."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, get_experiment, list_session_groups, metadata
from tensorboard.plugins.hparams.hparams_plugin import HParamsPlugin

from normbench.commands.hparams import HParams, make_plugins
from normbench.record.tensorboard import TensorBoard

Settings = dict[str, Any]
OWN: Settings = {"norm": "layernorm", "model": "nano", "seed": 0, "norm.eps": 1e-5, "model.heads": 2}
OTHER: Settings = {"norm": "groupnorm", "model": "cnn", "seed": 0, "norm.eps": 1e-5, "norm.groups": 8}
RULED: Settings = {**OWN, "norm": "dyt", "norm.eps": None, "norm@qk": "rmsnorm", "norm@qk.eps": 1e-6}
ABSENT = "absent"
ORDERS = [*permutations((OWN, OTHER, RULED))]
LOGGED = {"act/block00.mlp/in": 1.0, "accuracy/val": 0.5, "loss/train": 2.0, "loss/val": 2.5}
PLUGINS = {"of TensorBoard": HParamsPlugin, "of normbench": HParams}


def record(folder: Path, name: str, settings: Settings) -> None:
    (folder / name).mkdir()
    board = TensorBoard(folder / name, 0)
    board.begin(settings, ("norm",), "")
    board.scalars(1, LOGGED)
    board.close("finished")


class Tab:
    """What a plugin answers on the runs below a folder."""

    def __init__(self, plugin: type[HParamsPlugin], folder: Path) -> None:
        runs = EventMultiplexer().AddRunsFromDirectory(str(folder))
        runs.Reload()
        self.context = plugin(TBContext(data_provider=MultiplexerDataProvider(runs, str(folder))))._context

    def experiment(self) -> api_pb2.Experiment:
        return self.ask(get_experiment, api_pb2.GetExperimentRequest())

    def columns(self) -> dict[str, bool]:
        """The settings, in their order, and whether each varies."""
        return {info.name: info.differs for info in self.experiment().hparam_infos}

    def metrics(self) -> list[str]:
        return [info.name.tag for info in self.experiment().metric_infos]

    def rows(self) -> dict[str, api_pb2.SessionGroup]:
        """The runs by name."""
        statuses = [*api_pb2.Status.values()]
        request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, slice_size=100)
        answer = self.ask(list_session_groups, request)
        return {group.sessions[0].name: group for group in answer.session_groups}

    def ask(self, handlers: Any, request: Any) -> Any:
        return handlers.Handler(RequestContext(), self.context, "", request).run()


@pytest.mark.parametrize("plugin", PLUGINS.values(), ids=PLUGINS)
@pytest.mark.parametrize("order", ORDERS, ids=["-".join(settings["norm"] for settings in order) for order in ORDERS])
def test_every_setting_of_all_runs_is_a_column(
    tmp_path: Path, plugin: type[HParamsPlugin], order: tuple[Settings, ...]
) -> None:
    """Also after another run is added; what varies comes first, to ours also what some runs lack."""
    for number, settings in enumerate(order):
        record(tmp_path, f"run{number}", settings)
        recorded = order[: number + 1]
        columns = Tab(plugin, tmp_path).columns()
        assert columns.keys() == set().union(*recorded)
        for name, varies in columns.items():
            values = [settings.get(name, ABSENT) for settings in recorded if name in settings or plugin is HParams]
            assert varies == (len({*values}) > 1), name
        assert [*columns.values()] == sorted(columns.values(), reverse=True)
    row = Tab(plugin, tmp_path).rows()[f"run{order.index(RULED)}"]
    assert row.hparams["norm@qk"].string_value == "rmsnorm" and row.hparams["norm.eps"].string_value == "null"


def test_a_setting_without_a_number_has_a_value(tmp_path: Path) -> None:
    for number, value in enumerate((None, float("inf"), float("-inf"), float("nan"), 2.5)):
        record(tmp_path, f"run{number}", {"norm": "dyt", "norm.bound": value})
    rows = Tab(HParams, tmp_path).rows()
    shown = [rows[f"run{number}"].hparams["norm.bound"] for number in range(5)]
    assert [value.string_value for value in shown[:4]] == ["null", "inf", "-inf", "nan"]
    assert shown[4].number_value == 2.5


def test_runs_of_an_earlier_version_hide_no_column(tmp_path: Path) -> None:
    """They say which columns there are, each its own."""
    for name, settings in (("a", OWN), ("b", OTHER)):
        record(tmp_path, name, settings)
        board = TensorBoard(tmp_path / name, 0)
        infos = [api_pb2.HParamInfo(name=setting, differs=False) for setting in settings]
        board.add_hparams(metadata.EXPERIMENT_TAG, experiment=api_pb2.Experiment(hparam_infos=infos))
        board.close("")
    assert Tab(HParamsPlugin, tmp_path).columns().keys() in (OWN.keys(), OTHER.keys())
    assert Tab(HParams, tmp_path).columns().keys() == OWN.keys() | OTHER.keys()


def test_choices_stand_before_settings_and_results_before_what_probes_tell(tmp_path: Path) -> None:
    for name, settings in (("a", OWN), ("b", OTHER), ("c", RULED)):
        record(tmp_path, name, settings)
    tab = Tab(HParams, tmp_path)
    assert [*tab.columns()][:5] == ["norm", "model", "norm@qk", "model.heads", "norm.eps"]
    assert tab.metrics() == ["loss/val", "accuracy/val", "loss/train"]
    values = {value.name.tag: value.value for value in tab.rows()["a"].metric_values}
    assert values == {tag: pytest.approx(LOGGED[tag]) for tag in tab.metrics()}


def test_what_changes_no_number_stands_behind_all_else_that_varies(tmp_path: Path) -> None:
    """A browser shows the first columns: a run beside those of a sweep is less quiet, which is nothing to compare."""
    swept = {**OWN, "norm._target_": "normbench.norms.LayerNorm", "quiet": True, "threads": 1}
    loose = {**RULED, "norm._target_": "normbench.norms.DyT", "quiet": False, "threads": None, "name": "others"}
    record(tmp_path, "a", swept)
    record(tmp_path, "b", loose)
    columns = Tab(HParams, tmp_path).columns()
    varied = [name for name, varies in columns.items() if varies]
    assert varied[:4] == ["norm", "norm@qk", "norm.eps", "norm@qk.eps"]
    assert varied[4:] == ["name", "quiet", "threads", "norm._target_"]


def test_the_tab_of_the_command_is_ours() -> None:
    plugins = make_plugins()
    assert HParams in plugins and HParamsPlugin not in plugins
