"""Indexes, pages and includes on tables that have grown: each fault under its code, and mended it is gone."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from maniflex import Model, Server, field, has_many
from maniflex.doctor import query_checks
from maniflex.model.meta import Index
from tests.kit.doctor import codes_of, sound_server, stored
from tests.kit.postgres import execute

ROWS = 10_500


class Town(Model, table="towns", cursor_field="created_at"):
    name: str = field(filterable=True)
    size: int = field(sortable=True, index=True)


class IndexedTown(Model, table="towns", cursor_field="created_at"):
    name: str = field(filterable=True, index=True)
    size: int = field(sortable=True, index=True)


class Price(Model, table="prices", cursor_field="created_at"):
    amount: Decimal = field(sortable=True)
    is_old: bool = field(default=False, filterable=True)


class PagedTown(Model, table="towns"):
    name: str
    size: int = field(index=True)


class Street(Model, indices=[Index(("name",)), Index(("name", "length"))]):
    name: str
    length: int


class Parent(Model):
    name: str
    children: list[Child] = has_many()


class Child(Model):
    parent_id: str = field(relation="Parent")


async def start(url: str, *models: Any) -> Server:
    """A server whose tables have been made."""
    server = sound_server(url, *models)
    async with server.lifespan():
        pass
    return sound_server(url, *models)


async def fill(url: str, table: str, columns: str, values: str, rows: int = ROWS) -> None:
    """Write so many rows behind the server's back; `n` counts them."""
    server = Server(url)
    async with server.lifespan(role="client"):
        numbers = f"WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {rows})"
        now = "'2026-01-01T00:00:00.000000Z'"
        await server.raw_exec(
            f"{numbers} INSERT INTO {table} (id, created_at, updated_at, {columns})"
            f" SELECT 'id-' || n, {now}, {now}, {values} FROM c"
            if url.startswith("sqlite")
            else f"INSERT INTO {table} (id, created_at, updated_at, {columns})"
            f" SELECT 'id-' || n, now(), now(), {values} FROM generate_series(1, {rows}) n"
        )


async def test_a_filter_without_index_is_found_with_its_plan(database_url: str) -> None:
    server = await start(database_url, Town)
    assert await stored(server) == []
    await fill(database_url, "towns", "name, size", "'town ' || n, n")

    [finding] = await stored(sound_server(database_url, Town))

    assert finding.code == "T121"
    assert finding.where.startswith("Town.name (tests/doctor/test_query_checks.py:")
    assert "SCAN towns" in finding.why or "Seq Scan on towns" in finding.why
    assert "name: ... = field(index=True, ...)" in finding.fix


async def test_with_an_index_it_is_not_found(database_url: str) -> None:
    await start(database_url, IndexedTown)
    await fill(database_url, "towns", "name, size", "'town ' || n, n")

    assert await stored(sound_server(database_url, IndexedTown)) == []


async def test_a_sort_without_index_is_found(database_url: str) -> None:
    await start(database_url, Price)
    await fill(database_url, "prices", "amount, is_old", "n, false")

    [finding] = await stored(sound_server(database_url, Price))

    assert (finding.code, finding.where.split(" ")[0]) == ("T122", "Price.amount")


async def test_a_cursor_whose_index_was_dropped_is_found(database_url: str) -> None:
    server = await start(database_url, IndexedTown)
    await fill(database_url, "towns", "name, size", "'town ' || n, n")
    async with server.lifespan():
        await server.raw_exec("DROP INDEX idx_towns_created_at_id")

    [finding] = await stored(sound_server(database_url, IndexedTown))

    assert (finding.code, finding.where.split(" ")[0]) == ("T123", "IndexedTown.created_at")


async def test_pages_by_number_of_a_large_table_are_found(database_url: str) -> None:
    await start(database_url, PagedTown)
    await fill(database_url, "towns", "name, size", "'town ' || n, n")

    [finding] = await stored(sound_server(database_url, PagedTown))

    assert finding.code == "T128"
    assert 'cursor_field="created_at"' in finding.fix


async def test_an_index_that_begins_another_is_found(database_url: str) -> None:
    [finding] = await stored(await start(database_url, Street))

    assert finding.code == "T125"
    assert finding.where == "idx_streets_name on streets"


async def test_an_index_that_somebody_made_again_is_found(database_url: str) -> None:
    server = await start(database_url, IndexedTown)
    async with server.lifespan():
        await server.raw_exec("CREATE INDEX my_names ON towns (name)")

    [finding] = await stored(sound_server(database_url, IndexedTown))

    assert (finding.code, finding.where) == ("T125", "my_names on towns")
    assert 'DROP INDEX "my_names"' in finding.fix


@pytest.mark.parametrize("parents", ["'id-1'", "'id-' || (CASE WHEN n % 3 = 0 THEN 9000000 ELSE n END)"])
async def test_a_parent_with_many_children_is_found(
    database_url: str, parents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_checks, "MANY_CHILDREN", 100)
    monkeypatch.setattr(query_checks, "_PARENTS", 50)
    await start(database_url, Parent, Child)
    await fill(database_url, "children", "parent_id", parents, rows=2000)
    if database_url.startswith("postgres"):
        await execute(database_url, "ANALYZE children")

    [finding] = await stored(sound_server(database_url, Parent, Child))

    assert (finding.code, finding.where.split(" ")[0]) == ("T127", "Parent.children")
    assert "GET /children?filter=parent_id:eq:<id>" in finding.fix


async def test_parents_with_few_children_are_not_found(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_checks, "MANY_CHILDREN", 100)
    await start(database_url, Parent, Child)
    await fill(database_url, "children", "parent_id", "'id-' || (n % 100)", rows=2000)

    assert await stored(sound_server(database_url, Parent, Child)) == []


async def test_an_index_that_no_read_used_is_found(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_checks, "_READS", 1)
    await start(postgres_url, IndexedTown)
    await fill(postgres_url, "towns", "name, size", "'town ' || n, n")
    await execute(postgres_url, "ANALYZE towns; SELECT count(*) FROM towns; SELECT count(*) FROM towns")

    findings = await stored(sound_server(postgres_url, IndexedTown))

    unused = {finding.where for finding in findings if finding.code == "T124"}
    assert set(codes_of(findings)) == {"T124"}
    assert "idx_towns_name on towns" in unused
