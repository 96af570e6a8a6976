"""TensorBoard's protocol buffers for what a run records, in the format of its current plugins."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_FLOAT, DT_STRING
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
from tensorboard.plugins.histogram import metadata as histogram
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS, Experiment, HParamInfo, MetricInfo, MetricName
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.plugins.text import metadata as text

from normbench.recording.sink import Histogram, Scalar

SCALAR = scalar.create_summary_metadata(display_name="", description="")
HISTOGRAM = histogram.create_summary_metadata(display_name="", description="")
TEXT = text.create_summary_metadata(display_name="", description="")
CUSTOM_SCALARS = custom_scalar.create_summary_metadata()

# tensorboard.plugins.hparams.metadata holds these names as well, but takes 0.4 s to import.
HPARAMS = "hparams"
EXPERIMENT_TAG = "_hparams_/experiment"
SESSION_START_TAG = "_hparams_/session_start_info"
SESSION_END_TAG = "_hparams_/session_end_info"

# What is written anew whenever a run starts or goes on, beside the steps.
HEADER_PLUGINS = {text.PLUGIN_NAME, HPARAMS, custom_scalar.PLUGIN_NAME}


def version_event() -> Event:
    """What every file begins with."""
    return Event(wall_time=time.time(), file_version="brain.Event:2")


def is_header(event: Event) -> bool:
    """Whether the event holds layout, text or hyperparameters rather than numbers of a step."""
    return any(value.metadata.plugin_data.plugin_name in HEADER_PLUGINS for value in event.summary.value)


def scalar_value(tag: str, number: float) -> Summary.Value:
    """A number, as float32."""
    return Summary.Value(tag=tag, tensor=TensorProto(dtype=DT_FLOAT, float_val=[number]))


def histogram_value(tag: str, content: Histogram) -> Summary.Value:
    """Buckets as rows of left edge, right edge and count."""
    edges = np.asarray(content.edges, np.float64)
    buckets = np.stack([edges[:-1], edges[1:], np.asarray(content.counts, np.float64)], axis=1)
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in buckets.shape])
    return Summary.Value(
        tag=tag, tensor=TensorProto(dtype=DT_DOUBLE, tensor_shape=shape, tensor_content=buckets.tobytes())
    )


def text_value(tag: str, markdown: str) -> Summary.Value:
    """A page of the Text tab."""
    return Summary.Value(tag=tag, metadata=TEXT, tensor=_string(markdown.encode()))


def layout_value(categories: Mapping[str, Mapping[str, Iterable[str]]]) -> Summary.Value:
    """The Custom Scalars tab: category title -> chart title -> regular expressions of tags."""
    layout = Layout(
        category=[
            Category(
                title=title,
                chart=[Chart(title=name, multiline=MultilineChartContent(tag=tags)) for name, tags in charts.items()],
            )
            for title, charts in categories.items()
        ]
    )
    return Summary.Value(
        tag=custom_scalar.CONFIG_SUMMARY_TAG, metadata=CUSTOM_SCALARS, tensor=_string(layout.SerializeToString())
    )


def experiment_value(config: Mapping[str, Scalar], metric_tags: Iterable[str]) -> Summary.Value:
    """The columns of the HParams tab: without them it would show every tag of the run as a metric.

    It opens with five hyperparameters, those marked as differing first; these are the first five of `config`.
    """
    experiment = Experiment(
        hparam_infos=[HParamInfo(name=name, differs=place < 5) for place, name in enumerate(config)],
        metric_infos=[MetricInfo(name=MetricName(tag=tag)) for tag in metric_tags],
    )
    return _hparams_value(EXPERIMENT_TAG, HParamsPluginData(experiment=experiment))


def session_start_value(config: Mapping[str, Scalar]) -> Summary.Value:
    """The run's row in the HParams tab."""
    session = SessionStartInfo(start_time_secs=time.time())
    for name, setting in config.items():
        target = session.hparams[name]
        if isinstance(setting, bool):
            target.bool_value = setting
        elif isinstance(setting, int | float):
            target.number_value = setting
        else:
            target.string_value = "null" if setting is None else setting
    return _hparams_value(SESSION_START_TAG, HParamsPluginData(session_start_info=session))


def session_end_value() -> Summary.Value:
    """The mark that the run has ended."""
    session = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
    return _hparams_value(SESSION_END_TAG, HParamsPluginData(session_end_info=session))


def _hparams_value(tag: str, content: HParamsPluginData) -> Summary.Value:
    plugin = SummaryMetadata.PluginData(plugin_name=HPARAMS, content=content.SerializeToString())
    empty = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=empty)


def _string(content: bytes) -> TensorProto:
    return TensorProto(dtype=DT_STRING, string_val=[content], tensor_shape=TensorShapeProto())
