"""Writes the values of encrypted fields anew: under other keys, from plain text, or back to plain text.

It goes past the write seam: a value stays what it was, so no history, audit or event is told, and
`updated_at` stays. All rows are opened before the first is written. A page is one statement, which writes a
row only if it holds what was read, so a PATCH that comes in between wins. How far a rotation is stands in
`key_rotation`; a call that was ended goes on there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

import msgspec

from maniflex._json import encode_json
from maniflex.db.current import transaction
from maniflex.db.port import Adapter, Executor
from maniflex.db.store import Store
from maniflex.encryption.envelope import (
    PREFIX,
    VERSIONS,
    from_text,
    head_of,
    is_sealed,
    text_beginnings,
    to_text,
)
from maniflex.encryption.envelope import key_id_of as key_of_envelope
from maniflex.encryption.keyring import Keyring, Sealed, opened_ahead
from maniflex.encryption.rotation import KeyCount, RotationFailure
from maniflex.errors import ConstraintViolation, DeclarationError, DecryptionError, EncryptionNotConfigured
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.sql.cipher import FieldCipher, sealed_values
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import quote

LOOKED_AT = 1000  # rows that are opened at a time before anything is written
_MOST_FAILURES = 1000


class KeyRotation(Model, table="key_rotation", headless=True):
    """How far the rotation of a model is, and which columns hold envelopes."""

    __omitted__: ClassVar = frozenset({"goal"})

    model: str
    goal: str = field(hidden=True, default="")  # what it makes of the values
    last_id: str | None = field(default=None, relation=None)
    rotated: int = 0
    completed_at: datetime | None = None


class Goal(NamedTuple):
    """What a rotation makes of one field."""

    cipher: FieldCipher
    head: bytes | None  # of the envelopes to write; None: plain text
    old: str | None = None  # only envelopes under this key
    plaintext: bool = False  # and plain texts

    @property
    def looks_inside(self) -> bool:
        """Whether only opening a value shows that it is as it should be: it may have an old label."""
        return self.head is not None and len(self.cipher.field.labels) > 1

    def text(self) -> str:
        """What it does, as the row of its progress has it."""
        return f"{self.cipher.field.column}:{self.head!r}:{self.old}:{self.plaintext}"


@dataclass(slots=True)
class _Value:
    """A stored value of a row, and what is to be stored instead."""

    stored: str | None
    digest: str | None
    new: str | None = None
    new_digest: str | None = None
    plain: str | None = None

    @property
    def is_changed(self) -> bool:
        return (self.new, self.new_digest) != (self.stored, self.digest)


_Changed = tuple[str, list[_Value]]  # an id, and the values of that row


class Rotator:
    """The rotation of the rows of one model."""

    def __init__(
        self, store: Store, keys: Keyring, goals: Sequence[Goal], on_rows: Callable[[int], None] | None = None
    ) -> None:
        self._store = store
        self._keys = keys
        self._goals = goals
        self._on_rows = on_rows
        self._meta: ModelMeta = store.meta
        self._dialect: Dialect = store.adapter.dialect
        self._table = self._name(store.meta.table)
        self._id = self._name(store.sql.id.name)
        self._columns = [self._name(goal.cipher.field.column) for goal in goals]
        self._digests = [
            self._name(goal.cipher.field.digest_column)
            if goal.head is not None and goal.cipher.field.has_digest
            else None
            for goal in goals
        ]

    def _name(self, name: str) -> str:
        return quote(name, self._dialect)

    @property
    def goal(self) -> str:
        """What it is to do, to know the same call again."""
        return "; ".join(goal.text() for goal in self._goals)

    # -- before anything is written

    async def preflight(self, after: str | None) -> tuple[int, int, list[RotationFailure]]:
        """How many rows there are behind an id, how many are to be written, and what does not open."""
        total = stale = 0
        failures: list[RotationFailure] = []
        async for rows in self._pages(after, LOOKED_AT, self._any_value()):
            total += len(rows)
            with opened_ahead(await self._open_ahead(rows)):
                for row in rows:
                    values, wrong = self._open(row)
                    failures += wrong[: max(_MOST_FAILURES - len(failures), 0)]
                    stale += not wrong and any(value.is_changed for value in values)
        return total, stale, failures

    async def _open_ahead(self, rows: Sequence[Sequence[Any]]) -> Mapping[Sealed, bytes]:
        """What a key provider elsewhere opens of these rows, by one question."""
        ciphers = [(1 + 2 * place, goal.cipher) for place, goal in enumerate(self._goals)]
        return await self._keys.open_ahead(sealed_values(ciphers, rows, 0) if self._keys.waits else ())

    def _open(self, row: Sequence[Any]) -> tuple[list[_Value], list[RotationFailure]]:
        """The values of a row with what they become, and those that do not open."""
        values, failures = [], []
        for goal, stored, digest in zip(self._goals, row[1::2], row[2::2], strict=True):
            value = _Value(stored, digest, stored, digest)
            values.append(value)
            if stored is not None:
                try:
                    self._renew(goal, value, row[0])
                except (DecryptionError, EncryptionNotConfigured) as error:
                    reason = error.problem.partition(": ")[2] or error.problem
                    failures.append(RotationFailure(row[0], goal.cipher.field.name, "open", reason))
                except _WrongDigest as error:
                    failures.append(RotationFailure(row[0], goal.cipher.field.name, "digest", str(error)))
        return values, failures

    def _renew(self, goal: Goal, value: _Value, record_id: str) -> None:
        cipher, stored = goal.cipher, value.stored or ""
        if not is_sealed(stored):
            value.plain = stored
            if not goal.plaintext:
                return
        else:
            value.plain = cipher.open_strictly(stored, record_id)
            if value.digest is not None and value.digest != cipher.digest(value.plain):
                raise _WrongDigest("its digest is that of another value, or of another index key")
        if goal.head is None:
            value.new, value.new_digest = value.plain, value.digest
            return
        if self._is_stale(goal, stored, record_id):
            envelope = self._keys.seal_under(goal.head, value.plain.encode(), cipher.context(record_id))
            value.new = to_text(envelope)
        if cipher.field.has_digest:
            value.new_digest = cipher.digest(value.plain)

    def _is_stale(self, goal: Goal, stored: str, record_id: str) -> bool:
        if not is_sealed(stored):
            return goal.plaintext
        envelope = from_text(stored)
        assert goal.head is not None
        if goal.old is not None:
            return key_of_envelope(envelope) == goal.old
        if not envelope.startswith(goal.head):
            return True
        return goal.looks_inside and not goal.cipher.has_label_of_today(envelope, record_id)

    # -- pages

    async def rotate(
        self, after: str | None, page_size: int, note: Callable[[str, int], Awaitable[None]]
    ) -> AsyncIterator[list[RotationFailure]]:
        """Write what is to be written behind an id, page by page; what failed of each."""
        async for rows in self._pages(after, page_size, self._stale_rows()):
            to_write: list[_Changed] = []
            failures: list[RotationFailure] = []
            with opened_ahead(await self._open_ahead(rows)):
                for row in rows:
                    values, wrong = self._open(row)
                    failures += wrong
                    if not wrong and any(value.is_changed for value in values):
                        to_write.append((row[0], values))
            written, refused = 0, list[RotationFailure]()
            try:  # as a rule the page and its note are one transaction
                async with transaction(self._store.adapter) as tx:
                    written = len(await tx.write(self._update(to_write))) if to_write else 0
                    await note(rows[-1][0], written)
            except ConstraintViolation:
                written, refused = await self._write_apart(to_write)
                await note(rows[-1][0], written)
            if self._on_rows is not None:
                self._on_rows(len(rows))
            yield failures + refused

    async def _write_apart(self, rows: Sequence[_Changed]) -> tuple[int, list[RotationFailure]]:
        """Write rows of which a unique digest refuses one, which is a failure."""
        try:
            async with self._store.adapter.transaction() as tx:
                return len(await tx.write(self._update(rows))), []
        except ConstraintViolation:
            if len(rows) > 1:
                halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
                outcomes = [await self._write_apart(half) for half in halves]
                return sum(count for count, _ in outcomes), [one for _, wrong in outcomes for one in wrong]
            names = ", ".join(
                goal.cipher.field.name
                for goal, value in zip(self._goals, rows[0][1], strict=True)
                if value.is_changed
            )
            return 0, [RotationFailure(rows[0][0], names, "write", "another record has this value")]

    def _update(self, rows: Sequence[_Changed]) -> Sql:
        names, sets, same = ["id"], [], []
        columns: list[list[Any]] = [[record_id for record_id, _ in rows]]
        is_same = by_dialect(self._dialect, sqlite="IS", postgres="IS NOT DISTINCT FROM")
        for place, (column, digest) in enumerate(zip(self._columns, self._digests, strict=True)):
            names += [f"old{place}", f"new{place}"]
            columns += [
                [values[place].stored for _, values in rows],
                [values[place].new for _, values in rows],
            ]
            sets.append(f"{column} = page.new{place}")
            same.append(f"{self._table}.{column} {is_same} page.old{place}")
            if digest is not None:
                names.append(f"digest{place}")
                columns.append([values[place].new_digest for _, values in rows])
                sets.append(f"{digest} = page.digest{place}")
        source = by_dialect(self._dialect, sqlite=self._json_source, postgres=self._array_source)(names)
        params = by_dialect(
            self._dialect,
            sqlite=(encode_json([list(row) for row in zip(*columns, strict=True)]),),
            postgres=tuple(columns),
        )
        where = " AND ".join([f"{self._table}.{self._id} = page.id", *same])
        text = f"UPDATE {self._table} SET {', '.join(sets)} FROM {source} WHERE {where}"
        return Sql(f"{text} RETURNING {self._table}.{self._id}", params)

    def _json_source(self, names: Sequence[str]) -> str:
        parts = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(names))
        return f"(SELECT {parts} FROM json_each(?)) AS page"

    def _array_source(self, names: Sequence[str]) -> str:
        arrays = ", ".join(f"${place}::text[]" for place, _ in enumerate(names, 1))
        return f"unnest({arrays}) AS page({', '.join(names)})"

    async def has_stale_rows(self) -> bool:
        """Whether a row is left that is to be written."""
        async for rows in self._pages(None, LOOKED_AT, self._stale_rows(with_digests=False)):
            for row in rows:
                values, wrong = self._open(row)
                if wrong or any(value.new != value.stored for value in values):
                    return True
        return False

    async def _pages(self, after: str | None, size: int, condition: str) -> AsyncIterator[list[Any]]:
        """Rows of id, and stored value and digest of each field, by id."""
        pairs = zip(self._columns, self._digests, strict=True)
        columns = ", ".join([self._id, *(f"{column}, {digest or 'NULL'}" for column, digest in pairs)])
        mark = by_dialect(self._dialect, sqlite="?", postgres="$1")
        while True:
            behind = "" if after is None else f" AND {self._id} > {mark}"
            text = (
                f"SELECT {columns} FROM {self._table} WHERE ({condition}){behind}"
                f" ORDER BY {self._id} LIMIT {size}"
            )
            run: Executor = self._store.adapter
            rows = await run.fetch(Sql(text, () if after is None else (after,)))
            if rows:
                yield list(rows)
            if len(rows) < size:
                return
            after = rows[-1][0]

    # -- which rows

    def _any_value(self) -> str:
        return " OR ".join(f"{column} IS NOT NULL" for column in self._columns)

    def _stale_rows(self, *, with_digests: bool = True) -> str:
        return " OR ".join(self._stale_values(with_digests))

    def _stale_values(self, with_digests: bool) -> Iterator[str]:
        for goal, column, digest in zip(self._goals, self._columns, self._digests, strict=True):
            is_envelope = f"substr({column}, 1, 4) = '{PREFIX}'"
            if goal.old is not None:
                heads = [head_of(goal.old, version) for version in VERSIONS]
                yield " OR ".join(begins_with(column, head) for head in heads)
            elif goal.looks_inside or goal.head is None:
                yield is_envelope
            else:
                yield f"({is_envelope} AND NOT ({begins_with(column, goal.head)}))"
            if goal.plaintext:
                yield f"({column} IS NOT NULL AND NOT ({is_envelope}))"
            if digest is not None and with_digests:
                yield f"({digest} IS NULL AND {is_envelope})"


class _WrongDigest(Exception):
    """A digest is not that of its value."""


def begins_with(column: str, head: bytes) -> str:
    """The condition that a column holds an envelope of this head."""
    common, letters = text_beginnings(head)
    text = f"substr({column}, 1, {len(common)}) = '{common}'"
    if not letters:
        return text
    choices = ", ".join(f"'{letter}'" for letter in letters)
    return f"({text} AND substr({column}, {len(common) + 1}, 1) IN ({choices}))"


# Which keys the values of a field are stored under.


async def count_keys(run: Executor, meta: ModelMeta, item: FieldMeta, keys: Keyring) -> list[KeyCount]:
    """How many values a field has under each key and version, plain text included."""
    assert item.encrypted is not None
    table, column = quote(meta.table, run.dialect), quote(item.column, run.dialect)
    current = keys.current_head(item.encrypted)

    async def group(size: int, condition: str = "1 = 1") -> dict[str, int]:
        text = f"substr({column}, 5, {size})"
        rows = await run.fetch(
            Sql(
                f"SELECT {text}, count(*) FROM {table} WHERE substr({column}, 1, 4) = '{PREFIX}'"
                f" AND {condition} GROUP BY {text}"
            )
        )
        return {str(row[0]): int(row[1]) for row in rows}

    heads: dict[bytes, int] = {}
    for start, count in (await group(4)).items():
        length = _bytes_of(start)
        size = 3 + int.from_bytes(length[1:3], "big") if len(length) == 3 else 0
        if not size or not start.isascii() or "'" in start:
            heads[b""] = heads.get(b"", 0) + count
            continue
        letters = -(-size * 8 // 6)
        for text, own in (await group(letters, f"substr({column}, 5, 4) = '{start}'")).items():
            head = _bytes_of(text)[:size]
            heads[head] = heads.get(head, 0) + own
    counts = [
        KeyCount(meta.name, item.name, *_key_of_head(head), count, head == current)
        for head, count in heads.items()
    ]
    row = await run.fetch_one(
        Sql(
            f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL"
            f" AND substr({column}, 1, 4) <> '{PREFIX}'"
        )
    )
    if row is not None and row[0]:
        counts.append(KeyCount(meta.name, item.name, "", 0, int(row[0]), False))
    return sorted(counts, key=lambda one: (not one.is_current, one.key_id, one.version))


def _bytes_of(letters: str) -> bytes:
    """The bytes that base64 letters begin with."""
    try:
        return from_text(PREFIX + letters + "A" * (-len(letters) % 4))
    except DecryptionError:
        return b""


def _key_of_head(head: bytes) -> tuple[str, int]:
    """The key id and the version of a head."""
    return (head[3:].decode(errors="replace"), head[0]) if len(head) > 3 else ("?", 0)


def plain_cipher(meta: ModelMeta, item: FieldMeta, keys: Keyring, label: str | None = None) -> FieldCipher:
    """What opens the envelopes of a field that is not encrypted any more."""
    own = label or f"{meta.table}.{item.column}"
    return FieldCipher(meta, replace(item, encrypted="default", labels=(own,), unique=False), keys)


def check_digests(meta: ModelMeta, goals: Sequence[Goal], keys: Keyring) -> None:
    """Refuse to take away a key that digests are made with."""
    for goal in goals:
        item = goal.cipher.field
        goes = goal.head is not None and goal.head[3:].decode() != item.encrypted
        if goes and item.has_digest and keys.index_key is None:
            raise DeclarationError(
                f"{meta.name}.{item.name} has digests under the key {item.encrypted!r}, which rotation would"
                " make superfluous; give the key provider an index_key= first"
            )


# What was written of a field before it was encrypted, taken out of JSON columns.


async def forget_values(
    adapter: Adapter, table: str, columns: Sequence[str], names: Sequence[str], condition: str = "1 = 1"
) -> int:
    """Take the members of these names out of the objects in these columns; how many rows had them."""
    row_count = 0
    quoted = [quote(column, adapter.dialect) for column in columns]
    async for rows in _rows_with_values(adapter, table, columns, names, condition):
        async with adapter.transaction() as tx:
            for record_id, new in rows:
                await tx.execute(_replacement(adapter.dialect, table, quoted, new, record_id))
        row_count += len(rows)
    return row_count


async def count_values(
    adapter: Adapter, table: str, columns: Sequence[str], names: Sequence[str], condition: str = "1 = 1"
) -> int:
    """How many rows have members of these names in the objects in these columns."""
    pages = _rows_with_values(adapter, table, columns, names, condition)
    return sum([len(rows) async for rows in pages])


async def _rows_with_values(
    adapter: Adapter, table: str, columns: Sequence[str], names: Sequence[str], condition: str
) -> AsyncIterator[list[tuple[str, list[str | None]]]]:
    """Rows with members of these names, some at a time: their ids, and the objects without the members."""
    dialect, after = adapter.dialect, ""
    name_of, as_text = by_dialect(dialect, sqlite=("?", "{}"), postgres=("$1", "{}::text"))
    own_columns = [quote(column, dialect) for column in columns]
    words = [encode_json(name).replace("'", "''") for name in names]
    likes = [f"{as_text.format(column)} LIKE '%{word}%'" for column in own_columns for word in words]
    selected = ", ".join(as_text.format(column) for column in own_columns)
    where = f"id > {name_of} AND {condition} AND ({' OR '.join(likes)})"
    text = f"SELECT id, {selected} FROM {quote(table, dialect)} WHERE {where} ORDER BY id LIMIT {LOOKED_AT}"
    while rows := await adapter.fetch(Sql(text, (after,))):
        after = rows[-1][0]
        rows_without = [
            (row[0], [_without(content, names) for content in row[1:]], list(row[1:])) for row in rows
        ]
        yield [(record_id, new) for record_id, new, old in rows_without if new != old]


def _without(content: str | None, names: Sequence[str]) -> str | None:
    """The JSON object without these members; what else it has stays as it is spelt."""
    if content is None or not content.lstrip().startswith("{"):
        return content
    members: dict[str, msgspec.Raw] = _members(content)
    if not any(name in members for name in names):
        return content
    kept = {name: value for name, value in members.items() if name not in names}
    return msgspec.json.encode(kept).decode()


def _replacement(
    dialect: Dialect, table: str, columns: Sequence[str], values: Sequence[str | None], record_id: str
) -> Sql:
    mark = by_dialect(dialect, sqlite="{} = ?{}", postgres="{} = ${}::json")
    sets = ", ".join(mark.format(column, place) for place, column in enumerate(columns, 1))
    last = by_dialect(dialect, sqlite="?{}", postgres="${}").format(len(columns) + 1)
    return Sql(f"UPDATE {quote(table, dialect)} SET {sets} WHERE id = {last}", (*values, record_id))


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
