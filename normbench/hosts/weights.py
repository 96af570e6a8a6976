"""Weights of given models: from a file or folder of theirs, or from where their library keeps them.

Nothing here runs code that comes with weights: files are safetensors, or pickles of which torch reads tensors alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from normbench.errors import UsageError, explain
from normbench.record.files import sanitize
from normbench.settings import drop_keys, either, show

RANDOM = "random"
PRETRAINED = "pretrained"
MOST = 3  # names that a message lists
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".tar")  # as programs call what torch.save writes
FITTING = "give the weights of a model of this name and these sizes"
WANTED = "give a folder with config.json and model.safetensors, or a file .safetensors"

# The implementations that torch itself has, by the key of a configuration that chooses one.
OF_TORCH = {
    "attn_implementation": ("eager", "sdpa", "flex_attention"),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}

# Keys of configurations that have a library run code or ask for a repository, whatever they hold; those that do where
# they hold a name of something elsewhere; and what such a name has.
CODE = (
    "auto_map", "custom_pipelines", "custom_generate", "trust_remote_code", "code_revision", "quantization_config",
    "compression_config", "kernel_config", "use_kernels", "backbone", "use_pretrained_backbone",
)  # fmt: skip
MAY_BE_CODE = ("implementation", "kernel", "backend", "processor", "tokenizer")
ELSEWHERE = r"[/\\:@|]"
LABELS = ("id2label", "label2id")  # which hold words of whoever has named the classes

ADAPTER = "adapter_config.json"
CONFIG = "config.json"
NOTE = "swap.json"  # beside the weights of a model whose norms were swapped
MARK = "normbench_swap"  # of its config.json and its files of weights, which say so too
# What stands in names of tensors of a model that was compiled, sharded or recomputed, wherever such a module was in it.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
FEWEST = 0.5  # of a model's names, which a part of a file has that holds weights of the model


class Saved(NamedTuple):
    """A model as it was saved.

    Attributes:
        about: the content of config.json; empty where there is only a file of weights.
        folder: the folder with config.json; None where there is none.
        files: of the weights.
        part: of what the files hold, which was named after the path; empty: none was.
    """

    about: Mapping[str, Any]
    folder: Path | None
    files: tuple[Path, ...]
    part: str


def find_saved(path: str) -> Saved:
    """Return what is saved at a path: a folder in the layout of Hugging Face, or a file of weights.

    path: where a file holds the weights of several models, `:` and the name of a part of it may follow.

    Raises:
        UsageError: there is no such thing.
    """
    place, part = split_part(path)
    where = f"model.weights={path}"
    if place.is_file():
        if not (is_pickle(place) or place.suffix.lower() == ".safetensors"):
            raise UsageError(f"{where} is not a file of weights: {WANTED}")
        refuse_swapped(is_marked(place), where)
        return Saved({}, None, (place,), part)
    if not place.is_dir():
        raise UsageError(f"{where} is not there: {WANTED}, or write {RANDOM} or {PRETRAINED}")
    if (place / ADAPTER).exists():
        raise UsageError(
            f"{where} has an adapter ({ADAPTER}), whose model may be elsewhere: merge the two, and save that"
        )
    files = tuple(sorted(place.glob("*.safetensors")))
    if not files:
        raise UsageError(f"{where} has no .safetensors: {WANTED}")
    about = read_about(place / CONFIG)
    refuse_swapped((place / NOTE).exists() or MARK in about or any(map(is_marked, files)), where)
    return Saved(about, place, files, part)


def is_pickle(file: Path) -> bool:
    """Tell by its name whether a file is one that torch.save writes."""
    return file.suffix.lower() in PICKLES


def split_part(path: str) -> tuple[Path, str]:
    """Return a path and the part of a file that is named after it; the colon may also be one of the path's own."""
    whole = Path(os.path.expanduser(path))
    before, colon, part = path.rpartition(":")
    if not colon or whole.exists():
        return whole, ""
    return Path(os.path.expanduser(before)), part


