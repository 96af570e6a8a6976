"""transformers, a library of models of texts, and the sizes and options of their configurations."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.hosts.building import Host, Library, Options, largest_divisor
from normbench.hosts.callers import Caller, TokenCaller
from normbench.hosts.weights import (
    MARK,
    OF_TORCH,
    PRETRAINED,
    buffers_not_saved,
    check_fit,
    find_saved,
    is_pickle,
    read_tensors,
    refuse_code,
    refuse_not_finite,
    refuse_swapped,
    take_weights,
)
from normbench.settings import nearest, show
from normbench.types import LanguageModeling, Task, TextClassification

HEAD_SIZE = 32  # features of a head of attention, where nothing else is said
USUAL_SIZES = {"hidden_size": 128, "num_hidden_layers": 4}  # of conf/model/hf.yaml
NO_LONGER_KEPT = ("masked_bias",)  # what attention had for masked scores, a number that no model keeps any more
MULTIPLE = 8  # of which widths inside a block are

# What configurations of transformers call the widths that go with that of the stream.
INNER_WIDTHS = ("intermediate_size", "ffn_dim", "hidden_dim", "embedding_size", "word_embed_proj_dim")


class Transformers(Library):
    """transformers (Wolf et al. 2020): its causal language models, and its classifiers of texts."""

    word = "hf"
    packages = ("transformers",)
    options = "config"
    kinds = frozenset({"language_model", "text_classification"})
    where_names_are = "give a model type, such as llama, gpt2, olmo2, gemma3, qwen3 or bert"
    cure_of_forward = "see model.config, or choose another model.name"
    name_in_folder = "model_type"

    def names(self, kind: str) -> list[str]:
        auto: Any = self.load("models.auto.modeling_auto")
        mapping = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if kind == TextClassification.kind:
            mapping = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        return sorted(mapping)

    def make(self, name: str, options: Options, task: Task, image_size: int | str | None) -> Host:
        assert isinstance(task, LanguageModeling | TextClassification)
        transformers: Any = self.load()
        with quietly(transformers):
            default = transformers.AutoConfig.for_model(name).get_text_config()  # of a model of images and texts a part
            check_known(default, options)
            options = take_one_name_each(default, options)
            decided = self.decide(default, options, task)
            config = type(default)(**decided, **options)
            auto, call = self.kind_for(task)
            if isinstance(task, TextClassification):
                call = replace(call, offset=1)
            module = auto.from_config(config, trust_remote_code=False)
        sizes = {name: value for name, value in decided.items() if type(value) is int}
        return Host(module, call, self.versions(), sizes)

    def kind_for(self, task: Task) -> tuple[Any, TokenCaller]:
        """Return the class of transformers that makes a model for a task, and how that is called."""
        transformers: Any = self.load()
        if isinstance(task, TextClassification):
            return transformers.AutoModelForSequenceClassification, TokenCaller({})
        return transformers.AutoModelForCausalLM, TokenCaller({"use_cache": False})

    def make_trained(self, name: str, options: Options, task: Task, image_size: int | str | None, weights: str) -> Host:
        """Return a model with the configuration that its weights have; of the options what is no size counts."""
        assert isinstance(task, LanguageModeling | TextClassification)
        transformers: Any = self.load()
        place = name
        where = f"what the hub has as {name}"
        saved = None
        if weights != PRETRAINED:
            saved = find_saved(weights)
            where = f"model.weights={weights}"
            if saved.folder is None or not saved.about:
                raise UsageError(f"{where} has no config.json: give a folder, as save_pretrained writes it")
            self.check_saved(name, saved, where)
            place = str(saved.folder)
        from_here: dict[str, Any] = {"local_files_only": weights != PRETRAINED, "trust_remote_code": False}
        with quietly(transformers):
            about, _ = transformers.PreTrainedConfig.get_config_dict(place, **from_here)  # as it is written
            refuse_code(about, where)
            refuse_swapped(MARK in about, where)
            config = transformers.AutoConfig.from_pretrained(place, **from_here)
            config = config.get_text_config()
            check_known(config, options)
            options = take_one_name_each(config, options)
            refuse_other_sizes(config, options, where)
            for key, value in options.items():
                if type(value) is not int:
                    setattr(config, f"_{key}" if key in OF_TORCH else key, value)
            self.check_sizes(config, task, where)
            config.use_cache = False
            auto, call = self.kind_for(task)
            if isinstance(task, TextClassification):
                config.num_labels = task.num_classes
                if isinstance(config.pad_token_id, int):
                    call = replace(call, padding=config.pad_token_id)
            how: dict[str, Any] = {
                "config": config,
                "dtype": torch.float32,
                "ignore_mismatched_sizes": True,
                "output_loading_info": True,
            }
            with tempfile.TemporaryDirectory() as folder:
                if saved is not None and is_pickle(saved.files[0]):
                    place = folder
                    write_model(read_tensors(saved.files), config, Path(folder))
                reads: dict[str, Any] = {"use_safetensors": True, **how, **from_here}
                module, loaded = auto.from_pretrained(place, **reads)
                has_other_names = loaded["missing_keys"] and loaded["unexpected_keys"]
                if saved and (saved.part or has_other_names):
                    own_names = module.state_dict()
                    inner_names = module.base_model.state_dict()  # as files of the base have them
                    found = read_tensors(saved.files)
                    tensors = take_weights(found, own_names, where, saved.part, inner_names)
                    write_model(tensors, config, Path(folder))
                    module, loaded = type(module).from_pretrained(folder, **reads)
            anew = self.check_loaded(module, call, loaded, config, where)
        refuse_not_finite(module, where)
        return Host(module, call, self.versions(), {}, anew)

    def check_sizes(self, config: Any, task: LanguageModeling | TextClassification, where: str) -> None:
        """Refuse weights for other tokens, or for shorter texts, than the data have.

        Raises:
            UsageError: with both numbers.
        """
        if config.vocab_size != task.vocabulary_size:
            what = f"{where} has {config.vocab_size:,} tokens, and the data have {task.vocabulary_size:,}"
            cure = "set data.level=hf data.tokenizer=PATH, of its tokenizer.json"
            if config.vocab_size > task.vocabulary_size:
                cure += f", with data.vocabulary_size={config.vocab_size} where that file has fewer"
            raise UsageError(f"{what}: {cure}")
        longest = getattr(config, "max_position_embeddings", None)
        if isinstance(longest, int) and longest < task.context:
            what = f"{where} takes {longest:,} tokens at once, and the data have {task.context:,}"
            raise UsageError(f"{what}: set model.context={longest}")

    def modules_as_saved(self, config: Any) -> set[str] | None:
        """Return the paths of the modules of the model whose weights were saved, as the configuration names its class.

        What a class can be made without, as BERT's base without its pooler, is not among them. It is None where the
        configuration names none of the library's own.
        """
        for kind in self.kinds_of(config):
            if kind.__name__ in (config.architectures or ()):
                with suppress(Exception):  # it may refuse a configuration that was changed for this task
                    return paths_in(kind, config, **without_options(kind))
        return None

    def modules_for_tasks(self, config: Any) -> set[str]:
        """Return the paths of the modules of all models that the library has for a configuration, whatever the task.

        Files often have more than the class that their configuration names, such as two output layers of BERT.
        """
        paths = set[str]()
        for kind in self.kinds_of(config):
            with suppress(Exception):  # some refuse a configuration that is for another task
                paths |= paths_in(kind, config)
        return paths

    def kinds_of(self, config: Any) -> list[Any]:
        """Return the classes of models that the library has for a configuration; none where it has others' models."""
        transformers: Any = self.load()
        try:
            module: Any = import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
        except ModuleNotFoundError:
            return []
        kinds = []
        for name in module.__all__:
            kind = getattr(module, name)
            is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
            if is_model and kind.config_class is type(config) and not name.endswith("PreTrainedModel"):
                kinds.append(kind)
        return kinds

    def check_loaded(
        self, module: nn.Module, call: Caller, loaded: Mapping[str, Any], config: Any, where: str
    ) -> list[str]:
        """Refuse weights that do not fit; return the names of what starts anew.

        That is an output layer for other classes, and what the model has for its task alone, where the one that was
        saved was for another task, such as finding masked words. What that one had for its own is left out.

        Args:
            module: the model.
            call: how it is called.
            loaded: what transformers says of loading it.
            config: of the weights.
            where: the weights come from.

        Raises:
            UsageError: with the first names.
        """
        head = call.head(module)
        own_modules = {path for path, _ in module.named_modules()}
        anew_paths = {path for path, submodule in module.named_modules() if submodule is head}
        saved_modules = self.modules_as_saved(config) if loaded["missing_keys"] else None
        if saved_modules is not None:
            anew_paths |= own_modules - saved_modules
        for_other_tasks = set[str]()
        if loaded["unexpected_keys"]:
            for_other_tasks = self.modules_for_tasks(config) - own_modules
        mismatched = [str(key[0]) for key in loaded["mismatched_keys"]]
        other_in_head, other = split_names(mismatched, anew_paths)
        whole_paths = {path for path in anew_paths if lacks_all(module, path, {*loaded["missing_keys"], *mismatched})}
        missing_in_head, missing = split_names(sorted(loaded["missing_keys"]), whole_paths)
        _, unknown = split_names(sorted(loaded["unexpected_keys"]), for_other_tasks)
        own_buffers = buffers_not_saved(module)
        before = f"{module.base_model_prefix}."
        unknown = [name for name in unknown if not is_the_models_own_buffer(name, own_buffers, before)]
        check_fit(where, missing=missing, unknown=unknown, other=other)
        return [*other_in_head, *missing_in_head]

    def decide(self, default: Any, options: Options, task: LanguageModeling | TextClassification) -> dict[str, Any]:
        """Return what the task and the given sizes decide of a configuration, less what the options say themselves."""
        decided: dict[str, Any] = {"vocab_size": task.vocabulary_size, "use_cache": False}
        for token in ("bos_token_id", "eos_token_id"):
            decided[token] = None
        if isinstance(task, TextClassification):
            decided["num_labels"] = task.num_classes
            decided["vocab_size"] += 1
            decided["pad_token_id"] = 0  # which none of the data's tokens is: see TokenCaller
            decided["max_position_embeddings"] = task.context + 1  # some count positions from 1, and 0 is padding
        else:
            decided["pad_token_id"] = None  # an embedding of padding is not trained
            decided["max_position_embeddings"] = task.context
            decided["is_decoder"] = True
        decided |= decide_sizes(default, options)
        names = {own_name(default, key) for key in options}
        not_given: dict[str, Any] = {}
        for key, value in decided.items():
            is_there = key == "num_labels" or has_field(default, key)
            if is_there and own_name(default, key) not in names:
                not_given[own_name(default, key)] = value
        return not_given


