"""Runs, messages and jobs that are stored encrypted, in all that they hold (check 70)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from maniflex import AuthInfo, Fatal, Model, Run, Server, field
from maniflex.admin.tables import AdminEvent
from maniflex.background.jobs.inproc import InProcessQueue
from maniflex.background.jobs.nats import NatsQueue
from maniflex.background.jobs.port import Job
from maniflex.background.jobs.redis import RedisQueue
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import OutboxMessage
from maniflex.encryption import MemoryKeyProvider
from maniflex.encryption.local import EnvKeyProvider, generate_key
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.middleware import auth
from tests.kit.commands import Commands
from tests.kit.http import data_of
from tests.kit.nats_queue import PrivateNats
from tests.kit.panel import visiting
from tests.kit.redis_queue import forgotten, keys
from tests.kit.runs import no_pause
from tests.kit.stored_bytes import stored_bytes
from tests.kit.workshop import OPERATIONS

SECRETS = {"default": bytes(range(32)), "pii": bytes(range(32, 64)), "next": bytes(range(64, 96))}
KEY = "k" * 24
PLAIN = "planted-zyxwvutsrqpo"


def a_server(url: str, provider: Any = None, **settings: Any) -> Server:
    return Server(
        url,
        background=False,
        key_provider=provider or MemoryKeyProvider(SECRETS),
        log_level="DEBUG",
        **settings,
    )


class Patient(Model):
    name: str = field()
    ssn: str = field(encrypted=True)


def planted(name: str) -> str:
    return f"{PLAIN}-{name}"


async def test_nothing_of_an_encrypted_run_is_stored_or_logged_in_plain(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = a_server(database_url)
    seen: list[Any] = []

    @server.work.handler("kyc.check.v1", encrypted="pii", backoff=no_pause)
    async def check(run: Run[Any]) -> Any:
        seen.append(run.payload)
        step = await run.step("score", lambda: {"score": planted("step")})
        if run.attempt == 1:
            raise OSError(planted("error"))
        child = await run.call("kyc.child.v1", {"of": planted("child")}, name="c")
        signal = await run.wait_for("approved")
        return {"result": planted("result"), "step": step, "child": child, "signal": signal}

    @server.work.handler("kyc.child.v1", encrypted=True)
    async def child(run: Run[Any]) -> Any:
        return planted("child-result")

    @server.work.handler("kyc.fails.v1", encrypted=True, max_attempts=1)
    async def fails(run: Run[Any]) -> Any:
        raise Fatal(planted("fatal"))

    async with server.lifespan():
        work = server.work
        run = await work.submit("kyc.check.v1", {"ssn": planted("payload")}, idempotency_key="k")
        assert run.payload == {"ssn": planted("payload")}
        again = await work.submit("kyc.check.v1", {"ssn": planted("payload")}, idempotency_key="k")
        assert (again.id, again.payload) == (run.id, run.payload)
        await work.signal(run.id, "approved", {"by": planted("signal")})
        failing = await work.submit("kyc.fails.v1", {"x": planted("payload-2")})
        worker = work.worker()
        await worker.drain()
        done = await work.get(run.id)
        assert done.status == "succeeded", done
        assert seen[0] == {"ssn": planted("payload")}
        assert done.result == {
            "result": planted("result"),
            "step": {"score": planted("step")},
            "child": planted("child-result"),
            "signal": {"by": planted("signal")},
        }
        failed = await work.get(failing.id)
        assert failed.status == "failed"
        assert failed.error is not None
        assert failed.error["code"] == "fatal"
        assert failed.last_error is not None
        assert planted("fatal") in failed.last_error
        steps = {step.name: step.result for step in await work.steps(run.id)}
        assert steps["score"] == {"score": planted("step")}
        content = await stored_bytes(database_url)
        logged = "\n".join([caplog.text, *(str(vars(record)) for record in caplog.records)])
        assert PLAIN.encode() not in content
        assert PLAIN not in logged
        assert b"enc:" in content


async def test_a_step_of_an_encrypted_run_is_not_done_again_by_another_process(database_url: str) -> None:
    calls: list[str] = []

    def a_process(fails: bool) -> Server:
        server = a_server(database_url)

        def step() -> str:
            calls.append("once")
            return planted("step")

        @server.work.handler("kyc.v1", encrypted=True, backoff=no_pause)
        async def handler(run: Run[Any]) -> Any:
            text = await run.step("once", step)
            if fails:
                raise OSError("the process is about to end")
            return text

        return server

    first = a_process(fails=True)
    async with first.lifespan():
        run = await first.work.submit("kyc.v1", {"a": 1}, max_attempts=4)
        await first.work.worker().drain()
        assert (await first.work.get(run.id)).status == "failed"
        await first.work.retry(run.id)
    second = a_process(fails=False)
    async with second.lifespan():
        await second.work.worker().drain()
        assert (await second.work.get(run.id)).result == planted("step")
    assert calls == ["once"]


@pytest.mark.parametrize("kind", ["damaged", "moved", "no key"])
async def test_a_payload_that_does_not_open_fails_its_run_alone(database_url: str, kind: str) -> None:
    server, handled = a_server(database_url), list[Any]()

    @server.work.handler("kyc.v1", encrypted=True)
    async def handler(run: Run[Any]) -> Any:
        handled.append(run.payload)

    async with server.lifespan():
        bad = await server.work.submit("kyc.v1", {"n": 1})
        good = await server.work.submit("kyc.v1", {"n": 2})
        wrong = {
            "damaged": "'\"enc:AwAHZGVmYXVsdAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"'",
            "moved": f"(SELECT payload FROM workflow_run WHERE id = '{good.id}')",
            "no key": "'\"enc:AwADeHl6AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\"'",
        }[kind]
        change = f"UPDATE workflow_run SET payload = {wrong} WHERE id = '{bad.id}'"
        await server.raw_exec(change)
        await server.work.worker().drain()
        failed = await server.work.get(bad.id)
        assert failed.status == "failed"
        assert failed.error is not None
        assert failed.error["code"] == "undecryptable"
        assert (await server.work.get(good.id)).status == "succeeded"
        assert handled == [{"n": 2}]


async def test_runs_and_messages_from_before_stay_readable(database_url: str) -> None:
    handled: list[Any] = []

    def a_version(encrypted: bool) -> Server:
        server = a_server(database_url)

        @server.work.handler("kyc.v1", encrypted=encrypted)
        async def handler(run: Run[Any]) -> Any:
            handled.append(run.payload)
            return run.payload

        @server.outbox.handler("told", encrypted=encrypted)
        async def tell(message: Message) -> None:
            handled.append(message.payload)

        return server

    before = a_version(encrypted=False)
    async with before.lifespan():
        run = await before.work.submit("kyc.v1", "enc:AwAHZGVmYXVsdA==")
        await before.outbox.enqueue("told", {"n": 1}, outside_transaction=True)
    after = a_version(encrypted=True)
    async with after.lifespan():
        await after.outbox.enqueue("told", "enc:AwAH", outside_transaction=True)
        await after.work.worker().drain()
        await after.outbox.drainer().drain()
        assert (await after.work.get(run.id)).result == "enc:AwAHZGVmYXVsdA=="
    assert handled == ["enc:AwAHZGVmYXVsdA==", {"n": 1}, "enc:AwAH"]


async def test_plain_work_from_before_reaches_no_handler_where_it_is_refused(database_url: str) -> None:
    handled: list[Any] = []

    def a_version(encrypted: bool, **settings: Any) -> Server:
        server = a_server(database_url, **settings)

        @server.work.handler("kyc.v1", encrypted=encrypted)
        async def handler(run: Run[Any]) -> Any:
            handled.append(run.payload)

        @server.outbox.handler("told", encrypted=encrypted)
        async def tell(message: Message) -> None:
            handled.append(message.payload)

        @server.work.handler("open.v1")
        async def open_to_all(run: Run[Any]) -> Any:
            return run.payload

        return server

    before = a_version(encrypted=False)
    async with before.lifespan():
        plain = await before.work.submit("kyc.v1", {"n": 1})
        told = await before.outbox.enqueue("told", {"n": 2}, outside_transaction=True)
        other = await before.work.submit("open.v1", {"n": 3})
    after = a_version(encrypted=True, encryption_legacy="refuse")
    async with after.lifespan():
        own = await after.work.submit("kyc.v1", {"n": 4})
        await after.work.worker().drain()
        await after.outbox.drainer().drain()
        refused = await after.work.get(plain.id)
        assert (refused.status, (refused.error or {})["code"]) == ("failed", "undecryptable")
        row = await after.db(OutboxMessage).read(told.id)
        assert row.status == "dead"
        assert "undecryptable" in str(row.last_error)
        # Types that are not encrypted are as they were.
        assert (await after.work.get(other.id)).result == {"n": 3}
        assert (await after.work.get(own.id)).status == "succeeded"
        assert handled == [{"n": 4}]
    forgiving = a_version(encrypted=True)
    async with forgiving.lifespan():
        await forgiving.work.retry(plain.id)
        await forgiving.work.worker().drain()
        assert (await forgiving.work.get(plain.id)).status == "succeeded"
    assert handled == [{"n": 4}, {"n": 1}]


APP = """
from maniflex import Config, Run, Server
from maniflex.encryption import EnvKeyProvider

