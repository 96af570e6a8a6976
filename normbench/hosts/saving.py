"""Swapped models as files in the format of their library, with a note of their norms, and how they are read again."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from msgspec import UNSET, Struct, UnsetType
from safetensors import SafetensorError
from torch import Tensor, nn

from normbench.errors import DISK_FULL, RunFailure, UsageError, explain
from normbench.hosts.acting import Acting
from normbench.hosts.adding import Behind, add
from normbench.hosts.importing import import_library
from normbench.hosts.replacing import leave_fast_path, let_act, place_like, put_in
from normbench.hosts.text_library import quietly
from normbench.hosts.weights import CONFIG, MARK, NOTE, is_marked, put_in_weights, read_about, read_tensors
from normbench.record.digests import digest_of
from normbench.record.files import write_folder_aside
from normbench.types import Norm, Site

OURS = "normbench.norms."  # whose classes a note may name
TAKEN_OVER = ("groups", "momentum")  # which a norm may have from the one before it


class NormNote(Struct, frozen=True):
    """What a note says of a norm.

    Attributes:
        path: in the model.
        target: its class, by its full name.
        features: that it normalizes.
        channel_dim: the axis of these.
        settings: with which its class was called.
        eps: that it has now.
        acts: whether it computes the activation behind it as well.
        site: its place.
        behind: after which map it was added, where the model has none by itself; earlier versions have added none.
    """

    path: str
    target: str = msgspec.field(name="class")
    features: int
    channel_dim: int
    settings: dict[str, Any]
    eps: float | None
    acts: bool
    site: Site
    behind: Behind | UnsetType = UNSET


class SwapNote(Struct, frozen=True):
    """What is noted of a swapped model.

    Attributes:
        library: from which the model is.
        name: of the model there.
        options: to build it with.
        command: that has swapped its norms.
        norms: those that came in.
        biases: the layers that have a bias which they did not have before.
        untied: parameters that were those of another one, and are by themselves now.
        classes: what the outputs stand for, where they have names.
        weights: the digest of each file of weights beside it, which earlier versions have not written.
    """

    library: str
    name: str
    options: dict[str, Any]
    command: str
    norms: list[NormNote]
    biases: list[str]
    untied: list[str]
    classes: list[str] | UnsetType = UNSET
    weights: dict[str, str] | UnsetType = UNSET


def describe_norm(
    path: str, norm: Any, features: int, settings: Mapping[str, Any], behind: Behind | None = None
) -> NormNote:
    """Return what a note says of a norm.

    Args:
        path: in the model.
        norm: that stands there.
        features: that it normalizes.
        settings: with which its class was called; the norm may have taken others over from the one before it.
        behind: after which map it was added; None where something else stood there.

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
    added = UNSET if behind is None else behind
    return NormNote(path, name, features, norm.channel_dim, current, norm.eps, acts, norm.stands_at, added)


def check_out(folder: Path) -> None:
    """Refuse a folder that holds something, or in which the command runs.

    Raises:
        UsageError: it does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} holds something already: give a new folder")
    if folder.resolve() == Path.cwd():
        raise UsageError(f"--out {folder} is the current folder: give a new one")


def write_folder(folder: Path, model: nn.Module, note: SwapNote, tokenizer: Path | None) -> None:
    """Write a swapped model: its weights and config.json as its library has them, and a note of what was swapped.

    The folder is there whole or not at all. The note has the digests of the weights, config.json that of the note, and
    each file of weights says that there is one, so that none of them is taken for the model's as it was.

    Args:
        folder: is made, or empty.
        model: of transformers, timm or torchvision.
        note: of it, without the digests.
        tokenizer: a tokenizer.json that goes with it, or its folder, if there is one.

    Raises:
        UsageError: the folder holds something, or cannot be written.
        RunFailure: the disk is full.
    """
    check_out(folder)
    with explain_writing(folder), write_folder_aside(folder) as aside:
        write_model(aside, model, note)
        files = weights_in(aside)
        for file in files:
            mark_weights(file)
        noted = msgspec.structs.replace(note, weights=digest_each(files))
        (aside / NOTE).write_text(json.dumps(msgspec.to_builtins(noted), indent=2) + "\n")
        about = json.loads((aside / CONFIG).read_bytes())
        about[MARK] = {NOTE: digest_of(aside / NOTE)}
        (aside / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
        if tokenizer is not None:
            file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
            shutil.copyfile(file, aside / "tokenizer.json")
        (aside / "README.md").write_text(explain_reading(folder, model, note))


@contextmanager
def explain_writing(folder: Path) -> Iterator[None]:
    """Turn the system's errors about a folder that is written into a sentence.

    Raises:
        UsageError: it cannot be written.
        RunFailure: the disk is full.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else None
        match = re.search(r"os error (\d+)", str(error))
        if match:  # safetensors says it in words alone
            number = int(match[1])
        reason = os.strerror(number) if number else explain(error)
        if number in DISK_FULL:
            cure = "nothing of it is left; make room, and give the same command again"
            raise RunFailure(f"--out {folder} cannot be written, since the disk is full ({reason}): {cure}") from error
        raise UsageError(f"--out {folder} cannot be written ({reason}): give another folder") from error


