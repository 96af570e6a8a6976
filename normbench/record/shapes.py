"""What the files of a run must hold, whoever has written them."""

from __future__ import annotations

import re
from types import NoneType
from typing import Any

Shape = Any  # a type, several, a pattern, a list of one shape, or a mapping from keys to shapes
CHOICE_FILE = "lr_choice.json"  # beside the runs of a sweep: the learning rate that it has chosen for each arm
DIGESTS = "digests"  # of a summary: what the files of the run were when it ended
EXTENDED = "extended"  # of a session: the runs that this one goes on with

NUMBER = (int, float, NoneType)
STANDS = {"status": str, "step": int, "steps": int, "message": (str, NoneType)}
OPEN = {"_target_": str}
# One command of ours and nothing after it: words, and in quotes what a shell would take for its own.
COMMAND = re.compile(r"""normbench( ([\w@%+=:,./-]|'[^']*'|"'")+)+""", re.ASCII)
RAMP = {"largest_rate": NUMBER, "last_step": int, "bore_all": bool, "diverged": bool}
LEDGER = {
    "operators_a_step": NUMBER,
    "host_share_of_step": NUMBER,
    "batches_a_step": NUMBER,
    "parameters": ({"total": int, str: int}, NoneType),
}
STRETCH = {"steps": int, "eval_batches": (int, NoneType)}
SESSION = {
    "choices": {str: str},
    "command": COMMAND,
    "data": dict,
    "packages": (dict, NoneType),
    "task": {"kind": str},
    "step": (int, NoneType),
    EXTENDED: (NoneType, [STRETCH]),
}

# What the files of a run have at least, whoever has written them.
SHAPES: dict[str, Shape] = {
    "config.yaml": {"seed": int, "norm": OPEN, "placement": OPEN, "model": OPEN, "data": OPEN},
    "environment.json": {"sessions": [SESSION]},
    "status.json": STANDS,
    "summary.json": {
        **STANDS,
        "seed": int,
        "choices": {str: str},
        "metrics": {str: NUMBER},
        "step_time": {str: NUMBER},
        "data": dict,
        "norm_facts": dict,
        "ledger": LEDGER,
        DIGESTS: (dict, NoneType),
        "ramp": (RAMP, NoneType),
    },
    CHOICE_FILE: {"arms": [{"arm": {str: str}, "lr": NUMBER}]},
}


def fits(content: Any, shape: Shape) -> bool:
    """Tell whether content has a shape: a type, a pattern, a list of one shape, or keys with shapes, `str` for all.

    Of several shapes in a tuple it has one.
    """
    if isinstance(shape, tuple):
        return any(fits(content, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(content, list) and all(fits(item, shape[0]) for item in content)
    if isinstance(shape, dict):
        if not isinstance(content, dict):
            return False
        for key, kind in shape.items():
            values = content.values() if key is str else [content.get(key)]
            if not all(fits(value, kind) for value in values):
                return False
        return True
    if isinstance(shape, re.Pattern):
        return isinstance(content, str) and shape.fullmatch(content) is not None
    return isinstance(content, shape)
