"""An index on a partitioned table, built partition by partition beside the writers.

PostgreSQL builds no index concurrently on all partitions at once. The index of the whole comes first, empty
and not valid, and becomes valid when the last partition has its part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from maniflex.db.port import Executor
from maniflex.migrations.actions import IndexBuild
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.tables import quote

_LONGEST_NAME = 63
_LEAVES = """
SELECT p.relid::regclass::text, c.relname::text
  FROM pg_class t CROSS JOIN LATERAL pg_partition_tree(t.oid) p JOIN pg_class c ON c.oid = p.relid
 WHERE t.oid = to_regclass($1) AND t.relkind = 'p' AND p.isleaf
"""
_TEXT = re.compile(
    r"(CREATE (?:UNIQUE )?INDEX) CONCURRENTLY (\S+|\"[^\"]+\") ON (\S+|\"[^\"]+\")\s*(.*)", re.DOTALL
)


async def read_leaves(run: Executor, table: str) -> list[tuple[str, str]]:
    """The partitions of a table, as they are written and by name; none when it has none."""
    rows = await run.fetch(Sql(_LEAVES, (quote(table, Dialect.POSTGRES),)))
    return [(relation, name) for relation, name in rows]


def build_statements(build: IndexBuild, leaves: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The statements that build it, each to be run by itself."""
    match = _TEXT.fullmatch(build.text.strip())
    if match is None:
        raise ValueError(f"no index can be read from {build.text!r}")
    create, name, table, rest = match.groups()
    yield f"{create} {name} ON ONLY {table} {rest}"
    for relation, leaf in leaves:
        own = quote(f"{leaf[:30]}_{build.name}"[:_LONGEST_NAME], Dialect.POSTGRES)
        yield f"DROP INDEX CONCURRENTLY IF EXISTS {own}"
        yield f"{create} CONCURRENTLY {own} ON {relation} {rest}"
        yield f"ALTER INDEX {name} ATTACH PARTITION {own}"
