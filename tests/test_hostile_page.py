"""A report of somebody else's runs and studies in a real browser: it shows their words, and obeys none."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsing import needs_browser
from made_runs import make_run
from test_safe import make_foreign_study

from normbench.cli import main
from normbench.record.digests import write_with_digests

pytest_plugins = ["browser_fixtures"]
pytestmark = needs_browser

PAGE = (Path(__file__).parent / "report_page.js").read_text()
TURNED = "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe\N{FIRST STRONG ISOLATE}"

# What a page would follow, load, send or run, were it taken for more than words. HERE is a server that counts.
WORDS = (
    "<script>alert(1)</script>", "</style><script>alert(1)</script>", "</title><script src=HERE/a.js></script>",
    '"><img src=HERE/a.png onerror=alert(1)>', "'><form action=HERE/b><input autofocus onfocus=alert(1)></form>",
    '<meta http-equiv="refresh" content="0;url=HERE/c">', "<iframe src=HERE/d></iframe><object data=HERE/e></object>",
    '<a href="javascript:alert(1)" id="verdict">x</a>', '<a href="data:text/html,<script>alert(1)</script>">x</a>',
    '<svg onload="alert(1)"><image href="HERE/f.png"/></svg>', '<link rel="stylesheet" href="HERE/g.css">',
    '<base href="HERE/">', "<style>@import 'HERE/h.css'; body{background:url(HERE/i.png)}</style>",
    "javascript:alert(1)", "{{ 7 * 7 }}{% raw %}", TURNED,
)  # fmt: skip


FORM = '<form xmlns="http://www.w3.org/1999/xhtml" action="https://evil.example"/>'

# What is put into a drawing of ours, in front of its end.
HOSTILE = {
    "script": "<script>evil()</script>",
    "form": FORM,
    "page inside": f"<foreignObject>{FORM}</foreignObject>",
    "redirection": '<meta xmlns="http://www.w3.org/1999/xhtml" http-equiv="refresh" content="0;url=//evil.example"/>',
    "link": '<a href="https://evil.example"><path d="M0 0"/></a>',
    "image": '<image href="https://evil.example/a.png"/>',
    "image that is a page": '<image href="data:text/html,evil"/>',
    "drawing elsewhere": '<use href="https://evil.example/a.svg#a"/>',
    "clip elsewhere": '<g clip-path="url(https://evil.example/a.svg#a)"/>',
    "handler": '<g onload="evil()"/>',
    "animation": '<animate attributeName="href" to="//evil.example"/>',
    "rules for the page": "<style>body{display:none}</style>",
    "rules from elsewhere": '<style>@import "//evil.example";</style>',
    "rules of ours with more": "<style>.nb-figure *{fill: red; background: url(//evil.example)}</style>",
    "over the page": '<g style="position: fixed; inset: 0"/>',
    "look from elsewhere": '<g style="fill: url(//evil.example)"/>',
    "class of the page": '<g class="verdict"/>',
    "comment": "<!-- evil -->",
    "entity": "&evil;",
    "reference in quotes": """<g style="clip-path: url('#verdict')"/>""",
    "reference in capitals": '<g style="fill: URL(#verdict)"/>',
    "reference in an attribute": '<g fill="URL(#verdict)"/>',
    "reference with an escape": r'<g fill="u\72l(//evil.example)"/>',
    "title that is more than words": "<title><path/></title>",
}


@pytest.fixture
def here() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the paths that it was asked for."""
    asked: list[str] = []

    class Counting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_POST = do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def hostile_report(folder: Path, address: str) -> Path:
    """Make runs and studies whose every word is hostile, and a report of them; return its page."""
    words = [word.replace("HERE", address) for word in WORDS]
    every = " ".join(words)
    for place, word in enumerate(words[:6]):
        for seed in range(2):
            told = {"data": {"name": every}, "session": {"commit": every, "machine": {"cpu": every}}}
            settings = {"model.note": every, "data.path": word}
            name, final = f"run{place}-{seed}", 2 + place / 10 + seed / 50
            make_run(folder, norm=word, seed=seed, name=name, final=final, probed=20, settings=settings, **told)
    make_run(folder, norm="none", name="lost", status="diverged", summary={"message": every})
    study = make_foreign_study(folder / "studies/mine")
    file, drawing = study / "study.json", study / "figures/lines.svg"
    known = json.loads(file.read_text())
    hiding = "<style>.nb-figure path{opacity: 0}</style>"
    more = f'{hiding}<g id="verdict"/><text x="1" y="9">{escape(every)}</text></svg>'
    shown = drawing.read_text().replace("</svg>", more)
    drawing.write_text(shown)
    group = {"name": "verdict", "title": every, "caption": every}
    figure = {**known["figures"][0], "title": every, "caption": every, "group": group}
    table = {**known["tables"][0], "title": every, "notes": [every], "key": "verdict"}
    table["frame"] = {"index": [0], "columns": [every], "data": [[every]]}
    said = {name: every for name in ("title", "question", "source")} | {"finding": words, "tables": [table]}
    machine = {"cpu": every, "threads": 1, "torch": every}
    write_with_digests(file, {**known, **said, "machine": machine, "figures": [figure]}, [file.name])
    for place, (kind, part) in enumerate(HOSTILE.items()):
        other = Path(shutil.copytree(study, folder / f"studies/other{place}"))
        text = shown.replace("</svg>", part.replace("https://evil.example", address) + "</svg>")
        (other / "figures/lines.svg").write_text(text)
        write_with_digests(other / "study.json", {**known, "title": kind}, ["study.json"])
    assert main(["report", str(folder)]) == 0
    return folder / "report/report.html"


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_a_page_of_hostile_runs_and_studies_does_nothing(
    browser: Any, tmp_path: Path, here: tuple[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    address, asked = here
    page = hostile_report(tmp_path / "<b>runs onload=alert(1)", address)
    assert not [message for message in caplog.messages if "is damaged" in message]
    browser.get(page.as_uri())
    browser.get("about:blank")  # else the same page, while it is loaded again, may pass for loaded
    browser.get_log("performance")
    browser.get(page.as_uri())
    found = browser.execute_script(f"{PAGE}\nreturn handled()")  # each button, heading and switch
    browser.implicitly_wait(1)
    assert found["copies"] == found["copied"] and browser.current_url == page.as_uri()
    requests = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    wanted = [one["params"]["request"]["url"] for one in requests if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in wanted if not url.startswith("data:")] == [page.as_uri()]
    assert asked == [] and len(browser.window_handles) == 1
    assert browser.get_log("browser") == []  # nothing was even tried, which the page's policy would have told
    kinds = "script, form, input, iframe, object, embed, base, link, meta[http-equiv=refresh], foreignObject"
    assert (
        browser.execute_script(f"return [...document.querySelectorAll('{kinds}')].map(one => one.outerHTML)")
        == [
            browser.execute_script("return document.scripts[0].outerHTML"),
            '<link rel="icon" href="data:,">',
        ][::-1]
    )
    links = browser.execute_script("return [...document.links].map(one => one.getAttribute('href'))")
    assert links and all(link.startswith("#") or (page.parent / link).is_file() for link in links)
    handlers = "return [...document.querySelectorAll('*')].flatMap(one => [...one.attributes].map(it => it.name))"
    assert not [name for name in browser.execute_script(handlers) if name.startswith("on")]
    ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len({*ids}) and "verdict" in ids
    drawn = "[...document.querySelectorAll('.drawing path')].map(one => getComputedStyle(one).opacity)"
    assert set(browser.execute_script(f"return {drawn}")) == {"1"}  # no drawing's rules hold for another
    images = browser.execute_script("return [...document.images].map(one => one.outerHTML.slice(0, 9))")
    assert images == ["<img alt="] * (1 + len(HOSTILE))  # a figure of each study, as an image that runs nothing
    shown = browser.execute_script("return document.body.textContent")
    assert WORDS[0] in shown and "{{ 7 * 7 }}" in shown and "\\u202egpj.exe" in shown
    assert not re.search("[\N{RIGHT-TO-LEFT OVERRIDE}\N{FIRST STRONG ISOLATE}]", shown)
