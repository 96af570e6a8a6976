"""What `normbench swap` is given: a model of another library, or a run's, as it is and with other norms."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normbench import build
from normbench.build import Assembled
from normbench.config import compose
from normbench.config.compose import Config, in_hydra_grammar, is_overridden
from normbench.config.groups import SEARCH_PATH, section_of
from normbench.config.recipe import Recipe, resolve
from normbench.config.rules import RULES
from normbench.config.sections import LOGGER
from normbench.errors import UsageError
from normbench.hosts.adapters import Unreadable
from normbench.hosts.finding import Found, calls_by_norm, read_called
from normbench.hosts.hosted import Hosted, Place
from normbench.hosts.libraries import LIBRARIES
from normbench.hosts.replacing import first_floating, keep_weights, take_over_settings
from normbench.hosts.tape import record
from normbench.hosts.weights import PRETRAINED, find_saved
from normbench.record.directory import RunDirectory
from normbench.runs.finding import find_run
from normbench.runs.load import TrainedRun, load_model
from normbench.runs.plan import prepare
from normbench.settings import LIKE_HOST, Tree, drop_keys, key_of
from normbench.training.devices import resolve_device
from normbench.training.evaluation import to_device
from normbench.types import Batch, Data, Model

MODELS = "a folder, hf:NAME, timm:NAME, torchvision:NAME or the directory of a run"
EXAMPLES = 2  # on which a model is seen through

# What may be set of a run, beside its norms: how it is looked at.
OF_LOOKING = ("trainer.eval_batches", "device", "threads")


@dataclass(frozen=True)
class Given:
    """A model as it is, and the same with other norms, which have γ and β of those before them.

    Attributes:
        own: as it is, on its device and in evaluation mode.
        made: with other norms, likewise.
        places: its norms as they are, in the order in which they stand.
        recipe: the parts of the configuration with the other norms.
        data: on which it is judged.
        data_name: of these.
        device: that both are on.
        classes: what its outputs stand for, in their order; empty where that is not noted.
    """

    own: Model
    made: Assembled
    places: list[Place]
    recipe: Recipe
    data: Data
    data_name: str
    device: torch.device
    classes: Sequence[str] = ()

    @property
    def tree(self) -> Tree:
        """Return the configuration with the other norms."""
        return self.recipe.tree

    @property
    def kept(self) -> Model:
        """Return the model with other norms."""
        return self.made.model

    @property
    def batch(self) -> Batch:
        """Return the first training batch."""
        return to_device(self.data.train_batch(0), self.device)


def read_given(words: Sequence[str], trust: bool) -> Given:
    """Return what words of `normbench swap` ask for, one of which names a model or a run.

    Raises:
        UsageError: any mistake in the words.
    """
    named = []
    others = []
    for word in words:
        if "=" in word:
            others.append(word)
        else:
            named.append(word)
    if len(named) != 1:
        models_given = " and ".join(named) or "no model"
        raise UsageError(f"swap is given {models_given}, and takes one: {MODELS}")
    keys = {key_of(word) for word in others}
    has_norm = any(is_norm_section(key) or key.startswith("norm._target_") for key in keys)
    if not has_norm:
        raise UsageError("swap is given no norm: say which takes the place of the model's own, such as norm=rmsnorm")
    path = find_run(named[0])
    if RunDirectory(path).config.exists():
        return read_run(path, others, trust)
    return read_library(named[0], others)


def is_norm_section(key: str) -> bool:
    """Tell whether a key chooses the norm, of all places or of some."""
    return key == "norm" or key.startswith("norm@")


# ---- a model of another library


def read_library(name: str, words: Sequence[str]) -> Given:
    """Return a model of another library, by a folder or name, and the same with the norms that words ask for.

    Raises:
        UsageError: any mistake in the words.
    """
    run = prepare(compose.read(model_words(name, words)))
    torch.set_num_threads(run.threads)
    tree = run.config.tree
    seed = run.config.closed.seed
    made = build.start_model(run.config.recipe, run.data.task, seed)
    if not isinstance(made.model, Hosted):
        raise UsageError(f"swap is for models of other libraries, and runs: give {MODELS}, and leave out model=")
    tree_before = with_nothing_at(own_tree(tree), sections_of_added(made))
    own_model = build.start_model(Recipe(tree_before), run.data.task, seed).model
    assert isinstance(own_model, Hosted)
    for model in (own_model, made.model):
        model.to(run.device).eval()
    data_name = run.config.choices.groups["data"]
    classes = type(made.model).classes_noted(tree["model"]) or ()
    return Given(own_model, made, made.model.places, run.config.recipe, run.data, data_name, run.device, classes)


def sections_of_added(made: Assembled) -> list[str]:
    """Return the sections of rules that add norms to a model of another library, where it has none by itself.

    Raises:
        UsageError: one of them changes norms of the model as well, which would go first.
    """
    sections: dict[str, None] = {}
    assert isinstance(made.model, Hosted)
    for place in made.model.places:
        part = made.norm_parts[place.site]
        if place.added and part is not None:
            sections[part.section] = None
    for place in made.model.places:
        part = made.norm_parts[place.site]
        if not place.added and part is not None and part.section in sections:
            cure = "give a rule for these places and another for those without a norm"
            raise UsageError(f"{part.section} adds norms, and the model has one at {place.site.name} already: {cure}")
    return list(sections)


def model_words(name: str, others: Sequence[str]) -> list[str]:
    """Return words of `normbench train` for a model, by a folder or name, and the other words of `normbench swap`."""
    given_keys = {key_of(word) for word in others}
    default_words = words_of_model(name)
    if given_keys.isdisjoint(["norm", "norm._target_"]):
        default_words.append("norm=own")  # rules name some places alone
    kept_words = [word for word in default_words if key_of(word) not in given_keys]
    return [*kept_words, *others]


def words_of_model(word: str) -> list[str]:
    """Return words of `normbench train` for a model: a folder, or a library and a name.

    Raises:
        UsageError: there is no such folder, or it does not say what its model is.
    """
    library, colon, name = word.partition(":")
    if colon and library in LIBRARIES:
        return [f"model={library}", f"model.name={name}", f"model.weights={PRETRAINED}"]
    if not Path(os.path.expanduser(word)).is_dir():
        raise UsageError(f"{word} is not a model: give {MODELS}")
    saved = find_saved(word)
    about = without_references(saved.about)
    place = in_hydra_grammar(without_references(word))
    if "model_type" in about:
        words = ["model=hf", f"model.name={in_hydra_grammar(about['model_type'])}", f"model.weights={place}"]
        if Path(os.path.expanduser(word), "tokenizer.json").exists():
            words += ["data.level=hf", f"data.tokenizer={place}"]
            if "vocab_size" in about:  # which is often more than the tokenizer has
                words.append(f"data.vocabulary_size={in_hydra_grammar(about['vocab_size'])}")
        return words
    library = about.get("library", "timm")
    if "architecture" in about and library in LIBRARIES:
        name = in_hydra_grammar(about["architecture"])
        words = [f"model={library}", f"model.name={name}", f"model.weights={place}"]
        model_args = about.get("model_args")
        options = model_args if isinstance(model_args, Mapping) else {}
        for key, value in options.items():
            words.append(f"model.kwargs.{key}={in_hydra_grammar(value)}")
        return words
    raise UsageError(f"{word} does not say what its model is: give timm:NAME with model.weights={word}")


def without_references(content: Any) -> Any:
    """Return content, such as that of somebody's config.json, in which no text is filled in as `${...}` would be."""
    if isinstance(content, Mapping):
        return {key: without_references(value) for key, value in content.items()}
    if isinstance(content, list):
        return [without_references(item) for item in content]
    return content.replace("${", r"\${") if isinstance(content, str) else content


