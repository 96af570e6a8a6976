"""Pages made of templates, which lay out and decide nothing."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from markupsafe import Markup

from normbench import __version__
from normbench.show.figures.figure import Figure, is_wide
from normbench.show.figures.style import dark_rules
from normbench.show.shown import ShownFigure
from normbench.show.templating import TEMPLATES, environment

FILES = {"PDF": "pdf", "SVG": "svg", "data": "csv"}  # suffixes of a figure's files, by what links say


def page_of(template: str, title: str, **about: Any) -> str:
    """Return a page made of a template. It lets a browser run its own script, by the hash of that, and no other."""
    script = (TEMPLATES / "page.js").read_text("utf-8")
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


def show_figure(figure: Figure, svg: str, *, has_files: bool = True) -> ShownFigure:
    """Return a figure of ours as a page shows it: as a part of the page, so that its arms can be switched off and on.

    svg: its drawing. has_files: whether it lies in files beside the page, too.
    """
    files = {}
    if has_files:
        files = {label: f"figures/{figure.name}.{suffix}" for label, suffix in FILES.items()}
    return ShownFigure(
        name=figure.name,
        title=figure.title,
        sentences=figure.sentences,
        drawing=Markup(svg),  # made by us, its words escaped
        files=files,
        wide=is_wide(figure),
    )
