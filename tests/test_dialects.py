"""A dialect that nothing is written for is refused everywhere, instead of being taken for another one.

The type checker names the places that choose by `by_dialect` or end in `assert_never`; these tests hold
that there are no other places, that tables are total, and that the files of SQL fit together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa

from maniflex.background.clock import ClockKeeper, ServerClock
from maniflex.background.outbox.model import MessageStatus
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.parameters import parameters_of
from maniflex.background.runs.model import Status
from maniflex.background.schedules.store import Due, ScheduleStore
from maniflex.db.port import Adapter
from maniflex.model.checks import DIALECTS
from maniflex.model.meta import Kind
from maniflex.query.operators import Op
from maniflex.sql import statement
from maniflex.sql.codec import decoder, encoder, literal
from maniflex.sql.operators import WRITERS, list_value, one_of
from maniflex.sql.statement import (
    COMMON,
    SCHEMA,
    Dialect,
    by_dialect,
    folder,
    load,
    read,
    sa_dialect,
    schema_statements,
)
from maniflex.sql.tables import column_type

SOURCE = Path(__file__).parent.parent / "src" / "maniflex"
SQL = SOURCE / "background" / "sql"
BACKGROUND = "maniflex.background"
PARTS = sorted(
    {(f"maniflex.{path.parts[-4]}", path.stem) for path in SOURCE.glob("*/sql/*/*.sql")},
)
FOLDERS = [folder(dialect) for dialect in Dialect]


def third_dialect() -> Dialect:
    """A value of the type that is none of its members, as a new one is to code that forgot it."""
    third = str.__new__(Dialect, "oracle")
    third._name_, third._value_ = "ORACLE", "oracle"
    return third


THIRD = third_dialect()
ADAPTER = cast(Adapter, SimpleNamespace(dialect=THIRD, label="third"))

CHOOSERS: dict[str, Callable[[], Any]] = {
    "by_dialect": lambda: by_dialect(THIRD, sqlite=1, postgres=2),
    "statements": lambda: load(BACKGROUND, "outbox", THIRD),
    "schema": lambda: schema_statements(BACKGROUND, "runs", THIRD),
    "folder": lambda: folder(THIRD),
    "parameters": lambda: parameters_of(THIRD),
    "outbox": lambda: OutboxStore(ADAPTER),
    "schedules": lambda: ScheduleStore(ADAPTER),
    "clock": lambda: ClockKeeper(ServerClock(), ADAPTER, cast(Any, None)),
    "writer": lambda: sa_dialect(THIRD),
    "types": lambda: column_type(Kind.TEXT, THIRD),
    "encoder": lambda: encoder(Kind.DATETIME, THIRD),
    "decoder": lambda: decoder(Kind.DATETIME, THIRD),
    "literal": lambda: literal(True, Kind.BOOL, THIRD),
    "pattern": lambda: WRITERS[Op.LIKE].condition(THIRD, sa.column("a"), "pattern"),
    "list": lambda: list_value(THIRD, ["a"]),
    "one_of": lambda: one_of(THIRD, None, "ids"),
}


@pytest.mark.parametrize("name", CHOOSERS)
def test_a_third_dialect_is_refused_by_name_and_not_taken_for_postgres(name: str) -> None:
    with pytest.raises((AssertionError, KeyError), match="ORACLE"):
        CHOOSERS[name]()


def test_query_models_can_have_a_select_for_every_dialect() -> None:
    assert set(DIALECTS) == {dialect.value for dialect in Dialect}


# -- the source


MODULES = sorted(SOURCE.rglob("*.py"))


def names_dialect(node: ast.expr) -> bool:
    """Whether an expression is a member of `Dialect` or the dialect of something."""
    if isinstance(node, ast.Attribute):
        return node.attr == "dialect" or (isinstance(node.value, ast.Name) and node.value.id == "Dialect")
    return isinstance(node, ast.Name) and node.id == "dialect"


def dialect_tests(tree: ast.AST) -> Iterator[ast.Compare]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(names_dialect, (node.left, *node.comparators))):
            yield node


def refusing_tests(tree: ast.AST) -> Iterator[ast.expr]:
    """The conditions of `if` statements in functions that end in `assert_never`."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            isinstance(node, ast.Call) and ast.unparse(node.func) == "assert_never"
            for node in ast.walk(function)
        ):
            yield from (node.test for node in ast.walk(function) if isinstance(node, ast.If))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_asks_for_a_dialect_only_where_the_others_are_refused(path: Path) -> None:
    tree = ast.parse(path.read_text())
    refusing = list(refusing_tests(tree))
    silent = [node.lineno for node in dialect_tests(tree) if node not in refusing]

    assert not silent, f"lines {silent} take any other dialect for the second one: use by_dialect"


