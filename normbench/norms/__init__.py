"""The normalizations, a file for each formula; `conf/norm/` is their registry."""
# ruff: noqa: F401 (imported for those who name them, conf/norm above all)

from normbench.norms.adanorm import AdaNorm
from normbench.norms.batchnorm import BatchNorm
from normbench.norms.batchrenorm import BatchRenorm
from normbench.norms.bhyt import BHyT
from normbench.norms.crmsnorm import CRMSNorm
from normbench.norms.derf import Derf, DyISRU
from normbench.norms.dyt import DyT
from normbench.norms.evonorm import EvoNormB0, EvoNormS0
from normbench.norms.frn import FRN
from normbench.norms.gatedrmsnorm import GatedRMSNorm
from normbench.norms.ghostbatchnorm import GhostBatchNorm
from normbench.norms.groupnorm import GroupNorm
from normbench.norms.instancenorm import InstanceNorm
from normbench.norms.layernorm import LayerNorm
from normbench.norms.none import NoNorm
from normbench.norms.own import Own
from normbench.norms.powernorm import PowerNorm
from normbench.norms.rmsnorm import PartialRMSNorm, RMSNorm
from normbench.norms.scale import Scale
from normbench.norms.scalenorm import ScaleNorm
from normbench.norms.seednorm import SeeDNorm
from normbench.norms.switchable import SwitchableNorm
from normbench.norms.tapernorm import TaperNorm
from normbench.norms.unitnorm import UnitNorm