def own_tree(tree: Tree) -> dict[str, Any]:
    """Return a configuration with the norms that the model has by itself."""
    new_tree = drop_keys(tree, "norm")
    rules = {key: value for key, value in tree.get(RULES, {}).items() if not key.startswith("norm@")}
    new_tree.pop(RULES, None)
    if rules:
        new_tree[RULES] = rules
    new_tree["norm"] = section_of("norm", "own")
    return new_tree


# ---- a run


def read_run(path: Path, words: Sequence[str], trust: bool) -> Given:
    """Return the model of a run with its trained weights, and the same with the norms that words ask for.

    Where a rule adds a norm to places that have none, what stood there before is a `NoNorm`.

    Raises:
        UsageError: the run cannot be loaded, words ask for more than norms, or these do not go with its model.
    """
    run = TrainedRun(path, trust)
    refuse_other_words(words, path)
    config = compose.read(words_beside(run, words))
    device = resolve_device(config.closed.device)
    if config.closed.threads:
        torch.set_num_threads(config.closed.threads)
    tree = tree_with_norms(run.tree, config)
    choices = {**run.session["choices"], **chosen_norms(config)}
    recipe = Recipe({**tree, LOGGER: {}}, choices)
    build.check_parts(recipe)
    data = run.data()
    seed = tree["seed"]
    made = build.assemble(recipe, data.task, seed)
    made.treat_weights(seed)
    before = norms_by_site(build.lay_out(Recipe(run.tree), data.task))
    sections_added = [part.section for site, part in made.norm_parts.items() if part and site.name not in before]
    if sections_added:
        has_norm = before
        run.tree = with_nothing_at(run.tree, sections_added)
        before = norms_by_site(build.lay_out(Recipe(run.tree), data.task))
        refuse_mixed_rules(has_norm, before, sections_added)
    after = norms_by_site(made)
    refuse_missing_places(before, after, path)
    own_model = load_model(run, device=device)
    own_model.call_every_norm()
    staying = [site for site in before if before[site] == after[site]]
    own_norms = find_norms(own_model, to_device(data.train_batch(0), device))
    made.model.to(device)
    take_over(own_model, made, own_norms, staying, words)
    made.model.eval().call_every_norm()
    places = places_of(own_norms, made, staying)
    return Given(own_model, made, places, recipe, data, choices["data"], device, getattr(data, "classes", ()))


