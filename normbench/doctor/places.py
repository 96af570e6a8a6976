"""Where data, caches and outputs lie, whether they can be read and written, and how much room there is."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from normbench.config.groups import options, section_of
from normbench.doctor.findings import Problem, Section
from normbench.errors import explain, is_disk_full
from normbench.folders import CACHE, DATA, cache_folder, user_cache

LITTLE = 1e9  # bytes: a checkpoint of a model of 80 million weights with AdamW takes as many
PROBE = 1 << 20  # bytes that are written to see whether a folder takes them
OUTPUTS = "outputs"  # of conf/: runs go there, below the current folder


@dataclass(frozen=True)
class Place:
    """A folder.

    Attributes:
        name: what it is for.
        path: of it.
        cure: what makes another one be used.
        stops: whether the basic job needs it.
    """

    name: str
    path: Path
    cure: str
    stops: bool = False


def places_here() -> list[Place]:
    """Return the folders that normbench, or a library that it uses, writes to.

    Raises:
        OSError: the current folder is gone.
    """
    home = Path(os.path.expanduser(os.environ.get("HF_HOME") or user_cache() / "huggingface"))
    of_hub = Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or home / "hub"))
    of_datasets = Path(os.path.expanduser(os.environ.get("HF_DATASETS_CACHE") or home / "datasets"))
    of_torch = Path(os.path.expanduser(os.environ.get("TORCH_HOME") or user_cache() / "torch"))
    elsewhere = "to a folder on a disk with enough space"
    return [
        Place("outputs", Path.cwd() / OUTPUTS, "set outputs=FOLDER, or work in another folder", stops=True),
        Place("decoded data", cache_folder(), f"set {CACHE} {elsewhere}", stops=True),
        Place("hub's files", of_hub, f"set HF_HOME {elsewhere}"),
        Place("datasets' cache", of_datasets, f"set HF_HOME {elsewhere}"),
        Place("torch's weights", of_torch, f"set TORCH_HOME {elsewhere}"),
    ]


def examine_places() -> Section:
    """Return where things lie, and which folders cannot be used."""
    section = Section("folders")
    try:
        places = places_here()
    except OSError as error:
        problem = Problem(f"the current folder cannot be used ({error.strerror})", "go to another one", stops=True)
        section.problems.append(problem)
        return section
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError as error:  # it has tried several
        problem = Problem(f"no folder takes temporary files ({error.strerror})", "set TMPDIR to one", stops=True)
        section.problems.append(problem)
    else:
        places.append(Place("temporary files", temporary, "set TMPDIR to a folder with enough space", stops=True))
    add_data(section)
    for place in places:
        add_place(section, place)
    return section


def add_data(section: Section) -> None:
    """Note where the copies of public data sets are, and which there are."""
    root = os.environ.get(DATA)
    if not root:
        section.facts["data sets"] = f"{DATA} is not set: those of the hub come from there"
        return
    folder = Path(os.path.expanduser(root))
    try:
        subfolders = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        section.facts["data sets"] = f"{root} (of {DATA}), which cannot be read"
        cure = f"set {DATA} to a folder with copies in the hub's layout, or to nothing"
        section.problems.append(Problem(f"{DATA}={root} cannot be read ({error.strerror})", cure))
        return
    known = [name for name, hub_id in data_of_hub().items() if hub_id.partition("/")[0] in subfolders]
    present = [name for name in known if (folder / data_of_hub()[name]).is_dir()]
    section.facts["data sets"] = f"{root} (of {DATA}), with {', '.join(present) or 'none that normbench names'}"


def data_of_hub() -> dict[str, str]:
    """Return the options of `data=` that come from the hub, with their repositories."""
    repositories = {}
    for name in options("data"):
        hub_id = section_of("data", name).get("hub_id")
        if isinstance(hub_id, str):
            repositories[name] = hub_id
    return repositories


def add_place(section: Section, place: Place) -> None:
    """Note a folder, and whether it takes files; one that is not there yet is as the folder that will hold it."""
    shown = str(place.path)
    nearest = place.path
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest != place.path:
        shown += ", not there yet"
    try:
        with suppress(OSError):
            shown += f", {decimal(shutil.disk_usage(nearest).free)} free"
        refuse_unusable(nearest)
    except OSError as error:
        what = f"{place.path}, the folder of {place.name}, cannot be used ({error.strerror or explain(error)})"
        cure = f"make room, or {place.cure}" if is_disk_full(error) else place.cure
        section.problems.append(Problem(what, cure, place.stops))
    else:
        free = shutil.disk_usage(nearest).free
        if free < LITTLE:
            what = f"only {decimal(free)} are free for {place.name} in {place.path}"
            section.problems.append(Problem(what, f"make room, or {place.cure}"))
    section.facts[place.name] = shown


def refuse_unusable(folder: Path) -> None:
    """Read a folder, and write a file to it, of which nothing is left.

    Raises:
        OSError: one of these cannot be done.
    """
    os.listdir(folder)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(PROBE))
        file.flush()
        os.fsync(file.fileno())
