"""`normbench tensorboard`: TensorBoard itself, with a start page of ours and without its noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from normbench.errors import UsageError
from normbench.show.tensorboard import write_arms

PINNED = ("loss/val", "loss/train")  # Time Series tab: charts above all others, which are in alphabetical order
ARM = r"^(.*?)(?:-s\d+-[0-9a-f]{8})?$"  # runs share a color whose names are alike in the bracket, without seed and hash
ARMS = "(^|/)arms/"  # the names of arms that are shown as runs of their own


def start_page(address: str, arms: bool = False) -> str:
    """Return the page of a TensorBoard at this address that shows the losses on top, unsmoothed, an arm in one color.

    Args:
        arms: show only those that are runs of their own, in all tabs, until the person empties the filter of runs.
    """
    cards = [{"plugin": "scalars", "tag": tag} for tag in PINNED]
    query = {"pinnedCards": json.dumps(cards), "smoothing": "0", "runColorGroup": f"regex:{ARM}"}
    tab = "timeseries"
    if arms:
        query["runFilter"] = ARMS
        tab += "&" + urlencode({"regexInput": ARMS})
    return f"{address}?{urlencode(query)}#{tab}"


def serve(folder: Path, flags: Sequence[str]) -> int:
    """Run TensorBoard on the runs below a folder, until Ctrl-C; return the exit status.

    Raises:
        UsageError: there is nothing to show.
    """
    if not any(folder.rglob("events.out.tfevents.*")):
        raise UsageError(f"{folder} is not a folder of runs: train something first, or give the folder of your runs")
    from tensorboard import program
    from tensorboard_data_server import server_binary

    from normbench.commands.hparams import make_plugins

    page = start_page("", write_arms(folder))

    class Server(program.WerkzeugServer):
        """Answers as TensorBoard, and opens on our page."""

        def __init__(self, wsgi_app: Callable[..., Iterable[bytes]], flags: Any) -> None:
            def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
                if request["PATH_INFO"] != "/" or request["QUERY_STRING"]:
                    return wsgi_app(request, start)
                start("302 Found", [("Location", page)])
                return []

            super().__init__(answer, flags)

        def print_serving_message(self) -> None:
            print(self.get_url(), flush=True)

    board = program.TensorBoard(make_plugins(), server_class=program.with_port_scanning(Server))
    fast = "true" if server_binary() else "false"  # left open, TensorBoard says in four lines which it was
    try:
        board.configure(["tensorboard", f"--logdir={folder}", f"--load_fast={fast}", *flags])
        return int(board.main())
    except SystemExit as end:  # its answer to SIGTERM, and to a flag that it does not have
        return int(end.code or 0)
