"""Which server a call of a store is for.

Servers of one process may share a store object, and what each of them keeps in it is its own. A call of a
request, a run or a service is for the server that these belong to. A call outside of them is for the only
server that has the store; where several have it, the call is refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import count
from typing import Any, ClassVar, Generic, TypeVar

from maniflex._caller import current_database
from maniflex._clock import Clock, SystemClock, nanoseconds_by
from maniflex._names import is_identifier
from maniflex.db.current import read_current, write_separately
from maniflex.db.port import Adapter, Row
from maniflex.errors import RequestError
from maniflex.middleware.stores.port import StoreUnavailable
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import TableRules
from maniflex.sql.statement import NamedStatement, Sql, load

_places = count(1)


class Home:
    """What a store knows of one server."""

    def __init__(self, adapter: Adapter, clock: Clock) -> None:
        self.adapter, self.clock = adapter, clock
        self.place = next(_places)
        self.has_ended = False  # the server has stopped


H = TypeVar("H", bound=Home)


class StoreForm(Generic[H]):
    """A store that knows which servers have it."""

    def __init__(self) -> None:
        self._homes: dict[int, H] = {}  # by database
        self._only: H | None = None  # where there is one alone
        self.only_place = 0  # its `place`, which replays ask for

    def _make_home(self, adapter: Adapter, clock: Clock) -> H:
        raise NotImplementedError

    def attach(self, adapter: Adapter, clock: Clock) -> None:
        """A server that has this database and clock is sealed."""
        self._homes = {key: home for key, home in self._homes.items() if not home.has_ended}
        self._homes[id(adapter)] = self._make_home(adapter, clock)
        self._note_homes()

    def detach(self, adapter: Adapter) -> bool:
        """The server with this database has stopped; returns whether all servers of the store have."""
        home = self._homes.get(id(adapter))
        if home is not None:
            home.has_ended = True
        return all(home.has_ended for home in self._homes.values())

    def _note_homes(self) -> None:
        self._only = next(iter(self._homes.values())) if len(self._homes) == 1 else None
        self.only_place = 0 if self._only is None else self._only.place

    @property
    def place(self) -> int:
        """A number for what a process remembers: no other store has it, nor this one for another server.

        It is another one after a new start; 0 before the first.
        """
        home = self._only or self._home()
        return 0 if home is None else home.place

    def _home(self) -> H | None:
        """The `Home` of the server that the call is for; None while no server has the store."""
        if self._only is not None or not self._homes:
            return self._only
        home = self._homes.get(id(current_database()))
        if home is not None:
            return home
        living = [home for home in self._homes.values() if not home.has_ended]
        if len(living) != 1:
            raise StoreUnavailable(
                f"{type(self).__name__}: several servers share it, and this call is in a request, a run or a"
                ' service of none; make it in a block of one, as `with server.acting_as("ann"):` is, or give'
                " each server a store of its own"
            )
        return living[0]


def place_of(store: Any) -> int:
    """The number of a store and of the server that asks, as far as the store tells servers apart."""
    place: int = getattr(store, "place", 0)
    return place


# What the forms in memory share: the time, and keys that have the database of their server in them.


OwnKey = tuple[Hashable, str]  # the database of a server, and a key of it


class MemoryHome(Home):
    """A server whose things are kept in this process."""

    realm: Hashable = None


class MemoryForm(StoreForm[MemoryHome]):
    """A store in this process: servers of one database share it, others have their own things in it."""

    mistakes: Any = ()

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._own_clock = clock
        self._default_clock: Clock = clock or SystemClock()
        self._first: Hashable = None  # the database that has what was kept before there was a server

    def _make_home(self, adapter: Adapter, clock: Clock) -> MemoryHome:
        home = MemoryHome(adapter, self._own_clock or clock)
        identity: Any = getattr(adapter, "identity", adapter)
        if self._first is None:
            self._first = identity
        home.realm = None if identity == self._first else identity
        return home

    @property
    def _clock(self) -> Clock:
        home = self._home()
        return self._default_clock if home is None else home.clock

    def _key(self, key: str) -> OwnKey:
        home = self._home()
        return (None if home is None else home.realm), key


# What the SQL forms share: the server's database, its clock, and errors as `StoreUnavailable`.
#
# Every call is one statement, committed by itself: never in the caller's open transaction, unless the
# method says so. So the forms hold no lock another request could wait for, and work behind poolers.


class SqlHome(Home):
    """A server in whose database the rows are."""

    statements: Mapping[str, NamedStatement]
    now: Callable[[], int]  # the time in nanoseconds


class SqlForm(StoreForm[SqlHome]):
    """A store in tables of the server's database, which the server hands over when it is sealed."""

    tables: ClassVar[Sequence[type[Model]]] = ()
    statements: ClassVar[str] = ""  # the name of their file

    def _make_home(self, adapter: Adapter, clock: Clock) -> SqlHome:
        home = SqlHome(adapter, clock)
        home.now = nanoseconds_by(clock)
        home.statements = load("maniflex.middleware", self.statements, adapter.dialect)
        return home

    def _require_home(self) -> SqlHome:
        home = self._home()
        if home is None:
            raise StoreUnavailable(
                f"{type(self).__name__} has no database; it is used once the server is sealed"
            )
        return home

    @property
    def adapter(self) -> Adapter:
        return self._require_home().adapter

    def _now(self) -> int:
        return self._require_home().now()

    def _write(self, name: str, **values: Any) -> Awaitable[list[Row]]:
        home = self._require_home()
        return self._write_sql(home.adapter, home.statements[name].bind_all(values))

    async def _write_sql(self, adapter: Adapter, sql: Sql) -> list[Row]:
        try:
            return await write_separately(adapter, sql)
        except RequestError as error:
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error

    async def _read(self, name: str, **values: Any) -> Row | None:
        home = self._require_home()
        try:
            return await read_current(home.adapter, home.statements[name].bind_all(values))
        except RequestError as error:
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error


