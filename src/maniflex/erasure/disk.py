"""The bytes of what was erased, which databases keep in free pages, dead rows and logs.

Everybody waits while a table or a file is written anew, so that is done up to a size alone, and larger ones
are named.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence

from maniflex.db.current import Primary
from maniflex.db.port import Adapter, Executor
from maniflex.db.sqlite.rewriting import file_size, rewrite_file
from maniflex.errors import ManiflexError, Timeout
from maniflex.sql.model import ModelSql
from maniflex.sql.search import index_table, searchable_fields
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote

MOST_BYTES = 100 * 1024 * 1024
_TRIES = 100
_LOOKS = 300  # a tenth of a second apart
_MARK = "SELECT CAST(CAST(pg_current_xact_id() AS xid) AS text)"
# Rows that a transaction from before may still see are written into the new file of a table, too. A new
# snapshot is as old as the oldest transaction that writes, in whichever database of the cluster.
_FROM_BEFORE = """
SELECT 1 WHERE age(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid)) >= age(CAST(CAST($1 AS text) AS xid))
UNION ALL
SELECT 1 FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND greatest(age(backend_xmin), age(backend_xid)) >= age(CAST(CAST($1 AS text) AS xid)) LIMIT 1
"""
_SIZE = """
SELECT pg_total_relation_size(t.id)
       + (SELECT COALESCE(sum(pg_total_relation_size(p.relid)), 0)
            FROM pg_partition_tree(t.id) p WHERE p.relid <> t.id)
  FROM (SELECT to_regclass(quote_ident($1)) AS id) t
"""


async def overwrite_deleted(run: Executor) -> None:
    """Let what is deleted from now on be overwritten, where the database can do that."""
    if by_dialect(run.dialect, sqlite=True, postgres=False):
        await run.write(Sql("PRAGMA secure_delete = ON"))


async def rewrite(
    adapter: Adapter, models: Sequence[ModelSql], tables: Sequence[str], *, any_size: bool = False
) -> list[str]:
    """Write anew what was erased from; a sentence for each table or file where that was not done."""
    method = by_dialect(adapter.dialect, sqlite=_rewrite_sqlite, postgres=_rewrite_postgres)
    return await method(adapter, models, tables, any_size)


async def _rewrite_sqlite(
    adapter: Adapter, models: Sequence[ModelSql], tables: Sequence[str], any_size: bool
) -> list[str]:
    path = str(getattr(adapter, "path", ":memory:"))
    is_small = any_size or file_size(path) <= MOST_BYTES
    for name in _search_indexes(models, tables) if is_small else ():
        index = quote(name, adapter.dialect)
        await adapter.execute(Sql(f"INSERT INTO {index} ({index}) VALUES ('rebuild')"))
    sentences = []
    if not await rewrite_file(path, vacuum=is_small):
        sentences.append(f"{adapter.label}: others kept the file busy, so it was not rewritten")
    if not is_small:
        sentences.append(f"{adapter.label} is larger than 100 MB: `maniflex erase --rewrite` writes it anew")
    return sentences


def _search_indexes(models: Sequence[ModelSql], tables: Sequence[str]) -> Iterator[str]:
    for model in models:
        if model.table.name in tables and searchable_fields(model.meta):
            yield index_table(model.meta)


async def _rewrite_postgres(
    adapter: Adapter, models: Sequence[ModelSql], tables: Sequence[str], any_size: bool
) -> list[str]:
    sentences = ["archives of the write-ahead log and base backups of PostgreSQL keep what was there before"]
    sibling = adapter.sibling(patient=True)
    await sibling.open()
    try:
        if not await _outlive_others(adapter):
            sentences.append("a transaction from before the erasure is open; erase again when it has ended")
        for table in tables:
            row = await Primary(adapter).fetch_one(Sql(_SIZE, (table,)))
            size = 0 if row is None or row[0] is None else int(row[0])
            if size > MOST_BYTES and not any_size:
                sentences.append(f"{table} is larger than 100 MB: `maniflex erase --rewrite` writes it anew")
            elif not await _vacuum(sibling, table):
                sentences.append(f"{table} was not written anew; `maniflex erase --rewrite` tries again")
    finally:
        await sibling.close()
    return sentences


async def _outlive_others(adapter: Adapter) -> bool:
    """Wait until no transaction is left that may see what was erased; False if one stays open."""
    [[mark]] = await adapter.write(Sql(_MARK))
    for _ in range(_LOOKS):
        if not await Primary(adapter).fetch(Sql(_FROM_BEFORE, (mark,))):
            return True
        await asyncio.sleep(0.1)
    return False


async def _vacuum(adapter: Adapter, table: str) -> bool:
    """Write a table anew, waiting for its lock only so long, because all others wait behind it."""
    for _ in range(_TRIES):
        try:
            await adapter.fetch(Sql("SELECT set_config('lock_timeout', '200ms', false)"))
            await adapter.execute(Sql(f"VACUUM (FULL, ANALYZE) {quote(table, adapter.dialect)}"))
        except Timeout:
            await asyncio.sleep(random.uniform(0.05, 0.5))
        except ManiflexError:
            return False
        else:
            return True
    return False
