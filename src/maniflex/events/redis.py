"""Events in one Redis Stream, which each subscription reads as a consumer group; needs `maniflex[redis]`.

An entry has one field, `data`: the event as structured JSON. A message in hand is an entry of the group's
pending list. Its lease is the time it sits idle there: a thread renews it, and a consumer takes over what sat
idle for a whole lease. How often an entry was delivered is counted by Redis, one more for each attempt.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import msgspec

from maniflex._ids import new_id
from maniflex.errors import DeclarationError, Timeout, Unavailable
from maniflex.events.base import BaseBus, Secrets, check_count, check_scheme, hide_password, seconds_of
from maniflex.events.cloudevents import UnreadableEvent, read_structured, structured_bytes
from maniflex.events.consuming import Consumer, Gone, TakenMessage, log
from maniflex.events.event import Event
from maniflex.events.port import Disconnected, SubscriptionPlan

try:
    from redis import Redis
    from redis import asyncio as aioredis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
    from redis.exceptions import TimeoutError as TooSlow
except ImportError as missing:
    raise DeclarationError("RedisBus needs the redis package: pip install 'maniflex[redis]'") from missing

AT_ONCE = 500  # entries in one pipeline
BLOCK = 200  # milliseconds that a read waits for entries
TIDY_EVERY = (
    10.0  # seconds between looks for entries that were trimmed unread, and for consumers that are gone
)
GONE_AFTER = timedelta(minutes=10)  # a consumer without work that nobody was heard of for so long is removed

_GROUP_IS_GONE = ("NOGROUP", "UNBLOCKED")  # how Redis begins to say so, the latter to a read that waits
# Renew the lease of entries that are still ours; with `mode` "attempt" one more delivery is counted, with
# "back" the entry may be taken over at once. Gives the ids that are not ours any more.
_HOLD = """
local lost = {}
for i = 4, #ARGV do
  local entry = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1]
  if not entry then
    lost[#lost + 1] = ARGV[i]
  elseif ARGV[3] == 'attempt' then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i])
  elseif ARGV[3] == 'lease' then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
  else
    local count = entry[4]
    if ARGV[3] == 'uncharged' then count = math.max(count - 1, 0) end
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', 2147483647, 'RETRYCOUNT', count)
  end
end
return lost
"""
# Remove consumers of a group that have nothing in hand: one by its name, or all that were idle for so long.
_TIDY = """
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #row, 2 do consumer[row[i]] = row[i + 1] end
  local is_meant = consumer.name == ARGV[2] or consumer.idle > tonumber(ARGV[3])
  if consumer.pending == 0 and is_meant then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end
