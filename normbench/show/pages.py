"""Pages made of templates, which lay out and decide nothing."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from normbench import __version__
from normbench.show.figures.style import dark_rules
from normbench.show.templating import TEMPLATES, environment


def page_of(template: str, title: str, **about: Any) -> str:
    """Return a page made of a template. It lets a browser run its own script, by the hash of that, and no other."""
    script = (TEMPLATES / "report.js").read_text("utf-8")
    digest = sha256(script.encode()).digest()
    hashed = b64encode(digest).decode()
    return (
        environment()
        .get_template(template)
        .render(
            title=title,
            script=script,
            hash=hashed,
            version=__version__,
            moment=datetime.now(UTC),
            dark=dark_rules(".drawing"),
            **about,
        )
    )
