"""Constraints: the database's refusal becomes ours, naming table and columns."""

from __future__ import annotations

import asyncio

import pytest

from maniflex.db.port import Adapter
from maniflex.errors import Conflict, ConstraintViolation, ForeignKeyViolation
from maniflex.sql.statement import Sql
from maniflex.testing.conformance._case import Case, add, names, sql

_SCHEMA = (
    "CREATE TABLE authors (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE,"
    " age BIGINT CONSTRAINT grown CHECK (age >= 18))",
    'CREATE TABLE "my books" (id BIGINT PRIMARY KEY, author_id BIGINT REFERENCES authors (id),'
    " title TEXT, lang TEXT, UNIQUE (title, lang))",
    "CREATE TABLE tags (name TEXT)",
    "CREATE UNIQUE INDEX tags_by_name ON tags (lower(name))",
)
_AUTHOR = "INSERT INTO authors (id, email, age) VALUES (?, ?, ?)"
_BOOK = 'INSERT INTO "my books" (id, author_id, title, lang) VALUES (?, ?, ?, ?)'


class Constraints(Case):
    """Every kind of constraint, outside and inside a transaction."""

    @pytest.fixture
    async def library(self, adapter: Adapter) -> Adapter:
        for text in _SCHEMA:
            await adapter.execute(Sql(text))
        await adapter.execute(sql(adapter, _AUTHOR, 1, "ann@example.com", 40))
        await adapter.execute(sql(adapter, _BOOK, 1, 1, "Dune", "en"))
        return adapter

    async def test_a_primary_key_names_table_and_column(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 1, "bob@example.com", 40))
        assert (caught.value.table, caught.value.columns) == ("authors", ("id",))

    async def test_a_unique_column_names_table_and_column(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 2, "ann@example.com", 40))
        assert (caught.value.table, caught.value.columns) == ("authors", ("email",))
        assert "ann@example.com" not in str(caught.value)

    async def test_a_composite_unique_names_all_its_columns(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.write(sql(library, _BOOK + " RETURNING id", 2, 1, "Dune", "en"))
        assert (caught.value.table, caught.value.columns) == ("my books", ("title", "lang"))

    async def test_a_unique_index_on_an_expression_names_the_table(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, "INSERT INTO tags VALUES (?), (?)", "New", "new"))
        assert caught.value.table == "tags"

    async def test_a_missing_value_names_its_column(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 2, None, 40))
        assert (caught.value.table, caught.value.columns) == ("authors", ("email",))

    async def test_a_check_names_the_table(self, library: Adapter) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            await library.execute(sql(library, _AUTHOR, 2, "kid@example.com", 7))
        assert caught.value.table == "authors"

    async def test_a_reference_to_nothing_is_a_foreign_key_violation(self, library: Adapter) -> None:
        with pytest.raises(ForeignKeyViolation) as caught:
            await library.write(sql(library, _BOOK + " RETURNING id", 2, 99, "Emma", "en"))
        assert caught.value.table == "my books"

    async def test_removing_a_referenced_row_is_a_foreign_key_violation(self, library: Adapter) -> None:
        with pytest.raises(ForeignKeyViolation):
            await library.execute(sql(library, "DELETE FROM authors WHERE id = ?", 1))

    async def test_inside_a_transaction_it_is_the_same_and_the_driver_is_only_the_cause(
        self, library: Adapter
    ) -> None:
        with pytest.raises(ConstraintViolation) as caught:
            async with library.transaction() as tx:
                await tx.execute(sql(tx, _AUTHOR, 2, "ann@example.com", 40))
        assert caught.value.columns == ("email",)
        assert caught.value.__cause__ is not None

    async def test_one_refused_write_does_not_touch_its_neighbours(self, db: Adapter) -> None:
        ids = [number // 2 for number in range(60)]
        outcomes = await asyncio.gather(*(add(db, id, f"{id}") for id in ids), return_exceptions=True)
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 30
        assert await names(db) == [str(id) for id in range(30)]

    async def test_a_constraint_checked_at_commit_refuses_the_commit(self, adapter: Adapter) -> None:
        await adapter.execute(Sql("CREATE TABLE parents (id BIGINT PRIMARY KEY)"))
        await adapter.execute(
            Sql(
                "CREATE TABLE children (id BIGINT PRIMARY KEY, parent BIGINT"
                " REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
            )
        )
        with pytest.raises(ForeignKeyViolation):
            async with adapter.transaction() as tx:
                await tx.execute(Sql("INSERT INTO children VALUES (1, 1)"))
        async with adapter.transaction() as tx:
            await tx.execute(Sql("INSERT INTO children VALUES (1, 1)"))
            await tx.execute(Sql("INSERT INTO parents VALUES (1)"))
        assert len(await adapter.fetch(Sql("SELECT id FROM children"))) == 1
