"""The commands of durable work, as processes: they share a database and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from maniflex import Server
from maniflex._ids import new_id
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.cli.output import Progress
from tests.kit.processes import MANIFLEX, Served, free_port, run_command, serve_process, start_process
from tests.kit.waiting import until

T = TypeVar("T")

APP = """
import asyncio, os, threading
from datetime import datetime
from pathlib import Path
from maniflex import Config, Model, Server, field, scheduled

HERE = Path(__file__).parent

class Offer(Model):
    title: str
    ends_at: datetime | None = scheduled(hard_delete=True)

server = Server(Config.from_env())
server.register(Offer)

@server.work.handler("default.note")
async def note(run):
    return run.payload

@server.work.handler("default.pause")
async def pause(run):
    await run.sleep(3600)

@server.work.handler("media.note")
async def media(run):
    return os.getpid()

@server.work.handler("default.fail", max_attempts=1)
async def fail(run):
    raise ValueError("no luck")

@server.work.handler("default.hold")
async def hold(run):
    (HERE / f"began-{run.attempt}").write_text(str(os.getpid()))
    while not (HERE / "go").exists():
        await asyncio.sleep(0.01)
    return run.attempt

@server.work.handler("default.block")
def block(run):
    (HERE / f"began-{run.attempt}").touch()
    threading.Event().wait()

@server.work.handler("default.step")
async def step(run):
    await run.step("block", block, run)

@server.work.handler("default.stubborn")
async def stubborn(run):
    (HERE / "began-1").touch()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            (HERE / "told").touch()

@server.outbox.handler("order.blocked")
def blocked(message):
    (HERE / "began-1").touch()
    threading.Event().wait()

@server.outbox.handler("order.placed")
async def placed(message):
    if message.payload == "bad":
        raise ValueError("no luck either")
    (HERE / f"placed-{message.payload}").touch()
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def asked(url: str, question: Callable[[Server], Awaitable[T]]) -> T:
    """What another process of the application would find out, or do."""

    async def ask() -> T:
        server = Server(url)
        server.work.enable()
        server.outbox.enable()
        async with server.lifespan(role="client"):
            return await question(server)

    return asyncio.run(ask())


def submitted(url: str, type: str, payload: Any = None, **options: Any) -> WorkflowRun:
    return asked(url, lambda server: server.work.submit(type, payload, **options))


def found(url: str, id: str) -> WorkflowRun:
    return asked(url, lambda server: server.work.get(id))


def finished(url: str, id: str) -> WorkflowRun:
    async def waited(work: Work) -> WorkflowRun:
        return await work.wait(id, 30)

    return asked(url, lambda server: waited(server.work))


@contextmanager
def working(
    here: Path, url: str, *options: str, role: str = "worker", **environment: str
) -> Iterator[Served]:
    """`maniflex worker`, started and answering its probes."""
    port = free_port()
    command: list[str | Path] = [MANIFLEX, role, "app:server", "--probe-port", str(port), *options]
    with start_process(command, port, cwd=here, DB_WRITE_URL=url, **environment) as process:
        process.until_up()
        yield process


