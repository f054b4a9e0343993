"""What durable work has stored encrypted: under which keys, and writing it anew under others.

As with fields, every value is opened before the first is written, a page is one transaction, and a value is
written only if it is what was read. Nothing else of a row changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from maniflex.db.port import Adapter, Tx
from maniflex.db.store import Store
from maniflex.encryption.envelope import CURRENT_VERSION, from_text, is_sealed, key_id_of, to_text, version_of
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.port import context_of
from maniflex.encryption.rotation import KeyCount, RotationFailure, RotationReport
from maniflex.encryption.sealed_json import envelope_in
from maniflex.errors import DecryptionError, EncryptionNotConfigured
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote

LOOKED_AT = 500  # rows at a time


class _SealedValue(NamedTuple):
    """A sealed value, and how it is spelt in its column."""

    row_id: str
    column: FieldMeta
    stored: str
    envelope: bytes
    context: bytes


class SealedRows:
    """The sealed values of one table of durable work."""

    def __init__(self, store: Store, keys: Keyring) -> None:
        self._keys = keys
        self._adapter: Adapter = store.adapter
        self._meta = store.meta
        self._dialect = store.adapter.dialect
        columns = getattr(store.meta.cls, "__sealed__", {})
        self._columns = [(store.meta.by_name[name], ids) for name, ids in columns.items()]

    async def count(self) -> list[KeyCount]:
        """How many values each column has under each key and version."""
        counts: Counter[tuple[str, str, int]] = Counter()
        async for values in self._pages():
            for one in values:
                counts[one.column.name, key_id_of(one.envelope), version_of(one.envelope)] += 1
        return [
            KeyCount(self._meta.name, column, key_id, version, count, self._is_current(key_id, version))
            for (column, key_id, version), count in sorted(counts.items())
        ]

    def _is_current(self, key_id: str, version: int) -> bool:
        return version == CURRENT_VERSION and self._keys.current_key(key_id) == key_id

    async def rotate(
        self,
        old: str | None,
        new: str | None,
        *,
        dry_run: bool,
        on_rows: Callable[[int], None] | None,
    ) -> RotationReport:
        """Write what is not under its current key, or is under `old`, under that key or under `new`."""
        report = RotationReport(self._meta.name)
        total = stale = 0
        failures: list[RotationFailure] = []
        async for values in self._pages():
            total += len(values)
            for value in values:
                stale += self._target(value, old, new) is not None
                try:
                    await self._keys.open(value.envelope, value.context)
                except (DecryptionError, EncryptionNotConfigured) as error:
                    failures.append(RotationFailure(value.row_id, value.column.name, "open", error.problem))
        report = replace(report, total=total, skipped=total - stale, failures=tuple(failures))
        if failures or dry_run:
            return replace(report, complete=not failures and not stale)
        count = 0
        async for values in self._pages():
            async with self._adapter.transaction() as tx:
                for value in values:
                    if (target := self._target(value, old, new)) is not None:
                        count += await self._write(tx, value, target)
            if on_rows is not None:
                on_rows(len(values))
        remaining = 0
        async for values in self._pages():
            remaining += sum(self._target(value, old, new) is not None for value in values)
        return replace(report, rotated=count, complete=not remaining)

    def _target(self, value: _SealedValue, old: str | None, new: str | None) -> str | None:
        """The key id that a value is to be written under; None where it is as it should be."""
        key_id = key_id_of(value.envelope)
        if old is not None and key_id != old:
            return None
        target = self._keys.current_key(key_id) if new is None else new
        is_same = target == key_id and version_of(value.envelope) == CURRENT_VERSION
        return None if is_same else target

    async def _write(self, tx: Tx, value: _SealedValue, target: str) -> bool:
        plain = await self._keys.open(value.envelope, value.context)
        new_envelope = to_text(await self._keys.seal_exactly(target, plain, value.context))
        new_text = value.stored.replace(to_text(value.envelope), new_envelope)
        table, column = quote(self._meta.table, self._dialect), quote(value.column.column, self._dialect)
        text = by_dialect(
            self._dialect,
            sqlite="UPDATE {0} SET {1} = ?1 WHERE id = ?2 AND CAST({1} AS TEXT) = ?3 RETURNING id",
            postgres="UPDATE {0} SET {1} = CAST($1::text AS {2}) WHERE id = $2 AND {1}::text = $3"
            " RETURNING id",
        )
        kind = "json" if value.column.kind is Kind.JSON else "text"
        sql = Sql(text.format(table, column, kind), (new_text, value.row_id, value.stored))
        return bool(await tx.write(sql))

    async def _pages(self) -> AsyncIterator[list[_SealedValue]]:
        """The sealed values of some rows at a time, by the ids of the rows."""
        as_text = by_dialect(self._dialect, sqlite="CAST({} AS TEXT)", postgres="{}::text")
        names = [quote(column.column, self._dialect) for column, _ in self._columns]
        texts = [as_text.format(name) for name in names]
        others = [name for _, ids in self._columns for name in ids]
        begins = " OR ".join(
            f"substr({text}, 1, 4) = 'enc:' OR substr({text}, 1, 5) = '\"enc:'"
            f' OR substr({text}, 1, 15) = \'{{"sealed":"enc:\''
            for text in texts
        )
        mark = by_dialect(self._dialect, sqlite="?", postgres="$1")
        columns = ", ".join(["id", *texts, *(quote(name, self._dialect) for name in others)])
        text = (
            f"SELECT {columns} FROM {quote(self._meta.table, self._dialect)}"
            f" WHERE id > {mark} AND ({begins}) ORDER BY id LIMIT {LOOKED_AT}"
        )
        after = ""
        while rows := await self._adapter.write(Sql(text, (after,))):
            after = rows[-1][0]
            yield [value for row in rows for value in self._values(row)]

    def _values(self, row: Sequence[Any]) -> list[_SealedValue]:
        values, ids_at = [], 1 + len(self._columns)
        for place, (column, ids) in enumerate(self._columns, 1):
            own_ids = [str(one) for one in row[ids_at : ids_at + len(ids)]]
            ids_at += len(ids)
            stored = row[place]
            if stored is None:
                continue
            try:
                envelope = _envelope(stored, column, own_ids)
            except (DecryptionError, msgspec.MsgspecError):
                continue
            if envelope is not None:
                label = f"{self._meta.table}.{column.name}"
                context = context_of(label, "/".join(own_ids))
                values.append(_SealedValue(row[0], column, stored, envelope, context))
        return values


def _envelope(stored: str, column: FieldMeta, ids: Sequence[str]) -> bytes | None:
    if column.kind is Kind.JSON:
        return envelope_in(stored, ids)
    return from_text(stored) if is_sealed(stored) else None
