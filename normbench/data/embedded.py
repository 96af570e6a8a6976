"""Data that installed packages carry: no network, no copies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from normbench.data.cache import Cached, Content
from normbench.data.hub import file_digest
from normbench.data.pixels import image_content
from normbench.data.vocabulary import Bytes
from normbench.errors import UsageError


@dataclass(frozen=True)
class PythonDocs(Cached):
    """Python's language reference, about 0.5 MB, by bytes: `pydoc_data.topics` in alphabetical order.

    The first 90 % trains, the last tenth validates. The text, and so the fingerprint, differs between Python versions.
    """

    name: str = "pydocs"
    kind = "text"

    def text(self) -> str:
        """All topics.

        Raises:
            UsageError: this Python was packaged without them.
        """
        try:
            from pydoc_data.topics import topics
        except ImportError as fault:
            raise UsageError(
                "this Python comes without pydoc_data.topics: use another data set, such as data=digits"
            ) from fault
        return "\n".join(topics[topic] for topic in sorted(topics))

    def key(self) -> str:
        return json.dumps(["pydocs", hashlib.sha256(self.text().encode()).hexdigest()])

    def load(self) -> Content:
        tokens = Bytes().encode(self.text())
        cut = len(tokens) * 9 // 10
        return Content({"train": tokens[:cut], "val": tokens[cut:]}, {})

    def vocabulary(self, facts: Mapping[str, Any]) -> Bytes:
        """All bytes."""
        return Bytes()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}


@dataclass(frozen=True)
class Digits(Cached):
    """scikit-learn's 1,797 scanned digits of 8 × 8 pixels, 0 to 16 scaled to 0 to 255.

    They are shuffled by `numpy.random.RandomState(0)`, as neighbours have the same writer; then the first 1,500 train
    and the other 297 validate.
    """

    name: str = "digits"
    kind = "images"
    train_size = 1500

    def key(self) -> str:
        """Version and file, without importing scikit-learn, which takes over a second."""
        try:
            installed, package = version("scikit-learn"), find_spec("sklearn")
        except PackageNotFoundError as fault:
            raise UsageError("data=digits needs scikit-learn: pip install scikit-learn, or use data=pydocs") from fault
        assert package is not None and package.origin is not None
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        return json.dumps(["digits", installed, file_digest(file) if file.exists() else None])

    def load(self) -> Content:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        images = np.rint(digits.images[order, None] * 255 / 16).astype(np.uint8)
        labels = digits.target[order].astype(np.int64)
        n = self.train_size
        return image_content(
            (images[:n], labels[:n]), (images[n:], labels[n:]), [str(name) for name in digits.target_names]
        )

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}
