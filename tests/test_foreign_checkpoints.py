"""Checkpoints that other programs have saved: what wrappers have put around names, and what lies in one file."""

from __future__ import annotations

import copy
import json
import re
import tarfile
from argparse import Namespace
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from support import IMAGES, TEXT
from test_host_weights import GPT2, refusal
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from normbench import build
from normbench.config import compose
from normbench.errors import UsageError
from normbench.hosts.libraries import build_host
from normbench.hosts.weights import find_saved, put_in_weights, read_tensors, spell, take_weights
from normbench.runs.plan import prepare

pytestmark = pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # of torch's own compiler

COUNT = "num_batches_tracked"
VARIANCE = "stem.norm.running_var"


def make_network(seed: int) -> nn.Sequential:
    """Make a network with a norm of which torch counts the batches, and a running mean and count that are no start."""
    torch.manual_seed(seed)
    block = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)))
    network = nn.Sequential(
        OrderedDict(stem=block, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(4, 5))
    )
    for _ in range(seed):
        network(torch.randn(2, 3, 8, 8))
    return network.eval()


class Lit(nn.Module):
    """Holds a network as training programs do, beside a loss with a weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(5))


def compile_stem(network: nn.Module) -> nn.Module:
    network.stem = torch.compile(network.stem)  # type: ignore[assignment]
    return network


def recompute_stem(network: nn.Module) -> nn.Module:
    network.stem = checkpoint_wrapper(network.stem)  # type: ignore[arg-type]
    return network


def divide_stem(network: Any) -> nn.Module:
    """Divide the batches of a part alone, as PyTorch's ImageNet example does with the features of AlexNet and VGG."""
    network.stem = nn.DataParallel(network.stem)
    divided: nn.Module = network
    return divided


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "none": lambda network: network,
    "compiled": torch.compile,
    "parallel": nn.DataParallel,
    "held": Lit,
    "averaged": AveragedModel,
    "compiled and parallel": lambda network: nn.DataParallel(torch.compile(network)),  # type: ignore[arg-type]
    "parallel and compiled": lambda network: torch.compile(nn.DataParallel(network)),
    "held, compiled and parallel": lambda network: nn.DataParallel(torch.compile(Lit(network))),  # type: ignore[arg-type]
    "compiled within": compile_stem,
    "recomputed within": recompute_stem,
    "parallel within": divide_stem,
    "parallel, and parallel within": lambda network: nn.DataParallel(divide_stem(network)),
    "compiled, and parallel within": lambda network: torch.compile(divide_stem(network)),
}


def save_nested(state: dict[str, Tensor], path: Path) -> None:
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    torch.save({"epoch": 3, "model": state, "optimizer": optimizer, "best": 0.5}, path)


def save_deeply(state: dict[str, Tensor], path: Path) -> None:
    torch.save({"trainer": {"net": {"weights": state}, "step": 1}, "seed": torch.tensor(3)}, path)


