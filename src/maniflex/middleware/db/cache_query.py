"""`db.cache_query`: lists and records from a cache in place of the database."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar

import msgspec

from maniflex._caller import act_on, current_database
from maniflex.db.current import OnPrimary, current_tx
from maniflex.db.includes import IncludedRow, Related
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.db.write_seam import Change, after_commit_once
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.db.query_text import joins, query_text
from maniflex.middleware.stores.cache import SqlStore
from maniflex.middleware.stores.form import place_of
from maniflex.middleware.stores.port import CacheStore, Duration, mistakes_of, seconds_of
from maniflex.model.annotations import TYPES
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Kept, ListeningEntry, Piece, Seat, Trait, ask, describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next
from maniflex.pipeline.steps.db import Database, listing_of
from maniflex.query.query import Include, reachable_models

OWN = "own:"  # before the keys of the application's own
_LARGEST = 1_000_000  # bytes of an entry
_STEPS = {"list": False, "read": True, "read_singleton": True}  # of `Database`, and whether it finds one row
Key = Callable[[Context], Any]


@dataclass(frozen=True, slots=True)
class _Invalidation:
    """Makes what was cached of some models unreachable."""

    store: CarefulStore
    keys: frozenset[str]
    database: object | None  # of the server whose rows were written, which need not be the one that commits

    async def __call__(self) -> None:
        with act_on(self.database):
            await self.store.invalidate(self.keys)


class CacheQuery(ListeningEntry):
    """Rows of lists and records that were found before, as long as nothing they came from was written."""

    name = "db.cache_query"
    docs = describe_nothing
    homes: ClassVar = {"db": (At.BEFORE,)}
    acts_for = frozenset({Operation.LIST, Operation.READ})
    traits = Trait.HIDES_SECRETS
    hears_reached = True

    def __init__(self, store: CacheStore | None, ttl: Duration, key: Any, invalidate: bool) -> None:
        super().__init__()
        backing: Any = SqlStore() if store is None else store
        self.keeps = Kept((backing,))
        self.key: Key | None = key
        self.invalidates = invalidate
        self._roots: dict[str, frozenset[str]] = {}  # cached models, each with those it reaches
        self.mistakes += mistakes_of((backing,))
        self.mistakes += _mistakes(ttl, key, backing)
        self.ttl = 1.0 if self.mistakes else seconds_of(ttl)
        self.store = CarefulStore(backing, self.name)

    def problems(self, seat: Seat) -> Iterable[str]:
        for meta in seat.models:
            if seat.is_named and meta.is_internal:
                yield f"{meta.name} changes by itself, so it is not cached"
            if any(field.encrypted for field in meta.fields):
                yield f"{meta.name} has encrypted fields, which are kept in no cache; name other models"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """Around the default step alone: everything else runs as it does without a cache."""
        for meta in seat.models:
            self._roots[meta.name] = frozenset(one.name for one in reachable_models(meta, seat.registered))

        def wrap(default: Default) -> Default:
            database, name = getattr(default, "__self__", None), getattr(default, "__name__", "")
            if not isinstance(database, Database) or name not in _STEPS or database.store.meta.is_internal:
                return default
            return _CachedStep(self, default, database, one=_STEPS[name])

        return (Piece("db", lambda model, operation: None, At.BEFORE, wrap=wrap),)

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """Written rows make what was cached of their models unreachable, once the write is committed."""
        if self.invalidates:
            keys = frozenset(key for change in changes for key in self._generations_of(change.meta.name))
            if keys:
                after_commit_once(tx, _Invalidation(self.store, keys, current_database()))

    def _generations_of(self, name: str) -> Iterator[str]:
        for root, related_names in self._roots.items():
            if name == root:
                yield narrow_generation(root)
            if name == root or name in related_names:
                yield wide_generation(root)


def narrow_generation(model: str) -> str:
    """The key of the generation that ends with a change of the model's own rows."""
    return f"generation:{model}"


def wide_generation(model: str) -> str:
    """The key of the generation that ends with a change of its rows or of those it reaches."""
    return f"generation:{model}+"