def counted(page: str, name: str) -> float:
    """The sum of a number over its labels."""
    lines = [line for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


# -- worker


def test_a_worker_takes_up_what_another_process_submits(here: Path, database_url: str) -> None:
    with working(here, database_url, METRICS_ENABLED="1") as worker:
        run = submitted(database_url, "default.note", {"n": 7})

        done = finished(database_url, run.id)

        assert (done.status, done.result, done.attempt) == ("succeeded", {"n": 7}, 1)
        page = httpx.get(f"{worker.url}/metrics").text
        assert counted(page, "maniflex_runs_succeeded_total") == 1
        assert counted(page, "maniflex_runs_poll_errors_total") == 0
        assert httpx.get(f"{worker.url}/api/workflow_run").status_code == 404  # probes and nothing else
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0
        assert f"answers probes on {worker.url}" in worker.output
        assert "default.step, default.stubborn, media.note, default.*, 10 at a time" in worker.output


def test_a_worker_that_is_told_to_stop_lets_what_runs_finish(here: Path, database_url: str) -> None:
    with working(here, database_url) as worker:
        run = submitted(database_url, "default.hold")
        until((here / "began-1").exists, "the run to begin")

        worker.send(signal.SIGTERM)
        until(lambda: httpx.get(f"{worker.url}/ready").status_code == 503, "not being ready")
        assert httpx.get(f"{worker.url}/live").status_code == 200
        later = submitted(database_url, "default.note")
        (here / "go").touch()

        assert worker.ended() == 0, worker.output
    done = found(database_url, run.id)
    assert (done.status, done.result, done.attempt) == ("succeeded", 1, 1)
    assert found(database_url, later.id).status == "pending"


def test_a_second_signal_hands_back_what_runs(here: Path, database_url: str) -> None:
    with working(here, database_url) as worker:
        run = submitted(database_url, "default.hold")
        until((here / "began-1").exists, "the run to begin")

        worker.send(signal.SIGTERM)
        until(lambda: httpx.get(f"{worker.url}/ready").status_code == 503, "not being ready")
        worker.send(signal.SIGINT)

        assert worker.ended() == 0, worker.output
    back = found(database_url, run.id)
    assert (back.status, back.attempt, back.leased_by) == ("pending", 0, None)


def test_a_run_whose_worker_was_killed_is_taken_over(here: Path, database_url: str) -> None:
    lease = {"WORK_LEASE": "600ms", "WORK_POLL_INTERVAL": "100ms"}
    with working(here, database_url, **lease) as victim:
        run = submitted(database_url, "default.hold")
        until((here / "began-1").exists, "the run to begin")
        victim.send(signal.SIGKILL)
        victim.ended()
    (here / "go").touch()

    with working(here, database_url, **lease):
        done = finished(database_url, run.id)

    assert (done.status, done.attempt, done.result) == ("succeeded", 2, 2)


def test_a_function_that_will_not_stop_does_not_keep_the_process(here: Path, sqlite_url: str) -> None:
    with working(here, sqlite_url, SHUTDOWN_TIMEOUT="1s") as worker:
        run = submitted(sqlite_url, "default.block")
        until((here / "began-1").exists, "the run to begin")

        worker.send(signal.SIGTERM)

        assert worker.ended() == 0, worker.output
    # Nobody else may have it before its lease is over: here it might still be running.
    assert found(sqlite_url, run.id).status == "leased"


BLOCKING = ["default.block", "default.step", "order.blocked", "default.stubborn"]


def put(url: str, what: str) -> None:
    """A message or a run."""
    if what.startswith("order."):
        asked(url, lambda s: s.outbox.enqueue(what, None, outside_transaction=True))
    else:
        submitted(url, what)


@pytest.mark.parametrize("what", BLOCKING[1:])
def test_nor_does_one_in_a_step_or_a_handler_of_messages(here: Path, sqlite_url: str, what: str) -> None:
    with working(here, sqlite_url, SHUTDOWN_TIMEOUT="1s") as worker:
        put(sqlite_url, what)
        until((here / "began-1").exists, "it to begin")
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0, worker.output


@pytest.mark.parametrize("what", BLOCKING)
def test_nor_does_it_keep_a_process_that_serves(here: Path, sqlite_url: str, what: str) -> None:
    with serve_process(here, DB_WRITE_URL=sqlite_url, SHUTDOWN_TIMEOUT="1s") as served:
        put(sqlite_url, what)
        until((here / "began-1").exists, "it to begin")
        served.send(signal.SIGTERM)
        assert served.ended() == 0, served.output


@pytest.mark.parametrize("what", BLOCKING)
def test_nor_one_that_drains(here: Path, sqlite_url: str, what: str) -> None:
    put(sqlite_url, what)
    command: list[str | Path] = [MANIFLEX, "drain", "app:server"]
    with start_process(command, 0, cwd=here, DB_WRITE_URL=sqlite_url, SHUTDOWN_TIMEOUT="1s") as draining:
        until((here / "began-1").exists, "it to begin")
        draining.send(signal.SIGTERM)
        assert draining.ended() == 1, draining.output


def test_a_worker_may_be_for_some_types(here: Path, sqlite_url: str) -> None:
    with working(here, sqlite_url, "--types", "media.,billing.", "--concurrency", "2"):
        other = submitted(sqlite_url, "default.note", priority=9)
        run = submitted(sqlite_url, "media.note")

        assert finished(sqlite_url, run.id).status == "succeeded"

    assert found(sqlite_url, other.id).status == "pending"


def test_a_worker_delivers_messages_too(here: Path, sqlite_url: str) -> None:
    with working(here, sqlite_url):
        asked(sqlite_url, lambda s: s.outbox.enqueue("order.placed", "now", outside_transaction=True))

        until((here / "placed-now").exists, "the message to be delivered")


@pytest.mark.parametrize(
    ("command", "said"),
    [("worker", "nothing to work on"), ("scheduler", "nothing to wait for")],
)
def test_a_process_without_anything_to_do_says_so(command: str, said: str, here: Path) -> None:
    (here / "empty.py").write_text("from maniflex import Server\nserver = Server('sqlite:///empty.db')\n")

    ended = run_command(command, "empty:server", cwd=here)

    assert ended.returncode == 1
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_probe_port_that_is_taken_is_one_sentence(here: Path, sqlite_url: str) -> None:
    with working(here, sqlite_url) as first:
        second = run_command(
            "worker", "app:server", "--probe-port", str(first.port), cwd=here, DB_WRITE_URL=sqlite_url
        )

    assert second.returncode == 1
    said = f"port {first.port} on 127.0.0.1 is already in use; choose another with --probe-port"
    assert said in second.stderr
    assert "Traceback" not in second.stderr


# -- serving with and without work


def test_one_process_serves_and_works_unless_told_otherwise(here: Path, database_url: str) -> None:
    with serve_process(here, DB_WRITE_URL=database_url):
        run = submitted(database_url, "default.note")
        assert finished(database_url, run.id).status == "succeeded"


@pytest.mark.parametrize("processes", [(), ("--workers", "2")], ids=["one process", "two processes"])
def test_a_process_can_leave_the_work_to_others(
    processes: tuple[str, ...], here: Path, sqlite_url: str
) -> None:
    with serve_process(here, "--no-work", *processes, DB_WRITE_URL=sqlite_url) as served:
        left = submitted(sqlite_url, "default.note")
        with working(here, sqlite_url, "--types", "media."):
            run = submitted(sqlite_url, "media.note")
            assert finished(sqlite_url, run.id).result != served.process.pid
        assert found(sqlite_url, left.id).status == "pending"


# -- scheduler and sweep

ENDED = "2020-01-01T00:00:00Z"
PEOPLE = """
from maniflex import Model, Server, field

class Person(Model, table="people", subject="id", retention_hold="held"):
    email: str | None = field(default=None, personal=True)
    held: bool = False

server = Server()
server.register(Person)

@server.on_start
async def fill():
    if await server.db(Person).count() == 0:
        for id, held in (("p1", False), ("p2", True), ("p3", False)):
            await server.db(Person).create(id=id, email=f"{id}@example.org", held=held)
"""

KEPT = """
from datetime import UTC, datetime, timedelta
from maniflex import Model, Retention, Server

class Visit(Model, retention=Retention("30d", since="left_at")):
    left_at: datetime

server = Server()
server.register(Visit)

@server.on_start
async def fill():
    if await server.db(Visit).count() == 0:
        for days in (31, 40, 1):
            await server.db(Visit).create(left_at=datetime.now(UTC) - timedelta(days=days))
"""

SLOW = """
import asyncio
from app import HERE, server

@server.scheduled.on_delete
async def wait(model, id):
    (HERE / "gone").touch()
    while not (HERE / "go").exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)  # a signal that came before is heard now
"""


def offers(url: str, *times: str | None) -> None:
    """Records with a scheduled field, put there by the application itself."""
    with httpx.Client(base_url=url) as http:
        for n, time in enumerate(times):
            assert http.post("/api/offers", json={"title": str(n), "ends_at": time}).status_code == 201


def test_a_scheduler_sweeps_what_is_due(here: Path, sqlite_url: str) -> None:
    with serve_process(here, "--no-work", DB_WRITE_URL=sqlite_url) as served:
        offers(served.url, ENDED, None)
        with working(here, sqlite_url, role="scheduler") as scheduler:
            until(
                lambda: httpx.get(f"{served.url}/api/offers").json()["meta"]["total"] == 1,
                "the offer to be gone",
            )
            scheduler.send(signal.SIGTERM)
            assert scheduler.ended() == 0


def test_a_sweep_is_one_pass_with_a_summary(here: Path, sqlite_url: str) -> None:
    with serve_process(here, "--no-work", DB_WRITE_URL=sqlite_url) as served:
        offers(served.url, ENDED, ENDED, "2999-01-01T00:00:00Z", None)

        swept = run_command("sweep", "app:server", cwd=here, DB_WRITE_URL=sqlite_url)

        assert swept.returncode == 0, swept.stderr
        assert swept.stdout.splitlines() == [
            "Offer: 2 deleted, 0 updated, 0 skipped",
            "2 deleted, 0 updated, 0 skipped, 0 failed",
        ]
        assert httpx.get(f"{served.url}/api/offers").json()["meta"]["total"] == 2


def test_a_sweep_removes_what_is_kept_no_longer(here: Path, sqlite_url: str) -> None:
    (here / "old.py").write_text(KEPT)

    first = run_command("sweep", "old:server", "--only", "retention", cwd=here, DB_WRITE_URL=sqlite_url)
    none = run_command("sweep", "old:server", "--only", "scheduled", cwd=here, DB_WRITE_URL=sqlite_url)
    wrong = run_command("sweep", "old:server", "--only", "retentoin", cwd=here, DB_WRITE_URL=sqlite_url)

    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [
        "Visit: 2 deleted, 0 updated, 0 skipped",
        "retention: 2 deleted, 0 updated, 0 skipped, 0 failed",
    ]
    assert none.stdout.splitlines() == ["0 deleted, 0 updated, 0 skipped, 0 failed"]
    assert (wrong.returncode, "none of scheduled, files, retention" in wrong.stderr) == (2, True)


def test_a_person_is_erased_and_erased_again_after_a_restore(here: Path, sqlite_url: str) -> None:
    (here / "people.py").write_text(PEOPLE)

    def erase(*words: str) -> tuple[int, list[str]]:
        done = run_command("erase", *words, cwd=here, DB_WRITE_URL=sqlite_url)
        return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]

    dry_code, dry = erase("people:server", "p1", "--dry-run")
    assert (dry_code, dry[0], dry[-1]) == (0, "people: 1", "1 rows would be erased of p1")
    code, lines = erase("people:server", "p1", "--reason", "asked")
    assert (code, lines[0], lines[-1]) == (0, "people: 1", "1 rows were erased of p1")
    held_code, held = erase("people:server", "p2")
    assert (held_code, held[0]) == (1, "held, erased when the hold ends: Person p2")
    assert erase("log", "people:server", "log.jsonl") == (0, ["2 erasures in log.jsonl"])
    assert erase("people:server", "--replay", "log.jsonl") == (0, ["0 of 2 erasures were repeated"])
    (here / "log.jsonl").write_text('{"id": "0", "subject": "p3", "user_id": null, "finished_at": ""}')
    assert erase("people:server", "--replay", "log.jsonl")[1][0] == "p3: 1 rows were erased"
    assert erase("people:server")[0] == 2
    words = ("subject", "export", "people:server", "p2", "--out", "p2.zip")
    done = run_command(*words, cwd=here, DB_WRITE_URL=sqlite_url)
    assert (done.returncode, done.stdout) == (0, "2 files in p2.zip\n"), done.stderr
    with zipfile.ZipFile(here / "p2.zip") as archive:
        assert b"p2@example.org" in archive.read("people.jsonl")
    assert run_command(*words, cwd=here, DB_WRITE_URL=sqlite_url).returncode == 1
    shown = run_command("subject", "map", "people:server", cwd=here, DB_WRITE_URL=sqlite_url)
    assert shown.stdout.splitlines() == [
        "Person: subject id, anonymise",
        "  personal: email",
        "  other: id, held, created_at, updated_at",
    ]


