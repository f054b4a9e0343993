"""Sweeps: in batches, with reports, hooks and observers, as a service and as a run."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import pytest

from maniflex import (
    DatabaseError,
    DeclarationError,
    Model,
    Server,
    scheduled,
)
from maniflex.background.scheduled_fields.api import Scheduled
from maniflex.background.scheduled_fields.observers import Failure, Subscribers, SweepEvent
from maniflex.background.scheduled_fields.runner import Runner
from maniflex.db.port import Tx
from maniflex.sql.statement import Dialect
from maniflex.testing.clock import FakeClock
from tests.kit.scheduled_fields import FUTURE, PAST, START, Post, a_newsroom, parts_of, runner_of, stored
from tests.kit.waiting import eventually

HOUR = timedelta(hours=1)


# -- batches and reports


@pytest.mark.parametrize(
    ("rows", "batch", "most", "updated", "truncated"),
    [
        (6, 3, 1, 3, True),
        (3, 3, 1, 3, False),
        (2, 3, 1, 2, False),
        (7, 3, 2, 6, True),
        (7, 3, None, 7, False),
    ],
)
async def test_a_sweep_says_whether_it_left_something(
    database_url: str, rows: int, batch: int, most: int | None, updated: int, truncated: bool
) -> None:
    async with a_newsroom(database_url) as server:
        for _ in range(rows):
            await server.db(Post).create(publish_at=PAST)

        report = await runner_of(server, batch=batch, max_batches=most).sweep()

        assert (report.updated, report.truncated) == (updated, truncated)
        assert report.per_model["Post"].truncated is truncated


async def test_a_server_without_scheduled_fields_sweeps_nothing(database_url: str) -> None:
    class Plain(Model):
        text: str = ""

    async with a_newsroom(database_url, Plain) as server:
        runner = runner_of(server)
        await runner.start()
        report = await runner.sweep()
        await runner.stop()

        assert (report.changed, report.truncated, dict(report.per_model)) == (0, False, {})


async def test_a_report_is_plain_data_for_a_run(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        await server.db(Post).create(publish_at=PAST)

        told = (await runner_of(server).sweep()).as_json()

        assert (told["updated"], told["errors"], told["truncated"]) == (1, [], False)
        assert told["per_model"]["Post"]["updated"] == 1


async def test_a_sweep_refuses_to_be_part_of_a_transaction(database_url: str) -> None:
    async with a_newsroom(database_url) as server, server.transaction():
        with pytest.raises(DatabaseError, match="cannot be part of a transaction"):
            await runner_of(server).sweep()


async def test_each_model_is_swept_in_its_own_database(database_url: str, tmp_path: Any) -> None:
    other = f"sqlite:///{tmp_path}/other.db"

    class Remote(Model, database=other):
        gone_at: datetime | None = scheduled(default=None, hard_delete=True)

    async with a_newsroom(database_url, Post, Remote) as server:
        await server.db(Post).create(publish_at=PAST)
        await server.db(Remote).create(gone_at=PAST)

        report = await runner_of(server).sweep()

        assert (report.updated, report.deleted) == (1, 1)


# -- hooks and observers


async def test_hooks_come_after_the_commit_once_per_record_plain_and_async(database_url: str) -> None:
    seen: list[tuple[Any, ...]] = []
    async with a_newsroom(database_url) as server:
        post = await server.db(Post).create(publish_at=PAST, purge_at=None)
        gone = await server.db(Post).create(purge_at=PAST)

        async def changed(model: str, id: str, name: str, to: Any) -> None:
            committed = await server.raw_query("SELECT status FROM posts WHERE id = ?", id)
            seen.append((model, id, name, to, committed[0]["status"]))

        def deleted(model: str, id: str) -> None:
            seen.append((model, id))

        await runner_of(server, on_delete=deleted, on_set_field=changed).sweep()

        assert seen == [("Post", post.id, "status", "published", "published"), ("Post", gone.id)]


async def test_a_failing_hook_is_reported_and_undoes_and_stops_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def picky(model: str, id: str, name: str, to: Any) -> None:
        seen.append(id)
        raise ValueError("not this one")

    async with a_newsroom(database_url) as server:
        for _ in range(5):
            await server.db(Post).create(publish_at=PAST)
        with caplog.at_level(logging.ERROR, "maniflex"):
            report = await runner_of(server, batch=2, on_set_field=picky).sweep()

        assert (report.updated, report.failed, len(seen)) == (5, 5, 5)
        assert report.errors[0] == Failure("Post", "publish_at", seen[0], "not this one")
        assert {row["status"] for row in await stored(server, "posts")} == {"published"}
        assert [r.getMessage() for r in caplog.records] == ["a hook of Post.publish_at failed"]


async def test_a_model_that_cannot_be_swept_stops_no_other(database_url: str) -> None:
    class Broken(Model):
        gone_at: datetime | None = scheduled(default=None, hard_delete=True)

    async with a_newsroom(database_url, Broken, Post) as server:
        await server.db(Post).create(publish_at=PAST)
        await server.raw_exec("DROP TABLE brokens")

        report = await runner_of(server).sweep()

        assert (report.updated, report.failed, report.per_model["Broken"].failed) == (1, 1, 1)
        assert (report.errors[0].model, report.errors[0].id) == ("Broken", None)


async def test_observers_see_the_change_inside_its_transaction(database_url: str) -> None:
    seen: list[SweepEvent] = []

    class Entry(Model):
        text: str

    async with a_newsroom(database_url, Post, Entry) as server:

        async def note(tx: Tx, swept: SweepEvent) -> None:
            seen.append(swept)
            for row in swept.before:
                await server.db(Entry, tx).create(text=f"{swept.meta.name} {row['title']}")

        await server.db(Post).create(title="a", publish_at=PAST)
        await server.db(Post).create(title="b", expires_at=PAST)
        await server.db(Post).create(title="c", purge_at=PAST)
        report = await _observed(server, note)

        assert report.changed == 3
        assert sorted(row["text"] for row in await stored(server, "entries")) == [
            "Post a",
            "Post b",
            "Post c",
        ]
        by_time = {swept.schedule.time: swept for swept in seen}
        [before], [after] = by_time["publish_at"].before, by_time["publish_at"].after
        assert after is not None
        assert (before["status"], after["status"], before["publish_at"]) == ("draft", "published", PAST)
        [marked] = by_time["expires_at"].after
        assert marked is not None
        assert marked["deleted_at"] == START
        assert by_time["purge_at"].after == [None]


async def test_what_an_observer_refuses_does_not_happen(database_url: str) -> None:
    async def refuse(tx: Tx, swept: SweepEvent) -> None:
        raise RuntimeError("the history is full")

    async with a_newsroom(database_url) as server:
        await server.db(Post).create(publish_at=PAST)

        report = await _observed(server, refuse)

        assert (report.updated, report.failed) == (0, 1)
        assert report.errors[0].message == "the history is full"
        assert {row["status"] for row in await stored(server, "posts")} == {"draft"}


async def _observed(server: Server, observer: Any) -> Any:
    return await runner_of(server, subscribers=Subscribers(observers=[observer])).sweep()


# -- as a service


async def test_a_started_runner_sweeps_at_once_and_every_interval(database_url: str) -> None:
    clock = FakeClock(START)
    async with a_newsroom(database_url, clock=clock) as server:
        await server.db(Post).create(publish_at=PAST)
        await server.db(Post).create(publish_at=FUTURE)
        seen: list[str] = []
        runner = runner_of(server, on_set_field=lambda model, id, name, to: seen.append(id))
        await runner.start()
        await eventually(lambda: clock.sleepers > 0)
        first = len(seen)
        clock.advance(2 * HOUR)
        await eventually(lambda: runner.loop.ticks == 2 and clock.sleepers > 0)
        await runner.stop()

        assert (first, len(seen)) == (1, 2)


async def test_a_stopped_runner_finishes_its_batch_and_leaves_the_rest(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        for _ in range(10):
            await server.db(Post).create(publish_at=PAST)
        told: list[str] = []
        runner = runner_of(server, batch=2, on_set_field=lambda model, id, name, to: told.append(id))
        report = await runner.sweep(until=lambda: len(told) >= 4)

        assert (report.updated, report.truncated, len(told)) == (4, True, 4)


async def test_a_tick_that_could_sweep_nothing_counts_as_failed_and_the_next_may_succeed(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(START)
    async with a_newsroom(database_url, clock=clock) as server:
        await server.db(Post).create(publish_at=PAST)
        await server.raw_exec("ALTER TABLE posts RENAME TO elsewhere")
        runner = runner_of(server)
        with caplog.at_level(logging.ERROR, "maniflex"):
            await runner.start()
            await eventually(lambda: runner.loop.errors == 1 and clock.sleepers > 0)
            once = len(caplog.records)
            clock.advance(HOUR)
            await eventually(lambda: runner.loop.errors == 2 and clock.sleepers > 0)
            twice = len(caplog.records)
            await server.raw_exec("ALTER TABLE elsewhere RENAME TO posts")
            clock.advance(HOUR)
            await eventually(lambda: runner.loop.ticks == 1)
            await runner.stop()

        assert once == twice
        assert {row["status"] for row in await stored(server, "posts")} == {"published"}


# -- server.scheduled


async def test_the_hooks_of_a_server_are_called_by_its_sweeps(database_url: str) -> None:
    seen: list[str] = []
    async with a_newsroom(database_url) as server:
        ours = Scheduled(server.work)
        ours.on_set_field(lambda model, id, name, to: seen.append(f"{model}.{name} {to}"))
        ours.on_delete(lambda model, id: seen.append(f"{model} deleted"))
        with pytest.raises(DeclarationError, match="not sealed"):
            await ours.sweep()
        ours.attach(parts_of(server))
        await server.db(Post).create(publish_at=PAST)
        await server.db(Post).create(purge_at=PAST)

        assert (await ours.sweep()).changed == 2
        assert seen == ["Post.status published", "Post deleted"]
        assert [type(service) for service in ours.services()] == [Runner]
        assert (ours.problems(), ours.models(), ours.schema(Dialect.SQLITE)) == ([], (), ())


async def test_a_sweep_can_come_as_a_run(database_url: str) -> None:
    server = Server(database_url, clock=FakeClock(START), background=False)
    server.register(Post)
    ours = Scheduled(server.work)
    ours.handler()
    async with server.lifespan():
        ours.attach(parts_of(server))
        await server.db(Post).create(publish_at=PAST)
        run = await server.work.submit("scheduled.sweep")
        await server.work.worker(prefixes=("scheduled.",)).drain()
        done = await server.work.get(run.id)

        assert done.status == "succeeded"
        assert isinstance(done.result, dict)
        assert done.result["updated"] == 1
        assert ours.services() == ()


def test_a_hook_that_cannot_be_called_is_a_mistake() -> None:
    ours = Scheduled(Server(":memory:").work)
    ours.on_delete("nothing")  # type: ignore[arg-type]  # the mistake

    assert ours.problems() == ["scheduled: 'nothing' is not callable"]


def test_parts_are_all_a_runner_needs() -> None:
    server = Server(":memory:", background=False)
    server.register(Post)
    assert runner_of(server).loop.interval == server.config.sweep_interval
    with pytest.raises(ValueError, match="at least one"):
        runner_of(server, batch=0)
    assert parts_of(server).config is server.config
