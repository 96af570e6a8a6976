"""The loggers of a run by the names that configurations have, and the base of a logger of one's own: `Logger`."""

from normbench.record.loggers import Histogram, Logger, Scalar
from normbench.record.services import Csv, MLflow, Trackio, Wandb
from normbench.record.tensorboard import TensorBoard

__all__ = ["Csv", "Histogram", "Logger", "MLflow", "Scalar", "TensorBoard", "Trackio", "Wandb"]