def without_options(kind: Any) -> dict[str, bool]:
    """Return the options with which a class of transformers makes no part that it can leave out."""
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name: False for parameter in parameters if parameter.default is True}


def paths_in(kind: Any, config: Any, **options: bool) -> set[str]:
    """Return the paths of the modules of a class of transformers, as a model for a task has them; nothing is drawn."""
    with torch.device("meta"):
        model = kind(copy.deepcopy(config), **options)
    before = f"{model.base_model_prefix}." if model.base_model is model else ""
    return {f"{before}{path}" for path, _ in model.named_modules()}


def lacks_all(module: nn.Module, path: str, lost: Collection[str]) -> bool:
    """Tell whether weights have none of the parameters of a module: a part of them starts nothing anew.

    Args:
        module: the model.
        path: of the module in it.
        lost: the names of the model's tensors that the weights have not, or not in their shape.
    """
    parameters = module.get_submodule(path).named_parameters(path, recurse=False)
    return all(name in lost for name, _ in parameters)


def is_the_models_own_buffer(name: str, own_buffers: Collection[str], before: str) -> bool:
    """Tell whether a tensor of a file is one that older versions of transformers saved, and its models make themselves.

    Args:
        name: of the tensor, with or without what stands before the names of the base.
        own_buffers: the names of those that the model makes.
        before: what stands before the names of the base in those of the model.
    """
    if name.rpartition(".")[2] in NO_LONGER_KEPT:
        return True
    return name in own_buffers or before + name in own_buffers


