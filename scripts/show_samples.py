"""Copy every file under docs/examples into the pages that show it."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
SHOWN = re.compile(r"(<!-- sample: (\S+) -->\n```\w+\n).*?```", flags=re.DOTALL)


def main() -> None:
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        shown = SHOWN.sub(lambda found: found[1] + (DOCS / "examples" / found[2]).read_text() + "```", text)
        if shown != text:
            page.write_text(shown)


if __name__ == "__main__":
    main()
