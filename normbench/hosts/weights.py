"""Weights of given models: from a file or folder of theirs, or from where their library keeps them.

Nothing here runs code that comes with weights: files are safetensors, or pickles of which torch reads tensors alone.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, NamedTuple

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from normbench.errors import UsageError, explain, lines_of
from normbench.record.files import sanitize
from normbench.settings import drop_keys, either, show

RANDOM = "random"
PRETRAINED = "pretrained"
MOST = 3  # names that a message lists
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".tar")  # as programs call what torch.save writes
FITTING = "give the weights of a model of this name and these sizes"
WANTED = (
    "give a folder with config.json and model.safetensors or pytorch_model.bin, or a file .safetensors, or of "
    "torch.save, such as .pth"
)
POINTER = b"version https://git-lfs"  # how a file begins that stands for one that Git LFS has not brought

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
SHARDED = ".metadata"  # what torch.distributed.checkpoint writes beside the parts: a pickle, which is not read
NOTE = "swap.json"  # beside the weights of a model whose norms were swapped
MARK = "normbench_swap"  # of its config.json and its files of weights, which say so too
# What stands in names of tensors of a model that was compiled, sharded or recomputed, wherever such a module was in it.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
DOTTED = re.compile(r"(?<=\bnorm|\bconv)\.(?=\d+\.)")  # the dot that names such as `norm.1` had
PARALLEL = "module"  # what DataParallel puts around a module, where people also have modules of that name
FEWEST = 0.5  # of a model's names, which a part of a file has that holds weights of the model


class Saved(NamedTuple):
    """A model as it was saved.

    Attributes:
        about: the content of config.json; empty where there is only a file of weights.
        folder: the folder with config.json; None where there is none.
        files: of the weights.
        part: of what the files hold, as it was named after the path; `''`: the weights outside of any part; None: the
            person named no part.
    """

    about: Mapping[str, Any]
    folder: Path | None
    files: tuple[Path, ...]
    part: str | None


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
    files = tuple(sorted(place.glob("*.safetensors")) or sorted(place.glob("pytorch_model*.bin")))
    if not files and (place / SHARDED).exists():
        command = f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {place} FILE.pt"
        raise UsageError(f"{where} holds parts of torch.distributed.checkpoint: make one file of them with {command}")
    if not files:
        raise UsageError(f"{where} has no .safetensors or pytorch_model.bin: {WANTED}")
    about = read_about(place / CONFIG)
    refuse_swapped((place / NOTE).exists() or MARK in about or any(map(is_marked, files)), where)
    return Saved(about, place, files, part)


def is_pickle(file: Path) -> bool:
    """Tell by its name whether a file is one that torch.save writes."""
    return file.suffix.lower() in PICKLES


def split_part(path: str) -> tuple[Path, str | None]:
    """Return a path and the part of a file that is named after it, or None; the colon may also be the path's own."""
    whole = Path(os.path.expanduser(path))
    before, colon, part = path.rpartition(":")
    if not colon or whole.exists():
        return whole, None
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
        others: what is no tensor where one may be wanted, in words, by its name in the file.
    """

    others: dict[str, str]

    def __init__(self, tensors: Mapping[str, Tensor] = {}, versions: Mapping[str, Mapping[str, int]] = {}) -> None:
        super().__init__(tensors)
        self._metadata = dict(versions)
        self.others = {}


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
        refuse_placeholder(file)
        try:
            if is_pickle(file):
                content = load_pickle(file)
                gather_tensors(content, (), tensors_of_file)
                if not tensors_of_file:
                    refuse_nameless(content, file)
            else:
                tensors_of_file.update(safetensors.torch.load_file(file))
        except UsageError:
            raise
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
        tensors.others |= tensors_of_file.others
    return tensors


def refuse_placeholder(file: Path) -> None:
    """Refuse a file that is empty, or stands for another one.

    Raises:
        UsageError: it is.
    """
    try:
        with open(file, "rb") as opened:
            start = opened.read(len(POINTER))
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({explain(error)}): {WANTED}") from error
    if not start:
        raise UsageError(f"{file} is empty: {WANTED}")
    if start == POINTER:
        raise UsageError(f"{file} is no weights, but what Git LFS keeps in their place: fetch them with git lfs pull")


class Unread:
    """Stands for an object that a file has beside its tensors, such as options or a number of numpy's.

    Attributes:
        name: of its class or function, which is neither imported nor called.
        parts: of what it would be made.
    """

    name: ClassVar[str]
    parts: list[Any]

    def __new__(cls, *arguments: Any) -> Unread:
        self = super().__new__(cls)
        self.parts = [*arguments]
        return self

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)

    @property
    def tensors(self) -> dict[str, Any]:
        """What a module of torch has by name, what it saves of its tensors and the modules in it; else nothing."""
        found: dict[str, Any] = {}
        for part in self.parts:
            for kind in PARTS_OF_MODULES:
                named = part.get(kind) if isinstance(part, Mapping) else None
                found |= named if isinstance(named, Mapping) else {}
            left_out = part.get(NOT_SAVED) if isinstance(part, Mapping) else None
            if isinstance(left_out, set):
                found = drop_keys(found, *left_out)
        return found


class Dictionary:
    """Makes a dictionary in place of one of another class, which a file fills."""

    def __new__(cls, *arguments: object) -> Any:
        return OrderedDict[Any, Any]()


class List:
    """Makes a list in place of another sequence, which a file fills."""

    def __new__(cls, *arguments: object) -> Any:
        return list[Any]()


PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")
NOT_SAVED = "_non_persistent_buffers_set"
NAMED = re.compile(r"GLOBAL (\S+)")
FILLED = re.compile(r"Can only (SETITEM|append|extend).* but got <class '(?:\w+\.)*Unread:(\S+)'>")


def load_pickle(file: Path, mmap: bool = False) -> Any:
    """Return what torch.save wrote, as far as torch reads it; no code that comes with it is imported or runs.

    Training programs save options, paths and numbers of numpy's beside the weights, and some save modules whole: in
    their places are `Unread`, dictionaries and lists. Which of the three a class is shows when a file fills it.
    """
    names = list[str]()
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except ValueError as error:  # also of the older format, whose names torch tells one by one as it meets them
        if "torchscript" in str(error):
            what = f"{file} is a program of TorchScript, whose code would run"
            raise UsageError(f"{what}: save model.state_dict() alone, or {WANTED}") from error
    instead: dict[str, type] = {name: stand_in_for(name) for name in names}
    while True:
        stand_ins: list[Any] = [(kind, name) for name, kind in instead.items()]
        try:
            with torch.serialization.safe_globals(stand_ins):
                return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
        except pickle.UnpicklingError as error:
            named = NAMED.search(str(error))
            filled = FILLED.search(str(error))
            if named is not None and named[1] not in instead:
                instead[named[1]] = stand_in_for(named[1])
            elif filled is not None:
                how, name = filled.groups()
                instead[name] = Dictionary if how == "SETITEM" else List
            else:
                raise
        except TypeError as error:
            if "Creating a Tensor subclass" not in str(error):
                raise
            kind = f" ({next(iter(instead))})" if len(instead) == 1 else ""
            what = f"{file} cannot be read, since tensors in it are of a class of their own{kind}"
            cure = "save them as tensors of torch, such as tensor.as_subclass(torch.Tensor)"
            raise UsageError(f"{what}, whose code would run: {cure}") from error
        except RuntimeError as error:
            if "legacy .tar format" not in str(error):
                raise
            what = f"{file} is in the oldest format of torch, a .tar, of which tensors alone cannot be read"
            cure = "where you trust it, save torch.load(file, weights_only=False) again with torch.save"
            raise UsageError(f"{what}: {cure}") from error


def stand_in_for(name: str) -> type[Unread]:
    """Return what stands for objects of a class or function, by its name."""
    return type(f"Unread:{name}", (Unread,), {"name": name})


def refuse_nameless(content: Any, file: Path) -> None:
    """Refuse a file in which no tensor has a name, and say what there is in place of such tensors, if anything.

    Args:
        content: of the file.
        file: for the error.

    Raises:
        UsageError: with the first object that is not read, else with tensors without a name, or lists of numbers.
    """
    items = list(items_in(content))
    for item in items:
        if isinstance(item, Unread) and is_array(item):
            cure = "save torch.from_numpy(array) of each, by name"
            raise UsageError(f"{file} holds arrays of numpy in place of tensors: {cure}")
        if isinstance(item, Unread):
            raise UsageError(f"{file} cannot be read, since {explain_object(item.name)}")
    if any(isinstance(item, Tensor) for item in items):
        raise UsageError(f"{file} holds tensors without names, by themselves or in lists: save model.state_dict()")
    if any(isinstance(item, list | tuple) for item in items):
        cure = "save torch.tensor(list) of each, by name"
        raise UsageError(f"{file} holds lists in place of tensors: {cure}")


def is_array(item: Any) -> bool:
    """Tell whether an object that is not read is an array of numpy."""
    return isinstance(item, Unread) and item.name.startswith("numpy.") and item.name.endswith("._reconstruct")


def describe_other(value: Any) -> str:
    """Say what stands where a tensor may be wanted; empty for what nobody means as one."""
    if isinstance(value, list | tuple):
        return "a list and no tensor"
    return "an array of numpy and no tensor" if is_array(value) else ""


def items_in(content: Any) -> Iterator[Any]:
    """Give all that was saved, at any depth, each once."""
    left = [content]
    seen = set[int]()
    while left:
        item = left.pop()
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            if isinstance(item, Mapping):
                left += item.values()
            elif isinstance(item, list | tuple | set):
                left += item


def gather_tensors(content: Any, place: tuple[str, ...], found: StateDict, around: tuple[Any, ...] = ()) -> None:
    """Add the tensors in what was saved to those found, with the versions of modules; what is no tensor is left out.

    A tensor of a list has no name, and what a list holds of dictionaries is named by its place there. A module that was
    saved whole has the names that its state_dict() would have. What holds itself is not looked through again.

    Args:
        content: of a file, or of something in it.
        place: the keys under which it lies.
        found: tensors so far.
        around: what it lies in.
    """
    if any(content is outer for outer in around):
        return
    around = (*around, content)
    if isinstance(content, list | tuple):
        for number, item in enumerate(content):
            gather_tensors(item, (*place, str(number)), found, around)
    if isinstance(content, Unread):
        content = content.tensors
    if not isinstance(content, Mapping):
        return
    versions = getattr(content, "_metadata", None)
    if isinstance(versions, Mapping):
        for path, about in versions.items():
            version = about.get("version") if isinstance(about, Mapping) else None
            if type(version) is int:
                found._metadata[".".join([*place, str(path)] if path else place)] = {"version": version}
    for key, value in content.items():
        name = ".".join([*place, str(key)])
        if isinstance(value, Tensor):
            found[name] = value
            continue
        gather_tensors(value, (*place, str(key)), found, around)
        if describe_other(value):
            found.others[name] = describe_other(value)


def take_weights(
    found: StateDict, names: Collection[str], where: str, part: str | None, inner: Collection[str] = ()
) -> StateDict:
    """Return those of a file's tensors that are of a model, by the model's names.

    What stands before these names, as where training programs and wrappers have put the model, is seen from the names
    alone: nothing keys on the word. Parts that hold the same numbers are one.

    Args:
        found: the tensors of the file.
        names: of the model's own tensors.
        where: the file was given, in words.
        part: of the file that holds the weights, empty for what is in none; None: it must be the only one.
        inner: names of the same tensors in files of the model without its output layer, where these are others.

    Raises:
        UsageError: there are several such parts, or not the one that is asked for; with those that there are.
    """
    unwrapped = unwrap(found, [*names, *inner])
    parts = find_parts(unwrapped, names) or find_parts(unwrapped, inner)
    fitting = parts
    if part in parts:
        fitting = [part]
    elif part is not None:
        fitting = [candidate for candidate in parts if part and is_below(candidate, part)]
    if part is not None and not fitting:
        which = f"under {part}" if part else "outside of any part"
        cure = f"write {either(parts)} there" if any(parts) else f"leave out :{part}"
        raise UsageError(f"{where} holds no weights of the model {which}: {cure}")
    if not fitting:
        return unwrapped  # what is not the model's is named when they are loaded
    different: list[StateDict] = []
    names_of_different = []
    for candidate in fitting:
        taken = take_part(unwrapped, candidate, parts)
        if not any(are_same(taken, other) for other in different):
            different.append(taken)
            names_of_different.append(candidate)
    if len(different) > 1:
        file = where if part is None else where.removesuffix(f":{part}")
        named = [candidate for candidate in names_of_different if candidate]
        cure = f"write {'one of ' if len(named) > 1 else ''}{either(named)} after a colon, as {file}:{named[0]}"
        if len(named) < len(names_of_different):
            cure += f", or {file}: for those that lie beside it"
        raise UsageError(f"{where} holds several weights of the model: {cure}")
    return different[0]


def take_part(found: StateDict, part: str, parts: Collection[str]) -> StateDict:
    """Return the tensors of a part by their names in it, less those of other parts that lie in it."""
    others = [other for other in parts if other != part and is_below(other, part)]
    taken = StateDict()
    for name, tensor in found.items():
        if is_below(name, part) and not any(is_below(name, other) for other in others):
            taken[below(name, part)] = tensor
    for name, what in found.others.items():
        if is_below(name, part):
            taken.others[below(name, part)] = what
    for path, version in found._metadata.items():
        if is_below(path, part):
            taken._metadata[below(path, part)] = version
    return taken


def are_same(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Tell whether tensors of the same names have the same numbers."""
    if tensors.keys() != others.keys():
        return False
    return all(is_same(tensor, others[name]) for name, tensor in tensors.items())


