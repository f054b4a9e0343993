"""`db.cache_query`: lists and records from a cache in place of the database."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import msgspec

from maniflex._caller import act_on, current_database
from maniflex.db.changes import Change, after_commit_once
from maniflex.db.current import OnPrimary, current_tx
from maniflex.db.port import Tx
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.db.cache_store import CarefulStore
from maniflex.middleware.db.cached_rows import pack, unpack
from maniflex.middleware.db.query_text import joins, query_text
from maniflex.middleware.stores.cache import SqlStore
from maniflex.middleware.stores.port import CacheStore, Duration, mistakes_of
from maniflex.middleware.stores.units import seconds_of
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat, ask
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At
from maniflex.pipeline.steps.db import Database
from maniflex.query.query import reachable_models

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


class CacheQuery(Entry):
    """Rows of lists and records that were found before, as long as nothing they came from was written."""

    name = "db.cache_query"
    docs = describe_nothing
    homes: ClassVar = {"db": (At.BEFORE,)}
    acts_for = frozenset({Operation.LIST, Operation.READ})
    listens = True
    listens_to_reached = True
    hides_secrets = True

    def __init__(self, store: CacheStore | None, ttl: Duration, key: Any, invalidate: bool) -> None:
        super().__init__()
        backing: Any = SqlStore() if store is None else store
        self.stores = (backing,)
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
