"""Jobs in Redis Streams, for fleets that want no database in between; needs `maniflex[redis]`.

Each type has a stream that a consumer group reads. A delivery is an entry of the group's pending
list: renewing resets its idle time, and a worker that finds an entry idle for a whole lease takes it
back. Every step is one Lua script (`lua/`, `common.lua` says which keys there are), so a crash
between two steps leaves nothing half done. What is due goes by the time of the Redis server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from maniflex._clock import Backoff, Clock, SystemClock
from maniflex._fence import Fence
from maniflex._ids import new_id
from maniflex._logging import guard_logger
from maniflex.background.clock import JUMP, AskedClock, may_take_over, synchronise
from maniflex.background.jobs.inproc import ABANDONED
from maniflex.background.jobs.port import (
    Delivery,
    Job,
    Recovered,
    Result,
    dead_letter,
    dump,
    load,
    validate_job,
)
from maniflex.background.leases import Held
from maniflex.db.current import detached_context
from maniflex.errors import Conflict, NotFound, Timeout, Unavailable

try:
    from redis import asyncio as aioredis
    from redis.exceptions import ConnectionError as Disconnected
    from redis.exceptions import RedisError
    from redis.exceptions import TimeoutError as TooSlow
except ImportError as missing:
    raise ImportError("jobs in Redis need the redis package: pip install 'maniflex[redis]'") from missing

BLOCK = timedelta(seconds=2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
log = guard_logger(logging.getLogger("maniflex.jobs"))


class RedisQueue:
    """A queue, and the source of its workers, in Redis; all workers of a queue use the same lease."""

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        prefix: str = "maniflex:jobs",
        lease: timedelta = timedelta(seconds=30),
        timeout: timedelta = timedelta(seconds=10),
        clock: Clock | None = None,
    ) -> None:
        self.lease = lease
        has_braces = prefix.startswith("{") and prefix.endswith("}")  # as the keys have it, for a cluster
        self.prefix = prefix if has_braces else "{" + prefix + "}"
        self._url = url
        self._timeout = timeout
        self._machine = clock or SystemClock()
        is_real = isinstance(self._machine, SystemClock)
        self.clock: Clock = AskedClock(self._machine, self._ask_time) if is_real else self._machine
        self._unanswered: dict[str, frozenset[str]] = {}  # token of a claim without an answer → its types
        self._client: Any = None
        self._scripts: dict[str, Any] = {}

    # -- for producers

    async def enqueue(self, job: Job) -> str:
        """Keep the job; the id is free again when the job is over."""
        job = validate_job(job)
        await synchronise(self.clock)
        if not await self._call("enqueue", *self._keep_arguments(job)):
            raise Conflict("there is a job of this id already")
        return job.id

    async def enqueue_at(self, job: Job, when: datetime) -> str:
        """Keep the job and start it no earlier than `when`."""
        return await self.enqueue(replace(job, not_before=when))

    async def cancel(self, id: str) -> None:
        """Forget a job that waits."""
        match (await self._call("cancel", id)).decode():
            case "unknown":
                raise NotFound("job not found")
            case "running":
                raise Conflict("the job is running and cannot be cancelled")

    # -- for workers

    def sibling(self) -> RedisQueue:
        prefix = self.prefix[1:-1]
        return RedisQueue(
            self._url, prefix=prefix, lease=self.lease, timeout=self._timeout, clock=self._machine
        )

    async def open(self) -> None:
        """Answers once Redis does."""
        await self._translate_errors(self._redis().ping())

    async def close(self) -> None:
        client, self._client = self._client, None
        self._scripts = {}
        if client is not None:
            await client.aclose()

    async def claim(self, types: Sequence[str], limit: int) -> list[Delivery]:
        """Move due jobs to the streams and read from the streams of these types.

        A claim whose answer was lost is made again with its token, and brings what it had taken: such a job
        was not begun, and its attempt is the same.
        """
        await synchronise(self.clock)
        # A worker names its types in another order each time.
        lost_token = next(
            (token for token, claim_types in self._unanswered.items() if claim_types.issubset(types)), None
        )
        self._unanswered.pop(lost_token or "", None)  # another claim beside this one takes another
        token = lost_token or new_id()
        try:
            rows = await self._call("claim", self._now(), token, limit, int(lost_token is not None), *types)
        except BaseException:
            self._unanswered[token] = frozenset(types)
            raise
        return [Delivery(replace(load(data), attempt=attempt), token) for data, attempt in rows]

    async def extend(self, held: Sequence[Held]) -> set[str]:
        """Reset how long the deliveries sat idle."""
        lost_ids = await self._call("extend", *(part for one in held for part in one))
        return {id.decode() for id in lost_ids}

    async def ack(self, delivery: Delivery, result: Result) -> bool:
        """The job is done and forgotten; what came of it is the status sink's to keep."""
        return bool(await self._call("ack", *delivery.held))

    async def retry(self, delivery: Delivery, at: datetime, error: str) -> bool:
        """Wait for another attempt; meanwhile the group goes on."""
        return await self._again(delivery, delivery.job.attempt, _later(at))

    async def release(self, delivery: Delivery) -> bool:
        """Be as if it had not been delivered."""
        return await self._again(delivery, delivery.job.attempt - 1, 0)

    async def _again(self, delivery: Delivery, attempt: int, due: int) -> bool:
        return bool(await self._call("again", *delivery.held, attempt, due, self._now()))

    async def bury(self, delivery: Delivery, error: str, letter: Job | None) -> bool:
        """The job is dead; only its letter is left of it."""
        letter_arguments = () if letter is None else self._keep_arguments(validate_job(letter))
        return bool(await self._call("bury", *delivery.held, *letter_arguments))

    async def recover(self, types: Sequence[str], letter: str | None) -> list[Recovered]:
        """Take back jobs that sat idle for a whole lease.

        Redis counts that by its wall clock. When that has jumped, every job seems idle until its worker
        renews it, so nothing is taken back before all workers had the time to.
        """
        await synchronise(self.clock)
        if not may_take_over(self.clock):
            return []
        token, idle = new_id(), int(self.lease.total_seconds() * 1000)
        latest = self._now() + max(idle / 3, JUMP * 1000) if isinstance(self.clock, AskedClock) else ""
        recoveries = []
        for data, attempt, dead in await self._call("recover", token, idle, latest, *types):
            job = replace(load(data), attempt=attempt)
            letter_job = dead_letter(job, ABANDONED, letter) if dead else None
            if not dead or await self.bury(Delivery(job, token), ABANDONED, letter_job):
                recoveries.append(Recovered(job, bool(dead), letter_job))
        return recoveries

    @asynccontextmanager
    async def listen(self, wake: Callable[[], None]) -> AsyncIterator[None]:
        # On a connection of its own: a blocking read must not keep a settled job waiting.
        line = self.sibling()
        listening = asyncio.create_task(
            line._listen(wake), name="maniflex-jobs-listen", context=detached_context()
        )
        try:
            yield
        finally:
            while not listening.done():  # asyncio.wait_for, which redis uses, may swallow a cancellation
                listening.cancel()
                await asyncio.wait((listening,), timeout=0.1)
            await line.close()

    async def _listen(self, wake: Callable[[], None]) -> None:
        key, failures, backoff = f"{self.prefix}:wake", 0, Backoff(cap=timedelta(seconds=5))
        fence = Fence()
        while True:
            try:
                newest = await self._redis().xrevrange(key, count=1)
                last = newest[0][0] if newest else "0-0"
                wake()
                while not await self._redis().xread({key: last}, block=int(BLOCK.total_seconds() * 1000)):
                    failures = 0
            except BaseException as error:
                fence.absorb(error)
                failures += 1
                if failures == 1:
                    log.warning("jobs in Redis are polled for, nothing is heard: %s", error)
                await asyncio.sleep(backoff(failures).total_seconds())

    # -- small things

    def _keep_arguments(self, job: Job) -> tuple[Any, ...]:
        """The arguments of `keep` in common.lua."""
        due = 0 if job.not_before is None else _later(job.not_before)
        texts = (job.id, new_id(), dump(job), job.type, job.group_key or "")
        return (*texts, job.max_retry, due, self._now())

    def _now(self) -> int:
        return (self.clock.now() - _EPOCH) // _MILLISECOND

    async def _ask_time(self) -> datetime:
        seconds, microseconds = await self._translate_errors(self._redis().time())
        return _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)

    def _redis(self) -> Any:
        if self._client is None:
            self._client = aioredis.Redis.from_url(
                self._url, socket_timeout=self._timeout.total_seconds(), socket_connect_timeout=5
            )
        return self._client

    async def _call(self, name: str, *args: Any) -> Any:
        if name not in self._scripts:
            self._scripts[name] = self._redis().register_script(_script(name))
        return await self._translate_errors(self._scripts[name](keys=[self.prefix], args=args))

    async def _translate_errors(self, call: Any) -> Any:
        try:
            return await call
        except TooSlow as error:
            raise Timeout("the job queue took too long") from error
        except Disconnected as error:
            raise Unavailable("the job queue cannot be reached right now") from error
        except RedisError as error:  # out of memory, read-only, loading: Redis says no for now
            raise Unavailable("the job queue takes nothing right now") from error


def _later(moment: datetime) -> int:
    """In milliseconds, never earlier than meant."""
    return -((_EPOCH - moment) // _MILLISECOND)


@cache
def _script(name: str) -> str:
    folder = files("maniflex.background.jobs") / "lua"
    return (folder / "common.lua").read_text("utf-8") + (folder / f"{name}.lua").read_text("utf-8")