def test_a_sweep_that_is_told_to_stop_says_what_it_did(here: Path, sqlite_url: str) -> None:
    (here / "slow.py").write_text(SLOW)
    with serve_process(here, "--no-work", DB_WRITE_URL=sqlite_url) as served:
        offers(served.url, ENDED, ENDED, ENDED)
    command: list[str | Path] = [MANIFLEX, "sweep", "slow:server"]
    with start_process(command, 0, cwd=here, DB_WRITE_URL=sqlite_url, SWEEP_BATCH_SIZE="1") as sweeping:
        until((here / "gone").exists, "the first record to be gone")
        sweeping.send(signal.SIGTERM)
        (here / "go").touch()
        assert sweeping.ended() == 1

    assert sweeping.output.splitlines()[-2:] == [
        "1 deleted, 0 updated, 0 skipped, 0 failed, more is due",
        "stopped early",
    ]


def test_a_sweep_that_hangs_is_stopped_when_its_time_is_up(here: Path, sqlite_url: str) -> None:
    (here / "slow.py").write_text(SLOW)
    with serve_process(here, "--no-work", DB_WRITE_URL=sqlite_url) as served:
        offers(served.url, ENDED)
    command: list[str | Path] = [MANIFLEX, "sweep", "slow:server"]
    with start_process(command, 0, cwd=here, DB_WRITE_URL=sqlite_url, SHUTDOWN_TIMEOUT="1s") as sweeping:
        until((here / "gone").exists, "the record to be gone")
        sweeping.send(signal.SIGTERM)
        assert sweeping.ended() == 1

    assert sweeping.output.splitlines()[-1] == "stopped early"


