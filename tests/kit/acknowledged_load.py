"""Writes, runs and messages at a steady pace through outages; what was acknowledged must be there once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta

import httpx

from maniflex import Model, Run, Server, field
from maniflex.background.outbox.message import Message
from maniflex.errors import RequestError
from maniflex.middleware import idempotency
from tests.kit.waiting import eventually

UNFINISHED = (
    "SELECT count(*) AS n FROM workflow_run WHERE status <> 'succeeded'",
    "SELECT count(*) AS n FROM outbox_event WHERE status <> 'delivered'",
)


class LoadNote(Model):
    text: str = field(filterable=True)


class LoadMark(Model):
    number: int = field(filterable=True)


class AcknowledgedLoad:
    """A server of its own; each write is sent again, with its key, until it is acknowledged."""

    def __init__(self, url: str) -> None:
        self.server = Server(url, work_lease=5, pool_timeout=timedelta(seconds=20), work_poll_interval=0.5)
        self.server.register(LoadNote, LoadMark)
        self.server.pipeline.deserialize.register(idempotency.keys(), at="after")
        retries = self.server.work.handler(
            "load.mark", max_attempts=100, backoff=lambda _: timedelta(seconds=0.2)
        )
        retries(self._mark)
        self.server.outbox.handler("load.told")(self._hear)
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self.notes: set[str] = set()
        self.runs: set[str] = set()
        self.heard: Counter[str] = Counter()
        self.refusals = 0
        self.written_at: list[float] = []

    async def _mark(self, run: Run) -> None:
        await self.server.db(LoadMark).create(number=run.payload["number"])

    async def _hear(self, message: Message) -> None:
        self.heard[message.payload["text"]] += 1

    async def run(self, http: httpx.AsyncClient, per_second: int) -> None:
        number = 0
        while not self._over:
            number += 1
            self._tasks.add(asyncio.create_task(self._write(http, f"note-{number}")))
            self._tasks.add(asyncio.create_task(self._submit(number)))
            await asyncio.sleep(1 / per_second)  # the pace of the load
        await asyncio.gather(*self._tasks)

    async def _write(self, http: httpx.AsyncClient, text: str) -> None:
        while True:
            key = {"Idempotency-Key": text}
            answer = await http.post("/api/load_notes", json={"text": text}, headers=key)
            if answer.status_code == 201:
                break
            assert answer.status_code in (409, 500, 503, 504), answer.text
            await self._come_again()
        self.notes.add(text)
        self.written_at.append(time.monotonic())

    async def _submit(self, number: int) -> None:
        while True:
            try:
                async with self.server.transaction():
                    key = f"run-{number}"
                    run = await self.server.work.submit("load.mark", {"number": number}, idempotency_key=key)
                    await self.server.outbox.enqueue("load.told", {"text": run.id})
            except RequestError:
                await self._come_again()
            else:
                self.runs.add(run.id)
                return

    async def _come_again(self) -> None:
        self.refusals += 1
        await asyncio.sleep(0.2)  # a client that comes again

    async def until_written(self, count: int) -> None:
        before = len(self.notes)
        await eventually(lambda: len(self.notes) >= before + count, "acknowledged writes", 120)

    def end(self) -> None:
        self._over = True

    async def check(self) -> str:
        """Wait for the last run and message, then compare; what was seen, in words."""
        for query in UNFINISHED:
            await eventually(lambda: self._is_zero(query), query, 90)  # noqa: B023
        notes = Counter(row["text"] for row in await self.server.raw_query("SELECT text FROM load_notes"))
        runs = [row["id"] for row in await self.server.raw_query("SELECT id FROM workflow_run")]
        marks = Counter(row["number"] for row in await self.server.raw_query("SELECT number FROM load_marks"))
        assert self.notes <= notes.keys()
        assert [text for text, times in notes.items() if times > 1] == []
        assert self.runs <= set(runs)
        assert len(set(runs)) == len(runs) == len(marks)
        assert self.runs <= self.heard.keys()
        return (
            f"{len(self.notes)} writes, {len(self.runs)} runs acknowledged, {self.refusals} refusals,"
            f" runs done again {marks.total() - len(marks)}, messages {self.heard.total() - len(self.heard)}"
        )

    async def _is_zero(self, query: str) -> bool:
        try:
            [row] = await self.server.raw_query(query)
        except RequestError:
            return False
        return bool(row["n"] == 0)
