"""The pages of the documentation, as tests read them."""

from __future__ import annotations

import re

from tests.kit.processes import ROOT

DOCS = ROOT / "docs"


def rows(page: str, section: str = "") -> dict[str, str]:
    """The rows of the tables below a heading (or of the whole page), by the names in their first cell."""
    text = (DOCS / page).read_text()
    if section:
        text = re.split(rf"^#+ {section}$", text, flags=re.MULTILINE)[1]
        text = re.split(r"^#+ ", text, flags=re.MULTILINE)[0]
    found = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`(?:maniflex )?(\w+)", line.split(" |")[0]):
                found[name] = line
    return found
