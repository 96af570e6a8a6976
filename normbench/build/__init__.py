"""From the parts of a configuration to what a run is made of: data, a model with its norms, what trains it, loggers.

`parts` makes the thing that a part stands for, and refuses parts that do not go together; `places` and `treatments`
choose by the rules what stands at each place of a model, `models` makes it, `stepper` what trains it, and `rehearsal`
tries all of it once before a run begins.
"""

from normbench.build.models import Assembled, assemble, build_model, lay_out, make_model, start_model
from normbench.build.parts import check_parts, combine, factory, facts_of, make_data, make_loggers, norm_facts
from normbench.build.places import NormsByPlace, NormsBySite
from normbench.build.rehearsal import check_precision, rehearse
from normbench.build.stepper import make_stepper
from normbench.build.treatments import untreated_weights

__all__ = [
    "Assembled",
    "NormsByPlace",
    "NormsBySite",
    "assemble",
    "build_model",
    "check_parts",
    "check_precision",
    "combine",
    "factory",
    "facts_of",
    "lay_out",
    "make_data",
    "make_loggers",
    "make_model",
    "make_stepper",
    "norm_facts",
    "rehearse",
    "start_model",
    "untreated_weights",
]