# The tables of the SQL forms, as internal models without routes.
#
# The id is the SHA-256 of a key, so that a row has the same size for every key and shows none. Moments
# are nanoseconds since 1970 in plain integers: both databases add and compare them in the same words, and
# a bucket of any size divides its window without rounding into another token. Rows whose `expires_at` has
# passed count as absent and are removed by `background/expired_rows.py`.

# The statements name only what they mean; these two are filled by the database.
_STAMPED = TableRules(defaults=("created_at", "updated_at"))


class RateLimitRow(Model, table="rate_limit", headless=True):
    """One bucket: the moment at which it is full again says how many tokens it has."""

    __table_rules__: ClassVar = _STAMPED

    full_at: int
    granted: bool  # whether the last request got its tokens
    expires_at: int = field(index=True)  # rounded up, so that most requests change no index


class IdempotencyKeyRow(Model, table="idempotency_key", headless=True):
    """One key: claimed until `expires_at`, or settled with an answer that is kept until then."""

    __table_rules__: ClassVar = _STAMPED

    fingerprint: str
    token: str
    settled: bool
    answer: bytes | None = field(default=None)
    expires_at: int = field(index=True)


class RevokedTokenRow(Model, table="revoked_token", headless=True):
    """A token that was revoked."""

    __table_rules__: ClassVar = _STAMPED

    expires_at: int = field(index=True)


class RevokedUserRow(Model, table="revoked_user", headless=True):
    """A user whose tokens from before the cutoff are revoked."""

    __table_rules__: ClassVar = _STAMPED

    cutoff: int
    expires_at: int = field(index=True)


class CacheEntryRow(Model, table="cache_entry", headless=True):
    """A value or a number of a cache."""

    __table_rules__: ClassVar = _STAMPED

    value: bytes | None = field(default=None)
    number: int | None = field(default=None)
    expires_at: int | None = field(default=None, index=True)


class StoreRealmRow(Model, table="store_realm", headless=True):
    """One row: what tells the names of this database's servers from those of others in a store outside it."""

    __table_rules__: ClassVar = _STAMPED

    realm: str


# What the Redis forms share: a client, names below a prefix, and errors as `StoreUnavailable`.
#
# Servers may have one Redis and one prefix, so the names of a server have its realm in them: a random text
# that its database keeps. All processes of a database have the same one, and so have its other databases.
#
# Every call is one command or one Lua script (`lua/`), which sets the expiry along with the value. The client
# connects again by itself; one that is made from an address belongs to the event loop that uses it.


PATIENCE = 5.0  # seconds for a command


class RedisHome(Home):
    """A server that has names of its own in Redis."""

    realm = ""  # empty: not read yet


