"""What a logger of one's own extends and may use: `class Mine(normbench.recording.Logger)`."""

from normbench.record.loggers import Histogram, Logger, Scalar
from normbench.record.tensorboard import TensorBoard

__all__ = ["Histogram", "Logger", "Scalar", "TensorBoard"]