def places_of(found: Mapping[str, Found], made: Assembled, staying: Collection[str]) -> list[Place]:
    """Return what stands at the places of a model's norms.

    Args:
        found: the norms by the name of their site.
        made: the model with other norms, which has the same sites.
        staying: the names of sites whose norms stay as they are.
    """
    sites = {site.name: site for site in made.norm_parts}
    places: list[Place] = []
    for name, norm in found.items():
        kind = type(norm.module).__name__
        eps = norm.adapter.read_eps(norm.module)
        places.append(Place(norm.path, sites[name], kind, norm.features, eps, name in staying))
    return places


def refuse_other_words(words: Sequence[str], path: Path) -> None:
    """Refuse words that ask for other things of a run than norms and how it is looked at.

    Raises:
        UsageError: with the first one.
    """
    keys = {key_of(word) for word in words}
    for word in words:
        key = key_of(word)
        if key.startswith("norm.") and keys.isdisjoint(["norm", "norm._target_"]):
            raise UsageError(f"{word} is a setting of norm=, which is not given: add it")
        is_of_norm = is_norm_section(key) or key.startswith("norm.")
        is_of_looking = key in (*OF_LOOKING, SEARCH_PATH)
        if not is_of_norm and not is_of_looking:
            cure = f"give norms, and of all else {', '.join(OF_LOOKING)}"
            raise UsageError(f"{word} would change more of the run {path} than its norms: {cure}")


def words_beside(run: TrainedRun, words: Sequence[str]) -> list[str]:
    """Return words of `normbench train` that are checked as those of a run are, for the sake of its norms."""
    model = resolve("model", run.tree["model"]).made
    checked_words = [word for word in words if word != "norm=own"]  # which stands for those that the run has
    if issubclass(model, Hosted):
        checked_words.insert(0, f"model={model.library.word}")
    return checked_words


def chosen_norms(config: Config) -> dict[str, str]:
    """Return what a configuration chooses of norms, by section."""
    chosen = {}
    for section, option in config.choices.groups.items():
        if is_norm_section(section):
            chosen[section] = option
    return chosen


def tree_with_norms(tree: Tree, config: Config) -> dict[str, Any]:
    """Return a run's configuration with the norms of another, also where the run has rules for some places."""
    new_tree = dict(tree)
    rules = dict(tree.get(RULES, {}))
    if config.overridden("norm"):
        new_tree["norm"] = config.tree["norm"]
        for key in rules:
            if key.startswith("norm@"):  # the norms of places that have one by this rule alone stay norms
                rules[key] = config.tree["norm"]
    for key, section in config.tree.get(RULES, {}).items():
        rules.pop(key, None)
        rules[key] = section  # the last one
    if rules:
        new_tree[RULES] = rules
    if config.overridden("trainer.eval_batches"):
        new_tree["trainer"] = {**tree["trainer"], "eval_batches": config.closed.trainer.eval_batches}
    return new_tree