class RedisForm(StoreForm[RedisHome]):
    """A store in Redis: give it an address or a client of `redis.asyncio`.

    With `shared`, all servers that use the prefix have one store.
    """

    def __init__(
        self, client: Any = "redis://127.0.0.1:6379", prefix: str = "maniflex", *, shared: bool = False
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.mistakes = list(_mistakes(type(self).__name__, client, prefix, shared))
        self.tables = () if shared else (StoreRealmRow,)
        self._is_shared = shared
        self._url = client if isinstance(client, str) else None
        self._client = None if isinstance(client, str) else client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scripts: dict[str, Any] = {}

    def _make_home(self, adapter: Adapter, clock: Clock) -> RedisHome:
        return RedisHome(adapter, clock)

    def _home(self) -> RedisHome | None:
        """The server that the call is for; of those that share one store, any."""
        if self._is_shared:
            return next(iter(self._homes.values()), None)
        return super()._home()

    async def close(self) -> None:
        """Close the connections of a client that was made here."""
        client, loop = self._client, self._loop
        if self._url is not None and client is not None:
            self._client = self._loop = None
            if loop is asyncio.get_running_loop():
                await client.aclose()

    def _redis(self) -> Any:
        if self._url is None:
            return self._client
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop, self._client = loop, _connect(self._url)
        return self._client

    async def _ready(self) -> Any:
        """The client, once it is known what the names of the asking server begin with."""
        home = self._home()
        if home is not None and not home.realm and not self._is_shared:
            try:
                home.realm = await _realm_of(home.adapter)
            except RequestError as error:
                raise StoreUnavailable(f"{type(self).__name__}: {error}") from error
        return self._redis()

    @property
    def _start(self) -> str:
        home = None if self._is_shared else self._home()
        return self.prefix if home is None else f"{self.prefix}:{home.realm}"

    def _name(self, key: str) -> bytes:
        return f"{self._start}:{key}".encode("utf-8", "surrogatepass")

    async def _run(self, name: str, key: str, *args: Any) -> Any:
        """What the script of that name gives for one key."""
        redis = await self._ready()
        script = self._scripts.get(name)
        if script is None or script.registered_client is not redis:
            script = self._scripts[name] = redis.register_script(_script(name))
        return await self._await(script(keys=[self._name(key)], args=args))

    async def _await(self, call: Awaitable[Any]) -> Any:
        from redis.exceptions import RedisError

        try:
            return await call
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error


async def _realm_of(adapter: Adapter) -> str:
    """The realm that the database keeps, which is made where there is none."""
    statements = load("maniflex.middleware", "realm", adapter.dialect)
    row = await read_current(adapter, statements["find"].bind_all({}))
    if row is None:  # of two processes that come at once, one makes it for both
        await write_separately(adapter, statements["add"].bind_all({"realm": secrets.token_hex(8)}))
        row = await read_current(adapter, statements["find"].bind_all({}))
    assert row is not None, "what was added stays"
    return str(row[0])


def _connect(url: str) -> Any:
    """A client that tries a command once more on a new connection; scripts do no harm when they run twice."""
    from redis import asyncio as aioredis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    patience: Any = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}
    return aioredis.Redis.from_url(url, retry=Retry(NoBackoff(), 1), **patience)


def _mistakes(form: str, client: Any, prefix: Any, shared: Any) -> Iterator[str]:
    if not isinstance(shared, bool):
        yield f"stores.{form}: shared={shared!r} is neither True nor False"
    if find_spec("redis") is None:
        yield f'stores.{form} needs redis: pip install "maniflex[redis]"'
    if not isinstance(prefix, str) or not all(is_identifier(part) for part in prefix.split(":")):
        yield f"stores.{form}: prefix {prefix!r} is not made of plain names, such as shop:limits"
    if isinstance(client, str):
        if not client.startswith(("redis://", "rediss://", "unix://")):
            yield f"stores.{form}: an address is written redis://host:6379"
        return
    pool = getattr(client, "connection_pool", None)
    if not callable(getattr(client, "register_script", None)) or pool is None:
        yield f"stores.{form}: {client!r} is neither an address nor a client of redis.asyncio"
    elif pool.connection_kwargs.get("decode_responses"):
        yield f"stores.{form}: the client has decode_responses=True; values are bytes, so leave it out"


@cache
def _script(name: str) -> str:
    return (files("maniflex.middleware.stores") / "lua" / f"{name}.lua").read_text("utf-8")
