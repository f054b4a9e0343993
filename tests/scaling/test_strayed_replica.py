"""A replica of which it is not known how old its rows are, or that has what the primary never had."""

from __future__ import annotations

import httpx
import pytest

from maniflex.testing import client
from tests.kit.postgres import execute, fetch_value
from tests.kit.private_postgres import PrivatePostgres, private_postgres, standby_of
from tests.kit.replicas import ReplicatedDatabase, is_read_from, server_with_replica
from tests.kit.waiting import eventually

HEADER = "x-database-position"
LOST = "SELECT pg_logical_emit_message(false, 'lost', repeat('-', 4000000))"
MAY_FOLLOW = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn"
REPLAYED = "SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn"


async def lose_the_last_of_the_log(
    primary: PrivatePostgres, chosen: PrivatePostgres, replica: PrivatePostgres
) -> None:
    """The primary dies, and `chosen` takes over without the last that `replica` has got."""
    await chosen.stop()
    await execute(primary.url, LOST)
    target = await fetch_value(primary.url, MAY_FOLLOW)

    async def has_more() -> bool:
        return bool(await fetch_value(replica.url, REPLAYED) >= target)

    await eventually(has_more, "the replica has what will be lost")
    primary.kill()
    await chosen.start()
    await execute(chosen.url, "SELECT pg_promote()")


async def test_a_replica_with_more_than_a_new_primary_is_not_read_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with private_postgres() as primary:
        await primary.start()
        async with standby_of(primary) as chosen, standby_of(primary) as replica:
            hosts = primary.url.replace(f":{primary.port}", f":{primary.port},127.0.0.1:{chosen.port}")
            async with client(server_with_replica(hosts, replica.url), database=None) as http:
                await eventually(lambda: is_read_from(http, "replica"), "reads from the replica")
                await lose_the_last_of_the_log(primary, chosen, replica)
                path, position = await write_again(http)
                assert (await http.get(path, headers={HEADER: position})).status_code == 200
                await eventually(lambda: "follows another server" in caplog.text, "the replica is left")
                for _ in range(2):
                    await execute(chosen.url, LOST)  # now the primary is ahead, which changes nothing
                assert (await http.get(path, headers={HEADER: position})).status_code == 200
                assert await is_read_from(http, "primary")


async def write_again(http: httpx.AsyncClient) -> tuple[str, str]:
    """Write until the new primary takes it; the path of the note, and its position."""
    answers: list[httpx.Response] = []

    async def is_written() -> bool:
        answers.append(await http.post("/api/notes", json={"text": "new"}))
        return answers[-1].status_code == 201

    await eventually(is_written, "a write", 30)
    return f"/api/notes/{answers[-1].json()['data']['id']}", answers[-1].headers[HEADER]


async def test_a_process_does_not_read_from_a_replica_whose_age_it_does_not_know(
    pair: ReplicatedDatabase,
) -> None:
    async with client(server_with_replica(pair.primary, pair.replica), database=None) as http:
        await pair.servers.until_caught_up()
        await pair.servers.follow_after(3600)
        answer = await http.post("/api/notes", json={"text": "an hour old"})
    async with client(server_with_replica(pair.primary, pair.replica), database=None) as http:
        found = await http.get(f"/api/notes/{answer.json()['data']['id']}")
        assert found.status_code == 200
        await pair.servers.follow_after(0)
        await eventually(lambda: is_read_from(http, "replica"), "reads from the replica", 10)
