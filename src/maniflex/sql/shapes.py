"""A bounded cache of compiled statements, keyed by shape: what is asked, without its values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.sql.elements import ClauseElement

from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import sa_dialect

_MOST = 256


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL text and the order in which it wants its named values."""

    text: str
    order: tuple[str, ...]

    def bind(self, values: Mapping[str, Any]) -> Sql:
        return Sql(self.text, tuple([values[name] for name in self.order]))


def compile_statement(statement: ClauseElement, dialect: Dialect) -> Compiled:
    """Write the statement once; the text is what the driver will see."""
    compiled = statement.compile(dialect=sa_dialect(dialect), compile_kwargs={"render_postcompile": True})
    order = tuple(compiled.positiontup or ())  # type: ignore[attr-defined]  # SQLCompiler, untyped here
    return Compiled(str(compiled), order)


class Shapes:
    """Compiled statements by shape; the oldest is forgotten when there are too many."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: dict[Hashable, Compiled] = {}

    def get(self, key: Hashable, write: Callable[..., Compiled], *args: Any) -> Compiled:
        """The statement of that shape, written by `write(*args)` the first time."""
        found = self._known.get(key)
        if found is None:
            found = write(*args)
            if len(self._known) >= self._most:
                self._known.pop(next(iter(self._known)), None)
            self._known[key] = found
        return found
