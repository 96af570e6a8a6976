"""The proper names of norms, and what an arm is called by them in figures and in the words of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normbench.evidence.arms import Arm

PROPER_NAMES = {
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "dyt": "DyT",
    "instancenorm": "InstanceNorm",
    "groupnorm": "GroupNorm",
    "batchnorm": "BatchNorm",
    "prmsnorm": "pRMSNorm",
    "none": "no norm",
    "switchable": "SwitchableNorm",
    "evonorm_b0": "EvoNorm-B0",
    "evonorm_s0": "EvoNorm-S0",
}


def label_of(arm: Arm) -> str:
    """Name an arm, its norm by its proper name."""
    return name_settings(arm, list(arm.settings))


def name_settings(arm: Arm, keys: Sequence[str]) -> str:
    """Name an arm by some of its settings, with the proper names of norms: LayerNorm for layernorm.

    A setting that is `default`, as studies say of one that the arm does not change, is left out; and one that an arm
    without runs, of which a sweep has noted what it was to be, does not have.
    """
    named = {}
    for key in keys:
        if arm.settings.get(key, "default") != "default":
            named[key] = proper_value(arm, key)
    return Arm(named).name if named else ""


def proper_value(arm: Arm, key: str) -> Any:
    """Return an arm's value of a setting; of a norm its proper name, or its class's where only upper case differs."""
    value = arm.settings[key]
    if key != "norm":
        return value
    if value in PROPER_NAMES:
        return PROPER_NAMES[value]
    target = config_of(arm).get("norm._target_", "")
    class_name = str(target).rpartition(".")[2]
    is_same = class_name.casefold() == str(value).casefold()
    return class_name if is_same else value


def config_of(arm: Arm) -> Mapping[str, Any]:
    """Return the configuration of an arm's first run; nothing of an arm without runs."""
    return arm.runs[0].config if arm.runs else {}