# -- drain


def test_a_drain_works_on_all_that_is_due_and_ends(here: Path, database_url: str) -> None:
    runs = [submitted(database_url, "default.note", n) for n in range(3)]
    paused = submitted(database_url, "default.pause")
    later = submitted(database_url, "default.note", delay=3600)
    asked(database_url, lambda s: s.outbox.enqueue("order.placed", "a", outside_transaction=True))

    drained = run_command("drain", "app:server", cwd=here, DB_WRITE_URL=database_url)

    assert drained.returncode == 0, drained.stderr
    assert drained.stdout.splitlines() == [
        "runs: 3 succeeded, 0 to be tried again, 0 failed, 1 paused",
        "outbox: 1 delivered, 0 to be tried again, 0 given up",
    ]
    assert {found(database_url, r.id).status for r in runs} == {"succeeded"}
    assert {found(database_url, r.id).status for r in (later, paused)} == {"pending"}
    assert (here / "placed-a").exists()


def test_a_drain_ends_with_1_when_something_failed(here: Path, sqlite_url: str) -> None:
    submitted(sqlite_url, "default.fail", max_attempts=1)
    asked(sqlite_url, lambda s: s.outbox.enqueue("order.placed", "bad", outside_transaction=True))

    runs = run_command("drain", "app:server", "--only", "runs", cwd=here, DB_WRITE_URL=sqlite_url)
    messages = run_command("drain", "app:server", "--only", "outbox", cwd=here, DB_WRITE_URL=sqlite_url)

    assert (runs.returncode, runs.stdout) == (
        1,
        "runs: 0 succeeded, 0 to be tried again, 1 failed, 0 paused\n",
    )
    assert (messages.returncode, messages.stdout) == (
        1,
        "outbox: 0 delivered, 1 to be tried again, 0 given up\n",
    )


