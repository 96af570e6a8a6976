"""What norms, placements, models and data are held to; `normbench check` and the tests run the same checks."""

from normbench.contract.data import DataPart
from normbench.contract.models import ModelPart
from normbench.contract.norms import NormPart
from normbench.contract.placements import PlacementPart

PARTS = {"norm": NormPart, "placement": PlacementPart, "model": ModelPart, "data": DataPart}
