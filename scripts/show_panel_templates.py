"""Write the tables of docs/operate/panel_templates.md from the code: every template and what it is given."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.kit.panel_templates import comments_of, hints_of, parts_of, replaceable, views  # noqa: E402

PAGE = ROOT / "docs" / "operate" / "panel_templates.md"
TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def template_sections() -> Iterator[str]:
    """A section for each template."""
    classes = views()
    for template in replaceable():
        yield f"### `{template}`\n\n`{_name(classes[template])}`\n\n{_fields(classes[template])}\n"


def part_sections() -> Iterator[str]:
    """A section for each class that others have in their fields."""
    for cls in sorted(_all_parts(), key=lambda cls: cls.__name__):
        sentence = (inspect.getdoc(cls) or "").partition("\n")[0]
        yield f"### `{cls.__name__}`\n\n{sentence}\n\n{_fields(cls)}\n"


def _all_parts() -> set[type]:
    roots = set(views().values())
    waiting, seen = list(roots), set(roots)
    while waiting:
        cls = waiting.pop()
        new = {part for hint in hints_of(cls).values() for part in parts_of(hint)} - seen
        waiting += new
        seen |= new
    return seen - roots


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def _fields(cls: type) -> str:
    comments, hints = comments_of(cls), hints_of(cls)
    rows = [
        f"| `{field.name}` | `{_type(hints[field.name])}` | {comments.get(field.name, '')} |".replace(
            "  |", " |"
        )
        for field in dataclasses.fields(cls)
    ]
    return "\n".join(["| field | type | |", "|---|---|---|", *rows])


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text).replace("|", r"\|")


TABLES = {"templates": template_sections, "parts": part_sections}


def with_tables(text: str) -> str:
    """The page with its sections as the code has them."""

    def section(match: re.Match[str]) -> str:
        return match[1] + "\n" + "\n".join(TABLES[match[2]]()) + "\n" + match[3]

    return TABLE.sub(section, text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