def refuse_swapped(is_swapped: bool, where: str) -> None:
    """Refuse weights of a model whose norms were swapped: in the model as it was they would compute something else.

    Raises:
        UsageError: they are.
    """
    if is_swapped:
        what = f"{where} was swapped already, and its {NOTE} says which norms it has"
        cure = "give the folder of the model as it was, or read this one, with that note, by normbench.load_swapped"
        raise UsageError(f"{what}: {cure}")


def is_marked(file: Path) -> bool:
    """Tell whether a file says that its weights are of a swapped model; one that cannot be read does not."""
    if is_pickle(file):
        return False
    with suppress(Exception), safe_open(file, "pt") as opened:
        return MARK in (opened.metadata() or {})
    return False


def read_about(file: Path) -> dict[str, Any]:
    """Return the content of a config.json; nothing where there is none.

    Raises:
        UsageError: it cannot be read, is nested too deep to be looked through, or needs code that comes with it.
    """
    if not file.is_file():
        return {}
    try:
        about = sanitize(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read ({explain(error)}): {WANTED}") from error
    if not isinstance(about, dict):
        raise UsageError(f"{file} holds no configuration: {WANTED}")
    refuse_code(about, str(file))
    return about


class StateDict(OrderedDict[str, Tensor]):
    """Tensors by name, as torch loads them.

    Attributes:
        _metadata: the version of each module that has one, by its path; torch looks for it under this name.
    """

    def __init__(self, tensors: Mapping[str, Tensor] = {}, versions: Mapping[str, Mapping[str, int]] = {}) -> None:
        super().__init__(tensors)
        self._metadata = dict(versions)


def read_tensors(files: Iterable[Path]) -> StateDict:
    """Return the tensors of files by name; of a pickle nothing else is read.

    Where tensors lie in something that a training program has saved, their names begin with where they lie there.

    Raises:
        UsageError: one cannot be read, or two have a tensor of the same name.
    """
    tensors = StateDict()
    files_by_name: dict[str, Path] = {}
    for file in files:
        tensors_of_file = StateDict()
        try:
            if is_pickle(file):
                gather_tensors(load_pickle(file), (), tensors_of_file)
            else:
                tensors_of_file.update(safetensors.torch.load_file(file))
        except pickle.UnpicklingError as error:
            raise UsageError(f"{file} cannot be read, since {explain_pickle(error)}") from error
        except Exception as error:  # of a damaged file
            raise UsageError(f"{file} cannot be read ({explain(error)}): {WANTED}") from error
        if not tensors_of_file:
            raise UsageError(f"{file} holds no tensors by name: {WANTED}")
        for name in tensors_of_file:
            if name in files_by_name:
                both = f"{files_by_name[name].name} and {file.name} both have {name}"
                raise UsageError(f"{file.parent} holds several weights ({both}): give one of the files")
            files_by_name[name] = file
        tensors.update(tensors_of_file)
        tensors._metadata |= tensors_of_file._metadata
    return tensors


def load_pickle(file: Path, mmap: bool = False) -> Any:
    """Return what torch.save wrote, as far as torch reads it without running code that comes with it.

    Options of a command line may stand beside the weights, as in what timm's training program saves.
    """
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


def gather_tensors(content: Any, place: tuple[str, ...], found: StateDict) -> None:
    """Add the tensors in what was saved to those found, with the versions of modules; what is no tensor is left out.

    Args:
        content: of a file, or of a dictionary in it.
        place: the keys under which it lies.
        found: tensors so far.
    """
    if not isinstance(content, Mapping):
        return
    versions = getattr(content, "_metadata", None)
    if isinstance(versions, Mapping):
        for path, about in versions.items():
            version = about.get("version") if isinstance(about, Mapping) else None
            if type(version) is int:
                found._metadata[".".join([*place, str(path)] if path else place)] = {"version": version}
    for key, value in content.items():
        if isinstance(value, Tensor):
            found[".".join([*place, str(key)])] = value
        else:
            gather_tensors(value, (*place, str(key)), found)


def take_weights(found: StateDict, names: Collection[str], where: str, part: str) -> StateDict:
    """Return those of a file's tensors that are of a model, by the model's names.

    What stands before these names, as where training programs and wrappers have put the model, is seen from the names
    alone: nothing keys on the word.

    Args:
        found: the tensors of the file.
        names: of the model's own tensors.
        where: the file was given, in words.
        part: of the file that holds the weights; empty: it must be the only one.

    Raises:
        UsageError: there are several such parts, or not the one that is asked for; with those that there are.
    """
    unwrapped = StateDict()
    for name, tensor in found.items():
        unwrapped[without_wrappers(name)] = tensor
    if len(unwrapped) < len(found):  # what is the same without wrappers is not the same
        return found
    for path, version in found._metadata.items():
        unwrapped._metadata[without_wrappers(path)] = version
    parts = find_parts(unwrapped, names)
    fitting = [part] if part in parts else [candidate for candidate in parts if is_below(candidate, part)]
    if len(fitting) > 1:
        file = where.removesuffix(f":{part}")
        cure = f"write one of {either(fitting)} after a colon, as {file}:{fitting[0]}"
        raise UsageError(f"{where} holds several weights of the model: {cure}")
    if part and not fitting:
        cure = f"write {either(parts)} there" if any(parts) else f"leave out :{part}"
        raise UsageError(f"{where} holds no weights of the model under {part}: {cure}")
    if not fitting:
        return unwrapped  # what is not the model's is named when they are loaded
    (chosen,) = fitting
    others = [candidate for candidate in parts if candidate != chosen and is_below(candidate, chosen)]
    taken = StateDict()
    for name, tensor in unwrapped.items():
        if is_below(name, chosen) and not any(is_below(name, other) for other in others):
            taken[below(name, chosen)] = tensor
    for path, version in unwrapped._metadata.items():
        if is_below(path, chosen):
            taken._metadata[below(path, chosen)] = version
    return taken


def without_wrappers(path: str) -> str:
    """Return a path without what wrappers have put into it."""
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def is_below(path: str, part: str) -> bool:
    """Tell whether a path is a part or begins with it; all are below an empty one."""
    return not part or path == part or path.startswith(f"{part}.")


def below(path: str, part: str) -> str:
    """Return what stands in a path behind a part with which it begins."""
    return path[len(part) :].removeprefix(".")


def find_parts(found: Iterable[str], names: Collection[str]) -> list[str]:
    """Return what stands before the names of a model in those that were found, wherever there are enough of them.

    found: the names of a file's tensors.
    """
    counts = Counter[str]()
    for path in found:
        keys = path.split(".")
        for number in range(len(keys)):
            if ".".join(keys[number:]) in names:
                counts[".".join(keys[:number])] += 1
    return [part for part, count in counts.items() if count >= FEWEST * len(names)]


def explain_pickle(error: pickle.UnpicklingError) -> str:
    """Say why torch reads no tensors of a pickle, whose own message is a page on how to run its code nevertheless."""
    match = re.search(r"GLOBAL (\S+)", str(error))
    if not match:
        return f"it is damaged, or no file that torch.save writes: {WANTED}"
    what = f"it holds more than tensors ({match[1]}), as where a whole model is saved, and code in it would run"
    return f"{what}: save model.state_dict() alone, or {WANTED}"


def put_in_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str, head: nn.Module | None) -> list[str]:
    """Load weights into a model; an output layer of another number of classes starts anew.

    Args:
        module: the model.
        tensors: by the names of its parameters and buffers.
        where: the weights come from, in words.
        head: the output layer; None: it must fit as all else.

    Returns:
        The names of what starts anew.

    Raises:
        UsageError: they do not fit; with the first names. The model may have some of them then.
    """
    state = module.state_dict()
    paths = {submodule: path for path, submodule in module.named_modules()}
    anew = list[str]()
    if head is not None and has_other_shape(paths[head], state, tensors):
        anew = names_below(paths[head], state)
    known = drop_keys(tensors, *anew)
    other = [name for name in state if name in known and not has_shape_of(known[name], state[name])]
    loadable = StateDict(drop_keys(known, *other), getattr(tensors, "_metadata", None) or {})
    try:
        loaded = module.load_state_dict(loadable, strict=False)  # torch knows what the versions of its modules lack
    except RuntimeError as error:
        raise UsageError(f"{where} does not fit the model ({explain(error)}): {FITTING}") from error
    missing = []
    for name in loaded.missing_keys:
        if name not in anew and name not in other and not is_shared(name, state, known):
            missing.append(name)
    check_fit(where, missing, loaded.unexpected_keys, other)
    return anew


