"""The bytes of what was erased: what is small is written anew, what is large is named."""

from __future__ import annotations

import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from maniflex import Model, Server, field
from maniflex.config import sqlite_path
from maniflex.erasure import disk
from maniflex.erasure.erasing import Erasing
from tests.erasure.world import OTHER, PERSON
from tests.kit.internals import adapter_of
from tests.kit.servers import started
from tests.kit.stored_bytes import stored_bytes


class Visit(Model, table="di_visits", subject="person", versioned=True):
    person: str = field(filterable=True)
    page: str | None = field(default=None, personal=True, searchable=True)


async def test_a_partitioned_table_is_as_large_as_its_partitions(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MOST_BYTES", 200_000)
    async with started(postgres_url, Visit, background=False) as server:
        await server.raw_exec("CREATE TABLE parts (id text) PARTITION BY HASH (id)")
        await server.raw_exec(
            "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        )
        await server.raw_exec("INSERT INTO parts SELECT g::text FROM generate_series(1, 20000) g")

        sentences = await disk.rewrite(adapter_of(server), [], ["parts", "erasure"])

        assert [text for text in sentences if "larger than" in text] == [
            "parts is larger than 100 MB: `maniflex erase --rewrite` writes it anew"
        ]


async def test_a_large_file_is_named_and_its_search_index_left(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MOST_BYTES", 0)
    async with started(sqlite_url, Visit, background=False) as server:
        await server.db(Visit).create(person=PERSON, page="planted")

        report = await server.erasure.erase(PERSON)
        again = await server.erasure.erase(PERSON, rewrite=True)

        assert any("larger than 100 MB" in text for text in report.left)
        assert not any("larger than 100 MB" in text for text in again.left)


def restore(url: str, copy: Path) -> None:
    """Put the database back to what it was when the copy was made."""
    shutil.copy(copy, sqlite_path(url))
    for ending in ("-wal", "-shm"):
        Path(f"{sqlite_path(url)}{ending}").unlink(missing_ok=True)


async def test_a_backup_that_is_restored_is_erased_by_the_log(sqlite_url: str, tmp_path: Path) -> None:
    copy = tmp_path / "backup.db"
    async with started(sqlite_url, Visit, background=False) as server:
        for person in (PERSON, OTHER, "third"):
            await server.db(Visit).create(person=person, page=f"planted of {person}")
        await server.erasure.erase("third")
        await server.raw_exec("VACUUM INTO ?", str(copy))
        await server.erasure.erase(PERSON)
        log = await server.erasure.log()
    restore(sqlite_url, copy)
    async with started(sqlite_url, Visit, background=False) as server:
        assert len(await server.db(Visit).list({"person": PERSON})) == 1

        reports = await server.erasure.replay(log)

        assert [report.subject for report in reports] == [PERSON]
        content = await stored_bytes(sqlite_url)
        assert f"planted of {PERSON}".encode() not in content
        assert f"planted of {OTHER}".encode() in content
        assert {entry.id for entry in await server.erasure.log()} == {entry.id for entry in log}


@pytest.mark.parametrize("rows", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_many_rows_are_erased_in_short_transactions_and_little_memory(
    database_url: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasted: list[float] = []
    async with started(database_url, Visit, background=False) as server:
        await fill(server, database_url, rows)
        watch_commits(monkeypatch, lasted)
        tracemalloc.start()

        foreseen = await server.erasure.erase(PERSON, dry_run=True)
        report = await server.erasure.erase(PERSON, vacuum=False)

        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.counts == foreseen.counts
        assert report.counts["di_visits"] == rows
        assert report.counts["visit_histories"] == rows + rows // 2  # of records that are gone, too
        [left] = await server.raw_query(
            "SELECT count(*) AS n FROM di_visits WHERE person = ? AND page IS NOT NULL", PERSON
        )
        assert left["n"] == 0
        assert peak < 30_000_000 + rows * 1_500
        assert len(lasted) >= 3 * rows / 2 / 200
        assert sum(lasted) > max(lasted) * 5, "no batch holds the others up"


async def fill(server: Server, url: str, rows: int) -> None:
    """Visits of a person with a version each, and half as many that are gone."""
    is_postgres = url.startswith("postgres")
    moment = "CURRENT_TIMESTAMP" if is_postgres else "'2026-01-01T00:00:00.000000Z'"
    snapshot = f"""('{{"person": "{PERSON}", "page": "planted' || g || '"}}')"""
    snapshot += "::json" if is_postgres else ""
    for kind, number in (("live", rows), ("gone", rows // 2)):
        start, numbers = "", f"generate_series(1, {number}) g"
        if not is_postgres:
            start = (
                "WITH RECURSIVE series(g) AS"
                f" (SELECT 1 UNION ALL SELECT g + 1 FROM series WHERE g < {number}) "
            )
            numbers = "series"
        if kind == "live":
            await server.raw_exec(
                f"INSERT INTO di_visits (id, person, page, created_at, updated_at) {start}"
                f"SELECT 'live' || g, '{PERSON}', 'planted' || g, {moment}, {moment} FROM {numbers}"
            )
        await server.raw_exec(
            "INSERT INTO visit_histories"
            f" (id, record_id, version, operation, timestamp, source, diff, snapshot) {start}"
            f"SELECT '{kind}' || g, '{kind}' || g, 1, 'create', {moment}, 'code', '{{}}', {snapshot}"
            f" FROM {numbers}"
        )


def watch_commits(monkeypatch: pytest.MonkeyPatch, lasted: list[float]) -> None:
    """Note how long each batch of an erasure takes."""
    commit = Erasing._commit

    async def watched(self: Erasing, adapter: Any, work: Any) -> Any:
        start = time.monotonic()
        try:
            return await commit(self, adapter, work)
        finally:
            lasted.append(time.monotonic() - start)

    monkeypatch.setattr(Erasing, "_commit", watched)
