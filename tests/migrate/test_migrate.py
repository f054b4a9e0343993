"""The schema follows the classes: what is missing is added, what contradicts stops the start."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import count
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest

from maniflex import Model, Server, WithDeletedAt, WithIsDeleted, field
from maniflex.errors import ConstraintViolation, DeclarationError
from maniflex.model.meta import Index
from tests.kit.schema import PLAIN_TYPES, columns, indexes, kind, model, raw, refused, tables, warnings
from tests.kit.servers import started


class Colour(StrEnum):
    RED = "it's red"


EVERY_TYPE: dict[str, Any] = {**PLAIN_TYPES, "choice": Literal["a", "b"], "colour": Colour, "row": list[int]}
DEFAULTS: dict[str, Any] = {
    "text": 'it\'s "quoted" \\ %s ? :x',
    "whole": -7,
    "real": 2.5e-300,
    "flag": True,
    "money": Decimal("-12.3400"),
    "moment": datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC),
    "day": date(2026, 2, 3),
    "clock": time(4, 5, 6),
    "key": UUID(int=7),
    "raw": b"\x00'\xff",
    "choice": "b",
    "colour": Colour.RED,
}


async def test_tables_are_made_with_every_type_and_stay_quiet_afterwards(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    optional = {f"{name}_or_none": type_ | None for name, type_ in EVERY_TYPE.items()}
    every = model("Every", "everything", {**EVERY_TYPE, **optional})
    order_keys = {f"{name}$order" for name in ("money", "money_or_none") if kind(database_url) == "sqlite"}

    for _ in range(2):
        async with started(database_url, every):
            pass

    assert await columns(database_url, "everything") == {
        "id", "created_at", "updated_at", *EVERY_TYPE, *optional, *order_keys
    }  # fmt: skip
    assert warnings(caplog) == []


async def test_new_columns_give_old_rows_null_or_the_default(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"name": str})
    async with started(database_url, before) as server:
        old = await server.db(before).create(name="old")

    optional = {f"{name}_or_none": (type_ | None, None) for name, type_ in EVERY_TYPE.items()}
    given = {name: (EVERY_TYPE[name], value) for name, value in DEFAULTS.items()}
    made = {
        "tree": (dict[str, Any], field(default_factory=lambda: {"it's": [1, "?"]})),
        "row": (list[int], field(default_factory=list)),
    }
    after = model("Thing", "things", {"name": str, **given, **made, **optional})
    for _ in range(2):
        async with started(database_url, after) as server:
            read: Any = await server.db(after).read(old.id)
            new: Any = await server.db(after).create(name="new")

    for name, value in DEFAULTS.items():
        assert getattr(read, name) == getattr(new, name) == value
    assert (read.tree, read.row) == ({"it's": [1, "?"]}, [])
    assert [getattr(read, name) for name in optional] == [None] * len(optional)
    assert warnings(caplog) == []


def counted(make: Callable[[int], Any]) -> Callable[[], Any]:
    """A factory whose every value is another."""
    numbers = count(1)
    return lambda: make(next(numbers))


FACTORIES: dict[str, Callable[[int], Any]] = {
    "text": lambda n: f"it's {n}",
    "whole": lambda n: n,
    "real": lambda n: n + 0.5,
    "money": lambda n: Decimal(n) / 100,
    "moment": lambda n: datetime(2026, 1, 1, 0, 0, 0, n),  # naive, as a create would take it
    "day": lambda n: date(2026, 1, 1) + timedelta(days=n),
    "clock": lambda n: time(0, 0, 0, n),
    "key": lambda n: UUID(int=n),
    "raw": lambda n: n.to_bytes(4),
    "tree": lambda n: {"n": n},
}


async def test_a_new_column_with_a_factory_gives_every_old_row_a_value_of_its_own(database_url: str) -> None:
    before = model("Thing", "things", {"name": str})
    async with started(database_url, before) as server, server.transaction():
        for n in range(1_203):
            await server.db(before).create(name=str(n))

    made = {
        name: (EVERY_TYPE[name], field(default_factory=counted(make), unique=name != "tree"))
        for name, make in FACTORIES.items()
    }
    optional = {
        "token": (str | None, field(default_factory=lambda: str(uuid4()), unique=True)),
        "absent": (str | None, field(default_factory=lambda: None)),
    }
    after = model("Thing", "things", {"name": str, **made, **optional})
    for _ in range(2):
        async with started(database_url, after) as server:
            things: Any = await server.db(after).list(limit=2_000)

    assert len(things) == 1_203
    for name in (*FACTORIES, "token"):
        assert len({str(getattr(thing, name)) for thing in things}) == 1_203, name
    assert {thing.absent for thing in things} == {None}
    assert all(thing.moment.tzinfo is not None for thing in things)


async def test_a_factory_leaves_a_default_behind_on_postgres_only_where_its_values_are_equal(
    postgres_url: str,
) -> None:
    before = model("Thing", "things", {"name": str})
    async with started(postgres_url, before) as server:
        await server.db(before).create(name="old")
    made = {
        "token": (str, field(default_factory=lambda: "x")),
        "row": (list[int], field(default_factory=list)),
    }
    async with started(postgres_url, model("Thing", "things", {"name": str, **made})) as server:
        defaults = await server.raw_query(
            "SELECT a.attname AS name FROM pg_attribute a"
            " WHERE a.attrelid = to_regclass('things') AND a.atthasdef"
        )
    assert defaults == [{"name": "row"}]


async def test_a_factory_whose_value_does_not_fit_stops_the_start_and_changes_nothing(
    database_url: str,
) -> None:
    before = model("Thing", "things", {"name": str})
    async with started(database_url, before) as server:
        await server.db(before).create(name="old")

    after = model("Thing", "things", {"name": str, "size": (int, field(default_factory=lambda: "big"))})
    with pytest.raises(DeclarationError, match=r"Thing\.size: its default_factory .* 'things'"):
        async with started(database_url, after):
            raise AssertionError("it must not start")
    assert "size" not in await columns(database_url, "things")


@pytest.mark.parametrize("name", EVERY_TYPE)
async def test_a_required_column_is_added_to_an_empty_table(name: str, sqlite_url: str) -> None:
    await _add_required(sqlite_url, {name: EVERY_TYPE[name]})


async def test_required_columns_of_every_type_are_added_to_an_empty_table(postgres_url: str) -> None:
    await _add_required(postgres_url, EVERY_TYPE)


async def _add_required(url: str, annotations: dict[str, Any]) -> None:
    async with started(url, model("Thing", "things", {"name": str})):
        pass
    async with started(url, model("Thing", "things", {"name": str, **annotations})):
        pass
    assert annotations.keys() <= await columns(url, "things")


async def test_a_required_column_on_a_table_with_rows_stops_the_start_and_changes_nothing(
    database_url: str,
) -> None:
    before = model("Thing", "things", {"name": str})
    async with started(database_url, before) as server:
        await server.db(before).create(name="old")

    other = model("Another", "a_first", {"name": str})
    after = model("Thing", "things", {"name": str, "note": (str | None, None), "price": int})
    with pytest.raises(DeclarationError, match=r"Thing\.price: the table 'things' has rows .* 'price'"):
        async with started(database_url, other, after):
            raise AssertionError("it must not start")

    assert await columns(database_url, "things") == {"id", "name", "created_at", "updated_at"}
    assert await tables(database_url) == {"things"}


async def test_unique_added_to_a_column_is_really_unique(database_url: str) -> None:
    before = model("User", "users", {"email": str})
    after = model("User", "users", {"email": (str, field(unique=True))})
    async with started(database_url, before) as server:
        await server.db(before).create(email="a@x")
    async with started(database_url, after) as server:
        with pytest.raises(ConstraintViolation) as stopped:
            await server.db(after).create(email="a@x")
    assert stopped.value.columns == ("email",)


@pytest.mark.parametrize(
    "options",
    [
        {"email": (str, field(unique=True)), "team": str},
        {"email": (str, field(unique=True)), "team": str, "extra": (str | None, None)},
    ],
)
async def test_unique_added_to_duplicates_stops_the_start_naming_table_and_column(
    options: dict[str, Any], database_url: str
) -> None:
    before = model("User", "users", {"email": str, "team": str})
    async with started(database_url, before) as server:
        for id in ("a", "b"):
            await server.db(before).create(id=id, email="same@x", team="a")
        for number in range(10):
            for id in ("x", "y", "z"):
                await server.db(before).create(id=f"{id}{number}", email=f"{number}@x", team="a")

    with pytest.raises(DeclarationError, match=r"User: 'users' has rows with equal values in email") as no:
        async with started(database_url, model("User", "users", options)):
            raise AssertionError("it must not start")

    assert "same@x" not in str(no.value)
    few = "the rows with the ids 'a' and 'b'; 'x0' and 'z0' (3 rows); 'x1' and 'z1' (3 rows). All groups: "
    advised = str(no.value).partition(few)[2]
    assert advised.startswith("SELECT ")
    async with Server(database_url).lifespan() as server:
        assert len(await server.raw_query(advised)) == 11
    assert await columns(database_url, "users") == {"id", "email", "team", "created_at", "updated_at"}
    assert await indexes(database_url, "users") == {}


async def test_a_unique_pair_added_to_duplicates_names_both_columns(database_url: str) -> None:
    before = model("User", "users", {"email": str, "team": str})
    async with started(database_url, before) as server:
        for team in ("a", "b"):
            await server.db(before).create(email="same@x", team=team)

    pair = model(
        "User", "users", {"email": str, "team": str}, indices=[Index(("team", "email"), unique=True)]
    )
    async with started(database_url, pair):
        pass
    await raw(database_url, "DROP INDEX uq_users_team_email")
    async with started(database_url, before) as server:
        await server.db(before).create(email="same@x", team="a")
    with pytest.raises(DeclarationError, match=r"'users' has rows with equal values in team, email"):
        async with started(database_url, pair):
            raise AssertionError("it must not start")


async def test_an_index_of_that_name_that_is_not_unique_does_not_pass_for_a_unique_one(
    database_url: str,
) -> None:
    plain = model("User", "users", {"email": str}, indices=[Index(("email",), name="by_email")])
    unique = model("User", "users", {"email": str}, indices=[Index(("email",), unique=True, name="by_email")])
    async with started(database_url, plain):
        pass

    with pytest.raises(DeclarationError, match="'by_email' of 'users' should be unique"):
        async with started(database_url, unique):
            raise AssertionError("it must not start")


@pytest.mark.parametrize("marker", [WithDeletedAt, WithIsDeleted])
async def test_a_unique_index_from_before_soft_delete_stops_the_start(
    marker: type, database_url: str
) -> None:
    unique = {"email": (str, field(unique=True))}
    async with started(database_url, model("User", "users", unique)):
        pass

    grown = model("User", "users", unique, marker)
    with pytest.raises(
        DeclarationError,
        match=r"User: the index 'uq_users_email' of 'users' should be unique on email where \w+_\w+ is \w+,"
        r" and the one in the database is unique on email; drop it",
    ):
        async with started(database_url, grown):
            raise AssertionError("it must not start")

    await raw(database_url, "DROP INDEX uq_users_email")
    async with started(database_url, grown) as server:
        users = server.db(grown)
        await users.delete((await users.create(email="a@x")).id)
        await users.create(email="a@x")


async def test_a_unique_index_that_leaves_rows_out_stops_the_start_of_a_model_without_soft_delete(
    database_url: str,
) -> None:
    unique = {"email": (str, field(unique=True))}
    async with started(database_url, model("User", "users", unique, WithDeletedAt)):
        pass

    with pytest.raises(DeclarationError, match=r"should be unique on email, and .* where deleted_at is null"):
        async with started(database_url, model("User", "users", unique)):
            raise AssertionError("it must not start")


@pytest.mark.parametrize("before", [("email",), ("email", "team", "name"), ("team", "name")])
async def test_a_unique_index_on_other_columns_stops_the_start(
    before: tuple[str, ...], database_url: str
) -> None:
    fields = {"email": str, "team": str, "name": str}
    old = Index(before, unique=True, name="mine")
    new = Index(("email", "team"), unique=True, name="mine")
    async with started(database_url, model("User", "users", fields, indices=[old])):
        pass

    with pytest.raises(
        DeclarationError,
        match=f"'mine' of 'users' should be unique on email, team, and .* unique on {', '.join(before)};",
    ):
        async with started(database_url, model("User", "users", fields, indices=[new])):
            raise AssertionError("it must not start")


async def test_a_unique_index_on_an_expression_does_not_pass_for_one_on_the_column(database_url: str) -> None:
    async with started(database_url, model("User", "users", {"email": str})):
        pass
    await raw(database_url, "CREATE UNIQUE INDEX uq_users_email ON users (lower(email))")

    with pytest.raises(DeclarationError, match=r"unique on email, and .* unique on an expression"):
        async with started(database_url, model("User", "users", {"email": (str, field(unique=True))})):
            raise AssertionError("it must not start")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (Index(("a",), name="mine"), Index(("b",), name="mine"), "not unique on b, .* not unique on a"),
        (
            Index(("a",), unique=True, name="mine"),
            Index(("a",), name="mine"),
            "not unique on a, .* unique on a",
        ),
        (
            Index(("a", "b"), unique=True, name="mine"),
            Index(("b", "a"), unique=True, name="mine"),
            "unique on b, a, .* unique on a, b",
        ),
    ],
)
async def test_an_index_that_differs_without_breaking_a_promise_is_reported_and_kept(
    old: Index, new: Index, text: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(database_url, model("Thing", "things", {"a": str, "b": str}, indices=[old])):
        pass
    before = await indexes(database_url, "things")
    for _ in range(2):
        caplog.clear()
        async with started(database_url, model("Thing", "things", {"a": str, "b": str}, indices=[new])):
            pass
        [warning] = warnings(caplog)
        assert re.match(f"Thing: the index 'mine' of 'things' should be {text}$", warning)
    assert await indexes(database_url, "things") == before


@pytest.mark.parametrize("condition", ["NOT is_deleted", "is_deleted = false", '("is_deleted" IS  FALSE)'])
async def test_an_index_made_by_hand_may_say_not_deleted_in_its_own_words(
    condition: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(database_url, model("User", "users", {"email": str}, WithIsDeleted)):
        pass
    await raw(database_url, f"create unique index uq_users_email on users (email)\nwhere {condition}")
    unique = model("User", "users", {"email": (str, field(unique=True))}, WithIsDeleted)
    async with started(database_url, unique):
        pass
    assert warnings(caplog) == []


@pytest.mark.parametrize("marker", [WithDeletedAt, WithIsDeleted])
async def test_unique_indexes_of_a_soft_delete_model_stay_quiet(
    marker: type, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"email": (str, field(unique=True)), "where": (str, field(unique=True)), "team": str}
    pair = Index(("team", "where"), unique=True)
    for _ in range(2):
        async with started(database_url, model("User", "users", fields, marker, indices=[pair, ("team",)])):
            pass
    assert warnings(caplog) == []


@pytest.mark.parametrize("marker", [WithDeletedAt, WithIsDeleted])
async def test_a_deleted_row_frees_its_unique_value(marker: type, database_url: str) -> None:
    user = model("User", "users", {"email": (str, field(unique=True))}, marker)
    async with started(database_url, user) as server:
        users = server.db(user)
        for _ in range(3):
            await users.delete((await users.create(email="a@x")).id)
        await users.create(email="a@x")
        with pytest.raises(ConstraintViolation):
            await users.create(email="a@x")
    [definition] = (await indexes(database_url, "users")).values()
    assert "UNIQUE" in definition
    assert "WHERE" in definition


async def test_deleted_duplicates_do_not_stop_a_new_unique_index(database_url: str) -> None:
    before = model("User", "users", {"email": str}, WithDeletedAt)
    async with started(database_url, before) as server:
        users = server.db(before)
        await users.delete((await users.create(email="a@x")).id)
        await users.create(email="a@x")

    after = model("User", "users", {"email": (str, field(unique=True))}, WithDeletedAt)
    async with started(database_url, after):
        pass
    assert set(await indexes(database_url, "users")) == {"uq_users_email"}


async def test_indexes_have_the_documented_names_and_are_added_later_too(database_url: str) -> None:
    class Author(Model):
        name: str

    async with started(database_url, Author, model("Book", "books", {"isbn": str, "author_id": str})):
        pass
    book = model(
        "Book",
        "books",
        {"isbn": (str, field(unique=True)), "year": (int, field(default=0, index=True)), "author_id": str},
        indices=[("year", "isbn"), Index(("isbn", "year"), name="mine")],
    )
    async with started(database_url, Author, book):
        pass

    found = set(await indexes(database_url, "books"))
    assert {"uq_books_isbn", "idx_books_year_isbn", "mine", "idx_books_author_id"} <= found


async def test_indexes_of_two_tables_may_come_to_the_same_name(database_url: str) -> None:
    one = model("One", "a", {"b_c": (str, field(unique=True))})
    two = model("Two", "a_b", {"c": (str, field(unique=True))})
    for _ in range(2):
        async with started(database_url, one, two) as server:
            pass

    async with started(database_url, one, two) as server:
        for each, name in ((one, "b_c"), (two, "c")):
            await server.db(each).create({name: "same"})
            with pytest.raises(ConstraintViolation):
                await server.db(each).create({name: "same"})


async def test_names_that_are_keywords_work_from_the_table_to_the_filter(database_url: str) -> None:
    fields = {
        "group": (str, field(filterable=True, sortable=True, unique=True)),
        "user": (str, field(index=True, filterable=True)),
        "select": (int, 0),
        "table": (str | None, None),
    }
    async with started(database_url, model("Order", "order", fields, WithDeletedAt)):
        pass
    grown = model("Order", "order", {**fields, "where": (int, field(default=3, index=True))}, WithDeletedAt)
    async with started(database_url, grown) as server:
        orders = server.db(grown)
        made: Any = await orders.create(group="g", user="u")
        await orders.update(made.id, select=5)
        await orders.increment(made.id, select=2)
        found: Any
        [found] = await orders.list({"group": "g"}, sorts="group:desc")
        assert (found.id, found.select, found.where) == (made.id, 7, 3)
        await orders.delete(made.id)
        assert await orders.count() == 0


async def test_long_names_are_kept_whole_or_refused_but_never_cut(database_url: str) -> None:
    table, column = "t" * 63, "c" * 63
    long = model("Long", table, {column: (str, field(unique=True)), "c" * 62: (str, field(index=True))})
    for _ in range(2):
        async with started(database_url, long):
            pass
    assert {column, "c" * 62} <= await columns(database_url, table)
    names = await indexes(database_url, table)
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)

    with pytest.raises(DeclarationError, match="Long"):
        async with started(database_url, model("Long", "t" * 64, {"x": str})):
            raise AssertionError("it must not start")
    with pytest.raises(DeclarationError, match="Long"):
        async with started(database_url, model("Long", "x", {"c" * 64: str})):
            raise AssertionError("it must not start")


async def test_without_auto_migrate_nothing_is_made(database_url: str) -> None:
    assert "maniflex migrate up" in await refused(
        database_url, model("Thing", "things", {"name": str}), auto_migrate=False
    )
    assert await tables(database_url) == set()


async def test_servers_that_start_together_on_an_empty_database_do_not_collide(database_url: str) -> None:
    models = [
        model(f"M{n}", f"m{n}", {"a": (str, field(unique=True)), "b": (int, field(default=0, index=True))})
        for n in range(5)
    ]
    for round_ in range(4):
        grown = [
            model(
                f"M{n}",
                f"m{n}",
                {"a": (str, field(unique=True)), "b": (int, 0), **{f"x{i}": (int, i) for i in range(round_)}},
            )
            for n in range(5)
        ]
        servers = [Server(database_url, pool_size=2) for _ in range(6)]
        for server in servers:
            server.register(*(models if round_ == 0 else grown))
        await asyncio.gather(*(server.start() for server in servers))
        await asyncio.gather(*(server.stop() for server in servers))
    assert {"x0", "x1"} <= await columns(database_url, "m4")