def split_names(names: Iterable[str], paths: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the names of tensors of the modules at some paths, and the other names."""
    inside = []
    outside = []
    for name in names:
        path = name.rpartition(".")[0]
        if path in paths:
            inside.append(name)
        else:
            outside.append(name)
    return inside, outside


def write_model(tensors: Mapping[str, Tensor], config: Any, folder: Path) -> None:
    """Write tensors as transformers reads them, which then opens no pickle by itself.

    config: of the model, as without a file of it transformers 5.24 reads no causal language model.
    """
    config.save_pretrained(folder)
    apart = {}  # as tied ones may share memory
    for name, tensor in tensors.items():
        apart[name] = tensor.clone(memory_format=torch.contiguous_format)
    save_file(apart, folder / "model.safetensors", {"format": "pt"})


@contextmanager
def quietly(transformers: Any) -> Iterator[None]:
    """Let transformers say nothing inside but errors, and draw no bars."""
    messages = transformers.utils.logging
    before = messages.get_verbosity()
    has_bars = messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(before)
        if has_bars:
            messages.enable_progress_bar()


# ---- options


def check_known(default: Any, options: Options) -> None:
    """Refuse options that a configuration of transformers does not have, which it would take and leave unused.

    Raises:
        UsageError: with the nearest names.
    """
    known = [*vars(default), *default.attribute_map]
    for name in options:
        if not (has_field(default, name) or name == "num_labels" or name in OF_TORCH):
            cure = f"{nearest(name, known)}see the documentation of {type(default).__name__}"
            raise UsageError(f"model.config.{name} is not in the configuration of {default.model_type}: {cure}")


def take_one_name_each(default: Any, options: Options) -> dict[str, Any]:
    """Return options in which no size that nobody gives hides one that is given by another name, as GPT-2's `n_layer`.

    Raises:
        UsageError: a setting is given by two names, with two values.
    """
    names_of = defaultdict[str, list[str]](list)
    for name in options:
        names_of[own_name(default, name)].append(name)
    remaining = dict(options)
    for names in names_of.values():
        if len(names) == 1:
            continue
        for name in names:
            if options[name] == USUAL_SIZES.get(name):
                del remaining[name]
        left = [name for name in names if name in remaining]
        values = {options[name] for name in left}
        if len(values) > 1:
            given = [f"model.config.{name}={show(options[name])}" for name in left]
            raise UsageError(f"{' and '.join(given)} are the same setting of {default.model_type}: give one of them")
    return remaining


def refuse_other_sizes(config: Any, options: Options, where: str) -> None:
    """Refuse sizes that trained weights do not have, but for those that a model has where nobody gives any.

    Raises:
        UsageError: with the first one.
    """
    for name, value in options.items():
        size = getattr(config, name, None)
        if type(value) is int and value not in (size, USUAL_SIZES.get(name)):
            what = f"{where} has {own_name(config, name)}={size}, and model.config.{name}={value} is given"
            raise UsageError(f"{what}: leave that out, since trained weights say their sizes")


def own_name(config: Any, name: str) -> str:
    """Return the name that a configuration of transformers itself has for a size, such as `n_embd`."""
    return str(config.attribute_map.get(name, name))


def has_field(config: Any, name: str) -> bool:
    """Tell whether a configuration of transformers holds a value of this name, and does not compute it of others."""
    return own_name(config, name) in vars(config)


# ---- sizes


def decide_sizes(default: Any, options: Options) -> dict[str, Any]:
    """Return the sizes of a text model that follow from its width, where a person gives the width.

    Heads have HEAD_SIZE features, there are as many heads for each head of keys as there are by default, and what is
    inside a block is as much wider or narrower than the stream as it is by default.

    Args:
        default: the configuration of the model's type.
        options: what was given.
    """
    given = {own_name(default, name): value for name, value in options.items()}
    width = given.get(own_name(default, "hidden_size"))
    usual_width = getattr(default, "hidden_size", None)
    if not isinstance(width, int) or not isinstance(usual_width, int) or width == usual_width:
        return {}
    sizes = decide_heads(default, given, width)
    for name in INNER_WIDTHS:
        usual = getattr(default, name, None)
        if isinstance(usual, int) and has_field(default, name):
            inner_width = width * usual / usual_width
            sizes[name] = max(MULTIPLE, MULTIPLE * round(inner_width / MULTIPLE))
    return sizes


def decide_heads(default: Any, given: Options, width: int) -> dict[str, Any]:
    """Return how many heads a text model of some width has, and of how many features.

    Args:
        default: the configuration of the model's type.
        given: what was given, by the names that the configuration has.
        width: features of the stream.
    """
    usual_heads = getattr(default, "num_attention_heads", None)
    if not isinstance(usual_heads, int):
        return {}
    most_heads = max(1, width // HEAD_SIZE)
    heads = given.get(own_name(default, "num_attention_heads"), largest_divisor(width, most_heads))
    decided: dict[str, Any] = {"num_attention_heads": heads}
    usual_shared = getattr(default, "num_key_value_heads", None)
    if isinstance(usual_shared, int):
        decided["num_key_value_heads"] = max(1, heads * usual_shared // usual_heads)
    usual_size = getattr(default, "head_dim", None)
    if isinstance(usual_size, int) and has_field(default, "head_dim"):
        size = given.get(own_name(default, "head_dim"), width // heads)
        decided["head_dim"] = size
        if getattr(default, "query_pre_attn_scalar", None) == usual_size:
            decided["query_pre_attn_scalar"] = size
    return decided
