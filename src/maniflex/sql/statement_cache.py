"""A bounded cache of compiled statements, keyed by shape: the question without its values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.sql.elements import ClauseElement

from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import sa_dialect

_MOST = 256


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL text and the order in which it wants its named values."""

    text: str
    order: tuple[str, ...]
    locales: Mapping[str, str] = field(default_factory=dict)  # parameters that its shape decides

    def bind(self, values: Mapping[str, Any]) -> Sql:
        if self.locales:
            values = {**values, **self.locales}
        return Sql(self.text, tuple([values[name] for name in self.order]))


def compile_statement(statement: ClauseElement, dialect: Dialect) -> Compiled:
    """Write the statement once; the text is what the driver will see."""
    compiler = statement.compile(dialect=sa_dialect(dialect), compile_kwargs={"render_postcompile": True})
    order = tuple(compiler.positiontup or ())  # type: ignore[attr-defined]  # SQLCompiler, untyped here
    locales = {name: _locale_value(name, dialect) for name in order if name.startswith(_LOCALE)}
    return Compiled(str(compiler), order, locales)


_LOCALE = "$locale$"  # no attribute can be called like this


def locale_parameter(code: str) -> str:
    """The name of the parameter by which a statement has the code of a language."""
    return _LOCALE + code.replace("-", "_")


def _locale_value(name: str, dialect: Dialect) -> str:
    """What the database is given to find the text of a language in a map."""
    code = name.removeprefix(_LOCALE).replace("_", "-")
    return by_dialect(dialect, sqlite=f'$."{code}"', postgres=code)


class StatementCache:
    """Compiled statements by shape; the oldest is forgotten when there are too many."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._statements: dict[Hashable, Compiled] = {}

    def get(self, key: Hashable, write: Callable[..., Compiled], *args: Any) -> Compiled:
        """The statement of that shape, written by `write(*args)` the first time."""
        statement = self._statements.get(key)
        if statement is None:
            statement = write(*args)
            if len(self._statements) >= self._most:
                self._statements.pop(next(iter(self._statements)), None)
            self._statements[key] = statement
        return statement

    def find(self, text: str) -> Compiled:
        """The statement of that text, which was written before."""
        return next(statement for statement in self._statements.values() if statement.text == text)