def test_a_drain_that_is_told_to_stop_hands_back(here: Path, sqlite_url: str) -> None:
    held = submitted(sqlite_url, "default.hold")
    command: list[str | Path] = [MANIFLEX, "drain", "app:server"]
    with start_process(command, 0, cwd=here, DB_WRITE_URL=sqlite_url) as draining:
        until((here / "began-1").exists, "the run to begin")
        draining.send(signal.SIGTERM)
        assert draining.ended() == 1

    back = found(sqlite_url, held.id)
    assert (back.status, back.attempt) == ("pending", 0)


def test_a_drain_that_is_told_to_stop_says_what_it_did(here: Path, database_url: str) -> None:
    asked(database_url, lambda s: s.outbox.enqueue("order.placed", "a", outside_transaction=True))
    for type in ("default.note", "default.note", "default.hold"):
        submitted(database_url, type)
    command: list[str | Path] = [MANIFLEX, "drain", "app:server"]
    with start_process(command, 0, cwd=here, DB_WRITE_URL=database_url) as draining:
        until((here / "began-1").exists, "the run to begin")
        draining.send(signal.SIGTERM)
        assert draining.ended() == 1

    assert draining.output.splitlines()[-3:] == [
        "runs: 2 succeeded, 0 to be tried again, 0 failed, 1 not finished",
        "outbox: 1 delivered, 0 to be tried again, 0 given up",
        "stopped early",
    ]


