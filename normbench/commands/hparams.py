"""The HParams tab of `normbench tensorboard`: every setting of all runs, those that vary first, and few metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorboard import default
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.hparams_plugin import HParamsPlugin

from normbench.config.schema import UNHASHED_KEYS
from normbench.record.tensorboard import METRICS
from normbench.settings import drop_keys

FIRST = ("norm", "placement", "model", "data", "seed")  # the choices that stand before other settings


class Columns(Context):
    """Gathers the columns of the HParams tab from all runs, whenever a browser asks for them.

    TensorBoard alone would take those of one run, where runs of an earlier version say which they have, and else list
    every number that was logged as a metric, in alphabetical order.
    """

    def experiment_from_metadata(
        self,
        ctx: Any,
        experiment_id: str,
        include_metrics: bool,
        hparams_run_to_tag_to_content: Mapping[str, Mapping[str, bytes]],
        data_provider_hparams: Any,
        hparams_limit: int | None = None,
    ) -> api_pb2.Experiment:
        rows = {}
        for run, content in hparams_run_to_tag_to_content.items():
            rows[run] = drop_keys(content, metadata.EXPERIMENT_TAG)
        experiment = super().experiment_from_metadata(
            ctx, experiment_id, include_metrics, rows, data_provider_hparams, hparams_limit
        )
        in_each = set.intersection(*settings_of_runs(rows) or [set()])
        for info in experiment.hparam_infos:
            info.differs |= info.name not in in_each  # to TensorBoard, what one run has alone does not vary
        settings = sorted(experiment.hparam_infos, key=place_of_setting)
        logged = {(info.name.group, info.name.tag): info for info in experiment.metric_infos}
        metrics = [logged["", tag] for tag in METRICS if ("", tag) in logged]
        return api_pb2.Experiment(hparam_infos=settings, metric_infos=metrics or experiment.metric_infos)


def settings_of_runs(rows: Mapping[str, Mapping[str, bytes]]) -> list[set[str]]:
    """Return the names of each run's settings. rows: what runs wrote for the HParams tab, by run and tag."""
    names_of_runs = []
    for content in rows.values():
        start = content.get(metadata.SESSION_START_INFO_TAG)
        if start:
            names_of_runs.append({*metadata.parse_session_start_info_plugin_data(start).hparams})
    return names_of_runs


def place_of_setting(info: api_pb2.HParamInfo) -> tuple[bool, bool, int, bool, str]:
    """Return what sorts a setting among others.

    Those that vary come first, and choices before the settings of each. Of those that vary the last are settings that
    change no number, as `quiet`, which a sweep sets for its runs, and what the choices imply, as the class of a norm.
    """
    tells_nothing = info.name in UNHASHED_KEYS or info.name.rpartition(".")[2].startswith("_")
    place = FIRST.index(info.name) if info.name in FIRST else len(FIRST)
    is_of_choice = "." in info.name
    return not info.differs, tells_nothing, place, is_of_choice, info.name


class HParams(HParamsPlugin):
    """TensorBoard's plugin of the HParams tab, with the columns of all runs."""

    def __init__(self, context: TBContext) -> None:
        super().__init__(context)
        self._context = Columns(context)


def make_plugins() -> list[Any]:
    """Return TensorBoard's plugins, with ours in place of its own for the HParams tab."""
    return [HParams if plugin is HParamsPlugin else plugin for plugin in default.get_plugins()]
