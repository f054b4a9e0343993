"""The CREATE TABLE statement of SQLite, taken apart and put together: what a table is made anew from.

SQLite keeps the statement word for word, so a column or constraint that nothing is said about stays exactly
as it was declared, with its collation, its CHECK and its references.

>>> TableText.parse('CREATE TABLE t (id TEXT NOT NULL, n INT CHECK (n > 0), PRIMARY KEY (id))').columns
{'id': 'id TEXT NOT NULL', 'n': 'n INT CHECK (n > 0)'}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]]*\]|`(?:[^`]|``)*`|\(|\)|,|[^-/'"\[`(),]+|.""",
    re.DOTALL,
)
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"|\[([^\]]+)\]|`((?:[^`]|``)+)`|([\w$]+))')
_CONSTRAINT = re.compile(r"\s*(?:CONSTRAINT|PRIMARY\s+KEY|UNIQUE|CHECK|FOREIGN\s+KEY)\b", re.IGNORECASE)
_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableText:
    """The parts of a CREATE TABLE statement."""

    columns: Mapping[str, str]  # name → definition
    constraints: tuple[str, ...]
    ending: str  # such as WITHOUT ROWID

    @classmethod
    def parse(cls, statement: str) -> TableText:
        """Take the statement apart."""
        items, ending = _items(statement)
        columns: dict[str, str] = {}
        constraints: list[str] = []
        for item in items:
            if _CONSTRAINT.match(item):
                constraints.append(item)
            else:
                columns[_name_of(item)] = item
        return cls(columns, tuple(constraints), ending)

    def with_columns(self, definitions: Mapping[str, str]) -> TableText:
        """The same table with other definitions for some of its columns."""
        return replace(self, columns={**self.columns, **definitions})

    def with_not_null(self, column: str) -> TableText:
        """The same table with a value in this column for every row."""
        definition = self.columns[column]
        if _NOT_NULL.search(_without_texts(definition)):
            return self
        return self.with_columns({column: f"{definition} NOT NULL"})

    def create(self, name: str) -> str:
        """The statement that makes it under a name."""
        items = ", ".join((*self.columns.values(), *self.constraints))
        return f"CREATE TABLE {name} ({items}){' ' if self.ending else ''}{self.ending}"


def _items(statement: str) -> tuple[list[str], str]:
    """The definitions between the outer parentheses, and what follows them."""
    items, item, depth, ending = [], "", 0, ""
    for token in _tokens(statement):
        if token == "(":
            depth += 1
            if depth == 1:
                continue
        elif token == ")":
            depth -= 1
            if depth == 0:
                items.append(" ".join(item.split()) if "'" not in item else item.strip())
                item = ""
                continue
        elif token == "," and depth == 1:
            items.append(" ".join(item.split()) if "'" not in item else item.strip())
            item = ""
            continue
        if depth > 0:
            item += token
        elif items:
            ending += token
    return items, ending.strip()


def _tokens(statement: str) -> Iterator[str]:
    for match in _TOKEN.finditer(statement):
        token = match[0]
        yield " " if token.startswith(("--", "/*")) else token


def _name_of(definition: str) -> str:
    match = _NAME.match(definition)
    assert match is not None, definition
    return (match[1] or "").replace('""', '"') or match[2] or (match[3] or "").replace("``", "`") or match[4]


def _without_texts(definition: str) -> str:
    return re.sub(r"'(?:[^']|'')*'|\([^()]*\)", "", definition)