def test_a_drain_that_is_told_twice_waits_for_nobody(here: Path, sqlite_url: str) -> None:
    submitted(sqlite_url, "default.stubborn")
    command: list[str | Path] = [MANIFLEX, "drain", "app:server"]
    with start_process(command, 0, cwd=here, DB_WRITE_URL=sqlite_url) as draining:
        until((here / "began-1").exists, "the run to begin")
        draining.send(signal.SIGTERM)
        until((here / "told").exists, "the run to be told")
        draining.send(signal.SIGTERM)
        assert draining.ended() == 1

    assert draining.output.splitlines()[-3:] == [
        "runs: 0 succeeded, 0 to be tried again, 0 failed, 1 not finished",
        "outbox: 0 delivered, 0 to be tried again, 0 given up",
        "stopped early",
    ]


JOBS = """
import os
from maniflex import Server
from maniflex.background.jobs.redis import RedisQueue

server = Server("sqlite:///jobs.db")
server.jobs.use(RedisQueue(os.environ["REDIS_URL"], prefix=os.environ["JOBS_PREFIX"]))

@server.jobs.handler("thumb")
async def thumb(job):
    open(f"thumb-{job.payload}", "w").close()
"""
PUT = """
import asyncio
from jobs import server

async def main():
    async with server.lifespan(role="client"):
        for n in range(3):
            await server.jobs.enqueue("thumb", n)

asyncio.run(main())
"""


def test_a_drain_works_on_jobs_of_another_queue(here: Path, redis_url: str) -> None:
    (here / "jobs.py").write_text(JOBS)
    queue = {"REDIS_URL": redis_url, "JOBS_PREFIX": new_id()}
    subprocess.run([sys.executable, "-c", PUT], cwd=here, env={**os.environ, **queue}, check=True)

    drained = run_command("drain", "jobs:server", "--only", "jobs", cwd=here, **queue)

    assert (drained.returncode, drained.stdout) == (0, "jobs: 3 worked on\n"), drained.stderr
    assert all((here / f"thumb-{n}").exists() for n in range(3))
    assert run_command("drain", "jobs:server", cwd=here, **queue).stdout.endswith("jobs: 0 worked on\n")


def test_jobs_that_are_runs_are_drained_as_such(here: Path, sqlite_url: str) -> None:
    ended = run_command("drain", "app:server", "--only", "jobs", cwd=here, DB_WRITE_URL=sqlite_url)

    assert ended.returncode == 1
    assert "see --only runs" in ended.stderr


# -- runs


