"""Messages in partitions: as dear with many as with few, in the order of their keys, none passed over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from maniflex import Server
from maniflex._caller import Caller
from maniflex._ids import first_id, new_id
from maniflex.background.outbox.message import Draft
from maniflex.background.outbox.model import (
    Batch,
    Claim,
    MessageChange,
    MessageStatus,
    NewMessage,
    Settlement,
)
from maniflex.background.outbox.store import FULL_LOOK_EVERY, OutboxStore
from maniflex.background.partitions.keeper import PartitionKeeper
from maniflex.background.partitions.layout import MESSAGES
from maniflex.sql.statement import Sql
from tests.kit.partitioned_server import (
    InTransaction,
    a_server,
    adapter_of,
    aged_partition,
    layout_of,
    partition,
)
from tests.kit.postgres import execute, fetch_value

LOCKED = """
SELECT count(DISTINCT c.oid) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
 WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'outbox_event%' AND c.relkind IN ('r', 'p')
"""
ROWS = (
    "INSERT INTO outbox_event (id, seq, kind, key, status, payload, retry_at, published_at, attempts,"
    " claimed_with, created_at, updated_at)"
)


def message_keeper(server: Server) -> PartitionKeeper:
    [keeper] = [one for one in server.outbox.services() if isinstance(one, PartitionKeeper)]
    return keeper


def look_everywhere_again(server: Server, *, soon: bool) -> None:
    """As if the last look at all partitions was long ago, or just now."""
    server.outbox.store._partitions._full_look_at = float("-inf") if soon else float("inf")


async def claim(store: OutboxStore, limit: int = 10) -> Batch | None:
    now = datetime.now(UTC)
    _, batch = await store.turn([], Claim("me", ("part.told",), limit, now + timedelta(minutes=1)), now)
    return batch


async def settle(server: Server, batch: Batch) -> set[str]:
    """All of the batch were delivered; those that were still ours."""
    ids, keys = [one.id for one in batch.messages], {one.key for one in batch.messages if one.key}
    settlement = Settlement(batch, ids, [], batch.messages, sorted(keys))
    settled, _ = await server.outbox.store.turn([settlement], None, datetime.now(UTC))
    return settled


async def claimed_ids(server: Server, limit: int = 10) -> list[str]:
    batch = await claim(server.outbox.store, limit)
    return [] if batch is None else [one.id for one in batch.messages]


class CountedStore:
    """The statements of one relay, each in a transaction of its own whose locked tables are counted."""

    def __init__(self, server: Server) -> None:
        self.counts: dict[str, int] = {}
        self._server = server

    async def run(self, name: str, work: Any) -> Any:
        async with adapter_of(self._server).transaction() as tx:
            await tx.execute(Sql("SET LOCAL plan_cache_mode = force_generic_plan"))
            adapter: Any = InTransaction(tx)
            store = OutboxStore(adapter)
            store._partitions = self._server.outbox.store._partitions
            answer = await work(store, tx)
            self.counts[name] = (await tx.write(Sql(LOCKED)))[0][0]
        return answer


async def locks_of_a_delivery(server: Server) -> dict[str, int]:
    counted = CountedStore(server)
    now, caller = datetime.now(UTC), Caller(None, None, None)
    for name, key in (("enqueue", None), ("enqueue with a key", "k")):
        rows = [NewMessage(new_id(), "part.told", key, "{}", None) for _ in range(3)]
        await counted.run(name, lambda store, tx, rows=rows: store.enqueue(tx, rows, now, caller))
    batch = await counted.run("claim", lambda store, tx: claim(store))
    assert len(batch.messages) == 6
    held = batch.held_leases()
    await counted.run("renew", lambda store, tx: store.renew(tx, held, now + timedelta(minutes=2)))
    *delivered, last = batch.messages
    settlement = Settlement(
        batch,
        [one.id for one in delivered],
        [MessageChange(last.id, MessageStatus.PENDING, now + timedelta(hours=1), key="k")],
        batch.messages,
        ["k"],
    )
    await counted.run("deliver and settle", lambda store, tx: store.turn([settlement], None, now))
    await counted.run("depth", lambda store, tx: store.depth())
    await execute_all(server, "DELETE FROM outbox_event WHERE status = 'pending'")
    return counted.counts


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def execute_all(server: Server, text: str) -> None:
    await adapter_of(server).execute(Sql(text))


async def test_delivering_locks_as_many_tables_with_24_partitions_as_with_4(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server, datetime.now(UTC) - timedelta(days=1))  # so that new messages have one
        await message_keeper(server).tick()  # which makes the last of the next three
        counts = []
        first_day = datetime(2026, 1, 1, tzinfo=UTC)
        for days in ((0,), range(1, 21)):
            for start in (first_day + timedelta(days=day) for day in days):
                lower, upper = first_id(start), first_id(start + timedelta(days=1))
                await execute(
                    postgres_url,
                    f"CREATE TABLE outbox_event_{start:%m%d} PARTITION OF outbox_event"
                    f" FOR VALUES FROM ('{lower}') TO ('{upper}');"
                    f"{ROWS} VALUES ('{lower}-1', {start:%m%d}, 'part.told', 'k', 'delivered', '{{}}', now(),"
                    " now(), 1, 1, now(), now())",
                )
            await message_keeper(server).tick()
            look_everywhere_again(server, soon=False)
            counts.append(await locks_of_a_delivery(server))

        assert counts[0] == counts[1]
        tables = await fetch_value(
            postgres_url, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox_event'::regclass"
        )
        assert tables > 24
        assert max(counts[1].values()) <= 4  # the table, its default partition, and that of now


async def test_messages_put_back_in_a_finished_partition_are_found_within_a_second(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        prefix = await aged_partition(postgres_url, 20)
        await execute(
            postgres_url,
            f"{ROWS} SELECT '{prefix}' || g, g, 'part.told', NULL, 'dead', '{{}}', now(), NULL, 3, 1,"
            " now(), now() FROM generate_series(1, 3) g",
        )
        await message_keeper(server).tick()
        look_everywhere_again(server, soon=False)
        for number in (1, 2, 3):
            assert await server.outbox.redrive(f"{prefix}{number}")
        assert await claimed_ids(server) == []  # claims look there once a second
        assert FULL_LOOK_EVERY <= 1
        look_everywhere_again(server, soon=True)

        assert [len(await claimed_ids(server, 1)) for _ in range(4)] == [1, 1, 1, 0]


async def test_messages_put_back_in_a_finished_partition_are_delivered_and_settled(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        prefix = await aged_partition(postgres_url, 20)
        await execute(
            postgres_url,
            f"{ROWS} VALUES ('{prefix}1', 1, 'part.told', 'k', 'dead', '{{}}', now(), NULL, 3, 1,"
            " now(), now())",
        )
        await message_keeper(server).tick()
        await server.outbox.redrive(f"{prefix}1")
        batch = await claim(server.outbox.store)  # which looks everywhere
        assert batch is not None
        await message_keeper(server).tick()
        assert (
            await server.outbox.store.renew(
                adapter_of(server), batch.held_leases(), batch.until + timedelta(minutes=1)
            )
            == set()
        )
        assert await settle(server, batch) == {f"{prefix}1"}


async def test_a_drainer_finds_messages_that_were_put_back_just_now(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server)
        prefix = await aged_partition(postgres_url, 20)
        await execute(
            postgres_url,
            f"{ROWS} VALUES ('{prefix}1', 1, 'part.told', 'k', 'dead', '{{}}', now(), NULL, 3, 1,"
            " now(), now())",
        )
        await message_keeper(server).tick()
        look_everywhere_again(server, soon=False)
        await server.outbox.redrive(f"{prefix}1")

        assert await server.outbox.drainer().drain() == 1


async def test_a_backlog_from_before_the_partitions_is_delivered_without_a_pause(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        old = first_id(datetime.now(UTC) - timedelta(hours=2))
        await execute(
            postgres_url,
            f"{ROWS} SELECT '{old}-7000-8000-' || g, g, 'part.told', NULL, 'pending', '{{}}', now(), NULL,"
            " 0, 0, now(), now() FROM generate_series(1, 30) g",
        )
        await partition(server)
        await aged_partition(postgres_url, 20)
        await message_keeper(server).tick()
        look_everywhere_again(server, soon=False)

        assert [len(await claimed_ids(server)) for _ in range(4)] == [10, 10, 10, 0]


async def test_messages_of_a_key_keep_their_order_across_partitions(postgres_url: str) -> None:
    """Where the newer ones are in the older partition, too, because a clock was ahead."""
    order: list[str] = []
    async with a_server(postgres_url) as server:
        await partition(server, datetime.now(UTC) - timedelta(days=1))
        ages = [await aged_partition(postgres_url, days) for days in (7, 5, 9)]
        for place, prefix in enumerate(ages):
            await execute(
                postgres_url,
                f"{ROWS} SELECT '{prefix}' || g, {place} * 10 + g - 100, 'part.told', 'k', 'pending',"
                f" to_json(({place} * 10 + g)::text), now(), NULL, 0, 0, now(), now()"
                " FROM generate_series(1, 4) g",
            )
        drafts = [Draft("part.told", str(place), "k") for place in range(30, 34)]
        await server.outbox.enqueue_drafts(*drafts, outside_transaction=True)
        await message_keeper(server).tick()
        look_everywhere_again(server, soon=False)

        while (batch := await claim(server.outbox.store, 3)) is not None:
            order += [json.loads(one.stored) for one in batch.messages]
            await settle(server, batch)

        assert order == [str(place * 10 + g) for place in range(3) for g in range(1, 5)] + [
            draft.payload for draft in drafts
        ]


async def test_messages_of_a_key_keep_their_order_behind_a_commit_that_comes_long_after_its_partition(
    postgres_url: str,
) -> None:
    async with a_server(postgres_url) as server:
        await partition(server, datetime.now(UTC) - timedelta(days=1))
        prefix = await aged_partition(postgres_url, 3)
        async with connected(postgres_url) as late:
            transaction = late.transaction()
            await transaction.start()
            await late.execute(
                f"{ROWS} VALUES ('{prefix}1', -1, 'part.told', 'k', 'pending', '\"late\"', now(), NULL, 0, 0,"
                " now(), now())"
            )
            await message_keeper(server).tick()
            look_everywhere_again(server, soon=False)
            await transaction.commit()
        await server.outbox.enqueue("part.told", "next", key="k", outside_transaction=True)

        order = []
        while (batch := await claim(server.outbox.store, 1)) is not None:
            order += [json.loads(one.stored) for one in batch.messages]
            await settle(server, batch)
        assert order == ["late", "next"]

        await message_keeper(server).tick()  # nobody writes there any more, and nothing is pending
        assert server.outbox.store._partitions._has_closed([f"{prefix}1"])


async def test_a_dropped_partition_changes_nothing_for_relays(postgres_url: str) -> None:
    async with a_server(postgres_url) as server:
        await partition(server, datetime.now(UTC) - timedelta(days=1))
        for days in (20, 30):
            await aged_partition(postgres_url, days)
        await message_keeper(server).tick()
        look_everywhere_again(server, soon=False)
        await execute(postgres_url, "DROP TABLE outbox_event_aged20")
        names = [one.name for one in (await layout_of(server, MESSAGES)).partitions]
        assert "outbox_event_aged30" in names
        await server.outbox.enqueue("part.told", {}, key="k", outside_transaction=True)

        assert await server.outbox.drainer().drain() == 1


async def test_a_message_put_back_holds_up_its_key_for_relays_of_other_processes(postgres_url: str) -> None:
    async with a_server(postgres_url) as server, a_server(postgres_url) as other:
        await partition(server)
        prefix = await aged_partition(postgres_url, 20)
        await execute(
            postgres_url,
            f"{ROWS} VALUES ('{prefix}1', 1, 'part.told', 'k', 'dead', '{{}}', now(), NULL, 3, 1,"
            " now(), now())",
        )
        woken = asyncio.Event()
        async with other.outbox.store.listen(woken.set):
            for one in (server, other):
                await message_keeper(one).tick()
            look_everywhere_again(other, soon=False)
            woken.clear()
            await server.outbox.redrive(f"{prefix}1")
            await asyncio.wait_for(woken.wait(), 30)
        batch = await claim(server.outbox.store)
        assert batch is not None
        now = datetime.now(UTC)
        failed = MessageChange(f"{prefix}1", MessageStatus.PENDING, now + timedelta(minutes=5), key="k")
        await server.outbox.store.turn([Settlement(batch, [], [failed], batch.messages, ["k"])], None, now)
        await other.outbox.enqueue_drafts(Draft("part.told", "later", "k"), outside_transaction=True)

        assert await claimed_ids(other) == []
