"""A process that races others for tokens and keys: `FORM PLACE PREFIX TIMES`, begun by a line of input."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import Any

from maniflex.middleware import stores
from tests.catalogue.stores.places import in_sql


class Clock:
    """The machine's clock, without the database's."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, delay: Any) -> None:
        await asyncio.sleep(delay.total_seconds())


async def race(limits: Any, keys: Any, times: int) -> dict[str, Any]:
    now = Clock().now
    print("ready", flush=True)
    sys.stdin.readline()
    takes = await asyncio.gather(*(limits.take("bucket", 50, 3600, 1, now()) for _ in range(times)))
    claims = [await keys.claim(f"key-{n}", "body", lease=300, now=now()) for n in range(times)]
    return {
        "granted": sum(one.allowed for one in takes),
        "claimed": [n for n, one in enumerate(claims) if one.state is stores.ClaimState.CLAIMED],
        "states": sorted({str(one.state) for one in claims}),
    }


async def main(form: str, place: str, prefix: str, times: int) -> None:
    if form == "redis":
        limits = stores.RedisRateLimit(place, f"{prefix}:limits")
        keys = stores.RedisIdempotency(place, f"{prefix}:keys")
        outcome = await race(limits, keys, times)
        await asyncio.gather(limits.close(), keys.close())
    else:
        sql_limits, sql_keys = stores.SqlRateLimit(), stores.SqlIdempotency()
        async with in_sql(place, Clock(), sql_limits, sql_keys):
            outcome = await race(sql_limits, sql_keys, times)
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
