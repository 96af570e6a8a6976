"""Swapped models as files in the format of their library, with a note of their norms, and how they are read again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from normbench.errors import UsageError, explain
from normbench.hosts.acting import Acting
from normbench.hosts.building import quietly
from normbench.hosts.libraries import import_library
from normbench.hosts.replacing import leave_fast_path, let_act, place_like
from normbench.hosts.weights import NOTE, put_in_weights, read_tensors
from normbench.types import Norm, Site

OURS = "normbench.norms."  # whose classes a note may name
TAKEN_OVER = ("groups", "momentum")  # which a norm may have from the one before it


def describe_norm(path: str, norm: Any, features: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a note says of a norm.

    Args:
        path: in the model.
        norm: that stands there.
        features: that it normalizes.
        settings: with which its class was called; the norm may have taken others over from the one before it.

    Raises:
        UsageError: its class is not one of normbench's.
    """
    acts = isinstance(norm, Acting)
    kind: Any = type(norm).__mro__[2] if acts else type(norm)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not name.startswith(OURS):
        raise UsageError(f"--out writes norms of normbench alone, not {name}: choose one of them, or leave out --out")
    current = dict(settings)
    for key in TAKEN_OVER:
        if key in kind.recorded:
            current[key] = getattr(norm, key)
    return {
        "path": path,
        "class": name,
        "features": features,
        "channel_dim": norm.channel_dim,
        "settings": current,
        "eps": norm.eps,
        "acts": acts,
        "site": asdict(norm.stands_at),
    }


def check_out(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        UsageError: it does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} holds something already: give a new folder")


def write_folder(folder: Path, model: nn.Module, note: Mapping[str, Any], tokenizer: Path | None) -> None:
    """Write a swapped model: its weights and config.json as its library has them, and a note of what was swapped.

    Args:
        folder: is made, or empty.
        model: of transformers, timm or torchvision.
        note: as `load_swapped` reads it; `library`, `name` and `options` say what the model is.
        tokenizer: a tokenizer.json that goes with it, or its folder, if there is one.

    Raises:
        UsageError: the folder holds something, or cannot be written.
    """
    check_out(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "save_pretrained"):
        config: Any = model.config
        if note["untied"]:
            config.tie_word_embeddings = False
        with quietly(import_library("transformers")):
            # Experts under the names that they have in the model, where the library's own files have them one by one.
            model.save_pretrained(folder, save_original_format=False)  # type: ignore[operator]  # of transformers
    else:
        about = {"architecture": note["name"], "library": note["library"], "model_args": note["options"]}
        (folder / "config.json").write_text(json.dumps(about, indent=2) + "\n")
        state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        safetensors.torch.save_file(state, folder / "model.safetensors", {"format": "pt"})
    if tokenizer is not None:
        file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        shutil.copyfile(file, folder / "tokenizer.json")
    (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n")
    (folder / "README.md").write_text(explain_reading(folder, model, note))


def explain_reading(folder: Path, model: nn.Module, note: Mapping[str, Any]) -> str:
    """Return a page that says what was swapped, and how the model is read again."""
    if note["library"] == "hf":
        auto = "AutoModelForCausalLM"
        if "SequenceClassification" in type(model).__name__:
            auto = "AutoModelForSequenceClassification"
        lines = [
            f"from transformers import AutoConfig, {auto}",
            "",
            f'config = AutoConfig.from_pretrained("{folder.name}")',
            f"model = {auto}.from_config(config)",
        ]
    else:
        options = ", ".join(f"{key}={value!r}" for key, value in note["options"].items())
        make = f'timm.create_model("{note["name"]}", {options})'
        imported = "import timm"
        if note["library"] == "torchvision":
            make = f'get_model("{note["name"]}", {options})'
            imported = "from torchvision.models import get_model"
        lines = [imported, "", f"model = {make}"]
    code = "\n".join(["import normbench", *lines, f'normbench.load_swapped(model, "{folder.name}")'])
    names = [entry["class"].rpartition(".")[2] for entry in note["norms"]]
    kinds = ", ".join(dict.fromkeys(names))
    return f"""# {note["name"]} with other norms

{len(note["norms"])} norms are {kinds} here, made by

    {note["command"]}

The weights are in the format of its library, under their own names, and `{NOTE}` says which norm stands where. To read
it, in the folder above:

```python
{code}
```
"""


@torch.no_grad()
def load_swapped(model: nn.Module, folder: Path) -> None:
    """Put the norms of a swapped model in their places, and load its weights; see `normbench.load_swapped`.

    Raises:
        UsageError: the folder is not one of a swapped model, or of another model.
    """
    try:
        note = json.loads((folder / NOTE).read_bytes())
        entries = [*note["norms"]]
        biases, untied = note["biases"], note["untied"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        cure = "give a folder that normbench swap --out has written"
        raise UsageError(f"{folder} has no {NOTE} that can be read ({explain(error)}): {cure}") from error
    try:
        made = [put_in_norm(model, entry) for entry in entries]
        for path in biases:
            layer: Any = model.get_submodule(path)
            layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
        untie(model, untied)
    except (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{folder} is of another model ({explain(error)}): build the one that it says") from error
    leave_fast_path(model, made)
    put_in_weights(model, read_tensors(sorted(folder.glob("*.safetensors"))), str(folder), None)


def put_in_norm(model: nn.Module, entry: Mapping[str, Any]) -> nn.Module:
    """Put a norm in its place, as a note says it.

    Raises:
        UsageError: its class is not one of normbench's.
    """
    kind = norm_class(str(entry["class"]))
    site: dict[str, Any] = {}
    for key, value in entry["site"].items():
        site[key] = tuple(value) if isinstance(value, list) else value
    stands_at = Site(**site)
    new = kind(entry["features"], channel_dim=entry["channel_dim"], site=stands_at, **entry["settings"])
    new.eps = entry["eps"]
    new.stands_at = stands_at
    old = model.get_submodule(entry["path"])
    place_like(new, old, model)
    if entry["acts"]:
        let_act(new, old)
    new.train(old.training)
    model.set_submodule(entry["path"], new)
    return new


def norm_class(name: str) -> type[Norm]:
    """Return a norm of normbench by the full name of its class; nothing else is imported, and nothing is called.

    Raises:
        UsageError: it is not one.
    """
    module, _, own_name = name.rpartition(".")
    kind = None
    if module.startswith(OURS):
        with suppress(ImportError):
            kind = vars(import_module(module)).get(own_name)
    if not (isinstance(kind, type) and issubclass(kind, Norm) and kind.__module__ == module):
        raise UsageError(f"{NOTE} names {name}, which is not a norm of normbench: its code is not run")
    return kind


def untie(model: nn.Module, names: Collection[str]) -> None:
    """Give parameters of these names tensors of their own."""
    for name in names:
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        setattr(module, own, nn.Parameter(module.get_parameter(own).detach().clone()))
