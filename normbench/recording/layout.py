"""What TensorBoard's tabs open on."""

from __future__ import annotations

import json
from urllib.parse import urlencode

# Custom Scalars tab: category -> chart -> regular expressions of the tags that it overlays
CHARTS: dict[str, dict[str, list[str]]] = {
    "training": {
        "loss": [r"^loss/(train|train_eval|val|val_ema|test)$"],
        "accuracy": [r"^accuracy/(train_eval|val|val_ema|test)$"],
        "gradient norm": [r"^grad/norm$"],
    },
    "depth": {
        "residual stream RMS by depth": [r"^act/stream.*/rms$"],
        "RMS of norm outputs": [r"^act/.*/rms_out$"],
        "gradient norm by block": [r"^grad/.*/norm$"],
        "α and mean γ of the norms": [r"^norm/.*/(alpha|gamma_mean)$"],
    },
    "speed": {
        "step time": [r"^time/step_ms$"],
        "throughput": [r"^time/.*_per_second$"],
    },
    "with probes=full": {
        "effective rank of the stream": [r"^act/stream.*/effective_rank$"],
        "token similarity of the stream": [r"^act/stream.*/token_similarity$"],
        "entropy of attention": [r"^attention/.*/entropy$"],
        "update-to-weight ratio": [r"^update/.*/ratio$"],
    },
}

# HParams tab: columns that follow a run while it trains
METRICS = ("loss/val", "loss/train", "accuracy/val", "perplexity/val", "time/step_ms")

# Time Series tab: charts above all others, which are in alphabetical order
PINNED = ("loss/val", "loss/train")


# Time Series tab: runs whose names match in the bracket, which is all but the seed and the fingerprint, share a color
ARM = r"^(.*?)(?:-s\d+-[0-9a-f]{8})?$"


def start_page(address: str) -> str:
    """TensorBoard's Time Series tab with the losses on top, as they are, and the seeds of an arm in one color.

    Args:
        address: such as `http://localhost:6006/`.
    """
    cards = [{"plugin": "scalars", "tag": tag} for tag in PINNED]
    opened = {"pinnedCards": json.dumps(cards), "smoothing": 0, "runColorGroup": f"regex:{ARM}"}
    return f"{address}?{urlencode(opened)}#timeseries"
