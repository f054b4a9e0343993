"""Fixed statements from files of a package: common ones, and those of each dialect.

A file holds statements that begin with `-- name: claim`; parameters are written `:limit` and are bound by
name. `-- name: claim, lossy` is a write whose commit does not wait for the disk. A statement that is the same
in both dialects stands in `sql/common` of the package, any other in `sql/sqlite` and `sql/postgres`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from maniflex.sql.statement import Dialect, LossyText, Sql

_FOLDERS = {Dialect.SQLITE: "sqlite", Dialect.POSTGRES: "postgres"}
_SIGNS = {Dialect.SQLITE: "?", Dialect.POSTGRES: "$"}
_HEAD = re.compile(r"^-- name: (\w+)(, lossy)?\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


@dataclass(frozen=True, slots=True)
class FileStatement:
    """A text in the placeholder style of its dialect and the names of its parameters, in order."""

    text: str
    names: tuple[str, ...]

    def bind(self, **values: Any) -> Sql:
        return Sql(self.text, tuple([values[name] for name in self.names]))


@cache
def load_statements(package: str, name: str, dialect: Dialect) -> Mapping[str, FileStatement]:
    """The statements of one name in one dialect, the common ones among them."""
    texts = {**_read(package, "common", name), **_read(package, _FOLDERS[dialect], name)}
    return {title: statement_of(text, dialect) for title, text in texts.items()}


def _read(package: str, folder: str, name: str) -> dict[str, str]:
    path = files(package) / "sql" / folder / f"{name}.sql"
    if not path.is_file():
        return {}
    _, *parts = _HEAD.split(path.read_text("utf-8"))
    return {
        title: LossyText(_strip(text)) if mark else _strip(text)
        for title, mark, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def _strip(text: str) -> str:
    return text.strip().rstrip(";")


def statement_of(text: str, dialect: Dialect) -> FileStatement:
    """A text with `:name` parameters as a statement of the dialect."""
    names: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"{_SIGNS[dialect]}{names.index(match[1]) + 1}"

    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    kind = LossyText if type(text) is LossyText else str
    return FileStatement(kind(_PARAMETER.sub(placeholder, bare)), tuple(names))