def has_shape_of(given: Tensor, own: Tensor) -> bool:
    """Tell whether torch takes a tensor in place of one of a model; of numbers alone it takes lists, too."""
    return given.shape == own.shape or (own.dim() == 0 and given.dim() == 1)


def names_below(path: str, state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors of a module, by its path."""
    return [name for name in state if name.startswith(f"{path}.")]


def has_other_shape(path: str, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether tensors for a module, by its path, are of other shapes than its own."""
    return any(name in tensors and tensors[name].shape != own[name].shape for name in names_below(path, own))


def is_shared(name: str, own: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> bool:
    """Tell whether a tensor of a model is the same as one of another name that is known."""
    place = own[name].data_ptr()
    return any(other in own and own[other].data_ptr() == place for other in known)


def check_fit(where: str, missing: Sequence[str], unknown: Sequence[str], other: Sequence[str]) -> None:
    """Refuse weights that do not fit a model.

    Args:
        where: they come from.
        missing: names that the model has alone.
        unknown: names that the weights have alone.
        other: names of tensors of another shape.

    Raises:
        UsageError: with the first names of each.
    """
    said = []
    for names, what in ((other, "of another shape"), (missing, "missing"), (unknown, "not the model's")):
        if names:
            listed = ", ".join(names[:MOST])
            if len(names) > MOST:
                listed += f" and {len(names) - MOST} more"
            verb = "is" if len(names) == 1 else "are"
            said.append(f"{listed} {verb} {what}")
    if said:
        raise UsageError(f"{where} does not fit the model ({'; '.join(said)}): {FITTING}")


def refuse_code(content: Any, where: str) -> None:
    """Refuse a configuration that has a library run code, load a kernel or ask for a repository beside its own.

    It is looked through as it is written, at any depth: an object that a library makes of it no longer has all keys.

    Args:
        content: of a config.json, or options that a person gives; a part of it.
        where: it stands.

    Raises:
        UsageError: with the key.
    """
    if isinstance(content, list | tuple):
        for item in content:
            refuse_code(item, where)
    if not isinstance(content, Mapping):
        return
    for key, value in content.items():
        name = str(key)
        public_name = name.removeprefix("_").removesuffix("_internal")
        if public_name in OF_TORCH:
            refuse_implementation(name, value, OF_TORCH[public_name], where)
        elif is_code(name, value):
            raise UsageError(f"{where} has {name}, which needs code beside that of the library: give another model")
        elif name not in LABELS:
            refuse_code(value, where)


def refuse_implementation(key: str, value: Any, allowed: Sequence[str], where: str) -> None:
    """Refuse an implementation that torch itself does not have.

    Others are those of packages and, where these are not installed, kernels of the hub, whose code would run.

    Args:
        key: that names it.
        value: its name, or one for each part of the model.
        allowed: those of torch.
        where: the key stands.

    Raises:
        UsageError: with what is allowed.
    """
    named = value.values() if isinstance(value, Mapping) else [value]
    for implementation in named:
        if implementation is not None and implementation not in allowed:
            what = f"{where} has {key}={show(implementation)}, which is not in torch and may be a kernel of the hub"
            raise UsageError(f"{what}: leave it out there, or write {either(allowed)}")


def is_code(key: str, value: Any) -> bool:
    """Tell whether a key of a configuration says where code is, with this value."""
    if key in CODE:
        return bool(value)
    names_a_part = any(part in key for part in MAY_BE_CODE)
    return names_a_part and isinstance(value, str) and re.search(ELSEWHERE, value) is not None