def is_same(tensor: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have the same numbers; those without numbers, or in other layouts, have not."""
    are_plain = not any(one.is_meta or one.is_quantized or one.layout != torch.strided for one in (tensor, other))
    return are_plain and tensor.dtype == other.dtype and torch.equal(tensor, other)


def unwrap(found: StateDict, names: Collection[str]) -> StateDict:
    """Return the tensors of a file without what wrappers have put into their names, and with the model's own dots.

    Where a file has other numbers with a wrapper than without it, all names stay as they are.

    names: of the model's tensors.
    """
    paths = paths_of(names)
    known = set(names)
    unwrapped = StateDict()
    for name, tensor in found.items():
        bare = spell(without_wrappers(name, paths), known)
        if bare in unwrapped and not is_same(unwrapped[bare], tensor):
            return found
        unwrapped[bare] = tensor
    unwrapped.others = {without_wrappers(name, paths): what for name, what in found.others.items()}
    for path, version in found._metadata.items():
        unwrapped._metadata[without_wrappers(path, paths)] = version
    return unwrapped


def spell(path: str, names: Collection[str]) -> str:
    """Return a path without the dots that names of norms and maps could have before their number until torch 0.4.

    So weights of torchvision's DenseNets have `norm.1` where the model has `norm1`. A path that the model has stays
    as it is, and so does one that it has in neither form.

    names: of the model's tensors.
    """
    if any(end in names for end in ends_of(path)):
        return path
    undotted = DOTTED.sub("", path)
    return undotted if any(end in names for end in ends_of(undotted)) else path


def ends_of(path: str) -> list[str]:
    """Return a path, and what is left of it without its first key, its first two keys, and so on."""
    keys = path.split(".")
    return [".".join(keys[number:]) for number in range(len(keys))]


def paths_of(names: Collection[str]) -> set[str]:
    """Return the names of a model's tensors, and the paths of the modules that hold them."""
    paths = set(names)
    for name in names:
        keys = name.split(".")
        paths.update(".".join(keys[:number]) for number in range(1, len(keys)))
    return paths


def without_wrappers(path: str, known: Collection[str]) -> str:
    """Return a path without what wrappers have put into it, as in `features.module.0.weight`.

    known: names and paths of the model, which tell a wrapper's `module` from one of the model's own.
    """
    keys = [key for key in path.split(".") if key not in WRAPPERS]
    for number, key in enumerate(keys):
        own = keys[number:]
        bare = [part for part in own if part != PARALLEL]
        if key != PARALLEL and bare != own and ".".join(own) not in known and ".".join(bare) in known:
            return ".".join([*keys[:number], *bare])
    return ".".join(keys)


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
        if path in names:  # some models have parts that have names of the whole
            counts[""] += 1
            continue
        keys = path.split(".")
        for number in range(len(keys)):
            if ".".join(keys[number:]) in names:
                counts[".".join(keys[:number])] += 1
    return [part for part, count in counts.items() if count >= FEWEST * len(names)]


def buffers_not_saved(module: nn.Module) -> set[str]:
    """Return the names of buffers that a model makes itself, which older versions of a library may have saved."""
    return {name for name, _ in module.named_buffers()} - module.state_dict().keys()


def explain_pickle(error: pickle.UnpicklingError) -> str:
    """Say why torch reads no tensors of a pickle, whose own message is a page on how to run its code nevertheless."""
    match = re.search(r"GLOBAL (\S+)", str(error))
    if match:
        return explain_object(match[1])
    if "call reduce" in str(error):
        return explain_object("a call")
    return f"it is damaged, or no file that torch.save writes: {WANTED}"


def explain_object(name: str) -> str:
    """Say why no weights are taken of an object of a class."""
    what = f"it holds other things than tensors by name ({name}), whose code would run"
    return f"{what}: save model.state_dict() alone, or {WANTED}"


def put_in_weights(
    module: nn.Module, tensors: Mapping[str, Tensor], where: str, heads: Iterable[nn.Module] = ()
) -> list[str]:
    """Load weights into a model; an output layer that they have not, or have for other classes, starts anew.

    Args:
        module: the model.
        tensors: by the names of its parameters and buffers.
        where: the weights come from, in words.
        heads: the output layers, which need not fit.

    Returns:
        The names of what starts anew.

    Raises:
        UsageError: they do not fit; with the first names. The model may have some of them then.
    """
    state = module.state_dict()
    paths = {submodule: path for path, submodule in module.named_modules()}
    anew = list[str]()
    known = dict(tensors)
    for head in heads:
        if is_for_others(paths[head], state, tensors):
            anew += names_below(paths[head], state)
            known = drop_keys(known, *names_below(paths[head], tensors))
    present = [name for name in state if name in known]
    other = [name for name in present if not has_shape_of(known[name], state[name])]
    unfit = defaultdict[str, list[str]](list)  # names by what keeps torch from taking these numbers
    for name in present:
        what = explain_kind(known[name], state[name])
        if what and name not in other:
            unfit[what].append(name)
    not_loaded = [*other, *chain.from_iterable(unfit.values())]
    loadable = StateDict(drop_keys(known, *not_loaded), getattr(tensors, "_metadata", None) or {})
    try:
        loaded = module.load_state_dict(loadable, strict=False)  # torch knows what the versions of its modules lack
    except RuntimeError as error:
        said = shorten(" ".join(lines_of(error)), 200)  # the first line says nothing yet
        raise UsageError(f"{where} does not fit the model ({said}): {FITTING}") from error
    missing = []
    others = getattr(tensors, "others", {})
    for name in loaded.missing_keys:
        if name in anew or name in not_loaded or is_shared(name, state, known):
            continue
        if name in others:
            unfit[others[name]].append(name)
        else:
            missing.append(name)
    of_the_model = buffers_not_saved(module)
    unknown = [name for name in loaded.unexpected_keys if name not in of_the_model]
    check_fit(where, missing, unknown, other, unfit)
    refuse_not_finite(module, where)
    return anew


def explain_kind(given: Tensor, own: Tensor) -> str:
    """Say why a tensor cannot be in place of a model's own one of its shape; empty where it can be.

    Precisions are brought to the model's. Of other kinds torch would take some without a word, as whole numbers in
    place of weights, which are meaningless without the scales that belong to them.
    """
    if given.is_meta:
        return "without numbers (on the device meta)"
    if given.is_quantized:
        return "quantized"
    if given.layout != torch.strided:
        return "sparse"
    is_code = own.is_floating_point() and not given.is_floating_point()
    is_too_much = given.is_complex() and not own.is_complex()
    if is_code or is_too_much:
        return f"of {given.dtype} in place of {own.dtype}"
    return ""


def refuse_not_finite(module: nn.Module, where: str) -> None:
    """Refuse weights that are not all finite, with which every run ends as one that diverged.

    Raises:
        UsageError: with the first names.
    """
    names = []
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():
            names.append(name)
    for name, buffer in module.named_buffers():
        if buffer.isnan().any():  # a mask may have infinities
            names.append(name)
    if names:
        what = f"{where} has numbers that are not finite ({first_of(names)}), as a run that diverged leaves them"
        raise UsageError(f"{what}: give weights from before that")


def has_shape_of(given: Tensor, own: Tensor) -> bool:
    """Tell whether torch takes a tensor in place of one of a model; of numbers alone it takes lists, too."""
    return given.shape == own.shape or (own.dim() == 0 and given.dim() == 1)


def names_below(path: str, state: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors of a module, by its path."""
    return [name for name in state if name.startswith(f"{path}.")]


def is_for_others(path: str, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether weights have an output layer, by its path, of other shapes than a model's own, or none such.

    What they have there in another form, as pruning and parametrizations leave it, is none of another task.
    """
    names = names_below(path, own)
    if any(name in tensors and tensors[name].shape != own[name].shape for name in names):
        return True
    others = getattr(tensors, "others", {})
    is_there = [name in tensors or name in others or is_shared(name, own, tensors) for name in names]
    inside = [name.removeprefix(f"{path}.") for name in names_below(path, tensors)]
    has_other_form = any("." not in name or name.startswith("parametrizations.") for name in inside)
    return bool(names) and not any(is_there) and not has_other_form


def is_shared(name: str, own: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> bool:
    """Tell whether a tensor of a model is the same as one of another name that is known."""
    place = own[name].data_ptr()
    return any(other in own and own[other].data_ptr() == place for other in known)


def first_of(names: Sequence[str]) -> str:
    """Return the first names of some, and how many more there are."""
    listed = ", ".join(names[:MOST])
    if len(names) > MOST:
        listed += f" and {len(names) - MOST} more"
    return listed


def check_fit(
    where: str,
    missing: Sequence[str],
    unknown: Sequence[str],
    other: Sequence[str],
    unfit: Mapping[str, Sequence[str]] = {},
) -> None:
    """Refuse weights that do not fit a model.

    Args:
        where: they come from.
        missing: names that the model has alone.
        unknown: names that the weights have alone.
        other: names of tensors of another shape.
        unfit: names of tensors that are no such numbers, by what they are.

    Raises:
        UsageError: with the first names of each.
    """
    said = []
    names_by_fault = {"of another shape": other, **unfit, "missing": missing, "not the model's": unknown}
    for what, names in names_by_fault.items():
        if names:
            verb = "is" if len(names) == 1 else "are"
            said.append(f"{first_of(names)} {verb} {what}")
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