class _CachedStep:
    """The database step of one model behind a cache."""

    def __init__(self, entry: CacheQuery, default: Default, database: Database, *, one: bool) -> None:
        self._entry = entry
        self._default = default
        self._store = database.store
        self._one = one
        self._running: dict[str, asyncio.Future[bytes | None]] = {}
        self._start = f"query:{self._store.meta.name}:{_schema(self._store.meta)}:"

    async def __call__(self, ctx: Context) -> None:
        key = None if current_tx(self._store.adapter) is not None else await self._key(ctx)
        if key is None:
            await self._find(ctx)
            return
        content = await self._entry.store.get(key)
        if content is not None and await self._show(ctx, key, content):
            return
        running = self._running.get(key)
        if running is None:
            await self._find_and_keep(ctx, key)
            return
        shared_content = await asyncio.shield(running)
        if shared_content is None or not await self._show(ctx, key, shared_content):
            await self._find(ctx)

    async def _find(self, ctx: Context) -> None:
        outcome = self._default(ctx)
        if outcome is not None:
            await outcome

    async def _find_and_keep(self, ctx: Context, key: str) -> None:
        """Ask the database, for all who ask the same meanwhile."""
        running: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._running[key] = running
        content = None
        try:
            with OnPrimary():  # what a replica shows late would be kept for the whole `ttl`
                await self._find(ctx)
            content = pack(ctx, self._store, self._includes(ctx), one=self._one)
        finally:
            del self._running[key]
            running.set_result(content)
        if content is not None and len(content) <= _LARGEST:
            await self._entry.store.set(key, content, self._entry.ttl)

    async def _show(self, ctx: Context, key: str, content: bytes) -> bool:
        try:
            unpack(ctx, self._store, self._includes(ctx), content, one=self._one)
        except (msgspec.MsgspecError, ValueError):
            await self._entry.store.delete((key,))
            return False
        return True

    def _includes(self, ctx: Context) -> Any:
        return () if ctx._query is None else ctx._query.includes

    async def _key(self, ctx: Context) -> str | None:
        """Everything that decides what this caller may see; None when it must not be cached."""
        entry, store = self._entry, self._entry.store
        query = ctx._query if self._one else ctx._query or ctx.current_query()
        own = ""
        if entry.key is not None:
            own = await ask(ctx, entry.key, ctx)
            if own is None or own == "":
                return None
        generations: list[str | None] = []
        if entry.invalidates:
            is_wide = query is not None and joins(query)
            name = self._store.meta.name
            generation_key = wide_generation(name) if is_wide else narrow_generation(name)
            generations.append(await store.generation(generation_key, 2 * entry.ttl))
        if own:
            generations.append(await store.generation(f"{OWN}{own}", 2 * entry.ttl))
        if None in generations:
            return None
        text = "" if query is None else query_text(query)
        locale = getattr(ctx, "locale", None)
        parts = (self._one, ctx.resource_id, text, str(own), str(locale), generations)
        return self._start + hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _schema(meta: ModelMeta) -> str:
    """A text that changes with the columns of the model."""
    columns = repr([(field.name, field.column, str(field.kind)) for field in meta.fields])
    return hashlib.sha256(columns.encode()).hexdigest()[:16]


def _mistakes(ttl: Any, key: Any, store: Any) -> Iterator[str]:
    if as_timedelta(ttl) <= timedelta(0):
        yield f"ttl={ttl!r} is not a time: give seconds or a timedelta"
    if key is not None and not callable(key):
        yield f"key={key!r} is not a function of (ctx)"
    if not all(callable(getattr(store, name, None)) for name in ("get", "set", "delete")):
        yield f"store={store!r} is no cache; use one of maniflex.middleware.stores"


def cache_query(
    store: CacheStore | None = None, ttl: Duration = 300, *, key: Key | None = None, invalidate: bool = True
) -> CacheQuery:
    """Answer lists and reads from a cache: the database is left out, everything else runs as without it.

    What a caller may see is always part of the key; `key(ctx)` adds to it, and None or "" is not cached.
    Committed writes make older entries unreachable; with `invalidate=False` they stay for `ttl`.
    """
    return CacheQuery(store, ttl, key, invalidate)


# A cache that may fail: a miss, said once a minute.


T = TypeVar("T")
WITHIN = 3.0  # seconds for a call
_LOG_EVERY = 60.0
_REST = 1.0  # after a failure, in which nothing is asked