def save_folder(state: dict[str, Tensor], path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")
    safetensors.torch.save_file(dict(state), path / "model.safetensors")


def save_as_timm(state: dict[str, Tensor], path: Path) -> None:
    options = Namespace(model="resnet18", lr=0.1, mean=(0.5, 0.5))
    torch.save({"epoch": 3, "arch": "resnet18", "state_dict": state, "args": options, "metric": 0.5}, path)


FORMATS: dict[str, Callable[[dict[str, Tensor], Path], None]] = {
    "bare.pth": torch.save,
    "nested.pt": save_nested,
    "deep.bin": save_deeply,
    "of_timm.pth.tar": save_as_timm,
    "of_lightning.ckpt": save_deeply,
    "model_best.pth.tar": save_nested,
    "LOUD.PTH": torch.save,
    "flat.safetensors": lambda state, path: safetensors.torch.save_file(dict(state), path),
    "folder": save_folder,
}


def load(path: Path | str, network: nn.Module) -> nn.Module:
    """Load what was saved into a network as models of libraries are loaded."""
    saved = find_saved(str(path))
    where = f"model.weights={path}"
    weights = take_weights(read_tensors(saved.files), network.state_dict(), where, saved.part)
    put_in_weights(network, weights, where)
    return network


def assert_alike(network: nn.Module, other: nn.Module) -> None:
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(network.eval()(images), other.eval()(images))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
def test_what_wrappers_put_around_names_is_seen_through(tmp_path: Path, wrapper: str, name: str, counted: bool) -> None:
    """Also without the number of batches, which torch does not ask of such files."""
    network = make_network(3)
    state = WRAPPERS[wrapper](copy.deepcopy(network)).state_dict()
    if not counted:
        state = {key: tensor for key, tensor in state.items() if not key.endswith(COUNT)}
    FORMATS[name](state, tmp_path / name)
    loaded = load(tmp_path / name, make_network(1))
    assert_alike(loaded, network)
    assert loaded.state_dict()[f"stem.norm.{COUNT}"] == (3 if counted else 1)  # what the network has itself


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_what_may_lack_is_what_torch_says_of_the_version(tmp_path: Path, nested: bool, version: int) -> None:
    state = make_network(3).state_dict()
    del state[f"stem.norm.{COUNT}"]
    state._metadata["stem.norm"]["version"] = version  # type: ignore[attr-defined]
    torch.save({"state_dict": state} if nested else state, tmp_path / "given.pth")
    if version == 1:
        make_network(1).load_state_dict(state)
        load(tmp_path / "given.pth", make_network(1))
    else:
        with pytest.raises(RuntimeError, match="Missing"):
            make_network(1).load_state_dict(state)
        with pytest.raises(UsageError, match=f"stem.norm.{COUNT} is missing"):
            load(tmp_path / "given.pth", make_network(1))


def test_a_version_is_found_where_a_part_was_divided(tmp_path: Path) -> None:
    state = divide_stem(make_network(3)).state_dict()
    del state[f"stem.module.norm.{COUNT}"]
    torch.save(state, tmp_path / "given.pth")
    with pytest.raises(UsageError, match=f"stem.norm.{COUNT} is missing"):
        load(tmp_path / "given.pth", make_network(1))


def test_a_module_of_that_name_is_the_model_s_own(tmp_path: Path) -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.ModuleDict({"module": nn.Linear(2, 2), "part": nn.ModuleDict({"module": nn.Embedding(2, 2)})})

    for number, network in enumerate((make(1), nn.DataParallel(make(1)))):
        path = tmp_path / f"{number}.pth"
        torch.save(network.state_dict(), path)
        loaded = load(path, make(2)).state_dict()
        for name, tensor in make(1).state_dict().items():
            assert torch.equal(loaded[name], tensor), name


KEYS = [("model", "model_ema"), ("state_dict", "ema_state_dict"), ("student", "teacher"), ("net", "ema.shadow")]


@pytest.mark.parametrize("keys", KEYS, ids="-".join)
@pytest.mark.parametrize("wrapper", ["none", "compiled and parallel"])
def test_of_several_weights_one_is_chosen_by_name(tmp_path: Path, keys: tuple[str, str], wrapper: str) -> None:
    content: dict[str, Any] = {"epoch": 1}
    networks = {key: make_network(seed) for seed, key in enumerate(keys, 2)}
    for key, network in networks.items():
        outer, _, inner = key.partition(".")
        state = WRAPPERS[wrapper](copy.deepcopy(network)).state_dict()
        content[outer] = {inner: state, "decay": 0.9} if inner else state
    path = tmp_path / "several.pth"
    torch.save(content, path)
    with pytest.raises(UsageError) as refused:
        load(path, make_network(1))
    assert all(key in str(refused.value) for key in keys) and f"{path}:{keys[0]}" in str(refused.value)
    for key, network in networks.items():
        assert_alike(load(f"{path}:{key}", make_network(1)), network)
    with pytest.raises(UsageError, match=f"no weights of the model under other: write {keys[0]}"):
        load(f"{path}:other", make_network(1))


def test_a_part_with_several_weights_is_not_written_twice(tmp_path: Path) -> None:
    """What the refusal says to write loads."""
    path = tmp_path / "several.pth"
    torch.save({"nets": {"raw": make_network(2).state_dict(), "ema": make_network(3).state_dict()}}, path)
    for part in (":nets", ""):
        with pytest.raises(UsageError, match=f"as model.weights={path}:nets.raw$"):
            load(f"{path}{part}", make_network(1))


def test_weights_outside_of_parts_are_not_those_of_a_part(tmp_path: Path) -> None:
    path = tmp_path / "given.pth"
    for nets, cure in [({"model": make_network(2)}, "model"), ({"a": make_network(2), "b": make_network(3)}, "a or b")]:
        torch.save({name: network.state_dict() for name, network in nets.items()}, path)
        with pytest.raises(UsageError, match=f"no weights of the model outside of any part: write {cure} there$"):
            load(f"{path}:", make_network(1))


def test_of_weights_and_their_average_in_one_table_one_is_chosen(tmp_path: Path) -> None:
    raw, average = make_network(2), make_network(3)
    state = {f"model.{key}": tensor for key, tensor in raw.state_dict().items()}
    state |= {f"ema_model.module.{key}": tensor for key, tensor in average.state_dict().items()}
    torch.save({"state_dict": state, "pytorch-lightning_version": "2"}, tmp_path / "lit.ckpt.pt")
    safetensors.torch.save_file(state, tmp_path / "both.safetensors")
    for path in (tmp_path / "lit.ckpt.pt", tmp_path / "both.safetensors"):
        part = "state_dict." if path.suffix == ".pt" else ""
        assert_alike(load(f"{path}:{part}model", make_network(1)), raw)
        assert_alike(load(f"{path}:{part}ema_model", make_network(1)), average)
        with pytest.raises(UsageError, match="holds several weights of the model"):
            load(path, make_network(1))


@pytest.mark.parametrize("outer", ["", "net."])
def test_of_weights_within_a_wrapper_and_beside_it_one_is_chosen(tmp_path: Path, outer: str) -> None:
    """As a program writes them that holds a model, and another one that was compiled."""
    beside, within = make_network(2), make_network(3)
    state = {f"{outer}{key}": tensor for key, tensor in beside.state_dict().items()}
    state |= {f"{outer}_orig_mod.{key}": tensor for key, tensor in within.state_dict().items()}
    path = tmp_path / "both.pth"
    torch.save(state, path)
    assert_alike(load(f"{path}:{outer}_orig_mod", make_network(1)), within)
    assert_alike(load(f"{path}:{outer.removesuffix('.')}", make_network(1)), beside)
    with pytest.raises(UsageError, match=r"holds several weights of the model.*_orig_mod"):
        load(path, make_network(1))


def test_weights_and_their_average_below_them_are_two(tmp_path: Path) -> None:
    raw, average = make_network(2), make_network(3)
    path = tmp_path / "both.pth"
    torch.save({**raw.state_dict(), "ema": average.state_dict()}, path)
    assert_alike(load(f"{path}:", make_network(1)), raw)
    assert_alike(load(f"{path}:ema", make_network(1)), average)
    with pytest.raises(UsageError, match=r"holds several weights of the model: write ema after a colon.*beside it"):
        load(path, make_network(1))


@pytest.mark.parametrize("keys", [("", "_orig_mod."), ("net.", "compiled._orig_mod."), ("model.", "model_ema.")])
def test_the_same_weights_twice_are_one(tmp_path: Path, keys: tuple[str, str]) -> None:
    network = make_network(2)
    state = {f"{key}{name}": tensor for key in keys for name, tensor in network.state_dict().items()}
    torch.save(state, tmp_path / "twice.pth")
    assert_alike(load(tmp_path / "twice.pth", make_network(1)), network)


@pytest.mark.parametrize("before", ["", "module."])
def test_names_with_dots_of_before_torch_0_4_are_known(tmp_path: Path, before: str) -> None:
    """What torchvision's own reader of DenseNets makes of their published weights, which have such names."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=5)
    older = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith(COUNT):
            older[before + re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", name)] = tensor
    assert any(".norm.1." in name for name in older)
    torch.save(older, tmp_path / "densenet.pth")
    torch.manual_seed(1)
    read = torchvision.models.DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=5)
    loaded = load(tmp_path / "densenet.pth", read).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


class Masking(nn.Linear):
    """Makes a mask itself, which its state dict has not."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("mask", torch.ones(3, 3).tril(), persistent=False)


def test_buffers_that_the_model_makes_itself_are_left_out(tmp_path: Path) -> None:
    network = nn.Sequential(Masking())
    state = {name: tensor + 1 for name, tensor in network.state_dict().items()}
    torch.save({**state, "0.mask": torch.zeros(3, 3)}, tmp_path / "older.pth")
    (loaded,) = load(tmp_path / "older.pth", network).children()
    buffers = dict(loaded.named_buffers())
    assert torch.equal(loaded.get_parameter("weight"), state["0.weight"]) and buffers["mask"].sum() == 6


def test_two_files_of_a_folder_with_the_same_names_are_not_mixed(tmp_path: Path) -> None:
    for seed, name in ((2, "ema"), (3, "model")):
        safetensors.torch.save_file(make_network(seed).state_dict(), tmp_path / f"{name}.safetensors")
    with pytest.raises(UsageError, match=r"ema\.safetensors and model\.safetensors both have"):
        load(tmp_path, make_network(1))


def test_a_colon_in_a_path_is_its_own(tmp_path: Path) -> None:
    network = make_network(2)
    torch.save(network.state_dict(), tmp_path / "step:3.pth")
    assert_alike(load(tmp_path / "step:3.pth", make_network(1)), network)
    with pytest.raises(UsageError, match="is not there"):
        load(tmp_path / "nothing.pth:model", make_network(1))


def test_what_is_another_model_s_is_still_refused(tmp_path: Path) -> None:
    state = {f"module.{key}": tensor for key, tensor in make_network(2).state_dict().items()}
    torch.save({"model": {**state, "module.more": torch.ones(1)}}, tmp_path / "more.pth")
    with pytest.raises(UsageError, match=r"\(more is not the model's\)"):
        load(tmp_path / "more.pth", make_network(1))
    torch.save({"model": {**state, "module.head.weight": torch.ones(9)}}, tmp_path / "shape.pth")
    with pytest.raises(UsageError, match=r"\(head.weight is of another shape\)"):
        load(tmp_path / "shape.pth", make_network(1))
    del state["module.head.weight"]
    torch.save({"model": state}, tmp_path / "less.pth")
    with pytest.raises(UsageError, match=r"\(head.weight is missing\)"):
        load(tmp_path / "less.pth", make_network(1))
    torch.save({"epoch": 1}, tmp_path / "none.pth")
    with pytest.raises(UsageError, match="holds no tensors"):
        load(tmp_path / "none.pth", make_network(1))


def test_numbers_of_layers_are_not_put_together() -> None:
    assert spell("net.norm.1.weight", {"norm1.weight"}) == "net.norm1.weight"
    assert spell("layer1.1.weight", {"layer11.weight"}) == "layer1.1.weight"


@pytest.mark.parametrize("before", ["_orig_mod.", "module.", "model.", "module._orig_mod.", "_orig_mod.model."])
def test_a_folder_of_transformers_is_seen_through(tmp_path: Path, before: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("gpt2", **GPT2)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    config.save_pretrained(tmp_path)
    state = {f"{before}{key}": tensor.clone() for key, tensor in model.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    host = build_host("hf", "gpt2", {}, TEXT, weights=str(tmp_path))
    for key, tensor in host.module.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[key]), key


def test_a_classifier_of_timm_is_trained_from_the_part_that_is_named(tmp_path: Path) -> None:
    """And each part makes a run of its own."""
    pytest.importorskip("timm")
    torch.manual_seed(0)
    models = {key: build_host("timm", "test_resnet", {}, IMAGES).module for key in ("model", "model_ema")}
    path = tmp_path / "given.pth"
    torch.save({key: model.state_dict() for key, model in models.items()}, path)
    message = refusal("timm", "test_resnet", {}, IMAGES, weights=str(path))
    assert f"write one of model or model_ema after a colon, as model.weights={path}:model" in message
    runs = set()
    for key, model in models.items():
        host = build_host("timm", "test_resnet", {}, IMAGES, weights=f"{path}:{key}")
        assert torch.equal(host.module.state_dict()["conv1.0.weight"], model.state_dict()["conv1.0.weight"])
        words = ["model=timm", "model.name=test_resnet", f"model.weights={path}:{key}", "norm=own"]
        runs.add(prepare(compose.read(words)).directory.path.name)
    assert len(runs) == 2


# ---- what else is in files


def touch(path: str) -> None:
    Path(path).touch()


class Touching:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return touch, (str(self.path),)


class Easy(dict[str, Any]):
    """A dictionary with attributes, as options are often kept."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.__dict__ = self


class Steps(list[int]):
    """A list of a class of its own."""


def make_optimizer() -> torch.optim.Optimizer:
    """Make an optimizer with a state, which is tensors without names."""
    network = make_network(2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(torch.ones(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    return optimizer


VALUES = {
    "optimizer": make_optimizer(),
    "schedule": torch.optim.lr_scheduler.StepLR(make_optimizer(), 3),
    "loss with weights": nn.CrossEntropyLoss(weight=torch.ones(5)),
    "queue": deque([1.0, 2.0], maxlen=3),
    "dictionary of a class": Easy(lr=0.1, more=Easy(a=[1])),
    "list of a class": Steps([1, 2]),
    "number of numpy": np.float64(0.5),
    "array of numpy": np.ones(3),
    "random state of numpy": np.random.RandomState(0).get_state(),
    "path": Path("runs"),
    "time": datetime(2026, 1, 2),
    "dictionary with a default": defaultdict(list, {"loss": [1.0]}),
    "options": Namespace(lr=0.1),
    "class of Python": Signals.SIGINT,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_training_programs_keep_beside_weights_is_left_out(tmp_path: Path, value: Any) -> None:
    network = make_network(3)
    path = tmp_path / "given.pth"
    torch.save({"best": value, "model": network.state_dict(), "more": {"again": [value]}}, path)
    assert_alike(load(path, make_network(1)), network)


def test_code_beside_weights_does_not_run(tmp_path: Path) -> None:
    network = make_network(3)
    path = tmp_path / "given.pth"
    torch.save({"model": network.state_dict(), "more": Touching(tmp_path / "ran")}, path)
    assert_alike(load(path, make_network(1)), network)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_modules_that_were_saved_whole_are_read_without_their_code(tmp_path: Path, wrapper: str) -> None:
    network = make_network(3)
    network.stem.register_buffer("scratch", torch.ones(2), persistent=False)
    wrapped = copy.deepcopy(network)
    if "compiled" not in wrapper:  # what torch.compile makes cannot be saved whole
        wrapped = WRAPPERS[wrapper](wrapped)
    torch.save({"epoch": 3, "net": wrapped}, tmp_path / "given.pth")
    assert_alike(load(tmp_path / "given.pth", make_network(1)), network)


def test_of_a_module_and_an_average_one_is_chosen(tmp_path: Path) -> None:
    network, average = make_network(3), make_network(2)
    path = tmp_path / "given.pth"
    torch.save({"model": network, "ema": average.state_dict()}, path)
    with pytest.raises(UsageError, match="write one of model or ema after a colon"):
        load(path, make_network(1))
    assert_alike(load(f"{path}:model", make_network(1)), network)
    assert_alike(load(f"{path}:ema", make_network(1)), average)


class Marked(Tensor):
    """A tensor of a class of its own."""


NAMELESS: dict[str, tuple[Any, str]] = {
    "tensors in a list": ([torch.ones(2)], "holds tensors without names, by themselves or in lists: save model.state"),
    "a tensor": (torch.ones(2), "holds tensors without names, by themselves or in lists: save model.state_dict()"),
    "lists": ({"a.weight": [1.0, 2.0]}, r"holds lists in place of tensors: save torch.tensor\(list\) of each, by name"),
    "arrays": ({"a.weight": np.ones(2)}, r"holds arrays of numpy in place of tensors: save torch.from_numpy"),
    "of their own class": (
        {"a.weight": torch.ones(2).as_subclass(Marked)},
        r"tensors in it are of a class of their own \(\S*Marked\), whose code would run: save .*as_subclass",
    ),
}


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("kind", NAMELESS)
def test_what_is_in_place_of_tensors_by_name_is_told(kind: str, newer: bool, tmp_path: Path) -> None:
    content, said = NAMELESS[kind]
    torch.save(content, tmp_path / "weights.pt", _use_new_zipfile_serialization=newer)
    with pytest.raises(UsageError, match=said):
        read_tensors([tmp_path / "weights.pt"])


@pytest.mark.parametrize(("value", "what"), [([0.0] * 5, "a list"), (np.zeros(5), "an array of numpy")])
def test_one_weight_that_is_no_tensor_is_told(value: Any, what: str, tmp_path: Path) -> None:
    """It is there, so that it is not missing."""
    state = nn.DataParallel(make_network(1)).state_dict() | {"module.head.bias": value}
    torch.save({"model": state}, tmp_path / "weights.pt")
    with pytest.raises(UsageError, match=rf"\(head\.bias is {what} and no tensor\)"):
        load(tmp_path / "weights.pt", make_network(0))


@pytest.mark.parametrize("newer", [True, False])
def test_what_holds_itself_is_looked_through_once(newer: bool, tmp_path: Path) -> None:
    old = make_network(1)
    content: dict[str, Any] = {"model": {**old.state_dict()}, "history": []}
    content["history"].append(content["history"])
    content["trainer"] = content
    torch.save(content, tmp_path / "weights.pt", _use_new_zipfile_serialization=newer)
    new = load(f"{tmp_path}/weights.pt", make_network(0))
    assert all(torch.equal(tensor, new.state_dict()[name]) for name, tensor in old.state_dict().items())


@pytest.mark.parametrize("value", [np.float64(0.5), np.ones(3), Namespace(lr=0.1), datetime(2020, 1, 1)])
def test_files_of_the_older_format_may_hold_more_than_tensors(value: Any, tmp_path: Path) -> None:
    state = make_network(1).state_dict()
    torch.save({"model": state, "beside": value}, tmp_path / "weights.pt", _use_new_zipfile_serialization=False)
    new = load(tmp_path / "weights.pt", make_network(0))
    assert all(torch.equal(tensor, new.state_dict()[name]) for name, tensor in state.items())


def test_the_oldest_format_is_told(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "weights.tar", "w") as archive:
        for name in ("pickle", "storages", "tensors"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(UsageError, match=r"oldest format of torch, a \.tar, .*: where you trust it, save torch\.load"):
        read_tensors([tmp_path / "weights.tar"])


def test_weights_in_a_list_are_read(tmp_path: Path) -> None:
    networks = [make_network(2), make_network(3)]
    states = [network.state_dict() for network in networks]
    torch.save((states[0], {"lr": 0.1}), tmp_path / "one.pth")
    assert_alike(load(tmp_path / "one.pth", make_network(1)), networks[0])
    torch.save({"nets": states}, tmp_path / "two.pth")
    assert_alike(load(f"{tmp_path}/two.pth:nets.1", make_network(1)), networks[1])
    with pytest.raises(UsageError, match=r"write one of nets.0 or nets.1 after a colon"):
        load(tmp_path / "two.pth", make_network(1))


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sparse": (Tensor.to_sparse, "sparse"),
    "quantized": (lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8), "quantized"),
    "without numbers": (lambda weight: weight.to("meta"), "without numbers"),
    "whole": (lambda weight: weight.to(torch.int8), "of torch.int8 in place of torch.float32"),
    "complex": (lambda weight: weight.to(torch.complex64), "of torch.complex64 in place of torch.float32"),
}


@pytest.mark.filterwarnings("ignore:.*(quantize|TypedStorage).*")
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_another_kind_are_named(tmp_path: Path, kind: str) -> None:
    change, what = KINDS[kind]
    state = make_network(3).state_dict()
    torch.save({**state, "head.weight": change(state["head.weight"])}, tmp_path / "given.pth")
    with pytest.raises(UsageError, match=rf"\(head.weight is {what}"):
        load(tmp_path / "given.pth", make_network(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_come_in_any_precision_and_counts_as_averages(tmp_path: Path, dtype: torch.dtype) -> None:
    state = make_network(3).state_dict()
    torch.save({key: tensor.to(dtype) for key, tensor in state.items()}, tmp_path / "given.pth")
    loaded = load(tmp_path / "given.pth", make_network(1)).state_dict()
    for key, tensor in state.items():
        assert torch.equal(loaded[key], tensor.to(dtype).to(tensor.dtype))


@pytest.mark.parametrize(("name", "number"), [("head.weight", "nan"), ("stem.conv.bias", "inf"), (VARIANCE, "nan")])
def test_weights_that_diverged_are_named(tmp_path: Path, name: str, number: str) -> None:
    state = make_network(3).state_dict()
    state[name].view(-1)[0] = float(number)
    torch.save(state, tmp_path / "given.pth")
    with pytest.raises(UsageError, match=rf"has numbers that are not finite \({name}\)"):
        load(tmp_path / "given.pth", make_network(1))


def test_a_folder_of_transformers_with_weights_that_diverged_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("gpt2", **GPT2))
    with torch.no_grad():
        model.transformer.ln_f.bias[0] = float("nan")
    model.save_pretrained(tmp_path)
    assert "not finite (transformer.ln_f.bias)" in refusal("hf", "gpt2", {}, TEXT, weights=str(tmp_path))


@pytest.mark.parametrize("name", ["given.pth", "given.safetensors"])
def test_files_in_place_of_weights_are_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=f"{name} is empty"):
        load(tmp_path / name, make_network(1))
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(UsageError, match="git lfs pull"):
        load(tmp_path / name, make_network(1))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_folder_of_a_checkpoint_in_parts_is_told(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    checkpoint.save({"model": make_network(1).state_dict()}, checkpoint_id=tmp_path / "parts", no_dist=True)
    with pytest.raises(UsageError, match=r"dcp_to_torch .*parts FILE\.pt"):
        find_saved(str(tmp_path / "parts"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_program_of_torchscript_is_told(tmp_path: Path) -> None:
    torch.jit.script(make_network(1)).save(tmp_path / "given.pt")  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match="is a program of TorchScript, whose code would run"):
        load(tmp_path / "given.pt", make_network(1))


def test_norms_of_the_run_whose_checkpoint_is_given_are_told(tmp_path: Path) -> None:
    """Where the model has its own norms in their places: they may have parameters of the same names."""
    pytest.importorskip("timm")
    told = {}
    for noted in ("own", "groupnorm"):
        folder = tmp_path / noted
        folder.mkdir()
        torch.save({"model": build_host("timm", "test_vit", {}, IMAGES).module.state_dict()}, folder / "checkpoint.pt")
        session = {"choices": {"norm": noted}, "command": "normbench train", "task": {"kind": ""}, "data": {}}
        (folder / "environment.json").write_text(json.dumps({"sessions": [session]}))
        for norm in ("own", "groupnorm"):
            words = ["model=timm", "model.name=test_vit", f"model.weights={folder}/checkpoint.pt:model", f"norm={norm}"]
            model, _ = build.make_model(compose.read(words).recipe, IMAGES, seed=0)
            told[noted, norm] = [note for note in model.notes() if "is of a run with norm=groupnorm" in note]
    assert [case for case, notes in told.items() if notes] == [("groupnorm", "own")]
