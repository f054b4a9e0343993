"""SQL text and its parameters, in the dialect they are written in: compiled once, or read from files."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, assert_never

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect as SaDialect
from sqlalchemy.engine.interfaces import BindTyping
from sqlalchemy.sql.elements import ClauseElement

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


def _postgres_writer() -> SaDialect:
    writer: SaDialect = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]  # theirs
    # A cast around every parameter would hide indexes whose column has another type or collation.
    writer.bind_typing = BindTyping.NONE
    return writer


_SA_DIALECTS: dict[Dialect, SaDialect] = {
    Dialect.POSTGRES: _postgres_writer(),
    Dialect.SQLITE: sqlite.dialect(paramstyle="qmark"),
}


def sa_dialect(dialect: Dialect) -> SaDialect:
    """SQLAlchemy's writer for a dialect, with the placeholders our drivers take."""
    return _SA_DIALECTS[dialect]


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


# A bounded cache of compiled statements, keyed by shape: the question without its values.


_MOST = 256


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL text and the order in which it wants its named values."""

    text: str
    order: tuple[str, ...]
    locales: Mapping[str, str] = field(default_factory=dict)  # parameters that its shape decides
    _pick: Callable[[Mapping[str, Any]], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pick", _picker(self.order))

    def bind(self, values: Mapping[str, Any]) -> Sql:
        if self.locales:
            values = {**values, **self.locales}
        # Not by `Sql()`, which is a function in Python, while every statement passes here.
        return tuple.__new__(Sql, (self.text, self._pick(values)))


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


# Fixed statements from files of a package: common ones, and those of each dialect.
#
# A file holds statements that begin with `-- name: claim`; parameters are written `:limit` and are bound by
# name. A statement that is the same in every dialect stands in `sql/common` of the package, any other in
# the folder of each dialect; one that a single dialect needs is marked `-- name: log_submit (only here)`,
# and a write whose commit does not wait for the disk `-- name: claim (lossy)`.


COMMON = "common"
SCHEMA = "schema_"  # begins the names of statements that make what a model cannot declare
_HEAD = re.compile(r"^-- name: (\w+)(?: \((only here|lossy)\))?\n", re.MULTILINE)
_TEXTS = {"lossy": LossyText}  # by mark
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class StatementText(NamedTuple):
    """A statement as its file has it; `only_here` when other dialects need none of its name."""

    text: str
    only_here: bool


@dataclass(frozen=True, slots=True)
class NamedStatement:
    """A text in the placeholder style of its dialect and the names of its parameters, in order."""

    text: str
    names: tuple[str, ...]
    _pick: Callable[[Mapping[str, Any]], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pick", _picker(self.names))

    def bind(self, **values: Any) -> Sql:
        return Sql(self.text, self._pick(values))

    def bind_all(self, values: Mapping[str, Any]) -> Sql:
        """The statement with values that are in a mapping already."""
        return Sql(self.text, self._pick(values))

    def on_table(self, table: str, other: str) -> NamedStatement:
        """The same statement on another table of the same columns."""
        if other == table:
            return self
        return NamedStatement(re.sub(rf"\b{table}\b", other, self.text), self.names)


def _picker(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Picks the values of these names, in order."""
    if len(names) < 2:  # of one alone, an itemgetter gives no tuple
        return lambda values: tuple([values[name] for name in names])
    return itemgetter(*names)


@cache
def load(package: str, name: str, dialect: Dialect) -> Mapping[str, NamedStatement]:
    """The statements of one part in one dialect, the common ones among them, by name."""
    common_texts, own_texts = read(package, COMMON, name), read(package, folder(dialect), name)
    if twice := sorted(common_texts.keys() & own_texts.keys()):
        raise ValueError(f"{name}.sql: {', '.join(twice)} stands in common and in {folder(dialect)}")
    texts = {**common_texts, **own_texts}
    if not texts:
        raise ValueError(f"{package} has no {name}.sql for {dialect}")
    return {title: statement_of(one.text, dialect) for title, one in texts.items()}


def schema_statements(package: str, name: str, dialect: Dialect) -> list[Sql]:
    """The statements that make what the models of a part cannot declare, in the order of their numbers."""
    statements = load(package, name, dialect)
    titles = [title for title in statements if title.startswith(SCHEMA)]
    return [statements[title].bind() for title in sorted(titles, key=_number)]


def folder(dialect: Dialect) -> str:
    """The folder of a dialect's own statements."""
    return by_dialect(dialect, sqlite="sqlite", postgres="postgres")


def read(package: str, folder: str, name: str) -> dict[str, StatementText]:
    """The statements of one file, by name; none where there is no such file."""
    path = files(package) / "sql" / folder / f"{name}.sql"
    if not path.is_file():
        return {}
    _, *parts = _HEAD.split(path.read_text("utf-8"))
    return {
        title: StatementText(_TEXTS.get(mark, str)(text.strip().rstrip(";")), mark == "only here")
        for title, mark, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def statement_of(text: str, dialect: Dialect) -> NamedStatement:
    """A text with `:name` parameters as a statement of the dialect."""
    names: list[str] = []
    sign = by_dialect(dialect, sqlite="?", postgres="$")

    def placeholder(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"{sign}{names.index(match[1]) + 1}"

    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    kind = LossyText if type(text) is LossyText else str
    return NamedStatement(kind(_PARAMETER.sub(placeholder, bare)), tuple(names))


def _number(title: str) -> int:
    return int(title.removeprefix(SCHEMA))