class CarefulStore:
    """Calls of a store that raise nothing; what could not be made invalid is remembered and tried again."""

    def __init__(self, store: CacheStore, name: str) -> None:
        self.store = store
        self._name = name
        self._unsaid: set[tuple[int, str]] = set()  # by the server that they are of
        self._logged_at = self._failed_at = -math.inf
        self._log = logging.getLogger("maniflex")

    async def get(self, key: str) -> bytes | None:
        return await self._attempt(self.store.get(key), None) if self._is_awake() else None

    async def set(self, key: str, value: bytes, ttl: float) -> bool:
        async def call() -> bool:
            await self.store.set(key, value, ttl)
            return True

        return await self._attempt(call(), False) if self._is_awake() else False

    async def delete(self, keys: Iterable[str]) -> bool:
        async def call() -> bool:
            await self.store.delete(*keys)
            return True

        return await self._attempt(call(), False)

    async def generation(self, key: str, ttl: float) -> str | None:
        """The current generation, a new one if there is none; None when the store fails."""
        if self._unsaid and (place_of(self.store), key) in self._unsaid and not await self.invalidate((key,)):
            return None
        generation = await self.get(key)
        if generation is not None:
            return generation.decode("latin-1")
        new = secrets.token_hex(8)
        return new if await self.set(key, new.encode(), ttl) else None

    async def invalidate(self, keys: Iterable[str]) -> bool:
        """End the generations, so that nothing which was stored under them is found again."""
        names, place = set(keys), place_of(self.store)
        unsaid = {(place, name) for name in names}
        self._unsaid |= unsaid
        if not await self.delete(sorted(names)):
            return False
        self._unsaid -= unsaid
        return True

    def _is_awake(self) -> bool:
        return time.monotonic() - self._failed_at >= _REST

    async def _attempt(self, call: Awaitable[T], otherwise: T) -> T:
        try:
            async with asyncio.timeout(WITHIN):
                return await call
        except Exception as error:
            now = time.monotonic()
            self._failed_at = now
            if now - self._logged_at >= _LOG_EVERY:
                self._logged_at = now
                self._log.warning("%s: the store failed, so nothing is cached: %s", self._name, error)
            return otherwise


# What the database step found, as bytes and back: rows, totals and related rows, without secrets.


_TYPES: dict[Kind, Any] = {**TYPES, Kind.JSON: str}


class _Included(msgspec.Struct, array_like=True):
    """The rows of one relation, each once, and which of them belong to which row of the owner."""

    places: list[list[int] | int | None]
    rows: msgspec.Raw
    weights: list[int]
    nested: list[_Included]


class _Outcome(msgspec.Struct, array_like=True):
    rows: msgspec.Raw
    total: int
    more: bool
    included: list[_Included]


def pack(ctx: Context, store: Store, includes: Sequence[Include], *, one: bool) -> bytes | None:
    """The outcome of the database step; None when it cannot be told exactly."""
    fields = store.meta.fields if one else listing_of(ctx, store).fields
    rows: Sequence[Any] = [ctx.row] if one else ctx.rows or ()
    try:
        outcome = _Outcome(
            msgspec.Raw(_pack_rows(fields, rows)), ctx.total, ctx.more, _pack_related(includes, ctx.related)
        )
        return msgspec.msgpack.encode(outcome)
    except (ValueError, TypeError, msgspec.MsgspecError):  # a value of SQLite that no type describes
        return None


def unpack(ctx: Context, store: Store, includes: Sequence[Include], content: bytes, *, one: bool) -> None:
    """Leave the outcome on the context, as the database step would; `MsgspecError` for anything else."""
    outcome = msgspec.msgpack.decode(content, type=_Outcome)
    listing = None if one else listing_of(ctx, store)
    fields = store.meta.fields if listing is None else listing.fields
    rows = _unpack_rows(fields, outcome.rows)
    related_rows = _unpack_related(store, includes, outcome.included, len(rows))
    if one:
        [ctx.row] = rows
        if not ctx.resource_id:  # of a singleton, which the database step would have looked up
            ctx.resource_id = str(ctx.row[store.sql.names.index("id")])
    else:
        ctx.rows, ctx.listing = rows, listing
    ctx.total, ctx.more, ctx.related = outcome.total, outcome.more, related_rows


