"""Where each value of a composed configuration was written: in which YAML, or on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from normbench.catalog import GROUPS, config_directory
from normbench.complaints import key_of

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Origins:
    """Where a configuration comes from.

    values: by dotted path, the file that has the last word, with what refers to other keys or to the environment as it
    is written there; or the command line. For a group, who chose its option.
    """

    values: Mapping[str, str]

    def of(self, path: str) -> str:
        """Who set the value at a path; an empty text where that is not known."""
        return self.values.get(path, "")


def trace(config_name: str, runtime: Any) -> Origins:
    """The origins of what Hydra has just composed; called while Hydra is initialized.

    Args:
        config_name: of the root config.
        runtime: Hydra's own section of the composition.
    """
    words: list[str] = list(runtime.overrides.task)
    loader = GlobalHydra.instance().config_loader()
    defaults = loader.compute_defaults_list(config_name, [*runtime.overrides.hydra, *words], RunMode.RUN)
    folders = [Path(source.path) for source in runtime.runtime.config_sources if source["schema"] == "file"]
    values: dict[str, str] = {}
    for entry in defaults.defaults:
        if path := find(entry.config_path, folders):
            values |= written(path, entry.package or "")
    choices = dict.fromkeys(GROUPS, shown(find(config_name, folders)))
    for group, chosen in defaults.overrides.override_metadata.items():
        outside = chosen.external_override
        choices[group] = COMMAND_LINE if outside else shown(find(chosen.containing_config_path, folders))
    return Origins(overridden(values, words) | choices)


def find(config_path: str, folders: list[Path]) -> Path | None:
    """The file of a config, in the first folder that has it; None for Hydra's own."""
    return next((path for folder in folders if (path := folder / f"{config_path}.yaml").is_file()), None)


def written(path: Path, package: str) -> dict[str, str]:
    """What a file sets, by the dotted paths of the whole configuration."""
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    if not isinstance(content, dict):  # a list, which `parse` refuses
        return {}
    own = {str(key): value for key, value in content.items() if key not in ("defaults", "hydra")}
    name = shown(path)
    return {
        key: f"{name}: {value}" if isinstance(value, str) and "${" in value else name
        for key, value in leaves(own, f"{package}." if package else "")
    }


def leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every value of a nested configuration with its dotted path."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def shown(path: Path | None) -> str:
    """A file as a person knows it: `conf/norm/rmsnorm.yaml`, or its path from the current directory."""
    if path is None:
        return ""
    for base, name in ((config_directory(), "conf"), (Path.cwd(), "")):
        if path.is_relative_to(base):
            return os.path.join(name, path.relative_to(base))
    return str(path)


def overridden(values: Mapping[str, str], words: list[str]) -> dict[str, str]:
    """The origins with those keys, or sections, that words of the command line set."""
    result = dict(values)
    for key in (key_of(word) for word in words):
        if key not in GROUPS:
            below = [path for path in values if path.startswith(f"{key}.")]
            result |= dict.fromkeys(below or [key], COMMAND_LINE)
    return result