def norms_by_site(made: Assembled) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the class and the settings of the norm at each site that has one, by its name."""
    norms = {}
    for site, part in made.norm_parts.items():
        if part is not None:
            norms[site.name] = (part.target, dict(part.settings))
    return norms


def with_nothing_at(tree: Tree, sections: Collection[str]) -> dict[str, Any]:
    """Return a run's configuration with `none` where rules add norms: a module there, which passes its input on.

    Args:
        tree: the configuration.
        sections: of these rules, such as `norm@qk`.
    """
    if not sections:
        return dict(tree)
    nothing = {section: section_of("norm", "none") for section in sections}
    return {**tree, RULES: {**tree.get(RULES, {}), **nothing}}


def refuse_mixed_rules(
    has_norm: Mapping[str, object], before: Mapping[str, object], sections_added: Collection[str]
) -> None:
    """Refuse rules that add norms at some places and change those of a run at others, which would go first.

    Args:
        has_norm: what stands at each place of the run, by its name.
        before: the same with nothing at the places of the rules.
        sections_added: of these rules.

    Raises:
        UsageError: with the first place.
    """
    for site, own in has_norm.items():
        if before.get(site) != own:
            rules = ", ".join(dict.fromkeys(sections_added))
            cure = "give a rule for these places and another for those without a norm"
            raise UsageError(f"{rules} adds norms, and the run has one at {site} already: {cure}")


def refuse_missing_places(before: Collection[str], after: Collection[str], path: Path) -> None:
    """Refuse norms that leave a place of the run's norms without one.

    Raises:
        UsageError: with the first place.
    """
    for site in before:
        if site not in after:
            raise UsageError(f"the run {path} has a norm at {site}, and none is made there: choose another norm")


def root_of(model: Model) -> nn.Module:
    """Return the model of another library inside of one of ours; else the model itself."""
    return model.host if isinstance(model, Hosted) else model


def caller_of(model: Model, batch: Batch) -> Callable[[Any], Tensor]:
    """Return what calls the root of a model, or a copy of it in any precision, with the start of a batch."""
    start = batch.map(lambda tensor: tensor[:EXAMPLES])

    def arguments_for(root: nn.Module) -> tuple[Tensor, ...]:
        like = first_floating(root.parameters())
        if like is None:
            return start.arguments
        return start.map(lambda tensor: tensor.to(like.dtype) if tensor.is_floating_point() else tensor).arguments

    if isinstance(model, Hosted):
        call = model.call
        return lambda host: call(host, *arguments_for(host))
    return lambda root: root(*arguments_for(root))


def find_norms(model: Model, batch: Batch) -> dict[str, Found]:
    """Return the norms of a model by the name of their site, and how each is read.

    Raises:
        UsageError: one cannot be read.
    """
    root = root_of(model)
    paths = {module: path for path, module in root.named_modules()}
    norms = model.anatomy().norms
    by_path = {norm: paths[norm] for norm in norms.values()}
    calls = calls_by_norm(record(root, caller_of(model, batch), by_path), by_path)
    by_site: dict[str, Found] = {}
    for site, norm in norms.items():
        try:
            adapter = read_called(norm, calls[norm])
        except Unreadable as reason:
            raise UsageError(f"{by_path[norm]}, a {type(norm).__name__}, {reason}: its run has no swap") from reason
        features = calls[norm][0].inputs[0].shape[adapter.axis]
        stands_at: Any = norm.stands_at
        by_site[site] = Found(by_path[norm], norm, adapter, features, stands_at, len(calls[norm]))
    return by_site


@torch.no_grad()
def take_over(
    own: Model, made: Assembled, found: Mapping[str, Found], staying: Collection[str], words: Sequence[str]
) -> None:
    """Give a model with other norms what another has learned, and these norms what those before them can give.

    Args:
        own: the other.
        made: the model.
        found: the norms of the other by the name of their site.
        staying: the sites whose norms are as they were.
        words: in which settings of norms may be given.

    Raises:
        UsageError: the two have other parameters beside their norms.
    """
    norms = made.model.anatomy().norms
    section_at_site = {site.name: part.section for site, part in made.norm_parts.items() if part}
    swapped = drop_keys(found, *staying)
    theirs = state_beside(own, [norm.module for norm in swapped.values()])
    ours = state_beside(made.model, [norms[site] for site in swapped])
    if theirs.keys() != ours.keys():
        name = sorted(theirs.keys() ^ ours.keys())[0]
        raise UsageError(f"the model has another {name} with these norms than without: choose another norm")
    for name, tensor in ours.items():
        tensor.copy_(theirs[name])
    for site, norm in swapped.items():
        section = section_at_site[site]
        overridden = [key for key in LIKE_HOST if is_overridden(f"{section}.{key}", words)]
        take_over_settings(norms[site], norm, overridden)
        keep_weights(norms[site], norm)


def state_beside(model: nn.Module, norms: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model that are not of some norms, by name."""
    of_norms = tuple(f"{path}." for path, module in model.named_modules() if module in norms)
    state = {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(of_norms):
            state[name] = tensor
    return state
