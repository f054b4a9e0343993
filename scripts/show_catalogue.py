"""Write the tables of docs/catalogue/index.md from the code: every entry, and what else the sections have."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from maniflex.pipeline.registration import ACTION  # noqa: E402
from tests.catalogue.factories import class_of, factories, homes_of, sections  # noqa: E402

PAGE = ROOT / "docs" / "catalogue" / "index.md"
TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def entry_rows() -> Iterator[str]:
    """A row for each factory: its page, its steps, whether actions take it, its sentence."""
    for name, factory in factories().items():
        entry = class_of(name)
        in_actions = "yes" if ACTION in entry.homes else "no"
        steps = ", ".join(homes_of(name))
        yield f"| {_link(name, factory)} | {steps} | {in_actions} | {_sentence(factory)} |"


def other_rows() -> Iterator[str]:
    """A row for each further public class and function."""
    entries = set(factories())
    for section, module in sections():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if f"{section}.{name}" not in entries and (inspect.isclass(value) or inspect.isroutine(value)):
                yield f"| {_link(f'{section}.{name}', value)} | {_sentence(value)} |"


def _sentence(value: object) -> str:
    text = (inspect.getdoc(value) or "").partition("\n")[0]
    return text.replace("|", r"\|")


def _link(name: str, value: Any) -> str:
    """The name, with the page that shows how it is called, or else says most about it."""
    section, _, own = name.partition(".")
    call = re.compile(rf"`{section}\.{own}\({_first_parameter(value)}")
    mention = re.compile(rf"\b{section}\.{own}\b|`{own}\b")
    pages = [*sorted(PAGE.parent.glob("*.md")), PAGE.parents[1] / "query" / "openapi.md"]
    texts = {page: page.read_text() for page in pages if page != PAGE}
    counts = {page: (len(call.findall(text)), len(mention.findall(text))) for page, text in texts.items()}
    audit = PAGE.parents[1] / "operate" / "audit.md"  # its records have a `timestamp`, as `service` does
    counts[audit] = (0, audit.read_text().count(name))
    best = max(counts, key=lambda page: counts[page])
    if not any(counts[best]):
        return f"`{name}`"
    address = best.name if best.parent == PAGE.parent else f"../{best.parent.name}/{best.name}"
    return f"[`{name}`]({address})"


def _first_parameter(value: Any) -> str:
    """How pages begin its arguments, as a pattern that nothing else matches where there are none."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return r"\)"
    return next((rf"\*?{one.name}\b" for one in parameters), r"\)")


TABLES = {
    "entries": ("| entry | step | in actions | what it does |\n|---|---|---|---|", entry_rows),
    "others": ("| name | what it is |\n|---|---|", other_rows),
}


def with_tables(text: str) -> str:
    """The page with its tables as the code has them."""

    def table(match: re.Match[str]) -> str:
        head, rows = TABLES[match[2]]
        return match[1] + "\n".join([head, *rows()]) + "\n" + match[3]

    return TABLE.sub(table, text)


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
