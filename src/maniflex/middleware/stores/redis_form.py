"""What the Redis forms share: a client, names below a prefix, and errors as `StoreUnavailable`.

Every call is one command or one Lua script (`lua/`), which sets the expiry along with the value. The client
connects again by itself; one that is made from an address belongs to the event loop that uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from maniflex._clock import Clock
from maniflex._names import is_identifier
from maniflex.db.port import Adapter
from maniflex.middleware.stores.port import StoreUnavailable

PATIENCE = 5.0  # seconds for a command


class RedisForm:
    """A store in Redis: give it an address or a client of `redis.asyncio`."""

    def __init__(self, client: Any = "redis://127.0.0.1:6379", prefix: str = "maniflex") -> None:
        self.prefix = prefix
        self.mistakes = list(_mistakes(type(self).__name__, client, prefix))
        self._url = client if isinstance(client, str) else None
        self._client = None if isinstance(client, str) else client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scripts: dict[str, Any] = {}

    def attach(self, adapter: Adapter, clock: Clock) -> None:
        """Nothing of the server is needed."""

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

    def _name(self, key: str) -> bytes:
        return f"{self.prefix}:{key}".encode("utf-8", "surrogatepass")

    async def _run(self, name: str, key: str, *args: Any) -> Any:
        """What the script of that name gives for one key."""
        redis = self._redis()
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


def _connect(url: str) -> Any:
    """A client that tries a command once more on a new connection; scripts do no harm when they run twice."""
    from redis import asyncio as aioredis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    patience: Any = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}
    return aioredis.Redis.from_url(url, retry=Retry(NoBackoff(), 1), **patience)


def _mistakes(form: str, client: Any, prefix: Any) -> Iterator[str]:
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
