"""Studies: experiments around or on a run, each in one file that nothing else needs to name; `sample` is none."""

from __future__ import annotations

import re
from pathlib import Path

# The line of each study, which begins its file, by its word on the command line.
STUDIES = {
    path.stem: found[1]
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if (found := re.match(r'"""(.+?)\.?(?:"""|\n).*?\(Study\):', path.read_text("utf-8"), re.DOTALL))
}
