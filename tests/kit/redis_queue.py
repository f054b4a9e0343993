"""Redis measures leases by its own clock; here it is told that more time has passed."""

from __future__ import annotations

from datetime import timedelta

from maniflex.background.jobs.redis import RedisQueue


async def keys(queue: RedisQueue) -> list[str]:
    """Everything the queue keeps in Redis."""
    return sorted([key.decode() async for key in queue._redis().scan_iter(f"{queue.prefix}:*", 1000)])


async def age(queue: RedisQueue, delta: timedelta) -> None:
    """Let every delivery sit idle for so much longer."""
    redis = queue._redis()
    for key in await keys(queue):
        if ":ready:" not in key or not await redis.xinfo_groups(key):
            continue
        for entry in await redis.xpending_range(key, "workers", "-", "+", 10_000):
            idle = entry["time_since_delivered"] + int(delta.total_seconds() * 1000)
            await redis.xclaim(key, "workers", "worker", 0, [entry["message_id"]], idle=idle, justid=True)


async def forgotten(queue: RedisQueue) -> None:
    """Remove every key of the queue."""
    found = await keys(queue)
    if found:
        await queue._redis().delete(*found)
