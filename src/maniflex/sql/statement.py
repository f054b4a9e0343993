"""SQL text and its parameters, travelling together."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Dialect(StrEnum):
    """The SQL a database speaks."""

    SQLITE = "sqlite"
    POSTGRES = "postgresql"


class LookupText(str):
    """The text of a statement that finds one row by its primary key: quick, however busy the machine is."""

    __slots__ = ()


class Sql(NamedTuple):
    """One statement, in the placeholder style of its dialect (`?` or `$1`), with its values."""

    text: str
    params: tuple[Any, ...] = ()