"""


class RedisBus(BaseBus):
    """Events in the stream `{prefix}:events`; all processes use the same lease."""

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        prefix: str = "maniflex",
        maxlen: int | None = 100_000,
        lease: timedelta | float = timedelta(seconds=60),
        timeout: timedelta | float = timedelta(seconds=5),
        on_disconnected: Disconnected | None = None,
    ) -> None:
        super().__init__(on_disconnected)
        check_scheme("RedisBus", url, "redis://", "rediss://", "unix://")
        self.lease, self.timeout = seconds_of("RedisBus", lease=lease, timeout=timeout)
        if maxlen is not None:
            check_count("RedisBus", "maxlen", maxlen)
        self.stream = f"{prefix}:events"
        self.lost = 0  # entries that were trimmed before a subscription of ours had handled them
        self._url = url
        self._secrets = Secrets(url)
        self._maxlen = maxlen
        self._client: Any = None
        self._leases = _LeaseThread(self)

    def __repr__(self) -> str:
        return f"RedisBus({hide_password(self._url)!r}, stream={self.stream!r})"

    # -- for BaseBus

    async def connect(self) -> None:
        if self._client is None:
            async with self.translating():
                client = self.client()
                try:
                    await client.ping()
                except BaseException:
                    await client.aclose()
                    raise
                self._client = client

    async def hang_up(self) -> None:
        self._leases.end()
        client, self._client = self._client, None
        if client is not None:
            with suppress(RedisError, OSError):
                await client.aclose()

    async def send(self, events: Sequence[Event]) -> None:
        texts = [structured_bytes(event) for event in events]
        await self.connect()
        for start in range(0, len(texts), AT_ONCE):
            async with self.translating(), self._client.pipeline(transaction=False) as pipeline:
                for text in texts[start : start + AT_ONCE]:
                    pipeline.xadd(self.stream, {"data": text}, maxlen=self._maxlen, approximate=True)
                # The error that `execute` raises by itself shows the whole command, with the data.
                answers = await pipeline.execute(raise_on_error=False)
                for answer in answers:
                    if isinstance(answer, Exception):
                        raise answer

    def consumer(self, plan: SubscriptionPlan) -> Consumer:
        return _RedisConsumer(plan, self)

    async def remove(self, plan: SubscriptionPlan) -> None:
        async with self.translating():
            with suppress(ResponseError):  # there is no stream yet
                await self._client.xgroup_destroy(self.stream, plan.id)

    # -- for its consumers

    @property
    def redis(self) -> Any:
        return self._client

    @property
    def leases(self) -> _LeaseThread:
        return self._leases

    def client(self) -> Any:
        # Without attempts of its own: a publish that fails is the caller's to repeat.
        return aioredis.Redis.from_url(self._url, retry=Retry(NoBackoff(), 0), **self._limits())

    def thread_client(self) -> Any:
        """The same server, for a thread without an event loop."""
        return Redis.from_url(self._url, **self._limits())

    def _limits(self) -> dict[str, Any]:
        return {"socket_timeout": self.timeout, "socket_connect_timeout": self.timeout, "protocol": 2}

    @asynccontextmanager
    async def translating(self) -> AsyncIterator[None]:
        """A block that asks Redis, no longer than the timeout; what fails is `Unavailable` or `Timeout`."""
        try:
            async with asyncio.timeout(self.timeout):
                yield
        except (TooSlow, TimeoutError):
            raise Timeout("Redis took too long") from None
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and str(error).startswith(_GROUP_IS_GONE):
                raise
            raise Unavailable(f"Redis cannot be used right now: {self._secrets.clean(error)}") from None


class _RedisConsumer(Consumer):
    def __init__(self, plan: SubscriptionPlan, bus: RedisBus) -> None:
        super().__init__(plan, bus.send_letter)
        self._bus = bus
        self._name = f"{socket.gethostname()}-{os.getpid()}-{plan.group}-{new_id()[-8:]}"
        self._position = "0-0"  # what was read up to; of a group that is lost, it is made again from here
        self._next_claim = self._next_tidy = 0.0
        self._cursor = "0-0"
        self._block = int(min(BLOCK, bus.timeout * 500))

    async def prepare(self) -> None:
        async with self._bus.translating():
            info = await self._stream_info()
            self._position = "0-0" if self.plan.start == "beginning" else info[0]
            entries_read = 0 if self.plan.start == "beginning" else info[1]
            await self._make_group(entries_read)

    async def start(self) -> None:
        await super().start()
        self._bus.leases.begin()

    async def _stream_info(self) -> tuple[str, int | None]:
        """The id of the last entry there ever was, and how many were added; of no stream, the beginning."""
        try:
            info = await self._bus.redis.xinfo_stream(self._bus.stream)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return "0-0", 0
        return _text(info["last-generated-id"]), info.get("entries-added")

    async def _make_group(self, entries_read: int | None) -> None:
        redis, stream = self._bus.redis, self._bus.stream
        try:
            await redis.xgroup_create(
                stream, self.plan.id, self._position, mkstream=True, entries_read=entries_read
            )
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def take(self, room: int) -> Sequence[TakenMessage]:
        try:
            return await self._claim_or_read(room)
        except ResponseError:  # Redis lost the stream, or somebody removed the group
            async with self._bus.translating():
                last, _ = await self._stream_info()
                if _order(last) < _order(self._position):
                    self._position = "0-0"  # it is another stream by now
                await self._make_group(None)
            log.error("group %s: Redis had lost it; it reads on at %s", self.plan.group, self._position)
            return ()

    async def _claim_or_read(self, room: int) -> Sequence[TakenMessage]:
        now = asyncio.get_running_loop().time()
        if now >= self._next_claim:
            messages = await self._take_over(room)
            if not messages:
                self._next_claim = now + min(self._bus.lease / 4, 5)
                if now >= self._next_tidy:
                    self._next_tidy = now + TIDY_EVERY
                    await self._tidy()
            else:
                return messages
        async with self._bus.translating():
            answer = await self._bus.redis.xreadgroup(
                self.plan.id, self._name, {self._bus.stream: ">"}, count=room, block=self._block
            )
        rows = answer[0][1] if answer else []
        if rows:
            self._position = max(self._position, _text(rows[-1][0]), key=_order)
        return [self._message(id, fields, 1) for id, fields in rows]

    def _message(self, id: Any, fields: Any, deliveries: int) -> TakenMessage:
        message = _RedisMessage(self, _text(id), fields, deliveries)
        self._bus.leases.hold(self, message.label)
        return message

    # -- entries of consumers that are gone

    async def _take_over(self, room: int) -> Sequence[TakenMessage]:
        """Take entries that sat idle for a whole lease; those that were trimmed meanwhile are lost."""
        async with self._bus.translating():
            redis, stream, group = self._bus.redis, self._bus.stream, self.plan.id
            idle = int(self._bus.lease * 1000)
            rows: list[tuple[str, Any]] = []
            while not rows:
                answer = await redis.xautoclaim(stream, group, self._name, idle, self._cursor, room)
                self._cursor = _text(answer[0])
                rows = [(_text(id), fields) for id, fields in answer[1] if fields is not None]
                if len(answer) > 2 and answer[2]:
                    self._tell_of_loss(len(answer[2]), "in hand of a consumer that is gone")
                if self._cursor == "0-0":
                    break
            if not rows:
                return ()
            async with redis.pipeline(transaction=False) as pipeline:
                for id, _ in rows:
                    pipeline.xpending_range(stream, group, id, id, 1)
                entries = await pipeline.execute()
        counts = [entry[0]["times_delivered"] if entry else 1 for entry in entries]
        return [self._message(id, fields, count) for (id, fields), count in zip(rows, counts, strict=True)]

    async def _tidy(self) -> None:
        async with self._bus.translating():
            redis, stream = self._bus.redis, self._bus.stream
            await redis.eval(_TIDY, 1, stream, self.plan.id, "", int(GONE_AFTER.total_seconds() * 1000))
            info = await redis.xinfo_stream(stream)
            groups = {_text(group["name"]): group for group in await redis.xinfo_groups(stream)}
        group = groups.get(self.plan.id)
        if group is None or group.get("entries-read") is None or info.get("entries-added") is None:
            return
        trim_count = info["entries-added"] - info["length"]
        if (unread := trim_count - group["entries-read"]) > 0:
            await self._pass_over_trimmed(info, unread)

    async def _pass_over_trimmed(self, info: Any, unread: int) -> None:
        """Tell of entries that were trimmed unread once, in whichever consumer sees them first."""
        self._tell_of_loss(unread, "not read yet")
        first = info["first-entry"]
        before = _text(info["last-generated-id"]) if first is None else _before(_text(first[0]))
        read = info["entries-added"] - info["length"]
        async with self._bus.translating():
            await self._bus.redis.xgroup_setid(self._bus.stream, self.plan.id, before, entries_read=read)

    def _tell_of_loss(self, count: int, where: str) -> None:
        self._bus.lost += count
        text = "group %s: %d events are lost: the stream was trimmed while they were %s; raise maxlen="
        log.error(text, self.plan.group, count, where)

    # -- for its messages

    @property
    def bus(self) -> RedisBus:
        return self._bus

    def hold_arguments(self, mode: str, ids: Sequence[str]) -> tuple[Any, ...]:
        """The arguments of the script that renews leases."""
        return (_HOLD, 1, self._bus.stream, self.plan.id, self._name, mode, *ids)

    async def finish(self) -> None:
        async with self._bus.translating():
            await self._bus.redis.eval(_TIDY, 1, self._bus.stream, self.plan.id, self._name, 2**52)


class _RedisMessage(TakenMessage):
    def __init__(self, consumer: _RedisConsumer, id: str, fields: Any, deliveries: int) -> None:
        self.label = self.identity = id
        self.begun = deliveries - 1
        self._consumer = consumer
        self._fields = fields

    def read(self) -> Event:
        data = self._fields.get(b"data")
        if data is None:
            raise UnreadableEvent("the entry has no field 'data'")
        return read_structured(data)

    @property
    def raw(self) -> bytes:
        data = self._fields.get(b"data")
        if data is not None:
            return bytes(data)
        texts = {_text(name): _text(value) for name, value in self._fields.items()}
        return msgspec.json.encode(texts)

    async def acknowledge(self) -> None:
        bus = self._consumer.bus
        async with bus.translating():
            await bus.redis.xack(bus.stream, self._consumer.plan.id, self.label)

    async def note_attempt(self) -> None:
        if await self._hold("attempt"):
            raise Gone

    async def hand_back(self, *, is_begun: bool) -> None:
        await self._hold("back" if is_begun else "uncharged")

    async def _hold(self, mode: str) -> Any:
        bus = self._consumer.bus
        try:
            async with bus.translating():
                return await bus.redis.eval(*self._consumer.hold_arguments(mode, [self.label]))
        except ResponseError:  # the group is gone, and is made again by the next read
            return []

    def let_go(self) -> None:
        self._consumer.bus.leases.drop(self._consumer, self.label)


class _LeaseThread:
    """Renews the leases of all messages in hand, also while a handler blocks the event loop."""

    def __init__(self, bus: RedisBus) -> None:
        self._bus = bus
        self._held: dict[_RedisConsumer, set[str]] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._thread is None:
            self._ending = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._ending,), name="maniflex-events-leases", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """Renew nothing more; the thread ends by itself."""
        self._ending.set()
        self._thread = None
        with self._lock:
            self._held.clear()

    def hold(self, consumer: _RedisConsumer, id: str) -> None:
        with self._lock:
            self._held.setdefault(consumer, set()).add(id)

    def drop(self, consumer: _RedisConsumer, id: str) -> None:
        with self._lock:
            ids = self._held.get(consumer, set())
            ids.discard(id)
            if not ids:
                self._held.pop(consumer, None)

    def _run(self, ending: threading.Event) -> None:
        client, failures = None, 0
        while not ending.wait(self._bus.lease / 4):
            with self._lock:
                leases = [(consumer, list(ids)) for consumer, ids in self._held.items()]
            if not leases:
                continue
            try:
                client = client or self._bus.thread_client()
                for consumer, ids in leases:
                    for start in range(0, len(ids), AT_ONCE):
                        client.eval(*consumer.hold_arguments("lease", ids[start : start + AT_ONCE]))
                failures = 0
            except Exception as error:  # it is tried again, and a lease lasts for several tries
                failures += 1
                if failures == 1:
                    log.warning("leases of events in Redis could not be renewed: %s", type(error).__name__)
        if client is not None:
            with suppress(Exception):
                client.close()


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _order(id: str) -> tuple[int, int]:
    moment, _, number = id.partition("-")
    return int(moment), int(number or 0)


def _before(id: str) -> str:
    """The largest id below this one."""
    moment, number = _order(id)
    return f"{moment}-{number - 1}" if number else f"{moment - 1}-{2**64 - 1}"
