"""Idempotency keys: beside the rows that are written, in Redis, or in this process.

Only the SQL form settles in the transaction of the write, so only there a crash cannot come between the
two. The others keep twins apart all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

from maniflex._callables import explain_class
from maniflex._clock import SystemClock
from maniflex._ids import new_id
from maniflex.db.current import execute_separately, shared_tx, write_separately
from maniflex.db.port import Adapter, Row, Tx
from maniflex.errors import RequestError
from maniflex.middleware.stores.form import IdempotencyKeyRow, MemoryForm, OwnKey, RedisForm, SqlForm
from maniflex.middleware.stores.port import (
    SECOND,
    ClaimState,
    Duration,
    KeyClaim,
    StoreUnavailable,
    hash_key,
    length_of,
    nanoseconds,
    nanoseconds_after,
)
from maniflex.sql.statement import LookupText, Sql, by_dialect

_MILLISECOND = 1_000_000
_CLAIMED, _SETTLED = ClaimState.CLAIMED, ClaimState.SETTLED
# The parameters of the statement, in its order.
_CLAIM_IN_SQLITE = "id", "fingerprint", "token", "until", "now"
_CLAIM_IN_POSTGRES = "id", "now", "fingerprint", "token", "until"
_FREE = KeyClaim(ClaimState.FREE)
_id_of = lru_cache(1024)(hash_key)  # a request needs it for its claim and again to settle it
_MOST_KEYS = 100_000  # of one process, before those whose time is over are dropped


class _KeyState(NamedTuple):
    """A key as a store has it."""

    fingerprint: str
    token: str
    settled: bool
    answer: bytes | None
    until: int

    def claim(self, fingerprint: str, token: str | None, now: int) -> KeyClaim:
        """What a request with that fingerprint finds; `token` is the one it tried to claim with."""
        if self.token == token:
            return KeyClaim(ClaimState.CLAIMED, token)
        if self.fingerprint != fingerprint:
            return KeyClaim(ClaimState.REUSED)
        if self.settled:
            return KeyClaim(ClaimState.SETTLED, answer=self.answer, until=self.until)
        return KeyClaim(ClaimState.RUNNING, retry_after=max(self.until - now, 0) / SECOND)


@explain_class
class SqlIdempotency(SqlForm):
    """Keys in the table `idempotency_key` of the database whose rows are written."""

    tables = (IdempotencyKeyRow,)
    statements = "idempotency"
    settles_in_transaction = True  # others settle when the transaction is over
    # Whether to look before a claim. The key before was a settled one, and repetitions come in crowds; a read
    # is cheaper than a claim that finds an answer, and lost on a key that is new.
    expects_answers = False

    def __init__(self) -> None:
        super().__init__()
        self._on: dict[int, SqlIdempotency] = {}  # by database, all but that of the only server

    def _note_homes(self) -> None:
        super()._note_homes()
        self._on = {}
        self.expects_answers = False
        if self._only is None:  # each of the servers has one of its own
            return
        dialect = self._only.adapter.dialect
        self._look_text = LookupText(self._text_of("look", "id", "now"))
        claim_parameters = by_dialect(dialect, sqlite=_CLAIM_IN_SQLITE, postgres=_CLAIM_IN_POSTGRES)
        self._claim_text = self._text_of("claim", *claim_parameters)
        self._settle_text = self._text_of("settle", "answer", "until", "id", "token")
        self._claims_by_count = by_dialect(dialect, sqlite=True, postgres=False)
        # Elsewhere a replica may have answered, which does not know yet that a claim has ended.
        self._reads_are_current = by_dialect(dialect, sqlite=True, postgres=False)

    def on(self, adapter: Adapter) -> SqlIdempotency:
        """The store in that database."""
        only = self._only
        if only is not None and only.adapter is adapter:
            return self
        store = self._on.get(id(adapter))
        if store is None or store.adapter is not adapter:
            home = self._home()
            store = self._on[id(adapter)] = SqlIdempotency()
            store.attach(adapter, SystemClock() if home is None else home.clock)
        return store

    def _in_own_database(self) -> SqlIdempotency:
        """The store in the database of the server that the call is for."""
        return self if self._only is not None else self.on(self.adapter)

    def _text_of(self, name: str, *parameters: str) -> str:
        """The text of a statement whose values are bound in this order: by name, that takes longer."""
        statement = self._require_home().statements[name]
        assert statement.names == parameters, f"{name} takes {statement.names}"
        return statement.text

    def read_first(self, key: str) -> Awaitable[Row | None]:
        """The row of the key, for `find_in`: a settled one is final, so a replay needs nothing else.

        A database that is away raises errors of its own here.
        """
        # Neither by `_read` nor by `Sql()`: replays pass here, and both cost more.
        home = self._only or self._require_home()
        sql = tuple.__new__(Sql, (self._look_text, (hash_key(key), home.now())))
        return home.adapter.fetch_one(sql)

    def find_in(self, row: Row | None, fingerprint: str) -> KeyClaim | None:
        """The claim of a request that finds this row; None when only a claim can say."""
        if row is None:
            self.expects_answers = False
            return None
        if row[2] and row[0] == fingerprint:
            return KeyClaim(_SETTLED, "", row[3], 0.0, row[4])
        return _claim_of(row, fingerprint, None, self._now()) if row[2] or self._reads_are_current else None

    async def claim(self, key: str, fingerprint: str, *, lease: Duration, now: datetime) -> KeyClaim:
        only = self._only
        if only is None:
            return await self._in_own_database().claim(key, fingerprint, lease=lease, now=now)
        moment, token = nanoseconds(now), new_id()
        until, row = moment + length_of(lease), None
        tx = shared_tx(only.adapter)  # with which the claim goes, too
        try:
            if self._claims_by_count:
                sql = Sql(self._claim_text, (_id_of(key), fingerprint, token, until, moment))
                if await (execute_separately(only.adapter, sql) if tx is None else tx.execute(sql)):
                    return KeyClaim(_CLAIMED, token)
            else:
                sql = Sql(self._claim_text, (_id_of(key), moment, fingerprint, token, until))
                rows = await (write_separately(only.adapter, sql) if tx is None else tx.write(sql))
                row = rows[0] if rows else None
                if row is not None and row[1] == token:
                    return KeyClaim(_CLAIMED, token)
        except RequestError as error:
            self.expects_answers = True  # which a replica may still have
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error
        if row is None:  # another request has it, and by now that can be read
            claim = await self.look(key, fingerprint, now=now)
        else:
            claim = _claim_of(row, fingerprint, token, moment)
        self.expects_answers = claim.state is _SETTLED
        return KeyClaim(ClaimState.RUNNING) if claim.state is ClaimState.FREE else claim

    async def look(self, key: str, fingerprint: str, *, now: datetime) -> KeyClaim:
        moment = nanoseconds(now)
        tx = shared_tx(self.adapter)
        if tx is None:
            row = await self._read("look", id=_id_of(key), now=moment)
        else:  # which may have settled the key
            look = self._require_home().statements["look"]
            row = await tx.fetch_one(look.bind_all({"id": _id_of(key), "now": moment}))
        return _FREE if row is None else _claim_of(row, fingerprint, None, moment)

    async def renew(self, key: str, token: str, *, lease: Duration, now: datetime) -> bool:
        """Extend the claim, outside the transaction of the write, which on SQLite keeps others out anyway."""
        until = nanoseconds_after(now, lease)
        return bool(await self._write("renew", id=_id_of(key), token=token, until=until))

    async def settle(
        self,
        key: str,
        token: str,
        answer: bytes | None,
        *,
        ttl: Duration,
        now: datetime,
        tx: Tx | None = None,
    ) -> bool:
        store = self._in_own_database()
        sql = store.settlement(key, token, answer, nanoseconds_after(now, ttl))
        if tx is None:
            return bool(await store._write_sql(store.adapter, sql))
        # What fails here is the failure of the transaction, which the caller rolls back.
        return bool(await tx.write(sql))

    def settle_with_commit(self, key: str, token: str, answer: bytes | None, until: int, tx: Tx) -> None:
        """Settle along with the commit of `tx`, which is refused when the claim is lost."""
        tx.guard_commit(self.settlement(key, token, answer, until))

    def settlement(self, key: str, token: str, answer: bytes | None, until: int) -> Sql:
        """The statement that settles a claim; it gives back a row, if the claim is not lost."""
        return Sql(self._settle_text, (answer, until, _id_of(key), token))

    async def release(self, key: str, token: str) -> None:
        await self._write("release", id=_id_of(key), token=token)


def _claim_of(row: Row, fingerprint: str, token: str | None, now: int) -> KeyClaim:
    """What a request finds in the row of its key; `token` is the one it tried to claim with."""
    return _KeyState(row[0], row[1], bool(row[2]), row[3], row[4]).claim(fingerprint, token, now)


@explain_class
class RedisIdempotency(RedisForm):
    """Keys in Redis; twins are kept apart, but answer and write are not stored together."""

    def __init__(
        self,
        client: Any = "redis://127.0.0.1:6379",
        prefix: str = "maniflex:idempotency",
        *,
        shared: bool = False,
    ) -> None:
        super().__init__(client, prefix, shared=shared)

    def on(self, adapter: Adapter) -> Self:
        return self

    async def claim(self, key: str, fingerprint: str, *, lease: Duration, now: datetime) -> KeyClaim:
        token, moment = new_id(), nanoseconds(now)
        values = await self._run("claim", _key_name(key), fingerprint, token, *_milliseconds(now, lease))
        key_state = _read_hash(values)
        assert key_state is not None, "a claim leaves a key"
        return key_state.claim(fingerprint, token, moment)

    async def look(self, key: str, fingerprint: str, *, now: datetime) -> KeyClaim:
        moment = nanoseconds(now)
        fields = ("fingerprint", "token", "settled", "until", "answer")
        key_state = _read_hash(
            await self._await((await self._ready()).hmget(self._name(_key_name(key)), fields))
        )
        if key_state is None or key_state.until <= moment:
            return _FREE
        return key_state.claim(fingerprint, None, moment)

    async def renew(self, key: str, token: str, *, lease: Duration, now: datetime) -> bool:
        return bool(await self._run("renew", _key_name(key), token, *_milliseconds(now, lease)))

    async def settle(
        self,
        key: str,
        token: str,
        answer: bytes | None,
        *,
        ttl: Duration,
        now: datetime,
        tx: Tx | None = None,
    ) -> bool:
        """Keep the answer at once: Redis has no part in the transaction."""
        answers = () if answer is None else (answer,)
        return bool(await self._run("settle", _key_name(key), token, *_milliseconds(now, ttl), *answers))

    async def release(self, key: str, token: str) -> None:
        await self._run("release", _key_name(key), token)


def _milliseconds(now: datetime, duration: Duration) -> tuple[int, int]:
    """The moment, and that after the duration."""
    return nanoseconds(now) // _MILLISECOND, nanoseconds_after(now, duration) // _MILLISECOND


def _key_name(key: str) -> str:
    return f"key:{hash_key(key)}"


def _read_hash(values: Any) -> _KeyState | None:
    fingerprint, token, mark, until, answer = values
    if fingerprint is None:
        return None
    is_settled = mark == b"1"
    return _KeyState(fingerprint.decode(), token.decode(), is_settled, answer, int(until) * _MILLISECOND)


@explain_class
class MemoryIdempotency(MemoryForm):
    """Keys of this process alone; a restart forgets them."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[OwnKey, _KeyState] = {}

    def on(self, adapter: Adapter) -> Self:
        return self

    async def claim(self, key: str, fingerprint: str, *, lease: Duration, now: datetime) -> KeyClaim:
        moment = nanoseconds(now)
        key_state = self._live(key, moment)
        if key_state is not None:
            return key_state.claim(fingerprint, None, moment)
        if len(self._keys) >= _MOST_KEYS:
            self._keys = {name: one for name, one in self._keys.items() if one.until > moment}
        token = new_id()
        self._keys[self._key(key)] = _KeyState(fingerprint, token, False, None, nanoseconds_after(now, lease))
        return KeyClaim(ClaimState.CLAIMED, token)

    async def look(self, key: str, fingerprint: str, *, now: datetime) -> KeyClaim:
        moment = nanoseconds(now)
        key_state = self._live(key, moment)
        return _FREE if key_state is None else key_state.claim(fingerprint, None, moment)

    async def renew(self, key: str, token: str, *, lease: Duration, now: datetime) -> bool:
        return self._change(key, token, until=nanoseconds_after(now, lease))

    async def settle(
        self,
        key: str,
        token: str,
        answer: bytes | None,
        *,
        ttl: Duration,
        now: datetime,
        tx: Tx | None = None,
    ) -> bool:
        """Keep the answer at once: memory has no part in the transaction."""
        return self._change(key, token, settled=True, answer=answer, until=nanoseconds_after(now, ttl))

    def forget_answers(self) -> None:
        """Keep that requests have succeeded, and none of their answers."""
        self._keys = {k: one._replace(answer=None) if one.settled else one for k, one in self._keys.items()}

    async def release(self, key: str, token: str) -> None:
        own_key = self._key(key)
        key_state = self._keys.get(own_key)
        if key_state is not None and key_state.token == token and not key_state.settled:
            del self._keys[own_key]

    def _live(self, key: str, moment: int) -> _KeyState | None:
        key_state = self._keys.get(self._key(key))
        return None if key_state is None or key_state.until <= moment else key_state

    def _change(self, key: str, token: str, **changes: Any) -> bool:
        own_key = self._key(key)
        key_state = self._keys.get(own_key)
        if key_state is None or key_state.token != token or key_state.settled:
            return False
        self._keys[own_key] = key_state._replace(**changes)
        return True
