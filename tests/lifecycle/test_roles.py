"""What a process does beside serving, how it says that it goes on, and its numbers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest

from maniflex import Server
from maniflex._service import Service
from maniflex.background.loop import Loop, stalled_loops
from maniflex.background.metrics import Metrics
from maniflex.background.runs.run import Run
from maniflex.background.runs.worker import RunWorker
from maniflex.background_api.metrics import HELP, PREFIX, MetricsPage
from maniflex.errors import ConfigError, DeclarationError
from maniflex.pipeline.observation import RequestNumbers
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.waiting import eventually

SECOND = timedelta(seconds=1)


def a_server(**settings: Any) -> Server:
    server = Server(**settings)

    @server.work.handler("default.note")
    async def note(run: Run) -> Any:
        return run.payload

    @server.work.handler("default.fail", max_attempts=2)
    async def fail(run: Run) -> None:
        raise ValueError("no luck")

    return server


def worker_of(server: Server) -> RunWorker:
    [worker] = [service for service in server._lifecycle.running if isinstance(service, RunWorker)]
    return worker


# -- roles


@pytest.mark.parametrize(
    ("role", "background", "services"),
    [
        ("server", True, ["Clerk", "ClockKeeper", "Repairer", "ProcessKeeper", "RunWorker", "Pruner"]),
        ("server", False, ["Clerk", "ProcessKeeper"]),
        ("worker", True, ["Clerk"]),
        ("client", True, []),
    ],
)
async def test_each_role_starts_its_own_services(
    role: str, background: bool, services: list[str], sqlite_url: str
) -> None:
    class Clerk:
        def start(self) -> None: ...
        def stop(self) -> None: ...

    server = a_server(database=sqlite_url, background=background)
    server.add_service(Clerk())

    async with server.lifespan(role=role):
        assert [type(service).__name__ for service in server._lifecycle.running] == services
    assert server._lifecycle.running == ()


async def test_a_process_may_choose_what_it_works_on(database_url: str) -> None:
    server = a_server(database=database_url)

    def media_only() -> Sequence[Service]:
        return server.work.services(["media."], concurrency=1)

    async with server.lifespan(role="worker", work=media_only):
        run = await server.work.submit("default.note")
        await eventually(lambda: worker_of(server).loop.ticks)
        assert (await server.work.get(run.id)).status == "pending"


# -- readiness


class Ticking(Loop):
    name = "ticking"
    broken = False

    async def tick(self) -> bool:
        if self.broken:
            raise OSError("away")
        return False


def ticking(clock: FakeClock, interval: timedelta) -> Ticking:
    return Ticking(clock, interval, logging.getLogger("maniflex"), jitter=0)


@pytest.mark.parametrize(
    ("interval", "patience"), [(SECOND, 30 * SECOND), (timedelta(minutes=1), timedelta(minutes=3))]
)
async def test_a_loop_stands_still_after_three_intervals_or_thirty_seconds(
    interval: timedelta, patience: timedelta
) -> None:
    clock = FakeClock()
    loop = ticking(clock, interval)
    assert stalled_loops([loop]) == []
    await loop.start()
    await eventually(lambda: loop.ticks)
    loop.broken = True

    clock.advance(patience)
    assert stalled_loops([loop]) == []
    clock.advance(timedelta(milliseconds=1))
    assert stalled_loops([object(), loop]) == ["ticking"]

    loop.broken = False
    loop.wake()
    await eventually(lambda: loop.ticks == 2)
    assert stalled_loops([loop]) == []
    await loop.stop()
    clock.advance(patience * 2)
    assert stalled_loops([loop]) == []


async def test_a_loop_that_never_had_a_good_tick_stands_still_too() -> None:
    clock = FakeClock()
    loop = ticking(clock, SECOND)
    loop.broken = True
    await loop.start()

    clock.advance(31 * SECOND)

    assert stalled_loops([loop]) == ["ticking"]
    await loop.stop()


@pytest.mark.parametrize("demanded", [True, False])
async def test_readiness_can_demand_that_work_goes_on(
    demanded: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    server = a_server(clock=clock, ready_needs_work=demanded)
    async with client(server, database=database_url, background=True) as http:
        worker = worker_of(server).loop
        await eventually(lambda: worker.ticks)
        assert (await http.get("/ready")).status_code == 200

        await server.raw_exec("ALTER TABLE workflow_run RENAME TO elsewhere")
        worker.wake()
        await eventually(lambda: worker.errors)
        clock.advance(40 * SECOND)
        answer = await http.get("/ready")
        if demanded:
            assert answer.json() == {"status": "unavailable", "work": "unavailable"}
            assert "not ready: maniflex-worker makes no progress" in caplog.text
        assert answer.status_code == (503 if demanded else 200)
        assert (await http.get("/live")).status_code == 200

        await server.raw_exec("ALTER TABLE elsewhere RENAME TO workflow_run")
        ticks = worker.ticks
        worker.wake()
        await eventually(lambda: worker.ticks > ticks)
        assert (await http.get("/ready")).status_code == 200


async def test_the_probes_can_be_served_alone(sqlite_url: str) -> None:
    server = a_server(database=sqlite_url, metrics_enabled=True)
    transport = httpx.ASGITransport(app=server.probes)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        assert (await http.get("/live")).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        async with server.lifespan(role="client"):
            assert (await http.get("/ready")).status_code == 200
            assert (await http.get("/metrics")).status_code == 200
            assert (await http.get("/api/workflow_run")).status_code == 404
            assert (await http.get("/api/openapi.json")).status_code == 404


# -- numbers


async def test_the_numbers_of_runs_are_there_for_prometheus(database_url: str) -> None:
    clock = FakeClock()
    server = a_server(background=False, metrics_enabled=True, clock=clock)
    async with client(server, database=database_url) as http:
        for _ in range(3):
            await server.work.submit("default.note")
        await server.work.submit("default.fail")
        await server.work.submit("default.note", delay=60)
        clock.advance(5 * SECOND)

        before = (await http.get("/metrics")).text
        worker = server.work.worker()
        await worker.drain()
        clock.advance(10 * SECOND)
        await worker.drain()
        answer = await http.get("/metrics")

    assert 'maniflex_runs_due{type="default.note"} 3.0' in before
    assert "maniflex_runs_oldest_due_seconds 5.0" in before
    assert "maniflex_runs_poll_errors_total 0.0" in before
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'maniflex_runs_claimed_total{type="default.note"} 3.0',
        'maniflex_runs_claimed_total{type="default.fail"} 2.0',
        'maniflex_runs_succeeded_total{type="default.note"} 3.0',
        'maniflex_runs_retried_total{type="default.fail"} 1.0',
        'maniflex_runs_failed_total{type="default.fail"} 1.0',
        "maniflex_runs_oldest_due_seconds 0.0",
    ):
        assert line in answer.text.splitlines()
    assert "# TYPE maniflex_runs_claimed_total counter" in answer.text
    assert "# TYPE maniflex_runs_oldest_due_seconds gauge" in answer.text


async def test_numbers_are_there_when_the_database_is_not(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = a_server(background=False, metrics_enabled=True)
    async with client(server, database=sqlite_url) as http:
        await server.work.submit("default.note")
        await server.work.worker().drain()
        await server.raw_exec("ALTER TABLE workflow_run RENAME TO elsewhere")

        answer = await http.get("/metrics")

        assert answer.status_code == 200
        assert "maniflex_runs_succeeded_total" in answer.text
        assert "maniflex_runs_due" not in answer.text
        assert "elsewhere" not in answer.text
        await server.raw_exec("ALTER TABLE elsewhere RENAME TO workflow_run")
    assert "some numbers could not be read" in caplog.text


async def test_numbers_are_shown_only_where_somebody_asked_for_them(sqlite_url: str) -> None:
    async with client(a_server(), database=sqlite_url) as http:
        assert (await http.get("/metrics")).status_code == 404


def test_without_the_library_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(DeclarationError, match=r"pip install 'maniflex\[observability\]'"):
        a_server(metrics_enabled=True).seal()


def test_a_label_may_hold_any_text() -> None:
    metrics = Metrics()
    metrics.add("things_total", 2, type='a"b\\c\nd')
    metrics.add("things_total", 1, type="e")

    text, _ = MetricsPage([*metrics.counters()], [], RequestNumbers()).write({})

    assert [line for line in text.decode().splitlines() if line.startswith("maniflex_things_total{")] == [
        'maniflex_things_total{type="a\\"b\\\\c\\nd"} 2.0',
        'maniflex_things_total{type="e"} 1.0',
    ]


def test_every_number_that_is_explained_is_named_like_what_it_is() -> None:
    assert PREFIX == "maniflex_"
    assert all(text.endswith(".") for text in HELP.values())


@pytest.mark.parametrize("setting", ["ready_needs_work", "metrics_enabled"])
def test_a_switch_is_on_or_off(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        a_server(**{setting: "yes"})
