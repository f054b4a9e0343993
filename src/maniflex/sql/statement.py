"""SQL text and its parameters, travelling together, and the dialect they are written in."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, assert_never

T = TypeVar("T")


class Dialect(StrEnum):
    """The SQL a database speaks."""

    SQLITE = "sqlite"
    POSTGRES = "postgresql"


def by_dialect(dialect: Dialect, *, sqlite: T, postgres: T) -> T:
    """The value for this dialect.

    A new dialect is a new argument here, and the type checker names every place that has to give it.
    """
    if dialect is Dialect.SQLITE:
        return sqlite
    if dialect is Dialect.POSTGRES:
        return postgres
    assert_never(dialect)


class LookupText(str):
    """The text of a statement that finds one row by its primary key: quick, however busy the machine is."""

    __slots__ = ()


class LossyText(str):
    """The text of a write that may be lost when the power fails, so its commit does not wait for the disk."""

    __slots__ = ()


class Sql(NamedTuple):
    """One statement, in the placeholder style of its dialect (`?` or `$1`), with its values."""

    text: str
    params: tuple[Any, ...] = ()
