"""What the Redis forms share: a client, names below a prefix, and errors as `StoreUnavailable`.

Servers may have one Redis and one prefix, so the names of a server have its realm in them: a random text
that its database keeps. All processes of a database have the same one, and so have its other databases.

Every call is one command or one Lua script (`lua/`), which sets the expiry along with the value. The client
connects again by itself; one that is made from an address belongs to the event loop that uses it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterator
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from maniflex._clock import Clock
from maniflex._names import is_identifier
from maniflex.db.current import read_current, write_separately
from maniflex.db.port import Adapter
from maniflex.errors import RequestError
from maniflex.middleware.stores.form import Home, StoreForm
from maniflex.middleware.stores.port import StoreUnavailable
from maniflex.middleware.stores.sql_form import StoreRealmRow
from maniflex.sql.statement_files import load

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
