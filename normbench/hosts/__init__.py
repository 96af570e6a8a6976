"""Given models: the norms of a model of another library, or of one's own, found and replaced where they stand.

`build_host` makes a model of a library for a task. `find` runs a model once on an example and tells where its norms
are, `replace` puts others in their places, and `tabulate` lists what was found, what was kept and what was left alone.
"""

from normbench.hosts.acting import Acting
from normbench.hosts.adapters import Adapter
from normbench.hosts.building import Host
from normbench.hosts.finding import Findings, Found, HostBlock, Left, find
from normbench.hosts.importing import import_library
from normbench.hosts.libraries import build_host
from normbench.hosts.replacing import Row, check_runs, replace, restore, tabulate

__all__ = [
    "Acting",
    "Adapter",
    "Findings",
    "Found",
    "Host",
    "HostBlock",
    "Left",
    "Row",
    "build_host",
    "check_runs",
    "find",
    "import_library",
    "replace",
    "restore",
    "tabulate",
]