def write_model(folder: Path, model: nn.Module, note: SwapNote) -> None:
    """Write weights and config.json of a model as its library does."""
    if hasattr(model, "save_pretrained"):
        config: Any = model.config
        if note.untied:
            config.tie_word_embeddings = False
        with quietly(import_library("transformers")):
            # Experts under the names that they have in the model, where the library's own files have them one by one.
            model.save_pretrained(folder, save_original_format=False)  # type: ignore[operator]  # of transformers
        return
    about = {"architecture": note.name, "library": note.library, "model_args": note.options}
    (folder / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
    safetensors.torch.save_file(apart(model.state_dict()), folder / "model.safetensors", {"format": "pt"})


def apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model, each in memory of its own, as safetensors takes them.

    Tied and shared ones are there under each of their names, so that their library finds all that it looks for. They
    are one again in a model that is read: its own code makes it so, and each name brings the same content.
    """
    separate = dict[str, Tensor]()
    storages = set[int]()
    for name, tensor in state.items():
        contiguous = tensor.contiguous()
        place = contiguous.untyped_storage().data_ptr()
        separate[name] = contiguous.clone() if place in storages else contiguous
        storages.add(place)
    return separate


def mark_weights(file: Path) -> None:
    """Note in a file of weights that they are of a swapped model, which the file alone does not show else."""
    marked = file.with_suffix(".marked")
    safetensors.torch.save_file(safetensors.torch.load_file(file), marked, {"format": "pt", MARK: NOTE})
    os.replace(marked, file)


def weights_in(folder: Path) -> list[Path]:
    """Return the files of weights in a folder."""
    return sorted(folder.glob("*.safetensors"))


def digest_each(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    return {file.name: digest_of(file) for file in files}


def explain_reading(folder: Path, model: nn.Module, note: SwapNote) -> str:
    """Return a page that says what was swapped, and how the model is read again."""
    if note.library == "hf":
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
        options = ", ".join(f"{key}={value!r}" for key, value in note.options.items())
        make = f'timm.create_model("{note.name}", {options})'
        imported = "import timm"
        if note.library == "torchvision":
            make = f'get_model("{note.name}", {options})'
            imported = "from torchvision.models import get_model"
        lines = [imported, "", f"model = {make}"]
    code = "\n".join(["import normbench", *lines, f'normbench.load_swapped(model, "{folder.name}")'])
    names = [norm.target.rpartition(".")[2] for norm in note.norms]
    kinds = ", ".join(dict.fromkeys(names))
    return f"""# {note.name} with other norms

{len(note.norms)} norms are {kinds} here, made by

    {note.command}

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
        UsageError: the folder is not one of a swapped model, or of another model, or was changed after it was written.
    """
    note = read_note(folder)
    check_digests(folder, note)
    try:
        norms = [put_in_norm(model, norm) for norm in note.norms]
        for path in note.biases:
            layer: Any = model.get_submodule(path)
            layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
        untie(model, note.untied)
    except (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{folder} is of another model ({explain(error)}): build the one that it says") from error
    leave_fast_path(model, norms)
    put_in_weights(model, read_tensors(weights_in(folder)), str(folder))


def read_note(folder: Path) -> SwapNote:
    """Return what is noted of a swapped model.

    Raises:
        UsageError: the folder has no such note, or a damaged one: a norm would notice when it is called, if at all.
    """
    try:
        return msgspec.convert(json.loads((folder / NOTE).read_bytes()), SwapNote)
    except (OSError, ValueError, RecursionError) as error:
        cure = "give a folder that normbench swap --out has written"
        raise UsageError(f"{folder} has no {NOTE} that can be read ({explain(error)}): {cure}") from error


def check_digests(folder: Path, note: SwapNote) -> None:
    """Refuse a folder whose note or weights are not those that were written together; older ones have no digests.

    Raises:
        UsageError: with the file.
    """
    changed = []
    try:
        noted_of_note = read_about(folder / CONFIG).get(MARK)
        if noted_of_note is not None and noted_of_note != {NOTE: digest_of(folder / NOTE)}:
            changed.append(NOTE)
        weights = weights_in(folder)
        if note.weights not in (UNSET, digest_each(weights)):
            changed.append("its weights")
        if note.weights is UNSET and (noted_of_note or any(map(is_marked, weights))):
            changed.append(NOTE)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read ({explain(error)}): give another folder") from error
    if changed:
        what = f"{' and '.join(dict.fromkeys(changed))} changed after {folder} was written"
        raise UsageError(f"{what}: write it again with normbench swap --out")


def put_in_norm(model: nn.Module, note: NormNote) -> nn.Module:
    """Put a norm in its place, as a note says it.

    Raises:
        UsageError: its class is not one of normbench's.
    """
    kind = norm_class(note.target)
    new = kind(note.features, channel_dim=note.channel_dim, site=note.site, **note.settings)
    new.eps = note.eps
    new.stands_at = note.site
    if note.behind:
        add(model, note.path, new, note.behind)
        return new
    old = model.get_submodule(note.path)
    place_like(new, old, model)
    if note.acts:
        let_act(new, old)
    new.train(old.training)
    put_in(model, {old: new})  # at other paths, too, if it is there as well
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
        path, _, parameter_name = name.rpartition(".")
        module = model.get_submodule(path)
        setattr(module, parameter_name, nn.Parameter(module.get_parameter(parameter_name).detach().clone()))