def test_every_table_by_dialect_has_them_all() -> None:
    members = {f"Dialect.{dialect.name}" for dialect in Dialect}
    tables = [
        (path, node.lineno, {ast.unparse(key) for key in node.keys if key is not None})
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Dict) and any(key is not None and names_dialect(key) for key in node.keys)
    ]

    assert len(tables) > 5
    assert [f"{path}:{line}" for path, line, keys in tables if keys != members] == []


# -- files of SQL


@pytest.mark.parametrize(("package", "part"), PARTS)
@pytest.mark.parametrize("dialect", Dialect)
def test_no_statement_stands_in_common_and_in_a_dialect(package: str, part: str, dialect: Dialect) -> None:
    assert read(package, COMMON, part).keys() & read(package, folder(dialect), part).keys() == set()


def test_a_statement_that_stands_in_both_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement, "read", lambda *place: read(BACKGROUND, "sqlite", "outbox"))

    with pytest.raises(ValueError, match=r"outbox\.sql: .*claim.* stands in common and in sqlite"):
        load.__wrapped__(BACKGROUND, "outbox", Dialect.SQLITE)


@pytest.mark.parametrize(("package", "part"), PARTS)
def test_a_statement_of_one_dialect_is_in_all_others_or_marked(package: str, part: str) -> None:
    by_folder = {name: read(package, name, part) for name in FOLDERS}
    names = {title for own in by_folder.values() for title, one in own.items() if not one.only_here}
    missing = [
        f"{name}: {title}"
        for name, own in by_folder.items()
        for title in sorted(names - own.keys())
        if not title.startswith(SCHEMA)
    ]

    assert missing == []


@pytest.mark.parametrize(("package", "part"), PARTS)
def test_a_statement_marked_as_of_one_dialect_is_in_no_other(package: str, part: str) -> None:
    by_folder = {name: read(package, name, part) for name in FOLDERS}
    titles = [title for own in by_folder.values() for title in own]
    marked = {title for own in by_folder.values() for title, one in own.items() if one.only_here}

    assert [title for title in sorted(marked) if titles.count(title) > 1] == []


@pytest.mark.parametrize(("package", "part"), PARTS)
def test_what_every_dialect_says_alike_is_said_once(package: str, part: str) -> None:
    first, *others = ({one.text for one in read(package, name, part).values()} for name in FOLDERS)

    assert first.intersection(*others) == set()


@pytest.mark.parametrize(("package", "part"), PARTS)
@pytest.mark.parametrize("dialect", Dialect)
def test_the_schema_of_a_part_is_made_in_the_order_of_its_numbers(
    package: str, part: str, dialect: Dialect
) -> None:
    loaded = load(package, part, dialect)
    numbers = sorted(int(title.removeprefix(SCHEMA)) for title in loaded if title.startswith(SCHEMA))

    assert schema_statements(package, part, dialect) == [
        loaded[f"{SCHEMA}{number}"].bind() for number in numbers
    ]


@pytest.mark.parametrize(
    ("part", "statuses"),
    [("runs", tuple(Status)), ("outbox", tuple(MessageStatus))],
    ids=["runs", "outbox"],
)
def test_the_diagram_names_every_status_and_only_statements_there_are(
    part: str, statuses: tuple[str, ...]
) -> None:
    head = (SQL / COMMON / f"{part}.sql").read_text().partition("-- name:")[0]
    drawn = set(
        re.findall(r"[a-z_]+", "".join(line for line in head.splitlines(True) if re.search("[─│▶]", line)))
    )
    known = set.intersection(*(set(load(BACKGROUND, part, dialect)) for dialect in Dialect))

    assert set(statuses) <= drawn
    assert drawn - set(statuses) - {"removed"} <= known
    for name in FOLDERS:
        assert (
            (SQL / name / f"{part}.sql")
            .read_text()
            .startswith(f"-- The states are drawn in common/{part}.sql")
        )


CLAIMED = ["id", "seq", "kind", "key", "payload", "attempts", "created_at", "claimed_with", "last_error"]
CLAIMED += ["actor_id", "tenant_id", "about", "trace_id", "traceparent"]


def columns_of(text: str) -> list[str]:
    """The names of a list of columns, bare of tables and casts."""
    bare = [re.sub(r"^CAST\((\w+) AS \w+\)$|^(\w+)::\w+$", r"\1\2", part.strip()) for part in text.split(",")]
    return [name.split(".")[-1] for name in bare]


@pytest.mark.parametrize("dialect", Dialect)
def test_claimed_rows_have_the_columns_their_readers_name(dialect: Dialect) -> None:
    messages, schedules = load(BACKGROUND, "outbox", dialect), load(BACKGROUND, "schedules", dialect)

    assert columns_of(messages["claim"].text.rpartition("RETURNING")[2]) == CLAIMED
    for name in ("claim", "claim_one"):
        columns = re.search(r"SELECT (.*?)\s+FROM schedules", schedules[name].text, re.DOTALL)
        assert columns is not None
        assert columns_of(columns[1]) == list(Due.__slots__)
