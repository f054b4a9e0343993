"""The fixed statements of durable work: files of SQL, one set per dialect, the same names in both.

A file holds statements that begin with `-- name: claim`; parameters are written `:limit` and are
bound by name. What a dialect does not need may be missing from its file.

>>> load("runs", Dialect.SQLITE)["claim"].bind(limit=10, ...)
Sql(text='UPDATE ...', params=(10, ...))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from maniflex.sql.statement import Dialect, Sql

_FOLDERS = {Dialect.SQLITE: "sqlite", Dialect.POSTGRES: "postgres"}
_HEAD = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


@dataclass(frozen=True, slots=True)
class NamedStatement:
    """A text in the placeholder style of its dialect and the names of its parameters, in order."""

    text: str
    names: tuple[str, ...]

    def bind(self, **values: Any) -> Sql:
        return Sql(self.text, tuple([values[name] for name in self.names]))


@cache
def load(name: str, dialect: Dialect) -> Mapping[str, NamedStatement]:
    """The statements of one file, by name."""
    path = files("maniflex.background") / "sql" / _FOLDERS[dialect] / f"{name}.sql"
    _, *parts = _HEAD.split(path.read_text("utf-8"))
    return {
        title: _statement(text.strip().rstrip(";"), dialect)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def _statement(text: str, dialect: Dialect) -> NamedStatement:
    names: list[str] = []
    sign = "?" if dialect is Dialect.SQLITE else "$"

    def placeholder(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"{sign}{names.index(match[1]) + 1}"

    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return NamedStatement(_PARAMETER.sub(placeholder, bare), tuple(names))
