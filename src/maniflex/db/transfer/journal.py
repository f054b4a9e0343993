"""How far a copy has come: kept in the target and written with the rows, so a killed copy goes on there."""

from __future__ import annotations

from dataclasses import dataclass

from maniflex.db.port import Adapter, Executor, Tx
from maniflex.db.version_table import has_table
from maniflex.errors import ConfigError
from maniflex.sql.statement import Sql, by_dialect

TABLE = "maniflex_copy"
_SCHEMA = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    name text PRIMARY KEY, source text NOT NULL, last_id text, copied bigint NOT NULL)"""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the copy of one table is."""

    last_id: str | None
    copied: int


class Journal:
    """The positions of all tables."""

    def __init__(self, target: Adapter, source: str) -> None:
        self._target = target
        self._source = source

    async def exists(self) -> bool:
        """Whether a copy was begun and not finished."""
        return await has_table(self._target, TABLE)

    async def begin(self, tables: list[str]) -> None:
        """Note that nothing of these tables is copied yet."""
        async with self._target.transaction() as tx:
            await tx.execute(Sql(_SCHEMA))
            for name in tables:
                await tx.execute(
                    self._bind("INSERT INTO {table} VALUES ({1}, {2}, NULL, 0)", name, self._source)
                )

    async def positions(self) -> dict[str, Position]:
        """Where the copy of each table is; refuses a copy of another source."""
        rows = await self._target.fetch(Sql(f"SELECT name, source, last_id, copied FROM {TABLE}"))
        others = {row[1] for row in rows} - {self._source}
        if others:
            names = ", ".join(sorted(others))
            raise ConfigError(f"a copy from {names} was begun here; finish that one, or empty this database")
        return {row[0]: Position(row[2], int(row[3])) for row in rows}

    async def advance(self, tx: Tx, table: str, before: Position, after: Position) -> None:
        """Move on with the rows of the transaction; refuses when another copy has moved on meanwhile."""
        count = await tx.execute(
            self._bind(
                "UPDATE {table} SET last_id = {1}, copied = {2} WHERE name = {3} AND copied = {4}",
                after.last_id,
                after.copied,
                table,
                before.copied,
            )
        )
        if not count:
            raise ConfigError(f"another copy into this database is under way: it has moved on in {table}")

    async def end(self, run: Executor) -> None:
        """Forget the positions: the copy is finished."""
        await run.execute(Sql(f"DROP TABLE IF EXISTS {TABLE}"))

    def _bind(self, text: str, *values: object) -> Sql:
        marks = by_dialect(
            self._target.dialect,
            sqlite=["?"] * len(values),
            postgres=[f"${n + 1}" for n in range(len(values))],
        )
        return Sql(text.format(None, *marks, table=TABLE), values)