def test_runs_can_be_looked_after_from_a_terminal(here: Path, database_url: str) -> None:
    one = submitted(database_url, "default.note", {"n": 1}, actor_id="ada")
    submitted(database_url, "media.note", tenant_id="acme")

    def asked_for(*arguments: str) -> str:
        ended = run_command("runs", *arguments, cwd=here, DB_WRITE_URL=database_url)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    table = asked_for("list", "app:server").splitlines()
    assert table[0].split() == ["id", "type", "status", "attempt", "run_at", "last_error"]
    assert [line.split()[1] for line in table[1:]] == ["media.note", "default.note"]
    listed = json.loads(asked_for("list", "app:server", "--actor", "ada", "--json"))
    assert [(r["id"], r["payload"]) for r in listed] == [(one.id, {"n": 1})]
    assert "lease" not in listed[0]
    for options in (("--tenant", "acme"), ("--prefix", "media."), ("--type", "media.note"), ("--limit", "1")):
        [only] = json.loads(asked_for("list", "app:server", "--json", *options))
        assert only["type"] == "media.note"

    assert "cancelled" in asked_for("cancel", "app:server", one.id)
    assert asked_for("list", "app:server", "--status", "cancelled").count("\n") == 2
    assert json.loads(asked_for("retry", "app:server", one.id, "--json"))[0]["status"] == "pending"
    shown = asked_for("show", "app:server", one.id)
    assert 'payload         {"n":1}' in shown
    assert [line.split()[-1] for line in shown.splitlines()[-3:]] == ["created", "cancelled", "retried"]
    events = json.loads(asked_for("show", "app:server", one.id, "--json"))["events"]
    assert [event["event_type"] for event in events] == ["created", "cancelled", "retried"]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_run_that_cannot_be_read_is_looked_after_like_the_others(
    here: Path, request: pytest.FixtureRequest, database: str
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    bad, good = (submitted(url, "default.note", n) for n in range(2))
    broken = "x'ff'" if database == "sqlite" else r"""'"\ud800"'"""
    spoil = f"UPDATE workflow_run SET payload = {broken} WHERE id = '{bad.id}'"
    asked(url, lambda server: server.raw_exec(spoil))

    listed = run_command("runs", "list", "app:server", "--json", cwd=here, DB_WRITE_URL=url)
    assert {one["id"] for one in json.loads(listed.stdout)} == {bad.id, good.id}
    for command in ("show", "cancel", "retry", "show"):
        ended = run_command("runs", command, "app:server", bad.id, cwd=here, DB_WRITE_URL=url)
        assert ended.returncode == 0, ended.stderr
    assert "$unreadable" in ended.stdout


def test_looking_at_runs_makes_no_database(here: Path) -> None:
    ended = run_command("runs", "list", "app:server", cwd=here, DB_WRITE_URL="sqlite:///typo.db")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "Error: there is no database 'typo.db'; it is made when the server starts\n"
    assert not (here / "typo.db").exists()


def test_looking_at_runs_migrates_nothing(here: Path, database_url: str) -> None:
    async def empty_database() -> None:
        async with Server(database_url).lifespan(role="client"):
            pass

    asyncio.run(empty_database())

    for arguments in (("list",), ("show", "1"), ("cancel", "1"), ("retry", "1")):
        ended = run_command(
            "runs", arguments[0], "app:server", *arguments[1:], cwd=here, DB_WRITE_URL=database_url
        )
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.endswith(
            "has no table workflow_run; a server that has durable work makes it when it starts\n"
        )
        assert "Traceback" not in ended.stderr


def test_what_cannot_be_done_to_a_run_is_said_and_ends_with_1(here: Path, sqlite_url: str) -> None:
    one = submitted(sqlite_url, "default.note")

    cancelled = run_command(
        "runs", "cancel", "app:server", "nothing", one.id, cwd=here, DB_WRITE_URL=sqlite_url
    )
    assert cancelled.returncode == 1
    assert cancelled.stderr == "nothing: run not found\n"
    assert one.id in cancelled.stdout
    again = run_command("runs", "cancel", "app:server", one.id, cwd=here, DB_WRITE_URL=sqlite_url)
    assert (again.returncode, again.stdout) == (1, "")
    assert "the run is cancelled already" in again.stderr
    unknown = run_command("runs", "show", "app:server", "nothing", cwd=here, DB_WRITE_URL=sqlite_url)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "not found" in unknown.stderr
    assert "Traceback" not in unknown.stderr


# -- progress


@pytest.mark.parametrize("total", [None, 10])
def test_progress_is_for_people(total: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("things", total, shown=False) as silent:
        silent.to(3)
    assert capsys.readouterr().err == ""

    with Progress("things", total, shown=True) as bar:
        bar.after(2)(3)
        bar.one_more()
    assert "things" in capsys.readouterr().err