def _pack_rows(fields: Sequence[FieldMeta], rows: Sequence[Any]) -> bytes:
    secret = [field.secret for field in fields]
    visible_rows = [tuple(None if hide else row[i] for i, hide in enumerate(secret)) for row in rows]
    content = msgspec.msgpack.encode(visible_rows)
    if _decoder(tuple(field.kind for field in fields)).decode(content) != visible_rows:
        raise ValueError("the rows are not what they would be read as")
    return content


def _unpack_rows(fields: Sequence[FieldMeta], content: msgspec.Raw) -> list[Row]:
    rows: list[Row] = _decoder(tuple(field.kind for field in fields)).decode(content)
    return rows


@lru_cache(maxsize=1024)
def _decoder(kinds: tuple[Kind, ...]) -> msgspec.msgpack.Decoder[Any]:
    row: Any = tuple[tuple(_TYPES[kind] | None for kind in kinds)]  # type: ignore[misc]  # known at run time
    return msgspec.msgpack.Decoder(list[row])


def _pack_related(includes: Sequence[Include], related: Sequence[Related]) -> list[_Included]:
    relations = []
    for include in includes:
        entries: dict[int, IncludedRow] = {}
        places: list[list[int] | int | None] = []
        numbers: dict[int, int] = {}
        for by_relation in related:
            entry = by_relation.get(include.relation.name)
            several = entry if isinstance(entry, list) else [] if entry is None else [entry]
            for one in several:
                entries.setdefault(id(one), one)
                numbers.setdefault(id(one), len(numbers))
            ids = [numbers[id(one)] for one in several]
            places.append(ids if isinstance(entry, list) else ids[0] if ids else None)
        unique = list(entries.values())
        fields = unique[0].store.meta.fields if unique else ()
        rows = msgspec.Raw(_pack_rows(fields, [one.row for one in unique]))
        below = _pack_related(include.nested, [one.related for one in unique])
        relations.append(_Included(places, rows, [one.weight for one in unique], below))
    return relations


def _unpack_related(
    store: Store, includes: Sequence[Include], packed: Sequence[_Included], count: int
) -> list[Related]:
    if not includes:
        return []
    relations_of_rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for include, one in zip(includes, packed, strict=True):
        target = store.stores_by_model[include.relation.target]
        rows = _unpack_rows(target.meta.fields, one.rows) if one.weights else []
        below: Sequence[Related] = _unpack_related(target, include.nested, one.nested, len(rows))
        entries = [
            IncludedRow(target, row, below[i] if below else {}, weight)
            for i, (row, weight) in enumerate(zip(rows, one.weights, strict=True))
        ]
        for by_relation, place in zip(relations_of_rows, one.places, strict=True):
            if isinstance(place, list):
                by_relation[include.relation.name] = [entries[i] for i in place]
            elif place is not None:
                by_relation[include.relation.name] = entries[place]
    return relations_of_rows  # type: ignore[return-value]  # a dict is such a mapping


# `db.invalidate`: keys of the application's own that a write makes invalid.


class Invalidate(Entry):
    """Deletes keys when the write of the request is committed."""

    name = "db.invalidate"
    docs = describe_nothing
    homes: ClassVar = {"db": (At.AFTER,)}
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})

    def __init__(self, store: CacheStore, keys: Any) -> None:
        super().__init__()
        self.keeps = Kept((store,))
        self._store = CarefulStore(store, self.name)
        self._keys = keys
        self.mistakes += mistakes_of((store,))
        if not callable(getattr(store, "delete", None)):
            self.mistakes.append(f"store={store!r} has no delete(); use one of maniflex.middleware.stores")
        if not callable(keys):
            self.mistakes.append(f"keys={keys!r} is not a function of (ctx)")

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in self.acts_for else None

    async def __call__(self, ctx: Context, next: Next) -> None:
        keys = [str(key) for key in await ask(ctx, self._keys, ctx)]
        if keys:
            ctx.after_commit(partial(self._delete, [*keys, *(f"{OWN}{key}" for key in keys)], ctx.database()))
        await next()

    async def _delete(self, keys: list[str], database: object | None) -> None:
        with act_on(database):  # code of another server may have opened the transaction
            await self._store.delete(keys)


def invalidate(store: CacheStore, keys: Callable[[Context], Iterable[str] | Any]) -> Invalidate:
    """Delete the keys that `keys(ctx)` names once the request's write is committed, never after a rollback.

    They are keys that the application set in the store, and those of `cache_query(key=...)`.
    """
    return Invalidate(store, keys)