server = Server(Config.from_env())
server.set_key_provider(EnvKeyProvider({current}))

@server.work.handler("kyc.v1", encrypted=True)
async def check(run: Run):
    return run.payload
"""


def test_the_commands_count_and_rotate_what_work_holds(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key_id in ("DEFAULT", "NEXT"):
        monkeypatch.setenv(f"MFX_KEY_{key_id}", generate_key())
    (tmp_path / "app.py").write_text(APP.format(current=""))
    commands = Commands(tmp_path, database_url, monkeypatch)

    async def submit() -> None:
        server = a_server(database_url, EnvKeyProvider())
        server.work.enable()
        async with server.lifespan():
            await server.work.submit("kyc.v1", {"passport": "C01X00T47"}, encrypted=True)

    asyncio.run(submit())
    assert "C01X" not in (shown := commands("keys", "status", "app:server", "--work"))
    assert "0 values are not under a current key" in shown
    assert commands.json("keys", "status", "app:server") == []  # of fields alone

    (tmp_path / "app.py").write_text(APP.format(current="current={'default': 'next'}"))
    assert "1 values are not under a current key" in commands("keys", "status", "app:server", "--work")
    tried = commands("keys", "rotate", "app:server", "--work", "--dry-run")
    assert "WorkflowRun: 1 rows, 1 to rotate, 0 failures" in tried
    rotated = commands("keys", "rotate", "app:server", "--work")
    assert "WorkflowRun: 1 rows, 1 rotated, 0 failures" in rotated
    [count] = commands.json("keys", "status", "app:server", "--work")
    assert (count["key_id"], count["count"], count["is_current"]) == ("next", 1, True)

    monkeypatch.delenv("MFX_KEY_DEFAULT")
    assert "0 values are not under a current key" in commands("keys", "status", "app:server", "--work")
    monkeypatch.setenv("MFX_KEY_NEXT", generate_key())
    failed = commands("keys", "rotate", "app:server", "--work", "--new", "next", "--old", "next", code=1)
    assert "WorkflowRun.payload" in failed


async def test_messages_are_stored_encrypted_and_dead_where_they_do_not_open(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = a_server(database_url, outbox_max_attempts=2)
    delivered, dead = list[Any](), list[Any]()

    @server.outbox.handler("kyc.done", encrypted="pii", backoff=lambda n: timedelta(0))
    async def done(message: Message) -> None:
        delivered.append((message.payload, message.last_error))
        if message.payload["n"] == 2:
            raise OSError(planted("error"))

    @server.outbox.dead_letter
    async def gone(message: Message, reason: str) -> None:
        dead.append((message.payload, reason))

    async with server.lifespan():
        async with server.transaction():
            made = await server.outbox.enqueue("kyc.done", {"n": 1, "text": planted("payload")})
            await server.outbox.enqueue("kyc.done", {"n": 2, "text": planted("other")})
            bad = await server.outbox.enqueue("kyc.done", {"n": 3})
            loose = await server.outbox.enqueue("kyc.elsewhere", {"n": 4, "t": planted("x")}, encrypted="pii")
        assert made.payload == {"n": 1, "text": planted("payload")}
        moved = f"(SELECT payload FROM outbox_event WHERE id = '{made.id}')"
        await server.raw_exec(f"UPDATE outbox_event SET payload = {moved} WHERE id = '{bad.id}'")
        await server.outbox.drainer().drain()
        await server.outbox.drainer().drain()
        rows = {row.id: row for row in await server.db(OutboxMessage).list(limit=10)}
        assert rows[made.id].status == "delivered"
        assert rows[bad.id].status == "dead"
        assert "undecryptable" in (rows[bad.id].last_error or "")
        assert rows[loose.id].payload == {"n": 4, "t": planted("x")}
        assert delivered[0] == ({"n": 1, "text": planted("payload")}, None)
        retried = [error for payload, error in delivered if payload["n"] == 2]
        assert len(retried) == 2
        assert planted("error") in (retried[1] or "")
        assert any(payload == {"n": 2, "text": planted("other")} for payload, _ in dead)
        assert PLAIN.encode() not in await stored_bytes(database_url)
        logged = "\n".join([caplog.text, *(str(vars(record)) for record in caplog.records)])
        assert PLAIN not in logged


async def test_a_record_with_encrypted_fields_is_payload_of_encrypted_types_alone(
    database_url: str,
) -> None:
    server, handled = a_server(database_url), list[Any]()
    server.register(Patient)

    @server.work.handler("kyc.v1", encrypted=True, payload=Patient)
    async def handler(run: Run[Patient]) -> Any:
        handled.append(run.payload.ssn)
        return run.payload

    @server.work.handler("open.v1")
    async def unsealed(run: Run[Any]) -> Any: ...

    async with server.lifespan():
        ada = await server.db(Patient).create(name="Ada", ssn=planted("ssn"))
        run = await server.work.submit("kyc.v1", ada)
        with pytest.raises(ValidationFailed, match="encrypted"):
            await server.work.submit("open.v1", ada)
        await server.work.worker().drain()
        assert (await server.work.get(run.id)).result == {
            **ada.model_dump(mode="json"),
            "ssn": planted("ssn"),
        }
        assert handled == [planted("ssn")]
        assert PLAIN.encode() not in await stored_bytes(database_url)


async def test_dead_letters_of_encrypted_runs_are_encrypted(database_url: str) -> None:
    server, letters = a_server(database_url), list[Any]()

    @server.work.handler("kyc.v1", encrypted=True, max_attempts=1, dead_letter="kyc.dead.v1")
    async def handler(run: Run[Any]) -> Any:
        raise OSError(planted("error"))

    @server.work.handler("kyc.dead.v1")
    async def letter(run: Run[Any]) -> Any:
        letters.append(run.payload)

    async with server.lifespan():
        await server.work.submit("kyc.v1", {"a": planted("payload")})
        await server.work.worker().drain()
        await server.work.worker().drain()
        [told] = letters
        assert told["payload"] == {"a": planted("payload")}
        assert planted("error") in told["error"]
        assert PLAIN.encode() not in await stored_bytes(database_url)


async def test_what_work_holds_is_rotated_and_counted(database_url: str) -> None:
    def a_version(current: dict[str, str], secrets: dict[str, bytes]) -> Server:
        server = a_server(database_url, MemoryKeyProvider(secrets, current=current))

        @server.work.handler("kyc.v1", encrypted=True)
        async def handler(run: Run[Any]) -> Any:
            await run.step("one", lambda: planted("step"))
            return [run.payload, await run.wait_for("go")]

        server.outbox.enable()
        return server

    first = a_version({}, SECRETS)
    async with first.lifespan():
        done = await first.work.submit("kyc.v1", {"n": 1})
        waiting = await first.work.submit("kyc.v1", {"n": 2})
        await first.work.signal(done.id, "go", "now")
        await first.work.worker().drain()
        await first.outbox.enqueue("told", {"n": 3}, encrypted=True, outside_transaction=True)
        assert all(one.is_current for one in await first.keys.status(work=True))
    second = a_version({"default": "next"}, SECRETS)
    async with second.lifespan():
        old = [one for one in await second.keys.status(work=True) if not one.is_current]
        assert {one.field for one in old} == {"payload", "result"}
        assert {one.key_id for one in old} == {"default"}
        await second.work.signal(waiting.id, "go", "later")
        reports = await second.keys.rotate_work()
        assert all(one.complete for one in reports)
        assert sum(one.rotated for one in reports) >= 5
        assert all(one.is_current for one in await second.keys.status(work=True))
    without = {name: secret for name, secret in SECRETS.items() if name != "default"}
    third = a_version({"default": "next"}, without)
    async with third.lifespan():
        assert (await third.work.get(done.id)).result == [{"n": 1}, "now"]
        await third.work.worker().drain()
        assert (await third.work.get(waiting.id)).result == [{"n": 2}, "later"]


async def test_a_handler_whose_key_is_missing_stops_the_start(database_url: str) -> None:
    server = a_server(database_url, MemoryKeyProvider({"default": SECRETS["default"]}))

    @server.work.handler("kyc.v1", encrypted="absent")
    async def handler(run: Run[Any]) -> Any: ...

    with pytest.raises(DeclarationError, match=r"work handler 'kyc.v1'.*absent"):
        async with server.lifespan():
            pass


@pytest.mark.parametrize("name", ["redis", "nats", "memory"])
async def test_jobs_of_other_queues_are_encrypted_in_them(
    database_url: str, redis_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with PrivateNats() if name == "nats" else nullcontext() as nats:
        await check_jobs(database_url, a_queue(name, redis_url, nats), caplog, nats)


def a_queue(name: str, redis_url: str, nats: PrivateNats | None) -> Any:
    if name == "redis":
        return RedisQueue(redis_url, prefix=f"maniflex-test:{uuid4().hex}")
    return InProcessQueue() if nats is None else NatsQueue(nats.url)


async def check_jobs(
    database_url: str, queue: Any, caplog: pytest.LogCaptureFixture, nats: PrivateNats | None
) -> None:
    server = a_server(database_url)
    server.jobs.use(queue, dlq_type="dead.v1")
    handled, letters = list[Any](), list[Any]()

    @server.jobs.handler("kyc.v1", encrypted="pii", backoff=no_pause)
    async def check(job: Job) -> Any:
        handled.append(job.payload)
        raise OSError(planted("error"))

    @server.jobs.handler("dead.v1")
    async def dead(job: Job) -> Any:
        letters.append(job.payload)

    server.jobs.mount_status()
    async with server.lifespan():
        await server.jobs.enqueue("kyc.v1", {"ssn": planted("payload")}, max_retry=2)
        stored = await everything_in(queue, nats)
        assert PLAIN.encode() not in stored
        assert isinstance(queue, InProcessQueue) or b"enc:" in stored
        worker = server.jobs.worker()
        await worker.drain()
        assert handled == [{"ssn": planted("payload")}] * 2
        [letter] = letters
        assert letter["payload"] == {"ssn": planted("payload")}
        assert PLAIN.encode() not in await stored_bytes(database_url)
        logged = "\n".join([caplog.text, *(str(vars(record)) for record in caplog.records)])
        assert PLAIN not in logged
        assert PLAIN.encode() not in await everything_in(queue, nats)
        if isinstance(queue, RedisQueue):
            await forgotten(queue)


async def everything_in(queue: Any, nats: PrivateNats | None) -> bytes:
    """What the queue keeps outside of this process."""
    if nats is not None:
        return b"".join(file.read_bytes() for file in nats.streams.rglob("*") if file.is_file())
    if not isinstance(queue, RedisQueue):
        return b""
    redis = queue._redis()
    return b"\n".join([await redis.dump(key) or b"" for key in await keys(queue)])


async def test_callers_see_their_run_open_and_pages_of_the_panel_ask_first(database_url: str) -> None:
    server = a_server(database_url)

    @server.work.handler("kyc.v1", encrypted=True, public=True)
    async def handler(run: Run[Any]) -> Any:
        await run.step("look", lambda: planted("step"))
        return planted("result")

    server.outbox.enable()
    server.admin()
    server.pipeline.auth.register(auth.api_keys(keys={KEY: AuthInfo(user_id="clerk", roles=("admin",))}))
    async with visiting(server, database_url) as browser:
        headers, body = {"X-API-Key": KEY}, {"type": "kyc.v1", "payload": {"a": PLAIN}}
        answer = await browser.http.post("/api/workflow_run", json=body, headers=headers)
        run_id = data_of(answer, 201)["id"]
        await server.work.worker().drain()
        run = data_of(await browser.http.get(f"/api/workflow_run/{run_id}", headers=headers))
        assert (run["payload"], run["result"]) == ({"a": PLAIN}, planted("result"))
        message = await server.outbox.enqueue("told", {"n": PLAIN}, encrypted=True, outside_transaction=True)
        page = f"{OPERATIONS}/runs/{run_id}"
        told = f"{OPERATIONS}/outbox/{message.id}"
        new = f"{OPERATIONS}/runs/new?from={run_id}"
        for path in (f"{OPERATIONS}/runs", f"{OPERATIONS}/outbox", page, f"{page}/live", told, new):
            assert PLAIN not in await browser.get(path), path
        await browser.get(page)
        shown = await browser.post(f"{page}/reveal")
        assert planted("result") in shown.text
        assert planted("step") in shown.text
        assert PLAIN in (await browser.post(f"{told}/reveal")).text
        events = await server.db(AdminEvent).list(filters=[("action", "eq", "reveal")])
        assert {event.record_id for event in events} == {run_id, message.id}
        place = await browser.send(f"{page}/resubmit")
        again = await server.work.get(place.rpartition("/")[2])
        assert again.payload == {"a": PLAIN}
        assert PLAIN.encode() not in await stored_bytes(database_url)
